//! Lark tunnels of the built binary against the emulator: both directions and both modes.

use serde_json::{Value, json};

use crate::chat_harness::{
    ChatSim, chat_config, kept_messages, mail_file, mail_text, only_mail, reply, run, send_to,
    wait_for_kept,
};
use crate::common::{Courier, raw, wait_for};

pub const GENERAL: &str = "did:msgtunnel:oc_general.group.lark";

/// The keys of a tunnel with a long connection. Limits of the rate would only make the tests slow.
pub fn stream_keys(sim: &ChatSim) -> Vec<String> {
    vec![
        "provider: lark".to_owned(),
        format!("base_url: {}", sim.text("base_url")),
        format!("app_id: {}", sim.credential("app_id")),
        format!("app_secret: {}", sim.credential("app_secret")),
        "send_rate: 100/s".to_owned(),
    ]
}

fn webhook_keys(sim: &ChatSim) -> Vec<String> {
    let mut keys = stream_keys(sim);
    keys.push("mode: webhook".to_owned());
    keys.push(format!("encrypt_key: {}", sim.credential("encrypt_key")));
    keys.push(format!("verification_token: {}", sim.credential("verification_token")));
    keys
}

/// An emulator and a courier with an open connection to it.
pub fn connected(window_ms: u64) -> (ChatSim, Courier) {
    connected_with(window_ms, &[])
}

pub fn connected_with(window_ms: u64, more: &[&str]) -> (ChatSim, Courier) {
    let sim = ChatSim::start("lark");
    let mut keys = stream_keys(&sim);
    keys.extend(more.iter().map(|key| (*key).to_owned()));
    let courier = Courier::start_configured(&chat_config("lark", window_ms, &keys));
    sim.wait_for_connections(1);
    (sim, courier)
}

/// An emulator that posts to the webhook listener of a courier.
fn pushing(window_ms: u64, format: &Value) -> (ChatSim, Courier) {
    let sim = ChatSim::start("lark");
    let mut keys = webhook_keys(&sim);
    if format["encrypt"] == false {
        keys.retain(|key| !key.starts_with("encrypt_key"));
    }
    let courier = Courier::start_configured(&chat_config("lark", window_ms, &keys));
    sim.control("callback_format", format);
    sim.control("push", &json!({"url": format!("http://{}/webhooks/lark", courier.webhooks())}));
    (sim, courier)
}

pub fn tunnel_health(courier: &Courier) -> Value {
    courier.get("/health").ok()["adapters"]["lark"].clone()
}

/// The id of a message that was said.
pub fn id_of(said: &Value) -> String {
    said["id"].as_str().unwrap_or_else(|| panic!("{said:#}")).to_owned()
}

/// What the bot sent as messages.
pub fn messages(sim: &ChatSim) -> Vec<Value> {
    sim.sent()
        .into_iter()
        .filter(|it| it["via"].as_str().unwrap().starts_with("message."))
        .collect()
}

/// Waits for a notice of this kind in the event log.
#[track_caller]
fn notice(courier: &Courier, kind: &str) -> String {
    wait_for(|| {
        let answer = courier.get("/api/v1/events?limit=1000").ok();
        let events = answer["events"].as_array().unwrap().clone();
        let is_wanted = |it: &&Value| it["kind"] == "notice" && it.to_string().contains(kind);
        events.iter().find(is_wanted).map(Value::to_string).ok_or_else(|| format!("{events:#?}"))
    })
}

fn first_message_to_reply(sim: &ChatSim, courier: &Courier) {
    let request = json!({"chat": "general", "text": "the build is *red*", "mention": true});
    let said = id_of(&sim.control("say", &request));
    let mail = only_mail(courier);
    let file = mail_file(courier, "lark", &mail);
    assert!(file.contains("@monoco0") && file.contains("the build is \\*red\\*"), "{file}");
    assert!(file.contains("general") && file.contains("ann"), "{file}");
    assert!(!file.contains("@_user_1"), "{file}");
    reply(courier, &mail, "**Fixed** in `4f2a91c`.");
    let sent = sim.wait_for_sent(1);
    assert_eq!(sent.len(), 1, "{sent:#?}");
    assert_eq!(
        (&sent[0]["chat"], &sent[0]["via"]),
        (&json!("oc_general"), &json!("message.reply"))
    );
    assert_eq!(sent[0]["thread"], json!(said), "it answers the message");
    assert_eq!(sent[0]["text"], "**Fixed** in `4f2a91c`.");
    // The own message comes back as an event and is no message.
    sim.say("general", "thanks");
    wait_for_kept(courier, 2);
}

#[test]
fn first_message_becomes_a_mail_and_its_answer_goes_to_it() {
    let (sim, courier) = connected(50);
    first_message_to_reply(&sim, &courier);
}

#[test]
fn http_events_are_received_encrypted_spaced_and_plain() {
    for format in [
        json!({"encrypt": true, "spaced": false}),
        json!({"encrypt": true, "spaced": true}),
        json!({"encrypt": false, "spaced": false}),
    ] {
        let (sim, courier) = pushing(50, &format);
        first_message_to_reply(&sim, &courier);
    }
}

#[test]
fn direct_message_is_answered_in_the_direct_chat() {
    let (sim, courier) = connected(50);
    sim.say("@ann", "are you there?");
    let mail = only_mail(&courier);
    let file = mail_file(&courier, "lark", &mail);
    assert!(file.contains("type: \"direct\""), "{file}");
    reply(&courier, &mail, "yes");
    let sent = sim.wait_for_sent(1);
    assert_eq!((&sent[0]["text"], &sent[0]["via"]), (&json!("yes"), &json!("message.create")));
    assert_ne!(sent[0]["chat"], "oc_general", "{sent:#?}");
}

#[test]
fn topics_are_answered_inside_of_the_topic() {
    let (sim, courier) = connected(50);
    let said = id_of(&sim.say("topics", "a new topic"));
    let mail = only_mail(&courier);
    reply(&courier, &mail, "an answer");
    let sent = sim.wait_for_sent(1);
    assert_eq!(sent[0]["via"], "message.reply");
    assert_eq!(sent[0]["thread"], json!(said.replacen("om_", "omt_", 1)), "{sent:#?}");
    assert_eq!(sent[0]["request"]["reply_in_thread"], true);
    let request = json!({"chat": "topics", "text": "more", "thread": said, "user": "bob"});
    sim.control("say", &request);
    wait_for_kept(&courier, 2);
    // Two people of one topic are in one session.
    let sessions = courier.get("/api/v1/messages?order=oldest&limit=10").ok();
    let text = sessions.to_string();
    assert_eq!(text.matches(&format!("\"thread_key\":\"{said}\"")).count(), 2, "{sessions:#}");
}

#[test]
fn recall_in_the_window_changes_the_mail_and_an_edit_is_in_the_history() {
    let (sim, courier) = connected(1500);
    sim.say("general", "the first text");
    let second = id_of(&sim.say("general", "the second text"));
    sim.control("recall", &json!({"chat": "general", "id": second}));
    let text = mail_text(&courier, &only_mail(&courier));
    assert!(text.contains("the first text"), "{text}");
    assert!(!text.contains("the second text") && text.contains("recalled"), "{text}");
}

#[test]
fn reactions_and_members_are_notices() {
    let (sim, courier) = connected(50);
    let said = id_of(&sim.say("general", "look"));
    wait_for_kept(&courier, 1);
    let react = json!({"chat": "general", "id": said, "user": "bob", "reaction": "THUMBSUP"});
    sim.control("react", &react);
    assert!(notice(&courier, "reaction_added").contains("THUMBSUP"));
    sim.control("leave", &json!({"chat": "general", "user": "cem"}));
    assert!(notice(&courier, "member_left").contains("cem"));
    assert_eq!(kept_messages(&courier), 1);
}

#[test]
fn messages_of_other_bots_are_dropped() {
    let (sim, courier) = connected(50);
    sim.control("say", &json!({"chat": "general", "text": "beep", "bot": true}));
    sim.say("general", "human");
    let text = mail_text(&courier, &only_mail(&courier));
    assert!(text.contains("human") && !text.contains("beep"), "{text}");
}

#[test]
fn files_are_fetched_into_the_mail_and_sent_from_a_message() {
    let (sim, courier) = connected(50);
    let file = json!({"name": "build.log", "mime_type": "text/plain", "text": "all is well"});
    sim.control("say", &json!({"chat": "general", "files": [file]}));
    let mail = only_mail(&courier);
    let full = courier.get(&format!("/api/v1/messages/{mail}")).ok();
    let artifact = &full["msg"]["content"]["machine"]["data"]["mail"]["artifacts"][0];
    assert_eq!(artifact["name"], "build.log", "{full:#}");
    assert!(artifact["hash"].is_string(), "{artifact:#}");
    let workspace = courier.home().join("workspace");
    std::fs::create_dir_all(workspace.join(".monoco/mailbox")).unwrap();
    let path = workspace.join("report.txt");
    std::fs::write(&path, "42").unwrap();
    let (path, workspace) = (path.to_str().unwrap(), workspace.to_str().unwrap());
    let mut args = vec!["mailbox", "send", "--provider", "lark", "--to", "group:oc_general"];
    args.extend(["--text", "the report", "--attach", path, "--workspace", workspace]);
    run(&courier, &args).ok();
    let sent = wait_for(|| match messages(&sim) {
        sent if sent.len() == 2 => Ok(sent),
        sent => Err(format!("{sent:#?}")),
    });
    assert_eq!(sent[0]["text"], "the report");
    assert_eq!(sent[1]["files"][0]["name"], "report.txt", "{sent:#?}");
    assert_eq!(sent[1]["files"][0]["size"], 2, "{sent:#?}");
}

#[test]
fn kinds_of_messages_are_shown_or_marked() {
    let (sim, courier) = connected(300);
    let post = json!([[{"tag": "text", "text": "styled", "style": ["bold"]}]]);
    for request in [
        json!({"kind": "post", "blocks": post}),
        json!({"kind": "sticker", "blocks": {"file_key": "s1"}}),
        json!({"kind": "share_chat", "text": "ops"}),
        json!({"kind": "interactive", "blocks": {"title": "A card", "elements": []}}),
        json!({"kind": "merge_forward", "blocks": [{"user": "bob", "text": "inside"}]}),
        json!({"kind": "hologram", "blocks": {"x": 1}}),
        json!({"kind": "text", "blocks": "not json"}),
    ] {
        let mut request = request;
        request["chat"] = json!("general");
        sim.control("say", &request);
    }
    wait_for_kept(&courier, 7);
    let mail = only_mail(&courier);
    let text = mail_text(&courier, &mail);
    for words in [
        "**styled**",
        "[sticker]",
        "[shared chat: ops]",
        "**A card**",
        "[forwarded conversation",
        "kind hologram: this version cannot show it",
        "its content is not valid JSON",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let full = courier.get(&format!("/api/v1/messages/{mail}")).ok();
    let artifacts = full["msg"]["content"]["machine"]["data"]["mail"]["artifacts"].to_string();
    assert!(
        artifacts.contains("forwarded.md") && artifacts.contains("payload.json"),
        "{artifacts}"
    );
}

#[test]
fn cards_mentions_and_custom_robots_are_sent() {
    let sim = ChatSim::start("lark");
    let mut keys = stream_keys(&sim);
    let hook =
        format!("{}/open-apis/bot/v2/hook/{}", sim.text("base_url"), sim.credential("robot_token"));
    keys.push(format!("robot_url: {hook}"));
    keys.push(format!("robot_secret: {}", sim.credential("robot_secret")));
    let courier = Courier::start_configured(&chat_config("lark", 50, &keys));
    let card = json!({"schema": "2.0", "body": {"elements": []}});
    let msg = json!({"from": crate::common::ME, "to": [GENERAL], "kind": "chat",
                     "content": {"content": "for others", "card": card}});
    courier.post("/api/v1/post_send", &json!({"msg": msg})).ok();
    let sent = sim.wait_for_sent(1);
    assert_eq!(sent[0]["request"]["msg_type"], "interactive");
    let content = sent[0]["request"]["content"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(content).unwrap(), card);
    send_to(&courier, GENERAL, "hi <at user_id=\"ou_ann\">ann</at> <at user_id=\"all\"></at>");
    let sent = sim.wait_for_sent(2);
    let content = sent[1]["request"]["content"].as_str().unwrap();
    assert!(
        content.contains("user_id=\\\"ou_ann\\\"") && !content.contains("all\\\""),
        "{content}"
    );
    send_to(&courier, "did:msgtunnel:team.channel.lark", "by the robot");
    let sent = sim.wait_for_sent(3);
    assert_eq!(sent[2]["via"], "hook", "{sent:#?}");
    // The emulator has checked the signature, and does not show it.
    assert!(sent[2]["request"]["timestamp"].is_string(), "{sent:#?}");
    let health = courier.get("/health").ok().to_string();
    assert!(!health.contains(sim.credential("robot_token")), "{health}");
}

#[test]
fn requests_without_a_valid_signature_are_rejected_and_not_kept() {
    let (sim, courier) = pushing(50, &json!({"encrypt": true, "spaced": false}));
    sim.control("settings", &json!({"push_retries_ms": []}));
    let rejected = |courier: &Courier| -> u64 {
        let metrics = courier.get("/metrics").text();
        let lines =
            metrics.lines().filter(|line| line.starts_with("monoco_webhooks_rejected_total{"));
        let counts = lines.filter(|line| line.contains("tunnel=\"lark\""));
        counts.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    sim.say("general", "genuine");
    wait_for_kept(&courier, 1);
    for (number, kind) in (1..).zip(["other_secret", "other_app", "missing", "stale", "replayed"]) {
        sim.chaos(json!({"wrong_signature": {"count": 1, "kind": kind}}));
        sim.say("general", &format!("forged: {kind}"));
        wait_for(|| match rejected(&courier) {
            found if found == number => Ok(()),
            found => Err(format!("{kind}: {number} rejected, found {found}")),
        });
    }
    assert_eq!(kept_messages(&courier), 1);
    for body in ["", "{}", "not json", r#"{"encrypt":"AAAA"}"#, r#"{"type":"url_verification"}"#] {
        let headers = [
            ("Content-Type".to_owned(), "application/json".to_owned()),
            ("Host".to_owned(), "hooks.test".to_owned()),
        ];
        let answer = raw(courier.webhooks(), "POST", "/webhooks/lark", &headers, body.as_bytes());
        assert_eq!(answer.unwrap().status, 401, "{body}");
    }
    // The event of a stored message comes again, with a new event id.
    let said = id_of(&sim.say("general", "twice"));
    wait_for_kept(&courier, 2);
    sim.control("repeat", &json!({"chat": "general", "id": said}));
    sim.say("general", "the last one");
    wait_for_kept(&courier, 3);
    assert_ne!(tunnel_health(&courier)["status"], "deaf");
}

#[test]
fn stream_tunnel_rejects_webhook_requests() {
    let (_sim, courier) = connected(50);
    let headers = [
        ("Content-Type".to_owned(), "application/json".to_owned()),
        ("Host".to_owned(), "hooks.test".to_owned()),
    ];
    let answer = raw(courier.webhooks(), "POST", "/webhooks/lark", &headers, b"{}").unwrap();
    assert_ne!(answer.status, 200);
}

#[test]
fn receipts_are_reactions() {
    let (sim, courier) = connected_with(50, &["receipt: {kept: eyes, done: ok, dead: cross}"]);
    let reactions = || -> Vec<(String, String)> {
        let sent =
            sim.sent().into_iter().filter(|it| it["via"].as_str().unwrap().contains("reaction"));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        sent.map(|it| (text(&it["request"]["reaction_type"]["emoji_type"]), text(&it["id"])))
            .collect()
    };
    let said = id_of(&sim.say("general", "the build is red"));
    let expect = |names: &[&str]| {
        let expected: Vec<_> =
            names.iter().map(|name| ((*name).to_owned(), said.clone())).collect();
        wait_for(|| match reactions() {
            found if found == expected => Ok(()),
            found => Err(format!("expected {expected:?}, found {found:?}: {:#?}", sim.sent())),
        });
    };
    expect(&["GLANCE"]);
    let mail = only_mail(&courier);
    courier.post(&format!("/api/v1/messages/{mail}/claim"), &json!({"agent_id": "a"})).ok();
    courier.post(&format!("/api/v1/messages/{mail}/complete"), &json!({"agent_id": "a"})).ok();
    expect(&["GLANCE", "CheckMark"]);
}

#[test]
fn probe_names_wrong_secrets_and_missing_permissions() {
    let (sim, courier) = connected(50);
    let test = |courier: &Courier| {
        let ran = run(courier, &["tunnel", "test", "lark"]);
        format!("{}{}", ran.stdout, ran.stderr)
    };
    let found = test(&courier);
    assert!(found.contains("monoco0") && found.contains("long connection"), "{found}");
    sim.control("scopes", &json!({"remove": ["im:chat", "im:chat:readonly"]}));
    let found = test(&courier);
    assert!(found.contains("missing permission"), "{found}");
    let keys: Vec<_> = stream_keys(&sim)
        .into_iter()
        .map(|key| if key.starts_with("app_secret") { "app_secret: wrong".to_owned() } else { key })
        .collect();
    let courier = Courier::start_configured(&chat_config("lark", 50, &keys));
    let health = wait_for(|| match tunnel_health(&courier) {
        health if health["status"] == "down" && health["last_error"] != Value::Null => Ok(health),
        health => Err(format!("{health:#}")),
    });
    let words = health.to_string();
    assert!(words.contains("check app_id and app_secret") && !words.contains("wrong"), "{words}");
}
