//! Tests of the meaning of frames and of rejected connections.

use monoco_core::config::{Secret, SecretSource};
use monoco_core::inbound::InboundEvent;

use super::*;
use crate::egress::{Egress, EgressTarget};
use crate::lark::client::LarkClient;
use crate::lark::config::LarkApp;

const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);

fn tenant() -> LarkTenant {
    let base = EgressTarget::parse("http://127.0.0.1:9", true).unwrap();
    let secret = SecretSource::Value(Secret::new("s3cret"));
    let app = LarkApp { id: "cli_a1".to_owned(), secret };
    LarkTenant::new(LarkClient::new(Egress::new().unwrap(), base, Some(app)))
}

fn with_socket<T>(use_it: impl FnOnce(&LarkSocket<'_>) -> T) -> T {
    let (tenant, catch_up) = (tenant(), HistoryCatchUp::new(None));
    use_it(&LarkSocket::new(&tenant, &catch_up))
}

fn frame(headers: &[(&str, &str)], payload: &[u8]) -> LarkSocketFrame {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let headers = headers.iter().map(owned).collect();
    LarkSocketFrame {
        seq_id: 1,
        service: 7,
        method: DATA,
        headers,
        payload: payload.to_vec(),
        ..LarkSocketFrame::default()
    }
}

fn event(payload: &[u8]) -> LarkSocketFrame {
    frame(&[("type", "event"), ("message_id", "m1"), ("sum", "1"), ("seq", "0")], payload)
}

fn read(socket: &LarkSocket<'_>, frame: &LarkSocketFrame) -> Vec<FrameAction> {
    socket.read_frame(SocketFrame::Binary(&frame.encode()), NOW)
}

fn code(message: &SocketMessage) -> String {
    let SocketMessage::Binary(bytes) = message else { panic!("{message:?}") };
    let frame = LarkSocketFrame::parse(bytes).unwrap();
    assert_eq!((frame.seq_id, frame.service, frame.header("message_id")), (1, 7, Some("m1")));
    String::from_utf8(frame.payload).unwrap()
}

fn testdata(name: &str) -> Vec<u8> {
    let path = format!("{}/testdata/lark/{name}.json", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).unwrap()
}

#[test]
fn event_is_answered_with_200_after_it_is_stored_and_500_otherwise() {
    with_socket(|socket| {
        let actions = read(socket, &event(&testdata("text_group")));
        let [FrameAction::Receive { events, ack }, FrameAction::WhenUnstored(nack)] =
            actions.as_slice()
        else {
            panic!("{actions:?}")
        };
        assert!(matches!(events.as_slice(), [InboundEvent::Message { .. }]));
        assert_eq!(code(ack), r#"{"code":200}"#);
        assert_eq!(code(nack), r#"{"code":500}"#);
    });
}

#[test]
fn what_is_not_stored_is_answered_at_once() {
    with_socket(|socket| {
        let mut payload: Value = serde_json::from_slice(&testdata("text_group")).unwrap();
        payload["event"]["sender"]["sender_type"] = "app".into();
        let actions = read(socket, &event(payload.to_string().as_bytes()));
        let [FrameAction::Reply(answer)] = actions.as_slice() else { panic!("{actions:?}") };
        assert_eq!(code(answer), r#"{"code":200}"#);
    });
}

#[test]
fn payload_that_is_no_json_is_a_notice_and_answered() {
    with_socket(|socket| {
        for payload in [&b"not json"[..], b"{\"a\":\"\\ud800\"}", b"\xff\xfe"] {
            let actions = read(socket, &event(payload));
            let [FrameAction::Receive { events, .. }, _] = actions.as_slice() else {
                panic!("{actions:?}")
            };
            let [InboundEvent::Notice(notice)] = events.as_slice() else { panic!("{events:?}") };
            assert_eq!(notice.kind, "unreadable_message");
        }
    });
}

#[test]
fn fragments_are_put_together_and_the_last_is_answered() {
    with_socket(|socket| {
        let payload = testdata("text_group");
        let (first, second) = payload.split_at(payload.len() / 2);
        let fragment = |seq: &str, payload: &[u8]| {
            let headers = [("type", "event"), ("message_id", "m1"), ("sum", "2"), ("seq", seq)];
            frame(&headers, payload)
        };
        assert_eq!(read(socket, &fragment("1", second)), []);
        let actions = read(socket, &fragment("0", first));
        let [FrameAction::Receive { ack, .. }, _] = actions.as_slice() else {
            panic!("{actions:?}")
        };
        let SocketMessage::Binary(bytes) = ack else { panic!("{ack:?}") };
        assert_eq!(LarkSocketFrame::parse(bytes).unwrap().header("seq"), Some("0"));
        assert_eq!(read(socket, &fragment("2", first)), [], "it is not answered");
    });
}

#[test]
fn pong_sets_the_time_between_pings_within_limits() {
    for (payload, want) in [
        (r#"{"PingInterval":90}"#, 90),
        (r#"{"PingInterval":86400}"#, 120),
        (r#"{"PingInterval":0}"#, DEFAULT_PING_S),
        (r#"{"PingInterval":-5}"#, DEFAULT_PING_S),
        ("", DEFAULT_PING_S),
        ("nonsense", DEFAULT_PING_S),
    ] {
        with_socket(|socket| {
            let headers = vec![("type".to_owned(), "pong".to_owned())];
            let payload = payload.as_bytes().to_vec();
            let frame = LarkSocketFrame { headers, payload, ..LarkSocketFrame::default() };
            let interval = Duration::from_secs(want);
            let actions = [FrameAction::Pong, FrameAction::PingInterval(interval)];
            assert_eq!(read(socket, &frame), actions);
            let timing = socket.timing();
            assert_eq!(timing.ping_interval, interval);
            let noticed = timing.ping_interval + timing.pong_deadline;
            assert!(noticed < Duration::from_secs(180), "{noticed:?}");
        });
    }
}

#[test]
fn other_frames_are_ignored() {
    with_socket(|socket| {
        assert_eq!(socket.read_frame(SocketFrame::Text("{}"), NOW), []);
        for bytes in [&b""[..], b"\xff\xff\xff", b"{\"type\":\"event\"}"] {
            assert_eq!(socket.read_frame(SocketFrame::Binary(bytes), NOW), [], "{bytes:?}");
        }
        assert_eq!(read(socket, &LarkSocketFrame::ping(7)), [], "a ping of the server");
        let other = LarkSocketFrame { method: 9, ..event(b"{}") };
        assert_eq!(read(socket, &other), []);
    });
}

#[test]
fn rejected_handshakes_are_classified_by_their_headers() {
    let headers = |pairs: &[(&'static str, &str)]| {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.insert(*name, value.parse().unwrap());
        }
        map
    };
    for (status, pairs, retry, words) in [
        (
            403,
            &[("handshake-status", "403"), ("handshake-msg", "forbidden")][..],
            ConnectRetry::Slow,
            "403 (forbidden); check that the app is published",
        ),
        (403, &[], ConnectRetry::Slow, "set `mode: webhook`"),
        (
            400,
            &[("handshake-status", "514"), ("handshake-autherrcode", "1000040350")],
            ConnectRetry::Slow,
            "50 connections already",
        ),
        (
            514,
            &[("handshake-status", "514"), ("handshake-autherrcode", "1000040345")],
            ConnectRetry::Backoff,
            "514",
        ),
        (500, &[], ConnectRetry::Backoff, "500"),
        (200, &[("handshake-status", "1000040343")], ConnectRetry::Backoff, "1000040343"),
    ] {
        let error = handshake_error(StatusCode::from_u16(status).unwrap(), &headers(pairs));
        assert_eq!(error.retry, retry, "{status} {pairs:?}");
        assert!(error.failure.detail().contains(words), "{}", error.failure.detail());
    }
}
