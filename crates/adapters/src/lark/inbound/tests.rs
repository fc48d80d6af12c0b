//! Tests of the conversion of events, with the payloads in `testdata/lark`.

use monoco_core::inbound::TunnelNotice;
use serde_json::json;

use super::*;

fn name(id: &str) -> Option<String> {
    match id {
        "ou_7d8a6e6df7621556ce0d21922b676706ccs" => Some("Ann".to_owned()),
        "oc_5ce6d572455d361153b7cb51da133945" => Some("Ops".to_owned()),
        _ => None,
    }
}

const ANN: &str = "ou_7d8a6e6df7621556ce0d21922b676706ccs";
const OPS: &str = "oc_5ce6d572455d361153b7cb51da133945";
const DIRECT: &str = "oc_direct";

fn payload(file: &str) -> Value {
    let path = format!("{}/testdata/lark/{file}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap()
}

fn read(payload: &Value) -> LarkEvents {
    let is_direct = |chat: &str| chat == DIRECT;
    LarkReader { find_name: &name, is_direct: &is_direct }.read(payload)
}

fn one(payload: &Value) -> InboundEvent {
    let mut events = read(payload).events;
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

fn message(payload: &Value) -> InboundMessage {
    match one(payload) {
        InboundEvent::Message { message, attachments } => {
            assert!(attachments.is_empty(), "{attachments:?}");
            message
        }
        other => panic!("{other:?}"),
    }
}

fn notice(payload: &Value) -> TunnelNotice {
    match one(payload) {
        InboundEvent::Notice(notice) => notice,
        other => panic!("{other:?}"),
    }
}

#[test]
fn message_of_a_group_is_complete() {
    let found = message(&payload("text_group"));
    assert_eq!(found.id, "om_5ce6d572455d361153b7cb51da133945");
    assert_eq!(found.text, "@Bot the build is red");
    assert_eq!(found.mentions, ["Bot"]);
    assert_eq!(found.from, Participant::user(ANN, Some("Ann".to_owned())));
    assert_eq!(found.at.unwrap().ms(), 1_700_000_000_123);
    let session = ChatSession {
        id: OPS.to_owned(),
        kind: ChatSessionKind::Group,
        name: Some("Ops".to_owned()),
        thread_key: None,
    };
    assert_eq!(found.session, session);
    assert_eq!((found.reply_to, found.title), (None, None));
}

#[test]
fn new_event_id_of_the_same_message_has_the_same_id() {
    let first = payload("text_group");
    let mut again = first.clone();
    again["header"]["event_id"] = json!("another");
    assert_eq!(message(&first), message(&again));
}

#[test]
fn direct_chats_replies_and_topics_are_told_apart() {
    let mut direct = payload("text_group");
    direct["event"]["message"]["chat_type"] = json!("p2p");
    let read_direct = read(&direct);
    assert_eq!(read_direct.direct_chat.as_deref(), Some(OPS));
    let direct = message(&direct);
    assert_eq!(direct.session.kind, ChatSessionKind::Direct);
    assert_eq!(direct.session.name.as_deref(), Some("Ann"));

    let reply = message(&payload("reply"));
    assert_eq!(reply.reply_to.as_deref(), Some("om_parent"));
    assert_eq!(reply.session.thread_key, None, "a reply is no topic");

    let topic = message(&payload("topic_reply"));
    assert_eq!(topic.session.thread_key.as_deref(), Some("om_root"));
    assert_eq!(topic.reply_to.as_deref(), Some("om_root"));

    let mut root = payload("topic_reply");
    root["event"]["message"]["root_id"] = json!("");
    root["event"]["message"]["parent_id"] = json!("");
    let root = message(&root);
    assert_eq!(root.session.thread_key.as_deref(), Some(root.id.as_str()));
    assert_eq!(root.reply_to, None);
}

#[test]
fn messages_of_apps_are_dropped() {
    let mut own = payload("text_group");
    own["event"]["sender"]["sender_type"] = json!("app");
    assert_eq!(read(&own).events, []);
    let mut reaction = payload("reaction_created");
    reaction["event"]["operator_type"] = json!("app");
    assert_eq!(read(&reaction).events, []);
    let item = json!({"message_id": "om_1", "msg_type": "text", "create_time": "1700000000000",
        "body": {"content": "{\"text\":\"x\"}"},
        "sender": {"id": "cli_a1", "id_type": "app_id", "sender_type": "app"}});
    let is_direct = |_: &str| false;
    let reader = LarkReader { find_name: &name, is_direct: &is_direct };
    assert_eq!(reader.read_history(&ChatSession::default(), &item).events, []);
}

#[test]
fn recall_names_the_message_and_the_kind_of_its_chat() {
    let mut recalled = payload("recalled");
    let InboundEvent::Recall(recall) = one(&recalled) else { panic!("no recall") };
    assert_eq!(recall.message_id, "om_5ce6d572455d361153b7cb51da133945");
    assert_eq!(recall.session.kind, ChatSessionKind::Group);
    assert_eq!(recall.at.unwrap().ms(), 1_700_000_009_000);
    recalled["event"]["chat_id"] = json!(DIRECT);
    let InboundEvent::Recall(recall) = one(&recalled) else { panic!("no recall") };
    assert_eq!(recall.session.kind, ChatSessionKind::Direct);
}

#[test]
fn reactions_members_and_names_are_notices() {
    let added = notice(&payload("reaction_created"));
    assert_eq!(added.kind, "reaction_added");
    let want = "Ann reacted :THUMBSUP: to om_5ce6d572455d361153b7cb51da133945";
    assert_eq!(added.detail, want);
    assert_eq!(added.id, "event:5e3702a84e847582be8db7fb73283c03");
    let joined = notice(&payload("member_added"));
    assert_eq!(
        (joined.kind.as_str(), joined.detail.as_str()),
        ("member_joined", "Bob joined the chat")
    );
    assert_eq!(joined.session.unwrap().id, OPS);
    let renamed = payload("chat_updated");
    assert_eq!(notice(&renamed).detail, "the chat is now called Operations");
    assert_eq!(read(&renamed).renamed, Some((OPS.to_owned(), "Operations".to_owned())));
    for ignored in ["im.message.message_read_v1", "im.chat.access_event.bot_p2p_chat_entered_v1"] {
        let mut payload = payload("recalled");
        payload["header"]["event_type"] = json!(ignored);
        assert_eq!(read(&payload).events, [], "{ignored}");
    }
}

#[test]
fn button_of_a_card_is_a_message_with_its_payload() {
    let payload = payload("card_action");
    let InboundEvent::Message { message, attachments } = one(&payload) else {
        panic!("no message")
    };
    assert_eq!(message.text, "[card button: {\"deploy\":\"yes\"}; the payload is attached]");
    assert_eq!(message.id, "event:f7984f25108f8137722bb63cee927e66");
    assert_eq!(message.reply_to.as_deref(), Some("om_card"));
    let attached = String::from_utf8(attachments[0].bytes.clone()).unwrap();
    assert!(attached.contains("deploy") && !attached.contains("c-canary"), "{attached}");
}

#[test]
fn unknown_kinds_have_the_payload_without_secrets() {
    let mut unknown = payload("text_group");
    unknown["event"]["message"]["message_type"] = json!("hologram");
    let InboundEvent::Message { message, attachments } = one(&unknown) else {
        panic!("no message")
    };
    assert!(message.text.contains("hologram"), "{}", message.text);
    let attached = String::from_utf8(attachments[0].bytes.clone()).unwrap();
    assert!(!attached.contains("v-canary"), "{attached}");
    let mut other = payload("text_group");
    other["header"]["event_type"] = json!("im.something.new_v9");
    let notice = notice(&other);
    assert_eq!(notice.kind, "unknown_event");
    assert!(notice.detail.contains("im.something.new_v9") && !notice.detail.contains("v-canary"));
}

#[test]
fn incomplete_and_absurd_messages_are_notices() {
    for (pointer, value) in [
        ("/event/message/message_id", Value::Null),
        ("/event/message/message_id", json!("m".repeat(4096))),
        ("/event/message/chat_id", json!("")),
        ("/event/message/chat_id", json!("c".repeat(4096))),
        ("/event/sender/sender_id", json!({})),
        ("/event/sender/sender_id", json!({"open_id": "o".repeat(4096)})),
        ("/event/message", json!([])),
        ("/event", Value::Null),
    ] {
        let mut payload = payload("text_group");
        *payload.pointer_mut(pointer).unwrap() = value;
        assert_eq!(notice(&payload).kind, "unknown_event", "{pointer}");
    }
    assert_eq!(notice(&json!({"uuid": "u1", "event": {"type": "message"}})).id, "event:u1");
    assert_eq!(notice(&json!(7)).kind, "unknown_event");
}

#[test]
fn history_has_messages_edits_and_recalls() {
    let is_direct = |_: &str| false;
    let reader = LarkReader { find_name: &name, is_direct: &is_direct };
    let chat =
        ChatSession { id: OPS.to_owned(), kind: ChatSessionKind::Group, ..Default::default() };
    let mut item = json!({"message_id": "om_1", "root_id": "om_root", "parent_id": "om_root",
        "thread_id": "omt_1", "msg_type": "text", "create_time": "1700000000000",
        "update_time": "1700000005000", "deleted": false, "updated": false, "chat_id": OPS,
        "sender": {"id": ANN, "id_type": "open_id", "sender_type": "user"},
        "body": {"content": "{\"text\":\"@_user_1 hi\"}"},
        "mentions": [{"key": "@_user_1", "id": "ou_bot", "id_type": "open_id", "name": "Bot"}]});
    let plain = reader.read_history(&chat, &item).events;
    let [InboundEvent::Message { message, .. }] = plain.as_slice() else { panic!("{plain:?}") };
    assert_eq!((message.text.as_str(), message.session.name.as_deref()), ("@Bot hi", Some("Ops")));
    assert_eq!(message.session.thread_key.as_deref(), Some("om_root"));
    assert_eq!(message.from.name.as_deref(), Some("Ann"));
    item["updated"] = json!(true);
    let edited = reader.read_history(&chat, &item).events;
    let [InboundEvent::Message { .. }, InboundEvent::Edit(edit)] = edited.as_slice() else {
        panic!("{edited:?}")
    };
    assert_eq!(edit.edit_id, "om_1:1700000005000");
    item["deleted"] = json!(true);
    let deleted = reader.read_history(&chat, &item).events;
    assert!(matches!(deleted.as_slice(), [InboundEvent::Recall(_)]), "{deleted:?}");
}
