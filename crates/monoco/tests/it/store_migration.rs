//! `monoco store migrate`: an embedded store becomes one in PostgreSQL, and back.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::ack_checker::{LARGE, batch_dispatch};
use crate::common::{Courier, ME, Ran, binary, chat, cli, wait_for};
use crate::postgres_server::PostgresServer;
use crate::webhook_peer::{body, config, configure};

/// Records of the test: enough commits for a kill in the middle.
const RECORDS: usize = 3_000;

fn stop(courier: Courier) {
    courier.cli(&["courier", "stop"]).ok();
}

fn migrate(home: &Path, to: &str) -> Ran {
    cli(home, &["store", "migrate", "--to", to, "--format", "json"], "")
}

/// What a courier shows of its store.
fn contents(courier: &Courier, large: &str) -> Vec<Value> {
    let record = courier.get(&format!("/api/v1/records/{large}")).ok();
    let msg = record["msg_id"].as_str().unwrap_or_else(|| panic!("{record:#}")).to_owned();
    let large = courier.get(&format!("/api/v1/objects/{msg}")).ok();
    let mails = courier.get("/api/v1/messages?order=oldest&limit=1000").ok();
    let inbox = courier.get(&format!("/api/v1/boxes/{ME}/INBOX?limit=1000")).ok();
    let events = courier.get("/api/v1/events?limit=1000").ok();
    vec![large, mails["messages"].clone(), inbox["records"].clone(), events["events"].clone()]
}

/// Adds messages, and returns the record of one that is stored in a file.
fn add_messages(courier: &Courier) -> String {
    for start in (0..RECORDS).step_by(500) {
        let line = |n| json!({"msg": chat("did:web:ann", ME, &format!("record {n}"))}).to_string();
        let lines: Vec<_> = (start..start + 500).map(line).collect();
        assert_eq!(batch_dispatch(courier, &lines.join("\n")).status, 200);
    }
    let large = courier.deliver(ME, &"large ".repeat(LARGE / 6));
    courier.hears("evt-1", "room", "ann", "hello \u{1} control");
    courier.hears("evt-2", "other room", "bob", "你好");
    let mails = courier.mails(2);
    let mail = mails[0]["id"].as_str().unwrap();
    courier.ask(mail, "claim", json!({"agent_id": "agent-1"})).ok();
    large
}

#[test]
fn store_moves_to_postgresql_and_back_with_all_its_contents() {
    let (server, dir) = (PostgresServer::start(), tempfile::tempdir().unwrap());
    let home = dir.path().join("home");
    configure(&home, &config(50));
    let courier = Courier::start_in(&home);
    let large = add_messages(&courier);
    let before = contents(&courier, &large);
    let busy = migrate(&home, &server.url()).failed(1);
    assert!(busy.contains("running"), "{busy}");
    stop(courier);

    // Killed in the middle, and continued.
    let mut command = Command::new(binary());
    command.args(["store", "migrate"]).env_clear().env("MONOCO_HOME", &home);
    command.env("MONOCO_MIGRATE_TO", server.url()).stderr(Stdio::null());
    let mut killed = command.stdin(Stdio::null()).spawn().unwrap();
    wait_for(|| {
        let tables = server.sql("SELECT to_regclass('monoco.couriers') IS NOT NULL");
        let copied = "SELECT count(*) > 0 FROM monoco.objects";
        if tables == "t" && server.sql(copied) == "t" { Ok(()) } else { Err("no rows".to_owned()) }
    });
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(server.sql("SELECT count(*) FROM monoco.couriers"), "0", "it was not finished");
    let copied: Value = serde_json::from_str(&migrate(&home, &server.url()).ok()).unwrap();
    assert!(copied["rows"].as_u64().unwrap() > RECORDS as u64, "{copied}");
    assert_eq!(copied["files"], 1, "{copied}");
    let again = migrate(&home, &server.url()).failed(1);
    assert!(again.contains("complete or in use"), "{again}");

    let sqlite = config(50);
    let storage = format!("courier:\n  storage: {{ store: '{}' }}\n", server.url());
    configure(&home, &sqlite.replacen("courier:\n", &storage, 1));
    let courier = Courier::start_in(&home);
    assert_eq!(contents(&courier, &large), before);
    assert_eq!(courier.push(&body("evt-1", "room", "ann", "hello")).ok()["stored"], 0);
    courier.hears("evt-3", "third room", "ann", "new in PostgreSQL");
    courier.mails(3);
    let between = contents(&courier, &large);
    stop(courier);

    let new_home = dir.path().join("back");
    let target = new_home.join("store");
    configure(&new_home, &sqlite);
    migrate(&home, target.to_str().unwrap()).ok();
    let courier = Courier::start_in(&new_home);
    assert_eq!(contents(&courier, &large), between);
    courier.hears("evt-4", "fourth room", "ann", "new in SQLite");
    courier.mails(4);
}
