//! Two couriers on one PostgreSQL: what both receive is one Mail, what both claim has one owner,
//! and one takes over from the other. Every message of a fault test is counted.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::ack_checker::times;
use crate::common::{Courier, binary, until, wait_within};
use crate::courier_pair::{
    ChatLoad, CourierPair, LOAD, MAX_MOVE, push_load, signal, wait_for_duty, with_slack,
};
use crate::page::Browser;
use crate::postgres_server::PostgresServer;
use crate::webhook_peer::body;

/// Agents at the two couriers.
const AGENTS: [&str; 2] = ["agent-a", "agent-b"];

#[test]
fn burst_through_both_couriers_becomes_one_mail() {
    let server = PostgresServer::start();
    let pair = CourierPair::start(&server, 3_000);
    pair.holder("ci");
    for n in 0..6 {
        pair.couriers[n % 2].hears(&format!("evt-{n}"), "room", "ann", &format!("line {n}"));
    }
    // The same message through the other courier is a duplicate.
    let repeated = body("evt-0", "room", "ann", "line 0");
    assert_eq!(pair.couriers[1].push(&repeated).ok()["stored"], 0);
    for courier in &pair.couriers {
        let mails = courier.mails(1);
        assert_eq!(mails[0]["messages"], 6);
    }
    // Each courier writes the file into its own mailbox.
    let names = |courier: &Courier| {
        let dir = courier.home().join("mailbox/inbound/webhook");
        let names = std::fs::read_dir(dir).map(|dir| dir.map(|entry| entry.unwrap().file_name()));
        names.map(Iterator::collect::<Vec<_>>).unwrap_or_default()
    };
    until("both couriers have the file", || {
        let [a, b] = pair.couriers.each_ref().map(names);
        a.len() == 1 && a == b
    });
}

#[test]
fn page_of_one_courier_shows_both_with_their_duties() {
    let server = PostgresServer::start();
    let pair = CourierPair::start(&server, 50);
    let holder = pair.holder("ci");
    let found = Browser::start(&pair.couriers[1 - holder], "couriers", &[]).passed();
    let rows: Vec<_> = found["rows"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(rows.len(), 2, "{found}");
    assert!(rows.iter().all(|row| row.contains("running")), "{found}");
    assert_eq!(rows.iter().filter(|row| row.contains("tunnel:ci")).count(), 1, "{found}");
}

#[test]
fn mail_is_claimed_by_one_of_two_agents_at_two_couriers() {
    let server = PostgresServer::start();
    let pair = CourierPair::start(&server, 50);
    let mails: Vec<_> = (0..10).map(|n| pair.couriers[n % 2].mail(&format!("evt-{n}"))).collect();
    let workspaces = ["a", "b"].map(|name| {
        let root = pair.dir.path().join(format!("workspace-{name}"));
        std::fs::create_dir_all(root.join(".monoco/mailbox")).unwrap();
        let config = "mailbox: { name: team, filters: [{ type: provider, value: webhook }] }";
        std::fs::write(root.join(".monoco/mailbox/config.yaml"), config).unwrap();
        root
    });
    let runs = |at: usize, line: &str| {
        let mut command = Command::new(binary());
        command.args(line.split(' ')).current_dir(&workspaces[at]).env_clear();
        command.env("MONOCO_HOME", pair.couriers[at].home()).env("MONOCO_AGENT", AGENTS[at]);
        command.stdin(Stdio::null()).output().unwrap()
    };
    for at in 0..2 {
        wait_within(MAX_MOVE, || {
            assert!(runs(at, "mailbox sync").status.success());
            let listed = runs(at, "mailbox list --format json").stdout;
            let listed = String::from_utf8(listed).unwrap();
            let missing = mails.iter().filter(|mail| !listed.contains(mail.as_str())).count();
            if missing == 0 { Ok(()) } else { Err(format!("{missing} Mails are not synced")) }
        });
    }
    for mail in &mails {
        let codes = thread::scope(|scope| {
            let claim = |at| runs(at, &format!("mailbox claim {mail}")).status.code();
            let claims = [0, 1].map(|at| scope.spawn(move || claim(at)));
            claims.map(|claim| claim.join().unwrap())
        });
        let winner = match codes {
            [Some(0), Some(2)] => AGENTS[0],
            [Some(2), Some(0)] => AGENTS[1],
            _ => panic!("{mail}: expected one claim and one that finds it held, found {codes:?}"),
        };
        // Both couriers show the same holder.
        for courier in &pair.couriers {
            let by = json!({"agent_id": "late", "workspace": "team"});
            let refused = courier.ask(mail, "claim", by);
            assert_eq!(refused.refused(409), "claimed");
            assert!(refused.text().contains(winner), "{}", refused.text());
        }
    }
}

#[test]
fn tunnel_moves_when_its_courier_is_killed_or_stops() {
    let server = PostgresServer::start();
    let mut pair = CourierPair::start(&server, 100);
    let first = pair.holder("ci");
    let cluster = pair.couriers[first].get("/health").json()["cluster"].clone();
    assert_eq!(cluster["couriers"].as_array().map(Vec::len), Some(2), "{cluster}");
    pair.couriers[first].kill();
    let other = &pair.couriers[1 - first];
    wait_for_duty(other, "ci");
    other.hears("after", "room", "ann", "still received");
    other.mails(1);
    // The killed courier comes back under its id, and a clean stop hands over at once.
    let home = pair.couriers[first].home().to_owned();
    pair.couriers[first] = Courier::start_in(&home);
    let holder = pair.holder("ci");
    let boots: Vec<_> = pair.couriers[holder].get("/health").json()["cluster"]["couriers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|courier| courier["boot"].as_i64().unwrap())
        .collect();
    assert_eq!(boots.iter().sum::<i64>(), 3, "one of the two was started twice: {boots:?}");
    pair.couriers[holder].cli(&["courier", "stop"]).ok();
    wait_for_duty(&pair.couriers[1 - holder], "ci");
    let left = pair.couriers[1 - holder].get("/health").json();
    let live = |courier: &&Value| courier["live"] == true;
    let couriers = left["cluster"]["couriers"].as_array().unwrap();
    assert_eq!(couriers.iter().filter(live).count(), 1, "{couriers:?}");
}

#[test]
fn killed_courier_loses_and_doubles_nothing_under_load() {
    let server = PostgresServer::start();
    let pair = CourierPair::start(&server, 200);
    let holder = pair.holder("ci");
    push_load(&pair.couriers, || signal(&pair.couriers[holder], Signal::KILL));
    pair.check_load(1 - holder, LOAD);
}

#[test]
fn killed_database_loses_and_doubles_nothing_under_load() {
    let mut server = PostgresServer::start();
    let pair = CourierPair::start(&server, 200);
    pair.holder("ci");
    push_load(&pair.couriers, || {
        server.stop();
        // Without the database nothing is acknowledged: the request is refused, or has no answer
        // while it is unknown whether the last commit was done.
        let down = body("evt-down", "room-down", "ann", "load-down");
        let answer = pair.couriers[0].try_push(&down);
        assert!(!answer.is_ok_and(|answer| answer.status == 200));
        let health = pair.couriers[1].get("/health").json();
        assert_eq!(
            (&health["status"], &health["storage"]["status"]),
            (&json!("degraded"), &json!("failing"))
        );
        server.run();
    });
    // The provider tries again what was refused.
    wait_within(MAX_MOVE, || {
        match pair.couriers[0].try_push(&body("evt-down", "room-down", "ann", "load-down")) {
            Ok(answer) if answer.status == 200 => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    });
    for courier in 0..2 {
        pair.check_load(courier, LOAD + 1);
    }
}

#[test]
fn chat_stream_is_open_at_one_courier_and_moves_when_it_is_killed() {
    let server = PostgresServer::start();
    let (sim, mut pair) = with_slack(&server);
    let holder = pair.holder("slack");
    sim.wait_for_connections(1);
    let mut load = ChatLoad::new(&sim);
    load.say(20);
    load.send(&pair.couriers[1 - holder], 5);
    load.check(&pair, holder);
    assert_eq!(sim.connections(), 1, "the other courier opens no stream");
    pair.couriers[holder].kill();
    load.say(20);
    let other = 1 - holder;
    load.send(&pair.couriers[other], 5);
    wait_for_duty(&pair.couriers[other], "slack");
    load.check(&pair, other);
    assert_eq!(sim.connections(), 1);
}

#[test]
fn courier_that_was_stopped_beyond_its_lease_doubles_nothing() {
    let server = PostgresServer::start();
    let (sim, pair) = with_slack(&server);
    let holder = pair.holder("slack");
    sim.wait_for_connections(1);
    let mut load = ChatLoad::new(&sim);
    load.say(5);
    load.send(&pair.couriers[holder], 5);
    load.check(&pair, holder);
    let stopped_at = Instant::now();
    signal(&pair.couriers[holder], Signal::STOP);
    // The stopped process holds its socket, in which events wait.
    load.say(20);
    let other = 1 - holder;
    load.send(&pair.couriers[other], 5);
    wait_for_duty(&pair.couriers[other], "slack");
    load.check(&pair, other);
    // It is stopped for longer in a soak test.
    let stopped_for = Duration::from_secs(times("MONOCO_STOPPED_S", 0));
    thread::sleep(stopped_for.saturating_sub(stopped_at.elapsed()));
    signal(&pair.couriers[holder], Signal::CONT);
    load.say(20);
    load.send(&pair.couriers[holder], 5);
    let last = pair.holder("slack");
    load.check(&pair, last);
    sim.wait_for_connections(1);
    load.check(&pair, last);
}
