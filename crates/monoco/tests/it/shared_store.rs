//! Two couriers on one PostgreSQL: what both receive is one Mail, what both claim has one owner,
//! and one takes over from the other. Every message of a fault test is counted.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::chat_harness::{ChatSim, kept_mails, kept_messages, mail_text, send_to, tunnel_section};
use crate::common::{Courier, binary, until, wait_within};
use crate::page::Browser;
use crate::postgres_server::PostgresServer;
use crate::slack::socket_keys;
use crate::webhook_peer::{SECRET, body, configure};

/// How long the duties of a killed courier may take to move. Its leases last 20 s.
const MAX_MOVE: Duration = Duration::from_secs(90);

/// Messages of a test under load.
const LOAD: usize = 300;

/// Threads that send the load.
const SENDERS: usize = 4;

/// Agents at the two couriers.
const AGENTS: [&str; 2] = ["agent-a", "agent-b"];

const GENERAL: &str = "did:msgtunnel:C0GENERAL.group.slack";

/// A server and two couriers with the same config.
struct Pair {
    couriers: [Courier; 2],
    dir: TempDir,
    server: PostgresServer,
}

impl Pair {
    /// Couriers with the webhook tunnel `ci`.
    fn start(window_ms: u64) -> Self {
        Self::start_with(window_ms, "")
    }

    /// Couriers with the webhook tunnel `ci` and the sections of further tunnels.
    fn start_with(window_ms: u64, tunnels: &str) -> Self {
        let (server, dir) = (PostgresServer::start(), tempfile::tempdir().unwrap());
        let config = format!(
            "courier:\n  storage: {{ store: '{}' }}\n  \
             debounce: {{ window_ms: {window_ms}, max_wait_ms: 120000 }}\n  adapters:\n    \
             ci: {{ provider: webhook, verify: standard, secret: '{SECRET}' }}\n{tunnels}",
            server.url()
        );
        let start = |name: &str| {
            let home = dir.path().join(name);
            configure(&home, &config);
            Courier::start_in(&home)
        };
        let couriers = [start("a"), start("b")];
        Self { couriers, dir, server }
    }

    /// Which courier has the duty of a tunnel, once exactly one has.
    #[track_caller]
    fn holder(&self, tunnel: &str) -> usize {
        wait_within(MAX_MOVE, || {
            let found = self.couriers.each_ref().map(|courier| status(courier, tunnel));
            match found.each_ref().map(|status| status == "standby") {
                [false, true] => Ok(0),
                [true, false] => Ok(1),
                _ => Err(format!("the tunnel is {found:?}")),
            }
        })
    }

    /// Waits until so many messages are in Mails, and checks that each is there once.
    #[track_caller]
    fn check_load(&self, courier: usize, count: usize) {
        let courier = &self.couriers[courier];
        wait_within(MAX_MOVE, || match kept_messages(courier) {
            found if found >= count as u64 => Ok(()),
            found => Err(format!("{found} of {count} messages are in Mails")),
        });
        let mails = kept_mails(courier);
        let texts: String = mails.keys().map(|id| mail_text(courier, id) + "\n").collect();
        let mut found = BTreeMap::<&str, usize>::new();
        for word in texts.split_whitespace().filter(|word| word.starts_with("load-")) {
            *found.entry(word).or_default() += 1;
        }
        let doubled: Vec<_> = found.iter().filter(|(_, times)| **times > 1).collect();
        assert!(doubled.is_empty(), "{doubled:?}");
        assert_eq!(found.len(), count, "acknowledged messages are lost");
    }
}

/// The status of a tunnel, as a courier shows it.
fn status(courier: &Courier, tunnel: &str) -> String {
    let health = courier.get("/health").json();
    health["adapters"][tunnel]["status"].as_str().unwrap_or_default().to_owned()
}

#[track_caller]
fn wait_for_duty(courier: &Courier, tunnel: &str) {
    wait_within(MAX_MOVE, || match status(courier, tunnel).as_str() {
        "standby" => Err(format!("{tunnel} is in standby")),
        _ => Ok(()),
    });
}

fn signal(courier: &Courier, signal: Signal) {
    let pid = i32::try_from(courier.pid()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Pushes messages to both couriers, each until a courier has acknowledged it, as a provider does
/// that has two addresses. Runs `fault` after a third of them.
fn push_load(couriers: &[Courier; 2], fault: impl FnOnce()) {
    let (next, acknowledged) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..SENDERS {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= LOAD {
                        break;
                    }
                    let (session, text) = (format!("room-{}", n % 7), format!("load-{n}"));
                    let message = body(&format!("evt-{n}"), &session, "ann", &text);
                    let mut tries = n..;
                    wait_within(2 * MAX_MOVE, || {
                        let courier = tries.next().unwrap_or(n) % 2;
                        match couriers[courier].try_push(&message) {
                            Ok(answer) if answer.status == 200 => Ok(()),
                            other => Err(format!("{text} was never acknowledged: {other:?}")),
                        }
                    });
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        until("a third of the load is acknowledged", || {
            acknowledged.load(Ordering::Relaxed) >= LOAD / 3
        });
        fault();
    });
    assert_eq!(acknowledged.load(Ordering::Relaxed), LOAD);
}

#[test]
fn burst_through_both_couriers_becomes_one_mail() {
    let pair = Pair::start(3_000);
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
    let pair = Pair::start(50);
    let holder = pair.holder("ci");
    let found = Browser::start(&pair.couriers[1 - holder], "couriers", &[]).passed();
    let rows: Vec<_> = found["rows"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(rows.len(), 2, "{found}");
    assert!(rows.iter().all(|row| row.contains("running")), "{found}");
    assert_eq!(rows.iter().filter(|row| row.contains("tunnel:ci")).count(), 1, "{found}");
}

#[test]
fn mail_is_claimed_by_one_of_two_agents_at_two_couriers() {
    let pair = Pair::start(50);
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
    let mut pair = Pair::start(100);
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
    let pair = Pair::start(200);
    let holder = pair.holder("ci");
    push_load(&pair.couriers, || signal(&pair.couriers[holder], Signal::KILL));
    pair.check_load(1 - holder, LOAD);
}

#[test]
fn killed_database_loses_and_doubles_nothing_under_load() {
    let mut pair = Pair::start(200);
    pair.holder("ci");
    push_load(&pair.couriers, || {
        pair.server.stop();
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
        pair.server.run();
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

/// An emulator that keeps events until a bot has acknowledged them, and couriers of its bot.
fn with_slack() -> (ChatSim, Pair) {
    let sim = ChatSim::start("slack");
    let settings = json!({"ack_timeout_ms": 1000, "max_attempts": 1000,
                          "resend_on_close": true, "backlog": true});
    sim.control("settings", &settings);
    let pair = Pair::start_with(50, &tunnel_section("slack", &socket_keys(&sim)));
    (sim, pair)
}

/// Says and sends a few messages, which are counted at both ends.
struct ChatLoad<'t> {
    sim: &'t ChatSim,
    said: usize,
    sent: usize,
}

impl ChatLoad<'_> {
    fn say(&mut self, count: usize) {
        for _ in 0..count {
            self.sim.say("general", &format!("load-{}", self.said));
            self.said += 1;
        }
    }

    fn send(&mut self, courier: &Courier, count: usize) {
        for _ in 0..count {
            send_to(courier, GENERAL, &format!("answer-{}", self.sent));
            self.sent += 1;
        }
    }

    /// Waits until all is kept and sent, and checks that nothing is there twice.
    #[track_caller]
    fn check(&self, pair: &Pair, courier: usize) {
        pair.check_load(courier, self.said);
        let sent = wait_within(MAX_MOVE, || {
            let sent = self.sim.sent();
            if sent.len() >= self.sent { Ok(sent) } else { Err(format!("{} sent", sent.len())) }
        });
        let mut texts: Vec<_> = sent.iter().map(|it| it["text"].as_str().unwrap()).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!((texts.len(), sent.len()), (self.sent, self.sent), "{sent:#?}");
    }
}

#[test]
fn chat_stream_is_open_at_one_courier_and_moves_when_it_is_killed() {
    let (sim, mut pair) = with_slack();
    let holder = pair.holder("slack");
    sim.wait_for_connections(1);
    let mut load = ChatLoad { sim: &sim, said: 0, sent: 0 };
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
    let (sim, pair) = with_slack();
    let holder = pair.holder("slack");
    sim.wait_for_connections(1);
    let mut load = ChatLoad { sim: &sim, said: 0, sent: 0 };
    load.say(5);
    load.send(&pair.couriers[holder], 5);
    load.check(&pair, holder);
    signal(&pair.couriers[holder], Signal::STOP);
    // The stopped process holds its socket, in which events wait.
    load.say(20);
    let other = 1 - holder;
    load.send(&pair.couriers[other], 5);
    wait_for_duty(&pair.couriers[other], "slack");
    load.check(&pair, other);
    signal(&pair.couriers[holder], Signal::CONT);
    load.say(20);
    load.send(&pair.couriers[holder], 5);
    let last = pair.holder("slack");
    load.check(&pair, last);
    sim.wait_for_connections(1);
    load.check(&pair, last);
}
