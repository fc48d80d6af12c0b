//! How much is measured, by what the command line asks for.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::args::Args;

/// What can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Ingest,
    Pull,
    Claims,
}

/// How to run.
pub struct Plan {
    parts: Vec<Part>,
    /// Where everybody keeps his data.
    pub dir: PathBuf,
    /// How often what is cheap is measured.
    pub repeats: usize,
    /// Webhook messages in a second.
    pub rate: u64,
    /// For how long.
    pub seconds: u64,
    /// Mails in the large tree.
    pub mails: usize,
    /// Mails that are new to a sync that has seen the others.
    pub fresh: usize,
    /// Rounds of claims that make one figure.
    pub rounds: usize,
}

impl Part {
    /// What the command line calls them; the first is all of them.
    pub const NAMES: [&str; 4] = ["mailbox", "ingest", "sync", "claims"];

    const fn name(self) -> &'static str {
        match self {
            Self::Ingest => "ingest",
            Self::Pull => "sync",
            Self::Claims => "claims",
        }
    }
}

impl Plan {
    /// Reads what was asked for.
    pub fn new(args: &Args) -> Self {
        let wanted = |part: &Part| args.wants("mailbox") || args.wants(part.name());
        let parts = [Part::Ingest, Part::Pull, Part::Claims].into_iter().filter(wanted).collect();
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

    /// Whether this was asked for.
    pub fn wants(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    /// Messages in the stream of webhooks.
    pub const fn messages(&self) -> u64 {
        self.rate * self.seconds
    }

    /// When a message of the stream is due.
    pub fn due(&self, message: u64) -> Duration {
        Duration::from_secs_f64(message as f64 / self.rate as f64)
    }
}

/// The help.
pub fn usage(names: &[&str]) -> String {
    format!(
        "Usage: ./bench [--quick] [--only NAME]... [--dir DIR]\n\n\
         The courier and the mailbox, beside the predecessor's way:\n\n\
         --quick      10 s of webhooks, 5,000 Mails, everything once\n\
         --only NAME  only this (may be repeated): {}\n\
         --dir DIR    keep the data here, on the disk to be measured",
        names.join(", ")
    )
}
