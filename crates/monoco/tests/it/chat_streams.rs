//! `courier stream-test` and `courier stream` with tunnels to emulators.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::chat_harness::{ChatSim, chat_config, run, wait_for_kept};
use crate::common::{Courier, binary, wait_for};
use crate::webhook_peer::configure;

/// The keys of a tunnel to the emulator of a network.
fn keys(network: &str, sim: &ChatSim) -> Vec<String> {
    let (urls, credentials): (&[&str], &[&str]) = match network {
        "slack" => (&["base_url"], &["app_token", "bot_token"]),
        _ => (&["base_url", "oapi_url"], &["app_key", "app_secret"]),
    };
    let mut keys = vec![format!("provider: {network}")];
    keys.extend(urls.iter().map(|key| format!("{key}: '{}'", sim.text(key))));
    keys.extend(credentials.iter().map(|key| format!("{key}: {}", sim.credential(key))));
    keys
}

/// What `stream-test` has not acknowledged, the network sends to the courier later.
#[test]
fn stream_test_shows_what_arrives_and_keeps_and_acknowledges_nothing() {
    for network in ["slack", "dingtalk"] {
        let sim = ChatSim::start(network);
        let settings = json!({"ack_timeout_ms": 1000, "max_attempts": 1000,
                              "resend_on_close": true, "backlog": true});
        sim.control("settings", &settings);
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        configure(&home, &chat_config("chat", 50, &keys(network, &sim)));
        let mut command = Command::new(binary());
        command.args(["courier", "stream-test", "chat", "--duration", "5s", "--format", "json"]);
        command.env_clear().env("MONOCO_HOME", &home).stdin(Stdio::null());
        let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        sim.wait_for_connections(1);
        sim.say("@ann", "is this stream alive?");
        let output = process.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{network}: {said}");
        assert!(said.contains("none was kept or acknowledged"), "{network}: {said}");
        assert!(!said.contains("\n0 events arrived") && !said.starts_with("0 events"), "{said}");
        let lines = String::from_utf8(output.stdout).unwrap();
        let events: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let kinds: Vec<_> = events.iter().map(|event| event["kind"].as_str().unwrap()).collect();
        assert!(kinds.contains(&"connected"), "{network}: {lines}");
        let message = events.iter().find(|event| event["kind"] == "message").expect(&lines);
        assert_eq!(message["event"]["text"], "is this stream alive?", "{network}");
        assert_eq!(sim.get("state")["events_waiting"], 1, "{network}: nothing is acknowledged");
        assert!(!home.join("store/monoco.db").exists(), "{network}: nothing is kept");
        sim.wait_for_connections(0);

        let courier = Courier::start_in(&home);
        wait_for_kept(&courier, 1);
        wait_for(|| match &sim.get("state")["events_waiting"] {
            waiting if *waiting == 0 => Ok(()),
            waiting => Err(format!("{network}: {waiting} events are not acknowledged")),
        });
    }
}

#[test]
fn stream_shows_connection_clocks_and_last_error() {
    let sim = ChatSim::start("slack");
    let courier = Courier::start_configured(&chat_config("chat", 50, &keys("slack", &sim)));
    let stream = |wanted: &dyn Fn(&Value) -> bool| {
        wait_for(|| {
            let shown = run(&courier, &["courier", "stream", "--format", "json"]).ok();
            let shown: Value = serde_json::from_str(&shown).unwrap();
            let stream = shown["streams"][0].clone();
            if wanted(&stream) { Ok(stream) } else { Err(format!("{shown:#}")) }
        })
    };
    let open = stream(&|stream| stream["state"] == "open" && stream["last_frame_at"].is_string());
    assert_eq!((&open["provider"], &open["mode"]), (&json!("slack"), &json!("socket")));
    assert_eq!(open["reconnects"], 0);
    sim.say("general", "hello");
    stream(&|stream| stream["last_message_at"].is_string());
    sim.chaos(json!({"drop_socket": true}));
    let again = stream(&|stream| stream["reconnects"] == 1 && stream["state"] == "open");
    assert!(again["last_error"].is_string() && again["last_error_at"].is_string(), "{again:#}");
}
