//! The workers of our own: plain functions of a letter, which need nobody else.

use monoco_core::letter::{Letter, Verdict};
use monoco_core::time::Timestamp;

use super::config::WorkerConfig;

pub mod block;
pub mod footer;
pub mod merge;
pub mod spam;
pub mod subject;

/// What a worker says of a letter.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerResult {
    /// The verdict.
    pub verdict: Verdict,
    /// Why, for people.
    pub note: Option<String>,
    /// The letter from now on, when it changed it.
    pub letter: Option<Letter>,
}

/// What a worker says that needs no more than the letter; of those whom contacts block,
/// `block` knows nothing here. `None` for all others.
pub fn opinion(worker: &WorkerConfig, letter: &Letter, now: Timestamp) -> Option<WorkerResult> {
    Some(match worker {
        WorkerConfig::Block(block) => block.work(letter),
        WorkerConfig::Spam(spam) => spam.work(letter),
        WorkerConfig::Subject(subject) => subject.work(letter, now),
        WorkerConfig::Footer(footer) => footer.work(letter),
        WorkerConfig::Trash => WorkerResult::trash("its chain ends in the bin"),
        WorkerConfig::Merge(_)
        | WorkerConfig::Limit(_)
        | WorkerConfig::Send { .. }
        | WorkerConfig::Deliver
        | WorkerConfig::Outside(_) => return None,
    })
}

impl WorkerResult {
    /// It may go on as it is.
    pub const PASS: Self = Self { verdict: Verdict::Pass, note: None, letter: None };

    /// It goes on, changed.
    pub fn changed(letter: Letter) -> Self {
        Self { verdict: Verdict::Pass, note: None, letter: Some(letter) }
    }

    /// None of this worker's business.
    pub fn skip(why: impl Into<String>) -> Self {
        Self { verdict: Verdict::Skip, note: Some(why.into()), letter: None }
    }

    /// Away with it.
    pub fn trash(why: impl Into<String>) -> Self {
        Self { verdict: Verdict::Trash, note: Some(why.into()), letter: None }
    }
}

#[cfg(test)]
mod tests;
