//! Power cuts on the way of Mails and drafts: what was told is there afterwards, and what
//! was not yet on disk is written again.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::ack_checker::{TestRng, say, times};
use crate::common::{Courier, PATIENCE};
use crate::faults::{Disk, tool};
use crate::mail_checker::{MailboxCourier, Puller, at_rest, list, mails, noted};

const INDEX: &str = "mailbox/.state/mails.jsonl";

/// Pushes, works and pulls until the power is cut.
fn bustle(hub: &MailboxCourier, here: &Puller, names: &AtomicU64, cut: impl FnOnce()) {
    let (book, courier) = (&hub.book, &hub.courier);
    let (over, home) = (AtomicBool::new(false), &hub.home);
    let push = || {
        let name = || format!("cut-{}", names.fetch_add(1, Ordering::Relaxed));
        while book.push(courier, &name()).is_ok() {}
    };
    let work = || {
        while let Ok(mails) = mails(courier) {
            for (id, _) in mails.iter().filter(|(_, mail)| mail["status"] == "NEW").take(3) {
                let claimed = book.claim(courier, id).is_ok_and(|answer| answer.status == 200);
                let _ = claimed.then(|| book.complete(courier, id));
            }
        }
    };
    let pull = || {
        while !over.load(Ordering::Relaxed) {
            // It may fail while the disk goes away.
            let _ = here.sync(home);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(push);
        scope.spawn(push);
        scope.spawn(work);
        scope.spawn(pull);
        cut();
        over.store(true, Ordering::Relaxed);
    });
}

/// What a power cut leaves. Files that were not yet on disk may be missing, empty or torn
/// until the next start, and those that a workspace was just pulling until it pulls again.
/// A torn file is never read as a Mail; when the start has caught up, everything is right, and a
/// workspace has every Mail once and whole.
#[test]
fn a_power_cut_on_the_way_of_mails_loses_nothing_that_was_told() {
    let (mut dice, names) = (TestRng::new(), AtomicU64::new(0));
    let (cuts, mut told, mut torn) = (times("MONOCO_CUTS", 5), 0, 0);
    // Every check reads all Mails, and the disk is small: each holds what comes between 8 cuts.
    for first in (0..cuts).step_by(8) {
        let disk = Disk::ext4();
        let mut hub = MailboxCourier::open_in(&disk.home());
        let here = Puller::new(Path::new(&disk.place()).join("alpha"));
        tool("sync", &["-f", &disk.place()]);
        for _ in first..cuts.min(first + 8) {
            let before = hub.book.told();
            bustle(&hub, &here, &names, || {
                let deadline = Instant::now() + PATIENCE;
                while hub.book.told() < before + 5 && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::thread::sleep(Duration::from_millis(dice.below(700)));
                disk.cut(&hub.courier);
            });
            assert!(hub.book.told() >= before + 5, "the cut came before the load");
            hub.courier.kill();
            disk.restore();
            torn += at_rest(&hub.home).len();
            // Without a courier, from whatever is there.
            here.sync(&hub.home).ok();
            here.lists_only_what_is_whole(&hub.home);

            hub.courier = Courier::start_in(&hub.home);
            hub.book.insist(&hub.courier);
            hub.book.check(&hub.courier);
            here.check(&hub.courier);
        }
        told += hub.book.told();
    }
    say(&format!("{cuts} cuts, {told} messages, {torn} files were torn and written again"));
}

/// Once the courier has noted that files are on disk, they are: a cut then leaves them
/// whole, also for readers that look before the next start.
#[test]
fn a_power_cut_at_rest_leaves_every_file_whole() {
    let cuts = times("MONOCO_CUTS", 6).div_ceil(2);
    let disk = Disk::ext4();
    let mut hub = MailboxCourier::open_in(&disk.home());
    let here = Puller::new(Path::new(&disk.place()).join("alpha"));
    tool("sync", &["-f", &disk.place()]);
    for cut in 0..cuts {
        let mails: Vec<_> = (0..5).map(|n| hub.mail(&format!("rest-{cut}-{n}"))).collect();
        for mail in &mails[3..] {
            hub.finish(mail);
            hub.until(|hub| hub.has("archive/webhook", mail)).unwrap();
        }
        here.check(&hub.courier);
        let index = hub.home.join(INDEX);
        let length = |index: &Path| std::fs::metadata(index).unwrap().len();
        hub.until(|hub| noted(&hub.home) == length(&index)).unwrap();
        let before = files_of(&hub.home);
        disk.cut(&hub.courier);
        hub.courier.kill();
        disk.restore();

        let wrong = [at_rest(&hub.home), here.complaints()].concat();
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert_eq!(files_of(&hub.home), before, "as it was");
        hub.courier = Courier::start_in(&hub.home);
        hub.book.check(&hub.courier);
        here.check(&hub.courier);
        assert_eq!(hub.courier.get("/health").ok()["mailbox"]["repaired"], 0);
    }
    say(&format!("{cuts} cuts at rest"));
}

/// A draft whose path was printed is not lost.
#[test]
fn a_power_cut_on_the_way_of_drafts_sends_each_under_one_key() {
    let mut dice = TestRng::new();
    let disk = Disk::ext4();
    let mut hub = MailboxCourier::open_in(&disk.home());
    tool("sync", &["-f", &disk.place()]);
    let cuts = times("MONOCO_CUTS", 6).div_ceil(2);
    for cut in 0..cuts {
        for n in 0..4 {
            hub.book.send(&hub.home, &format!("cut-{cut}-{n}")).ok();
            std::thread::sleep(Duration::from_millis(dice.below(150)));
        }
        std::thread::sleep(Duration::from_millis(dice.below(600)));
        disk.cut(&hub.courier);
        hub.courier.kill();
        disk.restore();
        hub.courier = Courier::start_in(&hub.home);
        hub.book.check_drafts(&hub.home, &hub.receiver);
    }
    say(&format!("{cuts} cuts, {} drafts", 4 * cuts));
}

/// The names of all Mails' files, and where they are.
fn files_of(home: &Path) -> Vec<PathBuf> {
    let places = ["inbound", "archive", ".deadletter"].iter();
    places.flat_map(|place| list(&home.join("mailbox").join(place).join("webhook"))).collect()
}
