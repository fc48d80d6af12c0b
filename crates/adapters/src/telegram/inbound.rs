//! Converts updates into inbound events. Pure.
//!
//! | update | becomes |
//! | --- | --- |
//! | a message of a person, of an anonymous admin or of a channel | a message with the id `{chat}:{message_id}` |
//! | an edited message | an edit, unless only a live location has moved |
//! | members, names, pins, topics, reactions, migrations | a notice |
//! | messages of other bots | nothing, so that two bots cannot answer each other |
//! | a kind of message that this version does not know | a placeholder, with the payload attached |
//! | any other update | a notice with the payload |

use monoco_core::did::EndpointKind;
use monoco_core::inbound::{
    ChatSession, ChatSessionKind, InboundEvent, InboundMessage, MessageEdit, Participant,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::albums::AlbumKey;
use super::content::{self, TelegramContent};
use super::notices;
use super::wire::{TelegramUpdate, integer, list, message_id, payload_file, text, time};

/// What one update contains.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ReadUpdate {
    pub event: Option<InboundEvent>,
    /// Set when the message is an item of an album.
    pub album: Option<AlbumKey>,
    /// Ids of a group and of the supergroup that it has become.
    pub migration: Option<(i64, i64)>,
}

impl From<InboundEvent> for ReadUpdate {
    fn from(event: InboundEvent) -> Self {
        Self { event: Some(event), ..Self::default() }
    }
}

/// Converts an update into at most one event.
pub(super) fn read_update(update: &TelegramUpdate) -> ReadUpdate {
    let value = &update.value;
    let new = ["message", "channel_post"].iter().find_map(|key| value.get(key));
    let edited = ["edited_message", "edited_channel_post"].iter().find_map(|key| value.get(key));
    if let Some(message) = new {
        return read_message(message).unwrap_or_else(|| notices::unknown(update).into());
    }
    if let Some(message) = edited {
        return read_edit(message).unwrap_or_else(|| notices::unknown(update).into());
    }
    let notice = notices::of_update(update).unwrap_or_else(|| notices::unknown(update));
    notice.into()
}

/// Converts a new message. `None` when it has no chat or no id.
fn read_message(message: &Value) -> Option<ReadUpdate> {
    let (chat, number) = (integer(&message["chat"], "id")?, integer(message, "message_id")?);
    if let Some(notice) = notices::of_message(message, chat, number) {
        let migration = notices::migration(message, chat);
        return Some(ReadUpdate { event: Some(notice), migration, album: None });
    }
    let Some((inbound, needs_payload)) = inbound(message, chat, number) else {
        return Some(ReadUpdate::default());
    };
    let attachments = if needs_payload { vec![payload_file(message)] } else { Vec::new() };
    let event = InboundEvent::Message { message: inbound, attachments };
    Some(ReadUpdate { event: Some(event), album: album(message, chat), migration: None })
}

fn read_edit(message: &Value) -> Option<ReadUpdate> {
    let (chat, number) = (integer(&message["chat"], "id")?, integer(message, "message_id")?);
    // A live location moves every few seconds. That is no correction.
    if message["location"].get("live_period").is_some() {
        return Some(ReadUpdate::default());
    }
    let Some((mut edited, _)) = inbound(message, chat, number) else {
        return Some(ReadUpdate::default());
    };
    let at = integer(message, "edit_date").unwrap_or_default();
    edited.at = time(message, "edit_date").or(edited.at);
    // Two edits within one second differ in their content.
    let hash: [u8; 32] = Sha256::digest(&edited.text).into();
    let edit_id = format!("{}:{at}:{}", edited.id, monoco_core::hex::encode(&hash[..4]));
    let event = InboundEvent::Edit(MessageEdit { edit_id, message: edited });
    Some(ReadUpdate { event: Some(event), album: album(message, chat), migration: None })
}

fn album(message: &Value, chat: i64) -> Option<AlbumKey> {
    let group = text(message, "media_group_id").filter(|group| group.len() <= 64)?;
    Some(AlbumKey { chat, group: group.to_owned() })
}

/// Returns the message, and whether its payload has more than the message shows. `None` when
/// another bot has written it.
fn inbound(message: &Value, chat: i64, number: i64) -> Option<(InboundMessage, bool)> {
    let from = sender(message)?;
    let thread = topic(message);
    let session = session(&message["chat"], thread, &from);
    let TelegramContent { markdown, mentions, artifacts, is_complete } =
        content::read(message, number);
    let mut new = InboundMessage::new(message_id(chat, number), session, from, markdown);
    new.at = time(message, "date");
    new.mentions = mentions;
    new.artifacts = artifacts;
    new.reply_to = answered(message, chat, thread);
    new.forwarded_from = message.get("forward_origin").map(origin_name);
    let (new, cut) = new.cut_to_limits();
    Some((new, !is_complete || !cut.is_empty()))
}

/// Returns the author: a person, or the chat in whose name a channel or an anonymous admin
/// writes. `None` for bots.
pub(super) fn sender(message: &Value) -> Option<Participant> {
    // The bot accounts `GroupAnonymousBot` and `Channel_Bot` stand in `from` then.
    if let Some(chat) = message.get("sender_chat").filter(|chat| chat.is_object()) {
        return chat_participant(chat, text(message, "author_signature"));
    }
    match message.get("from").filter(|from| from.is_object()) {
        Some(from) if from["is_bot"] == true => None,
        Some(from) => person(from),
        None => chat_participant(&message["chat"], text(message, "author_signature")),
    }
}

/// Returns a user as a participant.
pub(super) fn person(user: &Value) -> Option<Participant> {
    let id = integer(user, "id")?;
    let name = full_name(user).or_else(|| text(user, "username").map(str::to_owned));
    Some(Participant::user(id.to_string(), name))
}

/// Returns first and last name of a user.
pub(super) fn full_name(user: &Value) -> Option<String> {
    let names = [text(user, "first_name"), text(user, "last_name")];
    let name = names.into_iter().flatten().collect::<Vec<_>>().join(" ");
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

fn chat_participant(chat: &Value, signature: Option<&str>) -> Option<Participant> {
    let id = integer(chat, "id")?;
    let kind = match text(chat, "type") {
        Some("channel") => EndpointKind::Channel,
        Some("private") => EndpointKind::User,
        _ => EndpointKind::Group,
    };
    let name = match (chat_name(chat), signature) {
        (Some(title), Some(signature)) => Some(format!("{title} ({signature})")),
        (title, _) => title,
    };
    Some(Participant { id: id.to_string(), kind, name })
}

fn chat_name(chat: &Value) -> Option<String> {
    let title = text(chat, "title").map(str::to_owned);
    title.or_else(|| full_name(chat)).or_else(|| text(chat, "username").map(str::to_owned))
}

/// Returns the session of a chat and a topic. A private chat has the name of the person.
pub(super) fn session(chat: &Value, thread: Option<i64>, from: &Participant) -> ChatSession {
    let kind = match text(chat, "type") {
        Some("private") => ChatSessionKind::Direct,
        _ => ChatSessionKind::Group,
    };
    let name = match kind {
        ChatSessionKind::Direct => from.name.clone().or_else(|| chat_name(chat)),
        _ => chat_name(chat),
    };
    let id = integer(chat, "id").unwrap_or_default().to_string();
    ChatSession { id, kind, name, thread_key: thread.map(|thread| thread.to_string()) }
}

/// Returns the topic of a message. The general topic has none, and neither has a thread of
/// replies, to which nothing can be sent.
pub(super) fn topic(message: &Value) -> Option<i64> {
    let is_topic = message["is_topic_message"] == true;
    integer(message, "message_thread_id").filter(|thread| is_topic && *thread > 1)
}

/// Returns the id of the message that a message answers. Every message of a topic names the
/// message that has created the topic; that is no answer.
fn answered(message: &Value, chat: i64, thread: Option<i64>) -> Option<String> {
    let answered = message.get("reply_to_message")?;
    let number = integer(answered, "message_id")?;
    let is_topic = answered.get("forum_topic_created").is_some() || thread == Some(number);
    let chat = integer(&answered["chat"], "id").unwrap_or(chat);
    (!is_topic).then(|| message_id(chat, number))
}

/// Returns the name of the original author of a forwarded message.
pub(super) fn origin_name(origin: &Value) -> String {
    let name = match text(origin, "type") {
        Some("user") => person(&origin["sender_user"]).map(|user| user.display_name().to_owned()),
        Some("hidden_user") => text(origin, "sender_user_name").map(str::to_owned),
        Some("chat") => chat_name(&origin["sender_chat"]),
        Some("channel") => chat_name(&origin["chat"]),
        _ => None,
    };
    let name = name.unwrap_or_else(|| "unknown".to_owned());
    match text(origin, "author_signature") {
        Some(signature) => format!("{name} ({signature})"),
        None => name,
    }
}

/// Returns the members that a service message names.
pub(super) fn members<'a>(message: &'a Value) -> impl Iterator<Item = Participant> + 'a {
    list(message, "new_chat_members").iter().filter_map(person)
}

#[cfg(test)]
mod tests;
