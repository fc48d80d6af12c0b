//! What is measured and how much, from the command line.

use std::path::PathBuf;

use crate::common::args::Args;

/// Sizes and repetitions of the benchmark.
pub struct Plan {
    /// Parent directory of all data.
    pub dir: PathBuf,
    /// Number of mails that every program fetches.
    pub mails: usize,
    /// Number of mails that only the courier and mbsync fetch.
    pub many_mails: usize,
    /// Repetitions of each first fetch.
    pub repeats: usize,
    /// Polls of a mailbox without news.
    pub polls: usize,
    /// Size of the large mail, in bytes.
    pub large_mail: usize,
}

impl Plan {
    pub fn new(args: &Args) -> Self {
        let full = Self {
            dir: args.dir.clone(),
            mails: 10_000,
            many_mails: 100_000,
            repeats: 3,
            polls: 20,
            large_mail: 100_000_000,
        };
        let quick =
            |full: Self| Self { mails: 2_000, many_mails: 20_000, repeats: 1, polls: 5, ..full };
        if args.quick { quick(full) } else { full }
    }
}
