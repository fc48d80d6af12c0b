//! Reads and edits mails (RFC 5322, MIME) without changing other bytes.
//!
//! Edits work on ranges of bytes: everything outside the range is copied. A mail is not
//! parsed into a tree and written again, because that would change unrelated bytes.
//! Inserted lines end as the first line of the mail does.
//!
//! ```text
//! check          whether a mail can be passed on
//! read_mail      what a mail says: addresses, ids, date, text, attachments
//! header, texts  decoded fields and texts, for workers that check them
//! with_subject   replaces one field;  with_header: adds one
//! with_footer    adds a footer to the text parts, or says why not
//! digest         combines mails into one
//! ```
//!
//! Mail is untrusted input. No bytes make these functions panic; their time is linear in
//! the size of the mail, and nesting is limited to [`MAX_DEPTH`]. A mail that two readers
//! could understand differently is not edited.
//!
//! # Reading order
//!
//! `head` (lines and fields), `content` (`Content-Type` and similar fields), `scan` (the
//! parts), `transfer` and `charset` (text and bytes), `word` (text in a header), `address` and
//! `date`; then reading: `part`, `body` and `mail`, `texts`; then the edits: `edit`, `footer`
//! with `insert`, `digest`.

mod address;
mod body;
mod charset;
mod content;
mod date;
mod digest;
mod edit;
mod envelope;
mod file_name;
mod flowed;
mod footer;
mod head;
mod insert;
mod mail;
mod part;
mod scan;
#[cfg(test)]
mod tests;
mod texts;
mod transfer;
mod utf7;
mod word;

pub use address::MailAddress;
pub use date::parse as parse_date;
pub use digest::digest;
pub use edit::{with_header, with_subject};
pub use envelope::{Envelope, InvalidEnvelope, envelope, without_bcc};
pub use footer::{FooterText, Untouched, with_footer};
pub use mail::{
    MAX_READ_HEADER, MAX_REFERENCES, ParsedHeader, ParsedMail, ReturnPath, field_groups, read_mail,
};
pub use part::{DecodedText, MailPart};
pub use scan::{MAX_DEPTH, MAX_PARTS};
pub use texts::{MAX_TEXTS, MailText, TextKind, texts};
pub use transfer::{DecodedChunks, to_base64, to_printable};
pub use word::{encoded_words, field as header_field};

use memchr::memchr;

use head::{LineKind, fields, line_at, sort, unfold};

/// Largest header section, in bytes.
pub const MAX_HEADER: usize = 1024 * 1024;
/// Most lines of a header section.
pub const MAX_HEADER_LINES: usize = 10_000;
/// Longest line of a header section, in bytes.
pub const MAX_HEADER_LINE: usize = 64 * 1024;

/// Why a mail cannot be passed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct InvalidMime {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

/// Checks that a mail can be passed on.
///
/// The header must consist of fields and continuation lines within [`MAX_HEADER`],
/// [`MAX_HEADER_LINES`] and [`MAX_HEADER_LINE`], without a bare CR. The mail must not
/// contain NUL, which servers drop or reject. The body may be missing, and its lines may
/// have any length.
///
/// # Errors
///
/// [`InvalidMime`] with the first wrong line.
pub fn check(mail: &[u8]) -> Result<(), InvalidMime> {
    if mail.starts_with(b"From ") {
        return Err(bad(1, "the mail starts with an mbox From line; leave that line out"));
    }
    let (mut at, mut number) = (0, 0);
    while let Some(line) = line_at(mail, at) {
        number += 1;
        let text = line.text(mail);
        if text.is_empty() {
            break;
        }
        check_line(text, number)?;
        if line.end > MAX_HEADER {
            return Err(bad(number, format!("the header is longer than {MAX_HEADER} bytes")));
        }
        at = line.end;
    }
    if at == 0 {
        return Err(bad(1, "the mail has no header; expected `Name: value` lines before the text"));
    }
    match memchr(0, mail) {
        None => Ok(()),
        Some(place) => Err(bad(line_number(mail, place), "there is a NUL byte")),
    }
}

fn check_line(text: &[u8], number: usize) -> Result<(), InvalidMime> {
    if number > MAX_HEADER_LINES {
        return Err(bad(number, format!("the header has more than {MAX_HEADER_LINES} lines")));
    }
    if text.len() > MAX_HEADER_LINE {
        return Err(bad(number, format!("a header line is longer than {MAX_HEADER_LINE} bytes")));
    }
    if text.contains(&0) {
        return Err(bad(number, "there is a NUL byte"));
    }
    if text.contains(&b'\r') {
        return Err(bad(number, "there is a CR without LF in the header"));
    }
    match sort(text) {
        LineKind::Field => Ok(()),
        LineKind::Folded if number > 1 => Ok(()),
        LineKind::Folded => {
            Err(bad(number, "the header starts with a line that continues another"))
        }
        LineKind::Blank | LineKind::Other => Err(bad(
            number,
            "not a header line; expected `Name: value`, and a blank line before the text",
        )),
    }
}

fn bad(line: usize, why: impl Into<String>) -> InvalidMime {
    InvalidMime { line, why: why.into() }
}

fn line_number(mail: &[u8], place: usize) -> usize {
    1 + mail[..place].iter().filter(|byte| **byte == b'\n').count()
}

/// The first field of that name: unfolded, trimmed and decoded (RFC 2047).
///
/// Bytes that are neither ASCII nor UTF-8 are decoded in a likely charset.
pub fn header(mail: &[u8], name: &str) -> Option<String> {
    let field = fields(mail).find(|field| field.is(mail, name))?;
    Some(word::decode(&unfold(&mail[field.value]), None))
}

/// The first `Subject` of a mail.
pub fn subject(mail: &[u8]) -> Option<String> {
    header(mail, "Subject")
}
