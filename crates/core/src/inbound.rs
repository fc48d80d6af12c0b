//! Messages received from providers.
//!
//! Every adapter converts what its provider sends into an [`InboundMessage`], which is the
//! one type from the adapter to the Mail. Limits are checked once, by
//! [`InboundMessage::validate`]: a [`ValidInboundMessage`] can be stored, merged, written
//! to a file and answered.

use std::ops::Deref;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::did::{Did, Endpoint, EndpointKind, InvalidDid, TunnelId};
use crate::json::MAX_SAFE_INTEGER;
use crate::object::ObjId;
use crate::time::{Timestamp, rfc3339, rfc3339_maybe};

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
    /// The original author, when the message was forwarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forwarded_from: Option<String>,
    /// The sender's id for related messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// Set when the id alone does not identify a repeated message. It is used when the message
    /// is stored, and not part of its JSON.
    #[serde(skip)]
    pub body_hash: Option<BodyHash>,
}

/// Identifies the request that contained a message: a second request of the same tunnel with
/// the same hash is a duplicate, whatever its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyHash {
    /// SHA-256 of the body.
    pub hash: [u8; 32],
    /// How long a second request counts as a duplicate; `None` for ever.
    pub window: Option<Duration>,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// An attachment of a message: stored bytes or a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// The sender's name for it. Never a path.
    pub name: String,
    /// The MIME type that the sender states.
    pub mime_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The stored bytes; `None` for a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<ObjId>,
    /// The link. The hub never follows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
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
            to: Vec::new(),
            cc: Vec::new(),
            title: None,
            text: text.into(),
            mentions: Vec::new(),
            reply_to: None,
            forwarded_from: None,
            correlation_id: None,
            artifacts: Vec::new(),
            body_hash: None,
        }
    }

    /// Checks all limits and serialises the message.
    ///
    /// # Errors
    ///
    /// [`InvalidInboundMessage`] with the first field that exceeds its limit.
    pub fn validate(self) -> Result<ValidInboundMessage, InvalidInboundMessage> {
        self.check_fields()?;
        let json = serde_json::to_string(&self)
            .map_err(|error| invalid("message", format!("cannot be serialised: {error}")))?;
        let size = json.len();
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
        let names = [
            ("session.name", &self.session.name),
            ("session.thread_key", &self.session.thread_key),
            ("from.name", &self.from.name),
            ("title", &self.title),
            ("reply_to", &self.reply_to),
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
    pub fn merge_key(&self, held: bool) -> String {
        let per_author = held || self.session.kind == ChatSessionKind::Direct;
        let author = if per_author { escape(&self.from.id) } else { String::new() };
        format!("{author}:{}", self.session.key())
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

    /// Returns the DID that an answer to a message of `from` is sent to: the author of a
    /// direct message, otherwise the session.
    ///
    /// # Errors
    ///
    /// When the id does not fit into a DID; the ids of a [`ValidInboundMessage`] do.
    pub fn answer_to(&self, from: &Participant, tunnel: &TunnelId) -> Result<Did, InvalidDid> {
        let (account, kind) = match self.kind {
            ChatSessionKind::Direct => (&from.id, EndpointKind::User),
            ChatSessionKind::Group | ChatSessionKind::Thread => (&self.id, EndpointKind::Group),
        };
        Endpoint { account: account.clone(), kind, tunnel: tunnel.clone() }.did()
    }

    fn is_empty(&self) -> bool {
        self.id.is_empty()
    }
}

impl Participant {
    /// Returns the shadow DID of this account behind `tunnel`.
    ///
    /// # Errors
    ///
    /// When the id does not fit into a DID; the ids of a [`ValidInboundMessage`] do.
    pub fn did(&self, tunnel: &TunnelId) -> Result<Did, InvalidDid> {
        let (account, tunnel) = (self.id.clone(), tunnel.clone());
        Endpoint { account, kind: EndpointKind::User, tunnel }.did()
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
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Texts that have broken front matters, terminals and YAML readers.
    const NASTY: &[&str] = &[
        "---",
        "\n---\n",
        "...",
        "\n...\n",
        "\r",
        "\r\n",
        "\n",
        "\t",
        "\0",
        "\u{1b}[31m",
        "\u{7}",
        "\u{7f}",
        "\u{80}",
        "\u{85}",
        "\u{9b}",
        "\u{a0}",
        "\u{ad}",
        "\u{61c}",
        "\u{200b}",
        "\u{200f}",
        "\u{2028}",
        "\u{2029}",
        "\u{202e}",
        "\u{2066}",
        "\u{feff}",
        "\u{fffd}",
        "\u{fffe}",
        "\u{ffff}",
        "\u{e000}",
        "\u{1fffe}",
        "\u{e0001}",
        "\u{10ffff}",
        "😀",
        "👩\u{200d}💻",
        "e\u{301}",
        "\"",
        "'",
        "\\",
        "\\u0000",
        "\\ud800",
        "!!python/object",
        "&a *a",
        "? :",
        ": ",
        " #x",
        "# x",
        "- a",
        "yes",
        "~",
        "null",
        "0x1f",
        "1e3",
        ".inf",
        "2026-02-06",
        "12:30:45",
        "<<",
        "{",
        "}",
        "[",
        "]",
        ",",
        "%TAG",
        "@",
        "`",
        "|",
        ">",
        "${HOME}",
        "%25",
        "checksum: \"",
        "@monoco::alpha",
        "*",
        "**",
        " ",
        "",
    ];

    pub(crate) fn hostile() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            3 => prop::sample::select(NASTY).prop_map(str::to_owned),
            1 => any::<char>().prop_map(String::from),
            1 => "[a-zA-Z]{1,6}",
        ];
        prop::collection::vec(part, 0..7).prop_map(|parts| parts.concat())
    }

    fn maybe() -> impl Strategy<Value = Option<String>> {
        prop::option::of(hostile())
    }

    fn person() -> impl Strategy<Value = Participant> {
        (hostile(), maybe()).prop_map(|(id, name)| Participant { id: format!("u{id}"), name })
    }

    fn artifact() -> impl Strategy<Value = Artifact> {
        let size = prop::option::of(0..=9_007_199_254_740_991_u64);
        let hash = prop::option::of(any::<[u8; 32]>());
        (hostile(), hostile(), size, hash, maybe()).prop_map(
            |(name, mime_type, size, hash, url)| {
                let hash = hash.map(|hash| ObjId::from_parts(crate::object::ObjKind::Bytes, hash));
                Artifact { name, mime_type, size, hash, url }
            },
        )
    }

    pub(crate) fn any_session() -> impl Strategy<Value = ChatSession> {
        use ChatSessionKind::{Direct, Group, Thread};
        let kind = prop::sample::select(vec![Direct, Group, Thread]);
        (hostile(), kind, maybe(), maybe()).prop_map(|(id, kind, name, thread_key)| ChatSession {
            id: format!("r{id}"),
            kind,
            name,
            thread_key,
        })
    }

    /// A random message; every field is filled in some cases.
    pub(crate) fn any_message() -> impl Strategy<Value = InboundMessage> {
        let people = || prop::collection::vec(person(), 0..3);
        let whole = (
            hostile(),
            prop::option::of(RFC3339_RANGE),
            any_session(),
            person(),
            people(),
            people(),
        );
        let words = (maybe(), hostile(), prop::collection::vec(hostile(), 0..3));
        let links = (maybe(), maybe(), maybe(), prop::collection::vec(artifact(), 0..3));
        (whole, words, links).prop_map(|((id, at, session, from, to, cc), words, links)| {
            let (title, text, mentions) = words;
            let (reply_to, forwarded_from, correlation_id, artifacts) = links;
            InboundMessage {
                id: format!("m{id}"),
                at: at.map(Timestamp::from_ms),
                received_at: Timestamp::from_ms(1_770_410_700_000),
                session,
                from,
                to,
                cc,
                title,
                text,
                mentions,
                reply_to,
                forwarded_from,
                correlation_id,
                artifacts,
                body_hash: None,
            }
        })
    }

    pub(crate) fn message(id: &str, from: &str, text: &str) -> InboundMessage {
        let (name, kind) = (Some("Ops".to_owned()), ChatSessionKind::Group);
        let session = ChatSession { id: "room-7".to_owned(), kind, name, thread_key: None };
        let from = Participant { id: from.to_owned(), name: None };
        InboundMessage::new(id, session, from, text)
    }

    #[test]
    fn limit_violations_name_the_field() {
        let field = |change: fn(&mut InboundMessage)| {
            let mut message = message("evt-1", "u1", "hi");
            change(&mut message);
            message.validate().map(drop).map_err(|error| error.field)
        };
        assert_eq!(field(|_| ()), Ok(()));
        assert_eq!(field(|s| s.id = String::new()), Err("id"));
        assert_eq!(field(|s| s.id = "x".repeat(MAX_EXTERNAL_ID_BYTES + 1)), Err("id"));
        assert_eq!(field(|s| s.session.id = String::new()), Err("session.id"));
        assert_eq!(field(|s| s.from.id = "é".repeat(129)), Err("from.id"));
        assert_eq!(field(|s| s.title = Some("x".repeat(MAX_NAME_BYTES + 1))), Err("title"));
        assert_eq!(
            field(|s| s.mentions = vec![String::new(); MAX_LIST_ENTRIES + 1]),
            Err("mentions")
        );
        assert_eq!(field(|s| s.mentions = vec!["x".repeat(MAX_NAME_BYTES + 1)]), Err("mentions"));
        let person = |id: &str, name: usize| {
            let (id, name) = (id.to_owned(), Some("x".repeat(name)));
            vec![Participant { id, name }]
        };
        let receivers =
            |to, cc| InboundMessage { to, cc, ..message("evt-1", "u1", "hi") }.validate().map(drop);
        assert_eq!(receivers(person("u2", MAX_NAME_BYTES), person("", 0)), Ok(()));
        for long in [person("u2", MAX_NAME_BYTES + 1), person(&"x".repeat(MAX_NAME_BYTES + 1), 0)] {
            assert_eq!(receivers(long.clone(), Vec::new()).unwrap_err().field, "to and cc");
            assert_eq!(receivers(Vec::new(), long).unwrap_err().field, "to and cc");
        }
        for ms in [i64::MIN, RFC3339_RANGE.start() - 1, RFC3339_RANGE.end() + 1, i64::MAX] {
            let mut message = message("evt-1", "u1", "hi");
            message.at = Some(Timestamp::from_ms(ms));
            assert_eq!(message.validate().unwrap_err().field, "at", "{ms}");
        }
        let file = |change: fn(&mut Artifact)| {
            let (name, mime_type) = ("log".to_owned(), "text/plain".to_owned());
            let mut artifact = Artifact { name, mime_type, size: None, hash: None, url: None };
            change(&mut artifact);
            let message =
                InboundMessage { artifacts: vec![artifact], ..message("evt-1", "u1", "hi") };
            message.validate().map(drop).map_err(|error| error.field)
        };
        assert_eq!(file(|_| ()), Ok(()));
        assert_eq!(file(|a| a.size = Some((1 << 53) - 1)), Ok(()));
        assert_eq!(file(|a| a.size = Some(1 << 53)), Err("attachments"), "JSON would round it");
        assert_eq!(file(|a| a.name = "x".repeat(MAX_NAME_BYTES + 1)), Err("attachments"));
        assert_eq!(file(|a| a.mime_type = "x".repeat(MAX_NAME_BYTES + 1)), Err("attachments"));
        assert_eq!(file(|a| a.url = Some("x".repeat(MAX_URL_BYTES + 1))), Err("attachments"));
        assert_eq!(field(|s| s.text = "x".repeat(1 << 20)), Ok(()));
        assert_eq!(field(|s| s.text = "\0".repeat(1 << 20)), Err("text"));
    }

    #[test]
    fn the_longest_ids_fit_into_a_did() {
        let tunnel: TunnelId = "t".repeat(64).parse().unwrap();
        let long = Participant { id: "\u{1f600}".repeat(MAX_ACCOUNT_BYTES / 4), name: None };
        assert!(long.did(&tunnel).is_ok());
    }

    #[test]
    fn answer_goes_to_the_session_or_to_the_author_of_a_direct_message() {
        let tunnel: TunnelId = "lark-main".parse().unwrap();
        let mut message = message("1", "u.1", "hi");
        let to = |message: &InboundMessage| {
            message.session.answer_to(&message.from, &tunnel).unwrap().to_string()
        };
        assert_eq!(to(&message), "did:msgtunnel:room-7.group.lark-main");
        message.session.kind = ChatSessionKind::Direct;
        assert_eq!(to(&message), "did:msgtunnel:u%2E1.user.lark-main");
    }

    #[test]
    fn different_sessions_have_different_merge_keys() {
        let key = |id: &str, thread: Option<&str>, kind, from: &str, held| {
            let mut message = message("1", from, "hi");
            let (id, thread_key) = (id.to_owned(), thread.map(str::to_owned));
            message.session = ChatSession { id, kind, name: None, thread_key };
            message.merge_key(held)
        };
        use ChatSessionKind::{Direct, Group, Thread};
        assert_eq!(key("room", Some("t"), Group, "ann", false), ":room:t");
        assert_eq!(
            key("room", Some("t"), Thread, "bob", false),
            ":room:t",
            "one place, one thread"
        );
        let keys = [
            key("a:b", Some("c"), Group, "u", false),
            key("a", Some("b:c"), Group, "u", false),
            key("a%3Ab", Some("c"), Group, "u", false),
            key("a", None, Group, "u", false),
            // A direct message is answered to its author, who is accepted on their own.
            key("a", None, Direct, "u", false),
            key("a", None, Direct, "v", false),
            key("a", None, Group, "w", true),
            key("a", Some("b"), Direct, "u:v", false),
            key("v", Some("a:b"), Direct, "u", false),
            key("u", Some("a:"), Group, "u", false),
        ];
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len(), "{keys:?}");
    }

    proptest! {
        #[test]
        fn json_of_a_message_is_read_back_unchanged(message in any_message()) {
            let json = serde_json::to_string(&message).unwrap();
            prop_assert_eq!(serde_json::from_str::<InboundMessage>(&json).unwrap(), message);
        }

        #[test]
        fn session_keys_are_equal_only_for_equal_sessions(a in any_session(), b in any_session()) {
            let same = (&a.id, a.thread_key.as_deref().unwrap_or_default())
                == (&b.id, b.thread_key.as_deref().unwrap_or_default());
            prop_assert_eq!(a.key() == b.key(), same);
        }
    }
}
