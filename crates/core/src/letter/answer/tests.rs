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

fn read_bytes(
    letter: &Letter,
    answer: &[u8],
    may_readdress: bool,
) -> Result<WorkerResult, InvalidWorkerAnswer> {
    let worker = &"tagger".parse().unwrap();
    let (id, nonce, attempt) = (id(), "5", 1);
    WorkerRequest { id, worker, nonce, attempt, letter, may_readdress }.parse_answer(answer)
}

fn read_by(
    letter: &Letter,
    answer: &Value,
    may_readdress: bool,
) -> Result<WorkerResult, InvalidWorkerAnswer> {
    read_bytes(letter, answer.to_string().as_bytes(), may_readdress)
}

fn read(more: Value) -> Result<WorkerResult, InvalidWorkerAnswer> {
    read_by(&given(), &answer(more), false)
}

#[test]
fn malformed_json_is_rejected() {
    for (bytes, why) in [
        (&b""[..], "truncated JSON"),
        (b"Traceback (most recent call last):", "invalid JSON"),
        (b"\xff\xfe", "invalid JSON"),
        (b"{\"id\": \"ltr_7", "truncated JSON"),
        (b"{\"id\":\"x\",\"id\":\"ltr_7_00000abc\"}", "duplicate key"),
        (b"[]", "expected a JSON object"),
        (b"null", "expected a JSON object"),
        (b"{\"id\":\"ltr_7_00000abc\",\"result\":\"pass\"}{}", "trailing"),
    ] {
        let error = read_bytes(&given(), bytes, true).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn invalid_fields_are_rejected() {
    let large = "x".repeat(MAX_EXTRA);
    for (more, why) in [
        (json!({"id": null}), "`id` is not a string"),
        (json!({"id": 7}), "`id` is not a string"),
        (json!({"id": "ltr_8_00000abc"}), "of another letter"),
        (json!({"id": "ltr_7_00000abd"}), "of another letter"),
        (json!({"nonce": "4"}), "`nonce` is the nonce of another attempt"),
        (json!({"nonce": 5}), "`nonce` is not a string"),
        (json!({"last_worker": "footer"}), "`last_worker` is \"footer\", this is tagger"),
        (json!({"last_worker": ["tagger"]}), "`last_worker` is not a string"),
        (json!({"result": "PASS"}), "`result` is \"PASS\""),
        (json!({"result": ""}), "`result` is \"\""),
        (json!({"result": true}), "`result` is not a string"),
        (json!({"note": 7}), "`note` is not a string"),
        (json!({"data": null}), "`data` is not a string"),
        (json!({"data": "x".repeat(MAX_DATA + 1)}), "16777216 is the most"),
        (json!({"from": 7}), "`from` is not a string"),
        (json!({"from": "other@example.com"}), "set `readdress: true`"),
        (json!({"to": ["other@example.com"]}), "set `readdress: true`"),
        (json!({"to": ["ann@example.com", "bob@example.com"]}), "set `readdress: true`"),
        (json!({"to": []}), "1 to 1,000"),
        (json!({"to": "ann@example.com"}), "1 to 1,000"),
        (json!({"to": [7]}), "1 to 1,000"),
        (json!({"to": vec!["ann@example.com"; MAX_TARGETS + 1]}), "1 to 1,000"),
        (json!({"extra": []}), "`extra` is not an object"),
        (json!({"extra": {"x": large}}), "`extra` is larger"),
        (json!({"extra": {"subject": 7}}), "`extra.subject`: expected a string"),
        (
            json!({"extra": {"subject": "x\r\nBcc: y@example.com"}}),
            "`extra.subject`: expected one line",
        ),
        (json!({"extra": {"charset": "utf-8"}}), "`extra.charset`: expected latin-1"),
        (json!({"extra": {"merge_key": null}}), "`extra.merge_key`: expected a string"),
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

/// Errors about an answer are stored with the letter, and an answer can be anything.
#[test]
fn errors_about_an_answer_are_short() {
    let long = "x".repeat(1 << 20);
    let twice = format!("{{\"{long}\":1,\"{long}\":2}}");
    let duplicate = read_bytes(&given(), twice.as_bytes(), false);
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
fn answer_needs_only_a_verdict() {
    for (result, verdict) in
        [("pass", Verdict::Pass), ("skip", Verdict::Skip), ("trash", Verdict::Trash)]
    {
        let answer = read(json!({"result": result})).unwrap();
        assert_eq!(answer, WorkerResult { verdict, note: None, letter: None });
    }
}

#[test]
fn unchanged_letter_stays_the_same() {
    let letters = [
        given(),
        // A message to a group can have no target.
        Letter { to: Vec::new(), ..given() },
        // An inbound message can exceed the limits of a submission.
        Letter { extra: map(json!({"subject": "x\n".repeat(MAX_EXTRA)})), ..given() },
    ];
    for letter in letters {
        let had = WorkerVerdict {
            worker: "spam".parse().unwrap(),
            result: Verdict::Pass,
            at: crate::time::Timestamp::from_ms(0),
            note: None,
        };
        let worker = &"tagger".parse().unwrap();
        let (id, nonce, attempt, letter) = (id(), "5", 2, &letter);
        let request = WorkerRequest { id, worker, nonce, attempt, letter, may_readdress: false };
        let mut answer = request.to_json(&[had]);
        assert_eq!((&answer["nonce"], &answer["extra"]["attempt"]), (&json!("5"), &json!(2)));
        answer["last_worker"] = json!("tagger");
        answer["result"] = json!("pass");
        assert_eq!(read_by(letter, &answer, false).unwrap(), WorkerResult::PASS);
    }
}

#[test]
fn worker_changes_data_and_adds_to_extra() {
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
    let letter = answer.letter.unwrap();
    assert_eq!(letter.data, "Subject: y\n\nhi");
    let extra = json!({"direction": "outbound", "subject": "y", "seen": [1, 2], "tag": "blue"});
    assert_eq!(Value::from(letter.extra), extra);
    let rest = json!({"campaign": "winter", "mood": {"is": "good"}});
    assert_eq!(Value::from(letter.rest), rest);
}

#[test]
fn worker_cannot_remove_keys_of_extra() {
    let answer = read(json!({"extra": {}})).unwrap();
    assert_eq!(answer.letter, None);
}

#[test]
fn reserved_keys_of_extra_do_not_change() {
    let forged: Map<String, Value> =
        RESERVED_EXTRA_KEYS.iter().map(|key| ((*key).to_owned(), json!("forged"))).collect();
    let answer = read(json!({"extra": forged})).unwrap();
    assert_eq!(answer.letter, None);
}

#[test]
fn skipped_or_trashed_letter_changes_only_in_extra() {
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
        assert_eq!(answer.letter, Some(want));
    }
}

#[test]
fn new_addresses_of_a_readdressing_worker_are_checked() {
    let change = json!({"from": "did:monoco:ann", "to": ["bob@example.com", "did:monoco:eve"]});
    let letter = read_by(&given(), &answer(change.clone()), true).unwrap().letter.unwrap();
    assert_eq!(letter.from, "did:monoco:ann");
    assert_eq!(letter.to, ["bob@example.com", "did:monoco:eve"]);
    let skipped = answer(json!({"result": "skip", "from": change["from"], "to": change["to"]}));
    assert_eq!(read_by(&given(), &skipped, true).unwrap().letter, None);
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
    fn any_bytes_are_handled(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(read_bytes(&given(), &bytes, true).is_err());
    }

    /// A worker without `readdress` cannot change recipients.
    #[test]
    fn addresses_change_only_with_readdress(
        key in "from|to|data|extra|id|result|tags|last_worker",
        value in prop_oneof![
            "\\PC{0,20}".prop_map(Value::from),
            prop::collection::vec("\\PC{0,20}", 0..3).prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
        ],
    ) {
        if let Ok(WorkerResult { letter: Some(letter), .. }) = read(json!({key: value})) {
            prop_assert_eq!(letter.from, given().from);
            prop_assert_eq!(letter.to, given().to);
        }
    }
}
