//! Merging of consecutive messages into one Mail.
//!
//! ```text
//!   received ──▶ window open ──┬─ 5 s without another message ──▶ Mail
//!                │        ▲    ├─ 30 s since the first message
//!                └────────┘    └─ full
//!                another message
//! ```
//!
//! A window has times and counts, never content. The store has every message before its
//! window changes, so a crash delays a Mail and loses none.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::did::{Did, TunnelId};
use crate::inbound::{
    Artifact, ChatSession, ChatSessionKind, InboundMessage, MAX_LIST_ENTRIES, MAX_MESSAGE_BYTES,
};
use crate::mail::{
    FORMAT, InvalidMailFile, InvalidMailId, Mail, MailHeader, MailId, Participants, Trust,
};
use crate::object::{InvalidObject, MsgObject};
use crate::time::Timestamp;

/// Maximum number of messages in one Mail.
pub const MAX_MESSAGES: u32 = 500;

/// Maximum size of messages that are merged into one Mail, in bytes of their JSON: a burst
/// becomes several readable Mails. A larger message is a Mail of its own.
pub const MAX_BYTES: u32 = 256 << 10;

const _: () = assert!((MAX_BYTES as usize) < MAX_MESSAGE_BYTES);

/// Maximum size of the object of a Mail, in bytes. It contains each text twice, merged and
/// per message, and the name of each attachment three times; escapes in the merged text can
/// triple the size of a name.
pub const MAX_MAIL: usize = 6 * MAX_MESSAGE_BYTES;

/// Maximum number of mentions in one Mail: one for each message.
const MAX_MENTIONS: usize = MAX_MESSAGES as usize;

/// How long a window waits for the files of its messages after the last message.
pub const MAX_FILE_WAIT: Duration = Duration::from_secs(60);

/// How long a window stays open for another message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debounce {
    /// Time since the last message.
    pub window: Duration,
    /// Time since the first message.
    pub max_wait: Duration,
}

/// Times and counts of the messages that will become one Mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeWindow {
    /// When the first message was received.
    pub first: Timestamp,
    /// When the last message was received.
    pub last: Timestamp,
    pub messages: u32,
    /// Total size of the messages, in bytes of their JSON.
    pub bytes: u32,
    /// Number of files of its messages that are still to be fetched.
    pub pending_files: u32,
}

/// Messages of one session and thread, in the order they were received, and what is needed
/// to make a Mail of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailBuilder {
    pub tunnel: TunnelId,
    pub provider: String,
    /// The recipient of direct messages.
    pub owner: Did,
    /// The label of the tunnel or chat.
    pub binding: Option<String>,
    pub trust: Trust,
    /// At least one message.
    pub messages: Vec<InboundMessage>,
}

/// A new Mail and the object that stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltMail {
    pub mail: Mail,
    pub object: MsgObject,
}

impl Debounce {
    /// The default: 5 s after the last message, at most 30 s after the first.
    pub const DEFAULT: Self =
        Self { window: Duration::from_secs(5), max_wait: Duration::from_secs(30) };
}

impl MergeWindow {
    /// A window with one message.
    pub const fn open(now: Timestamp, bytes: u32) -> Self {
        Self { first: now, last: now, messages: 1, bytes, pending_files: 0 }
    }

    /// The window with more files that are still to be fetched.
    #[must_use]
    pub const fn with_files(self, files: u32) -> Self {
        Self { pending_files: self.pending_files.saturating_add(files), ..self }
    }

    /// Adds a message; `None` when the window is over or full, and the message opens the
    /// next one.
    pub fn join(self, debounce: &Debounce, now: Timestamp, bytes: u32) -> Option<Self> {
        let closed = self.closes_at(debounce) <= now;
        let full = self.messages >= MAX_MESSAGES || self.bytes.saturating_add(bytes) > MAX_BYTES;
        if closed || full {
            return None;
        }
        Some(Self {
            last: self.last.max(now),
            messages: self.messages + 1,
            bytes: self.bytes + bytes,
            ..self
        })
    }

    /// When the window is over, unless another message joins it. It waits for its files.
    pub fn closes_at(&self, debounce: &Debounce) -> Timestamp {
        let ready = self.ready_at(debounce);
        if self.pending_files == 0 {
            return ready;
        }
        let latest = self.first + debounce.max_wait + MAX_FILE_WAIT;
        (self.last + MAX_FILE_WAIT).min(latest).max(ready)
    }

    /// When the window is over, if all its files are fetched.
    pub fn ready_at(&self, debounce: &Debounce) -> Timestamp {
        (self.last + debounce.window).min(self.first + debounce.max_wait)
    }
}

impl MailBuilder {
    /// The id of the Mail, which depends on the first message; `None` without messages.
    pub fn mail_id(&self) -> Option<MailId> {
        let first = self.messages.first()?;
        Some(MailId::of(&self.provider, &self.tunnel, &first.id))
    }

    /// Merges the messages into a Mail and its object.
    ///
    /// # Errors
    ///
    /// When there are no messages, one of them is not valid, or the provider has an invalid
    /// name.
    pub fn build(self, now: Timestamp) -> Result<BuiltMail, InvalidObject> {
        let invalid = |why: String| InvalidObject::Field { field: "messages".to_owned(), why };
        let (Some(id), Some(first)) = (self.mail_id(), self.messages.first()) else {
            return Err(invalid("a Mail needs at least one message".to_owned()));
        };
        // A Mail whose id has an invalid provider could not be read again.
        let id: MailId = id.to_string().parse().map_err(|error: InvalidMailId| {
            InvalidObject::Field { field: "provider".to_owned(), why: error.to_string() }
        })?;
        let session = session(&self.messages);
        let answer_to = session
            .answer_to(first.answer_account(), &self.tunnel)
            .map_err(|error| invalid(error.to_string()))?;
        let author = first.from.did(&self.tunnel).map_err(|error| invalid(error.to_string()))?;
        let title = self.messages.iter().find_map(|message| message.title.clone());
        let correlation_id = self.messages.iter().find_map(|m| m.correlation_id.clone());
        let participants = participants(&self.messages);
        let mut messages = self.messages;
        // The provider's order when all messages have its time, otherwise the order of
        // receipt. Within one window the two clocks cannot differ much.
        if messages.iter().all(|message| message.at.is_some()) {
            messages.sort_by_key(|message| message.at);
        }
        for message in &mut messages {
            message.session = ChatSession::default();
        }
        let text = compose(&messages);
        let header = MailHeader {
            id,
            tunnel: self.tunnel,
            timestamp: messages.first().map_or(now, |first| first.at.unwrap_or(first.received_at)),
            received_at: now,
            title,
            artifacts: artifacts(&messages),
            correlation_id,
            reply_to: messages.first().and_then(|first| first.reply_to.clone()),
            binding: self.binding,
            trust: self.trust,
            answer_to,
            participants,
            session,
        };
        let object = object(&header, &messages, &text, &author, &self.owner)?;
        let mail = Mail { header, msg_id: object.id(), messages, text };
        Ok(BuiltMail { mail, object })
    }
}

/// Reproduces a Mail and its object from the Mail's file.
///
/// # Errors
///
/// [`InvalidMailFile`] when the file was modified, or when it does not reproduce the object that
/// it names: the Mail had another owner, or a text looks like the start of the next message.
pub fn restore(file: &str, owner: &Did) -> Result<BuiltMail, InvalidMailFile> {
    let not_mail = |error: &dyn std::fmt::Display| InvalidMailFile::NotMail(error.to_string());
    let mut mail = Mail::parse(file)?;
    let header = &mail.header;
    let first = mail
        .messages
        .iter()
        .find(|message| MailId::of(header.id.provider(), &header.tunnel, &message.id) == header.id);
    let first = first.ok_or_else(|| not_mail(&"no message has the id of the Mail"))?;
    let author = first.from.did(&header.tunnel).map_err(|error| not_mail(&error))?;
    let texts = split_texts(&mail.messages, &mail.text)
        .ok_or_else(|| not_mail(&"the body does not have the texts of the messages"))?;
    for (message, text) in mail.messages.iter_mut().zip(texts) {
        message.text = text;
    }
    let object = object(&mail.header, &mail.messages, &mail.text, &author, owner)
        .map_err(|error| not_mail(&error))?;
    if object.id() != mail.msg_id || mail.render() != file {
        return Err(not_mail(&format!("it does not reproduce {} for {owner}", mail.msg_id)));
    }
    Ok(BuiltMail { mail, object })
}

/// Builds the object of a Mail. `owner` receives it when its session is direct.
pub(crate) fn object(
    header: &MailHeader,
    messages: &[InboundMessage],
    text: &str,
    author: &Did,
    owner: &Did,
) -> Result<MsgObject, InvalidObject> {
    let direct = header.session.kind == ChatSessionKind::Direct;
    let mut object = json!({
        "from": if direct { author } else { &header.answer_to },
        "to": [if direct { owner } else { &header.answer_to }],
        "kind": if direct { "chat" } else { "group_msg" },
        "created_at_ms": header.received_at.ms(),
        "content": {
            "format": FORMAT,
            "content": text,
            "machine": {"intent": "mail", "data": {"mail": header, "messages": messages}},
        },
    });
    if !direct {
        object["source"] = json!(author);
    }
    if let Some(title) = &header.title {
        object["content"]["title"] = json!(title);
    }
    if let Some(thread) = thread(header) {
        object["thread"] = thread;
    }
    MsgObject::from_json_up_to(object, MAX_MAIL)
}

/// The session of the last message, with the newest name that a message has for it.
fn session(messages: &[InboundMessage]) -> ChatSession {
    let newest_first = || messages.iter().rev().map(|message| &message.session);
    let name = newest_first().find_map(|session| session.name.clone());
    ChatSession { name, ..newest_first().next().cloned().unwrap_or_default() }
}

pub(crate) fn participants(messages: &[InboundMessage]) -> Participants {
    let mut all = Participants { mentions: mentions(messages), ..Participants::default() };
    let mut authors = BTreeSet::new();
    for message in messages {
        if authors.insert(&message.from.id) {
            all.from.push(message.from.clone());
        }
        for (from, into) in [(&message.to, &mut all.to), (&message.cc, &mut all.cc)] {
            for person in from {
                if into.len() < MAX_LIST_ENTRIES && !into.contains(person) {
                    into.push(person.clone());
                }
            }
        }
    }
    all
}

/// All mentions, workspaces first. Takes one mention of each message in turn, so that a
/// message with many mentions cannot displace those of another message.
fn mentions(messages: &[InboundMessage]) -> Vec<String> {
    let per_message: Vec<Vec<String>> = messages.iter().map(mentions_of).collect();
    let mut all = Vec::new();
    let mut known = BTreeSet::new();
    for turn in 0..MAX_LIST_ENTRIES {
        for mention in per_message.iter().filter_map(|own| own.get(turn)) {
            if all.len() < MAX_MENTIONS && known.insert(mention) {
                all.push(mention.clone());
            }
        }
    }
    all
}

fn mentions_of(message: &InboundMessage) -> Vec<String> {
    let mut known = BTreeSet::new();
    workspace_mentions(&message.text)
        .chain(message.mentions.iter().cloned())
        .filter(|mention| known.insert(mention.clone()))
        .take(MAX_LIST_ENTRIES)
        .collect()
}

/// The workspaces that a text mentions: `@monoco::NAME`.
fn workspace_mentions(text: &str) -> impl Iterator<Item = String> + '_ {
    const PREFIX: &str = "@monoco::";
    text.match_indices(PREFIX).filter_map(|(at, _)| {
        let name = &text[at + PREFIX.len()..];
        let end = name.find(|c: char| !(c.is_alphanumeric() || matches!(c, '-' | '_' | '.')));
        // A full stop ends the sentence, not the name.
        let name = name[..end.unwrap_or(name.len())].trim_end_matches('.');
        (!name.is_empty() && name.len() <= 128).then(|| format!("{PREFIX}{name}"))
    })
}

fn thread(header: &MailHeader) -> Option<Value> {
    let mut thread = serde_json::Map::new();
    if let Some(key) = &header.session.thread_key {
        thread.insert("topic".to_owned(), json!(key));
    }
    if let Some(id) = &header.correlation_id {
        thread.insert("correlation_id".to_owned(), json!(id));
    }
    (!thread.is_empty()).then_some(Value::Object(thread))
}

/// The attachments of all messages.
pub(crate) fn artifacts(messages: &[InboundMessage]) -> Vec<Artifact> {
    messages.iter().flat_map(|message| message.artifacts.iter().cloned()).collect()
}

/// The text of a Mail: that of its only message, or the text of each message below a line
/// with its author and time. Attachments are listed below the text of their message.
pub(crate) fn compose(messages: &[InboundMessage]) -> String {
    let alone = is_alone(messages);
    let parts = messages.iter().map(|message| {
        format!("{}{}{}", heading(message, alone), message.text, attachments(message))
    });
    parts.collect::<Vec<_>>().join("\n\n")
}

/// The texts of messages, found in the text that [`compose`] made of them.
fn split_texts(messages: &[InboundMessage], text: &str) -> Option<Vec<String>> {
    let alone = is_alone(messages);
    let mut rest = text;
    let mut texts = Vec::with_capacity(messages.len());
    for (at, message) in messages.iter().enumerate() {
        rest = rest.strip_prefix(&heading(message, alone))?;
        let end = match messages.get(at + 1) {
            Some(next) => {
                rest.find(&format!("{}\n\n{}", attachments(message), heading(next, alone)))?
            }
            None => rest.strip_suffix(&attachments(message))?.len(),
        };
        texts.push(rest[..end].to_owned());
        let after = &rest[end + attachments(message).len()..];
        rest = after.strip_prefix("\n\n").unwrap_or(after);
    }
    Some(texts)
}

/// Tells whether the text of a Mail starts with that of its only message. A forwarded message
/// has a line with its original author, and a correction one with the message that it corrects.
fn is_alone(messages: &[InboundMessage]) -> bool {
    matches!(messages, [only] if only.forwarded_from.is_none() && only.corrects.is_none())
}

/// The line above the text of a message with its author and time; nothing for one that is
/// alone in its Mail.
fn heading(message: &InboundMessage, alone: bool) -> String {
    if alone {
        return String::new();
    }
    let at = message.at.unwrap_or(message.received_at).rfc3339();
    let author = one_line(message.from.display_name());
    let mut out = format!("**{author}** · {} {}", &at[..10], &at[11..19]);
    if let Some(id) = &message.reply_to {
        let _ = write!(out, " · in reply to {}", one_line(id));
    }
    if let Some(id) = &message.corrects {
        let _ = write!(out, " · corrects {}", one_line(id));
    }
    if let Some(author) = &message.forwarded_from {
        let _ = write!(out, " · forwarded from {}", one_line(author));
    }
    out.push_str("\n\n");
    out
}

/// The lines below the text of a message, one for each attachment.
fn attachments(message: &InboundMessage) -> String {
    let mut out = String::new();
    for artifact in &message.artifacts {
        let (name, mime_type) = (one_line(&artifact.name), one_line(&artifact.mime_type));
        let _ = write!(out, "\n\n* {name} ({mime_type}) ");
        match (&artifact.hash, &artifact.missing) {
            (Some(hash), _) => {
                let _ = write!(out, "{hash}");
            }
            (None, Some(reason)) => {
                let _ = write!(out, "not fetched: {}", one_line(reason));
            }
            (None, None) => out.push_str(&one_line(artifact.url.as_deref().unwrap_or_default())),
        }
    }
    out
}

/// Returns `text` on one line, with `*` and `\` escaped: it cannot end the emphasis around it.
fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    words.join(" ").replace('\\', "\\\\").replace('*', "\\*")
}

#[cfg(test)]
mod tests;
