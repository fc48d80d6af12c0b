//! A database behind a cut network, with a transaction that stays open, or on a full disk.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::ack_checker::{say, times};
use crate::common::{Courier, ME, wait_within};
use crate::courier_pair::{
    ChatLoad, CourierPair, LOAD, MAX_MOVE, PairConfig, check_no_unknown_outcome, push_load,
    wait_for_duty, with_slack_on,
};
use crate::fake_clock::FakeClock;
use crate::faults::{Disk, tool};
use crate::network::Namespace;
use crate::postgres_server::{PostgresServer, ServerOptions, USER};
use crate::webhook_peer::body;

/// How long a courier may use a connection after the network has swallowed its last packet.
const MAX_DEAD_CONNECTION: Duration = Duration::from_secs(60);

/// Connections from here to an address that are open, whether or not the peer still answers.
fn connections_to(address: &str) -> usize {
    let found = tool("ss", &["-Htn", "state", "established", "dst", address]);
    found.lines().filter(|line| !line.trim().is_empty()).count()
}

#[test]
fn courier_behind_a_cut_network_acknowledges_nothing_and_recovers() {
    let namespace = Namespace::create(2);
    let server = PostgresServer::start_with(ServerOptions {
        prefix: namespace.prefix().map(str::to_owned).into(),
        port: Some(5432),
        ..ServerOptions::default()
    });
    // Each courier has a link of its own to the database.
    let address = |link: usize| namespace.address(link).to_string();
    let storage = [0, 1].map(|at| format!("store: 'postgres://{USER}@{}/postgres'", address(at)));
    let (sim, pair) = with_slack_on(PairConfig { storage, ..PairConfig::new("", 50) });
    let cut = pair.holder("slack");
    let other = 1 - cut;
    sim.wait_for_connections(1);
    let mut load = ChatLoad::new(&sim);
    load.say(5);
    load.send(&pair.couriers[cut], 5);
    load.check(&pair, cut);

    namespace.swallow_packets(cut);
    let started = Instant::now();
    let unheard = body("evt-cut", "room-cut", "ann", "load-cut");
    thread::scope(|scope| {
        // The provider gets no acknowledgement, however long it waits.
        let refused = scope.spawn(|| pair.couriers[cut].try_push(&unheard));
        load.say(20);
        load.send_to_either(&[&pair.couriers[other]], 5);
        wait_for_duty(&pair.couriers[other], "slack");
        say(&format!("the duties moved {:?} after the cut", started.elapsed()));
        load.check(&pair, other);
        let refused = refused.join().unwrap();
        assert!(!refused.is_ok_and(|answer| answer.status == 200), "acknowledged behind the cut");
    });
    let health = pair.couriers[cut].get("/health").json();
    assert_eq!(
        (&health["status"], &health["storage"]["status"]),
        (&json!("degraded"), &json!("failing"))
    );
    // No connection waits for hours for an answer, the idle ones included.
    wait_within(MAX_DEAD_CONNECTION, || match connections_to(&address(cut)) {
        0 => Ok(()),
        open => Err(format!("{open} connections are open after {:?}", started.elapsed())),
    });
    say(&format!("the last dead connection was closed {:?} after the cut", started.elapsed()));

    namespace.pass_packets();
    wait_within(MAX_MOVE, || match pair.couriers[cut].try_push(&unheard) {
        Ok(answer) if answer.status == 200 => Ok(()),
        answer => Err(format!("{answer:?}")),
    });
    load.say(20);
    load.send(&pair.couriers[cut], 5);
    let holder = pair.holder("slack");
    for courier in 0..2 {
        pair.check_load(courier, load.said + 1);
    }
    load.check_sent();
    check_no_unknown_outcome(&pair.couriers[holder]);
    drop(server);
}

/// A session that leaves a transaction open.
struct OpenTransaction(Child);

impl OpenTransaction {
    fn start(server: &PostgresServer, statements: &str) -> Self {
        let mut psql = server.psql();
        let mut psql = psql.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let input = psql.stdin.as_mut().unwrap();
        writeln!(input, "{statements}").unwrap();
        input.flush().unwrap();
        Self(psql)
    }
}

impl Drop for OpenTransaction {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Longer than any run: a record whose lease expires would be taken again.
const MAX_LEASE_S: u32 = 86_400;

/// Takes what is in the INBOX through both couriers. Every record is taken once.
#[track_caller]
fn take_all(couriers: &[Courier; 2], count: usize) {
    let next = format!("/api/v1/boxes/{ME}/INBOX/next");
    let take = |courier: &Courier| {
        let mut taken = Vec::new();
        loop {
            let answer = courier.post(&next, &json!({"lease_s": MAX_LEASE_S})).ok();
            let Some(record) = answer["record"]["record_id"].as_str() else { return taken };
            taken.push(record.to_owned());
        }
    };
    let taken: Vec<String> = thread::scope(|scope| {
        let takers: Vec<_> = [0, 1, 0, 1].map(|at| scope.spawn(move || take(&couriers[at]))).into();
        takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect()
    });
    let once: BTreeSet<_> = taken.iter().collect();
    assert_eq!((taken.len(), once.len()), (count, count));
}

fn problems(courier: &Courier) -> (Value, String) {
    let health = courier.get("/health").json();
    (health["status"].clone(), health["cluster"]["database"]["problems"].to_string())
}

/// Each way in which PostgreSQL is kept from removing old rows.
const HOLDERS: [(&str, &str); 3] = [
    ("a snapshot", "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class;"),
    ("a change that is not committed", "BEGIN; CREATE TABLE held (n int);"),
    ("a prepared transaction", "BEGIN; CREATE TABLE prepared (n int); PREPARE TRANSACTION 'held';"),
];

#[test]
fn transaction_that_stays_open_is_reported_and_takes_stay_correct() {
    // In a soak test the transaction is open for so long; otherwise the clock of the server says
    // that it has been open for two minutes.
    let soak = times("MONOCO_TRANSACTION_S", 0);
    for (name, statements) in HOLDERS {
        let clock = FakeClock::new("-120");
        let server = PostgresServer::start_with(ServerOptions {
            settings: vec!["max_prepared_transactions=1".to_owned()],
            clock: if soak == 0 { clock.prefix() } else { Vec::new() },
            ..ServerOptions::default()
        });
        let open = OpenTransaction::start(&server, statements);
        wait_within(MAX_MOVE, || {
            let sql =
                "SELECT count(*) FROM pg_locks WHERE locktype IN ('virtualxid', 'transactionid')
                          AND pid IS DISTINCT FROM pg_backend_pid()";
            let found = server.sql(sql);
            if found == "0" { Err(format!("{name}: no transaction")) } else { Ok(()) }
        });
        clock.set("+0");
        let pair = CourierPair::start(&server, 50);
        pair.holder("ci");
        let until = Instant::now() + Duration::from_secs(soak);
        let mut said = 0;
        loop {
            for n in 0..50 {
                pair.couriers[n % 2].deliver(ME, &format!("{name} {said}"));
                said += 1;
            }
            take_all(&pair.couriers, 50);
            if Instant::now() >= until {
                break;
            }
        }
        wait_within(MAX_MOVE, || {
            let (status, found) = problems(&pair.couriers[0]);
            let is_named = found.contains("a transaction has been open for");
            if is_named && status == "degraded" { Ok(()) } else { Err(format!("{name}: {found}")) }
        });
        let doctor = pair.couriers[1].cli(&["doctor"]).stdout;
        assert!(doctor.contains("a transaction has been open for"), "{name}: {doctor}");
        drop(open);
        if name.contains("prepared") {
            server.sql("ROLLBACK PREPARED 'held'");
        }
        wait_within(MAX_MOVE, || {
            let (status, found) = problems(&pair.couriers[0]);
            if status == "ok" { Ok(()) } else { Err(format!("{name}: {status} {found}")) }
        });
        say(&format!("{name}: {said} messages were taken once"));
    }
}

/// A server on a small disk, which has its data or its log of changes there.
struct SmallDisk {
    server: PostgresServer,
    ballast: PathBuf,
    disk: Disk,
    /// The log of changes, when only the data is on the small disk.
    _elsewhere: TempDir,
}

impl SmallDisk {
    fn start(wal_only: bool) -> Self {
        let disk = Disk::tmpfs("size=96m,mode=755");
        let place = PathBuf::from(disk.place());
        // The user of the server must find it.
        fs::set_permissions(place.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
        let files = place.join("files");
        fs::create_dir(&files).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let (data, wal) = match wal_only {
            true => (None, Some(files)),
            false => (Some(files), Some(elsewhere.path().to_owned())),
        };
        let server = PostgresServer::start_with(ServerOptions {
            // A checkpoint frees space only when a test says so.
            settings: ["max_wal_size=1GB", "checkpoint_timeout=1h"].map(str::to_owned).into(),
            data,
            wal,
            ..ServerOptions::default()
        });
        Self { server, ballast: place.join("ballast"), disk, _elsewhere: elsewhere }
    }

    /// Leaves so many bytes on the disk.
    fn fill(&self, left: usize) {
        let free = tool("df", &["--output=avail", "-B1", &self.disk.place()]);
        let free: usize = free.lines().last().unwrap().trim().parse().unwrap();
        write_large(&self.ballast, free.saturating_sub(left));
    }

    fn free(&self) {
        fs::remove_file(&self.ballast).unwrap();
    }
}

fn write_large(path: &Path, bytes: usize) {
    fs::write(path, vec![7; bytes]).unwrap();
}

/// Fills the disk under load until a message is refused, frees it, and counts.
fn full_disk(wal_only: bool) {
    let mut small = SmallDisk::start(wal_only);
    let pair = CourierPair::start(&small.server, 200);
    pair.holder("ci");
    let refused = AtomicUsize::new(0);
    push_load(&pair.couriers, || {
        small.fill(1 << 20);
        let long = "long ".repeat(4_000);
        let mut answers = BTreeSet::new();
        wait_within(MAX_MOVE, || {
            let n = refused.fetch_add(1, Ordering::Relaxed);
            let message = body(&format!("evt-full-{n}"), "room-full", "ann", &long);
            match pair.couriers[n % 2].try_push(&message) {
                Ok(answer) if answer.status == 200 => Err("the disk is not full".to_owned()),
                Ok(answer) => {
                    answers.insert((answer.status, answer.text()));
                    Ok(())
                }
                // The result of a commit is unknown until the server is back.
                Err(_) => Ok(()),
            }
        });
        let status = if wal_only { "failing" } else { "full" };
        let health = wait_within(MAX_MOVE, || {
            let health = pair.couriers[0].get("/health").json();
            let is_shown = health["status"] == "degraded" && health["storage"]["status"] == status;
            if is_shown { Ok(health) } else { Err(format!("{health:#}")) }
        });
        say(&format!("answers on the full disk: {answers:?}; {}", health["storage"]));
        for (code, text) in &answers {
            let expected: &[u16] = if wal_only { &[503, 507] } else { &[507] };
            assert!(expected.contains(code), "{code} {text}");
        }
        small.free();
        if !small.server.is_running() {
            // PostgreSQL stops when it cannot write its log; the operator starts it.
            small.server.stop();
            small.server.run();
        }
    });
    if wal_only {
        let log = small.server.log();
        assert!(log.contains("PANIC"), "{log}");
    }
    // Nothing was restarted but the server.
    for courier in &pair.couriers {
        wait_within(MAX_MOVE, || {
            let health = courier.get("/health").json();
            if health["status"] == "ok" { Ok(()) } else { Err(format!("{health:#}")) }
        });
    }
    for courier in 0..2 {
        pair.check_load(courier, LOAD);
    }
}

#[test]
fn full_disk_of_the_database_refuses_messages_and_loses_none() {
    full_disk(false);
}

#[test]
fn full_disk_of_the_write_ahead_log_stops_the_server_and_loses_none() {
    full_disk(true);
}
