//! `monoco doctor`: what it finds, and how it prints it.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::common::until;
use crate::daemon::Daemon;

/// The checks of the doctor by name, and its exit code.
fn doctor(daemon: &Daemon) -> (i32, Vec<(String, String, String)>) {
    let ran = daemon.run(&["doctor", "--format", "json"]);
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    let text = |check: &Value, key: &str| check[key].as_str().unwrap().to_owned();
    let checks = answer["checks"].as_array().unwrap().iter();
    let checks = checks.map(|c| (text(c, "check"), text(c, "state"), text(c, "detail")));
    (ran.code, checks.collect())
}

fn has(checks: &[(String, String, String)], check: &str, state: &str, detail: &str) -> bool {
    checks.iter().any(|(a, b, c)| a == check && b == state && c.contains(detail))
}

#[test]
fn the_doctor_warns_of_secret_files_that_others_can_read() {
    let daemon = Daemon::new();
    std::fs::create_dir_all(&daemon.home).unwrap();
    let secret = daemon.home.join("ci.secret");
    std::fs::write(&secret, "YSBzZWNyZXQgb2YgdGhpcnR5LXR3byBieXRlcyAhISE=").unwrap();
    daemon.configure(&format!(
        "courier: {{adapters: {{ci: {{provider: webhook, secret_file: '{}'}}}}}}",
        secret.display()
    ));
    for (mode, is_found) in [(0o644, true), (0o640, true), (0o600, false)] {
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(mode)).unwrap();
        let (_, checks) = doctor(&daemon);
        let found = has(&checks, "config", "warn", &format!("ci.secret (mode {mode:o})"));
        assert_eq!(found, is_found, "{checks:?}");
    }
}

#[test]
fn the_doctor_finds_what_is_wrong_and_only_that() {
    let daemon = Daemon::new();
    daemon.configure("courier: {service: {port: 0, webhook_port: 0}}");
    std::fs::set_permissions(&daemon.home, std::fs::Permissions::from_mode(0o700)).unwrap();
    let (code, checks) = doctor(&daemon);
    assert_eq!(code, 0, "{checks:?}");
    assert!(has(&checks, "courier", "warn", "not running"), "{checks:?}");
    assert!(!daemon.home.join("store").exists(), "looking made something");
    daemon.run(&["courier", "start"]).ok();
    let (code, checks) = doctor(&daemon);
    assert_eq!(code, 0, "{checks:?}");
    for check in ["home", "token", "config", "disk", "courier", "store", "tunnel", "clock"] {
        assert!(has(&checks, check, "ok", ""), "{check}: {checks:?}");
    }
    // A config that would not be taken, a home that is open, a dead letter.
    daemon.configure("courier: {adapters: {ci: {provider: webhook, secret: '${NOT_SET}'}}}");
    std::fs::set_permissions(&daemon.home, std::fs::Permissions::from_mode(0o755)).unwrap();
    let target = "did:msgtunnel:refuse.user.stub";
    let send = ["center", "send", "--from", "did:monoco:me", "--to", target, "--text", "no"];
    daemon.run(&send).ok();
    until("the delivery is dead", || daemon.run(&["dead", "list"]).stdout.contains("dlv_"));
    let (code, checks) = doctor(&daemon);
    assert_eq!(code, 1, "{checks:?}");
    assert!(has(&checks, "home", "fail", "(mode 755, expected 700)"), "{checks:?}");
    assert!(has(&checks, "config", "warn", "the variable NOT_SET is not set"), "{checks:?}");
    assert!(has(&checks, "dead letters", "warn", "1"), "{checks:?}");
    // When no courier runs, no other process has that variable.
    daemon.run(&["courier", "stop"]).ok();
    let (_, checks) = doctor(&daemon);
    assert!(has(&checks, "config", "fail", "the variable NOT_SET is not set"), "{checks:?}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    daemon.configure(&format!("courier: {{service: {{port: {port}, webhook_port: 0}}}}"));
    let (code, checks) = doctor(&daemon);
    assert!(has(&checks, "port", "fail", &port.to_string()), "{checks:?}");
    assert_eq!(code, 1);
    // A table as of other commands, and below it what is wrong with what to do, in full.
    let text = daemon.run(&["doctor"]).stdout;
    let (table, problems) = text.split_once("\n\n").unwrap();
    assert!(table.lines().next().unwrap().contains("CHECK"), "{text}");
    assert!(table.lines().any(|line| line.starts_with("port  ")), "{text}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(problems.contains(&format!("FAIL  port: {port}: ")), "{text}");
    assert!(problems.contains("set another port in courier.service of the config\n"), "{text}");
    assert!(!problems.contains("OK  "), "{text}");
}
