//! When a burst of messages becomes one Mail, and what it then says.
//!
//! ```text
//!   heard ──▶ window open ──┬─ 5 s without another message ──▶ Mail
//!             │        ▲    ├─ 30 s since the first one
//!             └────────┘    └─ full
//!             another message
//! ```
//!
//! A window holds times and counts, never content: what was heard is on disk before
//! it is here, and a crash costs a delay, not a message.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::did::{Did, TunnelId};
use crate::inbound::{
    ChatSession, ChatSessionKind, InboundMessage, MAX_LIST_ENTRIES, MAX_MESSAGE_BYTES,
};
use crate::mail::{FORMAT, MailHeader, MailId, MailMessage, Participants, Trust};
use crate::object::{InvalidObject, MsgObject};
use crate::time::Timestamp;

/// Most messages in one Mail.
pub const MAX_MESSAGES: u32 = 500;

/// Most bytes of one Mail's messages, as JSON. Any single message fits.
pub const MAX_BYTES: u32 = 1_344 << 10;

const _: () = assert!(MAX_MESSAGE_BYTES < MAX_BYTES as usize);

/// Largest object a Mail may be, in bytes. A text is in it twice, merged and single.
/// The name of an attachment is there thrice, and may take three times the room where
/// it is merged, for escapes.
pub const MAX_MAIL: usize = 6 * MAX_BYTES as usize;

/// Most mentions of one Mail: each message has room for one.
const MAX_MENTIONS: usize = MAX_MESSAGES as usize;

/// How long to wait for another message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debounce {
    /// After the last message.
    pub window: Duration,
    /// At most, after the first one.
    pub max_wait: Duration,
}

/// A burst under way: its times, never its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeWindow {
    /// When the first message was heard.
    pub first: Timestamp,
    /// When the last one was.
    pub last: Timestamp,
    /// How many there are.
    pub messages: u32,
    /// How many bytes they have, as JSON.
    pub bytes: u32,
}

/// A message that was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    /// When we heard it.
    pub heard_at: Timestamp,
    /// What was said.
    pub said: InboundMessage,
}

/// What becomes one Mail: messages of one session and thread, in the order they
/// were heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailBuilder {
    /// The tunnel they came through.
    pub tunnel: TunnelId,
    /// Its provider.
    pub provider: String,
    /// Whom direct messages are for.
    pub owner: Did,
    /// The label of the tunnel or chat.
    pub binding: Option<String>,
    /// Whether their authors are known.
    pub trust: Trust,
    /// The messages; at least one.
    pub messages: Vec<StoredMessage>,
}

impl Debounce {
    /// What holds when nothing is configured: 5 s and 30 s.
    pub const DEFAULT: Self =
        Self { window: Duration::from_secs(5), max_wait: Duration::from_secs(30) };
}

impl MergeWindow {
    /// A window that a message opens.
    pub const fn open(now: Timestamp, bytes: u32) -> Self {
        Self { first: now, last: now, messages: 1, bytes }
    }

    /// The window with another message; `None` when it is closed or full, and the
    /// message opens the next one.
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

    /// When it becomes a Mail, unless another message comes.
    pub fn closes_at(&self, debounce: &Debounce) -> Timestamp {
        (self.last + debounce.window).min(self.first + debounce.max_wait)
    }
}

impl MailBuilder {
    /// The name its Mail will have: that of the message heard first.
    pub fn mail_id(&self) -> Option<MailId> {
        let first = self.messages.first()?;
        Some(MailId::of(&self.provider, &self.tunnel, &first.said.id))
    }

    /// Merges it into the object of a Mail.
    ///
    /// # Errors
    ///
    /// When it is empty, or what was kept was never checked.
    pub fn build(self, now: Timestamp) -> Result<MsgObject, InvalidObject> {
        let bad = |why: String| InvalidObject::Field { field: "messages".to_owned(), why };
        let id = self.mail_id().ok_or_else(|| bad("there are none".to_owned()))?;
        let session = session(&self.messages);
        let Some(first) = self.messages.first().map(|kept| kept.said.from.clone()) else {
            return Err(bad("there are none".to_owned()));
        };
        let answer_to =
            session.answer_to(&first, &self.tunnel).map_err(|error| bad(error.to_string()))?;
        let author = first.did(&self.tunnel).map_err(|error| bad(error.to_string()))?;
        let title = self.messages.iter().find_map(|kept| kept.said.title.clone());
        let correlation_id = self.messages.iter().find_map(|kept| kept.said.correlation_id.clone());
        let participants = participants(&self.messages);
        let mut messages: Vec<_> = self
            .messages
            .into_iter()
            .map(|kept| MailMessage::new(kept.said, kept.heard_at))
            .collect();
        // The provider's order, where it has one for all of them; else ours. Within
        // one window they can't lie far apart.
        if messages.iter().all(|message| message.at.is_some()) {
            messages.sort_by_key(|message| message.at);
        }
        let text = compose(&messages);
        let header = MailHeader {
            id,
            tunnel: self.tunnel,
            timestamp: messages.first().map_or(now, |first| first.at.unwrap_or(first.heard_at)),
            received_at: now,
            title: title.clone(),
            artifacts: messages.iter().flat_map(|m| m.artifacts.iter().cloned()).collect(),
            correlation_id: correlation_id.clone(),
            reply_to: messages.first().and_then(|first| first.reply_to.clone()),
            binding: self.binding,
            trust: self.trust,
            answer_to: answer_to.clone(),
            participants,
            session,
        };
        let direct = header.session.kind == ChatSessionKind::Direct;
        let mut object = json!({
            "from": if direct { &author } else { &answer_to },
            "to": [if direct { &self.owner } else { &answer_to }],
            "kind": if direct { "chat" } else { "group_msg" },
            "created_at_ms": now.ms(),
            "content": {
                "format": FORMAT,
                "content": text,
                "machine": {"intent": "mail", "data": {"mail": header, "messages": messages}},
            },
        });
        if !direct {
            object["source"] = json!(author);
        }
        if let Some(title) = title {
            object["content"]["title"] = json!(title);
        }
        let thread = thread(&header.session, correlation_id);
        if let Some(thread) = thread {
            object["thread"] = thread;
        }
        MsgObject::from_json_up_to(object, MAX_MAIL)
    }
}

/// The place, with the newest name it goes by.
fn session(messages: &[StoredMessage]) -> ChatSession {
    let newest = messages.iter().rev().map(|kept| &kept.said.session);
    let name = newest.clone().find_map(|session| session.name.clone());
    let mut session = newest.clone().next().cloned().unwrap_or_else(|| ChatSession {
        id: String::new(),
        kind: ChatSessionKind::Direct,
        name: None,
        thread_key: None,
    });
    session.name = name;
    session
}

fn participants(messages: &[StoredMessage]) -> Participants {
    let mut everybody = Participants { mentions: mentions(messages), ..Participants::default() };
    let mut spoken = BTreeSet::new();
    for StoredMessage { said, .. } in messages {
        if spoken.insert(said.from.id.clone()) {
            everybody.from.push(said.from.clone());
        }
        for (from, into) in [(&said.to, &mut everybody.to), (&said.cc, &mut everybody.cc)] {
            for person in from {
                if into.len() < MAX_LIST_ENTRIES && !into.contains(person) {
                    into.push(person.clone());
                }
            }
        }
    }
    everybody
}

/// Who or what is mentioned, the workspaces first. Messages take turns, so that nobody
/// crowds out the call in another message by mentioning many.
fn mentions(messages: &[StoredMessage]) -> Vec<String> {
    let each: Vec<Vec<String>> = messages.iter().map(|kept| mentions_of(&kept.said)).collect();
    let mut all = Vec::new();
    let mut known = BTreeSet::new();
    for turn in 0..MAX_LIST_ENTRIES {
        for mention in each.iter().filter_map(|own| own.get(turn)) {
            if all.len() < MAX_MENTIONS && known.insert(mention) {
                all.push(mention.clone());
            }
        }
    }
    all
}

fn mentions_of(said: &InboundMessage) -> Vec<String> {
    let mut known = BTreeSet::new();
    calls(&said.text)
        .chain(said.mentions.iter().cloned())
        .filter(|mention| known.insert(mention.clone()))
        .take(MAX_LIST_ENTRIES)
        .collect()
}

/// The workspaces that a text calls: `@monoco::NAME`.
fn calls(text: &str) -> impl Iterator<Item = String> + '_ {
    const CALL: &str = "@monoco::";
    text.match_indices(CALL).filter_map(|(at, _)| {
        let name = &text[at + CALL.len()..];
        let end = name.find(|c: char| !(c.is_alphanumeric() || matches!(c, '-' | '_' | '.')));
        // A full stop ends the sentence, not the name.
        let name = name[..end.unwrap_or(name.len())].trim_end_matches('.');
        (!name.is_empty() && name.len() <= 128).then(|| format!("{CALL}{name}"))
    })
}

fn thread(session: &ChatSession, correlation_id: Option<String>) -> Option<Value> {
    let mut thread = serde_json::Map::new();
    if let Some(key) = &session.thread_key {
        thread.insert("topic".to_owned(), json!(key));
    }
    if let Some(id) = correlation_id {
        thread.insert("correlation_id".to_owned(), json!(id));
    }
    (!thread.is_empty()).then_some(Value::Object(thread))
}

/// The text of a Mail: that of its only message, or each one's under a line that
/// says whose it is.
fn compose(messages: &[MailMessage]) -> String {
    if let [only] = messages
        && only.forwarded_from.is_none()
        && only.artifacts.is_empty()
    {
        return only.text.clone();
    }
    let mut out = String::new();
    for message in messages {
        if !out.is_empty() {
            out.push_str("\n\n");
        }
        let at = message.at.unwrap_or(message.heard_at).rfc3339();
        let _ = write!(
            out,
            "**{}** · {} {}",
            line(message.from.display_name()),
            &at[..10],
            &at[11..19]
        );
        if let Some(id) = &message.reply_to {
            let _ = write!(out, " · in reply to {}", line(id));
        }
        if let Some(author) = &message.forwarded_from {
            let _ = write!(out, " · forwarded from {}", line(author));
        }
        out.push_str("\n\n");
        out.push_str(&message.text);
        for artifact in &message.artifacts {
            let _ = write!(out, "\n\n* {} ({})", line(&artifact.name), line(&artifact.mime_type));
            match &artifact.hash {
                Some(hash) => {
                    let _ = write!(out, " {hash}");
                }
                None => {
                    let _ = write!(out, " {}", line(artifact.url.as_deref().unwrap_or_default()));
                }
            }
        }
    }
    out
}

/// A name on one line that can't end the emphasis around it.
fn line(text: &str) -> String {
    let flat = text.split(|c: char| c.is_whitespace() || c.is_control());
    let flat: Vec<_> = flat.filter(|word| !word.is_empty()).collect();
    flat.join(" ").replace('\\', "\\\\").replace('*', "\\*")
}

#[cfg(test)]
mod tests;
