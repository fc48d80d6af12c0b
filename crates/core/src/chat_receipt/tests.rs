//! Tests of receipts in chats: which event asks for which reaction, and when to give up.

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::config::{ConfigEnvironment, ConfigFile, Secret};
use crate::inbound::InboundMessage;
use crate::inbound::tests::message;
use crate::mail::Trust;
use crate::merge::MailBuilder;
use crate::object::ObjKind;

const ALL: ChatReceipts = ChatReceipts {
    kept: Some(Reaction::Eyes),
    done: Some(Reaction::Okay),
    dead: Some(Reaction::Cross),
};

const MAIL: &str = "slack_000000000000000000000000";

fn at(secs: i64) -> Timestamp {
    Timestamp::from_ms(1_770_410_700_000 + secs * 1000)
}

fn object() -> ObjId {
    ObjId::of(ObjKind::Msg, b"a Mail")
}

fn event(kind: EventKind, detail: Value) -> Event {
    let msg_id = detail.get("mail").map(|_| object());
    Event { seq: 7, at: at(0), kind, msg_id, record_id: None, owner: None, detail }
}

struct NoEnvironment;

impl ConfigEnvironment for NoEnvironment {
    fn variable(&self, _: &str) -> Option<String> {
        None
    }

    fn read_secret_file(&self, _: &Path) -> Result<Secret, String> {
        Err("there are no files".to_owned())
    }
}

fn read(yaml: &str) -> Result<ChatReceipts, String> {
    let file = ConfigFile::parse(yaml).unwrap();
    let root = file.root(&NoEnvironment).unwrap();
    let section = root.section("receipt").map_err(|error| error.to_string())?;
    ChatReceipts::read(&section).map_err(|error| error.to_string())
}

#[test]
fn any_subset_of_receipts_is_read_and_other_names_are_rejected() {
    assert_eq!(read("receipt: {kept: eyes, done: ok, dead: cross}"), Ok(ALL));
    let none = ChatReceipts::default();
    for yaml in ["{}", "receipt: {}", "receipt:"] {
        assert_eq!(read(yaml), Ok(none), "{yaml}");
        assert!(none.is_off());
    }
    let done = ChatReceipts { done: Some(Reaction::ThumbsUp), ..none };
    assert_eq!(read("receipt: {done: thumbs_up}"), Ok(done));
    assert!(!done.is_off());
    for (yaml, expected) in [
        ("receipt: {kept: eye}", "did you mean eyes?"),
        ("receipt: {kept: ':tada:'}", "expected eyes, ok, cross, thumbs_up or thumbs_down"),
        ("receipt: {done: [ok]}", "expected a single value"),
        ("receipt: {finished: ok}", "unknown key `finished`"),
        ("receipt: eyes", "expected"),
    ] {
        let error = read(yaml).unwrap_err();
        assert!(error.contains(expected), "{yaml}: {error}");
    }
}

#[test]
fn events_ask_for_the_configured_receipts() {
    let tunnel: TunnelId = "work".parse().unwrap();
    let received = json!({"tunnel": "work", "external_id": "C1:1.2"});
    let claim = json!({"mail": MAIL, "workspace": "alpha"});
    let message = Some(ReceiptTarget::Message("C1:1.2".to_owned()));
    let mail = Some(ReceiptTarget::MailObject(object()));
    let only = |kept, done, dead| ChatReceipts { kept, done, dead };
    let (eyes, ok, cross) = (Some(Reaction::Eyes), Some(Reaction::Okay), Some(Reaction::Cross));
    let old = at(i64::try_from(MAX_RECEIPT_AGE.as_secs()).unwrap());
    for (name, receipts, kind, detail, now, reaction, target) in [
        ("kept", ALL, EventKind::Received, &received, at(1), eyes, &message),
        ("done", ALL, EventKind::Completed, &claim, at(1), ok, &mail),
        ("dead", ALL, EventKind::Dead, &claim, at(1), cross, &mail),
        ("at the limit", ALL, EventKind::Dead, &claim, old, cross, &mail),
        ("before it", ALL, EventKind::Received, &received, at(-90), eyes, &message),
        ("old", ALL, EventKind::Received, &received, old + Duration::from_millis(1), None, &None),
        ("no kept", only(None, ok, cross), EventKind::Received, &received, at(1), None, &None),
        ("no done", only(eyes, None, cross), EventKind::Completed, &claim, at(1), None, &None),
        ("no dead", only(eyes, ok, None), EventKind::Dead, &claim, at(1), None, &None),
        ("off", only(None, None, None), EventKind::Received, &received, at(1), None, &None),
        ("only done", only(None, ok, None), EventKind::Completed, &claim, at(1), ok, &mail),
        ("copy", ALL, EventKind::Duplicate, &received, at(1), None, &None),
        ("blocked", ALL, EventKind::Blocked, &received, at(1), None, &None),
        ("claimed", ALL, EventKind::Claimed, &claim, at(1), None, &None),
        ("failed", ALL, EventKind::Failed, &claim, at(1), None, &None),
        ("dropped by an operator", ALL, EventKind::Marked, &claim, at(1), None, &None),
        ("expired", ALL, EventKind::Expired, &claim, at(1), None, &None),
    ] {
        let due = receipts.due(&event(kind, detail.clone()), &tunnel, "slack", now);
        let expected = reaction.zip(target.clone());
        let expected = expected.map(|(reaction, target)| DueReceipt { reaction, target });
        assert_eq!(due, expected, "{name}");
    }
}

#[test]
fn events_of_others_ask_for_nothing() {
    let tunnel: TunnelId = "work".parse().unwrap();
    for (kind, detail) in [
        (EventKind::Received, json!({"tunnel": "home", "external_id": "C1:1.2"})),
        (EventKind::Received, json!({"external_id": "C1:1.2"})),
        (EventKind::Received, json!({"tunnel": "work"})),
        (EventKind::Received, json!({"tunnel": "work", "external_id": 7})),
        (EventKind::Completed, json!({"mail": MAIL.replace("slack", "lark")})),
        (EventKind::Completed, json!({"mail": "slack"})),
        (EventKind::Dead, json!({"why": "a delivery"})),
    ] {
        let due = ALL.due(&event(kind, detail.clone()), &tunnel, "slack", at(1));
        assert_eq!(due, None, "{detail}");
    }
}

#[test]
fn all_messages_of_a_mail_except_corrections_get_the_receipt() {
    let correction = InboundMessage {
        corrects: Some("evt-1".to_owned()),
        ..message("evt-1:edited", "u1", "the build is green")
    };
    let messages = vec![
        message("evt-1", "u1", "the build is red"),
        message("evt-2", "u2", "why?"),
        correction,
    ];
    let builder = MailBuilder {
        tunnel: "work".parse().unwrap(),
        provider: "slack".to_owned(),
        owner: "did:monoco:me".parse().unwrap(),
        binding: None,
        trust: Trust::Known,
        messages,
    };
    let mail = builder.build(at(5)).unwrap().mail;
    assert_eq!(messages_of(&mail, &"work".parse().unwrap()), ["evt-1", "evt-2"]);
    assert!(messages_of(&mail, &"home".parse().unwrap()).is_empty());
}

#[test]
fn reactions_are_attempted_five_times_unless_the_failure_is_permanent() {
    let detail = String::new;
    let unknown = Failure::Unknown { detail: detail(), error_code: None };
    let permanent = Failure::Permanent { detail: detail(), error_code: None };
    let temporary =
        |retry_after_ms| Failure::Temporary { detail: detail(), retry_after_ms, error_code: None };
    for (failure, expected) in [
        (&unknown, [Some(2), Some(4), Some(8), Some(16), None]),
        (&temporary(None), [Some(2), Some(4), Some(8), Some(16), None]),
        (&temporary(Some(30_000)), [Some(30), Some(30), Some(30), Some(30), None]),
        (&permanent, [None; 5]),
    ] {
        let delays = [1, 2, 3, 4, 5].map(|attempts| {
            next_attempt(failure, attempts, Jitter::NONE).map(|delay| delay.as_secs())
        });
        assert_eq!(delays, expected, "{failure:?}");
    }
}
