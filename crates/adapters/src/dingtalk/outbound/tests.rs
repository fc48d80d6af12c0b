//! Tests of parts and of the bodies that send them.

use super::*;

fn outgoing(text: &str, format: Option<&str>, title: Option<&str>) -> OutgoingMessage {
    let mut content = json!({"content": text});
    for (key, value) in [("format", format), ("title", title)] {
        if let Some(value) = value {
            content[key] = value.into();
        }
    }
    let message = json!({"from": "did:web:me", "content": content});
    OutgoingMessage::parse(&message.to_string()).unwrap()
}

fn attachment(name: &str, mime_type: &str) -> AttachmentRef {
    let hash = format!("sha256:{}", "0".repeat(64)).parse();
    let hash = hash.unwrap_or_else(|_| "0".repeat(64).parse().unwrap());
    AttachmentRef { hash, name: name.to_owned(), mime_type: mime_type.to_owned() }
}

#[test]
fn text_has_the_body_of_each_way_of_sending() {
    let message = outgoing("hi\nthere", None, None);
    let parts = parts(&message, SenderKind::App);
    assert_eq!(parts, [MessagePart::Plain("hi\nthere".to_owned())]);
    let body = parts[0].webhook_body().unwrap();
    assert_eq!(body, json!({"msgtype": "text", "text": {"content": "hi\nthere"}}));
    let content = parts[0].api_content().unwrap();
    assert_eq!(
        content.for_user("dingrobot", "042297"),
        json!({"robotCode": "dingrobot", "userIds": ["042297"], "msgKey": "sampleText",
               "msgParam": "{\"content\":\"hi\\nthere\"}"})
    );
    let group = content.for_group("dingrobot", "cidOps==");
    assert_eq!(group["openConversationId"], "cidOps==");
    assert_eq!(group["msgKey"], "sampleText");
    assert_eq!(parts[0].without_format(), None);
}

#[test]
fn markdown_has_a_title_and_a_plain_form_that_says_so() {
    let message = outgoing("a\nb", Some("text/markdown"), Some("Build"));
    let parts = parts(&message, SenderKind::App);
    let body = parts[0].webhook_body().unwrap();
    assert_eq!(body["msgtype"], "markdown");
    assert_eq!(body["markdown"], json!({"title": "Build", "text": "**Build**\n\na  \nb"}));
    let sent = parts[0].api_content().unwrap().for_user("r", "u");
    assert_eq!(sent["msgKey"], "sampleMarkdown");
    let parameters: Value = serde_json::from_str(sent["msgParam"].as_str().unwrap()).unwrap();
    assert_eq!(parameters, body["markdown"]);
    let Some(MessagePart::Plain(plain)) = parts[0].without_format() else { panic!() };
    assert!(plain.starts_with("**Build**\n\na\nb\n\n[sent without formatting"), "{plain}");
}

#[test]
fn long_messages_are_split_and_no_part_is_too_long() {
    for (sender, limit) in [(SenderKind::App, 15_000), (SenderKind::CustomRobot, 20_000)] {
        for format in [None, Some("text/markdown")] {
            let text = "\"quoted\" line with é and `code`\n\n".repeat(3000);
            let message = outgoing(&text, format, None);
            let parts = parts(&message, sender);
            assert!(parts.len() > 4, "{}", parts.len());
            for part in &parts {
                let body = part.webhook_body().unwrap().to_string();
                assert!(body.len() <= limit, "{}", body.len());
            }
        }
    }
}

#[test]
fn attachments_are_parts_after_the_text() {
    let mut message = outgoing("see", None, None);
    message.attachments =
        vec![attachment("a.png", "image/png"), attachment("b.pdf", "application/pdf")];
    let parts = parts(&message, SenderKind::App);
    assert_eq!(parts.len(), 3);
    assert!(matches!(parts[1], MessagePart::File(file) if file.name == "a.png"));
    assert_eq!(parts[1].webhook_body(), None);
    message.text = " ".to_owned();
    assert_eq!(super::parts(&message, SenderKind::App).len(), 2, "no empty text");
}

#[test]
fn files_are_images_or_files() {
    let content = |file: &AttachmentRef| ApiContent::file(file, "@lA1").for_user("r", "u");
    let image = content(&attachment("a.png", "image/png"));
    assert_eq!(image["msgKey"], "sampleImageMsg");
    assert_eq!(image["msgParam"], r#"{"photoURL":"@lA1"}"#);
    let file = content(&attachment("b.tar.gz", "application/gzip"));
    assert_eq!(file["msgKey"], "sampleFile");
    let parameters: Value = serde_json::from_str(file["msgParam"].as_str().unwrap()).unwrap();
    assert_eq!(parameters, json!({"mediaId": "@lA1", "fileName": "b.tar.gz", "fileType": "gz"}));
    assert_eq!(file_name(&attachment("", "x/y")), "file.bin");
    assert_eq!(upload_limits(&attachment("a", "image/gif")), ("image", 10 << 20));
    assert_eq!(upload_limits(&attachment("a", "audio/amr")), ("file", 20 << 20));
}
