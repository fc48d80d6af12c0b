//! Bodies of control requests by which a person acts in a chat.

use serde::Deserialize;
use serde_json::{Map, Value};

/// A file of a message: one that exists, or its content.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FileSpec {
    pub id: Option<String>,
    pub name: Option<String>,
    pub mime_type: Option<String>,
    pub text: Option<String>,
    pub base64: Option<String>,
    /// Size of a generated file.
    pub size: Option<u64>,
}

/// Something that a person says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SayRequest {
    /// Index of the app that receives the event.
    pub app: usize,
    /// Id or name of the chat; `@NAME` is the direct chat with a person.
    pub chat: String,
    /// Id or name of the person; the first person if absent.
    pub user: Option<String>,
    pub text: String,
    /// Kind of the message, where a network has several.
    pub kind: Option<String>,
    /// Rich content in the form of the network.
    pub blocks: Option<Value>,
    pub files: Vec<FileSpec>,
    /// Id of the message whose thread this one belongs to.
    pub thread: Option<String>,
    /// Whether a reply is also shown in the chat (Slack).
    pub broadcast: bool,
    /// Whether the bot is mentioned. DingTalk mentions it in groups by default.
    pub mention: Option<bool>,
    /// Id of the message that this one quotes (DingTalk), answers (Lark) or replies to (Telegram).
    pub quote: Option<String>,
    /// Part of the quoted message that is quoted (Telegram).
    pub quote_text: Option<String>,
    /// Whom the message is forwarded from: `user`, `hidden_user`, `chat` or `channel` (Telegram).
    pub forward: Option<String>,
    /// Whether an anonymous administrator says it (Telegram).
    pub anonymous: bool,
    /// Whether another bot says it.
    pub bot: bool,
    /// Fields that replace or add to those of the message on the wire.
    pub raw: Map<String, Value>,
    /// Number of messages; `{n}` in the text is replaced by their number, from 1.
    pub count: Option<u64>,
    /// Messages per second; all at once if absent.
    pub rate: Option<f64>,
}

/// A change to a message of a person.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EditRequest {
    pub app: usize,
    pub chat: String,
    pub id: String,
    pub text: String,
    pub blocks: Option<Value>,
    /// Only a preview of a link is added; the text does not change.
    pub unfurl: bool,
}

/// A message that its author removes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecallRequest {
    pub app: usize,
    pub chat: String,
    pub id: String,
}

/// A reaction of a person to a message.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReactRequest {
    pub app: usize,
    pub chat: String,
    pub id: String,
    pub user: Option<String>,
    pub reaction: String,
    pub remove: bool,
}

/// A person who joins or leaves a chat.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemberRequest {
    pub app: usize,
    pub chat: String,
    pub user: Option<String>,
}
