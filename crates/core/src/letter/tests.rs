//! The whole machine as a table, and letters as they enter, change and leave.

use serde_json::json;

use super::*;

fn at(secs: i64) -> Timestamp {
    Timestamp::from_ms(secs * 1_000)
}

fn id() -> LetterId {
    LetterId { seq: 7, mark: 0xabc }
}

fn standing(state: LetterState) -> LetterStatus {
    let standing = match state {
        LetterState::Waiting => LetterStateData::Waiting { due: at(10) },
        LetterState::Away => LetterStateData::Away { until: at(30) },
        LetterState::Done => LetterStateData::Done,
        LetterState::Merged => LetterStateData::Merged { into: id() },
        LetterState::Trashed => LetterStateData::Trashed { why: "spam".to_owned() },
        LetterState::Dead => LetterStateData::Dead { why: "no".to_owned() },
    };
    LetterStatus { standing, attempts: 2 }
}

#[test]
fn every_step_from_every_state() {
    let mut table = crate::state_tables::StateTable::new("letters");
    for state in LetterState::ALL {
        let from = state.as_str();
        let now = || standing(state);
        let end = |journey: LetterStatus| journey.standing.name().as_str();
        table.row(from, "hand over", now().hand_over(at(10), at(40)).map(end));
        table.row(from, "hand over, not due", now().hand_over(at(9), at(40)).map(end));
        table.row(from, "return", now().return_to_queue(at(20), true).map(end));
        table.row(from, "continue", now().continue_chain(at(20)).map(end));
        table.row(from, "finish", now().finish().map(end));
        table.row(from, "join", now().join(id()).map(end));
        table.row(from, "trash", now().trash("x".to_owned()).map(end));
        table.row(from, "mark dead", now().mark_dead("x".to_owned()).map(end));
        table.row(from, "restore", now().restore(at(20)).map(end));
        table.row(from, "retry", now().retry(at(20)).map(end));
    }
    table.check();
}

#[test]
fn attempt_counts_only_when_the_worker_was_reached() {
    let start = LetterStatus::start(at(0));
    let away = start.hand_over(at(0), at(30)).unwrap();
    assert_eq!(away.attempts, 1);
    assert_eq!(away.clone().return_to_queue(at(1), true).unwrap().attempts, 1);
    assert_eq!(away.clone().return_to_queue(at(1), false).unwrap().attempts, 0);
    assert_eq!(away.continue_chain(at(1)).unwrap().attempts, 0, "the next worker starts anew");
}

#[test]
fn next_worker_is_the_first_without_a_verdict() {
    let chain = |names: &str| Chain(names.split(' ').map(|name| name.parse().unwrap()).collect());
    let had = |names: &str| -> Vec<WorkerVerdict> {
        let passed = |name: &str| WorkerVerdict {
            worker: name.parse().unwrap(),
            result: Verdict::Skip,
            at: at(0),
            note: None,
        };
        names.split_whitespace().map(passed).collect()
    };
    let next = |names: &str, before: &str| {
        let chain = chain(names);
        chain.next(&had(before)).map(|name| name.as_str().to_owned())
    };
    assert_eq!(next("spam footer send", "").as_deref(), Some("spam"));
    assert_eq!(next("spam footer send", "spam").as_deref(), Some("footer"));
    assert_eq!(next("spam footer send", "spam footer send"), None);
    // The chain changed meanwhile: new workers are next, removed ones are ignored.
    assert_eq!(next("block spam send", "spam footer").as_deref(), Some("block"));
    assert_eq!(next("send", "spam footer").as_deref(), Some("send"));
}

#[test]
fn letter_has_one_id() {
    assert_eq!(id().to_string(), "ltr_7_00000abc");
    assert_eq!("ltr_7_00000abc".parse(), Ok(id()));
    for text in [
        "",
        "ltr_",
        "ltr_7",
        "ltr_7_abc",
        "ltr_07_00000abc",
        "ltr_+7_00000abc",
        "ltr_0_00000abc",
        "ltr_-1_00000abc",
        "ltr_7_00000ABC",
        "LTR_7_00000abc",
        "ltr_7_00000abc ",
        "ltr_9223372036854775808_00000abc",
    ] {
        assert!(text.parse::<LetterId>().is_err(), "{text}");
    }
}

#[test]
fn worker_names_are_restricted() {
    for text in ["spam", "a", "7", "my-tagger_2", &"x".repeat(64)] {
        assert!(text.parse::<WorkerName>().is_ok(), "{text}");
    }
    for text in ["", "Spam", "-x", "_x", "a b", "a/b", "a.b", "ä", &"x".repeat(65)] {
        assert!(text.parse::<WorkerName>().is_err(), "{text}");
    }
}

#[test]
fn bytes_that_are_not_utf_8_are_represented_as_latin_1() {
    let mut letter = Letter { data: "old".to_owned(), ..Letter::default() };
    letter.set_bytes(b"caf\xe9".to_vec());
    assert_eq!((letter.data.as_str(), letter.extra("charset")), ("caf\u{e9}", Some("latin-1")));
    assert_eq!(*letter.bytes(), *b"caf\xe9");
    letter.set_bytes("café".into());
    assert_eq!((letter.data.as_str(), letter.extra("charset")), ("café", None));
    assert_eq!(*letter.bytes(), *"café".as_bytes());
}

#[test]
fn worker_gets_the_documented_json() {
    let letter = Letter {
        from: "sender@example.com".to_owned(),
        to: vec!["ann@example.com".to_owned()],
        data: "Subject: x\n\nhi".to_owned(),
        extra: json!({"a": 1}).as_object().unwrap().clone(),
        rest: json!({"campaign": "autumn"}).as_object().unwrap().clone(),
    };
    let had = [WorkerVerdict {
        worker: "spam".parse().unwrap(),
        result: Verdict::Pass,
        at: at(0),
        note: None,
    }];
    assert_eq!(
        letter.to_json(id(), &had),
        json!({"id": "ltr_7_00000abc", "from": "sender@example.com", "to": ["ann@example.com"],
               "data": "Subject: x\n\nhi", "extra": {"a": 1}, "processed": ["spam"],
               "campaign": "autumn"})
    );
}
