//! A courier with one e-mail account, and how its progress is polled.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::Result;
use crate::common::courier::{RunningCourier, unexpected_response};
use crate::common::http::Conn;
use crate::common::resources::peak_bytes;
use crate::dovecot::{Dovecot, PASSWORD};

/// Maximum time of one measurement with up to [`MAILS_IN_TIMEOUT`] mails. More mails have more.
const TIMEOUT: Duration = Duration::from_secs(200);

const MAILS_IN_TIMEOUT: u64 = 10_000;

/// How many more mails are reported as progress.
const MAILS_PER_REPORT: u64 = 10_000;

const POLL_INTERVAL: Duration = Duration::from_millis(2);

const ACCOUNT: &str = "/api/v1/email/accounts/work";

/// A running courier with the account `work`.
pub struct AccountCourier {
    courier: RunningCourier,
    conn: Conn,
    started: Instant,
}

/// What a first fetch took.
#[derive(Clone, Copy, Debug)]
pub struct FirstFetch {
    /// From the start of the process until the last mail is on disk.
    pub took: Duration,
    /// Maximum resident memory, in bytes.
    pub peak: u64,
}

impl AccountCourier {
    /// Starts a courier that fetches all mails of `user`.
    pub fn start(below: &Path, dovecot: &Dovecot, user: &str, deliver: bool) -> Result<Self> {
        let home = TempDir::new_in(below)?;
        fs::create_dir_all(home.path().join("courier"))?;
        let account = json!({
            "provider": "email", "address": "team@example.com", "username": user,
            "password": PASSWORD, "backfill": "all", "deliver": deliver, "max_mail_mb": 200,
            "imap": {"host": "127.0.0.1", "port": dovecot.port, "tls": "none"},
            "debounce": {"window_ms": 1},
        });
        let config = json!({"courier": {"adapters": {"work": account}}});
        fs::write(home.path().join("courier/config.yaml"), config.to_string())?;
        let started = Instant::now();
        let courier = RunningCourier::start(home)?;
        let conn = Conn::open(courier.addr, &courier.token, "application/json")?;
        Ok(Self { courier, conn, started })
    }

    /// Waits until all mails are registered in the store.
    pub fn until_registered(&mut self, mails: usize) -> Result<FirstFetch> {
        self.until("registered", mails, registered)?;
        self.first_fetch()
    }

    /// Waits until every mail has a Mail file and a line in the index.
    pub fn until_written(&mut self, mails: usize) -> Result<FirstFetch> {
        let mut index = IndexLines::of(self.courier.home());
        while index.count()? < mails {
            if self.started.elapsed() > timeout(mails) {
                let timeout = timeout(mails);
                return Err(format!("{} of {mails} Mails after {timeout:?}", index.lines).into());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.first_fetch()
    }

    /// Waits until no task is left, and returns the maximum memory until then.
    pub fn until_processed(&mut self, mails: usize) -> Result<u64> {
        self.until("processed", mails, |account| {
            account["tasks"]["statuses"]["skipped_no_match"].as_u64().unwrap_or(0)
        })?;
        peak_bytes(self.courier.pid())
    }

    /// Checks the folder, and returns the time until the round is stored.
    pub fn poll(&mut self) -> Result<Duration> {
        let before = self.get(ACCOUNT)?["last_scanned_at"].clone();
        let started = Instant::now();
        let (status, answer) = self.conn.post(&format!("{ACCOUNT}/scan"), b"{}")?;
        if status != 200 {
            return Err(unexpected_response(status, answer));
        }
        while self.get(ACCOUNT)?["last_scanned_at"] == before {
            if started.elapsed() > TIMEOUT {
                return Err(format!("no round after {TIMEOUT:?}").into());
            }
        }
        Ok(started.elapsed())
    }

    fn first_fetch(&self) -> Result<FirstFetch> {
        Ok(FirstFetch { took: self.started.elapsed(), peak: peak_bytes(self.courier.pid())? })
    }

    /// Waits until `count` of the account is the number of all mails.
    fn until(&mut self, what: &str, mails: usize, count: impl Fn(&Value) -> u64) -> Result<()> {
        let mut reported = 0;
        loop {
            let account = self.get(ACCOUNT)?;
            let found = count(&account);
            if found >= mails as u64 {
                return Ok(());
            }
            if found >= reported + MAILS_PER_REPORT {
                reported = found;
                eprintln!("{found} of {mails} mails are {what}");
            }
            if self.started.elapsed() > timeout(mails) {
                let timeout = timeout(mails);
                return Err(format!("not all are {what} after {timeout:?}: {account}").into());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn get(&mut self, path: &str) -> Result<Value> {
        let (status, answer) = self.conn.request("GET", path, "", b"")?;
        if status == 200 {
            Ok(serde_json::from_slice(answer)?)
        } else {
            Err(unexpected_response(status, answer))
        }
    }
}

fn timeout(mails: usize) -> Duration {
    TIMEOUT * u32::try_from((mails as u64).div_ceil(MAILS_IN_TIMEOUT).max(1)).unwrap_or(1)
}

fn registered(account: &Value) -> u64 {
    let statuses = account["tasks"]["statuses"].as_object();
    statuses.into_iter().flat_map(|counts| counts.values()).filter_map(Value::as_u64).sum()
}

/// The number of lines of the mailbox index. Each read continues where the last one ended.
struct IndexLines {
    path: PathBuf,
    offset: u64,
    lines: usize,
}

impl IndexLines {
    fn of(home: &Path) -> Self {
        Self { path: home.join("mailbox/.state/mails.jsonl"), offset: 0, lines: 0 }
    }

    /// Returns the number of Mails: all lines but the first one.
    fn count(&mut self) -> Result<usize> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        file.seek(SeekFrom::Start(self.offset))?;
        let mut new = Vec::new();
        self.offset += file.read_to_end(&mut new)? as u64;
        self.lines += new.iter().filter(|byte| **byte == b'\n').count();
        Ok(self.lines.saturating_sub(1))
    }
}
