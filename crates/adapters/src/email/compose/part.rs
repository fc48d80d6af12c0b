//! Parts of a mail (MIME): texts, files, original mails and multiparts.

use monoco_core::inbound::InboundAttachment;
use monoco_core::letter::RFC822;
use monoco_mime::{to_base64, to_printable};

use super::MAX_LINE_BYTES;
use super::header::{file_name, parameter};

/// Longest line of a text that is sent as it is, in bytes.
const MAX_PLAIN_LINE: usize = 78;

/// The media type of bytes whose own type cannot be written.
const ANY_BYTES: &str = "application/octet-stream";

/// A part with its fields. Multiparts contain others.
#[derive(Clone, Debug)]
pub enum ComposedPart {
    Leaf {
        /// Fields with their line breaks.
        fields: String,
        content: Vec<u8>,
    },
    Multipart {
        kind: &'static str,
        boundary: String,
        /// Whether a part has bytes above 127.
        eight_bit: bool,
        parts: Vec<ComposedPart>,
    },
}

impl ComposedPart {
    /// A text of type `text/{kind}`, encoded when a server could change it otherwise.
    pub fn text(kind: &str, text: &str) -> Self {
        let content = with_crlf(text.as_bytes());
        let is_plain = lines(&content).all(|line| {
            line.len() <= MAX_PLAIN_LINE
                && line.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
        });
        let above_ascii = content.iter().filter(|byte| !byte.is_ascii()).count();
        let (transfer, content) = if is_plain {
            ("7bit", content)
        } else if above_ascii > content.len() / 6 {
            ("base64", to_base64(&content, b"\r\n"))
        } else {
            ("quoted-printable", to_printable(&content, b"\r\n"))
        };
        let fields = format!(
            "Content-Type: text/{kind}; charset=utf-8\r\nContent-Transfer-Encoding: {transfer}\r\n"
        );
        Self::Leaf { fields, content }
    }

    /// A file. A mail stays readable as a mail (RFC 2046 forbids to encode it), unless it has
    /// bytes or lines that cannot be sent.
    pub fn attachment(attached: &InboundAttachment, eight_bit: bool) -> Self {
        let name = file_name(&attached.name);
        let disposition =
            format!("Content-Disposition: attachment{}\r\n", parameter("filename", &name));
        let media_type = media_type(&attached.mime_type);
        if media_type.eq_ignore_ascii_case(RFC822)
            && let Some((transfer, content)) = original_mail(&attached.bytes, eight_bit)
        {
            let fields = format!(
                "Content-Type: {RFC822}\r\nContent-Transfer-Encoding: {transfer}\r\n{disposition}"
            );
            return Self::Leaf { fields, content };
        }
        let media_type =
            if media_type.eq_ignore_ascii_case(RFC822) { ANY_BYTES } else { media_type };
        let fields = format!(
            "Content-Type: {media_type}{}\r\nContent-Transfer-Encoding: base64\r\n{disposition}",
            parameter("name", &name)
        );
        Self::Leaf { fields, content: to_base64(&attached.bytes, b"\r\n") }
    }

    pub fn multipart(kind: &'static str, boundary: String, parts: Vec<Self>) -> Self {
        let eight_bit = parts.iter().any(Self::is_eight_bit);
        Self::Multipart { kind, boundary, eight_bit, parts }
    }

    fn is_eight_bit(&self) -> bool {
        match self {
            Self::Leaf { content, .. } => !content.is_ascii(),
            Self::Multipart { eight_bit, .. } => *eight_bit,
        }
    }

    /// Appends the fields, the blank line and the content, which ends with a line break.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Leaf { fields, content } => {
                out.extend_from_slice(fields.as_bytes());
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(content);
                if !content.ends_with(b"\r\n") {
                    out.extend_from_slice(b"\r\n");
                }
            }
            Self::Multipart { kind, boundary, eight_bit, parts } => {
                let fields =
                    format!("Content-Type: multipart/{kind};\r\n boundary=\"{boundary}\"\r\n");
                out.extend_from_slice(fields.as_bytes());
                if *eight_bit {
                    out.extend_from_slice(b"Content-Transfer-Encoding: 8bit\r\n");
                }
                for part in parts {
                    out.extend_from_slice(format!("\r\n--{boundary}\r\n").as_bytes());
                    part.write(out);
                }
                out.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
            }
        }
    }
}

/// Returns the transfer encoding and the content of an original mail, or `None` when it cannot
/// be sent as a mail.
fn original_mail(mail: &[u8], eight_bit: bool) -> Option<(&'static str, Vec<u8>)> {
    let transfer = if mail.is_ascii() { "7bit" } else { "8bit" };
    if transfer == "8bit" && !eight_bit {
        return None;
    }
    let content = with_crlf(mail);
    let is_sendable = lines(&content).all(|line| {
        line.len() <= MAX_LINE_BYTES && !line.iter().any(|byte| matches!(byte, b'\r' | 0))
    });
    is_sendable.then_some((transfer, content))
}

/// Returns the bytes with CRLF for every line break. A CR that is not part of one stays.
pub fn with_crlf(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 32);
    let mut copied = 0;
    for at in memchr::memchr_iter(b'\n', bytes) {
        if at == 0 || bytes[at - 1] != b'\r' {
            out.extend_from_slice(&bytes[copied..at]);
            out.extend_from_slice(b"\r\n");
            copied = at + 1;
        }
    }
    out.extend_from_slice(&bytes[copied..]);
    out
}

/// Returns the lines of bytes from [`with_crlf`], without their line breaks.
pub fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    lines.map(|line| line.strip_suffix(b"\r\n").unwrap_or(line))
}

/// Returns a media type that can be written. Types that contain parts are not among them,
/// because their content is not encoded.
fn media_type(text: &str) -> &str {
    let is_token = |word: &str| {
        (1..=127).contains(&word.len())
            && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&b))
    };
    // Parameters of the sender, such as a charset, are left out.
    let essence = text.split(';').next().unwrap_or_default().trim();
    let Some((kind, subtype)) = essence.split_once('/') else { return ANY_BYTES };
    let has_parts = kind.eq_ignore_ascii_case("multipart")
        || kind.eq_ignore_ascii_case("message") && !essence.eq_ignore_ascii_case(RFC822);
    if has_parts || !is_token(kind) || !is_token(subtype) { ANY_BYTES } else { essence }
}
