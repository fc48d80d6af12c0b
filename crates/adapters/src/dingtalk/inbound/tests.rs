//! Tests of the conversion, kind by kind, with recorded payloads.

use monoco_core::inbound::TunnelNotice;

use super::*;
use crate::dingtalk::wire::StreamFrame;

fn testdata(name: &str) -> String {
    let path = format!("{}/testdata/dingtalk/{name}.json", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn robot_message(name: &str) -> RobotMessage {
    read_message(&serde_json::from_str(&testdata(name)).unwrap(), "dingrobot")
}

fn message(name: &str) -> (InboundMessage, Vec<InboundAttachment>) {
    match robot_message(name).event {
        Some(InboundEvent::Message { message, attachments }) => {
            let valid = message.validate().unwrap_or_else(|error| panic!("{name}: {error}"));
            (valid.into_message(), attachments)
        }
        other => panic!("{name}: {other:?}"),
    }
}

fn notice(name: &str) -> TunnelNotice {
    let frame: StreamFrame = serde_json::from_str(&testdata(name)).unwrap();
    match read_event(&frame) {
        InboundEvent::Notice(notice) => notice,
        other => panic!("{other:?}"),
    }
}

fn handle(artifact: &Artifact) -> FileHandle {
    serde_json::from_str(artifact.fetch.as_deref().unwrap()).unwrap()
}

#[test]
fn text_in_a_group_is_a_message_of_the_group() {
    let (message, attachments) = message("text_group");
    assert_eq!(message.id, "msgAAA==");
    assert_eq!(message.text, "hello");
    assert_eq!(message.at, Some(Timestamp::from_ms(1_690_362_101_894)));
    let ChatSession { id, kind, name, thread_key } = message.session;
    assert_eq!((id.as_str(), kind), ("cidOps==", ChatSessionKind::Group));
    assert_eq!((name.as_deref(), thread_key), (Some("Ops"), None));
    assert_eq!(message.from, Participant::user("042297", Some("Zhang".to_owned())));
    assert_eq!(message.mentions, ["dingrobot"]);
    assert_eq!((message.reply_to, message.artifacts.len(), attachments.len()), (None, 0, 0));
}

#[test]
fn direct_message_is_answered_to_its_author() {
    let (message, _) = message("text_direct");
    assert_eq!(message.session.kind, ChatSessionKind::Direct);
    assert_eq!((message.text.as_str(), message.mentions.len()), ("the build is red", 0));
    let (kind, account, webhook) = robot_message("text_direct").webhook.unwrap();
    assert_eq!((kind, account.as_str()), (EndpointKind::User, "042297"));
    assert!(webhook.url().expose().ends_with("canary"));
    let (kind, account, _) = robot_message("text_group").webhook.unwrap();
    assert_eq!((kind, account.as_str()), (EndpointKind::Group, "cidOps=="));
}

#[test]
fn author_outside_of_the_organisation_has_another_id() {
    assert_eq!(message("text_outside").0.from.id, "$:LWCP_v1:$u");
}

#[test]
fn mentions_have_the_names_in_the_text_and_the_ids() {
    let (message, _) = message("text_mentions");
    assert_eq!(message.mentions, ["dingrobot", "Li", "Wang", "55", "66"]);
}

#[test]
fn every_kind_has_a_text_and_its_files() {
    for (name, text, files) in [
        ("rich_text", "see\n[picture]\nand\n[file: log.txt]\ndone", &["picture-1", "log.txt"][..]),
        ("picture", "[picture]", &["picture-1"]),
        ("audio", "call me back", &["audio-1"]),
        ("audio_unrecognised", "[audio, 3 s]", &["audio-1"]),
        ("video", "[video, 5 s]", &["video-1.mp4"]),
        ("file", "[file: report.pdf]", &["report.pdf"]),
        ("file_content_in_string", "[file: report.pdf]", &["report.pdf"]),
    ] {
        let (message, attachments) = message(name);
        assert_eq!(message.text, text, "{name}");
        let names: Vec<_> = message.artifacts.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, files, "{name}");
        assert!(attachments.is_empty(), "{name}");
        for (at, file) in message.artifacts.iter().enumerate() {
            let handle = handle(file);
            assert_eq!(handle.download_code, format!("code-{}", at + 1), "{name}");
            assert_eq!(handle.robot_code, "dingrobot", "{name}");
            assert_eq!(handle.stem.is_some(), !file.name.contains('.'), "{name}");
        }
    }
}

#[test]
fn quoted_message_is_before_the_text() {
    let (quote, _) = message("quote");
    assert_eq!(quote.text, "> restart the\n> server\n\nis that done?");
    assert_eq!(quote.reply_to.as_deref(), Some("msgOLD=="));
    let (picture, _) = message("quote_of_picture");
    assert_eq!(picture.text, "> [picture]\n\nwhich one?");
    assert_eq!(picture.reply_to.as_deref(), Some("msgPIC=="));
}

#[test]
fn quote_of_the_robot_names_the_id_of_what_was_sent() {
    let (message, _) = message("quote_of_robot");
    assert_eq!(message.reply_to.as_deref(), Some("key-7"));
}

#[test]
fn unknown_kind_is_a_placeholder_with_the_payload_without_secrets() {
    for (name, text) in [
        (
            "unknown",
            "[DingTalk message of kind unknownMsgType, see the attached payload.json]\n\nlocation",
        ),
        (
            "interactive_card",
            "[DingTalk message of kind interactiveCard, see the attached payload.json]\n\nApprove?",
        ),
        ("rich_text_skill", "run [skill]"),
        ("empty", "[empty message of kind text]"),
    ] {
        let (message, attachments) = message(name);
        assert_eq!(message.text, text, "{name}");
        let [payload] = attachments.as_slice() else { panic!("{name}: {attachments:?}") };
        assert_eq!(payload.name, "payload.json");
        let shown = String::from_utf8(payload.bytes.clone()).unwrap();
        assert!(!shown.contains("canary"), "{name}: {shown}");
        assert!(serde_json::from_str::<Value>(&shown).is_ok(), "{name}");
    }
}

#[test]
fn message_never_holds_the_session_webhook() {
    for name in ["text_group", "unknown", "file", "quote"] {
        let (message, _) = message(name);
        assert!(!serde_json::to_string(&message).unwrap().contains("canary"), "{name}");
    }
}

#[test]
fn own_messages_are_ignored() {
    let own = robot_message("own_message");
    assert!(own.event.is_none() && own.webhook.is_none());
}

#[test]
fn one_message_to_two_robots_has_two_ids() {
    assert_eq!(message("other_robot").0.id, "dingother:msgAAA==");
    assert_eq!(message("text_group").0.id, "msgAAA==");
}

#[test]
fn payload_of_wrong_types_is_still_a_message() {
    for payload in [
        json!({}),
        json!({"msgtype": 7, "text": "x", "createAt": "soon", "atUsers": "no", "msgId": []}),
        json!({"msgtype": "richText", "content": "not json"}),
        json!({"msgtype": "richText", "content": {"richText": {}}}),
        json!({"msgtype": "picture", "content": null, "conversationId": {"a": 1}}),
        json!({"msgtype": "text", "text": {"content": "x".repeat(3 << 20)}, "msgId": "y".repeat(900)}),
    ] {
        let read = read_message(&payload, "dingrobot");
        let Some(InboundEvent::Message { message, attachments }) = read.event else { panic!() };
        assert!(message.validate().is_ok());
        assert_eq!(attachments.len(), 1);
    }
    let huge = json!({"msgtype": "file", "content": {"downloadCode": "c".repeat(9000)}});
    let read = read_message(&huge, "dingrobot");
    let Some(InboundEvent::Message { message, .. }) = read.event else { panic!() };
    assert_eq!(message.artifacts[0].fetch, None);
    assert!(message.artifacts[0].missing.is_some());
}

#[test]
fn membership_is_a_notice_of_the_group() {
    let joined = notice("event_member_joined");
    assert_eq!((joined.id.as_str(), joined.kind.as_str()), ("event:ev-1", "member_joined"));
    assert_eq!(joined.detail, "042297, 55 joined the group");
    assert_eq!(joined.session.unwrap().id, "cidOps==");
    assert_eq!(joined.by.unwrap().id, "042297");
    assert_eq!(joined.at, Some(Timestamp::from_ms(1_690_362_101_000)));
}

#[test]
fn other_events_are_notices_with_their_data() {
    let other = notice("event_other");
    assert_eq!((other.id.as_str(), other.kind.as_str()), ("event:ev-2", "bpms_task_change"));
    assert!(other.detail.contains("taskId") && !other.detail.contains("canary"), "{other:?}");
    assert_eq!(other.session, None);
}

#[test]
fn gap_names_its_begin_and_end() {
    let InboundEvent::Notice(gap) = gap_notice(Timestamp::from_ms(0), Timestamp::from_ms(60_000))
    else {
        panic!()
    };
    assert_eq!((gap.kind.as_str(), gap.id.as_str()), ("gap", "gap:0-60000"));
    assert!(gap.detail.contains("from 1970-01-01T00:00:00.000Z to 1970-01-01T00:01:00.000Z"));
}
