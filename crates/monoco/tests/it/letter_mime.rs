//! The corpus of odd mails through a running courier, and attempts to smuggle header fields
//! in; what comes out is judged by Python's `email`.
//!
//! What the edits do to each mail is judged in `mime.rs`; here it is the way there and back:
//! the doors, JSON, the store, the chain and the tunnel.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::common::{Answer, Courier};
use crate::mime::{corpus, directory, in_base64, run_checker};
use crate::pipeline_harness::{PipelineCourier, mail, said, verdicts};
use crate::reference_sdks::python;
use crate::webhook_peer::{Receiver, SECRET};

const FOOTER: &str = "Sent to you by the list\n<https://lists.example.org/team?a=b&c=d>";

/// A chain that edits, with the footer that is the first one of `outcomes.txt`.
fn editing(template: &str) -> Value {
    json!({
        "outbound": ["subject", "footer", "send"],
        "workers": {"subject": {"template": template}, "footer": {"text": FOOTER}},
    })
}

/// Hands in a mail as it is.
fn post_raw(hub: &PipelineCourier, query: &str, mail: &[u8]) -> Answer {
    post_raw_to(&hub.courier, query, mail)
}

fn post_raw_to(courier: &Courier, query: &str, mail: &[u8]) -> Answer {
    let headers = [("Content-Type", "message/rfc822")];
    courier.send("POST", &format!("/api/v1/letters{query}"), &headers, mail).unwrap()
}

/// The bytes of the mail that a letter became, and of the text that a tunnel was given.
fn became(hub: &PipelineCourier, letter: &Value) -> (Vec<u8>, String) {
    let id = letter["became"].as_str().unwrap_or_else(|| panic!("{letter:#}"));
    let object = hub.courier.get(&format!("/api/v1/objects/{id}")).ok();
    let content = &object["content"];
    let text = content["content"].as_str().unwrap().to_owned();
    assert_eq!(content["format"], "message/rfc822");
    let bytes = match content["charset"].as_str() {
        None => text.clone().into_bytes(),
        Some("latin-1") => text.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect(),
        Some(other) => panic!("{other}"),
    };
    (bytes, text)
}

/// Everything after the header.
fn body(mail: &[u8]) -> &[u8] {
    let after =
        |end: &[u8]| mail.windows(end.len()).position(|at| at == end).map(|at| at + end.len());
    let ends = [after(b"\n\n"), after(b"\n\r\n")];
    ends.into_iter().flatten().min().map_or(b"", |at| &mail[at..])
}

/// What `outcomes.txt` says that the first footer does to each mail.
fn outcomes() -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(directory().join("outcomes.txt")).unwrap();
    let rows = text.lines().map(|line| line.split_once(": ").unwrap());
    rows.map(|(name, row)| (name.to_owned(), row.split(' ').next().unwrap().to_owned())).collect()
}

/// Mails whose header does not say whom they are for.
const UNADDRESSED: [&str; 3] =
    ["header-encoded-subject", "header-two-subjects", "header-without-newline-at-the-end"];

/// Hands every mail in through both doors; the two letters of each.
fn hand_in(
    hub: &PipelineCourier,
    mails: &BTreeMap<String, Vec<u8>>,
) -> BTreeMap<String, [String; 2]> {
    let both = |(name, mail): (&String, &Vec<u8>)| {
        let answer = post_raw(hub, "?from=ann@example.com&to=bob@example.org", mail);
        assert_eq!(answer.status, 202, "{name}: {}", answer.text());
        let by_http = answer.json()["id"].as_str().unwrap().to_owned();
        let path = directory().join(format!("{name}.eml"));
        let mut args = vec!["pipeline", "post", path.to_str().unwrap()];
        if UNADDRESSED.contains(&name.as_str()) {
            hub.courier.cli(&args).failed(1);
            args.extend(["--to", "bob@example.org"]);
        }
        let by_hand = hub.courier.cli(&args).ok().trim().to_owned();
        (name.clone(), [by_http, by_hand])
    };
    mails.iter().map(both).collect()
}

#[test]
fn the_corpus_comes_out_of_a_chain_with_another_subject_and_a_footer() {
    let (mails, outcomes) = (corpus(), outcomes());
    let hub = PipelineCourier::open(&editing("[Team] {subject}"));
    let ids = hand_in(&hub, &mails);
    let (mut cases, mut texts, mut came) = (Vec::new(), BTreeSet::new(), 0);
    for (name, ids) in &ids {
        let letters = ids.clone().map(|id| hub.stands(&id, "DONE"));
        let [(new, text), (by_hand, _)] = [&letters[0], &letters[1]].map(|one| became(&hub, one));
        assert!(new == by_hand, "{name}: the two doors differ");
        came += letters.iter().map(|one| one["recipients"].as_u64().unwrap()).sum::<u64>();
        texts.insert(text);

        let old = &mails[name];
        let edited = outcomes[name].contains("plain") || outcomes[name].contains("html");
        let footer = if edited { "pass" } else { "skip" };
        let wanted = said(&[("subject", "pass"), ("footer", footer), ("send", "pass")]);
        assert_eq!(verdicts(&letters[0]), wanted, "{name}");
        if !edited {
            // Signed, encrypted or not understood: not a byte of it has changed.
            assert!(body(old) == body(&new), "{name}");
        }
        cases.push(json!({
            "name": name, "edit": "both", "old": in_base64(old), "new": in_base64(&new),
            "subject": "[Team] {subject}", "footer": {"text": FOOTER, "html": null},
        }));
    }
    let verdict = run_checker(&json!({"edits": cases, "digests": []}), cases.len() * 2);
    for (name, outcome) in &outcomes {
        let kinds = verdict["edited"][name].as_array().into_iter().flatten();
        let kinds: Vec<_> = kinds.filter_map(Value::as_str).collect();
        let wanted = if ["plain", "html"].iter().any(|kind| outcome.contains(kind)) {
            outcome.as_str()
        } else {
            ""
        };
        assert_eq!(kinds.join("+"), wanted, "{name}");
    }
    let arrived = hub.arrivals(usize::try_from(came).unwrap());
    let arrived: BTreeSet<_> = arrived.into_iter().map(|arrived| arrived.text).collect();
    assert_eq!(arrived, texts, "the tunnel was given what the letters became");
}

/// What is too large for a row travels as a file of its own, and has the same bytes.
#[test]
fn a_large_mail_that_is_no_text_comes_out_as_an_attachment_byte_for_byte() {
    let receiver = Receiver::start();
    let mut pipeline = editing("[Team] {subject}");
    pipeline["workers"]["send"] = json!({"tunnel": "ci"});
    let courier = Courier::start_configured(
        &json!({"courier": {"pipeline": pipeline, "adapters": {"ci": {
            "provider": "webhook", "verify": "standard", "secret": SECRET,
            "send_to": receiver.url("/hook"), "allow_private": true,
        }}}})
        .to_string(),
    );
    let head = "From: ann@example.com\r\nTo: bob@example.org\r\nSubject: ";
    let mime = "\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nHello\r\n";
    let part = "--b\r\nContent-Type: application/octet-stream\r\n\
                Content-Transfer-Encoding: binary\r\n\r\n";
    // Every byte but NUL, which no mail may have.
    let binary: Vec<u8> = (1..=255).cycle().take(600_000).collect();
    let whole = |subject: &str, footer: &str| {
        let start = format!("{head}{subject}{mime}{footer}{part}");
        [start.as_bytes(), &binary, b"\r\n--b--\r\n"].concat()
    };
    let answer = post_raw_to(&courier, "", &whole("large", ""));
    assert_eq!(answer.status, 202, "{}", answer.text());
    let got: Value = serde_json::from_str(&receiver.next().body).unwrap();
    let attachment = &got["attachments"][0];
    assert_eq!(got["title"], "[Team] large");
    assert_eq!(attachment["mime_type"], "message/rfc822");
    let base64 = attachment["base64"].as_str().unwrap();
    let footer = format!("-- \r\n{}\r\n", FOOTER.replace('\n', "\r\n"));
    assert!(base64 == in_base64(&whole("[Team] large", &footer)), "not the same bytes");
}

/// Names of all header fields and whom Python takes a mail to be for, by both its readers.
const FIELDS: &str = r#"
import sys, json, base64, email, email.policy
def look(text):
    mail = base64.b64decode(text)
    readers = [email.policy.default, email.policy.compat32]
    read = [email.message_from_bytes(mail, policy=reader) for reader in readers]
    return [[[name.lower() for name in mail.keys()], [str(to) for to in mail.get_all("To", [])],
        [str(of) for of in mail.get_all("From", [])], len(list(mail.walk()))] for mail in read]
print(json.dumps([look(text) for text in json.load(sys.stdin)]))
"#;

fn fields(mails: &[&[u8]]) -> Vec<Value> {
    let input: Vec<_> = mails.iter().map(|mail| in_base64(mail)).collect();
    serde_json::from_str(&python(FIELDS, &json!(input))).unwrap()
}

/// Ways to write a field of one's own into a subject.
const SUBJECTS: [&str; 8] = [
    "=?utf-8?q?x=0D=0ABcc:_eve@example.org?=",
    "=?utf-8?q?x=0ABcc:_eve@example.org?=",
    "=?utf-8?q?x=0DBcc:_eve@example.org?=",
    "=?utf-8?b?eA0KQmNjOiBldmVAZXhhbXBsZS5vcmcNCg0KPHNjcmlwdD4=?=",
    "=?utf-8?q?x=E2=80=A8Bcc:_eve@example.org?= =?utf-8?q?=C2=85Bcc:_eve@example.org?=",
    "=?utf-16le?b?eAANAAoAQgBjAGMAOgAgAGUAQAB4AC4AdABlAHMAdAA=?=",
    "x\r\n Bcc: eve@example.org\r\n\t\r\n X: y",
    "=?us-ascii?q?x=00=0D=0A?= =?us-ascii?q?Bcc:_eve@example.org?=",
];

#[test]
fn a_subject_that_hides_a_field_adds_none() {
    // What addresses say gets into the subject, too.
    let hub = PipelineCourier::open(&editing("{from} to {to} by {tunnel}: {subject}"));
    let hidden = "did:msgtunnel:eve%0D%0ABcc%3A%20eve%40example%2Eorg.addr.ci";
    let mut pairs = Vec::new();
    for subject in SUBJECTS {
        for from in ["ann@example.com", hidden] {
            let mut letter = mail("bob@example.org", subject, "hello");
            letter["from"] = json!(from);
            letter["extra"] =
                json!({"x\r\nBcc": "y\r\nBcc: e@x.test", "subject": "\u{2028}Bcc: e"});
            let answer = hub.courier.post("/api/v1/letters", &letter);
            if answer.status != 202 {
                assert_eq!(answer.refused(422), "bad_letter");
                continue;
            }
            let id = answer.json()["id"].as_str().unwrap().to_owned();
            let (new, _) = became(&hub, &hub.stands(&id, "DONE"));
            pairs.push((letter["data"].as_str().unwrap().to_owned(), new));
        }
    }
    assert!(pairs.len() >= SUBJECTS.len(), "only {} were taken", pairs.len());
    let old: Vec<&[u8]> = pairs.iter().map(|(old, _)| old.as_bytes()).collect();
    let new: Vec<&[u8]> = pairs.iter().map(|(_, new)| new.as_slice()).collect();
    for ((old, new), (mail, edited)) in fields(&old).iter().zip(fields(&new)).zip(&pairs) {
        let edited = String::from_utf8_lossy(edited);
        assert_eq!(old, &new, "{mail:?} became {edited:?}");
        assert!(edited.contains(" to bob@example.org by ci:"), "{edited:?}");
    }
    for arrived in hub.arrivals(pairs.len()) {
        let title = arrived.title.unwrap();
        assert!(!title.contains(['\r', '\n', '\0']), "{title:?}");
    }
}

#[test]
fn addresses_that_hide_a_field_are_refused_at_every_door() {
    let hub = PipelineCourier::open(&editing("{from}: {subject}"));
    let good = mail("bob@example.org", "Hello", "hello");
    let bytes = good["data"].as_str().unwrap().as_bytes();
    let bad =
        |name: &str| ["\r\n", "\n", "\r", "\0"].map(|end| format!("{name}{end}Bcc: e@x.test"));
    for address in bad("ann@example.com") {
        let with = |field: &str, value: Value| {
            let mut letter = good.clone();
            letter[field] = value;
            let refused = hub.courier.post("/api/v1/letters", &letter);
            assert_eq!(refused.refused(422), "bad_letter", "{address:?}");
            let named = refused.json()["field"].as_str().unwrap().to_owned();
            assert!(named.starts_with(field), "{named} is not {field}");
        };
        with("from", json!(address));
        with("to", json!(["bob@example.org", address]));
        for key in ["tunnel", "subject", "merge_key", "content_type", "charset"] {
            with("extra", json!({key: address}));
        }

        let coded: String = address.bytes().map(|byte| format!("%{byte:02x}")).collect();
        for query in [format!("?to={coded}"), format!("?to=bob@example.org&from={coded}")] {
            assert_eq!(post_raw(&hub, &query, bytes).refused(422), "bad_letter", "{query}");
        }
        // An argument cannot contain a NUL.
        if !address.contains('\0') {
            let text = good["data"].as_str().unwrap();
            for args in [["--to", &address, "-i"], ["-f", &address, "-t"]] {
                let args = [&["pipeline", "post"][..], &args[..]].concat();
                let said = crate::common::cli(&hub.home(), &args, text).failed(1);
                assert!(said.contains("address") || said.contains("from") || said.contains("to"));
            }
        }
    }
    // A header that breaks off within a line is none.
    for data in
        ["Subject: x\r\nBcc eve\r\n\r\nhello", " folded first\r\n\r\nhello", "\0: x\r\n\r\n"]
    {
        let mut letter = good.clone();
        letter["data"] = json!(data);
        let refused = hub.courier.post("/api/v1/letters", &letter);
        assert_eq!(
            (refused.refused(422), &refused.json()["field"]),
            ("bad_letter".into(), &json!("data"))
        );
    }
    let kept = hub.courier.get("/api/v1/letters").ok();
    assert_eq!(kept["letters"], json!([]), "nothing of all this is kept");
}

#[test]
fn letters_that_are_merged_smuggle_nothing_into_the_new_header() {
    let pipeline = json!({"outbound": ["merge", "send"], "workers": {"merge": {"window_s": 1}}});
    let hub = PipelineCourier::open(&pipeline);
    let ids: Vec<_> = SUBJECTS
        .iter()
        .enumerate()
        .map(|(n, subject)| {
            // Each is the first of its group once, which has its subject.
            let to = format!("bob-{n}@example.org");
            [*subject, "Hello"].map(|subject| hub.post(&mail(&to, subject, "hello")))
        })
        .collect();
    let whole: Vec<_> = ids
        .iter()
        .map(|[first, second]| {
            let done = hub.stands(first, "DONE");
            hub.stands(second, "MERGED");
            became(&hub, &done).0
        })
        .collect();
    let mails: Vec<&[u8]> = whole.iter().map(Vec::as_slice).collect();
    for (n, (read, mail)) in fields(&mails).iter().zip(&mails).enumerate() {
        let mail = String::from_utf8_lossy(mail);
        for reader in read.as_array().unwrap() {
            let names: Vec<_> =
                reader[0].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            let unique: BTreeSet<_> = names.iter().collect();
            assert_eq!(unique.len(), names.len(), "a field twice: {mail:?}");
            assert!(!names.contains(&"bcc") && names.contains(&"subject"), "{mail:?}");
            assert_eq!(reader[1], json!([format!("bob-{n}@example.org")]), "{mail:?}");
            // The digest, its two parts, and the mail in each.
            assert_eq!(reader[3], 5, "{mail:?}");
        }
    }
}
