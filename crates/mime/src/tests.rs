//! Tests of what is read of a mail and of every edit, on mails as they should not be.

mod digests;
mod footers;
mod headers;
mod hostile;
mod reading;

use super::*;

/// A mail with CRLF at its line ends.
fn crlf(text: &str) -> Vec<u8> {
    text.replace('\n', "\r\n").into_bytes()
}

/// The lines of the header, as names and values.
fn names(mail: &[u8]) -> Vec<Vec<u8>> {
    head::fields(mail).map(|field| mail[field.name].to_ascii_lowercase()).collect()
}

fn shown(mail: &[u8]) -> String {
    String::from_utf8_lossy(mail).into_owned()
}

#[test]
fn a_mail_that_can_be_passed_on() {
    for good in [
        "Subject: x\r\n\r\nhello\r\n",
        "Subject: x\n\nhello",
        "Subject: x",
        "Subject:\n",
        "Subject: x\n folded\n\tagain\n \n\nbody",
        "X!#$%&'*+-/=?^_`{|}~9: y\n\n",
        "Subject: x\n\nbody with \r bare CR\n",
    ] {
        assert_eq!(check(good.as_bytes()), Ok(()), "{good:?}");
    }
    assert_eq!(check(b"Subject: gr\xfc\xdfe\n\n\xff\xfe"), Ok(()));
    let long = format!("X: {}\n\n{}\n", "y".repeat(60_000), "z".repeat(100_000));
    assert_eq!(check(long.as_bytes()), Ok(()));
}

#[test]
fn a_mail_that_can_not_says_where_and_why() {
    let many = "X: y\n".repeat(MAX_HEADER_LINES + 1);
    let long = format!("A: b\nX: {}\n", "y".repeat(MAX_HEADER_LINE));
    let large = format!("X: {}\n", "y".repeat(60_000)).repeat(18);
    for (bad, line, why) in [
        ("", 1, "no header"),
        ("\r\nSubject: x\r\n", 1, "no header"),
        ("From ann@example.com Thu Jan  1 00:00:00 1970\nSubject: x\n\n", 1, "mbox From line"),
        (" folded\nSubject: x\n\n", 1, "continues another"),
        ("Subject: x\nhello there\n\nbody", 2, "not a header line"),
        ("Subject : x\n\n", 1, "not a header line"),
        (": x\n\n", 1, "not a header line"),
        ("Subject: x\nB\u{e4}r: y\n\n", 2, "not a header line"),
        ("Subject: x\r\nTo: a\rBcc: b\r\n\r\n", 2, "CR without LF"),
        ("Subject: x\nTo: \0\n\n", 2, "NUL"),
        ("Subject: x\n\nhello\n\0\n", 4, "NUL"),
        (many.as_str(), MAX_HEADER_LINES + 1, "more than 10000 lines"),
        (long.as_str(), 2, "longer than 65536"),
        (large.as_str(), 18, "longer than 1048576"),
    ] {
        let error = check(bad.as_bytes()).unwrap_err();
        assert_eq!(error.line, line, "{why}: {error}");
        assert!(error.why.contains(why), "{why}: {error}");
    }
}

#[test]
fn texts_are_decoded_and_attachments_are_not_among_them() {
    let mail = crlf(
        "Content-Type: multipart/mixed; boundary=b

--b
Content-Type: multipart/alternative; boundary=\"c c\"

--c c
Content-Type: text/plain; charset=iso-8859-1
Content-Transfer-Encoding: quoted-printable

gr=FC=
=DFe
--c c
Content-Type: TEXT/HTML; charset*=us-ascii''utf-8
Content-Transfer-Encoding: base64

PGI+Z3LDvMOfZTwvYj4=
--c c--
--b
Content-Type: text/plain; name=notes.txt

a file
--b
Content-Type: text/plain
Content-Disposition: attachment

another
--b
Content-Type: message/rfc822

Content-Type: text/plain

inner
--b
Content-Type: text/plain; charset=gb18030
Content-Transfer-Encoding: base64

xOO6ww
--b--
",
    );
    let text = |mime_type, charset: &str, decoded: &str| MailText {
        mime_type,
        charset: Some(charset.to_owned()),
        decoded: decoded.to_owned(),
    };
    assert_eq!(
        texts(&mail),
        [
            text(TextKind::Plain, "iso-8859-1", "grüße"),
            text(TextKind::Html, "utf-8", "<b>grüße</b>"),
            text(TextKind::Plain, "gb18030", "你好"),
        ]
    );
}

#[test]
fn texts_end_at_their_limit() {
    let part = format!("--b\n\n{}\n", "ü".repeat(400_000));
    let mail = format!("Content-Type: multipart/mixed; boundary=b\n\n{}", part.repeat(4));
    let texts = texts(mail.as_bytes());
    assert_eq!(texts.len(), 2);
    assert_eq!(texts.iter().map(|text| text.decoded.len()).sum::<usize>(), MAX_TEXTS);
}
