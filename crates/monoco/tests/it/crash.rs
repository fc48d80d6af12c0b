//! `kill -9`, at any moment and at every single step.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::ack_checker::{AckChecker, LARGE, TestRng, Tracer, long, say, times};
use crate::common::{Courier, PATIENCE, binary};

pub fn signal(courier: &Courier, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(courier.pid()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Producers, takers and a poster, until the courier is gone.
pub fn load(courier: &Courier, ledger: &AckChecker, names: &AtomicU64, end: impl FnOnce()) {
    let name = || format!("no. {}", names.fetch_add(1, Ordering::Relaxed));
    let produce = || {
        loop {
            let name = name();
            let size = if name.ends_with(['3', '7']) { LARGE } else { 10 };
            if ledger.dispatch(courier, &long(&name, size)).is_err() {
                return;
            }
        }
    };
    let post = || while ledger.post(courier, &name()).is_ok() {};
    let take = || {
        // One second, so that what dies with its taker comes back soon.
        while let Ok(taken) = ledger.take(courier, 1) {
            let Some((record, epoch)) = taken else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            if ledger.finish(courier, &record, epoch).is_err() {
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(produce);
        }
        scope.spawn(post);
        for _ in 0..2 {
            scope.spawn(take);
        }
        end();
    });
}

#[test]
fn killed_at_random_moments_under_load_it_loses_nothing_it_acknowledged() {
    let mut courier = Courier::start();
    let (ledger, names) = (AckChecker::default(), AtomicU64::new(0));
    let mut dice = TestRng::new();
    let rounds = times("MONOCO_ROUNDS", 15);
    let wanted = 10 * usize::try_from(rounds).unwrap();
    let mut round = 0;
    // A slow machine acknowledges less per round, and gets more rounds.
    while round < rounds || ledger.told() <= wanted {
        assert!(round < 10 * rounds, "too little load: {} messages", ledger.told());
        round += 1;
        load(&courier, &ledger, &names, || {
            std::thread::sleep(Duration::from_millis(dice.below(250)));
            signal(&courier, Signal::KILL);
        });
        courier = courier.restart();
        ledger.check(&courier);
    }
    // The callers who heard nothing try again, as callers do.
    ledger.settle(&courier);
    let (told, finished) = (ledger.told(), ledger.finished());
    say(&format!("{round} kills, {told} messages, {finished} finished"));
}

/// Where the first large body of a courier goes before it gets its name.
const INCOMING: &str = "store/blobs/tmp/0";

/// The write-side calls that a courier makes, and some that it does not make today.
/// With `Some`, only on that file of the home: counters are per thread, and another
/// thread's calls would come first.
const CALLS: [(&str, Option<&str>); 18] = [
    ("pwrite64", None),
    ("pwrite64", Some("store/monoco.db")),
    ("fsync", None),
    ("fsync", Some("store/monoco.db-wal")),
    ("fsync", Some("store/monoco.db")),
    ("fdatasync", None),
    ("write", None),
    ("write", Some(INCOMING)),
    ("fsync", Some(INCOMING)),
    ("write", Some("run/.courier.token.tmp")),
    ("write", Some("run/.courier.json.tmp")),
    ("writev", None),
    ("rename,renameat,renameat2,link,linkat", None),
    ("unlink,unlinkat", None),
    ("mkdir,mkdirat", None),
    ("ftruncate,fallocate", None),
    ("openat", None),
    ("chmod,fchmod,fchmodat", None),
];

/// The arguments that make `strace` kill at the `n`-th such call, before it is done.
pub fn killing(home: &Path, (call, file): (&str, Option<&str>), n: u32) -> Vec<String> {
    let mut args = vec!["-e".to_owned(), format!("trace={call}"), "-e".to_owned()];
    args.push(format!("inject={call}:signal=KILL:when={n}"));
    if let Some(file) = file {
        args.extend(["-P".to_owned(), home.join(file).display().to_string()]);
    }
    args
}

/// What is swept, and how many points each call had.
#[derive(Default)]
struct Swept(BTreeMap<(&'static str, Option<&'static str>), u32>);

impl Swept {
    fn note(&mut self, call: (&'static str, Option<&'static str>), points: u32) {
        if points > 0 {
            *self.0.entry(call).or_default() += points;
        }
    }

    /// Shows the points; fails when there are too few for the sweep to mean anything.
    fn done(&self, what: &str, least: u32) {
        let points: u32 = self.0.values().sum();
        say(&format!("{what}: killed at {points} points: {:?}", self.0));
        assert!(points >= least, "{what}: only {points} points were swept");
        for call in ["pwrite64", "fsync"] {
            assert!(self.0.contains_key(&(call, None)), "{what}: no {call} was swept");
        }
    }
}

/// Kills the courier at each call that `act` makes it do, one after the other, until
/// `act` runs through. `ready` goes before, and is not swept. All in one home, which
/// lives through all of it.
fn sweep<T>(
    what: &str,
    least: u32,
    ready: impl Fn(&Courier, &AckChecker, &str) -> T,
    act: impl Fn(&mut Courier, &AckChecker, &str, T) -> Ran,
) -> Swept {
    let ledger = AckChecker::default();
    let mut courier = Courier::start();
    let mut swept = Swept::default();
    let mut names = 0;
    for call in CALLS {
        for n in 1.. {
            names += 1;
            let name = format!("{what} {names}");
            let state = ready(&courier, &ledger, &name);
            let tracer = Tracer::killing(&courier, call, n);
            let ran = act(&mut courier, &ledger, &name, state);
            drop(tracer);
            let through = match ran {
                Ran::Broken => false,
                // It may have been killed after it had answered.
                Ran::Through => courier.is_alive(),
                Ran::Ended => true,
            };
            // A new one for each point, so that the counts are the same each time.
            courier = courier.restart();
            ledger.check(&courier);
            if through {
                swept.note(call, n - 1);
                break;
            }
            assert!(n < 500, "{what}: {call:?} never runs through");
        }
    }
    ledger.settle(&courier);
    swept.done(what, least);
    swept
}

/// How an act went.
enum Ran {
    /// The courier went away under it.
    Broken,
    Through,
    /// To the end, which is the courier's too.
    Ended,
}

impl<T> From<std::io::Result<T>> for Ran {
    fn from(result: std::io::Result<T>) -> Self {
        if result.is_ok() { Self::Through } else { Self::Broken }
    }
}

#[test]
fn killed_at_every_step_of_a_dispatch() {
    let dispatch = |courier: &mut Courier, ledger: &AckChecker, name: &str, ()| {
        ledger.dispatch(courier, name).into()
    };
    sweep("dispatch", 25, |_, _, _| (), dispatch);
}

#[test]
fn killed_at_every_step_of_a_large_dispatch() {
    let dispatch = |courier: &mut Courier, ledger: &AckChecker, name: &str, ()| {
        ledger.dispatch(courier, &long(name, LARGE)).into()
    };
    let swept = sweep("large dispatch", 30, |_, _, _| (), dispatch);
    for call in ["write", "fsync"] {
        assert!(swept.0.contains_key(&(call, Some(INCOMING))), "not at its file: {call}");
    }
}

#[test]
fn killed_at_every_step_of_a_take() {
    let wait = |courier: &Courier, ledger: &AckChecker, name: &str| {
        ledger.dispatch(courier, name).unwrap().ok();
    };
    let take =
        |courier: &mut Courier, ledger: &AckChecker, _: &str, ()| ledger.take(courier, 1).into();
    sweep("take", 12, wait, take);
}

#[test]
fn killed_at_every_step_of_a_finish() {
    let take = |courier: &Courier, ledger: &AckChecker, name: &str| {
        ledger.dispatch(courier, name).unwrap().ok();
        // Longer than any finish takes, shorter than our patience at the end.
        ledger.take(courier, 10).unwrap().unwrap()
    };
    let finish = |courier: &mut Courier, ledger: &AckChecker, _: &str, taken: (String, u64)| {
        ledger.finish(courier, &taken.0, taken.1).into()
    };
    sweep("finish", 10, take, finish);
}

#[test]
fn killed_at_every_step_of_a_send_and_its_delivery() {
    let send = |courier: &mut Courier, ledger: &AckChecker, name: &str, ()| {
        let Ok(answer) = ledger.post(courier, name) else { return Ran::Broken };
        let delivery = answer.ok()["deliveries"][0]["record_id"].as_str().unwrap().to_owned();
        let path = format!("/api/v1/records/{delivery}");
        while let Ok(answer) = courier.try_request("GET", &path, None) {
            if answer.ok()["state"] == "SENT" {
                return Ran::Through;
            }
        }
        Ran::Broken
    };
    sweep("send", 40, |_, _, _| (), send);
}

#[test]
fn killed_at_every_step_of_an_orderly_stop() {
    let fill = |courier: &Courier, ledger: &AckChecker, name: &str| {
        ledger.dispatch(courier, name).unwrap().ok();
    };
    let stop = |courier: &mut Courier, _: &AckChecker, _: &str, ()| {
        signal(courier, Signal::TERM);
        if courier.wait().success() { Ran::Ended } else { Ran::Broken }
    };
    sweep("stop", 40, fill, stop);
}

/// The log is moved into the database by another thread, in hundreds of writes; a
/// dozen of them stand for all.
#[test]
fn killed_while_the_log_is_moved_into_the_database() {
    let writes = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144];
    let writes = writes.map(|n| (("pwrite64", Some("store/monoco.db")), n));
    for (call, n) in writes.into_iter().chain([(("fsync", Some("store/monoco.db")), 1)]) {
        let ledger = AckChecker::default();
        let mut courier = Courier::start();
        let tracer = Tracer::killing(&courier, call, n);
        for number in 0..200 {
            if ledger.dispatch(&courier, &long(&format!("no. {number}"), 30_000)).is_err() {
                break;
            }
        }
        // Another thread moves it, in its own time, and syncs the database only when no
        // wrote meanwhile: so one more now and then, until it has.
        let deadline = Instant::now() + PATIENCE;
        for number in 200.. {
            if !courier.is_alive() || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
            let _ = ledger.dispatch(&courier, &long(&format!("no. {number}"), 30_000));
        }
        drop(tracer);
        assert!(!courier.is_alive(), "the log was not moved, or not by {call:?} {n}");
        let courier = courier.restart();
        ledger.check(&courier);
        ledger.resend(&courier);
        ledger.check(&courier);
    }
}

/// Starts a courier under `strace`, which kills it at the `n`-th such call. Its
/// process is our child all the same (`-D`), so that nothing stays behind.
pub fn start_killing(home: &Path, call: (&str, Option<&str>), n: u32) -> Result<Courier, String> {
    let mut command = Command::new("strace");
    command.args(["-D", "-f", "-qq", "-o", "/dev/null"]).args(killing(home, call, n));
    command.arg(binary()).args(["courier", "start", "--foreground", "--port", "0"]);
    Courier::try_spawn(home, &mut command)
}

/// Kills a courier at each call of its start and of its first message, each time in a
/// new home that `before` has been at.
fn sweep_start(what: &str, least: u32, before: impl Fn(&Path)) {
    let mut swept = Swept::default();
    for call in CALLS {
        for n in 1.. {
            let dir = tempfile::tempdir().unwrap();
            let home = dir.path().join("home");
            before(&home);
            let ledger = AckChecker::default();
            let mut started = start_killing(&home, call, n);
            let through = started.as_mut().is_ok_and(|courier| {
                ledger.dispatch(courier, "the first message").is_ok() && courier.is_alive()
            });
            drop(started);
            let courier = Courier::start_in(&home);
            ledger.check(&courier);
            ledger.dispatch(&courier, "the first message").unwrap().ok();
            ledger.check(&courier);
            if through {
                swept.note(call, n - 1);
                break;
            }
            assert!(n < 500, "{what}: {call:?} never runs through");
        }
    }
    swept.done(what, least);
}

#[test]
fn killed_at_every_step_of_its_first_start() {
    sweep_start("first start", 100, |_| ());
}

#[test]
fn killed_at_every_step_of_the_start_that_follows_a_broken_one() {
    // Killed when it makes the last of its directories: the tables are there, and
    // nothing in them. So the calls of the thread that fills them can be counted.
    let half_made = |home: &Path| {
        let started = start_killing(home, ("mkdir", Some("store/blobs/tmp")), 1);
        assert!(started.is_err(), "it was to be killed");
    };
    sweep_start("second start", 40, half_made);
}
