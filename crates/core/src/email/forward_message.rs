//! The message that forwards a mail: our own sender, answers to the author, the original attached.
//!
//! The message is a function of the mail and its recipients. Building it again gives the same
//! object, so a mail that is processed twice is forwarded once.

use serde_json::json;
use sha2::{Digest, Sha256};

use super::forward::{ForwardRecipient, LOOP_HEADER};
use crate::did::{Endpoint, EndpointKind, InvalidDid, TunnelId};
use crate::hex;
use crate::inbound::{InboundMessage, MAX_NAME_BYTES, Participant};
use crate::letter::check_address;
use crate::object::{InvalidObject, MsgObject, ObjId};
use crate::outgoing::EmailHeaders;
use crate::time::Timestamp;

/// How many bytes of the text are repeated above the original.
const MAX_TEXT_BYTES: usize = 64 << 10;

/// Maximum number of message ids in `References`; the oldest ones after the first are left out.
const MAX_REFERENCES: usize = 20;

/// Maximum number of earlier tunnels that a forward names.
const MAX_FORWARDED_BY: usize = 20;

/// A mail that is forwarded.
#[derive(Clone, Copy, Debug)]
pub struct ForwardedMail<'a> {
    pub tunnel: &'a TunnelId,
    /// The address of the tunnel.
    pub own_address: &'a str,
    /// When the mail was registered.
    pub registered_at: Timestamp,
    pub message: &'a InboundMessage,
    /// The id of the mail, with angle brackets.
    pub message_id: Option<&'a str>,
    /// The ids of the thread, oldest first.
    pub references: &'a [String],
    /// The tunnels that have forwarded the mail before, by their [`LOOP_HEADER`].
    pub forwarded_by: &'a [&'a str],
    /// The stored bytes of the mail.
    pub original: ObjId,
    pub size: u64,
}

/// Why a forward cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidForward {
    #[error(transparent)]
    Address(#[from] InvalidDid),
    #[error(transparent)]
    Object(#[from] InvalidObject),
}

/// Builds the message that forwards a mail.
///
/// # Errors
///
/// When an address does not fit into a DID.
pub fn forward_message(
    mail: &ForwardedMail<'_>,
    recipients: &[ForwardRecipient],
) -> Result<MsgObject, InvalidForward> {
    let did = |address: &str| {
        let (account, tunnel) = (address.to_owned(), mail.tunnel.clone());
        Endpoint { account, kind: EndpointKind::Addr, tunnel }.did()
    };
    let to = recipients.iter().map(|to| did(&to.address)).collect::<Result<Vec<_>, _>>()?;
    let headers = EmailHeaders {
        message_id: Some(message_id(mail)),
        in_reply_to: None,
        references: references(mail),
        reply_to: answer_address(mail.message).map(str::to_owned),
        auto_submitted: Some("auto-forwarded".to_owned()),
        headers: loop_headers(mail),
    };
    let original = json!({
        "hash": mail.original, "name": "original.eml", "mime_type": "message/rfc822",
        "size": mail.size,
    });
    Ok(MsgObject::from_json(json!({
        "from": did(mail.own_address)?,
        "to": to,
        "kind": "deliver",
        "created_at_ms": mail.registered_at.ms(),
        "content": {
            "title": title(mail.message),
            "format": "text/plain",
            "content": text(mail.message),
            "refs": [{"role": "attachment", "target": original}],
        },
        "email": headers,
    }))?)
}

/// The address that answers go to. `None` when the mail has no valid one: it is forwarded anyway.
fn answer_address(message: &InboundMessage) -> Option<&str> {
    let addresses = [message.answer_account().id.as_str(), message.from.id.as_str()];
    addresses.into_iter().find(|address| check_address(address).is_ok())
}

/// Our own mark, and the marks of the tunnels before us. Without those, two tunnels that forward
/// to each other would not see a mail come back when a server removes `Auto-Submitted`.
fn loop_headers(mail: &ForwardedMail<'_>) -> Vec<(String, String)> {
    let earlier = mail.forwarded_by.iter().map(|address| address.trim());
    let earlier = earlier.filter(|address| check_address(address).is_ok()).take(MAX_FORWARDED_BY);
    let all = std::iter::once(mail.own_address).chain(earlier);
    all.map(|address| (LOOP_HEADER.to_owned(), address.to_owned())).collect()
}

/// The id of the forward: the same whenever the same mail of the tunnel is forwarded.
fn message_id(mail: &ForwardedMail<'_>) -> String {
    let mut hash = Sha256::new();
    for part in ["forward", mail.tunnel.as_str(), &mail.original.to_string()] {
        hash.update(part.as_bytes());
        hash.update(b"\n");
    }
    let domain = mail.own_address.rsplit_once('@').map(|(_, domain)| domain);
    // Message ids are ASCII, also those of accounts whose domain is not.
    let domain = domain.filter(|domain| domain.is_ascii()).unwrap_or("localhost");
    format!("<{}@{domain}>", hex::encode(&hash.finalize()[..16]))
}

fn references(mail: &ForwardedMail<'_>) -> Vec<String> {
    let own = mail.message_id.map(str::to_owned);
    let mut all: Vec<_> = mail.references.iter().cloned().chain(own).collect();
    if all.len() > MAX_REFERENCES {
        // The first id is the root of the thread.
        all.drain(1..=all.len() - MAX_REFERENCES);
    }
    all.dedup();
    all
}

fn title(message: &InboundMessage) -> String {
    let subject = message.title.as_deref().unwrap_or("(no subject)");
    let room = subject.floor_char_boundary(MAX_NAME_BYTES - "Fwd: ".len());
    format!("Fwd: {}", &subject[..room])
}

fn text(message: &InboundMessage) -> String {
    let shown = |participant: &Participant| match &participant.name {
        Some(name) => format!("{name} <{}>", participant.id),
        None => participant.id.clone(),
    };
    let mut head = format!("Forwarded mail from {}", shown(&message.from));
    if let Some(at) = message.at {
        head.push_str(&format!(" of {}", at.rfc3339()));
    }
    let cut = message.text.floor_char_boundary(MAX_TEXT_BYTES);
    let more = if cut < message.text.len() { "\n\n[cut: the original is attached]" } else { "" };
    format!("{head}. The original is attached.\n\n{}{more}", &message.text[..cut])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbound::ChatSession;
    use crate::object::ObjKind;
    use crate::outgoing::OutgoingMessage;

    fn addr(id: &str, name: Option<&str>) -> Participant {
        Participant { id: id.to_owned(), kind: EndpointKind::Addr, name: name.map(str::to_owned) }
    }

    fn build(references: &[String], to: &[&str]) -> MsgObject {
        build_from("team@example.com", references, to)
    }

    fn build_from(own_address: &str, references: &[String], to: &[&str]) -> MsgObject {
        let session = ChatSession { id: "team@example.com".to_owned(), ..ChatSession::default() };
        let ann = addr("ann@example.org", Some("Ann"));
        let mut message = InboundMessage::new("1", session, ann, "hello".repeat(20_000));
        message.answer_to = Some(addr("office@example.org", None));
        message.title = Some("Invoice".to_owned());
        let tunnel = "work-mail".parse().unwrap();
        let mail = ForwardedMail {
            tunnel: &tunnel,
            own_address,
            registered_at: Timestamp::from_ms(1_770_410_700_000),
            message: &message,
            message_id: Some("<a@example.org>"),
            references,
            forwarded_by: &["bob@example.com", "@@", "joe@example.com"],
            original: ObjId::of(ObjKind::Bytes, b"mail"),
            size: 4,
        };
        let recipient =
            |to: &&str| ForwardRecipient { address: (*to).to_owned(), why: String::new() };
        forward_message(&mail, &to.iter().map(recipient).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn forward_has_our_sender_answers_to_the_author_and_the_original() {
        let msg = build(&["<root@example.org>".to_owned()], &["x@example.com", "y@example.com"]);
        assert_eq!(msg.from.as_str(), "did:msgtunnel:team%40example%2Ecom.addr.work-mail");
        assert_eq!(msg.to.len(), 2);
        let sent = OutgoingMessage::parse(msg.canonical()).unwrap();
        assert_eq!(sent.title.as_deref(), Some("Fwd: Invoice"));
        assert!(sent.text.starts_with("Forwarded mail from Ann <ann@example.org>. "));
        assert!(sent.text.ends_with("[cut: the original is attached]"));
        assert_eq!(sent.attachments[0].mime_type, "message/rfc822");
        let email = sent.email.unwrap();
        assert_eq!(email.reply_to.as_deref(), Some("office@example.org"));
        assert_eq!(email.references, ["<root@example.org>", "<a@example.org>"]);
        assert_eq!(email.auto_submitted.as_deref(), Some("auto-forwarded"));
        let marks = ["team@example.com", "bob@example.com", "joe@example.com"];
        assert_eq!(email.headers, marks.map(|mark| (LOOP_HEADER.to_owned(), mark.to_owned())));
        let id = email.message_id.unwrap();
        assert!(id.starts_with('<') && id.ends_with("@example.com>"), "{id}");
    }

    /// A mail with a message id that is not ASCII could not be sent.
    #[test]
    fn message_id_of_an_account_with_an_international_domain_is_ascii() {
        let msg = build_from("team@例子.example", &[], &["x@example.com"]);
        let id = OutgoingMessage::parse(msg.canonical()).unwrap().email.unwrap().message_id;
        assert!(id.as_deref().is_some_and(|id| id.is_ascii() && id.contains('@')), "{id:?}");
    }

    #[test]
    fn same_mail_makes_the_same_object_and_long_threads_keep_their_root() {
        let to = ["x@example.com"];
        assert_eq!(build(&[], &to).id(), build(&[], &to).id());
        assert_ne!(build(&[], &to).id(), build(&[], &["y@example.com"]).id());
        let thread: Vec<_> = (0..50).map(|n| format!("<{n}@example.org>")).collect();
        let sent = OutgoingMessage::parse(build(&thread, &to).canonical()).unwrap();
        let references = sent.email.unwrap().references;
        assert_eq!(references.len(), MAX_REFERENCES);
        assert_eq!((&*references[0], &*references[19]), ("<0@example.org>", "<a@example.org>"));
    }
}
