//! Letters at the door: how they are handed in over HTTP and on the command line, and what
//! is refused.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::common::{Answer, Courier, ME, Ran, binary, chat, cli};
use crate::pipeline_harness::{PipelineCourier, mail, said, verdicts};

/// A chain that throws away what matches, marks and signs the rest, and sends it.
pub fn chain(spam: &str) -> Value {
    json!({
        "outbound": ["spam", "subject", "footer", "send"],
        "workers": {
            "spam": {"rules": [{"name": "words", "subject": spam, "score": 9}]},
            "subject": {"template": "[Team] {subject}"},
            "footer": {"text": "Sent by Monoco"},
        },
    })
}

/// Hands something in that is no plain JSON, or has headers of its own.
pub fn hand_in(courier: &Courier, query: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    courier.send("POST", &format!("/api/v1/letters{query}"), headers, body).unwrap()
}

const JSON: (&str, &str) = ("Content-Type", "application/json");
pub const LINES: (&str, &str) = ("Content-Type", "application/x-ndjson");
const MAIL: (&str, &str) = ("Content-Type", "message/rfc822");

/// A command that gets these bytes.
fn piped(courier: &Courier, args: &[&str], input: &[u8]) -> Ran {
    let mut command = Command::new(binary());
    command.args(args).env_clear().env("MONOCO_HOME", courier.home());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    // It may refuse before it has read all of it.
    let _ = process.stdin.take().unwrap().write_all(input);
    let output = process.wait_with_output().unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn no_letters(courier: &Courier) {
    assert_eq!(courier.get("/api/v1/letters").ok()["letters"], json!([]));
}

#[test]
fn a_letter_that_is_handed_in_is_kept_goes_through_and_can_be_followed() {
    let hub = PipelineCourier::open(&chain("casino"));
    let mut letter = mail("bob@example.org", "Hello", "word-1");
    letter["campaign"] = json!({"name": "autumn"});
    letter["extra"] = json!({"score": 7});
    let id = hub.post(&letter);
    let done = hub.stands(&id, "DONE");
    let passed = ["spam", "subject", "footer", "send"].map(|worker| (worker, "pass"));
    assert_eq!(verdicts(&done), said(&passed));
    assert_eq!(done["letter"]["campaign"], json!({"name": "autumn"}), "unknown keys survive");
    assert_eq!(done["letter"]["extra"]["score"], 7);
    assert_eq!(done["letter"]["processed"], json!(["spam", "subject", "footer", "send"]));
    let kind = ["source", "direction", "tunnel"].map(|key| done[key].as_str().unwrap());
    assert_eq!(kind, ["submitted", "outbound", "ci"]);
    let arrived = hub.arrivals(1).remove(0);
    assert!(arrived.text.contains("Subject: [Team] Hello\r\n"), "{}", arrived.text);
    assert!(arrived.text.ends_with("word-1\r\n-- \r\nSent by Monoco\r\n"), "{}", arrived.text);

    // As it came, where that is asked for.
    let courier = &hub.courier;
    assert_eq!(done.get("original"), None);
    let whole = courier.get(&format!("/api/v1/letters/{id}?original=true")).ok();
    assert_eq!(whole["original"]["data"], letter["data"]);
    // The list does not carry what it says.
    let list = courier.get("/api/v1/letters?limit=1").ok();
    let line = &list["letters"][0];
    assert_eq!((&line["id"], &line["subject"]), (&json!(id), &json!("[Team] Hello")));
    assert_eq!((line.get("letter"), line.get("data")), (None, None));
    assert_eq!(line["size"], done["letter"]["data"].as_str().unwrap().len());

    // From the letter to what was sent, and back.
    let by_letter = courier.get(&format!("/api/v1/trace/{id}")).ok();
    assert_eq!(by_letter["msg_id"], done["became"]);
    assert_eq!(by_letter["deliveries"].as_array().unwrap().len(), 1);
    let became = done["became"].as_str().unwrap();
    let by_message = courier.get(&format!("/api/v1/trace/{became}")).ok();
    assert_eq!(by_message["letters"][0]["id"], id.as_str());
    assert_eq!(verdicts(&by_message["letters"][0]), said(&passed));
    let told = courier.cli(&["trace", &id]).ok();
    assert!(told.contains("spam=pass subject=pass footer=pass send=pass"), "{told}");
    assert_eq!(courier.cli(&["trace", &id, "--format", "id"]).ok().trim(), became);
    for gone in ["ltr_999_00000abc", "ltr_1_00000000", "x"] {
        assert_eq!(courier.get(&format!("/api/v1/letters/{gone}")).refused(404), "not_found");
    }
}

/// Letters that are refused, with the field that is wrong: one of each kind. `core` has the
/// tests of all fields and addresses.
fn bad_letters() -> Vec<(Value, &'static str)> {
    let with = |key: &str, value: Value| {
        let mut letter = mail("bob@example.org", "Hello", "hi");
        letter[key] = value;
        letter
    };
    vec![
        (json!([]), "letter"),
        (with("result", json!("pass")), "result"),
        (with("from", json!("a@example.com\r\nBcc: eve@example.com")), "from"),
        (with("to", json!([7])), "to[0]"),
        (with("data", json!("no header")), "data"),
        (with("data", json!("Subject: a\rBcc: eve@example.com\r\n\r\nhi")), "data"),
        (with("extra", json!({"content_type": "text/html"})), "extra.content_type"),
        (with("extra", json!({"tunnel": "elsewhere"})), "extra.tunnel"),
        (with("large", json!("x".repeat(70_000))), "letter"),
    ]
}

#[test]
fn every_field_that_is_wrong_is_named_and_nothing_is_kept() {
    let hub = PipelineCourier::open(&chain("casino"));
    let courier = &hub.courier;
    for (letter, field) in bad_letters() {
        let refused = courier.post("/api/v1/letters", &letter);
        let shown: String = letter.to_string().chars().take(200).collect();
        assert_eq!(refused.refused(422), "bad_letter", "{shown}");
        assert_eq!(refused.json()["field"], field, "{shown}: {}", refused.text());
        assert!(refused.json()["message"].as_str().unwrap().starts_with(field), "{shown}");
    }
    let letter = mail("bob@example.org", "Hello", "hi").to_string();
    for key in ["", &"k".repeat(257)] {
        let refused = hand_in(courier, "", &[JSON, ("Idempotency-Key", key)], letter.as_bytes());
        assert_eq!(refused.refused(422), "bad_letter");
        assert_eq!(refused.json()["field"], "Idempotency-Key");
    }
    assert_eq!(hand_in(courier, "", &[JSON], b"{\"from\": ").refused(400), "truncated_json");
    assert_eq!(hand_in(courier, "", &[JSON], b"{\"a\":1,\"a\":2}").refused(400), "bad_json");
    assert_eq!(hand_in(courier, "", &[], letter.as_bytes()).refused(415), "wrong_type");
    assert_eq!(hand_in(courier, "?to=a", &[JSON], letter.as_bytes()).refused(400), "bad_parameter");
    no_letters(courier);
}

#[test]
fn a_letter_is_handed_in_once_however_often() {
    let hub = PipelineCourier::open(&chain("casino"));
    let courier = &hub.courier;
    let letter = mail("bob@example.org", "Hello", "hi").to_string();
    let post = |key: &str, letter: &str| {
        hand_in(courier, "", &[JSON, ("Idempotency-Key", key)], letter.as_bytes())
    };
    let first = post("mine", &letter).ok();
    assert_eq!(first["duplicate"], false);
    hub.stands(first["id"].as_str().unwrap(), "DONE");
    let again = post("mine", &letter);
    assert_eq!(again.status, 202);
    assert_eq!(again.json(), json!({"id": first["id"], "duplicate": true}));
    let other = post("mine", &mail("bob@example.org", "Hello", "other").to_string());
    assert_eq!(other.refused(409), "key_reused");
    assert_eq!(other.json()["letter"], first["id"]);
    // Without a key, or with another one, it is another letter.
    let second = post("yours", &letter).ok();
    let third = courier.post("/api/v1/letters", &serde_json::from_str(&letter).unwrap()).ok();
    assert!(second["id"] != first["id"] && third["id"] != second["id"]);
    hub.arrivals(3);
}

#[test]
fn a_line_that_is_refused_does_not_harm_its_batch() {
    let hub = PipelineCourier::open(&chain("casino"));
    let courier = &hub.courier;
    let mut bad = mail("bob@example.org", "Hello", "no");
    bad["to"] = json!(["a@example.com\r\nBcc: eve@example.com"]);
    let lines = [
        mail("bob@example.org", "Hello", "word-1").to_string(),
        bad.to_string(),
        String::new(),
        "{".to_owned(),
        mail("bob@example.org", "Hello", "word-2").to_string(),
    ]
    .join("\n");
    let key = ("Idempotency-Key", "batch-7");
    let answers = |answer: &Answer| -> Vec<Value> {
        answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let answer = hand_in(courier, "", &[LINES, key], lines.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let first = answers(&answer);
    let numbers: Vec<_> = first.iter().map(|line| line["line"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [1, 2, 4, 5]);
    assert_eq!((&first[1]["code"], &first[1]["field"]), (&json!("bad_letter"), &json!("to[0]")));
    assert_eq!((&first[2]["code"], &first[2]["status"]), (&json!("truncated_json"), &json!(400)));
    let again = answers(&hand_in(courier, "", &[LINES, key], lines.as_bytes()));
    for at in [0, 3] {
        assert_eq!(
            (&first[at]["duplicate"], &again[at]["duplicate"]),
            (&json!(false), &json!(true))
        );
        assert_eq!(first[at]["id"], again[at]["id"]);
    }
    let texts: Vec<_> = hub.arrivals(2).iter().map(|it| it.word().unwrap().to_owned()).collect();
    assert!(texts.contains(&"word-1".to_owned()) && texts.contains(&"word-2".to_owned()));
    let many = vec!["{}"; 1_001].join("\n");
    assert_eq!(hand_in(courier, "", &[LINES], many.as_bytes()).refused(422), "bad_field");
}

/// A mail with a byte that is not UTF-8, and a Bcc recipient.
const RAW: &[u8] = b"From: Ann <ann@example.com>\r\nTo: Bob <bob@example.org>,\r\n \
                     \"Carl, C.\" <carl@example.org>\r\nCc: dora@example.org\r\n\
                     Bcc: eve@example.org\r\nSubject: Hello\r\n\r\ncaf\xe9 word-1\r\n";

/// The bytes of a letter's data that is not UTF-8.
fn latin(letter: &Value) -> Vec<u8> {
    assert_eq!(letter["extra"]["charset"], "latin-1");
    let data = letter["data"].as_str().unwrap();
    data.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect()
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn a_mail_as_it_is_names_its_people_and_keeps_its_bytes() {
    let hub = PipelineCourier::open(&chain("casino"));
    let courier = &hub.courier;
    let id = hand_in(courier, "", &[MAIL], RAW).ok()["id"].as_str().unwrap().to_owned();
    let done = hub.stands(&id, "DONE");
    assert_eq!(done["from"], "ann@example.com");
    let to = ["bob@example.org", "carl@example.org", "dora@example.org", "eve@example.org"];
    assert_eq!(done["to"], json!(to));
    let sent = latin(&done["letter"]);
    assert!(!contains(&sent, b"eve@"), "{}", String::from_utf8_lossy(&sent));
    assert!(contains(&sent, b"\r\n\r\ncaf\xe9 word-1\r\n-- \r\nSent by Monoco"));
    hub.arrivals(4);

    // Whom the parameters name it is for, and then it stays as it is.
    let query = "?from=me%40example.com&to=x%40example.org&to=y%40example.org&tunnel=ci";
    let id = hand_in(courier, query, &[MAIL], RAW).ok()["id"].as_str().unwrap().to_owned();
    let whole = courier.get(&format!("/api/v1/letters/{id}?original=true")).ok();
    assert_eq!(whole["from"], "me@example.com");
    assert_eq!(whole["to"], json!(["x@example.org", "y@example.org"]));
    let done = hub.stands(&id, "DONE");
    assert!(contains(&latin(&done["letter"]), b"Bcc: eve@example.org\r\n"));

    for (query, body, status, what) in [
        ("", &b"no header"[..], 422, "data"),
        ("", b"From: a@example.com\n\nhi", 422, "to"),
        ("", b"To: a@example.com\n\nhi", 422, "from"),
        ("", b"From: a@example.com\nTo: b@example.com\rBcc: c@example.com\n\nhi", 422, "data"),
        ("", b"From: a@example.com\nTo: <b@example.com\n\nhi", 422, "data"),
        ("", b"From: a@example.com\nTo: a b\n\nhi", 422, "to[0]"),
        ("?to=a%40example.com%0d%0aBcc:%20b", b"From: a@example.com\n\nhi", 422, "to[0]"),
        ("?from=a%00%40example.com", b"To: a@example.com\n\nhi", 422, "from"),
        ("?tunnel=nowhere", RAW, 422, "extra.tunnel"),
    ] {
        let refused = hand_in(courier, query, &[MAIL], body);
        assert_eq!(refused.status, status, "{query}: {}", refused.text());
        assert_eq!(refused.json()["field"], what, "{query}: {}", refused.text());
    }
    assert_eq!(hand_in(courier, "?bcc=x", &[MAIL], RAW).refused(400), "bad_parameter");
    let large = [RAW, &vec![b'x'; 16 << 20]].concat();
    assert_eq!(hand_in(courier, "", &[MAIL], &large).refused(413), "too_large");
}

#[test]
fn post_stands_in_for_sendmail() {
    let hub = PipelineCourier::open(&chain("casino"));
    let courier = &hub.courier;
    let post = |args: &[&str], input: &[u8]| {
        let ran = piped(courier, &[&["pipeline", "post"], args].concat(), input);
        ran.ok().trim().to_owned()
    };
    let id = post(&["-t", "-oi", "-i"], RAW);
    let done = hub.stands(&id, "DONE");
    assert_eq!(done["recipients"], 4);
    let sent = latin(&done["letter"]);
    assert!(contains(&sent, b"caf\xe9") && !contains(&sent, b"eve@"));
    assert_eq!(hub.arrivals(4).len(), 4);

    // From a file, with all recipients named; a line with a dot is a line.
    let file = hub.place("mail.eml");
    std::fs::write(&file, b"Subject: Dots\n\na\n.\nb\n").unwrap();
    let args = ["-f", "me@example.com", "--to", "x@example.org", "--to", "y@example.org"];
    let id = post(&[&args[..], &["--tunnel", "ci", &file]].concat(), b"");
    let shown = courier.get(&format!("/api/v1/letters/{id}?original=true")).ok();
    assert_eq!(shown["from"], "me@example.com");
    assert_eq!(shown["to"], json!(["x@example.org", "y@example.org"]));
    let done = hub.stands(&id, "DONE");
    assert!(done["letter"]["data"].as_str().unwrap().contains("\na\n.\nb\n"));

    // A letter as JSON, and one's own name for it.
    let letter = mail("bob@example.org", "Hello", "json").to_string();
    let id = post(&["--key", "mine", "--format", "id"], letter.as_bytes());
    assert_eq!(post(&["--key", "mine", "-"], format!("\n {letter}").as_bytes()), id);
    let id = post(&["--from", "other@example.com", "--to", "z@example.org"], letter.as_bytes());
    let shown = courier.get(&format!("/api/v1/letters/{id}")).ok();
    assert_eq!(
        (&shown["from"], &shown["to"]),
        (&json!("other@example.com"), &json!(["z@example.org"]))
    );

    // 1: refused, and nothing is kept of it.
    let before = courier.get("/api/v1/letters").ok()["letters"].as_array().unwrap().len();
    let to = ["--to", "x@example.org"];
    for (args, input, why) in [
        (&[][..], &b"From: a@example.com\n\nhi"[..], "to:"),
        (&["--raw"], b"{\"from\": 1}", "from:"),
        (&[], b"{\"from\": ", "cannot parse the letter"),
        (&["--to", "a@example.com\r\nBcc: eve@example.com"], RAW, "to[0]"),
        (&["--to", "a@example.com\nX: y"], RAW, "to[0]"),
        (&["--from", "a\r@example.com", "--to", "x@example.org"], RAW, "from:"),
        (&["--tunnel", "ci\r\nX: y"], RAW, "extra.tunnel"),
        (&["--key", ""], RAW, "Idempotency-Key"),
        (&to, b"Subject: a\rBcc: eve@example.com\n\nhi", "data:"),
        (&to, b"Subject: a\n\nhi\0", "data:"),
        (&["x@example.org"], RAW, "--to"),
    ] {
        let ran = piped(courier, &[&["pipeline", "post"], args].concat(), input);
        let said = ran.failed(1);
        assert!(said.contains(why), "{args:?}: {said}");
    }
    let after = courier.get("/api/v1/letters").ok()["letters"].as_array().unwrap().len();
    assert_eq!(after, before);
    // 64: not understood, a header that would be another one among it; 3: no courier, so
    // that the mail server keeps the mail.
    piped(courier, &["pipeline", "post", "--key", "a\r\nX: y"], RAW).failed(64);
    piped(courier, &["pipeline", "post", "-t", "--to", "x@example.org"], RAW).failed(64);
    let empty = tempfile::tempdir().unwrap();
    cli(empty.path(), &["pipeline", "post"], "From: a@example.com\nTo: b@example.com\n\nhi")
        .failed(3);
}

#[test]
fn messages_say_which_letter_they_are_and_without_a_chain_none() {
    let to = "did:msgtunnel:room-7.group.ci";
    let hub = PipelineCourier::open(&chain("casino"));
    let courier = &hub.courier;
    let args = ["center", "send", "--from", ME, "--to", to, "--text", "hi"];
    let shown = courier.cli(&args).ok();
    let letter = shown.lines().find_map(|line| line.strip_prefix("letter  ")).unwrap();
    assert_eq!(hub.stands(letter.trim(), "DONE")["source"], "send");
    let args = ["mailbox", "send", "--tunnel", "ci", "--to", "group:room-7", "--text", "hi"];
    let shown = courier.cli(&[&args[..], &["--wait"]].concat()).ok();
    let letter = shown.trim().rsplit('\t').next().unwrap();
    assert_eq!(hub.letter(letter)["state"], "DONE", "{shown}");
    let plain =
        courier.post("/api/v1/dispatch", &json!({"msg": chat("did:web:ann", ME, "hi")})).ok();
    assert_eq!(plain.get("letter"), None);
    hub.reload(&json!({"inbound": ["spam", "deliver"],
                          "workers": {"spam": {"rules": [{"name": "x", "text": "casino", "score": 9}]}}}));
    let sent = courier.post("/api/v1/post_send", &json!({"msg": chat(ME, to, "plain")})).ok();
    assert_eq!((sent.get("letter"), sent["deliveries"].as_array().unwrap().len()), (None, 1));

    // From what the provider said, over the letter, to the Mail.
    let mail = courier.mail("build-7");
    let trace = courier.get(&format!("/api/v1/messages/{mail}/trace")).ok();
    let letter = &trace["letters"][0];
    assert_eq!(verdicts(letter), said(&[("spam", "pass"), ("deliver", "pass")]), "{trace:#}");
    assert_eq!((&letter["source"], &letter["direction"]), (&json!("inbound"), &json!("inbound")));
    let id = letter["id"].as_str().unwrap();
    let by_letter = courier.get(&format!("/api/v1/trace/{id}")).ok();
    assert_eq!((&by_letter["mail"]["id"], &by_letter["msg_id"]), (&json!(mail), &trace["msg_id"]));
}
