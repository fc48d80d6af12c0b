//! What is measured and how much, from the command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::args::Args;
use crate::common::drive::Bounds;

/// Sizes and durations of the benchmark.
pub struct Plan {
    /// Parent directory of all data.
    pub dir: PathBuf,
    /// Repetitions of each rate.
    pub repeats: usize,
    /// Time of submission before the measurement.
    pub warm_up: Duration,
    /// Time of submission that is measured.
    pub measure: Duration,
    /// Number of waiting letters, by step.
    pub waiting: Vec<u64>,
    /// Number of timed letters that do not wait.
    pub passing: usize,
}

/// Numbers of concurrent producers.
pub const PRODUCERS: [usize; 3] = [1, 8, 64];

const MAX_LETTERS: u64 = 500_000;

/// Limits for warm-up and measurement with an external worker: letters are submitted much
/// faster than the worker answers.
const MAX_LETTERS_EXTERNAL: [u64; 2] = [500, 4_000];

impl Plan {
    pub fn new(args: &Args) -> Self {
        let full = Self {
            dir: args.dir.clone(),
            repeats: 5,
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

    /// Limits of the warm-up and of the measurement.
    pub fn bounds(&self) -> [Bounds; 2] {
        self.bounded([MAX_LETTERS; 2])
    }

    /// The same for chains with an external worker.
    pub fn external_bounds(&self) -> [Bounds; 2] {
        self.bounded(MAX_LETTERS_EXTERNAL)
    }

    fn bounded(&self, [warming, counting]: [u64; 2]) -> [Bounds; 2] {
        let bounds = |measure, calls| Bounds { warm_up: Duration::ZERO, measure, calls };
        [bounds(self.warm_up, warming), bounds(self.measure, counting)]
    }
}
