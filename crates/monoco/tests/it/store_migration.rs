//! `monoco store migrate`: an embedded store becomes one in PostgreSQL, and back.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::ack_checker::{LARGE, batch_dispatch};
use crate::common::{Courier, ME, Ran, binary, chat, cli, until};
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

/// Kills a migration as soon as it has begun to write.
fn kill_migration(home: &Path, to: &str, has_begun: impl Fn() -> bool) {
    let mut command = Command::new(binary());
    command.args(["store", "migrate"]).env_clear().env("MONOCO_HOME", home);
    command.env("MONOCO_MIGRATE_TO", to).stderr(Stdio::null()).stdout(Stdio::null());
    let mut killed = command.stdin(Stdio::null()).spawn().unwrap();
    until("the migration has begun", has_begun);
    killed.kill().unwrap();
    killed.wait().unwrap();
}

/// A courier does not start on a copy that is not complete, and says what to do.
#[track_caller]
fn assert_incomplete(home: &Path) {
    let mut command = Command::new(binary());
    command.args(["courier", "start", "--foreground", "--port", "0"]);
    let why = Courier::try_spawn(home, &mut command).map(|_| "the courier started").unwrap_err();
    assert!(why.contains("a copy that is not complete"), "{why}");
    assert!(why.contains("monoco store migrate"), "{why}");
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
    kill_migration(&home, &server.url(), || {
        let tables = server.sql("SELECT to_regclass('monoco.couriers') IS NOT NULL");
        tables == "t" && server.sql("SELECT count(*) > 0 FROM monoco.objects") == "t"
    });
    assert_eq!(server.sql("SELECT count(*) FROM monoco.couriers"), "0", "it was not finished");
    let half = dir.path().join("half");
    let storage = format!("courier:\n  storage: {{ store: '{}' }}\n", server.url());
    configure(&half, &config(50).replacen("courier:\n", &storage, 1));
    assert_incomplete(&half);
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
    // The log has the tables, and then rows.
    let log = target.join("monoco.db-wal");
    kill_migration(&home, target.to_str().unwrap(), || {
        std::fs::metadata(&log).is_ok_and(|log| log.len() > 3 << 19)
    });
    assert_incomplete(&new_home);
    let found = cli(&new_home, &["doctor"], "");
    assert!(found.stdout.contains("copy that is not complete"), "{found:?}");
    migrate(&home, target.to_str().unwrap()).ok();
    let courier = Courier::start_in(&new_home);
    assert_eq!(contents(&courier, &large), between);
    courier.hears("evt-4", "fourth room", "ann", "new in SQLite");
    courier.mails(4);
}
