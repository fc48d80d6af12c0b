//! Receipts of Slack tunnels of the built binary: reactions to messages that were kept, completed
//! or given up, and what a failing reaction leaves alone.

use serde_json::{Value, json};

use crate::chat_harness::{
    ChatSim, chat_config, kept_mails, kept_messages, only_mail, reply, run, wait_for_kept,
};
use crate::common::{Courier, wait_for};
use crate::webhook_peer::configure;

const RECEIPT: &str = "receipt: {kept: eyes, done: ok, dead: cross}";

/// The keys of a tunnel in Socket Mode, and these.
fn keys(sim: &ChatSim, more: &[&str]) -> Vec<String> {
    let mut keys = vec![
        "provider: slack".to_owned(),
        format!("base_url: {}", sim.text("base_url")),
        format!("app_token: {}", sim.credential("app_token")),
        format!("bot_token: {}", sim.credential("bot_token")),
        "send_rate: 100/s".to_owned(),
    ];
    keys.extend(more.iter().map(|key| (*key).to_owned()));
    keys
}

fn connected(more: &[&str]) -> (ChatSim, Courier) {
    let sim = ChatSim::start("slack");
    let courier = Courier::start_configured(&chat_config("slack", 50, &keys(&sim, more)));
    sim.wait_for_connections(1);
    (sim, courier)
}

/// Says something and returns the id of the message.
#[track_caller]
fn say(sim: &ChatSim, chat: &str, text: &str) -> String {
    sim.say(chat, text)["id"].as_str().unwrap().to_owned()
}

/// The reactions of the bot: emoji and message.
fn reactions(sim: &ChatSim) -> Vec<(String, String)> {
    let sent = sim.sent().into_iter().filter(|sent| sent["via"] == "reactions.add");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    sent.map(|sent| (text(&sent["text"]), text(&sent["id"]))).collect()
}

#[track_caller]
fn wait_for_reactions(sim: &ChatSim, expected: &[(&str, &str)]) {
    let expected: Vec<_> =
        expected.iter().map(|(name, id)| ((*name).to_owned(), (*id).to_owned())).collect();
    wait_for(|| match reactions(sim) {
        found if found == expected => Ok(()),
        found => Err(format!("expected {expected:?}, found {found:?}")),
    });
}

/// Claims a Mail, and completes it or gives it up.
#[track_caller]
fn finish(courier: &Courier, mail: &str, action: &str, body: &Value) {
    courier.post(&format!("/api/v1/messages/{mail}/claim"), &json!({"agent_id": "a"})).ok();
    let mut body = body.clone();
    body["agent_id"] = json!("a");
    courier.post(&format!("/api/v1/messages/{mail}/{action}"), &body).ok();
}

/// Waits for a Mail with this text in its preview and returns its id.
#[track_caller]
fn mail_with(courier: &Courier, text: &str) -> String {
    wait_for(|| {
        let mails = kept_mails(courier);
        let found = mails.iter().find(|(_, mail)| mail.to_string().contains(text));
        found.map(|(id, _)| id.clone()).ok_or_else(|| format!("no Mail with {text}: {mails:#?}"))
    })
}

#[test]
fn messages_get_receipts_when_kept_completed_and_given_up() {
    let (sim, courier) = connected(&[RECEIPT]);
    let first = say(&sim, "general", "the build is red");
    wait_for_reactions(&sim, &[("eyes", &first)]);
    let mail = only_mail(&courier);
    finish(&courier, &mail, "complete", &json!({}));
    wait_for_reactions(&sim, &[("eyes", &first), ("white_check_mark", &first)]);
    let second = say(&sim, "ops", "nothing can be done");
    let mail = mail_with(&courier, "nothing can be done");
    finish(&courier, &mail, "fail", &json!({"reason": "no", "retryable": false}));
    let all = [("eyes", &first), ("white_check_mark", &first), ("eyes", &second), ("x", &second)];
    wait_for_reactions(&sim, &all.map(|(name, id)| (name, id.as_str())));
    // The bot's own reactions come back as events and are no notices.
    let third = say(&sim, "general", "the last one");
    wait_for_kept(&courier, 3);
    wait_for(|| match reactions(&sim).last() {
        Some((_, id)) if *id == third => Ok(()),
        last => Err(format!("{last:?}")),
    });
    let events = run(&courier, &["events", "--format", "json"]).ok();
    assert!(events.contains("received") && !events.contains("reaction_added"), "{events}");
    let metrics = courier.get("/metrics").text();
    let line = "monoco_tunnel_receipts_total{tunnel=\"slack\",result=\"sent\"} 5";
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn tunnels_have_no_receipts_by_default_and_a_reload_turns_them_on() {
    let (sim, courier) = connected(&[]);
    say(&sim, "general", "without a receipt");
    let mail = only_mail(&courier);
    finish(&courier, &mail, "complete", &json!({}));
    // A message that is sent and received again passes everything before it.
    reply(&courier, &mail, "done");
    sim.wait_for_sent(1);
    configure(courier.home(), &chat_config("slack", 50, &keys(&sim, &["receipt: {kept: eyes}"])));
    run(&courier, &["courier", "reload"]).ok();
    sim.wait_for_connections(1);
    let second = say(&sim, "general", "with a receipt");
    wait_for_reactions(&sim, &[("eyes", &second)]);
    let mail = mail_with(&courier, "with a receipt");
    finish(&courier, &mail, "complete", &json!({}));
    let third = say(&sim, "general", "the last one");
    wait_for_reactions(&sim, &[("eyes", &second), ("eyes", &third)]);
}

#[test]
fn failing_reactions_leave_messages_alone_and_arrive_later() {
    let (sim, courier) = connected(&[RECEIPT]);
    sim.chaos(json!({"server_error": {"method": "reactions.add", "count": 1000, "status": 503}}));
    let first = say(&sim, "general", "while reactions fail");
    let mail = only_mail(&courier);
    reply(&courier, &mail, "an answer");
    finish(&courier, &mail, "complete", &json!({}));
    wait_for(|| match sim.sent().iter().any(|sent| sent["text"] == "an answer") {
        true => Ok(()),
        false => Err(format!("{:#?}", sim.sent())),
    });
    assert_eq!(reactions(&sim), [], "the answer does not wait for the receipt");
    sim.chaos(json!({"reset": true}));
    wait_for_reactions(&sim, &[("eyes", &first), ("white_check_mark", &first)]);
}

#[test]
fn rejected_reactions_are_counted_and_given_up() {
    let (sim, courier) = connected(&["receipt: {kept: eyes}"]);
    sim.chaos(json!({"server_error": {"method": "reactions.add", "count": 1, "status": 400}}));
    say(&sim, "general", "the first one");
    let line = "monoco_tunnel_receipts_total{tunnel=\"slack\",result=\"failed\"} 1";
    wait_for(|| match courier.get("/metrics").text() {
        metrics if metrics.contains(line) => Ok(()),
        metrics => Err(metrics.lines().filter(|line| line.contains("receipts")).collect()),
    });
    let second = say(&sim, "general", "the second one");
    wait_for_reactions(&sim, &[("eyes", &second)]);
    wait_for_kept(&courier, 2);
    assert_eq!(courier.get("/health").ok()["adapters"]["slack"]["status"], "hearing");
}

#[test]
fn killed_courier_sends_each_receipt_once() {
    let sim = ChatSim::start("slack");
    let courier = Courier::start_configured(&chat_config("slack", 50, &keys(&sim, &[RECEIPT])));
    sim.wait_for_connections(1);
    let first = say(&sim, "general", "before the crash");
    wait_for_reactions(&sim, &[("eyes", &first)]);
    sim.chaos(json!({"server_error": {"method": "reactions.add", "count": 1000, "status": 503}}));
    let second = say(&sim, "general", "without a receipt so far");
    wait_for(|| match kept_messages(&courier) {
        2 => Ok(()),
        found => Err(format!("{found}")),
    });
    let mut courier = courier;
    courier.kill();
    sim.chaos(json!({"reset": true}));
    let _courier = courier.restart();
    wait_for_reactions(&sim, &[("eyes", &first), ("eyes", &second)]);
    let third = say(&sim, "general", "after the crash");
    wait_for_reactions(&sim, &[("eyes", &first), ("eyes", &second), ("eyes", &third)]);
}

#[test]
fn network_without_reactions_rejects_the_key() {
    let sim = ChatSim::start("dingtalk");
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let keys = [
        "provider: dingtalk".to_owned(),
        format!("app_key: {}", sim.credential("app_key")),
        format!("app_secret: {}", sim.credential("app_secret")),
        RECEIPT.to_owned(),
    ];
    configure(&home, &chat_config("ding", 50, &keys));
    let started = crate::common::cli(&home, &["courier", "start", "--foreground"], "");
    let expected = "receipt: tunnels of the provider dingtalk cannot react to messages";
    assert!(started.stderr.contains(expected), "{}", started.stderr);
}
