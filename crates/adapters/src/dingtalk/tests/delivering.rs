//! Deliveries by session webhook, API and custom robot.

use monoco_core::delivery::{SentPart, ThrottleScope};
use monoco_core::did::Did;
use monoco_core::inbound::InboundAttachment;
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::record::RecordId;

use super::*;
use crate::delivery_fixture::{MemoryFiles, RecordedParts};
use crate::dingtalk::session_webhooks::SessionWebhook;

/// One delivery with everything that it refers to.
struct Sending {
    message: OutgoingMessage,
    files: MemoryFiles,
    sent_parts: Vec<SentPart>,
    progress: RecordedParts,
}

impl Sending {
    fn new(text: &str, format: &str) -> Self {
        Self {
            message: outgoing(text, format),
            files: MemoryFiles::default(),
            sent_parts: Vec::new(),
            progress: RecordedParts::default(),
        }
    }

    fn with_file(text: &str, name: &str, mime_type: &str) -> Self {
        let mut sending = Self::new(text, "text/plain");
        let (name, mime_type) = (name.to_owned(), mime_type.to_owned());
        let file = InboundAttachment { name, mime_type, bytes: b"content".to_vec() };
        sending.files = MemoryFiles(vec![file]);
        sending.message.attachments = sending.files.references();
        sending
    }

    async fn to(
        &self,
        adapter: &DingTalkAdapter,
        kind: EndpointKind,
        address: &str,
    ) -> DeliveryOutcome {
        let request = DeliveryRequest {
            address,
            kind,
            message: &self.message,
            files: &self.files,
            sent_parts: &self.sent_parts,
            progress: &self.progress,
            key: record_id(),
            first_attempt_ago: std::time::Duration::ZERO,
            now: NOW,
        };
        adapter.deliver(&request).await
    }
}

fn record_id() -> RecordId {
    let did: Did = "did:msgtunnel:ding".parse().unwrap();
    RecordId::delivery(&did, &did, &ObjId::of(ObjKind::Msg, b"1"))
}

fn accepted(id: Option<&str>) -> DeliveryOutcome {
    DeliveryOutcome::Accepted { external_msg_id: id.map(str::to_owned) }
}

#[tokio::test]
async fn token_is_fetched_once_for_several_messages() {
    let (server, url) = server(&[TOKEN, SENT, SENT]);
    let adapter = adapter(&url, "");
    let sending = Sending::new("hi", "text/plain");
    for _ in 0..2 {
        let outcome = sending.to(&adapter, EndpointKind::User, "042297").await;
        assert_eq!(outcome, accepted(Some("key-1")));
    }
    let token = server.request();
    assert_eq!(path_of(&token), "/v1.0/oauth2/accessToken");
    assert_eq!(body_of(&token), json!({"appKey": "dingapp", "appSecret": "s3cret"}));
    for _ in 0..2 {
        let sent = server.request();
        assert_eq!(path_of(&sent), "/v1.0/robot/oToMessages/batchSend");
        assert!(sent.contains("x-acs-dingtalk-access-token: at-1\r\n"), "{sent}");
        let body = body_of(&sent);
        assert_eq!(
            (&body["robotCode"], &body["userIds"]),
            (&json!("dingrobot"), &json!(["042297"]))
        );
    }
    assert!(!server.received_more());
}

#[tokio::test]
async fn rejected_token_is_renewed_once() {
    for rejected in [(401, r#"{"code":"InvalidAuthentication"}"#), (200, r#"{"errcode":42001}"#)] {
        let (server, url) = server(&[TOKEN, rejected, NEW_TOKEN, SENT]);
        let adapter = adapter(&url, "");
        let outcome = Sending::new("hi", "").to(&adapter, EndpointKind::Group, "cid==").await;
        assert_eq!(outcome, accepted(Some("key-1")), "{rejected:?}");
        let requests: Vec<_> = (0..4).map(|_| server.request()).collect();
        assert_eq!(path_of(&requests[3]), "/v1.0/robot/groupMessages/send");
        assert!(requests[3].contains("at-2"), "{}", requests[3]);
        assert_eq!(body_of(&requests[3])["openConversationId"], "cid==");
    }
    let denied = (401, "{}");
    let (_server, url) = server(&[TOKEN, denied, NEW_TOKEN, denied]);
    let outcome = Sending::new("hi", "").to(&adapter(&url, ""), EndpointKind::User, "u").await;
    let DeliveryOutcome::Failed(Failure::Temporary { retry_after_ms, .. }) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(retry_after_ms, Some(300_000), "the message waits until the app works again");
}

#[tokio::test]
async fn wrong_app_secret_makes_messages_wait() {
    let (_server, url) = server(&[(400, r#"{"code":"invalidClientSecret","message":"bad"}"#)]);
    let outcome = Sending::new("hi", "").to(&adapter(&url, ""), EndpointKind::User, "u").await;
    let DeliveryOutcome::Failed(Failure::Temporary { detail, error_code, .. }) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(detail.contains("check app_key and app_secret"), "{detail}");
    assert_eq!(error_code.as_deref(), Some("invalidClientSecret"));
    assert!(!detail.contains("s3cret"), "{detail}");
}

fn learn_webhook(adapter: &DingTalkAdapter, url: &str) {
    let expires = Timestamp::from_ms(NOW.ms() + 60_000);
    let webhook = SessionWebhook::new(format!("{url}/robot/sendBySession?session=x"), expires);
    adapter.webhooks.insert(EndpointKind::User, "u".to_owned(), webhook);
}

#[tokio::test]
async fn chat_is_answered_by_its_session_webhook_while_that_is_accepted() {
    let gone = (200, r#"{"errcode":300001,"errmsg":"session is not exist"}"#);
    let (server, url) = server(&[OK, gone, TOKEN, SENT, SENT]);
    let adapter = adapter(&url, "");
    learn_webhook(&adapter, &url);
    let sending = Sending::new("a **b**", "text/markdown");
    assert_eq!(sending.to(&adapter, EndpointKind::User, "u").await, accepted(None));
    let request = server.request();
    assert_eq!(path_of(&request), "/robot/sendBySession?session=x");
    assert_eq!(body_of(&request)["markdown"]["text"], "a **b**");
    for _ in 0..2 {
        assert_eq!(sending.to(&adapter, EndpointKind::User, "u").await, accepted(Some("key-1")));
    }
    let paths: Vec<_> = (0..4).map(|_| path(&server)).collect();
    assert_eq!(
        paths[1..],
        [
            "/v1.0/oauth2/accessToken",
            "/v1.0/robot/oToMessages/batchSend",
            "/v1.0/robot/oToMessages/batchSend"
        ],
        "the rejected webhook is not used again"
    );
}

#[tokio::test]
async fn session_webhook_of_a_foreign_host_is_never_used() {
    let (server, url) = server(&[TOKEN, SENT]);
    let adapter = adapter(&url, "");
    learn_webhook(&adapter, "https://dingtalk.com.example.org");
    let outcome = Sending::new("hi", "").to(&adapter, EndpointKind::User, "u").await;
    assert_eq!(outcome, accepted(Some("key-1")));
    assert_eq!(path(&server), "/v1.0/oauth2/accessToken");
}

#[tokio::test]
async fn hosts_of_files_get_no_messages() {
    let (server, url) = server(&[TOKEN, SENT]);
    let adapter = adapter(&url, "file_hosts: ['.example.org']\n");
    learn_webhook(&adapter, "https://files.example.org");
    let outcome = Sending::new("hi", "").to(&adapter, EndpointKind::User, "u").await;
    assert_eq!(outcome, accepted(Some("key-1")));
    assert_eq!(path(&server), "/v1.0/oauth2/accessToken");
}

#[tokio::test]
async fn rejected_format_is_sent_as_plain_text_that_says_so() {
    let rejected = (400, r#"{"code":"invalidParameter.msgParam.invalid","message":"x"}"#);
    let (server, url) = server(&[TOKEN, rejected, SENT]);
    let sending = Sending::new("a **b**", "text/markdown");
    let outcome = sending.to(&adapter(&url, ""), EndpointKind::User, "u").await;
    assert_eq!(outcome, accepted(Some("key-1")));
    let keys: Vec<_> = (0..3).map(|_| server.request()).collect();
    assert_eq!(body_of(&keys[1])["msgKey"], "sampleMarkdown");
    let plain = body_of(&keys[2]);
    assert_eq!(plain["msgKey"], "sampleText");
    assert!(plain["msgParam"].as_str().unwrap().contains("a **b**"));
    assert!(plain["msgParam"].as_str().unwrap().contains("sent without formatting"));
}

#[tokio::test]
async fn flow_control_is_no_delivery() {
    let limited = (200, r#"{"processQueryKey":"k","flowControlledStaffIdList":["u"]}"#);
    let (_server, url) = server(&[TOKEN, limited]);
    let outcome = Sending::new("hi", "").to(&adapter(&url, ""), EndpointKind::User, "u").await;
    assert!(
        matches!(outcome, DeliveryOutcome::Throttled { scope: ThrottleScope::Target, .. }),
        "{outcome:?}"
    );
    let qps = (403, r#"{"code":"Forbidden.AccessDenied.QpsLimitForAppkeyAndApi"}"#);
    let (_server, url) = server(&[TOKEN, qps]);
    let outcome = Sending::new("hi", "").to(&adapter(&url, ""), EndpointKind::User, "u").await;
    assert!(
        matches!(outcome, DeliveryOutcome::Throttled { scope: ThrottleScope::Tunnel, .. }),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn attempt_continues_after_the_parts_that_were_sent() {
    let text = "line of text\n".repeat(3000);
    let (server, url) = server(&[TOKEN, SENT, SENT]);
    let adapter = adapter(&url, "");
    let mut sending = Sending::new(&text, "text/plain");
    sending.progress.fails_after = Some(1);
    let outcome = sending.to(&adapter, EndpointKind::User, "u").await;
    assert!(matches!(outcome, DeliveryOutcome::Failed(_)), "{outcome:?}");
    let first = sending.progress.parts();
    assert_eq!(first, [SentPart { part: 0, external_msg_id: Some("key-1".to_owned()) }]);
    let count = outbound::parts(&sending.message, outbound::SenderKind::App).len();
    assert!(count >= 3, "{count}");
    let rest = vec![SENT; count - 1];
    let (second, url) = self::server(&[&[TOKEN][..], &rest].concat());
    let mut retry = Sending::new(&text, "text/plain");
    retry.sent_parts = first;
    let outcome = retry.to(&self::adapter(&url, ""), EndpointKind::User, "u").await;
    assert_eq!(outcome, accepted(Some("key-1")));
    let numbers: Vec<_> = retry.progress.parts().iter().map(|sent| sent.part).collect();
    assert_eq!(numbers, (1..u32::try_from(count).unwrap() - 1).collect::<Vec<_>>());
    let all =
        |server: &ScriptedServer, count| (0..count).map(|_| server.request()).collect::<Vec<_>>();
    assert_eq!(all(&server, 3).len() + all(&second, count).len(), count + 3);
    assert!(!second.received_more());
}

#[tokio::test]
async fn nothing_is_sent_when_every_part_was_sent() {
    let (server, url) = server(&[TOKEN]);
    let mut sending = Sending::new("hi", "text/plain");
    sending.sent_parts = vec![SentPart { part: 0, external_msg_id: None }];
    let outcome = sending.to(&adapter(&url, ""), EndpointKind::User, "u").await;
    assert_eq!(outcome, accepted(None));
    assert!(!server.received_more());
}

#[tokio::test]
async fn file_is_uploaded_and_sent_after_the_text() {
    let uploaded = (200, r#"{"errcode":0,"media_id":"@lA1"}"#);
    let expired = (200, r#"{"errcode":40014,"errmsg":"invalid token"}"#);
    let (server, url) = server(&[TOKEN, SENT, expired, NEW_TOKEN, uploaded, SENT]);
    let sending = Sending::with_file("see", "log.txt", "text/plain");
    let outcome = sending.to(&adapter(&url, ""), EndpointKind::User, "u").await;
    assert_eq!(outcome, accepted(Some("key-1")));
    let requests: Vec<_> = (0..6).map(|_| server.request()).collect();
    let upload = &requests[4];
    assert_eq!(path_of(upload), "/media/upload?access_token=at-2&type=file");
    assert!(upload.contains("name=\"media\"; filename=\"log.txt\""), "{upload}");
    assert!(upload.contains("content"), "{upload}");
    let sent = body_of(&requests[5]);
    assert_eq!(sent["msgKey"], "sampleFile");
    assert!(sent["msgParam"].as_str().unwrap().contains("@lA1"));
    assert_eq!(sending.progress.parts().len(), 1);
}

#[tokio::test]
async fn lost_upload_can_be_repeated_but_a_lost_send_cannot() {
    let script = |last: usize| {
        let mut acts: Vec<_> = [TOKEN, SENT][..last]
            .iter()
            .map(|(status, body)| ScriptedAct::Answer(answer(&format!("{status} X"), "", body)))
            .collect();
        acts.push(ScriptedAct::HangUp);
        ScriptedServer::new(acts)
    };
    let server = script(2);
    let url = format!("http://127.0.0.1:{}", server.port());
    let sending = Sending::with_file("see", "log.txt", "text/plain");
    let outcome = sending.to(&adapter(&url, ""), EndpointKind::User, "u").await;
    assert!(matches!(outcome, DeliveryOutcome::Failed(Failure::Temporary { .. })), "{outcome:?}");
    let server = script(1);
    let url = format!("http://127.0.0.1:{}", server.port());
    let outcome = Sending::new("hi", "").to(&adapter(&url, ""), EndpointKind::User, "u").await;
    assert!(matches!(outcome, DeliveryOutcome::Failed(Failure::Unknown { .. })), "{outcome:?}");
}

#[tokio::test]
async fn custom_robot_gets_a_signed_request() {
    let (server, url) = server(&[OK, OK]);
    let adapter = adapter(&url, "robot_token: t0ken\nrobot_secret: SECtest");
    let sending = Sending::new("hi", "text/plain");
    assert_eq!(sending.to(&adapter, EndpointKind::Channel, "ops").await, accepted(None));
    let sign = signature::sign(&Secret::new("SECtest"), &NOW.ms().to_string());
    let sign = sign.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    let want = format!("/robot/send?access_token=t0ken&timestamp={}&sign={sign}", NOW.ms());
    assert_eq!(path(&server), want);
}

#[tokio::test]
async fn what_cannot_be_sent_fails_before_anything_is_sent() {
    let (server, url) = server(&[TOKEN]);
    let app = adapter(&url, "");
    let robot = adapter(&url, "robot_token: t0ken");
    let (text, file) = (Sending::new("hi", ""), Sending::with_file("hi", "a.txt", "text/plain"));
    let empty = Sending::new(" ", "");
    for (outcome, want) in [
        (text.to(&app, EndpointKind::Channel, "x").await, "set robot_token"),
        (text.to(&app, EndpointKind::Addr, "x").await, "no addresses"),
        (text.to(&app, EndpointKind::User, "$:LWCP_v1:$u").await, "not in the organisation"),
        (file.to(&robot, EndpointKind::Channel, "x").await, "cannot send files"),
        (empty.to(&app, EndpointKind::User, "u").await, "neither a text nor an attachment"),
    ] {
        let DeliveryOutcome::Failed(Failure::Permanent { detail, .. }) = outcome else {
            panic!("{want}: {outcome:?}")
        };
        assert!(detail.contains(want), "{detail}");
    }
    assert!(!server.received_more());
}

#[test]
fn limits_are_those_of_the_app_and_of_the_custom_robot() {
    let adapter = adapter("http://127.0.0.1:1", "robot_token: t");
    assert_eq!(adapter.send_limits(EndpointKind::Channel).per_target, [ROBOT_RATE]);
    assert_eq!(adapter.send_limits(EndpointKind::User).per_tunnel, [APP_RATE]);
}
