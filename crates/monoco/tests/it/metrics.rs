//! What waits is counted alike in `/health`, `/metrics`, `courier status` and lists of Mails.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::common::Courier;
use crate::pipeline_harness::{PipelineCourier, mail};
use crate::webhook_peer::{config, courier};

/// Returns the value of a metric without labels.
#[track_caller]
fn metric(courier: &Courier, name: &str) -> i64 {
    let text = courier.get("/metrics").text();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// Checks all places that show how many messages wait.
#[track_caller]
fn waiting(courier: &Courier, count: i64) {
    let health: Value = courier.get("/health").ok();
    assert_eq!(health["metrics"]["messages_pending"], count);
    let status: Value =
        serde_json::from_str(&courier.cli(&["courier", "status", "--json"]).ok()).unwrap();
    assert_eq!(status["metrics"]["messages_pending"], count);
    assert_eq!(metric(courier, "monoco_waiting_mails"), count);
    let new = |status: &str| {
        let path = format!("/api/v1/messages?limit=1000&status={status}");
        courier.get(&path).ok()["messages"].as_array().unwrap().len()
    };
    assert_eq!(i64::try_from(new("NEW") + new("CLAIMED")).unwrap(), count);
}

#[test]
fn pending_messages_are_the_mails_that_are_not_done() {
    let courier = courier(&config(50));
    waiting(&courier, 0);
    let mails = ["room-1", "room-2"].map(|room| courier.mail(room));
    waiting(&courier, 2);
    courier.ask(&mails[0], "claim", json!({"agent_id": "ann", "timeout": 60})).ok();
    waiting(&courier, 2);
    courier.ask(&mails[0], "complete", json!({"agent_id": "ann"})).ok();
    waiting(&courier, 1);
    assert_eq!(metric(&courier, "monoco_unmerged_messages"), 0);
}

#[test]
fn promtool_accepts_the_metrics() {
    let fixture = PipelineCourier::open(&json!({
        "outbound": ["tagger", "send"],
        "workers": {"tagger": {"kind": "exec", "command": ["sh", "-c", "exit 1"], "retries": 0}},
    }));
    let id = fixture.post(&mail("bob@example.org", "Hello", "hello"));
    fixture.stands(&id, "DEAD");
    let text = fixture.courier.get("/metrics").text();
    assert!(text.contains("\n# TYPE monoco_worker_letters_total counter\n"), "{text}");
    assert!(!text.contains("# EOF"), "{text}");
    check_with_promtool(&text);
}

/// Checks metrics in the format of Prometheus.
#[track_caller]
pub fn check_with_promtool(text: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool runs; it is in the Debian package prometheus");
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let found = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && found.is_empty(), "{found}{text}");
}
