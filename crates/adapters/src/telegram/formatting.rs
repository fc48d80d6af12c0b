//! Converts Markdown into a text with entities.
//!
//! Entities stand beside the text, so that no character of the text can be mistaken for markup, as
//! it could with `parse_mode`.

use serde_json::{Value, json};

use crate::markdown::{MarkdownMark, MarkdownSink, aligned_table, walk};

/// Schemes that a link may have. Telegram drops links with others.
const LINK_SCHEMES: [&str; 3] = ["https://", "http://", "tg://"];

/// Start of links that mention a person by id.
const USER_LINK: &str = "tg://user?id=";

/// A text with its entities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EntityText {
    pub text: String,
    pub entities: Vec<TextEntity>,
}

/// A formatted part of a text, in UTF-16 units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextEntity {
    pub kind: EntityKind,
    pub offset: usize,
    pub length: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EntityKind {
    Bold,
    Italic,
    Strike,
    Code,
    Pre(Option<String>),
    Quote,
    Link(String),
}

impl EntityText {
    /// Converts Markdown into text and entities.
    pub fn from_markdown(markdown: &str) -> Self {
        let mut writer = EntityWriter::default();
        walk(markdown, &mut writer);
        writer.finish()
    }

    /// A text without formatting.
    pub fn plain(text: &str) -> Self {
        Self { text: text.trim().to_owned(), entities: Vec::new() }
    }

    /// Returns the length in UTF-16 units.
    pub fn length(&self) -> usize {
        utf16_length(&self.text)
    }

    pub fn entities_json(&self) -> Value {
        self.entities.iter().map(TextEntity::json).collect()
    }
}

impl TextEntity {
    fn json(&self) -> Value {
        let Self { kind, offset, length } = self;
        let of = |kind: &str| json!({"type": kind, "offset": offset, "length": length});
        match kind {
            EntityKind::Bold => of("bold"),
            EntityKind::Italic => of("italic"),
            EntityKind::Strike => of("strikethrough"),
            EntityKind::Code => of("code"),
            EntityKind::Pre(language) => {
                let mut entity = of("pre");
                if let Some(language) = language {
                    entity["language"] = json!(language);
                }
                entity
            }
            EntityKind::Quote => of("blockquote"),
            EntityKind::Link(url) => match url.strip_prefix(USER_LINK).map(str::parse::<i64>) {
                Some(Ok(id)) => {
                    let mut entity = of("text_mention");
                    entity["user"] = json!({"id": id, "is_bot": false, "first_name": ""});
                    entity
                }
                _ => {
                    let mut entity = of("text_link");
                    entity["url"] = json!(url);
                    entity
                }
            },
        }
    }
}

pub(super) fn utf16_length(text: &str) -> usize {
    text.chars().map(char::len_utf16).sum()
}

#[derive(Default)]
struct EntityWriter {
    text: String,
    /// The length of `text` in UTF-16 units.
    length: usize,
    entities: Vec<TextEntity>,
    bold: u32,
    italic: u32,
    strike: u32,
    link: Option<String>,
    quotes: u32,
    /// Where the outermost open quotation begins.
    quote_start: usize,
    /// The open lists; whether an item has no text yet.
    lists: usize,
    is_item_start: bool,
    code: Option<(Option<String>, String)>,
    /// The rows of an open table.
    table: Option<Vec<Vec<String>>>,
}

impl MarkdownSink for EntityWriter {
    fn mark(&mut self, mark: &MarkdownMark, is_start: bool) {
        let change = |count: &mut u32| {
            *count = if is_start { *count + 1 } else { count.saturating_sub(1) };
        };
        match mark {
            MarkdownMark::Paragraph if is_start => self.start_block(),
            MarkdownMark::Paragraph => {}
            MarkdownMark::Heading(_) => {
                if is_start {
                    self.start_block();
                }
                change(&mut self.bold);
            }
            MarkdownMark::Quote if is_start => {
                self.start_block();
                if self.quotes == 0 {
                    self.quote_start = self.length;
                }
                self.quotes += 1;
            }
            MarkdownMark::Quote => {
                self.quotes = self.quotes.saturating_sub(1);
                if self.quotes == 0 {
                    self.push_entity(EntityKind::Quote, self.quote_start);
                }
            }
            MarkdownMark::List(_) if is_start => {
                if self.lists == 0 {
                    self.start_block();
                }
                self.lists += 1;
            }
            MarkdownMark::List(_) => self.lists = self.lists.saturating_sub(1),
            MarkdownMark::Item(number) if is_start => {
                self.end_line();
                let indent = "    ".repeat(self.lists.saturating_sub(1));
                let mark = number.map_or("• ".to_owned(), |number| format!("{number}. "));
                self.push(&format!("{indent}{mark}"));
                self.is_item_start = true;
            }
            MarkdownMark::Item(_) => self.is_item_start = false,
            MarkdownMark::CodeBlock(language) if is_start => {
                self.code = Some((language.clone(), String::new()));
            }
            MarkdownMark::CodeBlock(_) => {
                if let Some((language, code)) = self.code.take() {
                    self.push_block(language, &code);
                }
            }
            MarkdownMark::Table if is_start => self.table = Some(Vec::new()),
            MarkdownMark::Table => {
                let rows = self.table.take().unwrap_or_default();
                self.push_block(None, &aligned_table(&rows));
            }
            MarkdownMark::TableRow { .. } if is_start => {
                self.table.get_or_insert_default().push(Vec::new());
            }
            MarkdownMark::TableCell if is_start => {
                if let Some(row) = self.table.as_mut().and_then(|rows| rows.last_mut()) {
                    row.push(String::new());
                }
            }
            MarkdownMark::TableRow { .. } | MarkdownMark::TableCell => {}
            MarkdownMark::Bold => change(&mut self.bold),
            MarkdownMark::Italic => change(&mut self.italic),
            MarkdownMark::Strike => change(&mut self.strike),
            MarkdownMark::Link(url) | MarkdownMark::Image(url) => self.link(url, is_start),
        }
    }

    fn text(&mut self, text: &str) {
        if let Some((_, code)) = &mut self.code {
            code.push_str(text);
        } else if let Some(cell) = self.cell() {
            cell.push_str(text);
        } else {
            self.push_styled(text);
        }
    }

    fn code(&mut self, text: &str) {
        if let Some(cell) = self.cell() {
            return cell.push_str(text);
        }
        // Code has no other style.
        let start = self.length;
        self.push(text);
        self.push_entity(EntityKind::Code, start);
    }

    fn line_break(&mut self) {
        match self.cell() {
            Some(cell) => cell.push(' '),
            None => self.push("\n"),
        }
    }

    fn rule(&mut self) {
        self.start_block();
        self.push("———");
    }

    fn task(&mut self, is_done: bool) {
        self.push(if is_done { "☑ " } else { "☐ " });
        self.is_item_start = true;
    }
}

impl EntityWriter {
    fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.length += utf16_length(text);
        self.is_item_start = false;
    }

    /// Appends text with the styles that are open.
    fn push_styled(&mut self, text: &str) {
        let start = self.length;
        self.push(text);
        let styles = [
            (self.bold > 0, EntityKind::Bold),
            (self.italic > 0, EntityKind::Italic),
            (self.strike > 0, EntityKind::Strike),
        ];
        let styles = styles.into_iter().filter_map(|(is_open, kind)| is_open.then_some(kind));
        let link = self.link.clone().filter(|url| is_allowed(url)).map(EntityKind::Link);
        for kind in styles.chain(link).collect::<Vec<_>>() {
            self.push_entity(kind, start);
        }
    }

    /// Adds an entity that ends here. It is joined with one of its kind that ends at its start.
    fn push_entity(&mut self, kind: EntityKind, offset: usize) {
        let length = self.length - offset;
        if length == 0 {
            return;
        }
        let is_joined = !matches!(kind, EntityKind::Code | EntityKind::Pre(_) | EntityKind::Quote);
        let before = self.entities.iter_mut().rev().take(8);
        let mut before = before.filter(|entity| entity.offset + entity.length == offset);
        match before.find(|entity| is_joined && entity.kind == kind) {
            Some(entity) => entity.length += length,
            None => self.entities.push(TextEntity { kind, offset, length }),
        }
    }

    /// Separates a block from what is before it: by an empty line, or in a list by a line break.
    fn start_block(&mut self) {
        if self.text.is_empty() || self.is_item_start || self.is_quote_start() {
            return;
        }
        let wanted = if self.lists > 0 { 1 } else { 2 };
        let found = self.text.len() - self.text.trim_end_matches('\n').len();
        for _ in found..wanted {
            self.push("\n");
        }
    }

    fn is_quote_start(&self) -> bool {
        self.quotes > 0 && self.length == self.quote_start
    }

    fn end_line(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with('\n') && !self.is_quote_start() {
            self.push("\n");
        }
    }

    /// Appends a block of code.
    fn push_block(&mut self, language: Option<String>, code: &str) {
        let code = code.trim_end_matches('\n');
        if code.trim().is_empty() {
            return;
        }
        self.start_block();
        let start = self.length;
        self.push(code);
        self.push_entity(EntityKind::Pre(language), start);
    }

    fn link(&mut self, url: &str, is_start: bool) {
        if is_start {
            self.link.get_or_insert_with(|| url.to_owned());
            return;
        }
        let Some(url) = self.link.take() else { return };
        if !is_allowed(&url) && !self.text.ends_with(&url) && !url.is_empty() {
            let shown = format!(" ({url})");
            self.text(&shown);
        }
    }

    /// Returns the open cell of a table.
    fn cell(&mut self) -> Option<&mut String> {
        self.table.as_mut()?.last_mut()?.last_mut()
    }

    fn finish(mut self) -> EntityText {
        let kept = self.text.trim_end().len();
        self.text.truncate(kept);
        let length = utf16_length(&self.text);
        for entity in &mut self.entities {
            entity.length = entity.length.min(length.saturating_sub(entity.offset));
        }
        self.entities.retain(|entity| entity.length > 0);
        self.entities.sort_by_key(|entity| (entity.offset, std::cmp::Reverse(entity.length)));
        EntityText { text: self.text, entities: self.entities }
    }
}

fn is_allowed(url: &str) -> bool {
    LINK_SCHEMES.iter().any(|scheme| {
        url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    })
}

#[cfg(test)]
mod tests;
