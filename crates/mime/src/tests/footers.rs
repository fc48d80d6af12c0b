//! Tests of footers: where they go, how they are written, and when they are not.

use proptest::prelude::*;

use super::*;

pub(super) const ALTERNATIVE: &[u8] = b"From: ann@example.com\r\n\
MIME-Version: 1.0\r\n\
Content-Type: multipart/mixed; boundary=\"out\"\r\n\
\r\n\
preamble\r\n\
--out\r\n\
Content-Type: multipart/alternative; boundary=in\r\n\
\r\n\
--in\r\n\
Content-Type: text/plain; charset=utf-8\r\n\
Content-Transfer-Encoding: quoted-printable\r\n\
\r\n\
gr=C3=BC=C3=9Fe=\r\n\
\r\n\
--in\r\n\
Content-Type: text/html; charset=utf-8\r\n\
Content-Transfer-Encoding: base64\r\n\
\r\n\
PGh0bWw+PGJvZHk+Z3LDvMOfZTwvYm9keT48L2h0bWw+\r\n\
--in--\r\n\
--out\r\n\
Content-Type: text/plain; name=a.txt\r\n\
\r\n\
a file\r\n\
--out--\r\n\
epilogue\r\n";

fn footer(text: &str) -> FooterText {
    FooterText { text: text.to_owned(), html: None }
}

/// The mail with a footer, which must be possible.
fn footed(mail: &str, text: &str) -> String {
    shown(&with_footer(mail.as_bytes(), &footer(text)).unwrap())
}

fn untouched(mail: &str, text: &str) -> Untouched {
    match with_footer(mail.as_bytes(), &footer(text)) {
        Err(why) => why,
        Ok(edited) => panic!("{mail:?} became {:?}", shown(&edited)),
    }
}

#[test]
fn plain_text_gets_it_behind_a_separator() {
    for (mail, want) in [
        ("A: b\n\nhello\n", "A: b\n\nhello\n-- \nbye\n"),
        ("A: b\r\n\r\nhello\r\n", "A: b\r\n\r\nhello\r\n-- \r\nbye\r\n"),
        ("A: b\n\nhello", "A: b\n\nhello\n-- \nbye"),
        ("A: b\n\n", "A: b\n\n-- \nbye\n"),
        ("A: b\n\n\n", "A: b\n\n\n-- \nbye\n"),
    ] {
        assert_eq!(footed(mail, "bye\n"), want, "{mail:?}");
    }
    let flowed = "Content-Type: text/plain; format=Flowed\n\nhello \nthere\n";
    let want = format!("{flowed}-- \n > one\n  two\n From three\nfour\n");
    assert_eq!(footed(flowed, "> one \n two\nFrom three\nfour  "), want);
}

#[test]
fn in_a_multipart_it_stays_before_the_boundary() {
    let head = "Content-Type: multipart/mixed; boundary=b\n\npre\n--b\n";
    for (part, want) in [
        ("\nhello\n--b--\nepi", "\nhello\n-- \nbye\n--b--\nepi"),
        ("\nhello\n\n--b--\n", "\nhello\n-- \nbye\n\n--b--\n"),
        // An empty part shares its only line break with the boundary, or has none.
        ("\n\n--b--\n", "\n-- \nbye\n--b--\n"),
        ("\n--b--\n", "\n-- \nbye\n--b--\n"),
        // The end is missing.
        ("\nhello\n", "\nhello\n-- \nbye\n"),
        ("\nhello", "\nhello\n-- \nbye"),
        // The boundary has blanks behind it.
        ("\nhello\n--b \t\n\nx\n--b-- \n", "\nhello\n-- \nbye\n--b \t\n\nx\n--b-- \n"),
        // An image is no text, nor is a file, nor a mail.
        (
            "Content-Type: image/png\n\nx\n--b\nContent-Type: message/rfc822\n\n\nx\n--b\n\
             Content-Disposition: ATTACHMENT\n\nx\n--b\nContent-Type: text/plain\n\ny\n--b--",
            "Content-Type: image/png\n\nx\n--b\nContent-Type: message/rfc822\n\n\nx\n--b\n\
             Content-Disposition: ATTACHMENT\n\nx\n--b\nContent-Type: text/plain\n\ny\n-- \nbye\n--b--",
        ),
    ] {
        assert_eq!(footed(&format!("{head}{part}"), "bye"), format!("{head}{want}"), "{part:?}");
    }
}

#[test]
fn each_alternative_gets_it_and_nothing_else_changes() {
    let text = shown(ALTERNATIVE);
    let edited = footed(&text, "bye & <tschüß>");
    let want = text
        .replace(
            "gr=C3=BC=C3=9Fe=\r\n\r\n",
            "gr=C3=BC=C3=9Fe=\r\n\r\n--=20\r\nbye & <tsch=C3=BC=C3=9F>\r\n",
        )
        .replace(
            "PGh0bWw+PGJvZHk+Z3LDvMOfZTwvYm9keT48L2h0bWw+",
            "PGh0bWw+PGJvZHk+Z3LDvMOfZTxkaXYgY2xhc3M9Im1vbm9jby1mb290ZXIiPmJ5ZSAmYW1wOyAm\r\n\
             bHQ7dHNjaMO8w58mZ3Q7PC9kaXY+DQo8L2JvZHk+PC9odG1sPg==",
        );
    assert_eq!(edited, want);
}

#[test]
fn html_gets_it_before_the_end_of_the_body() {
    let block = "<div class=\"monoco-footer\">a<br>\n&quot;b&quot;</div>";
    for (html, want) in [
        ("<body>x</body></html>\n", format!("<body>x{block}\n</body></html>\n")),
        ("</body>x</BODY\n >y", format!("</body>x{block}\n</BODY\n >y")),
        ("x</bodyguard></Html>", format!("x</bodyguard>{block}\n</Html>")),
        ("x\n", format!("x\n{block}\n")),
        ("x", format!("x\n{block}")),
        ("", format!("{block}\n")),
    ] {
        let head = "Content-Type: text/html\n\n";
        assert_eq!(footed(&format!("{head}{html}"), "a\n\"b\""), format!("{head}{want}"));
    }
    let own = FooterText { text: "x".to_owned(), html: Some("<i>ü</i>".to_owned()) };
    let mail = b"Content-Type: text/html; charset=utf-8\n\nhello</body>";
    assert_eq!(
        shown(&with_footer(mail, &own).unwrap()),
        "Content-Type: text/html; charset=utf-8\n\n\
         hello<div class=\"monoco-footer\"><i>&#252;</i></div>\n</body>"
    );
    // A word that is broken softly in the middle of the tag, and bytes that stay.
    let mail = "Content-Type: text/html; charset=iso-8859-1\n\
                Content-Transfer-Encoding: quoted-printable\n\n=fc<=2Fbo=\ndy=3e=\n</html>";
    let want = mail.replace("=fc<", "=fc=\n<div class=3D\"monoco-footer\">=FC</div>\n<");
    assert_eq!(footed(mail, "ü"), want);
    // What the charset lacks is written as a number.
    assert_eq!(footed(mail, "团"), want.replace("=FC", "&#22242;"));
}

#[test]
fn quoted_printable_is_continued() {
    let head =
        "Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: Quoted-Printable\n\n";
    for (text, want) in [
        ("a=3D\n", "a=3D\n--=20\n=C3=BC\n"),
        ("a", "a\n--=20\n=C3=BC"),
        ("a=", "a=\n\n--=20\n=C3=BC"),
        ("a=\n", "a=\n\n--=20\n=C3=BC"),
        ("a=0A", "a=0A=\n--=20\n=C3=BC\n"),
        ("a=4", "a=4\n--=20\n=C3=BC"),
    ] {
        assert_eq!(footed(&format!("{head}{text}"), "ü"), format!("{head}{want}"), "{text:?}");
    }
    assert!(matches!(untouched(&format!("{head}a= "), "x"), Untouched::Broken(_)));
    for letter in ["ü", "x"] {
        let long = footed(&format!("{head}a\n"), &letter.repeat(100));
        assert!(long.lines().all(|line| line.len() <= 76), "{long}");
    }
}

#[test]
fn base64_is_written_anew() {
    let head = "Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: BASE64\n\n";
    assert_eq!(footed(&format!("{head}aGk=\n"), "x"), format!("{head}aGkKLS0gCng=\n"));
    assert_eq!(footed(&format!("{head}aGkN\nCg==\n"), "x"), format!("{head}aGkNCi0tIA0KeA0K\n"));
    assert_eq!(footed(head, "x"), format!("{head}LS0gCngK\n"));
    for garbage in ["aGk", "aGk=aGk=", "a%k=", "aGk=\nA list footer\n", "aGl="] {
        let why = untouched(&format!("{head}{garbage}"), "x");
        assert!(matches!(why, Untouched::Broken(_)), "{garbage}: {why}");
    }
}

#[test]
fn the_footer_is_written_in_the_charset_of_the_text() {
    for (charset, text, bytes) in [
        ("iso-8859-1", "ü", &b"\xfc"[..]),
        ("ISO-8859-15", "€", b"\xa4"),
        ("windows-1252", "€", b"\x80"),
        ("koi8-r", "я", b"\xd1"),
        ("gb2312", "你好", b"\xc4\xe3\xba\xc3"),
        ("gbk", "頭", b"\xee^"),
        ("big5", "你", b"\xa7A"),
        ("euc-jp", "日", b"\xc6\xfc"),
        ("shift_jis", "日", b"\x93\xfa"),
        ("windows-31j", "①", b"\x87\x40"),
        ("euc-kr", "한", b"\xc7\xd1"),
        ("utf-8", "ü", "ü".as_bytes()),
    ] {
        let mail = format!(
            "Content-Type: text/plain; charset=\"{charset}\"\nContent-Transfer-Encoding: 8bit\n\nx\n"
        );
        let edited = with_footer(mail.as_bytes(), &footer(text)).unwrap();
        let want = [mail.as_bytes(), b"-- \n", bytes, b"\n"].concat();
        assert_eq!(shown(&edited), shown(&want), "{charset}");
        assert_eq!(edited, want, "{charset}");
    }
    let mail = "Content-Type: text/plain; charset=iso-2022-jp\n\n\x1b$BF|\x1b(B\n";
    assert_eq!(footed(mail, "日"), format!("{mail}-- \n\x1b$BF|\x1b(B\n"));
    // Text that does not come back to ASCII would swallow the footer.
    assert!(matches!(untouched(&mail.replace("\x1b(B", ""), "x"), Untouched::CantEncode(_)));
}

#[test]
fn ascii_text_becomes_utf_8_when_the_footer_needs_it() {
    for (mail, want) in [
        (
            "A: b\n\na = b \n",
            "A: b\nContent-Type: text/plain; charset=utf-8\n\
             Content-Transfer-Encoding: quoted-printable\nMIME-Version: 1.0\n\n\
             a =3D b=20\n--=20\n=C3=BC\n",
        ),
        (
            "MIME-Version: 1.0\nContent-Type: text/plain; charset=\"us-ascii\"; format=flowed\n\
             Content-Transfer-Encoding: 7bit\nA: b\n\nx\n",
            "MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8; format=flowed\n\
             Content-Transfer-Encoding: quoted-printable\nA: b\n\nx\n--=20\n=C3=BC\n",
        ),
        (
            "MIME-Version: 1.0\nContent-Type: text/plain;\nContent-Transfer-Encoding: 8bit\n\nx\n",
            "MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\
             Content-Transfer-Encoding: 8bit\n\nx\n-- \nü\n",
        ),
        (
            "MIME-Version: 1.0\nContent-Type: text/plain (a (b) c);\n\tCharset = us-ascii\n\
             Content-Transfer-Encoding: base64\n\neA==\n",
            "MIME-Version: 1.0\nContent-Type: text/plain (a (b) c);\n\tCharset = utf-8\n\
             Content-Transfer-Encoding: base64\n\neAotLSAKw7w=\n",
        ),
        // It has the character, but may not have it in 7 bits.
        (
            "MIME-Version: 1.0\nContent-Type: text/plain; charset=iso-8859-1\n\nx\n",
            "MIME-Version: 1.0\nContent-Type: text/plain; charset=iso-8859-1\n\
             Content-Transfer-Encoding: quoted-printable\n\nx\n--=20\n=FC\n",
        ),
        // It is wide already, whatever it says.
        (
            "Content-Type: text/plain; charset=utf-8\n\nß\n",
            "Content-Type: text/plain; charset=utf-8\n\nß\n-- \nü\n",
        ),
    ] {
        assert_eq!(footed(mail, "ü"), want, "{mail:?}");
    }
}

#[test]
fn what_can_not_be_written_leaves_the_mail_alone() {
    for (head, body, text) in [
        ("Content-Type: text/plain; charset=us-ascii", "ß\n", "ü"),
        ("A: b", "ß\n", "ü"),
        ("Content-Type: text/plain; charset=iso-8859-1", "ß\n", "€"),
        ("Content-Type: text/plain; charset=gb2312", "ß\n", "頭"),
        ("Content-Type: text/plain; charset=gbk", "ß\n", "€"),
        ("Content-Type: text/plain; charset=big5", "ß\n", "я"),
        ("Content-Type: text/plain; charset=shift_jis", "ß\n", "①"),
        ("Content-Type: text/plain; charset=iso-2022-jp", "\x1b$BF|\x1b(B\n", "①"),
        ("Content-Type: text/plain; charset=iso-2022-jp", "\x1b$BF|\x1b(B\n", "ｶﾅ"),
        ("Content-Type: text/plain; charset=utf-16", "x\n", "x"),
        ("Content-Type: text/plain; charset=utf-7", "x\n", "x"),
        ("Content-Type: text/plain; charset=klingon", "x\n", "x"),
        ("Content-Type: text/plain; charset=iso-2022-jp", "x\n", "ü"),
        ("Content-Type: text/plain; charset=utf-8; charset=latin1", "x\n", "x"),
        ("Content-Type: text/plain; charset*0=us-; charset*1=ascii", "x\n", "ü"),
        ("Content-Type: text/plain; (or so) charset=utf-8", "ß\n", "ü"),
        ("Content-Transfer-Encoding: x-uuencode", "x\n", "x"),
        ("Content-Transfer-Encoding: base64;", "eA==\n", "x"),
        ("Content-Type: multipart/mixed; boundary=b", "--b\n\nhi\n--b--\n", "--b"),
        ("Content-Type: multipart/mixed; boundary=b", "--b\n\nhi\n--b--\n", "--b--"),
    ] {
        let why = untouched(&format!("{head}\n\n{body}"), text);
        assert!(matches!(why, Untouched::CantEncode(_)), "{head}: {why}");
    }
    let long = "x".repeat(2000);
    assert!(matches!(untouched("A: b\n\nhi\n", &long), Untouched::CantEncode(_)));
}

#[test]
fn signed_and_encrypted_mail_is_left_alone() {
    let signed = "Content-Type: Multipart/Signed; boundary=s\n\n--s\n\nhi\n--s\n\
                  Content-Type: application/pgp-signature\n\nx\n--s--\n";
    assert_eq!(untouched(signed, "x"), Untouched::Signed);
    let inside =
        format!("Content-Type: multipart/mixed; boundary=b\n\n--b\n{signed}\n--b\n\nx\n--b--");
    assert_eq!(untouched(&inside, "x"), Untouched::Signed);
    assert_eq!(untouched(&signed.replace("Signed", "Encrypted"), "x"), Untouched::Encrypted);

    for (kind, want) in [
        ("application/pkcs7-mime; smime-type=signed-data; name=smime.p7m", Untouched::Signed),
        ("application/x-pkcs7-mime; smime-type=enveloped-data", Untouched::Encrypted),
        ("application/pkcs7-mime; name=\"smime.p7m\"", Untouched::Encrypted),
    ] {
        assert_eq!(untouched(&format!("Content-Type: {kind}\n\nAAAA\n"), "x"), want, "{kind}");
    }
    let inline = "A: b\n\nhi\n-----BEGIN PGP SIGNED MESSAGE-----\nx\n";
    assert_eq!(untouched(inline, "x"), Untouched::Signed);
    assert_eq!(untouched(&inline.replace("SIGNED ", ""), "x"), Untouched::Encrypted);
    let hidden = "Content-Type: text/html\nContent-Transfer-Encoding: base64\n\n\
                  PHByZT4tLS0tLUJFR0lOIFBHUCBNRVNTQUdFLS0tLS0=\n";
    assert_eq!(untouched(hidden, "x"), Untouched::Encrypted);
    // Quoting one is not being one, and DKIM is for those behind us to redo.
    footed("DKIM-Signature: v=1\n\n> -----BEGIN PGP MESSAGE-----\n", "x");
}

#[test]
fn a_mail_without_text_is_left_alone() {
    for mail in [
        "A: b\n",
        "A: b",
        "",
        "Content-Type: image/png\n\nx",
        "Content-Type: text/calendar\n\nx",
        "Content-Type: text/plain\nContent-Disposition: attachment\n\nx",
        "Content-Type: text/plain; name*0*=utf-8''x\n\nx",
        // RFC 2183: what we do not know is an attachment.
        "Content-Type: text/plain\nContent-Disposition: form-data\n\nx",
        "Content-Type: message/rfc822\n\nSubject: x\n\nhi",
        "Content-Type: multipart/mixed; boundary=b\n\n--b--\n",
        "Content-Type: multipart/mixed; boundary=b\n\nno parts\n",
        "Content-Type: multipart/digest; boundary=b\n\n--b\n\nSubject: x\n\nhi\n--b--\n",
    ] {
        assert_eq!(untouched(mail, "x"), Untouched::NoTextPart, "{mail:?}");
    }
}

#[test]
fn where_readers_may_disagree_the_mail_is_left_alone() {
    let multipart = "Content-Type: multipart/mixed; boundary=b\n\n";
    for mail in [
        "Content-Type: multipart/mixed\n\n--b\n\nhi\n--b--\n".to_owned(),
        "Content-Type: multipart/mixed; boundary=\"\"\n\n--\n\nhi\n----\n".to_owned(),
        "Content-Type: multipart/mixed; boundary=b; boundary=c\n\n--b\n\nhi\n".to_owned(),
        "Content-Type: multipart/mixed; boundary=b (or c)\n\n--b\n\nhi\n".to_owned(),
        "Content-Type: multipart/mixed; boundary=b=c\n\n--b=c\n\nhi\n".to_owned(),
        "Content-Type: multipart/mixed; boundary=\"<b>\"\n\n--<b>\n\nhi\n".to_owned(),
        "Content-Type: multipart/mixed; (x) boundary=b\n\n--b\n\nhi\n".to_owned(),
        "Content-Type: text\n\nhi\n".to_owned(),
        "Content-Type: text/plain charset=utf-8\n\nhi\n".to_owned(),
        "Content-Type: multipart/mixed; boundary=b\nContent-Transfer-Encoding: base64\n\n--b\n\nhi\n"
            .to_owned(),
        "no header\n\nhi\n".to_owned(),
        "A: b\rC: d\n\nhi\n".to_owned(),
        "A: b\n\nhi\r".to_owned(),
        format!("{multipart}--b\nno header\n--b--\n"),
        format!("{multipart}--b\n X: folded\n\nhi\n--b--\n"),
        format!("{multipart}--b\nA: b\n--b--\n"),
        format!("{multipart}--b\n\nhi\r--b\r\rho\n--b--\n"),
        format!("{multipart}--b\n\nhi\n--bogus\n--b--\n"),
        format!("{multipart}--b\n{multipart}--b\n\nhi\n--b--\n--b--\n"),
        format!(
            "{multipart}--b\nContent-Type: multipart/mixed; boundary=\"b--\"\n\n--b--\n\nhi\n--b----\n"
        ),
    ] {
        let why = untouched(&mail, "x");
        assert!(matches!(why, Untouched::Broken(_)), "{mail:?}: {why}");
    }
    // Boundaries of which one starts with the other can be told apart.
    let nested = "Content-Type: multipart/mixed; boundary=b\n\n--b\n\
                  Content-Type: multipart/mixed; boundary=b-2\n\n--b-2\n\nhi\n--b-2--\n--b--\n";
    assert_eq!(footed(nested, "x"), nested.replace("hi\n", "hi\n-- \nx\n"));
}

/// A mail, written by rules: its parts nest, and each is text, a file or an image.
fn any_mail() -> impl Strategy<Value = String> {
    let kind = prop::sample::select(vec![
        "Content-Type: text/plain; charset=utf-8",
        "Content-Type: text/plain; charset=iso-8859-1\nContent-Transfer-Encoding: quoted-printable",
        "Content-Type: text/html; charset=utf-8\nContent-Transfer-Encoding: 8bit",
        "Content-Type: text/html\nContent-Transfer-Encoding: quoted-printable",
        "Content-Type: text/plain; name=x",
        "Content-Type: image/png\nContent-Transfer-Encoding: base64",
        "X: y",
    ]);
    let body = prop::collection::vec("([a-zA-Z0-9 <>/=.-]{0,40}\n){0,3}[a-z= ]{0,8}", 1..2);
    let leaf = (kind, body).prop_map(|(kind, body)| format!("{kind}\n\n{}", body.concat()));
    let counter = any::<u32>();
    leaf.prop_recursive(4, 20, 4, move |inner| {
        let kinds = prop::sample::select(vec!["mixed", "alternative", "related", "x-odd"]);
        (kinds, prop::collection::vec(inner, 1..4), counter, any::<bool>()).prop_map(
            |(kind, parts, number, closed)| {
                let name = format!("=_{number:08x}_");
                let mut mail = format!("Content-Type: multipart/{kind}; boundary=\"{name}\"\n\n");
                for part in parts {
                    mail.push_str(&format!("--{name}\n{part}\n"));
                }
                if closed {
                    mail.push_str(&format!("--{name}--\n"));
                }
                mail
            },
        )
    })
}

/// How many bytes two mails share at their start, and at their end.
fn shared(a: &[u8], b: &[u8]) -> (usize, usize) {
    let start = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let end = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
    (start, end)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_footer_is_all_that_is_added(mail in any_mail(), with_cr: bool) {
        let mail = if with_cr { crlf(&mail) } else { mail.into_bytes() };
        let Ok(edited) = with_footer(&mail, &footer("a footer")) else { return Ok(()) };
        // No base64 and no wide characters here, so that all bytes of the old mail are in
        // the new one, in order.
        let mut rest = edited.iter();
        prop_assert!(mail.iter().all(|byte| rest.any(|new| new == byte)), "{}", shown(&edited));
        let texts = edited.windows(8).filter(|window| window == b"a footer").count();
        prop_assert!(texts >= 1 && edited.len() <= mail.len() + texts * 80);
        if texts == 1 {
            let (start, end) = shared(&mail, &edited);
            prop_assert!(start + end >= mail.len(), "{}", shown(&edited));
        }
    }
}
