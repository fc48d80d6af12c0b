//! Tests of the conversion of mails: fields, text, limits, and mails that cannot be read.

use monoco_core::did::EndpointKind;
use proptest::prelude::*;

use super::*;

const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const ACCOUNT: MailAccount<'static> =
    MailAccount { address: "Me@Example.COM", authserv_id: Some("mx.example.com") };

fn converted(mail: &str) -> InboundMessage {
    content(mail.as_bytes()).message
}

fn content(mail: &[u8]) -> MailContent<'_> {
    let found = mail_to_message(mail, HASH, &ACCOUNT);
    found.message.clone().validate().expect("every mail becomes a valid message");
    assert!(found.attachments.len() < MAX_LIST_ENTRIES);
    found
}

#[test]
fn all_fields_of_a_mail_are_converted() {
    let raw = "Authentication-Results: mx.example.com; dmarc=pass header.from=example.org\n\
               Delivered-To: me@example.com\nFrom: =?utf-8?q?J=C3=B6?= <Joe@Example.ORG>\n\
               Reply-To: Team <team@Example.org>\nTo: me@example.com, Bob <bob@Example.net>\nCc: ann@example.net\n\
               Subject: =?gb2312?B?xOO6ww==?=\nDate: Mon, 2 Nov 2026 10:00:00 +0000\n\
               Message-ID: <m2@example.org>\nIn-Reply-To: <m1@example.org>\nReferences: <m0@example.org> <m1@example.org>\n\
               Content-Type: multipart/mixed; boundary=b\n\n\
               --b\nContent-Type: text/plain; charset=utf-8; format=flowed\n\nhello \nthere\n> quoted\n\n\
               --b\nContent-Type: text/html\n\n<p>more <b>text</b></p><script>no</script>\n\
               --b\nContent-Type: application/pdf; name=\"../a.pdf\"\nContent-Transfer-Encoding: base64\n\nJVBERg==\n--b--\n";
    let found = content(raw.as_bytes());
    let message = &found.message;
    let mailbox = |id: &str, name: Option<&str>| Participant::mailbox(id, name.map(str::to_owned));
    assert_eq!(message.id, "<m2@example.org>#0123456789abcdef");
    assert_eq!(message.at, Some(Timestamp::from_ms(1_793_613_600_000)));
    assert_eq!(message.session.id, "Me@example.com");
    assert_eq!(message.session.kind, ChatSessionKind::Direct);
    assert_eq!(message.session.thread_key.as_deref(), Some("<m0@example.org>"));
    assert_eq!(message.from, mailbox("Joe@example.org", Some("Jö")));
    assert_eq!(message.from.kind, EndpointKind::Addr);
    assert_eq!(message.answer_to, Some(mailbox("team@example.org", Some("Team"))));
    assert_eq!(
        message.to,
        [mailbox("me@example.com", None), mailbox("bob@example.net", Some("Bob"))]
    );
    assert_eq!(message.cc, [mailbox("ann@example.net", None)]);
    assert_eq!(message.title.as_deref(), Some("你好"));
    assert_eq!(message.text, "hello there\n> quoted\n\nmore **text**");
    assert_eq!(message.reply_to.as_deref(), Some("<m1@example.org>"));
    assert_eq!(message.sender_verified, Some(true), "{:?}", found.verification);
    assert_eq!(found.losses, [""; 0]);
    assert_eq!(found.attachments.len(), 1);
    assert_eq!(found.attachments[0].file_name(), "a.pdf");
    assert_eq!(found.attachments[0].bytes(100), (b"%PDF".to_vec(), false));
}

#[test]
fn ids_and_threads_have_fallbacks() {
    let thread = |head: &str| {
        let message = converted(&format!("From: ann@x.test\n{head}\n\nhi"));
        (message.id, message.session.thread_key.unwrap())
    };
    let short = &HASH[..16];
    assert_eq!(thread("Message-ID: <a@x>"), (format!("<a@x>#{short}"), "<a@x>".to_owned()));
    assert_eq!(thread("Message-ID: <a@x>\nIn-Reply-To: <b@x>").1, "<b@x>");
    assert_eq!(thread("In-Reply-To: <b@x>\nReferences: <c@x> <b@x>").1, "<c@x>");
    assert_eq!(thread("Subject: none"), (format!("#{HASH}"), format!("#{HASH}")));
    let long = format!("Message-ID: <{}@x>", "é".repeat(450));
    assert_eq!(thread(&long).0.len(), 400 + 17 - 1, "cut between characters");
}

#[test]
fn session_is_the_address_that_the_mail_was_sent_to() {
    for (head, want) in [
        ("To: me@example.com", "Me@example.com"),
        ("To: other@example.com", "Me@example.com"),
        ("To: me+lists@EXAMPLE.com", "me+lists@example.com"),
        ("Cc: ann@x.test, me+a+b@example.com", "me+a+b@example.com"),
        ("Delivered-To: me+x@example.com\nTo: me+y@example.com", "me+x@example.com"),
        ("To: me+x@evil.test", "Me@example.com"),
        ("To: mean@example.com", "Me@example.com"),
        ("", "Me@example.com"),
    ] {
        let message = converted(&format!("From: ann@x.test\n{head}\n\nhi"));
        assert_eq!(message.session.id, want, "{head}");
    }
}

#[test]
fn forged_senders_are_not_verified() {
    let mail = "Authentication-Results: mx.evil.test; dmarc=pass header.from=x.test\nFrom: ann@x.test\n\nhi";
    assert_eq!(converted(mail).sender_verified, Some(false));
    let account = MailAccount { authserv_id: None, ..ACCOUNT };
    let found = mail_to_message(mail.as_bytes(), HASH, &account);
    assert_eq!(found.message.sender_verified, Some(false));
    assert_eq!(found.verification.why, "no authserv_id is configured");
}

#[test]
fn mails_without_a_sender_get_a_placeholder_and_their_original() {
    for (mail, id, name, text) in [
        ("Subject: x\n\nhi", UNKNOWN_SENDER, None, "[unparsed mail: no From address]\n\nhi"),
        (
            "From: Ann Example\n\nhi",
            UNKNOWN_SENDER,
            Some("Ann Example"),
            "[unparsed mail: no From address]\n\nhi",
        ),
        (
            "From: <>\nSender: bot@x.test\n\n",
            "bot@x.test",
            None,
            "[unparsed mail: no From address]",
        ),
        (
            "\u{0}\u{1}garbage",
            UNKNOWN_SENDER,
            None,
            "[unparsed mail: no From address]\n\n\u{0}\u{1}garbage",
        ),
        ("", UNKNOWN_SENDER, None, "[unparsed mail: no From address]"),
    ] {
        let found = content(mail.as_bytes());
        assert!(found.needs_original(), "{mail:?}");
        assert_eq!(
            found.message.from,
            Participant::mailbox(id, name.map(str::to_owned)),
            "{mail:?}"
        );
        assert_eq!(found.message.text, text, "{mail:?}");
        assert_eq!(found.message.sender_verified, Some(false));
    }
    let daemon = content(b"From: MAILER-DAEMON\n\nhi");
    assert_eq!(
        (daemon.message.from.id.as_str(), daemon.needs_original()),
        ("MAILER-DAEMON", false)
    );
}

#[test]
fn values_over_the_limits_are_cut_and_the_original_is_attached() {
    let people: String = (0..500).map(|n| format!("p{n}@x.test, ")).collect();
    for (what, mail) in [
        ("to was cut", format!("From: a@x.test\nTo: {people}\n\nhi")),
        ("title was cut", format!("From: a@x.test\nSubject: {}\n\nhi", "s".repeat(5_000))),
        ("text was cut", format!("From: a@x.test\n\n{}", "line\n".repeat(300_000))),
        (
            "a text was cut",
            format!("From: a@x.test\nContent-Type: text/html\n\n{}", "<p>x".repeat(600_000)),
        ),
        ("from.id was cut", format!("From: {}@x.test\n\nhi", "a".repeat(600))),
        (
            "an attachment has an unknown",
            "From: a@x.test\nContent-Type: a/b\nContent-Transfer-Encoding: x-zip\n\nhi".to_owned(),
        ),
        (
            "a text has an unknown",
            "From: a@x.test\nContent-Transfer-Encoding: x-zip\n\nhi".to_owned(),
        ),
        (
            "120 attachments were cut",
            format!(
                "From: a@x.test\nContent-Type: multipart/mixed; boundary=b\n\n{}",
                "--b\nContent-Type: a/b\n\nx\n".repeat(120)
            ),
        ),
        (
            "the mail has more than 1000 parts",
            format!(
                "From: a@x.test\nContent-Type: multipart/mixed; boundary=b\n\n{}",
                "--b\n\nx\n".repeat(1_200)
            ),
        ),
    ] {
        let found = content(mail.as_bytes());
        assert!(
            found.losses.iter().any(|loss| loss.starts_with(what)),
            "{what}: {:?}",
            found.losses
        );
        assert!(found.needs_original());
    }
}

#[test]
fn delivery_reports_are_found_in_the_parsed_mail() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../monoco/tests/corpus/report-bounce.eml");
    let raw = std::fs::read(corpus).unwrap();
    let found = content(&raw);
    let report = crate::email::dsn::delivery_report(&found.mail).unwrap();
    assert_eq!(report.recipients[0].final_recipient, "bob@example.org");
    assert_eq!(found.attachments.len(), 2, "status and returned mail");
}

#[test]
fn answers_go_to_reply_to_when_it_differs() {
    let answer_to = |head: &str| converted(&format!("{head}\n\nhi")).answer_to.map(|to| to.id);
    assert_eq!(answer_to("From: ann@x.test\nReply-To: Ann <ann@X.test>"), None);
    assert_eq!(answer_to("From: ann@x.test\nReply-To: <>"), None);
    assert_eq!(answer_to("From: ann@x.test"), None);
    assert_eq!(
        answer_to("From: ann@x.test\nReply-To: a@y.test, b@y.test").as_deref(),
        Some("a@y.test")
    );
}

#[test]
fn every_mail_of_the_corpus_becomes_a_message() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../monoco/tests/corpus");
    let mut count = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "eml") {
            let mail = std::fs::read(&path).unwrap();
            let found = content(&mail);
            assert!(found.message.from.id.contains('@'), "{path:?}");
            for end in [mail.len() / 3, mail.len() / 2, mail.len() - 1] {
                content(&mail[..end]);
            }
            count += 1;
        }
    }
    assert!(count > 100, "{count}");
}

proptest! {
    #[test]
    fn any_bytes_become_a_message(mail in prop::collection::vec(any::<u8>(), 0..500)) {
        content(&mail);
    }

    #[test]
    fn hostile_fields_become_a_message(value in "\\PC{0,300}", name in "[A-Za-z-]{1,20}") {
        let mail = format!("From: {value}\nTo: {value}\nReply-To: {value}\nMessage-ID: {value}\nSubject: {value}\n{name}: {value}\n\n{value}");
        content(mail.as_bytes());
    }
}
