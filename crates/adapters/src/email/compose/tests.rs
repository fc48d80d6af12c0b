//! Mails as Python's `email` and the project's own reader understand them.

use std::io::Write as _;
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use monoco_mime::read_mail;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const FROM: &str = "team@example.com";
const ID: &str = "<0f3a@example.com>";

fn message(object: Value) -> OutgoingMessage {
    OutgoingMessage::parse(&object.to_string()).unwrap()
}

fn markdown(text: &str) -> OutgoingMessage {
    message(json!({"from": "did:monoco:me", "created_at_ms": 1_770_410_700_000_i64,
                   "content": {"title": "Build", "content": text, "format": "text/markdown"}}))
}

fn file(name: &str, mime_type: &str, bytes: &[u8]) -> InboundAttachment {
    InboundAttachment {
        name: name.to_owned(),
        mime_type: mime_type.to_owned(),
        bytes: bytes.to_vec(),
    }
}

fn request<'a>(
    message: &'a OutgoingMessage,
    attachments: &'a [InboundAttachment],
    to: &'a [String],
) -> ComposeRequest<'a> {
    ComposeRequest {
        message,
        attachments,
        from_address: FROM,
        from_name: None,
        to,
        cc: &[],
        message_id: ID,
        now: Timestamp::from_ms(0),
        eight_bit: true,
    }
}

fn ann() -> Vec<String> {
    vec!["ann@example.com".to_owned()]
}

/// Returns what Python's `email` finds in each mail.
fn judge_all(mails: &[Vec<u8>]) -> Vec<Value> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/email/judge.py");
    let mut python = Command::new("python3")
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is installed");
    let lines: Vec<_> = mails.iter().map(|mail| STANDARD.encode(mail) + "\n").collect();
    let mut stdin = python.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(lines.concat().as_bytes()));
    let output = python.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let found: Vec<Value> = lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
    assert_eq!(found.len(), mails.len());
    found
}

/// Returns what Python's `email` finds in a mail that it has no objection to.
fn judge(mail: &[u8]) -> Value {
    let found = judge_all(&[mail.to_vec()]).remove(0);
    assert_eq!((&found["defects"], &found["wire"]), (&json!([]), &json!([])), "{found:#}");
    found
}

fn header<'v>(found: &'v Value, name: &str) -> &'v Value {
    let headers = found["headers"].as_array().unwrap();
    let mut values = headers.iter().filter(|pair| pair[0] == name).map(|pair| &pair[1]);
    let value = values.next().unwrap_or(&Value::Null);
    assert_eq!(values.next(), None, "one {name} at most");
    value
}

#[test]
fn markdown_becomes_plain_text_and_html() {
    let message = message(json!({
        "from": "did:monoco:me", "created_at_ms": 1_770_410_700_000_i64,
        "in_reply_to": "<parent@example.org>#0123456789abcdef",
        "thread": {"topic": "<root@example.org>"},
        "content": {"title": "构建失败：请尽快处理 and a rather long subject that has to be folded", "content": "Hello *Ann*,\n\nit is **red**."},
    }));
    let (to, cc) = (ann(), vec!["bob@example.org".to_owned(), "joe@example.org".to_owned()]);
    let request = ComposeRequest {
        from_name: Some("Team, \"A\" \\ 构建"),
        cc: &cc,
        ..request(&message, &[], &to)
    };
    let mail = compose(&request).unwrap();
    assert_eq!((mail.message_id.as_deref(), &mail.utf8_address), (Some(ID), &None));
    assert_eq!(compose(&request).unwrap(), mail, "every attempt sends the same bytes");
    let found = judge(&mail.bytes);
    assert_eq!(
        header(&found, "Subject"),
        "构建失败：请尽快处理 and a rather long subject that has to be folded"
    );
    assert_eq!(found["from"], json!([["Team, \"A\" \\ 构建", FROM]]));
    assert_eq!(found["to"], json!([["", "ann@example.com"]]));
    assert_eq!(found["cc"], json!([["", "bob@example.org"], ["", "joe@example.org"]]));
    assert_eq!(header(&found, "Date"), "Fri, 06 Feb 2026 20:45:00 +0000");
    assert_eq!(header(&found, "Message-ID"), ID);
    assert_eq!(header(&found, "In-Reply-To"), "<parent@example.org>");
    assert_eq!(header(&found, "References"), "<root@example.org> <parent@example.org>");
    let kinds: Vec<_> = found["parts"].as_array().unwrap().iter().map(|p| &p["type"]).collect();
    assert_eq!(kinds, ["multipart/alternative", "text/plain", "text/html"]);
    assert_eq!(found["parts"][1]["text"], "Hello *Ann*,\n\nit is **red**.\n");
    let html = found["parts"][2]["text"].as_str().unwrap();
    assert!(html.contains("<p>Hello <em>Ann</em>,</p>\n<p>it is <strong>red</strong>.</p>"));
    let ours = read_mail(&mail.bytes);
    assert_eq!(ours.references, ["<root@example.org>", "<parent@example.org>"]);
    assert_eq!(ours.date_ms, Some(1_770_410_700_000));
}

#[test]
fn texts_arrive_as_they_were_written() {
    for (text, transfer) in [
        ("plain\ntext\n", "7bit"),
        (".\n..\n.hidden\n\n.\n", "7bit"),
        ("From here\n>From there\n", "7bit"),
        ("caf\u{e9} = caf\u{e9}, and more of this plain text\n", "quoted-printable"),
        ("你好，世界。\n再见。\n", "base64"),
        ("trailing \t \nmuch\u{1b}[31m\n", "quoted-printable"),
        ("a bare \r carriage return\n", "quoted-printable"),
        ("\n.\r\r\n.\n", "quoted-printable"),
        ("at the end\r", "quoted-printable"),
        ("NUL \0 here\n", "quoted-printable"),
        ("\u{feff}\u{2028}mostly ASCII text, so it is still readable\n", "quoted-printable"),
    ] {
        let mut message = markdown(text);
        message.format = Some("text/plain".to_owned());
        let mail = compose(&request(&message, &[], &ann())).unwrap();
        let found = judge(&mail.bytes);
        let part = &found["parts"][0];
        assert_eq!(part["transfer"], transfer, "{text:?}");
        let bytes = STANDARD.decode(part["base64"].as_str().unwrap()).unwrap();
        let mut expected = part::with_crlf(text.as_bytes());
        if transfer != "base64" && !expected.ends_with(b"\r\n") {
            expected.extend_from_slice(b"\r\n");
        }
        assert_eq!(bytes, expected, "{text:?}");
    }
    let long = format!("{}\n{}\n", "x".repeat(5000), "long words ".repeat(500));
    let mail = compose(&request(&markdown(&long), &[], &ann())).unwrap();
    assert!(judge(&mail.bytes)["parts"][1]["text"] == long);
}

#[test]
fn attachments_keep_their_names_and_bytes() {
    let all_bytes: Vec<u8> = (0..=255).cycle().take(5000).collect();
    let names = [
        ("report.pdf", "report.pdf"),
        ("季度报告 (最终版).pdf", "季度报告 (最终版).pdf"),
        ("a \"quoted\" \\ name.txt", "a \"quoted\" _ name.txt"),
        ("50% off = '=?utf-8?q?x?='.txt", "50% off = '=?utf-8?q?x?='.txt"),
        ("../../etc/passwd", ".._.._etc_passwd"),
        ("line\r\nX-Evil: 1\r\n\r\nbody", "line  X-Evil: 1    body"),
        ("\u{202e}gpj.exe", "gpj.exe"),
        ("", "attachment"),
    ];
    let long = format!("{}.txt", "很长的文件名".repeat(9));
    let names: Vec<(&str, &str)> =
        names.into_iter().chain([(long.as_str(), long.as_str())]).collect();
    let files: Vec<_> =
        names.iter().map(|(name, _)| file(name, "application/pdf", &all_bytes)).collect();
    let mail = compose(&request(&markdown("see"), &files, &ann())).unwrap();
    let found = judge(&mail.bytes);
    let parts: Vec<_> = found["parts"].as_array().unwrap().iter().skip(4).collect();
    let ours = read_mail(&mail.bytes);
    assert_eq!((parts.len(), ours.attachments.len()), (names.len(), names.len()));
    for ((part, ours), (_, name)) in parts.iter().zip(&ours.attachments).zip(&names) {
        assert_eq!((&part["name"], &part["disposition"]), (&json!(name), &json!("attachment")));
        assert_eq!(part["type"], "application/pdf");
        let bytes = STANDARD.decode(part["base64"].as_str().unwrap()).unwrap();
        assert_eq!(bytes, all_bytes);
        // The reader replaces characters that some systems do not accept in names of files.
        if !name.starts_with('.') && !name.contains(['"', '?', ':']) {
            assert_eq!(ours.name.as_deref(), Some(*name));
        }
    }
}

#[test]
fn media_types_that_cannot_be_encoded_become_bytes() {
    for (given, written) in [
        ("image/png", "image/png"),
        ("text/csv; charset=latin1", "text/csv"),
        ("multipart/mixed", "application/octet-stream"),
        ("message/partial", "application/octet-stream"),
        ("text", "application/octet-stream"),
        ("text/plain\r\nX-Evil: 1", "application/octet-stream"),
        ("", "application/octet-stream"),
    ] {
        let mail =
            compose(&request(&markdown("x"), &[file("f", given, b"1,2\n")], &ann())).unwrap();
        let found = judge(&mail.bytes);
        assert_eq!(found["parts"][4]["type"], written, "{given}");
        assert_eq!(found["parts"][4]["base64"], STANDARD.encode("1,2\n"));
    }
}

#[test]
fn original_of_a_forward_stays_a_mail() {
    let message = message(json!({
        "from": "did:monoco:me", "created_at_ms": 0,
        "content": {"title": "Fwd: x", "content": "Forwarded."},
        "email": {"message_id": "<task@example.com>", "in_reply_to": "<o@example.org>",
                  "references": ["<r@example.org>", "<o@example.org>"],
                  "reply_to": "Ann O'Hara <ann@example.org>", "auto_submitted": "auto-forwarded",
                  "headers": [["X-Monoco-Loop", "team@example.com"]]},
    }));
    let original = "From: ann@example.org\r\nSubject: =?utf-8?q?caf=C3=A9?=\r\n\r\ncafé\r\n.\r\n";
    let files = [file("original.eml", "message/rfc822", original.as_bytes())];
    let mail = compose(&request(&message, &files, &ann())).unwrap();
    assert_eq!(mail.message_id.as_deref(), Some("<task@example.com>"));
    let found = judge(&mail.bytes);
    let part = &found["parts"][4];
    assert_eq!((&part["type"], &part["transfer"]), (&json!("message/rfc822"), &json!("8bit")));
    assert_eq!((&part["subject"], &part["name"]), (&json!("café"), &json!("original.eml")));
    let bytes = String::from_utf8(mail.bytes).unwrap();
    assert!(bytes.contains(&format!("\r\n\r\n{original}\r\n--=_monoco_")), "{bytes}");
    assert_eq!(found["reply_to"], json!([["Ann O'Hara", "ann@example.org"]]));
    assert_eq!(header(&found, "Auto-Submitted"), "auto-forwarded");
    assert_eq!(header(&found, "X-Monoco-Loop"), "team@example.com");
    assert_eq!(header(&found, "References"), "<r@example.org> <o@example.org>");

    // What cannot be sent as a mail is sent as a file, with the same bytes.
    let long = format!("Subject: x\r\n\r\n{}\r\n", "x".repeat(999));
    for (original, eight_bit) in
        [(original, false), (long.as_str(), true), ("Subject: x\r\n\r\na\rb\r\n", true)]
    {
        let files = [file("original.eml", "message/rfc822", original.as_bytes())];
        let to = ann();
        let request = ComposeRequest { eight_bit, ..request(&message, &files, &to) };
        let mail = compose(&request).unwrap();
        assert!(mail.bytes.is_ascii());
        let part = &judge(&mail.bytes)["parts"][4];
        assert_eq!(part["type"], "application/octet-stream");
        assert_eq!(part["base64"], STANDARD.encode(original));
    }
}

#[test]
fn recipients_of_blind_copies_are_in_no_header() {
    let mail = compose(&request(&markdown("x"), &[], &[])).unwrap();
    let found = judge(&mail.bytes);
    assert_eq!(header(&found, "To"), "undisclosed-recipients:;");
    assert_eq!(
        (&found["to"], header(&found, "Cc"), header(&found, "Bcc")),
        (&json!([]), &Value::Null, &Value::Null)
    );
}

#[test]
fn letter_is_sent_byte_for_byte_without_bcc() {
    let letter = |text: &str, charset: Option<&str>| {
        let mut content = json!({"format": "message/rfc822", "content": text});
        if let Some(charset) = charset {
            content["charset"] = json!(charset);
        }
        let message = message(json!({"from": "did:monoco:me", "content": content}));
        compose(&request(&message, &[], &ann()))
    };
    let mail = "From: a@x.test\r\nBcc: b@x.test\r\nMessage-ID: <1@x.test>\r\n\r\n.\r\ncaf\u{e9}";
    let sent = letter(mail, Some("latin-1")).unwrap();
    let kept = b"From: a@x.test\r\nMessage-ID: <1@x.test>\r\n\r\n.\r\ncaf\xe9";
    assert_eq!(
        (sent.bytes.as_slice(), sent.message_id.as_deref()),
        (&kept[..], Some("<1@x.test>"))
    );
    let unix = letter("From: a@x.test\n\nhi\n", None).unwrap();
    assert_eq!(
        (unix.bytes.as_slice(), unix.message_id),
        (&b"From: a@x.test\r\n\r\nhi\r\n"[..], None)
    );

    let long = format!("A: b\r\n\r\n{}\r\n", "x".repeat(999));
    for (mail, why) in [
        ("A: b\r\n\r\nx\ry\r\n", "line 3: a CR without LF"),
        ("A: b\r\n\r\nx\r", "line 3: a CR without LF"),
        (long.as_str(), "line 3: 999 bytes"),
        ("no header", "line 1: not a header line"),
        ("A: b\rc\r\n\r\n", "CR without LF"),
        ("A: b\n\n\0", "NUL"),
        ("", "no header"),
    ] {
        let error = letter(mail, None).unwrap_err().to_string();
        assert!(error.contains(why), "{mail:?}: {error}");
    }

    // A large letter is stored as an attachment.
    let message =
        message(json!({"from": "did:monoco:me", "content": {"format": "message/rfc822"}}));
    let files = [file("mail.eml", "message/rfc822", kept)];
    assert_eq!(compose(&request(&message, &files, &ann())).unwrap().bytes, kept);
}

#[test]
fn addresses_are_checked_and_domains_written_in_ascii() {
    for (given, written) in [
        ("ann@example.com", Some("ann@example.com")),
        ("ann@bücher.example", Some("ann@xn--bcher-kva.example")),
        ("jörg@example.com", Some("jörg@example.com")),
        ("ann@[127.0.0.1]", Some("ann@[127.0.0.1]")),
        ("ann", None),
        ("did:web:ann@example.com", None),
        ("ann@example.com\r\nRCPT TO:<eve@example.com>", None),
        ("ann@example.com>\r\nDATA", None),
        ("<ann@example.com>", None),
        ("ann@example.com, eve@example.com", None),
        ("ann@exa mple.com", None),
        ("\u{202e}ann@example.com", None),
        ("@example.com", None),
        ("ann@", None),
    ] {
        let found = check_mail_address("To", given);
        assert_eq!(found.as_deref().ok(), written, "{given}: {found:?}");
    }
    let to = vec!["jörg@bücher.example".to_owned()];
    let mail = compose(&request(&markdown("x"), &[], &to)).unwrap();
    assert_eq!(mail.utf8_address.as_deref(), Some("jörg@xn--bcher-kva.example"));
}

#[test]
fn values_that_would_add_a_field_are_rejected() {
    let with = |email: Value| {
        let message = message(json!({"from": "did:monoco:me", "content": {}, "email": email}));
        compose(&request(&message, &[], &ann())).map_err(|error| error.to_string())
    };
    for (email, why) in [
        (json!({"message_id": "<a@b>\r\nX: y"}), "Message-ID: expected <…@…>"),
        (json!({"message_id": "a@b"}), "Message-ID"),
        (json!({"reply_to": "ann@example.org\r\nX: y"}), "Reply-To"),
        (json!({"reply_to": "Ann <ann@example.org>\r\nX: y"}), "Reply-To"),
        (json!({"reply_to": "Ann"}), "Reply-To"),
        (json!({"auto_submitted": "auto-replied\r\nX: y"}), "line break"),
        (json!({"headers": [["X-A", "b\nc: d"]]}), "line break"),
        (json!({"headers": [["X A", "b"]]}), "not the name of a field"),
        (json!({"headers": [["X-A:b\r\nY", "c"]]}), "not the name of a field"),
        (json!({"headers": [["Bcc", "eve@example.com"]]}), "Bcc cannot be set here"),
        (json!({"headers": [["CONTENT-TYPE", "text/html"]]}), "cannot be set here"),
    ] {
        let error = with(email.clone()).unwrap_err();
        assert!(error.contains(why), "{email}: {error}");
    }
    let kept = with(json!({"in_reply_to": "<x\r\ny@z>", "references": ["bad", "<a@b>"]})).unwrap();
    let found = judge(&kept.bytes);
    assert_eq!(
        (header(&found, "In-Reply-To"), header(&found, "References")),
        (&Value::Null, &json!("<a@b>"))
    );
}

#[test]
fn external_ids_contain_message_ids() {
    for (external_id, message_id) in [
        ("<a@b>#0123456789abcdef", Some("<a@b>")),
        ("<a#b@c>#0123456789abcdef", Some("<a#b@c>")),
        ("<a@b>", Some("<a@b>")),
        ("#0123456789abcdef", None),
        ("<a@b", None),
        ("<a b@c>#01", None),
        ("evt-2", None),
    ] {
        assert_eq!(message_id_of_external_id(external_id), message_id, "{external_id}");
    }
}

#[test]
fn long_threads_keep_the_root_and_the_newest_references() {
    let ids: Vec<_> = (0..200).map(|n| format!("<{n}.{}@example.org>", "x".repeat(100))).collect();
    let message =
        message(json!({"from": "did:monoco:me", "content": {}, "email": {"references": ids}}));
    let mail = compose(&request(&message, &[], &ann())).unwrap();
    judge(&mail.bytes);
    let found = read_mail(&mail.bytes).references;
    assert_eq!((found.len(), &found[0], &found[19]), (20, &ids[0], &ids[199]));
}

/// Texts that have added fields or ended mails in other programs.
const NASTY: &[&str] = &[
    "\r\n",
    "\n",
    "\r",
    "\r\n\r\n",
    "\r\n.\r\n",
    "\n.\n",
    "\0",
    "\u{85}",
    "\u{2028}",
    "\u{b}",
    "\u{1b}[2J",
    "\u{202e}",
    "Bcc: eve@example.com",
    "X-Evil: 1",
    "=?utf-8?B?DQpYLUV2aWw6IDE=?=",
    "=?",
    "?=",
    "=?utf-8?q?=0D=0AX-Evil:_1?=",
    "\"",
    "\\",
    "<eve@example.com>",
    ">",
    ",",
    ";",
    "(",
    "'",
    "%0d%0a",
    "--=_monoco_",
    "你好",
    "😀",
    "e\u{301}",
    " ",
    "\t",
];

fn hostile() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => prop::sample::select(NASTY).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
        1 => "[a-zA-Z]{1,12}",
        1 => (1..400_usize).prop_map(|n| "w".repeat(n)),
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

fn hostile_mail() -> impl Strategy<Value = (Vec<u8>, String)> {
    (hostile(), hostile(), hostile(), hostile(), hostile(), hostile()).prop_map(
        |(title, text, name, file_name, value, mime_type)| {
            let value = value.replace(['\r', '\n'], "");
            let message = message(json!({
                "from": "did:monoco:me", "content": {"title": title, "content": text},
                "email": {"reply_to": format!("{} <ann@example.org>", name.replace(['<', '>', '\n', '\r'], "")),
                          "headers": [["X-Value", value]]},
            }));
            let files = [
                file(&file_name, &mime_type, text.as_bytes()),
                file(&file_name, "message/rfc822", text.as_bytes()),
            ];
            let to = ann();
            let request = ComposeRequest { from_name: Some(&name), ..request(&message, &files, &to) };
            (compose(&request).unwrap().bytes, text)
        },
    )
}

const FIELDS: [&str; 10] = [
    "Date",
    "From",
    "To",
    "Subject",
    "Message-ID",
    "Reply-To",
    "X-Value",
    "MIME-Version",
    "Content-Type",
    "Content-Transfer-Encoding",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn hostile_texts_cannot_add_a_field_or_a_part((mail, _) in hostile_mail()) {
        let found = read_mail(&mail);
        prop_assert_eq!(found.to.len(), 1);
        prop_assert_eq!(found.from.len(), 1);
        prop_assert_eq!(&found.from[0].address, FROM);
        prop_assert_eq!(found.reply_to.len(), 1);
        prop_assert_eq!(&found.reply_to[0].address, "ann@example.org");
        let head_end = mail.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
        let names = mail[..head_end].split(|byte| *byte == b'\n');
        let names = names.filter(|line| !line.starts_with(b" "));
        let names: Vec<_> = names.map(|line| line.split(|byte| *byte == b':').next().unwrap()).collect();
        let mut expected: Vec<_> = FIELDS.iter().map(|name| name.as_bytes()).collect();
        if names.len() < FIELDS.len() {
            expected.pop();
        }
        prop_assert_eq!(names, expected);
        prop_assert_eq!(found.texts.len(), 1);
        prop_assert_eq!(found.attachments.len(), 2);
        let breaks = mail.windows(2).filter(|bytes| bytes == b"\r\n").count();
        let count = |wanted: u8| mail.iter().filter(|byte| **byte == wanted).count();
        prop_assert_eq!((count(b'\r'), count(b'\n')), (breaks, breaks));
    }
}

/// The same mails for another reader: a process for each case would take too long.
#[test]
fn python_finds_no_added_field_in_hostile_mails() {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut mails = Vec::new();
    while mails.len() < 300 {
        mails.push(hostile_mail().new_tree(&mut runner).unwrap().current());
    }
    let bytes: Vec<_> = mails.iter().map(|(bytes, _)| bytes.clone()).collect();
    for ((found, (mail, text)), n) in judge_all(&bytes).iter().zip(&mails).zip(0..) {
        let shown = || format!("mail {n}: {}\n{found:#}", String::from_utf8_lossy(mail));
        let names: Vec<_> = found["headers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pair| pair[0].as_str().unwrap())
            .collect();
        assert!(names == FIELDS || names == FIELDS[..9], "{}", shown());
        assert_eq!(found["to"], json!([["", "ann@example.com"]]), "{}", shown());
        assert_eq!(found["from"].as_array().unwrap().len(), 1, "{}", shown());
        assert_eq!(found["from"][0][1], FROM, "{}", shown());
        assert_eq!(found["reply_to"][0][1], "ann@example.org", "{}", shown());
        assert_eq!(found["wire"], json!([]), "{}", shown());
        assert_eq!(found["parts"].as_array().unwrap().len(), 6, "{}", shown());
        let received = STANDARD.decode(found["parts"][2]["base64"].as_str().unwrap()).unwrap();
        let mut sent = part::with_crlf(text.as_bytes());
        if sent != received {
            sent.extend_from_slice(b"\r\n");
        }
        assert_eq!(received, sent, "{}", shown());
    }
}
