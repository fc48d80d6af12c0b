//! Events of the organisation, such as new members of a group, and gaps in the stream as notices.

use monoco_core::inbound::{
    ChatSession, ChatSessionKind, InboundEvent, MAX_ACCOUNT_BYTES, MAX_EXTERNAL_ID_BYTES,
    Participant, TunnelNotice,
};
use monoco_core::time::Timestamp;
use serde_json::Value;

use super::super::wire::StreamFrame;
use super::{redact, short, text};

/// Longest excerpt of the data of an event in a notice, in characters.
const MAX_DATA_CHARS: usize = 500;

/// Longest name of a kind, in bytes.
const MAX_KIND_BYTES: usize = 64;

/// Kinds of notices by the type of the event, and what they say.
const KINDS: [(&str, &str, &str); 8] = [
    ("chat_add_member", "member_joined", "joined the group"),
    ("chat_remove_member", "member_left", "was removed from the group"),
    ("chat_quit", "member_left", "left the group"),
    ("chat_update_owner", "owner_changed", "is the new owner of the group"),
    ("chat_update_title", "chat_renamed", "renamed the group"),
    ("chat_disband", "chat_closed", "closed the group"),
    ("user_add_org", "user_joined", "joined the organisation"),
    ("user_leave_org", "user_left", "left the organisation"),
];

/// Converts an event. The id of the event identifies it when it is sent again.
pub(crate) fn read_event(frame: &StreamFrame) -> InboundEvent {
    let data = frame.data_json().unwrap_or_default();
    let headers = &frame.headers;
    let id = [&headers.event_id, &headers.message_id].into_iter().find(|id| !id.is_empty());
    let id = id.cloned().unwrap_or_else(|| frame.data_text());
    let known = KINDS.iter().find(|(event, ..)| *event == headers.event_type);
    let people = people(&data);
    let detail = match known {
        Some((_, _, said)) if !people.is_empty() => format!("{} {said}", people.join(", ")),
        _ => {
            let shown: String =
                redact::redacted(&data).to_string().chars().take(MAX_DATA_CHARS).collect();
            format!("event {} of DingTalk: {shown}", headers.event_type)
        }
    };
    InboundEvent::Notice(TunnelNotice {
        id: short(&format!("event:{id}"), MAX_EXTERNAL_ID_BYTES),
        kind: known.map_or_else(|| snake_case(&headers.event_type), |(_, kind, _)| (*kind).into()),
        session: group(&data),
        by: people.first().map(|id| Participant::user(id.clone(), None)),
        detail,
        at: text(&headers.event_born_time).and_then(|ms| ms.parse().ok()).map(Timestamp::from_ms),
    })
}

/// Reports that messages of a time span may be lost: DingTalk has no history and does not repeat
/// what it could not deliver.
pub(crate) fn gap_notice(since: Timestamp, until: Timestamp) -> InboundEvent {
    let (from, to) = (since.rfc3339(), until.rfc3339());
    InboundEvent::Notice(TunnelNotice {
        id: format!("gap:{}-{}", since.ms(), until.ms()),
        kind: "gap".to_owned(),
        session: None,
        by: None,
        detail: format!(
            "the stream was not connected from {from} to {to}; DingTalk has no history, so \
             messages of this time may be missing"
        ),
        at: Some(until),
    })
}

/// Returns the ids of the accounts that an event is about.
fn people(data: &Value) -> Vec<String> {
    let keys = ["userId", "UserId", "staffId", "newOwner", "operator"];
    let found = keys.iter().map(|key| &data[*key]).find(|value| !value.is_null());
    let ids = match found {
        Some(Value::Array(list)) => list.iter().filter_map(text).collect(),
        Some(value) => text(value).into_iter().collect(),
        None => Vec::new(),
    };
    let ids: Vec<String> = ids;
    ids.into_iter().take(20).map(|id| short(&id, MAX_ACCOUNT_BYTES)).collect()
}

fn group(data: &Value) -> Option<ChatSession> {
    let keys = ["openConversationId", "OpenConversationId", "chatId", "ChatId"];
    let id = keys.iter().find_map(|key| text(&data[*key]))?;
    let name = text(&data["title"]).or_else(|| text(&data["Title"]));
    let id = short(&id, MAX_ACCOUNT_BYTES);
    Some(ChatSession { id, kind: ChatSessionKind::Group, name, thread_key: None })
}

/// Returns the name of an event as a kind, or `event` when it has no usable name.
fn snake_case(event: &str) -> String {
    let kind: String = event
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
        .take(MAX_KIND_BYTES)
        .collect();
    if kind.is_empty() { "event".to_owned() } else { kind }
}
