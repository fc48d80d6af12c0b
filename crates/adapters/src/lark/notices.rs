//! Events that are no messages: members, names, reactions, buttons of cards, and the unknown.

use monoco_core::inbound::{InboundEvent, InboundMessage, TunnelNotice};
use monoco_core::time::Timestamp;
use serde_json::Value;

use super::inbound::{LarkReader, account, payload_file};
use super::wire::{id, list, redact, short_hash, text, time};
use crate::markdown::push_text;
use crate::names::TextContext;

/// Longest payload in a notice, in characters.
const MAX_PAYLOAD_CHARS: usize = 2000;

/// Most names in a notice about members.
const MAX_NAMES: usize = 20;

/// Events that say nothing beyond the messages.
const IGNORED_EVENTS: [&str; 2] =
    ["im.message.message_read_v1", "im.chat.access_event.bot_p2p_chat_entered_v1"];

/// Returns the event for everything but messages; `None` for events that are ignored.
pub(super) fn notice(
    reader: &LarkReader<'_>,
    kind: &str,
    payload: &Value,
    context: &TextContext<'_>,
) -> Option<InboundEvent> {
    if IGNORED_EVENTS.contains(&kind) {
        return None;
    }
    let event = &payload["event"];
    let found = match kind {
        "im.message.reaction.created_v1" | "im.message.reaction.deleted_v1" => {
            if text(event, "operator_type") == Some("app") {
                return None;
            }
            reaction(kind, payload, context)
        }
        "card.action.trigger" => return Some(card_action(reader, payload, context)),
        "im.chat.member.user.added_v1" => members("member_joined", "joined", event, context),
        "im.chat.member.user.deleted_v1" => {
            members("member_left", "left, or were removed from,", event, context)
        }
        "im.chat.member.user.withdrawn_v1" => {
            members("member_withdrawn", "are no longer invited to", event, context)
        }
        "im.chat.member.bot.added_v1" => {
            Some(("bot_added", "the bot was added to the chat".to_owned()))
        }
        "im.chat.member.bot.deleted_v1" => {
            Some(("left", "the bot is no longer in the chat".to_owned()))
        }
        "im.chat.disbanded_v1" => Some(("deleted", "the chat was disbanded".to_owned())),
        "im.chat.updated_v1" => Some(match text(&event["after_change"], "name") {
            Some(name) => ("renamed", format!("the chat is now called {name}")),
            None => ("chat_changed", "the settings of the chat were changed".to_owned()),
        }),
        _ => None,
    };
    let Some((kind, detail)) = found else { return Some(unknown(payload)) };
    let chat = id(event, "chat_id");
    let by =
        account(&event["operator_id"], context).or_else(|| account(&event["user_id"], context));
    let session =
        chat.map(|chat| reader.session(chat, reader.kind_of(chat), None, by.as_ref(), context));
    Some(InboundEvent::Notice(TunnelNotice {
        id: event_id(payload),
        kind: kind.to_owned(),
        session,
        by,
        detail,
        at: event_time(payload),
    }))
}

/// Returns the id and the new name of a chat that was renamed.
pub(super) fn renamed_chat(kind: &str, event: &Value) -> Option<(String, String)> {
    if kind != "im.chat.updated_v1" {
        return None;
    }
    let name = text(&event["after_change"], "name")?;
    Some((id(event, "chat_id")?.to_owned(), name.to_owned()))
}

fn reaction(
    kind: &str,
    payload: &Value,
    context: &TextContext<'_>,
) -> Option<(&'static str, String)> {
    let event = &payload["event"];
    let emoji = text(&event["reaction_type"], "emoji_type").unwrap_or("?");
    let by = account(&event["user_id"], context);
    let by = by.map_or_else(|| "an account".to_owned(), |by| by.name.unwrap_or(by.id));
    let message = id(event, "message_id")?;
    Some(match kind.ends_with("created_v1") {
        true => ("reaction_added", format!("{by} reacted :{emoji}: to {message}")),
        false => {
            ("reaction_removed", format!("{by} took back the reaction :{emoji}: to {message}"))
        }
    })
}

fn members(
    kind: &'static str,
    verb: &str,
    event: &Value,
    context: &TextContext<'_>,
) -> Option<(&'static str, String)> {
    let users = list(event, "users").iter().take(MAX_NAMES);
    let name = |user: &Value| {
        let given = text(user, "name").map(str::to_owned);
        given.or_else(|| account(&user["user_id"], context).map(|it| it.name.unwrap_or(it.id)))
    };
    let names: Vec<_> = users.filter_map(name).collect();
    (!names.is_empty()).then(|| (kind, format!("{} {verb} the chat", names.join(", "))))
}

/// Returns a button or another element of a card as a message with its payload.
fn card_action(
    reader: &LarkReader<'_>,
    payload: &Value,
    context: &TextContext<'_>,
) -> InboundEvent {
    let event = &payload["event"];
    let chat = id(&event["context"], "open_chat_id");
    let (Some(chat), Some(from)) = (chat, account(&event["operator"], context)) else {
        return unknown(payload);
    };
    let session = reader.session(chat, reader.kind_of(chat), None, Some(&from), context);
    let action = &event["action"];
    let value = match &action["value"] {
        Value::String(value) => value.clone(),
        Value::Null => text(action, "option").unwrap_or("no value").to_owned(),
        value => value.to_string(),
    };
    let tag = text(action, "tag").unwrap_or("element");
    let mut markdown = String::new();
    push_text(&mut markdown, &format!("[card {tag}: {value}; the payload is attached]"));
    let mut message = InboundMessage::new(event_id(payload), session, from, markdown);
    message.at = event_time(payload);
    message.reply_to = id(&event["context"], "open_message_id").map(str::to_owned);
    let (message, _) = message.cut_to_limits();
    InboundEvent::Message { message, attachments: vec![payload_file(payload)] }
}

/// Returns the notice of a payload that this version does not know.
pub(super) fn unknown(payload: &Value) -> InboundEvent {
    let json = redact(payload).to_string();
    // Version 1 has its type inside of the event.
    let kind = text(&payload["header"], "event_type").or(text(&payload["event"], "type"));
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || "._".contains(*c);
    let kind: String = kind.unwrap_or("unknown").chars().filter(is_plain).take(80).collect();
    let shown: String = json.chars().take(MAX_PAYLOAD_CHARS).collect();
    InboundEvent::Notice(TunnelNotice {
        id: event_id(payload),
        kind: "unknown_event".to_owned(),
        session: None,
        by: None,
        detail: format!("event of the type {kind}, which this version does not know: {shown}"),
        at: event_time(payload),
    })
}

/// Returns the notice of bytes that are not JSON.
pub(super) fn unreadable(bytes: &[u8], now: Timestamp) -> InboundEvent {
    let hash = short_hash(&String::from_utf8_lossy(bytes));
    InboundEvent::Notice(TunnelNotice {
        id: format!("unreadable:{hash}"),
        kind: "unreadable_message".to_owned(),
        session: None,
        by: None,
        detail: format!(
            "Lark sent an event of {} bytes that is not valid JSON; it cannot be shown",
            bytes.len()
        ),
        at: Some(now),
    })
}

/// Returns the id of an event: that of its header (version 2.0) or `uuid` (version 1).
fn event_id(payload: &Value) -> String {
    match id(&payload["header"], "event_id").or(id(payload, "uuid")) {
        Some(id) => format!("event:{id}"),
        None => format!("event:{}", short_hash(&redact(payload).to_string())),
    }
}

fn event_time(payload: &Value) -> Option<Timestamp> {
    time(&payload["header"], "create_time")
}
