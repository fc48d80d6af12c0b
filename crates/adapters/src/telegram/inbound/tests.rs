//! Tests of updates, kind by kind, with recorded payloads.

use monoco_core::inbound::TunnelNotice;
use proptest::prelude::*;
use serde_json::json;

use super::super::tests::testdata;
use super::*;

/// The message of a recorded update, and the names of its attachments.
#[track_caller]
fn message(name: &str) -> (InboundMessage, Vec<String>) {
    match read_update(&testdata(name)).event {
        Some(InboundEvent::Message { message, attachments }) => {
            (message, attachments.into_iter().map(|it| it.name).collect())
        }
        other => panic!("{name}: {other:?}"),
    }
}

#[track_caller]
fn notice(name: &str) -> TunnelNotice {
    match read_update(&testdata(name)).event {
        Some(InboundEvent::Notice(notice)) => notice,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn direct_message_has_the_person_as_session() {
    let (message, attachments) = message("text_direct");
    assert_eq!((message.id.as_str(), message.text.as_str()), ("42:55", "😀 hello \\*you\\*"));
    assert_eq!(message.from, Participant::user("42", Some("Ann Lee".to_owned())));
    let session = ChatSession {
        id: "42".to_owned(),
        kind: ChatSessionKind::Direct,
        name: Some("Ann Lee".to_owned()),
        thread_key: None,
    };
    assert_eq!(message.session, session);
    assert_eq!(message.at.unwrap().rfc3339(), "2023-11-14T22:13:20.000Z");
    assert!(attachments.is_empty());
}

#[test]
fn group_message_has_mentions_and_links() {
    let (message, _) = message("text_mention");
    assert_eq!(message.text, "@test_bot the build is [red](https://ci.example.com)");
    assert_eq!(message.mentions, ["test_bot"]);
    assert_eq!(message.session.kind, ChatSessionKind::Group);
    assert_eq!(message.session.name.as_deref(), Some("Ops"));
}

#[test]
fn topics_are_threads_and_their_first_message_is_no_answer() {
    let (in_topic, _) = message("topic");
    assert_eq!((in_topic.session.thread_key.as_deref(), in_topic.reply_to), (Some("7"), None));
    let (answer, _) = message("topic_reply");
    assert_eq!(answer.reply_to.as_deref(), Some("-1001234567890:50"));
    assert_eq!(answer.text, "> quest\n\nan answer");
    let mut general = testdata("topic");
    general.value["message"]["message_thread_id"] = json!(1);
    let Some(InboundEvent::Message { message, .. }) = read_update(&general).event else { panic!() };
    assert_eq!(message.session.thread_key, None, "the general topic");
}

#[test]
fn files_are_named_and_fetched_later() {
    for (name, text, file, mime_type, handle) in [
        ("photo", "**the** \\*screen\\*", "photo-55.jpg", "image/jpeg", Some("large")),
        ("document", "", "report.pdf", "application/pdf", Some("doc")),
        ("document_too_large", "", "dump.tar", "application/x-tar", None),
        ("voice", "[voice message, 12 s]", "voice-55.ogg", "audio/ogg", Some("v")),
        ("video", "look", "video-55.mp4", "video/mp4", Some("v")),
        ("animation", "", "cat.mp4", "video/mp4", Some("a")),
        ("sticker", "[sticker 👍]", "sticker-55.tgs", "application/x-tgsticker", Some("st")),
    ] {
        let (message, attachments) = message(name);
        assert_eq!(message.text, text, "{name}");
        let [artifact] = &message.artifacts[..] else { panic!("{name}: {message:?}") };
        let found =
            (artifact.name.as_str(), artifact.mime_type.as_str(), artifact.fetch.as_deref());
        assert_eq!(found, (file, mime_type, handle), "{name}");
        assert_eq!(artifact.missing.is_some(), handle.is_none(), "{name}");
        assert!(attachments.is_empty(), "{name}");
    }
    let (large, _) = message("document_too_large");
    let why = "the file has 25000000 bytes; Telegram lets bots download at most 20 MB";
    assert_eq!(large.artifacts[0].missing.as_deref(), Some(why));
}

#[test]
fn content_without_text_has_an_honest_placeholder() {
    for (name, text) in [
        ("location", "[location: 52.520000, 13.405000]"),
        ("venue", "[venue: Cafe, Main St 1, 52.520000, 13.405000]"),
        ("contact", "[contact: Bob, +4930123456]"),
        ("poll", "[poll: Lunch?]\n\n- Pizza (2)\n- Soup (0)"),
        ("dice", "[dice 🎲: 4]"),
    ] {
        let (message, attachments) = message(name);
        assert_eq!((message.text.as_str(), attachments.len()), (text, 0), "{name}");
    }
}

#[test]
fn unknown_kind_has_its_payload_attached_without_secrets() {
    let Some(InboundEvent::Message { message, attachments }) =
        read_update(&testdata("unknown")).event
    else {
        panic!("an unknown kind is a message")
    };
    let text =
        "[message of a kind that this version does not know: hologram; the payload is attached]";
    assert_eq!(message.text, text);
    let payload = String::from_utf8(attachments[0].bytes.clone()).unwrap();
    assert!(payload.contains("\"depth\": 3") && !payload.contains("canary"), "{payload}");
}

#[test]
fn forwards_and_answers_across_chats_name_their_origin() {
    assert_eq!(message("forward").0.forwarded_from.as_deref(), Some("News (Eve)"));
    assert_eq!(message("forward_hidden").0.forwarded_from.as_deref(), Some("Mallory"));
    let text = "[answer to a message of Joe in another chat]\n\n> old words\n\nsee this";
    assert_eq!(message("external_reply").0.text, text);
}

#[test]
fn anonymous_admins_and_channels_write_as_their_chat() {
    let (admin, _) = message("anonymous_admin");
    assert_eq!((admin.from.id.as_str(), admin.from.kind), ("-1001234567890", EndpointKind::Group));
    assert_eq!(admin.from.name.as_deref(), Some("Ops (lead)"));
    let (post, _) = message("channel_post");
    assert_eq!((post.from.id.as_str(), post.from.kind), ("-1009", EndpointKind::Channel));
    assert_eq!((post.session.id.as_str(), post.session.kind), ("-1009", ChatSessionKind::Group));
}

#[test]
fn messages_of_bots_are_dropped() {
    assert_eq!(read_update(&testdata("other_bot")), ReadUpdate::default());
}

#[test]
fn edits_name_the_message_and_differ_in_their_content() {
    let edit = |text: &str| {
        let mut update = testdata("edited");
        update.value["edited_message"]["text"] = json!(text);
        match read_update(&update).event {
            Some(InboundEvent::Edit(edit)) => edit,
            other => panic!("{other:?}"),
        }
    };
    let (first, second) = (edit("a"), edit("b"));
    assert_eq!(first.message.id, "-1001234567890:55");
    assert!(first.edit_id.starts_with("-1001234567890:55:1700000060:"), "{}", first.edit_id);
    assert_ne!(first.edit_id, second.edit_id, "two edits within one second");
    assert_eq!(first.edit_id, edit("a").edit_id);
    assert_eq!(first.message.at.unwrap().ms(), 1_700_000_060_000);
    assert_eq!(read_update(&testdata("live_location_moved")), ReadUpdate::default());
}

#[test]
fn changes_of_chats_are_notices() {
    for (name, kind, detail) in [
        ("members_joined", "member_joined", "Bob (43), Eve (44) joined the chat"),
        ("member_left", "member_left", "Bob (43) left the chat"),
        ("migrate_to", "chat_migrated", "the group has become the supergroup -1001234567890"),
        ("bot_added", "bot_added", "the bot was added to the chat as member"),
        ("bot_blocked", "bot_blocked", "the person has blocked the bot"),
        ("reaction", "reaction_added", "Ann Lee (42) reacted 👍 to -1001234567890:50"),
    ] {
        let notice = notice(name);
        assert_eq!((notice.kind.as_str(), notice.detail.as_str()), (kind, detail));
        assert!(notice.session.is_some() && notice.at.is_some(), "{notice:?}");
    }
    let unknown = notice("chat_boost");
    assert_eq!(unknown.kind, "unknown_event");
    assert!(unknown.detail.starts_with("update of the type chat_boost, which"), "{unknown:?}");
}

#[test]
fn long_ids_and_names_are_cut_and_the_payload_is_attached() {
    let mut update = testdata("text_mention");
    let message = &mut update.value["message"];
    message["from"]["first_name"] = json!("n".repeat(5000));
    message["media_group_id"] = json!("g".repeat(5000));
    message["text"] = json!("x".repeat(2 << 20));
    let read = read_update(&update);
    assert_eq!(read.album, None);
    let Some(InboundEvent::Message { message, attachments }) = read.event else { panic!() };
    assert!(message.validate().is_ok());
    assert_eq!(attachments.len(), 1);
}

/// Arbitrary JSON of a few levels.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[a-z_]{1,8}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_update_panics(key in "message|edited_message|channel_post|my_chat_member|message_reaction|x",
                        field in "text|photo|document|entities|from|chat|sender_chat|quote|poll|reply_to_message|new_chat_members|forward_origin",
                        value in any_json(), whole in any_json()) {
        let mut update = testdata("text_mention");
        let mut message = update.value["message"].take();
        message[&field] = value;
        update.value = json!({ &key: message });
        let _ = read_update(&update);
        update.value = json!({ &key: whole });
        let _ = read_update(&update);
    }
}
