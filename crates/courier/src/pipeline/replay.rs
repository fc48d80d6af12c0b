//! Predicts how letters would end in the current chains.
//!
//! A letter starts in its original form. Only built-in workers run; the earlier verdict of an
//! external worker counts again, and a letter that would need a new one ends there. Decisions
//! of the operator stay: a letter that the operator trashed is not restored, and a letter that
//! the operator restored is not trashed again.

use std::collections::BTreeMap;

use monoco_core::letter::{
    ChainRun, ChainStop, Letter, LetterState, Verdict, WorkerName, WorkerResult, WorkerStep,
    WorkerVerdict,
};
use monoco_core::time::Timestamp;
use monoco_store::{LetterRow, StoreResult};

use super::config::PipelineConfig;
use super::dispatcher::LetterDispatcher;
use super::workers::block::BlockConfig;
use super::workers::{WorkerAction, downcast};

/// How a letter ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayOutcome {
    /// The last state; AWAY when an external worker would have to be asked.
    pub state: LetterState,
    pub verdicts: Vec<WorkerVerdict>,
    /// The worker that has the letter, or would have to be asked.
    pub at_worker: Option<WorkerName>,
}

impl ReplayOutcome {
    /// Returns the actual outcome of a letter.
    pub fn actual(row: &LetterRow) -> Self {
        let at_worker = row.worker.clone().or_else(|| row.held_by.clone());
        Self { state: row.status.standing.name(), verdicts: row.verdicts.clone(), at_worker }
    }

    /// Predicts the outcome in the current chains; `None` when the letter's source is damaged.
    ///
    /// # Errors
    ///
    /// Fails when the contacts cannot be read.
    pub async fn predict(
        dispatcher: &LetterDispatcher,
        config: &PipelineConfig,
        row: &LetterRow,
    ) -> StoreResult<Option<Self>> {
        let Ok(letter) = row.source.letter() else { return Ok(None) };
        let chain = config.chain(row.direction, row.tunnel.as_ref());
        let checks_contacts = chain.0.iter().any(|name| {
            let worker = config.workers.get(name);
            worker.is_some_and(|worker| downcast::<BlockConfig>(&**worker).is_some())
        });
        let block = match checks_contacts {
            true => dispatcher.find_block(config, row, &letter).await?,
            false => None,
        };
        Ok(Some(run_chain(config, row, letter, block.as_deref(), dispatcher.now())))
    }

    /// Tells whether the actual outcome of `row` is another one.
    pub fn differs(&self, row: &LetterRow) -> bool {
        let actual: BTreeMap<_, _> = row.verdicts.iter().map(by_worker).collect();
        let mut predicted = self.verdicts.as_slice();
        let ended = is_ended(row);
        if !ended {
            // Verdicts that the letter does not have yet are no difference.
            let last = predicted.iter().rposition(|verdict| actual.contains_key(&verdict.worker));
            predicted = &predicted[..last.map_or(0, |last| last + 1)];
        }
        let predicted: BTreeMap<_, _> = predicted.iter().map(by_worker).collect();
        let is_new = |worker: &WorkerName| row.worker.as_ref() != Some(worker);
        actual != predicted || (ended && self.at_worker.as_ref().is_some_and(is_new))
    }

    /// Tells whether `row` was trashed or is dead, and would pass its chain now.
    pub fn frees(&self, row: &LetterRow) -> bool {
        let stopped = match row.status.standing.name() {
            LetterState::Trashed => is_ended(row),
            LetterState::Dead => true,
            _ => false,
        };
        let passes = matches!(self.state, LetterState::Done | LetterState::Away);
        stopped && passes && self.differs(row)
    }
}

fn by_worker(verdict: &WorkerVerdict) -> (&WorkerName, Verdict) {
    (&verdict.worker, verdict.result)
}

/// Tells whether a letter reached an end of its chain. A letter that the operator trashed did
/// not.
fn is_ended(row: &LetterRow) -> bool {
    match row.status.standing.name() {
        LetterState::Done | LetterState::Dead => true,
        LetterState::Trashed => row.verdicts.iter().any(|verdict| verdict.result == Verdict::Trash),
        LetterState::Waiting | LetterState::Away | LetterState::Merged => false,
    }
}

/// Tells whether the operator restored the letter after this verdict.
fn is_overruled(row: &LetterRow, verdict: &WorkerVerdict) -> bool {
    let is_last = row.verdicts.last().is_some_and(|last| last.worker == verdict.worker);
    let trashed = row.status.standing.name() == LetterState::Trashed;
    verdict.result == Verdict::Trash && !(is_last && trashed)
}

/// Why the replay of a chain stops at a worker.
enum ReplayStop {
    /// The operator overruled this verdict: it is recorded, and the letter continues.
    Overruled(WorkerResult),
    /// An external worker would have to be asked.
    Unanswered,
    /// The letter would be sent or delivered.
    End,
}

fn run_chain(
    config: &PipelineConfig,
    row: &LetterRow,
    letter: Letter,
    block: Option<&str>,
    now: Timestamp,
) -> ReplayOutcome {
    let chain = config.chain(row.direction, row.tunnel.as_ref());
    let mut run = ChainRun::new(letter, Vec::new());
    // Each round records the verdict of another worker, so the chain bounds the loop.
    let (state, at_worker) = loop {
        let stop =
            run.advance(chain, now, |name, letter| step(config, row, name, letter, block, now));
        match stop {
            ChainStop::Trashed { .. } => break (LetterState::Trashed, None),
            ChainStop::Dead { .. } => break (LetterState::Dead, None),
            ChainStop::Needs(name, ReplayStop::Unanswered) => {
                break (LetterState::Away, Some(name));
            }
            ChainStop::Needs(name, ReplayStop::End) => {
                run.record(&name, WorkerResult::PASS, now);
                break (LetterState::Done, None);
            }
            ChainStop::Needs(name, ReplayStop::Overruled(result)) => {
                run.record(&name, result, now);
            }
        }
    };
    ReplayOutcome { state, verdicts: run.verdicts().to_vec(), at_worker }
}

/// Returns what a worker would do; `None` when there is no such worker.
fn step(
    config: &PipelineConfig,
    row: &LetterRow,
    name: &WorkerName,
    letter: &Letter,
    block: Option<&str>,
    now: Timestamp,
) -> Option<WorkerStep<ReplayStop>> {
    let worker = config.workers.get(name)?;
    let earlier = row.verdicts.iter().find(|verdict| verdict.worker == *name);
    let repeat = |verdict: &WorkerVerdict| WorkerResult {
        verdict: verdict.result,
        note: verdict.note.clone(),
        letter: None,
    };
    if let Some(verdict) = earlier.filter(|verdict| is_overruled(row, verdict)) {
        return Some(WorkerStep::Needs(ReplayStop::Overruled(repeat(verdict))));
    }
    Some(match worker.work(letter, now) {
        WorkerStep::Decided(result) => WorkerStep::Decided(result),
        WorkerStep::Needs(action) => match action {
            WorkerAction::CheckContacts => {
                WorkerStep::Decided(block.map_or(WorkerResult::PASS, WorkerResult::trash))
            }
            WorkerAction::ReserveSlot(_) | WorkerAction::JoinWindow(_) => {
                WorkerStep::Decided(WorkerResult::PASS)
            }
            WorkerAction::HandOver => match earlier {
                Some(verdict) => WorkerStep::Decided(repeat(verdict)),
                None => WorkerStep::Needs(ReplayStop::Unanswered),
            },
            WorkerAction::Send | WorkerAction::Deliver => WorkerStep::Needs(ReplayStop::End),
        },
    })
}

#[cfg(test)]
mod tests;
