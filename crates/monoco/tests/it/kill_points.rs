//! `kill -9` at every step of the way of a Mail and of a draft.
//!
//! A step is a system call that writes. `strace` kills the courier when it makes the
//! first such call, then a new one at the second, and so on, until one gets through. By
//! default some of the many writes to the store's log stand for all of them;
//! `MONOCO_POINTS=1000` takes every one.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::ack_checker::{TestRng, Tracer, events, say};
use crate::common::{Courier, binary, until};
use crate::crash::{killing, start_killing};
use crate::mail_checker::{
    MailboxCourier, Puller, answering, at_rest, list, mail_id, mails, name, noted,
};
use crate::webhook_peer::{Receiver, configure};

/// A call, and the file or directory of the home that it is on; anywhere, with `None`.
pub type Call = (&'static str, Option<&'static str>);

/// What stands for all, where there are many.
const FEW: [u32; 19] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 30, 38, 48, 64];

/// At which calls of a kind to be killed.
pub fn points() -> Vec<u32> {
    match std::env::var("MONOCO_POINTS") {
        Ok(most) => (1..=most.parse().unwrap()).collect(),
        Err(_) => FEW.to_vec(),
    }
}

/// The same, where the first few are enough.
fn points_up_to(most: usize) -> Vec<u32> {
    let all = points();
    // Where each try leaves more to do for the next one, there is no last call.
    let most = if all == FEW { most } else { 8 * most };
    all.into_iter().take(most).collect()
}

/// How many homes are swept at the same time: mostly they wait.
const LANES: usize = 3;

/// A courier with callers and a receiver, and what they were told.
pub trait CheckedCourier: Sized {
    fn open() -> Self;
    fn courier(&self) -> &Courier;
    /// Starts another courier in the home of a killed one, and checks everything.
    fn recover(&mut self);
    fn check(&mut self);
    /// At which calls of a kind to be killed.
    fn points(call: Call) -> Vec<u32>;
}

/// Kills the courier at each of the calls that `act` makes it do, until `act` runs
/// through. `ready` goes before, and is not swept. Each lane has one home, which lives
/// through all of it.
pub fn sweep<C: CheckedCourier, T>(
    what: &str,
    least: u32,
    calls: &[Call],
    ready: impl Fn(&mut C, &str) -> T + Sync,
    act: impl Fn(&mut C, &str, T) -> io::Result<()> + Sync,
) {
    let swept = Mutex::new(BTreeMap::<Call, u32>::new());
    let work = Mutex::new(calls.iter());
    let lane = |lane: usize| {
        let mut checked = C::open();
        let mut names = 0;
        loop {
            let Some(call) = work.lock().unwrap().next() else { break };
            for n in C::points(*call) {
                names += 1;
                let name = format!("word-{what}-{lane}-{names}");
                let state = ready(&mut checked, &name);
                let tracer = Tracer::killing(checked.courier(), *call, n);
                let acted = act(&mut checked, &name, state);
                drop(tracer);
                // It may have been killed after it had answered. The dead answer nothing, also
                // when they are not quite gone yet.
                let answers = checked.courier().try_request("GET", "/health", None).is_ok();
                if acted.is_ok() && answers {
                    break;
                }
                *swept.lock().unwrap().entry(*call).or_default() += 1;
                checked.recover();
            }
        }
        checked.check();
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|number| scope.spawn(move || lane(number))).collect();
        for lane in lanes {
            // The first complaint, in its own words.
            lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    let swept = swept.into_inner().unwrap();
    let points: u32 = swept.values().sum();
    say(&format!("{what}: killed at {points} points: {swept:?}"));
    assert!(points >= least, "{what}: only {points} points were swept");
    for call in calls {
        assert!(swept.contains_key(call), "{what}: there was no {call:?}");
    }
}

/// Calls `through` with each call and its first points, until it says that the courier or
/// command ran through. The number is another one each time. Returns the points per call.
fn sweep_starts(
    what: &str,
    calls: &[Call],
    most: usize,
    mut through: impl FnMut(Call, u32, usize) -> bool,
) -> BTreeMap<Call, u32> {
    let (mut points, mut number) = (BTreeMap::<Call, u32>::new(), 0);
    for call in calls {
        for n in points_up_to(most) {
            number += 1;
            if through(*call, n, number) {
                break;
            }
            *points.entry(*call).or_default() += 1;
        }
    }
    say(&format!("{what}: killed at {points:?}"));
    points
}

impl CheckedCourier for MailboxCourier {
    fn open() -> Self {
        Self::open()
    }

    fn courier(&self) -> &Courier {
        &self.courier
    }

    fn recover(&mut self) {
        self.courier.kill();
        let torn = at_rest(&self.home);
        assert!(torn.is_empty(), "{torn:#?}");
        self.restart();
        self.book.insist(&self.courier);
        self.check();
    }

    fn check(&mut self) {
        self.book.check(&self.courier);
        self.book.check_drafts(&self.home, &self.receiver);
    }

    fn points(_: Call) -> Vec<u32> {
        points()
    }
}

const INBOUND: &str = "mailbox/inbound/webhook";
const ARCHIVE: &str = "mailbox/archive/webhook";
const DEADLETTER: &str = "mailbox/.deadletter/webhook";
const SENDING: &str = "mailbox/outbound/webhook/.sending";
const SENDING_IN: &str = "outbound/webhook/.sending";
const OUTBOUND: &str = "mailbox/outbound/webhook";
const STATE: &str = "mailbox/.state";
const TMP: &str = "mailbox/.state/tmp";
const INDEX: &str = "mailbox/.state/mails.jsonl";
const RENAME: &str = "rename,renameat,renameat2";

#[test]
fn killed_at_every_step_from_a_webhook_to_its_file() {
    let calls = [
        ("pwrite64", None),
        ("fsync", None),
        ("write", None),
        ("writev,sendto", None),
        ("openat", Some(TMP)),
        ("utimensat", None),
        (RENAME, Some(INBOUND)),
        ("write", Some(INDEX)),
    ];
    let push = |hub: &mut MailboxCourier, name: &str, ()| {
        hub.book.push(&hub.courier, name)?.ok();
        let mail = mail_id(name);
        hub.until(|hub| hub.has("inbound/webhook", &mail) && hub.has(".state", &mail))
    };
    sweep("webhook", 18, &calls, |_, _| (), push);
}

#[test]
fn killed_at_every_step_of_a_claim() {
    let calls = [("pwrite64", None), ("fsync", None), (RENAME, Some(STATE)), ("openat", Some(TMP))];
    let claim = |hub: &mut MailboxCourier, _: &str, mail: String| {
        hub.book.claim(&hub.courier, &mail)?.ok();
        let locks = hub.home.join(STATE).join("locks.json");
        hub.until(|_| std::fs::read_to_string(&locks).is_ok_and(|text| text.contains(&mail)))
    };
    sweep("claim", 10, &calls, |hub, name| hub.mail(name), claim);
}

/// A Mail that is claimed.
fn claimed(hub: &mut MailboxCourier, name: &str) -> String {
    let mail = hub.mail(name);
    hub.book.claim(&hub.courier, &mail).unwrap().ok();
    mail
}

#[test]
fn killed_at_every_step_from_done_to_the_archive() {
    let calls =
        [("pwrite64", None), ("fsync", None), ("writev,sendto", None), (RENAME, Some(ARCHIVE))];
    let complete = |hub: &mut MailboxCourier, _: &str, mail: String| {
        hub.book.complete(&hub.courier, &mail)?.ok();
        hub.until(|hub| hub.has("archive/webhook", &mail))
    };
    sweep("complete", 10, &calls, claimed, complete);
}

#[test]
fn killed_at_every_step_from_given_up_to_the_dead_letters() {
    let calls =
        [("pwrite64", None), ("fsync", None), ("openat", Some(TMP)), (RENAME, Some(DEADLETTER))];
    let give_up = |hub: &mut MailboxCourier, _: &str, mail: String| {
        hub.book.give_up(&hub.courier, &mail)?.ok();
        let reason = format!("{mail}.md.reason.json");
        hub.until(|hub| hub.has(".deadletter/webhook", &reason))
    };
    sweep("give-up", 10, &calls, claimed, give_up);
}

const DRAFT: &str = "---\nto: group:room-7\n---\n\n";

#[test]
fn killed_at_every_step_from_a_draft_to_the_archive() {
    let calls = [
        (RENAME, Some(SENDING)),
        ("fsync", Some(SENDING)),
        ("fsync", Some(OUTBOUND)),
        ("pwrite64", None),
        ("fsync", None),
        ("writev,sendto", None),
        ("openat", Some(TMP)),
        (RENAME, Some(ARCHIVE)),
        ("fsync", Some(ARCHIVE)),
        ("unlink,unlinkat", Some(SENDING)),
    ];
    let send = |hub: &mut MailboxCourier, name: &str, ()| {
        hub.book.draft(&hub.home, name, &format!("{DRAFT}{name} says hello"), "archive");
        // No caller is told when it is over; but then its file is in one place.
        hub.until(|hub| {
            let waits = hub.has("outbound/webhook", name) || hub.has(SENDING_IN, name);
            !waits && hub.has("archive/webhook", name)
        })
    };
    sweep("draft", 20, &calls, |_, _| (), send);
}

#[test]
fn killed_at_every_step_from_a_bad_draft_to_the_dead_letters() {
    let calls = [
        (RENAME, Some(SENDING)),
        ("fsync", Some(SENDING)),
        ("openat", Some(TMP)),
        ("write", None),
        (RENAME, Some(DEADLETTER)),
        ("fsync", Some(DEADLETTER)),
    ];
    let send = |hub: &mut MailboxCourier, name: &str, ()| {
        let file = format!("---\nto: ann\ncolour: red\n---\n\n{name} says hello");
        hub.book.draft(&hub.home, name, &file, ".deadletter");
        hub.until(|hub| {
            let waits = hub.has("outbound/webhook", name) || hub.has(SENDING_IN, name);
            !waits && hub.has(".deadletter/webhook", name) && counts_all_dead_drafts(hub)
        })
    };
    sweep("bad-draft", 6, &calls, |_, _| (), send);
}

/// Whether the courier counts every draft in the directory of dead letters. The file of a draft is
/// there before the directory is synced; the courier counts the draft after that, as its last step.
fn counts_all_dead_drafts(hub: &MailboxCourier) -> bool {
    let files = list(&hub.home.join(DEADLETTER));
    let drafts = files.iter().filter(|path| name(path).ends_with(".md")).count();
    // A courier that is killed meanwhile answers nothing, or half of it.
    let Ok(health) = hub.courier.try_request("GET", "/health", None) else { return false };
    let health = serde_json::from_slice::<serde_json::Value>(&health.bytes).unwrap_or_default();
    health["dead"]["drafts"] == drafts
}

/// Files are brought to disk some seconds after they were written, and then that is
/// noted.
#[test]
fn killed_while_files_are_synced_and_that_is_noted() {
    let calls = [("syncfs", None), ("fsync", Some("store/monoco.db-wal"))];
    let sync = |hub: &mut MailboxCourier, name: &str, ()| {
        hub.book.push(&hub.courier, name)?.ok();
        let (mail, pushed) = (mail_id(name), Instant::now());
        hub.until(|hub| hub.has("inbound/webhook", &mail))?;
        hub.until(|_| pushed.elapsed() > Duration::from_secs(3))
    };
    sweep("sync", 2, &calls, |_, _| (), sync);
}

/// A start finds files that are missing, changed, in the wrong place and half moved, and
/// an index that may not be on disk; and is killed while it sets that right.
#[test]
fn killed_at_every_step_of_the_start_that_repairs_the_files() {
    let calls = [
        ("ftruncate", Some(INDEX)),
        ("write", Some(INDEX)),
        ("openat", Some(TMP)),
        (RENAME, Some(INBOUND)),
        (RENAME, Some(ARCHIVE)),
        ("unlink,unlinkat", Some(TMP)),
        ("unlink,unlinkat", Some(INBOUND)),
        ("pwrite64", None),
        ("fsync", None),
    ];
    let mut hub = MailboxCourier::open();
    let points = sweep_starts("start", &calls, 8, |call, n, number| {
        damage(&mut hub, &format!("start-{number}"));
        let started = start_killing(&hub.home, call, n);
        let through = started.is_ok_and(|mut courier| {
            // Until it is all right, or it is dead.
            while courier.is_alive() {
                if hub.book.try_complaints(&courier).is_ok_and(|wrong| wrong.is_empty()) {
                    return true;
                }
            }
            false
        });
        hub.courier = Courier::start_in(&hub.home);
        hub.book.check(&hub.courier);
        through
    });
    assert_eq!(points.len(), calls.len(), "a call was never made: {points:?}");
}

/// Leaves a home with some Mails whose files are not as they should be, and no courier.
fn damage(hub: &mut MailboxCourier, name: &str) {
    // From then on the index is cut to what is on disk, and not made anew.
    hub.until(|hub| noted(&hub.home) > 0).unwrap();
    let mails: Vec<_> = (0..4).map(|n| hub.mail(&format!("{name}-{n}"))).collect();
    for mail in &mails[2..] {
        hub.finish(mail);
        hub.until(|hub| hub.has("archive/webhook", mail)).unwrap();
    }
    hub.courier.kill();
    let file = |dir: &str, mail: &str| {
        let files = list(&hub.home.join(dir));
        files.into_iter().find(|path| self::name(path).contains(mail)).unwrap()
    };
    std::fs::remove_file(file(INBOUND, &mails[0])).unwrap();
    let torn = file(INBOUND, &mails[1]);
    std::fs::remove_file(&torn).unwrap();
    std::fs::write(&torn, "half").unwrap();
    let moved = file(ARCHIVE, &mails[2]);
    std::fs::rename(&moved, hub.home.join(INBOUND).join(self::name(&moved))).unwrap();
    let copied = file(ARCHIVE, &mails[3]);
    std::fs::copy(&copied, hub.home.join(INBOUND).join(self::name(&copied))).unwrap();
    std::fs::write(hub.home.join(TMP).join("0"), "half").unwrap();
    let index = hub.home.join(INDEX);
    let mut text = std::fs::read(&index).unwrap();
    text.extend_from_slice(b"{\"seq\":");
    std::fs::write(&index, text).unwrap();
}

/// Runs a command that is killed at the `n`-th such call below `place`. Returns whether it ran
/// through.
fn runs_through(home: &Path, place: &Path, call: Call, n: u32, args: &[&str]) -> bool {
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null"]).args(killing(place, call, n));
    command.arg(binary()).args(args).env("MONOCO_HOME", home);
    command.output().unwrap().status.success()
}

/// The mailbox is rebuilt without a courier, and the rebuild is killed.
#[test]
fn killed_at_every_step_of_a_rebuild() {
    let calls = [
        ("openat", Some(TMP)),
        (RENAME, Some(INBOUND)),
        (RENAME, Some(STATE)),
        ("unlink,unlinkat", Some(INBOUND)),
        ("syncfs", None),
        ("pwrite64", None),
    ];
    let mut hub = MailboxCourier::open();
    let points = sweep_starts("rebuild", &calls, 5, |call, n, number| {
        damage(&mut hub, &format!("rebuild-{number}"));
        let through = runs_through(&hub.home, &hub.home, call, n, &["courier", "rebuild"]);
        hub.courier = Courier::start_in(&hub.home);
        hub.book.check(&hub.courier);
        through
    });
    assert_eq!(points.len(), calls.len(), "a call was never made: {points:?}");
}

/// A workspace is killed while it pulls, and pulls again.
#[test]
fn a_workspace_that_is_killed_while_it_pulls_has_every_mail_once() {
    let inbox = ".monoco/mailbox/inbox";
    let calls = [
        ("mkdir", None),
        ("link,linkat", None),
        ("fsync", None),
        ("write", None),
        (RENAME, None),
        ("openat", Some(inbox)),
    ];
    let mut hub = MailboxCourier::open();
    let place = tempfile::tempdir().unwrap();
    let mut here = Puller::new(place.path().join("first"));
    let points = sweep_starts("pull", &calls, 8, |call, n, number| {
        if n == 1 {
            // A new one for each kind, which has a lot to pull the first time.
            here = Puller::new(place.path().join(number.to_string()));
        }
        for part in ["a", "b"] {
            hub.mail(&format!("pull-{number}-{part}"));
        }
        let sync = ["mailbox", "sync", "--workspace", here.dir().to_str().unwrap()];
        let through = runs_through(&hub.home, here.dir(), call, n, &sync);
        let wrong = here.complaints();
        assert!(wrong.is_empty(), "{call:?} {n}: {wrong:#?}");
        here.check(&hub.courier);
        through
    });
    assert!(points.len() >= 4, "{points:?}");
}

/// An agent of a workspace, that works on whatever it can claim, for two seconds at a time.
struct Agent(Child);

impl Agent {
    fn start(home: &Path, here: &Puller, number: u64) -> Self {
        let mut command = Command::new(binary());
        command.args(["mailbox", "watch", "--timeout", "2", "--agent", &format!("agent-{number}")]);
        command.args(["--exec", "sleep 0.25"]).env("MONOCO_HOME", home).current_dir(here.dir());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Agent {
    /// `kill -9`, whatever it is at.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// B24, with real processes: no agent processes a Mail that another one holds, and Mails of dead agents are
/// taken up.
#[test]
fn eight_agents_of_whom_some_are_killed_complete_every_mail_once() {
    let dir = tempfile::tempdir().unwrap();
    let (home, receiver) = (dir.path().join("home"), Receiver::start());
    // An agent that is killed again and again does not make the Mail fail.
    let patient = "  claims: { max_retries: 20, backoff_ms: 10 }\n";
    configure(&home, &format!("{}{patient}", answering(&receiver, 20)));
    let here = Puller::new(dir.path().join("alpha"));
    let hub = MailboxCourier::resume(home, receiver, dir);
    let push = |lane: u32| {
        for n in 0..25 {
            hub.book.push(&hub.courier, &format!("work-{lane}-{n}")).unwrap().ok();
        }
    };
    let mut dice = TestRng::new();
    let mut agents: Vec<_> = (0..8).map(|n| Agent::start(&hub.home, &here, n)).collect();
    std::thread::scope(|scope| {
        (0..4).for_each(|lane| drop(scope.spawn(move || push(lane))));
        for number in 8..20 {
            std::thread::sleep(Duration::from_millis(50 + dice.below(300)));
            let index = usize::try_from(dice.below(8)).unwrap();
            agents[index] = Agent::start(&hub.home, &here, number);
        }
    });
    let done = |mails: &BTreeMap<String, serde_json::Value>| {
        mails.values().filter(|mail| mail["status"] == "COMPLETED").count()
    };
    until("100 Mails are completed", || done(&mails(&hub.courier).unwrap()) == 100);
    drop(agents);
    hub.book.check(&hub.courier);
    here.check(&hub.courier);
    let (mut completed, mut claimed) = (BTreeMap::<String, u32>::new(), 0);
    for event in events(&hub.courier) {
        let mail = event["detail"]["mail"].to_string();
        match event["kind"].as_str() {
            Some("completed") => *completed.entry(mail).or_default() += 1,
            Some("claimed") => claimed += 1,
            _ => {}
        }
    }
    assert!(completed.len() == 100 && completed.values().all(|times| *times == 1), "{completed:?}");
    assert!(claimed > 100, "no agent was killed at work");
    say(&format!("12 kills, {} of them at work", claimed - 100));
}
