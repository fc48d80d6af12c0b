//! The parts of a MsgObject that an adapter sends, parsed once from its canonical text.

use serde::Deserialize;
use serde_json::Value;

use crate::object::ObjId;
use crate::time::Timestamp;

/// The media type of an attachment that names none.
const DEFAULT_MIME_TYPE: &str = "application/octet-stream";

/// A message on its way to a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingMessage {
    pub author: String,
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
        let StoredMessage { from, source, created_at_ms, in_reply_to, thread, content } = message;
        let refs = content.refs.as_array().into_iter().flatten();
        Ok(Self {
            author: source.unwrap_or(from),
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
        })
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

#[derive(Deserialize)]
struct StoredMessage {
    from: String,
    source: Option<String>,
    created_at_ms: Option<i64>,
    in_reply_to: Option<Value>,
    #[serde(default)]
    thread: StoredThread,
    content: StoredContent,
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
            "in_reply_to": 7, "thread": {"topic": "t", "correlation_id": "c"},
            "content": {"content": "hi", "title": "Build", "format": "text/plain", "refs": [
                {"role": "attachment", "target": {"hash": hash.to_string(), "name": "log.txt"}},
                {"role": "attachment", "label": "no hash", "target": {"hash": "x"}},
                {"role": "link", "target": {"hash": hash.to_string()}},
            ]},
        });
        let message = OutgoingMessage::parse(&text.to_string()).unwrap();
        let expected = OutgoingMessage {
            author: "did:monoco:me".to_owned(),
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
        };
        assert_eq!(message, expected);
        assert!(OutgoingMessage::parse("{}").is_err());
    }
}
