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
//! No verified body is rejected for its content. A value of the wrong type counts as missing, a
//! value that is too long is cut, and a body without a text becomes a rendering of its JSON. The
//! body is attached unless the message has all of it.

use std::sync::LazyLock;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_PAD_INDIFFERENT;
use http::HeaderMap;
use monoco_core::did::TunnelId;
use monoco_core::hex;
use monoco_core::inbound::{
    Artifact, BodyHash, ChatSession, ChatSessionKind, InboundAttachment, InboundMessage,
    MAX_ACCOUNT_BYTES, MAX_EXTERNAL_ID_BYTES, MAX_LIST_ENTRIES, MAX_NAME_BYTES, Participant,
};
use monoco_core::time::Timestamp;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::render::{self, KnownSender, WebhookTemplate};
use super::wire::SignedParts;
use super::{FieldMap, body};
use crate::{WebhookError, WebhookRequest};

/// Bytes of a text, as JSON, that are kept; longer texts are cut. Escapes count.
const MAX_TEXT_BYTES: usize = 256 << 10;

/// Bytes of a mention, a file name or a MIME type that are kept.
const MAX_SHORT_NAME_BYTES: usize = 255;

/// Longest link of an attachment that is kept, in bytes.
const MAX_LINK_BYTES: usize = 2048;

/// The last millisecond of the year 9999, the latest time in RFC 3339.
const MAX_TIMESTAMP_MS: i64 = 253_402_300_799_999;

/// Numbers from here on are milliseconds, not seconds: in seconds this is the year 5138.
const MIN_MILLISECONDS: i64 = 100_000_000_000;

/// Headers in which senders put an id that stays the same when they repeat a request.
const ID_HEADERS: [&str; 7] = [
    "webhook-id",
    "svix-id",
    "x-github-delivery",
    "idempotency-key",
    "linear-delivery",
    "x-atlassian-webhook-identifier",
    "x-shopify-webhook-id",
];

/// The places of the fields in the default body. `session` and `from` may be the id itself.
static DEFAULT_MAPS: LazyLock<Vec<FieldMap>> = LazyLock::new(|| {
    FieldMap::list(&[
        ("id", "/id"),
        ("session_id", "/session/id"),
        ("session_id", "/session"),
        ("session_type", "/session/type"),
        ("session_name", "/session/name"),
        ("thread_key", "/session/thread_key"),
        ("from_id", "/from/id"),
        ("from_id", "/from"),
        ("from_name", "/from/name"),
        ("title", "/title"),
        ("text", "/text"),
        ("timestamp", "/timestamp"),
        ("mentions", "/mentions"),
        ("reply_to", "/reply_to"),
        ("forwarded_from", "/forwarded_from"),
        ("correlation_id", "/correlation_id"),
        ("attachments", "/attachments"),
    ])
});

/// Converts the verified requests of one tunnel.
#[derive(Debug)]
pub(super) struct MessageReader {
    pub(super) tunnel: TunnelId,
    pub(super) map: FieldMap,
    pub(super) signed: SignedParts,
    /// How long a body without an id counts as a duplicate of an equal one.
    pub(super) dedupe: Duration,
    pub(super) template: Option<WebhookTemplate>,
}

impl MessageReader {
    /// Converts a request whose signature has been verified. Fails only when the body is
    /// neither JSON nor a form.
    pub(super) fn read(
        &self,
        request: &WebhookRequest<'_>,
    ) -> Result<(InboundMessage, Vec<InboundAttachment>), WebhookError> {
        let value = body::parse(request)?;
        let sender = KnownSender::find(request.headers, &value);
        let mut maps = vec![&self.map];
        maps.extend(sender.map_or_else(|| DEFAULT_MAPS.iter(), |sender| sender.maps.iter()));
        let fields = read_fields(&value, maps);
        // Only in the default body every value is known to have a field.
        let default =
            sender.is_none() && self.template.is_none() && self.map == FieldMap::default();
        let complete = default && fields.text.is_some() && fields.used == count_leaves(&value);
        let text = fields.text.filter(|_| self.template.is_none()).unwrap_or_else(|| {
            render::render(self.template.as_ref(), sender, request.headers, &value)
        });
        let mut attachments = fields.attachments;
        if !complete {
            attachments.push(payload(request));
        }
        let kind = match fields.session_id {
            Some(_) => ChatSessionKind::Group,
            None => ChatSessionKind::Direct,
        };
        let (id, body_hash) = self.identify(request, fields.id);
        let author = sender.map_or("unknown", |sender| sender.name);
        let message = InboundMessage {
            id,
            at: fields.at,
            received_at: request.now,
            session: ChatSession {
                id: fields.session_id.unwrap_or_else(|| self.tunnel.as_str().to_owned()),
                kind: fields.session_kind.unwrap_or(kind),
                name: fields.session_name,
                thread_key: fields.thread_key,
            },
            from: Participant::user(
                fields.from_id.unwrap_or_else(|| author.to_owned()),
                fields.from_name,
            ),
            answer_to: None,
            sender_verified: None,
            to: Vec::new(),
            cc: Vec::new(),
            title: fields.title,
            text,
            mentions: fields.mentions,
            reply_to: fields.reply_to,
            corrects: None,
            forwarded_from: fields.forwarded_from,
            correlation_id: fields.correlation_id,
            artifacts: fields.artifacts,
            body_hash,
        };
        Ok((message, attachments))
    }

    /// Returns the message's id: the one in the body, else the one in a header, else one made of
    /// the hash of the body and the time.
    ///
    /// An id in a header that is not signed can be changed or removed in a copy of the request,
    /// so the body identifies the message too. A body without an id does so for `dedupe`.
    fn identify(
        &self,
        request: &WebhookRequest<'_>,
        id: Option<String>,
    ) -> (String, Option<BodyHash>) {
        if let Some(id) = id {
            return (id, None);
        }
        let hash: [u8; 32] = Sha256::digest(request.body).into();
        let mut ids = ID_HEADERS.iter().filter_map(|name| header(request.headers, name));
        match (ids.next(), self.signed) {
            (Some(id), SignedParts::Body { valid_for }) => {
                let body_hash = BodyHash { hash, window: valid_for };
                (short_id(&id, MAX_EXTERNAL_ID_BYTES), Some(body_hash))
            }
            (Some(id), SignedParts::IdAndBody | SignedParts::Nothing) => {
                (short_id(&id, MAX_EXTERNAL_ID_BYTES), None)
            }
            (None, _) => {
                let id = format!("sha256-{}-{}", hex::encode(&hash), request.now.ms());
                (id, Some(BodyHash { hash, window: Some(self.dedupe) }))
            }
        }
    }
}

/// The fields that were found in a body, within the limits of a message.
#[derive(Debug, Default)]
struct MappedFields {
    id: Option<String>,
    session_id: Option<String>,
    session_kind: Option<ChatSessionKind>,
    session_name: Option<String>,
    thread_key: Option<String>,
    from_id: Option<String>,
    from_name: Option<String>,
    title: Option<String>,
    text: Option<String>,
    at: Option<Timestamp>,
    mentions: Vec<String>,
    reply_to: Option<String>,
    forwarded_from: Option<String>,
    correlation_id: Option<String>,
    artifacts: Vec<Artifact>,
    attachments: Vec<InboundAttachment>,
    /// Values of the body that these fields have completely.
    used: usize,
}

/// Looks up values in a body.
struct FieldReader<'a> {
    value: &'a Value,
    maps: Vec<&'a FieldMap>,
    used: usize,
}

/// Selects one pointer of a map.
type PickPointer = fn(&FieldMap) -> &Option<String>;

impl FieldReader<'_> {
    /// Returns the first value that `convert` accepts, in the order of the maps.
    fn find<T>(&self, pick: PickPointer, convert: impl Fn(&Value) -> Option<T>) -> Option<T> {
        let mut pointers = self.maps.iter().filter_map(|map| pick(map).as_deref());
        pointers.find_map(|pointer| self.value.pointer(pointer).and_then(&convert))
    }

    /// Returns a text or a number that is not empty, limited by `limit`.
    fn text(&mut self, pick: PickPointer, limit: impl Fn(&str) -> String) -> Option<String> {
        let text = self.find(pick, |value| scalar(value).filter(|text| !text.is_empty()))?;
        let limited = limit(&text);
        self.used += usize::from(limited == text);
        Some(limited)
    }

    fn name(&mut self, pick: PickPointer) -> Option<String> {
        self.text(pick, |text| cut(text, MAX_NAME_BYTES).to_owned())
    }

    fn account(&mut self, pick: PickPointer) -> Option<String> {
        self.text(pick, |text| short_id(text, MAX_ACCOUNT_BYTES))
    }

    fn used<T>(&mut self, found: Option<T>) -> Option<T> {
        self.used += usize::from(found.is_some());
        found
    }
}

/// Reads each field at the first pointer that has a usable value.
fn read_fields(value: &Value, maps: Vec<&FieldMap>) -> MappedFields {
    let mut reader = FieldReader { value, maps, used: 0 };
    let list = |value: &Value| value.as_array().cloned();
    let mentions = reader.find(|map| &map.mentions, list).unwrap_or_default();
    let listed = reader.find(|map| &map.attachments, list).unwrap_or_default();
    let kind = reader.find(|map| &map.session_type, session_kind);
    let at = reader.find(|map| &map.timestamp, timestamp);
    let text = reader.find(|map| &map.text, scalar);
    let mut fields = MappedFields {
        id: reader.text(|map| &map.id, |id| short_id(id, MAX_EXTERNAL_ID_BYTES)),
        session_id: reader.account(|map| &map.session_id),
        session_kind: reader.used(kind),
        session_name: reader.name(|map| &map.session_name),
        thread_key: reader.name(|map| &map.thread_key),
        from_id: reader.account(|map| &map.from_id),
        from_name: reader.name(|map| &map.from_name),
        title: reader.name(|map| &map.title),
        at: reader.used(at),
        reply_to: reader.name(|map| &map.reply_to),
        forwarded_from: reader.name(|map| &map.forwarded_from),
        correlation_id: reader.name(|map| &map.correlation_id),
        ..MappedFields::default()
    };
    fields.used = reader.used;
    if let Some(text) = text {
        let cut = cut(&text, MAX_TEXT_BYTES);
        fields.used += usize::from(cut.len() == text.len() && !text.is_empty());
        let note = if cut.len() < text.len() { render::CUT_NOTE } else { "" };
        fields.text = Some(format!("{cut}{note}"));
    }
    fields.add_mentions(&mentions);
    fields.add_attachments(&listed);
    fields
}

impl MappedFields {
    fn add_mentions(&mut self, list: &[Value]) {
        let named = |entry: &Value| entry.get("id").or_else(|| entry.get("name")).and_then(scalar);
        for entry in list {
            let Some(mention) = scalar(entry).or_else(|| named(entry)) else { continue };
            let short = cut(&mention, MAX_SHORT_NAME_BYTES);
            if self.mentions.len() < MAX_LIST_ENTRIES && !short.is_empty() {
                self.used += usize::from(short.len() == mention.len());
                self.mentions.push(short.to_owned());
            }
        }
    }

    /// Adds links and content. Links are stored and never followed. Entries without content
    /// that can be decoded are left out.
    fn add_attachments(&mut self, list: &[Value]) {
        // One is left for the body itself.
        for (at, entry) in list.iter().take(MAX_LIST_ENTRIES - 1).enumerate() {
            let mut used = 0;
            let mut short = |key: &str, default: &str| {
                let given = entry.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
                let Some(text) = given else { return default.to_owned() };
                let short = cut(text, MAX_SHORT_NAME_BYTES);
                used += usize::from(short.len() == text.len());
                short.to_owned()
            };
            let name = short("name", &format!("attachment-{}", at + 1));
            let mime_type = short("mime_type", "application/octet-stream");
            let base64 = entry.get("base64").and_then(Value::as_str);
            let bytes = base64.and_then(|text| STANDARD_PAD_INDIFFERENT.decode(text).ok());
            let url = entry.get("url").and_then(Value::as_str);
            let url = url.filter(|url| !url.is_empty() && cut(url, MAX_LINK_BYTES) == *url);
            match (bytes, url) {
                (Some(bytes), _) => {
                    self.attachments.push(InboundAttachment { name, mime_type, bytes });
                }
                (None, Some(url)) => {
                    let url = Some(url.to_owned());
                    self.artifacts.push(Artifact { name, mime_type, url, ..Artifact::default() });
                }
                (None, None) => continue,
            }
            self.used += used + 1;
        }
    }
}

/// Returns the body as an attachment.
fn payload(request: &WebhookRequest<'_>) -> InboundAttachment {
    let (name, mime_type) = match body::is_form(request) {
        true => ("payload.txt", "application/x-www-form-urlencoded"),
        false => ("payload.json", "application/json"),
    };
    let (name, mime_type) = (name.to_owned(), mime_type.to_owned());
    InboundAttachment { name, mime_type, bytes: request.body.to_vec() }
}

/// Counts the values that are not lists, objects or empty.
fn count_leaves(value: &Value) -> usize {
    match value {
        Value::Null => 0,
        Value::String(text) => usize::from(!text.is_empty()),
        Value::Array(items) => items.iter().map(count_leaves).sum(),
        Value::Object(entries) => entries.values().map(count_leaves).sum(),
        Value::Bool(_) | Value::Number(_) => 1,
    }
}

/// Returns a text, or a number as text.
pub(super) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Returns the start of `text` that takes at most `max` bytes in JSON.
pub(super) fn cut(text: &str, max: usize) -> &str {
    let mut size = 0;
    for (at, c) in text.char_indices() {
        size += match c {
            '"' | '\\' | '\n' | '\r' | '\t' => 2,
            '\0'..' ' => 6,
            c => c.len_utf8(),
        };
        if size > max {
            return &text[..at];
        }
    }
    text
}

/// Returns `id`, or when it is longer than `max` bytes its start and its hash.
fn short_id(id: &str, max: usize) -> String {
    if cut(id, max) == id {
        return id.to_owned();
    }
    let hash = hex::encode(&Sha256::digest(id.as_bytes()));
    format!("{}~{hash}", cut(id, max - hash.len() - 1))
}

/// Returns the value of a header, or `None` when it is missing or empty.
pub(super) fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    let text = headers.get(name)?.to_str().ok()?;
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

/// Accepts the kinds of sessions, and those of shadow DIDs, which `outbound` writes.
fn session_kind(value: &Value) -> Option<ChatSessionKind> {
    match value.as_str()? {
        "direct" | "user" | "addr" => Some(ChatSessionKind::Direct),
        "group" | "channel" => Some(ChatSessionKind::Group),
        "thread" => Some(ChatSessionKind::Thread),
        _ => None,
    }
}

/// Reads RFC 3339, or seconds or milliseconds since 1970.
fn timestamp(value: &Value) -> Option<Timestamp> {
    let from_number = |number: i64| {
        if number < MIN_MILLISECONDS { number.saturating_mul(1000) } else { number }
    };
    let ms = match value {
        Value::String(text) => match text.parse::<i64>() {
            Ok(number) => from_number(number),
            Err(_) => Timestamp::from_rfc3339(text).ok()?.ms(),
        },
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => from_number(number),
            #[expect(clippy::cast_possible_truncation, reason = "the range is checked below")]
            (None, Some(secs)) => (secs * 1000.0) as i64,
            (None, None) => return None,
        },
        _ => return None,
    };
    (0..=MAX_TIMESTAMP_MS).contains(&ms).then(|| Timestamp::from_ms(ms))
}

#[cfg(test)]
mod tests;
