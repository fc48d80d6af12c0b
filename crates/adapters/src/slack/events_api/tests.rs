//! Tests of requests of the Events API.

use monoco_core::inbound::InboundEvent;
use monoco_core::time::Timestamp;

use super::*;
use crate::egress::{Egress, EgressTarget};
use crate::slack::client::SlackClient;

fn content(body: &str) -> Result<WebhookContent, WebhookError> {
    let base = EgressTarget::parse("http://127.0.0.1:9/api/", true).unwrap();
    let workspace = SlackWorkspace::new(SlackClient::new(Egress::new().unwrap(), base, None, None));
    let headers = http::HeaderMap::new();
    let now = Timestamp::from_ms(0);
    read(&workspace, &WebhookRequest { headers: &headers, query: "", body: body.as_bytes(), now })
}

#[test]
fn challenge_is_answered() {
    let body = r#"{"token":"x","challenge":"3eZbrw1a","type":"url_verification"}"#;
    let found = content(body).unwrap();
    let answer = found.answer.unwrap();
    assert_eq!((answer.body.as_slice(), answer.content_type), (&b"3eZbrw1a"[..], "text/plain"));
    assert!(found.events.is_empty());
}

#[test]
fn events_commands_and_interactions_are_parsed() {
    let event = r#"{"type":"event_callback","event_id":"Ev1","event":{"type":"message","channel":"C1",
        "channel_type":"channel","user":"U1","text":"hi","ts":"1.000001"}}"#;
    let form = "command=%2Fdeploy&text=to+prod&user_id=U1&channel_id=C1&trigger_id=1.2";
    let payload = "payload=%7B%22type%22%3A%22block_actions%22%2C%22user%22%3A%7B%22id%22%3A%22U1%22\
        %7D%2C%22channel%22%3A%7B%22id%22%3A%22C1%22%7D%2C%22trigger_id%22%3A%221%22%7D";
    for (body, text) in [(event, "hi"), (form, "/deploy to prod"), (payload, "[block_actions: ")] {
        let found = content(body).unwrap();
        let [InboundEvent::Message { message, .. }] = found.events.as_slice() else {
            panic!("{body}")
        };
        assert!(message.text.starts_with(text), "{}", message.text);
        assert_eq!(found.answer.unwrap().status, StatusCode::OK);
    }
}

#[test]
fn other_bodies_are_unreadable() {
    for body in ["", "{", "hello", "payload=%7B", "a=b"] {
        assert!(matches!(content(body), Err(WebhookError::Unreadable(_))), "{body}");
    }
}
