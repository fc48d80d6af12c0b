//! Converts blocks, the structured form of Slack's texts, into Markdown.
//!
//! Messages that people write have one block of type `rich_text`; apps use the others. A block
//! of an unknown type becomes a placeholder that names the type.

use serde_json::Value;

use super::markup::{
    TextContext, end_line, end_paragraph, push_code, push_code_block, push_link, push_text, quoted,
};
use super::mrkdwn;
use super::wire::{list, text};

/// The result of a conversion.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BlockText {
    pub markdown: String,
    /// The types of blocks and elements that are not known.
    pub unknown: Vec<String>,
}

/// Returns the Markdown of a list of blocks.
pub(super) fn to_markdown(blocks: &[Value], context: &TextContext<'_>) -> BlockText {
    let mut writer = BlockWriter { context, out: String::new(), unknown: Vec::new() };
    for block in blocks {
        writer.block(block);
    }
    let markdown = writer.out.trim_end().to_owned();
    BlockText { markdown, unknown: writer.unknown }
}

struct BlockWriter<'a> {
    context: &'a TextContext<'a>,
    out: String,
    unknown: Vec<String>,
}

impl BlockWriter<'_> {
    fn block(&mut self, block: &Value) {
        let kind = text(block, "type").unwrap_or_default();
        end_paragraph(&mut self.out);
        match kind {
            "rich_text" => list(block, "elements").iter().for_each(|part| self.rich_text(part)),
            "section" => self.section(block),
            "header" => {
                self.out.push_str("## ");
                self.text_object(&block["text"]);
            }
            "context" => {
                for (at, element) in list(block, "elements").iter().enumerate() {
                    if at > 0 {
                        self.out.push(' ');
                    }
                    self.context_element(element);
                }
            }
            "divider" => self.out.push_str("---"),
            "image" => self.image(block),
            "markdown" => self.out.push_str(text(block, "text").unwrap_or_default()),
            "video" => {
                let title = block["title"].get("text").and_then(Value::as_str);
                let url = text(block, "title_url").or(text(block, "video_url"));
                push_link(&mut self.out, url.unwrap_or_default(), title);
            }
            "actions" => list(block, "elements").iter().for_each(|element| {
                self.out.push('[');
                self.text_object(&element["text"]);
                self.out.push_str("] ");
            }),
            "table" => self.table(block),
            // The files of a message are its attachments.
            "file" => {}
            other => self.placeholder(other),
        }
        end_line(&mut self.out);
    }

    fn placeholder(&mut self, kind: &str) {
        let kind: String = kind.chars().filter(|c| !c.is_control()).take(60).collect();
        push_text(&mut self.out, &format!("[{kind}: this version cannot show it]"));
        self.unknown.push(kind);
    }

    fn section(&mut self, block: &Value) {
        self.text_object(&block["text"]);
        for field in list(block, "fields") {
            end_line(&mut self.out);
            self.text_object(field);
        }
        if text(&block["accessory"], "type") == Some("image") {
            end_line(&mut self.out);
            self.image(&block["accessory"]);
        }
    }

    /// Appends a text object, which is mrkdwn or plain.
    fn text_object(&mut self, object: &Value) {
        let Some(content) = text(object, "text") else { return };
        if text(object, "type") == Some("mrkdwn") {
            self.out.push_str(&mrkdwn::to_markdown(content, self.context));
        } else {
            push_text(&mut self.out, content);
        }
    }

    fn context_element(&mut self, element: &Value) {
        match text(element, "type") {
            Some("image") => self.image(element),
            _ => self.text_object(element),
        }
    }

    /// Appends an image as a link: the hub loads nothing.
    fn image(&mut self, image: &Value) {
        let title = image["title"].get("text").and_then(Value::as_str);
        let label = title.or(text(image, "alt_text")).unwrap_or("image");
        match text(image, "image_url") {
            Some(url) => push_link(&mut self.out, url, Some(label)),
            None => push_text(&mut self.out, &format!("[image: {label}]")),
        }
    }

    fn table(&mut self, block: &Value) {
        for (at, row) in list(block, "rows").iter().enumerate() {
            let cells: Vec<_> = row.as_array().map_or(&[][..], Vec::as_slice).iter().collect();
            let shown: Vec<String> = cells.iter().map(|cell| self.table_cell(cell)).collect();
            self.out.push_str(&format!("| {} |\n", shown.join(" | ")));
            if at == 0 {
                self.out.push_str(&format!("|{}\n", " --- |".repeat(shown.len())));
            }
        }
    }

    fn table_cell(&mut self, cell: &Value) -> String {
        let mut inner =
            BlockWriter { context: self.context, out: String::new(), unknown: Vec::new() };
        match text(cell, "type") {
            Some("raw_text") => push_text(&mut inner.out, text(cell, "text").unwrap_or_default()),
            _ => inner.block(cell),
        }
        self.unknown.append(&mut inner.unknown);
        inner.out.trim().replace('\n', " ").replace('|', "\\|")
    }

    /// Appends one part of a `rich_text` block.
    fn rich_text(&mut self, part: &Value) {
        match text(part, "type").unwrap_or_default() {
            "rich_text_section" => self.inline(list(part, "elements")),
            "rich_text_list" => self.list(part),
            "rich_text_quote" => {
                let inner = self.nested(list(part, "elements"));
                end_paragraph(&mut self.out);
                self.out.push_str(&quoted(&inner));
                self.out.push('\n');
            }
            "rich_text_preformatted" => {
                let code: String = list(part, "elements").iter().map(plain_element).collect();
                push_code_block(&mut self.out, &code);
            }
            other => self.placeholder(other),
        }
    }

    fn list(&mut self, part: &Value) {
        let indent = part["indent"].as_u64().unwrap_or(0).min(8);
        let is_ordered = text(part, "style") == Some("ordered");
        let first = part["offset"].as_u64().unwrap_or(0).saturating_add(1);
        end_line(&mut self.out);
        for (number, item) in (first..).zip(list(part, "elements")) {
            let mark = if is_ordered { format!("{number}. ") } else { "- ".to_owned() };
            // Three spaces are inside of both kinds of items.
            let margin = "   ".repeat(usize::try_from(indent).unwrap_or(0));
            let inner = self.nested(list(item, "elements"));
            let below = format!("\n{margin}{}", " ".repeat(mark.len()));
            self.out
                .push_str(&format!("{margin}{mark}{}\n", inner.trim_end().replace('\n', &below)));
        }
    }

    /// Returns the Markdown of inline elements.
    fn nested(&mut self, elements: &[Value]) -> String {
        let outer = std::mem::take(&mut self.out);
        self.inline(elements);
        std::mem::replace(&mut self.out, outer)
    }

    fn inline(&mut self, elements: &[Value]) {
        for element in elements {
            let kind = text(element, "type").unwrap_or_default();
            let label = text(element, "text");
            let shown = match kind {
                "text" => {
                    self.styled_text(element);
                    continue;
                }
                "link" => {
                    let url = text(element, "url").unwrap_or_default();
                    push_link(&mut self.out, url, label);
                    continue;
                }
                "user" => self.context.mention(text(element, "user_id").unwrap_or("?"), None),
                "usergroup" => {
                    self.context.mention(text(element, "usergroup_id").unwrap_or("?"), None)
                }
                "channel" => self.context.chat(text(element, "channel_id").unwrap_or("?"), None),
                "broadcast" => self.context.broadcast(text(element, "range").unwrap_or("here")),
                "emoji" => {
                    self.out.push_str(&emoji(element));
                    continue;
                }
                "date" => text(element, "fallback").unwrap_or("[date]").to_owned(),
                "color" => text(element, "value").unwrap_or_default().to_owned(),
                other => {
                    self.placeholder(other);
                    continue;
                }
            };
            push_text(&mut self.out, &shown);
        }
    }

    /// Appends text with its styles. Spaces at its ends are outside of the marks.
    fn styled_text(&mut self, element: &Value) {
        let content = element.get("text").and_then(Value::as_str).unwrap_or_default();
        let has = |style: &str| element["style"][style].as_bool() == Some(true);
        let inner = content.trim();
        if inner.is_empty() {
            return self.out.push_str(content);
        }
        let styles = [("bold", "**"), ("italic", "*"), ("strike", "~~")];
        let marks: Vec<_> =
            styles.iter().filter(|(name, _)| has(name)).map(|(_, mark)| *mark).collect();
        if marks.is_empty() && !has("code") {
            return push_text(&mut self.out, content);
        }
        let start = content.len() - content.trim_start().len();
        self.out.push_str(&content[..start]);
        self.out.push_str(&marks.concat());
        if has("code") {
            push_code(&mut self.out, inner);
        } else {
            push_text(&mut self.out, inner);
        }
        self.out.push_str(&marks.iter().rev().copied().collect::<String>());
        self.out.push_str(&content[start + inner.len()..]);
    }
}

/// Returns the characters of an emoji, or its name when it is one of the workspace.
fn emoji(element: &Value) -> String {
    let code = |part: &str| u32::from_str_radix(part, 16).ok().and_then(char::from_u32);
    let unicode = text(element, "unicode")
        .and_then(|codes| codes.split('-').map(code).collect::<Option<String>>());
    unicode.unwrap_or_else(|| format!(":{}:", text(element, "name").unwrap_or("emoji")))
}

/// Returns an element of code as text.
fn plain_element(element: &Value) -> String {
    let content = element.get("text").and_then(Value::as_str);
    content.or(text(element, "url")).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
