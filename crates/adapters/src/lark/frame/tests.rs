//! Tests of the frames against bytes that the vendor's SDK (lark-oapi 1.7.5) has written.

use monoco_core::hex;
use proptest::prelude::*;

use super::*;

const EVENT: &str = "080710ac0218f681801020012a0d0a047479706512056576656e742a100a0a6d6573736167655f\
                     696412026d312a080a0373756d1201312a080a037365711201302a0d0a0874726163655f696412\
                     01742a1a0a0974696d657374616d70120d3137303030303030303030303032057574662d383a04\
                     6a736f6e42077b2261223a317d4a014c";
const PING: &str = "0800100018f681801020002a0c0a0474797065120470696e67";
const NEGATIVE: &str = "08ffffffffffffffffff01100118ffffffffffffffffff012000";

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn frames_have_the_bytes_of_the_sdk() {
    let frame = LarkSocketFrame::parse(&bytes(EVENT)).unwrap();
    assert_eq!((frame.seq_id, frame.log_id, frame.service, frame.method), (7, 300, 33_554_678, 1));
    assert_eq!((frame.header("type"), frame.header("message_id")), (Some("event"), Some("m1")));
    assert_eq!(frame.header("none"), None);
    assert_eq!(frame.payload, br#"{"a":1}"#);
    assert_eq!(frame.payload_type.as_deref(), Some("json"));
    assert_eq!(hex::encode(&frame.encode()), EVENT);
    assert_eq!(hex::encode(&LarkSocketFrame::ping(33_554_678).encode()), PING);
    let negative = LarkSocketFrame::parse(&bytes(NEGATIVE)).unwrap();
    assert_eq!((negative.seq_id, negative.service), (u64::MAX, -1));
    assert_eq!(hex::encode(&negative.encode()), NEGATIVE);
}

#[test]
fn answer_is_the_same_frame_with_a_status() {
    let frame = LarkSocketFrame::parse(&bytes(EVENT)).unwrap();
    let answer = LarkSocketFrame::parse(&frame.answer(200).encode()).unwrap();
    assert_eq!(answer.payload, br#"{"code":200}"#);
    assert_eq!(answer.headers[..6], frame.headers[..]);
    assert_eq!(answer.headers[6].0, "biz_rt");
    assert_eq!((answer.seq_id, answer.log_id, answer.service), (7, 300, 33_554_678));
}

#[test]
fn wrong_bytes_are_errors() {
    for (hex, want) in [
        ("", InvalidFrame::Missing(1)),
        ("0800100118011", InvalidFrame::Truncated),
        ("08001001180120", InvalidFrame::Truncated),
        ("080010011801", InvalidFrame::Missing(4)),
        ("0a0161100118012000", InvalidFrame::WireType(1)),
        ("08001001180120002801", InvalidFrame::WireType(5)),
        ("08001001180120002a0408011001", InvalidFrame::WireType(1)),
        ("08001001180120002a030a016b", InvalidFrame::Missing(2)),
        ("08001001180120002a0312016b", InvalidFrame::Missing(1)),
        ("080010011801200032017f4205", InvalidFrame::Truncated),
        ("08001001180120003201ff", InvalidFrame::Utf8(6)),
        ("08ffffffffffffffffff02", InvalidFrame::Overflow),
        ("08ffffffffffffffffffff01", InvalidFrame::Overflow),
        ("080010011880808080102000", InvalidFrame::Overflow),
        ("0b", InvalidFrame::WireType(1)),
        ("42ffffffffffffffffff01", InvalidFrame::Truncated),
    ] {
        let hex = if hex.len() % 2 == 1 { format!("{hex}8") } else { hex.to_owned() };
        assert_eq!(LarkSocketFrame::parse(&bytes(&hex)), Err(want), "{hex}");
    }
    let many = [bytes("0800100118012000"), bytes("2a060a016b120176").repeat(65)].concat();
    assert_eq!(LarkSocketFrame::parse(&many), Err(InvalidFrame::TooManyHeaders));
}

#[test]
fn unknown_fields_are_skipped() {
    let extra = "5001" // field 10, a number
        .to_owned()
        + "590102030405060708" // field 11, 64 bits
        + "6501020304" // field 12, 32 bits
        + "6a0161"; // field 13, bytes
    let frame = LarkSocketFrame::parse(&bytes(&(PING.to_owned() + &extra))).unwrap();
    assert_eq!(frame, LarkSocketFrame::ping(33_554_678));
}

proptest! {
    #[test]
    fn any_bytes_are_a_frame_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = LarkSocketFrame::parse(&bytes);
    }

    #[test]
    fn encoded_frames_are_read_back(
        seq_id in any::<u64>(), service in any::<i32>(), method in any::<i32>(),
        headers in proptest::collection::vec((".{0,8}", ".{0,8}"), 0..8),
        payload in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let frame = LarkSocketFrame { seq_id, service, method, headers, payload, ..LarkSocketFrame::default() };
        prop_assert_eq!(LarkSocketFrame::parse(&frame.encode()), Ok(frame));
    }
}
