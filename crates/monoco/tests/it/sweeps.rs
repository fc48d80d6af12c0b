//! `kill -9` at every step of the way of a Mail and of a draft.
//!
//! A step is a system call that writes. `strace` kills the courier when it makes the
//! first such call, then a new one at the second, and so on, until one gets through. By
//! default some of the many writes to the store's log stand for all of them;
//! `MONOCO_POINTS=1000` takes every one.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::acks::{Tracer, say};
use crate::book::{Office, at_rest, list, mail_id, name};
use crate::common::{Courier, binary};
use crate::crash::killing;

/// A call, and the file or directory of the home that it is on; anywhere, with `None`.
type Call = (&'static str, Option<&'static str>);

/// What stands for all, where there are many.
const FEW: [u32; 19] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 30, 38, 48, 64];

/// At which calls of a kind to be killed.
fn points() -> Vec<u32> {
    match std::env::var("MONOCO_POINTS") {
        Ok(most) => (1..=most.parse().unwrap()).collect(),
        Err(_) => FEW.to_vec(),
    }
}

/// How many homes are swept at the same time: mostly they wait.
const LANES: usize = 3;

/// Kills the courier at each of the calls that `act` makes it do, until `act` runs
/// through. `ready` goes before, and is not swept. Each lane has one home, which lives
/// through all of it.
fn sweep<T>(
    what: &str,
    least: u32,
    calls: &[Call],
    ready: impl Fn(&mut Office, &str) -> T + Sync,
    act: impl Fn(&mut Office, &str, T) -> io::Result<()> + Sync,
) {
    let swept = Mutex::new(BTreeMap::<Call, u32>::new());
    let work = Mutex::new(calls.iter());
    let lane = |lane: usize| {
        let mut office = Office::open();
        let mut names = 0;
        loop {
            let Some(call) = work.lock().unwrap().next() else { break };
            for n in points() {
                names += 1;
                let name = format!("{what}-{lane}-{names}");
                let state = ready(&mut office, &name);
                let args = killing(&office.home, *call, n);
                let args: Vec<_> = args.iter().map(String::as_str).collect();
                let tracer = Tracer::attach(&office.courier, &args);
                let acted = act(&mut office, &name, state);
                drop(tracer);
                // It may have been killed after it had answered.
                if acted.is_ok() && office.courier.is_alive() {
                    break;
                }
                *swept.lock().unwrap().entry(*call).or_default() += 1;
                recover(&mut office);
            }
        }
        office.book.check(&office.courier);
        office.book.check_drafts(&office.home, &office.receiver);
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

/// Looks at what a killed courier left, starts another, and checks everything.
fn recover(office: &mut Office) {
    office.courier.kill();
    let torn = at_rest(&office.home);
    assert!(torn.is_empty(), "{torn:#?}");
    office.restart();
    office.book.insist(&office.courier);
    office.book.check(&office.courier);
    office.book.check_drafts(&office.home, &office.receiver);
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
    let push = |office: &mut Office, name: &str, ()| {
        office.book.push(&office.courier, name)?.ok();
        let mail = mail_id(name);
        office.until(|office| office.has("inbound/webhook", &mail) && office.has(".state", &mail))
    };
    sweep("webhook", 25, &calls, |_, _| (), push);
}

#[test]
fn killed_at_every_step_of_a_claim() {
    let calls = [("pwrite64", None), ("fsync", None), (RENAME, Some(STATE)), ("openat", Some(TMP))];
    let claim = |office: &mut Office, _: &str, mail: String| {
        office.book.claim(&office.courier, &mail)?.ok();
        let locks = office.home.join(STATE).join("locks.json");
        office.until(|_| std::fs::read_to_string(&locks).is_ok_and(|text| text.contains(&mail)))
    };
    sweep("claim", 10, &calls, |office, name| office.mail(name), claim);
}

/// A Mail that is claimed.
fn claimed(office: &mut Office, name: &str) -> String {
    let mail = office.mail(name);
    office.book.claim(&office.courier, &mail).unwrap().ok();
    mail
}

#[test]
fn killed_at_every_step_from_done_to_the_archive() {
    let calls =
        [("pwrite64", None), ("fsync", None), ("writev,sendto", None), (RENAME, Some(ARCHIVE))];
    let complete = |office: &mut Office, _: &str, mail: String| {
        office.book.complete(&office.courier, &mail)?.ok();
        office.until(|office| office.has("archive/webhook", &mail))
    };
    sweep("complete", 10, &calls, claimed, complete);
}

#[test]
fn killed_at_every_step_from_given_up_to_the_dead_letters() {
    let calls =
        [("pwrite64", None), ("fsync", None), ("openat", Some(TMP)), (RENAME, Some(DEADLETTER))];
    let give_up = |office: &mut Office, _: &str, mail: String| {
        office.book.give_up(&office.courier, &mail)?.ok();
        let reason = format!("{mail}.md.reason.json");
        office.until(|office| office.has(".deadletter/webhook", &reason))
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
    let send = |office: &mut Office, name: &str, ()| {
        office.book.draft(&office.home, name, &format!("{DRAFT}{name} says hello"), "archive");
        // Nobody is told when it is over; but then its file is in one place.
        office.until(|office| {
            let waits = office.has("outbound/webhook", name) || office.has(SENDING_IN, name);
            !waits && office.has("archive/webhook", name)
        })
    };
    sweep("draft", 30, &calls, |_, _| (), send);
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
    let send = |office: &mut Office, name: &str, ()| {
        let file = format!("---\nto: ann\ncolour: red\n---\n\n{name} says hello");
        office.book.draft(&office.home, name, &file, ".deadletter");
        office.until(|office| {
            let waits = office.has("outbound/webhook", name) || office.has(SENDING_IN, name);
            !waits && office.has(".deadletter/webhook", name)
        })
    };
    sweep("bad-draft", 8, &calls, |_, _| (), send);
}
