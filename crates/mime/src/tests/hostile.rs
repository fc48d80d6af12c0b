//! Hostile bytes: no function panics, and every function ends in linear time.

use proptest::prelude::*;

use super::*;

fn footer() -> FooterText {
    FooterText { text: "Grüße 团队".to_owned(), html: None }
}

/// Every function on these bytes.
fn run(mail: &[u8]) {
    let _ = check(mail);
    let _ = subject(mail);
    texts(mail);
    with_header(&with_subject(mail, "ü"), "X", "y");
    digest(&[mail, mail], "s", "seed");
    if let Ok(edited) = with_footer(mail, &footer())
        && mail.len() < MAX_TEXTS / 2
    {
        let found =
            |text: &MailText| text.decoded.contains("Grüße") || text.decoded.contains("Gr&#252;");
        assert!(texts(&edited).iter().any(found), "{}", shown(&edited));
    }
}

/// Pieces that mails are made of.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let words: Vec<&[u8]> = vec![
        b"\r\n",
        b"\n",
        b"\n\n",
        b"\r",
        b"--b",
        b"--b--",
        b"--c",
        b"--",
        b" ",
        b"\t",
        b"\0",
        b"Content-Type: multipart/mixed; boundary=b",
        b"content-type: multipart/alternative;",
        b" boundary=\"c\"",
        b"Content-Type: text/plain",
        b"; charset=utf-8",
        b"; charset=gb2312",
        b"Content-Type: text/html; charset=iso-2022-jp",
        b"Content-Transfer-Encoding: ",
        b"base64",
        b"quoted-printable",
        b"7bit",
        b"8bit",
        b"aGVsbG8=",
        b"=",
        b"=4",
        b"=3D",
        b"\x1b$B",
        b"\xff",
        b"(",
        b")",
        b"\"",
        b"\\",
        b";",
        b"=?utf-8?q?=",
        b"?=",
        b"</body>",
        b"</BODY",
        b"<html>",
        b"hello",
        b"Subject: x",
        b"From ",
        b"boundary*0=b",
        b"charset*=''x%4",
        b"Content-Disposition: attachment",
        b"-----BEGIN PGP MESSAGE-----",
    ];
    prop_oneof![
        8 => prop::sample::select(words).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(any::<u8>(), 0..4),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn nothing_panics_on_any_bytes(mail in prop::collection::vec(any::<u8>(), 0..400)) {
        run(&mail);
    }

    #[test]
    fn nothing_panics_on_what_looks_like_mail(pieces in prop::collection::vec(piece(), 0..60)) {
        run(&pieces.concat());
    }

    #[test]
    fn nothing_panics_on_a_mail_that_was_garbled(
        places in prop::collection::vec((any::<prop::sample::Index>(), piece()), 1..6),
    ) {
        let mut mail = footers::ALTERNATIVE.to_vec();
        for (place, piece) in places {
            let at = place.index(mail.len());
            mail.splice(at..(at + 1).min(mail.len()), piece);
        }
        run(&mail);
    }
}

#[test]
fn thousands_of_nested_multiparts_are_not_entered() {
    let mut mail = b"Content-Type: multipart/mixed; boundary=b0\n\n".to_vec();
    for depth in 0..20_000 {
        let head =
            format!("--b{depth}\nContent-Type: multipart/mixed; boundary=b{}\n\n", depth + 1);
        mail.extend_from_slice(head.as_bytes());
    }
    mail.extend_from_slice(b"--b20000\n\nhello\n");
    assert!(scan::scan(&mail).parts.len() <= MAX_DEPTH + 1);
    assert!(matches!(with_footer(&mail, &footer()), Err(Untouched::TooDeep)));
    run(&mail);
}

#[test]
fn as_deep_as_allowed_is_entered() {
    for (depth, entered) in [(MAX_DEPTH, true), (MAX_DEPTH + 1, false)] {
        let mut mail = b"MIME-Version: 1.0\n".to_vec();
        for level in 0..depth {
            let name = format!("level-{level}-");
            let head = format!("Content-Type: multipart/mixed; boundary=\"{name}\"\n\n--{name}\n");
            mail.extend_from_slice(head.as_bytes());
        }
        mail.extend_from_slice(b"\nhello\n");
        let edited = with_footer(&mail, &FooterText { text: "bye".to_owned(), html: None });
        assert_eq!(edited.is_ok(), entered, "{depth}: {edited:?}");
    }
}

#[test]
fn large_mails_are_read_in_linear_time() {
    let size = 2 * 1024 * 1024;
    let multipart = "Content-Type: multipart/mixed; boundary=b\n\n";
    // Each of these would take hours if any step looked back.
    for mail in [
        "X: y\n".repeat(200_000),
        format!("Subject: {}\n\n", "=?utf-8?q?".repeat(size / 20)),
        format!("Content-Type: text/plain{}\n\n", "; a=\"".repeat(size / 10)),
        format!("Content-Type: {}\n\n", "(".repeat(size / 4)),
        format!("{multipart}{}", "--b\n".repeat(size / 16)),
        format!("{multipart}{}", "\r--b".repeat(size / 16)),
        format!("Content-Type: text/html\n\n{}", "</body ".repeat(size / 28)),
        format!("Content-Transfer-Encoding: quoted-printable\n\n{}", "= ".repeat(size / 8)),
        format!("\n{}", "a line of text\r\n".repeat(size / 16)),
    ] {
        run(mail.as_bytes());
    }
}
