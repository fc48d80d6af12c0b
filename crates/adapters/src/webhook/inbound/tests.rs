//! Tests of converting bodies, valid and invalid, into messages.

use monoco_core::inbound::MAX_NAME_BYTES;
use proptest::prelude::*;
use serde_json::json;

use super::*;

const DEFAULT_BODY: &str = include_str!("../../../testdata/webhook/default.json");
const ALERT: &str = include_str!("../../../testdata/webhook/alert.json");

fn convert(
    map: &FieldMap,
    headers: &[(&'static str, &str)],
    body: &[u8],
) -> Result<(InboundMessage, Vec<InboundAttachment>), String> {
    let headers: HeaderMap =
        headers.iter().map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap())).collect();
    let request = WebhookRequest { headers: &headers, body, now: Timestamp::from_ms(0) };
    let (message, attachments) =
        read(&"ci".parse().unwrap(), map, &request).map_err(|refused| match refused {
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
        received_at: Timestamp::from_ms(0),
        session: ChatSession {
            id: "room-7".to_owned(),
            kind: ChatSessionKind::Group,
            name: Some("Ops".to_owned()),
            thread_key: Some("build-9".to_owned()),
        },
        from: Participant { id: "u1".to_owned(), name: Some("Ann".to_owned()) },
        to: Vec::new(),
        cc: Vec::new(),
        title: Some("Build 9".to_owned()),
        text: "@monoco::alpha the build is red".to_owned(),
        mentions: ["@monoco::alpha", "u2", "Cleo"].map(str::to_owned).to_vec(),
        reply_to: Some("evt-0".to_owned()),
        forwarded_from: Some("Dan".to_owned()),
        correlation_id: Some("case-42".to_owned()),
        artifacts: vec![Artifact {
            name: "../../etc/passwd".to_owned(),
            mime_type: "text/plain".to_owned(),
            size: None,
            hash: None,
            url: Some("https://files.example.com/9".to_owned()),
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
    assert_eq!(bare.from, Participant { id: "unknown".to_owned(), name: None });
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
    assert_eq!(id(&[standard, github], "{}"), "msg_1");
    assert_eq!(id(&[github], "{}"), "guid-1");
    // Without an id, equal bodies are one message.
    let hash = "sha256-44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
    assert_eq!(id(&[], "{}"), hash);
    assert_ne!(id(&[], "{ }"), hash);
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
fn body_without_text_becomes_json() {
    let body = json!({"event": "paid", "text": {"de": "bezahlt"}, "note": "```\n---\n# no"});
    let text = message_of(&body).text;
    let inside = text.strip_prefix("```json\n").unwrap().strip_suffix("\n```").unwrap();
    assert_eq!(serde_json::from_str::<Value>(inside).unwrap(), body);
    assert!(inside.lines().all(|line| !line.trim_start().starts_with("```")), "{text}");
    assert_eq!(message_of(&json!([1])).text, "```json\n[\n  1\n]\n```");

    // Longer JSON is also attached.
    let body = json!({"rows": vec!["é"; 30_000]}).to_string();
    let received = convert(&FieldMap::default(), &[], body.as_bytes()).unwrap();
    assert!(received.0.text.len() < MAX_JSON_TEXT_BYTES + 200, "{}", received.0.text.len());
    assert!(received.0.text.ends_with("(cut; all of it is in payload.json)\n```"));
    assert_eq!(received.1[0].name, "payload.json");
    assert_eq!(received.1[0].bytes, body.as_bytes());
}

#[test]
fn invalid_body_is_rejected_with_the_reason() {
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    let deep_text = format!(r#"{{"text": {deep}}}"#);
    let many = json!({"text": "", "attachments": vec![json!({"url": "u"}); 101]}).to_string();
    let mentions = json!({"text": "", "mentions": vec!["x"; 101]}).to_string();
    let long = |key: &str, length| json!({"text": "", key: "x".repeat(length)}).to_string();
    let file = |entry: &str| format!(r#"{{"text": "", "attachments": [{{"url": "u"}}, {entry}]}}"#);
    let long_name = json!({"name": "x".repeat(MAX_NAME_BYTES + 1), "url": "u"}).to_string();
    for (body, want) in [
        ("", "truncated JSON"),
        (r#"{"text": "hi""#, "truncated JSON"),
        ("text=hi", "the body: invalid JSON"),
        (r#"{"id": 1, "id": 2}"#, "duplicate key"),
        (r#"{"text": "\ud800"}"#, "the body: invalid JSON"),
        ("{\"text\": \"a\u{0}b\"}", "control character"),
        (r#"{"id": 9007199254740993}"#, "send it as a string"),
        (deep.as_str(), "recursion limit"),
        (deep_text.as_str(), "recursion limit"),
        (r#"{"id": {"a": 1}}"#, "/id: expected a text or a number"),
        (r#"{"id": true}"#, "/id: expected a text or a number"),
        (r#"{"id": ""}"#, "id: empty; a repeated"),
        (&long("id", 513), "id: longer than 512"),
        (r#"{"session": {"id": ["r"]}}"#, "/session/id: expected a text or a number"),
        (r#"{"session": {"id": ""}}"#, "session.id: empty"),
        (r#"{"session": {"id": "r", "type": "club"}}"#, "/session/type: expected direct, group"),
        (r#"{"session": {"id": "r", "type": 1}}"#, "/session/type: expected direct, group"),
        (r#"{"from": {"id": false}}"#, "/from/id: expected a text or a number"),
        (&long("from", 257), "from.id: 257 bytes; 256 is the most"),
        (&long("title", MAX_NAME_BYTES + 1), "title: 1025 bytes"),
        (&long("text", 2 << 20), "text: the message has"),
        (r#"{"timestamp": "yesterday"}"#, "/timestamp: expected RFC 3339"),
        (r#"{"timestamp": -1}"#, "/timestamp: expected RFC 3339"),
        (r#"{"timestamp": 1e300}"#, "/timestamp: expected RFC 3339"),
        (r#"{"timestamp": 9007199254740991}"#, "/timestamp: expected RFC 3339"),
        (r#"{"timestamp": []}"#, "/timestamp: expected RFC 3339"),
        (r#"{"mentions": "ann"}"#, "/mentions: expected a list"),
        (r#"{"mentions": ["a", {}]}"#, "/mentions/1: expected a text, or {id} or {name}"),
        (&mentions, "mentions: 101 entries"),
        (r#"{"attachments": {}}"#, "/attachments: expected a list"),
        (&many, "attachments: 101 entries"),
        (&file("{}"), "/attachments/1: expected {name, mime_type, base64 or url}"),
        (&file("7"), "/attachments/1: expected {name, mime_type, base64 or url}"),
        (&file(r#"{"base64": "a?=="}"#), "/attachments/1/base64: Invalid"),
        (&file(r#"{"base64": 7}"#), "/attachments/1/base64: expected a text"),
        (&file(r#"{"url": "u", "name": {}}"#), "/attachments/1/name: expected a text"),
        (&file(&long_name), "attachments: 1025 bytes; 1024 is the most"),
    ] {
        let why = convert(&FieldMap::default(), &[], body.as_bytes()).unwrap_err();
        let start: String = body.chars().take(80).collect();
        assert!(why.contains(want), "{start}: {why}");
    }
    assert!(convert(&FieldMap::default(), &[], b"\xff\xfe").unwrap_err().contains("invalid JSON"));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-json::MAX_SAFE_INTEGER..=json::MAX_SAFE_INTEGER).prop_map(Value::from),
        (-1e15..1e15f64).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[a-zA-Z0-9+/=]{0,20}|[0-9TZ:.+-]{0,25}".prop_map(Value::from),
    ];
    // Known keys and others.
    let key = "id|name|session|type|thread_key|from|title|text|timestamp|mentions|reply_to\
               |attachments|base64|url|mime_type|repository|issue|commits|[a-z~/]{0,3}";
    leaf.prop_recursive(4, 48, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..8)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_accepted_body_gives_a_valid_message(value in any_json(), pointer in "(/[a-z~01]{0,9}){0,3}") {
        let at = Some(pointer);
        let map = FieldMap { text: at.clone(), from_id: at.clone(), mentions: at, ..FieldMap::default() };
        for map in [FieldMap::default(), map] {
            if let Ok(received) = convert(&map, &[], value.to_string().as_bytes()) {
                prop_assert!(received.0.validate().is_ok());
            }
        }
    }

    #[test]
    fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = convert(&FieldMap::default(), &[], &bytes);
    }
}
