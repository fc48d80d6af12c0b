//! Converts what DingTalk sends to the robot into inbound messages and notices. Pure: one
//! payload in, at most one event out.
//!
//! | `msgtype` | text of the message | file |
//! | --- | --- | --- |
//! | `text` | the text | – |
//! | `richText` | its texts, with `[picture 1]` where a file was | each picture, video, audio, file |
//! | `picture` | `[picture]` | the picture |
//! | `audio` | what DingTalk recognised, or `[audio]` | the recording |
//! | `video` | `[video, 5 s]` | the video |
//! | `file` | `[file: name]` | the file |
//! | any other | a placeholder that names the kind | `payload.json`, without secrets |
//!
//! Files are fetched later, by the handle in [`Artifact::fetch`]. A quoted message is put before
//! the text as a quotation. Values of an unexpected type count as missing.

use monoco_core::did::EndpointKind;
use monoco_core::hex;
use monoco_core::inbound::{
    Artifact, ChatSession, ChatSessionKind, InboundAttachment, InboundEvent, InboundMessage,
    MAX_ACCOUNT_BYTES, MAX_EXTERNAL_ID_BYTES, MAX_FETCH_HANDLE_BYTES, MAX_LIST_ENTRIES,
    Participant,
};
use monoco_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::session_webhooks::SessionWebhook;
use super::wire::parse_nested;

mod content;
mod notice;
mod redact;

use content::RobotContent;
pub(super) use notice::{gap_notice, read_event};

/// The media type of files before they are fetched.
const UNKNOWN_TYPE: &str = "application/octet-stream";

/// The name of the attachment with the payload of a message that has no other form.
const PAYLOAD_NAME: &str = "payload.json";

/// What one payload stands for.
#[derive(Debug)]
pub(super) struct RobotMessage {
    /// `None`: the robot wrote it itself.
    pub(super) event: Option<InboundEvent>,
    /// Where answers to it can be posted, and who gets them.
    pub(super) webhook: Option<(EndpointKind, String, SessionWebhook)>,
}

/// How the adapter fetches a file: the handle in [`Artifact::fetch`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileHandle {
    #[serde(rename = "code")]
    pub(super) download_code: String,
    #[serde(rename = "robot")]
    pub(super) robot_code: String,
    /// The name without an ending, when the provider states no name.
    #[serde(rename = "stem", default, skip_serializing_if = "Option::is_none")]
    pub(super) stem: Option<String>,
}

/// Converts a message to the robot. `robot_code` is that of the tunnel.
pub(super) fn read_message(payload: &Value, robot_code: &str) -> RobotMessage {
    let field = |key: &str| text(&payload[key]);
    let author = author(payload);
    let (session, answer_kind, answer_id) = session(payload, &author);
    let webhook = session_webhook(payload).map(|webhook| (answer_kind, answer_id, webhook));
    let robot_user = field("chatbotUserId");
    if robot_user.is_some() && robot_user == field("senderId") {
        return RobotMessage { event: None, webhook: None };
    }
    let own_code = field("robotCode").unwrap_or_else(|| robot_code.to_owned());
    let content = RobotContent::read(payload);
    let mut message = InboundMessage::new(
        message_id(payload, &own_code, robot_code),
        session,
        author,
        content.text,
    );
    message.at = field("createAt").and_then(|ms| ms.parse().ok()).map(Timestamp::from_ms);
    message.mentions = mentions(payload, &message.text, &own_code);
    message.reply_to = content.quoted_id;
    let mut attachments = Vec::new();
    let mut is_complete = content.is_complete;
    for file in content.files.into_iter().take(MAX_LIST_ENTRIES - 1) {
        let handle = FileHandle {
            download_code: file.download_code,
            robot_code: own_code.clone(),
            stem: (!file.has_own_name).then(|| file.name.clone()),
        };
        let fetch = json!(handle).to_string();
        // A file that cannot be fetched is announced all the same.
        let is_usable = fetch.len() <= MAX_FETCH_HANDLE_BYTES;
        is_complete &= is_usable;
        message.artifacts.push(Artifact {
            name: file.name,
            mime_type: UNKNOWN_TYPE.to_owned(),
            missing: (!is_usable).then(|| "DingTalk's code for it is too long".to_owned()),
            fetch: is_usable.then_some(fetch),
            ..Artifact::default()
        });
    }
    if !is_complete {
        attachments.push(payload_attachment(payload));
    }
    let (message, cut) = message.cut_to_limits();
    if !cut.is_empty() && attachments.is_empty() {
        attachments.push(payload_attachment(payload));
    }
    RobotMessage { event: Some(InboundEvent::Message { message, attachments }), webhook }
}

/// Returns the payload without secrets, as an attachment.
fn payload_attachment(payload: &Value) -> InboundAttachment {
    let shown = redact::redacted(payload);
    InboundAttachment {
        name: PAYLOAD_NAME.to_owned(),
        mime_type: "application/json".to_owned(),
        bytes: format!("{shown:#}\n").into_bytes(),
    }
}

/// Returns the id of a message. A message that mentions two robots has one id for both, so the
/// id is the provider's own only in messages to the tunnel's robot.
fn message_id(payload: &Value, own_code: &str, robot_code: &str) -> String {
    let id = text(&payload["msgId"]).unwrap_or_else(|| {
        let hash = hex::encode(&Sha256::digest(payload.to_string().as_bytes()));
        format!("sha256-{hash}")
    });
    let id = if own_code == robot_code { id } else { format!("{own_code}:{id}") };
    short(&id, MAX_EXTERNAL_ID_BYTES)
}

/// Returns the author. People outside of the organisation have no staff id.
fn author(payload: &Value) -> Participant {
    let id = text(&payload["senderStaffId"]).or_else(|| text(&payload["senderId"]));
    let id = id.unwrap_or_else(|| "unknown".to_owned());
    Participant::user(short(&id, MAX_ACCOUNT_BYTES), text(&payload["senderNick"]))
}

/// Returns the chat, and the account that answers are sent to.
fn session(payload: &Value, author: &Participant) -> (ChatSession, EndpointKind, String) {
    let id = text(&payload["conversationId"]).unwrap_or_else(|| author.id.clone());
    let id = short(&id, MAX_ACCOUNT_BYTES);
    let name = text(&payload["conversationTitle"]);
    match text(&payload["conversationType"]).as_deref() {
        Some("1") => {
            let session = ChatSession { id, kind: ChatSessionKind::Direct, name, thread_key: None };
            (session, EndpointKind::User, author.id.clone())
        }
        _ => {
            let session = ChatSession {
                id: id.clone(),
                kind: ChatSessionKind::Group,
                name,
                thread_key: None,
            };
            (session, EndpointKind::Group, id)
        }
    }
}

fn session_webhook(payload: &Value) -> Option<SessionWebhook> {
    let url = text(&payload["sessionWebhook"])?;
    let expires = text(&payload["sessionWebhookExpiredTime"])?.parse().ok()?;
    Some(SessionWebhook::new(url, Timestamp::from_ms(expires)))
}

/// Returns the names that follow an `@` in the text, and the robot's code when it is mentioned.
/// DingTalk reports other people only by id, and removes the mention of the robot from the text.
fn mentions(payload: &Value, text_of_message: &str, own_code: &str) -> Vec<String> {
    let listed = payload["atUsers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let robot = text(&payload["chatbotUserId"]);
    let is_robot = |user: &Value| robot.is_some() && text(&user["dingtalkId"]) == robot;
    let mut mentions = Vec::new();
    if payload["isInAtList"] == true || listed.iter().any(is_robot) {
        mentions.push(own_code.to_owned());
    }
    let others = listed.iter().filter(|user| !is_robot(user)).count();
    if others == 0 {
        return mentions;
    }
    let names = text_of_message.split('@').skip(1).filter_map(|rest| {
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        Some(rest[..end].to_owned()).filter(|name| !name.is_empty())
    });
    mentions.extend(names.take(others));
    let ids = listed.iter().filter(|user| !is_robot(user));
    mentions.extend(ids.filter_map(|user| text(&user["staffId"])));
    mentions.truncate(MAX_LIST_ENTRIES);
    mentions
}

/// Returns a text or a number that is not empty.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Returns `id`, or when it is longer than `max` bytes its start and its hash.
fn short(id: &str, max: usize) -> String {
    if id.len() <= max {
        return id.to_owned();
    }
    let hash = hex::encode(&Sha256::digest(id.as_bytes()));
    format!("{}~{hash}", &id[..id.floor_char_boundary(max - hash.len() - 1)])
}

#[cfg(test)]
mod tests;
