//! How long everything takes, by what the command line asks for.

use std::time::Duration;

use crate::common::args::Args;
use crate::common::drive::Bounds;

/// How to run.
pub struct Flags {
    /// The larger of the two backlogs.
    pub deep_backlog: u64,
    /// How often each cell is measured.
    pub repeats: usize,
    /// How long each measurement may take.
    pub bounds: Bounds,
    /// How long a server is watched doing nothing.
    pub rest: Duration,
}

impl Flags {
    /// Reads what was asked for.
    pub fn new(args: &Args) -> Self {
        if args.quick { quick() } else { full() }
    }
}

/// The help.
pub fn usage(names: &[&str]) -> String {
    format!(
        "Usage: ./bench [--quick] [--only NAME]... [--dir DIR]\n\n\
         The queues, side by side:\n\n\
         --quick      one short round per cell, and 100,000 waiting for 1,000,000\n\
         --only NAME  only this contender (may be repeated): {}; or `peers`, all of them\n\
         --dir DIR    keep the data here, on the disk to be measured",
        names.join(", ")
    )
}

fn full() -> Flags {
    Flags {
        deep_backlog: 1_000_000,
        repeats: 3,
        bounds: Bounds {
            warm_up: Duration::from_millis(500),
            measure: Duration::from_secs(5),
            calls: 1_000_000,
        },
        rest: Duration::from_secs(30),
    }
}

fn quick() -> Flags {
    Flags {
        deep_backlog: 100_000,
        repeats: 1,
        bounds: Bounds {
            warm_up: Duration::from_millis(300),
            measure: Duration::from_secs(2),
            calls: 1_000_000,
        },
        rest: Duration::from_secs(5),
    }
}
