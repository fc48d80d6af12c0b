//! What is measured and how much, from the command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::args::Args;

/// Sizes and durations of the benchmark.
pub struct Plan {
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

impl Plan {
    pub fn new(args: &Args) -> Self {
        let full = Self {
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

    pub const fn messages(&self) -> u64 {
        self.rate * self.seconds
    }

    pub fn due(&self, message: u64) -> Duration {
        Duration::from_secs_f64(message as f64 / self.rate as f64)
    }
}
