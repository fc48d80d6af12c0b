//! Converts a message into a JSON body, and the receiver's response into an outcome.
//!
//! Keys of the body; those without a value are left out:
//!
//! | key | content |
//! | --- | --- |
//! | `id` | the delivery's id, the same for every attempt; also in `webhook-id` and `Idempotency-Key` |
//! | `type` | `message` |
//! | `session` | `{id, type, thread_key?}`: the address, whether it is a `user`, `group`, `channel` or `addr`, and the thread |
//! | `to` | the address |
//! | `text` | the text |
//! | `title` | the subject |
//! | `format` | the MIME type of the text |
//! | `charset` | `latin-1`: the text is an e-mail with one character for each of its bytes |
//! | `reply_to` | the receiver's own id of the message that this answers |
//! | `correlation_id` | the sender's id for related messages |
//! | `from` | the author's DID |
//! | `timestamp` | when it was written, RFC 3339 |
//! | `attachments` | `[{name, mime_type, base64}]` |
//!
//! `inbound.rs` reads this body by default, so two couriers can exchange messages.

use std::time::{Duration, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use monoco_core::delivery::{DeliveryOutcome, ThrottleScope};
use monoco_core::did::EndpointKind;
use monoco_core::inbound::InboundAttachment;
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::inbound::scalar;
use super::wire::Signer;
use crate::DeliveryRequest;
use crate::egress::EgressResponse;

/// Limit of the attachments of one message together, in bytes: the body is signed as a whole.
pub const MAX_ATTACHMENT_BYTES: u64 = 32 << 20;

/// Longest part of a response that a failure repeats, in characters.
const MAX_EXCERPT_CHARS: usize = 200;

/// Longest id of the receiver that is stored, in bytes.
const MAX_EXTERNAL_ID_BYTES: usize = 512;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Returns the JSON that is posted.
pub fn body(request: &DeliveryRequest<'_>, attachments: &[InboundAttachment]) -> Vec<u8> {
    let message = request.message;
    let attachments = attachments.iter().map(|attachment| WebhookAttachment {
        name: &attachment.name,
        mime_type: &attachment.mime_type,
        base64: STANDARD.encode(&attachment.bytes),
    });
    let body = WebhookBody {
        id: request.key.to_string(),
        kind: "message",
        session: WebhookSession {
            id: request.address,
            kind: request.kind,
            thread_key: message.topic.as_deref(),
        },
        to: request.address,
        text: &message.text,
        title: message.title.as_deref(),
        format: message.format.as_deref(),
        charset: message.charset.as_deref(),
        reply_to: message.reply_to.as_deref(),
        correlation_id: message.correlation_id.as_deref(),
        from: &message.author,
        timestamp: message.created_at.unwrap_or(request.now).rfc3339(),
        attachments: attachments.collect(),
    };
    serde_json::to_vec(&body).expect("a struct of texts can be serialised")
}

/// Returns the headers of an attempt: the signature is new for each attempt, the id is the
/// same.
pub fn headers(signer: &Signer, request: &DeliveryRequest<'_>, body: &[u8]) -> HeaderMap {
    let key = request.key.to_string();
    let mut headers = signer.sign(&key, request.now, body);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Ok(key) = HeaderValue::try_from(key) {
        headers.insert(IDEMPOTENCY_KEY, key);
    }
    headers
}

/// Returns the outcome that a response stands for.
pub fn outcome(reply: &EgressResponse, peer: &str, now: Timestamp) -> DeliveryOutcome {
    if reply.status.is_success() {
        return DeliveryOutcome::Accepted { external_msg_id: external_id(&reply.body) };
    }
    match failure(reply, peer, now) {
        // All messages of the tunnel have the same receiver.
        Failure::Temporary { detail, retry_after_ms, error_code }
            if reply.status == StatusCode::TOO_MANY_REQUESTS =>
        {
            let retry_after = retry_after_ms.map(Duration::from_millis);
            DeliveryOutcome::Throttled {
                detail,
                error_code,
                retry_after,
                scope: ThrottleScope::Tunnel,
            }
        }
        failure => DeliveryOutcome::Failed(failure),
    }
}

/// Classifies a response other than 2xx: 408, 425, 429 and 5xx are temporary, all others
/// permanent.
pub fn failure(reply: &EgressResponse, peer: &str, now: Timestamp) -> Failure {
    let status = reply.status;
    let error_code = Some(status.as_str().to_owned());
    let mut detail = format!("{peer} answered {status}");
    if status.is_redirection() {
        detail.push_str("; redirects are never followed: set send_to to the final address");
        return Failure::Permanent { detail, error_code };
    }
    let excerpt = excerpt(&reply.body);
    if !excerpt.is_empty() {
        detail = format!("{detail}: {excerpt}");
    }
    let busy = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];
    if status.is_server_error() || busy.contains(&status) {
        return Failure::Temporary {
            detail,
            retry_after_ms: retry_after(&reply.headers, now),
            error_code,
        };
    }
    Failure::Permanent { detail, error_code }
}

/// Returns the delay that `Retry-After` asks for, in milliseconds. The header holds seconds
/// or a date.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<u64> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // The queue limits absurd delays.
        return Some(text.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(1000));
    }
    let until = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    let until = Timestamp::from_ms(i64::try_from(until.as_millis()).ok()?);
    u64::try_from(until.since(now).as_millis()).ok()
}

/// Returns the receiver's own id of the message, when the response has one.
fn external_id(body: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let id = ["id", "message_id"].iter().find_map(|key| value.get(key).and_then(scalar));
    id.filter(|id| !id.is_empty() && id.len() <= MAX_EXTERNAL_ID_BYTES)
}

/// Returns the beginning of a response in one line.
fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(4 * MAX_EXCERPT_CHARS)]);
    let words: Vec<_> = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|w| !w.is_empty())
        .collect();
    words.join(" ").chars().take(MAX_EXCERPT_CHARS).collect()
}

#[derive(Serialize)]
struct WebhookBody<'a> {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    session: WebhookSession<'a>,
    to: &'a str,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    charset: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply_to: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<&'a str>,
    from: &'a str,
    timestamp: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<WebhookAttachment<'a>>,
}

#[derive(Serialize)]
struct WebhookSession<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: EndpointKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_key: Option<&'a str>,
}

#[derive(Serialize)]
struct WebhookAttachment<'a> {
    name: &'a str,
    mime_type: &'a str,
    base64: String,
}

#[cfg(test)]
mod tests {
    use monoco_core::outgoing::OutgoingMessage;

    use super::*;
    use crate::delivery_fixture::{MemoryFiles, RecordedParts};

    fn reply(status: u16, headers: &[(&'static str, &str)], body: &str) -> EgressResponse {
        EgressResponse {
            status: StatusCode::from_u16(status).unwrap(),
            headers: headers
                .iter()
                .map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap()))
                .collect(),
            body: body.as_bytes().to_vec(),
        }
    }

    #[test]
    fn charset_of_an_email_is_posted() {
        let body = serde_json::json!({
            "from": "did:monoco:me",
            "content": {"format": "message/rfc822", "content": "caf\u{e9}", "charset": "latin-1"},
        });
        let message = OutgoingMessage::parse(&body.to_string()).unwrap();
        let request = DeliveryRequest {
            address: "ann@example.com",
            kind: EndpointKind::Addr,
            message: &message,
            files: &MemoryFiles::default(),
            sent_parts: &[],
            progress: &RecordedParts::default(),
            key: format!("dlv_{}", "0".repeat(48)).parse().unwrap(),
            first_attempt_ago: std::time::Duration::ZERO,
            now: Timestamp::from_ms(0),
        };
        let posted: Value = serde_json::from_slice(&super::body(&request, &[])).unwrap();
        assert_eq!((&posted["text"], &posted["charset"]), (&"café".into(), &"latin-1".into()));
    }

    #[test]
    fn every_status_is_classified() {
        for (status, want) in [
            (200, "accepted"),
            (201, "accepted"),
            (202, "accepted"),
            (204, "accepted"),
            (301, "permanent"),
            (302, "permanent"),
            (304, "permanent"),
            (307, "permanent"),
            (400, "permanent"),
            (401, "permanent"),
            (403, "permanent"),
            (404, "permanent"),
            (408, "temporary"),
            (409, "permanent"),
            (410, "permanent"),
            (413, "permanent"),
            (422, "permanent"),
            (425, "temporary"),
            (429, "throttled"),
            (500, "temporary"),
            (502, "temporary"),
            (503, "temporary"),
            (504, "temporary"),
            (599, "temporary"),
        ] {
            let outcome = outcome(&reply(status, &[], ""), "https://x", Timestamp::from_ms(0));
            let found = match &outcome {
                DeliveryOutcome::Accepted { .. } => "accepted",
                DeliveryOutcome::Failed(Failure::Permanent { .. }) => "permanent",
                DeliveryOutcome::Failed(Failure::Temporary { .. }) => "temporary",
                DeliveryOutcome::Failed(Failure::Unknown { .. }) => "unknown",
                DeliveryOutcome::Throttled { .. } => "throttled",
            };
            assert_eq!(found, want, "{status}: {outcome:?}");
        }
    }

    #[test]
    fn retry_after_is_read_as_seconds_or_date() {
        let now = Timestamp::from_rfc3339("1994-11-06T08:49:00Z").unwrap();
        for (header, want) in [
            ("0", Some(0)),
            ("120", Some(120_000)),
            (" 7 ", Some(7_000)),
            ("99999999999999999999999", Some(u64::MAX)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(37_000)),
            ("Sun, 06 Nov 1994 08:48:00 GMT", Some(0)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(252_618_189_059_000)),
            ("", None),
            ("-5", None),
            ("1.5", None),
            ("soon", None),
            ("Sun, 31 Feb 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49:37 CET", None),
        ] {
            let reply = reply(503, &[("retry-after", header)], "");
            let Failure::Temporary { retry_after_ms, .. } = failure(&reply, "https://x", now)
            else {
                panic!("{header}")
            };
            assert_eq!(retry_after_ms, want, "{header}");
        }
    }

    #[test]
    fn excerpt_of_a_response_is_short_and_in_one_line() {
        let now = Timestamp::from_ms(0);
        let words = |status, body: &str| {
            failure(&reply(status, &[], body), "https://x", now).detail().to_owned()
        };
        assert_eq!(words(404, ""), "https://x answered 404 Not Found");
        let said = words(400, "no\r\n\tsuch \u{1b}[31mroom\u{7}");
        assert_eq!(said, "https://x answered 400 Bad Request: no such [31mroom");
        assert_eq!(words(500, &"é".repeat(10_000)).matches('é').count(), MAX_EXCERPT_CHARS);
        let moved =
            failure(&reply(302, &[("location", "https://y/secret")], "go"), "https://x", now);
        assert!(moved.detail().contains("never followed"), "{moved:?}");
        assert!(!moved.detail().contains("secret"), "{moved:?}");
    }

    #[test]
    fn id_of_the_receiver_is_read() {
        for (body, want) in [
            (r#"{"id": "m-1"}"#, Some("m-1")),
            (r#"{"message_id": "m-2", "ok": true}"#, Some("m-2")),
            (r#"{"id": 7}"#, Some("7")),
            (r#"{"id": ""}"#, None),
            (r#"{"id": {}}"#, None),
            (r#"{"id": "m-1""#, None),
            ("ok", None),
            ("", None),
        ] {
            assert_eq!(external_id(body.as_bytes()).as_deref(), want, "{body}");
        }
        assert_eq!(external_id(format!(r#"{{"id": "{}"}}"#, "x".repeat(513)).as_bytes()), None);
    }
}
