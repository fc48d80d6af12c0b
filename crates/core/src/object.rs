//! What was said: immutable objects, named by the hash of their content.
//!
//! The shape is BuckyOS's `MsgObject` plus `source`. The name is the SHA-256 of
//! the canonical JSON (RFC 8785), so the same message has the same name wherever
//! it is computed, and whoever changes a byte gets another message.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::did::Did;
use crate::hex;
use crate::json;
use crate::time::Timestamp;

/// Largest object we take, in bytes of its canonical form.
pub const MAX_OBJECT: usize = 1 << 20;

/// Most targets one message may name.
pub const MAX_TARGETS: usize = 1_000;

/// What sort of thing an [`ObjId`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjKind {
    /// A [`MsgObject`]: `cymsg:`.
    Msg,
    /// A [`crate::receipt::Receipt`]: `cymsgr:`.
    Receipt,
    /// Plain bytes, such as an attachment: `sha256:`.
    Bytes,
}

/// The name of an object: its kind and the SHA-256 of its bytes.
///
/// Two objects with the same name are the same object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObjId {
    kind: ObjKind,
    hash: [u8; 32],
}

/// The text is not the id of an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an object id: {0:?} (want cymsg:, cymsgr: or sha256: and 64 lower-case hex digits)")]
pub struct InvalidObjId(String);

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MsgKind {
    /// Somebody talking.
    Chat,
    /// Somebody talking in a group: `from` is the group, `source` the author.
    GroupMsg,
    /// A thing handed over.
    Deliver,
    /// Something worth knowing.
    Notify,
    /// Something that happened.
    Event,
    /// Something to be done.
    Operation,
}

/// What was said, sealed: canonical text, name, and the parts we decide by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MsgObject {
    id: ObjId,
    canonical: String,
    /// The author, or for a group message the group.
    pub from: Did,
    /// The author of a group message.
    pub source: Option<Did>,
    /// Whom it is meant for.
    pub to: Vec<Did>,
    /// What it is for.
    pub kind: MsgKind,
    /// The message it answers.
    pub reply_to: Option<ObjId>,
    /// What the sender files it under.
    pub correlation_id: Option<String>,
    /// When its author stops caring.
    pub expires_at: Option<Timestamp>,
}

/// The JSON is not a message we take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidObject {
    /// One field is wrong.
    #[error("{field}: {why}")]
    Field {
        /// Where, as a path of keys.
        field: String,
        /// What is wrong, and what was wanted.
        why: String,
    },
    /// The whole is too large.
    #[error("the object has {size} bytes; {most} is the most we take")]
    TooLarge {
        /// Bytes of the canonical form.
        size: usize,
        /// Bytes we take.
        most: usize,
    },
}

impl ObjId {
    /// The name of `bytes` as an object of `kind`.
    pub fn of(kind: ObjKind, bytes: &[u8]) -> Self {
        Self { kind, hash: Sha256::digest(bytes).into() }
    }

    /// The id with this kind and hash.
    pub const fn from_parts(kind: ObjKind, hash: [u8; 32]) -> Self {
        Self { kind, hash }
    }

    /// What sort of thing it names.
    pub const fn kind(&self) -> ObjKind {
        self.kind
    }

    /// The hash alone.
    pub const fn hash(&self) -> &[u8; 32] {
        &self.hash
    }
}

impl ObjKind {
    /// What ids of this kind start with, before the colon.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Msg => "cymsg",
            Self::Receipt => "cymsgr",
            Self::Bytes => "sha256",
        }
    }
}

impl MsgObject {
    /// Reads, checks and names a message.
    ///
    /// Keys we do not know are kept. Optional fields that are `null` count as
    /// absent, as they do for every other reader of this shape.
    ///
    /// # Errors
    ///
    /// The first field that is wrong, by name.
    pub fn from_json(value: Value) -> Result<Self, InvalidObject> {
        Self::from_json_up_to(value, MAX_OBJECT)
    }

    /// The same for an object that may be larger, because we made it ourselves of
    /// parts that we took.
    ///
    /// # Errors
    ///
    /// The first field that is wrong, by name.
    pub fn from_json_up_to(value: Value, most: usize) -> Result<Self, InvalidObject> {
        let Value::Object(mut fields) = value else {
            return Err(bad("msg", "want an object"));
        };
        drop_nulls(&mut fields);

        let from = did(required(&fields, "from")?, "from")?;
        let source = fields.get("source").map(|v| did(v, "source")).transpose()?;
        let to = targets(required(&fields, "to")?)?;
        let kind = MsgKind::deserialize(required(&fields, "kind")?).map_err(|_| {
            bad("kind", "want chat, group_msg, deliver, notify, event or operation")
        })?;
        if kind == MsgKind::GroupMsg && source.is_none() {
            return Err(bad("source", "a group_msg needs its author here, `from` is the group"));
        }
        if to.is_empty() && source.is_none() {
            return Err(bad("to", "want at least one target"));
        }
        let thread = object(&fields, "thread")?;
        let reply_to = thread.and_then(|t| t.get("reply_to")).map(reply_to).transpose()?;
        let correlation_id = match thread.and_then(|t| t.get("correlation_id")) {
            Some(id) => Some(text(id, "thread.correlation_id")?.to_owned()),
            None => None,
        };
        if let Some(topic) = thread.and_then(|t| t.get("topic")) {
            text(topic, "thread.topic")?;
        }
        if let Some(workspace) = fields.get("workspace") {
            did(workspace, "workspace")?;
        }
        when(&fields, "created_at_ms")?;
        let expires_at = when(&fields, "expires_at_ms")?;
        if fields.get("nonce").is_some_and(|nonce| nonce.as_u64().is_none()) {
            return Err(bad("nonce", "want a whole number from 0 to 2^53-1"));
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
        Ok(Self { id, canonical, from, source, to, kind, reply_to, correlation_id, expires_at })
    }

    /// Its name.
    pub const fn id(&self) -> ObjId {
        self.id
    }

    /// Its canonical text: what is hashed, stored and handed out.
    pub fn canonical(&self) -> &str {
        &self.canonical
    }

    /// Who said it: `source` in a group, `from` elsewhere.
    pub fn author(&self) -> &Did {
        self.source.as_ref().unwrap_or(&self.from)
    }

    /// Whether its author has stopped caring by `now`.
    pub fn expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

/// Optional fields that other writers may spell as `null`.
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
        return Err(bad("content", "want an object"));
    };
    for key in ["title", "format", "content"] {
        if let Some(value) = content.get(key) {
            text(value, &format!("content.{key}"))?;
        }
    }
    if let Some(machine) = content.get("machine") {
        let Some(machine) = machine.as_object() else {
            return Err(bad("content.machine", "want an object {intent?, data}"));
        };
        if let Some(intent) = machine.get("intent") {
            text(intent, "content.machine.intent")?;
        }
    }
    let Some(refs) = content.get("refs") else { return Ok(()) };
    let Some(refs) = refs.as_array() else {
        return Err(bad("content.refs", "want an array"));
    };
    for (at, entry) in refs.iter().enumerate() {
        let complete = entry.get("role").is_some_and(Value::is_string)
            && entry.get("target").is_some_and(Value::is_object);
        if !complete {
            return Err(bad(&format!("content.refs[{at}]"), "want {role, target, label?}"));
        }
    }
    Ok(())
}

fn bad(field: &str, why: impl Into<String>) -> InvalidObject {
    InvalidObject::Field { field: field.to_owned(), why: why.into() }
}

fn required<'a>(fields: &'a Map<String, Value>, key: &str) -> Result<&'a Value, InvalidObject> {
    fields.get(key).ok_or_else(|| bad(key, "missing"))
}

fn object<'a>(
    fields: &'a Map<String, Value>,
    key: &str,
) -> Result<Option<&'a Map<String, Value>>, InvalidObject> {
    match fields.get(key) {
        None => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(_) => Err(bad(key, "want an object")),
    }
}

fn text<'a>(value: &'a Value, field: &str) -> Result<&'a str, InvalidObject> {
    value.as_str().ok_or_else(|| bad(field, "want a string"))
}

fn did(value: &Value, field: &str) -> Result<Did, InvalidObject> {
    text(value, field)?.parse().map_err(|error| bad(field, format!("{error}")))
}

fn targets(value: &Value) -> Result<Vec<Did>, InvalidObject> {
    let Some(list) = value.as_array() else {
        return Err(bad("to", "want an array of DIDs"));
    };
    if list.len() > MAX_TARGETS {
        return Err(bad("to", format!("{} targets; {MAX_TARGETS} is the most", list.len())));
    }
    list.iter().enumerate().map(|(at, v)| did(v, &format!("to[{at}]"))).collect()
}

fn reply_to(value: &Value) -> Result<ObjId, InvalidObject> {
    let field = "thread.reply_to";
    text(value, field)?.parse().map_err(|error: InvalidObjId| bad(field, error.to_string()))
}

fn when(fields: &Map<String, Value>, key: &str) -> Result<Option<Timestamp>, InvalidObject> {
    let Some(value) = fields.get(key) else { return Ok(None) };
    match value.as_i64() {
        Some(ms) if ms >= 0 => Ok(Some(Timestamp::from_ms(ms))),
        _ => Err(bad(key, "want milliseconds since 1970, a whole number from 0")),
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
        let bad = || InvalidObjId(text.chars().take(200).collect());
        let (prefix, digits) = text.split_once(':').ok_or_else(bad)?;
        let kind = [ObjKind::Msg, ObjKind::Receipt, ObjKind::Bytes]
            .into_iter()
            .find(|kind| kind.prefix() == prefix)
            .ok_or_else(bad)?;
        let hash = hex::decode(digits).ok_or_else(bad)?;
        Ok(Self { kind, hash })
    }
}

impl TryFrom<String> for ObjId {
    type Error = InvalidObjId;

    fn try_from(text: String) -> Result<Self, InvalidObjId> {
        text.parse()
    }
}

impl From<ObjId> for String {
    fn from(id: ObjId) -> Self {
        id.to_string()
    }
}

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

    /// These agree with what BuckyOS computes. Changing them renames every
    /// message anybody has stored.
    #[test]
    fn golden_objects_keep_their_text_and_their_name() {
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
    fn null_is_absent_and_unknown_keys_stay() {
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
    fn a_wrong_field_is_named() {
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
    fn ids_are_read_strictly() {
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
