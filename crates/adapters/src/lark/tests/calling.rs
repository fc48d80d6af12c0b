//! Calls that are no deliveries: tokens, addresses, names, files, reactions and the probe.

use monoco_core::inbound::InboundEvent;
use tokio::io::AsyncReadExt as _;

use super::*;
use crate::socket::{ConnectRetry, SocketProtocol as _};

#[tokio::test]
async fn address_of_the_connection_needs_no_token() {
    let answer = r#"{"code":0,"data":{"URL":"ws://127.0.0.1:9/ws/v2?device_id=1&service_id=77&ticket=t",
        "ClientConfig":{"PingInterval":45}}}"#;
    let (server, url) = server(&[(200, answer)]);
    let adapter = adapter(&url, "");
    let socket = LarkSocket::new(&adapter.tenant, &adapter.catch_up);
    let endpoint = socket.endpoint().await.unwrap();
    assert_eq!(endpoint.target.shown(), "http://127.0.0.1:9");
    assert!(endpoint.first_message.is_some());
    assert_eq!(socket.timing().ping_interval, Duration::from_secs(45));
    let request = server.request();
    assert_eq!(path_of(&request), "/callback/ws/endpoint");
    assert_eq!(body_of(&request), json!({"AppID": "cli_a1", "AppSecret": "s3cret"}));
    assert!(!request.contains("authorization"), "{request}");
}

#[tokio::test]
async fn rejected_addresses_are_retried_slowly_and_say_why() {
    for (answer, retry, words) in [
        ((200, r#"{"code":1,"msg":"busy"}"#), ConnectRetry::Backoff, "busy"),
        ((200, r#"{"code":1000040343}"#), ConnectRetry::Backoff, "1000040343"),
        ((200, r#"{"code":1000040345}"#), ConnectRetry::Slow, "set `mode: webhook`"),
        ((404, "<html>"), ConnectRetry::Slow, "offers no long connections; set `mode: webhook`"),
        ((500, ""), ConnectRetry::Backoff, "500"),
        ((429, ""), ConnectRetry::Backoff, "429"),
        (
            (200, r#"{"code":0,"data":{"URL":"wss://evil.example/ws?ticket=CANARY"}}"#),
            ConnectRetry::Slow,
            "not one of its hosts",
        ),
        ((200, r#"{"code":0,"data":{}}"#), ConnectRetry::Slow, "wss://"),
    ] {
        let (_server, url) = server(&[answer]);
        let adapter = adapter(&url, "");
        let socket = LarkSocket::new(&adapter.tenant, &adapter.catch_up);
        let error = socket.endpoint().await.unwrap_err();
        assert_eq!(error.retry, retry, "{answer:?}");
        let detail = error.failure.detail();
        assert!(detail.contains(words) && !detail.contains("CANARY"), "{detail}");
    }
}

#[tokio::test]
async fn names_are_added_and_a_missing_permission_leaves_ids() {
    let path = format!("{}/testdata/lark/text_group.json", env!("CARGO_MANIFEST_DIR"));
    let payload: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let names = [(200, r#"{"code":0,"data":{"user":{"name":"Ann"},"name":"Ops"}}"#); 2];
    let (server, url) = server(&[TOKEN, names[0], names[1]]);
    let adapter = adapter(&url, "");
    // One after the other, because the scripted server answers in a fixed order.
    adapter.tenant.client.token().await.unwrap();
    let events = adapter.tenant.read(payload.clone());
    let events = adapter.complete_events(events).await;
    let [InboundEvent::Message { message, .. }] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(message.from.name.as_deref(), Some("Ann"));
    assert_eq!(message.session.name.as_deref(), Some("Ops"));
    server.request();
    let mut paths = [path_of(&server.request()), path_of(&server.request())];
    paths.sort();
    assert!(paths[0].starts_with("/open-apis/contact/v3/users/ou_7d8a"), "{paths:?}");
    assert!(paths[0].ends_with("?user_id_type=open_id"), "{paths:?}");
    assert_eq!(paths[1], "/open-apis/im/v1/chats/oc_5ce6d572455d361153b7cb51da133945");

    let denied = (400, r#"{"code":99991672,"msg":"no scope"}"#);
    let (_server, url) = super::server(&[TOKEN, denied, denied]);
    let adapter = super::adapter(&url, "");
    let events = adapter.tenant.read(payload);
    let events = adapter.complete_events(events).await;
    let [InboundEvent::Message { message, .. }] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((&message.from.name, &message.session.name), (&None, &None));
}

#[tokio::test]
async fn file_is_fetched_with_the_token() {
    let file = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: image/png\r\n\
                content-length: 5\r\n\r\nbytes";
    let (server, url) = serve([act(TOKEN), ScriptedAct::Answer(file.to_owned())]);
    let adapter = adapter(&url, "");
    let handle = r#"{"message_id":"om_1","key":"img_v2_x","kind":"image","stem":"image"}"#;
    let mut found = adapter.open_file(handle).await.unwrap();
    assert_eq!((found.name.as_deref(), found.size), (Some("image.png"), Some(5)));
    let mut bytes = Vec::new();
    found.bytes.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(bytes, b"bytes");
    server.request();
    let request = server.request();
    let want = "/open-apis/im/v1/messages/om_1/resources/img_v2_x?type=image";
    assert_eq!(path_of(&request), want);
    assert!(request.contains("authorization: Bearer t-1\r\n"), "{request}");
}

#[tokio::test]
async fn rejected_files_say_why_and_handles_are_checked() {
    let error = "HTTP/1.1 400 X\r\nconnection: close\r\ncontent-type: application/json\r\n\
                 content-length: 39\r\n\r\n{\"code\":234037,\"msg\":\"file too large!\"}";
    let (_server, url) = serve([act(TOKEN), ScriptedAct::Answer(error.to_owned())]);
    let handle = r#"{"message_id":"om_1","key":"file_1","kind":"file"}"#;
    let failure = adapter(&url, "").open_file(handle).await.unwrap_err();
    assert!(matches!(failure, Failure::Permanent { .. }), "{failure:?}");
    assert!(failure.detail().contains("100 MB"), "{failure:?}");
    // A file can be JSON itself.
    let json = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\n\
                content-length: 7\r\n\r\n{\"a\":1}";
    let (_server, url) = serve([act(TOKEN), ScriptedAct::Answer(json.to_owned())]);
    let mut found = adapter(&url, "").open_file(handle).await.unwrap();
    let mut bytes = Vec::new();
    found.bytes.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(bytes, b"{\"a\":1}");
    let adapter = adapter("http://127.0.0.1:9", "");
    for handle in [
        "",
        r#"{"message_id":"om_1/../x","key":"k","kind":"file"}"#,
        r#"{"message_id":"om_1","key":"../../auth","kind":"file"}"#,
    ] {
        let failure = adapter.open_file(handle).await.unwrap_err();
        assert!(matches!(failure, Failure::Permanent { .. }), "{handle}: {failure:?}");
    }
}

#[tokio::test]
async fn forwarded_conversation_is_fetched_as_text() {
    let items = r#"{"code":0,"data":{"items":[
        {"message_id":"om_1","msg_type":"merge_forward","body":{"content":"{}"}},
        {"message_id":"om_2","upper_message_id":"om_1","msg_type":"text","create_time":"1700000000000",
         "sender":{"id":"ou_ann","sender_name":"Ann"},"body":{"content":"{\"text\":\"inside\"}"}}]}}"#;
    let name = (200, r#"{"code":0,"data":{"user":{"name":"Ann"}}}"#);
    let (_server, url) = server(&[TOKEN, (200, items), name]);
    let handle = r#"{"message_id":"om_1","key":"","kind":"forwarded"}"#;
    let mut found = adapter(&url, "").open_file(handle).await.unwrap();
    let mut text = String::new();
    found.bytes.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "Ann, 2023-11-14T22:13:20.000Z:\n\ninside\n\n");
}

#[tokio::test]
async fn reaction_names_the_message_and_the_emoji() {
    let (server, url) = server(&[TOKEN, OK]);
    adapter(&url, "").react("om_1", Reaction::Okay).await.unwrap();
    server.request();
    let request = server.request();
    assert_eq!(path_of(&request), "/open-apis/im/v1/messages/om_1/reactions");
    assert_eq!(body_of(&request), json!({"reaction_type": {"emoji_type": "CheckMark"}}));
    for (status, code, want) in [
        (400, 230_011, None),
        (400, 231_003, None),
        (400, 99_991_672, Some(true)),
        (429, 99_991_400, Some(false)),
        (500, 0, Some(false)),
    ] {
        let body = format!(r#"{{"code":{code}}}"#);
        let (_server, url) = super::server(&[TOKEN, (status, &body)]);
        let result = adapter(&url, "").react("om_1", Reaction::Eyes).await;
        let found = result.err().map(|failure| matches!(failure, Failure::Permanent { .. }));
        assert_eq!(found, want, "{code}");
    }
    let (server, url) = super::server(&[]);
    for id in ["event:1", "om_1:1700", "om_1:recalled", ""] {
        adapter(&url, "").react(id, Reaction::Cross).await.unwrap();
    }
    assert!(!server.received_more());
}

#[tokio::test]
async fn probe_says_what_is_wrong() {
    let bot = (200, r#"{"code":0,"bot":{"app_name":"Hub","open_id":"ou_bot"}}"#);
    let place = (200, r#"{"code":0,"data":{"URL":"ws://127.0.0.1:9/?service_id=1"}}"#);
    let scope = (400, r#"{"code":99991672,"msg":"im:chat:readonly"}"#);
    let (_server, url) = server(&[TOKEN, bot, OK, place]);
    let report = adapter(&url, "").probe().await.unwrap();
    let lines: Vec<_> = report.lines.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(lines, ["app", "bot", "permissions", "long connection"]);
    assert_eq!(report.warnings, Vec::<String>::new());
    assert!(report.lines[3].1.contains("only one of"), "{report:?}");

    let (_server, url) = server(&[TOKEN, bot, scope]);
    let report = adapter(&url, "mode: webhook\nencrypt_key: k").probe().await.unwrap();
    assert!(report.warnings[0].contains("im:chat:readonly"), "{report:?}");

    for (answers, words) in [
        (
            vec![(400, r#"{"code":10014,"msg":"app secret invalid"}"#)],
            "check app_id and app_secret",
        ),
        (vec![TOKEN, bot, OK, (200, r#"{"code":1000040345}"#)], "set `mode: webhook`"),
        (vec![TOKEN, bot, OK, (404, "")], "set `mode: webhook`"),
    ] {
        let (_server, url) = server(&answers);
        let failure = adapter(&url, "").probe().await.unwrap_err();
        assert!(failure.detail().contains(words), "{failure:?}");
        assert!(!failure.detail().contains("s3cret"));
    }
    let (_server, url) = server(&[TOKEN, (200, r#"{"code":11205,"msg":"no bot"}"#), OK, place]);
    let report = adapter(&url, "").probe().await.unwrap();
    assert!(report.warnings[0].contains("the app has no bot"), "{report:?}");
}
