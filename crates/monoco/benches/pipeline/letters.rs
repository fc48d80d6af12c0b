//! Unique letters and messages of a given size.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Size of a mail in bytes.
pub const SIZE: usize = 1_536;

/// Size in bytes of the mails that wait behind a limit.
pub const SMALL: usize = 384;

/// Number of different recipients.
pub const RECIPIENTS: u64 = 1_000;

/// A line of every mail.
const TEXT_LINE: &str = "The parcel is at the counter until Friday, ask for the form.\r\n";

/// Makes the mails unique.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Appends a letter with a mail of `size` bytes, for `tunnel` or the default tunnel.
pub fn write_letter(body: &mut Vec<u8>, size: usize, tunnel: Option<&str>) {
    let number = NEXT.fetch_add(1, Relaxed);
    let to = recipient(number);
    body.extend_from_slice(br#"{"from":"ann@example.com","to":[""#);
    body.extend_from_slice(to.as_bytes());
    body.extend_from_slice(br#""],"data":""#);
    escape(body, &mail(number, &to, size));
    body.push(b'"');
    if let Some(tunnel) = tunnel {
        body.extend_from_slice(format!(r#","extra":{{"tunnel":"{tunnel}"}}"#).as_bytes());
    }
    body.push(b'}');
}

/// Appends a message for `POST /api/v1/dispatch` with the same text as a letter.
pub fn write_message(body: &mut Vec<u8>, size: usize, producer: usize) {
    let number = NEXT.fetch_add(1, Relaxed);
    let start = format!(
        r#"{{"msg":{{"from":"did:web:producer-{producer}","to":["did:monoco:me"],"kind":"chat","content":{{"content":""#
    );
    body.extend_from_slice(start.as_bytes());
    escape(body, &mail(number, &recipient(number), size));
    body.extend_from_slice(br#""}}}"#);
}

fn recipient(number: u64) -> String {
    format!("reader-{}@example.org", number % RECIPIENTS)
}

/// A mail (RFC 5322) of `size` bytes, or longer when the headers need more.
fn mail(number: u64, to: &str, size: usize) -> String {
    let mut mail = format!(
        "Message-ID: <{number}@bench.example.com>\r\nFrom: Ann <ann@example.com>\r\nTo: {to}\r\n\
         Subject: Parcel number {number}\r\nDate: Mon, 1 Jun 2026 12:00:00 +0000\r\n\
         MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
    );
    while mail.len() + TEXT_LINE.len() <= size {
        mail += TEXT_LINE;
    }
    let missing = size.saturating_sub(mail.len() + 2);
    mail += &TEXT_LINE[..missing];
    mail += "\r\n";
    mail
}

/// Escapes for JSON. The text needs escapes only for line ends.
fn escape(body: &mut Vec<u8>, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'\r' => body.extend_from_slice(br"\r"),
            b'\n' => body.extend_from_slice(br"\n"),
            plain => body.push(plain),
        }
    }
}
