//! The views of the web page in Chromium: search, rules, agents, dead letters, a cluster; very
//! large Mails, several tabs, a courier that dies, and a page that does nothing.

use std::process::Command;

use serde_json::{Value, json};

use crate::common::{Courier, binary, chat};
use crate::mail_checker::answering;
use crate::page::{Browser, HOSTILE, agent_token, post_as};
use crate::webhook_peer::{Receiver, body, config, courier};

/// A config with a stub tunnel that refuses and loses messages.
const STUB: &str = "courier:\n  adapters:\n    chat: { provider: stub, idempotent: false }\n";

/// Sends a message of the owner through the stub.
fn send(courier: &Courier, to: &str, text: &str) {
    let target = format!("did:msgtunnel:{to}.user.chat");
    let msg = chat("did:monoco:me", &target, text);
    courier.post("/api/v1/post_send", &json!({"msg": msg})).ok();
}

/// A hub with `refused` dead deliveries and two UNCERTAIN ones.
fn hub_with_dead_letters(refused: usize) -> Courier {
    let courier = courier(STUB);
    courier.put("/api/v1/contacts/did:monoco:me", &json!({"here": true, "names": ["me"]})).ok();
    for number in 0..refused {
        send(&courier, "refuse", &format!("message {number}"));
    }
    for number in 0..2 {
        send(&courier, "lose", &format!("lost {number}"));
    }
    courier.until("/health", |health| health["dead"]["deliveries"] == refused + 2);
    courier
}

#[test]
fn search_marks_matches_and_has_pages() {
    let courier = courier(&config(0));
    for number in 0..60 {
        let text = format!("deploy {number} of the build is red");
        courier.hears(&format!("evt-{number}"), &format!("room-{number}"), "ann", &text);
    }
    courier.hears("evt-zh", "room-zh", "王芳", "今天 <b>部署</b> 失败了 😀 部署");
    courier.mails(61);
    let found = Browser::start(&courier, "search", &[]).passed();
    assert_eq!((&found["first"], &found["second"]), (&json!(50), &json!(10)), "{found}");
    let marked = found["marked"].as_str().unwrap();
    assert!(marked.contains("<b>部署</b>"), "markup is text: {marked}");
}

#[test]
fn unrouted_mail_becomes_a_filter_of_a_workspace() {
    let courier = courier(&config(0));
    let mut message = body("evt-1", "room \"7\": {x}", "ann", "hello");
    message["from"] = json!({"id": "an\"n: [\u{202e}", "name": "Ann"});
    courier.push(&message).ok();
    courier.mails(1);
    let mut browser = Browser::start(&courier, "rule", &[]);
    let found = browser.next();
    assert_eq!(found["rows"], 1);
    let dir = tempfile::tempdir().unwrap();
    for key in ["lines", "of_chat"] {
        let workspace = dir.path().join(key);
        std::fs::create_dir_all(workspace.join(".monoco/mailbox")).unwrap();
        let config = workspace.join(".monoco/mailbox/config.yaml");
        std::fs::write(config, found[key].as_str().unwrap()).unwrap();
        let mut command = Command::new(binary());
        command.args(["mailbox", "sync"]).current_dir(&workspace);
        command.env("MONOCO_HOME", courier.home());
        let ran = command.output().unwrap();
        let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(printed.contains("pulled 1"), "{key}: {printed}{ran:?}");
    }
    let listed = courier.get("/api/v1/messages?unrouted=true").ok();
    assert_eq!(listed["messages"], json!([]), "workspaces have it");
    browser.tell("routed");
    assert_eq!(browser.passed()["routed"], true);
}

#[test]
fn mails_without_a_workspace_are_listed_in_pages() {
    let courier = courier(&config(0));
    for number in 0..5 {
        courier.hears(&format!("evt-{number}"), &format!("room-{number}"), "ann", "hello");
    }
    let mails = courier.mails(5);
    let id = |number: usize| mails[number]["id"].as_str().unwrap().to_owned();
    let claim = json!({"agent_id": "codex", "workspace": "beta"});
    courier.post(&format!("/api/v1/messages/{}/claim", id(1)), &claim).ok();
    let mut found = Vec::new();
    let mut path = "/api/v1/messages?unrouted=true&order=oldest&limit=3".to_owned();
    loop {
        let page = courier.get(&path).ok();
        let rows = page["messages"].as_array().unwrap();
        assert!(rows.len() <= 3);
        found.extend(rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/api/v1/messages?unrouted=true&order=oldest&limit=3&cursor={cursor}");
    }
    assert_eq!(found, [id(0), id(2), id(3), id(4)], "claims of every workspace count");
    assert_eq!(courier.get("/api/v1/messages?unrouted=true&q=hello").status, 400);
}

#[test]
fn timeline_of_an_agent_has_reads_sends_and_approvals() {
    let courier = courier(&format!(
        "{}    news: {{ provider: stub }}\n  approvals:\n    rules: [{{ text_matches: done, do: send }}]\n",
        config(0)
    ));
    let secret = agent_token(&courier, "codex", "read,send");
    courier.hears("evt-1", "room-1", "ann", "please look");
    let mail = courier.mails(1)[0]["id"].as_str().unwrap().to_owned();
    let as_agent = |path: &str, body: &Value| post_as(&courier, &secret, path, body);
    let get = crate::page::get_as(&courier, &secret, &format!("/api/v1/messages/{mail}"));
    get.ok();
    for text in ["It is done.", "May I?", "Or may I?"] {
        let msg = chat("did:monoco:codex", "did:msgtunnel:ann.user.news", text);
        as_agent("/api/v1/post_send", &json!({"msg": msg})).ok();
    }
    let pending =
        courier.until("/api/v1/approvals", |list| list["approvals"].as_array().unwrap().len() == 2);
    let id = pending["approvals"][0]["id"].as_str().unwrap();
    courier.post(&format!("/api/v1/approvals/{id}/reject"), &json!({"reason": "not now"})).ok();
    let listed = courier.get("/api/v1/tokens/codex/activity").ok();
    let rows = listed["activities"].as_array().unwrap();
    let kinds: Vec<_> = rows.iter().map(|row| row["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["hold", "hold", "send", "read"]);
    assert_eq!(rows[3]["mail_id"], mail.as_str());
    assert_eq!(rows[0]["approval"]["reason"], "not now");
    assert_eq!(rows[1]["approval"]["state"], "PENDING");
    let cut = courier.get("/api/v1/tokens/codex/activity?limit=3").ok();
    assert_eq!((cut["activities"].as_array().unwrap().len(), &cut["truncated"]), (3, &json!(true)));
    let found = Browser::start(&courier, "agent", &["codex"]).passed();
    let steps = ["Held for approval, to", "Held for approval, to", "Sent to", "Read a Mail of"];
    assert_eq!(found["steps"], json!(steps));
    assert_eq!(found["states"], json!(["Rejected", "Pending", "untrusted"]));
    let lines = found["lines"].as_str().unwrap();
    let rule = r#"- { agent: "codex", to: ["did:msgtunnel:ann.user.news"], do: send }"#;
    assert!(lines.ends_with(rule), "{lines}");
}

#[test]
fn dead_letters_of_a_cause_are_dropped_together_after_they_were_counted() {
    let courier = hub_with_dead_letters(30);
    let found = Browser::start(&courier, "bulk", &[]).passed();
    let asked = found["asked"].as_str().unwrap();
    assert!(asked.contains("counts 30 dead letters"), "{asked}");
    assert_eq!(found["left"], 2, "UNCERTAIN deliveries stay");
    assert_eq!(courier.get("/health").ok()["dead"]["deliveries"], 2);
}

#[test]
fn filter_selects_the_dead_letters_that_are_changed() {
    let courier = hub_with_dead_letters(4);
    let ask = |verb: &str, body: Value| courier.post(&format!("/api/v1/dead/{verb}"), &body);
    assert_eq!(ask("retry", json!({})).status, 422, "a filter is needed");
    assert_eq!(ask("retry", json!({"kind": "box"})).status, 422);
    let counted = |body: Value| {
        let mut body = body;
        body["dry_run"] = json!(true);
        ask("retry", body).ok()["matched"].as_u64().unwrap()
    };
    assert_eq!(counted(json!({"kind": "delivery"})), 4, "UNCERTAIN ones only by name");
    assert_eq!(counted(json!({"state": "uncertain"})), 2);
    assert_eq!(counted(json!({"tunnel": "chat", "state": "DEAD"})), 4);
    assert_eq!(counted(json!({"tunnel": "other"})), 0);
    assert_eq!(counted(json!({"kind": "claim"})), 0);
    assert_eq!(courier.get("/health").ok()["dead"]["deliveries"], 6, "nothing was changed");
    let some = ask("drop", json!({"kind": "delivery", "state": "DEAD", "limit": 3})).ok();
    assert_eq!(
        (&some["changed"], &some["more"], &some["matched"]),
        (&json!(3), &json!(true), &json!(4))
    );
    assert_eq!(courier.get("/health").ok()["dead"]["deliveries"], 3);
    let dry =
        courier.cli(&["dead", "drop", "--state", "uncertain", "--dry-run", "--format", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&dry.ok()).unwrap()["matched"], 2);
    let ran = courier.cli(&["dead", "drop", "--kind", "delivery", "--format", "json"]).ok();
    assert_eq!(serde_json::from_str::<Value>(&ran).unwrap()["changed"], 3);
    assert_eq!(courier.get("/health").ok()["dead"]["total"], 0);
    assert_ne!(courier.cli(&["dead", "retry"]).code, 0, "ids or a filter are needed");
}

#[test]
fn couriers_of_a_cluster_are_shown_with_their_duties() {
    let courier = courier(&config(50));
    let found = Browser::start(&courier, "cluster", &[]).passed();
    let rows = found["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    let first = rows[0].as_str().unwrap();
    assert!(first.contains("running") && first.contains("leader, tunnel:ci"), "{first}");
    assert!(rows[1].as_str().unwrap().contains("not seen"), "{found}");
    let warnings = found["warnings"].to_string();
    assert!(warnings.contains("the certificate has expired"), "{found}");
    assert!(warnings.contains("no standby"), "{found}");
}

#[test]
fn very_large_mails_stay_usable() {
    let courier = courier(&config(0));
    courier.hears("line", "room-line", "ann", &"x".repeat(1_000_000));
    let line = courier.mails(1)[0]["id"].as_str().unwrap().to_owned();
    let found = Browser::start(&courier, "huge", &[&line]).passed();
    assert!(found["shown"].as_u64().unwrap() < 25_000, "{found}");
    assert_eq!(found["messages"], 50);
    assert!(found["elements"].as_u64().unwrap() < 1_500, "{found}");
}

#[test]
fn second_tab_follows_and_both_say_when_the_login_has_ended() {
    let courier = courier(&config(0));
    for room in ["room-1", "room-2"] {
        courier.hears(room, room, "ann", "hello");
    }
    courier.mails(2);
    assert_eq!(Browser::start(&courier, "tabs", &[]).passed()["logged_out"], 2);
}

#[test]
fn reply_whose_answer_was_lost_is_sent_once() {
    let receiver = Receiver::start();
    let mut courier = courier(&answering(&receiver, 0));
    let (port, home) = (courier.address.port().to_string(), courier.home().to_owned());
    let mail = courier.mail("evt-1");
    let mut browser = Browser::start(&courier, "dying", &[&mail]);
    assert_eq!(browser.next()["told"], true);
    courier.kill();
    assert_eq!(browser.next()["disconnected"], true);
    let mut command = Command::new(binary());
    command.args(["courier", "start", "--foreground", "--port", &port]);
    let restarted = Courier::spawn(&home, &mut command);
    assert_eq!(browser.passed()["queued"], true);
    assert!(receiver.next().body.contains("fixed in 42"));
    let trace = restarted.get(&format!("/api/v1/trace/{mail}")).ok();
    let found = restarted.until("/api/v1/search?q=fixed", |found| found["complete"] == true);
    let replies = found["messages"].as_array().unwrap().len();
    assert_eq!(replies, 1, "the same key is the same message: {trace:#}");
}

#[test]
fn idle_page_makes_no_requests_and_runs_no_timers() {
    let courier = courier(&config(0));
    courier.mail("evt-1");
    // The courier counts the events of the Mail, and has nothing to do then.
    let found = Browser::start(&courier, "idle", &[]).passed();
    for (view, idle) in found.as_object().unwrap() {
        assert_eq!(idle, &json!({"quiet": true, "timers": 0}), "{view}");
    }
}

#[test]
fn hostile_texts_of_agents_and_searches_run_nothing() {
    let courier = hub_with_dead_letters(0);
    let secret = agent_token(&courier, "codex", "read,send");
    for text in HOSTILE {
        let msg = chat("did:monoco:codex", "did:msgtunnel:ann.user.chat", text);
        post_as(&courier, &secret, "/api/v1/post_send", &json!({"msg": msg})).ok();
    }
    let path = "/api/v1/approvals";
    let listed = courier.until(path, |list| list["approvals"].as_array().unwrap().len() == 8);
    let mut addresses: Vec<String> =
        ["#/agents/codex", "#/agents/%3Cscript%3E", "#/approvals"].map(str::to_owned).to_vec();
    for approval in listed["approvals"].as_array().unwrap() {
        let id = approval["id"].as_str().unwrap();
        addresses.push(format!("#/approvals/{id}"));
        let reason = json!({"reason": HOSTILE[1]});
        courier.post(&format!("/api/v1/approvals/{id}/reject"), &reason).ok();
    }
    addresses.push("#/approvals?state=REJECTED".to_owned());
    addresses.push("#/search?q=alert".to_owned());
    addresses.push("#/search?q=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E".to_owned());
    addresses.push("#/dead?tunnel=%3Cscript%3E".to_owned());
    let args: Vec<&str> = addresses.iter().map(String::as_str).collect();
    Browser::start(&courier, "hostile", &args).passed();
}
