//! `monoco tunnel`: a tunnel is added, listed, tested, paused, resumed and removed.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::common::{Courier, cli};
use crate::webhook_peer::{SECRET, body};

/// Adds the webhook tunnel `ci`, whose secret is read from stdin.
fn add(courier: &Courier, more: &[&str]) -> crate::common::Ran {
    let args = ["tunnel", "add", "webhook", "--name", "ci", "--secret", "secret=stdin"];
    cli(courier.home(), &[&args, more].concat(), &format!("{SECRET}\n"))
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn status(courier: &Courier) -> Value {
    let list: Value =
        serde_json::from_str(&courier.cli(&["tunnel", "list", "--json"]).ok()).unwrap();
    let tunnels = list["tunnels"].as_array().unwrap();
    let ci = tunnels.iter().find(|tunnel| tunnel["id"] == "ci").unwrap();
    ci["health"]["status"].clone()
}

#[test]
fn tunnel_is_added_with_a_private_secret_and_removed_with_it() {
    let courier = Courier::start();
    let dir = courier.home().join("courier");
    let (file, secret) = (dir.join("adapters.d/ci.yaml"), dir.join("secrets/ci.secret"));
    add(&courier, &[]).ok();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains(SECRET) && text.contains("secret_file"), "{text}");
    assert_eq!((mode(&file), mode(&secret), mode(&dir.join("secrets"))), (0o600, 0o600, 0o700));
    assert_eq!(std::fs::read_to_string(&secret).unwrap().trim(), SECRET);
    courier.hears("1", "room", "ann", "hello");
    assert_eq!(status(&courier), "hearing");
    courier.cli(&["tunnel", "test", "ci"]).ok();

    let again = add(&courier, &[]).failed(1);
    assert!(again.contains("there is a tunnel ci already"), "{again}");
    courier.cli(&["tunnel", "remove", "ci"]).ok();
    assert!(!file.exists() && !secret.exists());
    assert_eq!(courier.push(&body("2", "room", "ann", "late")).status, 404);
    let missing = courier.cli(&["tunnel", "remove", "ci"]).failed(1);
    assert!(missing.contains("there is no file"), "{missing}");
}

#[test]
fn invalid_tunnel_is_not_written() {
    let courier = Courier::start();
    let dir = courier.home().join("courier/adapters.d");
    for (args, error) in [
        (&["slak"][..], "unknown provider \"slak\""),
        (&["webhook"], "missing: secret (secret of the signatures)"),
        (&["webhook", "--set", "secret=abc"], "secret is a secret, which the file must not have"),
        (&["webhook", "--set", "verfy=github"], "missing: secret"),
        (&["webhook", "--set", "verfy=github", "--secret", "secret=env:A"], "verfy"),
        (&["webhook", "--name", "a b", "--secret", "secret=env:A"], "a b"),
        (&["webhook", "--secret", "secret=env:UNSET"], "UNSET"),
        (&["email", "--set", "address=a@example.com"], "missing: imap.host"),
    ] {
        let said = courier.cli(&[&["tunnel", "add"], args].concat()).failed(64);
        assert!(said.contains(error), "{args:?}: {said}");
        assert!(!dir.exists(), "{args:?}");
    }
    // A tunnel of the config file of the same name is found when the file is read back.
    let config = courier.home().join("courier/config.yaml");
    std::fs::write(config, "courier: { adapters: { ci: { provider: stub } } }").unwrap();
    let said = add(&courier, &[]).failed(1);
    assert!(said.contains("the tunnel ci is also in"), "{said}");
    assert!(!dir.join("ci.yaml").exists());
    assert!(!courier.home().join("courier/secrets/ci.secret").exists());
}

#[test]
fn paused_tunnel_rejects_webhooks_and_stays_paused_after_a_restart() {
    let courier = Courier::start();
    add(&courier, &[]).ok();
    courier.hears("1", "room", "ann", "hello");
    courier.cli(&["tunnel", "pause", "ci"]).ok();
    let rejected = courier.push(&body("2", "room", "ann", "while paused"));
    assert_eq!(rejected.refused(503), "tunnel_paused");
    let courier = courier.restart();
    assert_eq!(status(&courier), "paused");
    assert!(courier.cli(&["courier", "status"]).ok().contains("paused"));
    let doctor = courier.cli(&["doctor"]);
    assert!(doctor.stdout.contains("ci is paused"), "{doctor:?}");
    assert_eq!(courier.push(&body("2", "room", "ann", "while paused")).status, 503);
    courier.cli(&["tunnel", "resume", "ci"]).ok();
    courier.hears("2", "room", "ann", "while paused");
    assert_eq!(status(&courier), "hearing");
    let answer = courier.post("/api/v1/tunnels/nothing/pause", &json!({}));
    assert_eq!(answer.refused(404), "not_found");
}

#[test]
fn deliveries_of_a_paused_tunnel_wait() {
    let courier = Courier::start();
    courier.cli(&["tunnel", "pause", "stub"]).ok();
    let msg = json!({"from": "did:monoco:me", "to": ["did:msgtunnel:ann.user.stub"],
                     "kind": "chat", "content": {"content": "hello"}});
    let sent = courier.post("/api/v1/post_send", &json!({ "msg": msg })).ok();
    let record =
        format!("/api/v1/records/{}", sent["deliveries"][0]["record_id"].as_str().unwrap());
    let courier = courier.restart();
    assert_eq!(courier.get(&record).ok()["state"], "WAIT");
    courier.cli(&["tunnel", "resume", "stub"]).ok();
    courier.until(&record, |record| record["state"] == "SENT");
    let said = courier.cli(&["tunnel", "test", "stub", "--to", "ann"]);
    assert!(said.stderr.contains("sent a test message to ann"), "{said:?}");
    let said = courier.cli(&["tunnel", "test", "stub", "--to", "refuse"]).failed(1);
    assert!(said.contains("the test message was not sent"), "{said}");
}

#[test]
fn tunnels_are_added_beside_the_config_of_the_running_courier() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let config = elsewhere.join("my.yaml");
    std::fs::write(&config, "").unwrap();
    let home = dir.path().join("home");
    let courier = Courier::start_with(&home, |command| command.arg("--config").arg(&config));
    add(&courier, &[]).ok();
    assert!(elsewhere.join("adapters.d/ci.yaml").exists());
    assert!(elsewhere.join("secrets/ci.secret").exists());
    courier.hears("1", "room", "ann", "hello");

    let other = dir.path().join("other.yaml");
    let said = add(&courier, &["--config", other.to_str().unwrap()]);
    assert!(said.stderr.contains("the running courier reads another config"), "{said:?}");
    assert!(dir.path().join("adapters.d/ci.yaml").exists());
    let mail = [
        "email",
        "add",
        "team",
        "--address",
        "team@example.com",
        "--imap",
        "localhost",
        "--smtp",
        "none",
        "--password-env",
        "NONE",
        "--no-test",
        "--config",
    ];
    cli(&home, &[&mail[..], &[other.to_str().unwrap()]].concat(), "").ok();
    assert!(dir.path().join("adapters.d/team.yaml").exists());
    courier.cli(&["tunnel", "remove", "ci"]).ok();
    assert!(!elsewhere.join("adapters.d/ci.yaml").exists());
}

#[test]
fn stream_commands_name_tunnels_without_a_connection() {
    let courier = Courier::start();
    let said = courier.cli(&["courier", "stream", "--json"]).ok();
    let list: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(list["streams"], json!([]));
    let said = courier.cli(&["courier", "stream-test", "stub"]).failed(1);
    assert!(said.contains("opens no connection"), "{said}");
    let said = courier.cli(&["courier", "stream-test", "none"]).failed(1);
    assert!(said.contains("there is no tunnel none"), "{said}");
    courier.cli(&["courier", "stream-test", "stub", "--duration", "soon"]).failed(64);
}
