//! The long connection: endpoint, handshake, event frames in one or several parts, pings, and frames
//! that a bot must survive.

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::frame::{CONTROL, DATA, SimLarkFrame};
use super::{LarkSim, LarkState, api};
use crate::clock::{now_ms, now_us};
use crate::control::ControlError;
use crate::event_queue::SimEvent;
use crate::http::{SimRequest, SimResponse, text_of};
use crate::provider::{EventFrame, FrameMeaning};
use crate::random::{random_below, random_hex};
use crate::world::World;

/// Connections of one app at a time.
const MAX_CONNECTIONS: usize = 50;

/// Code of a handshake beyond [`MAX_CONNECTIONS`].
const TOO_MANY_CONNECTIONS: i64 = 1_000_040_350;

/// Code of an endpoint request with wrong credentials.
const WRONG_CREDENTIALS: i64 = 1_000_040_345;

const SERVICE: u64 = 33_554_678;

/// Payload of the frame that is larger than any real one.
const HUGE_BYTES: usize = 5 << 20;

/// Frames that one control request sends at most.
const MAX_BAD_FRAMES: u64 = 10_000;

/// What the server tells a bot about pings and reconnects. Times are in seconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "PascalCase")]
pub struct SimClientConfig {
    reconnect_count: i64,
    reconnect_interval: u64,
    reconnect_nonce: u64,
    ping_interval: u64,
}

impl Default for SimClientConfig {
    fn default() -> Self {
        Self {
            reconnect_count: -1,
            reconnect_interval: 120,
            reconnect_nonce: 30,
            ping_interval: 120,
        }
    }
}

/// Order in which the parts of an event are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PartOrder {
    #[default]
    Forward,
    Reversed,
    Shuffled,
}

/// Into how many frames an event is split.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FrameSplit {
    parts: usize,
    order: PartOrder,
}

impl Default for FrameSplit {
    fn default() -> Self {
        Self { parts: 1, order: PartOrder::Forward }
    }
}

/// Answers `POST /callback/ws/endpoint` with the URL of a socket.
pub fn endpoint(sim: &LarkSim, world: &mut World, body: &Map<String, Value>) -> SimResponse {
    let Some(app) = api::find_app(world, text_of(body, "AppID"), text_of(body, "AppSecret")) else {
        return api::failure(StatusCode::OK, WRONG_CREDENTIALS, "app_id or app_secret is invalid");
    };
    let ticket = world.issue_ticket(app);
    let base = world.base_url.replacen("http://", "ws://", 1);
    // Lark's SDK for Node.js parses the whole URL as a query, so that the first parameter is lost.
    let url = format!(
        "{base}/ws/v2?fpid=493&aid=552564&device_id={}&access_key={}&service_id={SERVICE}\
         &ticket={ticket}",
        now_us(),
        random_hex(),
    );
    let config = sim.state().config;
    SimResponse::ok(&json!({
        "code": 0, "msg": "", "data": {"URL": url, "ClientConfig": config},
    }))
}

/// The answer to a rejected handshake: the status is also in the headers.
pub fn rejection(status: u16, code: Option<i64>, message: &str) -> SimResponse {
    let http = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let response = SimResponse::text(http, "text/plain", message)
        .with_header("handshake-status", status.to_string())
        .with_header("handshake-msg", message);
    // The SDKs read the code of every rejection with status 514.
    match code.or((status == 514).then_some(0)) {
        Some(code) => response.with_header("handshake-autherrcode", code.to_string()),
        None => response,
    }
}

/// Checks the ticket of a handshake and the number of connections.
pub fn open_socket(world: &mut World, request: &SimRequest) -> Result<usize, SimResponse> {
    let ticket = request.query_value("ticket").filter(|_| request.path == "/ws/v2");
    let app = ticket.and_then(|ticket| world.use_ticket(&ticket));
    let app = app.ok_or_else(|| rejection(514, None, "invalid ticket"))?;
    if world.connections.count(app) >= MAX_CONNECTIONS {
        let message = "the number of connections exceeded the limit";
        return Err(rejection(514, Some(TOO_MANY_CONNECTIONS), message));
    }
    Ok(app)
}

/// A control frame: ping or pong.
pub fn control_frame(kind: &str, payload: Option<String>) -> Message {
    let frame = SimLarkFrame {
        service: SERVICE,
        method: CONTROL,
        headers: vec![("type".to_owned(), kind.to_owned())],
        payload: payload.map(String::into_bytes),
        ..SimLarkFrame::default()
    };
    Message::binary(frame.encode())
}

/// A data frame with one part of a payload.
fn data_frame(message_id: &str, log_id: u64, part: (usize, usize), payload: &[u8]) -> SimLarkFrame {
    let (seq, sum) = part;
    let headers = [
        ("type", "event".to_owned()),
        ("message_id", message_id.to_owned()),
        ("sum", sum.to_string()),
        ("seq", seq.to_string()),
        ("trace_id", trace_id(log_id)),
        ("timestamp", now_ms().to_string()),
        ("instance_id", "sim".to_owned()),
    ];
    SimLarkFrame {
        seq_id: seq as u64,
        log_id,
        service: SERVICE,
        method: DATA,
        headers: headers.map(|(key, value)| (key.to_owned(), value)).into(),
        payload: Some(payload.to_vec()),
        log_id_new: Some(trace_id(log_id)),
    }
}

/// The frames of an event. The message id stays the same when the event is sent again, as on Lark;
/// the trace id tells the attempts apart.
pub fn event_frame(state: &mut LarkState, event: &SimEvent) -> EventFrame {
    state.last_log_id = (state.last_log_id + 1).max(now_us() * 1000);
    let (log_id, split) = (state.last_log_id, state.split);
    let payload = event.payload.as_bytes();
    let size = payload.len().div_ceil(split.parts.clamp(1, payload.len().max(1))).max(1);
    let parts: Vec<_> = payload.chunks(size).collect();
    let mut frames: Vec<_> = parts
        .iter()
        .enumerate()
        .map(|(seq, part)| data_frame(&event.key, log_id, (seq, parts.len()), part))
        .map(|frame| Message::binary(frame.encode()))
        .collect();
    match split.order {
        PartOrder::Forward => {}
        PartOrder::Reversed => frames.reverse(),
        PartOrder::Shuffled => {
            for end in (1..frames.len()).rev() {
                frames.swap(end, random_below(end + 1));
            }
        }
    }
    EventFrame { ack_id: ack_id(&event.key, &trace_id(log_id)), frames }
}

/// Lark's SDK for Node.js rounds large log ids, so that an attempt is known by its trace id.
fn trace_id(log_id: u64) -> String {
    format!("{log_id:032x}")
}

fn ack_id(message_id: &str, trace_id: &str) -> String {
    format!("{message_id}/{trace_id}")
}

/// Interprets a frame of the bot: a ping, or the frame of an event with a code as its payload.
pub fn read_frame(config: &SimClientConfig, message: &Message) -> FrameMeaning {
    let Message::Binary(bytes) = message else { return FrameMeaning::Other };
    let Ok(frame) = SimLarkFrame::decode(bytes) else { return FrameMeaning::Other };
    let kind = frame.header("type").unwrap_or_default();
    match (frame.method, kind) {
        (CONTROL, "ping") if frame.service == SERVICE => {
            FrameMeaning::Ping(control_frame("pong", Some(json!(config).to_string())))
        }
        (CONTROL, "pong") => FrameMeaning::Pong,
        (DATA, "event") => {
            let ids = (frame.header("message_id"), frame.header("trace_id"));
            let (Some(message_id), Some(trace_id)) = ids else { return FrameMeaning::Other };
            let id = ack_id(message_id, trace_id);
            let payload = frame.payload.unwrap_or_default();
            let answer: Value = serde_json::from_slice(&payload).unwrap_or(Value::Null);
            if answer["code"] == 200 { FrameMeaning::Ack(id) } else { FrameMeaning::Later(id) }
        }
        _ => FrameMeaning::Other,
    }
}

/// A frame that no bot should accept, or that it must ignore.
fn bad_frame(kind: &str) -> Option<Message> {
    let id = random_hex();
    let event = data_frame(&id, now_us(), (0, 1), br#"{"schema":"2.0"}"#);
    let with_header = |name: &str, value: &str| {
        let mut frame = event.clone();
        for header in frame.headers.iter_mut().filter(|(key, _)| key == name) {
            header.1 = value.to_owned();
        }
        frame
    };
    let frame = match kind {
        "garbage" => return Some(Message::binary(vec![0xff; 64])),
        "empty" => return Some(Message::binary(Vec::new())),
        "text" => return Some(Message::text("hello")),
        "truncated" => {
            let bytes = event.encode();
            return Some(Message::binary(bytes[..bytes.len() / 2].to_vec()));
        }
        "no_headers" => SimLarkFrame { headers: Vec::new(), ..event },
        "no_payload" => SimLarkFrame { payload: None, ..event },
        "unknown_method" => SimLarkFrame { method: 7, ..event },
        "unknown_type" => with_header("type", "weather"),
        "card" => with_header("type", "card"),
        "sum_zero" => with_header("sum", "0"),
        "sum_huge" => with_header("sum", "1000000000"),
        "sum_text" => with_header("sum", "many"),
        "seq_beyond_sum" => data_frame(&id, now_us(), (5, 2), b"{}"),
        "seq_negative" => {
            let mut frame = data_frame(&id, now_us(), (0, 2), b"{}");
            for header in frame.headers.iter_mut().filter(|(key, _)| key == "seq") {
                header.1 = "-1".to_owned();
            }
            frame
        }
        // The other part never follows.
        "endless" => data_frame(&id, now_us(), (0, 2), &[b'x'; 1000]),
        "not_json" => data_frame(&id, now_us(), (0, 1), b"not JSON"),
        "not_utf8" => data_frame(&id, now_us(), (0, 1), b"{\"schema\":\"\xff\"}"),
        "huge" => data_frame(&id, now_us(), (0, 1), &vec![b'x'; HUGE_BYTES]),
        _ => return None,
    };
    Some(Message::binary(frame.encode()))
}

/// Sends frames of a kind to all open sockets: `{"kind": …, "count": N}`.
pub fn send_bad_frames(world: &mut World, body: &Value) -> Result<Value, ControlError> {
    let kind = body["kind"].as_str().unwrap_or_default();
    let count = body["count"].as_u64().unwrap_or(1);
    if count > MAX_BAD_FRAMES {
        return Err(ControlError(format!(
            "found count {count}, expected at most {MAX_BAD_FRAMES}"
        )));
    }
    let mut sent = 0;
    for _ in 0..count {
        let frame = bad_frame(kind);
        let unknown = || ControlError(format!("unknown kind of frame {kind:?}; see docs/sim.md"));
        let frame = frame.ok_or_else(unknown)?;
        for (_, connection) in world.connections.iter() {
            connection.send(frame.clone());
            sent += 1;
        }
    }
    Ok(json!({"sent": sent}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_queue::EventQueue;

    fn event(payload: &str) -> SimEvent {
        let mut queue = EventQueue::default();
        let number = queue.add(0, "event", "m1".to_owned(), payload.into(), 1, 0);
        queue.make_ready(number);
        queue.take_ready(0).unwrap()
    }

    fn decode(message: &Message) -> SimLarkFrame {
        let Message::Binary(bytes) = message else { panic!("{message:?}") };
        SimLarkFrame::decode(bytes).unwrap()
    }

    #[test]
    fn split_event_has_all_its_parts_in_the_order_asked_for() {
        let sim = LarkSim::new(1);
        sim.state().split = FrameSplit { parts: 4, order: PartOrder::Reversed };
        let sent = event_frame(&mut sim.state(), &event("0123456789"));
        let frames: Vec<_> = sent.frames.iter().map(decode).collect();
        let seqs: Vec<_> = frames.iter().map(|frame| frame.header("seq").unwrap()).collect();
        assert_eq!(seqs, ["3", "2", "1", "0"]);
        assert!(frames.iter().all(|frame| frame.header("sum") == Some("4")));
        let payload: Vec<u8> =
            frames.iter().rev().flat_map(|frame| frame.payload.clone().unwrap()).collect();
        assert_eq!(payload, b"0123456789");
    }

    #[test]
    fn answer_with_code_200_acknowledges_its_attempt_only() {
        let sim = LarkSim::new(1);
        let sent = event_frame(&mut sim.state(), &event("{}"));
        let again = event_frame(&mut sim.state(), &event("{}"));
        assert_ne!(sent.ack_id, again.ack_id);
        let mut frame = decode(&sent.frames[0]);
        frame.headers.push(("biz_rt".to_owned(), "3".to_owned()));
        for (payload, is_ack) in [(r#"{"code":200}"#, true), (r#"{"code":500}"#, false)] {
            frame.payload = Some(payload.as_bytes().to_vec());
            let meaning = read_frame(&sim.state().config, &Message::binary(frame.encode()));
            let expected = if is_ack { FrameMeaning::Ack } else { FrameMeaning::Later };
            assert_eq!(meaning, expected(sent.ack_id.clone()));
        }
    }

    #[test]
    fn ping_is_answered_with_the_configuration() {
        let config = SimClientConfig { ping_interval: 7, ..SimClientConfig::default() };
        let FrameMeaning::Ping(pong) = read_frame(&config, &control_frame("ping", None)) else {
            panic!("a ping has an answer");
        };
        let payload: Value = serde_json::from_slice(&decode(&pong).payload.unwrap()).unwrap();
        assert_eq!(payload["PingInterval"], 7);
        assert_eq!(payload["ReconnectCount"], -1);
    }
}
