//! The content of a message as Markdown, kind by kind. Pure: names are passed in.
//!
//! The content is JSON in a string. Files become artifacts that are fetched later; a conversation
//! that was forwarded is fetched as a file as well. A kind that this version does not know becomes
//! a placeholder, and the payload is attached.

use monoco_core::inbound::Artifact;
use monoco_core::time::Timestamp;
use serde_json::Value;

use super::card;
use super::files::{LarkFileHandle, LarkFileKind};
use super::post;
use super::wire::{id, list, text, time};
use crate::markdown::push_text;
use crate::names::TextContext;

/// The mark that stands for everyone.
const EVERYONE: &str = "@_all";

/// What a message says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LarkContent {
    pub markdown: String,
    pub artifacts: Vec<Artifact>,
    /// Whether it shows everything that the payload has.
    pub is_complete: bool,
}

/// The parts of a message that its content depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContentSource<'a> {
    pub message_id: &'a str,
    pub kind: &'a str,
    /// JSON, as it was received.
    pub content: &'a str,
    pub mentions: &'a [Value],
}

impl LarkContent {
    fn new(markdown: String) -> Self {
        Self { markdown, artifacts: Vec::new(), is_complete: true }
    }

    /// One line in brackets, such as `[sticker]`.
    fn label(label: &str) -> Self {
        let mut markdown = String::new();
        push_text(&mut markdown, &format!("[{label}]"));
        Self::new(markdown)
    }

    fn with_file(mut self, artifact: Option<Artifact>) -> Self {
        self.artifacts.extend(artifact);
        self
    }
}

/// Converts the content of a message.
pub(super) fn read(source: ContentSource<'_>, context: &TextContext<'_>) -> LarkContent {
    let Ok(content) = serde_json::from_str::<Value>(source.content) else {
        let label = format!(
            "Lark message of the kind {}: its content is not valid JSON; the payload is attached",
            shown_kind(source.kind)
        );
        return LarkContent { is_complete: false, ..LarkContent::label(&label) };
    };
    let name = |key: &str| text(&content, key);
    match source.kind {
        "text" => {
            let mut markdown = String::new();
            push_mentions(&mut markdown, name("text").unwrap_or_default(), &source, context);
            LarkContent::new(markdown)
        }
        "post" => post::read(&content, &source, context),
        "image" => {
            let file = file(&source, &content, "image_key", LarkFileKind::Image, "image");
            LarkContent::label("image").with_file(file)
        }
        "file" => {
            let shown = name("file_name").unwrap_or("file");
            let file = named_file(&source, &content, "file");
            LarkContent::label(&format!("file: {shown}")).with_file(file)
        }
        "audio" => {
            let file = file(&source, &content, "file_key", LarkFileKind::File, "audio");
            LarkContent::label(&with_duration("audio", &content)).with_file(file)
        }
        "media" => {
            let file = named_file(&source, &content, "video");
            LarkContent::label(&with_duration("video", &content)).with_file(file)
        }
        // Lark does not give out stickers.
        "sticker" => LarkContent::label("sticker"),
        "interactive" => {
            let markdown = card::read(&content);
            LarkContent { markdown, artifacts: Vec::new(), is_complete: false }
        }
        "merge_forward" => {
            let label = "forwarded conversation; its messages are attached";
            LarkContent::label(label).with_file(forwarded_file(source.message_id))
        }
        "share_chat" => {
            let chat = id(&content, "chat_id").unwrap_or("?");
            let shown = context.name(chat).unwrap_or_else(|| chat.to_owned());
            LarkContent::label(&format!("shared chat: {shown}"))
        }
        "share_user" => {
            let user = id(&content, "user_id").unwrap_or("?");
            let shown = context.name(user).unwrap_or_else(|| user.to_owned());
            LarkContent::label(&format!("shared contact: {shown}"))
        }
        "location" => {
            let (lat, lon) = (name("latitude").unwrap_or("?"), name("longitude").unwrap_or("?"));
            let place = name("name").unwrap_or("?");
            LarkContent::label(&format!("location: {place} ({lat}, {lon})"))
        }
        "system" => LarkContent::label(&system_text(&content)),
        "folder" => LarkContent::label(&format!("folder: {}", name("file_name").unwrap_or("?"))),
        "hongbao" => LarkContent::label(&format!("red envelope: {}", name("text").unwrap_or(""))),
        "vote" => LarkContent::label(&vote_text(&content)),
        "video_chat" => LarkContent::label(&event_text("video meeting", name("topic"), &content)),
        "calendar" | "general_calendar" | "share_calendar_event" => {
            LarkContent::label(&event_text("calendar event", name("summary"), &content))
        }
        "todo" => todo(&content, &source, context),
        kind => {
            let label = format!(
                "Lark message of the kind {}: this version cannot show it; the payload is attached",
                shown_kind(kind)
            );
            LarkContent { is_complete: false, ..LarkContent::label(&label) }
        }
    }
}

/// Returns the name of a kind as it may be shown.
fn shown_kind(kind: &str) -> String {
    let plain = kind.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(40).collect();
    if kind.is_empty() { "unknown".to_owned() } else { plain }
}

/// Appends text in which marks such as `@_user_1` stand for people.
pub(super) fn push_mentions(
    out: &mut String,
    words: &str,
    source: &ContentSource<'_>,
    context: &TextContext<'_>,
) {
    let mut rest = words;
    while let Some(at) = rest.find("@_") {
        let (before, mark) = rest.split_at(at);
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = mark[1..].find(|c| !is_part(c)).map_or(mark.len(), |end| end + 1);
        push_text(out, before);
        match mention(&mark[..end], source, context) {
            Some(name) => push_text(out, &name),
            None => push_text(out, &mark[..end]),
        }
        rest = &mark[end..];
    }
    push_text(out, rest);
}

/// Returns the text for a mark; `None` when it is not among the mentions.
pub(super) fn mention(
    mark: &str,
    source: &ContentSource<'_>,
    context: &TextContext<'_>,
) -> Option<String> {
    if mark == EVERYONE {
        return Some(context.broadcast("all"));
    }
    let entry = source.mentions.iter().find(|entry| text(entry, "key") == Some(mark))?;
    // Events have an object with several ids, histories have one id.
    let account = text(&entry["id"], "open_id").or(text(entry, "id")).unwrap_or(mark);
    Some(context.mention(account, text(entry, "name")))
}

/// Returns the file under `key`, which has no name of its own. Its name and type are known when it is
/// fetched.
pub(super) fn file(
    source: &ContentSource<'_>,
    content: &Value,
    key: &str,
    kind: LarkFileKind,
    stem: &str,
) -> Option<Artifact> {
    let handle = LarkFileHandle {
        message_id: source.message_id.to_owned(),
        key: id(content, key)?.to_owned(),
        kind,
        stem: Some(stem.to_owned()),
    };
    Some(handle.artifact("", ""))
}

/// Returns a file with a name, or one whose name starts with `stem`.
pub(super) fn named_file(
    source: &ContentSource<'_>,
    content: &Value,
    stem: &str,
) -> Option<Artifact> {
    let Some(name) = text(content, "file_name") else {
        return file(source, content, "file_key", LarkFileKind::File, stem);
    };
    let handle = LarkFileHandle {
        message_id: source.message_id.to_owned(),
        key: id(content, "file_key")?.to_owned(),
        kind: LarkFileKind::File,
        stem: None,
    };
    Some(handle.artifact(name, ""))
}

fn forwarded_file(message_id: &str) -> Option<Artifact> {
    let handle = LarkFileHandle {
        message_id: message_id.to_owned(),
        key: String::new(),
        kind: LarkFileKind::Forwarded,
        stem: None,
    };
    Some(handle.artifact("forwarded.md", "text/markdown"))
}

/// Adds the duration, which is in milliseconds.
fn with_duration(label: &str, content: &Value) -> String {
    let ms = content.get("duration").and_then(Value::as_u64);
    ms.map_or_else(|| label.to_owned(), |ms| format!("{label}, {} s", ms.div_ceil(1000)))
}

/// Fills the template of a system message, such as `{from_user} invited {to_chatters}`.
fn system_text(content: &Value) -> String {
    let Some(template) = text(content, "template") else { return "system message".to_owned() };
    let mut filled = template.to_owned();
    for (key, value) in content.as_object().into_iter().flatten().take(20) {
        let names: Vec<_> = match value {
            Value::Array(names) => names.iter().filter_map(Value::as_str).take(50).collect(),
            Value::String(name) => vec![name.as_str()],
            _ => continue,
        };
        filled = filled.replace(&format!("{{{key}}}"), &names.join(", "));
    }
    filled
}

fn vote_text(content: &Value) -> String {
    let options = list(content, "options").iter().take(50).filter_map(Value::as_str);
    let options: Vec<_> = options.collect();
    format!("vote: {}: {}", text(content, "topic").unwrap_or("?"), options.join(", "))
}

fn event_text(label: &str, title: Option<&str>, content: &Value) -> String {
    let mut shown = format!("{label}: {}", title.unwrap_or("?"));
    for (word, key) in [("from", "start_time"), ("to", "end_time")] {
        if let Some(at) = time(content, key) {
            shown.push_str(&format!(" {word} {}", millis(at).rfc3339()));
        }
    }
    shown
}

/// Some times are in seconds.
fn millis(at: Timestamp) -> Timestamp {
    const YEAR_2001_IN_MS: i64 = 1_000_000_000_000;
    if at.ms() < YEAR_2001_IN_MS { Timestamp::from_ms(at.ms() * 1000) } else { at }
}

fn todo(content: &Value, source: &ContentSource<'_>, context: &TextContext<'_>) -> LarkContent {
    let summary = post::read(&content["summary"], source, context);
    let mut shown = LarkContent::label("task");
    if !summary.markdown.is_empty() {
        shown.markdown = format!("{}\n\n{}", shown.markdown, summary.markdown);
    }
    if let Some(due) = time(content, "due_time") {
        shown.markdown.push_str(&format!("\n\ndue {}", millis(due).rfc3339()));
    }
    shown.artifacts = summary.artifacts;
    shown
}

#[cfg(test)]
mod tests;
