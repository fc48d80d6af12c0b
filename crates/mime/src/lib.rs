//! Mail as RFC 5322 and MIME have it, edited so that all the rest stays byte for byte.
//!
//! Bytes in, bytes out. Nothing is parsed into a tree and written back, for that would
//! change bytes outside the edit: an edit finds its place, and everything before
//! and after is copied. Line ends stay as they are, and what is inserted ends its lines
//! as the mail does.
//!
//! ```text
//! check          may it be passed on at all?
//! header, texts  what it says, decoded, for workers that inspect it
//! with_subject   one field replaced;  with_header: one added
//! with_footer    the body parts get a footer; or it says why nothing was touched
//! digest         many mails in one
//! ```
//!
//! Mail comes from strangers. No bytes make these functions panic; their time is linear
//! in the mail, and nesting counts to [`MAX_DEPTH`]. Where two readers could see a mail
//! differently, it is left alone.
//!
//! # Reading order
//!
//! `head` (lines and fields), `content` (`Content-Type` and its like), `scan` (the
//! parts), `transfer` and `charset` (how text becomes bytes), `word` (text in a header),
//! and then the edits: `edit`, `footer` with `insert`, `digest`, `texts`.

mod charset;
mod content;
mod digest;
mod edit;
mod envelope;
mod footer;
mod head;
mod insert;
mod scan;
#[cfg(test)]
mod tests;
mod texts;
mod transfer;
mod word;

pub use digest::digest;
pub use edit::{with_header, with_subject};
pub use envelope::{Envelope, InvalidEnvelope, envelope, without_bcc};
pub use footer::{FooterText, Untouched, with_footer};
pub use scan::{MAX_DEPTH, MAX_PARTS};
pub use texts::{MAX_TEXTS, MailText, TextKind, texts};

use memchr::memchr;

use head::{LineKind, fields, line_at, sort, unfold};

/// Largest header section, in bytes.
pub const MAX_HEADER: usize = 1024 * 1024;
/// Most lines of a header section.
pub const MAX_HEADER_LINES: usize = 10_000;
/// Longest line of a header section, in bytes.
pub const MAX_HEADER_LINE: usize = 64 * 1024;

/// The bytes are no mail that could be passed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct InvalidMime {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

/// Checks what must hold for any mail that is passed on.
///
/// It has a header section, whose lines are fields or continue one, within
/// [`MAX_HEADER`], [`MAX_HEADER_LINES`] and [`MAX_HEADER_LINE`], without a bare CR; and
/// there is no NUL anywhere, which servers on the way would drop or refuse. A body may
/// be missing, and its lines may be of any length.
///
/// # Errors
///
/// [`BadMail`], with the first line that is wrong.
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
        return Err(bad(1, "the mail has no header; want `Name: value` lines before the text"));
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
            "not a header line; want `Name: value`, and a blank line before the text",
        )),
    }
}

fn bad(line: usize, why: impl Into<String>) -> InvalidMime {
    InvalidMime { line, why: why.into() }
}

fn line_number(mail: &[u8], place: usize) -> usize {
    1 + mail[..place].iter().filter(|byte| **byte == b'\n').count()
}

/// The first field of that name, in any case: unfolded, trimmed and decoded (RFC 2047).
///
/// What is no valid text in any way becomes replacement characters.
pub fn header(mail: &[u8], name: &str) -> Option<String> {
    let field = fields(mail).find(|field| field.is(mail, name))?;
    Some(word::decode(&unfold(&mail[field.value])))
}

/// What a mail is about: its first `Subject`.
pub fn subject(mail: &[u8]) -> Option<String> {
    header(mail, "Subject")
}
