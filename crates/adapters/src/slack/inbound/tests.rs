//! Tests of the conversion of events, kind by kind, with the payloads in `testdata/slack`.

use monoco_core::inbound::TunnelNotice;
use serde_json::json;

use super::*;

fn own() -> OwnAccount {
    OwnAccount { user_id: "U0BOT".to_owned(), bot_id: Some("B0BOT".to_owned()), team: None }
}

fn name(id: &str) -> Option<String> {
    match id {
        "U1" => Some("Ann".to_owned()),
        "U2" => Some("Bob".to_owned()),
        "U0BOT" => Some("monoco".to_owned()),
        "C1" => Some("general".to_owned()),
        _ => None,
    }
}

fn read(payload: &Value) -> ReadEvents {
    let own = own();
    EventReader { own: &own, accepts_bots: false, find_name: &name }.read_callback(payload)
}

/// Wraps an event as the Events API does.
fn callback(event: Value) -> Value {
    json!({"type": "event_callback", "event_id": "Ev1", "team_id": "T1", "api_app_id": "A1",
           "token": "verification-token", "event": event})
}

fn one(event: Value) -> InboundEvent {
    let mut events = read(&callback(event)).events;
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

fn none(event: Value) {
    let events = read(&callback(event.clone())).events;
    assert_eq!(events, [], "{event}");
}

fn message(event: Value) -> InboundMessage {
    match one(event) {
        InboundEvent::Message { message, attachments } => {
            assert!(attachments.is_empty(), "{attachments:?}");
            message
        }
        other => panic!("{other:?}"),
    }
}

fn notice(event: Value) -> TunnelNotice {
    match one(event) {
        InboundEvent::Notice(notice) => notice,
        other => panic!("{other:?}"),
    }
}

fn said(extra: Value) -> Value {
    let mut event = json!({"type": "message", "channel": "C1", "channel_type": "channel",
        "user": "U1", "text": "hi *all*", "ts": "1700000000.000100"});
    for (key, value) in extra.as_object().unwrap() {
        event[key] = value.clone();
    }
    event
}

#[test]
fn message_of_a_channel_is_complete() {
    let found = message(said(json!({"text": "<@U0BOT> see <#C1> and <@U2>"})));
    assert_eq!(found.id, "C1:1700000000.000100");
    assert_eq!(found.text, "@monoco see #general and @Bob");
    assert_eq!(found.mentions, ["monoco", "Bob"]);
    assert_eq!(found.from, Participant::user("U1", Some("Ann".to_owned())));
    assert_eq!(found.at.unwrap().ms(), 1_700_000_000_000);
    let session = ChatSession {
        id: "C1".to_owned(),
        kind: ChatSessionKind::Group,
        name: Some("general".to_owned()),
        thread_key: None,
    };
    assert_eq!(found.session, session);
    assert_eq!((found.reply_to, found.title), (None, None));
}

#[test]
fn message_and_mention_of_one_message_have_one_id() {
    let plain = message(said(json!({})));
    let mention = message(json!({"type": "app_mention", "channel": "C1", "user": "U1",
        "text": "hi *all*", "ts": "1700000000.000100", "event_ts": "1700000000.000100"}));
    assert_eq!(plain, mention);
}

#[test]
fn direct_and_group_chats_and_threads_are_told_apart() {
    let direct = message(said(json!({"channel": "D1", "channel_type": "im"})));
    assert_eq!(direct.session.kind, ChatSessionKind::Direct);
    assert_eq!(direct.session.name.as_deref(), Some("Ann"));
    let group = message(said(json!({"channel": "G7", "channel_type": "mpim"})));
    assert_eq!((group.session.kind, group.session.name), (ChatSessionKind::Group, None));
    let reply = message(said(json!({"thread_ts": "1699999999.000001"})));
    assert_eq!(reply.session.thread_key.as_deref(), Some("1699999999.000001"));
    assert_eq!(reply.reply_to.as_deref(), Some("C1:1699999999.000001"));
    let parent = message(said(json!({"thread_ts": "1700000000.000100"})));
    assert_eq!((parent.session.thread_key, parent.reply_to), (None, None));
    let broadcast =
        message(said(json!({"subtype": "thread_broadcast", "thread_ts": "1699999999.000001"})));
    assert_eq!(broadcast.session.thread_key.as_deref(), Some("1699999999.000001"));
}

#[test]
fn names_that_are_not_known_are_reported_and_ids_are_shown() {
    let event = said(json!({"channel": "C9", "user": "U9", "text": "<@U8>"}));
    let found = read(&callback(event));
    assert_eq!(found.missing.into_iter().collect::<Vec<_>>(), ["C9", "U8", "U9"]);
    let InboundEvent::Message { message, .. } = &found.events[0] else { panic!() };
    assert_eq!((message.text.as_str(), &message.from.name), ("@U8", &None));
}

#[test]
fn blocks_are_preferred_to_the_text() {
    let blocks = json!([{"type": "rich_text", "elements": [{"type": "rich_text_section",
        "elements": [{"type": "text", "text": "from "}, {"type": "user", "user_id": "U2"}]}]}]);
    assert_eq!(message(said(json!({"blocks": blocks}))).text, "from @Bob");
    let InboundEvent::Message { message, attachments } =
        one(said(json!({"blocks": [{"type": "hologram"}]})))
    else {
        panic!()
    };
    assert_eq!(message.text, "hi **all**", "the text is shown instead");
    assert_eq!(attachments[0].name, "payload.json");
}

#[test]
fn files_are_announced_with_a_handle() {
    let found = message(said(json!({"subtype": "file_share", "text": "", "files": [
        {"id": "F1", "name": "a.pdf", "mimetype": "application/pdf", "size": 5,
         "url_private_download": "https://files.slack.com/a.pdf"},
        {"id": "F2", "mode": "tombstone"},
        {"id": "F3", "name": "doc", "is_external": true, "external_url": "https://docs.example.com/1"},
        {"id": "F4", "title": "connect", "file_access": "check_file_info"},
    ]})));
    let [pdf, deleted, external, connect] = found.artifacts.as_slice() else { panic!() };
    assert_eq!(
        (pdf.name.as_str(), pdf.size, pdf.mime_type.as_str()),
        ("a.pdf", Some(5), "application/pdf")
    );
    assert!(pdf.fetch.as_ref().unwrap().contains("files.slack.com"));
    assert!(deleted.fetch.is_none() && deleted.missing.as_ref().unwrap().contains("deleted"));
    assert_eq!(external.url.as_deref(), Some("https://docs.example.com/1"));
    assert_eq!(
        connect.fetch.as_deref(),
        Some(r#"{"id":"F4","mime_type":"application/octet-stream"}"#)
    );
}

#[test]
fn shared_messages_are_quoted_and_previews_are_not() {
    let shared = json!([{"is_share": true, "author_name": "Bob", "text": "*old* news",
        "from_url": "https://t.slack.com/archives/C2/p1"}]);
    let found = message(said(json!({"text": "", "attachments": shared})));
    assert_eq!(found.text, "> Bob:\n> **old** news");
    assert_eq!(found.forwarded_from.as_deref(), Some("Bob"));
    let preview = json!([{"from_url": "https://example.com", "title": "Example", "text": "x"}]);
    assert_eq!(message(said(json!({"attachments": preview}))).text, "hi **all**");
}

#[test]
fn bots_and_the_own_account_are_ignored() {
    none(said(json!({"user": "U0BOT"})));
    none(said(json!({"bot_id": "B0BOT", "user": "U0BOT"})));
    none(said(json!({"bot_id": "B7"})));
    none(said(json!({"subtype": "bot_message", "bot_id": "B7", "username": "ci"})));
    none(said(json!({"subtype": "message_replied"})));
    none(json!({"type": "reaction_added", "user": "U0BOT", "reaction": "eyes",
                "item": {"type": "message", "channel": "C1", "ts": "1.2"}}));
    none(json!({"type": "app_home_opened", "user": "U1"}));
}

#[test]
fn other_bots_are_received_when_they_are_wanted() {
    let own = own();
    let reader = EventReader { own: &own, accepts_bots: true, find_name: &name };
    let texts = |event: Value| {
        let events = reader.read_callback(&callback(event)).events;
        let shown = |event: &InboundEvent| match event {
            InboundEvent::Message { message, .. } => {
                let from = &message.from;
                format!("{} {} {}", from.id, from.name.as_deref().unwrap_or("-"), message.text)
            }
            other => panic!("{other:?}"),
        };
        events.iter().map(shown).collect::<Vec<_>>()
    };
    let alert = json!({"subtype": "bot_message", "bot_id": "B7", "username": "ci", "user": null});
    assert_eq!(texts(said(alert)), ["B7 ci hi **all**"]);
    assert_eq!(texts(said(json!({"bot_id": "B7", "user": "U2"}))), ["U2 Bob hi **all**"]);
    for own in [json!({"bot_id": "B0BOT", "user": null}), json!({"bot_id": "B7", "user": "U0BOT"})]
    {
        assert!(texts(said(own)).is_empty());
    }
    let unknown = OwnAccount::default();
    let reader = EventReader { own: &unknown, accepts_bots: true, find_name: &name };
    let events = reader.read_callback(&callback(said(json!({"bot_id": "B0BOT"})))).events;
    assert_eq!(events, [], "it can be this bot");
}

fn changed(new: Value, old: Value) -> Value {
    json!({"type": "message", "subtype": "message_changed", "hidden": true, "channel": "C1",
           "channel_type": "channel", "ts": "1700000100.000000", "event_ts": "1700000100.000000",
           "message": new, "previous_message": old})
}

#[test]
fn edit_has_the_id_of_the_message_and_one_of_its_own() {
    let old = said(json!({}));
    let new = said(json!({"text": "new", "edited": {"user": "U1", "ts": "1700000100.000000"}}));
    let InboundEvent::Edit(edit) = one(changed(new, old.clone())) else { panic!() };
    assert_eq!(edit.edit_id, "C1:1700000000.000100:1700000100.000000");
    assert_eq!(
        (edit.message.id.as_str(), edit.message.text.as_str()),
        ("C1:1700000000.000100", "new")
    );
    assert_eq!(edit.message.at.unwrap().ms(), 1_700_000_100_000);
    // Previews of links, counts of replies and edits of bots are none.
    none(changed(said(json!({"attachments": [{"from_url": "https://e.com"}]})), old.clone()));
    none(changed(said(json!({"reply_count": 3, "latest_reply": "1700000099.1"})), old.clone()));
    let edited = json!({"ts": "1700000050.0", "user": "U1"});
    none(changed(
        said(json!({"edited": edited, "attachments": [{}]})),
        said(json!({"edited": edited})),
    ));
    none(changed(said(json!({"bot_id": "B0BOT", "text": "x"})), said(json!({"bot_id": "B0BOT"}))));
}

#[test]
fn deleted_message_is_a_recall() {
    let event = json!({"type": "message", "subtype": "message_deleted", "channel": "C1",
        "channel_type": "channel", "ts": "1700000200.000000", "deleted_ts": "1700000000.000100",
        "previous_message": said(json!({"thread_ts": "1699999999.000001"}))});
    let InboundEvent::Recall(recall) = one(event.clone()) else { panic!() };
    assert_eq!(recall.message_id, "C1:1700000000.000100");
    assert_eq!(recall.recall_id, "C1:1700000000.000100:deleted");
    assert_eq!(recall.session.thread_key.as_deref(), Some("1699999999.000001"));
    let mut own = event;
    own["previous_message"]["bot_id"] = json!("B0BOT");
    none(own);
    let tombstone = json!({"subtype": "tombstone", "ts": "1700000000.000100", "user": "USLACKBOT"});
    let InboundEvent::Recall(same) = one(changed(tombstone, said(json!({})))) else { panic!() };
    assert_eq!(same.recall_id, recall.recall_id, "a deleted message with replies");
}

#[test]
fn members_names_topics_and_reactions_are_notices() {
    let joined = notice(json!({"type": "member_joined_channel", "user": "U2", "channel": "C1",
        "channel_type": "C", "event_ts": "1700000000.000200"}));
    assert_eq!(
        (joined.kind.as_str(), joined.detail.as_str()),
        ("member_joined", "Bob (U2) joined the chat")
    );
    assert_eq!(joined.session.unwrap().name.as_deref(), Some("general"));
    let same =
        notice(said(json!({"subtype": "channel_join", "user": "U2", "ts": "1700000000.000900"})));
    assert_eq!(same.id, joined.id, "Slack reports it in two ways");
    let left = notice(json!({"type": "member_left_channel", "user": "U2", "channel": "C1"}));
    assert_eq!(left.kind, "member_left");
    let renamed =
        callback(json!({"type": "channel_rename", "channel": {"id": "C1", "name": "ops"}}));
    let renamed = read(&renamed);
    assert_eq!(renamed.renamed, Some(("C1".to_owned(), "ops".to_owned())));
    assert!(matches!(&renamed.events[0], InboundEvent::Notice(n) if n.detail.ends_with("ops")));
    let topic = notice(said(json!({"subtype": "channel_topic", "topic": "releases"})));
    assert_eq!(topic.detail, "the topic is now: releases");
    let reaction = notice(json!({"type": "reaction_added", "user": "U1", "reaction": "eyes",
        "item": {"type": "message", "channel": "C1", "ts": "1700000000.000100"}, "event_ts": "5.6"}));
    assert_eq!(reaction.detail, "Ann (U1) reacted :eyes: to C1:1700000000.000100");
    assert_eq!(notice(json!({"type": "channel_archive", "channel": "C1"})).kind, "archived");
    assert_eq!(notice(json!({"type": "app_uninstalled"})).kind, "uninstalled");
}

#[test]
fn unknown_message_is_a_placeholder_with_its_payload() {
    let InboundEvent::Message { message, attachments } = one(said(json!({
        "subtype": "huddle_thread", "text": "A huddle started",
        "room": {"id": "R1", "token": "xoxb-secret"}})))
    else {
        panic!()
    };
    assert!(
        message.text.starts_with("[Slack message of the kind huddle_thread: "),
        "{}",
        message.text
    );
    assert!(message.text.ends_with("\n\nA huddle started"), "{}", message.text);
    let payload = String::from_utf8(attachments[0].bytes.clone()).unwrap();
    assert!(payload.contains("\"R1\"") && !payload.contains("xoxb"), "{payload}");
    assert!(!payload.contains("verification-token"), "{payload}");
}

#[test]
fn unknown_event_is_a_notice_without_secrets() {
    let found = notice(json!({"type": "moon_landing", "token": "secret", "crew": 3}));
    assert_eq!((found.kind.as_str(), found.id.as_str()), ("unknown_event", "unknown:Ev1"));
    assert!(found.detail.contains("moon_landing") && found.detail.contains("\"crew\":3"));
    assert!(!found.detail.contains("verification-token"));
    let limited = read(&json!({"type": "app_rate_limited", "minute_rate_limited": 1_700_000_040}));
    assert!(matches!(&limited.events[0], InboundEvent::Notice(n) if n.kind == "gap"));
    for odd in [
        json!(null),
        json!([]),
        json!({}),
        json!({"type": "event_callback"}),
        callback(json!({"type": "message"})),
        callback(said(json!({"ts": 5}))),
        callback(said(json!({"channel": "C".repeat(500)}))),
    ] {
        read(&odd);
    }
}

#[test]
fn commands_and_buttons_become_messages_without_their_links() {
    let own = own();
    let reader = EventReader { own: &own, accepts_bots: false, find_name: &name };
    let command = json!({"command": "/deploy", "text": "prod", "user_id": "U1", "user_name": "ann",
        "channel_id": "C1", "trigger_id": "1.2.abc", "response_url": "https://hooks.slack.com/commands/x"});
    let read = reader.read_interaction("slash_commands", &command);
    let InboundEvent::Message { message, attachments } = &read.events[0] else { panic!() };
    assert_eq!(
        (message.text.as_str(), message.from.name.as_deref()),
        ("/deploy prod", Some("ann"))
    );
    assert!(message.id.starts_with("slash_commands:") && !message.id.contains("abc"));
    let payload = String::from_utf8_lossy(&attachments[0].bytes);
    assert!(!payload.contains("hooks.slack.com") && !payload.contains("1.2.abc"), "{payload}");
    let button = json!({"type": "block_actions", "user": {"id": "U2", "name": "bob"},
        "channel": {"id": "C1"}, "trigger_id": "1.3", "actions": [{"value": "approve"}]});
    let read = reader.read_interaction("interactive", &button);
    let InboundEvent::Message { message, .. } = &read.events[0] else { panic!() };
    assert_eq!(message.text, "[block_actions: approve; the payload is attached]");
}

#[test]
fn message_of_the_history_is_the_same_and_an_edited_one_is_also_an_edit() {
    let own = own();
    let reader = EventReader { own: &own, accepts_bots: false, find_name: &name };
    let chat = EventChat { id: "C1", kind: ChatSessionKind::Group };
    let mut stored = said(json!({}));
    stored.as_object_mut().unwrap().remove("channel");
    let read = reader.read_history(chat, &stored);
    let live = one(said(json!({})));
    assert_eq!(read.events, [live]);
    stored["edited"] = json!({"user": "U1", "ts": "1700000050.000000"});
    let read = reader.read_history(chat, &stored);
    assert!(matches!(&read.events[..], [InboundEvent::Message { .. }, InboundEvent::Edit(edit)]
        if edit.edit_id == "C1:1700000000.000100:1700000050.000000"));
}

/// The recorded payloads, each with the message that it becomes.
#[test]
fn recorded_payloads_become_messages() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/slack/events");
    let mut count = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "json") {
            continue;
        }
        count += 1;
        let case: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let found = read(&case["payload"]);
        let shown: Vec<Value> = found.events.iter().map(summary).collect();
        assert_eq!(Value::Array(shown), case["events"], "{}", path.display());
    }
    assert!(count >= 6, "{count} payloads");
}

fn summary(event: &InboundEvent) -> Value {
    match event {
        InboundEvent::Message { message, attachments } => json!({
            "message": message.id, "text": message.text, "thread": message.session.thread_key,
            "mentions": message.mentions, "attachments": attachments.len(),
            "files": message.artifacts.iter().map(|file| &file.name).collect::<Vec<_>>(),
        }),
        InboundEvent::Edit(edit) => json!({"edit": edit.edit_id, "text": edit.message.text}),
        InboundEvent::Recall(recall) => json!({"recall": recall.message_id}),
        InboundEvent::Notice(notice) => json!({"notice": notice.kind, "detail": notice.detail}),
    }
}
