//! Tests of requests to the webhook listener, and of setWebhook.

use monoco_core::inbound::InboundEvent;
use monoco_core::time::Timestamp;

use super::super::tests::{EventSink, adapter, call_of, server};
use super::*;
use crate::Adapter as _;

const LINES: &str = "mode: webhook\nsecret_token: s3cret\n";

fn headers(secret: Option<&str>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(secret) = secret {
        headers.insert(SECRET_HEADER, secret.parse().unwrap());
    }
    headers
}

fn request<'a>(headers: &'a HeaderMap, body: &'a [u8]) -> WebhookRequest<'a> {
    WebhookRequest { headers, query: "", body, now: Timestamp::from_ms(0) }
}

#[test]
fn requests_without_the_secret_are_rejected_before_their_body() {
    let adapter = adapter("https://api.telegram.org", LINES);
    for (secret, why) in [
        (None, "the secret token is missing"),
        (Some(""), "the secret token is wrong"),
        (Some("s3cre"), "the secret token is wrong"),
        (Some("s3cret2"), "the secret token is wrong"),
        (Some("S3CRET"), "the secret token is wrong"),
    ] {
        let headers = headers(secret);
        let error = WebhookError::Unverified(why);
        assert_eq!(adapter.check_webhook_headers(&headers), Err(error.clone()), "{secret:?}");
        assert_eq!(adapter.parse_webhook(&request(&headers, b"{}")), Err(error), "{secret:?}");
    }
    assert_eq!(adapter.check_webhook_headers(&headers(Some("s3cret"))), Ok(()));
}

#[test]
fn verified_update_becomes_an_event_and_odd_ones_are_kept() {
    let adapter = adapter("https://api.telegram.org", LINES);
    let headers = headers(Some("s3cret"));
    let body = br#"{"update_id":1,"message":{"message_id":5,"date":1,"text":"a\ud83d",
        "from":{"id":42,"is_bot":false,"first_name":"Ann"},"chat":{"id":42,"type":"private"}}}"#;
    let content = adapter.parse_webhook(&request(&headers, body)).unwrap();
    assert!(
        matches!(&content.events[0], InboundEvent::Message { message, .. } if message.text == "a\u{fffd}")
    );
    assert_eq!(content.answer.unwrap().body, b"{}", "an answer with a method would be executed");
    let odd = adapter.parse_webhook(&request(&headers, br#"{"update_id":2,"message":7}"#)).unwrap();
    assert!(
        matches!(&odd.events[0], InboundEvent::Notice(notice) if notice.kind == "unknown_event")
    );
    for body in [&b"hello"[..], b"{}", b"{\"update_id\":", b"\xff\xfe"] {
        let error = adapter.parse_webhook(&request(&headers, body)).unwrap_err();
        assert!(matches!(error, WebhookError::Unreadable(_)), "{error:?}");
    }
}

#[tokio::test]
async fn webhook_is_set_with_its_secret_and_the_wanted_updates() {
    let busy = r#"{"ok":false,"error_code":429,"description":"Too Many Requests","parameters":{"retry_after":0}}"#;
    let (server, url) = server(&[(429, busy), (200, r#"{"ok":true,"result":true}"#)]);
    let lines = format!("{LINES}webhook_url: https://hub.example.com/webhooks/tele\n");
    let adapter = adapter(&url, &lines);
    let (sink, stop) = (EventSink::default(), CancellationToken::new());
    let watch = async {
        while sink.reports.lock().unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.cancel();
    };
    tokio::join!(listen(&adapter, &sink, &stop), watch);
    server.request();
    let (method, body) = call_of(&server.request());
    assert_eq!((method.as_str(), &body["secret_token"]), ("setWebhook", &json!("s3cret")));
    assert_eq!(body["url"], "https://hub.example.com/webhooks/tele");
    assert_eq!(body["allowed_updates"], json!(ALLOWED_UPDATES));
    let reports = sink.reports.lock().unwrap();
    assert!(matches!(&reports[0], ConnectionEvent::Lost(_)), "{reports:?}");
    assert_eq!(reports[1], ConnectionEvent::Connected);
}
