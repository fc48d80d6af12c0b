//! `kill -9` at every step of the way of a mail: fetched, registered, started, its attachments and
//! its message stored, its forward posted, sent and reported.
//!
//! How a sweep works is in `kill_points.rs`. Each kill meets one mail, which is then one Mail of
//! the hub and was forwarded once, or is UNCERTAIN and was forwarded at most once.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::ack_checker::say;
use crate::common::{Courier, PATIENCE, cli};
use crate::email::{account, config, ended, mail_with, scanned};
use crate::email_faults::{FORWARD_ALL, check_each_once, sent_subjects};
use crate::kill_points::{Call, CheckedCourier, points, sweep};
use crate::mail_servers::{Dovecot, SmtpServer};
use crate::webhook_peer::configure;

const RENAME: &str = "rename,renameat,renameat2";

/// Writes of the store and their syncs, files of attachments and of large mails, and what is sent
/// to the servers.
const CALLS: [Call; 5] =
    [("pwrite64", None), ("fsync", None), (RENAME, None), ("syncfs", None), ("sendto", None)];

/// Later writes of the store, which report what was sent.
const LATE_WRITES: [u32; 8] = [80, 96, 112, 128, 152, 176, 208, 256];

/// How many mails had been sent when the courier was killed, and how many had not.
static KILLED: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

/// Attachments that are synced together.
const ATTACHMENTS: usize = 9;

/// An account whose mails are all forwarded, and what has arrived in it.
struct EmailChecker {
    courier: Courier,
    dovecot: Dovecot,
    smtp: SmtpServer,
    subjects: BTreeSet<String>,
    dir: TempDir,
}

impl CheckedCourier for EmailChecker {
    fn open() -> Self {
        let (dovecot, smtp, dir) =
            (Dovecot::start(), SmtpServer::start(), tempfile::tempdir().unwrap());
        let section = account("team", &dovecot, &smtp, FORWARD_ALL);
        let home = dir.path().join("home");
        configure(&home, &config(&[("work", section)]));
        let courier = Courier::start_in(&home);
        scanned(&courier, "work");
        Self { courier, dovecot, smtp, subjects: BTreeSet::new(), dir }
    }

    fn courier(&self) -> &Courier {
        &self.courier
    }

    fn recover(&mut self) {
        self.courier.kill();
        let is_sent = sent_subjects(&self.smtp).len() == self.subjects.len();
        KILLED[usize::from(!is_sent)].fetch_add(1, Ordering::Relaxed);
        self.courier = Courier::start_in(&self.dir.path().join("home"));
        self.check_mails();
    }

    fn check(&mut self) {
        self.check_mails();
        self.courier.kill();
        let doctor = cli(&self.dir.path().join("home"), &["doctor", "--format", "json"], "");
        let doctor: Value = serde_json::from_str(&doctor.stdout).unwrap();
        let store = doctor["checks"].as_array().unwrap().iter().find(|it| it["check"] == "store");
        assert_eq!(store.unwrap()["state"], "ok", "every attachment is there: {doctor:#}");
    }

    fn points(call: Call) -> Vec<u32> {
        match call {
            // The files of one mail; the projector renames others.
            (RENAME, _) => points().into_iter().take(10).collect(),
            ("pwrite64", _) => {
                let all = points();
                let last = all.last().copied().unwrap_or(0);
                all.into_iter().chain(LATE_WRITES.into_iter().filter(|n| *n > last)).collect()
            }
            _ => points(),
        }
    }
}

impl EmailChecker {
    fn check_mails(&self) {
        let tasks = ended(&self.courier, "work", self.subjects.len());
        check_each_once(&self.courier, &self.smtp, &tasks, &self.subjects);
    }

    /// A mail arrives, which is stored as a file. Returns when its task has ended.
    fn arrives(&mut self, subject: &str) -> io::Result<()> {
        self.subjects.insert(subject.to_owned());
        self.dovecot.deliver("team", "INBOX", &large_mail(subject));
        let deadline = Instant::now() + PATIENCE;
        let wait = |courier: &mut Courier| match courier.is_alive() {
            true if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
                Ok(())
            }
            true => panic!("{subject} was not forwarded"),
            false => Err(io::Error::from(io::ErrorKind::ConnectionReset)),
        };
        // A request would be answered, which is a step as well.
        while !sent_subjects(&self.smtp).contains_key(subject) {
            wait(&mut self.courier)?;
        }
        let path = "/api/v1/email/tasks?account=work&status=forwarded&limit=1000";
        loop {
            let answer = self.courier.try_request("GET", path, None)?;
            let forwarded = answer.ok()["tasks"].as_array().unwrap().clone();
            if forwarded.iter().any(|task| task["subject"] == subject) {
                return Ok(());
            }
            wait(&mut self.courier)?;
        }
    }
}

/// A mail of more than 64 KiB with attachments, all of which become files of the store.
fn large_mail(subject: &str) -> Vec<u8> {
    let more = "MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n";
    let part = |n: usize| {
        let lines = format!("{subject} {n}\r\n").repeat(300);
        format!(
            "--b\r\nContent-Type: application/octet-stream; name=file-{n}\r\n\
             Content-Disposition: attachment; filename=file-{n}\r\n\r\n{lines}\r\n"
        )
    };
    let parts: String = (0..ATTACHMENTS).map(part).collect();
    let text = "A line of the text.\r\n".repeat(1_000);
    let body = format!("--b\r\nContent-Type: text/plain\r\n\r\n{text}\r\n{parts}--b--");
    let id = format!("<{subject}@example.org>");
    let mail = mail_with(&id, "joe@example.org", subject, more, &body);
    assert!(mail.len() > 64 << 10, "{}", mail.len());
    mail
}

#[test]
fn killed_at_every_step_from_the_mail_server_to_the_report() {
    let arrives = |checker: &mut EmailChecker, word: &str, ()| checker.arrives(word);
    sweep("mail", 30, &CALLS, |_, _| (), arrives);
    let [sent, unsent] = [&KILLED[0], &KILLED[1]].map(|count| count.load(Ordering::Relaxed));
    say(&format!("{sent} mails had been sent, {unsent} had not"));
    assert!(sent > 0 && unsent > 0);
}
