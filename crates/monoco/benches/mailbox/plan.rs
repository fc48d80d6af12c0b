//! What is measured and how much, from the command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::args::Args;

/// A part of the benchmark that can run alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Ingest,
    Sync,
    Claims,
}

/// Sizes and durations of the benchmark.
pub struct Plan {
    parts: Vec<Part>,
    /// Parent directory of all data.
    pub dir: PathBuf,
    /// Repetitions of the short measurements.
    pub repeats: usize,
    /// Webhook messages per second.
    pub rate: u64,
    pub seconds: u64,
    /// Mails in the large mailbox.
    pub mails: usize,
    /// New Mails of an incremental sync.
    pub fresh: usize,
    /// Rounds of claims per figure.
    pub rounds: usize,
}

impl Part {
    /// Names on the command line. The first selects all parts.
    pub const NAMES: [&str; 4] = ["mailbox", "ingest", "sync", "claims"];

    const fn name(self) -> &'static str {
        match self {
            Self::Ingest => "ingest",
            Self::Sync => "sync",
            Self::Claims => "claims",
        }
    }
}

impl Plan {
    pub fn new(args: &Args) -> Self {
        let wanted = |part: &Part| args.wants("mailbox") || args.wants(part.name());
        let parts = [Part::Ingest, Part::Sync, Part::Claims].into_iter().filter(wanted).collect();
        let full = Self {
            parts,
            dir: args.dir.clone(),
            repeats: 3,
            rate: 1_000,
            seconds: 60,
            mails: 100_000,
            fresh: 1_000,
            rounds: 40,
        };
        if args.quick {
            Self { repeats: 1, seconds: 10, mails: 5_000, fresh: 200, rounds: 20, ..full }
        } else {
            full
        }
    }

    pub fn wants(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    pub const fn messages(&self) -> u64 {
        self.rate * self.seconds
    }

    pub fn due(&self, message: u64) -> Duration {
        Duration::from_secs_f64(message as f64 / self.rate as f64)
    }
}

pub fn usage(names: &[&str]) -> String {
    format!(
        "Usage: ./bench [--quick] [--only NAME]... [--dir DIR]\n\n\
         Courier and mailbox, compared with the Python predecessor:\n\n\
         --quick      10 s of webhooks, 5,000 Mails, one repetition\n\
         --only NAME  run only NAME (may be repeated): {}\n\
         --dir DIR    directory for the data, on the disk to measure",
        names.join(", ")
    )
}
