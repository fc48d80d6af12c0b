//! Converts a message into the requests that send it: its parts, and the body of each for every
//! way of sending. Pure.
//!
//! A message is one part for each piece of its text and one for each attachment. The parts do
//! not depend on the way of sending, because a session webhook can expire between two of them.

use monoco_core::outgoing::{AttachmentRef, OutgoingMessage};
use serde_json::{Value, json};

use super::markdown;

/// Longest text of a part, in bytes of its JSON, for chats of the app. Reports: DingTalk rejects
/// parameters of about 15,000 bytes.
const MAX_APP_TEXT_BYTES: usize = 14_000;

/// Longest text of a part for a custom robot, in bytes of its JSON; its limit is 20,000 bytes for
/// the request.
const MAX_ROBOT_TEXT_BYTES: usize = 19_000;

/// Largest image, in bytes.
const MAX_IMAGE_BYTES: u64 = 10 << 20;

/// Largest file that is not an image, in bytes.
const MAX_FILE_BYTES: u64 = 20 << 20;

/// Follows a text whose formatting was rejected.
const PLAIN_NOTE: &str = "\n\n[sent without formatting: DingTalk rejected the Markdown]";

/// One request of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MessagePart<'a> {
    Plain(String),
    Markdown { title: String, source: String },
    File(&'a AttachmentRef),
}

/// Who sends a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SenderKind {
    App,
    CustomRobot,
}

/// Returns the parts of a message. They are the same for every attempt.
pub(super) fn parts(message: &OutgoingMessage, sender: SenderKind) -> Vec<MessagePart<'_>> {
    let max = match sender {
        SenderKind::App => MAX_APP_TEXT_BYTES,
        SenderKind::CustomRobot => MAX_ROBOT_TEXT_BYTES,
    };
    let is_markdown = message.format.as_deref() == Some("text/markdown");
    let heading = message.title.as_deref().map(str::trim).filter(|title| !title.is_empty());
    let mut parts = Vec::new();
    if is_markdown {
        let text = match heading {
            Some(heading) => format!("**{heading}**\n\n{}", message.text),
            None => message.text.clone(),
        };
        for source in crate::markdown::split(&text, &converted_bytes, max) {
            let title = markdown::title(heading, &source);
            parts.push(MessagePart::Markdown { title, source });
        }
    } else {
        let text = match heading {
            Some(heading) => format!("{heading}\n\n{}", message.text),
            None => message.text.clone(),
        };
        let pieces = crate::markdown::split_plain(&text, &json_bytes, max);
        parts.extend(pieces.into_iter().map(MessagePart::Plain));
    }
    parts.retain(|part| !part.is_blank());
    parts.extend(message.attachments.iter().map(MessagePart::File));
    parts
}

impl MessagePart<'_> {
    fn is_blank(&self) -> bool {
        match self {
            Self::Plain(text) | Self::Markdown { source: text, .. } => text.trim().is_empty(),
            Self::File(_) => false,
        }
    }

    /// Returns the same text without formatting, which says so; `None` when it has none.
    pub(super) fn without_format(&self) -> Option<Self> {
        match self {
            Self::Markdown { source, .. } => Some(Self::Plain(format!("{source}{PLAIN_NOTE}"))),
            Self::Plain(_) | Self::File(_) => None,
        }
    }

    /// Returns the body for a session webhook or a custom robot; `None` for files, which they
    /// cannot send.
    pub(super) fn webhook_body(&self) -> Option<Value> {
        match self {
            Self::Plain(text) => Some(json!({"msgtype": "text", "text": {"content": text}})),
            Self::Markdown { title, source } => {
                let text = markdown::to_dingtalk(source);
                Some(json!({"msgtype": "markdown", "markdown": {"title": title, "text": text}}))
            }
            Self::File(_) => None,
        }
    }

    /// Returns the kind and the parameters of a text for the API; `None` for files.
    pub(super) fn api_content(&self) -> Option<ApiContent> {
        match self {
            Self::Plain(text) => Some(ApiContent::new("sampleText", &json!({"content": text}))),
            Self::Markdown { title, source } => {
                let text = markdown::to_dingtalk(source);
                let parameters = json!({"title": title, "text": text});
                Some(ApiContent::new("sampleMarkdown", &parameters))
            }
            Self::File(_) => None,
        }
    }
}

/// The content of a message of the API. The parameters are JSON in a string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiContent {
    key: &'static str,
    parameters: String,
}

impl ApiContent {
    fn new(key: &'static str, parameters: &Value) -> Self {
        Self { key, parameters: parameters.to_string() }
    }

    /// The content that sends an uploaded file.
    pub(super) fn file(file: &AttachmentRef, media_id: &str) -> Self {
        if is_image(file) {
            return Self::new("sampleImageMsg", &json!({"photoURL": media_id}));
        }
        let name = file_name(file);
        let ending = name.rsplit_once('.').map_or("bin", |(_, ending)| ending);
        let parameters = json!({"mediaId": media_id, "fileName": name, "fileType": ending});
        Self::new("sampleFile", &parameters)
    }

    /// Returns the body that sends the content to a user.
    pub(super) fn for_user(&self, robot_code: &str, user: &str) -> Value {
        let Self { key, parameters } = self;
        json!({"robotCode": robot_code, "userIds": [user], "msgKey": key, "msgParam": parameters})
    }

    /// Returns the body that sends the content to a group.
    pub(super) fn for_group(&self, robot_code: &str, group: &str) -> Value {
        let Self { key, parameters } = self;
        json!({
            "robotCode": robot_code, "openConversationId": group, "msgKey": key,
            "msgParam": parameters,
        })
    }
}

/// How a file is uploaded: the type of media, and the largest size.
pub(super) fn upload_limits(file: &AttachmentRef) -> (&'static str, u64) {
    if is_image(file) { ("image", MAX_IMAGE_BYTES) } else { ("file", MAX_FILE_BYTES) }
}

/// Returns the name of a file, which DingTalk requires.
pub(super) fn file_name(file: &AttachmentRef) -> &str {
    if file.name.trim().is_empty() { "file.bin" } else { &file.name }
}

fn is_image(file: &AttachmentRef) -> bool {
    ["image/png", "image/jpeg", "image/gif", "image/bmp"].contains(&file.mime_type.as_str())
}

/// Returns how many bytes the converted text has at most. Converting each candidate of the
/// splitter would take seconds for a long message: a line break grows by two bytes, and a table of
/// at least two lines by two fences, which are as long as its longest run of backticks.
fn converted_bytes(markdown: &str) -> usize {
    let count = |wanted: u8| markdown.bytes().filter(|byte| *byte == wanted).count();
    json_bytes(markdown) + 8 * (count(b'\n') + 1) + 2 * count(b'`')
}

fn json_bytes(text: &str) -> usize {
    serde_json::to_string(text).map_or(usize::MAX, |json| json.len())
}

#[cfg(test)]
mod tests;
