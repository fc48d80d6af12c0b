//! Letters that get a footer, and letters that are skipped.

use monoco_core::letter::{RFC822, Verdict};
use proptest::prelude::*;
use serde_json::{Map, json};

use super::super::tests::{field_names, parts};
use super::*;

fn letter(content_type: &str, bytes: &[u8]) -> Letter {
    let mut letter = Letter {
        from: "ann@example.com".to_owned(),
        to: vec!["bob@example.com".to_owned()],
        ..Letter::default()
    };
    letter.extra.insert("content_type".to_owned(), json!(content_type));
    letter.set_bytes(bytes.to_vec());
    letter
}

fn footer() -> FooterConfig {
    FooterConfig::new("Sent by Monoco\nexample.com\n", None).unwrap()
}

#[test]
fn footer_is_appended_to_text() {
    for kind in ["text/markdown", "text/plain"] {
        let before = letter(kind, b"Hi **Bob**\n");
        let result = footer().apply(&before);
        let data = "Hi **Bob**\n\n\n-- \nSent by Monoco\nexample.com".to_owned();
        assert_eq!(result, WorkerResult::changed(Letter { data, ..before }));
        let again = footer().apply(&result.letter.unwrap());
        assert_eq!(again, WorkerResult::skip("has it already"));
    }
}

#[test]
fn text_with_the_footer_is_skipped() {
    for text in [
        "Hi\n\n-- \nSent by Monoco\nexample.com",
        "Hi\r\n\r\n-- \r\nSent by Monoco\r\nexample.com\r\n\r\n",
        "-- \nSent by Monoco\nexample.com",
    ] {
        let skip = WorkerResult::skip("has it already");
        assert_eq!(footer().apply(&letter("text/markdown", text.as_bytes())), skip, "{text:?}");
        let mail = format!("Subject: x\r\n\r\n{text}");
        assert_eq!(footer().apply(&letter(RFC822, mail.as_bytes())), skip, "{text:?}");
    }
    for text in ["Sent by Monoco\nexample.com", "-- \nSent by Monoco\nexample.com\nreply"] {
        let result = footer().apply(&letter("text/markdown", text.as_bytes()));
        assert_eq!(result.verdict, Verdict::Pass, "{text:?}");
    }
}

#[test]
fn letters_without_text_are_skipped() {
    let large = "x".repeat(MAX_DATA - 10);
    for (kind, data, why) in [
        ("text/markdown", "", "has no text"),
        (RFC822, "", "has no text"),
        ("text/html", "<p>hi</p>", "is text/html"),
        ("application/json", "{}", "is application/json"),
        ("text/markdown", large.as_str(), "has no room for it"),
    ] {
        assert_eq!(
            footer().apply(&letter(kind, data.as_bytes())),
            WorkerResult::skip(why),
            "{kind}"
        );
    }
}

#[test]
fn footer_is_appended_to_the_text_of_a_mail() {
    let before = letter(RFC822, b"From: ann@example.com\r\nSubject: x\r\n\r\nHi\r\n");
    let result = footer().apply(&before);
    let want = b"From: ann@example.com\r\nSubject: x\r\n\r\nHi\r\n-- \r\nSent by Monoco\r\nexample.com\r\n";
    let after = result.letter.unwrap();
    assert_eq!(String::from_utf8_lossy(&after.bytes()), String::from_utf8_lossy(want));
    assert_eq!(footer().apply(&after), WorkerResult::skip("has it already"));
    assert_eq!(Letter { data: before.data.clone(), ..after }, before, "nothing else changed");
}

#[test]
fn html_gets_the_html_footer() {
    let html = b"Content-Type: text/html\r\n\r\n<html><body><p>Hi</p></body></html>\r\n";
    let own = FooterConfig::new("Sent", Some("<em>Sent</em>")).unwrap();
    for (footer, want) in [(own, "<em>Sent</em>"), (footer(), "Sent by Monoco")] {
        let after = footer.apply(&letter(RFC822, html)).letter.unwrap();
        let (start, end) = after.data.split_once(want).unwrap();
        assert!(start.contains("<p>Hi</p>") && end.contains("</body></html>"), "{}", after.data);
    }
}

#[test]
fn signed_and_encrypted_mails_are_skipped_with_a_reason() {
    let signed = b"Content-Type: multipart/signed; boundary=b\r\n\r\n--b\r\n\r\nHi\r\n--b\r\n\
        Content-Type: application/pgp-signature\r\n\r\nx\r\n--b--\r\n";
    let encrypted =
        b"Content-Type: multipart/encrypted; boundary=b\r\n\r\n--b\r\n\r\nHi\r\n--b--\r\n";
    for (mail, why) in [(&signed[..], "the mail is signed"), (encrypted, "the mail is encrypted")] {
        assert_eq!(footer().apply(&letter(RFC822, mail)), WorkerResult::skip(why));
    }
}

#[test]
fn bytes_that_are_not_utf8_are_unchanged() {
    let mail =
        b"Subject: caf\xe9\r\nContent-Type: text/plain; charset=iso-8859-1\r\n\r\ncaf\xe9\r\n";
    let before = letter(RFC822, mail);
    let after = footer().apply(&before).letter.unwrap();
    assert!(after.bytes().starts_with(mail), "{:?}", after.data);
    assert_eq!(after.extra("charset"), Some("latin-1"));
}

#[test]
fn invalid_footers_are_rejected() {
    let long = "x".repeat(MAX_FOOTER_BYTES + 1);
    for (text, html, why) in [
        ("", None, "text: is empty"),
        (" \n\t\n", None, "text: is empty"),
        (long.as_str(), None, "text: has 16385 bytes"),
        ("a\0b", None, "text: contains control characters"),
        ("a\rb", None, "text: contains control characters"),
        ("a", Some(" "), "html: is empty"),
        ("a", Some("\u{1b}[31m"), "html: contains control characters"),
    ] {
        let error = FooterConfig::new(text, html).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(FooterConfig::new("a\r\n b\r\n\n", None).unwrap().text, "a\n b");
}

proptest! {
    #[test]
    fn a_mail_has_the_same_header_afterwards(
        head in "(From: [a-z]{1,5}\r\n|X-[A-Z]{1,3}:[ \\PC]{0,9}\r\n|Subject:[ a-z]{0,20}\r\n( [a-z]{1,5}\r\n)?){1,5}",
        body in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            "(\r?\n|--b|[a-z ]|-- |Content-Type: text/plain){0,20}".prop_map(String::into_bytes),
        ],
        text in "\\PC{1,20}(\n(Bcc: \\PC{1,9}|\\.|--b|From )){0,3}x",
    ) {
        let before = [head.as_bytes(), b"\r\n", &body].concat();
        let footer = FooterConfig::new(&text, None);
        prop_assume!(footer.is_ok());
        let given = letter(RFC822, &before);
        if let Some(after) = footer.unwrap().apply(&given).letter {
            // A footer that is not ASCII may change the declared encoding of the text.
            let added = ["Content-Type", "Content-Transfer-Encoding", "MIME-Version"];
            let plain = |mail: &[u8]| {
                let mut names = field_names(mail);
                names.retain(|name| text.is_ascii() || !added.contains(&name.as_str()));
                names
            };
            prop_assert_eq!(plain(&after.bytes()), field_names(&before));
            if text.is_ascii() {
                prop_assert!(parts(&after.bytes()).1.starts_with(&body));
            }
        }
    }

    #[test]
    fn no_letter_is_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..200), text in any::<String>()) {
        let footer = FooterConfig::new(&text, Some(&text)).unwrap_or_else(|_| footer());
        for kind in [RFC822, "text/markdown"] {
            let given = letter(kind, &bytes);
            let result = footer.apply(&given);
            if let Some(after) = result.letter {
                prop_assert_eq!((&after.from, &after.to), (&given.from, &given.to));
                prop_assert_eq!(after.rest, Map::new());
            } else {
                prop_assert_eq!(result.verdict, Verdict::Skip);
            }
        }
    }

    #[test]
    fn text_is_never_changed_only_added_to(text in any::<String>()) {
        let given = letter("text/markdown", text.as_bytes());
        if let Some(after) = footer().apply(&given).letter {
            prop_assert!(after.data.starts_with(&text));
            prop_assert_eq!(footer().apply(&after), WorkerResult::skip("has it already"));
        }
    }
}
