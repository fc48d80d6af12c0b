//! Tests of sending: parts, places, formats, and outcomes that are not clear.

use std::time::Duration;

use monoco_core::inbound::InboundAttachment;
use monoco_core::time::Timestamp;

use super::*;
use crate::delivery_fixture::{MemoryFiles, RecordedParts};
use crate::egress::{Egress, EgressTarget};
use crate::scripted::{ScriptedAct, ScriptedServer, answer};
use crate::slack::client::SlackClient;

const OWN: &str = r#"{"ok":true,"user_id":"U0BOT","bot_id":"B0BOT","team":"T","user":"monoco"}"#;

fn ok(body: &str) -> ScriptedAct {
    ScriptedAct::Answer(answer("200 OK", "content-type: application/json\r\n", body))
}

fn workspace(server: &ScriptedServer) -> SlackWorkspace {
    let base = EgressTarget::parse(&format!("http://127.0.0.1:{}/api/", server.port()), true);
    let token = || {
        let secret = monoco_core::config::Secret::new("xoxb-canary");
        Some(monoco_core::config::SecretSource::Value(secret))
    };
    let egress = Egress::new().unwrap();
    SlackWorkspace::new(SlackClient::new(egress, base.unwrap(), token(), token()))
}

fn message(text: &str) -> OutgoingMessage {
    let body = json!({"from": "did:monoco:me", "created_at_ms": 1_700_000_000_000_i64,
        "content": {"format": "text/markdown", "content": text}});
    OutgoingMessage::parse(&body.to_string()).unwrap()
}

struct Attempt<'a> {
    message: &'a OutgoingMessage,
    address: &'a str,
    kind: EndpointKind,
    files: MemoryFiles,
    sent_parts: Vec<SentPart>,
    progress: RecordedParts,
}

impl<'a> Attempt<'a> {
    fn new(message: &'a OutgoingMessage) -> Self {
        Self {
            message,
            address: "C1",
            kind: EndpointKind::Group,
            files: MemoryFiles::default(),
            sent_parts: Vec::new(),
            progress: RecordedParts::default(),
        }
    }

    fn request(&self) -> DeliveryRequest<'_> {
        DeliveryRequest {
            address: self.address,
            kind: self.kind,
            message: self.message,
            files: &self.files,
            sent_parts: &self.sent_parts,
            progress: &self.progress,
            key: format!("dlv_{}", "0".repeat(48)).parse().unwrap(),
            first_attempt_ago: std::time::Duration::ZERO,
            now: Timestamp::from_ms(1_700_000_000_000),
        }
    }

    async fn deliver(&self, server: &ScriptedServer) -> DeliveryOutcome {
        SlackSender::default().deliver(&workspace(server), &self.request()).await
    }
}

fn body_of(request: &str) -> Value {
    serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn accepted(id: &str) -> DeliveryOutcome {
    DeliveryOutcome::Accepted { external_msg_id: Some(id.to_owned()) }
}

#[tokio::test]
async fn text_is_sent_with_blocks_thread_and_metadata() {
    let server =
        ScriptedServer::new([ok(r#"{"ok":true,"channel":"C1","ts":"1700000001.000200"}"#)]);
    let mut message = message("**hi** <@U012AB>");
    message.reply_to = Some("C1:1700000000.000100".to_owned());
    let attempt = Attempt::new(&message);
    assert_eq!(attempt.deliver(&server).await, accepted("C1:1700000001.000200"));
    let request = server.request();
    assert!(request.starts_with("POST /api/chat.postMessage "), "{request}");
    assert!(request.to_lowercase().contains("authorization: bearer xoxb-canary"));
    let body = body_of(&request);
    assert_eq!((&body["channel"], &body["thread_ts"]), (&json!("C1"), &json!("1700000000.000100")));
    assert_eq!(body["text"], "*hi* <@U012AB>");
    assert_eq!(body["blocks"][0]["type"], "rich_text");
    assert_eq!(body["metadata"]["event_payload"]["part"], 0);
}

#[test]
fn parts_are_texts_and_then_files_and_the_same_for_every_attempt() {
    let mut message = message("hello");
    message.title = Some("Build".to_owned());
    let files = MemoryFiles(vec![InboundAttachment {
        name: "a.txt".to_owned(),
        mime_type: "text/plain".to_owned(),
        bytes: b"x".to_vec(),
    }]);
    message.attachments = files.references();
    let found = parts(&message);
    assert_eq!(found[0], SlackPart::Text("**Build**\n\nhello".to_owned()));
    assert!(matches!(found[1], SlackPart::File(file) if file.name == "a.txt"));
    assert_eq!(parts(&message), found);
    let long = self::message(&"word ".repeat(3000));
    let texts = parts(&long);
    assert!(texts.len() >= 5, "{}", texts.len());
    let is_short = |part: &SlackPart<'_>| match part {
        SlackPart::Text(text) => text.chars().count() <= MAX_PART_CHARS,
        SlackPart::File(_) => false,
    };
    assert!(texts.iter().all(is_short));
    assert!(parts(&self::message("  \n ")).is_empty());
}

#[tokio::test]
async fn retry_resumes_after_the_parts_that_were_sent() {
    let message = message(&"word ".repeat(1200));
    assert_eq!(parts(&message).len(), 2);
    let server = ScriptedServer::new([
        ok(r#"{"ok":true,"channel":"C1","ts":"1.000001"}"#),
        ok(r#"{"ok":false,"error":"service_unavailable"}"#),
    ]);
    let mut attempt = Attempt::new(&message);
    let outcome = attempt.deliver(&server).await;
    assert!(matches!(outcome, DeliveryOutcome::Failed(Failure::Temporary { .. })), "{outcome:?}");
    let sent = attempt.progress.parts();
    assert_eq!(sent, [SentPart { part: 0, external_msg_id: Some("C1:1.000001".to_owned()) }]);
    attempt.sent_parts = sent;
    let server = ScriptedServer::new([ok(r#"{"ok":true,"channel":"C1","ts":"2.000001"}"#)]);
    assert_eq!(attempt.deliver(&server).await, accepted("C1:2.000001"));
    assert_eq!(body_of(&server.request())["metadata"]["event_payload"]["part"], 1);
    attempt.sent_parts.push(SentPart { part: 1, external_msg_id: Some("C1:2.000001".to_owned()) });
    let server = ScriptedServer::new([]);
    assert_eq!(attempt.deliver(&server).await, accepted("C1:2.000001"), "all were sent");
}

#[tokio::test]
async fn rejected_format_is_sent_plain() {
    let server = ScriptedServer::new([
        ok(r#"{"ok":false,"error":"invalid_blocks"}"#),
        ok(r#"{"ok":true,"channel":"C1","ts":"1.000001"}"#),
    ]);
    let message = message("**a** & b");
    assert_eq!(Attempt::new(&message).deliver(&server).await, accepted("C1:1.000001"));
    assert!(body_of(&server.request())["blocks"].is_array());
    let plain = body_of(&server.request());
    assert_eq!(
        (&plain["text"], &plain["mrkdwn"]),
        (&json!(format!("**a** &amp; b{PLAIN_NOTE}")), &json!(false))
    );
    assert!(plain["blocks"].is_null());
}

#[tokio::test]
async fn server_error_is_resolved_by_the_metadata() {
    let key = format!("dlv_{}", "0".repeat(48));
    let found = json!({"ok": true, "messages": [{"ts": "1.000009", "metadata": {
        "event_type": METADATA_TYPE, "event_payload": {"delivery": key, "part": 0}}}]});
    let broken = || ScriptedAct::Answer(answer("500 Internal Server Error", "", ""));
    let message = message("hi");
    let server = ScriptedServer::new([broken(), ok(&found.to_string())]);
    assert_eq!(Attempt::new(&message).deliver(&server).await, accepted("C1:1.000009"));
    let server = ScriptedServer::new([broken(), broken(), broken()]);
    let outcome = Attempt::new(&message).deliver(&server).await;
    assert!(matches!(outcome, DeliveryOutcome::Failed(Failure::Unknown { .. })), "{outcome:?}");
}

/// Slack is done with a request that it has answered, so that a message which is not in the chat
/// was not sent. Behind a gateway it may still be executed.
#[tokio::test]
async fn message_that_is_not_there_after_an_error_is_sent_again() {
    let answered = |status: &str, body: &str| ScriptedAct::Answer(answer(status, "", body));
    let internal = r#"{"ok":false,"error":"internal_error"}"#;
    let empty = r#"{"ok":true,"messages":[]}"#;
    let others = r#"{"ok":true,"messages":[{"ts":"1.1","user":"U7","text":"hi"},
        {"ts":"1.2","bot_id":"B0BOT","text":"a file","files":[{"id":"F1"}]}]}"#;
    let hidden = r#"{"ok":true,"messages":[{"ts":"1.2","bot_id":"B0BOT","text":"hi"}]}"#;
    let more = r#"{"ok":true,"messages":[],"response_metadata":{"next_cursor":"n"}}"#;
    let message = message("hi");
    for (error, looks, is_temporary) in [
        (answered("500 Internal Server Error", ""), vec![empty, empty], true),
        (answered("200 OK", internal), vec![others, empty], true),
        (answered("502 Bad Gateway", ""), vec![empty], false),
        (answered("504 Gateway Timeout", ""), vec![empty], false),
        // The bot may not see its own metadata, or not all of the chat.
        (answered("500 Internal Server Error", ""), vec![hidden], false),
        (answered("500 Internal Server Error", ""), vec![more; 5], false),
    ] {
        let (shown, count) = (format!("{error:?} {looks:?}"), looks.len());
        let server = ScriptedServer::new([error].into_iter().chain(looks.into_iter().map(ok)));
        let attempt = Attempt::new(&message);
        let sender = SlackSender { second_look: Duration::ZERO, ..SlackSender::default() };
        let outcome = sender.deliver(&workspace(&server), &attempt.request()).await;
        match outcome {
            DeliveryOutcome::Failed(Failure::Temporary { .. }) if is_temporary => {}
            DeliveryOutcome::Failed(Failure::Unknown { .. }) if !is_temporary => {}
            other => panic!("{shown}: {other:?}"),
        }
        for _ in 0..=count {
            server.request();
        }
        assert!(!server.received_more(), "{shown}");
    }
}

#[tokio::test]
async fn message_that_appears_late_is_not_sent_again() {
    let key = format!("dlv_{}", "0".repeat(48));
    let found = json!({"ok": true, "messages": [{"ts": "1.000009", "metadata": {
        "event_type": METADATA_TYPE, "event_payload": {"delivery": key, "part": 0}}}]});
    let broken = ScriptedAct::Answer(answer("500 Internal Server Error", "", ""));
    let late = [broken, ok(r#"{"ok":true,"messages":[]}"#), ok(&found.to_string())];
    let (server, message) = (ScriptedServer::new(late), message("hi"));
    let sender = SlackSender { second_look: Duration::ZERO, ..SlackSender::default() };
    let attempt = Attempt::new(&message);
    let outcome = sender.deliver(&workspace(&server), &attempt.request()).await;
    assert_eq!(outcome, accepted("C1:1.000009"));
}

#[tokio::test]
async fn missing_answer_is_unknown_and_found_later() {
    let server = ScriptedServer::new([ScriptedAct::HangUp]);
    let message = message("hi");
    let attempt = Attempt::new(&message);
    let outcome = attempt.deliver(&server).await;
    assert!(matches!(outcome, DeliveryOutcome::Failed(Failure::Unknown { .. })), "{outcome:?}");
    let key = attempt.request().key.to_string();
    let found = json!({"ok": true, "messages": [{"ts": "1.000009", "metadata": {
        "event_type": METADATA_TYPE, "event_payload": {"delivery": key, "part": 0}}}]});
    let server = ScriptedServer::new([ok(&found.to_string())]);
    let sent = SlackSender::default().find_sent(&workspace(&server), &attempt.request()).await;
    let expected = SentPart { part: 0, external_msg_id: Some("C1:1.000009".to_owned()) };
    assert_eq!(sent.unwrap(), Some(expected));
    let request = server.request();
    assert!(request.contains("include_all_metadata=true"), "{request}");
    assert!(request.contains("oldest=1699999400"), "{request}");
}

#[tokio::test]
async fn throttling_of_a_second_chat_concerns_the_tunnel() {
    let busy = || ScriptedAct::Answer(answer("429 Too Many Requests", "retry-after: 30\r\n", ""));
    let server = ScriptedServer::new([busy(), busy(), busy()]);
    let (sender, workspace, message) = (SlackSender::default(), workspace(&server), message("hi"));
    for (chat, scope) in [
        ("C1", ThrottleScope::Target),
        ("C1", ThrottleScope::Target),
        ("C2", ThrottleScope::Tunnel),
    ] {
        let attempt = Attempt { address: chat, ..Attempt::new(&message) };
        let outcome = sender.deliver(&workspace, &attempt.request()).await;
        let DeliveryOutcome::Throttled { retry_after, scope: found, error_code, .. } = outcome
        else {
            panic!("{outcome:?}")
        };
        assert_eq!((found, retry_after), (scope, Some(Duration::from_secs(30))), "{chat}");
        assert_eq!(error_code.as_deref(), Some("ratelimited"));
    }
}

#[tokio::test]
async fn message_to_a_person_goes_to_the_direct_chat_without_a_thread() {
    let server = ScriptedServer::new([
        ok(r#"{"ok":true,"channel":{"id":"D7"}}"#),
        ok(r#"{"ok":true,"channel":"D7","ts":"1.000001"}"#),
    ]);
    let mut message = message("hi");
    message.reply_to = Some("D7:1700000000.000100".to_owned());
    let attempt = Attempt { address: "U1", kind: EndpointKind::User, ..Attempt::new(&message) };
    assert_eq!(attempt.deliver(&server).await, accepted("D7:1.000001"));
    assert!(server.request().contains("users=U1"));
    let body = body_of(&server.request());
    assert_eq!((&body["channel"], &body["thread_ts"]), (&json!("D7"), &Value::Null));
}

#[tokio::test]
async fn direct_chat_with_a_person_is_looked_up_once() {
    let post = || ok(r#"{"ok":true,"channel":"D7","ts":"1.000001"}"#);
    let server = ScriptedServer::new([ok(r#"{"ok":true,"channel":{"id":"D7"}}"#), post(), post()]);
    let (message, workspace) = (message("hi"), workspace(&server));
    let attempt = Attempt { address: "U1", kind: EndpointKind::User, ..Attempt::new(&message) };
    for _ in 0..2 {
        let outcome = SlackSender::default().deliver(&workspace, &attempt.request()).await;
        assert_eq!(outcome, accepted("D7:1.000001"));
    }
}

/// A command that prints another token each time it runs.
fn rotating_token() -> monoco_core::config::SecretSource {
    let words = ["sh", "-c", "echo xoxb-$(date +%s%N)"].map(str::to_owned);
    monoco_core::config::SecretSource::Command(words.to_vec())
}

/// A token that was replaced behind the command must not make a dead letter.
#[tokio::test]
async fn rejected_token_is_read_again_and_the_call_repeated() {
    for code in ["invalid_auth", "token_revoked", "token_expired", "not_authed"] {
        let rejected = || ok(&format!(r#"{{"ok":false,"error":"{code}"}}"#));
        let sent = ok(r#"{"ok":true,"channel":"C1","ts":"1.000001"}"#);
        let server = ScriptedServer::new([rejected(), sent]);
        let base = EgressTarget::parse(&format!("http://127.0.0.1:{}/api/", server.port()), true);
        let token = Some(rotating_token());
        let client = SlackClient::new(Egress::new().unwrap(), base.unwrap(), None, token);
        let (message, workspace) = (message("hi"), SlackWorkspace::new(client));
        let attempt = Attempt::new(&message);
        let outcome = SlackSender::default().deliver(&workspace, &attempt.request()).await;
        assert_eq!(outcome, accepted("C1:1.000001"), "{code}");
        let tokens = [server.request(), server.request()].map(|request| {
            request.split_once("xoxb-").unwrap().1.lines().next().unwrap().to_owned()
        });
        assert_ne!(tokens[0], tokens[1]);
    }
    // The same token again is not tried again.
    let server = ScriptedServer::new([ok(r#"{"ok":false,"error":"invalid_auth"}"#)]);
    let message = message("hi");
    let outcome = Attempt::new(&message).deliver(&server).await;
    assert!(matches!(outcome, DeliveryOutcome::Failed(Failure::Permanent { .. })), "{outcome:?}");
}

#[tokio::test]
async fn file_is_streamed_and_shared_in_the_thread() {
    let upload = ScriptedServer::new([ScriptedAct::Answer(answer("200 OK", "", "OK - 5"))]);
    let url = format!("http://127.0.0.1:{}/upload/1", upload.port());
    let server = ScriptedServer::new([
        ok(&json!({"ok": true, "upload_url": url, "file_id": "F1"}).to_string()),
        ok(r#"{"ok":true,"files":[{"id":"F1","title":"a.txt"}]}"#),
        ok(r#"{"ok":true,"file":{"id":"F1","shares":{"public":{"C1":[{"ts":"5.000001"}]}}}}"#),
    ]);
    let files = MemoryFiles(vec![InboundAttachment {
        name: "a.txt".to_owned(),
        mime_type: "text/plain".to_owned(),
        bytes: b"hello".to_vec(),
    }]);
    let mut message = message("");
    message.attachments = files.references();
    message.topic = Some("1700000000.000100".to_owned());
    let attempt = Attempt { files, ..Attempt::new(&message) };
    assert_eq!(attempt.deliver(&server).await, accepted("C1:5.000001"));
    assert!(upload.request().ends_with("\r\n\r\nhello"));
    let asked = server.request();
    assert!(asked.contains("filename=a.txt") && asked.contains("length=5"), "{asked}");
    let shared = body_of(&server.request());
    assert_eq!(
        (&shared["channel_id"], &shared["thread_ts"]),
        (&json!("C1"), &json!("1700000000.000100"))
    );
    // A URL of another host gets neither bytes nor token.
    let foreign = r#"{"ok":true,"upload_url":"https://evil.example/x","file_id":"F1"}"#;
    let server = ScriptedServer::new([ok(foreign)]);
    let outcome = attempt.deliver(&server).await;
    assert!(matches!(outcome, DeliveryOutcome::Failed(Failure::Permanent { .. })), "{outcome:?}");
}

#[tokio::test]
async fn file_without_an_answer_is_found_by_its_upload_and_never_by_its_name() {
    let files = || {
        MemoryFiles(vec![InboundAttachment {
            name: "a.txt".to_owned(),
            mime_type: "text/plain".to_owned(),
            bytes: b"hello".to_vec(),
        }])
    };
    let mut message = message("");
    message.attachments = files().references();
    let attempt = Attempt { files: files(), ..Attempt::new(&message) };
    let request = attempt.request();
    let history = r#"{"ok":true,"messages":[
        {"ts":"7.000001","user":"U0BOT","files":[{"id":"F2","name":"a.txt"}]},
        {"ts":"6.000001","user":"U0BOT","files":[{"id":"F1","name":"a.txt"}]}]}"#;
    let no_share = r#"{"ok":true,"file":{"id":"F1"}}"#;
    let sender = SlackSender::default();
    let server = ScriptedServer::new([ok(OWN), ok(history)]);
    let sent = sender.find_sent(&workspace(&server), &request).await;
    assert_eq!(sent.unwrap(), None, "the upload is not known after a restart");
    sender.uploads.insert(&request.key.to_string(), 0, "F1");
    let server = ScriptedServer::new([ok(OWN), ok(no_share), ok(history)]);
    let sent = sender.find_sent(&workspace(&server), &request).await;
    assert_eq!(sent.unwrap().unwrap().external_msg_id.as_deref(), Some("C1:6.000001"));
}

#[tokio::test]
async fn search_starts_at_the_present_when_the_message_is_from_the_future() {
    let server = ScriptedServer::new([ok(r#"{"ok":true,"messages":[]}"#)]);
    let mut message = message("hi");
    let attempt_at = Attempt::new(&message).request().now;
    message.created_at = Some(Timestamp::from_ms(attempt_at.ms() + 86_400_000));
    let attempt = Attempt::new(&message);
    let sent = SlackSender::default().find_sent(&workspace(&server), &attempt.request()).await;
    assert_eq!(sent.unwrap(), None);
    let oldest = format!("oldest={}", attempt_at.ms() / 1000 - 600);
    let request = server.request();
    assert!(request.contains(&oldest), "{request}");
}

#[test]
fn plain_text_is_split_without_adding_markup() {
    let mut message = message(&format!("```\n{}", "line\n".repeat(2000)));
    message.format = Some("text/plain".to_owned());
    let texts: Vec<_> = parts(&message)
        .into_iter()
        .map(|part| match part {
            SlackPart::Text(text) => text,
            SlackPart::File(_) => panic!("no file"),
        })
        .collect();
    assert!(texts.len() > 2);
    assert_eq!(texts.join("\n"), message.text.trim());
}

#[tokio::test]
async fn empty_message_is_rejected() {
    let message = message(" ");
    let outcome = Attempt::new(&message).deliver(&ScriptedServer::new([])).await;
    assert!(matches!(outcome, DeliveryOutcome::Failed(Failure::Permanent { .. })));
}
