//! What a provider told us, before anyone has judged it.
//!
//! Adapters turn what their provider sends into this one shape, and nothing
//! behind them knows another. Limits are checked here, once: whatever was kept can
//! be merged, stored, written to a file and answered.

use serde::{Deserialize, Serialize};

use crate::did::{Did, Endpoint, EndpointKind, InvalidDid, TunnelId};
use crate::json::MAX_SAFE_INTEGER;
use crate::object::ObjId;
use crate::time::Timestamp;

/// Longest external id we keep, in bytes.
pub const MAX_EXTERNAL_ID_BYTES: usize = 512;

/// Longest id of a session or a person, in bytes. Each byte may take three in a DID.
pub const MAX_ACCOUNT_BYTES: usize = 256;

/// Longest name, title, thread key and the like, in bytes.
pub const MAX_NAME_BYTES: usize = 1024;

/// Most entries of each list in one message.
pub const MAX_LIST_ENTRIES: usize = 100;

/// Longest link, in bytes: signed ones are long.
pub const MAX_URL_BYTES: usize = 8 << 10;

/// Largest single message, in bytes of its JSON. A Mail has room for it.
pub const MAX_MESSAGE_BYTES: usize = (1 << 20) + (64 << 10);

/// The first and the last millisecond that RFC 3339 can write: years 1 to 9999.
const TIMES: std::ops::RangeInclusive<i64> = -62_135_596_800_000..=253_402_300_799_999;

/// One thing heard through a tunnel.
///
/// `said.id` is the provider's own and stable: hearing the same thing twice gives
/// the same pair of tunnel and id, and that is how we know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundEvent {
    /// The tunnel it came through.
    pub tunnel: TunnelId,
    /// What was said.
    pub said: InboundMessage,
    /// What came with it. Kept before it is, and then named in `said.artifacts`.
    pub attachments: Vec<InboundAttachment>,
}

/// Bytes that came with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundAttachment {
    /// What its sender calls it. Never a path.
    pub name: String,
    /// Its MIME type, as its sender says.
    pub mime_type: String,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// One message, as its author said it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InboundMessage {
    /// The provider's stable id of it.
    pub id: String,
    /// When the provider says it was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// Where.
    pub session: ChatSession,
    /// By whom.
    pub from: Participant,
    /// To whom, where the provider has such a thing beside the session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<Participant>,
    /// Who else was to know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cc: Vec<Participant>,
    /// Its subject, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What was said, as Markdown or plain text.
    pub text: String,
    /// Who or what is mentioned in it, as the provider says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mentions: Vec<String>,
    /// The provider's id of the message it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// Whose words they were before they were forwarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forwarded_from: Option<String>,
    /// What the sender files it under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// What came with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
}

/// A place where people talk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatSession {
    /// The provider's id of it.
    pub id: String,
    /// What sort of place it is.
    #[serde(rename = "type")]
    pub kind: ChatSessionKind,
    /// What people call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The thread in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_key: Option<String>,
}

/// What sort of place a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChatSessionKind {
    /// Between the author and the owner.
    Direct,
    /// A group chat.
    Group,
    /// A thread of its own.
    Thread,
}

/// Somebody on an outside network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Participant {
    /// The provider's id of them.
    pub id: String,
    /// What they call themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What came with a message, once it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// What its sender calls it. Never a path.
    pub name: String,
    /// Its MIME type, as its sender says.
    pub mime_type: String,
    /// How many bytes it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The bytes, by their hash; `None` when only a link came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<ObjId>,
    /// Where its sender says it is. Nobody follows it by himself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// What was heard can't be kept as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct InvalidInboundMessage {
    /// What is wrong.
    pub field: &'static str,
    /// Why.
    pub why: String,
}

impl InboundMessage {
    /// Checks that it can be told apart from others, stored and answered.
    ///
    /// # Errors
    ///
    /// The first field that is wrong.
    pub fn check(&self) -> Result<(), InvalidInboundMessage> {
        check_external_id(&self.id).map_err(|error| bad("id", error.0))?;
        within("session.id", &self.session.id, 1, MAX_ACCOUNT_BYTES)?;
        within("from.id", &self.from.id, 1, MAX_ACCOUNT_BYTES)?;
        let short = [
            ("session.name", &self.session.name),
            ("session.thread_key", &self.session.thread_key),
            ("from.name", &self.from.name),
            ("title", &self.title),
            ("reply_to", &self.reply_to),
            ("forwarded_from", &self.forwarded_from),
            ("correlation_id", &self.correlation_id),
        ];
        for (field, text) in short {
            within(field, text.as_deref().unwrap_or_default(), 0, MAX_NAME_BYTES)?;
        }
        let lists = [
            ("to", self.to.len()),
            ("cc", self.cc.len()),
            ("mentions", self.mentions.len()),
            ("attachments", self.artifacts.len()),
        ];
        for (field, length) in lists {
            if length > MAX_LIST_ENTRIES {
                return Err(bad(
                    field,
                    format!("{length} entries; {MAX_LIST_ENTRIES} is the most"),
                ));
            }
        }
        for person in self.to.iter().chain(&self.cc) {
            within("to and cc", &person.id, 0, MAX_NAME_BYTES)?;
            within("to and cc", person.name.as_deref().unwrap_or_default(), 0, MAX_NAME_BYTES)?;
        }
        for mention in &self.mentions {
            within("mentions", mention, 0, MAX_NAME_BYTES)?;
        }
        for artifact in &self.artifacts {
            artifact.check()?;
        }
        // What is kept is written in this form, and has to be read again.
        if self.at.is_some_and(|at| !TIMES.contains(&at.ms())) {
            return Err(bad("at", "not a time of the years 1 to 9999"));
        }
        let size = serde_json::to_vec(self).map_or(usize::MAX, |json| json.len());
        if size > MAX_MESSAGE_BYTES {
            return Err(bad(
                "text",
                format!("the message has {size} bytes; {MAX_MESSAGE_BYTES} is the most"),
            ));
        }
        Ok(())
    }
}

impl InboundMessage {
    /// What is merged together: the same place, the same thread. What is answered to
    /// its author alone, or held on his account, is not merged with what others say.
    pub fn merge_key(&self, held: bool) -> String {
        let alone = held || self.session.kind == ChatSessionKind::Direct;
        let author = if alone { escape(&self.from.id) } else { String::new() };
        format!("{author}:{}", self.session.key())
    }
}

impl Artifact {
    fn check(&self) -> Result<(), InvalidInboundMessage> {
        within("attachments", &self.name, 0, MAX_NAME_BYTES)?;
        within("attachments", &self.mime_type, 0, MAX_NAME_BYTES)?;
        within("attachments", self.url.as_deref().unwrap_or_default(), 0, MAX_URL_BYTES)?;
        let exact = |size: u64| i64::try_from(size).is_ok_and(|size| size <= MAX_SAFE_INTEGER);
        if !self.size.is_none_or(exact) {
            return Err(bad("attachments", "a size beyond 2^53-1"));
        }
        Ok(())
    }
}

impl ChatSession {
    /// The place and the thread. No two share a key, whatever their names have in them.
    pub fn key(&self) -> String {
        format!("{}:{}", escape(&self.id), self.thread_key.as_deref().unwrap_or_default())
    }

    /// Where an answer to what `from` said here goes: exactly where it came from.
    ///
    /// # Errors
    ///
    /// When the ids do not fit into a DID. They do after [`Said::mailbox_check`].
    pub fn answer_to(&self, from: &Participant, tunnel: &TunnelId) -> Result<Did, InvalidDid> {
        let (account, kind) = match self.kind {
            ChatSessionKind::Direct => (&from.id, EndpointKind::User),
            ChatSessionKind::Group | ChatSessionKind::Thread => (&self.id, EndpointKind::Group),
        };
        Endpoint { account: account.clone(), kind, tunnel: tunnel.clone() }.did()
    }
}

impl Participant {
    /// Their shadow DID behind `tunnel`.
    ///
    /// # Errors
    ///
    /// When the id does not fit into a DID. It does after [`Said::mailbox_check`].
    pub fn did(&self, tunnel: &TunnelId) -> Result<Did, InvalidDid> {
        let (account, tunnel) = (self.id.clone(), tunnel.clone());
        Endpoint { account, kind: EndpointKind::User, tunnel }.did()
    }

    /// What to call them.
    pub fn display_name(&self) -> &str {
        self.name.as_deref().filter(|name| !name.trim().is_empty()).unwrap_or(&self.id)
    }
}

/// The thing heard can't be told apart from others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("external id: {0}")]
pub struct InvalidExternalId(&'static str);

/// Whether `id` can be the key by which a repeated message is recognised.
///
/// # Errors
///
/// When it is empty or too long.
pub fn check_external_id(id: &str) -> Result<(), InvalidExternalId> {
    if id.is_empty() {
        return Err(InvalidExternalId("empty; a repeated message could not be recognised"));
    }
    if id.len() > MAX_EXTERNAL_ID_BYTES {
        return Err(InvalidExternalId("longer than 512 bytes"));
    }
    Ok(())
}

/// Text without a colon, and no two texts the same.
fn escape(text: &str) -> String {
    text.replace('%', "%25").replace(':', "%3A")
}

fn within(
    field: &'static str,
    text: &str,
    least: usize,
    most: usize,
) -> Result<(), InvalidInboundMessage> {
    if text.len() < least {
        return Err(bad(field, "empty"));
    }
    if text.len() > most {
        return Err(bad(field, format!("{} bytes; {most} is the most", text.len())));
    }
    Ok(())
}

fn bad(field: &'static str, why: impl Into<String>) -> InvalidInboundMessage {
    InvalidInboundMessage { field, why: why.into() }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What has broken front matters, terminals and readers of YAML.
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
        "seal: \"",
        "@monoco::alpha",
        "*",
        "**",
        " ",
        "",
    ];

    /// Text of somebody who means no good.
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

    /// Anything that may be said, with every field filled now and then.
    pub(crate) fn any_said() -> impl Strategy<Value = InboundMessage> {
        let people = || prop::collection::vec(person(), 0..3);
        let whole =
            (hostile(), prop::option::of(TIMES), any_session(), person(), people(), people());
        let words = (maybe(), hostile(), prop::collection::vec(hostile(), 0..3));
        let links = (maybe(), maybe(), maybe(), prop::collection::vec(artifact(), 0..3));
        (whole, words, links).prop_map(|((id, at, session, from, to, cc), words, links)| {
            let (title, text, mentions) = words;
            let (reply_to, forwarded_from, correlation_id, artifacts) = links;
            InboundMessage {
                id: format!("m{id}"),
                at: at.map(Timestamp::from_ms),
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
            }
        })
    }

    pub(crate) fn said(id: &str, from: &str, text: &str) -> InboundMessage {
        InboundMessage {
            id: id.to_owned(),
            at: None,
            session: ChatSession {
                id: "room-7".to_owned(),
                kind: ChatSessionKind::Group,
                name: Some("Ops".to_owned()),
                thread_key: None,
            },
            from: Participant { id: from.to_owned(), name: None },
            to: Vec::new(),
            cc: Vec::new(),
            title: None,
            text: text.to_owned(),
            mentions: Vec::new(),
            reply_to: None,
            forwarded_from: None,
            correlation_id: None,
            artifacts: Vec::new(),
        }
    }

    #[test]
    fn what_can_not_be_kept_is_said_by_name() {
        let field = |change: fn(&mut InboundMessage)| {
            let mut said = said("evt-1", "u1", "hi");
            change(&mut said);
            said.check().map_err(|error| error.field)
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
        let receivers = |to, cc| InboundMessage { to, cc, ..said("evt-1", "u1", "hi") }.check();
        assert_eq!(receivers(person("u2", MAX_NAME_BYTES), person("", 0)), Ok(()));
        for long in [person("u2", MAX_NAME_BYTES + 1), person(&"x".repeat(MAX_NAME_BYTES + 1), 0)] {
            assert_eq!(receivers(long.clone(), Vec::new()).unwrap_err().field, "to and cc");
            assert_eq!(receivers(Vec::new(), long).unwrap_err().field, "to and cc");
        }
        for ms in [i64::MIN, TIMES.start() - 1, TIMES.end() + 1, i64::MAX] {
            let mut said = said("evt-1", "u1", "hi");
            said.at = Some(Timestamp::from_ms(ms));
            assert_eq!(said.check().unwrap_err().field, "at", "{ms}");
        }
        let file = |change: fn(&mut Artifact)| {
            let (name, mime_type) = ("log".to_owned(), "text/plain".to_owned());
            let mut artifact = Artifact { name, mime_type, size: None, hash: None, url: None };
            change(&mut artifact);
            let said = InboundMessage { artifacts: vec![artifact], ..said("evt-1", "u1", "hi") };
            said.check().map_err(|error| error.field)
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
    fn an_answer_goes_exactly_where_the_question_came_from() {
        let tunnel: TunnelId = "lark-main".parse().unwrap();
        let mut said = said("1", "u.1", "hi");
        let to = |said: &InboundMessage| {
            said.session.answer_to(&said.from, &tunnel).unwrap().to_string()
        };
        assert_eq!(to(&said), "did:msgtunnel:room-7.group.lark-main");
        said.session.kind = ChatSessionKind::Direct;
        assert_eq!(to(&said), "did:msgtunnel:u%2E1.user.lark-main");
    }

    #[test]
    fn two_sessions_never_share_a_key() {
        let key = |id: &str, thread: Option<&str>, kind, from: &str, held| {
            let mut said = said("1", from, "hi");
            let (id, thread_key) = (id.to_owned(), thread.map(str::to_owned));
            said.session = ChatSession { id, kind, name: None, thread_key };
            said.merge_key(held)
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
            // A direct message is answered to its author, and he is let in by himself.
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
        fn what_is_kept_comes_back_as_it_was(said in any_said()) {
            let kept = serde_json::to_string(&said).unwrap();
            prop_assert_eq!(serde_json::from_str::<InboundMessage>(&kept).unwrap(), said);
        }

        #[test]
        fn keys_are_as_different_as_sessions(a in any_session(), b in any_session()) {
            let same = (&a.id, a.thread_key.as_deref().unwrap_or_default())
                == (&b.id, b.thread_key.as_deref().unwrap_or_default());
            prop_assert_eq!(a.key() == b.key(), same);
        }
    }
}
