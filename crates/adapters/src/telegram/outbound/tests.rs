//! Tests of deliveries against a scripted server.

use std::time::Duration;

use monoco_core::did::Did;
use monoco_core::inbound::InboundAttachment;
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::record::RecordId;
use monoco_core::time::Timestamp;

use super::super::tests::{adapter, call_of, server};
use super::*;
use crate::Adapter as _;
use crate::delivery_fixture::{MemoryFiles, RecordedParts};
use crate::scripted::{ScriptedAct, ScriptedServer};

const SENT: (u16, &str) =
    (200, r#"{"ok":true,"result":{"message_id":77,"chat":{"id":-1001,"type":"supergroup"}}}"#);

/// One delivery with everything that it refers to.
struct Sending {
    message: OutgoingMessage,
    files: MemoryFiles,
    sent_parts: Vec<SentPart>,
    progress: RecordedParts,
}

impl Sending {
    fn new(text: &str) -> Self {
        let message = json!({"from": "did:web:me",
            "content": {"content": text, "format": "text/markdown"}});
        Self {
            message: OutgoingMessage::parse(&message.to_string()).unwrap(),
            files: MemoryFiles::default(),
            sent_parts: Vec::new(),
            progress: RecordedParts::default(),
        }
    }

    fn file(mut self, name: &str, mime_type: &str) -> Self {
        let (name, mime_type) = (name.to_owned(), mime_type.to_owned());
        let bytes = format!("content of {name}").into_bytes();
        self.files.0.push(InboundAttachment { name, mime_type, bytes });
        self.message.attachments = self.files.references();
        self
    }

    async fn to(&self, adapter: &TelegramAdapter, address: &str) -> DeliveryOutcome {
        let did: Did = "did:msgtunnel:tele".parse().unwrap();
        let request = DeliveryRequest {
            address,
            kind: EndpointKind::Group,
            message: &self.message,
            files: &self.files,
            sent_parts: &self.sent_parts,
            progress: &self.progress,
            first_attempt_ago: Duration::ZERO,
            key: RecordId::delivery(&did, &did, &ObjId::of(ObjKind::Msg, b"1")),
            now: Timestamp::from_ms(1_700_000_000_000),
        };
        adapter.deliver(&request).await
    }
}

fn accepted() -> DeliveryOutcome {
    DeliveryOutcome::Accepted { external_msg_id: Some("-1001:77".to_owned()) }
}

fn error(code: u16, description: &str) -> String {
    json!({"ok": false, "error_code": code, "description": description}).to_string()
}

#[tokio::test]
async fn message_has_entities_topic_reply_and_silence() {
    let (server, url) = server(&[SENT]);
    let mut sending = Sending::new("**Fixed** in `4f2a`");
    sending.message.topic = Some("7".to_owned());
    sending.message.reply_to = Some("-1001:55".to_owned());
    sending.message.silent = true;
    assert_eq!(sending.to(&adapter(&url, ""), "-1001").await, accepted());
    let (method, body) = call_of(&server.request());
    let want = json!({
        "chat_id": -1001, "text": "Fixed in 4f2a", "message_thread_id": 7,
        "entities": [{"type": "bold", "offset": 0, "length": 5}, {"type": "code", "offset": 9, "length": 4}],
        "reply_parameters": {"message_id": 55, "allow_sending_without_reply": true},
        "disable_notification": true, "link_preview_options": {"is_disabled": true},
    });
    assert_eq!((method.as_str(), body), ("sendMessage", want));
}

#[tokio::test]
async fn general_topic_and_answers_to_other_chats_are_left_out() {
    let (server, url) = server(&[SENT]);
    let mut sending = Sending::new("hi");
    sending.message.topic = Some("1".to_owned());
    sending.message.reply_to = Some("-9:55".to_owned());
    assert_eq!(sending.to(&adapter(&url, ""), "-1001").await, accepted());
    let (_, body) = call_of(&server.request());
    assert_eq!((body.get("message_thread_id"), body.get("reply_parameters")), (None, None));
}

#[tokio::test]
async fn long_text_is_split_and_continues_after_the_last_part() {
    let text = (0..3).map(|n| format!("part-{n} {}\n\n", "😀".repeat(1500))).collect::<String>();
    let mut sending = Sending::new(&text);
    let parts = parts(&sending.message);
    assert_eq!(parts.len(), 3);
    for part in &parts {
        let TelegramPart::Text(text) = part else { panic!("{part:?}") };
        assert!(units(text, false) <= MAX_TEXT_UNITS);
    }
    let (server, url) = server(&[SENT, SENT]);
    sending.sent_parts = vec![SentPart { part: 0, external_msg_id: None }];
    assert_eq!(sending.to(&adapter(&url, ""), "-1001").await, accepted());
    for number in 1..3 {
        let (_, body) = call_of(&server.request());
        assert!(body["text"].as_str().unwrap().starts_with(&format!("part-{number} ")));
    }
    let progress = sending.progress.parts();
    assert_eq!(progress.iter().map(|part| part.part).collect::<Vec<_>>(), [1]);
}

#[test]
fn text_with_many_entities_is_split() {
    let text = "**a** b ".repeat(150);
    let parts = parts_of(&text);
    assert_eq!(parts.len(), 2);
    let entities = |text: &String| EntityText::from_markdown(text).entities.len();
    assert!(parts.iter().all(|text| entities(text) <= MAX_ENTITIES));
    assert_eq!(parts.iter().map(entities).sum::<usize>(), 150);
}

fn parts_of(text: &str) -> Vec<String> {
    let sending = Sending::new(text);
    let text = |part: &TelegramPart<'_>| match part {
        TelegramPart::Text(text) => text.clone(),
        other => panic!("{other:?}"),
    };
    parts(&sending.message).iter().map(text).collect()
}

#[test]
fn short_text_is_the_caption_of_the_first_file() {
    let sending = Sending::new("the log").file("a.log", "text/plain").file("b.log", "text/plain");
    let files = &sending.message.attachments;
    let caption = Some("the log".to_owned());
    let want = [
        TelegramPart::File { file: &files[0], caption },
        TelegramPart::File { file: &files[1], caption: None },
    ];
    assert_eq!(parts(&sending.message), want);
    let long = "x".repeat(MAX_CAPTION_UNITS + 1);
    let sending = Sending::new(&long).file("a.log", "text/plain");
    assert_eq!(parts(&sending.message)[0], TelegramPart::Text(long));
}

#[tokio::test]
async fn photo_that_is_rejected_is_sent_as_a_document() {
    let rejected = error(400, "Bad Request: PHOTO_INVALID_DIMENSIONS");
    let (server, url) = server(&[(400, &rejected), SENT]);
    let sending = Sending::new("**look**").file("c.png", "image/png");
    assert_eq!(sending.to(&adapter(&url, ""), "-1001").await, accepted());
    for (method, field) in [("sendPhoto", "photo"), ("sendDocument", "document")] {
        let request = server.request();
        assert!(request.contains(&format!("/{method} HTTP/1.1")), "{request}");
        assert!(request.contains(&format!("name=\"{field}\"; filename=\"c.png\"")), "{request}");
        assert!(request.contains("content of c.png") && request.contains("\r\n\r\nlook\r\n"));
        assert!(request.contains(r#"[{"length":4,"offset":0,"type":"bold"}]"#), "{request}");
    }
}

#[tokio::test]
async fn migrated_group_gets_the_message_under_its_new_id() {
    let moved = json!({"ok": false, "error_code": 400, "parameters": {"migrate_to_chat_id": -1001},
                       "description": "Bad Request: group chat was upgraded to a supergroup chat"});
    let (server, url) = server(&[(400, &moved.to_string()), SENT, SENT]);
    let adapter = adapter(&url, "");
    let mut sending = Sending::new("hi");
    sending.message.reply_to = Some("-5:3".to_owned());
    assert_eq!(sending.to(&adapter, "-5").await, accepted());
    assert_eq!(sending.to(&adapter, "-5").await, accepted());
    let chats: Vec<_> = (0..3).map(|_| call_of(&server.request()).1["chat_id"].clone()).collect();
    assert_eq!(chats, [json!(-5), json!(-1001), json!(-1001)]);
}

#[tokio::test]
async fn rejected_reply_and_format_are_left_out() {
    let (gone, format) = (
        error(400, "Bad Request: message to be replied not found"),
        error(400, "Bad Request: ENTITY_X"),
    );
    let (server, url) = server(&[(400, &gone), (400, &format), SENT]);
    let mut sending = Sending::new("**hi**");
    sending.message.reply_to = Some("-1001:55".to_owned());
    assert_eq!(sending.to(&adapter(&url, ""), "-1001").await, accepted());
    let bodies: Vec<_> = (0..3).map(|_| call_of(&server.request()).1).collect();
    let last = &bodies[2];
    assert_eq!((last.get("reply_parameters"), last.get("entities")), (None, None));
    assert_eq!(last["text"], "**hi**");
}

#[tokio::test]
async fn rate_limits_pause_the_chat_and_then_the_tunnel() {
    let busy = r#"{"ok":false,"error_code":429,"description":"Too Many Requests: retry after 9","parameters":{"retry_after":9}}"#;
    let (_server, url) = server(&[(429, busy), (429, busy)]);
    let adapter = adapter(&url, "");
    for (chat, want) in [("-1001", ThrottleScope::Target), ("-1002", ThrottleScope::Tunnel)] {
        match Sending::new("hi").to(&adapter, chat).await {
            DeliveryOutcome::Throttled { retry_after, scope, .. } => {
                assert_eq!((retry_after, scope), (Some(Duration::from_secs(9)), want));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn outcomes_say_what_is_known() {
    for (act, want) in [
        (ScriptedAct::HangUp, "Unknown"),
        (ScriptedAct::Answer("HTTP/1.1 502 X\r\ncontent-length: 0\r\n\r\n".to_owned()), "Unknown"),
        (
            ScriptedAct::Answer("HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n".to_owned()),
            "Temporary",
        ),
        (
            ScriptedAct::Answer("HTTP/1.1 403 X\r\ncontent-length: 0\r\n\r\n".to_owned()),
            "Permanent",
        ),
    ] {
        let server = ScriptedServer::new([act]);
        let url = format!("http://127.0.0.1:{}", server.port());
        let outcome = Sending::new("hi").to(&adapter(&url, ""), "-1001").await;
        assert!(format!("{outcome:?}").contains(want), "{want}: {outcome:?}");
        server.request();
        assert!(!server.received_more());
    }
}

#[tokio::test]
async fn what_cannot_be_sent_is_not_tried() {
    let (server, url) = server(&[]);
    let adapter = adapter(&url, "");
    for (text, address, want) in [
        ("", "-1001", "neither text nor files"),
        ("![](https://x.example)", "-1001", "neither text nor files"),
        ("hi", "ops", "not a chat of Telegram"),
        ("hi", "@a/b", "not a chat of Telegram"),
    ] {
        let outcome = format!("{:?}", Sending::new(text).to(&adapter, address).await);
        assert!(outcome.contains("Permanent") && outcome.contains(want), "{outcome}");
    }
    assert!(address(EndpointKind::Channel, "@news_channel").is_ok());
    assert!(address(EndpointKind::User, "@ann_lee").is_err());
    assert!(!server.received_more());
}
