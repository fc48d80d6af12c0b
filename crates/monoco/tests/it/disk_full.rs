//! No room for the mailbox, or for anything: who is told, who is not, and that all goes on
//! when there is room again.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use crate::ack_checker::say;
use crate::common::until;
use crate::faults::{Disk, one_large_file, tool};
use crate::mail_checker::{MailboxCourier, Puller, answering, at_rest, mail_id};
use crate::webhook_peer::{Receiver, configure};

/// A courier whose mailbox is on a disk of its own.
fn apart(limits: &str) -> (Disk, MailboxCourier) {
    let disk = Disk::tmpfs(limits);
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start();
    let text = format!(
        "{}  storage: {{ mailbox_root: '{}/mailbox' }}\n",
        answering(&receiver, 20),
        disk.place()
    );
    let home = dir.path().join("home");
    configure(&home, &text);
    // The other files are where they always are.
    fs::create_dir_all(Path::new(&disk.place()).join("mailbox")).unwrap();
    symlink(Path::new(&disk.place()).join("mailbox"), home.join("mailbox")).unwrap();
    (disk, MailboxCourier::resume(home, receiver, dir))
}

#[test]
fn a_mailbox_without_room_is_waited_out_and_messages_are_accepted() {
    for limits in ["size=300k", "size=64m,nr_inodes=24"] {
        let (disk, mut hub) = apart(limits);
        let ballast: Vec<_> =
            (0..8).map(|n| Path::new(&disk.place()).join(format!("{n}"))).collect();
        for file in &ballast {
            let size = if limits.contains("inodes") { 0 } else { 24 << 10 };
            fs::write(file, vec![7; size]).unwrap();
        }
        let mut pushed = 0;
        let health = |hub: &MailboxCourier| hub.courier.get("/health").ok();
        while health(&hub)["mailbox"]["error"].is_null() {
            pushed += 1;
            assert!(pushed < 500, "{limits}: it never became full");
            hub.book.push(&hub.courier, &format!("full-{pushed}")).unwrap().ok();
        }
        // The store has space: no sender is rejected, and work goes on.
        let shown = health(&hub);
        let error = shown["mailbox"]["error"].as_str().unwrap().to_owned();
        assert!(error.contains("space"), "{limits}: {error}");
        assert_eq!(shown["storage"]["status"], "ok");
        let doctor = hub.courier.cli(&["doctor"]).stdout;
        assert!(doctor.contains("FAIL  mailbox"), "{doctor}");
        for n in 1..=5 {
            hub.book.push(&hub.courier, &format!("later-{n}")).unwrap().ok();
        }
        hub.courier.mails(pushed + 5);
        let last = mail_id("later-5");
        hub.finish(&last);
        let torn = at_rest(&hub.home);
        assert!(torn.is_empty(), "{limits}: {torn:#?}");
        // A draft is written whole, or its writer is told that it is not.
        let unsent = hub.book.send(&hub.home, "draft");
        assert!(unsent.code == 0 || unsent.stderr.contains("space"), "{unsent:?}");

        for file in ballast {
            fs::remove_file(file).unwrap();
        }
        tool("mount", &["-o", "remount,size=64m,nr_inodes=10000", &disk.place()]);
        hub.book.check(&hub.courier);
        assert_eq!(health(&hub)["mailbox"]["error"], Value::Null);
        hub.book.send(&hub.home, "another").ok();
        hub.book.check_drafts(&hub.home, &hub.receiver);
        hub.restart();
        hub.book.check(&hub.courier);
        say(&format!("{limits}: full after {pushed} messages"));
    }
}

#[test]
fn a_mailbox_that_turns_read_only_is_waited_out_and_messages_are_accepted() {
    let (disk, mut hub) = apart("size=64m");
    let first = hub.mail("first");
    tool("mount", &["-o", "remount,ro", &disk.place()]);
    hub.book.push(&hub.courier, "second").unwrap().ok();
    until("health says so", || {
        let health = hub.courier.get("/health").ok();
        health["mailbox"]["error"].as_str().is_some_and(|error| error.contains("ead-only"))
    });
    // Claims and reads go on.
    hub.finish(&first);
    hub.book.claim(&hub.courier, &mail_id("second")).unwrap().ok();
    let place = tempfile::tempdir().unwrap();
    let here = Puller::new(place.path().join("alpha"));
    here.sync(&hub.home).ok();
    assert!(here.complaints().is_empty());
    tool("mount", &["-o", "remount,rw", &disk.place()]);
    hub.book.check(&hub.courier);
    here.check(&hub.courier);
}

/// B6: a full home. The provider is told, and still has its message.
#[test]
fn a_full_home_refuses_webhooks_and_goes_on_when_there_is_room() {
    let disk = Disk::tmpfs("size=4m");
    let ballast = one_large_file(Path::new(&disk.place()));
    let mut hub = MailboxCourier::open_in(&disk.home());
    let first = hub.mail("first");
    let mut pushed = 0;
    let refused = loop {
        pushed += 1;
        assert!(pushed < 5_000, "it never became full");
        let answer = hub.book.push(&hub.courier, &format!("full-{pushed}")).unwrap();
        if answer.status != 200 {
            break answer;
        }
    };
    assert_eq!(refused.refused(507), "storage_full");
    let health = hub.courier.get("/health").ok();
    assert_eq!(
        (&health["status"], &health["storage"]["status"]),
        (&json!("degraded"), &json!("full"))
    );
    // What is there can be read.
    hub.courier.get(&format!("/api/v1/messages/{first}")).ok();
    let said = hub.courier.cli(&["mailbox", "read", &first, "--content"]).ok();
    assert_eq!(said, "about first");
    let torn = at_rest(&hub.home);
    assert!(torn.is_empty(), "{torn:#?}");

    for file in ballast {
        fs::remove_file(file).unwrap();
    }
    // The provider tries again; without a restart everything is kept and filed.
    until("there is room", || {
        let again = hub.book.push(&hub.courier, &format!("full-{pushed}")).unwrap();
        again.status == 200
    });
    hub.book.check(&hub.courier);
    hub.finish(&first);
    hub.book.check(&hub.courier);
    hub.restart();
    hub.book.check(&hub.courier);
    say(&format!("full after {pushed} messages"));
}
