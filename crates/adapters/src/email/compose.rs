//! Writes mails (RFC 5322 and MIME) from messages. Pure functions: bytes out, no I/O.
//!
//! ```text
//! text/plain                        a plain text
//! multipart/alternative             Markdown: its source, and HTML
//! multipart/mixed                   one of these, then the attachments
//! the bytes of the letter           a message of format message/rfc822
//! ```
//!
//! Texts come from outside. Line breaks and control characters cannot leave their field:
//! free text is encoded (RFC 2047), and a value of any other form is rejected. Lines have at
//! most 998 bytes and end with CRLF. A CR or LF that is not a line break is encoded.
//!
//! The same request gives the same bytes, so that every attempt and every copy of a message
//! is the same mail.

use monoco_core::inbound::InboundAttachment;
use monoco_core::letter::{RFC822, check_address};
use monoco_core::outgoing::{EmailHeaders, OutgoingMessage};
use monoco_core::time::Timestamp;
use sha2::{Digest, Sha256};

mod header;
mod markdown;
mod part;
#[cfg(test)]
mod tests;

use header::HeaderWriter;
use part::ComposedPart;

/// Longest line of a mail without its line break, in bytes (RFC 5322, section 2.1.1).
pub const MAX_LINE_BYTES: usize = 998;

/// Longest message id that is written, in bytes.
const MAX_MESSAGE_ID_BYTES: usize = 900;

/// How many message ids `References` has at most: the root and the newest.
const MAX_REFERENCES: usize = 20;

/// The times that RFC 5322 can express and `httpdate` accepts: years 1970 to 9999.
const DATE_RANGE_MS: std::ops::RangeInclusive<i64> = 0..=253_402_300_799_999;

/// Fields that senders cannot set by [`EmailHeaders::headers`]: the composer or the servers
/// write them, and a second one would make the mail ambiguous.
const RESERVED_FIELDS: [&str; 18] = [
    "from",
    "sender",
    "to",
    "cc",
    "bcc",
    "reply-to",
    "subject",
    "date",
    "message-id",
    "in-reply-to",
    "references",
    "auto-submitted",
    "mime-version",
    "return-path",
    "received",
    "resent-to",
    "resent-cc",
    "resent-bcc",
];

/// One mail to write.
#[derive(Clone, Copy, Debug)]
pub struct ComposeRequest<'a> {
    pub message: &'a OutgoingMessage,
    /// The content of [`OutgoingMessage::attachments`].
    pub attachments: &'a [InboundAttachment],
    pub from_address: &'a str,
    pub from_name: Option<&'a str>,
    /// The addresses that every copy shows. Recipients of blind copies are in neither list.
    pub to: &'a [String],
    pub cc: &'a [String],
    /// The message id of a message that brings none, with angle brackets.
    pub message_id: &'a str,
    /// When the message was written, unless the message says so.
    pub now: Timestamp,
    /// Whether the server accepts bytes above 127 (8BITMIME). Without it, an original mail that
    /// has such bytes is attached as a file.
    pub eight_bit: bool,
}

/// A mail that can be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComposedMail {
    pub bytes: Vec<u8>,
    /// With angle brackets; `None` when a letter has none.
    pub message_id: Option<String>,
    /// An address in the header that only servers with SMTPUTF8 accept.
    pub utf8_address: Option<String>,
}

/// Why a message cannot be written as a mail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot write the mail: {field}: {why}")]
pub struct InvalidOutgoingMail {
    pub field: String,
    pub why: String,
}

/// Writes the mail of a message.
///
/// # Errors
///
/// [`InvalidOutgoingMail`] when a value cannot be part of a mail. Another attempt does not help.
pub fn compose(request: &ComposeRequest<'_>) -> Result<ComposedMail, InvalidOutgoingMail> {
    if request.message.format.as_deref() == Some(RFC822) {
        return letter(request.message, request.attachments);
    }
    let no_headers = EmailHeaders::default();
    let email = request.message.email.as_ref().unwrap_or(&no_headers);
    let message_id = email.message_id.as_deref().unwrap_or(request.message_id);
    if !is_message_id(message_id) {
        return Err(invalid("Message-ID", format!("expected <…@…>, found {message_id:?}")));
    }
    let mut header = HeaderWriter::default();
    header.text("Date", &date(request.message.created_at.unwrap_or(request.now)));
    let from = check_mail_address("From", request.from_address)?;
    header.mailboxes("From", &[(request.from_name, from)]);
    let mut addresses = vec![request.from_address.to_owned()];
    for (name, list) in [("To", request.to), ("Cc", request.cc)] {
        let checked = list.iter().map(|address| check_mail_address(name, address));
        let checked = checked.collect::<Result<Vec<_>, _>>()?;
        let boxes: Vec<_> = checked.into_iter().map(|address| (None, address)).collect();
        if !boxes.is_empty() {
            header.mailboxes(name, &boxes);
        } else if name == "To" && request.cc.is_empty() {
            header.text("To", "undisclosed-recipients:;");
        }
        addresses.extend(boxes.into_iter().map(|(_, address)| address));
    }
    header.text("Subject", request.message.title.as_deref().unwrap_or_default());
    header.tokens("Message-ID", &[message_id.to_owned()]);
    write_thread(&mut header, request.message, email);
    if let Some(reply_to) = &email.reply_to {
        let (name, address) = split_name(reply_to);
        let address = check_mail_address("Reply-To", address)?;
        addresses.push(address.clone());
        header.mailboxes("Reply-To", &[(name, address)]);
    }
    if let Some(value) = &email.auto_submitted {
        header.text("Auto-Submitted", check_line("Auto-Submitted", value)?);
    }
    for (name, value) in &email.headers {
        let is_name = !name.is_empty()
            && name.len() <= 64
            && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
        let lower = name.to_ascii_lowercase();
        if !is_name {
            return Err(invalid("headers", format!("{name:?} is not the name of a field")));
        }
        if RESERVED_FIELDS.contains(&lower.as_str()) || lower.starts_with("content-") {
            return Err(invalid("headers", format!("{name} cannot be set here")));
        }
        header.text(name, check_line(name, value)?);
    }
    header.text("MIME-Version", "1.0");
    let mut bytes = header.into_bytes();
    body(request, message_id).write(&mut bytes);
    Ok(ComposedMail {
        bytes,
        message_id: Some(message_id.to_owned()),
        utf8_address: addresses.into_iter().find(|address| !address.is_ascii()),
    })
}

/// Returns the id of the message that this external id was made from, when it has one. The
/// external id of a mail is its message id, `#` and a hash.
pub fn message_id_of_external_id(external_id: &str) -> Option<&str> {
    let id = external_id.rsplit_once('#').map_or(external_id, |(id, _)| id);
    is_message_id(id).then_some(id)
}

/// Checks an address and returns it with its domain in ASCII (IDNA), as mail servers expect it.
///
/// # Errors
///
/// [`InvalidOutgoingMail`] for a text that is not one address, such as one with a line break.
pub fn check_mail_address(field: &str, address: &str) -> Result<String, InvalidOutgoingMail> {
    let found = |why: String| invalid(field, format!("{address:?} is not an address: {why}"));
    let Some((local, domain)) = address.rsplit_once('@') else {
        return Err(found("expected name@domain".to_owned()));
    };
    if address.starts_with("did:") {
        return Err(found("it is a DID".to_owned()));
    }
    check_address(address).map_err(found)?;
    if domain.is_ascii() {
        return Ok(address.to_owned());
    }
    let url = reqwest::Url::parse(&format!("http://{domain}/"));
    let ascii = url.ok().and_then(|url| url.domain().map(str::to_owned));
    let ascii = ascii.ok_or_else(|| found("invalid domain".to_owned()))?;
    Ok(format!("{local}@{ascii}"))
}

/// Writes `In-Reply-To` and `References`: the root of the thread, and the answered message.
fn write_thread(header: &mut HeaderWriter, message: &OutgoingMessage, email: &EmailHeaders) {
    let answered = message.reply_to.as_deref().and_then(message_id_of_external_id);
    let parent = email.in_reply_to.as_deref().filter(|id| is_message_id(id)).or(answered);
    let mut thread: Vec<&str> = email.references.iter().map(String::as_str).collect();
    if thread.is_empty() {
        thread.extend(message.topic.as_deref());
    }
    thread.extend(parent);
    let mut references: Vec<String> = Vec::new();
    for id in thread {
        if is_message_id(id) && !references.iter().any(|known| known == id) {
            references.push(id.to_owned());
        }
    }
    if references.len() > MAX_REFERENCES {
        references.drain(1..=references.len() - MAX_REFERENCES);
    }
    if let Some(parent) = parent {
        header.tokens("In-Reply-To", &[parent.to_owned()]);
    }
    if !references.is_empty() {
        header.tokens("References", &references);
    }
}

/// Returns the body as a part whose fields end the header of the mail.
fn body(request: &ComposeRequest<'_>, message_id: &str) -> ComposedPart {
    let text = &request.message.text;
    let content = match request.message.format.as_deref() {
        None | Some("text/markdown") => {
            let plain = ComposedPart::text("plain", text);
            let html = ComposedPart::text("html", &markdown::to_html(text));
            let boundary = boundary(request, message_id, "alternative");
            ComposedPart::multipart("alternative", boundary, vec![plain, html])
        }
        Some("text/html") => ComposedPart::text("html", text),
        Some(_) => ComposedPart::text("plain", text),
    };
    if request.attachments.is_empty() {
        return content;
    }
    let mut parts = vec![content];
    let attached = request.attachments.iter();
    parts.extend(attached.map(|attached| ComposedPart::attachment(attached, request.eight_bit)));
    ComposedPart::multipart("mixed", boundary(request, message_id, "mixed"), parts)
}

/// Returns a boundary that occurs in no part: a text or an original mail cannot contain a hash of
/// itself.
fn boundary(request: &ComposeRequest<'_>, message_id: &str, kind: &str) -> String {
    let mut hash = Sha256::new().chain_update(message_id).chain_update(kind);
    hash.update(&request.message.text);
    for attachment in request.attachments {
        hash.update(&attachment.bytes);
    }
    let hash: [u8; 32] = hash.finalize().into();
    let hex: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("=_monoco_{hex}")
}

/// Returns the bytes of a letter, which is a mail already. Only its `Bcc` fields are removed,
/// and line breaks become CRLF.
fn letter(
    message: &OutgoingMessage,
    attachments: &[InboundAttachment],
) -> Result<ComposedMail, InvalidOutgoingMail> {
    let bytes = match (message.text.as_str(), attachments) {
        // A large mail is stored as an attachment.
        ("", [mail]) => mail.bytes.clone(),
        (text, _) if message.charset.as_deref() == Some("latin-1") => {
            let bytes = text.chars().map(|c| u8::try_from(u32::from(c)));
            bytes.collect::<Result<Vec<_>, _>>().map_err(|_| {
                invalid("content", "a character above U+00FF, but its charset is latin-1")
            })?
        }
        (text, _) => text.as_bytes().to_vec(),
    };
    let found = |line: usize, why: &str| invalid("the letter", format!("line {line}: {why}"));
    monoco_mime::check(&bytes).map_err(|error| invalid("the letter", error.to_string()))?;
    let bytes = part::with_crlf(&monoco_mime::without_bcc(&bytes));
    for (at, text) in part::lines(&bytes).enumerate() {
        if text.contains(&b'\r') {
            return Err(found(at + 1, "a CR without LF; servers reject it"));
        }
        if text.len() > MAX_LINE_BYTES {
            let why = format!("{} bytes; at most {MAX_LINE_BYTES} can be sent", text.len());
            return Err(found(at + 1, &why));
        }
    }
    let message_id = monoco_mime::header(&bytes, "Message-ID");
    Ok(ComposedMail {
        message_id: message_id.filter(|id| is_message_id(id)),
        utf8_address: None,
        bytes,
    })
}

/// Tells whether a text can be written as one message id.
fn is_message_id(text: &str) -> bool {
    let inner = text.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
    inner.is_some_and(|inner| {
        inner.len() <= MAX_MESSAGE_ID_BYTES
            && inner.bytes().all(|byte| byte.is_ascii_graphic() && !b"<>".contains(&byte))
            && inner.split_once('@').is_some_and(|(left, right)| {
                !left.is_empty() && !right.is_empty() && !right.contains('@')
            })
    })
}

/// Splits `Name <address>`. A text without brackets is an address.
fn split_name(text: &str) -> (Option<&str>, &str) {
    let bare = text.trim();
    match bare.strip_suffix('>').and_then(|rest| rest.rsplit_once('<')) {
        Some((name, address)) => {
            let name = name.trim().trim_matches('"');
            ((!name.is_empty()).then_some(name), address)
        }
        None => (None, bare),
    }
}

/// Rejects a value with a line break: it was meant to be more than one field.
fn check_line<'v>(field: &str, value: &'v str) -> Result<&'v str, InvalidOutgoingMail> {
    match value.contains(['\r', '\n']) {
        true => Err(invalid(field, "the value has a line break")),
        false => Ok(value),
    }
}

/// Writes a time as in `Fri, 06 Feb 2026 20:45:00 +0000`.
fn date(at: Timestamp) -> String {
    let ms = at.ms().clamp(*DATE_RANGE_MS.start(), *DATE_RANGE_MS.end());
    let since_epoch = std::time::Duration::from_millis(u64::try_from(ms).unwrap_or_default());
    httpdate::fmt_http_date(std::time::UNIX_EPOCH + since_epoch).replace("GMT", "+0000")
}

fn invalid(field: impl Into<String>, why: impl Into<String>) -> InvalidOutgoingMail {
    InvalidOutgoingMail { field: field.into(), why: why.into() }
}
