//! How much is measured, by what the command line asks for.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::args::Args;
use crate::common::drive::Bounds;

/// What can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Chain,
    Hop,
    Waiting,
}

/// How to run.
pub struct Plan {
    parts: Vec<Part>,
    /// Where everybody keeps his data.
    pub dir: PathBuf,
    /// How often each rate is measured.
    pub repeats: usize,
    /// How long is posted before it counts.
    pub warm_up: Duration,
    /// How long is posted then.
    pub measure: Duration,
    /// How many letters wait, step by step.
    pub waiting: Vec<u64>,
    /// Letters that go past those that wait, each timed.
    pub passing: usize,
}

/// How many hand in at the same time.
pub const PRODUCERS: [usize; 3] = [1, 8, 64];

/// The most letters of one measurement.
const MOST: u64 = 500_000;

/// The same where each has to wait for somebody outside, before it counts and then: they
/// are handed in much faster than they get through.
const FEW: [u64; 2] = [500, 4_000];

impl Part {
    /// What the command line calls them; the first is all of them.
    pub const NAMES: [&str; 4] = ["pipeline", "chain", "hop", "waiting"];

    const fn name(self) -> &'static str {
        match self {
            Self::Chain => "chain",
            Self::Hop => "hop",
            Self::Waiting => "waiting",
        }
    }
}

impl Plan {
    /// Reads what was asked for.
    pub fn new(args: &Args) -> Self {
        let wanted = |part: &Part| args.wants("pipeline") || args.wants(part.name());
        let parts = [Part::Chain, Part::Hop, Part::Waiting].into_iter().filter(wanted).collect();
        let full = Self {
            parts,
            dir: args.dir.clone(),
            repeats: 7,
            warm_up: Duration::from_millis(500),
            measure: Duration::from_secs(3),
            waiting: vec![10_000, 100_000, 1_000_000],
            passing: 100,
        };
        if args.quick {
            let (repeats, measure) = (1, Duration::from_secs(2));
            Self { repeats, measure, waiting: vec![10_000, 50_000], passing: 50, ..full }
        } else {
            full
        }
    }

    /// Whether this was asked for.
    pub fn wants(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    /// Where posting ends, before it counts and then.
    pub fn bounds(&self) -> [Bounds; 2] {
        self.bounded([MOST; 2])
    }

    /// The same for letters that wait for somebody outside.
    pub fn few(&self) -> [Bounds; 2] {
        self.bounded(FEW)
    }

    fn bounded(&self, [warming, counting]: [u64; 2]) -> [Bounds; 2] {
        let bounds = |measure, calls| Bounds { warm_up: Duration::ZERO, measure, calls };
        [bounds(self.warm_up, warming), bounds(self.measure, counting)]
    }
}

/// The help.
pub fn usage(names: &[&str]) -> String {
    format!(
        "Usage: ./bench [--quick] [--only NAME]... [--dir DIR]\n\n\
         The post office:\n\n\
         --quick      everything once, and 50,000 waiting for 1,000,000\n\
         --only NAME  only this (may be repeated): {}\n\
         --dir DIR    keep the data here, on the disk to be measured",
        names.join(", ")
    )
}
