//! Two couriers on one database, and messages that are counted at both ends.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;

use crate::chat_harness::{ChatSim, kept_mails, kept_messages, mail_text, send_to, tunnel_section};
use crate::common::{Courier, ME, until, wait_within};
use crate::postgres_server::PostgresServer;
use crate::slack::socket_keys;
use crate::webhook_peer::{SECRET, body, configure};

/// How long the duties of a killed courier may take to move. Its leases last 20 s.
pub const MAX_MOVE: Duration = Duration::from_secs(90);

/// Messages of a test under load.
pub const LOAD: usize = 300;

/// Threads that send the load.
const SENDERS: usize = 4;

const GENERAL: &str = "did:msgtunnel:C0GENERAL.group.slack";

/// Two couriers with the same tunnels.
pub struct CourierPair {
    pub couriers: [Courier; 2],
    pub dir: TempDir,
}

/// What the two couriers of a pair are configured with.
pub struct PairConfig {
    /// The keys of `storage`, of each courier.
    pub storage: [String; 2],
    pub window_ms: u64,
    /// The sections of tunnels beside the webhook tunnel `ci`.
    pub tunnels: String,
    /// Starts of the commands, such as `env NAME=value`, of each courier.
    pub prefixes: [Vec<String>; 2],
}

impl PairConfig {
    /// Couriers with the webhook tunnel `ci` on the store at a URL.
    pub fn new(url: &str, window_ms: u64) -> Self {
        let storage = [(); 2].map(|()| format!("store: '{url}'"));
        Self { storage, window_ms, tunnels: String::new(), prefixes: [Vec::new(), Vec::new()] }
    }
}

impl CourierPair {
    /// Couriers with the webhook tunnel `ci`.
    pub fn start(server: &PostgresServer, window_ms: u64) -> Self {
        Self::start_with(&PairConfig::new(&server.url(), window_ms))
    }

    pub fn start_with(config: &PairConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let PairConfig { window_ms, tunnels, .. } = config;
        let start = |at: usize| {
            let home = dir.path().join(["a", "b"][at]);
            let text = format!(
                "courier:\n  storage: {{ {} }}\n  \
                 debounce: {{ window_ms: {window_ms}, max_wait_ms: 120000 }}\n  adapters:\n    \
                 ci: {{ provider: webhook, verify: standard, secret: '{SECRET}' }}\n{tunnels}",
                config.storage[at]
            );
            configure(&home, &text);
            match &*config.prefixes[at] {
                [] => Courier::start_in(&home),
                prefix => Courier::start_under(&home, prefix),
            }
        };
        let couriers = [start(0), start(1)];
        Self { couriers, dir }
    }

    /// Which courier has the duty of a tunnel, once exactly one has.
    #[track_caller]
    pub fn holder(&self, tunnel: &str) -> usize {
        wait_within(MAX_MOVE, || {
            let found = self.couriers.each_ref().map(|courier| tunnel_status(courier, tunnel));
            match found.each_ref().map(|status| status == "standby") {
                [false, true] => Ok(0),
                [true, false] => Ok(1),
                _ => Err(format!("the tunnel is {found:?}")),
            }
        })
    }

    /// Waits until so many messages are in Mails, and checks that each is there once.
    #[track_caller]
    pub fn check_load(&self, courier: usize, count: usize) {
        check_kept(&self.couriers[courier], count);
    }
}

/// Waits until a courier shows so many messages of a load in Mails, and checks that each is there
/// once.
#[track_caller]
pub fn check_kept(courier: &Courier, count: usize) {
    wait_within(MAX_MOVE, || match kept_messages(courier) {
        found if found >= count as u64 => Ok(()),
        found => Err(format!("{found} of {count} messages are in Mails")),
    });
    // Other messages can be in Mails before these.
    let found = wait_within(MAX_MOVE, || {
        let found = load_texts(courier);
        let lost = format!("{} of {count} acknowledged messages are in Mails", found.len());
        if found.len() >= count { Ok(found) } else { Err(lost) }
    });
    let doubled: Vec<_> = found.iter().filter(|(_, times)| **times > 1).collect();
    assert!(doubled.is_empty(), "{doubled:?}");
    assert_eq!(found.len(), count);
}

/// How often each text of a load is in the Mails.
fn load_texts(courier: &Courier) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for id in kept_mails(courier).keys() {
        let text = mail_text(courier, id);
        for word in text.split_whitespace().filter(|word| word.starts_with("load-")) {
            *found.entry(word.to_owned()).or_default() += 1;
        }
    }
    found
}

/// The status of a tunnel, as a courier shows it.
pub fn tunnel_status(courier: &Courier, tunnel: &str) -> String {
    let health = courier.get("/health").json();
    health["adapters"][tunnel]["status"].as_str().unwrap_or_default().to_owned()
}

#[track_caller]
pub fn wait_for_duty(courier: &Courier, tunnel: &str) {
    wait_within(MAX_MOVE, || match tunnel_status(courier, tunnel).as_str() {
        "standby" => Err(format!("{tunnel} is in standby")),
        _ => Ok(()),
    });
}

pub fn signal(courier: &Courier, signal: Signal) {
    let pid = i32::try_from(courier.pid()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, signal).unwrap();
}

/// When the messages of a load were acknowledged.
pub struct AckTimes(Vec<Instant>);

impl AckTimes {
    /// How long after `start` the next message was acknowledged.
    #[track_caller]
    pub fn first_after(&self, start: Instant) -> Duration {
        let first = self.0.iter().filter(|at| **at > start).min().unwrap();
        first.duration_since(start)
    }
}

/// Pushes messages to both couriers, each until a courier has acknowledged it, as a provider does
/// that has two addresses. Runs `fault` after a third of them.
pub fn push_load(couriers: &[Courier; 2], fault: impl FnOnce()) -> AckTimes {
    let (next, acknowledged) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let count = || acknowledged.lock().unwrap().len();
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
                    acknowledged.lock().unwrap().push(Instant::now());
                }
            });
        }
        until("a third of the load is acknowledged", || count() >= LOAD / 3);
        fault();
    });
    assert_eq!(count(), LOAD);
    AckTimes(acknowledged.into_inner().unwrap())
}

/// An emulator that keeps events until a bot has acknowledged them, and couriers of its bot.
pub fn with_slack(server: &PostgresServer) -> (ChatSim, CourierPair) {
    with_slack_on(PairConfig::new(&server.url(), 50))
}

/// As [`with_slack`], with further settings of the couriers.
pub fn with_slack_on(config: PairConfig) -> (ChatSim, CourierPair) {
    let sim = ChatSim::start("slack");
    let settings = json!({"ack_timeout_ms": 1000, "max_attempts": 1000,
                          "resend_on_close": true, "backlog": true});
    sim.control("settings", &settings);
    let tunnels = tunnel_section("slack", &socket_keys(&sim));
    let pair = CourierPair::start_with(&PairConfig { tunnels, ..config });
    (sim, pair)
}

/// Says and sends a few messages, which are counted at both ends.
pub struct ChatLoad<'t> {
    pub sim: &'t ChatSim,
    pub said: usize,
    pub sent: usize,
}

impl<'t> ChatLoad<'t> {
    pub fn new(sim: &'t ChatSim) -> Self {
        Self { sim, said: 0, sent: 0 }
    }

    pub fn say(&mut self, count: usize) {
        for _ in 0..count {
            self.sim.say("general", &format!("load-{}", self.said));
            self.said += 1;
        }
    }

    pub fn send(&mut self, courier: &Courier, count: usize) {
        for _ in 0..count {
            send_to(courier, GENERAL, &format!("answer-{}", self.sent));
            self.sent += 1;
        }
    }

    /// Sends through either courier, each message until a courier has accepted it.
    pub fn send_to_either(&mut self, couriers: &[&Courier], count: usize) {
        for n in self.sent..self.sent + count {
            let text = format!("answer-{n}");
            let msg = json!({"from": ME, "to": [GENERAL], "kind": "chat",
                             "content": {"format": "text/markdown", "content": text}});
            let request = json!({"msg": msg, "idempotency_key": text});
            let mut tries = n..;
            wait_within(2 * MAX_MOVE, || {
                let courier = couriers[tries.next().unwrap_or(n) % couriers.len()];
                match courier.try_request("POST", "/api/v1/post_send", Some(&request)) {
                    Ok(answer) if answer.status == 200 => Ok(()),
                    other => Err(format!("{text} was never accepted: {other:?}")),
                }
            });
        }
        self.sent += count;
    }

    /// Waits until all is kept and sent, and checks that nothing is there twice.
    #[track_caller]
    pub fn check(&self, pair: &CourierPair, courier: usize) {
        pair.check_load(courier, self.said);
        self.check_sent();
    }

    /// Waits until all is sent, and checks that nothing was sent twice.
    #[track_caller]
    pub fn check_sent(&self) {
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

/// Waits until every delivery was reported as sent: none is dead or has an unknown outcome.
#[track_caller]
pub fn check_no_unknown_outcome(courier: &Courier) {
    let health = wait_within(MAX_MOVE, || {
        let health = courier.get("/health").json();
        let waiting = &health["oldest_waiting_delivery_ms"];
        if waiting.is_null() { Ok(health) } else { Err(format!("deliveries wait: {health:#}")) }
    });
    assert_eq!(health["dead"]["deliveries"], 0, "{health:#}");
}
