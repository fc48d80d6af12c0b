//! Converts a message into the requests that send it: its parts, and the content of each. Pure.
//!
//! A message is one part for each piece of its text, one for its card and one for each attachment.

use monoco_core::outgoing::{AttachmentRef, OutgoingMessage};
use serde_json::{Value, json};

use super::files;
use super::markdown;

/// Longest text of a post, in bytes of the request; Lark accepts 30 KB (docs).
const MAX_POST_BYTES: usize = 27_000;

/// Longest plain text, in bytes of the request; Lark accepts 150 KB (docs).
const MAX_TEXT_BYTES: usize = 140_000;

/// Longest text for a custom robot, in bytes of the request; Lark accepts 20 KB (docs).
const MAX_ROBOT_BYTES: usize = 18_000;

/// Longest title of a post, in characters.
const MAX_TITLE_CHARS: usize = 200;

/// Follows a text whose formatting was rejected.
const PLAIN_NOTE: &str = "\n\n[sent without formatting: Lark rejected it]";

/// One request of a message.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LarkPart<'a> {
    Plain(String),
    Markdown {
        title: String,
        source: String,
    },
    /// A card in Lark's own format, as its author wrote it.
    Card(&'a Value),
    File(&'a AttachmentRef),
}

/// Who sends a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LarkSenderKind {
    App,
    CustomRobot,
}

/// The content of a message of the API. It is JSON in a string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LarkMessageContent {
    pub kind: &'static str,
    pub content: String,
}

impl LarkMessageContent {
    fn new(kind: &'static str, content: &Value) -> Self {
        Self { kind, content: content.to_string() }
    }

    /// The content that sends an uploaded file.
    pub fn file(file: &AttachmentRef, key: &str) -> Self {
        match files::is_image(file) {
            true => Self::new("image", &json!({ "image_key": key })),
            false => Self::new("file", &json!({ "file_key": key })),
        }
    }
}

/// Returns the parts of a message. They are the same for every attempt.
pub(super) fn parts(message: &OutgoingMessage, sender: LarkSenderKind) -> Vec<LarkPart<'_>> {
    let title = message.title.as_deref().map(str::trim).unwrap_or_default();
    let (is_robot, text) = (sender == LarkSenderKind::CustomRobot, message.text.trim());
    let mut parts = Vec::new();
    if is_markdown(message) {
        let max = if is_robot { MAX_ROBOT_BYTES } else { MAX_POST_BYTES };
        for source in crate::markdown::split(text, &converted_bytes, max) {
            let title = match parts.is_empty() {
                true => title.chars().take(MAX_TITLE_CHARS).collect(),
                false => String::new(),
            };
            parts.push(LarkPart::Markdown { title, source });
        }
    } else {
        let max = if is_robot { MAX_ROBOT_BYTES } else { MAX_TEXT_BYTES };
        let text = if title.is_empty() { text.to_owned() } else { format!("{title}\n\n{text}") };
        let pieces = crate::markdown::split_plain(text.trim(), &request_bytes, max);
        parts.extend(pieces.into_iter().map(LarkPart::Plain));
    }
    parts.retain(|part| !part.is_blank());
    if let Some(card) = &message.card {
        // The text of a card is for providers without cards.
        parts = vec![LarkPart::Card(card)];
    }
    parts.extend(message.attachments.iter().map(LarkPart::File));
    parts
}

fn is_markdown(message: &OutgoingMessage) -> bool {
    message.format.as_deref() == Some("text/markdown")
}

impl LarkPart<'_> {
    fn is_blank(&self) -> bool {
        match self {
            Self::Plain(text) => text.trim().is_empty(),
            Self::Markdown { title, source } => source.trim().is_empty() && title.trim().is_empty(),
            Self::Card(_) | Self::File(_) => false,
        }
    }

    /// Returns the same text without formatting, which says so; `None` when it has none.
    pub fn without_format(&self) -> Option<Self> {
        let Self::Markdown { title, source } = self else { return None };
        let start = if title.is_empty() { String::new() } else { format!("{title}\n\n") };
        Some(Self::Plain(format!("{start}{source}{PLAIN_NOTE}")))
    }

    /// Returns the content for the API; `None` for files, which are uploaded first.
    pub fn content(&self) -> Option<LarkMessageContent> {
        Some(match self {
            Self::Plain(text) => {
                LarkMessageContent::new("text", &json!({ "text": markdown::mentions(text) }))
            }
            Self::Markdown { title, source } => {
                let text = markdown::to_lark(source);
                let post = json!({"title": title, "content": [[{"tag": "md", "text": text}]]});
                LarkMessageContent::new("post", &json!({ "zh_cn": post }))
            }
            Self::Card(card) => LarkMessageContent::new("interactive", card),
            Self::File(_) => return None,
        })
    }

    /// Returns the body for a custom robot, whose content is no string; `None` for files. Posts of
    /// robots have no Markdown, so formatted text is sent as a card.
    pub fn robot_body(&self) -> Option<Value> {
        Some(match self {
            Self::Plain(text) => {
                json!({"msg_type": "text", "content": {"text": markdown::mentions(text)}})
            }
            Self::Markdown { title, source } => {
                let text = markdown::to_lark(source);
                let mut card = json!({"elements": [{"tag": "markdown", "content": text}]});
                if !title.is_empty() {
                    let title = json!({"tag": "plain_text", "content": title});
                    card["header"] = json!({ "title": title });
                }
                json!({"msg_type": "interactive", "card": card})
            }
            Self::Card(card) => json!({"msg_type": "interactive", "card": card}),
            Self::File(_) => return None,
        })
    }
}

/// Returns how many bytes the converted text has at most in a request. Converting each candidate
/// of the splitter would take seconds for a long message: a heading grows by four bytes, and a
/// table, of which two lines have a bar, by two fences, which are as long as its longest run of
/// backticks.
fn converted_bytes(markdown: &str) -> usize {
    let count = |wanted: u8| markdown.bytes().filter(|byte| *byte == wanted).count();
    let growth = |line: &str| match (line.contains('|'), line.contains('#')) {
        (true, _) => 8,
        (false, true) => 4,
        (false, false) => 0,
    };
    request_bytes(markdown) + markdown.lines().map(growth).sum::<usize>() + 2 * count(b'`')
}

/// Returns how many bytes a text has in a request, where it is JSON in JSON.
fn request_bytes(text: &str) -> usize {
    let bytes = |byte: u8| match byte {
        b'"' | b'\\' => 4,
        b'\n' | b'\r' | b'\t' | 8 | 12 => 3,
        0..=31 => 7,
        _ => 1,
    };
    text.bytes().map(bytes).sum()
}

#[cfg(test)]
mod tests;
