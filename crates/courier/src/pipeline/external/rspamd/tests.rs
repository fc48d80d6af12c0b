//! Requests to rspamd, and responses of rspamd and of other servers.

use axum::http::HeaderMap;
use monoco_core::inbound::{ChatSession, InboundMessage, Participant};
use monoco_core::letter::Verdict;
use serde_json::json;

use super::super::egress;
use super::super::scripted::{
    ScriptedRequest, ScriptedWorkerAct, ScriptedWorkerServer, answer, unreachable,
};
use super::*;

const ID: LetterId = LetterId { seq: 7, mark: 0xabcd };
const LATE: Duration = Duration::from_secs(30);
const HAM: &str = r#"{"score": 0.5, "required_score": 15, "action": "no action", "symbols": {}}"#;
const SPAM: &str = r#"{"score": 15.0, "required_score": 15.0, "action": "reject",
    "symbols": {"GTUBE": {"name": "GTUBE", "score": 0.0}}}"#;

fn mail(data: &str) -> Letter {
    Letter {
        from: "ann@example.com".to_owned(),
        to: vec!["bob@example.com".to_owned(), "eve@example.org".to_owned()],
        data: data.to_owned(),
        ..Letter::default()
    }
}

fn chat(from: &str, to: &str, subject: Option<&str>, text: &str) -> Letter {
    let mut letter = Letter { from: from.to_owned(), to: vec![to.to_owned()], ..mail(text) };
    letter.extra.insert("content_type".to_owned(), json!("text/markdown"));
    if let Some(subject) = subject {
        letter.extra.insert("subject".to_owned(), json!(subject));
    }
    letter
}

async fn ask(
    target: &EgressTarget,
    password: Option<&str>,
    letter: &Letter,
    timeout: Duration,
) -> AttemptResult {
    let (target, password) = (target.clone(), password.map(Secret::new));
    let rules = SpamConfig::new(5.0, Vec::new()).unwrap();
    let rspamd = RspamdTransport { target, password, rules };
    check(&egress(timeout).unwrap(), &rspamd, letter, ID, timeout).await
}

/// Returns the request that rspamd gets for a letter.
async fn seen(letter: &Letter) -> ScriptedRequest {
    let server = ScriptedWorkerServer::answering("200 OK", HAM);
    let result = ask(&server.target(""), None, letter, LATE).await;
    assert!(matches!(result, AttemptResult::Decided(_)), "{result:?}");
    server.request()
}

fn all<'h>(headers: &'h HeaderMap, name: &str) -> Vec<&'h str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
}

#[tokio::test]
async fn rspamd_gets_the_mail_and_its_envelope() {
    let letter = mail("Subject: hi\r\n\r\nLunch?\r\n");
    let ScriptedRequest { line, headers, body } = seen(&letter).await;
    assert_eq!(line, "POST /checkv2 HTTP/1.1");
    assert_eq!(body, letter.data.as_bytes());
    assert_eq!(all(&headers, "from"), ["ann@example.com"]);
    assert_eq!(all(&headers, "rcpt"), ["bob@example.com", "eve@example.org"]);
    assert_eq!(all(&headers, "queue-id"), ["ltr_7_0000abcd"]);
    assert_eq!(all(&headers, "password"), [""; 0]);
}

#[tokio::test]
async fn mail_bytes_are_sent_unchanged() {
    let mut letter = mail("");
    let bytes = b"Subject: \xe9\xff\r\n\r\n\x80\x00\r\n";
    letter.set_bytes(bytes.to_vec());
    assert_eq!(letter.extra("charset"), Some("latin-1"));
    assert_eq!(seen(&letter).await.body, bytes);
}

#[tokio::test]
async fn rspamd_sees_the_header_of_an_inbound_mail() {
    let session = ChatSession { id: "team@example.com".to_owned(), ..ChatSession::default() };
    let from = Participant::mailbox("ann@example.org", None);
    let message = InboundMessage::new("<1@example.org>#00", session, from, "Lunch?");
    let letter = Letter::from_inbound(&message, &"mail".parse().unwrap(), "email").unwrap();
    let mail = b"Received: from mx.example.org\r\nFrom: ann@example.org\r\n\
                 Subject: caf\xe9\r\n\r\n<p>Lunch?</p>\r\n";
    let ScriptedRequest { headers, body, .. } = seen(&letter.with_mail(mail)).await;
    assert_eq!(body, mail);
    assert_eq!(all(&headers, "from"), ["ann@example.org"]);
    assert_eq!(all(&headers, "rcpt"), ["team@example.com"]);
}

#[tokio::test]
async fn password_is_only_in_the_request_header() {
    let server = ScriptedWorkerServer::answering("403 Forbidden", "no");
    let result = ask(&server.target("/"), Some("s3cret"), &mail("a: b\n\n"), LATE).await;
    assert_eq!(all(&server.request().headers, "password"), ["s3cret"]);
    assert!(matches!(&result, AttemptResult::Failed(why) if !why.contains("s3cret")), "{result:?}");
    let result = ask(&server.target("/"), Some("s3cret\r\nx: y"), &mail("a: b\n\n"), LATE).await;
    assert!(matches!(&result, AttemptResult::Down(why) if !why.contains("s3cret")), "{result:?}");
}

#[test]
fn envelope_has_mail_addresses_only() {
    for (address, want) in [
        ("ann@example.com", Some("ann@example.com")),
        ("did:msgtunnel:ann%40example%2Ecom.addr.mail", Some("ann@example.com")),
        ("did:msgtunnel:ou_7.user.lark", None),
        ("did:msgtunnel:lark", None),
        ("did:web:example.com", None),
        ("jürgen@example.com", None),
        ("ann@exämple.com", None),
        ("ann@example.com\r\nRcpt: x", None),
        ("did:msgtunnel:a%40b%0D%0ARcpt%3A%20x.addr.mail", None),
        ("", None),
    ] {
        assert_eq!(mail_address(address).as_deref(), want, "{address}");
    }
}

#[test]
fn request_header_size_is_limited() {
    let mut letter = mail("");
    letter.to = (0..1_000).map(|at| format!("{}{at:03}@example.com", "x".repeat(60))).collect();
    let headers = envelope(&letter, ID);
    let told: usize = headers.get_all(RCPT).iter().map(HeaderValue::len).sum();
    assert!((MAX_RECIPIENTS_BYTES - 100..=MAX_RECIPIENTS_BYTES).contains(&told), "{told}");
}

#[tokio::test]
async fn chat_message_is_wrapped_in_a_mail() {
    let from = "did:msgtunnel:ann%40example%2Ecom.addr.mail";
    let letter = chat(from, "did:msgtunnel:ou_7.user.lark", Some("Mittag für zwei"), "Käse?\n");
    let ScriptedRequest { headers, body, .. } = seen(&letter).await;
    assert_eq!(all(&headers, "from"), ["ann@example.com"]);
    assert_eq!(all(&headers, "rcpt"), [""; 0]);
    assert_eq!(monoco_mime::check(&body), Ok(()));
    for (name, want) in [
        ("From", "ann@example.com"),
        ("To", PLACEHOLDER_ADDRESS),
        ("Subject", "Mittag für zwei"),
        ("Message-ID", "<ltr_7_0000abcd@monoco.invalid>"),
        ("Content-Type", "text/plain; charset=utf-8"),
    ] {
        assert_eq!(monoco_mime::header(&body, name).as_deref(), Some(want), "{name}");
    }
    assert!(body.ends_with("\r\n\r\nKäse?\n".as_bytes()));
    assert!(body[..body.len() - 7].is_ascii(), "the header is");
}

#[tokio::test]
async fn message_cannot_inject_a_header() {
    let evil = "hi\r\nX-Evil: 1\r\n\r\nbody";
    for letter in [
        chat("ann@example.com", "bob@example.com", Some(evil), evil),
        chat(evil, evil, None, evil),
        mail_from(evil),
    ] {
        let ScriptedRequest { headers, body, .. } = seen(&letter).await;
        assert!(!headers.contains_key("x-evil"));
        if !letter.is_mail() {
            assert_eq!(monoco_mime::header(&body, "X-Evil"), None);
            assert!(body.ends_with(format!("\r\n\r\n{evil}\r\n").as_bytes()));
        }
    }
}

fn mail_from(from: &str) -> Letter {
    Letter { from: from.to_owned(), to: vec![from.to_owned()], ..mail("a: b\r\n\r\n") }
}

#[tokio::test]
async fn response_of_rspamd_is_the_verdict() {
    for (body, want) in [(HAM, Verdict::Pass), (SPAM, Verdict::Trash)] {
        let server = ScriptedWorkerServer::answering("200 OK", body);
        let result = ask(&server.target("/"), None, &mail("a: b\r\n\r\n"), LATE).await;
        let AttemptResult::Decided(opinion) = result else { panic!("{result:?}") };
        assert_eq!(opinion.verdict, want);
    }
}

#[tokio::test]
async fn other_responses_are_failures() {
    let large = format!(r#"{{"score": 1, "action": "no action", "x": "{}"}}"#, "x".repeat(2 << 20));
    let slow = ScriptedWorkerAct::Drip(answer("200 OK", HAM).repeat(9));
    let said = |status: &str, body: &str| ScriptedWorkerAct::Answer(answer(status, body));
    for (act, want) in [
        (said("200 OK", "<html>"), "failed: not JSON"),
        (said("200 OK", ""), "failed: not JSON"),
        (said("200 OK", r#"{"score": 1, "acti"#), "failed: not JSON"),
        (said("200 OK", "[]"), "failed: an invalid answer"),
        (said("200 OK", r#"{"score": "many"}"#), "failed: an invalid answer"),
        (said("200 OK", &large), "failed: answered more than 1 MiB"),
        (said("204 No Content", ""), "failed: answered 204"),
        (said("302 Found", ""), "failed: answered 302"),
        (said("404 Not Found", ""), "failed: answered 404"),
        (said("500 Internal Server Error", "Lua"), "failed: Error: Lua"),
        (said("503 Service Unavailable", "later"), "down: later"),
        (said("429 Too Many Requests", ""), "down: answered 429"),
        (ScriptedWorkerAct::HangUp, "failed: connection lost"),
        (ScriptedWorkerAct::Silence, "failed: did not answer within 1 s"),
        (slow, "failed: did not answer within 1 s"),
        (ScriptedWorkerAct::Endless, "failed: answered more than 1 MiB"),
    ] {
        let server = ScriptedWorkerServer::new([act]);
        // A large response takes longer.
        let soon = want.contains("within");
        let timeout = if soon { Duration::from_secs(1) } else { LATE };
        let result = ask(&server.target("/"), None, &mail("a: b\r\n\r\n"), timeout).await;
        let said = match &result {
            AttemptResult::Failed(words) => format!("failed: {words}"),
            AttemptResult::Down(words) => format!("down: {words}"),
            other => panic!("{want}: {other:?}"),
        };
        let (word, why) = want.split_once(": ").unwrap();
        assert!(said.starts_with(word) && said.contains(why), "{want}: {said}");
    }
    let result = ask(&unreachable(), None, &mail("a: b\r\n\r\n"), LATE).await;
    assert!(matches!(result, AttemptResult::Down(_)), "{result:?}");
}
