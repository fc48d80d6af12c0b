//! Converts a JSON body into an inbound message: configured pointers first, then defaults.
//!
//! The default body; every key may be missing or `null`:
//!
//! ```json
//! {"id": "evt-1", "session": {"id": "room-7", "type": "group", "name": "Ops", "thread_key": null},
//!  "from": {"id": "u1", "name": "Ann"}, "title": null, "text": "the build is red",
//!  "timestamp": "2026-02-06T20:45:00Z", "mentions": [], "reply_to": null,
//!  "forwarded_from": null, "correlation_id": null,
//!  "attachments": [{"name": "log.txt", "mime_type": "text/plain", "base64": "…"}]}
//! ```
//!
//! A body of unknown shape is not lost: without a text, the whole JSON is the text. But a
//! field of the wrong type is rejected by name: a guess could put the message into the
//! wrong session.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_PAD_INDIFFERENT;
use http::HeaderMap;
use monoco_core::did::TunnelId;
use monoco_core::inbound::{
    Artifact, ChatSession, ChatSessionKind, InboundAttachment, InboundMessage, Participant,
};
use monoco_core::json;
use monoco_core::time::Timestamp;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::FieldMap;
use crate::{WebhookError, WebhookRequest};

/// How many bytes of the JSON become the text when the body has none. Longer JSON is also
/// attached as a file.
const MAX_JSON_TEXT_BYTES: usize = 64 << 10;

/// The last millisecond of the year 9999, the latest time in RFC 3339.
const MAX_TIMESTAMP_MS: i64 = 253_402_300_799_999;

/// Numbers from here on are milliseconds, not seconds: in seconds this is the year 5138.
const MIN_MILLISECONDS: i64 = 100_000_000_000;

/// The places of the fields in the default body.
static DEFAULT_MAP: LazyLock<FieldMap> = LazyLock::new(|| {
    let at = |pointer: &str| Some(pointer.to_owned());
    FieldMap {
        id: at("/id"),
        session_id: at("/session/id"),
        session_type: at("/session/type"),
        session_name: at("/session/name"),
        thread_key: at("/session/thread_key"),
        from_id: at("/from/id"),
        from_name: at("/from/name"),
        title: at("/title"),
        text: at("/text"),
        timestamp: at("/timestamp"),
        mentions: at("/mentions"),
        reply_to: at("/reply_to"),
        forwarded_from: at("/forwarded_from"),
        correlation_id: at("/correlation_id"),
        attachments: at("/attachments"),
    }
});

/// The fields that were found in a body.
#[derive(Debug, Default)]
pub(super) struct MappedFields {
    pub(super) id: Option<String>,
    pub(super) session_id: Option<String>,
    pub(super) session_kind: Option<ChatSessionKind>,
    pub(super) session_name: Option<String>,
    pub(super) thread_key: Option<String>,
    pub(super) from_id: Option<String>,
    pub(super) from_name: Option<String>,
    pub(super) title: Option<String>,
    pub(super) text: Option<String>,
    /// A line before the JSON, when the JSON is the text.
    pub(super) heading: Option<String>,
    pub(super) at: Option<Timestamp>,
    mentions: Vec<String>,
    reply_to: Option<String>,
    forwarded_from: Option<String>,
    correlation_id: Option<String>,
    artifacts: Vec<Artifact>,
    attachments: Vec<InboundAttachment>,
}

/// Converts a request whose signature has been verified.
///
/// The message's id is the value at `map.id`, else at `/id`, else of the header `webhook-id`
/// or `X-GitHub-Delivery`, else the hash of the body: then two equal bodies count as one
/// message. [`WebhookError::Unreadable`] names the field that is wrong.
pub fn read(
    tunnel: &TunnelId,
    map: &FieldMap,
    request: &WebhookRequest<'_>,
) -> Result<(InboundMessage, Vec<InboundAttachment>), WebhookError> {
    let value = parse(request.body)?;
    let mut fields = fields(&value, &[map, &DEFAULT_MAP])?;
    // `session` and `from` may be the id itself.
    let short = |key| value.get(key).and_then(scalar);
    fields.session_id = fields.session_id.or_else(|| short("session"));
    fields.from_id = fields.from_id.or_else(|| short("from"));
    build_message(tunnel, request, &value, fields)
}

/// Parses JSON; duplicate keys are rejected.
pub(super) fn parse(body: &[u8]) -> Result<Value, WebhookError> {
    json::parse(body).map_err(|error| unreadable(format!("the body: {error}")))
}

/// Reads each field at the pointer of the first map that finds a value.
pub(super) fn fields(value: &Value, maps: &[&FieldMap]) -> Result<MappedFields, WebhookError> {
    let find = |pick: fn(&FieldMap) -> &Option<String>| {
        let mut pointers = maps.iter().filter_map(|map| pick(map).as_deref());
        pointers.find_map(|p| value.pointer(p).filter(|value| !value.is_null()).map(|v| (p, v)))
    };
    let text = |pick| match find(pick) {
        None => Ok(None),
        Some((pointer, value)) => match scalar(value) {
            Some(text) => Ok(Some(text)),
            None => Err(wrong(pointer, "expected a text or a number")),
        },
    };
    // An empty name counts as missing. An empty id is rejected later.
    let name = |pick| text(pick).map(|text| text.filter(|text| !text.is_empty()));
    let (artifacts, attachments) = match find(|map| &map.attachments) {
        Some((pointer, list)) => attachments(pointer, list)?,
        None => Default::default(),
    };
    Ok(MappedFields {
        id: text(|map| &map.id)?,
        session_id: text(|map| &map.session_id)?,
        session_kind: find(|map| &map.session_type).map(|(p, v)| session_kind(p, v)).transpose()?,
        session_name: name(|map| &map.session_name)?,
        thread_key: name(|map| &map.thread_key)?,
        from_id: text(|map| &map.from_id)?,
        from_name: name(|map| &map.from_name)?,
        title: name(|map| &map.title)?,
        // When the value is not a text, the whole JSON becomes the text.
        text: find(|map| &map.text).and_then(|(_, value)| scalar(value)),
        heading: None,
        at: find(|map| &map.timestamp).map(|(p, v)| timestamp(p, v)).transpose()?,
        mentions: match find(|map| &map.mentions) {
            Some((pointer, list)) => mentions(pointer, list)?,
            None => Vec::new(),
        },
        reply_to: name(|map| &map.reply_to)?,
        forwarded_from: name(|map| &map.forwarded_from)?,
        correlation_id: name(|map| &map.correlation_id)?,
        artifacts,
        attachments,
    })
}

/// Puts together what was heard.
pub(super) fn build_message(
    tunnel: &TunnelId,
    request: &WebhookRequest<'_>,
    value: &Value,
    fields: MappedFields,
) -> Result<(InboundMessage, Vec<InboundAttachment>), WebhookError> {
    let mut attachments = fields.attachments;
    let text = match fields.text {
        Some(text) => text,
        None => {
            let (block, whole) = block(value);
            if !whole {
                attachments.push(InboundAttachment {
                    name: "payload.json".to_owned(),
                    mime_type: "application/json".to_owned(),
                    bytes: request.body.to_vec(),
                });
            }
            fields.heading.map(|heading| heading + "\n\n").unwrap_or_default() + &block
        }
    };
    let kind = match fields.session_id {
        Some(_) => ChatSessionKind::Group,
        None => ChatSessionKind::Direct,
    };
    let message = InboundMessage {
        id: fields
            .id
            .or_else(|| header_id(request.headers))
            .unwrap_or_else(|| body_id(request.body)),
        at: fields.at,
        received_at: request.now,
        session: ChatSession {
            id: fields.session_id.unwrap_or_else(|| tunnel.as_str().to_owned()),
            kind: fields.session_kind.unwrap_or(kind),
            name: fields.session_name,
            thread_key: fields.thread_key,
        },
        from: Participant {
            id: fields.from_id.unwrap_or_else(|| "unknown".to_owned()),
            name: fields.from_name,
        },
        to: Vec::new(),
        cc: Vec::new(),
        title: fields.title,
        text,
        mentions: fields.mentions,
        reply_to: fields.reply_to,
        forwarded_from: fields.forwarded_from,
        correlation_id: fields.correlation_id,
        artifacts: fields.artifacts,
        body_hash: None,
    };
    Ok((message, attachments))
}

/// `value` as a fenced block of JSON, and whether all of it is there.
///
/// No line of it can end the code block early: a text in JSON is on one line, in quotes.
pub(super) fn block(value: &Value) -> (String, bool) {
    let pretty = format!("{value:#}");
    let end = pretty.floor_char_boundary(MAX_JSON_TEXT_BYTES);
    let whole = end == pretty.len();
    let rest = if whole { "" } else { "\n… (cut; all of it is in payload.json)" };
    (format!("```json\n{}{rest}\n```", &pretty[..end]), whole)
}

/// Returns a text, or a number as text.
pub(super) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn header_id(headers: &HeaderMap) -> Option<String> {
    ["webhook-id", "x-github-delivery"].iter().find_map(|name| header(headers, name))
}

/// Returns the value of a header, or `None` when it is missing or empty.
pub(super) fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    let text = headers.get(name)?.to_str().ok()?;
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

fn body_id(body: &[u8]) -> String {
    let hash = Sha256::digest(body);
    format!("sha256-{}", monoco_core::hex::encode(&hash))
}

/// Accepts the kinds of sessions, and those of shadow DIDs, which `outbound` writes.
fn session_kind(pointer: &str, value: &Value) -> Result<ChatSessionKind, WebhookError> {
    match value.as_str() {
        Some("direct" | "user" | "addr") => Ok(ChatSessionKind::Direct),
        Some("group" | "channel") => Ok(ChatSessionKind::Group),
        Some("thread") => Ok(ChatSessionKind::Thread),
        _ => Err(wrong(pointer, "expected direct, group or thread")),
    }
}

fn timestamp(pointer: &str, value: &Value) -> Result<Timestamp, WebhookError> {
    let from_number = |number: i64| {
        if number < MIN_MILLISECONDS { number.saturating_mul(1000) } else { number }
    };
    let ms = match value {
        Value::String(text) => match text.parse::<i64>() {
            Ok(number) => Some(from_number(number)),
            Err(_) => Timestamp::from_rfc3339(text).ok().map(Timestamp::ms),
        },
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Some(from_number(number)),
            #[expect(clippy::cast_possible_truncation, reason = "the range is checked below")]
            (None, Some(secs)) => Some((secs * 1000.0) as i64),
            (None, None) => None,
        },
        _ => None,
    };
    let ms = ms.filter(|ms| (0..=MAX_TIMESTAMP_MS).contains(ms));
    let expected = "expected RFC 3339, or seconds or milliseconds since 1970";
    ms.map(Timestamp::from_ms).ok_or_else(|| wrong(pointer, expected))
}

fn mentions(pointer: &str, list: &Value) -> Result<Vec<String>, WebhookError> {
    let list = list.as_array().ok_or_else(|| wrong(pointer, "expected a list"))?;
    let mention = |(at, entry): (usize, &Value)| {
        let named = || entry.get("id").or_else(|| entry.get("name")).and_then(scalar);
        let expected = "expected a text, or {id} or {name}";
        scalar(entry).or_else(named).ok_or_else(|| wrong(&format!("{pointer}/{at}"), expected))
    };
    list.iter().enumerate().map(mention).collect()
}

/// Reads attachments: links and content. Links are stored and never followed.
fn attachments(
    pointer: &str,
    list: &Value,
) -> Result<(Vec<Artifact>, Vec<InboundAttachment>), WebhookError> {
    let list = list.as_array().ok_or_else(|| wrong(pointer, "expected a list"))?;
    let (mut artifacts, mut attachments) = (Vec::new(), Vec::new());
    for (at, entry) in list.iter().enumerate() {
        let here = format!("{pointer}/{at}");
        let text = |key: &str| match entry.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(_) => Err(wrong(&format!("{here}/{key}"), "expected a text")),
        };
        let name = text("name")?.filter(|name| !name.is_empty());
        let name = name.map_or_else(|| format!("attachment-{}", at + 1), str::to_owned);
        let mime_type = text("mime_type")?.unwrap_or("application/octet-stream");
        let mime_type = mime_type.to_owned();
        match (text("base64")?, text("url")?) {
            (Some(base64), _) => {
                let bytes = STANDARD_PAD_INDIFFERENT
                    .decode(base64)
                    .map_err(|error| wrong(&format!("{here}/base64"), error.to_string()))?;
                attachments.push(InboundAttachment { name, mime_type, bytes });
            }
            (None, Some(url)) => {
                let url = Some(url.to_owned());
                artifacts.push(Artifact { name, mime_type, size: None, hash: None, url });
            }
            (None, None) => return Err(wrong(&here, "expected {name, mime_type, base64 or url}")),
        }
    }
    Ok((artifacts, attachments))
}

fn wrong(pointer: &str, why: impl Into<String>) -> WebhookError {
    unreadable(format!("{pointer}: {}", why.into()))
}

pub(super) fn unreadable(why: String) -> WebhookError {
    WebhookError::Unreadable(why)
}

#[cfg(test)]
mod tests;
