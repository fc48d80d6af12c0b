//! Couriers that are replaced one after the other, and a schema of a newer version.

use serde_json::Value;

use crate::ack_checker::say;
use crate::common::{Courier, wait_within};
use crate::courier_pair::{CourierPair, LOAD, MAX_MOVE, check_kept, push_load};
use crate::postgres_problems::{assert_says, check, doctor, start_refused};
use crate::postgres_server::PostgresServer;

/// What a newer version that older ones can run beside does to the schema, while no courier writes.
const ADDITIVE: &str = "
    SELECT pg_advisory_xact_lock(1297040201, hashtext('monoco'));
    ALTER TABLE monoco.objects ADD COLUMN topic TEXT;
    ALTER TABLE monoco.records ADD COLUMN topic BIGINT NOT NULL DEFAULT 7;
    ALTER TABLE monoco.events ADD COLUMN topic TEXT DEFAULT 'none';
    ALTER TABLE monoco.mails ADD COLUMN topic TEXT;
    ALTER TABLE monoco.external_ids ADD COLUMN topic TEXT;
    ALTER TABLE monoco.duties ADD COLUMN topic TEXT;
    CREATE TABLE monoco.topics (id BIGINT PRIMARY KEY, name TEXT NOT NULL);
    INSERT INTO monoco.schema_version (version, oldest_program) VALUES (2, 1);
";

/// Stops a courier as an operator does, and starts it again in its home.
fn replace(courier: &Courier) -> Courier {
    courier.cli(&["courier", "stop"]).ok();
    Courier::start_in(courier.home())
}

/// Replaces both couriers under load, with `upgrade` before the second one.
fn replace_both(upgrade: impl Fn(&PostgresServer)) {
    let server = PostgresServer::start();
    let pair = CourierPair::start(&server, 200);
    pair.holder("ci");
    let mut replaced = Vec::new();
    push_load(&pair.couriers, || {
        for courier in &pair.couriers {
            replaced.push(replace(courier));
            upgrade(&server);
        }
    });
    for courier in &replaced {
        check_kept(courier, LOAD);
        let health = courier.get("/health").ok();
        assert_eq!(health["status"], "ok", "{health:#}");
    }
}

#[test]
fn couriers_are_replaced_one_after_the_other_without_loss() {
    replace_both(|_| {});
}

#[test]
fn older_courier_runs_and_starts_beside_a_newer_one() {
    let is_upgraded = std::cell::Cell::new(false);
    replace_both(|server| {
        if !is_upgraded.replace(true) {
            // As the courier does, which tries again after a deadlock with a reader.
            wait_within(MAX_MOVE, || {
                let ran = server.psql().args(["-v", "ON_ERROR_STOP=1", "-c", ADDITIVE]).output();
                let ran = ran.unwrap();
                let error = String::from_utf8_lossy(&ran.stderr).into_owned();
                if ran.status.success() { Ok(()) } else { Err(error) }
            });
        }
    });
}

#[test]
fn schema_that_is_too_new_is_refused_and_named_by_running_couriers() {
    let server = PostgresServer::start();
    let pair = CourierPair::start(&server, 50);
    pair.holder("ci");
    server.sql("INSERT INTO monoco.schema_version (version, oldest_program) VALUES (3, 3)");
    let expected = ["schema 3", "this program has schema 1", "newer program"];
    let found = wait_within(MAX_MOVE, || {
        let health = pair.couriers[0].get("/health").ok();
        let problems = health["cluster"]["database"]["problems"].to_string();
        let is_found = health["status"] == "degraded" && problems.contains("schema 3");
        if is_found { Ok(problems) } else { Err(format!("{health:#}")) }
    });
    assert_says(&found, &expected);
    let home = pair.couriers[0].home();
    assert_says(&check(&doctor(home), "database")["detail"].to_string(), &expected);
    pair.couriers[0].cli(&["courier", "stop"]).ok();
    let why = start_refused(home);
    say(&why);
    assert_says(&why, &expected);
    let found: Value = doctor(home);
    assert_eq!(check(&found, "database")["state"], "fail");
    assert_says(&check(&found, "database")["detail"].to_string(), &expected);
}
