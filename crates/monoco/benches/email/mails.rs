//! Generates mails as shared mailboxes have them: Chinese subjects and texts, HTML, attachments,
//! and charsets that are old or wrong. The same number always gives the same mail.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const WORDS: [&str; 12] = [
    "发票",
    "合同",
    "付款",
    "会议",
    "案件编号",
    "附件",
    "请查收",
    "客户",
    "报价单",
    "投诉",
    "退款",
    "谢谢",
];

/// A text in a charset that is not UTF-8, as bytes of that charset.
const ODD_TEXTS: [(&str, &[u8]); 5] = [
    ("gb2312", b"\xc4\xfa\xba\xc3\xa3\xac\xc7\xeb\xb2\xe9\xca\xd5\xb8\xbd\xbc\xfe\xa1\xa3"),
    ("koi8-r", b"\xf0\xd2\xc9\xd7\xc5\xd4, \xd3\xde\xc5\xd4 \xd7 \xd0\xd2\xc9\xcc\xcf\xd6\xc5\xce\xc9\xc9."),
    ("iso-2022-jp", b"\x1b$B$3$s$K$A$O\x1b(B"),
    ("windows-1252", b"Gr\xf6\xdfe und Preis \x80 100"),
    // The name of the charset is wrong.
    ("x-unknown-7", b"caf\xe9 \xc4\xfa\xba\xc3"),
];

/// A small generator of numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap_or(0)
    }

    fn words(&mut self, count: usize) -> String {
        let mut text = String::new();
        for n in 0..count {
            text += WORDS[self.below(WORDS.len())];
            text += if n % 12 == 11 { "。\n" } else { "，" };
        }
        text
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }
}

/// The mail of a number, with LF at the ends of lines, as a maildir has it.
pub fn mail(number: usize) -> Vec<u8> {
    let mut random = Random(number as u64);
    let mut head = header(number, &mut random);
    match random.below(20) {
        0..10 => {
            let text = random.words(100 + number % 200);
            head += "Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit\n\n";
            (head + &text + "\n").into_bytes()
        }
        10..15 => alternative(head, &mut random),
        15..18 => with_attachment(head, &mut random),
        _ => odd_charset(head, &mut random),
    }
}

/// A mail of about `size` bytes: one attachment.
pub fn large_mail(size: usize) -> Vec<u8> {
    let mut random = Random(1);
    let mut mail = header(0, &mut random);
    mail += "Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/plain\n\n\
             See the attachment.\n--b\n";
    let mut mail = mail.into_bytes();
    // 57 bytes become one line of 76 characters and its end.
    attach(&mut mail, "large.bin", &random.bytes(size / 77 * 57));
    mail.extend_from_slice(b"--b--\n");
    mail
}

fn header(number: usize, random: &mut Random) -> String {
    let subject = STANDARD.encode(random.words(3).trim_end());
    let mut head = String::new();
    for hop in 0..3 {
        let _ = writeln!(
            head,
            "Received: from mx{hop}.example.org (mx{hop}.example.org [192.0.2.{hop}])\n\
             \tby mx.example.com with ESMTPS id {:016x};\n\
             \tFri, 06 Feb 2026 20:{:02}:{:02} +0800",
            random.next(),
            number / 60 % 60,
            number % 60
        );
    }
    let _ = writeln!(
        head,
        "From: =?utf-8?B?5byg5LiJ?= <sender{}@example.org>\nTo: team@example.com\n\
         Subject: =?utf-8?B?{subject}?=\nMessage-ID: <{number}.{:x}@example.org>\n\
         Date: Fri, 06 Feb 2026 20:45:00 +0800\nMIME-Version: 1.0",
        random.below(500),
        random.next(),
    );
    head
}

fn alternative(head: String, random: &mut Random) -> Vec<u8> {
    let text = random.words(120);
    let mut html = "<html><head><style>p { color: #333 }</style></head><body>".to_owned();
    for line in text.lines() {
        let _ = writeln!(
            html,
            "<p style=\"margin:0\">{line} <a href=\"https://example.org/{:x}\">查看</a></p>",
            random.next()
        );
    }
    html += "</body></html>";
    let mut mail = head.into_bytes();
    mail.extend_from_slice(b"Content-Type: multipart/alternative; boundary=\"=_alt\"\n\n");
    for (kind, content) in [("plain", &text), ("html", &html)] {
        let part = format!(
            "--=_alt\nContent-Type: text/{kind}; charset=UTF-8\nContent-Transfer-Encoding: base64\n\n"
        );
        mail.extend_from_slice(part.as_bytes());
        lines_of_base64(&mut mail, content.as_bytes());
    }
    mail.extend_from_slice(b"--=_alt--\n");
    mail
}

fn with_attachment(head: String, random: &mut Random) -> Vec<u8> {
    let mut mail =
        (head + "Content-Type: multipart/mixed; boundary=mixed\n\n--mixed\n").into_bytes();
    mail.extend_from_slice(b"Content-Type: text/plain; charset=utf-8\n\n");
    mail.extend_from_slice(random.words(60).as_bytes());
    mail.extend_from_slice(b"\n--mixed\n");
    let size = 4_000 + random.below(16_000);
    let bytes = random.bytes(size);
    attach(&mut mail, "=?utf-8?B?5Y+R56WoLnBkZg==?=", &bytes);
    mail.extend_from_slice(b"--mixed--\n");
    mail
}

fn attach(mail: &mut Vec<u8>, name: &str, bytes: &[u8]) {
    let head = format!(
        "Content-Type: application/pdf; name=\"{name}\"\n\
         Content-Disposition: attachment; filename=\"{name}\"\n\
         Content-Transfer-Encoding: base64\n\n"
    );
    mail.extend_from_slice(head.as_bytes());
    lines_of_base64(mail, bytes);
}

fn odd_charset(head: String, random: &mut Random) -> Vec<u8> {
    let (charset, text) = ODD_TEXTS[random.below(ODD_TEXTS.len())];
    let mut mail = head.into_bytes();
    let kind =
        format!("Content-Type: text/plain; charset={charset}\nContent-Transfer-Encoding: 8bit\n\n");
    mail.extend_from_slice(kind.as_bytes());
    for _ in 0..20 + random.below(60) {
        mail.extend_from_slice(text);
        mail.push(b'\n');
    }
    mail
}

fn lines_of_base64(mail: &mut Vec<u8>, bytes: &[u8]) {
    let mut line = [0; 76];
    for chunk in bytes.chunks(57) {
        if let Ok(length) = STANDARD.encode_slice(chunk, &mut line) {
            mail.extend_from_slice(&line[..length]);
        }
        mail.push(b'\n');
    }
}
