//! Tests of the whole webhook adapter: receiving, and sending to a server on loopback.

use std::time::Duration;

use http::{HeaderMap, HeaderName};
use monoco_core::config::Secret;
use monoco_core::delivery::ThrottleScope;
use monoco_core::did::{Did, EndpointKind};
use monoco_core::inbound::{ChatSessionKind, InboundAttachment, InboundEvent};
use monoco_core::object::{MsgObject, ObjId, ObjKind};
use monoco_core::outgoing::OutgoingMessage;
use monoco_core::record::RecordId;
use monoco_core::time::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::delivery_fixture::{MemoryFiles, RecordedParts};
use crate::egress::EgressLimits;
use crate::scripted::{ScriptedAct, ScriptedServer, answer};

const SECRET: &str = "whsec_Y2FuYXJ5LWNhbmFyeS1jYW5hcnk=";

/// Random JSON with keys that the adapter knows, and others.
pub(super) fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e15..1e15f64).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[a-zA-Z0-9+/=]{0,20}|[0-9TZ:.+-]{0,25}".prop_map(Value::from),
    ];
    let key = "id|name|session|type|thread_key|from|title|text|timestamp|mentions|reply_to\
               |attachments|base64|url|mime_type|repository|issue|commits|[a-z~/]{0,3}";
    leaf.prop_recursive(4, 48, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..8)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn settings(verify: WebhookVerification, send_to: Option<String>) -> WebhookConfig {
    WebhookConfig {
        verify,
        secret: Secret::new(SECRET),
        allow_unverified: false,
        send_to,
        map: FieldMap::default(),
        dedupe: Duration::from_secs(60),
        template: None,
        idempotent: None,
        allow_private: true,
    }
}

fn tunnel(settings: WebhookConfig, total: Duration) -> Webhook {
    let egress = Egress::with_limits(EgressLimits { total, ..EgressLimits::default() }).unwrap();
    Webhook::new("ci".parse().unwrap(), settings, egress).unwrap()
}

fn now() -> Timestamp {
    Timestamp::from_rfc3339("2026-02-06T20:45:00Z").unwrap()
}

fn key() -> RecordId {
    let did: Did = "did:msgtunnel:ci".parse().unwrap();
    RecordId::delivery(&did, &did, &ObjId::of(ObjKind::Msg, b"1"))
}

fn message() -> Value {
    json!({
        "from": "did:monoco:me", "to": ["did:msgtunnel:room-7.group.ci"], "kind": "chat",
        "created_at_ms": 1_770_410_000_000_i64, "in_reply_to": "evt-1",
        "thread": {"topic": "build-9", "correlation_id": "case-42"},
        "content": {"title": "Build", "format": "text/markdown", "content": "it is **green** again"},
    })
}

fn outgoing(message: Value) -> OutgoingMessage {
    OutgoingMessage::parse(MsgObject::from_json(message).unwrap().canonical()).unwrap()
}

async fn send(webhook: &Webhook, message: Value) -> DeliveryOutcome {
    let mut message = outgoing(message);
    let files = MemoryFiles(vec![InboundAttachment {
        name: "log.txt".to_owned(),
        mime_type: "text/plain".to_owned(),
        bytes: b"green\n".to_vec(),
    }]);
    message.attachments = files.references();
    webhook.deliver(&request(&message, &files, &RecordedParts::default(), now())).await
}

fn request<'a>(
    message: &'a OutgoingMessage,
    files: &'a MemoryFiles,
    progress: &'a RecordedParts,
    now: Timestamp,
) -> DeliveryRequest<'a> {
    DeliveryRequest {
        address: "room-7",
        kind: EndpointKind::Group,
        message,
        files,
        sent_parts: &[],
        progress,
        key: key(),
        first_attempt_ago: std::time::Duration::ZERO,
        now,
    }
}

/// Makes one attempt through a tunnel to `server`.
async fn try_once(server: &ScriptedServer, total: Duration) -> DeliveryOutcome {
    let settings = settings(WebhookVerification::Standard, Some(server.url("http")));
    let outcome = send(&tunnel(settings, total), message()).await;
    // The outcome must contain neither the secret nor the query.
    assert!(!format!("{outcome:?}").to_lowercase().contains("canary"), "{outcome:?}");
    outcome
}

fn failed(outcome: DeliveryOutcome) -> Failure {
    match outcome {
        DeliveryOutcome::Failed(failure) => failure,
        _ => panic!("{outcome:?}"),
    }
}

/// The headers and the body of a request.
fn split(request: &str) -> (HeaderMap, &str) {
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let mut headers = HeaderMap::new();
    for (name, value) in head.lines().skip(1).filter_map(|line| line.split_once(": ")) {
        headers.append(HeaderName::try_from(name).unwrap(), value.parse().unwrap());
    }
    (headers, body)
}

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(1500);

#[tokio::test]
async fn message_is_posted_with_signature_and_key() {
    let server = ScriptedServer::answering("201 Created", "", r#"{"id": "m-1"}"#);
    let outcome = try_once(&server, LONG).await;
    assert_eq!(outcome, DeliveryOutcome::Accepted { external_msg_id: Some("m-1".to_owned()) });

    let request = server.request();
    let (headers, body) = split(&request);
    assert!(request.starts_with("POST /hook?token="), "{request}");
    assert_eq!(headers["webhook-id"], key().to_string());
    assert_eq!(headers["idempotency-key"], key().to_string());
    assert_eq!(headers["webhook-timestamp"], "1770410700");
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["user-agent"], concat!("monoco/", env!("CARGO_PKG_VERSION")));
    assert_eq!(
        serde_json::from_str::<Value>(body).unwrap(),
        json!({
            "id": key().to_string(), "type": "message",
            "session": {"id": "room-7", "type": "group", "thread_key": "build-9"},
            "to": "room-7", "text": "it is **green** again", "title": "Build",
            "format": "text/markdown", "reply_to": "evt-1", "correlation_id": "case-42",
            "from": "did:monoco:me", "timestamp": "2026-02-06T20:33:20.000Z",
            "attachments": [{"name": "log.txt", "mime_type": "text/plain", "base64": "Z3JlZW4K"}],
        })
    );
}

#[tokio::test]
async fn posted_message_is_received_by_another_courier() {
    let hmac = HmacHeader {
        header: "X-Signature".to_owned(),
        encoding: SignatureEncoding::Base64,
        prefix: "v0=".to_owned(),
        timestamp_header: Some("X-Time".to_owned()),
    };
    for verify in [WebhookVerification::Standard, WebhookVerification::Hmac(hmac)] {
        let server = ScriptedServer::answering("204 No Content", "", "");
        let webhook = tunnel(settings(verify, Some(server.url("http"))), LONG);
        let outcome = send(&webhook, message()).await;
        assert_eq!(outcome, DeliveryOutcome::Accepted { external_msg_id: None });

        let request = server.request();
        let (headers, body) = split(&request);
        let request =
            WebhookRequest { headers: &headers, query: "", body: body.as_bytes(), now: now() };
        let event = webhook.parse_webhook(&request).unwrap().events.remove(0);
        let InboundEvent::Message { message, attachments } = event else { panic!("{event:?}") };
        assert_eq!(message.id, key().to_string());
        assert_eq!(message.session.key(), "room-7:build-9");
        assert_eq!(message.session.kind, ChatSessionKind::Group);
        assert_eq!(message.from.id, "did:monoco:me");
        assert_eq!(message.text, "it is **green** again");
        assert_eq!(message.reply_to.as_deref(), Some("evt-1"));
        assert_eq!(attachments[0].bytes, b"green\n");

        let altered = body.replace("green", "red");
        let request =
            WebhookRequest { headers: &headers, query: "", body: altered.as_bytes(), now: now() };
        assert!(matches!(webhook.parse_webhook(&request), Err(WebhookError::Unverified(_))));
    }
}

#[tokio::test]
async fn second_attempt_has_a_new_signature_and_the_same_id() {
    let ok = ScriptedAct::Answer(answer("200 OK", "", ""));
    let server = ScriptedServer::new([ok.clone(), ok]);
    let webhook = tunnel(settings(WebhookVerification::Standard, Some(server.url("http"))), LONG);
    let message = outgoing(message());
    let mut seen = Vec::new();
    for later in [0, 60] {
        let (files, parts) = (MemoryFiles::default(), RecordedParts::default());
        let at = now() + Duration::from_secs(later);
        webhook.deliver(&request(&message, &files, &parts, at)).await;
        let request = server.request();
        let (headers, body) = split(&request);
        seen.push((
            headers["webhook-id"].clone(),
            headers["webhook-signature"].clone(),
            body.len(),
        ));
    }
    assert_eq!((&seen[0].0, seen[0].2), (&seen[1].0, seen[1].2));
    assert_ne!(seen[0].1, seen[1].1);
}

#[tokio::test]
async fn busy_receiver_sets_the_retry_delay() {
    for (status, header, want) in [
        ("503 Busy", "Retry-After: 7\r\n", Some(7_000)),
        ("503 Busy", "Retry-After: Fri, 06 Feb 2026 20:45:30 GMT\r\n", Some(30_000)),
        ("500 Internal Server Error", "", None),
    ] {
        let failure =
            failed(try_once(&ScriptedServer::answering(status, header, "slow down"), LONG).await);
        let Failure::Temporary { detail, retry_after_ms, .. } = failure else {
            panic!("{failure:?}")
        };
        assert_eq!(retry_after_ms, want, "{status}");
        assert!(detail.contains(&status[..3]) && detail.ends_with(": slow down"), "{detail}");
    }
}

#[tokio::test]
async fn rate_limit_of_the_receiver_applies_to_the_tunnel() {
    let status = "429 Too Many Requests";
    let server = ScriptedServer::answering(status, "Retry-After: 7\r\n", "slow down");
    let outcome = try_once(&server, LONG).await;
    let DeliveryOutcome::Throttled { retry_after, scope, error_code, .. } = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!((retry_after, scope), (Some(Duration::from_secs(7)), ThrottleScope::Tunnel));
    assert_eq!(error_code.as_deref(), Some("429"));
}

#[tokio::test]
async fn rejections_and_redirects_are_permanent_failures() {
    let rejected =
        failed(try_once(&ScriptedServer::answering("400 Bad Request", "", "no text"), LONG).await);
    let Failure::Permanent { detail, .. } = rejected else { panic!("{rejected:?}") };
    assert!(detail.starts_with("http://127.0.0.1:"), "{detail}");
    assert!(detail.ends_with(" answered 400 Bad Request: no text"), "{detail}");

    let elsewhere = ScriptedServer::answering("200 OK", "", "");
    let location = format!("Location: {}\r\n", elsewhere.url("http"));
    let moved =
        failed(try_once(&ScriptedServer::answering("302 Found", &location, ""), LONG).await);
    assert!(matches!(moved, Failure::Permanent { .. }), "{moved:?}");
    assert!(moved.detail().contains("never followed"), "{moved:?}");
    assert!(!elsewhere.received_more());
}

#[tokio::test]
async fn missing_response_is_an_unknown_outcome() {
    let ok = answer("200 OK", "", "");
    for (act, total) in
        [(ScriptedAct::HangUp, LONG), (ScriptedAct::Silence, SHORT), (ScriptedAct::Drip(ok), SHORT)]
    {
        let server = ScriptedServer::new([act.clone()]);
        let failure = failed(try_once(&server, total).await);
        assert!(matches!(failure, Failure::Unknown { .. }), "{act:?}: {failure:?}");
        assert!(failure.detail().contains("after the message was sent"), "{act:?}: {failure:?}");
        // The receiver got the message, and got it once.
        assert!(server.request().contains("it is **green** again"), "{act:?}");
        assert!(!server.received_more(), "{act:?}");
    }
}

/// The status decides; the body may be lost.
#[tokio::test]
async fn truncated_response_counts_by_its_status() {
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"id\": \"m-".to_owned();
    for (act, total) in [(ScriptedAct::Answer(cut.clone()), LONG), (ScriptedAct::Stall(cut), SHORT)]
    {
        let outcome = try_once(&ScriptedServer::new([act]), total).await;
        assert_eq!(outcome, DeliveryOutcome::Accepted { external_msg_id: None });
    }
}

#[tokio::test]
async fn message_without_allowed_target_is_not_sent() {
    let deaf = tunnel(settings(WebhookVerification::Github, None), LONG);
    let failure = failed(send(&deaf, message()).await);
    assert_eq!(
        failure,
        Failure::Permanent {
            detail: "this tunnel cannot send: it has no send_to".to_owned(),
            error_code: None
        }
    );

    let server = ScriptedServer::answering("200 OK", "", "");
    let guarded = WebhookConfig {
        allow_private: false,
        ..settings(
            WebhookVerification::Standard,
            Some(format!("https://localhost:{}/", server.port())),
        )
    };
    let failure = failed(send(&tunnel(guarded, LONG), message()).await);
    assert!(matches!(failure, Failure::Permanent { .. }), "{failure:?}");
    assert!(failure.detail().contains("allow_private: true"), "{failure:?}");
    assert!(!server.received_more());
}

#[test]
fn idempotency_is_configured_or_assumed() {
    let hmac = WebhookVerification::Hmac(HmacHeader {
        header: "X-Sig".to_owned(),
        encoding: SignatureEncoding::Hex,
        prefix: String::new(),
        timestamp_header: None,
    });
    for (verify, idempotent, want) in [
        (WebhookVerification::Standard, None, true),
        (WebhookVerification::Standard, Some(false), false),
        (WebhookVerification::Github, None, false),
        (WebhookVerification::Github, Some(true), true),
        (hmac, None, false),
    ] {
        let settings = WebhookConfig { idempotent, ..settings(verify, None) };
        assert_eq!(tunnel(settings, LONG).accepts_idempotency_keys(), want);
    }
}

#[test]
fn invalid_config_is_rejected_with_the_next_step() {
    let rejected = |change: fn(&mut WebhookConfig)| {
        let mut settings = settings(WebhookVerification::Standard, None);
        settings.allow_private = false;
        change(&mut settings);
        let egress = Egress::new().unwrap();
        Webhook::new("ci".parse().unwrap(), settings, egress).unwrap_err().to_string()
    };
    for (error, want) in [
        (rejected(|s| s.secret = Secret::new("")), "a tunnel without a secret does not start"),
        (rejected(|s| s.secret = Secret::new("canary!")), "openssl rand -base64 32"),
        (rejected(|s| s.verify = WebhookVerification::Unverified), "allow_unverified: true"),
        (
            rejected(|s| (s.verify, s.allow_unverified) = (WebhookVerification::Unverified, true)),
            "secret: not used with `verify: none`",
        ),
        (rejected(|s| s.verify = WebhookVerification::Basic), "expected `user:password`"),
        (rejected(|s| s.map.text = Some("text".to_owned())), "map.text: \"text\""),
        (rejected(|s| s.map.id = Some("/a~2".to_owned())), "map.id: \"/a~2\""),
        (rejected(|s| s.map.title = Some(String::new())), "map.title: \"\""),
        (rejected(|s| s.template = Some("{{ a".to_owned())), "template: syntax error"),
        (rejected(|s| s.send_to = Some("ci".to_owned())), "send_to: not a URL"),
        (rejected(|s| s.send_to = Some("http://ci/".to_owned())), "send_to: expected https://"),
        (rejected(|s| s.send_to = Some("https://10.0.0.1/".to_owned())), "allow_private: true"),
        (rejected(|s| s.send_to = Some("https://a:b@ci/".to_owned())), "before the @"),
    ] {
        assert!(error.contains(want), "{error}");
        assert!(!error.contains("canary"), "{error}");
    }
    let webhook = tunnel(settings(WebhookVerification::Github, None), LONG);
    let shown = format!("{webhook:?}");
    assert!(!shown.contains("canary") && !shown.contains(SECRET), "{shown}");
}
