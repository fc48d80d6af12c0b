//! Parses the body of a verified request: JSON or a form.
//!
//! A verified JSON body is never rejected for its content. Everything that RFC 8259 allows is
//! read: the last of several equal keys counts, and a part that has no exact [`Value`] becomes a
//! text with the JSON of that part: an integer beyond 64 bits, a number out of range, a lone
//! surrogate, levels that are nested too deep.

use std::collections::BTreeMap;

use reqwest::Url;
use serde_json::value::RawValue;
use serde_json::{Number, Value};

use super::inbound::header;
use crate::{WebhookError, WebhookRequest};

/// Levels that are read. Each level is scanned once more.
const MAX_DEPTH: usize = 32;

const FORM: &str = "application/x-www-form-urlencoded";

/// Returns the JSON of a request. Senders can put it into the field `payload` of a form; the
/// fields of any other form become texts of an object.
pub(super) fn parse(request: &WebhookRequest<'_>) -> Result<Value, WebhookError> {
    let text = std::str::from_utf8(request.body)
        .map_err(|_| unreadable("the body: invalid JSON: not UTF-8".to_owned()))?;
    if !is_form(request) {
        return parse_json(text);
    }
    // The query of a URL has the same format as a form.
    let mut url = Url::parse("form:").map_err(|error| unreadable(error.to_string()))?;
    url.set_query(Some(text));
    let fields: BTreeMap<_, _> = url.query_pairs().into_owned().collect();
    if fields.is_empty() {
        return Err(unreadable("the form has no fields".to_owned()));
    }
    match fields.get("payload") {
        Some(json) => parse_json(json),
        None => Ok(fields.into_iter().collect()),
    }
}

/// Tells whether the body of a request is a form. `curl --data` declares JSON as a form, but the
/// fields of a form do not start with a bracket.
pub(super) fn is_form(request: &WebhookRequest<'_>) -> bool {
    let declared = header(request.headers, "content-type").is_some_and(|it| it.starts_with(FORM));
    let first = request.body.trim_ascii_start().first();
    declared && !matches!(first, Some(b'{' | b'['))
}

fn parse_json(text: &str) -> Result<Value, WebhookError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // Checks the grammar of all levels, without recursion.
    let raw: &RawValue = serde_json::from_str(text).map_err(|error| {
        let what = if error.is_eof() { "truncated" } else { "invalid" };
        unreadable(format!("the body: {what} JSON: {error}"))
    })?;
    Ok(read_lenient(raw))
}

/// Reads any JSON. A part that has no exact [`Value`] becomes a text with the JSON of that part.
pub(crate) fn read_lenient(raw: &RawValue) -> Value {
    read(raw, 0)
}

fn read(raw: &RawValue, depth: usize) -> Value {
    let json = raw.get();
    let value = match json.as_bytes().first() {
        Some(b'{' | b'[') if depth == MAX_DEPTH => None,
        Some(b'{') => {
            let entries = serde_json::from_str::<BTreeMap<String, &RawValue>>(json).ok();
            let read = |(key, raw)| (key, read(raw, depth + 1));
            entries.map(|entries| Value::Object(entries.into_iter().map(read).collect()))
        }
        Some(b'[') => {
            let items = serde_json::from_str::<Vec<&RawValue>>(json).ok();
            items.map(|items| items.into_iter().map(|raw| read(raw, depth + 1)).collect())
        }
        Some(b'-' | b'0'..=b'9') => {
            let number = serde_json::from_str::<Number>(json).ok();
            let exact = |number: &Number| !number.is_f64() || json.contains(['.', 'e', 'E']);
            number.filter(exact).map(Value::Number)
        }
        _ => serde_json::from_str(json).ok(),
    };
    value.unwrap_or_else(|| Value::String(json.to_owned()))
}

fn unreadable(why: String) -> WebhookError {
    WebhookError::Unreadable(why)
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use monoco_core::time::Timestamp;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn parsed(kind: &str, body: &[u8]) -> Result<Value, String> {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", kind.parse().unwrap());
        let request =
            WebhookRequest { headers: &headers, query: "", body, now: Timestamp::from_ms(0) };
        parse(&request).map_err(|error| error.to_string())
    }

    #[test]
    fn valid_json_is_never_rejected() {
        let deep = format!(r#"{{"a": {}1{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
        for (body, pointer, want) in [
            (r#"{"id": 9007199254740993}"#, "/id", json!(9_007_199_254_740_993_i64)),
            (r#"{"id": 18446744073709551615}"#, "/id", json!(u64::MAX)),
            (r#"{"id": -123456789012345678901234}"#, "/id", json!("-123456789012345678901234")),
            (r#"{"id": 1e999}"#, "/id", json!("1e999")),
            (r#"{"id": 1.5e3}"#, "/id", json!(1500.0)),
            (r#"{"id": "\ud800"}"#, "/id", json!(r#""\ud800""#)),
            (r#"{"id": 1, "id": {"b": 2}}"#, "/id/b", json!(2)),
            (r#"{"a": {"\udc00": 1}}"#, "/a", json!(r#"{"\udc00": 1}"#)),
            ("\u{feff} [true, null] ", "/1", Value::Null),
            ("7", "", json!(7)),
        ] {
            let value = parsed("application/json", body.as_bytes()).unwrap();
            assert_eq!(value.pointer(pointer), Some(&want), "{body}");
        }
        let value = parsed("application/json", deep.as_bytes()).unwrap();
        let text = value.pointer(&format!("/a{}", "/0".repeat(MAX_DEPTH - 1))).unwrap();
        assert!(text.as_str().is_some_and(|text| text.starts_with("[[[")), "{text}");
    }

    #[test]
    fn json_that_is_declared_as_a_form_is_read_as_json() {
        assert_eq!(parsed(FORM, br#" {"text": "a=b&c"}"#).unwrap(), json!({"text": "a=b&c"}));
    }

    #[test]
    fn other_bodies_are_rejected_with_the_reason() {
        for (body, want) in [
            (&b""[..], "truncated JSON"),
            (br#"{"text": "hi""#, "truncated JSON"),
            (b"text=hi", "invalid JSON"),
            (b"{} {}", "invalid JSON"),
            (b"{\"text\": \"a\0b\"}", "control character"),
            (b"{'a': 1}", "invalid JSON"),
            (b"\xff\xfe", "not UTF-8"),
        ] {
            let error = parsed("application/json", body).unwrap_err();
            assert!(error.starts_with("the body: ") && error.contains(want), "{error}");
        }
    }

    #[test]
    fn forms_are_read() {
        let form = format!("{FORM}; charset=utf-8");
        let body = "a=b&payload=%7B%22zen%22%3A%22a+b%26%23%C3%A9%22%7D";
        assert_eq!(parsed(&form, body.as_bytes()), Ok(json!({"zen": "a b&#é"})));
        let fields = parsed(&form, b"text=two+words&a=1&a=2");
        assert_eq!(fields, Ok(json!({"text": "two words", "a": "2"})));
        for (body, want) in [
            (&b""[..], "no fields"),
            (b"payload=%7B", "truncated JSON"),
            (b"payload=", "truncated JSON"),
            (b"\xff", "not UTF-8"),
        ] {
            assert!(parsed(&form, body).unwrap_err().contains(want), "{body:?}");
        }
    }

    proptest! {
        #[test]
        fn values_are_read_as_serde_json_reads_them(value in crate::webhook::tests::any_json()) {
            let body = value.to_string();
            prop_assert_eq!(parsed("application/json", body.as_bytes()), Ok(value));
        }
    }
}
