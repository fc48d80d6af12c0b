//! Leases letters for an external worker and records what came of them: the same rules for
//! retries, for a worker that is down and for late answers, whatever the transport.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use monoco_core::letter::{
    LetterId, LetterStateData, Verdict, WorkerName, WorkerRequest, WorkerResult,
};
use monoco_core::retry::{Backoff, Jitter};
use monoco_store::{LetterRow, LetterStep, NextAction, StoreError, StoreResult};

use super::{ExternalWorkerConfig, WhenDown};
use crate::clock;
use crate::pipeline::dispatcher::{ExternalResult, LetterDispatcher, PendingLetter};

/// Pauses before a worker that is down is tried again: 1 s, doubled up to 15 s.
const DOWN_BACKOFF: Backoff =
    Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(15) };

/// Longest reason that is stored with a letter, in characters: a worker may return any amount.
const MAX_REASON_CHARS: usize = 1_000;

#[derive(Clone)]
pub struct ExternalWorker {
    pub name: WorkerName,
    pub config: ExternalWorkerConfig,
    pub dispatcher: Arc<LetterDispatcher>,
}

impl ExternalWorker {
    /// Leases at most `limit` letters that are due. Letters whose attempts are used up become
    /// dead letters. Returns the leased letters with their new state.
    ///
    /// # Errors
    ///
    /// Fails when the store cannot be read or written.
    pub async fn lease(&self, limit: usize) -> StoreResult<Vec<LetterRow>> {
        let (store, now) = (self.dispatcher.store(), self.dispatcher.now());
        let due = store.due_letters(Some(&self.name), limit, now).await?;
        // A letter whose attempts each crashed the courier has used them up as well.
        let max_attempts = self.config.retry.max_attempts.unwrap_or(u32::MAX);
        let (due, spent): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|row| row.status.attempts < max_attempts);
        for row in spent {
            let last = row.failure.as_deref().unwrap_or("no answer");
            let why = format!("{}: tried {} times: {last}", self.name, row.status.attempts);
            self.step(&row, NextAction::MarkDead { why }).await;
        }
        if due.is_empty() {
            return Ok(due);
        }
        let until = now + self.config.timeout;
        // Any run can read the answer of a tube worker.
        let holder = (!self.config.is_tube()).then(|| self.dispatcher.holder().clone());
        let step =
            |row| LetterStep::only(row, NextAction::HandOver { until, holder: holder.clone() });
        let results = store.step_letters(due.iter().map(step).collect(), now).await;
        let mut leased = Vec::with_capacity(due.len());
        for (mut row, result) in due.into_iter().zip(results) {
            match result {
                Ok(stepped) => {
                    row.revision = stepped.revision;
                    row.status.standing = LetterStateData::Away { until };
                    row.status.attempts += 1;
                    leased.push(row);
                }
                // The operator moved the letter meanwhile.
                Err(StoreError::Conflict { .. } | StoreError::InvalidTransition(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(leased)
    }

    /// Returns the request of the attempt that the worker has this letter for. `nonce` is that of
    /// [`nonce`].
    pub fn request<'a>(&'a self, row: &'a LetterRow, nonce: &'a str) -> WorkerRequest<'a> {
        WorkerRequest {
            id: row.id,
            worker: &self.name,
            nonce,
            attempt: row.status.attempts,
            letter: &row.letter,
            may_readdress: self.config.readdress,
        }
    }

    /// Continues the chain of a letter with the worker's result. Returns whether the result
    /// is recorded or never can be.
    pub async fn complete(&self, row: LetterRow, result: WorkerResult) -> bool {
        record_results(&self.dispatcher, vec![(self.name.clone(), row, result)]).await
    }

    /// Records a failed attempt: the letter is retried or becomes a dead letter. Returns
    /// whether that is recorded or never can be.
    pub async fn fail(&self, row: LetterRow, why: &str) -> bool {
        let now = self.dispatcher.now();
        let elapsed = now.since(row.created_at);
        let retry = &self.config.retry;
        let delay = retry.next_delay(row.status.attempts, elapsed, None, clock::jitter());
        let why = reason(&self.name, why);
        let action = match delay {
            Some(delay) => NextAction::Return { due: now + delay, tried: true, why },
            None => NextAction::MarkDead { why },
        };
        self.step(&row, action).await
    }

    /// Applies `when_down` to a letter that did not reach the worker.
    pub async fn report_down(&self, row: LetterRow, why: &str) {
        let metrics = self.dispatcher.metrics();
        metrics.record_down(&self.name, why);
        let why = reason(format_args!("{} is down", self.name), why);
        match self.config.when_down {
            WhenDown::Hold => {
                let due = self.dispatcher.now() + DOWN_BACKOFF.first;
                self.step(&row, NextAction::Return { due, tried: false, why }).await;
            }
            WhenDown::Skip => {
                metrics.record_verdict(&self.name, Verdict::Skip, Duration::ZERO);
                self.complete(row, WorkerResult::skip(why)).await;
            }
            WhenDown::Dead => {
                self.step(&row, NextAction::MarkDead { why }).await;
            }
        }
    }

    /// Stores one step of a letter. Returns whether it is recorded or never can be.
    pub async fn step(&self, row: &LetterRow, action: NextAction) -> bool {
        let step = LetterStep::only(row, action);
        let mut results =
            self.dispatcher.store().step_letters(vec![step], self.dispatcher.now()).await;
        results.pop().is_none_or(|result| is_settled(row.id, result))
    }
}

/// Continues the chains of letters with the results of their workers. Returns whether all
/// results are recorded or never can be.
pub async fn record_results(
    dispatcher: &LetterDispatcher,
    results: Vec<(WorkerName, LetterRow, WorkerResult)>,
) -> bool {
    let pending = results.into_iter().map(|(worker, row, result)| PendingLetter {
        row,
        result: Some(ExternalResult { worker, result }),
    });
    match dispatcher.process_batch(pending.collect()).await {
        Ok(outcomes) => outcomes.into_iter().all(|(id, result)| is_settled(id, result)),
        Err(error) => {
            tracing::warn!(%error, "cannot record worker results");
            false
        }
    }
}

fn is_settled<T>(id: LetterId, result: StoreResult<T>) -> bool {
    match result {
        // A conflict: the letter was moved meanwhile, and the result is late.
        Ok(_) | Err(StoreError::Conflict { .. } | StoreError::InvalidTransition(_)) => true,
        Err(error) => {
            tracing::warn!(letter = %id, %error, "cannot record worker result");
            false
        }
    }
}

/// Parses the answer of a worker.
///
/// # Errors
///
/// Says what is wrong with the answer.
pub fn parse_answer(request: &WorkerRequest<'_>, bytes: &[u8]) -> Result<WorkerResult, String> {
    let result = request.parse_answer(bytes).map_err(|error| error.to_string())?;
    if let Some(letter) = &result.letter
        && letter.is_mail()
        && letter.data != request.letter.data
    {
        let checked = monoco_mime::check(&letter.bytes());
        checked.map_err(|error| format!("invalid answer: `data` is not a mail: {error}"))?;
    }
    Ok(result)
}

/// Returns the nonce of the attempt that a worker has this letter for. It is the revision of the
/// letter: stored, so that it survives a restart of the courier, and increased by every step, so
/// that no two attempts of any workers have the same one.
pub fn nonce(row: &LetterRow) -> String {
    row.revision.to_string()
}

fn reason(what: impl Display, why: &str) -> String {
    format!("{what}: {why:.MAX_REASON_CHARS$}")
}

/// The pause of a worker that is down.
#[derive(Default)]
pub struct WorkerBackoff {
    /// Failures to reach it in a row.
    failures: u32,
    until: Option<Instant>,
}

impl WorkerBackoff {
    pub fn is_up(&self) -> bool {
        self.failures == 0
    }

    /// Returns the rest of the pause, `None` when there is none.
    pub fn remaining(&self) -> Option<Duration> {
        self.until?.checked_duration_since(Instant::now())
    }

    pub fn record(&mut self, down: bool) {
        if !down {
            *self = Self::default();
            return;
        }
        let failures = self.failures.saturating_add(1);
        let pause = DOWN_BACKOFF.delay(failures, Jitter::NONE);
        *self = Self { failures, until: Some(Instant::now() + pause) };
    }
}
