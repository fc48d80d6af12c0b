//! Runs letters through their chains.
//!
//! Built-in workers run one after the other in memory, between two commits: the first commit
//! stored the letter, the next one stores all verdicts and the next action. Only an external
//! worker, or one that holds the letter, ends the run in between.
//!
//! One batch is processed at a time, because the decisions of a batch depend on reservations
//! and merge windows that only the dispatcher changes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use monoco_core::did::{Did, Endpoint, TunnelId};
use monoco_core::letter::{
    ChainRun, ChainStop, Letter, LetterId, WorkerName, WorkerResult, WorkerStep,
};
use monoco_core::rate_limit::ReservedUntil;
use monoco_core::time::Timestamp;
use monoco_store::{
    LetterRow, LetterStep, LetterStepResult, NextAction, SharedStore, StoreError, StoreResult,
};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::config::PipelineConfig;
use super::metrics::WorkerMetrics;
use super::queue::{LetterQueue, QueueNotifier};
use super::workers::{WorkerAction, merge};
use crate::clock::Clock;

mod finish;
mod holding_workers;
#[cfg(test)]
mod tests;

/// Maximum number of letters in a batch.
const MAX_LETTERS_PER_BATCH: usize = 512;

/// Maximum number of letters per commit. During a commit, the next letters are processed.
const MAX_LETTERS_PER_COMMIT: usize = 64;

/// Largest text that is stored only in its message, in bytes.
const MAX_TEXT_IN_MESSAGE: usize = 8 << 10;

/// Pause between two batches when letters arrive one by one. A commit of ten letters costs
/// about as much as a commit of one, and submissions wait behind it.
const GATHER_TIME: Duration = Duration::from_millis(10);

/// Pause after an error of the store.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Processes letters that are due or that come back from an external worker.
pub struct LetterDispatcher {
    store: SharedStore,
    clock: Clock,
    notifier: QueueNotifier,
    config: watch::Receiver<Arc<PipelineConfig>>,
    metrics: Arc<WorkerMetrics>,
    batch_lock: Mutex<()>,
}

/// A letter to process.
pub struct PendingLetter {
    pub row: LetterRow,
    /// Result of the external worker that the letter comes back from.
    pub result: Option<ExternalResult>,
}

/// The result of an external worker.
pub struct ExternalResult {
    pub worker: WorkerName,
    pub result: WorkerResult,
}

/// A letter and the result of storing its step.
type StepOutcome = (LetterId, StoreResult<LetterStepResult>);

/// State that the letters of a batch share.
struct BatchContext<'a> {
    config: &'a PipelineConfig,
    now: Timestamp,
    /// Reservations by key, including those of this batch.
    reserved: BTreeMap<String, Option<ReservedUntil>>,
    /// Merge windows that letters of this batch joined: when they close, number of letters.
    windows: HashMap<(WorkerName, String), (Timestamp, usize)>,
    /// Letters that this batch has joined with others and not yet stored.
    merged: HashSet<LetterId>,
    /// Results of contact checks by sender and recipients.
    contact_checks: HashMap<(String, Vec<String>), Option<String>>,
}

/// A letter during its run through the chain.
struct LetterInProgress {
    /// The row without `letter` and `verdicts`, which `run` has.
    row: LetterRow,
    run: ChainRun,
    reservations: Vec<(String, ReservedUntil)>,
    joins: Vec<(LetterId, i64)>,
}

impl LetterDispatcher {
    /// `config` is read at the start of each batch.
    pub fn new(
        store: SharedStore,
        clock: Clock,
        notifier: QueueNotifier,
        config: watch::Receiver<Arc<PipelineConfig>>,
        metrics: Arc<WorkerMetrics>,
    ) -> Self {
        Self { store, clock, notifier, config, metrics, batch_lock: Mutex::new(()) }
    }

    pub fn store(&self) -> &SharedStore {
        &self.store
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the time of the machine's clock, for times that another party checks.
    pub fn wall_clock(&self) -> Timestamp {
        self.clock.wall()
    }

    /// Notifies the queue of a letter that is due at `due`.
    pub fn notify_queue(&self, id: LetterId, due: Timestamp) {
        self.notifier.notify(id, due.since(self.now()));
    }

    /// Returns the current config.
    pub fn config(&self) -> Arc<PipelineConfig> {
        Arc::clone(&self.config.borrow())
    }

    pub fn metrics(&self) -> &Arc<WorkerMetrics> {
        &self.metrics
    }

    /// Processes letters until `stop`.
    pub async fn run(self: Arc<Self>, mut queue: LetterQueue, stop: CancellationToken) {
        let mut next = Instant::now();
        while !stop.is_cancelled() {
            match self.process_due_letters(&mut next, &stop).await {
                Ok(()) => queue.acknowledge().await,
                Err(error) => {
                    tracing::warn!(%error, "cannot process letters");
                    if stop.run_until_cancelled(tokio::time::sleep(RETRY_DELAY)).await.is_none() {
                        return;
                    }
                    continue;
                }
            }
            if stop.run_until_cancelled(queue.wait(&self.store, self.clock)).await.is_none() {
                return;
            }
        }
    }

    /// Processes letters until none is due. Waits until `next` before each batch, and sets it
    /// to the time of the next batch.
    async fn process_due_letters(
        &self,
        next: &mut Instant,
        stop: &CancellationToken,
    ) -> StoreResult<()> {
        while !stop.is_cancelled() {
            tokio::time::sleep_until(*next).await;
            let due = self.store.due_letters(None, MAX_LETTERS_PER_BATCH, self.clock.now()).await?;
            if due.is_empty() {
                return Ok(());
            }
            // A single letter is rarely followed by others, and many fill a commit anyway.
            if (2..MAX_LETTERS_PER_COMMIT).contains(&due.len()) {
                *next = Instant::now() + GATHER_TIME;
            }
            let pending = due.into_iter().map(|row| PendingLetter { row, result: None }).collect();
            for (id, result) in self.process_batch(pending).await? {
                match result {
                    Ok(_) => {}
                    // The letter was moved meanwhile. If it is still due, it is not processed
                    // again at once.
                    Err(StoreError::Conflict { .. } | StoreError::InvalidTransition(_)) => {
                        *next = Instant::now() + GATHER_TIME;
                    }
                    Err(error) if is_store_failure(&error) => return Err(error),
                    Err(error) => self.mark_dead(id, &error).await?,
                }
            }
        }
        Ok(())
    }

    /// Makes a dead letter of a letter whose step is rejected, so that it does not block the
    /// following ones.
    async fn mark_dead(&self, id: LetterId, error: &StoreError) -> StoreResult<()> {
        tracing::error!(letter = %id, %error, "cannot store letter step; marking letter dead");
        let row = self.store.letter(id).await?;
        let step = LetterStep::only(&row, NextAction::MarkDead { why: error.to_string() });
        let mut results = self.store.step_letters(vec![step], self.clock.now()).await;
        results.pop().unwrap_or_else(|| Err(error.clone())).map(|_| ())
    }

    /// Runs letters through their chains and stores their steps, up to 64 per commit.
    ///
    /// # Errors
    ///
    /// Fails when data that a decision needs cannot be read. Some letters may be stored by
    /// then.
    pub async fn process_batch(
        &self,
        pending: Vec<PendingLetter>,
    ) -> StoreResult<Vec<StepOutcome>> {
        let _lock = self.batch_lock.lock().await;
        let config = self.config();
        let mut batch = BatchContext {
            config: &config,
            now: self.clock.now(),
            reserved: BTreeMap::new(),
            windows: HashMap::new(),
            merged: HashSet::new(),
            contact_checks: HashMap::new(),
        };
        self.read_reservations(&mut batch, &pending).await?;
        let (now, mut pending) = (batch.now, pending.into_iter());
        let (mut steps, mut outcomes) = (Vec::new(), Vec::with_capacity(pending.len()));
        while pending.len() > 0 {
            let letters = pending.by_ref().take(MAX_LETTERS_PER_COMMIT);
            // The writer thread stores the previous letters while the next are processed.
            let (stored, next) =
                tokio::join!(self.store_steps(steps, now), self.run_chains(&mut batch, letters));
            let mut errors = stored.iter().filter_map(|(_, result)| result.as_ref().err());
            let failure = errors.find(|error| is_store_failure(error)).cloned();
            outcomes.extend(stored);
            steps = next?;
            // Later letters must not overtake letters that could not be stored.
            if let Some(error) = failure {
                outcomes.extend(steps.into_iter().map(|step| (step.id, Err(error.clone()))));
                return Ok(outcomes);
            }
        }
        outcomes.extend(self.store_steps(steps, now).await);
        Ok(outcomes)
    }

    /// Waits until the batch in progress is stored. Later batches use the current config.
    pub async fn finish_batch(&self) {
        drop(self.batch_lock.lock().await);
    }

    async fn run_chains(
        &self,
        batch: &mut BatchContext<'_>,
        letters: impl Iterator<Item = PendingLetter>,
    ) -> StoreResult<Vec<LetterStep>> {
        let mut steps = Vec::with_capacity(MAX_LETTERS_PER_COMMIT);
        for letter in letters {
            if !batch.merged.contains(&letter.row.id) {
                steps.push(self.run_chain(batch, letter).await?);
            }
        }
        Ok(steps)
    }

    /// Stores steps in one commit and notifies the queue of held letters.
    async fn store_steps(&self, steps: Vec<LetterStep>, now: Timestamp) -> Vec<StepOutcome> {
        if steps.is_empty() {
            return Vec::new();
        }
        let ids: Vec<_> = steps.iter().map(|step| step.id).collect();
        let held_until = |step: &LetterStep| match step.then {
            NextAction::Hold { due, .. } => Some((step.id, due)),
            _ => None,
        };
        let held: Vec<_> = steps.iter().filter_map(held_until).collect();
        let results = self.store.step_letters(steps, now).await;
        for (id, due) in held {
            self.notify_queue(id, due);
        }
        ids.into_iter().zip(results).collect()
    }

    /// Runs one letter through its chain until it is held, handed over or at an end.
    async fn run_chain(
        &self,
        batch: &mut BatchContext<'_>,
        pending: PendingLetter,
    ) -> StoreResult<LetterStep> {
        let PendingLetter { row, result } = pending;
        let (config, now) = (batch.config, batch.now);
        let (held_by, key) = (row.held_by.clone(), row.key.clone());
        let chain = config.chain(row.direction, row.tunnel.as_ref());
        let mut letter = LetterInProgress::new(row);
        if let Some(ExternalResult { worker, result }) = result
            && let Some(why) = letter.run.record(&worker, result, now)
        {
            return Ok(letter.into_step(NextAction::Trash { why }));
        }
        if let Some(holder) = held_by {
            self.resume_held(batch, &mut letter, holder, key).await?;
        }
        // Each round records the verdict of another worker, so the chain bounds the loop.
        loop {
            let stop = letter.run.advance(chain, now, |name, letter| {
                let started = Instant::now();
                let step = config.workers.get(name)?.work(letter, now);
                if let WorkerStep::Decided(result) = &step {
                    self.metrics.record_verdict(name, result.verdict, started.elapsed());
                }
                Some(step)
            });
            let (name, action) = match stop {
                ChainStop::Needs(name, action) => (name, action),
                ChainStop::Trashed { why } => {
                    return Ok(letter.into_step(NextAction::Trash { why }));
                }
                ChainStop::Dead { why } => {
                    return Ok(letter.into_step(NextAction::MarkDead { why }));
                }
            };
            let started = Instant::now();
            let (result, next) = match action {
                WorkerAction::CheckContacts => (self.check_contacts(batch, &letter).await?, None),
                WorkerAction::ReserveSlot(limit) => {
                    let due = self.reserve_slot(batch, &mut letter, &name, limit).await?;
                    if due > now {
                        let hold = NextAction::Hold { by: name, key: None, due };
                        return Ok(letter.into_step(hold));
                    }
                    (WorkerResult::PASS, None)
                }
                WorkerAction::JoinWindow(merge) => {
                    let key = merge::merge_key(letter.run.letter());
                    let due = self.join_window(batch, &name, &key, merge).await?;
                    return Ok(letter.into_step(NextAction::Hold {
                        by: name,
                        key: Some(key),
                        due,
                    }));
                }
                WorkerAction::HandOver => {
                    let wait = NextAction::Wait { worker: Some(name), due: now };
                    return Ok(letter.into_step(wait));
                }
                WorkerAction::Send => (WorkerResult::PASS, Some(self.send(config, &letter).await?)),
                WorkerAction::Deliver => (WorkerResult::PASS, Some(self.deliver(&letter))),
            };
            self.metrics.record_verdict(&name, result.verdict, started.elapsed());
            let trashed = letter.run.record(&name, result, now);
            if let Some(next) = trashed.map(|why| NextAction::Trash { why }).or(next) {
                return Ok(letter.into_step(next));
            }
        }
    }

    async fn check_contacts(
        &self,
        batch: &mut BatchContext<'_>,
        letter: &LetterInProgress,
    ) -> StoreResult<WorkerResult> {
        let Letter { from, to, .. } = letter.run.letter();
        let key = (from.clone(), to.clone());
        let blocked = match batch.contact_checks.get(&key) {
            Some(known) => known.clone(),
            None => {
                let found = self.find_block(batch.config, &letter.row, letter.run.letter()).await?;
                batch.contact_checks.insert(key, found.clone());
                found
            }
        };
        Ok(blocked.map_or(WorkerResult::PASS, WorkerResult::trash))
    }

    /// Returns why the contacts block a letter, `None` when they do not.
    ///
    /// # Errors
    ///
    /// Fails when the contacts cannot be read.
    pub async fn find_block(
        &self,
        config: &PipelineConfig,
        row: &LetterRow,
        letter: &Letter,
    ) -> StoreResult<Option<String>> {
        let tunnel = tunnel_of(row, config);
        let did = |address: &String| to_did(address, tunnel);
        let Some(author) = did(&letter.from) else { return Ok(None) };
        let to: Vec<Did> = letter.to.iter().filter_map(did).collect();
        self.store.find_block(&author, &to, row.tunnel.as_ref()).await
    }
}

impl LetterInProgress {
    fn new(mut row: LetterRow) -> Self {
        let run = ChainRun::new(mem::take(&mut row.letter), mem::take(&mut row.verdicts));
        Self { row, run, reservations: Vec::new(), joins: Vec::new() }
    }

    fn into_step(self, then: NextAction) -> LetterStep {
        // The message of a sent letter repeats its text; see `letter_to_message` and
        // `apply_to_message`.
        let short = self.run.letter().data.len() <= MAX_TEXT_IN_MESSAGE;
        let in_object = matches!(then, NextAction::Send(_)) && short;
        let (letter, verdicts) = self.run.into_changes();
        LetterStep {
            id: self.row.id,
            revision: self.row.revision,
            in_object,
            letter,
            verdicts,
            reservations: self.reservations,
            joins: self.joins,
            then,
        }
    }
}

/// Tells whether the error concerns the store and not a single letter.
fn is_store_failure(error: &StoreError) -> bool {
    matches!(error, StoreError::DiskFull | StoreError::Broken(_) | StoreError::Unavailable(_))
}

/// Returns the tunnel of addresses that do not name one.
fn tunnel_of<'s>(row: &'s LetterRow, config: &'s PipelineConfig) -> Option<&'s TunnelId> {
    row.tunnel.as_ref().or_else(|| config.default_tunnel())
}

fn to_did(address: &str, tunnel: Option<&TunnelId>) -> Option<Did> {
    if address.starts_with("did:") {
        return address.parse().ok();
    }
    Endpoint::address(address, tunnel?.clone()).did().ok()
}
