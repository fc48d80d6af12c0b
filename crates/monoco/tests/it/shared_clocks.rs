//! Couriers and a database server whose clocks differ: leases and duties stay right, and a large
//! difference is named.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Courier, wait_within};
use crate::courier_pair::{
    ChatLoad, CourierPair, MAX_MOVE, PairConfig, check_no_unknown_outcome, with_slack_on,
};
use crate::fake_clock::FakeClock;
use crate::postgres_problems::{assert_says, check, doctor};
use crate::postgres_server::{PostgresServer, ServerOptions};

/// A server whose clock is set by the test.
fn server_with(clock: &FakeClock) -> PostgresServer {
    PostgresServer::start_with(ServerOptions { clock: clock.prefix(), ..ServerOptions::default() })
}

/// Claims a Mail at one courier for 3 s, and checks that the other one can claim it then, and not
/// before.
#[track_caller]
fn check_lease(pair: &CourierPair, id: &str, change: impl FnOnce()) {
    let mail = pair.couriers[0].mail(id);
    let (ann, bob) = (json!({"agent_id": "ann", "timeout": 3}), json!({"agent_id": "bob"}));
    let claimed = Instant::now();
    pair.couriers[0].ask(&mail, "claim", ann).ok();
    change();
    pair.couriers[1].claim_at_last(&mail, &bob, "claimed");
    let elapsed = claimed.elapsed();
    // The clocks of two couriers differ by what a request takes, and are slewed by 1 %.
    assert!(elapsed >= Duration::from_millis(2_500), "{id}: the lease ended after {elapsed:?}");
    assert!(elapsed < Duration::from_secs(25), "{id}: the lease ended after {elapsed:?}");
}

/// The courier that holds a duty, by the database.
fn holder(server: &PostgresServer, duty: &str) -> String {
    server.sql(&format!("SELECT courier || ' ' || epoch FROM monoco.duties WHERE name = '{duty}'"))
}

#[test]
fn clocks_that_differ_by_five_seconds_change_no_lease_and_no_duty() {
    let clocks = ["+5", "-5", "+0"].map(FakeClock::new);
    let server = server_with(&clocks[2]);
    let prefixes = [clocks[0].prefix(), clocks[1].prefix()];
    let (sim, pair) = with_slack_on(PairConfig { prefixes, ..PairConfig::new(&server.url(), 50) });
    let first = pair.holder("slack");
    sim.wait_for_connections(1);
    let mut load = ChatLoad::new(&sim);
    load.say(10);
    load.send(&pair.couriers[1 - first], 5);
    load.check(&pair, first);
    check_lease(&pair, "steady", || {});
    let before = ["leader", "tunnel:slack"].map(|duty| holder(&server, duty));
    // The clock of the server is set while the couriers run.
    for offset in ["+5", "-5"] {
        check_lease(&pair, offset, || clocks[2].set(offset));
        load.say(5);
        load.send(&pair.couriers[first], 5);
    }
    let after = ["leader", "tunnel:slack"].map(|duty| holder(&server, duty));
    assert_eq!(before, after, "a duty moved because of a clock");
    // The Mails of the leases are beside those of the load.
    pair.check_load(1 - first, load.said);
    load.check_sent();
    check_no_unknown_outcome(&pair.couriers[first]);
    for courier in &pair.couriers {
        let health = courier.get("/health").ok();
        assert_eq!((&health["status"], &health["clock_problem"]), (&json!("ok"), &Value::Null));
    }
}

/// Waits until `/health` and `monoco doctor` name a problem of the clocks.
#[track_caller]
fn wait_for_clock_problem(courier: &Courier, parts: &[&str]) {
    let problem = wait_within(MAX_MOVE, || {
        let health = courier.get("/health").ok();
        let problem = health["clock_problem"].as_str().unwrap_or_default().to_owned();
        let is_found = health["status"] == "degraded" && problem.contains(parts[0]);
        if is_found { Ok(problem) } else { Err(format!("{health:#}")) }
    });
    assert_says(&problem, parts);
    let found = doctor(courier.home());
    let clock = check(&found, "clock");
    assert_eq!(clock["state"], "warn", "{found:#}");
    assert_says(&clock.to_string(), parts);
}

#[test]
fn large_difference_of_clocks_is_named() {
    // Half a second more than is shown, which the courier's steps towards the server do not use up.
    let clocks = ["+120.5", "+0", "+0"].map(FakeClock::new);
    let server = server_with(&clocks[2]);
    let prefixes = [clocks[0].prefix(), clocks[1].prefix()];
    let config = PairConfig { prefixes, ..PairConfig::new(&server.url(), 50) };
    let pair = CourierPair::start_with(&config);
    pair.holder("ci");
    let differs = ["the clock of this machine is 120 s ahead", "chrony"];
    wait_for_clock_problem(&pair.couriers[0], &differs);
    assert_eq!(pair.couriers[1].get("/health").ok()["clock_problem"], Value::Null);
    clocks[0].set("+0");
    wait_within(MAX_MOVE, || match pair.couriers[0].get("/health").ok()["status"].as_str() {
        Some("ok") => Ok(()),
        status => Err(format!("{status:?}")),
    });
    // The clock of the database server is set: couriers follow it slowly, and say so.
    clocks[2].set("-600");
    for courier in &pair.couriers {
        wait_for_clock_problem(
            courier,
            &["the clock of the database server is", "behind the time of the couriers", "chrony"],
        );
    }
    check_lease(&pair, "after", || {});
}
