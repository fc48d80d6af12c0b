//! Requests of DingTalk to the webhook listener, files, and the check of the credentials.

use tokio::io::AsyncReadExt as _;

use super::*;

fn headers(secret: &str) -> HeaderMap {
    let at = NOW.ms().to_string();
    let mut headers = HeaderMap::new();
    headers.insert("sign", signature::sign(&Secret::new(secret), &at).parse().unwrap());
    headers.insert("timestamp", at.parse().unwrap());
    headers
}

fn parse(
    adapter: &DingTalkAdapter,
    secret: &str,
    body: &str,
) -> Result<WebhookContent, WebhookError> {
    let headers = headers(secret);
    let request = WebhookRequest { headers: &headers, query: "", body: body.as_bytes(), now: NOW };
    adapter.parse_webhook(&request)
}

#[test]
fn signed_request_is_a_message_with_an_empty_answer() {
    let adapter = adapter("http://127.0.0.1:1", "mode: webhook");
    assert_eq!((adapter.mode(), adapter.opens_connection()), ("push", false));
    let content = parse(&adapter, "s3cret", &testdata("text_direct")).unwrap();
    let answer = content.answer.unwrap();
    assert_eq!((answer.status, answer.body.as_slice()), (StatusCode::OK, b"{}".as_slice()));
    let [InboundEvent::Message { message, .. }] = content.events.as_slice() else { panic!() };
    assert_eq!(message.id, "msgAAA==");
    assert!(adapter.webhooks.get(EndpointKind::User, "042297", NOW).is_some());
}

#[test]
fn copy_of_a_request_with_another_id_has_the_same_hash() {
    let adapter = adapter("http://127.0.0.1:1", "mode: webhook");
    let hash = |body: &str| match parse(&adapter, "s3cret", body).unwrap().events.as_slice() {
        [InboundEvent::Message { message, .. }] => message.body_hash.unwrap().hash,
        other => panic!("{other:?}"),
    };
    let original = testdata("text_direct");
    assert_eq!(hash(&original), hash(&original.replace("msgAAA==", "msgBBB==")));
    assert_ne!(hash(&original), hash(&original.replace("red", "green")));
}

#[test]
fn request_that_is_not_verified_is_rejected() {
    let app = adapter("http://127.0.0.1:1", "mode: webhook");
    let body = testdata("text_direct");
    assert!(matches!(parse(&app, "of another app", &body), Err(WebhookError::Unverified(_))));
    assert!(app.check_webhook_headers(&HeaderMap::new()).is_err());
    assert!(app.check_webhook_headers(&headers("x")).is_ok());
    assert!(matches!(parse(&app, "s3cret", "[]"), Err(WebhookError::Unreadable(_))));
    let stream = adapter("http://127.0.0.1:1", "");
    assert_eq!(parse(&stream, "s3cret", &body), Err(WebhookError::NotSupported));
    assert_eq!(stream.check_webhook_headers(&headers("s3cret")), Err(WebhookError::NotSupported));
}

#[test]
fn own_message_is_answered_and_not_stored() {
    let adapter = adapter("http://127.0.0.1:1", "mode: webhook");
    let content = parse(&adapter, "s3cret", &testdata("own_message")).unwrap();
    assert!(content.events.is_empty() && content.answer.is_some());
}

#[tokio::test]
async fn file_is_fetched_by_its_code_without_the_token() {
    let files = ScriptedServer::new([ScriptedAct::Answer(answer(
        "200 OK",
        "content-type: image/png\r\n",
        "picture bytes",
    ))]);
    let address = format!(r#"{{"downloadUrl":"http://127.0.0.1:{}/f?sig=x"}}"#, files.port());
    let (server, url) = server(&[TOKEN, (200, &address)]);
    let adapter = adapter(&url, "");
    let handle = json!({"code": "code-1", "robot": "dingrobot", "stem": "picture-1"}).to_string();
    let mut file = adapter.open_file(&handle).await.unwrap();
    assert_eq!(file.name.as_deref(), Some("picture-1.png"));
    assert_eq!((file.mime_type.as_deref(), file.size), (Some("image/png"), Some(13)));
    let mut bytes = Vec::new();
    file.bytes.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(bytes, b"picture bytes");
    assert_eq!(path(&server), "/v1.0/oauth2/accessToken");
    let request = server.request();
    assert_eq!(path_of(&request), "/v1.0/robot/messageFiles/download");
    assert_eq!(body_of(&request), json!({"robotCode": "dingrobot", "downloadCode": "code-1"}));
    let request = files.request();
    assert_eq!(path_of(&request), "/f?sig=x");
    assert!(!request.contains("at-1"), "{request}");
}

#[tokio::test]
async fn file_of_a_foreign_host_is_not_fetched() {
    let foreign = r#"{"downloadUrl":"https://evil.example.org/f?sig=canary"}"#;
    let (_server, url) = server(&[TOKEN, (200, foreign)]);
    let handle = json!({"code": "code-1", "robot": "dingrobot"}).to_string();
    let failure = adapter(&url, "").open_file(&handle).await.unwrap_err();
    assert!(matches!(failure, Failure::Permanent { .. }), "{failure:?}");
    assert!(!failure.detail().contains("canary"), "{failure:?}");
    let (_server, url) = self::server(&[TOKEN, (200, "{}")]);
    let failure = adapter(&url, "").open_file(&handle).await.unwrap_err();
    assert!(matches!(failure, Failure::Temporary { .. }), "{failure:?}");
    let failure = adapter(&url, "").open_file("not json").await.unwrap_err();
    assert!(matches!(failure, Failure::Permanent { .. }), "{failure:?}");
}

#[tokio::test]
async fn probe_checks_token_and_stream() {
    let open = (200, r#"{"endpoint":"ws://127.0.0.1:9/connect","ticket":"canary"}"#);
    let (server, url) = server(&[TOKEN, open]);
    let report = adapter(&url, "").probe().await.unwrap();
    let lines: Vec<_> = report.lines.iter().map(|(what, _)| what.as_str()).collect();
    assert_eq!(lines, ["access token", "stream"]);
    assert!(report.lines[1].1.contains("only one of them"), "{report:?}");
    assert!(!format!("{report:?}").contains("canary"));
    assert_eq!(path(&server), "/v1.0/oauth2/accessToken");
    let request = server.request();
    assert_eq!(path_of(&request), "/v1.0/gateway/connections/open");
    assert!(request.contains("accept: application/json\r\n"), "{request}");

    let (_server, url) = self::server(&[(400, r#"{"code":"invalidClientSecret"}"#)]);
    let failure = adapter(&url, "").probe().await.unwrap_err();
    assert!(failure.detail().contains("check app_key and app_secret"), "{failure:?}");
}
