//! Immutable objects, identified by the hash of their content.
//!
//! A MsgObject has the format of BuckyOS plus `source`. Its id is the SHA-256 of the
//! canonical JSON (RFC 8785): the same message has the same id everywhere, and a changed
//! message has another id.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::did::Did;
use crate::hex;
use crate::json;
use crate::names::text_conversions;
use crate::time::Timestamp;

/// Maximum size of an object, in bytes of its canonical form.
pub const MAX_OBJECT: usize = 1 << 20;

/// Maximum number of targets of one message.
pub const MAX_TARGETS: usize = 1_000;

/// The kind of object that an [`ObjId`] identifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjKind {
    Msg,
    Receipt,
    /// Bytes, such as an attachment: `sha256:`.
    Bytes,
}

/// The id of an object: its kind and the SHA-256 of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObjId {
    kind: ObjKind,
    hash: [u8; 32],
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid object id {0:?}; expected cymsg:, cymsgr: or sha256: and 64 lower-case hex digits"
)]
pub struct InvalidObjId(String);

/// The purpose of a message, as BuckyOS defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MsgKind {
    Chat,
    /// A message in a group: `from` is the group, `source` the author.
    GroupMsg,
    Deliver,
    Notify,
    Event,
    Operation,
}

/// A validated message: canonical JSON, id, and the fields that decisions need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MsgObject {
    id: ObjId,
    canonical: String,
    /// The author, or for a group message the group.
    pub from: Did,
    /// The author of a group message.
    pub source: Option<Did>,
    pub to: Vec<Did>,
    pub kind: MsgKind,
    /// The thread within the conversation.
    pub topic: Option<String>,
    /// The message that this one answers.
    pub reply_to: Option<ObjId>,
    /// The sender's id for related messages.
    pub correlation_id: Option<String>,
    /// After this time it is not delivered.
    pub expires_at: Option<Timestamp>,
}

/// Why a JSON value is not a valid message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidObject {
    #[error("{field}: {why}")]
    Field {
        /// The path of keys.
        field: String,
        why: String,
    },
    #[error("the object has {size} bytes in canonical form; {most} is the most")]
    TooLarge { size: usize, most: usize },
}

impl ObjId {
    /// Returns the id of `bytes` as an object of `kind`.
    pub fn of(kind: ObjKind, bytes: &[u8]) -> Self {
        Self { kind, hash: Sha256::digest(bytes).into() }
    }

    pub const fn from_parts(kind: ObjKind, hash: [u8; 32]) -> Self {
        Self { kind, hash }
    }

    pub const fn kind(&self) -> ObjKind {
        self.kind
    }

    pub const fn hash(&self) -> &[u8; 32] {
        &self.hash
    }
}

/// Computes the id of bytes that arrive in parts.
#[derive(Clone, Debug, Default)]
pub struct BytesHasher(Sha256);

impl BytesHasher {
    /// Adds the next part of the bytes.
    pub fn update(&mut self, part: &[u8]) {
        self.0.update(part);
    }

    /// Returns the id of all parts.
    pub fn finish(self) -> ObjId {
        ObjId { kind: ObjKind::Bytes, hash: self.0.finalize().into() }
    }
}

impl ObjKind {
    /// The text before the colon in ids of this kind.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Msg => "cymsg",
            Self::Receipt => "cymsgr",
            Self::Bytes => "sha256",
        }
    }
}

impl MsgObject {
    /// Validates a message and computes its id.
    ///
    /// Unknown keys are kept. Optional fields that are `null` are removed, as other
    /// implementations of the format do.
    ///
    /// # Errors
    ///
    /// [`InvalidObject`] with the first invalid field.
    pub fn from_json(value: Value) -> Result<Self, InvalidObject> {
        Self::from_json_up_to(value, MAX_OBJECT)
    }

    /// Like [`Self::from_json`] with another size limit, for objects that the hub builds from
    /// validated parts.
    ///
    /// # Errors
    ///
    /// [`InvalidObject`] with the first invalid field.
    pub fn from_json_up_to(value: Value, most: usize) -> Result<Self, InvalidObject> {
        let Value::Object(mut fields) = value else {
            return Err(invalid("msg", "expected an object"));
        };
        drop_nulls(&mut fields);

        let from = did(required(&fields, "from")?, "from")?;
        let source = fields.get("source").map(|v| did(v, "source")).transpose()?;
        let to = targets(required(&fields, "to")?)?;
        let kind = MsgKind::deserialize(required(&fields, "kind")?).map_err(|_| {
            invalid("kind", "expected chat, group_msg, deliver, notify, event or operation")
        })?;
        if kind == MsgKind::GroupMsg && source.is_none() {
            return Err(invalid(
                "source",
                "a group_msg needs its author here, `from` is the group",
            ));
        }
        if to.is_empty() && source.is_none() {
            return Err(invalid("to", "expected at least one target"));
        }
        let thread = object(&fields, "thread")?;
        let reply_to = thread.and_then(|t| t.get("reply_to")).map(reply_to).transpose()?;
        let correlation_id = match thread.and_then(|t| t.get("correlation_id")) {
            Some(id) => Some(text(id, "thread.correlation_id")?.to_owned()),
            None => None,
        };
        let topic = match thread.and_then(|t| t.get("topic")) {
            Some(topic) => Some(text(topic, "thread.topic")?.to_owned()),
            None => None,
        };
        if let Some(workspace) = fields.get("workspace") {
            did(workspace, "workspace")?;
        }
        when(&fields, "created_at_ms")?;
        let expires_at = when(&fields, "expires_at_ms")?;
        if fields.get("nonce").is_some_and(|nonce| nonce.as_u64().is_none()) {
            return Err(invalid("nonce", "expected a whole number from 0 to 2^53-1"));
        }
        if let Some(proof) = fields.get("proof") {
            text(proof, "proof")?;
        }
        check_content(&fields)?;

        let canonical = json::canonical(&Value::Object(fields));
        if canonical.len() > most {
            return Err(InvalidObject::TooLarge { size: canonical.len(), most });
        }
        let id = ObjId::of(ObjKind::Msg, canonical.as_bytes());
        Ok(Self {
            id,
            canonical,
            from,
            source,
            to,
            kind,
            topic,
            reply_to,
            correlation_id,
            expires_at,
        })
    }

    pub const fn id(&self) -> ObjId {
        self.id
    }

    /// The canonical JSON, which is hashed, stored and returned by the API.
    pub fn canonical(&self) -> &str {
        &self.canonical
    }

    /// The author: `source` in a group, otherwise `from`.
    pub fn author(&self) -> &Did {
        self.source.as_ref().unwrap_or(&self.from)
    }

    pub fn expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

/// Removes optional fields that other writers set to `null`.
fn drop_nulls(fields: &mut Map<String, Value>) {
    const TOP: [&str; 7] =
        ["source", "thread", "workspace", "created_at_ms", "expires_at_ms", "nonce", "proof"];
    let absent = |map: &mut Map<String, Value>, keys: &[&str]| {
        map.retain(|key, value| !(value.is_null() && keys.contains(&key.as_str())));
    };
    absent(fields, &TOP);
    if let Some(Value::Object(thread)) = fields.get_mut("thread") {
        absent(thread, &["topic", "reply_to", "correlation_id"]);
    }
    if let Some(Value::Object(content)) = fields.get_mut("content") {
        absent(content, &["title", "format", "content", "machine", "refs"]);
        if let Some(Value::Object(machine)) = content.get_mut("machine") {
            absent(machine, &["intent"]);
        }
        if let Some(Value::Array(refs)) = content.get_mut("refs") {
            for entry in refs.iter_mut().filter_map(Value::as_object_mut) {
                absent(entry, &["label"]);
            }
        }
    }
}

fn check_content(fields: &Map<String, Value>) -> Result<(), InvalidObject> {
    let Some(content) = required(fields, "content")?.as_object() else {
        return Err(invalid("content", "expected an object"));
    };
    for key in ["title", "format", "content"] {
        if let Some(value) = content.get(key) {
            text(value, &format!("content.{key}"))?;
        }
    }
    if let Some(machine) = content.get("machine") {
        let Some(machine) = machine.as_object() else {
            return Err(invalid("content.machine", "expected an object {intent?, data}"));
        };
        if let Some(intent) = machine.get("intent") {
            text(intent, "content.machine.intent")?;
        }
    }
    let Some(refs) = content.get("refs") else { return Ok(()) };
    let Some(refs) = refs.as_array() else {
        return Err(invalid("content.refs", "expected an array"));
    };
    for (at, entry) in refs.iter().enumerate() {
        let complete = entry.get("role").is_some_and(Value::is_string)
            && entry.get("target").is_some_and(Value::is_object);
        if !complete {
            return Err(invalid(&format!("content.refs[{at}]"), "expected {role, target, label?}"));
        }
    }
    Ok(())
}

fn invalid(field: &str, why: impl Into<String>) -> InvalidObject {
    InvalidObject::Field { field: field.to_owned(), why: why.into() }
}

fn required<'a>(fields: &'a Map<String, Value>, key: &str) -> Result<&'a Value, InvalidObject> {
    fields.get(key).ok_or_else(|| invalid(key, "missing"))
}

fn object<'a>(
    fields: &'a Map<String, Value>,
    key: &str,
) -> Result<Option<&'a Map<String, Value>>, InvalidObject> {
    match fields.get(key) {
        None => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(_) => Err(invalid(key, "expected an object")),
    }
}

fn text<'a>(value: &'a Value, field: &str) -> Result<&'a str, InvalidObject> {
    value.as_str().ok_or_else(|| invalid(field, "expected a string"))
}

fn did(value: &Value, field: &str) -> Result<Did, InvalidObject> {
    text(value, field)?.parse().map_err(|error| invalid(field, format!("{error}")))
}

fn targets(value: &Value) -> Result<Vec<Did>, InvalidObject> {
    let Some(list) = value.as_array() else {
        return Err(invalid("to", "expected an array of DIDs"));
    };
    if list.len() > MAX_TARGETS {
        return Err(invalid("to", format!("{} targets; {MAX_TARGETS} is the most", list.len())));
    }
    list.iter().enumerate().map(|(at, v)| did(v, &format!("to[{at}]"))).collect()
}

fn reply_to(value: &Value) -> Result<ObjId, InvalidObject> {
    let field = "thread.reply_to";
    text(value, field)?.parse().map_err(|error: InvalidObjId| invalid(field, error.to_string()))
}

fn when(fields: &Map<String, Value>, key: &str) -> Result<Option<Timestamp>, InvalidObject> {
    let Some(value) = fields.get(key) else { return Ok(None) };
    match value.as_i64() {
        Some(ms) if ms >= 0 => Ok(Some(Timestamp::from_ms(ms))),
        _ => Err(invalid(key, "expected milliseconds since 1970, a whole number from 0")),
    }
}

impl fmt::Display for ObjId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.prefix(), hex::encode(&self.hash))
    }
}

impl fmt::Debug for ObjId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for ObjId {
    type Err = InvalidObjId;

    fn from_str(text: &str) -> Result<Self, InvalidObjId> {
        let invalid = || InvalidObjId(text.chars().take(200).collect());
        let (prefix, digits) = text.split_once(':').ok_or_else(invalid)?;
        let kind = [ObjKind::Msg, ObjKind::Receipt, ObjKind::Bytes]
            .into_iter()
            .find(|kind| kind.prefix() == prefix)
            .ok_or_else(invalid)?;
        let hash = hex::decode(digits).ok_or_else(invalid)?;
        Ok(Self { kind, hash })
    }
}

text_conversions!(ObjId, InvalidObjId, |id| id.to_string());

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::receipt::Receipt;

    #[derive(Deserialize)]
    struct Golden {
        name: String,
        r#type: String,
        object: Value,
        canonical: String,
        id: String,
    }

    /// These agree with what BuckyOS computes. A change gives every stored message another
    /// id.
    #[test]
    fn golden_objects_keep_their_canonical_form_and_id() {
        let cases: Vec<Golden> =
            serde_json::from_str(include_str!("../testdata/objects.json")).unwrap();
        assert_eq!(cases.len(), 9);
        for case in cases {
            let (canonical, id) = match case.r#type.as_str() {
                "cymsg" => {
                    let msg = MsgObject::from_json(case.object).unwrap();
                    (msg.canonical().to_owned(), msg.id())
                }
                "cymsgr" => {
                    let receipt: Receipt = serde_json::from_value(case.object).unwrap();
                    (receipt.canonical(), receipt.id())
                }
                other => panic!("unknown type {other}"),
            };
            assert_eq!(canonical, case.canonical, "{}", case.name);
            assert_eq!(id.to_string(), case.id, "{}", case.name);
        }
    }

    fn chat() -> Value {
        json!({"from": "did:web:a", "to": ["did:web:b"], "kind": "chat", "content": {}})
    }

    fn with(path: &str, value: Value) -> Value {
        let mut object = chat();
        let mut at = &mut object;
        for key in path.split('.') {
            at = &mut at[key];
        }
        *at = value;
        object
    }

    #[test]
    fn null_fields_are_removed_and_unknown_keys_stay() {
        let plain = MsgObject::from_json(chat()).unwrap();
        assert_eq!(MsgObject::from_json(with("source", Value::Null)).unwrap(), plain);
        assert_eq!(MsgObject::from_json(with("thread.topic", Value::Null)).unwrap().canonical(), {
            r#"{"content":{},"from":"did:web:a","kind":"chat","thread":{},"to":["did:web:b"]}"#
        });
        let odd = MsgObject::from_json(with("x-colour", json!({"deep": [1, null]}))).unwrap();
        assert!(odd.canonical().contains(r#""x-colour":{"deep":[1,null]}"#));
        assert_ne!(odd.id(), plain.id());
    }

    #[test]
    fn invalid_field_is_named_in_the_error() {
        for (path, value, field) in [
            ("from", json!("nobody"), "from"),
            ("from", json!(7), "from"),
            ("from", Value::Null, "from"),
            ("source", json!("did:"), "source"),
            ("to", json!("did:web:b"), "to"),
            ("to", json!([]), "to"),
            ("to", json!(["did:web:b", "b"]), "to[1]"),
            ("kind", json!("shout"), "kind"),
            ("kind", json!("group_msg"), "source"),
            ("thread", json!("t"), "thread"),
            ("thread.reply_to", json!("cymsg:12"), "thread.reply_to"),
            ("thread.topic", json!(1), "thread.topic"),
            ("workspace", json!("alpha"), "workspace"),
            ("created_at_ms", json!(-1), "created_at_ms"),
            ("expires_at_ms", json!("soon"), "expires_at_ms"),
            ("expires_at_ms", json!(1.5), "expires_at_ms"),
            ("nonce", json!(-3), "nonce"),
            ("proof", json!({}), "proof"),
            ("content", json!("hi"), "content"),
            ("content.content", json!(["hi"]), "content.content"),
            ("content.machine", json!("do"), "content.machine"),
            ("content.refs", json!({}), "content.refs"),
            ("content.refs", json!([{"role": "x"}]), "content.refs[0]"),
        ] {
            let error = MsgObject::from_json(with(path, value.clone())).unwrap_err();
            let InvalidObject::Field { field: found, .. } = &error else { panic!("{error}") };
            assert_eq!(found, field, "{path} = {value}: {error}");
        }
        assert!(MsgObject::from_json(json!([1])).is_err());
        let many = vec!["did:web:b"; MAX_TARGETS + 1];
        assert!(MsgObject::from_json(with("to", json!(many))).is_err());
        let large = with("content.content", json!("x".repeat(MAX_OBJECT)));
        assert!(matches!(MsgObject::from_json(large), Err(InvalidObject::TooLarge { .. })));
    }

    #[test]
    fn ids_are_parsed_strictly() {
        let id = MsgObject::from_json(chat()).unwrap().id();
        assert_eq!(id.to_string().parse(), Ok(id));
        let text = id.to_string();
        for bad in [
            "",
            "cymsg",
            "cymsg:",
            &text.to_uppercase(),
            &text[..text.len() - 1],
            &format!("{text}0"),
            &text.replace("cymsg:", "md5:"),
            &text.replace("cymsg:", "cymsg:+"),
        ] {
            assert!(bad.parse::<ObjId>().is_err(), "{bad}");
        }
    }
}
