//! Tests of fields: reading them, and putting one in without letting another slip in.

use proptest::prelude::*;

use super::*;

#[test]
fn a_header_is_unfolded_and_decoded() {
    for (value, want) in [
        ("plain", "plain"),
        ("  two\r\n  lines ", "two  lines"),
        ("=?UTF-8?B?Z3LDvMOfZQ==?=", "grüße"),
        ("=?utf-8?q?gr=C3=BC=C3=9Fe_aus?= Bonn", "grüße aus Bonn"),
        ("=?iso-8859-1?Q?gr=FC=DFe?=", "grüße"),
        ("=?gb2312?B?xOO6ww==?=", "你好"),
        ("=?utf-8*de?Q?=C3=BC?=", "ü"),
        // Blanks between encoded words are not part of the text.
        ("=?utf-8?q?a?=\r\n =?utf-8?q?b?= =?iso-8859-1?q?c?=", "abc"),
        ("x =?utf-8?q?a?= y", "x a y"),
        // A character cut in two.
        ("=?utf-8?b?w7zD?= =?utf-8?b?nw==?=", "üß"),
        // Not encoded words.
        ("=?utf-8?x?a?=", "=?utf-8?x?a?="),
        ("=?klingon?q?a?=", "=?klingon?q?a?="),
        ("=?utf-8?q?a b?=", "=?utf-8?q?a b?="),
        ("=?utf-8?q?a", "=?utf-8?q?a"),
        ("=?", "=?"),
    ] {
        let mail = format!("From: x\r\nSUBJECT: {value}\r\nSubject: second\r\n\r\nSubject: no\r\n");
        assert_eq!(subject(mail.as_bytes()).as_deref(), Some(want), "{value:?}");
    }
    assert_eq!(header(b"A: gr\xfc\xdfe\n\n", "a").as_deref(), Some("grüße"));
    assert_eq!(header(b"A: \xc4\xe3\xba\xc3, x\n\n", "a").as_deref(), Some("你好, x"));
    assert_eq!(header(b"A: \x1b$BF|K\\\x1b(B x\n\n", "a").as_deref(), Some("日本 x"));
    assert_eq!(header("A: ü\n\n".as_bytes(), "a").as_deref(), Some("ü"));
    assert_eq!(header(b"A: b\n\nC: d\n", "c"), None);
}

#[test]
fn a_subject_is_replaced_where_it_stands() {
    let mail =
        b"From: x\r\nSUBJECT: old\r\n folded\r\nTo: y\r\nSubject: second\r\n\r\nSubject: z\r\n";
    assert_eq!(
        shown(&with_subject(mail, "new")),
        "From: x\r\nSUBJECT: new\r\nTo: y\r\nSubject: second\r\n\r\nSubject: z\r\n"
    );
    assert_eq!(shown(&with_subject(b"Subject: a", "b")), "Subject: b");
    assert_eq!(shown(&with_subject(b"Subject: a\n\n", "")), "Subject:\n\n");
}

#[test]
fn a_missing_field_is_added_at_the_end_of_the_header() {
    for (mail, want) in [
        ("A: b\n\nbody", "A: b\nSubject: s\n\nbody"),
        ("A: b\r\n c\r\n\r\nbody", "A: b\r\n c\r\nSubject: s\r\n\r\nbody"),
        ("A: b", "A: b\r\nSubject: s\r\n"),
        ("\nbody", "Subject: s\n\nbody"),
        ("", "Subject: s\r\n"),
        ("no header\n", "Subject: s\nno header\n"),
        ("From mbox\nA: b\n\nbody", "From mbox\nA: b\nSubject: s\n\nbody"),
    ] {
        assert_eq!(shown(&with_subject(mail.as_bytes(), "s")), want, "{mail:?}");
    }
    let tagged = with_header(b"A: b\n\nbody", "X Spam\r\n:", "12.5\r\nBcc: eve@example.org");
    assert_eq!(shown(&tagged), "A: b\nX-Spam---: 12.5  Bcc: eve@example.org\n\nbody");
}

#[test]
fn long_and_foreign_subjects_are_folded_and_encoded() {
    let long = "word ".repeat(40);
    let mail = with_subject(b"A: b\n\n", &long);
    assert_eq!(shown(&mail).lines().count(), 5, "{}", shown(&mail));
    assert_eq!(subject(&mail).unwrap(), long.trim());

    let mail = with_subject(b"A: b\n\n", "[team] Grüße <list.example.com>");
    assert_eq!(
        shown(&mail),
        "A: b\nSubject: [team] =?UTF-8?B?R3LDvMOfZQ==?= <list.example.com>\n\n"
    );
    let mail = with_header(b"A: b\n\n", "X-A-Rather-Long-Name-Of-A-Field", &"ü".repeat(60));
    let lines: Vec<_> = shown(&mail).lines().map(str::to_owned).collect();
    assert_eq!(lines[1], "X-A-Rather-Long-Name-Of-A-Field:");
    assert_eq!(header(&mail, "X-A-Rather-Long-Name-Of-A-Field").unwrap(), "ü".repeat(60));

    // What would be taken for an encoded word is encoded.
    let mail = with_subject(b"A: b\n\n", "=?utf-8?q?=41?=");
    assert_eq!(subject(&mail).unwrap(), "=?utf-8?q?=41?=");
    let endless = "x".repeat(5000);
    let mail = with_subject(b"A: b\n\n", &endless);
    assert!(shown(&mail).lines().all(|line| line.len() <= 78));
    assert_eq!(subject(&mail).unwrap(), endless);
}

/// Values that try to break out.
fn hostile() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("\r\nBcc: eve@example.org".to_owned()),
        Just("\n\n".to_owned()),
        Just("\r".to_owned()),
        Just("\0".to_owned()),
        Just("=?utf-8?q?=0D=0A?=".to_owned()),
        Just("\u{2028}X: y\u{85}Z: z".to_owned()),
        Just(" ".repeat(80)),
        "[a-z]{1,90}",
        "\\PC{0,20}",
        any::<String>(),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

const MAIL: &[u8] =
    b"From: ann@example.com\r\nSubject: old\r\n more\r\nTo: bob@example.org\r\n\r\nhi\r\n";

proptest! {
    #[test]
    fn no_value_smuggles_in_a_field(value in hostile()) {
        let edited = with_subject(MAIL, &value);
        prop_assert_eq!(names(&edited), names(MAIL));
        prop_assert_eq!(check(&edited), Ok(()));
        prop_assert_eq!(subject(&edited).unwrap(), word::clean(&value));
        prop_assert!(edited.starts_with(b"From: ann@example.com\r\nSubject:"));
        prop_assert!(edited.ends_with(b"\r\nTo: bob@example.org\r\n\r\nhi\r\n"));

        let added = with_header(MAIL, "X-Tag", &value);
        let mut want = names(MAIL);
        want.push(b"x-tag".to_vec());
        prop_assert_eq!(names(&added), want);
        prop_assert_eq!(header(&added, "x-tag").unwrap(), word::clean(&value));
        prop_assert_eq!(header(&added, "bcc"), None);
    }

    #[test]
    fn lines_are_short_when_words_are(words in prop::collection::vec("\\PC{1,12}", 1..30)) {
        let edited = with_subject(MAIL, &words.join(" "));
        for line in edited.split(|byte| *byte == b'\n') {
            prop_assert!(line.len() <= 78, "{}", shown(line));
        }
    }

    #[test]
    fn no_name_smuggles_in_a_field(name in any::<String>()) {
        let added = with_header(MAIL, &name, "v");
        prop_assert_eq!(names(&added).len(), names(MAIL).len() + 1);
        prop_assert_eq!(check(&added), Ok(()));
    }
}
