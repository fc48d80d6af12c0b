//! The primary database server is lost under load, and a synchronous standby takes over.

use std::cell::Cell;
use std::thread;
use std::time::Instant;

use serde_json::json;

use crate::ack_checker::say;
use crate::common::wait_within;
use crate::courier_pair::{
    ChatLoad, LOAD, MAX_MOVE, PairConfig, check_no_unknown_outcome, push_load, with_slack_on,
};
use crate::patroni::PatroniCluster;
use crate::postgres_server::{PostgresServer, ServerOptions};

/// Messages that are sent while the primary is lost.
const SENT: usize = 60;

/// Couriers that acknowledge what is on two disks.
fn replicated(url: &str) -> PairConfig {
    let storage = [(); 2].map(|()| format!("store: '{url}', durability: replicated"));
    PairConfig { storage, ..PairConfig::new(url, 50) }
}

#[test]
fn promoted_standby_has_all_that_was_acknowledged() {
    let mut primary = PostgresServer::start();
    // Without this the promoted server would wait for itself.
    let alone = ["synchronous_standby_names="].map(str::to_owned).into();
    let options = ServerOptions { settings: alone, ..ServerOptions::default() };
    let standby = primary.standby_with("second", options);
    primary.set_synchronous("second");
    let (sim, pair) = with_slack_on(replicated(&primary.url_with(&standby)));
    sim.wait_for_connections(1);
    let mut load = ChatLoad::new(&sim);
    let promoted = Cell::new(None);
    thread::scope(|scope| {
        let sending = scope.spawn(|| load.send_to_either(&pair.couriers.each_ref(), SENT));
        let times = push_load(&pair.couriers, || {
            primary.kill();
            standby.promote();
            promoted.set(Some(Instant::now()));
        });
        let first = times.first_after(promoted.get().unwrap());
        say(&format!("first acknowledgement {first:?} after the promotion"));
        sending.join().unwrap();
    });
    for courier in 0..2 {
        pair.check_load(courier, LOAD);
    }
    load.check_sent();
    check_no_unknown_outcome(&pair.couriers[0]);
    // The couriers say that commits are on one disk now.
    wait_within(MAX_MOVE, || {
        let health = pair.couriers[1].get("/health").json();
        let problems = health["cluster"]["database"]["problems"].to_string();
        let is_found = problems.contains("no synchronous standby");
        if is_found && health["status"] == json!("degraded") {
            Ok(())
        } else {
            Err(format!("{health:#}"))
        }
    });
}

#[test]
fn patroni_fails_over_without_loss() {
    let mut cluster = PatroniCluster::start(3);
    let (sim, pair) = with_slack_on(replicated(&cluster.url()));
    sim.wait_for_connections(1);
    let mut load = ChatLoad::new(&sim);
    let primary = cluster.wait_for_primary();
    let mut times = None;
    thread::scope(|scope| {
        let sending = scope.spawn(|| load.send_to_either(&pair.couriers.each_ref(), SENT));
        let (killed, promoted) = (Cell::new(None), Cell::new(None));
        let acknowledged = push_load(&pair.couriers, || {
            killed.set(Some(Instant::now()));
            cluster.kill(primary);
            let other = cluster.wait_for_primary();
            assert_ne!(other, primary);
            promoted.set(Some(Instant::now()));
        });
        times = killed.get().zip(promoted.get()).map(|(killed, promoted)| {
            (promoted.duration_since(killed), acknowledged.first_after(promoted))
        });
        sending.join().unwrap();
    });
    let (promoted, first) = times.unwrap();
    say(&format!("Patroni promoted after {promoted:?}, first acknowledgement {first:?} later"));
    for courier in 0..2 {
        pair.check_load(courier, LOAD);
    }
    load.check_sent();
    check_no_unknown_outcome(&pair.couriers[0]);
    // The lost server comes back as a standby, and couriers of a healthy cluster say so.
    cluster.run(primary);
    wait_within(MAX_MOVE, || {
        let health = pair.couriers[0].get("/health").json();
        let standbys = &health["cluster"]["database"]["standbys"];
        let all = standbys.as_array().is_some_and(|standbys| standbys.len() == 2);
        if all && health["status"] == "ok" { Ok(()) } else { Err(format!("{health:#}")) }
    });
}
