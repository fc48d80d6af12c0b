//! Tests of `read_mail`: header fields, the choice of the text, attachments, and hostile mails.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

/// The mail corpus that the integration tests share.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../monoco/tests/corpus");
    let mut mails = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "eml") {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            mails.push((name, std::fs::read(path).unwrap()));
        }
    }
    assert!(mails.len() > 100, "{}", mails.len());
    mails
}

/// Reads everything that a mail has.
fn read_all(mail: &[u8]) -> usize {
    let parsed = read_mail(mail);
    let mut size = 0;
    for part in parsed.texts.iter().chain(&parsed.attachments) {
        size += part.text(1 << 20).text.len();
        let mut bytes = Vec::new();
        assert_eq!(part.decode_into(&mut bytes).unwrap(), bytes.len() as u64);
        let name = part.file_name();
        assert!(!name.is_empty() && !name.contains(['/', '\\', '\0', '\n']), "{name:?}");
        assert_eq!(part.bytes(usize::MAX).0, bytes);
        part.plain_text(1 << 20);
    }
    assert!(parsed.references.len() <= MAX_REFERENCES);
    size + field_groups(mail).len()
}

#[test]
fn header_fields_are_decoded() {
    let mail = crlf(
        "Return-Path: <bounce@x.test>
Delivered-To: ann+lists@x.test
Received: by mx; one
Received: from y
 by z; two
From: =?gb2312?B?1cXI/Q==?= <ann@X.Test>
Sender: Bot <bot@x.test>
Reply-To: \"Ann, at home\" <home@x.test>
To: Team: bob@x.test, =?utf-8?q?J=C3=B6?= <joe@x.test>;
To: eve@x.test
Cc: undisclosed-recipients:;
Subject: =?utf-8?b?5L2g?=
 =?utf-8?b?5aW9?= there
Date: Mon, 2 Nov 2026 10:00:00 +0800 (CST)
Message-ID: (comment) <a.b@x.test>
In-Reply-To: your message of today <c@x.test>
References: <root@x.test>
 <c@
 x.test> junk <>
Auto-Submitted: Auto-Replied; owner-email=x
Precedence: Bulk
X-Tag: one
x-tag: =?utf-8?q?tw=C3=B6?=

hi
",
    );
    let parsed = read_mail(&mail);
    let address = |name: Option<&str>, address: &str| MailAddress {
        name: name.map(str::to_owned),
        address: address.to_owned(),
    };
    assert_eq!(parsed.from, [address(Some("张三"), "ann@X.Test")]);
    assert!(parsed.is_from_clear);
    assert_eq!(parsed.sender, Some(address(Some("Bot"), "bot@x.test")));
    assert_eq!(parsed.reply_to, [address(Some("Ann, at home"), "home@x.test")]);
    assert_eq!(
        parsed.to,
        [
            address(None, "bob@x.test"),
            address(Some("Jö"), "joe@x.test"),
            address(None, "eve@x.test")
        ]
    );
    assert_eq!(parsed.cc, []);
    assert_eq!(parsed.delivered_to, [address(None, "ann+lists@x.test")]);
    assert_eq!(parsed.subject.as_deref(), Some("你好 there"));
    assert_eq!(parsed.date_ms, Some(1_793_584_800_000));
    assert_eq!(parsed.message_id.as_deref(), Some("<a.b@x.test>"));
    assert_eq!(parsed.in_reply_to.as_deref(), Some("<c@x.test>"));
    assert_eq!(parsed.references, ["<root@x.test>", "<c@x.test>"]);
    assert_eq!(parsed.auto_submitted.as_deref(), Some("auto-replied"));
    assert_eq!(parsed.precedence.as_deref(), Some("bulk"));
    assert_eq!(parsed.return_path, Some(ReturnPath::Address("bounce@x.test".to_owned())));
    assert_eq!(parsed.received, 2);
    assert_eq!(parsed.header.values("X-TAG").collect::<Vec<_>>(), ["one", "twö"]);
    assert_eq!(parsed.header.raw_values("X-TAG").nth(1).unwrap(), "=?utf-8?q?tw=C3=B6?=");
    let last = parsed.header.fields().last();
    assert_eq!(last, Some(("x-tag".to_owned(), "twö".to_owned())));
    assert_eq!(parsed.cut, None);
    assert_eq!(parsed.texts[0].plain_text(100).text, "hi\n");
}

#[test]
fn undeclared_bytes_in_a_header_use_the_charset_of_the_text() {
    let head = |charset: &str, name: &[u8]| {
        let start = format!("Content-Type: text/plain; charset={charset}\nFrom: ");
        [start.as_bytes(), name, b" <ann@x.test>\nSubject: ", name, b"\n\nx"].concat()
    };
    for (charset, bytes, want) in [
        ("gb2312", &b"\xd5\xc5\xc8\xfd"[..], "张三"),
        ("gb18030", b"\x95\x32\x82\x36", "\u{20000}"),
        ("big5", b"\xb1\x69\xa4\x54", "張三"),
        ("koi8-r", b"\xf0\xd2\xc9\xd7\xc5\xd4", "Привет"),
        ("iso-2022-jp", b"\x1b$BF|K\\\x1b(B", "日本"),
        ("shift_jis", b"\x93\xfa\x96\x7b", "日本"),
        ("us-ascii", b"J\xf6rg", "Jörg"),
        ("utf-8", "Jörg".as_bytes(), "Jörg"),
        ("cp936", b"\xd5\xc5\xc8\xfd", "张三"),
        ("klingon", b"\xd5\xc5\xc8\xfd", "张三"),
    ] {
        let mail = head(charset, bytes);
        let parsed = read_mail(&mail);
        assert_eq!(parsed.subject.as_deref(), Some(want), "{charset}");
        assert_eq!(parsed.from[0].name.as_deref(), Some(want), "{charset}");
        assert_eq!(parsed.from[0].address, "ann@x.test", "{charset}");
    }
}

#[test]
fn missing_and_broken_fields_are_empty() {
    for mail in
        ["", "\n", "\n\n", "hello", "From:\nDate: soon\nMessage-ID:\nReferences: <\n\nx", ":"]
    {
        let parsed = read_mail(mail.as_bytes());
        assert_eq!(parsed.from, [], "{mail}");
        assert!(!parsed.is_from_clear, "{mail}");
        assert_eq!((parsed.date_ms, &parsed.message_id), (None, &None), "{mail}");
        assert!(parsed.references.is_empty() && parsed.return_path.is_none(), "{mail}");
    }
    let null = read_mail(b"Return-Path: <>\nMessage-ID: a@b\n\n");
    assert_eq!(null.return_path, Some(ReturnPath::Null));
    assert_eq!(null.message_id.as_deref(), Some("<a@b>"));
}

#[test]
fn from_is_clear_only_when_all_readers_find_one_address() {
    for (fields, is_clear) in [
        ("From: Ann <ann@x.test>", true),
        ("From: ann@x.test", true),
        ("From: a@x.test, b@x.test", false),
        ("From: a@x.test\nFrom: b@x.test", false),
        ("From: a@x.test\nfrom: a@x.test", false),
        ("From: <a@x.test> <b@x.test>", false),
        ("From: <a@x.test", false),
        ("From: Ann", true),
        ("Subject: x", false),
    ] {
        assert_eq!(read_mail(fields.as_bytes()).is_from_clear, is_clear, "{fields}");
    }
}

#[test]
fn references_keep_their_root_and_the_last_ones() {
    let ids: String = (0..5_000).map(|n| format!(" <{n}@x.test>\n")).collect();
    let mail = format!("References:{ids}\n");
    let references = read_mail(mail.as_bytes()).references;
    assert_eq!(references.len(), MAX_REFERENCES);
    assert_eq!(references[0], "<0@x.test>");
    assert_eq!(references[1], "<4901@x.test>");
    assert_eq!(references[99], "<4999@x.test>");
}

/// Shows texts and attachments: `plain:hello | photo.png`.
fn outline(mail: &str) -> String {
    let mail = crlf(mail);
    let parsed = read_mail(&mail);
    let text = |part: &MailPart<'_>| {
        let kind = if part.is_html() { "html" } else { "plain" };
        format!("{kind}:{}", part.plain_text(1000).text.trim())
    };
    let texts: Vec<_> = parsed.texts.iter().map(text).collect();
    let files: Vec<_> = parsed.attachments.iter().map(MailPart::file_name).collect();
    format!("{} | {}", texts.join(" "), files.join(" "))
}

fn multipart(kind: &str, parts: &[&str]) -> String {
    let boundary = kind.replace('/', "-");
    let mut mail = format!("Content-Type: {kind}; boundary={boundary}\n\n");
    for part in parts {
        mail.push_str(&format!("--{boundary}\n{part}\n"));
    }
    mail + &format!("--{boundary}--\n")
}

#[test]
fn the_text_is_plain_where_there_is_a_choice() {
    let plain = "Content-Type: text/plain\n\nhello";
    let html = "Content-Type: text/html\n\n<b>hello</b>";
    let blank = "Content-Type: text/plain\n\n \u{a0}\n";
    let image = "Content-Type: image/png; name=photo.png\nContent-ID: <i@x>\nContent-Disposition: inline\n\nxx";
    let calendar = "Content-Type: text/calendar; method=REQUEST\n\nBEGIN:VCALENDAR";
    let amp = "Content-Type: text/x-amp-html\n\n<html amp>";
    let attached = "Content-Type: message/rfc822\n\nSubject: inner\n\ninner text";
    let notes = "Content-Type: text/plain; name=notes.txt\n\na file";
    let related = multipart("multipart/related", &[html, image]);
    let signature = "Content-Type: application/pgp-signature\n\nabc";
    for (mail, want) in [
        (plain.to_owned(), "plain:hello | "),
        (html.to_owned(), "html:<b>hello</b> | "),
        (notes.to_owned(), "plain:a file | "),
        (multipart("multipart/alternative", &[plain, html]), "plain:hello | "),
        (multipart("multipart/alternative", &[html, plain]), "plain:hello | "),
        (multipart("multipart/alternative", &[blank, html]), "html:<b>hello</b> | "),
        (multipart("multipart/alternative", &[plain, amp, html]), "plain:hello | "),
        (multipart("multipart/alternative", &[plain, &related]), "plain:hello | photo.png"),
        (multipart("multipart/alternative", &[blank, &related]), "html:<b>hello</b> | photo.png"),
        (multipart("multipart/alternative", &[plain, calendar]), "plain:hello | invitation.ics"),
        (
            multipart("multipart/mixed", &[plain, notes, attached]),
            "plain:hello | notes.txt message.eml",
        ),
        (
            multipart("multipart/mixed", &[plain, image, html]),
            "plain:hello html:<b>hello</b> | photo.png",
        ),
        (multipart("multipart/signed", &[plain, signature]), "plain:hello | signature.asc"),
        (multipart("multipart/mixed", &[calendar]), " | invitation.ics"),
        (multipart("multipart/digest", &["\nSubject: a\n\nx"]), " | message.eml"),
        (multipart("multipart/mixed", &[]), "plain:--multipart-mixed-- | "),
        ("Content-Type: multipart/mixed\n\nno boundary".to_owned(), "plain:no boundary | "),
        ("Content-Type: text\n\nhi".to_owned(), "plain:hi | "),
        ("Content-Type: application/pdf\n\n%PDF".to_owned(), " | attachment.pdf"),
    ] {
        assert_eq!(outline(&mail), want, "{mail}");
    }
}

#[test]
fn file_names_are_decoded_and_safe() {
    for (disposition, want) in [
        ("attachment; filename=a.txt", "a.txt"),
        ("attachment; filename=\"../../etc/passwd\"", "passwd"),
        ("attachment; filename*=utf-8''%E6%8A%A5%E5%91%8A.pdf", "报告.pdf"),
        ("attachment; filename*=gb2312'zh'%B1%A8%B8%E6.pdf", "报告.pdf"),
        (
            "attachment; filename*0*=utf-8''%E6%8A%A5; filename*1*=%E5%91%8A; filename*2=.pdf",
            "报告.pdf",
        ),
        ("attachment; filename=x.pdf; filename*=utf-8''y.pdf", "y.pdf"),
        ("attachment; filename=\"=?utf-8?B?5oql5ZGK?=.pdf\"", "报告.pdf"),
        ("attachment; filename=\"=?gbk?Q?=B1=A8=B8=E6?=.pdf\"", "报告.pdf"),
        ("attachment; filename=\"C:\\\\temp\\\\x.doc\"", "x.doc"),
        ("attachment; filename=\"a\u{202e}fdp.exe\"", "afdp.exe"),
        ("attachment; filename=\"=?utf-8?Q?=2E=2E=2Fx=00=0A?=\"", "x"),
        ("attachment; filename=\"\"", "attachment.bin"),
        ("attachment; filename=..", "attachment.bin"),
        ("attachment", "attachment.bin"),
    ] {
        let mail = format!(
            "Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: application/x-y\nContent-Disposition: {disposition}\n\nxx\n--b--"
        );
        let parsed = read_mail(mail.as_bytes());
        assert_eq!(parsed.attachments.len(), 1, "{disposition}");
        assert_eq!(parsed.attachments[0].file_name(), want, "{disposition}");
    }
}

#[test]
fn content_is_decoded_in_chunks() {
    use base64::Engine as _;
    let content: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).chain([7]).collect();
    let encoded = base64::engine::general_purpose::STANDARD.encode(&content);
    let lines: Vec<&str> =
        encoded.as_bytes().chunks(76).map(|line| str::from_utf8(line).unwrap()).collect();
    let mail = format!(
        "Content-Type: application/x-y\nContent-Transfer-Encoding: base64\n\n{}\n\nlist footer\n",
        lines.join("\r\n")
    );
    let parsed = read_mail(mail.as_bytes());
    let part = &parsed.attachments[0];
    assert!(part.chunks().all(|chunk| chunk.len() <= 64 * 1024));
    assert!(part.chunks().flat_map(|chunk| chunk.to_vec()).eq(content.iter().copied()));
    assert_eq!(part.bytes(10), (content[..10].to_vec(), true));

    let text = "gr=C3=BC=C3=9Fe =\r\n".repeat(20_000);
    let mail = format!("Content-Transfer-Encoding: Quoted-Printable (x)\n\n{text}");
    let parsed = read_mail(mail.as_bytes());
    assert!(parsed.texts[0].chunks().all(|chunk| chunk.len() <= 64 * 1024));
    assert_eq!(parsed.texts[0].text(1 << 20).text, "grüße ".repeat(20_000));
    let cut = parsed.texts[0].text(3);
    assert_eq!((cut.text.as_str(), cut.is_cut), ("gr", true));

    let odd = read_mail(b"Content-Type: text/plain\nContent-Transfer-Encoding: x-rot13\n\nuryyb");
    assert!(odd.texts[0].is_undecoded);
    assert_eq!(odd.texts[0].text(100).text, "uryyb");
}

#[test]
fn charsets_of_texts_are_decoded() {
    for (charset, bytes, want) in [
        ("utf-7", &b"Hi +Jjo-!"[..], "Hi ☺!"),
        ("utf-8", b"\xef\xbb\xbfhi", "hi"),
        ("utf-16", b"\xfe\xff\0h\0i", "hi"),
        ("utf-16", b"\xff\xfeh\0i\0", "hi"),
        ("us-ascii", b"gr\xfc\xdfe", "grüße"),
        ("", b"\xc4\xe3\xba\xc3", "你好"),
        ("unknown-8bit", b"\xc4\xe3\xba\xc3", "你好"),
        ("'gb2312'", b"\xc4\xe3\xba\xc3", "你好"),
        ("hz-gb-2312", b"plain", "plain"),
        ("big5", b"\xa7\x41\xa6\x6e", "你好"),
        ("euc-kr", b"\xbe\xc8\xb3\xe7", "안녕"),
        ("iso-8859-2", b"\xb1", "ą"),
        ("koi8-u", b"\xf0\xd2", "Пр"),
    ] {
        let head = format!("Content-Type: text/plain; charset={charset}\n\n");
        let mail = [head.as_bytes(), bytes].concat();
        assert_eq!(read_mail(&mail).texts[0].text(100).text, want, "{charset}");
    }
}

#[test]
fn limits_are_reported() {
    let many = multipart("multipart/mixed", &vec!["\nx"; MAX_PARTS + 5]);
    let parsed = read_mail(many.as_bytes());
    assert_eq!(parsed.cut, Some("the mail has more than 1000 parts"));
    assert_eq!(parsed.texts.len(), MAX_PARTS - 1);

    let long =
        format!("From: ann@x.test\nX: {}\nSubject: behind\n\nhi", "y".repeat(MAX_READ_HEADER));
    let parsed = read_mail(long.as_bytes());
    assert_eq!(parsed.cut, Some("the header is longer than 256 KiB"));
    assert_eq!((parsed.from.len(), parsed.subject), (1, None));
    assert_eq!(parsed.texts[0].text(10).text, "hi");

    let mut deep = String::new();
    for level in 0..1_000 {
        deep.push_str(&format!(
            "Content-Type: multipart/mixed; boundary=b{level}-\n\n--b{level}-\n"
        ));
    }
    let deep = deep + "\nhello";
    let parsed = read_mail(deep.as_bytes());
    assert_eq!(parsed.cut, Some("the parts of the mail are nested deeper than 32 levels"));
    assert_eq!(parsed.attachments.len(), 1);

    let long =
        format!("Content-Type: x/{}\nContent-Disposition: attachment\n\nhi", "y".repeat(5_000));
    assert_eq!(read_mail(long.as_bytes()).attachments[0].mime_type, "application/octet-stream");
}

#[test]
fn field_groups_are_separated_by_blank_lines() {
    let text = b"\n\nReporting-MTA: dns; x\n folded\nArrival-Date: now\n\n\nAction: failed\nbroken line\nStatus: 5.1.1\r\n\r\n";
    let groups = field_groups(text);
    let names: Vec<Vec<&str>> =
        groups.iter().map(|group| group.iter().map(|(name, _)| name.as_str()).collect()).collect();
    assert_eq!(names, [vec!["reporting-mta", "arrival-date"], vec!["action"], vec!["status"]]);
    assert_eq!(groups[0][0].1, "dns; x folded");
    assert_eq!(field_groups(&b"a: b\n\n".repeat(5_000)).len(), 1_000);
}

#[test]
fn every_corpus_mail_is_read_also_when_truncated() {
    for (name, mail) in corpus() {
        read_all(&mail);
        let step = (mail.len() / 60).max(1);
        for end in (0..mail.len()).step_by(step) {
            read_all(&mail[..end]);
        }
        let parsed = read_mail(&mail);
        let has_content = !parsed.texts.is_empty() || !parsed.attachments.is_empty();
        assert!(has_content || name.contains("empty") || name.contains("no-body"), "{name}");
    }
}

#[test]
fn corpus_mails_spliced_into_each_other_are_read() {
    let mails = corpus();
    let mut seed = 0x2545_F491_4F6C_DD1D_u64;
    let mut random = |limit: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % (limit as u64).max(1)).unwrap()
    };
    for _ in 0..3_000 {
        let mut mail = mails[random(mails.len())].1.clone();
        for _ in 0..=random(4) {
            let other = &mails[random(mails.len())].1;
            let start = random(other.len());
            let piece = &other[start..(start + random(300)).min(other.len())];
            let at = random(mail.len());
            let end = (at + random(100)).min(mail.len());
            mail.splice(at..end, piece.iter().copied());
        }
        read_all(&mail);
    }
}

#[test]
fn hostile_mails_are_read_in_linear_time() {
    let size = 4 * 1024 * 1024;
    let mixed = "Content-Type: multipart/mixed; boundary=b\n\n";
    let nested: String = (0..40)
        .map(|n| format!("Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n"))
        .collect();
    for mail in [
        "a:\n".repeat(1_000_000),
        format!("From: {}\n\n", "(".repeat(size)),
        format!("From: {}\n\n", "\"".repeat(size)),
        format!("From: {}\n\n", "[".repeat(size)),
        format!("From: {}\n\n", "<".repeat(size)),
        format!("From: {}\n\n", "a@b,".repeat(size / 4)),
        format!("To: {}\n\n", "=?utf-8?q?a?= ".repeat(size / 14)),
        "To: a@b,c@d\n".repeat(size / 12),
        "Received: x\n".repeat(size / 12),
        format!("References: {}\n\n", "<a@b>".repeat(size / 5)),
        format!("References: {}\n\n", "<".repeat(size)),
        format!("Date: {}\n\n", "1:".repeat(size / 2)),
        format!(
            "{mixed}{}",
            "--b\nContent-Disposition: attachment; filename=x\n\ny\n".repeat(size / 52)
        ),
        format!("{nested}{}", "--b\r\n".repeat(size / 5)),
        format!("{mixed}--b\nContent-Type: x/y{}\n\n", "; name*1*=x".repeat(size / 11)),
        format!("Content-Transfer-Encoding: base64\n\n{}", "=".repeat(size)),
        format!("Content-Type: text/plain; charset=utf-7\n\n{}", "+".repeat(size)),
        format!("Content-Type: text/plain; format=flowed\n\n{}", "> \n".repeat(size / 3)),
        format!(
            "{mixed}{}",
            format!(
                "--b\nContent-Type: x/y{}\n\n",
                (0..200).map(|n| format!(";name*{n}=x")).collect::<String>()
            )
            .repeat(900)
        ),
    ] {
        let start = Instant::now();
        read_all(mail.as_bytes());
        let taken = start.elapsed();
        assert!(taken < Duration::from_secs(20), "{taken:?}: {}", &mail[..60]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn any_bytes_are_read(mail in prop::collection::vec(any::<u8>(), 0..600)) {
        read_all(&mail);
    }

    #[test]
    fn any_header_value_is_read(value in any::<String>(), bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let names = ["From", "To", "Subject", "Date", "Message-ID", "References", "Content-Type", "Content-Disposition"];
        for name in names {
            read_all(format!("{name}: {value}\n\nx").as_bytes());
            read_all(&[name.as_bytes(), b": ", &bytes, b"\n\nx"].concat());
        }
    }
}
