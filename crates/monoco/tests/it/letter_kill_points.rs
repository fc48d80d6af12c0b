//! `kill -9` at every step of the way of a letter, power cuts, and a full disk.
//!
//! Who was told 202 has nothing more to do: the letter comes to its end, once. Who was told
//! nothing hands it in again under the same key, and there is one letter all the same.
//! How a sweep works is in `kill_points.rs`; `MONOCO_POINTS=1000` takes every call here, too.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::ack_checker::{TestRng, long, say, times};
use crate::common::{Courier, until};
use crate::crash::signal;
use crate::faults::{Disk, one_large_file, tool};
use crate::kill_points::{Call, CheckedCourier, points, sweep};
use crate::letter_checker::{LetterChecker, PASSES};
use crate::pipeline_harness::mail_through;
use crate::webhook_peer::seconds;

/// Writes of the store, its syncs, and answers.
const CALLS: [Call; 3] = [("pwrite64", None), ("fsync", None), ("writev,sendto", None)];

impl CheckedCourier for LetterChecker {
    fn open() -> Self {
        Self::open()
    }

    fn courier(&self) -> &Courier {
        &self.courier
    }

    fn recover(&mut self) {
        self.recover();
    }

    fn check(&mut self) {
        self.check();
    }

    fn points(call: Call) -> Vec<u32> {
        match call {
            // A caller that waits for a letter polls, and gets more and more answers.
            ("writev,sendto", _) => points().into_iter().take(3).collect(),
            _ => points(),
        }
    }
}

#[test]
fn killed_at_every_step_from_the_door_to_the_tunnel() {
    let post = |clerk: &mut LetterChecker, word: &str, ()| {
        clerk.sends(word, "plain/bob")?;
        clerk.arrives(word)?;
        clerk.stands(word, "DONE")
    };
    sweep("door", 12, &CALLS, |_, _| (), post);
}

/// A mail that is sent as a file of its own, which is on disk before anything names it.
#[test]
fn killed_at_every_step_of_a_large_letter() {
    let calls = [
        ("write", Some("store/blobs/tmp/0")),
        ("fsync", None),
        ("rename,renameat,renameat2,link,linkat", None),
    ];
    let post = |clerk: &mut LetterChecker, word: &str, ()| {
        let mut letter = mail_through("plain", &long("large", 400_000));
        let data = letter["data"].as_str().unwrap().replace("Hello", word);
        letter["data"] = data.into();
        clerk.letters.hand_in(&clerk.courier, word, letter, &["DONE"])?.ok();
        clerk.arrives(word)?;
        clerk.stands(word, "DONE")
    };
    sweep("large", 4, &calls, |_, _| (), post);
}

#[test]
fn killed_at_every_step_from_the_door_to_the_bin() {
    let post = |clerk: &mut LetterChecker, word: &str, ()| {
        clerk.hand_in(word, "spammy/bob", "Subject: casino", &["TRASHED"])?;
        clerk.stands(word, "TRASHED")
    };
    sweep("bin", 6, &CALLS, |_, _| (), post);
}

#[test]
fn killed_at_every_step_of_throwing_away_by_hand() {
    let ready = |clerk: &mut LetterChecker, word: &str| {
        let first = "word-first";
        if clerk.letters.told() == 0 {
            clerk.sends(first, "shut/bob").unwrap();
            clerk.arrives(first).unwrap();
        }
        // Its turn is tomorrow.
        clerk.hand_in(word, "shut/bob", "Subject: Hello", &["TRASHED"]).unwrap();
        clerk.is_kept(word);
    };
    let trash = |clerk: &mut LetterChecker, word: &str, ()| {
        clerk.letters.ask(&clerk.courier, word, "trash")?;
        clerk.stands(word, "TRASHED")
    };
    sweep("trash", 4, &CALLS, ready, trash);
}

#[test]
fn killed_at_every_step_from_the_bin_to_the_tunnel() {
    let ready = |clerk: &mut LetterChecker, word: &str| {
        clerk.hand_in(word, "spammy/bob", "Subject: casino", &["DONE"]).unwrap();
        clerk.stands(word, "TRASHED").unwrap();
    };
    let restore = |clerk: &mut LetterChecker, word: &str, ()| {
        clerk.letters.ask(&clerk.courier, word, "restore")?;
        clerk.arrives(word)?;
        clerk.stands(word, "DONE")
    };
    sweep("restore", 8, &CALLS, ready, restore);
}

#[test]
fn killed_at_every_step_of_another_chance_for_a_dead_letter() {
    let ready = |clerk: &mut LetterChecker, word: &str| {
        let program = clerk.beside("missing");
        let _ = std::fs::remove_file(&program);
        clerk.sends(word, "failing/bob").unwrap();
        clerk.stands(word, "DEAD").unwrap();
        std::fs::write(&program, format!("#!/bin/sh\n{PASSES}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let retry = |clerk: &mut LetterChecker, word: &str, ()| {
        clerk.letters.ask(&clerk.courier, word, "retry")?;
        clerk.arrives(word)?;
        clerk.stands(word, "DONE")
    };
    sweep("retry", 4, &CALLS, ready, retry);
}

#[test]
fn killed_at_every_step_of_a_window_that_closes() {
    let three = |word: &str| ["a", "b", "c"].map(|end| format!("{word}-{end}"));
    let ready = |clerk: &mut LetterChecker, word: &str| {
        for one in three(word) {
            let to = format!("merging/{word}");
            clerk.hand_in(&one, &to, "Subject: Hello", &["DONE", "MERGED"]).unwrap();
        }
    };
    let close = |clerk: &mut LetterChecker, word: &str, ()| {
        clerk.arrives(&three(word)[2])?;
        clerk.stands(&three(word)[0], "DONE")
    };
    sweep("window", 6, &CALLS[..2], ready, close);
}

#[test]
fn killed_at_every_step_of_a_letter_whose_turn_comes() {
    let ready = |clerk: &mut LetterChecker, word: &str| {
        let (first, to) = (format!("{word}-first"), format!("limited/{word}"));
        clerk.sends(&first, &to).unwrap();
        clerk.sends(word, &to).unwrap();
        clerk.is_kept(word);
        clerk.arrives(&first).unwrap();
    };
    let due = |clerk: &mut LetterChecker, word: &str, ()| {
        clerk.arrives(word)?;
        clerk.stands(word, "DONE")
    };
    sweep("limit", 6, &CALLS[..2], ready, due);
}

#[test]
fn killed_at_every_step_of_a_letter_that_goes_to_a_command() {
    let calls = [CALLS[0], CALLS[1], ("clone,clone3,vfork", None)];
    let ask = |clerk: &mut LetterChecker, word: &str, ()| {
        clerk.sends(word, "asking/bob")?;
        clerk.arrives(word)?;
        clerk.stands(word, "DONE")
    };
    sweep("command", 12, &calls, |_, _| (), ask);
}

/// Killed when the command has just begun, while it is at work, and when it has answered.
#[test]
fn killed_while_a_command_has_a_letter_that_letter_is_tried_again() {
    let mut clerk = LetterChecker::open();
    let mut again = 0;
    for (n, after) in [0, 30, 60, 90, 105, 120].into_iter().enumerate() {
        let word = format!("word-{n}");
        let runs = |clerk: &LetterChecker| {
            let log = std::fs::read_to_string(clerk.beside("runs")).unwrap_or_default();
            log.lines().count()
        };
        let (before, hold) = (runs(&clerk), clerk.beside("hold"));
        if after == 0 {
            // The command does not answer before the courier is killed.
            std::fs::write(&hold, "").unwrap();
        }
        clerk.sends(&word, "asking/bob").unwrap();
        clerk.until(|clerk| Ok(runs(clerk) > before)).unwrap();
        std::thread::sleep(Duration::from_millis(after));
        signal(&clerk.courier, Signal::KILL);
        if after == 0 {
            clerk.courier.kill();
            std::fs::remove_file(&hold).unwrap();
        }
        clerk.recover();
        let tries = runs(&clerk) - before;
        assert!((1..=2).contains(&tries), "tried {tries} times after one kill");
        again += tries - 1;
        assert!(after > 0 || tries == 2, "no courier was there to take its answer");
    }
    say(&format!("{again} of 6 were tried again"));
}

#[test]
fn killed_at_every_step_from_a_webhook_through_its_chain() {
    let push = |clerk: &mut LetterChecker, word: &str, ()| {
        clerk.book.push(&clerk.courier, word)?.ok();
        clerk.until(|clerk| {
            let mails = crate::mail_checker::mails(&clerk.courier)?;
            Ok(mails.values().any(|mail| mail["session"]["id"] == word))
        })
    };
    sweep("heard", 8, &CALLS, |_, _| (), push);
}

/// A sender that got 202 may disconnect: neither under load nor when idle does a power cut
/// lose its letter.
#[test]
fn a_power_cut_loses_no_letter_that_was_acknowledged() {
    let (mut dice, names) = (TestRng::new(), AtomicU64::new(0));
    let disk = Disk::ext4();
    let mut clerk = LetterChecker::open_in(&disk.home());
    tool("sync", &["-f", &disk.place()]);
    let cuts = times("MONOCO_CUTS", 4);
    for cut in 0..cuts {
        let (courier, letters) = (&clerk.courier, &clerk.letters);
        let hand_in = || {
            let word = format!("word-{}", names.fetch_add(1, Ordering::Relaxed));
            let letter = mail_through("plain", &format!("{word} says hello"));
            letters.hand_in(courier, &word, letter, &["DONE"]).is_ok()
        };
        if cut % 2 == 0 {
            // At rest, where no later sync saves what was forgotten.
            (0..3).for_each(|_| assert!(hand_in()));
            std::thread::sleep(Duration::from_millis(dice.below(400)));
            disk.cut(courier);
        } else {
            std::thread::scope(|scope| {
                (0..2).for_each(|_| drop(scope.spawn(|| while hand_in() {})));
                std::thread::sleep(Duration::from_millis(50 + dice.below(200)));
                disk.cut(courier);
            });
        }
        clerk.courier.kill();
        disk.restore();
        clerk.recover();
    }
    say(&format!("{cuts} cuts, {} letters", clerk.letters.told()));
}

#[test]
fn a_full_disk_refuses_letters_and_all_go_on_when_there_is_room() {
    let disk = Disk::tmpfs("size=5m");
    let mut clerk = LetterChecker::open_in(&disk.home());
    let ballast = one_large_file(Path::new(&disk.place()));
    // Their turns come while the disk is full.
    for n in 0..5 {
        clerk.sends(&format!("word-later-{n}"), "limited/bob").unwrap();
    }
    // Large ones until one is refused, then small ones until no more of those fit either.
    let (mut count, mut refused) = (0, Vec::new());
    while refused.len() < 5 {
        count += 1;
        assert!(count < 900, "it never became full");
        let (word, size) = (format!("word-{count}"), if refused.is_empty() { 10_000 } else { 10 });
        let letter = mail_through("plain", &format!("{word} says {}", long("hello", size)));
        let answer = clerk.letters.hand_in(&clerk.courier, &word, letter, &["DONE"]).unwrap();
        if answer.status != 202 {
            refused.push(word);
        }
    }
    // Nothing of them is kept; what was taken before is there, and can be read.
    assert_eq!(clerk.letters.told(), 5 + count - refused.len());
    assert_eq!(clerk.stored("outbound").len(), clerk.letters.told());
    let overdue = |clerk: &LetterChecker| {
        let stored = clerk.stored("outbound");
        let due = stored.values().filter_map(|one| one["due_at"].as_str()?.parse().ok());
        let over = |due: &jiff::Timestamp| due.as_second() + 1 < seconds().cast_signed();
        due.filter(over).count()
    };
    until("a turn has passed", || overdue(&clerk) > 0);
    let open = overdue(&clerk);

    for file in ballast {
        std::fs::remove_file(file).unwrap();
    }
    tool("mount", &["-o", "remount,size=64m", &disk.place()]);
    // Without a restart, its sender tries again, and every other letter goes its way.
    for word in &refused {
        let again = || clerk.letters.again(&clerk.courier, word).unwrap().status == 202;
        until("there is room", again);
    }
    clerk.check();
    clerk.recover();
    say(&format!("full after {count} letters, {open} of them on their way"));
}
