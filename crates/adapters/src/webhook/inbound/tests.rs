//! Tests of converting bodies, valid and invalid, into messages.

use monoco_core::inbound::MAX_NAME_BYTES;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::webhook::tests::any_json;

const DEFAULT_BODY: &str = include_str!("../../../testdata/webhook/default.json");
const ALERT: &str = include_str!("../../../testdata/webhook/alert.json");

fn reader(map: &FieldMap, signed: SignedParts) -> MessageReader {
    let (tunnel, map, dedupe) = ("ci".parse().unwrap(), map.clone(), Duration::from_secs(60));
    MessageReader { tunnel, map, signed, dedupe, template: None }
}

fn convert(
    map: &FieldMap,
    headers: &[(&'static str, &str)],
    body: &[u8],
) -> Result<(InboundMessage, Vec<InboundAttachment>), String> {
    let headers: HeaderMap =
        headers.iter().map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap())).collect();
    let request = WebhookRequest { headers: &headers, query: "", body, now: Timestamp::from_ms(5) };
    let reader = reader(map, SignedParts::IdAndBody);
    let (message, attachments) = reader.read(&request).map_err(|rejected| match rejected {
        WebhookError::Unreadable(why) => why,
        other => panic!("{other:?}"),
    })?;
    // The sink checks the limits.
    let message = message.validate().map_err(|error| error.to_string())?;
    Ok((message.into_message(), attachments))
}

fn message_of(body: &Value) -> InboundMessage {
    convert(&FieldMap::default(), &[], body.to_string().as_bytes()).unwrap().0
}

#[test]
fn default_body_is_read() {
    let received = convert(&FieldMap::default(), &[], DEFAULT_BODY.as_bytes()).unwrap();
    let want = InboundMessage {
        id: "evt-1".to_owned(),
        at: Some(Timestamp::from_rfc3339("2026-02-06T20:45:00Z").unwrap()),
        received_at: Timestamp::from_ms(5),
        session: ChatSession {
            id: "room-7".to_owned(),
            kind: ChatSessionKind::Group,
            name: Some("Ops".to_owned()),
            thread_key: Some("build-9".to_owned()),
        },
        from: Participant::user("u1", Some("Ann".to_owned())),
        answer_to: None,
        sender_verified: None,
        to: Vec::new(),
        cc: Vec::new(),
        title: Some("Build 9".to_owned()),
        text: "@monoco::alpha the build is red".to_owned(),
        mentions: ["@monoco::alpha", "u2", "Cleo"].map(str::to_owned).to_vec(),
        reply_to: Some("evt-0".to_owned()),
        corrects: None,
        forwarded_from: Some("Dan".to_owned()),
        correlation_id: Some("case-42".to_owned()),
        artifacts: vec![Artifact {
            name: "../../etc/passwd".to_owned(),
            mime_type: "text/plain".to_owned(),
            url: Some("https://files.example.com/9".to_owned()),
            ..Artifact::default()
        }],
        body_hash: None,
    };
    assert_eq!(received.0, want);
    let log = InboundAttachment {
        name: "log.txt".to_owned(),
        mime_type: "text/plain".to_owned(),
        bytes: b"red\n".to_vec(),
    };
    assert_eq!(received.1, [log]);
}

#[test]
fn configured_pointers_are_used() {
    let at = |pointer: &str| Some(pointer.to_owned());
    let map = FieldMap {
        id: at("/event_id"),
        session_id: at("/channel/key"),
        session_type: at("/channel/sort"),
        session_name: at("/channel/label"),
        thread_key: at("/alert/case"),
        from_id: at("/actor/login"),
        from_name: at("/actor/display"),
        title: at("/alert/headline"),
        text: at("/alert/message"),
        timestamp: at("/created"),
        mentions: at("/a~1b/~0"),
        reply_to: at("/alert/parent"),
        correlation_id: at("/alert/case"),
        ..FieldMap::default()
    };
    let message = convert(&map, &[("webhook-id", "other")], ALERT.as_bytes()).unwrap().0;
    assert_eq!(message.id, "90125");
    assert_eq!(message.session.key(), "C-9:INC-7");
    assert_eq!(message.session.kind, ChatSessionKind::Thread);
    assert_eq!(message.session.name.as_deref(), Some("Alerts"));
    assert_eq!((message.from.id.as_str(), message.from.display_name()), ("grafana", "Grafana"));
    assert_eq!(message.title.as_deref(), Some("Disk almost full"));
    assert_eq!(message.text, "db-1 has 3% left");
    assert_eq!(message.at.unwrap().rfc3339(), "2026-02-06T20:45:00.000Z");
    assert_eq!(message.mentions, ["oncall"]);
    assert_eq!(message.reply_to.as_deref(), Some("90124"));
    assert_eq!(message.correlation_id.as_deref(), Some("INC-7"));

    // A pointer at nothing leaves the default.
    let nowhere = FieldMap { text: at("/nowhere"), id: at("/nowhere"), ..FieldMap::default() };
    let message = convert(&nowhere, &[], br#"{"id": "1", "text": "hi"}"#).unwrap().0;
    assert_eq!((message.id.as_str(), message.text.as_str()), ("1", "hi"));
}

#[test]
fn text_alone_is_enough() {
    let bare = message_of(&json!({"text": ""}));
    assert_eq!((bare.text.as_str(), bare.at), ("", None));
    assert_eq!((bare.session.id.as_str(), bare.session.kind), ("ci", ChatSessionKind::Direct));
    assert_eq!(bare.from, Participant::user("unknown", None));
    let nulls = json!({"id": null, "session": null, "from": null, "title": "", "text": "hi",
        "timestamp": null, "mentions": null, "reply_to": null, "attachments": null});
    assert_eq!(message_of(&nulls).title, None);

    let kind = |session: Value| message_of(&json!({"text": "", "session": session})).session.kind;
    assert_eq!(kind(json!({"id": "r"})), ChatSessionKind::Group);
    assert_eq!(kind(json!("r")), ChatSessionKind::Group);
    assert_eq!(kind(json!({"name": "r"})), ChatSessionKind::Direct);
    assert_eq!(kind(json!({"id": "r", "type": "direct"})), ChatSessionKind::Direct);
    assert_eq!(kind(json!({"id": "r", "type": "thread"})), ChatSessionKind::Thread);
    assert_eq!(kind(json!({"id": "r", "type": "user"})), ChatSessionKind::Direct);
    assert_eq!(kind(json!({"id": "r", "type": "channel"})), ChatSessionKind::Group);
    assert_eq!(
        message_of(&json!({"text": "", "from": "ann@example.com"})).from.id,
        "ann@example.com"
    );
    assert_eq!(
        message_of(&json!({"text": "", "from": {"name": "Ann"}})).from.display_name(),
        "Ann"
    );
}

#[test]
fn id_is_taken_from_body_header_or_hash() {
    let id = |headers: &[(&'static str, &str)], body: &str| {
        convert(&FieldMap::default(), headers, body.as_bytes()).unwrap().0.id
    };
    let (standard, github) = (("webhook-id", "msg_1"), ("x-github-delivery", "guid-1"));
    assert_eq!(id(&[standard, github], r#"{"id": "evt-1"}"#), "evt-1");
    assert_eq!(id(&[standard, github], r#"{"id": 7}"#), "7");
    assert_eq!(id(&[standard, github], r#"{"id": 820982911946154508}"#), "820982911946154508");
    assert_eq!(id(&[standard, github], r#"{"id": {"a": 1}}"#), "msg_1");
    assert_eq!(id(&[standard, github], r#"{"id": ""}"#), "msg_1");
    assert_eq!(id(&[standard, github], "{}"), "msg_1");
    assert_eq!(id(&[github], "{}"), "guid-1");
    let hash = "sha256-44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a-5";
    assert_eq!(id(&[], "{}"), hash);
    assert_ne!(id(&[], "{ }"), hash);
}

/// A copy of a request can have any value in a header that is not signed.
#[test]
fn body_identifies_a_message_whose_id_is_not_signed() {
    let day = Some(Duration::from_secs(86_400));
    let dedupe = Some(Some(Duration::from_secs(60)));
    let body = |valid_for| SignedParts::Body { valid_for };
    for (signed, header, json, want) in [
        (SignedParts::IdAndBody, true, "{}", None),
        (SignedParts::IdAndBody, false, "{}", dedupe),
        (SignedParts::Nothing, true, "{}", None),
        (body(None), true, "{}", Some(None)),
        (body(day), true, "{}", Some(day)),
        (body(None), false, "{}", dedupe),
        (body(None), true, r#"{"id": 1}"#, None),
    ] {
        let mut headers = HeaderMap::new();
        if header {
            headers.insert("x-github-delivery", "guid-1".parse().unwrap());
        }
        let (json, now) = (json.as_bytes(), Timestamp::from_ms(5));
        let request = WebhookRequest { headers: &headers, query: "", body: json, now };
        let message = reader(&FieldMap::default(), signed).read(&request).unwrap().0;
        let window = message.body_hash.map(|body| body.window);
        assert_eq!(window, want, "{signed:?} {header}");
    }
}

#[test]
fn times_are_read_in_all_supported_formats() {
    let at = |time: Value| message_of(&json!({"text": "", "timestamp": time})).at.unwrap().ms();
    assert_eq!(at(json!("2026-02-06T20:45:00Z")), 1_770_410_700_000);
    assert_eq!(at(json!("2026-02-06T21:45:00.250+01:00")), 1_770_410_700_250);
    assert_eq!(at(json!(1_770_410_700)), 1_770_410_700_000);
    assert_eq!(at(json!(1_770_410_700_250_i64)), 1_770_410_700_250);
    assert_eq!(at(json!(1_770_410_700.25)), 1_770_410_700_250);
    assert_eq!(at(json!("1770410700")), 1_770_410_700_000);
    assert_eq!(at(json!(0)), 0);
}

#[test]
fn body_without_text_becomes_an_outline() {
    let body = json!({"event": "paid", "text": {"de": "bezahlt"}, "note": "```\n---\n# <b>no", "no": null,
        "order": {"id": 820_982_911_946_154_508_i64, "items": [{"sku": "a"}, {"sku": "b"}, 3]}});
    let (message, attachments) =
        convert(&FieldMap::default(), &[], body.to_string().as_bytes()).unwrap();
    let want = "- **event**: paid\n- **note**: \\`\\`\\` --- # \\<b\\>no\n- **order**:\n  \
                - **id**: 820982911946154508\n  - **items**:\n    - ·\n      - **sku**: a\n    \
                - ·\n      - **sku**: b\n    - 3\n- **text**:\n  - **de**: bezahlt";
    assert_eq!(message.text, want);
    assert_eq!(attachments.len(), 1);
    let payload = &attachments[0];
    assert_eq!(
        (payload.name.as_str(), payload.mime_type.as_str()),
        ("payload.json", "application/json")
    );
    assert_eq!(payload.bytes, body.to_string().as_bytes());
    assert_eq!(message_of(&json!([1])).text, "- 1");
    assert_eq!(message_of(&json!("hi")).text, "hi");
    assert_eq!(message_of(&json!({})).text, "{}");

    // A long body is cut.
    let body = json!({"rows": vec![vec!["é".repeat(400); 29]; 29]}).to_string();
    let text = convert(&FieldMap::default(), &[], body.as_bytes()).unwrap().0.text;
    assert!(text.len() < (17 << 10), "{}", text.len());
    assert!(text.ends_with("(cut; all of it is in the attachment)"), "{text}");
}

#[test]
fn body_is_attached_unless_the_message_has_all_of_it() {
    let attached = |body: Value| {
        let (_, attachments) =
            convert(&FieldMap::default(), &[], body.to_string().as_bytes()).unwrap();
        attachments.iter().any(|attachment| attachment.name == "payload.json")
    };
    let default: Value = serde_json::from_str(DEFAULT_BODY).unwrap();
    let with = |pointer: &str, value: Value| {
        let mut body = default.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        body.pointer_mut(parent).unwrap()[key] = value;
        body
    };
    assert!(!attached(default.clone()));
    assert!(!attached(json!({"text": "hi", "from": "ann", "session": "r", "id": 1})));
    assert!(!attached(with("/extra", json!(null))));
    for (pointer, value) in [
        ("/extra", json!(0)),
        ("/from/email", json!("ann@example.com")),
        ("/session/type", json!("club")),
        ("/timestamp", json!("yesterday")),
        ("/timestamp", json!(-1)),
        ("/mentions", json!("ann")),
        ("/mentions", json!([{"id": "u1", "name": "Ann"}])),
        ("/attachments", json!({"url": "u"})),
        ("/attachments", json!([{"base64": "a?=="}])),
        ("/attachments", json!([7])),
        ("/title", json!("x".repeat(MAX_NAME_BYTES + 1))),
        ("/text", json!("x".repeat(MAX_TEXT_BYTES + 1))),
        ("/id", json!("x".repeat(513))),
    ] {
        assert!(attached(with(pointer, value.clone())), "{pointer}: {value}");
    }
}

#[test]
fn values_beyond_the_limits_are_cut() {
    let long = |key: &str, length| message_of(&json!({"text": "", key: "x".repeat(length)}));
    assert_eq!(long("id", 512).id, "x".repeat(512));
    let id = long("id", 513).id;
    assert_eq!(id.len(), 512);
    assert_ne!(id, long("id", 514).id, "different ids stay different");
    assert_eq!(long("from", 257).from.id.len(), MAX_ACCOUNT_BYTES);
    assert_eq!(long("session", 999).session.id.len(), MAX_ACCOUNT_BYTES);
    assert_eq!(long("title", 2000).title.unwrap().len(), MAX_NAME_BYTES);
    let text = long("text", 2 << 20).text;
    assert_eq!(text.len(), MAX_TEXT_BYTES + render::CUT_NOTE.len());
    let many = json!({"text": "\0".repeat(1 << 20), "mentions": vec!["\0".repeat(2000); 200],
        "title": "\0".repeat(2000), "from": "\0".repeat(2000), "id": "\0".repeat(2000),
        "attachments": vec![json!({"url": "u".repeat(2048), "name": "\u{1}".repeat(999)}); 200]});
    let (message, attachments) =
        convert(&FieldMap::default(), &[], many.to_string().as_bytes()).unwrap();
    assert_eq!((message.mentions.len(), message.artifacts.len()), (100, 99));
    assert_eq!(attachments.len(), 1);
    assert_eq!(message_of(&json!({"text": "", "timestamp": 1e300})).at, None);
    assert_eq!(message_of(&json!({"text": true})).text, "- **text**: true");
}

proptest! {
    #[test]
    fn any_json_gives_a_valid_message(value in any_json(), pointer in "(/[a-z~01]{0,9}){0,3}") {
        let at = Some(pointer);
        let map = FieldMap { text: at.clone(), from_id: at.clone(), mentions: at, ..FieldMap::default() };
        for map in [FieldMap::default(), map] {
            prop_assert!(convert(&map, &[], value.to_string().as_bytes()).is_ok());
        }
    }

    #[test]
    fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = convert(&FieldMap::default(), &[], &bytes);
    }
}
