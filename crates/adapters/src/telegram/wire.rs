//! Telegram's notation: ids of messages, pages of updates, and what is cut from payloads before
//! they are stored.

use std::borrow::Cow;

use monoco_core::inbound::InboundAttachment;
use monoco_core::time::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::webhook::read_lenient;

/// What is stored in place of a secret.
const CUT: &str = "[cut]";

/// Deepest payload that is stored.
const MAX_DEPTH: usize = 40;

/// Keys whose values are secrets: invitations let anyone join a chat, and the others belong to
/// payments and identity documents.
const SECRET_KEYS: [&str; 8] = [
    "invite_link",
    "passport_data",
    "credentials",
    "secret_token",
    "token",
    "order_info",
    "telegram_payment_charge_id",
    "provider_payment_charge_id",
];

/// Parts of links that let anyone join a chat.
const INVITATIONS: [&str; 3] = ["t.me/+", "t.me/joinchat/", "tg://join"];

/// Shortest second part of a bot token.
const MIN_TOKEN_CHARS: usize = 30;

/// Returns the text under `key`, unless it is empty or of another type.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// Returns the entries of the list under `key`.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn integer(value: &Value, key: &str) -> Option<i64> {
    value.get(key).and_then(Value::as_i64)
}

/// Returns the external id of a message: its chat and its number, which is unique there.
pub(super) fn message_id(chat: i64, message: i64) -> String {
    format!("{chat}:{message}")
}

/// Returns chat and number of an external id. Ids of edits and notices have none.
pub(super) fn split_message_id(id: &str) -> Option<(i64, i64)> {
    let (chat, message) = id.split_once(':')?;
    Some((chat.parse().ok()?, message.parse().ok().filter(|message| *message > 0)?))
}

/// Returns the time of a number of seconds since 1970; Telegram writes 0 when it is not known.
pub(super) fn time(value: &Value, key: &str) -> Option<Timestamp> {
    let seconds = integer(value, key).filter(|seconds| *seconds > 0)?;
    Some(Timestamp::from_ms(seconds.checked_mul(1000)?))
}

/// One update of a page, or of a request to the webhook listener.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TelegramUpdate {
    pub id: i64,
    pub value: Value,
}

#[derive(Deserialize)]
struct UpdateId {
    update_id: i64,
}

/// Parses the updates of a page one by one, so that one with odd content does not spoil the
/// others. `None` when the page is no list of updates.
pub(super) fn parse_page(json: &str) -> Option<Vec<TelegramUpdate>> {
    let raw: Vec<&RawValue> = serde_json::from_str(json).ok()?;
    raw.into_iter().map(|raw| parse_update(raw.get())).collect()
}

/// Parses an update. Half of a surrogate pair becomes U+FFFD, which has the same length in UTF-16
/// units. `None` when the JSON is invalid or has no id.
pub(super) fn parse_update(json: &str) -> Option<TelegramUpdate> {
    let UpdateId { update_id: id } = serde_json::from_str(json).ok()?;
    let repaired = repair_surrogates(json);
    let raw: &RawValue = serde_json::from_str(&repaired).ok()?;
    Some(TelegramUpdate { id, value: read_lenient(raw) })
}

/// Replaces the escapes of lone surrogates in JSON by that of U+FFFD.
fn repair_surrogates(json: &str) -> Cow<'_, str> {
    let bytes = json.as_bytes();
    let escape_at = |at: usize| -> Option<u16> {
        let digits = json.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let (mut repaired, mut copied, mut at) = (String::new(), 0, 0);
    while let Some(found) = memchr::memchr(b'\\', &bytes[at.min(bytes.len())..]) {
        at += found;
        let Some(unit) = escape_at(at) else {
            // Another escape, or a character that is not ASCII behind the backslash.
            at += 2;
            continue;
        };
        let is_low = |unit: Option<u16>| unit.is_some_and(|unit| (0xdc00..=0xdfff).contains(&unit));
        match unit {
            0xd800..=0xdbff if is_low(escape_at(at + 6)) => at += 12,
            0xd800..=0xdfff => {
                repaired.push_str(&json[copied..at]);
                repaired.push_str("\\ufffd");
                at += 6;
                copied = at;
            }
            _ => at += 6,
        }
    }
    if copied == 0 {
        return Cow::Borrowed(json);
    }
    repaired.push_str(&json[copied..]);
    Cow::Owned(repaired)
}

/// Returns a payload as an attachment, without secrets.
pub(super) fn payload_file(payload: &Value) -> InboundAttachment {
    InboundAttachment {
        name: "payload.json".to_owned(),
        mime_type: "application/json".to_owned(),
        bytes: serde_json::to_vec_pretty(&redact(payload)).unwrap_or_default(),
    }
}

/// Returns a payload without tokens, invitations and data of payments.
pub(super) fn redact(value: &Value) -> Value {
    redact_at(value, 0)
}

fn redact_at(value: &Value, depth: usize) -> Value {
    match value {
        _ if depth > MAX_DEPTH => Value::String(CUT.to_owned()),
        Value::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| {
                let is_secret = SECRET_KEYS.contains(&key.as_str()) && !value.is_null();
                let value = match is_secret {
                    true => Value::String(CUT.to_owned()),
                    false => redact_at(value, depth + 1),
                };
                (key.clone(), value)
            });
            Value::Object(entries.collect::<Map<_, _>>())
        }
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| redact_at(item, depth + 1)).collect())
        }
        Value::String(text) if holds_secret(text) => Value::String(CUT.to_owned()),
        other => other.clone(),
    }
}

/// Tells whether a text contains a bot token or an invitation.
fn holds_secret(text: &str) -> bool {
    INVITATIONS.iter().any(|part| text.contains(part)) || find_token(text).is_some()
}

/// Returns a text without bot tokens, for errors.
pub(super) fn without_tokens(text: &str) -> String {
    let (mut shown, mut rest) = (String::new(), text);
    while let Some((start, end)) = find_token(rest) {
        shown.push_str(&rest[..start]);
        shown.push_str(CUT);
        rest = &rest[end..];
    }
    shown + rest
}

/// Returns where the first bot token begins and ends: digits, a colon, and at least 30 letters,
/// digits, `_` or `-`.
fn find_token(text: &str) -> Option<(usize, usize)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    text.match_indices(':').find_map(|(colon, _)| {
        let digits = text[..colon].len()
            - text[..colon].trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let secret: usize = text[colon + 1..].chars().take_while(|c| is_part(*c)).count();
        (digits >= 3 && secret >= MIN_TOKEN_CHARS).then_some((colon - digits, colon + 1 + secret))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const TOKEN: &str = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw";

    #[test]
    fn message_ids_have_a_chat_and_a_number() {
        assert_eq!(split_message_id(&message_id(-1001234567890, 55)), Some((-1001234567890, 55)));
        for id in
            ["", "5", "5:", ":5", "5:0", "5:-1", "5:6:1700000000:ab", "member_joined:5:6", "x:1"]
        {
            assert_eq!(split_message_id(id), None, "{id}");
        }
    }

    #[test]
    fn lone_surrogates_are_replaced_and_pairs_stay() {
        for (json, want) in [
            (r#"{"update_id":1,"t":"a\ud83d\ude00b"}"#, "a😀b"),
            (r#"{"update_id":1,"t":"a\ud83db"}"#, "a\u{fffd}b"),
            (r#"{"update_id":1,"t":"\ude00\ud83d"}"#, "\u{fffd}\u{fffd}"),
            (r#"{"update_id":1,"t":"\\ud83d \" \u0041"}"#, "\\ud83d \" A"),
            (r#"{"update_id":1,"t":"\ud83d\u0041"}"#, "\u{fffd}A"),
        ] {
            assert_eq!(parse_update(json).unwrap().value["t"], want, "{json}");
        }
    }

    #[test]
    fn odd_update_does_not_spoil_its_page() {
        let deep = format!("{}1{}", "[".repeat(500), "]".repeat(500));
        let page = format!(
            r#"[{{"update_id":7,"message":{{"text":"a\udc00"}}}},{{"update_id":8,"x":{deep}}},{{"update_id":9}}]"#
        );
        let ids: Vec<_> = parse_page(&page).unwrap().iter().map(|update| update.id).collect();
        assert_eq!(ids, [7, 8, 9]);
        assert_eq!(parse_page(r#"[{"update_id":"x"}]"#), None);
        assert_eq!(parse_page("{}"), None);
    }

    #[test]
    fn secrets_are_cut_from_payloads_and_errors() {
        let payload = json!({
            "invite_link": {"invite_link": "https://t.me/+canary"},
            "text": format!("my token is {TOKEN}"),
            "list": ["https://t.me/joinchat/canary", "see tg://join?invite=canary", "12:30"],
            "passport_data": {"data": "canary"}, "message_id": 5,
        });
        let shown = redact(&payload).to_string();
        assert!(!shown.contains("canary") && !shown.contains("AAHdq"), "{shown}");
        assert!(shown.contains("12:30") && shown.contains("\"message_id\":5"), "{shown}");
        let error = without_tokens(&format!("POST /bot{TOKEN}/getMe and {TOKEN}: no"));
        assert_eq!(error, "POST /bot[cut]/getMe and [cut]: no");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_and_searched_without_a_panic(text in "\\PC*", json in r#"[\\"ud8c09a-f:{}]{0,40}"#) {
            let _ = (without_tokens(&text), repair_surrogates(&text), parse_update(&json));
            let update = json!({"update_id": 1, "text": text}).to_string();
            prop_assert_eq!(&parse_update(&update).unwrap().value["text"], &json!(text));
        }
    }
}
