//! Where a letter comes from, and what it becomes when it is through.
//!
//! A letter is made of a message that was heard, of one that is to be dispatched or
//! posted, or it is handed in as it is. What no worker changed becomes exactly the
//! message it was.

use serde_json::{Map, Value, json};

use super::{ChainDirection, Letter, LetterId, RFC822, content_type};
use crate::did::{Did, Endpoint, EndpointKind, InvalidDid, TunnelId};
use crate::inbound::{InboundMessage, InvalidInboundMessage};
use crate::object::{InvalidObject, MsgObject, ObjId};
use crate::time::Timestamp;

/// Largest mail that is part of its message. A larger one is bytes of its own.
pub const INLINE_MAIL: usize = 256 << 10;

/// Why a letter can't go on at its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FinishError {
    /// What the workers made of it is no message.
    #[error("what the workers made of it is no message: {0}")]
    Object(#[from] InvalidObject),
    /// Nor one that could have been heard.
    #[error("what the workers made of it is no message: {0}")]
    Heard(#[from] InvalidInboundMessage),
    /// An address can't be named.
    #[error(transparent)]
    Address(#[from] InvalidDid),
    /// It does not say through which tunnel.
    #[error(
        "no way to {0}: name a tunnel in `extra.tunnel`, or one for all letters in \
         `courier.pipeline.workers.send.tunnel`"
    )]
    NoTunnel(String),
}

/// What a letter that was handed in is sent as, beyond what it says itself.
#[derive(Clone, Copy, Debug)]
pub struct FinishContext<'a> {
    /// The letter's name: two letters are two messages, even if they say the same.
    pub id: LetterId,
    /// When it came.
    pub at: Timestamp,
    /// The tunnel for addresses that do not name one.
    pub tunnel: Option<&'a TunnelId>,
    /// Its mail as bytes of their own, when it is larger than [`INLINE_MAIL`].
    pub bytes: Option<(ObjId, u64)>,
    /// The subject in the mail's own header, for a letter that is a mail.
    pub mail_subject: Option<&'a str>,
}

impl Letter {
    /// The letter of a message that was heard.
    ///
    /// # Errors
    ///
    /// When an id does not fit into a DID. They do after [`Said::mailbox_check`].
    pub fn of_said(
        said: &InboundMessage,
        tunnel: &TunnelId,
        provider: &str,
    ) -> Result<Self, InvalidDid> {
        let from = said.from.did(tunnel)?;
        let to = said.session.answer_to(&said.from, tunnel)?;
        let mut extra = known(ChainDirection::Inbound, "text/markdown");
        extra.insert("tunnel".to_owned(), json!(tunnel));
        extra.insert("provider".to_owned(), json!(provider));
        extra.insert("external_id".to_owned(), json!(said.id));
        extra.insert("session".to_owned(), json!(said.session));
        if let Some(name) = &said.from.name {
            extra.insert("from_name".to_owned(), json!(name));
        }
        if let Some(title) = &said.title {
            extra.insert("subject".to_owned(), json!(title));
        }
        let (from, to) = (from.into(), vec![to.into()]);
        Ok(Self { from, to, data: said.text.clone(), extra, rest: Map::new() })
    }

    /// The letter of a message that comes in or goes out.
    pub fn of_msg(msg: &MsgObject, direction: ChainDirection) -> Self {
        let value: Value = serde_json::from_str(msg.canonical()).unwrap_or_default();
        let text = |at: &str| value.pointer(at).and_then(Value::as_str);
        let format = text("/content/format").unwrap_or("text/markdown");
        let mut extra = known(direction, format);
        extra.insert("msg_id".to_owned(), json!(msg.id()));
        extra.insert("kind".to_owned(), json!(msg.kind));
        if let Some(title) = text("/content/title") {
            extra.insert("subject".to_owned(), json!(title));
        }
        // A letter has the text alone. Who joins letters must know of the rest.
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

fn known(direction: ChainDirection, content_type: &str) -> Map<String, Value> {
    let mut extra = Map::new();
    extra.insert("content_type".to_owned(), json!(content_type));
    extra.insert("direction".to_owned(), json!(direction));
    extra
}

/// What was said, as the workers left it.
///
/// # Errors
///
/// When it can't be kept any more.
pub fn apply_to_inbound(
    said: &InboundMessage,
    letter: &Letter,
) -> Result<InboundMessage, FinishError> {
    let title = letter.extra("subject").map(str::to_owned);
    let said = InboundMessage { text: letter.data.clone(), title, ..said.clone() };
    said.check()?;
    Ok(said)
}

/// A message, as the workers left it: the same one when they changed nothing.
///
/// # Errors
///
/// When it is none any more.
pub fn apply_to_message(
    msg: &MsgObject,
    letter: &Letter,
    id: LetterId,
) -> Result<MsgObject, FinishError> {
    let direction = match letter.extra("direction") {
        Some("inbound") => ChainDirection::Inbound,
        _ => ChainDirection::Outbound,
    };
    let before = Letter::of_msg(msg, direction);
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
    // Signed by its author as it was; it is not that any more.
    drop(value.as_object_mut().map(|fields| fields.remove("proof")));
    Ok(MsgObject::from_json(value)?)
}

/// The message that a letter becomes which was handed in.
///
/// # Errors
///
/// When it is none, or does not say where to.
pub fn letter_to_message(
    letter: &Letter,
    sealing: FinishContext<'_>,
) -> Result<MsgObject, FinishError> {
    let did = |address: &str| -> Result<Did, FinishError> {
        if address.starts_with("did:") {
            return Ok(address.parse()?);
        }
        let tunnel =
            sealing.tunnel.ok_or_else(|| FinishError::NoTunnel(address.to_owned()))?.clone();
        Ok(Endpoint { account: address.to_owned(), kind: EndpointKind::Addr, tunnel }.did()?)
    };
    let to = letter.to.iter().map(|address| did(address)).collect::<Result<Vec<_>, _>>()?;
    let format = content_type(&letter.extra);
    let mut content = json!({"format": format});
    let title = match letter.extra("subject") {
        Some(subject) => Some(subject.to_owned()),
        None => sealing.mail_subject.map(str::to_owned),
    };
    if let Some(title) = title {
        content["title"] = json!(title);
    }
    match sealing.bytes {
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
        "created_at_ms": sealing.at.ms(),
        "content": content,
        "letter": sealing.id,
    });
    if let Some(charset) = letter.extra.get("charset") {
        value["content"]["charset"] = charset.clone();
    }
    Ok(MsgObject::from_json(value)?)
}

#[cfg(test)]
mod tests;
