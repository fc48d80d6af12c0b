//! What is counted of each worker: how many letters it had, what it said, how long it
//! took.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use monoco_core::letter::{Verdict, WorkerName};

/// What is counted of one worker since the courier started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerCounts {
    /// Letters that it was given, each try counted
    pub taken: u64,
    pub pass: u64,
    pub skip: u64,
    pub trash: u64,
    /// Tries that failed, answers that could not be used
    pub errors: u64,
    /// Answers that came too late, or to no question
    pub late: u64,
    /// How long it had them, in all, in seconds
    pub seconds: f64,
    /// Why it is down, while it is
    pub down: Option<String>,
}

/// All workers.
#[derive(Debug, Default)]
pub struct WorkerMetrics(Mutex<BTreeMap<WorkerName, WorkerCounts>>);

impl WorkerMetrics {
    /// A worker had a letter and said this.
    pub fn said(&self, worker: &WorkerName, verdict: Verdict, took: Duration) {
        self.note(worker, |counted| {
            counted.taken += 1;
            counted.seconds += took.as_secs_f64();
            counted.down = None;
            match verdict {
                Verdict::Pass => counted.pass += 1,
                Verdict::Skip => counted.skip += 1,
                Verdict::Trash => counted.trash += 1,
            }
        });
    }

    /// A worker had a letter and failed.
    pub fn failed(&self, worker: &WorkerName, took: Duration) {
        self.note(worker, |counted| {
            counted.taken += 1;
            counted.seconds += took.as_secs_f64();
            counted.errors += 1;
            counted.down = None;
        });
    }

    /// A worker answered to no question of ours.
    pub fn late(&self, worker: &WorkerName) {
        self.note(worker, |counted| counted.late += 1);
    }

    /// A worker can't be reached.
    pub fn down(&self, worker: &WorkerName, why: &str) {
        self.note(worker, |counted| counted.down = Some(why.chars().take(300).collect()));
    }

    /// All of it, as of now.
    pub fn all(&self) -> BTreeMap<WorkerName, WorkerCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, worker: &WorkerName, how: impl FnOnce(&mut WorkerCounts)) {
        // Nothing panics while it holds the lock.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(worker) {
            Some(counted) => how(counted),
            None => how(all.entry(worker.clone()).or_default()),
        }
    }
}
