//! What the frames of a stream mean, and how a stream that cannot be opened is tried again.

use monoco_core::inbound::TunnelNotice;

use super::*;
use crate::socket::{ConnectRetry, FrameAction, SocketFrame, SocketMessage, SocketProtocol as _};

fn read(adapter: &DingTalkAdapter, frame: &str) -> Vec<FrameAction> {
    DingTalkStream::new(adapter).read_frame(SocketFrame::Text(frame), NOW)
}

fn frame(kind: &str, topic: &str, data: &str) -> String {
    json!({
        "specVersion": "1.0", "type": kind, "data": data,
        "headers": {"messageId": "m-1", "topic": topic, "contentType": "application/json"},
    })
    .to_string()
}

fn reply(action: &FrameAction) -> Value {
    match action {
        FrameAction::Reply(SocketMessage::Text(text))
        | FrameAction::Receive { ack: SocketMessage::Text(text), .. } => {
            serde_json::from_str(text).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn robot_message_is_stored_and_then_acknowledged() {
    let adapter = adapter("http://127.0.0.1:1", "");
    let frame = frame("CALLBACK", wire::ROBOT_TOPIC, &testdata("text_group"));
    let actions = read(&adapter, &frame);
    let [FrameAction::Receive { events, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert!(
        matches!(&events[..], [InboundEvent::Message { message, .. }] if message.id == "msgAAA==")
    );
    let ack = reply(&actions[0]);
    assert_eq!((&ack["code"], &ack["headers"]["messageId"]), (&json!(200), &json!("m-1")));
    assert!(adapter.webhooks.get(EndpointKind::Group, "cidOps==", NOW).is_some());
}

#[test]
fn own_message_is_acknowledged_and_not_stored() {
    let frame = frame("CALLBACK", wire::ROBOT_TOPIC, &testdata("own_message"));
    let actions = read(&adapter("http://127.0.0.1:1", ""), &frame);
    assert!(matches!(actions.as_slice(), [FrameAction::Reply(_)]), "{actions:?}");
}

#[test]
fn event_is_a_notice_that_is_acknowledged_or_wanted_later() {
    let actions = read(&adapter("http://127.0.0.1:1", ""), &testdata("event_member_joined"));
    let [FrameAction::Receive { events, .. }, FrameAction::WhenUnstored(later)] =
        actions.as_slice()
    else {
        panic!("{actions:?}")
    };
    assert!(matches!(later, SocketMessage::Text(text) if text.contains("LATER")), "{later:?}");
    let [InboundEvent::Notice(TunnelNotice { kind, .. })] = &events[..] else { panic!() };
    assert_eq!(kind, "member_joined");
    assert!(reply(&actions[0])["data"].as_str().unwrap().contains("SUCCESS"));
}

#[test]
fn ping_is_echoed_and_disconnect_opens_the_new_socket_first() {
    let adapter = adapter("http://127.0.0.1:1", "");
    let ping = read(&adapter, &frame("SYSTEM", "ping", r#"{"opaque":"o-1"}"#));
    assert_eq!(reply(&ping[0])["data"], r#"{"opaque":"o-1"}"#);
    let bare = r#"{"type":"SYSTEM","headers":{"topic":"disconnect"},"data":"{\"reason\":\"connection is expired\"}"}"#;
    let actions = read(&adapter, bare);
    let reason = "connection is expired".to_owned();
    assert_eq!(actions, [FrameAction::Reconnect { reason, keep_old: true }]);
    assert!(read(&adapter, &frame("SYSTEM", "KEEPALIVE", "")).is_empty());
}

#[test]
fn frames_that_cannot_be_used_are_answered_or_ignored() {
    let adapter = adapter("http://127.0.0.1:1", "");
    let card = read(&adapter, &frame("CALLBACK", "/v1.0/card/instances/callback", "{}"));
    assert_eq!(reply(&card[0])["code"], 404);
    for ignored in ["not json", "{}", r#"{"type":"OTHER"}"#] {
        assert!(read(&adapter, ignored).is_empty(), "{ignored}");
    }
    let broken = read(&adapter, &frame("CALLBACK", wire::ROBOT_TOPIC, "not json"));
    let [FrameAction::Receive { events, .. }] = broken.as_slice() else { panic!("{broken:?}") };
    assert!(matches!(&events[..], [InboundEvent::Notice(_)]), "{events:?}");
}

#[tokio::test]
async fn stream_that_cannot_be_opened_is_tried_again_by_its_cause() {
    let endpoint = r#"{"endpoint":"wss://example.org/connect","ticket":"canary"}"#;
    for (status, body, retry, after) in [
        (401, r#"{"code":"InvalidAuthentication"}"#, ConnectRetry::Slow, None),
        (400, r#"{"code":"invalidClient"}"#, ConnectRetry::Slow, None),
        (500, "", ConnectRetry::Backoff, None),
        (
            403,
            r#"{"code":"Forbidden.AccessDenied.QpsLimitForApi"}"#,
            ConnectRetry::Backoff,
            Some(1),
        ),
        (200, "<xml/>", ConnectRetry::Backoff, None),
        (200, endpoint, ConnectRetry::Slow, None),
    ] {
        let (_server, url) = server(&[(status, body)]);
        let adapter = adapter(&url, "");
        let error = DingTalkStream::new(&adapter).endpoint().await.unwrap_err();
        assert_eq!(error.retry, retry, "{body}: {error:?}");
        assert_eq!(error.after.map(|after| after.as_secs()), after, "{body}");
        assert!(!format!("{error:?}").contains("canary"), "{error:?}");
    }
}

#[test]
fn stream_that_delivers_nothing_is_noticed_within_three_minutes() {
    let timing = DingTalkStream::new(&adapter("http://127.0.0.1:9", "")).timing();
    let limit = timing.traffic_deadline.unwrap();
    assert!(limit <= Duration::from_secs(150), "{timing:?}");
    assert!(timing.ping_interval + timing.pong_deadline <= limit, "{timing:?}");
    let short = adapter("http://127.0.0.1:9", "max_silence_s: 8\n");
    let timing = DingTalkStream::new(&short).timing();
    assert_eq!(timing.traffic_deadline, Some(Duration::from_secs(8)));
    assert_eq!(timing.ping_interval + timing.pong_deadline, Duration::from_secs(4));
}
