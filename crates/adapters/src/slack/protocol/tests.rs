//! Tests of the frames of Socket Mode.

use monoco_core::inbound::InboundEvent;

use super::*;
use crate::egress::{Egress, EgressTarget};
use crate::slack::client::SlackClient;
use crate::slack::config::DEFAULT_MAX_SILENCE_S;

const SILENCE: Duration = Duration::from_secs(DEFAULT_MAX_SILENCE_S);

fn workspace() -> SlackWorkspace {
    let base = EgressTarget::parse("http://127.0.0.1:9/api/", true).unwrap();
    SlackWorkspace::new(SlackClient::new(Egress::new().unwrap(), base, None, None))
}

fn actions(frame: &Value) -> Vec<FrameAction> {
    let (workspace, catch_up) = (workspace(), HistoryCatchUp::new(None));
    let socket = SlackSocket::new(&workspace, &catch_up, SILENCE);
    socket.read_frame(SocketFrame::Text(&frame.to_string()), Timestamp::from_ms(0))
}

fn envelope(kind: &str, payload: Value) -> Value {
    json!({"envelope_id": "e-1", "type": kind, "accepts_response_payload": false,
           "retry_attempt": 0, "retry_reason": "", "payload": payload})
}

fn event(user: &str) -> Value {
    json!({"type": "event_callback", "event_id": "Ev1", "event": {"type": "message",
        "channel": "C1", "channel_type": "channel", "user": user, "text": "hi", "ts": "1.000001"}})
}

#[test]
fn hello_makes_the_connection_ready() {
    let hello = json!({"type": "hello", "num_connections": 1, "connection_info": {"app_id": "A1"}});
    assert_eq!(actions(&hello), [FrameAction::Ready]);
}

#[test]
fn socket_that_delivers_nothing_is_noticed_within_three_minutes() {
    let (workspace, catch_up) = (workspace(), HistoryCatchUp::new(None));
    let timing = SlackSocket::new(&workspace, &catch_up, SILENCE).timing();
    let limit = timing.deadline_after_ping.unwrap();
    assert!(limit + timing.ready.unwrap() <= Duration::from_secs(180), "{timing:?}");
}

#[test]
fn envelope_is_acknowledged_with_its_id_after_its_event_is_stored() {
    let found = actions(&envelope("events_api", event("U1")));
    let [FrameAction::Receive { events, ack }] = found.as_slice() else { panic!("{found:?}") };
    assert!(
        matches!(&events[..], [InboundEvent::Message { message, .. }] if message.id == "C1:1.000001")
    );
    assert_eq!(*ack, SocketMessage::Text(r#"{"envelope_id":"e-1"}"#.to_owned()));
    let mut bot = event("U1");
    bot["event"]["bot_id"] = json!("B1");
    let found = actions(&envelope("events_api", bot));
    assert_eq!(
        found,
        [FrameAction::Reply(SocketMessage::Text(r#"{"envelope_id":"e-1"}"#.to_owned()))]
    );
}

#[test]
fn commands_and_unknown_envelopes_are_kept_too() {
    let command = json!({"command": "/x", "user_id": "U1", "channel_id": "C1", "trigger_id": "1"});
    for (kind, payload) in [("slash_commands", command), ("hologram", json!({"type": "x"}))] {
        let found = actions(&envelope(kind, payload));
        assert!(
            matches!(&found[..], [FrameAction::Receive { events, .. }] if events.len() == 1),
            "{kind}"
        );
    }
}

#[test]
fn disconnect_frames_replace_the_connection_or_stop() {
    for reason in ["warning", "refresh_requested", "something new"] {
        let found = actions(&json!({"type": "disconnect", "reason": reason, "debug_info": {}}));
        assert_eq!(found, [FrameAction::Reconnect { reason: reason.to_owned(), keep_old: true }]);
    }
    let found = actions(&json!({"type": "disconnect", "reason": "link_disabled"}));
    let [FrameAction::Stop(Failure::Permanent { detail, .. })] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert!(detail.contains("Socket Mode was turned off"), "{detail}");
}

#[test]
fn frames_that_are_no_envelopes_are_ignored() {
    for frame in [json!([]), json!({}), json!({"type": "pong"}), json!("x")] {
        assert_eq!(actions(&frame), [], "{frame}");
    }
    let (workspace, catch_up) = (workspace(), HistoryCatchUp::new(None));
    let socket = SlackSocket::new(&workspace, &catch_up, SILENCE);
    assert_eq!(socket.read_frame(SocketFrame::Binary(b"\xff"), Timestamp::from_ms(0)), []);
}

#[test]
fn wrong_token_is_tried_again_slowly_and_an_outage_soon() {
    let error = |failure| connect_error(SlackApiError { failure, kind: ApiErrorKind::Rejected });
    let wrong = Failure::Permanent { detail: String::new(), error_code: None };
    assert_eq!(error(wrong).retry, ConnectRetry::Slow);
    let busy = Failure::Temporary { detail: String::new(), retry_after_ms: None, error_code: None };
    assert_eq!(error(busy.clone()).retry, ConnectRetry::Backoff);
    let retry_after = Some(Duration::from_secs(7));
    let throttled = SlackApiError { failure: busy, kind: ApiErrorKind::Throttled { retry_after } };
    assert_eq!(connect_error(throttled).after, retry_after);
}
