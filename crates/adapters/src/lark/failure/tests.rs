//! Tests of the table of errors.

use http::StatusCode;

use super::*;

fn response(status: u16, headers: &[(&'static str, &str)], body: &str) -> EgressResponse {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(*name, value.parse().unwrap());
    }
    let (status, body) = (StatusCode::from_u16(status).unwrap(), body.as_bytes().to_vec());
    EgressResponse { status, headers: map, body }
}

fn read(status: u16, body: &str, call: LarkCallKind) -> Result<LarkAnswer, LarkFault> {
    read_answer(&response(status, &[], body), "messages", call)
}

fn kind(fault: &LarkFault) -> &'static str {
    match fault {
        LarkFault::Failed(Failure::Temporary { .. }) => "temporary",
        LarkFault::Failed(Failure::Permanent { .. }) => "permanent",
        LarkFault::Failed(Failure::Unknown { .. }) => "unknown",
        LarkFault::Token(_) => "token",
        LarkFault::Format(_) => "format",
        LarkFault::Gone(_) => "gone",
        LarkFault::Throttled { scope: ThrottleScope::Tunnel, .. } => "tunnel limit",
        LarkFault::Throttled { scope: ThrottleScope::Target, .. } => "target limit",
    }
}

#[test]
fn codes_are_classified_as_documented() {
    for (code, want) in [
        (99_991_400, "tunnel limit"),
        (11_020, "tunnel limit"),
        (230_020, "target limit"),
        (11_232, "target limit"),
        (99_991_663, "token"),
        (99_991_664, "token"),
        (99_991_665, "token"),
        (99_991_668, "token"),
        (99_991_671, "token"),
        (99_991_677, "token"),
        (99_991_672, "permanent"),
        (99_991_679, "permanent"),
        (10_014, "permanent"),
        (1, "temporary"),
        (1_000_040_343, "temporary"),
        (230_049, "temporary"),
        (230_001, "format"),
        (230_099, "format"),
        (230_002, "permanent"),
        (230_006, "permanent"),
        (230_013, "permanent"),
        (230_011, "gone"),
        (231_003, "gone"),
        (19_021, "permanent"),
        (19_022, "permanent"),
        (19_024, "permanent"),
        (1_000_040_345, "permanent"),
        (1_000_040_350, "permanent"),
        (777_777, "permanent"),
    ] {
        for status in [200, 400] {
            let body = format!(r#"{{"code":{code},"msg":"no","error":{{"log_id":"2024ABC"}}}}"#);
            let fault = read(status, &body, LarkCallKind::Send).unwrap_err();
            assert_eq!(kind(&fault), want, "{code} with {status}");
            let failure = fault.into_failure();
            assert_eq!(failure.error_code(), Some(code.to_string().as_str()));
            assert!(failure.detail().contains("(no)"), "{failure:?}");
            assert!(failure.detail().contains("log id 2024ABC"), "{failure:?}");
        }
    }
}

#[test]
fn answers_without_a_code_are_classified_by_their_status() {
    for (status, body, send, repeatable) in [
        (500, "", "unknown", "temporary"),
        (502, "<html>", "unknown", "temporary"),
        (504, r#"{"code":777777}"#, "unknown", "temporary"),
        (408, "", "unknown", "temporary"),
        (429, "", "tunnel limit", "tunnel limit"),
        (401, "", "token", "token"),
        (403, "", "permanent", "permanent"),
        (404, "<html>", "permanent", "permanent"),
        (302, "", "permanent", "permanent"),
        (200, "<html>", "unknown", "temporary"),
        (200, "{", "unknown", "temporary"),
        (200, r#"{"data":{}}"#, "unknown", "temporary"),
        (500, r#"{"code":0}"#, "unknown", "temporary"),
    ] {
        for (call, want) in [(LarkCallKind::Send, send), (LarkCallKind::Repeatable, repeatable)] {
            let fault = read(status, body, call).unwrap_err();
            assert_eq!(kind(&fault), want, "{status} {body} {call:?}");
        }
    }
}

#[test]
fn rate_limits_have_the_delay_of_the_header() {
    let body = r#"{"code":99991400,"msg":"request trigger frequency limit"}"#;
    for (headers, want) in [
        (&[("x-ogw-ratelimit-reset", "7")][..], Some(7)),
        (&[("x-ogw-ratelimit-reset", "7"), ("retry-after", "9")], Some(7)),
        (&[("retry-after", "9")], Some(9)),
        (&[("x-ogw-ratelimit-reset", "soon")], None),
        (&[], None),
    ] {
        let response = response(429, headers, body);
        let fault = read_answer(&response, "messages", LarkCallKind::Send).unwrap_err();
        let DeliveryOutcome::Throttled { retry_after, scope, .. } = fault.into_outcome() else {
            panic!("not a limit")
        };
        assert_eq!(retry_after, want.map(Duration::from_secs));
        assert_eq!(scope, ThrottleScope::Tunnel);
    }
}

#[test]
fn success_needs_the_code_zero() {
    let answer = read(200, r#"{"code":0,"data":{"message_id":"om_1"}}"#, LarkCallKind::Send);
    assert_eq!(answer.unwrap().data()["message_id"], "om_1");
    let robot = read(200, r#"{"StatusCode":0,"StatusMessage":"success"}"#, LarkCallKind::Send);
    assert!(robot.is_ok());
}

#[test]
fn every_code_has_a_source() {
    let codes = [99_991_400, 11_020, 230_020, 10_014];
    let sources = codes.map(|code| rule(code).unwrap().2);
    let want = [LarkSource::Docs, LarkSource::Sdk, LarkSource::Connector, LarkSource::Reports];
    assert_eq!(sources, want);
}

#[test]
fn words_of_the_provider_are_cut() {
    let body = format!(r#"{{"code":230001,"msg":"{}\u001b[31m"}}"#, "x".repeat(5000));
    let failure = read(400, &body, LarkCallKind::Send).unwrap_err().into_failure();
    assert!(failure.detail().len() < 400, "{}", failure.detail().len());
    assert!(!failure.detail().contains('\u{1b}'));
}
