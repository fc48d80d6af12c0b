//! Telegram tunnels of the built binary against the emulator: both modes, both directions.

use serde_json::{Value, json};

use crate::chat_harness::{
    ChatSim, chat_config, kept_mails, kept_messages, mail_file, mail_text, only_mail, reply, run,
    send_to, wait_for_kept,
};
use crate::common::{Courier, raw, wait_for};
use crate::webhook_peer::configure;

/// A supergroup of the emulator.
pub const OPS: &str = "did:msgtunnel:-1001000000001.group.tele";

/// The secret of webhook requests.
const SECRET: &str = "sim-secret_1";

/// The keys of a tunnel that polls. Limits of the rate would only make the tests slow.
pub fn keys(sim: &ChatSim, more: &[&str]) -> Vec<String> {
    let mut keys = vec![
        "provider: telegram".to_owned(),
        format!("base_url: {}", sim.text("base_url")),
        format!("token: '{}'", sim.credential("token")),
        "send_rate: 100/s".to_owned(),
        "group_rate: 100/s".to_owned(),
    ];
    keys.extend(more.iter().map(|key| (*key).to_owned()));
    keys
}

pub fn tunnel_health(courier: &Courier) -> Value {
    courier.get("/health").ok()["adapters"]["tele"].clone()
}

/// Waits until the tunnel is connected.
#[track_caller]
pub fn wait_for_connection(courier: &Courier) {
    wait_for(|| match tunnel_health(courier) {
        health if ["hearing", "quiet"].contains(&health["status"].as_str().unwrap()) => Ok(()),
        health => Err(format!("{health:#}")),
    });
}

/// An emulator and a courier that polls it.
pub fn polling(more: &[&str]) -> (ChatSim, Courier) {
    polling_with(50, more)
}

fn polling_with(window_ms: u64, more: &[&str]) -> (ChatSim, Courier) {
    let sim = ChatSim::start("telegram");
    let courier = Courier::start_configured(&chat_config("tele", window_ms, &keys(&sim, more)));
    wait_for_connection(&courier);
    (sim, courier)
}

/// An emulator that posts to the webhook listener of a courier, which has set the webhook.
pub fn pushing() -> (ChatSim, Courier) {
    pushing_with(50)
}

fn pushing_with(window_ms: u64) -> (ChatSim, Courier) {
    let sim = ChatSim::start("telegram");
    sim.control("settings", &json!({"push_retries_ms": [0, 100, 200, 400, 800]}));
    let secret = format!("secret_token: {SECRET}");
    // The address of the listener is known when the courier runs, as that of a proxy.
    let more = ["mode: webhook", &secret, "webhook_url: https://hub.example.com/webhooks/tele"];
    let courier = Courier::start_configured(&chat_config("tele", window_ms, &keys(&sim, &more)));
    sim.control("proxy", &json!({"url": format!("http://{}", courier.webhooks())}));
    wait_for(|| match sim.get("state")["network"]["bots"][0]["webhook"].is_string() {
        true => Ok(()),
        false => Err(format!("no webhook: {:#}", tunnel_health(&courier))),
    });
    (sim, courier)
}

fn id(said: &Value) -> String {
    said["id"].as_str().unwrap().to_owned()
}

fn first_message_to_reply(sim: &ChatSim, courier: &Courier) {
    let text = "😀 the build is red";
    let link =
        json!([{"type": "text_link", "offset": 16, "length": 3, "url": "https://ci.example.com"}]);
    let said = sim.control("say", &json!({"chat": "ops", "text": text, "blocks": link}));
    let mail = only_mail(courier);
    let file = mail_file(courier, "telegram", &mail);
    assert!(file.contains("😀 the build is [red](https://ci.example.com)"), "{file}");
    assert!(file.contains("ops") && file.contains("Ann"), "{file}");
    reply(courier, &mail, "**Fixed** in `4f2a91c`.");
    let sent = sim.wait_for_sent(1);
    assert_eq!(sent.len(), 1, "{sent:#?}");
    assert_eq!(
        (&sent[0]["chat"], &sent[0]["text"]),
        (&json!("-1001000000001"), &json!("Fixed in 4f2a91c."))
    );
    let request = sent[0]["request"].to_string();
    assert!(request.contains("\"bold\"") && request.contains("\"code\""), "{request}");
    assert!(request.contains(&format!("\"message_id\":{}", id(&said))), "{request}");
    sim.say("ops", "thanks");
    wait_for_kept(courier, 2);
}

#[test]
fn first_message_becomes_a_mail_and_is_answered_by_polling() {
    let (sim, courier) = polling(&[]);
    first_message_to_reply(&sim, &courier);
}

#[test]
fn first_message_becomes_a_mail_and_is_answered_by_webhook() {
    let (sim, courier) = pushing();
    first_message_to_reply(&sim, &courier);
}

#[test]
fn direct_message_is_answered_in_the_private_chat() {
    let (sim, courier) = polling(&[]);
    sim.control("say", &json!({"chat": "@bob", "user": "bob", "text": "are you there?"}));
    let mail = only_mail(&courier);
    reply(&courier, &mail, "yes");
    let sent = sim.wait_for_sent(1);
    assert_eq!((&sent[0]["chat"], &sent[0]["text"]), (&json!("1002"), &json!("yes")));
}

#[test]
fn topic_is_answered_in_the_topic() {
    let (sim, courier) = polling(&[]);
    sim.control("say", &json!({"chat": "forum", "text": "in the topic", "thread": "2"}));
    let mail = only_mail(&courier);
    reply(&courier, &mail, "here");
    let sent = sim.wait_for_sent(1);
    assert_eq!((&sent[0]["text"], &sent[0]["thread"]), (&json!("here"), &json!("2")), "{sent:#?}");
}

#[test]
fn answer_to_a_deleted_message_is_sent_without_it() {
    let (sim, courier) = polling(&[]);
    let said = sim.say("ops", "soon gone");
    let mail = only_mail(&courier);
    sim.control("recall", &json!({"chat": "ops", "id": id(&said)}));
    reply(&courier, &mail, "still here");
    assert_eq!(sim.wait_for_sent(1)[0]["text"], "still here");
}

#[test]
fn edit_in_the_window_changes_the_mail() {
    let (sim, courier) = polling_with(1500, &[]);
    let said = sim.say("ops", "the first text");
    sim.control("edit", &json!({"chat": "ops", "id": id(&said), "text": "the new text"}));
    let text = mail_text(&courier, &only_mail(&courier));
    assert!(text.contains("the new text") && !text.contains("the first text"), "{text}");
    assert_eq!(kept_messages(&courier), 1);
}

#[test]
fn edit_of_a_mail_is_a_correction() {
    let (sim, courier) = polling(&[]);
    let said = sim.say("ops", "the first text");
    let first = only_mail(&courier);
    sim.control("edit", &json!({"chat": "ops", "id": id(&said), "text": "the new text"}));
    wait_for_kept(&courier, 2);
    let mails = kept_mails(&courier);
    let (second, _) = mails.iter().find(|(mail, _)| **mail != first).unwrap();
    let full = courier.get(&format!("/api/v1/messages/{second}")).ok().to_string();
    assert!(full.contains("the new text") && full.contains("corrects"), "{full}");
}

fn files_of(courier: &Courier, mail: &str) -> Vec<Value> {
    let full = courier.get(&format!("/api/v1/messages/{mail}")).ok();
    full["msg"]["content"]["machine"]["data"]["mail"]["artifacts"].as_array().unwrap().clone()
}

#[test]
fn files_are_fetched_into_the_mail_and_sent_from_a_message() {
    let (sim, courier) = polling(&[]);
    let file = json!({"name": "build.log", "mime_type": "text/plain", "text": "all is well"});
    sim.control("say", &json!({"chat": "ops", "text": "the log", "files": [file]}));
    let mail = only_mail(&courier);
    let files = files_of(&courier, &mail);
    assert_eq!(files[0]["name"], "build.log");
    assert!(files[0]["hash"].is_string(), "{files:#?}");
    let workspace = courier.home().join("workspace");
    std::fs::create_dir_all(workspace.join(".monoco/mailbox")).unwrap();
    let path = workspace.join("report.txt");
    std::fs::write(&path, "42").unwrap();
    let (path, workspace) = (path.to_str().unwrap(), workspace.to_str().unwrap());
    let mut args =
        vec!["mailbox", "send", "--provider", "telegram", "--to", "group:-1001000000001"];
    args.extend(["--text", "the report", "--silent", "--attach", path, "--workspace", workspace]);
    run(&courier, &args).ok();
    let sent = sim.wait_for_sent(1);
    assert_eq!((&sent[0]["via"], &sent[0]["text"]), (&json!("sendDocument"), &json!("the report")));
    assert_eq!(
        (&sent[0]["files"][0]["name"], &sent[0]["files"][0]["size"]),
        (&json!("report.txt"), &json!(2))
    );
    assert!(sent[0]["request"].to_string().contains("disable_notification"), "{sent:#?}");
}

#[test]
fn file_over_the_limit_of_bots_is_named_with_the_reason() {
    let (sim, courier) = polling(&[]);
    let file = json!({"name": "dump.tar", "mime_type": "application/x-tar", "size": 21 << 20});
    sim.control("say", &json!({"chat": "ops", "text": "the dump", "files": [file]}));
    let files = files_of(&courier, &only_mail(&courier));
    let why = files[0]["missing"].as_str().unwrap();
    assert!(why.contains("at most 20 MB"), "{why}");
}

#[test]
fn album_is_one_message_in_both_modes() {
    // All items arrive while the window of the Mail is open.
    for (sim, courier) in [polling_with(1500, &[]), pushing_with(1500)] {
        let file = |n: u32| {
            let name = format!("{n}.jpg");
            json!({"name": name, "mime_type": "image/jpeg", "text": name})
        };
        let files = [file(1), file(2), file(3)];
        sim.control("say", &json!({"chat": "ops", "text": "our trip", "files": files}));
        let mail = only_mail(&courier);
        assert_eq!(kept_messages(&courier), 1);
        let files = files_of(&courier, &mail);
        assert!(
            files.len() == 3 && files.iter().all(|file| file["hash"].is_string()),
            "{files:#?}"
        );
        assert_eq!(mail_text(&courier, &mail).matches("our trip").count(), 1);
    }
}

#[test]
fn anonymous_admins_channels_and_forwards_are_received_and_bots_are_not() {
    let (sim, courier) = polling(&[]);
    sim.control("say", &json!({"chat": "ops", "text": "of a bot", "bot": true}));
    sim.control("say", &json!({"chat": "ops", "text": "of an admin", "anonymous": true}));
    sim.control("say", &json!({"chat": "news", "text": "of a channel"}));
    sim.control("say", &json!({"chat": "@ann", "text": "of another", "forward": "channel"}));
    for kind in ["location", "poll", "dice", "contact"] {
        sim.control("say", &json!({"chat": "@ann", "kind": kind}));
    }
    wait_for_kept(&courier, 7);
    let texts: String = kept_mails(&courier).keys().map(|mail| mail_text(&courier, mail)).collect();
    for text in [
        "of an admin",
        "of a channel",
        "of another",
        "[location: ",
        "[poll: ",
        "[dice ",
        "[contact: ",
    ] {
        assert!(texts.contains(text), "{text}: {texts}");
    }
    assert!(!texts.contains("of a bot"), "{texts}");
}

#[test]
fn migration_to_a_supergroup_keeps_the_session() {
    let (sim, courier) = polling(&[]);
    sim.say("general", "before");
    let mail = only_mail(&courier);
    let moved = sim.control("migrate", &json!({"chat": "general"}));
    let (old, new) = (moved["from"].as_str().unwrap(), moved["to"].as_str().unwrap());
    sim.control("say", &json!({"chat": new, "text": "after"}));
    wait_for_kept(&courier, 2);
    for (_, mail) in kept_mails(&courier) {
        assert_eq!(
            mail["session"]["id"].as_str().or(mail["session_id"].as_str()),
            Some(old),
            "{mail:#}"
        );
    }
    reply(&courier, &mail, "to the group");
    let sent = sim.wait_for_sent(1);
    assert_eq!((&sent[0]["chat"], &sent[0]["text"]), (&json!(new), &json!("to the group")));
    // The ids are stored.
    let courier = courier.restart();
    wait_for_connection(&courier);
    sim.control("say", &json!({"chat": new, "text": "after the restart"}));
    wait_for_kept(&courier, 3);
    let sessions = kept_mails(&courier);
    assert!(sessions.values().all(|mail| mail.to_string().contains(old)), "{sessions:#?}");
}

#[test]
fn send_to_a_migrated_group_goes_to_the_new_id() {
    let sim = ChatSim::start_with("telegram", &["--apps", "2"]);
    let courier = Courier::start_configured(&chat_config("tele", 50, &keys(&sim, &[])));
    wait_for_connection(&courier);
    // Only the second bot hears of it, so the first one learns the id from an error.
    let moved = sim.control("migrate", &json!({"chat": "general", "app": 1}));
    let new = moved["to"].as_str().unwrap();
    send_to(&courier, "did:msgtunnel:-4001.group.tele", "hello");
    let sent = sim.wait_for_sent(1);
    assert_eq!((&sent[0]["chat"], &sent[0]["text"]), (&json!(new), &json!("hello")));
    let errors = sim.get("state")["counters"]["errors"].to_string();
    assert!(errors.contains("upgraded to a supergroup"), "{errors}");
}

#[test]
fn members_and_reactions_are_notices() {
    let (sim, courier) = polling(&[]);
    let said = sim.say("ops", "hello");
    sim.control("join", &json!({"chat": "ops", "user": "dora"}));
    sim.control("react", &json!({"chat": "ops", "id": id(&said), "user": "bob", "reaction": "👍"}));
    for kind in ["member_joined", "reaction_added"] {
        wait_for(|| {
            let events = courier.get("/api/v1/events?limit=1000").ok();
            let events = events["events"].as_array().unwrap();
            let is_wanted = |it: &&Value| it["kind"] == "notice" && it.to_string().contains(kind);
            events.iter().find(is_wanted).map(|_| ()).ok_or_else(|| format!("{kind}: {events:#?}"))
        });
    }
    wait_for_kept(&courier, 1);
}

#[test]
fn receipts_are_reactions_that_replace_each_other() {
    let (sim, courier) = polling(&["receipt: {kept: eyes, done: ok, dead: cross}"]);
    sim.say("ops", "the build is red");
    let reactions = || {
        let sent = sim.sent().into_iter().filter(|sent| sent["via"] == "setMessageReaction");
        sent.map(|sent| sent["request"].to_string()).collect::<Vec<_>>()
    };
    let wait_for_reaction = |count: usize, emoji: &str| {
        wait_for(|| match reactions() {
            found if found.len() == count && found[count - 1].contains(emoji) => Ok(()),
            found => Err(format!("{count} {emoji}: {found:?}")),
        });
    };
    wait_for_reaction(1, "👀");
    let mail = only_mail(&courier);
    courier.post(&format!("/api/v1/messages/{mail}/claim"), &json!({"agent_id": "a"})).ok();
    courier.post(&format!("/api/v1/messages/{mail}/complete"), &json!({"agent_id": "a"})).ok();
    wait_for_reaction(2, "👌");
    let metrics = courier.get("/metrics").text();
    let line = "monoco_tunnel_receipts_total{tunnel=\"tele\",result=\"sent\"} 2";
    assert!(metrics.contains(line), "{metrics}");
}

/// Posts a body with these headers and returns the status.
fn push(courier: &Courier, secret: Option<&str>, body: &Value) -> u16 {
    let mut headers = vec![
        ("Content-Type".to_owned(), "application/json".to_owned()),
        ("Host".to_owned(), "hooks.test".to_owned()),
    ];
    if let Some(secret) = secret {
        headers.push(("X-Telegram-Bot-Api-Secret-Token".to_owned(), secret.to_owned()));
    }
    let body = body.to_string();
    raw(courier.webhooks(), "POST", "/webhooks/tele", &headers, body.as_bytes()).unwrap().status
}

#[test]
fn requests_without_the_secret_token_are_rejected_and_not_kept() {
    let (sim, courier) = pushing();
    let update = json!({"update_id": 1, "message": {"message_id": 1, "date": 1_700_000_000,
        "from": {"id": 1001, "is_bot": false, "first_name": "ann"},
        "chat": {"id": 1001, "type": "private", "first_name": "ann"}, "text": "forged"}});
    for secret in [None, Some(""), Some("sim-secret"), Some("sim-secret_2"), Some("SIM-SECRET_1")] {
        assert_eq!(push(&courier, secret, &update), 401, "{secret:?}");
    }
    sim.chaos(json!({"wrong_signature": 1}));
    sim.say("ops", "signed at last");
    // The emulator repeats the request, with the secret.
    wait_for_kept(&courier, 1);
    assert_eq!(push(&courier, Some(SECRET), &update), 200);
    assert_eq!(push(&courier, Some(SECRET), &update), 200, "a repeated request is a duplicate");
    wait_for_kept(&courier, 2);
    let metrics = courier.get("/metrics").text();
    assert!(metrics.contains("reason=\"unverified\"} 6"), "{metrics}");
}

#[test]
fn polling_tunnel_rejects_webhook_requests() {
    let (_sim, courier) = polling(&[]);
    assert_ne!(push(&courier, Some(SECRET), &json!({"update_id": 1})), 200);
}

#[test]
fn doctor_and_tunnel_test_name_token_and_webhook() {
    let (sim, courier) = polling(&[]);
    let test = run(&courier, &["tunnel", "test", "tele"]).ok();
    assert!(test.contains("@monoco0_bot") && test.contains("privacy mode"), "{test}");
    sim.control("token", &json!({"revoked": true}));
    let doctor = run(&courier, &["doctor"]);
    let said = format!("{}{}", doctor.stdout, doctor.stderr);
    assert!(said.contains("the token is wrong or was revoked"), "{said}");
    assert!(!said.contains("AAsim"), "{said}");
}

#[test]
fn token_never_appears_in_logs_status_or_files() {
    let (sim, courier) = polling(&[]);
    sim.chaos(json!({"server_error": {"count": 2, "method": "getUpdates", "status": 502}, "drop_socket": true}));
    sim.chaos(json!({"expire_token": true}));
    wait_for(|| match tunnel_health(&courier) {
        health if health.to_string().contains("token is wrong") => Ok(()),
        health => Err(format!("{health:#}")),
    });
    let shown = format!("{:#}\n{}", courier.get("/health").ok(), courier.get("/metrics").text());
    let logs = run(&courier, &["courier", "logs", "--lines", "1000"]);
    for text in [&shown, &logs.stdout, &logs.stderr] {
        assert!(!text.contains("AAsim"), "{text}");
    }
    // A valid token is used again without a restart of the courier.
    sim.control("token", &json!({"revoked": false}));
    run(&courier, &["courier", "reload"]).ok();
    configure(courier.home(), &chat_config("tele", 50, &keys(&sim, &["poll_s: 20"])));
    run(&courier, &["courier", "reload"]).ok();
    sim.say("ops", "back again");
    wait_for_kept(&courier, 1);
}

#[test]
fn stream_test_shows_messages_and_confirms_none() {
    let (sim, mut courier) = polling(&[]);
    courier.kill();
    sim.say("ops", "only looked at");
    let shown = run(&courier, &["courier", "stream-test", "tele", "--duration", "4s"]);
    let said = format!("{}{}", shown.stdout, shown.stderr);
    assert!(said.contains("only looked at"), "{said}");
    let courier = courier.restart();
    wait_for_kept(&courier, 1);
}
