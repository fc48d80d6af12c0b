//! Tests of the calls, against a scripted server.

use monoco_core::config::Secret;
use tokio::io::AsyncReadExt as _;

use super::*;
use crate::scripted::{ScriptedAct, ScriptedServer, answer};

const TOKEN: &str = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw";

pub(in crate::telegram) fn client(server: &ScriptedServer) -> TelegramClient {
    let base = EgressTarget::parse(&format!("http://127.0.0.1:{}", server.port()), true).unwrap();
    let token = Some(SecretSource::Value(Secret::new(TOKEN)));
    TelegramClient::new(Egress::new().unwrap(), base, token)
}

fn json_answer(status: &str, body: &str) -> ScriptedAct {
    ScriptedAct::Answer(answer(status, "content-type: application/json\r\n", body))
}

#[tokio::test]
async fn poll_names_the_updates_that_it_wants() {
    let page = r#"{"ok":true,"result":[{"update_id":7,"message":{"text":"a\ud83d"}}]}"#;
    let server = ScriptedServer::new([json_answer("200 OK", page)]);
    let poll = PollRequest { offset: Some(7), limit: 100, timeout: Duration::from_secs(50) };
    let updates = client(&server).updates(&poll).await.unwrap().unwrap();
    assert_eq!(updates[0].value["message"]["text"], "a\u{fffd}");
    let request = server.request();
    assert!(request.starts_with(&format!("POST /bot{TOKEN}/getUpdates ")), "{request}");
    let body: Value = serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!((&body["offset"], &body["timeout"]), (&json!(7), &json!(50)));
    assert_eq!(body["allowed_updates"], json!(ALLOWED_UPDATES));
}

#[tokio::test]
async fn page_that_breaks_off_is_no_page() {
    for body in [r#"{"ok":true,"result":[{"update_id":7,"mess"#, r#"{"ok":true,"result":[{}]}"#] {
        let server = ScriptedServer::new([json_answer("200 OK", body)]);
        let poll = PollRequest { offset: None, limit: 100, timeout: Duration::ZERO };
        assert_eq!(client(&server).updates(&poll).await, Ok(None), "{body}");
    }
}

#[tokio::test]
async fn errors_never_show_the_token() {
    let bad = r#"{"ok":false,"error_code":401,"description":"Unauthorized"}"#;
    for act in [
        json_answer("401 Unauthorized", bad),
        ScriptedAct::HangUp,
        ScriptedAct::Answer("garbage".to_owned()),
        json_answer("302 Found", ""),
    ] {
        let server = ScriptedServer::new([act.clone(), act]);
        let error = client(&server).send("sendMessage", &json!({})).await.unwrap_err();
        let shown = format!("{error:?}");
        assert!(!shown.contains("AAHdq"), "{shown}");
    }
    let nowhere = EgressTarget::parse("http://127.0.0.1:1", true).unwrap();
    let token = Some(SecretSource::Value(Secret::new(TOKEN)));
    let client = TelegramClient::new(Egress::new().unwrap(), nowhere, token);
    let shown = format!("{:?} {client:?}", client.read("getMe", &json!({})).await.unwrap_err());
    assert!(!shown.contains("AAHdq"), "{shown}");
}

#[tokio::test]
async fn file_is_looked_up_and_fetched() {
    let found = r#"{"ok":true,"result":{"file_id":"f","file_path":"photos/file 1.jpg"}}"#;
    let server = ScriptedServer::new([
        json_answer("200 OK", found),
        ScriptedAct::Answer(answer("200 OK", "", "bytes")),
    ]);
    let mut file = client(&server).open_file("f").await.unwrap();
    let mut bytes = String::new();
    file.bytes.read_to_string(&mut bytes).await.unwrap();
    assert_eq!(bytes, "bytes");
    server.request();
    let request = server.request();
    assert!(
        request.starts_with(&format!("GET /file/bot{TOKEN}/photos/file%201.jpg ")),
        "{request}"
    );
}

#[test]
fn paths_cannot_leave_the_files_of_the_bot() {
    for path in ["photos/file_1.jpg", "documents/отчёт (1).pdf", "a"] {
        assert!(checked_path(path).is_ok(), "{path}");
    }
    for path in
        ["", "..", "a/../b", "a//b", "a/%2e%2e/b", "a?b", "a#b", "a\\b", "https://x/y", "a\nb"]
    {
        assert!(checked_path(path).is_err(), "{path}");
    }
    let local = checked_path("/var/lib/telegram-bot-api/x").unwrap_err();
    assert!(local.detail().contains("--local"), "{local:?}");
}

#[test]
fn tokens_are_recognised() {
    assert!(is_token(TOKEN) && is_token("1:a"));
    for text in ["", "1", ":a", "1:", "x:a", "1:a/b", "1:a b", "1:a:b"] {
        assert!(!is_token(text), "{text}");
    }
}
