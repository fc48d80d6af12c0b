//! Requests and responses of the emulators, and the parameters of a request.

use std::time::Duration;

use bytes::Bytes;
use hyper::header::HeaderMap;
use hyper::{Method, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use crate::store::{FileContent, SimFile};

/// A request whose body has been read.
#[derive(Debug)]
pub struct SimRequest {
    pub method: Method,
    pub path: String,
    pub query: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl SimRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The token of the `Authorization: Bearer` header.
    pub fn bearer(&self) -> Option<&str> {
        let (scheme, token) = self.header("authorization")?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    }

    pub fn query_value(&self, name: &str) -> Option<String> {
        parse_form(&self.query).into_iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The query and the body as one object. The body may be JSON or a form; values of a form
    /// that are JSON arrays or objects are parsed, as Slack does.
    pub fn params(&self) -> Map<String, Value> {
        let mut params = form_params(&self.query);
        let kind = self.header("content-type").unwrap_or_default();
        if kind.starts_with("application/json") {
            if let Ok(Value::Object(body)) = serde_json::from_slice(&self.body) {
                params.extend(body);
            }
        } else if kind.starts_with("application/x-www-form-urlencoded") {
            params.extend(form_params(&String::from_utf8_lossy(&self.body)));
        }
        params
    }

    /// The JSON body, or `Null` if the body is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

fn form_params(text: &str) -> Map<String, Value> {
    let read = |value: String| match value.chars().next() {
        Some('[' | '{') => serde_json::from_str(&value).unwrap_or(Value::String(value)),
        _ => Value::String(value),
    };
    parse_form(text).into_iter().map(|(key, value)| (key, read(value))).collect()
}

/// Parses `application/x-www-form-urlencoded` text into names and values.
pub fn parse_form(text: &str) -> Vec<(String, String)> {
    let decode =
        |part: &str| percent_decode_str(&part.replace('+', " ")).decode_utf8_lossy().into_owned();
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key), decode(value))
        })
        .collect()
}

/// The text of a parameter, or an empty text.
pub fn text_of<'a>(params: &'a Map<String, Value>, name: &str) -> &'a str {
    params.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// A flag, which a form sends as text.
pub fn is_set(params: &Map<String, Value>, name: &str) -> bool {
    match params.get(name) {
        Some(Value::Bool(flag)) => *flag,
        Some(Value::String(text)) => text == "true" || text == "1",
        Some(Value::Number(number)) => number.as_u64() == Some(1),
        _ => false,
    }
}

/// A number, which a form sends as text.
pub fn number_of(params: &Map<String, Value>, name: &str) -> Option<u64> {
    match params.get(name)? {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

/// A response of an emulator.
#[derive(Debug)]
pub struct SimResponse {
    pub status: StatusCode,
    pub headers: Vec<(&'static str, String)>,
    pub body: FileContent,
    /// Wait this long and close the connection instead of answering.
    pub hang: Option<Duration>,
}

impl SimResponse {
    pub fn json(status: StatusCode, body: &Value) -> Self {
        let headers = vec![("content-type", "application/json; charset=utf-8".to_owned())];
        Self { status, headers, body: FileContent::bytes(body.to_string()), hang: None }
    }

    pub fn ok(body: &Value) -> Self {
        Self::json(StatusCode::OK, body)
    }

    pub fn text(status: StatusCode, kind: &str, text: &str) -> Self {
        let headers = vec![("content-type", kind.to_owned())];
        Self { status, headers, body: FileContent::bytes(text.to_owned()), hang: None }
    }

    /// The bytes of a file.
    pub fn file(file: &SimFile) -> Self {
        let headers = vec![("content-type", file.mime_type.clone())];
        Self { status: StatusCode::OK, headers, body: file.content.clone(), hang: None }
    }

    pub fn not_found(path: &str) -> Self {
        let text = format!("the emulator has no {path}; see docs/sim.md\n");
        Self::text(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", &text)
    }

    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(kind: &str, query: &str, body: &str) -> SimRequest {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", kind.parse().unwrap());
        let body = Bytes::from(body.to_owned());
        SimRequest {
            method: Method::POST,
            path: "/".to_owned(),
            query: query.to_owned(),
            headers,
            body,
        }
    }

    #[test]
    fn json_and_form_bodies_give_the_same_parameters() {
        let expected = json!({"channel": "C1", "text": "a b&c", "blocks": [{"type": "divider"}]});
        let form = "channel=C1&text=a+b%26c&blocks=%5B%7B%22type%22%3A%22divider%22%7D%5D";
        let from_form = request("application/x-www-form-urlencoded", "", form).params();
        assert_eq!(Value::Object(from_form), expected);
        let from_json =
            request("application/json; charset=utf-8", "channel=C0", &expected.to_string());
        assert_eq!(Value::Object(from_json.params()), expected);
    }

    #[test]
    fn flags_and_numbers_are_read_from_text_and_json() {
        let params =
            request("application/x-www-form-urlencoded", "", "limit=5&inclusive=true").params();
        assert_eq!(number_of(&params, "limit"), Some(5));
        assert!(is_set(&params, "inclusive"));
        assert!(!is_set(&params, "other"));
    }
}
