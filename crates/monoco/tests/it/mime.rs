//! A corpus of odd mails, edited by us and read before and after by Python's `email`.
//!
//! `corpus/outcomes.txt` says of each mail which of its parts get each of the footers, or
//! why none does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use monoco_mime::{FooterText, Untouched, check, digest, with_footer, with_header, with_subject};
use serde_json::{Value, json};

use crate::reference_sdks::python;

const CHECKER: &str = include_str!("../check_mime.py");
const READER: &str = include_str!("../read_mime.py");

/// Mails that Python reads in another way, and why.
const READ_OTHERWISE: [(&str, &str); 5] = [
    ("mixed-empty-boundary", "a multipart without a boundary is one text"),
    ("mixed-cr-before-the-boundary", "a CR alone does not end a line"),
    ("nested-eighty-deep", "multiparts below 32 levels are not read"),
    ("quoted-ends-in-a-soft-break-with-blanks", "blanks behind a soft break do not count"),
    ("unknown-transfer-encoding", "uuencode is not decoded"),
];

/// Subjects: short, long, foreign, and one that wants to be more.
const SUBJECTS: [&str; 4] = [
    "short",
    "a subject that is so long that it has to be folded, since a line of mail should not have \
     more than seventy-eight characters",
    "[team] Grüße 世界 😀 und noch viel mehr, was in einem einzigen Wort nicht Platz hat, oder doch?",
    "x\r\nBcc: eve@example.org\r\n\r\n<script>",
];

pub fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

/// The mails by name.
pub fn corpus() -> BTreeMap<String, Vec<u8>> {
    let mails = mails_of(&directory());
    assert!(mails.len() > 100, "{}", mails.len());
    mails
}

fn mails_of(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut mails = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "eml") {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            mails.insert(name, std::fs::read(&path).unwrap());
        }
    }
    mails
}

/// In ASCII, for Western, Eastern and Asian charsets, and for none but UTF-8.
fn footers() -> [FooterText; 5] {
    let footer = |text: &str, html: Option<&str>| FooterText {
        text: text.to_owned(),
        html: html.map(str::to_owned),
    };
    [
        footer("Sent to you by the list\n<https://lists.example.org/team?a=b&c=d>", None),
        footer(
            "Grüße aus Köln",
            Some("<p>Grüße aus <a href=\"https://example.org/\">Köln</a></p>"),
        ),
        footer("Привет", None),
        footer("日本", Some("<b>日本</b>")),
        footer("团队 — Привет, κόσμε", None),
    ]
}

fn word(why: &Untouched) -> &'static str {
    match why {
        Untouched::Signed => "signed",
        Untouched::Encrypted => "encrypted",
        Untouched::NoTextPart => "no-text",
        Untouched::CantEncode(_) => "cant-encode",
        Untouched::TooDeep => "too-deep",
        Untouched::Broken(_) => "broken",
    }
}

pub fn in_base64(mail: &[u8]) -> String {
    STANDARD.encode(mail)
}

#[test]
fn footers_go_where_the_table_says_and_python_agrees() {
    let mails = corpus();
    let mut cases = Vec::new();
    let mut outcomes: BTreeMap<String, String> = BTreeMap::new();
    for (name, mail) in &mails {
        for (number, footer) in footers().iter().enumerate() {
            let case = format!("{name}/{number}");
            match with_footer(mail, footer) {
                Err(why) => drop(outcomes.insert(case, word(&why).to_owned())),
                Ok(edited) => cases.push(json!({
                    "name": case, "edit": "footer", "old": in_base64(mail), "new": in_base64(&edited),
                    "footer": {"text": footer.text, "html": footer.html},
                })),
            }
        }
    }
    let verdict = run_checker(&json!({"edits": cases, "digests": []}), cases.len() * 2);
    for (case, kinds) in verdict["edited"].as_object().unwrap() {
        let kinds: Vec<_> = kinds.as_array().unwrap().iter().filter_map(Value::as_str).collect();
        outcomes.insert(case.clone(), kinds.join("+"));
    }
    let mut table = String::new();
    for name in mails.keys() {
        let outcome = |number| outcomes[&format!("{name}/{number}")].as_str();
        let row: Vec<_> = (0..footers().len()).map(outcome).collect();
        table.push_str(&format!("{name}: {}\n", row.join(" ")));
    }
    let want = std::fs::read_to_string(directory().join("outcomes.txt")).unwrap_or_default();
    for (found, want) in table.lines().zip(want.lines()) {
        assert_eq!(found, want);
    }
    assert_eq!(table, want, "a mail has no line in outcomes.txt, or a line no mail");
}

#[test]
fn subjects_are_replaced_and_python_agrees() {
    let mut cases = Vec::new();
    for (name, mail) in &corpus() {
        assert_eq!(check(mail), Ok(()), "{name}");
        for (number, subject) in SUBJECTS.iter().enumerate() {
            let edited = with_subject(mail, subject);
            assert_eq!(check(&edited), Ok(()), "{name}");
            cases.push(json!({
                "name": format!("{name}/{number}"), "edit": "subject",
                "old": in_base64(mail), "new": in_base64(&edited),
                "subject": subject.replace(['\r', '\n'], " "),
            }));
        }
    }
    run_checker(&json!({"edits": cases, "digests": []}), cases.len() * 2);
}

#[test]
fn a_digest_of_the_corpus_is_read_back_by_python() {
    let mails = corpus();
    let mut cases = Vec::new();
    let names: Vec<_> = mails.keys().collect();
    for chunk in names.chunks(10) {
        let chosen: Vec<&[u8]> = chunk.iter().map(|name| mails[*name].as_slice()).collect();
        cases.push(json!({
            "name": chunk[0], "new": in_base64(&digest(&chosen, "Zehn über zehn", chunk[0])),
            "mails": chosen.iter().map(|mail| in_base64(mail)).collect::<Vec<_>>(),
        }));
    }
    run_checker(&json!({"edits": [], "digests": cases}), cases.len());
}

/// Has Python compare, and returns what it found.
pub fn run_checker(input: &Value, judged: usize) -> Value {
    let verdict: Value = serde_json::from_str(&python(CHECKER, input)).unwrap();
    let problems: Vec<_> = verdict["problems"].as_array().unwrap().iter().collect();
    assert!(problems.is_empty(), "{problems:#?}");
    assert_eq!(verdict["judged"], judged);
    verdict
}

/// What the reader finds in a mail, for Python to compare.
fn read(mail: &[u8]) -> Value {
    let parsed = monoco_mime::read_mail(mail);
    let people = |list: &[monoco_mime::MailAddress]| -> Vec<Value> {
        list.iter().map(|found| json!([found.name, found.address])).collect()
    };
    let text = |part: &monoco_mime::MailPart<'_>| json!([part.mime_type, part.text(1 << 20).text]);
    let attachment = |part: &monoco_mime::MailPart<'_>| {
        let content = in_base64(&part.bytes(1 << 24).0);
        json!({"name": part.file_name(), "mime_type": part.mime_type, "content": content})
    };
    json!({
        "subject": parsed.subject, "message_id": parsed.message_id, "date_ms": parsed.date_ms,
        "from": people(&parsed.from), "to": people(&parsed.to), "cc": people(&parsed.cc),
        "texts": parsed.texts.iter().map(text).collect::<Vec<_>>(),
        "attachments": parsed.attachments.iter().map(attachment).collect::<Vec<_>>(),
    })
}

#[test]
fn mails_are_read_as_python_reads_them() {
    let mut mails = corpus();
    let more = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../mime/testdata");
    mails.extend(mails_of(&more));
    let is_compared = |name: &str| READ_OTHERWISE.iter().all(|(other, _)| *other != name);
    let cases: Vec<_> = mails
        .iter()
        .filter(|(name, _)| is_compared(name))
        .map(|(name, mail)| json!({"name": name, "mail": in_base64(mail), "read": read(mail)}))
        .collect();
    let verdict: Value = serde_json::from_str(&python(READER, &json!(cases))).unwrap();
    let problems: Vec<_> = verdict["problems"].as_array().unwrap().iter().collect();
    assert!(problems.is_empty(), "{problems:#?}");
    assert!(verdict["judged"].as_u64().unwrap() > 500, "{}", verdict["judged"]);
}

/// What was taken out between the bytes that both mails share, and what was put in.
fn between(old: &[u8], new: &[u8]) -> (String, String) {
    let start = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let (old, new) = (&old[start..], &new[start..]);
    let end = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
    let shown =
        |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len() - end]).replace("\r\n", "\n");
    (shown(old), shown(new))
}

#[test]
fn all_bytes_outside_of_the_edit_stay() {
    for (name, mail) in &corpus() {
        let (gone, added) = between(mail, &with_header(mail, "X-Spam-Score", "7"));
        assert!(gone.is_empty(), "{name}: {gone:?}");
        assert!(added.contains("X-Spam-Score: 7"), "{name}: {added:?}");

        let (gone, added) = between(mail, &with_subject(mail, "§"));
        assert!(!gone.contains("\nFrom:") && !gone.contains("\n\n"), "{name}: {gone:?}");
        assert!(added.contains("wqc"), "{name}: {added:?}");

        let Ok(edited) = with_footer(mail, &footers()[0]) else { continue };
        let (gone, added) = between(mail, &edited);
        let in_base64 = name.contains("base64");
        if in_base64 {
            // A colon would be of a header, a hyphen of a boundary.
            assert!(!gone.contains([':', '-']), "{name}: {gone:?}");
            continue;
        }
        if !name.starts_with("alternative") && !name.contains("nested") {
            assert!(gone.is_empty(), "{name}: {gone:?}");
        }
        assert!(added.contains("Sent to you by the list"), "{name}: {added:?}");
        let mut rest = edited.iter();
        assert!(mail.iter().all(|byte| rest.any(|new| new == byte)), "{name}");
    }
}

#[test]
fn a_mail_of_sixteen_mebibytes_is_edited() {
    let line = b"All work and no play makes a dull mail.\r\n";
    let mut mail =
        b"Subject: long\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\n".to_vec();
    while mail.len() < 16 * 1024 * 1024 {
        mail.extend_from_slice(line);
    }
    let end = mail.len() - 2;
    mail.extend_from_slice(b"--b--\r\n");
    let edited = with_footer(&mail, &footers()[0]).unwrap();
    assert!(edited[..end] == mail[..end]);
    assert!(edited[end..].starts_with(b"\r\n-- \r\nSent to you"));
    assert!(edited.ends_with(b"\r\n--b--\r\n"));
}
