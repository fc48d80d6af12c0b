//! Converts Lark's events into inbound events. Pure: names are passed in.
//!
//! | event | becomes |
//! | --- | --- |
//! | `im.message.receive_v1` of a person | a message; its id is the message id |
//! | `im.message.recalled_v1` | a recall |
//! | members, names, reactions | a notice |
//! | a button of a card | a message, with the payload attached |
//! | messages and reactions of apps, also of this one | nothing, so that two bots cannot answer each other |
//! | any other kind of message | a placeholder, with the payload attached |
//! | any other event | a notice with the payload |

use std::collections::BTreeSet;

use monoco_core::inbound::{
    ChatSession, ChatSessionKind, InboundAttachment, InboundEvent, InboundMessage, MessageEdit,
    MessageRecall, Participant,
};
use serde_json::Value;

use super::content::{self, ContentSource};
use super::notices;
use super::wire::{id, list, redact, text, time};
use crate::names::TextContext;

/// What one payload contains.
#[derive(Debug, Default)]
pub(super) struct LarkEvents {
    pub events: Vec<InboundEvent>,
    /// Ids of accounts and chats whose names were not known.
    pub missing: BTreeSet<String>,
    /// A new name of a chat: its id and the name.
    pub renamed: Option<(String, String)>,
    /// A chat that is known to be direct.
    pub direct_chat: Option<String>,
}

/// Converts payloads with what is known about names and chats.
pub(super) struct LarkReader<'a> {
    pub find_name: &'a (dyn Fn(&str) -> Option<String> + Sync),
    /// Tells whether a chat is direct. Only messages say so.
    pub is_direct: &'a (dyn Fn(&str) -> bool + Sync),
}

impl LarkReader<'_> {
    /// Converts the envelope of an event (version 2.0).
    pub fn read(&self, payload: &Value) -> LarkEvents {
        let context = TextContext::new(self.find_name);
        let mut result = LarkEvents::default();
        let event = &payload["event"];
        let kind = text(&payload["header"], "event_type").unwrap_or_default();
        match kind {
            "im.message.receive_v1" => {
                let chat = &event["message"];
                if text(chat, "chat_type") == Some("p2p") {
                    result.direct_chat = id(chat, "chat_id").map(str::to_owned);
                }
                result.events.extend(self.received(event, payload, &context));
            }
            "im.message.recalled_v1" => {
                let recall = self.recalled(event, &context);
                result.events.push(recall.unwrap_or_else(|| notices::unknown(payload)));
            }
            _ => {
                result.renamed = notices::renamed_chat(kind, event);
                result.events.extend(notices::notice(self, kind, payload, &context));
            }
        }
        result.missing = context.take_missing();
        result
    }

    /// Converts a message of a history. One that was edited also becomes an edit, because the
    /// stored message may have the old text; one that was deleted becomes a recall.
    pub fn read_history(&self, session: &ChatSession, item: &Value) -> LarkEvents {
        let context = TextContext::new(self.find_name);
        let mut events = Vec::new();
        if !is_of_app(&item["sender"]) {
            events = self.history_events(session, item, &context);
        }
        LarkEvents { events, missing: context.take_missing(), ..LarkEvents::default() }
    }

    fn history_events(
        &self,
        chat: &ChatSession,
        item: &Value,
        context: &TextContext<'_>,
    ) -> Vec<InboundEvent> {
        let Some(message_id) = id(item, "message_id") else { return Vec::new() };
        if item["deleted"].as_bool() == Some(true) {
            let session = self.session(&chat.id, chat.kind, None, None, context);
            let at = time(item, "update_time");
            return vec![recall(message_id, session, None, at)];
        }
        let Some(from) = Self::history_sender(item, context) else { return Vec::new() };
        let thread = thread_key(item);
        let session = self.session(&chat.id, chat.kind, thread, Some(&from), context);
        let (message, attachments) =
            build(history_source(item), item, session, from, item, context);
        let updated = time(item, "update_time").filter(|_| item["updated"].as_bool() == Some(true));
        let edit = updated.map(|at| {
            let edit_id = format!("{}:{}", message.id, at.ms());
            let message = InboundMessage { at: Some(at), ..message.clone() };
            InboundEvent::Edit(MessageEdit { edit_id, message })
        });
        let mut events = vec![InboundEvent::Message { message, attachments }];
        events.extend(edit);
        events
    }

    /// Returns the author of a message of a history.
    pub fn history_sender(item: &Value, context: &TextContext<'_>) -> Option<Participant> {
        let sender = &item["sender"];
        let account = id(sender, "id")?;
        let name = text(sender, "sender_name").map(str::to_owned);
        Some(Participant::user(account, name.or_else(|| context.name(account))))
    }

    fn received(
        &self,
        event: &Value,
        payload: &Value,
        context: &TextContext<'_>,
    ) -> Option<InboundEvent> {
        if is_of_app(&event["sender"]) {
            return None;
        }
        let message = &event["message"];
        let (chat, from) =
            (id(message, "chat_id"), account(&event["sender"]["sender_id"], context));
        let (Some(chat), Some(from), Some(_)) = (chat, from, id(message, "message_id")) else {
            return Some(notices::unknown(payload));
        };
        let kind = match text(message, "chat_type") {
            Some("p2p") => ChatSessionKind::Direct,
            _ => ChatSessionKind::Group,
        };
        let session = self.session(chat, kind, thread_key(message), Some(&from), context);
        let (message, attachments) =
            build(event_source(message), message, session, from, payload, context);
        Some(InboundEvent::Message { message, attachments })
    }

    fn recalled(&self, event: &Value, context: &TextContext<'_>) -> Option<InboundEvent> {
        let (message_id, chat) = (id(event, "message_id")?, id(event, "chat_id")?);
        let session = self.session(chat, self.kind_of(chat), None, None, context);
        Some(recall(message_id, session, None, time(event, "recall_time")))
    }

    pub fn kind_of(&self, chat: &str) -> ChatSessionKind {
        match (self.is_direct)(chat) {
            true => ChatSessionKind::Direct,
            false => ChatSessionKind::Group,
        }
    }

    /// Returns the session of a chat. A direct chat has the name of the other person.
    pub fn session(
        &self,
        chat: &str,
        kind: ChatSessionKind,
        thread: Option<&str>,
        from: Option<&Participant>,
        context: &TextContext<'_>,
    ) -> ChatSession {
        let name = match kind {
            ChatSessionKind::Direct => from.and_then(|from| from.name.clone()),
            _ => context.name(chat),
        };
        ChatSession { id: chat.to_owned(), kind, name, thread_key: thread.map(str::to_owned) }
    }
}

/// Builds a message and its attachments from a message of an event or of a history, which have
/// most fields in common.
fn build(
    source: ContentSource<'_>,
    message: &Value,
    session: ChatSession,
    from: Participant,
    payload: &Value,
    context: &TextContext<'_>,
) -> (InboundMessage, Vec<InboundAttachment>) {
    let shown = content::read(source, context);
    let mut new = InboundMessage::new(source.message_id, session, from, shown.markdown);
    new.at = time(message, "create_time");
    new.mentions = context.take_mentions();
    new.reply_to = id(message, "parent_id").or(id(message, "root_id")).map(str::to_owned);
    new.artifacts = shown.artifacts;
    let (new, cut) = new.cut_to_limits();
    let needs_payload = !shown.is_complete || !cut.is_empty();
    (new, if needs_payload { vec![payload_file(payload)] } else { Vec::new() })
}

/// Returns what the content of a message in an event depends on.
fn event_source(message: &Value) -> ContentSource<'_> {
    ContentSource {
        message_id: id(message, "message_id").unwrap_or_default(),
        kind: text(message, "message_type").unwrap_or_default(),
        content: text(message, "content").unwrap_or_default(),
        mentions: list(message, "mentions"),
    }
}

/// Returns what the content of a message in a history depends on.
pub(super) fn history_source(item: &Value) -> ContentSource<'_> {
    ContentSource {
        message_id: id(item, "message_id").unwrap_or_default(),
        kind: text(item, "msg_type").unwrap_or_default(),
        content: text(&item["body"], "content").unwrap_or_default(),
        mentions: list(item, "mentions"),
    }
}

/// Returns the first message of the topic that a message belongs to. Answers need its id: the id of
/// the topic itself is no address.
fn thread_key(message: &Value) -> Option<&str> {
    text(message, "thread_id")?;
    id(message, "root_id").or(id(message, "message_id"))
}

fn is_of_app(sender: &Value) -> bool {
    text(sender, "sender_type") == Some("app")
}

fn recall(
    message_id: &str,
    session: ChatSession,
    by: Option<Participant>,
    at: Option<monoco_core::time::Timestamp>,
) -> InboundEvent {
    let (recall_id, message_id) = (format!("{message_id}:recalled"), message_id.to_owned());
    InboundEvent::Recall(MessageRecall { recall_id, message_id, session, by, at })
}

/// Returns the account of an object with several ids.
pub(super) fn account(ids: &Value, context: &TextContext<'_>) -> Option<Participant> {
    let account = id(ids, "open_id").or(id(ids, "union_id")).or(id(ids, "user_id"))?;
    Some(Participant::user(account, context.name(account)))
}

/// Returns a payload as an attachment, without secrets.
pub(super) fn payload_file(payload: &Value) -> InboundAttachment {
    InboundAttachment {
        name: "payload.json".to_owned(),
        mime_type: "application/json".to_owned(),
        bytes: serde_json::to_vec_pretty(&redact(payload)).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
