//! Limits of inbound messages, their merge keys and the addresses of answers.

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
    let kind = prop::sample::select(EndpointKind::ALL.to_vec());
    (hostile(), kind, maybe()).prop_map(|(id, kind, name)| Participant {
        id: format!("u{id}"),
        kind,
        name,
    })
}

fn artifact() -> impl Strategy<Value = Artifact> {
    let size = prop::option::of(0..=9_007_199_254_740_991_u64);
    let hash = prop::option::of(any::<[u8; 32]>());
    let whole = (hostile(), hostile(), size, hash, maybe(), maybe());
    whole.prop_map(|(name, mime_type, size, hash, url, missing)| {
        let hash = hash.map(|hash| ObjId::from_parts(crate::object::ObjKind::Bytes, hash));
        Artifact { name, mime_type, size, hash, url, fetch: None, missing }
    })
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
        (person(), prop::option::of(person()), any::<Option<bool>>()),
        people(),
        people(),
    );
    let words = (maybe(), hostile(), prop::collection::vec(hostile(), 0..3));
    let links = (maybe(), maybe(), maybe(), maybe(), prop::collection::vec(artifact(), 0..3));
    (whole, words, links).prop_map(|((id, at, session, from, to, cc), words, links)| {
        let (from, answer_to, sender_verified) = from;
        let (title, text, mentions) = words;
        let (reply_to, corrects, forwarded_from, correlation_id, artifacts) = links;
        InboundMessage {
            id: format!("m{id}"),
            at: at.map(Timestamp::from_ms),
            received_at: Timestamp::from_ms(1_770_410_700_000),
            session,
            from,
            answer_to,
            sender_verified,
            to,
            cc,
            title,
            text,
            mentions,
            reply_to,
            corrects,
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
    let from = Participant::user(from, None);
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
    assert_eq!(field(|s| s.answer_to = Some(Participant::user("", None))), Err("answer_to"));
    assert_eq!(field(|s| s.title = Some("x".repeat(MAX_NAME_BYTES + 1))), Err("title"));
    assert_eq!(field(|s| s.mentions = vec![String::new(); MAX_LIST_ENTRIES + 1]), Err("mentions"));
    assert_eq!(field(|s| s.mentions = vec!["x".repeat(MAX_NAME_BYTES + 1)]), Err("mentions"));
    let person = |id: &str, name: usize| vec![Participant::user(id, Some("x".repeat(name)))];
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
        let mut artifact = Artifact { name, mime_type, ..Artifact::default() };
        change(&mut artifact);
        let message = InboundMessage { artifacts: vec![artifact], ..message("evt-1", "u1", "hi") };
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
    let long = Participant::user("\u{1f600}".repeat(MAX_ACCOUNT_BYTES / 4), None);
    assert!(long.did(&tunnel).is_ok());
}

#[test]
fn answer_goes_to_the_session_or_to_the_author_of_a_direct_message() {
    let tunnel: TunnelId = "lark-main".parse().unwrap();
    let mut message = message("1", "u.1", "hi");
    let to = |message: &InboundMessage| {
        message.session.answer_to(message.answer_account(), &tunnel).unwrap().to_string()
    };
    assert_eq!(to(&message), "did:msgtunnel:room-7.group.lark-main");
    message.session.kind = ChatSessionKind::Direct;
    assert_eq!(to(&message), "did:msgtunnel:u%2E1.user.lark-main");
    message.answer_to = Some(Participant::mailbox("Joe@Example.COM", None));
    assert_eq!(to(&message), "did:msgtunnel:Joe%40example%2Ecom.addr.lark-main");
    message.session.kind = ChatSessionKind::Group;
    assert_eq!(to(&message), "did:msgtunnel:room-7.group.lark-main", "a group has one address");
}

#[test]
fn different_sessions_have_different_merge_keys() {
    let key = |id: &str, thread: Option<&str>, kind, from: &str, held| {
        let mut message = message("1", from, "hi");
        let (id, thread_key) = (id.to_owned(), thread.map(str::to_owned));
        message.session = ChatSession { id, kind, name: None, thread_key };
        message.merge_key(held)
    };
    let answered_to = |answer_to: &str, id: &str, from: &str| {
        let mut message = message("1", from, "hi");
        message.session = ChatSession { id: id.to_owned(), ..ChatSession::default() };
        message.answer_to = Some(Participant::user(answer_to, None));
        message.merge_key(false)
    };
    let forged = |from: &str| {
        let mut message = message("1", from, "hi");
        message.session = ChatSession { id: "a".to_owned(), ..ChatSession::default() };
        message.sender_verified = Some(false);
        message.merge_key(false)
    };
    use ChatSessionKind::{Direct, Group, Thread};
    assert_eq!(key("room", Some("t"), Group, "ann", false), ":room:t");
    assert_eq!(key("room", Some("t"), Thread, "bob", false), ":room:t", "one place, one thread");
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
        forged("u"),
        forged("u%?"),
        answered_to("v", "a", "u"),
        answered_to("u", "a", "v"),
        answered_to("", "a", "u%>v"),
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
