//! Transfer encodings: base64 and quoted-printable, as a whole or in chunks.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD, STANDARD};

use super::content::hex;

/// Longest line that is written (RFC 2045).
const LINE: usize = 76;

/// Raw bytes per decoded chunk. A multiple of 4, for base64.
const CHUNK: usize = 64 * 1024;

/// Accepts truncated base64, for reading only.
const LENIENT: GeneralPurpose =
    GeneralPurpose::new(&alphabet::STANDARD, NO_PAD.with_decode_allow_trailing_bits(true));

/// Transfer encoding of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    SevenBit,
    EightBit,
    QuotedPrintable,
    Base64,
}

impl Transfer {
    /// Reads the word of a `Content-Transfer-Encoding`.
    pub fn read(word: &str) -> Option<Self> {
        match word {
            "" | "7bit" => Some(Self::SevenBit),
            "8bit" | "binary" => Some(Self::EightBit),
            "quoted-printable" => Some(Self::QuotedPrintable),
            "base64" => Some(Self::Base64),
            _ => None,
        }
    }

    /// Decodes the content; `None` when it is damaged.
    pub fn decode(self, raw: &[u8]) -> Option<Cow<'_, [u8]>> {
        match self {
            Self::SevenBit | Self::EightBit => Some(Cow::Borrowed(raw)),
            Self::QuotedPrintable => Some(Cow::Owned(self.joined(raw))),
            Self::Base64 => {
                let dense: Vec<u8> =
                    raw.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
                STANDARD.decode(dense).ok().map(Cow::Owned)
            }
        }
    }

    /// Decodes the content as far as possible: other characters between base64 digits are
    /// skipped, and base64 ends at its padding.
    pub fn decode_some(self, raw: &[u8]) -> Cow<'_, [u8]> {
        match self {
            Self::Base64 => Cow::Owned(self.joined(raw)),
            _ => self.decode(raw).unwrap_or(Cow::Borrowed(raw)),
        }
    }

    /// Decodes the content as [`Self::decode_some`] does, without a copy of the whole.
    pub fn chunks(self, raw: &[u8]) -> DecodedChunks<'_> {
        DecodedChunks { transfer: self, raw }
    }

    fn joined(self, raw: &[u8]) -> Vec<u8> {
        self.chunks(raw).collect::<Vec<_>>().concat()
    }
}

/// The decoded content of a part, in chunks of at most 64 KiB.
#[derive(Clone, Debug)]
pub struct DecodedChunks<'m> {
    transfer: Transfer,
    /// What is not decoded yet.
    raw: &'m [u8],
}

impl<'m> Iterator for DecodedChunks<'m> {
    type Item = Cow<'m, [u8]>;

    fn next(&mut self) -> Option<Cow<'m, [u8]>> {
        if self.raw.is_empty() {
            return None;
        }
        Some(match self.transfer {
            Transfer::SevenBit | Transfer::EightBit => {
                let (chunk, rest) = self.raw.split_at(self.raw.len().min(CHUNK));
                self.raw = rest;
                Cow::Borrowed(chunk)
            }
            Transfer::QuotedPrintable => {
                let mut content = Vec::with_capacity(self.raw.len().min(CHUNK));
                let mut at = 0;
                while at < self.raw.len().min(CHUNK) {
                    let (byte, next) = printable_at(self.raw, at);
                    content.extend(byte);
                    at = next;
                }
                self.raw = &self.raw[at..];
                Cow::Owned(content)
            }
            Transfer::Base64 => Cow::Owned(self.base64()),
        })
    }
}

impl DecodedChunks<'_> {
    fn base64(&mut self) -> Vec<u8> {
        let mut dense = Vec::with_capacity(self.raw.len().min(CHUNK));
        let mut rest = self.raw.iter();
        while dense.len() < CHUNK
            && let Some(byte) = rest.next()
        {
            match byte {
                // Padding ends base64. Text that a mailing list appended may follow.
                b'=' if dense.len() % 4 >= 2 => rest = [].iter(),
                b'+' | b'/' => dense.push(*byte),
                _ if byte.is_ascii_alphanumeric() => dense.push(*byte),
                _ => {}
            }
        }
        self.raw = rest.as_slice();
        if dense.len() % 4 == 1 {
            dense.pop();
        }
        LENIENT.decode(dense).unwrap_or_default()
    }
}

/// Encodes base64 in lines, without a line break after the last.
pub fn to_base64(content: &[u8], line_break: &[u8]) -> Vec<u8> {
    let dense = STANDARD.encode(content);
    let lines: Vec<&[u8]> = dense.as_bytes().chunks(LINE).collect();
    lines.join(line_break)
}

/// Encodes quoted-printable. Line breaks stay; long lines get soft breaks.
pub fn to_printable(text: &[u8], line_break: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + text.len() / 8);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let bare = line.strip_suffix(b"\r\n").or_else(|| line.strip_suffix(b"\n"));
        let bare = bare.unwrap_or(line);
        let mut column = 0;
        for (at, byte) in bare.iter().enumerate() {
            let is_last = at + 1 == bare.len();
            let is_plain = match byte {
                b'=' => false,
                b' ' | b'\t' => !is_last,
                _ => byte.is_ascii_graphic(),
            };
            let width = if is_plain { 1 } else { 3 };
            // The `=` of a soft break needs a column.
            if column + width > LINE - usize::from(!is_last) {
                out.push(b'=');
                out.extend_from_slice(line_break);
                column = 0;
            }
            column += width;
            if is_plain {
                out.push(*byte);
            } else {
                out.extend_from_slice(format!("={byte:02X}").as_bytes());
            }
        }
        out.extend_from_slice(&line[bare.len()..]);
    }
    out
}

/// Offset at which byte number `place` of the content is written.
pub(super) fn place_in_printable(raw: &[u8], place: usize) -> usize {
    let (mut at, mut seen) = (0, 0);
    while at < raw.len() {
        let (byte, next) = printable_at(raw, at);
        if byte.is_some() {
            if seen == place {
                break;
            }
            seen += 1;
        }
        at = next;
    }
    at
}

/// The byte written at `at` (`None` for a soft break), and the offset of the next. An invalid
/// code stands for itself.
fn printable_at(raw: &[u8], at: usize) -> (Option<u8>, usize) {
    if raw[at] != b'=' {
        return (Some(raw[at]), at + 1);
    }
    if let Some(byte) = raw.get(at + 1..at + 3).and_then(hex) {
        return (Some(byte), at + 3);
    }
    let blanks = raw[at + 1..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let behind = &raw[at + 1 + blanks..];
    match behind {
        [] => (None, raw.len()),
        [b'\n', ..] => (None, at + blanks + 2),
        [b'\r', b'\n', ..] => (None, at + blanks + 3),
        _ => (Some(b'='), at + 1),
    }
}
