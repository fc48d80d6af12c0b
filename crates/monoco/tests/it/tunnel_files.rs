//! Tunnels in files of their own, in `courier/adapters.d`, and reloads of running tunnels.

use std::fs;
use std::path::PathBuf;

use serde_json::json;

use crate::common::{Courier, cli};
use crate::webhook_peer::{SECRET, body, config};

/// A courier without tunnels but `ci`, which is in a file of its own.
fn courier() -> Courier {
    let courier = Courier::start();
    write(&courier, "ci.yaml", &format!("provider: webhook\nsecret: '{SECRET}'\n"));
    courier
}

fn write(courier: &Courier, name: &str, text: &str) {
    let path = file(courier, name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn file(courier: &Courier, name: &str) -> PathBuf {
    courier.home().join("courier/adapters.d").join(name)
}

fn reload(courier: &Courier) -> String {
    let ran = courier.cli(&["courier", "reload"]);
    let said = ran.stderr.clone();
    ran.ok();
    said
}

#[test]
fn file_is_a_tunnel_after_a_reload_and_gone_when_it_is_removed() {
    let courier = courier();
    assert!(reload(&courier).contains("tunnel ci: added"));
    courier.hears("1", "room", "ann", "hello");
    let adapters = courier.get("/health").ok()["adapters"].clone();
    assert_eq!(
        (&adapters["ci"]["status"], &adapters["ci"]["mode"]),
        (&json!("hearing"), &json!("push"))
    );

    write(&courier, "ci.yaml", "provider: webhook\nsecrt: hunter2\n");
    let ran = courier.cli(&["courier", "reload"]).failed(1);
    assert!(ran.contains("adapters.d/ci.yaml: line 2, column 1: unknown key `secrt`"), "{ran}");
    courier.hears("2", "room", "ann", "the old config is in use");

    fs::remove_file(file(&courier, "ci.yaml")).unwrap();
    assert!(reload(&courier).contains("tunnel ci: removed"));
    assert_eq!(courier.push(&body("3", "room", "ann", "late")).status, 404);
    let doctor = courier.cli(&["doctor"]);
    assert!(!doctor.stdout.contains("FAIL  config"), "{}", doctor.stdout);
}

#[test]
fn tunnel_of_two_files_is_an_error() {
    let courier = Courier::start_configured(&config(10));
    write(&courier, "ci.yaml", "provider: stub\n");
    let ran = courier.cli(&["courier", "reload"]).failed(1);
    assert!(ran.contains("adapters.d/ci.yaml: the file: the tunnel ci is also in "), "{ran}");
    courier.hears("1", "room", "ann", "the old config is in use");
}

#[test]
fn live_keys_change_without_a_restart_of_the_tunnel() {
    let courier = courier();
    reload(&courier);
    courier.hears("1", "room", "ann", "before");
    let all = format!("provider: webhook\nsecret: '{SECRET}'\nbinding: alpha\nstrangers: drop\n");
    write(&courier, "ci.yaml", &all);
    assert!(reload(&courier).contains("tunnel ci: changed strangers, binding"));
    // The counters of the tunnel go on, because it is the same one.
    assert_eq!(courier.get("/health").ok()["adapters"]["ci"]["received"], 1);
    assert_eq!(courier.push(&body("2", "room", "eve", "dropped")).ok()["stored"], 0);
    let metrics = courier.get("/metrics").text();
    assert!(metrics.contains(r#"monoco_tunnel_up{tunnel="ci",mode="push"} 1"#), "{metrics}");
}

#[test]
fn files_of_tunnels_are_in_a_backup_and_restored() {
    let courier = courier();
    let dir = tempfile::tempdir().unwrap();
    let backup = dir.path().join("backup");
    courier.cli(&["backup", backup.to_str().unwrap()]).ok();
    let home = dir.path().join("restored");
    cli(&home, &["restore", backup.to_str().unwrap()], "").ok();
    let restored = fs::read(home.join("courier/adapters.d/ci.yaml")).unwrap();
    assert_eq!(restored, fs::read(file(&courier, "ci.yaml")).unwrap());
    let manifest = backup.join("backup.json");
    let text = fs::read_to_string(&manifest).unwrap();
    let evil = text.replace("courier/adapters.d/ci.yaml", "courier/adapters.d/../../x.yaml");
    assert_ne!(text, evil);
    fs::write(&manifest, evil).unwrap();
    let home = dir.path().join("third");
    cli(&home, &["restore", backup.to_str().unwrap()], "").failed(1);
    assert!(!dir.path().join("x.yaml").exists() && !home.join("x.yaml").exists());
}

#[test]
fn e_mail_account_without_its_server_is_down_and_one_mailbox_has_one_did() {
    let courier = Courier::start();
    let server = "{host: 127.0.0.1, port: 1, tls: none}";
    let account = format!(
        "provider: email\naddress: team@example.com\npassword: a\nimap: {server}\nsmtp: {server}\n"
    );
    write(&courier, "work.yaml", &account);
    reload(&courier);
    let health =
        courier.until("/health", |health| health["adapters"]["work"]["last_error"].is_string());
    let work = &health["adapters"]["work"];
    assert_eq!((&work["status"], &work["mode"]), (&json!("down"), &json!("idle")), "{work}");
    assert_eq!(work["connected"], false, "{work}");
    let metrics = courier.get("/metrics").text();
    assert!(metrics.contains(r#"monoco_tunnel_up{tunnel="work",mode="idle"} 0"#), "{metrics}");

    for to in ["Joe@Example.COM", "addr:Joe@example.com", "user:Joe@EXAMPLE.com"] {
        let send = ["mailbox", "send", "--provider", "email", "--to", to, "--text", "hi"];
        courier.cli(&send).ok();
    }
    let sent = courier.until("/api/v1/boxes/did:msgtunnel:work/TUNNEL_OUTBOX", |page| {
        page["records"].as_array().is_some_and(|records| records.len() == 3)
    });
    let joe = "did:msgtunnel:Joe%40example%2Ecom.addr.work";
    for record in sent["records"].as_array().unwrap() {
        let text = record.to_string();
        assert!(text.contains(joe) && text.contains(r#""Joe@example.com""#), "{text}");
    }
    let send = ["mailbox", "send", "--provider", "email", "--to", "joe", "--text", "hi"];
    let said = courier.cli(&send).failed(1);
    assert!(said.contains(r#"to: "joe" is not an e-mail address"#), "{said}");

    courier.cli(&["contact", "add", "did:web:joe"]).ok();
    let bind = ["contact", "bind", "did:web:joe", "work", "Joe@Example.COM", "--format", "json"];
    let bound = courier.cli(&bind).ok();
    let bound: serde_json::Value = serde_json::from_str(&bound).unwrap();
    assert_eq!(bound["bindings"][0]["kind"], "addr", "{bound}");
    assert_eq!(bound["bindings"][0]["address"], "Joe@example.com", "{bound}");
}
