//! A machine whose clock is set while the courier runs, or wrong when it starts.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::{Courier, raw};
use crate::fake_clock::FakeClock;
use crate::webhook_peer::{SECRET, body, config, configure, seconds, signed_at};

/// A home whose courier believes a clock that we set.
struct Machine {
    dir: tempfile::TempDir,
    clock: FakeClock,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        configure(&dir.path().join("home"), &config(50));
        Self { dir, clock: FakeClock::new("+0") }
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// Sets its clock, as far from the true time as said: `+1d`.
    fn set(&self, offset: &str) {
        self.clock.set(offset);
    }

    fn start(&self) -> Courier {
        Courier::start_under(&self.home(), &self.clock.prefix())
    }
}

/// A Mail that is pushed when the machine's clock is `ahead` of ours.
fn mail(courier: &Courier, id: &str, ahead: u64) -> String {
    let said = body(id, id, "ann", "tick").to_string();
    let headers = signed_at(SECRET, said.as_bytes(), seconds() + ahead);
    raw(courier.webhooks(), "POST", "/webhooks/ci", &headers, said.as_bytes()).unwrap().ok();
    let session = |answer: &serde_json::Value| {
        let mails = answer["messages"].as_array().unwrap();
        let mail = mails.iter().find(|mail| mail["session"]["id"] == id)?;
        Some(mail["id"].as_str().unwrap().to_owned())
    };
    session(&courier.until("/api/v1/messages", |answer| session(answer).is_some())).unwrap()
}

/// B18: no lease ends early, and none lives longer.
#[test]
fn a_jump_of_the_clock_moves_no_lease() {
    for jump in ["+1d", "-1d"] {
        let machine = Machine::new();
        let courier = machine.start();
        let mail = mail(&courier, "room", 0);
        let claimed = Instant::now();
        courier.ask(&mail, "claim", json!({"agent_id": "ann", "timeout": 3})).ok();
        machine.set(jump);
        let drift = |health: &serde_json::Value| {
            health["clock_drift_ms"].as_i64().unwrap().abs() > 86_000_000
        };
        courier.until("/health", drift);
        courier.claim_at_last(&mail, &json!({"agent_id": "bob"}), "claimed");
        assert!(claimed.elapsed() >= Duration::from_secs(3), "{jump}: the lease ended early");
        assert!(claimed.elapsed() < Duration::from_secs(20), "{jump}: the lease lived on");
    }
}

/// B18: nor does it shorten or prolong a wait, nor a window.
#[test]
fn a_jump_of_the_clock_moves_no_wait_and_no_window() {
    let machine = Machine::new();
    let courier = machine.start();
    let mail = mail(&courier, "room", 0);
    courier.ask(&mail, "claim", json!({"agent_id": "ann"})).ok();
    let failed = Instant::now();
    courier.ask(&mail, "fail", json!({"agent_id": "ann"})).ok();
    machine.set("+1d");
    courier.until("/health", |health| health["clock_drift_ms"].as_i64().unwrap() > 86_000_000);
    courier.claim_at_last(&mail, &json!({"agent_id": "ann"}), "not_due");
    assert!(failed.elapsed() >= Duration::from_secs(1), "{:?}", failed.elapsed());
}

/// B19: a clock that is ten years ahead makes nothing old enough to be thrown away,
/// and what it started is not waited for when it is right again.
#[test]
fn a_clock_that_is_years_ahead_throws_nothing_away() {
    let machine = Machine::new();
    let mut courier = machine.start();
    let done = mail(&courier, "done", 0);
    courier.ask(&done, "claim", json!({"agent_id": "ann"})).ok();
    courier.ask(&done, "complete", json!({"agent_id": "ann"})).ok();
    courier.kill();

    machine.set("+3650d");
    let mut courier = machine.start();
    let later = mail(&courier, "later", 3650 * 86_400);
    courier.ask(&later, "claim", json!({"agent_id": "ann", "timeout": 86_400})).ok();
    let shown = courier.get(&format!("/api/v1/messages/{done}")).ok();
    assert_eq!(shown["location"], "archive", "nothing is old because the clock says so");
    courier.kill();

    machine.set("+0");
    let courier = machine.start();
    assert_eq!(courier.get(&format!("/api/v1/messages/{done}")).ok()["location"], "archive");
    assert!(courier.get("/health").ok()["clock_drift_ms"].as_i64().unwrap().abs() < 60_000);
    let taken = courier.ask(&later, "claim", json!({"agent_id": "bob"})).ok();
    assert_eq!(taken["agent_id"], "bob", "a lease of the wrong clock has ended");
}

/// A clock that goes back over a restart: time does not.
#[test]
fn time_does_not_go_back_over_a_restart() {
    let machine = Machine::new();
    machine.set("+10h");
    let mut courier = machine.start();
    let first = mail(&courier, "first", 36_000);
    courier.ask(&first, "claim", json!({"agent_id": "ann", "timeout": 2})).ok();
    courier.kill();
    machine.set("+0");
    let courier = machine.start();
    let second = mail(&courier, "second", 0);
    let at = |id: &str| {
        let mail = courier.get(&format!("/api/v1/messages/{id}")).ok();
        mail["received_at"].as_str().unwrap().to_owned()
    };
    assert!(at(&first) < at(&second), "{} {}", at(&first), at(&second));
    courier.claim_at_last(&first, &json!({"agent_id": "bob"}), "claimed");
}
