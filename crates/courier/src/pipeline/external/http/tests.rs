//! HTTP workers with valid and invalid responses.

use std::time::Instant;

use monoco_adapters::WebhookRequest;

use super::super::egress;
use super::super::scripted::{ScriptedWorkerAct, ScriptedWorkerServer, answer, unreachable};
use super::*;

const ID: LetterId = LetterId { seq: 7, mark: 0xabcd };
const LETTER: &[u8] = br#"{"id":"ltr_7_0000abcd"}"#;
const LATE: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_millis(500);
const NOW: Timestamp = Timestamp::from_ms(1_614_265_330_000);

fn test_signer() -> Signer {
    signer(&Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")).unwrap()
}

async fn post(target: &EgressTarget, nonce: u32, timeout: Duration) -> AttemptResult {
    let egress = egress(timeout).unwrap();
    let request =
        LetterRequest { id: ID, nonce: nonce.to_string(), body: LETTER.to_vec(), now: NOW };
    post_letter(&egress, target, &test_signer(), request, timeout).await
}

#[tokio::test]
async fn letter_is_posted_with_a_signature() {
    let server = ScriptedWorkerServer::new(
        ["one", "two"].map(|body| ScriptedWorkerAct::Answer(answer("200 OK", body))),
    );
    let target = server.target("/worker?x=1");
    for (nonce, said) in [(1, "one"), (2, "two")] {
        assert_eq!(post(&target, nonce, LATE).await, AttemptResult::Answered(said.into()));
        let request = server.request();
        assert_eq!(request.line, "POST /worker?x=1 HTTP/1.1");
        assert_eq!(request.body, LETTER);
        assert_eq!(request.headers["content-type"], "application/json");
        let id = format!("ltr_7_0000abcd.{nonce}");
        assert_eq!(request.headers["webhook-id"], id, "another try is no replay");
        let push =
            WebhookRequest { headers: &request.headers, query: "", body: &request.body, now: NOW };
        assert_eq!(test_signer().verify(&push), Ok(()));
        let forged = WebhookRequest { body: b"{}", ..push };
        assert!(test_signer().verify(&forged).is_err());
    }
}

#[tokio::test]
async fn status_determines_the_result() {
    for (status, want) in [
        ("200 OK", "answered"),
        ("201 Created", "answered"),
        ("202 Accepted", "answered"),
        ("301 Moved Permanently", "failed"),
        ("302 Found", "failed"),
        ("307 Temporary Redirect", "failed"),
        ("400 Bad Request", "failed"),
        ("401 Unauthorized", "failed"),
        ("404 Not Found", "failed"),
        ("408 Request Timeout", "failed"),
        ("413 Payload Too Large", "failed"),
        ("422 Unprocessable Entity", "failed"),
        ("429 Too Many Requests", "down"),
        ("500 Internal Server Error", "failed"),
        ("502 Bad Gateway", "failed"),
        ("503 Service Unavailable", "down"),
        ("504 Gateway Timeout", "failed"),
    ] {
        let server =
            ScriptedWorkerServer::answering(status, &format!("so\r\nit {}", "is".repeat(999)));
        let result = post(&server.target("/canary"), 1, LATE).await;
        let (found, words) = match &result {
            AttemptResult::Answered(body) => ("answered", String::from_utf8(body.clone()).unwrap()),
            AttemptResult::Failed(words) => ("failed", words.clone()),
            AttemptResult::Down(words) => ("down", words.clone()),
            AttemptResult::Decided(_) => ("decided", String::new()),
        };
        assert_eq!(found, want, "{status}: {result:?}");
        if found != "answered" {
            let said = format!("answered {status}: so it isis");
            assert!(words.contains(&said) && words.len() < 300, "{words}");
            assert!(!words.contains("canary"), "{words}");
        }
    }
}

#[tokio::test]
async fn empty_response_is_a_failure() {
    for status in ["200 OK", "204 No Content"] {
        let server = ScriptedWorkerServer::answering(status, "");
        let target = server.target("/");
        let want = format!("{} answered nothing ({status})", target.shown());
        assert_eq!(post(&target, 1, LATE).await, AttemptResult::Failed(want));
    }
}

#[tokio::test]
async fn slow_worker_fails_after_its_timeout() {
    let drip = answer("200 OK", &"x".repeat(10_000));
    for act in [
        ScriptedWorkerAct::Silence,
        ScriptedWorkerAct::Drip(drip.clone()),
        ScriptedWorkerAct::Drip(drip.replace("\r\n\r\n", "\r\nx: ")),
    ] {
        let server = ScriptedWorkerServer::new([act.clone()]);
        let target = server.target("/");
        let before = Instant::now();
        let want = format!("{} did not answer within 0.5 s", target.shown());
        assert_eq!(post(&target, 1, SOON).await, AttemptResult::Failed(want), "{act:?}");
        assert!(before.elapsed() < Duration::from_secs(10), "{act:?}");
        assert_eq!(server.request().body, LETTER, "{act:?}");
    }
}

#[tokio::test]
async fn response_size_is_limited() {
    let server = ScriptedWorkerServer::new([ScriptedWorkerAct::Endless]);
    let target = server.target("/");
    let want = format!("{} answered more than {MAX_ANSWER} bytes", target.shown());
    assert_eq!(post(&target, 1, LATE).await, AttemptResult::Failed(want));
}

#[tokio::test]
async fn closed_connection_is_a_failure() {
    let server = ScriptedWorkerServer::new([ScriptedWorkerAct::HangUp]);
    let result = post(&server.target("/"), 1, LATE).await;
    assert!(
        matches!(&result, AttemptResult::Failed(why) if why.contains("connection lost")),
        "{result:?}"
    );
}

#[tokio::test]
async fn unreachable_worker_is_down() {
    let server = ScriptedWorkerServer::answering("200 OK", "{}");
    let nowhere = EgressTarget::parse("https://nowhere.invalid/", true).unwrap();
    for (target, why) in [
        (unreachable(), "cannot connect to"),
        (nowhere, "cannot connect to"),
        // The server does not support TLS.
        (server.tls(true), "cannot connect to"),
        // The SSRF guard rejects the address.
        (server.tls(false), "allow_private: true"),
    ] {
        let result = post(&target, 1, Duration::from_secs(5)).await;
        assert!(matches!(&result, AttemptResult::Down(words) if words.contains(why)), "{result:?}");
    }
    assert!(!server.has_request());
}
