//! Lark's notation: fields of JSON, ids, times, and what is cut from payloads before they are
//! stored.

use monoco_core::time::Timestamp;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// What is stored in place of a secret.
const CUT: &str = "[cut]";

/// Deepest payload that is stored. Cards are nested about ten levels deep.
const MAX_DEPTH: usize = 40;

/// Longest id of a message, chat or account that is accepted, in bytes. Lark's have 35.
pub(super) const MAX_ID_BYTES: usize = 128;

/// Keys whose values are secrets. With a file key and a token, files can be fetched; a ticket or
/// an access key opens a connection.
const SECRET_KEYS: [&str; 8] = [
    "token",
    "verification_token",
    "app_secret",
    "encrypt",
    "ticket",
    "access_key",
    "delivery_token",
    "tenant_access_token",
];

/// Parts of texts that hold a secret.
const SECRET_TEXTS: [&str; 4] = ["/open-apis/bot/v2/hook/", "access_key=", "ticket=", "Bearer t-"];

/// Returns the text under `key`, unless it is empty or of another type.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// Returns the entries of the list under `key`.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the id under `key`, unless it is too long.
pub(super) fn id<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    text(value, key).filter(|id| id.len() <= MAX_ID_BYTES)
}

/// Returns the time under `key`: milliseconds as a text or a number.
pub(super) fn time(value: &Value, key: &str) -> Option<Timestamp> {
    let value = value.get(key)?;
    let ms = value.as_i64().or_else(|| value.as_str()?.parse().ok())?;
    (ms > 0).then_some(Timestamp::from_ms(ms))
}

/// Tells whether a text is the id of a message.
pub(super) fn is_message_id(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    text.starts_with("om_") && text.len() <= MAX_ID_BYTES && text.chars().all(is_plain)
}

/// Returns a payload without secrets. Texts with JSON in them are searched too.
pub(super) fn redact(value: &Value) -> Value {
    redact_at(value, 0)
}

fn redact_at(value: &Value, depth: usize) -> Value {
    match value {
        _ if depth > MAX_DEPTH => Value::from(CUT),
        Value::Object(entries) => {
            let entry = |(key, value): (&String, &Value)| {
                let is_secret = SECRET_KEYS.contains(&key.to_ascii_lowercase().as_str());
                let value = match is_secret && value.is_string() {
                    true => Value::from(CUT),
                    false => redact_at(value, depth + 1),
                };
                (key.clone(), value)
            };
            Value::Object(entries.iter().map(entry).collect::<Map<_, _>>())
        }
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| redact_at(item, depth + 1)).collect())
        }
        Value::String(text) => redact_text(text, depth),
        other => other.clone(),
    }
}

fn redact_text(text: &str, depth: usize) -> Value {
    if text.trim_start().starts_with(['{', '['])
        && let Ok(nested) = serde_json::from_str::<Value>(text)
    {
        return Value::from(redact_at(&nested, depth + 1).to_string());
    }
    match SECRET_TEXTS.iter().any(|part| text.contains(part)) {
        true => Value::from(CUT),
        false => Value::from(text),
    }
}

/// Returns 24 hex digits that stand for a text.
pub(super) fn short_hash(text: &str) -> String {
    let hash: [u8; 32] = Sha256::digest(text).into();
    monoco_core::hex::encode(&hash[..12])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_read_only_when_they_have_the_right_form() {
        let value = json!({"a": "x", "b": "", "c": 1, "d": "o".repeat(4096), "t": "1700000000123",
                           "n": 1_700_000_000_123_i64, "bad": "soon"});
        assert_eq!(
            (text(&value, "a"), text(&value, "b"), text(&value, "c")),
            (Some("x"), None, None)
        );
        assert_eq!((id(&value, "a"), id(&value, "d")), (Some("x"), None), "ids of 4 KiB");
        for key in ["t", "n"] {
            assert_eq!(time(&value, key), Some(Timestamp::from_ms(1_700_000_000_123)));
        }
        assert_eq!(time(&value, "bad"), None);
        assert!(is_message_id("om_5ce6d572455d361153b7cb51da133945"));
        for id in ["", "om", "omt_1", "om_/../x", "om_ 1", &format!("om_{}", "1".repeat(200))] {
            assert!(!is_message_id(id), "{id}");
        }
    }

    #[test]
    fn secrets_are_cut_also_inside_of_nested_json() {
        let inner = json!({"token": "CANARY", "text": "hi"}).to_string();
        let payload = json!({"header": {"token": "CANARY", "event_id": "e"},
            "event": {"content": inner, "list": [{"app_secret": "CANARY"}],
                      "link": "https://open.feishu.cn/open-apis/bot/v2/hook/CANARY",
                      "url": "wss://x/?device_id=1&ticket=CANARY"}, "count": 3});
        let cut = redact(&payload);
        assert!(!cut.to_string().contains("CANARY"), "{cut}");
        assert_eq!((&cut["header"]["event_id"], &cut["count"]), (&json!("e"), &json!(3)));
        assert!(cut["event"]["content"].as_str().unwrap().contains("hi"));
        let mut deep = json!("CANARY");
        for _ in 0..100 {
            deep = json!([deep]);
        }
        assert!(!redact(&deep).to_string().contains("CANARY"));
    }
}
