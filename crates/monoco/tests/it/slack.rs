//! Slack tunnels of the built binary against the emulator: both directions, both modes, and faults.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::chat_harness::{
    ChatSim, assert_all_paragraphs_once, assert_each_once, chat_config,
    keep_messages_over_dropped_sockets, keep_messages_over_killed_couriers, kept_messages,
    long_text, mail_file, mail_text, only_mail, reload_ten_times, reply, run, send_to,
    wait_for_kept,
};
use crate::common::{Courier, raw, wait_for};
use crate::webhook_peer::{hmac_hex, seconds};

const OUTBOX: &str = "/api/v1/boxes/did:msgtunnel:slack/TUNNEL_OUTBOX?limit=100";

const GENERAL: &str = "did:msgtunnel:C0GENERAL.group.slack";

/// Paragraphs of a text that Slack takes in several parts.
const PARAGRAPHS: usize = 250;

/// The keys of a tunnel in Socket Mode. Limits of the rate would only make the tests slow.
pub fn socket_keys(sim: &ChatSim) -> Vec<String> {
    vec![
        "provider: slack".to_owned(),
        format!("base_url: {}", sim.text("base_url")),
        format!("app_token: {}", sim.credential("app_token")),
        format!("bot_token: {}", sim.credential("bot_token")),
        "send_rate: 100/s".to_owned(),
    ]
}

fn webhook_keys(sim: &ChatSim) -> Vec<String> {
    vec![
        "provider: slack".to_owned(),
        "mode: webhook".to_owned(),
        format!("base_url: {}", sim.text("base_url")),
        format!("bot_token: {}", sim.credential("bot_token")),
        format!("signing_secret: {}", sim.credential("signing_secret")),
        "send_rate: 100/s".to_owned(),
    ]
}

/// An emulator and a courier with an open connection to it.
fn connected(window_ms: u64) -> (ChatSim, Courier) {
    let sim = ChatSim::start("slack");
    let courier = Courier::start_configured(&chat_config("slack", window_ms, &socket_keys(&sim)));
    sim.wait_for_connections(1);
    (sim, courier)
}

/// An emulator that posts to the webhook listener of a courier.
fn pushing(window_ms: u64) -> (ChatSim, Courier) {
    let sim = ChatSim::start("slack");
    let courier = Courier::start_configured(&chat_config("slack", window_ms, &webhook_keys(&sim)));
    let url = format!("http://{}/webhooks/slack", courier.webhooks());
    sim.control("push", &json!({ "url": url }));
    (sim, courier)
}

fn tunnel_health(courier: &Courier) -> Value {
    courier.get("/health").ok()["adapters"]["slack"].clone()
}

fn first_message_to_reply(sim: &ChatSim, courier: &Courier) {
    let said = sim.say("general", "<@U0BOT0> the build is <https://ci.example.com|red>");
    let ts = said["ts"].as_str().or(said["id"].as_str()).unwrap().to_owned();
    let mail = only_mail(courier);
    let file = mail_file(courier, "slack", &mail);
    assert!(file.contains("@monoco0 the build is [red](https://ci.example.com)"), "{file}");
    assert!(file.contains("general") && file.contains("ann"), "{file}");
    reply(courier, &mail, "**Fixed** in `4f2a91c`.");
    let sent = sim.wait_for_sent(1);
    assert_eq!(sent.len(), 1, "{sent:#?}");
    assert_eq!((&sent[0]["chat"], &sent[0]["thread"]), (&json!("C0GENERAL"), &json!(ts)));
    assert_eq!(sent[0]["text"], "*Fixed* in `4f2a91c`.");
    // The own message comes back as an event and is no message.
    sim.say("general", "thanks");
    wait_for_kept(courier, 2);
}

#[test]
fn first_message_becomes_a_mail_and_its_answer_goes_into_the_thread() {
    let (sim, courier) = connected(50);
    first_message_to_reply(&sim, &courier);
}

#[test]
fn events_api_answers_the_challenge_and_receives_messages() {
    let (sim, courier) = pushing(50);
    first_message_to_reply(&sim, &courier);
}

#[test]
fn direct_message_is_answered_in_the_direct_chat() {
    let (sim, courier) = connected(50);
    sim.say("@ann", "are you there?");
    let mail = only_mail(&courier);
    reply(&courier, &mail, "yes");
    let sent = sim.wait_for_sent(1);
    assert_eq!((&sent[0]["text"], &sent[0]["thread"]), (&json!("yes"), &Value::Null));
    assert!(sent[0]["chat"].as_str().unwrap().starts_with('D'), "{sent:#?}");
}

#[test]
fn edits_and_recalls_in_the_window_change_the_mail() {
    let (sim, courier) = connected(1500);
    let first = sim.say("general", "the first text");
    let second = sim.say("general", "the second text");
    let third = sim.say("general", "see https://example.com");
    let id = |said: &Value| said["ts"].as_str().or(said["id"].as_str()).unwrap().to_owned();
    sim.control("edit", &json!({"chat": "general", "id": id(&first), "text": "the new text"}));
    sim.control("recall", &json!({"chat": "general", "id": id(&second)}));
    sim.control("edit", &json!({"chat": "general", "id": id(&third), "unfurl": true}));
    let text = mail_text(&courier, &only_mail(&courier));
    assert!(text.contains("the new text") && !text.contains("the first text"), "{text}");
    assert!(!text.contains("the second text") && text.contains("recalled"), "{text}");
    assert_eq!(text.matches("https://example.com").count(), 1, "a preview is no edit: {text}");
}

#[test]
fn files_are_fetched_into_the_mail_and_sent_from_a_message() {
    let (sim, courier) = connected(50);
    let file = json!({"name": "build.log", "mime_type": "text/plain", "text": "all is well"});
    sim.control("say", &json!({"chat": "general", "text": "the log", "files": [file]}));
    let mail = only_mail(&courier);
    let shown = mail_file(&courier, "slack", &mail);
    assert!(shown.contains("build.log"), "{shown}");
    assert!(!shown.contains("xoxb") && !shown.contains("/files-pri/"), "{shown}");
    let full = courier.get(&format!("/api/v1/messages/{mail}")).ok();
    let artifact = &full["msg"]["content"]["machine"]["data"]["mail"]["artifacts"][0];
    assert_eq!(artifact["name"], "build.log", "{full:#}");
    assert!(artifact["hash"].is_string(), "{artifact:#}");
    let workspace = courier.home().join("workspace");
    std::fs::create_dir_all(workspace.join(".monoco/mailbox")).unwrap();
    let path = workspace.join("report.txt");
    std::fs::write(&path, "42").unwrap();
    let (path, workspace) = (path.to_str().unwrap(), workspace.to_str().unwrap());
    let mut args = vec!["mailbox", "send", "--provider", "slack", "--to", "group:C0GENERAL"];
    args.extend(["--text", "the report", "--attach", path, "--workspace", workspace]);
    run(&courier, &args).ok();
    let sent = sim.wait_for_sent(2);
    assert_eq!(sent[0]["text"], "the report");
    assert_eq!(sent[1]["files"][0]["name"], "report.txt", "{sent:#?}");
    assert_eq!(sent[1]["files"][0]["size"], 2, "{sent:#?}");
}

#[test]
fn kinds_of_chaos_lose_and_double_no_message() {
    let (sim, courier) = connected(50);
    let mut total = 0;
    for (name, chaos) in [
        ("duplicates", json!({"duplicate": 20})),
        ("reverse order", json!({"reorder": 10})),
        ("lost sockets", json!({"drop_socket": true})),
        ("drops while sending", json!({"drop_socket": {"every": 7}})),
        ("disconnect frame", json!({"drop_socket": false, "disconnect_frame": true})),
        ("rejected handshakes", json!({"reject_handshake": 2, "drop_socket": true})),
        (
            "throttled connect",
            json!({"drop_socket": true, "rate_limit":
            {"method": "apps.connections.open", "count": 1, "retry_after": 1}}),
        ),
        (
            "failing connect",
            json!({"drop_socket": true, "server_error":
            {"method": "apps.connections.open", "count": 2, "status": 500}}),
        ),
    ] {
        sim.chaos(chaos);
        sim.control(
            "say",
            &json!({"chat": "general", "text": format!("{name} {{n}}."), "count": 20}),
        );
        total += 20;
        wait_for(|| match kept_messages(&courier) {
            found if found == total => Ok(()),
            found => {
                Err(format!("{name}: {total} messages, found {found}: {:#}", sim.get("state")))
            }
        });
        sim.chaos(json!({"reset": true}));
    }
    sim.wait_for_connections(1);
    assert_each_once(&courier, &["duplicates", "reverse order", "lost sockets"], 20);
}

#[test]
fn expired_token_is_used_again_when_it_is_valid() {
    let (sim, courier) = connected(50);
    sim.chaos(json!({"expire_token": true, "drop_socket": true}));
    sim.say("general", "while the token is expired");
    let health = wait_for(|| match tunnel_health(&courier) {
        health if health.to_string().contains("token_expired") => Ok(health),
        health => Err(format!("{health:#}")),
    });
    assert_eq!(health["status"], "down");
    let health = health.to_string();
    assert!(!health.contains("xoxb-") && !health.contains("xapp-"), "{health}");
    sim.control("token", &json!({}));
    wait_for_kept(&courier, 1);
}

#[test]
fn disabled_socket_mode_stops_the_tunnel_and_says_so() {
    let (sim, courier) = connected(50);
    sim.chaos(json!({"disconnect_frame": {"reason": "link_disabled"}}));
    let health = wait_for(|| {
        let health = tunnel_health(&courier);
        if health["status"] == "down" { Ok(health) } else { Err(format!("{health:#}")) }
    });
    assert!(health.to_string().contains("Socket Mode was turned off"), "{health:#}");
    sim.wait_for_connections(0);
}

/// The connection stays open, but nothing comes through it any more; with the second fault Slack
/// still answers pings. The network gives the event up before that is noticed, so that only the
/// history has the message. `max_silence_s` makes the test short; the default is 120 s, which a test
/// of the adapter checks.
#[test]
fn half_dead_sockets_are_replaced() {
    for fault in [json!({"silent": true, "stop_pong": true}), json!({"silent": true})] {
        let sim = ChatSim::start("slack");
        sim.control("settings", &json!({"ping_interval_ms": 500, "max_attempts": 1}));
        let mut keys = socket_keys(&sim);
        keys.push("max_silence_s: 5".to_owned());
        let courier = Courier::start_configured(&chat_config("slack", 50, &keys));
        sim.wait_for_connections(1);
        let first = sim.get("state")["connections"][0].clone();
        // The deadline holds from the first ping of the server on, which follows the first frame.
        let mut frames = BTreeSet::new();
        wait_for(|| {
            frames.insert(tunnel_health(&courier)["last_frame_at"].to_string());
            if frames.len() > 4 { Ok(()) } else { Err(format!("{frames:?}")) }
        });
        sim.chaos(fault.clone());
        sim.say("general", "into the silence");
        wait_for_kept(&courier, 1);
        sim.wait_for_connections(1);
        let second = sim.get("state")["connections"][0].clone();
        assert_ne!(first["id"], second["id"], "{fault}");
    }
}

#[test]
fn missed_messages_and_replies_are_read_from_the_history() {
    let (sim, courier) = connected(50);
    let parent = sim.say("general", "before the gap");
    wait_for_kept(&courier, 1);
    let thread = parent["ts"].as_str().or(parent["id"].as_str()).unwrap().to_owned();
    // The network keeps no events for a bot that is not connected.
    sim.control("settings", &json!({"backlog": false}));
    let mut courier = courier;
    courier.kill();
    wait_for(|| if sim.connections() == 0 { Ok(()) } else { Err("still connected".to_owned()) });
    for number in 1..=3 {
        sim.say("general", &format!("missed {number}."));
    }
    sim.control("say", &json!({"chat": "general", "text": "missed 4.", "thread": thread}));
    sim.control("say", &json!({"chat": "@bob", "text": "missed 5."}));
    let courier = courier.restart();
    wait_for_kept(&courier, 6);
    assert_each_once(&courier, &["missed"], 5);
    // A second gap reads the same history again and keeps nothing twice.
    sim.chaos(json!({"drop_socket": true}));
    sim.wait_for_connections(1);
    sim.say("general", "after the gap");
    wait_for_kept(&courier, 7);
}

#[test]
fn every_message_is_kept_once_when_the_socket_drops_every_200() {
    let sim = ChatSim::start("slack");
    let mut keys = socket_keys(&sim);
    // Every message must come through the socket.
    keys.push("catch_up: off".to_owned());
    let courier = Courier::start_configured(&chat_config("slack", 200, &keys));
    sim.wait_for_connections(1);
    keep_messages_over_dropped_sockets(&sim, &courier);
}

#[test]
fn killed_courier_loses_and_doubles_no_message() {
    let (sim, dir) = (ChatSim::start("slack"), tempfile::tempdir().unwrap());
    let config = chat_config("slack", 20, &socket_keys(&sim));
    keep_messages_over_killed_couriers(&sim, &dir.path().join("home"), &config);
}

#[test]
fn sends_under_rate_limits_arrive_in_order() {
    let (sim, courier) = connected(50);
    sim.chaos(json!({"rate_limit": {"count": 5, "retry_after": 1}}));
    let count = 200;
    for number in 1..=count {
        send_to(&courier, GENERAL, &format!("message {number}."));
    }
    let deadline = Instant::now() + Duration::from_secs(120);
    while sim.sent().len() < count && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    let sent = sim.sent();
    let texts: Vec<_> = sent.iter().map(|sent| sent["text"].as_str().unwrap().to_owned()).collect();
    let expected: Vec<_> = (1..=count).map(|number| format!("message {number}.")).collect();
    assert_eq!(texts, expected);
}

#[test]
fn kinds_of_chaos_double_no_send() {
    let (sim, courier) = connected(50);
    let mut total = 0;
    for (name, chaos) in [
        ("throttled", json!({"rate_limit": {"count": 1, "retry_after": 1}})),
        ("throttled without a time", json!({"rate_limit": {"count": 2}})),
        ("unavailable", json!({"server_error": {"count": 1, "status": 503}})),
        ("unanswered", json!({"accept_then_timeout": {"count": 1, "hang_ms": 300}})),
    ] {
        sim.chaos(chaos);
        send_to(&courier, GENERAL, &format!("first {name}."));
        send_to(&courier, GENERAL, &format!("second {name}."));
        total += 2;
        let sent = sim.wait_for_sent(total);
        let last: Vec<_> = sent[total - 2..].iter().map(|sent| sent["text"].clone()).collect();
        assert_eq!(last, [json!(format!("first {name}.")), json!(format!("second {name}."))]);
        sim.chaos(json!({"reset": true}));
    }
    // All are known to be sent, also the one that was not answered.
    courier.until(OUTBOX, |page| {
        let records = page["records"].as_array().unwrap();
        records.len() == total && records.iter().all(|record| record["state"] == "SENT")
    });
    assert_eq!(sim.sent().len(), total);
}

/// After an answer of Slack itself, a message that is not in the chat was not sent.
#[test]
fn broken_send_that_slack_does_not_show_is_sent_again_in_order() {
    let (sim, courier) = connected(50);
    sim.chaos(json!({"server_error": {"count": 1, "status": 500}}));
    send_to(&courier, GENERAL, "first broken.");
    send_to(&courier, GENERAL, "second broken.");
    let texts: Vec<_> = sim.wait_for_sent(2).iter().map(|sent| sent["text"].clone()).collect();
    assert_eq!(texts, ["first broken.", "second broken."]);
    courier.until(OUTBOX, |page| {
        let records = page["records"].as_array().unwrap();
        records.len() == 2 && records.iter().all(|record| record["state"] == "SENT")
    });
    assert_eq!(sim.sent().len(), 2);
}

/// Behind a gateway the message may still appear.
#[test]
fn send_that_a_gateway_breaks_off_is_uncertain_and_not_repeated() {
    let (sim, courier) = connected(50);
    sim.chaos(json!({"server_error": {"count": 1, "status": 504}}));
    send_to(&courier, GENERAL, "first broken.");
    send_to(&courier, GENERAL, "second broken.");
    courier.until(OUTBOX, |page| {
        let records = page["records"].as_array().unwrap();
        let count = |state: &str| records.iter().filter(|it| it["state"] == state).count();
        (records.len(), count("UNCERTAIN"), count("SENT")) == (2, 1, 1)
    });
    let sent = sim.sent();
    assert_eq!((sent.len(), &sent[0]["text"]), (1, &json!("second broken.")));
}

#[test]
fn long_message_is_sent_in_parts_and_resumes_at_the_failed_one() {
    let (sim, courier) = connected(50);
    send_to(&courier, GENERAL, &long_text(PARAGRAPHS));
    let sent = sim.wait_for_sent(4);
    assert_all_paragraphs_once(&sent, PARAGRAPHS);
    // One request of the second message is rejected.
    sim.chaos(json!({"rate_limit": {"count": 1, "retry_after": 1}}));
    send_to(&courier, GENERAL, &format!("Again:\n\n{}", long_text(PARAGRAPHS)));
    let sent = sim.wait_for_sent(8);
    assert_all_paragraphs_once(&sent[4..], PARAGRAPHS);
    assert_eq!(sim.sent().len(), 8);
}

/// The part that was under way can be at Slack, so an operator decides. A retry continues after the
/// parts that have a receipt.
#[test]
fn killed_courier_resumes_after_the_parts_that_were_sent() {
    let sim = ChatSim::start("slack");
    let mut keys = socket_keys(&sim);
    keys.retain(|key| !key.starts_with("send_rate"));
    let mut courier = Courier::start_configured(&chat_config("slack", 50, &keys));
    sim.wait_for_connections(1);
    let answer = send_to(&courier, GENERAL, &long_text(PARAGRAPHS));
    let delivery = answer["deliveries"][0]["record_id"].as_str().unwrap();
    let delivery = format!("/api/v1/records/{delivery}");
    // Parts are one second apart, so the second one is not sent yet.
    courier.until(&delivery, |record| record["delivery"]["parts"][0].is_object());
    courier.kill();
    let courier = courier.restart();
    courier.until(&delivery, |record| record["state"] == "UNCERTAIN");
    courier.post(&format!("{delivery}/state"), &json!({"state": "WAIT"})).ok();
    courier.until(&delivery, |record| record["state"] == "SENT");
    assert_all_paragraphs_once(&sim.sent(), PARAGRAPHS);
}

#[test]
fn ten_reloads_leave_one_connection() {
    let (sim, courier) = connected(50);
    reload_ten_times(&sim, &courier, "slack", &socket_keys(&sim));
}

/// Posts a body with these headers and returns the status.
fn push(courier: &Courier, headers: &[(&str, String)], body: &str) -> u16 {
    let mut all = vec![
        ("Content-Type".to_owned(), "application/json".to_owned()),
        ("Host".to_owned(), "hooks.test".to_owned()),
    ];
    all.extend(headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    raw(courier.webhooks(), "POST", "/webhooks/slack", &all, body.as_bytes()).unwrap().status
}

fn signature(secret: &str, time: u64, body: &str) -> [(&'static str, String); 2] {
    let signed = hmac_hex(secret, format!("v0:{time}:{body}").as_bytes());
    [("X-Slack-Request-Timestamp", time.to_string()), ("X-Slack-Signature", format!("v0={signed}"))]
}

#[test]
fn requests_without_a_valid_signature_are_rejected_and_not_kept() {
    let (sim, courier) = pushing(50);
    let secret = sim.credential("signing_secret");
    let event = |ts: &str| {
        json!({"type": "event_callback", "event_id": format!("Ev{ts}"), "event": {
            "type": "message", "channel": "C0GENERAL", "channel_type": "channel",
            "user": "U0ANN", "text": "hi", "ts": ts}})
        .to_string()
    };
    let (body, now) = (event("1700000000.000001"), seconds());
    assert_eq!(push(&courier, &[], &body), 401, "missing");
    assert_eq!(push(&courier, &signature("another app", now, &body), &body), 401, "another app");
    let other = event("1700000000.000002");
    assert_eq!(push(&courier, &signature(secret, now, &body), &other), 401, "another body");
    assert_eq!(push(&courier, &signature(secret, now - 301, &body), &body), 401, "old");
    assert_eq!(push(&courier, &signature(secret, now + 400, &body), &body), 401, "future");
    sim.chaos(json!({"wrong_signature": 1}));
    sim.control("settings", &json!({"push_retries_ms": []}));
    sim.say("general", "forged");
    wait_for(|| match courier.get("/metrics").text() {
        metrics if metrics.contains("reason=\"unverified\"} 4") => Ok(()),
        metrics => Err(metrics.lines().filter(|line| line.contains("rejected")).collect()),
    });
    assert_eq!(kept_messages(&courier), 0);
    let signed = signature(secret, now, &body);
    assert_eq!(push(&courier, &signed, &body), 200);
    assert_eq!(push(&courier, &signed, &body), 200, "a replayed request is a duplicate");
    wait_for_kept(&courier, 1);
    assert_ne!(tunnel_health(&courier)["status"], "deaf");
}

#[test]
fn socket_tunnel_rejects_webhook_requests() {
    let (sim, courier) = connected(50);
    let body = "{}";
    let signed = signature(sim.credential("signing_secret"), seconds(), body);
    assert_ne!(push(&courier, &signed, body), 200);
}
