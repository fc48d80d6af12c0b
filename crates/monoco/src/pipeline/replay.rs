//! How letters would fare in the chains as they are now.
//!
//! A letter is walked as it came, in memory, by our own workers only. What a worker
//! outside said then counts as said now; one that was never asked ends the walk. What a
//! person decided stays decided: a letter thrown away by hand is not taken out of the
//! bin, and one taken out of the bin is not thrown away again.

use std::collections::BTreeMap;

use monoco_core::letter::{Letter, LetterState, Verdict, WorkerName, WorkerVerdict};
use monoco_core::time::Timestamp;
use monoco_store::{LetterRow, StoreError};

use super::config::{PipelineConfig, WorkerConfig, WorkerTransport};
use super::dispatcher::LetterDispatcher;
use super::workers::{WorkerResult, opinion};

/// How a letter fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayOutcome {
    /// How it ends; AWAY where a worker outside would have to be asked.
    pub state: LetterState,
    /// What workers say of it.
    pub verdicts: Vec<WorkerVerdict>,
    /// The worker that has it, or would have to be asked.
    pub at_worker: Option<WorkerName>,
}

impl ReplayOutcome {
    /// How a letter did fare.
    pub fn was(row: &LetterRow) -> Self {
        let at_worker = row.worker.clone().or_else(|| row.held_by.clone());
        Self { state: row.status.standing.name(), verdicts: row.verdicts.clone(), at_worker }
    }

    /// How a letter would fare now. `None` when it can't be told.
    ///
    /// # Errors
    ///
    /// When contacts can't be read.
    pub async fn would(
        dispatcher: &LetterDispatcher,
        settings: &PipelineConfig,
        row: &LetterRow,
    ) -> Result<Option<Self>, StoreError> {
        let Ok(letter) = row.source.letter() else { return Ok(None) };
        let chain = settings.chain(row.direction, row.tunnel.as_ref());
        let blocks =
            |name: &WorkerName| matches!(settings.workers.get(name), Some(WorkerConfig::Block(_)));
        let unwelcome = match chain.0.iter().any(blocks) {
            true => dispatcher.unwelcome(settings, row, &letter).await?,
            false => None,
        };
        Ok(Some(walk(settings, row, letter, unwelcome, dispatcher.now())))
    }

    /// Whether `row` fared otherwise.
    pub fn differs(&self, row: &LetterRow) -> bool {
        let was: BTreeMap<_, _> = row.verdicts.iter().map(by_worker).collect();
        let mut would = self.verdicts.as_slice();
        let ended = is_ended(row);
        if !ended {
            // What it has before it is no difference.
            let known = would.iter().rposition(|passed| was.contains_key(&passed.worker));
            would = &would[..known.map_or(0, |at| at + 1)];
        }
        let would: BTreeMap<_, _> = would.iter().map(by_worker).collect();
        let new = |worker: &WorkerName| row.worker.as_ref() != Some(worker);
        was != would || (ended && self.at_worker.as_ref().is_some_and(new))
    }

    /// Whether `row` was kept from getting through, and would not be now.
    pub fn frees(&self, row: &LetterRow) -> bool {
        let stopped = match row.status.standing.name() {
            LetterState::Trashed => is_ended(row),
            LetterState::Dead => true,
            _ => false,
        };
        let through = matches!(self.state, LetterState::Done | LetterState::Away);
        stopped && through && self.differs(row)
    }
}

fn by_worker(passed: &WorkerVerdict) -> (&WorkerName, Verdict) {
    (&passed.worker, passed.result)
}

/// Whether a letter went through its chain to an end. One that a person threw away did
/// not.
fn is_ended(row: &LetterRow) -> bool {
    match row.status.standing.name() {
        LetterState::Done | LetterState::Dead => true,
        LetterState::Trashed => row.verdicts.iter().any(|passed| passed.result == Verdict::Trash),
        LetterState::Waiting | LetterState::Away | LetterState::Merged => false,
    }
}

/// Whether a person took the letter out of the bin after this.
fn is_overruled(row: &LetterRow, passed: &WorkerVerdict) -> bool {
    let last = row.verdicts.last().is_some_and(|last| last.worker == passed.worker);
    let trashed = row.status.standing.name() == LetterState::Trashed;
    passed.result == Verdict::Trash && !(last && trashed)
}

fn walk(
    settings: &PipelineConfig,
    row: &LetterRow,
    mut letter: Letter,
    unwelcome: Option<String>,
    now: Timestamp,
) -> ReplayOutcome {
    let chain = settings.chain(row.direction, row.tunnel.as_ref());
    let mut verdicts: Vec<WorkerVerdict> = Vec::new();
    for name in &chain.0 {
        let Some(worker) = settings.workers.get(name) else { break };
        let before = row.verdicts.iter().find(|passed| passed.worker == *name);
        let overruled = before.filter(|passed| is_overruled(row, passed));
        let said = match (worker, overruled) {
            (_, Some(passed)) => WorkerVerdict { at: now, ..passed.clone() },
            (WorkerConfig::Outside(outside), None) => {
                match (rules(&outside.how, &letter), before) {
                    (Some(opinion), _) => passed(name, &opinion, now),
                    (None, Some(before)) => WorkerVerdict { at: now, ..before.clone() },
                    (None, None) => {
                        let (state, at_worker) = (LetterState::Away, Some(name.clone()));
                        return ReplayOutcome { state, verdicts, at_worker };
                    }
                }
            }
            (worker, None) => {
                let mut said = opinion(worker, &letter, now).unwrap_or(WorkerResult::PASS);
                if let (WorkerConfig::Block(_), Verdict::Pass, Some(why)) =
                    (worker, said.verdict, &unwelcome)
                {
                    said = WorkerResult::trash(why.clone());
                }
                let passed = passed(name, &said, now);
                letter = said.letter.unwrap_or(letter);
                passed
            }
        };
        let trashed = said.result == Verdict::Trash && overruled.is_none();
        verdicts.push(said);
        if trashed {
            return ReplayOutcome { state: LetterState::Trashed, verdicts, at_worker: None };
        }
        if matches!(worker, WorkerConfig::Send { .. } | WorkerConfig::Deliver) {
            return ReplayOutcome { state: LetterState::Done, verdicts, at_worker: None };
        }
    }
    ReplayOutcome { state: LetterState::Dead, verdicts, at_worker: None }
}

/// What our own rules say of a letter before a filter outside is asked, when that is
/// the end of it.
fn rules(how: &WorkerTransport, letter: &Letter) -> Option<WorkerResult> {
    let WorkerTransport::Rspamd { rules, .. } = how else { return None };
    Some(rules.work(letter)).filter(|opinion| opinion.verdict == Verdict::Trash)
}

fn passed(by: &WorkerName, opinion: &WorkerResult, at: Timestamp) -> WorkerVerdict {
    WorkerVerdict { worker: by.clone(), result: opinion.verdict, at, note: opinion.note.clone() }
}

#[cfg(test)]
mod tests;
