//! HTTP events (version 2.0): requests that Lark posts to the webhook listener.
//!
//! With an Encrypt Key, requests are encrypted and signed. The challenge that Lark sends when an
//! address is entered has no signature, so it is recognised by its token, or by its encryption.
//! Lark repeats a request that is not answered with 200 within 3 s after 15 s, 5 min, 1 h and 6 h;
//! the repeated request has the same event, which is recognised by its ids.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use monoco_core::config::Secret;
use monoco_core::time::Timestamp;
use serde_json::{Value, json};

use super::crypto;
use super::wire::text;
use crate::{WebhookAnswer, WebhookError, WebhookRequest};

/// How old the timestamp of a request may be. Lark repeats requests for about 7 h.
const MAX_AGE: Duration = Duration::from_secs(8 * 3600);

/// How far the timestamp may be in the future.
const MAX_AHEAD: Duration = Duration::from_secs(3600);

/// The secrets by which requests are verified.
#[derive(Debug)]
pub(super) struct CallbackKeys {
    pub app_id: String,
    /// Empty when it is not checked.
    pub verification_token: Secret,
    /// Empty when requests are not encrypted.
    pub encrypt_key: Secret,
}

/// What a verified request contains.
#[derive(Debug, PartialEq)]
pub(super) enum VerifiedCallback {
    /// The answer to a challenge.
    Challenge(WebhookAnswer),
    /// The envelope of an event.
    Event(Value),
}

/// Verifies and decrypts a request.
pub(super) fn verify(
    keys: &CallbackKeys,
    request: &WebhookRequest<'_>,
) -> Result<VerifiedCallback, WebhookError> {
    let body = parse(request.body)?;
    let key = keys.encrypt_key.expose();
    let payload = match (text(&body, "encrypt"), key.is_empty()) {
        (Some(encrypted), false) => decrypt(key, encrypted)?,
        (Some(_), true) => {
            return Err(WebhookError::Unverified(
                "the request is encrypted; set encrypt_key to the Encrypt Key of the app",
            ));
        }
        (None, false) => return Err(WebhookError::Unverified("the request is not encrypted")),
        (None, true) => body,
    };
    if text(&payload, "type") == Some("url_verification") {
        check_token(keys, text(&payload, "token"))?;
        let challenge = text(&payload, "challenge").unwrap_or_default();
        let body = json!({ "challenge": challenge }).to_string().into_bytes();
        return Ok(VerifiedCallback::Challenge(answer(body)));
    }
    if !key.is_empty() {
        check_signature(key, request)?;
    }
    let header = &payload["header"];
    // Version 1 has the token beside the event.
    check_token(keys, text(header, "token").or(text(&payload, "token")))?;
    let app = text(header, "app_id").or(text(&payload["event"], "app_id"));
    if app != Some(keys.app_id.as_str()) {
        return Err(WebhookError::Unverified("the event is of another app"));
    }
    Ok(VerifiedCallback::Event(payload))
}

/// The answer to an event.
pub(super) fn accepted() -> WebhookAnswer {
    answer(b"{}".to_vec())
}

fn answer(body: Vec<u8>) -> WebhookAnswer {
    WebhookAnswer { status: StatusCode::OK, content_type: "application/json", body }
}

/// What is not JSON is not verified, because the token is in the JSON.
fn parse(body: &[u8]) -> Result<Value, WebhookError> {
    let body = serde_json::from_slice(body).ok().filter(Value::is_object);
    body.ok_or(WebhookError::Unverified("the body is not a JSON object"))
}

fn decrypt(key: &str, encrypted: &str) -> Result<Value, WebhookError> {
    let plain = crypto::decrypt(key, encrypted);
    let plain = plain.ok_or(WebhookError::Unverified("the request has another Encrypt Key"))?;
    parse(&plain)
}

fn check_token(keys: &CallbackKeys, found: Option<&str>) -> Result<(), WebhookError> {
    let expected = keys.verification_token.expose();
    match expected.is_empty() || crypto::is_same(expected, found.unwrap_or_default()) {
        true => Ok(()),
        false => Err(WebhookError::Unverified("the verification token does not match")),
    }
}

fn check_signature(key: &str, request: &WebhookRequest<'_>) -> Result<(), WebhookError> {
    let timestamp = header(request.headers, "x-lark-request-timestamp")?;
    let nonce = header(request.headers, "x-lark-request-nonce")?;
    let signature = header(request.headers, "x-lark-signature")?;
    if !crypto::is_signature(signature, timestamp, nonce, key, request.body) {
        return Err(WebhookError::Unverified("the signature does not match"));
    }
    let seconds: i64 = timestamp
        .parse()
        .map_err(|_| WebhookError::Unverified("the timestamp of the signature is not a number"))?;
    let at = Timestamp::from_ms(seconds.saturating_mul(1000));
    if request.now.since(at) > MAX_AGE {
        return Err(WebhookError::Stale(MAX_AGE.as_secs()));
    }
    if at.since(request.now) > MAX_AHEAD {
        return Err(WebhookError::Stale(MAX_AHEAD.as_secs()));
    }
    Ok(())
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, WebhookError> {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    let missing = WebhookError::Unverified("a header of the signature (x-lark-…) is missing");
    value.filter(|value| !value.is_empty()).ok_or(missing)
}

#[cfg(test)]
mod tests;
