//! Identity of a process: its id and start time, as in the lock file.
//!
//! The kernel reuses process ids. A signal goes only to the process that has written the
//! file, which its start time proves.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use rustix::process::Pid;

/// Id and start time of a process.
#[derive(Debug, PartialEq, Eq)]
pub struct ProcessIdentity {
    pub pid: Pid,
    /// In clock ticks since the machine was started; `None` without `/proc`.
    started: Option<u64>,
}

impl ProcessIdentity {
    pub fn of(pid: Pid) -> Self {
        Self { pid, started: start_time(pid) }
    }

    /// Overwrites `file`. The text has always the same length, so that a full disk is no
    /// obstacle when the file exists.
    pub fn write(&self, mut file: &File) -> io::Result<()> {
        let text = self.to_string();
        file.write_all(format!("{text:<40}\n").as_bytes())
    }

    /// Reads the identity that [`ProcessIdentity::write`] wrote; `None` when there is none.
    pub fn read(path: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(path).ok()?)
    }

    /// Parses the form of [`fmt::Display`].
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let pid = words.next()?.parse().ok().and_then(Pid::from_raw)?;
        let started = words.next().map(str::parse).transpose().ok()?;
        Some(Self { pid, started })
    }

    /// Whether the process still runs. Without a start time, only the lock proves it.
    pub fn is_running(&self) -> bool {
        self.started.is_none() || self.started == start_time(self.pid)
    }
}

/// The id and, if it is known, the start time.
impl fmt::Display for ProcessIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let started = self.started.map_or_else(String::new, |ticks| ticks.to_string());
        write!(f, "{} {started}", self.pid.as_raw_nonzero())
    }
}

/// Field 22 of `/proc/PID/stat`. The name of the program, in parentheses, may have spaces.
fn start_time(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}
