//! What workers may answer, and what becomes of the letter then.

use proptest::prelude::*;
use serde_json::json;

use super::super::WorkerVerdict;
use super::*;

fn id() -> LetterId {
    LetterId { seq: 7, mark: 0xabc }
}

fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn given() -> Letter {
    Letter {
        from: "sender@example.com".to_owned(),
        to: vec!["ann@example.com".to_owned()],
        data: "Subject: x\n\nhi".to_owned(),
        extra: map(json!({"direction": "outbound", "subject": "x", "seen": [1]})),
        rest: map(json!({"campaign": "autumn"})),
    }
}

fn answer(more: Value) -> Value {
    let mut answer = json!({"id": id(), "result": "pass"});
    for (key, value) in map(more) {
        answer[key] = value;
    }
    answer
}

fn read_by(
    letter: &Letter,
    answer: &Value,
    may_readdress: bool,
) -> Result<WorkerAnswer, InvalidWorkerAnswer> {
    let worker = "tagger".parse().unwrap();
    WorkerAnswer::read(answer.to_string().as_bytes(), id(), &worker, letter, may_readdress)
}

fn read(more: Value) -> Result<WorkerAnswer, InvalidWorkerAnswer> {
    read_by(&given(), &answer(more), false)
}

#[test]
fn answers_that_are_none() {
    let worker = "tagger".parse().unwrap();
    for (bytes, why) in [
        (&b""[..], "breaks off"),
        (b"Traceback (most recent call last):", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"{\"id\": \"ltr_7", "breaks off"),
        (b"{\"id\":\"x\",\"id\":\"ltr_7_00000abc\"}", "duplicate key"),
        (b"[]", "want a JSON object"),
        (b"null", "want a JSON object"),
        (b"{\"id\":\"ltr_7_00000abc\",\"result\":\"pass\"}{}", "trailing"),
    ] {
        let error = WorkerAnswer::read(bytes, id(), &worker, &given(), true).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn answers_that_can_not_be_used() {
    let large = "x".repeat(MAX_EXTRA);
    for (more, why) in [
        (json!({"id": null}), "`id` is no string"),
        (json!({"id": 7}), "`id` is no string"),
        (json!({"id": "ltr_8_00000abc"}), "another letter's"),
        (json!({"id": "ltr_7_00000abd"}), "another letter's"),
        (json!({"last_worker": "footer"}), "`last_worker` is \"footer\", this is tagger"),
        (json!({"last_worker": ["tagger"]}), "`last_worker` is no string"),
        (json!({"result": "PASS"}), "`result` is \"PASS\""),
        (json!({"result": ""}), "`result` is \"\""),
        (json!({"result": true}), "`result` is no string"),
        (json!({"note": 7}), "`note` is no string"),
        (json!({"data": null}), "`data` is no string"),
        (json!({"data": "x".repeat(MAX_DATA + 1)}), "16777216 is the most"),
        (json!({"from": 7}), "`from` is no string"),
        (json!({"from": "other@example.com"}), "`readdress: true` lets it"),
        (json!({"to": ["other@example.com"]}), "`readdress: true` lets it"),
        (json!({"to": ["ann@example.com", "bob@example.com"]}), "`readdress: true` lets it"),
        (json!({"to": []}), "1 to 1,000"),
        (json!({"to": "ann@example.com"}), "1 to 1,000"),
        (json!({"to": [7]}), "1 to 1,000"),
        (json!({"to": vec!["ann@example.com"; MAX_TARGETS + 1]}), "1 to 1,000"),
        (json!({"extra": []}), "`extra` is no object"),
        (json!({"extra": {"x": large}}), "`extra` is larger"),
        (json!({"extra": {"subject": 7}}), "`extra.subject`: want a string"),
        (
            json!({"extra": {"subject": "x\r\nBcc: y@example.com"}}),
            "`extra.subject`: want one line",
        ),
        (json!({"extra": {"charset": "utf-8"}}), "`extra.charset`: want latin-1"),
        (json!({"extra": {"merge_key": null}}), "`extra.merge_key`: want a string"),
        (json!({"tags": large}), "more than 64 KiB"),
        (json!({"data": "\u{20ac}", "extra": {"charset": "latin-1"}}), "`data` has characters"),
    ] {
        let error = read(more).expect_err(why);
        assert!(error.to_string().contains(why), "{error}");
    }
    for missing in ["id", "result"] {
        let mut answer = answer(json!({}));
        answer.as_object_mut().unwrap().remove(missing);
        let error = read_by(&given(), &answer, false).unwrap_err().to_string();
        assert!(error.contains(&format!("`{missing}` is missing")), "{error}");
    }
}

/// Words about an answer are kept with the letter, and an answer may be anything.
#[test]
fn words_about_an_answer_are_short() {
    let long = "x".repeat(1 << 20);
    let twice = format!("{{\"{long}\":1,\"{long}\":2}}");
    let worker = "tagger".parse().unwrap();
    let duplicate = WorkerAnswer::read(twice.as_bytes(), id(), &worker, &given(), false);
    for bad in [
        read(json!({"last_worker": long})),
        read(json!({"result": long})),
        read_by(&given(), &answer(json!({"from": long})), true),
        read_by(&given(), &answer(json!({"to": [long]})), true),
        duplicate,
    ] {
        let words = bad.unwrap_err().to_string();
        assert!(words.len() < 2_000, "{} bytes", words.len());
    }
}

#[test]
fn an_answer_may_be_nothing_but_a_verdict() {
    for (result, verdict) in
        [("pass", Verdict::Pass), ("skip", Verdict::Skip), ("trash", Verdict::Trash)]
    {
        let answer = read(json!({"result": result})).unwrap();
        assert_eq!(answer, WorkerAnswer { result: verdict, note: None, letter: given() });
    }
}

#[test]
fn a_letter_that_comes_back_as_it_was_given_is_the_same() {
    let letters = [
        given(),
        // What goes to a group may name nobody.
        Letter { to: Vec::new(), ..given() },
        // What was said elsewhere may be longer than what may be handed in.
        Letter { extra: map(json!({"subject": "x\n".repeat(MAX_EXTRA)})), ..given() },
    ];
    for letter in letters {
        let had = WorkerVerdict {
            worker: "spam".parse().unwrap(),
            result: Verdict::Pass,
            at: crate::time::Timestamp::from_ms(0),
            note: None,
        };
        let mut answer = letter.to_worker(id(), &[had]);
        answer["last_worker"] = json!("tagger");
        answer["result"] = json!("pass");
        assert_eq!(read_by(&letter, &answer, false).unwrap().letter, letter);
    }
}

#[test]
fn a_worker_changes_data_and_adds_to_what_is_known() {
    let answer = read(json!({
        "data": "Subject: y\n\nhi",
        "note": "x".repeat(501),
        "processed": ["forged"],
        "extra": {"tag": "blue", "seen": [1, 2], "subject": "y"},
        "campaign": "winter",
        "mood": {"is": "good"},
    }))
    .unwrap();
    assert_eq!(answer.note.unwrap().len(), 500);
    assert_eq!(answer.letter.data, "Subject: y\n\nhi");
    let extra = json!({"direction": "outbound", "subject": "y", "seen": [1, 2], "tag": "blue"});
    assert_eq!(Value::from(answer.letter.extra), extra);
    let rest = json!({"campaign": "winter", "mood": {"is": "good"}});
    assert_eq!(Value::from(answer.letter.rest), rest);
}

#[test]
fn nothing_can_be_taken_out_of_what_is_known() {
    let answer = read(json!({"extra": {}})).unwrap();
    assert_eq!(answer.letter.extra, given().extra);
    assert_eq!(answer.letter.rest, given().rest);
}

#[test]
fn what_is_ours_stays_ours() {
    let forged: Map<String, Value> =
        OURS.iter().map(|key| ((*key).to_owned(), json!("forged"))).collect();
    let answer = read(json!({"extra": forged})).unwrap();
    assert_eq!(answer.letter.extra, given().extra);
}

#[test]
fn a_letter_that_is_skipped_or_thrown_away_is_untouched_but_for_the_workers_memory() {
    for result in ["skip", "trash"] {
        let answer = read(json!({
            "result": result,
            "data": "other",
            "mood": "bad",
            "extra": {"subject": "other", "charset": "latin-1", "tag": "blue"},
        }))
        .unwrap();
        let mut want = given();
        want.extra.insert("tag".to_owned(), json!("blue"));
        assert_eq!(answer.letter, want);
    }
}

#[test]
fn who_may_readdress_a_letter_gives_it_good_addresses() {
    let change = json!({"from": "did:monoco:ann", "to": ["bob@example.com", "did:monoco:eve"]});
    let letter = read_by(&given(), &answer(change.clone()), true).unwrap().letter;
    assert_eq!(letter.from, "did:monoco:ann");
    assert_eq!(letter.to, ["bob@example.com", "did:monoco:eve"]);
    let skipped = answer(json!({"result": "skip", "from": change["from"], "to": change["to"]}));
    assert_eq!(read_by(&given(), &skipped, true).unwrap().letter, given());
    for (key, value) in [
        ("from", json!("nobody")),
        ("from", json!("a@example.com\r\nBcc: b@example.com")),
        ("to", json!(["nobody"])),
        ("to", json!(["bob@example.com", "a@example.com\0"])),
        ("to", json!([])),
    ] {
        let error = read_by(&given(), &answer(json!({key: value})), true).unwrap_err();
        assert!(error.to_string().contains(&format!("`{key}`")), "{error}");
    }
}

proptest! {
    #[test]
    fn no_bytes_are_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let worker = "tagger".parse().unwrap();
        prop_assert!(WorkerAnswer::read(&bytes, id(), &worker, &given(), true).is_err());
    }

    /// Whatever a worker says, it can't say it to somebody else.
    #[test]
    fn addresses_stay_unless_they_may_change(
        key in "from|to|data|extra|id|result|tags|last_worker",
        value in prop_oneof![
            "\\PC{0,20}".prop_map(Value::from),
            prop::collection::vec("\\PC{0,20}", 0..3).prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
        ],
    ) {
        if let Ok(answer) = read(json!({key: value})) {
            prop_assert_eq!(answer.letter.from, given().from);
            prop_assert_eq!(answer.letter.to, given().to);
        }
    }
}
