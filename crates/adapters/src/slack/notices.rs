//! Events that are no messages: members, names, topics, archives, pins, reactions and commands.

use monoco_core::inbound::{ChatSessionKind, InboundEvent, InboundMessage, TunnelNotice};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::inbound::{EventChat, OwnAccount, payload_file, sender, session};
use super::markup::{TextContext, push_text};
use super::wire::{is_ts, redact, text, time_of_ts};

/// Longest payload in a notice, in characters.
const MAX_PAYLOAD_CHARS: usize = 2000;

/// Events that say nothing beyond the messages, or only concern the app itself.
const IGNORED_EVENTS: [&str; 16] = [
    "app_home_opened",
    "file_created",
    "file_shared",
    "file_public",
    "file_change",
    "file_deleted",
    "file_unshared",
    "user_change",
    "user_profile_changed",
    "emoji_changed",
    "link_shared",
    "message_metadata_posted",
    "message_metadata_updated",
    "message_metadata_deleted",
    "assistant_thread_started",
    "assistant_thread_context_changed",
];

/// Returns the notice of an event other than a message; `None` for events that are ignored.
pub(super) fn notice(
    event: &Value,
    payload: &Value,
    own: &OwnAccount,
    context: &TextContext<'_>,
) -> Option<InboundEvent> {
    let kind = text(event, "type")?;
    if IGNORED_EVENTS.contains(&kind) {
        return None;
    }
    let user = text(event, "user");
    let name = |id: Option<&str>| id.map_or("an account".to_owned(), |id| account(id, context));
    match kind {
        "member_joined_channel" | "member_left_channel" => {
            let chat = EventChat::new(text(event, "channel")?, channel_type(event));
            let joined = kind == "member_joined_channel";
            Some(membership(chat, event, joined, context))
        }
        "reaction_added" | "reaction_removed" => {
            // Reactions of the bot say nothing about other people.
            if user.is_some_and(|user| user == own.user_id) {
                return None;
            }
            let item = &event["item"];
            let (channel, ts) = (text(item, "channel")?, text(item, "ts")?);
            let reaction = text(event, "reaction").unwrap_or("?");
            let verb = if kind == "reaction_added" { "reacted" } else { "took back the reaction" };
            let detail = format!("{} {verb} :{reaction}: to {channel}:{ts}", name(user));
            let id = format!(
                "{kind}:{channel}:{ts}:{}:{reaction}:{}",
                user.unwrap_or_default(),
                text(event, "event_ts").unwrap_or_default()
            );
            Some(build(id, kind, Some(EventChat::new(channel, None)), detail, event, context))
        }
        "channel_rename" | "group_rename" => {
            let (id, new) = renamed_chat(event)?;
            let detail = format!("the chat is now called {new}");
            let chat = EventChat::new(&id, None);
            Some(chat_notice("renamed", chat, detail, event, context))
        }
        "tokens_revoked" | "app_uninstalled" => {
            let detail = "the app was uninstalled or its tokens were revoked".to_owned();
            let id = format!("{kind}:{}", text(payload, "event_id").unwrap_or_default());
            Some(build(id, "uninstalled", None, detail, event, context))
        }
        _ => match (chat_change(kind), text(event, "channel")) {
            (Some((kind, detail)), Some(channel)) => {
                let chat = EventChat::new(channel, None);
                Some(chat_notice(kind, chat, detail.to_owned(), event, context))
            }
            _ => Some(unknown(payload)),
        },
    }
}

/// Returns what the type of an event says about a chat.
fn chat_change(kind: &str) -> Option<(&'static str, &'static str)> {
    Some(match kind {
        "channel_archive" | "group_archive" => ("archived", "the chat was archived"),
        "channel_unarchive" | "group_unarchive" => ("unarchived", "the chat is active again"),
        "channel_deleted" | "group_deleted" => ("deleted", "the chat was deleted"),
        "channel_left" | "group_left" => ("left", "the bot is no longer in the chat"),
        "pin_added" | "pin_removed" => ("pins_changed", "a message was pinned or unpinned"),
        _ => return None,
    })
}

/// Returns the notice of a message that Slack writes by itself, such as `channel_topic`; `None`
/// for messages of people.
pub(super) fn of_subtype(
    chat: EventChat<'_>,
    message: &Value,
    context: &TextContext<'_>,
) -> Option<InboundEvent> {
    let subtype = text(message, "subtype")?;
    let value = |key: &str| text(message, key).unwrap_or("(nothing)").to_owned();
    let (kind, detail) = match subtype {
        "channel_join" | "group_join" => return Some(membership(chat, message, true, context)),
        "channel_leave" | "group_leave" => return Some(membership(chat, message, false, context)),
        "channel_topic" | "group_topic" => {
            ("topic_changed", format!("the topic is now: {}", value("topic")))
        }
        "channel_purpose" | "group_purpose" => {
            ("purpose_changed", format!("the description is now: {}", value("purpose")))
        }
        "channel_name" | "group_name" => {
            ("renamed", format!("the chat is now called {}", value("name")))
        }
        "channel_archive" | "group_archive" => ("archived", "the chat was archived".to_owned()),
        "channel_unarchive" | "group_unarchive" => {
            ("unarchived", "the chat is active again".to_owned())
        }
        "pinned_item" | "unpinned_item" => {
            ("pins_changed", "a message was pinned or unpinned".to_owned())
        }
        "bot_add" | "bot_remove" => ("bots_changed", "a bot was added or removed".to_owned()),
        "channel_posting_permissions" | "channel_convert_to_private" => {
            ("permissions_changed", "who may write in the chat was changed".to_owned())
        }
        "tombstone" => ("tombstone", "a message was deleted".to_owned()),
        _ => return None,
    };
    Some(chat_notice(kind, chat, detail, message, context))
}

/// Returns the id and the new name of a chat that was renamed.
pub(super) fn renamed_chat(event: &Value) -> Option<(String, String)> {
    if !matches!(text(event, "type"), Some("channel_rename" | "group_rename")) {
        return None;
    }
    let chat = &event["channel"];
    Some((text(chat, "id")?.to_owned(), text(chat, "name")?.to_owned()))
}

/// Returns the notice that Slack has left out events of one minute.
pub(super) fn rate_limited(payload: &Value) -> InboundEvent {
    let minute = payload["minute_rate_limited"].as_i64().unwrap_or(0);
    let at = monoco_core::time::Timestamp::from_ms(minute.saturating_mul(1000));
    InboundEvent::Notice(TunnelNotice {
        id: format!("rate_limited:{minute}"),
        kind: "gap".to_owned(),
        session: None,
        by: None,
        detail: format!(
            "Slack has left out events of the minute from {}: the app receives more than \
             30,000 events per hour",
            at.rfc3339()
        ),
        at: Some(at),
    })
}

/// Returns the notice of a payload that this version does not know.
pub(super) fn unknown(payload: &Value) -> InboundEvent {
    let json = redact(payload).to_string();
    let event = text(&payload["event"], "type").or(text(payload, "type")).unwrap_or("unknown");
    let shown: String = json.chars().take(MAX_PAYLOAD_CHARS).collect();
    let id = match text(payload, "event_id") {
        Some(id) => format!("unknown:{id}"),
        None => format!("unknown:{}", short_hash(&json)),
    };
    let kind: String = event.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    InboundEvent::Notice(TunnelNotice {
        id,
        kind: "unknown_event".to_owned(),
        session: None,
        by: None,
        detail: format!("event of the type {kind}, which this version does not know: {shown}"),
        at: text(&payload["event"], "event_ts").and_then(time_of_ts),
    })
}

/// Returns a slash command, a button or a dialog as a message with its payload.
pub(super) fn interaction(kind: &str, payload: &Value, context: &TextContext<'_>) -> InboundEvent {
    let chat = text(payload, "channel_id").or(text(&payload["channel"], "id"));
    let user = text(payload, "user_id").or(text(&payload["user"], "id"));
    let (Some(chat), Some(user)) = (chat, user) else { return unknown(payload) };
    let mut author = serde_json::json!({ "user": user });
    let name = text(payload, "user_name").or(text(&payload["user"], "name"));
    if let Some(name) = name {
        author["user_profile"] = serde_json::json!({ "display_name": name });
    }
    let from = sender(&author, context);
    let thread = text(&payload["message"], "thread_ts").filter(|thread| is_ts(thread));
    let session = session(EventChat::new(chat, None), thread, &from, context);
    let shown = match text(payload, "command") {
        Some(command) => format!("{command} {}", text(payload, "text").unwrap_or_default()),
        None => {
            let action = &payload["actions"][0];
            let value = text(action, "value").or(text(&action["text"], "text"));
            let kind = text(payload, "type").unwrap_or(kind);
            format!("[{kind}: {}; the payload is attached]", value.unwrap_or("no value"))
        }
    };
    let mut markdown = String::new();
    push_text(&mut markdown, shown.trim());
    // The trigger is unique, but it lets its holder open dialogs, so only its hash is kept.
    let unique = text(payload, "trigger_id").or(text(&payload["actions"][0], "action_ts"));
    let unique = unique.map_or_else(|| redact(payload).to_string(), str::to_owned);
    let id = format!("{kind}:{}", short_hash(&unique));
    let (message, _) = InboundMessage::new(id, session, from, markdown).cut_to_limits();
    InboundEvent::Message { message, attachments: vec![payload_file(payload)] }
}

fn membership(
    chat: EventChat<'_>,
    event: &Value,
    joined: bool,
    context: &TextContext<'_>,
) -> InboundEvent {
    let user = text(event, "user").unwrap_or_default();
    let (kind, verb) = if joined { ("member_joined", "joined") } else { ("member_left", "left") };
    let ts = text(event, "event_ts").or(text(event, "ts")).unwrap_or_default();
    // A message and an event report the same change in the same second.
    let second = ts.split('.').next().unwrap_or_default();
    let id = format!("{kind}:{}:{user}:{second}", chat.id);
    let detail = format!("{} {verb} the chat", account(user, context));
    build(id, kind, Some(chat), detail, event, context)
}

fn chat_notice(
    kind: &str,
    chat: EventChat<'_>,
    detail: String,
    event: &Value,
    context: &TextContext<'_>,
) -> InboundEvent {
    let ts = text(event, "event_ts").or(text(event, "ts")).unwrap_or_default();
    build(format!("{kind}:{}:{ts}", chat.id), kind, Some(chat), detail, event, context)
}

fn build(
    id: String,
    kind: &str,
    chat: Option<EventChat<'_>>,
    detail: String,
    event: &Value,
    context: &TextContext<'_>,
) -> InboundEvent {
    let by = text(event, "user").map(|_| sender(event, context));
    let session = chat.map(|chat| {
        let from = by.clone().unwrap_or_else(|| sender(&Value::Null, context));
        let mut session = session(chat, None, &from, context);
        if chat.kind == ChatSessionKind::Direct {
            session.name = by.as_ref().and_then(|by| by.name.clone());
        }
        session
    });
    let at = text(event, "event_ts").or(text(event, "ts")).and_then(time_of_ts);
    let kind = kind.to_owned();
    InboundEvent::Notice(TunnelNotice { id, kind, session, by, detail, at })
}

/// Returns the name of an account with its id, or only the id.
fn account(id: &str, context: &TextContext<'_>) -> String {
    context.name(id).map_or_else(|| id.to_owned(), |name| format!("{name} ({id})"))
}

/// `member_joined_channel` has `C` and `G` as types of chats, which are no direct chats.
fn channel_type(event: &Value) -> Option<&str> {
    text(event, "channel_type").map(|kind| if kind == "D" { "im" } else { kind })
}

fn short_hash(text: &str) -> String {
    let hash: [u8; 32] = Sha256::digest(text).into();
    monoco_core::hex::encode(&hash[..12])
}
