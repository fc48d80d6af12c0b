//! DingTalk through the built binary, against `monoco sim dingtalk`: messages arrive once, become
//! Mails and are answered.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::chat_harness::{ChatSim, chat_config, mail_file, only_mail, reply};
use crate::common::{Answer, Courier, raw, wait_for};

/// An emulator with two apps. The tunnel has the credentials of the first one.
pub fn emulator() -> ChatSim {
    ChatSim::start_with("dingtalk", &["--apps", "2"])
}

/// The keys of a tunnel with a stream, and further ones.
pub fn stream_keys(sim: &ChatSim, more: &[&str]) -> Vec<String> {
    let mut keys = vec!["provider: dingtalk".to_owned()];
    for key in ["app_key", "app_secret", "robot_token", "robot_secret"] {
        keys.push(format!("{key}: {}", sim.credential(key)));
    }
    for key in ["base_url", "oapi_url"] {
        keys.push(format!("{key}: '{}'", sim.text(key)));
    }
    keys.extend(more.iter().map(|key| (*key).to_owned()));
    keys
}

/// The config of a courier with the tunnel `ding`, with further keys of the tunnel.
pub fn config(sim: &ChatSim, more: &[&str]) -> String {
    chat_config("ding", 50, &stream_keys(sim, more))
}

/// An emulator and a courier whose stream is connected.
pub fn connected() -> (ChatSim, Courier) {
    let sim = emulator();
    let courier = Courier::start_configured(&config(&sim, &[]));
    sim.wait_for_connections(1);
    (sim, courier)
}

/// The texts of all Mail files of DingTalk.
pub fn mail_files(home: &Path) -> Vec<String> {
    let dir = home.join("mailbox/inbound/dingtalk");
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    let files = paths.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    files.filter_map(|path| std::fs::read_to_string(path).ok()).collect()
}

/// The Mails of the hub, when there are `count` of them.
pub fn mails(courier: &Courier, count: usize) -> Vec<Value> {
    let answer = courier.until("/api/v1/messages?limit=1000", |answer| {
        answer["messages"].as_array().is_some_and(|mails| mails.len() >= count)
    });
    let mails = answer["messages"].as_array().unwrap().clone();
    assert_eq!(mails.len(), count, "{mails:#?}");
    mails
}

fn now_ms() -> u128 {
    #[expect(clippy::disallowed_methods, reason = "a provider has a clock of its own")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).unwrap().as_millis()
}

/// The headers by which DingTalk signs a request.
fn signed(secret: &str, at: u128) -> Vec<(String, String)> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(format!("{at}\n{secret}").as_bytes());
    let sign = BASE64_STANDARD.encode(mac.finalize().into_bytes());
    [
        ("Host", "hooks.test".to_owned()),
        ("Content-Type", "application/json".to_owned()),
        ("timestamp", at.to_string()),
        ("sign", sign),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

fn push(courier: &Courier, headers: &[(String, String)], body: &Value) -> Answer {
    let body = body.to_string();
    raw(courier.webhooks(), "POST", "/webhooks/ding", headers, body.as_bytes()).unwrap()
}

fn payload(id: &str, text: &str) -> Value {
    json!({
        "conversationId": "cidX==", "conversationType": "1", "msgId": id, "msgtype": "text",
        "text": {"content": text}, "senderStaffId": "0001", "senderNick": "ann",
        "senderId": "$:LWCP_v1:$ann", "chatbotUserId": "$:LWCP_v1:$bot", "robotCode": "dingsim0",
        "createAt": 1_690_362_101_894_i64,
    })
}

#[test]
fn first_message_becomes_a_mail_and_is_answered_in_its_chat() {
    let (sim, courier) = connected();
    sim.say("@ann", "the build is red");
    let direct = mails(&courier, 1).remove(0);
    assert_eq!(direct["session"]["type"], "direct");
    let id = only_mail(&courier);
    let file = mail_file(&courier, "dingtalk", &id);
    assert!(file.contains("the build is red") && file.contains("ann"), "{file}");
    assert!(!file.contains("sendBySession"), "{file}");

    reply(&courier, &id, "on it");
    let sent = sim.wait_for_sent(1).remove(0);
    assert_eq!(sent["via"], "robot/sendBySession");
    assert!(sent["text"].as_str().unwrap().contains("on it"), "{sent}");

    // The URL that answers the chat is not valid any more.
    sim.control("expire_sessions", &json!({}));
    reply(&courier, &id, "done");
    let sent = sim.wait_for_sent(2).remove(1);
    assert_eq!(sent["via"], "robot/oToMessages/batchSend");
    assert_eq!(sent["request"]["userIds"], json!(["0001"]));

    sim.say("general", "who is on call?");
    let all = mails(&courier, 2);
    let group = all.iter().find(|mail| mail["session"]["type"] == "group").unwrap();
    assert_eq!(
        (&group["session"]["id"], &group["session"]["name"]),
        (&json!("cidGENERAL=="), &json!("general"))
    );
    reply(&courier, group["id"].as_str().unwrap(), "bob");
    assert_eq!(sim.wait_for_sent(3)[2]["via"], "robot/sendBySession");
    sim.control("expire_sessions", &json!({}));
    reply(&courier, group["id"].as_str().unwrap(), "and cem");
    let sent = sim.wait_for_sent(4).remove(3);
    assert_eq!(
        (&sent["via"], &sent["chat"]),
        (&json!("robot/groupMessages/send"), &json!("cidGENERAL=="))
    );
    assert_eq!(sim.sent().len(), 4);
}

#[test]
fn restarted_courier_answers_by_the_api_because_session_webhooks_are_not_stored() {
    let (sim, courier) = connected();
    sim.say("@ann", "hello");
    let mail = only_mail(&courier);
    let courier = courier.restart();
    sim.wait_for_connections(1);
    reply(&courier, &mail, "hi");
    assert_eq!(sim.wait_for_sent(1)[0]["via"], "robot/oToMessages/batchSend");
}

#[test]
fn messages_arrive_through_the_webhook_listener() {
    let sim = emulator();
    let courier = Courier::start_configured(&config(&sim, &["mode: webhook"]));
    let url = format!("http://{}/webhooks/ding", courier.webhooks());
    sim.control("push", &json!({"url": url}));
    sim.say("@ann", "by HTTP");
    let mail = only_mail(&courier);
    reply(&courier, &mail, "answered");
    assert_eq!(sim.wait_for_sent(1)[0]["via"], "robot/sendBySession");
    assert_eq!(sim.get("state")["connections"], json!([]), "no stream is opened");

    sim.control("chaos", &json!({"wrong_signature": 1}));
    sim.say("@ann", "forged");
    sim.say("@ann", "genuine");
    wait_for(|| match mail_files(courier.home()).concat() {
        text if text.contains("genuine") => Ok(()),
        text => Err(text),
    });
    assert!(!mail_files(courier.home()).concat().contains("forged"));
}

#[test]
fn request_that_is_not_signed_for_the_app_is_rejected_and_not_stored() {
    let sim = emulator();
    let courier = Courier::start_configured(&config(&sim, &["mode: webhook"]));
    let secret = sim.credential("app_secret");
    let other = sim.info["apps"][1]["app_secret"].as_str().unwrap();
    let now = now_ms();
    let body = payload("m-1", "kept");
    let unsigned = vec![("Host".to_owned(), "hooks.test".to_owned())];
    assert_eq!(push(&courier, &unsigned, &body).status, 401);
    let mut wrong = signed(secret, now);
    wrong[3].1 = BASE64_STANDARD.encode([7; 32]);
    assert_eq!(push(&courier, &wrong, &body).status, 401);
    assert_eq!(push(&courier, &signed(other, now), &body).status, 401, "of another app");
    assert_eq!(
        push(&courier, &signed(secret, now - 3_700_000), &body).status,
        401,
        "replayed later"
    );
    assert_eq!(push(&courier, &signed(secret, now + 3_700_000), &body).status, 401);
    assert!(
        courier.get("/api/v1/messages?limit=10").ok()["messages"].as_array().unwrap().is_empty()
    );

    let genuine = signed(secret, now);
    let answer = push(&courier, &genuine, &body);
    assert_eq!((answer.status, answer.text().as_str()), (200, "{}"));
    mails(&courier, 1);
    // The same request, and a copy of it with another id: both are known.
    assert_eq!(push(&courier, &genuine, &body).status, 200);
    assert_eq!(push(&courier, &genuine, &payload("m-2", "kept")).status, 200);
    assert_eq!(push(&courier, &signed(secret, now + 1), &payload("m-3", "next")).status, 200);
    mails(&courier, 2);
    let health = courier.get("/health").ok();
    assert_ne!(health["adapters"]["ding"]["status"], "deaf", "{health:#}");
    let metrics = courier.get("/metrics").text();
    let rejected = "monoco_webhooks_rejected_total{tunnel=\"ding\",reason=\"unverified\"} 3";
    assert!(metrics.contains(rejected), "{metrics}");
}

#[test]
fn every_kind_of_message_is_a_mail() {
    let (sim, courier) = connected();
    let quoted = sim.say("ops", "restart the server");
    mails(&courier, 1);
    let id = quoted["id"].as_str().unwrap();
    sim.control("say", &json!({"chat": "ops", "text": "is that done?", "quote": id}));
    mails(&courier, 2);
    let file = json!({"name": "log.txt", "mime_type": "text/plain", "text": "line 1"});
    sim.control("say", &json!({"chat": "ops", "text": "see", "files": [file]}));
    mails(&courier, 3);
    sim.control("say", &json!({"chat": "ops", "kind": "location"}));
    mails(&courier, 4);
    let text = wait_for(|| match mail_files(courier.home()) {
        files if files.len() == 4 => Ok(files.concat()),
        files => Err(format!("{files:?}")),
    });
    for part in ["> restart the server", "is that done?", "[file: log.txt]", "of kind location"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("sendBySession") && !text.contains("downloadCode"), "{text}");
}

#[test]
fn custom_robot_posts_signed_messages() {
    let (sim, courier) = connected();
    let message = json!({
        "from": "did:monoco:me", "to": ["did:msgtunnel:team.channel.ding"], "kind": "chat",
        "content": {"content": "**deployed**", "format": "text/markdown", "title": "Release"},
    });
    courier.post("/api/v1/post_send", &json!({"msg": message})).ok();
    let sent = sim.wait_for_sent(1).remove(0);
    assert_eq!(sent["via"], "robot/send");
    assert_eq!(sent["request"]["markdown"]["title"], "Release");
    assert!(sent["text"].as_str().unwrap().contains("**deployed**"), "{sent}");
}

/// Files are uploaded and sent by the API, also while the session webhook of the chat is valid.
#[test]
fn files_are_sent_to_people_and_groups() {
    let (sim, courier) = connected();
    sim.say("@ann", "send me the report");
    sim.say("ops", "and the picture");
    mails(&courier, 2);
    let workspace = courier.home().join("workspace");
    std::fs::create_dir_all(workspace.join(".monoco/mailbox")).unwrap();
    let files =
        [("user:0001", "report.txt", &b"42"[..]), ("group:cidOPS==", "red.png", b"\x89PNG")];
    for (number, (to, name, bytes)) in files.into_iter().enumerate() {
        let path = workspace.join(name);
        std::fs::write(&path, bytes).unwrap();
        let (path, workspace) = (path.to_str().unwrap(), workspace.to_str().unwrap());
        let mut args = vec!["mailbox", "send", "--tunnel", "ding", "--to", to, "--text", "here"];
        args.extend(["--attach", path, "--workspace", workspace]);
        crate::chat_harness::run(&courier, &args).ok();
        let sent = sim.wait_for_sent(2 * (number + 1));
        let file = &sent[2 * number + 1]["files"][0];
        assert_eq!(file["size"], bytes.len(), "{sent:#?}");
        let sha256 = &file["sha256"];
        let hash = Sha256::digest(bytes);
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(*sha256, json!(hex), "{sent:#?}");
    }
    let sent = sim.sent();
    assert_eq!(sent[1]["files"][0]["name"], "report.txt", "{sent:#?}");
    assert_eq!(sent.len(), 4);
}
