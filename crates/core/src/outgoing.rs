//! The parts of a MsgObject that an adapter sends, parsed once from its canonical text.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::did::Did;
use crate::object::ObjId;
use crate::time::Timestamp;

/// The media type of an attachment that names none.
const DEFAULT_MIME_TYPE: &str = "application/octet-stream";

/// A message on its way to a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingMessage {
    pub author: String,
    /// The targets that every recipient may see, without those in `cc`.
    pub to: Vec<Did>,
    pub cc: Vec<Did>,
    pub created_at: Option<Timestamp>,
    /// The recipient's own id of the message that this one answers.
    pub reply_to: Option<String>,
    /// The thread in the session.
    pub topic: Option<String>,
    /// The sender's id for related messages.
    pub correlation_id: Option<String>,
    pub text: String,
    pub title: Option<String>,
    /// The media type of the text.
    pub format: Option<String>,
    /// `latin-1`: the text is an e-mail with one character for each of its bytes.
    pub charset: Option<String>,
    pub attachments: Vec<AttachmentRef>,
    /// A card in the provider's own format, for providers that have cards: `content.card`.
    pub card: Option<Value>,
    /// Whether the recipient gets no notification sound, where the provider can do that.
    pub silent: bool,
    /// The key `email` of the MsgObject, when it has the form of [`EmailHeaders`].
    pub email: Option<EmailHeaders>,
}

/// What the header of an outgoing e-mail contains beyond the message: the key `email` of a
/// MsgObject. Values are not escaped; the composer of the mail does that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmailHeaders {
    /// With angle brackets; `None` lets the tunnel create one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_reply_to: Option<String>,
    /// Message ids of the thread, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub references: Vec<String>,
    /// The address for answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// The value of the field `Auto-Submitted` (RFC 3834).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_submitted: Option<String>,
    /// Further fields, as name and value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
}

/// An attachment by the hash of its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentRef {
    pub hash: ObjId,
    pub name: String,
    pub mime_type: String,
}

impl OutgoingMessage {
    /// Parses the canonical text of a MsgObject. References that are not attachments with
    /// a valid hash are left out.
    pub fn parse(canonical: &str) -> Result<Self, serde_json::Error> {
        let message: StoredMessage = serde_json::from_str(canonical)?;
        let StoredMessage { from, source, created_at_ms, in_reply_to, thread, content, .. } =
            message;
        let (cc, bcc) = (dids(&message.cc), dids(&message.bcc));
        let mut to = dids(&message.to);
        to.retain(|target| !cc.contains(target) && !bcc.contains(target));
        let refs = content.refs.as_array().into_iter().flatten();
        Ok(Self {
            author: source.unwrap_or(from),
            to,
            cc,
            created_at: created_at_ms.map(Timestamp::from_ms),
            reply_to: match in_reply_to {
                Some(Value::String(id)) => Some(id),
                Some(Value::Number(id)) => Some(id.to_string()),
                _ => None,
            },
            topic: thread.topic,
            correlation_id: thread.correlation_id,
            text: content.content,
            title: content.title,
            format: content.format,
            charset: content.charset,
            attachments: refs.filter_map(AttachmentRef::from_json).collect(),
            card: content.card.filter(Value::is_object),
            silent: message.options["silent"] == true,
            // Senders may use this key for anything else.
            email: message.email.and_then(|email| serde_json::from_value(email).ok()),
        })
    }
}

impl OutgoingMessage {
    /// Tells whether a visible target is not an endpoint, so that its address is not known.
    pub fn has_unresolved_targets(&self) -> bool {
        self.to.iter().chain(&self.cc).any(|target| target.endpoint().is_none())
    }

    /// Replaces a visible target by the endpoint through which it is reached.
    pub fn resolve_target(&mut self, target: &Did, endpoint: &Did) {
        let visible = self.to.iter_mut().chain(&mut self.cc).filter(|did| *did == target);
        visible.for_each(|did| *did = endpoint.clone());
    }
}

impl AttachmentRef {
    fn from_json(reference: &Value) -> Option<Self> {
        if reference["role"] != "attachment" {
            return None;
        }
        let target = &reference["target"];
        let text = |key: &str| target[key].as_str().map(str::to_owned);
        let name = text("name").or_else(|| reference["label"].as_str().map(str::to_owned));
        Some(Self {
            hash: text("hash")?.parse().ok()?,
            name: name.unwrap_or_default(),
            mime_type: text("mime_type").unwrap_or_else(|| DEFAULT_MIME_TYPE.to_owned()),
        })
    }
}

/// Returns the valid DIDs of a list.
fn dids(list: &Value) -> Vec<Did> {
    let texts = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    texts.filter_map(|text| text.parse().ok()).collect()
}

#[derive(Deserialize)]
struct StoredMessage {
    from: String,
    source: Option<String>,
    #[serde(default)]
    to: Value,
    #[serde(default)]
    cc: Value,
    #[serde(default)]
    bcc: Value,
    created_at_ms: Option<i64>,
    in_reply_to: Option<Value>,
    #[serde(default)]
    thread: StoredThread,
    content: StoredContent,
    #[serde(default)]
    options: Value,
    email: Option<Value>,
}

#[derive(Default, Deserialize)]
struct StoredThread {
    topic: Option<String>,
    correlation_id: Option<String>,
}

#[derive(Deserialize)]
struct StoredContent {
    #[serde(default)]
    content: String,
    title: Option<String>,
    format: Option<String>,
    charset: Option<String>,
    card: Option<Value>,
    #[serde(default)]
    refs: Value,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object::ObjKind;

    #[test]
    fn parts_of_a_message_are_read() {
        let hash = ObjId::of(ObjKind::Bytes, b"log");
        let text = json!({
            "from": "did:web:group", "source": "did:monoco:me", "created_at_ms": 1000,
            "to": ["did:web:ann", "did:web:bob", "did:web:joe"], "cc": ["did:web:bob"],
            "bcc": ["did:web:joe"],
            "in_reply_to": 7, "thread": {"topic": "t", "correlation_id": "c"},
            "content": {"content": "hi", "title": "Build", "format": "text/plain", "refs": [
                {"role": "attachment", "target": {"hash": hash.to_string(), "name": "log.txt"}},
                {"role": "attachment", "label": "no hash", "target": {"hash": "x"}},
                {"role": "link", "target": {"hash": hash.to_string()}},
            ], "card": {"schema": "2.0"}},
            "options": {"silent": true},
            "email": {"message_id": "<1@example.com>", "references": ["<0@example.com>"],
                      "headers": [["X-Monoco-Loop", "ann@example.com"]]},
        });
        let message = OutgoingMessage::parse(&text.to_string()).unwrap();
        let expected = OutgoingMessage {
            author: "did:monoco:me".to_owned(),
            to: vec!["did:web:ann".parse().unwrap()],
            cc: vec!["did:web:bob".parse().unwrap()],
            created_at: Some(Timestamp::from_ms(1000)),
            reply_to: Some("7".to_owned()),
            topic: Some("t".to_owned()),
            correlation_id: Some("c".to_owned()),
            text: "hi".to_owned(),
            title: Some("Build".to_owned()),
            format: Some("text/plain".to_owned()),
            charset: None,
            attachments: vec![AttachmentRef {
                hash,
                name: "log.txt".to_owned(),
                mime_type: DEFAULT_MIME_TYPE.to_owned(),
            }],
            card: Some(json!({"schema": "2.0"})),
            silent: true,
            email: Some(EmailHeaders {
                message_id: Some("<1@example.com>".to_owned()),
                references: vec!["<0@example.com>".to_owned()],
                headers: vec![("X-Monoco-Loop".to_owned(), "ann@example.com".to_owned())],
                ..EmailHeaders::default()
            }),
        };
        assert_eq!(message, expected);
        let mut resolved = message.clone();
        assert!(resolved.has_unresolved_targets());
        let [ann, bob] = ["a%40x%2Etest", "b%40x%2Etest"]
            .map(|account| format!("did:msgtunnel:{account}.addr.mail").parse().unwrap());
        resolved.resolve_target(&message.to[0], &ann);
        resolved.resolve_target(&message.cc[0], &bob);
        assert_eq!((resolved.to.as_slice(), resolved.cc.as_slice()), (&[ann][..], &[bob][..]));
        assert!(!resolved.has_unresolved_targets());
        assert!(OutgoingMessage::parse("{}").is_err());
        let other = r#"{"from": "did:monoco:me", "content": {"card": "x"}, "email": "a@b.c"}"#;
        let other = OutgoingMessage::parse(other).unwrap();
        assert_eq!((other.email, other.card, other.silent), (None, None, false), "own keys");
    }
}
