//! Updates that are no messages: members, names, pins, topics, reactions and migrations.

use monoco_core::inbound::{InboundEvent, Participant, TunnelNotice};
use serde_json::Value;

use super::inbound::{full_name, members, person, sender, session};
use super::wire::{TelegramUpdate, integer, list, redact, text, time};

/// Longest payload in a notice, in characters.
const MAX_PAYLOAD_CHARS: usize = 2000;

/// Service messages that need no further words: the key, the kind of the notice, and its text.
const SERVICE_KINDS: [(&str, &str, &str); 29] = [
    ("new_chat_photo", "chat_changed", "the chat has a new photo"),
    ("delete_chat_photo", "chat_changed", "the photo of the chat was removed"),
    ("group_chat_created", "chat_created", "the group was created"),
    ("supergroup_chat_created", "chat_created", "the supergroup was created"),
    ("channel_chat_created", "chat_created", "the channel was created"),
    (
        "message_auto_delete_timer_changed",
        "chat_changed",
        "messages are deleted after another time",
    ),
    ("pinned_message", "pins_changed", "a message was pinned"),
    ("forum_topic_edited", "topic_changed", "a topic was changed"),
    ("forum_topic_closed", "topic_changed", "a topic was closed"),
    ("forum_topic_reopened", "topic_changed", "a topic was opened again"),
    ("general_forum_topic_hidden", "topic_changed", "the general topic was hidden"),
    ("general_forum_topic_unhidden", "topic_changed", "the general topic is shown again"),
    ("video_chat_scheduled", "call", "a video chat was scheduled"),
    ("video_chat_started", "call", "a video chat has started"),
    ("video_chat_ended", "call", "a video chat has ended"),
    ("video_chat_participants_invited", "call", "people were invited to a video chat"),
    ("proximity_alert_triggered", "proximity", "two people have come near to each other"),
    ("boost_added", "boost", "the chat was boosted"),
    ("chat_background_set", "chat_changed", "the chat has a new background"),
    ("write_access_allowed", "write_access", "the person has allowed the bot to write"),
    ("connected_website", "connected_website", "the person has logged in to a website"),
    ("giveaway_created", "giveaway", "a giveaway was created"),
    ("giveaway_completed", "giveaway", "a giveaway was completed"),
    ("chat_shared", "shared", "the person has shared a chat with the bot"),
    ("users_shared", "shared", "the person has shared accounts with the bot"),
    ("direct_message_price_changed", "chat_changed", "the price of direct messages was changed"),
    ("paid_message_price_changed", "chat_changed", "the price of messages was changed"),
    ("checklist_tasks_done", "checklist_changed", "tasks of a checklist were marked"),
    ("checklist_tasks_added", "checklist_changed", "tasks were added to a checklist"),
];

/// Returns the notice of a service message; `None` for other messages.
pub(super) fn of_message(message: &Value, chat: i64, number: i64) -> Option<InboundEvent> {
    let (kind, detail) = service(message)?;
    // A message reports a change once, so its id identifies the notice.
    let id = format!("{kind}:{chat}:{number}");
    let by = sender(message).or_else(|| person(&message["from"]));
    Some(notice(id, kind, &message["chat"], by, detail, message))
}

fn service(message: &Value) -> Option<(&'static str, String)> {
    let has = |key: &str| message.get(key).is_some_and(|value| !value.is_null());
    if has("new_chat_members") {
        let names: Vec<_> = members(message).map(|member| named(&member)).take(20).collect();
        return Some(("member_joined", format!("{} joined the chat", names.join(", "))));
    }
    if has("left_chat_member") {
        let name = person(&message["left_chat_member"]).as_ref().map(named);
        let name = name.unwrap_or_else(|| "an account".to_owned());
        return Some(("member_left", format!("{name} left the chat")));
    }
    if let Some(title) = text(message, "new_chat_title") {
        return Some(("renamed", format!("the chat is now called {title}")));
    }
    if let Some(to) = integer(message, "migrate_to_chat_id") {
        return Some(("chat_migrated", format!("the group has become the supergroup {to}")));
    }
    if let Some(from) = integer(message, "migrate_from_chat_id") {
        return Some(("chat_migrated", format!("the supergroup was the group {from}")));
    }
    if has("forum_topic_created") {
        let name = text(&message["forum_topic_created"], "name").unwrap_or("without a name");
        return Some(("topic_created", format!("the topic {name} was created")));
    }
    let known = SERVICE_KINDS.iter().find(|(key, ..)| has(key));
    known.map(|(_, kind, detail)| (*kind, (*detail).to_owned()))
}

/// Returns the ids of a group and of the supergroup that it has become.
pub(super) fn migration(message: &Value, chat: i64) -> Option<(i64, i64)> {
    let to = integer(message, "migrate_to_chat_id").map(|to| (chat, to));
    to.or_else(|| integer(message, "migrate_from_chat_id").map(|from| (from, chat)))
}

/// Returns the notice of an update that is no message; `None` when its kind is not known.
pub(super) fn of_update(update: &TelegramUpdate) -> Option<InboundEvent> {
    let get = |key: &str| update.value.get(key).filter(|value| value.is_object());
    if let Some(change) = get("my_chat_member") {
        return Some(own_membership(change, update.id));
    }
    get("message_reaction").map(|reaction| reacted(reaction, update.id))
}

/// The bot was added, removed, blocked or made an admin.
fn own_membership(change: &Value, update: i64) -> InboundEvent {
    let status = |key: &str| text(&change[key], "status").unwrap_or("unknown");
    let (old, new) = (status("old_chat_member"), status("new_chat_member"));
    let is_private = text(&change["chat"], "type") == Some("private");
    let is_in = |status: &str| !matches!(status, "left" | "kicked");
    let (kind, detail) = match (is_in(old), is_in(new)) {
        (true, false) if is_private => ("bot_blocked", "the person has blocked the bot".to_owned()),
        (false, true) if is_private => {
            ("bot_unblocked", "the person has unblocked the bot".to_owned())
        }
        (true, false) => ("bot_removed", "the bot was removed from the chat".to_owned()),
        (false, true) => ("bot_added", format!("the bot was added to the chat as {new}")),
        _ => ("bot_changed", format!("the bot is now {new} of the chat; it was {old}")),
    };
    let id = format!("{kind}:{}:{update}", integer(&change["chat"], "id").unwrap_or_default());
    notice(id, kind, &change["chat"], person(&change["from"]), detail, change)
}

fn reacted(reaction: &Value, update: i64) -> InboundEvent {
    let names = |key: &str| -> Vec<String> {
        let entries = list(reaction, key).iter().take(20);
        entries.map(|it| text(it, "emoji").unwrap_or("a custom emoji").to_owned()).collect()
    };
    let (old, new) = (names("old_reaction"), names("new_reaction"));
    let chat = integer(&reaction["chat"], "id").unwrap_or_default();
    let number = integer(reaction, "message_id").unwrap_or_default();
    let by = person(&reaction["user"]);
    let name = by.as_ref().map_or("an anonymous account".to_owned(), named);
    let (kind, detail) = match new.is_empty() {
        true => {
            ("reaction_removed", format!("{name} took back {} to {chat}:{number}", old.join(" ")))
        }
        false => ("reaction_added", format!("{name} reacted {} to {chat}:{number}", new.join(" "))),
    };
    let id = format!("{kind}:{chat}:{number}:{update}");
    notice(id, kind, &reaction["chat"], by, detail, reaction)
}

/// Returns the notice of an update that this version does not know.
pub(super) fn unknown(update: &TelegramUpdate) -> InboundEvent {
    let kind =
        update.value.as_object().and_then(|entries| entries.keys().find(|key| *key != "update_id"));
    let kind: String = kind.map_or("empty", String::as_str).chars().take(64).collect();
    let shown: String = redact(&update.value).to_string().chars().take(MAX_PAYLOAD_CHARS).collect();
    InboundEvent::Notice(TunnelNotice {
        id: format!("unknown:{}", update.id),
        kind: "unknown_event".to_owned(),
        session: None,
        by: None,
        detail: format!("update of the type {kind}, which this version does not know: {shown}"),
        at: None,
    })
}

fn notice(
    id: String,
    kind: &str,
    chat: &Value,
    by: Option<Participant>,
    detail: String,
    source: &Value,
) -> InboundEvent {
    let unknown = Participant::user("telegram", None);
    let session = session(chat, None, by.as_ref().unwrap_or(&unknown));
    let at = time(source, "date");
    let kind = kind.to_owned();
    InboundEvent::Notice(TunnelNotice { id, kind, session: Some(session), by, detail, at })
}

/// Returns the name of an account with its id.
fn named(account: &Participant) -> String {
    match &account.name {
        Some(name) => format!("{name} ({})", account.id),
        None => account.id.clone(),
    }
}

/// Returns the name of a bot as an operator knows it.
pub(super) fn bot_name(bot: &Value) -> String {
    let name = text(bot, "username").map(|name| format!("@{name}"));
    name.or_else(|| full_name(bot)).unwrap_or_else(|| "a bot without a name".to_owned())
}
