//! Converts Markdown into blocks of the type `rich_text`, and blocks into mrkdwn.
//!
//! In blocks every piece of text has its styles beside it, so that no character of the text can
//! be mistaken for markup. The mrkdwn is for notifications and for clients that show no blocks.

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use serde_json::{Map, Value, json};

use super::wire::{list, text};
use crate::markdown::aligned_table;

/// Schemes that a link may have.
const LINK_SCHEMES: [&str; 3] = ["https://", "http://", "mailto:"];

/// Most levels of nested lists that Slack shows.
const MAX_INDENT: usize = 8;

/// Returns the blocks of a Markdown text.
pub(super) fn blocks(markdown: &str) -> Vec<Value> {
    let options =
        Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut writer = RichTextWriter::default();
    for event in Parser::new_ext(markdown, options) {
        writer.event(event);
    }
    writer.finish()
}

/// Returns the blocks of a text without markup.
pub(super) fn plain_blocks(text: &str) -> Vec<Value> {
    let mut writer = RichTextWriter::default();
    writer.push(text);
    writer.finish()
}

/// The styles of the text that follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct InlineStyle {
    bold: u32,
    italic: u32,
    strike: u32,
    code: bool,
}

impl InlineStyle {
    fn json(self) -> Option<Value> {
        let flags = [
            ("bold", self.bold > 0),
            ("italic", self.italic > 0),
            ("strike", self.strike > 0),
            ("code", self.code),
        ];
        let set = flags.into_iter().filter(|(_, is_set)| *is_set);
        let set: Map<_, _> = set.map(|(name, _)| (name.to_owned(), Value::Bool(true))).collect();
        (!set.is_empty()).then_some(Value::Object(set))
    }
}

/// A list that is open.
#[derive(Debug)]
struct OpenList {
    is_ordered: bool,
    /// The number of the next item, from 1.
    next: u64,
    items: Vec<Value>,
    /// The number of the first item in `items`.
    first: u64,
}

#[derive(Default)]
struct RichTextWriter {
    blocks: Vec<Value>,
    /// The parts of the current block.
    parts: Vec<Value>,
    /// The inline elements of the current section, item, quote or cell.
    inline: Vec<Value>,
    /// Text that has one style and is not an element yet.
    pending: String,
    style: InlineStyle,
    lists: Vec<OpenList>,
    quotes: usize,
    /// The text of an open code block.
    code: Option<String>,
    link: Option<String>,
    /// The rows of an open table.
    table: Option<Vec<Vec<String>>>,
}

impl RichTextWriter {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text)
            | Event::Html(text)
            | Event::InlineHtml(text)
            | Event::InlineMath(text)
            | Event::DisplayMath(text)
            | Event::FootnoteReference(text) => self.push(&text),
            Event::Code(code) => {
                self.flush();
                self.style.code = true;
                self.pending.push_str(&code);
                self.flush();
                self.style.code = false;
            }
            Event::SoftBreak | Event::HardBreak => self.push("\n"),
            Event::Rule => {
                self.end_block();
                self.blocks.push(json!({"type": "divider"}));
            }
            Event::TaskListMarker(is_done) => self.push(if is_done { "☑ " } else { "☐ " }),
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Paragraph | Tag::HtmlBlock => self.start_paragraph(),
            Tag::Heading { .. } => {
                self.start_paragraph();
                self.set_style(|style| style.bold += 1);
            }
            Tag::BlockQuote(_) => {
                if self.quotes == 0 {
                    self.end_section();
                }
                self.quotes += 1;
            }
            Tag::CodeBlock(CodeBlockKind::Fenced(_) | CodeBlockKind::Indented) => {
                self.code = Some(String::new());
            }
            Tag::List(first) => self.start_list(first),
            Tag::Item => self.start_item(),
            Tag::Table(_) => {
                self.start_paragraph();
                self.table = Some(Vec::new());
            }
            Tag::TableHead | Tag::TableRow => {
                if let Some(table) = &mut self.table {
                    table.push(Vec::new());
                }
            }
            Tag::Emphasis => self.set_style(|style| style.italic += 1),
            Tag::Strong => self.set_style(|style| style.bold += 1),
            Tag::Strikethrough => self.set_style(|style| style.strike += 1),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } if self.link.is_none() => {
                self.flush();
                self.link = Some(dest_url.into_string());
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(_) => self.set_style(|style| style.bold = style.bold.saturating_sub(1)),
            TagEnd::BlockQuote(_) => {
                self.quotes = self.quotes.saturating_sub(1);
                if self.quotes == 0 {
                    self.end_inline("rich_text_quote");
                }
            }
            TagEnd::CodeBlock => self.end_code(),
            TagEnd::List(_) => self.end_list(),
            TagEnd::Item => self.end_item(),
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.pending).replace('\n', " ");
                if let Some(row) = self.table.as_mut().and_then(|table| table.last_mut()) {
                    row.push(cell);
                }
            }
            TagEnd::Table => {
                let table = aligned_table(&self.table.take().unwrap_or_default());
                self.code = Some(table);
                self.end_code();
            }
            TagEnd::Emphasis => {
                self.set_style(|style| style.italic = style.italic.saturating_sub(1));
            }
            TagEnd::Strong => self.set_style(|style| style.bold = style.bold.saturating_sub(1)),
            TagEnd::Strikethrough => {
                self.set_style(|style| style.strike = style.strike.saturating_sub(1));
            }
            TagEnd::Link | TagEnd::Image => self.end_link(),
            _ => {}
        }
    }

    fn push(&mut self, text: &str) {
        match &mut self.code {
            Some(code) => code.push_str(text),
            None => self.pending.push_str(text),
        }
    }

    fn set_style(&mut self, change: impl FnOnce(&mut InlineStyle)) {
        if self.table.is_none() {
            self.flush();
            change(&mut self.style);
        }
    }

    /// Turns the pending text into elements.
    fn flush(&mut self) {
        if self.table.is_some() || self.link.is_some() && !self.style.code {
            return;
        }
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return;
        }
        if self.style.code {
            return self.element(json!({"type": "text", "text": pending}));
        }
        let mut rest = pending.as_str();
        while let Some((before, found, after)) = next_reference(rest) {
            if !before.is_empty() {
                self.element(json!({"type": "text", "text": before}));
            }
            self.element(found);
            rest = after;
        }
        if !rest.is_empty() {
            self.element(json!({"type": "text", "text": rest}));
        }
    }

    /// Adds an element with the current style.
    fn element(&mut self, mut element: Value) {
        if let Some(style) = self.style.json() {
            element["style"] = style;
        }
        self.inline.push(element);
    }

    fn end_link(&mut self) {
        let Some(url) = self.link.take() else { return };
        let label = std::mem::take(&mut self.pending);
        let has_scheme = LINK_SCHEMES.iter().any(|scheme| {
            url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        });
        match (has_scheme, label.is_empty()) {
            (true, true) => self.element(json!({"type": "link", "url": url})),
            (true, false) => self.element(json!({"type": "link", "url": url, "text": label})),
            (false, true) => self.element(json!({"type": "text", "text": url})),
            (false, false) => {
                self.element(json!({"type": "text", "text": format!("{label} ({url})")}));
            }
        }
    }

    /// Separates a paragraph from the text before it in the same section.
    fn start_paragraph(&mut self) {
        self.flush();
        if !self.inline.is_empty() {
            let gap = if self.lists.is_empty() { "\n\n" } else { "\n" };
            self.inline.push(json!({"type": "text", "text": gap}));
        }
    }

    fn start_list(&mut self, first: Option<u64>) {
        self.flush();
        if self.quotes == 0 {
            match self.lists.last() {
                None => self.end_section(),
                Some(_) => {
                    self.store_item();
                    self.store_list();
                }
            }
        }
        let next = first.unwrap_or(1);
        let is_ordered = first.is_some();
        self.lists.push(OpenList { is_ordered, next, items: Vec::new(), first: next });
    }

    fn start_item(&mut self) {
        // A quote has no lists, so the mark is written.
        if self.quotes > 0 {
            let depth = self.lists.len().saturating_sub(1);
            let Some(list) = self.lists.last() else { return };
            let mark = if list.is_ordered { format!("{}. ", list.next) } else { "• ".to_owned() };
            let line = if self.inline.is_empty() { "" } else { "\n" };
            let text = format!("{line}{}{mark}", "    ".repeat(depth));
            self.inline.push(json!({"type": "text", "text": text}));
        }
    }

    fn end_item(&mut self) {
        self.flush();
        if self.quotes > 0 {
            if let Some(list) = self.lists.last_mut() {
                list.next += 1;
            }
            return;
        }
        self.store_item();
        if let Some(list) = self.lists.last_mut() {
            list.next = list.first + list.items.len() as u64;
        }
    }

    /// Adds the current inline elements to the open list as an item.
    fn store_item(&mut self) {
        self.flush();
        let elements = std::mem::take(&mut self.inline);
        if let Some(list) = self.lists.last_mut()
            && !elements.is_empty()
        {
            list.items.push(json!({"type": "rich_text_section", "elements": elements}));
        }
    }

    /// Adds the items of the open list as a part. The list stays open for further items.
    fn store_list(&mut self) {
        let indent = self.lists.len().saturating_sub(1).min(MAX_INDENT);
        let Some(list) = self.lists.last_mut() else { return };
        let items = std::mem::take(&mut list.items);
        if items.is_empty() {
            return;
        }
        let (first, count) = (list.first, items.len() as u64);
        let style = if list.is_ordered { "ordered" } else { "bullet" };
        let mut part =
            json!({"type": "rich_text_list", "style": style, "indent": indent, "elements": items});
        if list.is_ordered && first > 1 {
            part["offset"] = json!(first - 1);
        }
        list.first = first + count;
        list.next = list.first;
        self.parts.push(part);
    }

    fn end_list(&mut self) {
        if self.quotes == 0 {
            self.store_list();
        }
        self.lists.pop();
    }

    fn end_code(&mut self) {
        let code = self.code.take().unwrap_or_default();
        let code = code.trim_end_matches('\n');
        if self.quotes > 0 {
            self.start_paragraph();
            return self
                .inline
                .push(json!({"type": "text", "text": code, "style": {"code": true}}));
        }
        match self.lists.is_empty() {
            true => self.end_section(),
            false => {
                self.store_item();
                self.store_list();
            }
        }
        let elements = json!([{"type": "text", "text": if code.is_empty() { " " } else { code }}]);
        self.parts.push(json!({"type": "rich_text_preformatted", "elements": elements}));
    }

    fn end_section(&mut self) {
        self.end_inline("rich_text_section");
    }

    /// Adds the current inline elements as a part.
    fn end_inline(&mut self, kind: &str) {
        self.flush();
        let elements = std::mem::take(&mut self.inline);
        if !elements.is_empty() {
            self.parts.push(json!({"type": kind, "elements": elements}));
        }
    }

    fn end_block(&mut self) {
        self.end_section();
        let parts = std::mem::take(&mut self.parts);
        if !parts.is_empty() {
            self.blocks.push(json!({"type": "rich_text", "elements": parts}));
        }
    }

    fn finish(mut self) -> Vec<Value> {
        self.end_block();
        self.blocks
    }
}

/// Returns the text before the next mention `<@U1>` or bare URL, its element, and the rest.
fn next_reference(text: &str) -> Option<(&str, Value, &str)> {
    let mut from = 0;
    loop {
        let marks = ["<@", "https://", "http://"].iter();
        let at = from + marks.filter_map(|mark| text[from..].find(mark)).min()?;
        match reference_at(&text[at..]) {
            Some((element, length)) => return Some((&text[..at], element, &text[at + length..])),
            None => from = at + 2,
        }
    }
}

/// Returns the element at the start of `text`, and its length in bytes.
fn reference_at(text: &str) -> Option<(Value, usize)> {
    if let Some(inner) = text.strip_prefix("<@") {
        let (id, _) = inner.split_once('>')?;
        let is_id = (3..=32).contains(&id.len())
            && id.starts_with(['U', 'W'])
            && id.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
        return is_id.then(|| (json!({"type": "user", "user_id": id}), id.len() + 3));
    }
    let end = text.find(|c: char| c.is_whitespace() || "<>\"`".contains(c)).unwrap_or(text.len());
    let url = text[..end].trim_end_matches(['.', ',', ';', ':', '!', '?', ')', ']', '\'']);
    let (_, rest) = url.split_once("://")?;
    (!rest.is_empty()).then(|| (json!({"type": "link", "url": url}), url.len()))
}

/// Returns the mrkdwn of blocks that [`blocks`] has made.
pub(super) fn mrkdwn(blocks: &[Value]) -> String {
    let mut out = String::new();
    for block in blocks {
        if text(block, "type") == Some("divider") {
            out.push_str("---\n");
        }
        for part in list(block, "elements") {
            if !out.is_empty() && !out.ends_with('\n') {
                out.push('\n');
            }
            push_part(&mut out, part);
        }
    }
    out.trim_end().to_owned()
}

fn push_part(out: &mut String, part: &Value) {
    let inline = || list(part, "elements").iter().map(inline_mrkdwn).collect::<String>();
    match text(part, "type").unwrap_or_default() {
        "rich_text_list" => {
            let is_ordered = text(part, "style") == Some("ordered");
            let indent = usize::try_from(part["indent"].as_u64().unwrap_or(0)).unwrap_or(0);
            let first = part["offset"].as_u64().unwrap_or(0) + 1;
            for (number, item) in (first..).zip(list(part, "elements")) {
                let mark = if is_ordered { format!("{number}.") } else { "•".to_owned() };
                let content: String = list(item, "elements").iter().map(inline_mrkdwn).collect();
                out.push_str(&format!("{}{mark} {content}\n", "    ".repeat(indent)));
            }
        }
        "rich_text_quote" => {
            inline().lines().for_each(|line| out.push_str(&format!("&gt; {line}\n")));
        }
        "rich_text_preformatted" => out.push_str(&format!("```{}```\n", inline())),
        _ => out.push_str(&inline()),
    }
}

fn inline_mrkdwn(element: &Value) -> String {
    let content = escape(element.get("text").and_then(Value::as_str).unwrap_or_default());
    let shown = match text(element, "type").unwrap_or_default() {
        "link" => {
            let url = escape(text(element, "url").unwrap_or_default()).replace('|', "%7C");
            match content.is_empty() {
                true => format!("<{url}>"),
                false => format!("<{url}|{}>", content.replace('\n', " ")),
            }
        }
        "user" => format!("<@{}>", text(element, "user_id").unwrap_or_default()),
        _ => content,
    };
    let marks = [("code", "`"), ("strike", "~"), ("italic", "_"), ("bold", "*")];
    let set = marks.iter().filter(|(name, _)| element["style"][name].as_bool() == Some(true));
    set.fold(shown, |shown, (_, mark)| format!("{mark}{shown}{mark}"))
}

/// Escapes the three characters that control mrkdwn.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests;
