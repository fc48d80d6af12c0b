//! HTTP events: encrypted or plain, signed, in compact or spaced JSON.

use serde::{Deserialize, Serialize};
use serde_json::ser::Formatter;
use serde_json::{Value, json};

use super::crypto;
use super::{app_id, encrypt_key, verification_token};
use crate::chaos::PushSigner;
use crate::event_queue::SimEvent;
use crate::provider::PushRequest;
use crate::random::random_hex;

/// Form of the callbacks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CallbackFormat {
    /// Whether an encrypt key is set: events are encrypted and signed.
    encrypt: bool,
    /// Blanks behind colons and commas. Lark's SDK for Node.js verifies compact JSON only.
    spaced: bool,
}

impl Default for CallbackFormat {
    fn default() -> Self {
        Self { encrypt: true, spaced: false }
    }
}

/// Writes JSON with blanks behind colons and commas.
struct SpacedFormatter;

impl Formatter for SpacedFormatter {
    fn begin_array_value<W>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()>
    where
        W: ?Sized + std::io::Write,
    {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()>
    where
        W: ?Sized + std::io::Write,
    {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W>(&mut self, writer: &mut W) -> std::io::Result<()>
    where
        W: ?Sized + std::io::Write,
    {
        writer.write_all(b": ")
    }
}

impl CallbackFormat {
    fn write(self, value: &Value) -> String {
        if !self.spaced {
            return value.to_string();
        }
        let mut out = Vec::new();
        let mut writer = serde_json::Serializer::with_formatter(&mut out, SpacedFormatter);
        // Writing a value to memory cannot fail.
        let _ = value.serialize(&mut writer);
        String::from_utf8(out).unwrap_or_default()
    }

    /// The body of a callback; `key` encrypts it.
    fn body(self, content: &Value, key: &str) -> String {
        let text = self.write(content);
        if !self.encrypt {
            return text;
        }
        self.write(&json!({"encrypt": crypto::encrypt(key, &text)}))
    }
}

fn content_type() -> (&'static str, String) {
    ("content-type", "application/json; charset=utf-8".to_owned())
}

/// The callback of an event. Without an encrypt key only the verification token proves its origin.
pub fn push(format: CallbackFormat, event: &SimEvent, signer: &PushSigner) -> PushRequest {
    let mut content: Value = serde_json::from_str(&event.payload).unwrap_or(Value::Null);
    if signer.app != event.app {
        content["header"]["app_id"] = json!(app_id(signer.app));
        content["header"]["token"] = json!(verification_token(signer.app));
    }
    if !format.encrypt {
        // The token takes the place of the signature.
        let token = signer.secret(verification_token);
        content["header"]["token"] = json!(token);
        if !signer.has_signature() {
            content["header"]["token"] = json!("");
        }
        return PushRequest { headers: vec![content_type()], body: format.body(&content, "") };
    }
    let body = format.body(&content, &encrypt_key(signer.app));
    let (seconds, nonce) = (signer.at_ms / 1000, random_hex());
    let signature = crypto::signature(&signer.secret(encrypt_key), seconds, &nonce, &body);
    let signature = [
        ("x-lark-request-timestamp", seconds.to_string()),
        ("x-lark-request-nonce", nonce),
        ("x-lark-signature", signature),
    ];
    PushRequest { headers: signer.headers(content_type(), signature), body }
}

/// The callback that checks a new URL. It has no signature.
pub fn challenge(format: CallbackFormat, app: usize) -> (PushRequest, String) {
    let challenge = random_hex();
    let content = json!({
        "challenge": challenge, "token": verification_token(app), "type": "url_verification",
    });
    let body = format.body(&content, &encrypt_key(app));
    (PushRequest { headers: vec![content_type()], body }, challenge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaced_json_has_blanks_and_the_same_value() {
        let value = json!({"a": [1, {"b": "c, d: e"}], "f": {}});
        let spaced = CallbackFormat { encrypt: false, spaced: true }.write(&value);
        assert_eq!(spaced, r#"{"a": [1, {"b": "c, d: e"}], "f": {}}"#);
        let compact = CallbackFormat::default().write(&value);
        assert_eq!(compact, r#"{"a":[1,{"b":"c, d: e"}],"f":{}}"#);
    }
}
