//! Sizes and durations, from the command line.

use std::time::Duration;

use crate::common::args::Args;
use crate::common::drive::Bounds;

pub struct Plan {
    /// The larger of the two backlogs.
    pub deep_backlog: u64,
    /// Repetitions of each cell.
    pub repeats: usize,
    /// Limits of each measurement.
    pub bounds: Bounds,
    /// Time for which an idle server is measured.
    pub rest: Duration,
}

impl Plan {
    pub fn new(args: &Args) -> Self {
        if args.quick { quick() } else { full() }
    }
}

fn full() -> Plan {
    Plan {
        deep_backlog: 1_000_000,
        repeats: 3,
        bounds: Bounds {
            warm_up: Duration::from_millis(500),
            measure: Duration::from_secs(3),
            calls: 1_000_000,
        },
        rest: Duration::from_secs(15),
    }
}

fn quick() -> Plan {
    Plan {
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
