//! Tests of the parts of a message and their contents.

use super::*;

fn outgoing(content: Value) -> OutgoingMessage {
    let message = json!({"from": "did:web:me", "content": content});
    OutgoingMessage::parse(&message.to_string()).unwrap()
}

fn markdown_message(text: &str) -> OutgoingMessage {
    outgoing(json!({"content": text, "format": "text/markdown"}))
}

#[test]
fn formatted_text_is_a_post_and_plain_text_is_not() {
    let message =
        outgoing(json!({"content": "**red**", "format": "text/markdown", "title": "Build"}));
    let [part] = parts(&message, LarkSenderKind::App).try_into().unwrap();
    let content = part.content().unwrap();
    assert_eq!(content.kind, "post");
    let found: Value = serde_json::from_str(&content.content).unwrap();
    let want = json!({"title": "Build", "content": [[{"tag": "md", "text": "**red**"}]]});
    assert_eq!(found, json!({ "zh_cn": want }));
    let plain = part.without_format().unwrap().content().unwrap();
    assert_eq!(plain.kind, "text");
    assert!(plain.content.contains("Build\\n\\n**red**"), "{}", plain.content);
    assert!(plain.content.contains("sent without formatting"), "{}", plain.content);
    let message = outgoing(json!({"content": "**red**", "title": "Build"}));
    let [part] = parts(&message, LarkSenderKind::App).try_into().unwrap();
    let content = part.content().unwrap();
    assert_eq!(
        (content.kind, content.content.as_str()),
        ("text", r#"{"text":"Build\n\n**red**"}"#)
    );
    assert_eq!(part.without_format(), None);
}

#[test]
fn long_texts_fit_into_requests() {
    let line = "a \"quoted\" word and `code` and 中文 \\ \n\n";
    let text = line.repeat(4000);
    for (message, sender, max) in [
        (markdown_message(&text), LarkSenderKind::App, 30_000),
        (markdown_message(&text), LarkSenderKind::CustomRobot, 20_000),
        (outgoing(json!({ "content": text })), LarkSenderKind::App, 150_000),
        (outgoing(json!({ "content": text })), LarkSenderKind::CustomRobot, 20_000),
    ] {
        let parts = parts(&message, sender);
        assert!(parts.len() > 1);
        let mut words = 0;
        for part in &parts {
            let content = part.content().unwrap();
            words += content.content.matches("quoted").count();
            let body = match sender {
                LarkSenderKind::App => json!({"msg_type": content.kind, "content": content.content,
                    "receive_id": "oc_5ce6d572455d361153b7cb51da133945", "uuid": "x".repeat(32)}),
                LarkSenderKind::CustomRobot => part.robot_body().unwrap(),
            };
            let size = body.to_string().len();
            assert!(size <= max, "{size} of {max}");
        }
        assert_eq!(words, 4000);
    }
}

#[test]
fn size_of_a_text_is_that_of_its_json_in_json() {
    for text in ["", "abc", "\"\\\n\t\r", "\u{1}\u{8}\u{c}\u{1f}", "中文 é 😀"] {
        let inner = serde_json::to_string(text).unwrap();
        let outer = serde_json::to_string(&inner).unwrap();
        assert_eq!(request_bytes(text), outer.len() - 6, "{text:?}");
    }
}

#[test]
fn card_is_passed_through_and_replaces_the_text() {
    let card =
        json!({"schema": "2.0", "body": {"elements": [{"tag": "markdown", "content": "x"}]}});
    let message = outgoing(json!({"content": "for others", "card": card}));
    let [part] = parts(&message, LarkSenderKind::App).try_into().unwrap();
    let content = part.content().unwrap();
    assert_eq!(content.kind, "interactive");
    assert_eq!(serde_json::from_str::<Value>(&content.content).unwrap(), card);
    let robot = part.robot_body().unwrap();
    assert_eq!(robot, json!({"msg_type": "interactive", "card": card}));
    assert_eq!(part.without_format(), None);
}

#[test]
fn robots_get_objects_and_no_files() {
    let message = outgoing(json!({"content": "hi"}));
    let [part] = parts(&message, LarkSenderKind::CustomRobot).try_into().unwrap();
    let want = json!({"msg_type": "text", "content": {"text": "hi"}});
    assert_eq!(part.robot_body(), Some(want));
    let message = markdown_message("# Build\n\n**red**");
    let [part] = parts(&message, LarkSenderKind::CustomRobot).try_into().unwrap();
    let text = "**Build**\n\n**red**";
    let card = json!({"elements": [{"tag": "markdown", "content": text}]});
    assert_eq!(part.robot_body(), Some(json!({"msg_type": "interactive", "card": card})));
    assert!(parts(&outgoing(json!({"content": "  \n"})), LarkSenderKind::App).is_empty());
}
