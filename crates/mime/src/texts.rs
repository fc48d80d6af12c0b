//! Decoded texts of a mail, for filters and workers.

use super::charset::Charset;
use super::scan::{MimePart, scan};
use super::transfer::Transfer;

/// Limit of decoded text per mail, in bytes.
pub const MAX_TEXTS: usize = 1024 * 1024;

/// Limit of raw bytes per part: quoted-printable needs up to three for one.
const MAX_RAW: usize = 4 * MAX_TEXTS;

/// What kind of text a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextKind {
    Plain,
    Html,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailText {
    pub mime_type: TextKind,
    /// Charset as named, in lower case.
    pub charset: Option<String>,
    pub decoded: String,
}

/// The texts of a mail that are not attachments, at most [`MAX_TEXTS`] bytes in all.
///
/// Damaged base64 is decoded up to the damage; an unknown charset is read as UTF-8.
pub fn texts(mail: &[u8]) -> Vec<MailText> {
    let mut texts = Vec::new();
    let mut room = MAX_TEXTS;
    for part in scan(mail).parts {
        let Some(mime_type) = kind(&part) else { continue };
        if room == 0 {
            break;
        }
        let charset = part.content.get("charset");
        let raw = &mail[part.body.clone()];
        let word = part.transfer.split([';', '(', ' ', '\t']).next().unwrap_or_default();
        let transfer = Transfer::read(word).unwrap_or(Transfer::EightBit);
        let bytes = transfer.decode_some(&raw[..raw.len().min(MAX_RAW)]);
        let bytes = &bytes[..bytes.len().min(MAX_TEXTS)];
        let mut decoded = match Charset::find(charset.as_deref()) {
            Some(charset) if part.content.has("charset") => charset.decode(bytes).into_owned(),
            _ => String::from_utf8_lossy(bytes).into_owned(),
        };
        decoded.truncate(decoded.floor_char_boundary(room));
        room -= decoded.len();
        let name = |name: Vec<u8>| String::from_utf8_lossy(&name).to_ascii_lowercase();
        texts.push(MailText { mime_type, charset: charset.map(name), decoded });
    }
    texts
}

fn kind(part: &MimePart) -> Option<TextKind> {
    match part.kind() {
        _ if part.is_file => None,
        "text/plain" => Some(TextKind::Plain),
        "text/html" => Some(TextKind::Html),
        _ => None,
    }
}
