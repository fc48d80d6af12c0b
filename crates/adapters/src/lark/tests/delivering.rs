//! Deliveries through the API and a custom robot.

use monoco_core::delivery::ThrottleScope;
use monoco_core::did::Did;
use monoco_core::inbound::InboundAttachment;
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::record::RecordId;

use super::*;
use crate::delivery_fixture::{MemoryFiles, RecordedParts};

/// One delivery with everything that it refers to.
struct Sending {
    message: OutgoingMessage,
    files: MemoryFiles,
    sent_parts: Vec<SentPart>,
    progress: RecordedParts,
    first_attempt_ago: Duration,
}

impl Sending {
    fn new(message: Value) -> Self {
        Self {
            message: outgoing(message),
            files: MemoryFiles::default(),
            sent_parts: Vec::new(),
            progress: RecordedParts::default(),
            first_attempt_ago: Duration::ZERO,
        }
    }

    fn markdown(text: &str) -> Self {
        Self::new(json!({"content": {"content": text, "format": "text/markdown"}}))
    }

    fn with_file(name: &str, mime_type: &str) -> Self {
        let mut sending = Self::new(json!({"content": {"content": ""}}));
        let (name, mime_type) = (name.to_owned(), mime_type.to_owned());
        let file = InboundAttachment { name, mime_type, bytes: b"content".to_vec() };
        sending.files = MemoryFiles(vec![file]);
        sending.message.attachments = sending.files.references();
        sending
    }

    fn request<'a>(&'a self, kind: EndpointKind, address: &'a str) -> DeliveryRequest<'a> {
        DeliveryRequest {
            address,
            kind,
            message: &self.message,
            files: &self.files,
            sent_parts: &self.sent_parts,
            progress: &self.progress,
            key: record_id(),
            first_attempt_ago: self.first_attempt_ago,
            now: NOW,
        }
    }

    async fn to(&self, adapter: &LarkAdapter, kind: EndpointKind, to: &str) -> DeliveryOutcome {
        adapter.deliver(&self.request(kind, to)).await
    }
}

fn record_id() -> RecordId {
    let did: Did = "did:msgtunnel:lark".parse().unwrap();
    RecordId::delivery(&did, &did, &ObjId::of(ObjKind::Msg, b"1"))
}

fn accepted() -> DeliveryOutcome {
    DeliveryOutcome::Accepted { external_msg_id: Some("om_sent".to_owned()) }
}

const GROUP: &str = "oc_5ce6d572455d361153b7cb51da133945";

#[tokio::test]
async fn token_is_fetched_once_and_the_id_decides_its_type() {
    for (kind, address, id_type) in [
        (EndpointKind::Group, GROUP, "chat_id"),
        (EndpointKind::User, "ou_1", "open_id"),
        (EndpointKind::User, "on_1", "union_id"),
        (EndpointKind::User, "e33ggbyz", "user_id"),
        (EndpointKind::Addr, "ann@example.com", "email"),
    ] {
        let (server, url) = server(&[TOKEN, SENT, SENT]);
        let adapter = adapter(&url, "");
        let sending = Sending::markdown("**hi**");
        for _ in 0..2 {
            assert_eq!(sending.to(&adapter, kind, address).await, accepted());
        }
        let token = server.request();
        let want = "/open-apis/auth/v3/tenant_access_token/internal";
        assert_eq!(path_of(&token), want);
        assert_eq!(body_of(&token), json!({"app_id": "cli_a1", "app_secret": "s3cret"}));
        let sent = server.request();
        let want = format!("/open-apis/im/v1/messages?receive_id_type={id_type}");
        assert_eq!(path_of(&sent), want);
        assert!(sent.contains("authorization: Bearer t-1\r\n"), "{sent}");
        let body = body_of(&sent);
        assert_eq!((&body["receive_id"], &body["msg_type"]), (&json!(address), &json!("post")));
        let uuid = body["uuid"].as_str().unwrap();
        assert!(uuid.len() <= 50, "{uuid}");
        assert_eq!(body_of(&server.request())["uuid"], uuid, "the same for every attempt");
        assert!(!server.received_more());
    }
}

#[tokio::test]
async fn answers_go_to_their_message_and_topic() {
    let reply = |extra: Value| {
        let mut message = json!({"content": {"content": "re"}});
        for (key, value) in extra.as_object().unwrap() {
            message[key] = value.clone();
        }
        Sending::new(message)
    };
    let topic = json!({"topic": "om_root"});
    for (sending, kind, path, in_thread) in [
        (reply(json!({"in_reply_to": "om_1"})), EndpointKind::Group, "om_1/reply", json!(false)),
        (
            reply(json!({"in_reply_to": "om_1", "thread": topic})),
            EndpointKind::Group,
            "om_1/reply",
            json!(true),
        ),
        (reply(json!({ "thread": topic })), EndpointKind::Group, "om_root/reply", json!(true)),
        (
            reply(json!({"in_reply_to": "om_1"})),
            EndpointKind::User,
            "?receive_id_type=chat_id",
            Value::Null,
        ),
        (
            reply(json!({"in_reply_to": "event:1"})),
            EndpointKind::Group,
            "?receive_id_type=chat_id",
            Value::Null,
        ),
    ] {
        let (server, url) = server(&[TOKEN, SENT]);
        assert_eq!(sending.to(&adapter(&url, ""), kind, GROUP).await, accepted());
        server.request();
        let sent = server.request();
        assert!(path_of(&sent).ends_with(path), "{sent}");
        assert_eq!(body_of(&sent)["reply_in_thread"], in_thread, "{sent}");
    }
}

#[tokio::test]
async fn answer_to_a_message_that_is_gone_is_sent_to_the_chat() {
    for code in [230_011, 231_003] {
        let gone = format!(r#"{{"code":{code}}}"#);
        let (server, url) = server(&[TOKEN, (400, &gone), SENT]);
        let message = json!({"content": {"content": "re"}, "in_reply_to": "om_1"});
        let outcome =
            Sending::new(message).to(&adapter(&url, ""), EndpointKind::Group, GROUP).await;
        assert_eq!(outcome, accepted());
        server.request();
        let first = body_of(&server.request());
        let second = server.request();
        assert!(path_of(&second).ends_with("receive_id_type=chat_id"), "{second}");
        assert_ne!(body_of(&second)["uuid"], first["uuid"]);
    }
}

#[tokio::test]
async fn rejected_token_is_renewed_once() {
    for code in [99_991_663, 99_991_664, 99_991_665, 99_991_668, 99_991_671, 99_991_677] {
        let rejected = format!(r#"{{"code":{code},"msg":"token"}}"#);
        let (server, url) = server(&[TOKEN, (400, &rejected), NEW_TOKEN, SENT]);
        let adapter = adapter(&url, "");
        let outcome = Sending::markdown("hi").to(&adapter, EndpointKind::Group, GROUP).await;
        assert_eq!(outcome, accepted(), "{code}");
        let requests: Vec<_> = (0..4).map(|_| server.request()).collect();
        assert!(requests[3].contains("Bearer t-2"), "{}", requests[3]);
        assert_eq!(body_of(&requests[1]), body_of(&requests[3]));
    }
    let denied = (400, r#"{"code":99991663}"#);
    let (_server, url) = server(&[TOKEN, denied, NEW_TOKEN, denied]);
    let outcome = Sending::markdown("hi").to(&adapter(&url, ""), EndpointKind::Group, GROUP).await;
    let DeliveryOutcome::Failed(Failure::Temporary { retry_after_ms, .. }) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(retry_after_ms, Some(300_000), "the message waits until the app works again");
}

#[tokio::test]
async fn wrong_secret_makes_messages_wait() {
    let (_server, url) = server(&[(400, r#"{"code":10014,"msg":"app secret invalid"}"#)]);
    let outcome = Sending::markdown("hi").to(&adapter(&url, ""), EndpointKind::User, "ou_1").await;
    let DeliveryOutcome::Failed(Failure::Temporary { detail, error_code, .. }) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(error_code.as_deref(), Some("10014"));
    assert!(detail.contains("check app_id and app_secret") && !detail.contains("s3cret"));
}

#[tokio::test]
async fn rate_limits_are_no_failures() {
    for (body, scope) in [
        (r#"{"code":99991400,"msg":"limit"}"#, ThrottleScope::Tunnel),
        (r#"{"code":230020,"msg":"limit"}"#, ThrottleScope::Target),
    ] {
        let head = "connection: close\r\nx-ogw-ratelimit-reset: 3\r\n";
        let limited = ScriptedAct::Answer(answer("429 X", head, body));
        let (_server, url) = serve([act(TOKEN), limited]);
        let outcome =
            Sending::markdown("hi").to(&adapter(&url, ""), EndpointKind::Group, GROUP).await;
        let DeliveryOutcome::Throttled { retry_after, scope: found, .. } = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!((retry_after, found), (Some(Duration::from_secs(3)), scope));
    }
}

#[tokio::test]
async fn unknown_outcome_is_repeated_with_the_same_uuid() {
    let (server, url) = serve([act(TOKEN), ScriptedAct::HangUp, act(SENT)]);
    let adapter = adapter(&url, "");
    let mut sending = Sending::markdown("hi");
    let outcome = sending.to(&adapter, EndpointKind::Group, GROUP).await;
    assert!(matches!(outcome, DeliveryOutcome::Failed(Failure::Unknown { .. })), "{outcome:?}");
    sending.first_attempt_ago = Duration::from_secs(2 * 3600);
    let request = sending.request(EndpointKind::Group, GROUP);
    let found = adapter.find_sent(&request).await.unwrap().unwrap();
    assert_eq!(found, SentPart { part: 0, external_msg_id: Some("om_sent".to_owned()) });
    server.request();
    assert_eq!(body_of(&server.request()), body_of(&server.request()));
    // The attempt ends there.
    sending.sent_parts = vec![found];
    assert_eq!(sending.to(&adapter, EndpointKind::Group, GROUP).await, accepted());
    assert!(!server.received_more());
}

#[tokio::test]
async fn after_one_hour_the_outcome_stays_unknown() {
    let (server, url) = server(&[TOKEN, SENT]);
    // After a restart only the time of the first attempt is known.
    let adapter = adapter(&url, "");
    let mut sending = Sending::markdown("hi");
    sending.first_attempt_ago = Duration::from_secs(56 * 60);
    let request = sending.request(EndpointKind::Group, GROUP);
    assert_eq!(adapter.find_sent(&request).await, Ok(None));
    assert!(!server.received_more());
    sending.first_attempt_ago = Duration::from_secs(50 * 60);
    let request = sending.request(EndpointKind::Group, GROUP);
    assert!(adapter.find_sent(&request).await.unwrap().is_some());
}

#[tokio::test]
async fn second_unknown_outcome_is_tried_again() {
    let (_server, url) = serve([act(TOKEN), ScriptedAct::HangUp]);
    let sending = Sending::markdown("hi");
    let request = sending.request(EndpointKind::Group, GROUP);
    let failure = adapter(&url, "").find_sent(&request).await.unwrap_err();
    assert!(matches!(failure, Failure::Temporary { .. }), "{failure:?}");
}

#[tokio::test]
async fn long_message_is_sent_in_parts_that_are_not_repeated() {
    let (server, url) = server(&[TOKEN, SENT, SENT, SENT]);
    let adapter = adapter(&url, "");
    let mut sending = Sending::markdown(&"line of text\n\n".repeat(4000));
    assert_eq!(sending.to(&adapter, EndpointKind::Group, GROUP).await, accepted());
    let parts = sending.progress.parts();
    assert_eq!(parts.iter().map(|part| part.part).collect::<Vec<_>>(), [0, 1]);
    server.request();
    let uuids: Vec<_> =
        (0..3).map(|_| body_of(&server.request())["uuid"].as_str().unwrap().to_owned()).collect();
    assert!(uuids[0] != uuids[1] && uuids[1] != uuids[2]);
    let (server, url) = super::server(&[TOKEN, SENT]);
    sending.sent_parts = parts;
    let outcome = sending.to(&super::adapter(&url, ""), EndpointKind::Group, GROUP).await;
    assert_eq!(outcome, accepted());
    server.request();
    assert_eq!(body_of(&server.request())["uuid"], json!(uuids[2]));
}

#[tokio::test]
async fn rejected_format_is_sent_as_plain_text() {
    let rejected = (400, r#"{"code":230001,"msg":"invalid content, ext=md"}"#);
    let (server, url) = server(&[TOKEN, rejected, SENT]);
    let sending = Sending::markdown("**hi**");
    assert_eq!(sending.to(&adapter(&url, ""), EndpointKind::Group, GROUP).await, accepted());
    server.request();
    let (post, plain) = (body_of(&server.request()), body_of(&server.request()));
    assert_eq!((&post["msg_type"], &plain["msg_type"]), (&json!("post"), &json!("text")));
    assert!(plain["content"].as_str().unwrap().contains("sent without formatting"));
    assert_ne!(post["uuid"], plain["uuid"]);
    let (_server, url) = super::server(&[TOKEN, rejected]);
    let plain = Sending::new(json!({"content": {"content": "hi"}}));
    let outcome = plain.to(&adapter(&url, ""), EndpointKind::Group, GROUP).await;
    assert!(matches!(outcome, DeliveryOutcome::Failed(Failure::Permanent { .. })), "{outcome:?}");
}

#[tokio::test]
async fn files_are_uploaded_and_then_sent() {
    for (name, mime_type, path, answer, kind, content) in [
        (
            "a.png",
            "image/png",
            "/open-apis/im/v1/images",
            r#"{"code":0,"data":{"image_key":"img_1"}}"#,
            "image",
            r#"{"image_key":"img_1"}"#,
        ),
        (
            "a.docx",
            "application/msword",
            "/open-apis/im/v1/files",
            r#"{"code":0,"data":{"file_key":"file_1"}}"#,
            "file",
            r#"{"file_key":"file_1"}"#,
        ),
    ] {
        let (server, url) = server(&[TOKEN, (200, answer), (500, ""), SENT]);
        let (adapter, sending) = (adapter(&url, ""), Sending::with_file(name, mime_type));
        let outcome = sending.to(&adapter, EndpointKind::Group, GROUP).await;
        assert!(matches!(outcome, DeliveryOutcome::Failed(Failure::Unknown { .. })), "{outcome:?}");
        let request = sending.request(EndpointKind::Group, GROUP);
        assert!(adapter.find_sent(&request).await.unwrap().is_some());
        server.request();
        let upload = server.request();
        assert_eq!(path_of(&upload), path);
        assert!(upload.contains("content") && upload.contains(name), "{upload}");
        let (sent, again) = (body_of(&server.request()), body_of(&server.request()));
        assert_eq!((&sent["msg_type"], &sent["content"]), (&json!(kind), &json!(content)));
        assert_eq!(sent, again, "it is not uploaded twice");
    }
    let (_server, url) = server(&[TOKEN]);
    let mut empty = Sending::with_file("a.txt", "text/plain");
    empty.files.0[0].bytes.clear();
    empty.message.attachments = empty.files.references();
    let outcome = empty.to(&adapter(&url, ""), EndpointKind::Group, GROUP).await;
    assert!(matches!(outcome, DeliveryOutcome::Failed(Failure::Permanent { .. })), "{outcome:?}");
}

#[tokio::test]
async fn custom_robot_signs_and_has_no_uuid() {
    let (server, url) = server(&[(200, r#"{"code":0,"msg":"success","data":{},"StatusCode":0}"#)]);
    let lines = format!("robot_url: {url}/open-apis/bot/v2/hook/h00k\nrobot_secret: demo\n");
    let adapter = adapter(&url, &lines);
    let sending = Sending::new(json!({"content": {"content": "hi"}}));
    let outcome = sending.to(&adapter, EndpointKind::Channel, "team").await;
    assert_eq!(outcome, DeliveryOutcome::Accepted { external_msg_id: None });
    let request = server.request();
    assert_eq!(path_of(&request), "/open-apis/bot/v2/hook/h00k");
    let want = json!({"timestamp": "1599360473", "sign": "l1N0gAcBjdwBvGm1xMjOF0XSyaLRpR7tuO5dHfhAYc8=",
                      "msg_type": "text", "content": {"text": "hi"}});
    assert_eq!(body_of(&request), want);
    let request = sending.request(EndpointKind::Channel, "team");
    assert_eq!(adapter.find_sent(&request).await, Ok(None), "a robot has no uuid");
    for (code, is_throttled) in [(19_021, false), (19_024, false), (11_232, true)] {
        let body = format!(r#"{{"code":{code},"msg":"no"}}"#);
        let (_server, url) = super::server(&[(200, &body)]);
        let adapter = super::adapter(&url, &format!("robot_url: {url}/hook/h00k\n"));
        let outcome = sending.to(&adapter, EndpointKind::Channel, "team").await;
        assert_eq!(matches!(outcome, DeliveryOutcome::Throttled { .. }), is_throttled, "{code}");
        assert!(!format!("{outcome:?}").contains("h00k"), "{outcome:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_sent_is_rejected_before_anything_is_sent() {
    let (server, url) = server(&[]);
    let adapter = adapter(&url, "");
    let robot = format!("robot_url: {url}/hook/x\n");
    let with_robot = super::adapter(&url, &robot);
    for (sending, adapter, kind, words) in [
        (Sending::markdown("  "), &adapter, EndpointKind::Group, "neither a text nor a card"),
        (Sending::markdown("hi"), &adapter, EndpointKind::Channel, "set robot_url"),
        (
            Sending::with_file("a.txt", "text/plain"),
            &with_robot,
            EndpointKind::Channel,
            "a custom robot cannot send files",
        ),
    ] {
        let outcome = sending.to(adapter, kind, GROUP).await;
        let DeliveryOutcome::Failed(Failure::Permanent { detail, .. }) = outcome else {
            panic!("{outcome:?}")
        };
        assert!(detail.contains(words), "{detail}");
    }
    assert!(!server.received_more());
}
