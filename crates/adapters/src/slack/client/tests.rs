//! Tests of the classification of answers of the Web API.

use super::*;

fn response(status: u16, headers: &[(&'static str, &str)], body: &str) -> EgressResponse {
    EgressResponse {
        status: StatusCode::from_u16(status).unwrap(),
        headers: headers.iter().map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap())).collect(),
        body: body.as_bytes().to_vec(),
    }
}

fn error(status: u16, headers: &[(&'static str, &str)], body: &str) -> SlackApiError {
    read_answer("chat.postMessage", response(status, headers, body)).err().unwrap()
}

fn class(error: &SlackApiError) -> &'static str {
    match error.failure {
        Failure::Temporary { .. } => "temporary",
        Failure::Permanent { .. } => "permanent",
        Failure::Unknown { .. } => "unknown",
    }
}

#[test]
fn every_answer_is_classified() {
    use ApiErrorKind::{Ambiguous, Format, NoVerdict, Rejected};
    let throttled = |seconds: Option<u64>| ApiErrorKind::Throttled {
        retry_after: seconds.map(Duration::from_secs),
    };
    let coded = |code: &str| format!(r#"{{"ok":false,"error":"{code}"}}"#);
    for (status, headers, body, want, kind) in [
        (429, &[("retry-after", "30")][..], coded("ratelimited"), "temporary", throttled(Some(30))),
        (429, &[], String::new(), "temporary", throttled(None)),
        (200, &[], coded("ratelimited"), "temporary", throttled(None)),
        (503, &[], String::new(), "temporary", Rejected),
        (500, &[], String::new(), "unknown", Ambiguous),
        (502, &[], "<html>".to_owned(), "unknown", NoVerdict),
        (504, &[], String::new(), "unknown", NoVerdict),
        (200, &[], "<html>".to_owned(), "unknown", NoVerdict),
        (404, &[], String::new(), "permanent", Rejected),
        (302, &[], String::new(), "permanent", Rejected),
        (200, &[], coded("internal_error"), "unknown", Ambiguous),
        (200, &[], coded("fatal_error"), "unknown", Ambiguous),
        (500, &[], coded("internal_error"), "unknown", Ambiguous),
        (200, &[], coded("service_unavailable"), "temporary", Rejected),
        (200, &[], coded("request_timeout"), "temporary", Rejected),
        (200, &[], coded("token_expired"), "temporary", Rejected),
        (200, &[], coded("invalid_blocks"), "permanent", Format),
        (200, &[], coded("channel_not_found"), "permanent", Rejected),
        (200, &[], coded("not_in_channel"), "permanent", Rejected),
        (200, &[], coded("is_archived"), "permanent", Rejected),
        (200, &[], coded("invalid_auth"), "permanent", Rejected),
        (200, &[], coded("token_revoked"), "permanent", Rejected),
        (200, &[], coded("missing_scope"), "permanent", Rejected),
        (200, &[], coded("msg_too_long"), "permanent", Rejected),
        (200, &[], coded("no_text"), "permanent", Rejected),
        (200, &[], coded("restricted_action"), "permanent", Rejected),
    ] {
        let error = error(status, headers, &body);
        assert_eq!((class(&error), error.kind), (want, kind), "{status} {body}");
        assert!(error.failure.error_code().is_some(), "{error:?}");
    }
}

#[test]
fn failure_names_method_code_scope_and_advice() {
    let error = error(200, &[], r#"{"ok":false,"error":"missing_scope","needed":"files:write"}"#);
    assert_eq!(
        error.failure.detail(),
        "chat.postMessage: missing_scope (files:write); add the scope in the app's OAuth & \
         Permissions and install the app again"
    );
    assert_eq!(error.code(), "missing_scope");
    let odd = super::tests::error(200, &[], r#"{"ok":false,"error":"a\u001b[31m<b>"}"#);
    assert_eq!(odd.code(), "a31mb");
}

#[test]
fn scopes_are_read_from_the_header() {
    let answer = response(200, &[("x-oauth-scopes", "chat:write,im:read")], r#"{"ok":true}"#);
    let answer = read_answer("auth.test", answer).ok().unwrap();
    assert_eq!(answer.scopes.as_deref(), Some("chat:write,im:read"));
}
