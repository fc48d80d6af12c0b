//! Counters of each worker: letters, verdicts, failures and time.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use monoco_core::letter::{Verdict, WorkerName};

/// Counters of one worker since the courier started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerCounts {
    /// Letters given to the worker, each attempt counted
    pub taken: u64,
    pub pass: u64,
    pub skip: u64,
    pub trash: u64,
    /// Failed attempts and invalid answers
    pub errors: u64,
    /// Answers that arrived late, again, or without the nonce of the current attempt
    pub rejected: u64,
    /// Total processing time in seconds
    pub seconds: f64,
    /// Why the worker is down, while it is
    pub down: Option<String>,
}

/// Counters of all workers.
#[derive(Debug, Default)]
pub struct WorkerMetrics(Mutex<BTreeMap<WorkerName, WorkerCounts>>);

impl WorkerMetrics {
    pub fn record_verdict(&self, worker: &WorkerName, verdict: Verdict, elapsed: Duration) {
        self.update(worker, |counts| {
            counts.taken += 1;
            counts.seconds += elapsed.as_secs_f64();
            counts.down = None;
            match verdict {
                Verdict::Pass => counts.pass += 1,
                Verdict::Skip => counts.skip += 1,
                Verdict::Trash => counts.trash += 1,
            }
        });
    }

    /// Counts a failed attempt.
    pub fn record_failure(&self, worker: &WorkerName, elapsed: Duration) {
        self.update(worker, |counts| {
            counts.taken += 1;
            counts.seconds += elapsed.as_secs_f64();
            counts.errors += 1;
            counts.down = None;
        });
    }

    /// Counts an answer that does not belong to the current attempt.
    pub fn record_rejected_answer(&self, worker: &WorkerName) {
        self.update(worker, |counts| counts.rejected += 1);
    }

    /// Records that a worker cannot be reached.
    pub fn record_down(&self, worker: &WorkerName, why: &str) {
        self.update(worker, |counts| counts.down = Some(why.chars().take(300).collect()));
    }

    /// Returns a copy of all counters.
    pub fn all(&self) -> BTreeMap<WorkerName, WorkerCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn update(&self, worker: &WorkerName, change: impl FnOnce(&mut WorkerCounts)) {
        // No code panics while it holds the lock.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(worker) {
            Some(counts) => change(counts),
            None => change(all.entry(worker.clone()).or_default()),
        }
    }
}
