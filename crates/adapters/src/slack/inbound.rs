//! Converts Slack's events into inbound events. Pure: names are passed in.
//!
//! | event | becomes |
//! | --- | --- |
//! | `message` of a person, with files, in a thread or broadcast; `app_mention` | a message with the id `{channel}:{ts}` |
//! | `message_changed` | an edit, unless only previews of links have changed |
//! | `message_deleted` | a recall |
//! | members, names, topics, archives, pins, reactions | a notice |
//! | messages of this bot | nothing |
//! | messages of other bots | nothing, so that two bots cannot answer each other; a message with `bots: accept` |
//! | any other kind of message | a placeholder, with the payload attached |
//! | any other event | a notice with the payload |

use std::collections::BTreeSet;

use monoco_core::inbound::{
    ChatSession, ChatSessionKind, InboundAttachment, InboundEvent, InboundMessage, MessageEdit,
    MessageRecall, Participant,
};
use serde_json::Value;

use super::files;
use super::markup::TextContext;
use super::message_text::{self, MessageText};
use super::notices;
use super::wire::{is_ts, message_id, redact, text, time_of_ts};

/// Longest id of a chat or an account that is accepted, in bytes. Slack's have 9 to 12.
const MAX_ID_BYTES: usize = 64;

/// The account of the bot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnAccount {
    pub user_id: String,
    pub bot_id: Option<String>,
    pub team: Option<String>,
}

/// What one payload contains.
#[derive(Debug, Default)]
pub(super) struct ReadEvents {
    pub events: Vec<InboundEvent>,
    /// Ids of accounts and chats whose names were not known.
    pub missing: BTreeSet<String>,
    /// A new name of a chat: its id and the name.
    pub renamed: Option<(String, String)>,
}

/// Converts payloads with what is known about the bot and about names.
pub(super) struct EventReader<'a> {
    pub own: &'a OwnAccount,
    /// Whether messages of other bots are converted.
    pub accepts_bots: bool,
    /// Returns the name of an account, a chat or a group of accounts.
    pub find_name: &'a (dyn Fn(&str) -> Option<String> + Sync),
}

/// A chat as an event names it.
#[derive(Clone, Copy)]
pub(super) struct EventChat<'a> {
    pub id: &'a str,
    pub kind: ChatSessionKind,
}

impl<'a> EventChat<'a> {
    /// Direct chats have ids that start with `D`; the type is missing in some events.
    pub fn new(id: &'a str, channel_type: Option<&str>) -> Self {
        let is_direct = channel_type.map_or(id.starts_with('D'), |kind| kind == "im");
        let kind = if is_direct { ChatSessionKind::Direct } else { ChatSessionKind::Group };
        Self { id, kind }
    }
}

impl EventReader<'_> {
    /// Converts the body of an Events API request, which is also the payload of an envelope.
    pub fn read_callback(&self, payload: &Value) -> ReadEvents {
        let context = TextContext::new(self.find_name);
        let mut result = ReadEvents::default();
        match text(payload, "type") {
            Some("event_callback") => {
                let event = &payload["event"];
                result.renamed = notices::renamed_chat(event);
                result.events.extend(self.event(event, payload, &context));
            }
            Some("app_rate_limited") => result.events.push(notices::rate_limited(payload)),
            _ => result.events.push(notices::unknown(payload)),
        }
        result.missing = context.take_missing();
        result
    }

    /// Converts a message of a history. One that was edited also becomes an edit, because the
    /// stored message may have the old text.
    pub fn read_history(&self, chat: EventChat<'_>, message: &Value) -> ReadEvents {
        let context = TextContext::new(self.find_name);
        let mut events = Vec::new();
        if let Some(event) = self.message(chat, message, message, &context) {
            if let (InboundEvent::Message { message: new, .. }, Some(edited)) =
                (&event, text(&message["edited"], "ts"))
            {
                let edit_id = format!("{}:{edited}", new.id);
                let new = InboundMessage { at: time_of_ts(edited), ..new.clone() };
                events.push(InboundEvent::Edit(MessageEdit { edit_id, message: new }));
            }
            events.insert(0, event);
        }
        ReadEvents { events, missing: context.take_missing(), renamed: None }
    }

    /// Converts a slash command or an interaction. They carry short-lived links for answers,
    /// which are not kept: the answer is an ordinary message.
    pub fn read_interaction(&self, kind: &str, payload: &Value) -> ReadEvents {
        let context = TextContext::new(self.find_name);
        let event = notices::interaction(kind, payload, &context);
        ReadEvents { events: vec![event], missing: context.take_missing(), renamed: None }
    }

    fn event(
        &self,
        event: &Value,
        payload: &Value,
        context: &TextContext<'_>,
    ) -> Option<InboundEvent> {
        match text(event, "type")? {
            "message" | "app_mention" => {
                let chat = text(event, "channel").filter(|id| id.len() <= MAX_ID_BYTES);
                let Some(chat) = chat else { return Some(notices::unknown(payload)) };
                let chat = EventChat::new(chat, text(event, "channel_type"));
                match text(event, "subtype") {
                    Some("message_changed") => self.changed(chat, event, context),
                    Some("message_deleted") => self.deleted(chat, event, context),
                    _ => self.message(chat, event, payload, context),
                }
            }
            _ => notices::notice(event, payload, self.own, context),
        }
    }

    /// Tells whether a message is of this bot, or of another one whose messages are not wanted.
    fn is_ignored(&self, message: &Value) -> bool {
        let (user, bot) = (text(message, "user"), text(message, "bot_id"));
        let is_bot = bot.is_some() || text(message, "subtype") == Some("bot_message");
        let is_own = user.is_some_and(|user| user == self.own.user_id)
            || bot.is_some() && bot == self.own.bot_id.as_deref();
        // Until the own account is known, each bot can be this one.
        is_own || is_bot && (!self.accepts_bots || self.own.user_id.is_empty())
    }

    /// Converts a message. `payload` is what is attached when the message cannot be shown.
    fn message(
        &self,
        chat: EventChat<'_>,
        message: &Value,
        payload: &Value,
        context: &TextContext<'_>,
    ) -> Option<InboundEvent> {
        let subtype = text(message, "subtype");
        if self.is_ignored(message) || subtype == Some("message_replied") {
            return None;
        }
        if let Some(notice) = notices::of_subtype(chat, message, context) {
            return Some(notice);
        }
        let Some((message, needs_payload)) = self.inbound(chat, message, context) else {
            return Some(notices::unknown(payload));
        };
        let attachments = if needs_payload { vec![payload_file(payload)] } else { Vec::new() };
        Some(InboundEvent::Message { message, attachments })
    }

    /// Returns the message, and whether its payload has more than the message shows. `None`
    /// when it has no valid id.
    fn inbound(
        &self,
        chat: EventChat<'_>,
        message: &Value,
        context: &TextContext<'_>,
    ) -> Option<(InboundMessage, bool)> {
        let ts = text(message, "ts").filter(|ts| is_ts(ts))?;
        let from = sender(message, context);
        let thread = text(message, "thread_ts").filter(|thread| is_ts(thread) && *thread != ts);
        let session = session(chat, thread, &from, context);
        let MessageText { markdown, is_complete, forwarded_from } =
            message_text::read(message, context);
        let mut new = InboundMessage::new(message_id(chat.id, ts), session, from, markdown);
        new.at = time_of_ts(ts);
        new.mentions = context.take_mentions();
        new.reply_to = thread.map(|thread| message_id(chat.id, thread));
        new.forwarded_from = forwarded_from;
        new.artifacts = files::artifacts(message);
        let (new, cut) = new.cut_to_limits();
        Some((new, !is_complete || !cut.is_empty()))
    }

    /// Converts `message_changed`. Slack also sends it for previews of links and for counts of
    /// replies, which change neither text nor files.
    fn changed(
        &self,
        chat: EventChat<'_>,
        event: &Value,
        context: &TextContext<'_>,
    ) -> Option<InboundEvent> {
        let (new, old) = (&event["message"], &event["previous_message"]);
        if text(new, "subtype") == Some("tombstone") {
            // A deleted message that has replies is replaced by a tombstone.
            return self.recall(chat, text(new, "ts")?, old, event, context);
        }
        let same = |key: &str| new.get(key) == old.get(key);
        let is_same = !old.is_null() && same("text") && same("blocks") && same_files(new, old);
        if self.is_ignored(new) || is_same {
            return None;
        }
        let edited = text(&new["edited"], "ts");
        if edited.is_none() && same("text") {
            return None;
        }
        let edited = edited.or(text(event, "event_ts")).or(text(event, "ts"))?;
        let (mut message, _) = self.inbound(chat, new, context)?;
        message.at = time_of_ts(edited);
        let edit_id = format!("{}:{edited}", message.id);
        Some(InboundEvent::Edit(MessageEdit { edit_id, message }))
    }

    fn deleted(
        &self,
        chat: EventChat<'_>,
        event: &Value,
        context: &TextContext<'_>,
    ) -> Option<InboundEvent> {
        let old = &event["previous_message"];
        let ts = text(event, "deleted_ts").or(text(old, "ts"))?;
        self.recall(chat, ts, old, event, context)
    }

    fn recall(
        &self,
        chat: EventChat<'_>,
        ts: &str,
        old: &Value,
        event: &Value,
        context: &TextContext<'_>,
    ) -> Option<InboundEvent> {
        if self.is_ignored(old) || !is_ts(ts) {
            return None;
        }
        let message_id = message_id(chat.id, ts);
        let thread = text(old, "thread_ts").filter(|thread| is_ts(thread) && *thread != ts);
        let session = session(chat, thread, &sender(old, context), context);
        let recall_id = format!("{message_id}:deleted");
        let at = text(event, "event_ts").or(text(event, "ts")).and_then(time_of_ts);
        // Slack does not say who has deleted it.
        Some(InboundEvent::Recall(MessageRecall { recall_id, message_id, session, by: None, at }))
    }
}

/// Returns the author of a message.
pub(super) fn sender(message: &Value, context: &TextContext<'_>) -> Participant {
    let Some(id) = text(message, "user").filter(|id| id.len() <= MAX_ID_BYTES) else {
        return bot_sender(message)
            .unwrap_or_else(|| Participant::user("slack", Some("Slack".to_owned())));
    };
    let profile = &message["user_profile"];
    let shown = text(profile, "display_name").or(text(profile, "real_name"));
    let name = shown.map(str::to_owned).or_else(|| context.name(id));
    Participant::user(id, name)
}

/// Returns the author of a message that a bot without an account has sent.
fn bot_sender(message: &Value) -> Option<Participant> {
    let id = text(message, "bot_id").filter(|id| id.len() <= MAX_ID_BYTES)?;
    let name = text(message, "username").or(text(&message["bot_profile"], "name"));
    Some(Participant::user(id, name.map(str::to_owned)))
}

/// Returns the session of a chat and a thread. A direct chat has the name of the other person.
pub(super) fn session(
    chat: EventChat<'_>,
    thread: Option<&str>,
    from: &Participant,
    context: &TextContext<'_>,
) -> ChatSession {
    let name = match chat.kind {
        ChatSessionKind::Direct => from.name.clone(),
        _ => context.name(chat.id),
    };
    let thread_key = thread.map(str::to_owned);
    ChatSession { id: chat.id.to_owned(), kind: chat.kind, name, thread_key }
}

/// Returns a payload as an attachment, without secrets.
pub(super) fn payload_file(payload: &Value) -> InboundAttachment {
    InboundAttachment {
        name: "payload.json".to_owned(),
        mime_type: "application/json".to_owned(),
        bytes: serde_json::to_vec_pretty(&redact(payload)).unwrap_or_default(),
    }
}

/// Tells whether two versions of a message have the same files. Slack changes links and
/// thumbnails of a file without an edit.
fn same_files(new: &Value, old: &Value) -> bool {
    let ids = |message: &Value| -> Vec<String> {
        let files = super::wire::list(message, "files").iter();
        files.filter_map(|file| text(file, "id").map(str::to_owned)).collect()
    };
    ids(new) == ids(old)
}

#[cfg(test)]
mod tests;
