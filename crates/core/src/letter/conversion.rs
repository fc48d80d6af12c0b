//! Conversion between letters and messages.
//!
//! A letter is created from an inbound message, from a MsgObject that is dispatched or sent,
//! or from a submission. At the end of its chain it becomes a message again; what no worker
//! changed becomes exactly the message it was.

use serde_json::{Map, Value, json};

use super::{ChainDirection, Letter, LetterId, MAX_DATA, RFC822, content_type};
use crate::did::{Did, Endpoint, EndpointKind, InvalidDid, TunnelId};
use crate::inbound::{ChatSessionKind, InboundMessage, InvalidInboundMessage, ValidInboundMessage};
use crate::object::{InvalidObject, MsgObject, ObjId};
use crate::time::Timestamp;

/// Maximum size of a mail that is part of its message, in bytes. A larger one is stored as
/// an attachment.
pub const INLINE_MAIL: usize = 256 << 10;

/// Why a letter at the end of its chain does not become a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FinishError {
    #[error("the letter that the workers returned is not a valid message: {0}")]
    Object(#[from] InvalidObject),
    #[error("the letter that the workers returned is not a valid inbound message: {0}")]
    Inbound(#[from] InvalidInboundMessage),
    #[error(transparent)]
    Address(#[from] InvalidDid),
    #[error(
        "no tunnel for {0}; set `extra.tunnel`, or the tunnel for all letters in \
         `courier.pipeline.workers.send.tunnel`"
    )]
    NoTunnel(String),
}

/// What is needed to send a submitted letter, beyond the letter itself.
#[derive(Clone, Copy, Debug)]
pub struct FinishContext<'a> {
    /// Part of the message: two letters with the same text are two messages.
    pub id: LetterId,
    /// When the letter was accepted.
    pub at: Timestamp,
    /// The tunnel for addresses that are not DIDs.
    pub tunnel: Option<&'a TunnelId>,
    /// The stored mail and its size, when it is larger than [`INLINE_MAIL`].
    pub bytes: Option<(ObjId, u64)>,
    /// The subject in the header of the mail.
    pub mail_subject: Option<&'a str>,
}

impl Letter {
    /// Creates the letter of an inbound message.
    ///
    /// # Errors
    ///
    /// When an id does not fit into a DID; those of a valid message do.
    pub fn from_inbound(
        message: &InboundMessage,
        tunnel: &TunnelId,
        provider: &str,
    ) -> Result<Self, InvalidDid> {
        let from = message.from.did(tunnel)?;
        let to = match (message.session.kind, message.from.kind) {
            // The session of an e-mail is the address that it was sent to.
            (ChatSessionKind::Direct, EndpointKind::Addr) => {
                Endpoint::address(&message.session.id, tunnel.clone()).did()?
            }
            _ => message.session.answer_to(message.answer_account(), tunnel)?,
        };
        let mut extra = initial_extra(ChainDirection::Inbound, "text/markdown");
        extra.insert("tunnel".to_owned(), json!(tunnel));
        extra.insert("provider".to_owned(), json!(provider));
        extra.insert("external_id".to_owned(), json!(message.id));
        extra.insert("session".to_owned(), json!(message.session));
        if let Some(name) = &message.from.name {
            extra.insert("from_name".to_owned(), json!(name));
        }
        if let Some(title) = &message.title {
            extra.insert("subject".to_owned(), json!(title));
        }
        let (from, to) = (from.into(), vec![to.into()]);
        Ok(Self { from, to, data: message.text.clone(), extra, rest: Map::new() })
    }

    /// Returns the letter of an inbound message with the whole mail as its data, so that
    /// workers see the header. A mail that is too large for a letter leaves it as it is.
    #[must_use]
    pub fn with_mail(self, mail: &[u8]) -> Self {
        let mut letter = self.with_bytes(mail.to_vec());
        if letter.data.len() > MAX_DATA {
            return self;
        }
        letter.extra.insert("content_type".to_owned(), json!(RFC822));
        letter
    }

    /// Creates the letter of a message that is dispatched or sent.
    pub fn from_message(msg: &MsgObject, direction: ChainDirection) -> Self {
        let value: Value = serde_json::from_str(msg.canonical()).unwrap_or_default();
        let text = |at: &str| value.pointer(at).and_then(Value::as_str);
        let format = text("/content/format").unwrap_or("text/markdown");
        let mut extra = initial_extra(direction, format);
        extra.insert("msg_id".to_owned(), json!(msg.id()));
        extra.insert("kind".to_owned(), json!(msg.kind));
        if let Some(title) = text("/content/title") {
            extra.insert("subject".to_owned(), json!(title));
        }
        // A letter has only the text; the count tells the merge worker that there is more.
        let refs = value.pointer("/content/refs").and_then(Value::as_array).map_or(0, Vec::len);
        let machine = usize::from(value.pointer("/content/machine").is_some());
        if refs + machine > 0 {
            extra.insert("attached".to_owned(), json!(refs + machine));
        }
        let (from, to) = (&msg.author(), &msg.to);
        Self {
            from: from.as_str().to_owned(),
            to: to.iter().map(|did| did.as_str().to_owned()).collect(),
            data: text("/content/content").unwrap_or_default().to_owned(),
            extra,
            rest: Map::new(),
        }
    }
}

fn initial_extra(direction: ChainDirection, content_type: &str) -> Map<String, Value> {
    let mut extra = Map::new();
    extra.insert("content_type".to_owned(), json!(content_type));
    extra.insert("direction".to_owned(), json!(direction));
    extra
}

/// Returns the inbound message with the text and subject of the letter.
///
/// # Errors
///
/// When the result exceeds a limit.
pub fn apply_to_inbound(
    message: &InboundMessage,
    letter: &Letter,
) -> Result<ValidInboundMessage, FinishError> {
    let title = letter.extra("subject").map(str::to_owned);
    let message = InboundMessage { text: letter.data.clone(), title, ..message.clone() };
    Ok(message.validate()?)
}

/// Returns the inbound message of a letter that is a whole mail. Its text was read from the
/// original mail and stays; its subject is that of the letter, or the one in the header of the
/// mail when a worker changed that (`header_subject`).
///
/// # Errors
///
/// When the result exceeds a limit.
pub fn apply_mail_to_inbound(
    message: &InboundMessage,
    letter: &Letter,
    header_subject: Option<String>,
) -> Result<ValidInboundMessage, FinishError> {
    let title = header_subject.or_else(|| letter.extra("subject").map(str::to_owned));
    let message = InboundMessage { title, ..message.clone() };
    Ok(message.cut_to_limits().0.validate()?)
}

/// Returns the message with addresses, text and subject of the letter; the same message
/// when the workers changed nothing.
///
/// # Errors
///
/// When the result is not a valid message.
pub fn apply_to_message(
    msg: &MsgObject,
    letter: &Letter,
    id: LetterId,
) -> Result<MsgObject, FinishError> {
    let direction = match letter.extra("direction") {
        Some("inbound") => ChainDirection::Inbound,
        _ => ChainDirection::Outbound,
    };
    let before = Letter::from_message(msg, direction);
    let same = |key| before.extra.get(key) == letter.extra.get(key);
    let addressed = before.from == letter.from && before.to == letter.to;
    if addressed && before.data == letter.data && same("subject") {
        return Ok(msg.clone());
    }
    let mut value: Value = serde_json::from_str(msg.canonical()).unwrap_or_default();
    let author = if msg.source.is_some() { "source" } else { "from" };
    value[author] = json!(letter.from);
    value["content"]["content"] = json!(letter.data);
    match letter.extra.get("subject") {
        Some(subject) => value["content"]["title"] = subject.clone(),
        None => drop(value["content"].as_object_mut().map(|content| content.remove("title"))),
    }
    value["to"] = json!(letter.to);
    value["letter"] = json!(id);
    // The proof of the author is for the original message.
    drop(value.as_object_mut().map(|fields| fields.remove("proof")));
    Ok(MsgObject::from_json(value)?)
}

/// Converts a submitted letter into a message.
///
/// # Errors
///
/// When it is not a valid message, or an address has no tunnel.
pub fn letter_to_message(
    letter: &Letter,
    context: FinishContext<'_>,
) -> Result<MsgObject, FinishError> {
    let did = |address: &str| -> Result<Did, FinishError> {
        if address.starts_with("did:") {
            return Ok(address.parse()?);
        }
        let tunnel =
            context.tunnel.ok_or_else(|| FinishError::NoTunnel(address.to_owned()))?.clone();
        Ok(Endpoint::address(address, tunnel).did()?)
    };
    let to = letter.to.iter().map(|address| did(address)).collect::<Result<Vec<_>, _>>()?;
    let format = content_type(&letter.extra);
    let mut content = json!({"format": format});
    let title = match letter.extra("subject") {
        Some(subject) => Some(subject.to_owned()),
        None => context.mail_subject.map(str::to_owned),
    };
    if let Some(title) = title {
        content["title"] = json!(title);
    }
    match context.bytes {
        Some((hash, size)) => {
            let target =
                json!({"hash": hash, "name": "mail.eml", "mime_type": format, "size": size});
            content["refs"] = json!([{"role": "attachment", "target": target}]);
        }
        None => content["content"] = json!(letter.data),
    }
    let mut value = json!({
        "from": did(&letter.from)?,
        "to": to,
        "kind": if format == RFC822 { "deliver" } else { "chat" },
        "created_at_ms": context.at.ms(),
        "content": content,
        "letter": context.id,
    });
    if let Some(charset) = letter.extra.get("charset") {
        value["content"]["charset"] = charset.clone();
    }
    Ok(MsgObject::from_json(value)?)
}

#[cfg(test)]
mod tests;
