//! What a message contains: its text as Markdown, placeholders for what has none, and its files.

use monoco_core::inbound::Artifact;
use serde_json::Value;

use super::client::MAX_DOWNLOAD_BYTES;
use super::entities::{TelegramMarkdown, to_markdown};
use super::inbound::{full_name, origin_name};
use super::wire::{integer, list, text};
use crate::markdown::{push_text, quoted};

/// The content of one message.
#[derive(Debug, Default, PartialEq)]
pub(super) struct TelegramContent {
    pub markdown: String,
    pub mentions: Vec<String>,
    pub artifacts: Vec<Artifact>,
    /// Whether the text and the files are all that the message contains.
    pub is_complete: bool,
}

/// A kind of file, in the order in which they are looked for. An animation is also a document.
struct FileKind {
    key: &'static str,
    extension: &'static str,
    mime_type: &'static str,
    /// What the text says about it; the empty text says nothing.
    label: &'static str,
}

const FILE_KINDS: [FileKind; 7] = [
    FileKind { key: "animation", extension: "mp4", mime_type: "video/mp4", label: "" },
    FileKind {
        key: "document",
        extension: "bin",
        mime_type: "application/octet-stream",
        label: "",
    },
    FileKind { key: "video", extension: "mp4", mime_type: "video/mp4", label: "" },
    FileKind { key: "audio", extension: "mp3", mime_type: "audio/mpeg", label: "" },
    FileKind { key: "voice", extension: "ogg", mime_type: "audio/ogg", label: "voice message" },
    FileKind {
        key: "video_note",
        extension: "mp4",
        mime_type: "video/mp4",
        label: "video message",
    },
    FileKind { key: "sticker", extension: "webp", mime_type: "image/webp", label: "sticker" },
];

/// Keys of every message, which are not its content.
const COMMON_KEYS: [&str; 28] = [
    "message_id",
    "message_thread_id",
    "direct_messages_topic",
    "from",
    "sender_chat",
    "sender_boost_count",
    "sender_business_bot",
    "sender_tag",
    "date",
    "edit_date",
    "business_connection_id",
    "chat",
    "forward_origin",
    "is_topic_message",
    "is_automatic_forward",
    "reply_to_message",
    "reply_to_story",
    "external_reply",
    "quote",
    "via_bot",
    "has_protected_content",
    "is_from_offline",
    "media_group_id",
    "author_signature",
    "effect_id",
    "link_preview_options",
    "reply_markup",
    "show_caption_above_media",
];

/// Reads the content of a message with this number.
pub(super) fn read(message: &Value, number: i64) -> TelegramContent {
    let mut content = TelegramContent { is_complete: true, ..TelegramContent::default() };
    content.push_quote(message);
    let body = match (text(message, "text"), text(message, "caption")) {
        (Some(body), _) => Some(to_markdown(body, list(message, "entities"))),
        (None, Some(caption)) => Some(to_markdown(caption, list(message, "caption_entities"))),
        (None, None) => None,
    };
    let has_body = body.is_some();
    if let Some(TelegramMarkdown { markdown, mentions }) = body {
        content.push_paragraph(&markdown);
        content.mentions.extend(mentions);
    }
    let has_file = content.push_files(message, number, has_body);
    let is_paid = message.get("paid_media").is_some();
    if is_paid || !has_file && !has_body && !content.push_other(message) {
        let kind = message.as_object().and_then(|entries| {
            let is_content =
                |key: &&String| !COMMON_KEYS.contains(&key.as_str()) && !key.starts_with("caption");
            entries.keys().find(is_content)
        });
        content.is_complete = false;
        content.push_label(&format!(
            "message of a kind that this version does not know: {}; the payload is attached",
            kind.map_or("empty", String::as_str)
        ));
    }
    content
}

impl TelegramContent {
    fn push_paragraph(&mut self, markdown: &str) {
        let markdown = markdown.trim_end();
        if markdown.trim().is_empty() {
            return;
        }
        let gap = if self.markdown.is_empty() { "" } else { "\n\n" };
        self.markdown = format!("{}{gap}{markdown}", self.markdown.trim_end());
    }

    /// Appends a placeholder in brackets.
    fn push_label(&mut self, label: &str) {
        let mut markdown = String::new();
        push_text(&mut markdown, &format!("[{label}]"));
        self.push_paragraph(&markdown);
    }

    /// Appends the part of another message that the author has selected, and where an answered
    /// message of another chat comes from.
    fn push_quote(&mut self, message: &Value) {
        if let Some(external) = message.get("external_reply").filter(|it| it.is_object()) {
            let origin = origin_name(&external["origin"]);
            self.push_label(&format!("answer to a message of {origin} in another chat"));
        }
        let quote = &message["quote"];
        if let Some(part) = text(quote, "text") {
            let TelegramMarkdown { markdown, .. } = to_markdown(part, list(quote, "entities"));
            self.push_paragraph(&quoted(&markdown));
        }
    }

    /// Adds the files of a message. Returns whether there are any.
    fn push_files(&mut self, message: &Value, number: i64, has_body: bool) -> bool {
        if let Some(photo) = largest(list(message, "photo")) {
            let name = format!("photo-{number}.jpg");
            self.artifacts.push(artifact(photo, name, "image/jpeg"));
            return true;
        }
        for kind in &FILE_KINDS {
            let Some(file) = message.get(kind.key).filter(|file| file.is_object()) else {
                continue;
            };
            let name = text(file, "file_name").map(str::to_owned);
            let (extension, mime_type) = sticker_type(kind, file);
            let stem = kind.key.replace('_', "-");
            let name = name.unwrap_or_else(|| format!("{stem}-{number}.{extension}"));
            self.artifacts.push(artifact(file, name, mime_type));
            if !kind.label.is_empty() && !has_body {
                let emoji = text(file, "emoji").map(|emoji| format!(" {emoji}"));
                let duration = integer(file, "duration").map(|length| format!(", {length} s"));
                let more = emoji.or(duration).unwrap_or_default();
                self.push_label(&format!("{}{more}", kind.label));
            }
            return true;
        }
        false
    }

    /// Appends a placeholder for content without text and files. Returns whether it is known.
    fn push_other(&mut self, message: &Value) -> bool {
        let get = |key: &str| message.get(key).filter(|value| value.is_object());
        if let Some(venue) = get("venue") {
            let place = [text(venue, "title"), text(venue, "address")];
            let place = place.into_iter().flatten().collect::<Vec<_>>().join(", ");
            self.push_label(&format!("venue: {place}, {}", position(&venue["location"])));
        } else if let Some(location) = get("location") {
            let live =
                if location.get("live_period").is_some() { "live location" } else { "location" };
            self.push_label(&format!("{live}: {}", position(location)));
        } else if let Some(contact) = get("contact") {
            let name = full_name(contact).unwrap_or_else(|| "no name".to_owned());
            let number = text(contact, "phone_number").unwrap_or("no number");
            self.push_label(&format!("contact: {name}, {number}"));
        } else if let Some(poll) = get("poll") {
            self.push_label(&format!("poll: {}", text(poll, "question").unwrap_or("no question")));
            let mut options = String::new();
            for option in list(poll, "options").iter().take(100) {
                options.push_str("- ");
                push_text(&mut options, text(option, "text").unwrap_or_default());
                let votes = integer(option, "voter_count").unwrap_or_default();
                options.push_str(&format!(" ({votes})\n"));
            }
            self.push_paragraph(&options);
        } else if let Some(dice) = get("dice") {
            let value = integer(dice, "value").unwrap_or_default();
            self.push_label(&format!("dice {}: {value}", text(dice, "emoji").unwrap_or("🎲")));
        } else {
            return false;
        }
        true
    }
}

fn position(location: &Value) -> String {
    let number = |key: &str| location[key].as_f64().unwrap_or_default();
    format!("{:.6}, {:.6}", number("latitude"), number("longitude"))
}

/// Returns extension and type of a file without a name. Stickers are images, animations or videos.
fn sticker_type(kind: &FileKind, file: &Value) -> (&'static str, &'static str) {
    match kind.key {
        "sticker" if file["is_animated"] == true => ("tgs", "application/x-tgsticker"),
        "sticker" if file["is_video"] == true => ("webm", "video/webm"),
        _ => (kind.extension, kind.mime_type),
    }
}

/// Returns the largest size of a photo.
fn largest(sizes: &[Value]) -> Option<&Value> {
    let area = |size: &&Value| {
        let side = |key: &str| integer(size, key).unwrap_or_default();
        side("width").saturating_mul(side("height"))
    };
    sizes.iter().filter(|size| size.is_object()).max_by_key(area)
}

/// Returns a file that is fetched later by its id.
fn artifact(file: &Value, name: String, mime_type: &str) -> Artifact {
    let size = file["file_size"].as_u64();
    let mut artifact = Artifact {
        name,
        mime_type: text(file, "mime_type").unwrap_or(mime_type).to_owned(),
        size,
        ..Artifact::default()
    };
    match text(file, "file_id") {
        _ if size.is_some_and(|size| size > MAX_DOWNLOAD_BYTES) => {
            let size = size.unwrap_or_default();
            artifact.missing = Some(format!(
                "the file has {size} bytes; Telegram lets bots download at most 20 MB"
            ));
        }
        Some(id) => artifact.fetch = Some(id.to_owned()),
        None => artifact.missing = Some("Telegram has sent no id of the file".to_owned()),
    }
    artifact
}
