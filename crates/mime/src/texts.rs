//! Decoded texts of a mail, for filters and workers.

use super::part::MailPart;
use super::scan::scan;

/// Limit of decoded text per mail, in bytes.
pub const MAX_TEXTS: usize = 1024 * 1024;

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
pub fn texts(mail: &[u8]) -> Vec<MailText> {
    let mut texts = Vec::new();
    let mut room = MAX_TEXTS;
    for part in scan(mail).parts.iter().filter(|part| !part.is_file) {
        let mime_type = match part.kind() {
            "text/plain" => TextKind::Plain,
            "text/html" => TextKind::Html,
            _ => continue,
        };
        if room == 0 {
            break;
        }
        let part = MailPart::new(mail, part, None);
        let decoded = part.text(room).text;
        room -= decoded.len();
        texts.push(MailText { mime_type, charset: part.charset, decoded });
    }
    texts
}
