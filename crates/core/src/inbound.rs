//! Messages received from providers.
//!
//! Every adapter converts what its provider sends into an [`InboundMessage`], which is the
//! one type from the adapter to the Mail. Limits are checked once, by
//! [`InboundMessage::validate`]: a [`ValidInboundMessage`] can be stored, merged, written
//! to a file and answered.

use std::ops::Deref;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::did::{Did, Endpoint, EndpointKind, InvalidDid, TunnelId, lower_case_domain};
use crate::hex;
use crate::json::MAX_SAFE_INTEGER;
use crate::object::ObjId;
use crate::time::{Timestamp, rfc3339, rfc3339_maybe};

mod correction;
mod event;
mod fetched_mail;
mod file;
mod limits;

pub use correction::{
    EditAction, RECALLED_BY_AUTHOR, REMOVED_BY_OTHER, RecallAction, RecallFollowUp, RecallStep,
    StoredVersion, decide_edit, decide_recall,
};
pub use event::{ChatPosition, InboundEvent, MessageEdit, MessageRecall, TunnelNotice};
pub use fetched_mail::{FetchedMail, RawMail, StoredBytes};
pub use file::{FILE_RETRY, FetchedFile, FileResult, FileRetry, NOT_FETCHED_YET, short_reason};

/// Maximum length of an external id, in bytes.
pub const MAX_EXTERNAL_ID_BYTES: usize = 512;

/// Maximum length of the id of a session or participant, in bytes. Each byte can take
/// three in a DID.
pub const MAX_ACCOUNT_BYTES: usize = 256;

/// Maximum length of a name, title, thread key and the like, in bytes.
pub const MAX_NAME_BYTES: usize = 1024;

/// Maximum number of entries of each list in one message.
pub const MAX_LIST_ENTRIES: usize = 100;

/// Maximum length of a link, in bytes. Signed links are long.
pub const MAX_URL_BYTES: usize = 8 << 10;

/// Maximum length of the handle of a file that is fetched later, in bytes.
pub const MAX_FETCH_HANDLE_BYTES: usize = 8 << 10;

/// Maximum size of one message, in bytes of its JSON. A Mail has room for it.
pub const MAX_MESSAGE_BYTES: usize = (1 << 20) + (64 << 10);

/// The milliseconds that RFC 3339 can express: years 1 to 9999.
const RFC3339_RANGE: std::ops::RangeInclusive<i64> = -62_135_596_800_000..=253_402_300_799_999;

/// One message from a provider.
///
/// `id` is the provider's own id and stable: the pair of tunnel and id identifies a message
/// that is received twice. Inside a Mail, `session` is empty, because the header of the Mail
/// has it; in the file of a Mail, `text` is empty too, because the body has all texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InboundMessage {
    pub id: String,
    /// When it was written, by the provider's clock.
    #[serde(with = "rfc3339_maybe", default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// When the hub received it. Set by the sink.
    #[serde(with = "rfc3339")]
    pub received_at: Timestamp,
    #[serde(default, skip_serializing_if = "ChatSession::is_empty")]
    pub session: ChatSession,
    pub from: Participant,
    /// Where the author of a direct message wants answers, when that is not `from`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_to: Option<Participant>,
    /// Whether `from` is proved. `None`: the provider authenticates its senders. `false`: anyone
    /// can have written `from`, so its contact grants nothing; a block of it still applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender_verified: Option<bool>,
    /// Recipients that the provider names beside the session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<Participant>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cc: Vec<Participant>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Markdown or plain text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Names that the provider reports as mentioned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mentions: Vec<String>,
    /// The provider's id of the message that this one answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// The provider's id of the message that this one corrects: its author has edited or
    /// recalled it after it was merged into a Mail. Set by the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrects: Option<String>,
    /// The original author, when the message was forwarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forwarded_from: Option<String>,
    /// The sender's id for related messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// Set when the id alone does not identify a repeated message. It is part of the Mail, so
    /// that a Mail that is restored from its file still identifies repeated messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_hash: Option<BodyHash>,
}

/// Identifies the request that contained a message: a second request of the same tunnel with
/// the same hash is a duplicate, whatever its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BodyHashFields", into = "BodyHashFields")]
pub struct BodyHash {
    /// SHA-256 of the body.
    pub hash: [u8; 32],
    /// How long a second request counts as a duplicate, in whole seconds; `None` for ever.
    pub window: Option<Duration>,
}

/// The JSON of a [`BodyHash`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BodyHashFields {
    sha256: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window_s: Option<u64>,
}

impl From<BodyHash> for BodyHashFields {
    fn from(BodyHash { hash, window }: BodyHash) -> Self {
        Self { sha256: hex::encode(&hash), window_s: window.map(|window| window.as_secs()) }
    }
}

impl TryFrom<BodyHashFields> for BodyHash {
    type Error = &'static str;

    fn try_from(fields: BodyHashFields) -> Result<Self, Self::Error> {
        let hash = hex::decode(&fields.sha256).ok_or("sha256: expected 64 hex digits")?;
        Ok(Self { hash, window: fields.window_s.map(Duration::from_secs) })
    }
}

/// An [`InboundMessage`] within the limits, together with its JSON.
///
/// The JSON is what was measured and what the store writes, so that a message is
/// serialised once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidInboundMessage {
    message: InboundMessage,
    json: String,
}

/// Bytes that came with a message and are not stored yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundAttachment {
    /// The sender's name for it. Never a path.
    pub name: String,
    /// The MIME type that the sender states.
    pub mime_type: String,
    pub bytes: Vec<u8>,
}

/// A chat: the place on the provider's side where a message was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatSession {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: ChatSessionKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_key: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChatSessionKind {
    /// Between the author and the owner of the hub.
    #[default]
    Direct,
    Group,
    /// A thread with an id of its own.
    Thread,
}

/// An account on an external network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Participant {
    pub id: String,
    #[serde(default, skip_serializing_if = "EndpointKind::is_user")]
    pub kind: EndpointKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// An attachment of a message: stored bytes, a link, or a file that is fetched later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// The sender's name for it. Never a path.
    pub name: String,
    /// The MIME type that the sender states.
    pub mime_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The stored bytes; `None` for a link or a file that is not fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<ObjId>,
    /// The link. The hub never follows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// By this handle the adapter fetches the bytes after the message is stored. It can be a
    /// secret, so it is never serialised: only the store keeps it, until the file is fetched.
    #[serde(skip)]
    pub fetch: Option<String>,
    /// Why the bytes of an announced file are not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// The first field of an inbound message that exceeds a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct InvalidInboundMessage {
    pub field: &'static str,
    pub why: String,
}

impl InboundMessage {
    /// A message with a text only, before the sink sets when it was received.
    pub fn new(
        id: impl Into<String>,
        session: ChatSession,
        from: Participant,
        text: impl Into<String>,
    ) -> Self {
        Self {
            id: id.into(),
            at: None,
            received_at: Timestamp::default(),
            session,
            from,
            answer_to: None,
            sender_verified: None,
            to: Vec::new(),
            cc: Vec::new(),
            title: None,
            text: text.into(),
            mentions: Vec::new(),
            reply_to: None,
            corrects: None,
            forwarded_from: None,
            correlation_id: None,
            artifacts: Vec::new(),
            body_hash: None,
        }
    }

    /// Checks all limits and serialises the message. Leaves space for the results of files that
    /// are fetched later.
    ///
    /// # Errors
    ///
    /// [`InvalidInboundMessage`] with the first field that exceeds its limit.
    pub fn validate(mut self) -> Result<ValidInboundMessage, InvalidInboundMessage> {
        self.mark_announced_files();
        self.check_fields()?;
        let json = serde_json::to_string(&self)
            .map_err(|error| invalid("message", format!("cannot be serialised: {error}")))?;
        let announced = self.artifacts.iter().filter(|artifact| artifact.fetch.is_some()).count();
        let size = json.len() + announced * file::RESULT_BYTES;
        if size > MAX_MESSAGE_BYTES {
            let why =
                format!("the message has {size} bytes as JSON; {MAX_MESSAGE_BYTES} is the most");
            return Err(invalid("text", why));
        }
        Ok(ValidInboundMessage { message: self, json })
    }

    fn check_fields(&self) -> Result<(), InvalidInboundMessage> {
        check_external_id(&self.id).map_err(|error| invalid("id", error.0))?;
        check_length("session.id", &self.session.id, 1, MAX_ACCOUNT_BYTES)?;
        check_length("from.id", &self.from.id, 1, MAX_ACCOUNT_BYTES)?;
        if let Some(answer_to) = &self.answer_to {
            check_length("answer_to", &answer_to.id, 1, MAX_ACCOUNT_BYTES)?;
            let name = answer_to.name.as_deref().unwrap_or_default();
            check_length("answer_to", name, 0, MAX_NAME_BYTES)?;
        }
        let names = [
            ("session.name", &self.session.name),
            ("session.thread_key", &self.session.thread_key),
            ("from.name", &self.from.name),
            ("title", &self.title),
            ("reply_to", &self.reply_to),
            ("corrects", &self.corrects),
            ("forwarded_from", &self.forwarded_from),
            ("correlation_id", &self.correlation_id),
        ];
        for (field, text) in names {
            check_length(field, text.as_deref().unwrap_or_default(), 0, MAX_NAME_BYTES)?;
        }
        let lists = [
            ("to", self.to.len()),
            ("cc", self.cc.len()),
            ("mentions", self.mentions.len()),
            ("attachments", self.artifacts.len()),
        ];
        for (field, length) in lists {
            if length > MAX_LIST_ENTRIES {
                return Err(invalid(
                    field,
                    format!("{length} entries; {MAX_LIST_ENTRIES} is the most"),
                ));
            }
        }
        for person in self.to.iter().chain(&self.cc) {
            check_length("to and cc", &person.id, 0, MAX_NAME_BYTES)?;
            let name = person.name.as_deref().unwrap_or_default();
            check_length("to and cc", name, 0, MAX_NAME_BYTES)?;
        }
        for mention in &self.mentions {
            check_length("mentions", mention, 0, MAX_NAME_BYTES)?;
        }
        for artifact in &self.artifacts {
            artifact.check()?;
        }
        if self.at.is_some_and(|at| !RFC3339_RANGE.contains(&at.ms())) {
            return Err(invalid("at", "not a time of the years 1 to 9999"));
        }
        Ok(())
    }

    /// The key of the messages that are merged into one Mail: same session, same thread.
    /// Direct messages and messages held for their author (`held`) are merged per author.
    /// Messages with different `answer_to` are never merged, and those of a sender that is not
    /// verified only with each other.
    pub fn merge_key(&self, held: bool) -> String {
        let per_author = held || self.session.kind == ChatSessionKind::Direct;
        let author = if per_author { escape(&self.from.id) } else { String::new() };
        // An escaped text has no `%` before a `?` or a `>`.
        let unverified = if self.is_unverified() { "%?" } else { "" };
        let answer_to = self.answer_to.as_ref().map(|to| format!("%>{}", escape(&to.id)));
        let answer_to = answer_to.unwrap_or_default();
        format!("{author}{unverified}{answer_to}:{}", self.session.key())
    }

    /// Whether anyone can have written the message, whatever its sender says.
    pub fn is_unverified(&self) -> bool {
        self.sender_verified == Some(false)
    }

    /// Returns the account that an answer to the author is sent to.
    pub fn answer_account(&self) -> &Participant {
        self.answer_to.as_ref().unwrap_or(&self.from)
    }
}

impl ValidInboundMessage {
    /// Reads the JSON that was stored. Its limits were checked before it was stored.
    ///
    /// # Errors
    ///
    /// When the JSON is not that of a message: the stored row is damaged.
    pub fn from_stored_json(json: String) -> Result<Self, serde_json::Error> {
        Ok(Self { message: serde_json::from_str(&json)?, json })
    }

    pub fn json(&self) -> &str {
        &self.json
    }

    pub fn into_message(self) -> InboundMessage {
        self.message
    }
}

impl Deref for ValidInboundMessage {
    type Target = InboundMessage;

    fn deref(&self) -> &InboundMessage {
        &self.message
    }
}

impl Artifact {
    fn check(&self) -> Result<(), InvalidInboundMessage> {
        check_length("attachments", &self.name, 0, MAX_NAME_BYTES)?;
        check_length("attachments", &self.mime_type, 0, MAX_NAME_BYTES)?;
        check_length("attachments", self.url.as_deref().unwrap_or_default(), 0, MAX_URL_BYTES)?;
        let fetch = self.fetch.as_deref().unwrap_or_default();
        check_length("attachments", fetch, 0, MAX_FETCH_HANDLE_BYTES)?;
        check_length(
            "attachments",
            self.missing.as_deref().unwrap_or_default(),
            0,
            MAX_NAME_BYTES,
        )?;
        let exact = |size: u64| i64::try_from(size).is_ok_and(|size| size <= MAX_SAFE_INTEGER);
        if !self.size.is_none_or(exact) {
            return Err(invalid("attachments", "the size is larger than 2^53-1"));
        }
        Ok(())
    }
}

impl ChatSession {
    /// Identifies session and thread. Different pairs never have the same key.
    pub fn key(&self) -> String {
        format!("{}:{}", escape(&self.id), self.thread_key.as_deref().unwrap_or_default())
    }

    /// Returns the DID that an answer is sent to: the account of a direct message's author (see
    /// [`InboundMessage::answer_account`]), otherwise the session.
    ///
    /// # Errors
    ///
    /// When the id does not fit into a DID; the ids of a [`ValidInboundMessage`] do.
    pub fn answer_to(&self, author: &Participant, tunnel: &TunnelId) -> Result<Did, InvalidDid> {
        match self.kind {
            ChatSessionKind::Direct => author.did(tunnel),
            ChatSessionKind::Group | ChatSessionKind::Thread => {
                let (account, tunnel) = (self.id.clone(), tunnel.clone());
                Endpoint { account, kind: EndpointKind::Group, tunnel }.did()
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.id.is_empty()
    }
}

impl Participant {
    /// An account that the provider names by a user id.
    pub fn user(id: impl Into<String>, name: Option<String>) -> Self {
        Self { id: id.into(), kind: EndpointKind::User, name }
    }

    /// An e-mail address. The domain is in lower case, so that one mailbox has one DID.
    pub fn mailbox(address: &str, name: Option<String>) -> Self {
        Self { id: lower_case_domain(address), kind: EndpointKind::Addr, name }
    }

    /// Returns the shadow DID of this account behind `tunnel`.
    ///
    /// # Errors
    ///
    /// When the id does not fit into a DID; the ids of a [`ValidInboundMessage`] do.
    pub fn did(&self, tunnel: &TunnelId) -> Result<Did, InvalidDid> {
        let (account, tunnel) = (self.id.clone(), tunnel.clone());
        Endpoint { account, kind: self.kind, tunnel }.did()
    }

    /// The name, or the id when there is no name.
    pub fn display_name(&self) -> &str {
        self.name.as_deref().filter(|name| !name.trim().is_empty()).unwrap_or(&self.id)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("external id: {0}")]
pub struct InvalidExternalId(&'static str);

/// Checks that `id` can be the key by which a repeated message is recognised.
///
/// # Errors
///
/// [`InvalidExternalId`] when it is empty or longer than 512 bytes.
pub fn check_external_id(id: &str) -> Result<(), InvalidExternalId> {
    if id.is_empty() {
        return Err(InvalidExternalId("empty; a repeated message could not be recognised"));
    }
    if id.len() > MAX_EXTERNAL_ID_BYTES {
        return Err(InvalidExternalId("longer than 512 bytes"));
    }
    Ok(())
}

/// Escapes colons, so that different texts stay different between colons.
fn escape(text: &str) -> String {
    text.replace('%', "%25").replace(':', "%3A")
}

fn check_length(
    field: &'static str,
    text: &str,
    min: usize,
    max: usize,
) -> Result<(), InvalidInboundMessage> {
    if text.len() < min {
        return Err(invalid(field, "empty"));
    }
    if text.len() > max {
        return Err(invalid(field, format!("{} bytes; {max} is the most", text.len())));
    }
    Ok(())
}

fn invalid(field: &'static str, why: impl Into<String>) -> InvalidInboundMessage {
    InvalidInboundMessage { field, why: why.into() }
}

#[cfg(test)]
pub(crate) mod tests;
