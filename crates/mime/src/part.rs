//! One part of a mail that has content: its type, file name and decoded content.

use std::io::Write;

use super::charset::{Charset, decode_named};
use super::file_name::{default_name, safe_name};
use super::flowed::unflow;
use super::head::{fields_from, unfold};
use super::scan::{MimePart, is_type};
use super::transfer::{DecodedChunks, Transfer};

/// Limit of an identifier in a header, in bytes. A line of mail has at most 998.
pub(super) const MAX_ID: usize = 998;

/// Longest media type, in bytes. RFC 6838 allows 127 for each half.
const MAX_TYPE: usize = 255;

/// One part of a mail: a text or an attachment. It borrows the mail and copies no content.
#[derive(Clone, Debug)]
pub struct MailPart<'m> {
    /// Media type in lower case. An invalid one is `text/plain`, or `application/octet-stream`
    /// for an attachment.
    pub mime_type: String,
    /// Charset as named, in lower case.
    pub charset: Option<String>,
    /// File name without path, control characters and direction marks.
    pub name: Option<String>,
    /// `Content-ID` without its angle brackets.
    pub content_id: Option<String>,
    /// Whether the part is shown in the text, such as an image in HTML.
    pub is_inline: bool,
    /// Whether the transfer encoding is unknown. The content is then not decoded.
    pub is_undecoded: bool,
    is_flowed: bool,
    /// Whether spaces at joined line ends are deleted.
    deletes_spaces: bool,
    transfer: Transfer,
    raw: &'m [u8],
}

/// Decoded text of a part, with a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodedText {
    pub text: String,
    /// Whether the part has more text than the limit.
    pub is_cut: bool,
}

impl<'m> MailPart<'m> {
    /// The part as `scan` found it. `hint` is the charset of undeclared text in its header.
    pub(super) fn new(mail: &'m [u8], part: &MimePart, hint: Option<Charset>) -> Self {
        let disposition = &part.disposition;
        let name = disposition.text("filename", hint).or_else(|| part.content.text("name", hint));
        let is_entered = part.is_multipart() && part.children.is_empty() && !part.too_deep;
        let mime_type = match part.kind() {
            // A multipart in which no part was found is a text.
            _ if is_entered => "text/plain",
            word if is_type(word) && word.len() <= MAX_TYPE => word,
            _ if part.is_file => "application/octet-stream",
            _ => "text/plain",
        };
        let head = &mail[..part.head.end];
        let content_id = fields_from(head, part.head.start)
            .find(|field| field.is(head, "Content-ID"))
            .and_then(|field| ids(&unfold(&head[field.value])).next());
        let content_id = content_id.map(|id| id.trim_matches(['<', '>']).to_owned());
        let is = |name: &str, value: &[u8]| {
            part.content.get(name).is_some_and(|found| found.eq_ignore_ascii_case(value))
        };
        let word = part.transfer.split([';', '(', ' ', '\t']).next().unwrap_or_default();
        let transfer = Transfer::read(word);
        let charset = part.content.get("charset");
        Self {
            mime_type: mime_type.to_owned(),
            charset: charset.map(|name| String::from_utf8_lossy(&name).to_ascii_lowercase()),
            name: name.as_deref().and_then(safe_name),
            is_inline: disposition.word == "inline" || !part.is_file && content_id.is_some(),
            content_id,
            is_undecoded: transfer.is_none(),
            is_flowed: is("format", b"flowed"),
            deletes_spaces: is("delsp", b"yes"),
            transfer: transfer.unwrap_or(Transfer::EightBit),
            raw: &mail[part.body.clone()],
        }
    }

    /// File name of the part, or one made from its type.
    pub fn file_name(&self) -> String {
        self.name.clone().unwrap_or_else(|| default_name(&self.mime_type))
    }

    /// Whether this is a text that belongs to the body of a mail.
    pub(super) fn is_text(&self) -> bool {
        matches!(self.mime_type.as_str(), "text/plain" | "text/html" | "text/markdown")
    }

    pub fn is_html(&self) -> bool {
        self.mime_type == "text/html"
    }

    /// The content as encoded in the mail.
    pub fn encoded(&self) -> &'m [u8] {
        self.raw
    }

    /// The decoded content in chunks of at most 64 KiB, so that a large part is not copied.
    pub fn chunks(&self) -> DecodedChunks<'m> {
        self.transfer.chunks(self.raw)
    }

    /// Writes the decoded content. Returns its length in bytes.
    ///
    /// # Errors
    ///
    /// The error of `target`; decoding does not fail.
    pub fn decode_into(&self, target: &mut impl Write) -> std::io::Result<u64> {
        let mut size = 0;
        for chunk in self.chunks() {
            target.write_all(&chunk)?;
            size += chunk.len() as u64;
        }
        Ok(size)
    }

    /// The start of the decoded content, and whether there is more.
    pub fn bytes(&self, limit: usize) -> (Vec<u8>, bool) {
        let mut bytes = Vec::new();
        for chunk in self.chunks() {
            let room = limit - bytes.len();
            if chunk.len() > room {
                bytes.extend_from_slice(&chunk[..room]);
                return (bytes, true);
            }
            bytes.extend_from_slice(&chunk);
        }
        (bytes, false)
    }

    /// The decoded text, at most `limit` bytes.
    ///
    /// Damaged base64 is decoded as far as possible. A text in an unknown charset is read as
    /// UTF-8 or in a likely charset.
    pub fn text(&self, limit: usize) -> DecodedText {
        let (bytes, mut is_cut) = self.bytes(limit);
        let mut text =
            decode_named(self.charset.as_deref().map(str::as_bytes), &bytes).into_owned();
        if is_cut && text.ends_with(char::REPLACEMENT_CHARACTER) {
            // The limit is inside a character.
            text.pop();
        }
        is_cut |= text.len() > limit;
        text.truncate(text.floor_char_boundary(limit));
        DecodedText { text, is_cut }
    }

    /// The decoded plain text, at most `limit` bytes: lines end in LF, and lines that
    /// `format=flowed` has broken are joined.
    pub fn plain_text(&self, limit: usize) -> DecodedText {
        let DecodedText { text, is_cut } = self.text(limit);
        let mut text = match text.contains('\r') {
            true => text.replace("\r\n", "\n").replace('\r', "\n"),
            false => text,
        };
        if self.is_flowed {
            text = unflow(&text, self.deletes_spaces);
        }
        DecodedText { text, is_cut }
    }
}

/// The message ids `<left@right>` in the value of a field, with their angle brackets.
///
/// Comments and text between them are skipped; white space inside of them, which broken
/// folding leaves, is removed.
pub(super) fn ids(value: &[u8]) -> impl Iterator<Item = String> {
    let mut rest = value;
    std::iter::from_fn(move || {
        loop {
            let start = rest.iter().position(|byte| *byte == b'<')?;
            let length = rest[start..].iter().position(|byte| *byte == b'>')?;
            let id = &rest[start..=start + length];
            rest = &rest[start + length + 1..];
            let id: String = String::from_utf8_lossy(id)
                .chars()
                .filter(|c| !c.is_whitespace() && !c.is_control())
                .collect();
            if id.len() > 2 && id.len() <= MAX_ID {
                return Some(id);
            }
        }
    })
}
