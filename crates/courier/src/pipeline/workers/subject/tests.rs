//! Templates, and that none can inject a header.

use monoco_core::letter::RFC822;
use proptest::prelude::*;
use serde_json::{Map, json};

use super::super::tests::{field_names, parts};
use super::*;

const NOW: Timestamp = Timestamp::from_ms(1_770_410_700_000);

fn chat(subject: Option<&str>) -> Letter {
    let mut extra = Map::new();
    extra.insert("content_type".to_owned(), json!("text/markdown"));
    extra.extend(subject.map(|subject| ("subject".to_owned(), json!(subject))));
    Letter {
        from: "ann@example.com".to_owned(),
        to: vec!["bob@example.com".to_owned(), "eve@example.com".to_owned()],
        data: "hi".to_owned(),
        extra,
        rest: Map::new(),
    }
}

fn mail(bytes: &[u8]) -> Letter {
    let mut letter = chat(None);
    letter.extra.insert("content_type".to_owned(), json!(RFC822));
    letter.set_bytes(bytes.to_vec());
    letter
}

/// Returns the new subject, or the note of a skip.
fn work(template: &str, letter: &Letter) -> Result<String, String> {
    let result = SubjectConfig::new(template).unwrap().apply(letter, NOW);
    match result.letter {
        Some(letter) if letter.is_mail() => Ok(monoco_mime::subject(&letter.bytes()).unwrap()),
        Some(letter) => Ok(letter.extra("subject").unwrap().to_owned()),
        None => Err(result.note.unwrap()),
    }
}

#[test]
fn templates_render_subjects() {
    for (template, want) in [
        ("[Team] {subject}", "[Team] Hello"),
        ("{subject} (via Monoco)", "Hello (via Monoco)"),
        ("{from} to {to}: {subject}", "ann@example.com to bob@example.com: Hello"),
        ("{date} {subject}", "2026-02-06 Hello"),
        ("{subject}{subject}", "HelloHello"),
        ("{{{subject}}}", "{Hello}"),
        ("{{subject}}", "{subject}"),
        ("}}{{ {subject}", "}{ Hello"),
        ("  a   b  {subject}  ", "a b Hello"),
        ("fixed", "fixed"),
        ("[{tunnel}] {subject}", "[] Hello"),
        ("日本 {subject}", "日本 Hello"),
    ] {
        assert_eq!(work(template, &chat(Some("Hello"))).as_deref(), Ok(want), "{template}");
        let mail = mail(b"From: a@example.com\r\nSubject: Hello\r\n\r\nhi\r\n");
        assert_eq!(work(template, &mail).as_deref(), Ok(want), "{template}");
    }
}

#[test]
fn invalid_templates_are_rejected() {
    let long = "x".repeat(999);
    for (template, why) in [
        ("", "is empty"),
        ("  ", "is empty"),
        ("{", "unpaired {; write {{ for"),
        ("a } b", "unpaired }; write }} for"),
        ("{subject", "unpaired {"),
        ("{subject}}", "unpaired }"),
        ("{}", "unknown field {}; known fields are {subject}"),
        ("{Subject}", "unknown field {Subject};"),
        ("{ subject }", "unknown field { subject };"),
        ("{body}", "unknown field {body};"),
        ("a\r\nBcc: {subject}", "one line"),
        (long.as_str(), "one line of at most 998 bytes"),
    ] {
        let error = SubjectConfig::new(template).unwrap_err();
        assert!(error.contains(why), "{template}: {error}");
    }
}

#[test]
fn template_shows_accounts_and_tunnels() {
    let shadow = |account: &str| format!("did:msgtunnel:{account}.addr.work-mail");
    let letter = Letter {
        from: shadow("ann%40example%2Ecom"),
        to: vec![shadow("bob%40example%2Ecom")],
        ..chat(Some("x"))
    };
    let template = "{from} {to} {tunnel}";
    let want = "ann@example.com bob@example.com work-mail";
    assert_eq!(work(template, &letter).as_deref(), Ok(want));
    let mut named = letter;
    named.extra.insert("tunnel".to_owned(), json!("lark-main"));
    named.from = "did:monoco:me".to_owned();
    assert_eq!(work(template, &named).as_deref(), Ok("did:monoco:me bob@example.com lark-main"));
    let no_recipient = Letter { to: Vec::new(), ..chat(Some("x")) };
    assert_eq!(work("to {to}: {subject}", &no_recipient).as_deref(), Ok("to : x"));
}

#[test]
fn rewritten_subjects_are_skipped() {
    let template = "[Team] {subject}";
    for subject in [
        "[Team] Hello",
        "[Team]",
        "Re: [Team] Hello",
        "Re:[Team] Hello",
        "AW: Fwd: [Team] Hello",
        "[Team]\r\n Hello",
    ] {
        let has_it = Err("has it already".to_owned());
        assert_eq!(work(template, &chat(Some(subject))), has_it, "{subject}");
        let mail = mail(format!("Subject: {subject}\r\n\r\nhi").as_bytes());
        assert_eq!(work(template, &mail), has_it, "{subject}");
    }
    for (template, subject) in [
        (template, "[Teams] Hello"),
        (template, "my[Team] Hello"),
        ("Re {subject}", "Ready"),
        ("Re {subject}", "More news"),
        ("{subject} [Team]", "[Team] Hello"),
        (" {subject}!", "a b"),
        ("News of {date}", "News of yesterday"),
    ] {
        assert!(work(template, &chat(Some(subject))).is_ok(), "{template}: {subject}");
    }
    assert_eq!(work("fixed", &chat(Some("fixed"))), Err("has it already".to_owned()));
    assert_eq!(work("{subject}", &chat(Some("same"))), Err("has it already".to_owned()));
}

#[test]
fn letters_without_a_subject() {
    assert_eq!(work("[Team] {subject}", &chat(None)), Err("has no subject".to_owned()));
    assert_eq!(work("[Team] {subject}", &chat(Some(""))).as_deref(), Ok("[Team]"));
    assert_eq!(work("[Team] {subject}", &mail(b"From: x\n\nhi")).as_deref(), Ok("[Team]"));
    assert_eq!(work("[Team] {subject}", &mail(b"")), Err("has an empty mail".to_owned()));
}

#[test]
fn rest_of_a_mail_is_unchanged() {
    let before = b"From: ann@example.com\r\nSUBJECT: caf\xe9\r\nDate: x\r\n\r\nbody \xff\r\n";
    let mut letter = mail(before);
    letter.extra.insert("subject".to_owned(), json!("old"));
    let result = SubjectConfig::new("[Team] new").unwrap().apply(&letter, NOW);
    let after = result.letter.unwrap();
    assert_eq!(after.extra("subject"), Some("[Team] new"), "both say the same");
    let want = b"From: ann@example.com\r\nSUBJECT: [Team] new\r\nDate: x\r\n\r\nbody \xff\r\n";
    assert_eq!(*after.bytes(), want[..]);
}

#[test]
fn subjects_are_cut_at_character_boundaries() {
    let subject = work("{subject}!", &chat(Some(&"€".repeat(1_000)))).unwrap();
    assert_eq!(subject, "€".repeat(332));
}

#[test]
fn subject_cannot_inject_a_header() {
    let attack = "x\r\nBcc: victim@example.com\r\n\r\n<script>";
    let letters = [
        Letter { from: attack.to_owned(), ..mail(b"From: a\r\nSubject: s\r\n\r\nhi") },
        Letter { to: vec![attack.to_owned()], ..mail(b"From: a\r\nSubject: s\r\n\r\nhi") },
        // Encoded, so that the decoded subject has line breaks.
        mail(b"From: a\r\nSubject: =?utf-8?q?x=0D=0ABcc:_victim=40example.com?=\r\n\r\nhi"),
    ];
    for letter in letters {
        let result = SubjectConfig::new("{from} {to} {subject}").unwrap().apply(&letter, NOW);
        let after = result.letter.unwrap();
        let after = after.bytes();
        assert_eq!(field_names(&after), ["From", "Subject"]);
        assert!(monoco_mime::subject(&after).unwrap().contains("Bcc: victim@example.com"));
        assert!(after.ends_with(b"\r\n\r\nhi"));
    }
    let after = work("{subject}!", &chat(Some("a\0b\u{1b}[31mc\u{85}\u{2028}d"))).unwrap();
    assert_eq!(after, "a b [31mc d!");
    let after = work("{subject}!", &chat(Some(attack))).unwrap();
    assert_eq!(after, "x Bcc: victim@example.com <script>!");
}

proptest! {
    #[test]
    fn only_the_subject_of_a_mail_changes(
        head in "(From: [a-z]{1,5}\r\n|X-[A-Z]{1,3}:[ \\PC]{0,9}\r\n|Subject:[ a-z=?\t]{0,20}\r\n( [a-z]{1,5}\r\n)?){1,5}",
        body in prop::collection::vec(any::<u8>(), 0..60),
        from in "\\PC{0,9}[\r\n\0\u{2028}]{0,3}[A-Z][a-z]{1,3}: \\PC{0,30}",
        template in "[a-z]{0,5}(\\{(subject|from|to|date|tunnel)\\}){1,3}[a-z]{0,5}",
    ) {
        let before = [head.as_bytes(), b"\r\n", &body].concat();
        let letter = Letter { to: vec![from.clone()], from, ..mail(&before) };
        let result = SubjectConfig::new(&template).unwrap().apply(&letter, NOW);
        if let Some(after) = result.letter {
            let mut names = field_names(&before);
            if !names.iter().any(|name| name == "Subject") {
                names.push("Subject".to_owned());
            }
            prop_assert_eq!(field_names(&after.bytes()), names);
            let bytes = after.bytes();
            prop_assert_eq!(parts(&bytes).1, body.as_slice());
            prop_assert_eq!((after.from, after.to), (letter.from, letter.to));
        }
    }

    #[test]
    fn a_subject_is_one_line_and_made_once(subject in any::<String>(), template in "\\[[a-z ]{1,5}\\] \\{subject\\}") {
        let rule = SubjectConfig::new(&template).unwrap();
        let after = rule.apply(&chat(Some(&subject)), NOW).letter;
        if let Some(after) = after {
            let made = after.extra("subject").unwrap();
            prop_assert!(made.len() <= 998 && !made.contains(char::is_control), "{made:?}");
            prop_assert_eq!(rule.apply(&after, NOW), WorkerResult::skip("has it already"));
        }
    }

    #[test]
    fn no_letter_is_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..200), template in any::<String>()) {
        let rule = SubjectConfig::new(&template).unwrap_or_else(|_| SubjectConfig::new("[x] {subject}").unwrap());
        let letter = mail(&bytes);
        if let Some(after) = rule.apply(&letter, NOW).letter {
            prop_assert!(after.bytes().len() >= parts(&bytes).1.len());
        }
    }
}
