//! Hands each letter to the next worker that has not had it.
//!
//! Our own workers are called one after the other in memory, between two commits: one
//! took the letter in, the next says what all of them said and how it goes on. Only a
//! worker outside, or one that keeps the letter for a while, ends the walk in between.
//!
//! One batch is walked at a time. What a walk reads to decide (who is booked until
//! when, who waits to be merged) is changed by nobody but another walk.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use monoco_core::did::{Did, Endpoint, EndpointKind, TunnelId};
use monoco_core::letter::{
    FinishContext, FinishError, INLINE_MAIL, Letter, LetterId, Verdict, WorkerName, WorkerVerdict,
    apply_to_inbound, apply_to_message, letter_to_message,
};
use monoco_core::rate_limit::ReservedUntil;
use monoco_core::time::Timestamp;
use monoco_store::{
    DispatchRequest, LetterRow, LetterSource, LetterStep, LetterStepResult, NextAction,
    SendRequest, SharedStore, StoreError, StoreInboundRequest,
};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use holding_workers::kept_until;

use super::config::{PipelineConfig, WorkerConfig};
use super::metrics::WorkerMetrics;
use super::queue::{LetterQueue, QueueNotifier};
use super::workers::{WorkerResult, merge, opinion};
use crate::clock::Clock;

/// Most letters that are walked in one go.
const BATCH: usize = 512;

/// Most letters of one commit. While it is under way, the next ones are walked.
const COMMIT: usize = 64;

/// Largest text that is kept as a part of its message alone.
const SMALL: usize = 8 << 10;

/// How long letters gather between two walks when they come one after the other. A commit
/// costs about the same for one as for ten, and whoever hands in waits behind it.
const GATHER: Duration = Duration::from_millis(10);

/// How long the dispatcher rests after the store refused it.
const REST: Duration = Duration::from_secs(1);

/// Walks letters through their chains.
pub struct LetterDispatcher {
    store: SharedStore,
    clock: Clock,
    notifier: QueueNotifier,
    settings: watch::Receiver<Arc<PipelineConfig>>,
    figures: Arc<WorkerMetrics>,
    /// One walk at a time.
    batch_lock: Mutex<()>,
}

/// A letter that is to go on, with what the worker said that just had it.
pub struct PendingLetter {
    /// The letter, as it was looked at.
    pub row: LetterRow,
    /// What was said; `None`: it comes from nobody.
    pub said: Option<ExternalResult>,
}

/// What a worker outside said.
pub struct ExternalResult {
    /// Who.
    pub worker: WorkerName,
    /// What.
    pub opinion: WorkerResult,
}

/// A letter, and how its step went.
type StepOutcome = (LetterId, Result<LetterStepResult, StoreError>);

/// What one walk knows beyond the letters themselves.
struct BatchContext<'a> {
    settings: &'a PipelineConfig,
    now: Timestamp,
    /// Up to when keys are booked, those included that this walk has booked.
    booked: BTreeMap<String, Option<ReservedUntil>>,
    /// When the groups that letters of this walk wait in are due, and how many there are.
    groups: HashMap<(WorkerName, String), (Timestamp, usize)>,
    /// Letters whose merging is decided in this walk, and not yet in the store.
    merged: HashSet<LetterId>,
    /// Whether anybody is unwelcome, by letters' senders and recipients.
    unwelcome: HashMap<(String, Vec<String>), Option<String>>,
}

/// One letter on its way.
struct LetterInProgress {
    /// As it was looked at, but for the letter and who had it.
    row: LetterRow,
    letter: Letter,
    changed: bool,
    had: Vec<WorkerVerdict>,
    new: usize,
    booked: Vec<(String, ReservedUntil)>,
    joins: Vec<(LetterId, i64)>,
}

impl LetterDispatcher {
    /// A dispatcher that goes by these settings, as they are at the time.
    pub fn new(
        store: SharedStore,
        clock: Clock,
        notifier: QueueNotifier,
        settings: watch::Receiver<Arc<PipelineConfig>>,
        figures: Arc<WorkerMetrics>,
    ) -> Self {
        Self { store, clock, notifier, settings, figures, batch_lock: Mutex::new(()) }
    }

    pub fn store(&self) -> &SharedStore {
        &self.store
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The machine's clock, for times that another party checks.
    pub fn wall_clock(&self) -> Timestamp {
        self.clock.wall()
    }

    /// Notifies the queue of a letter that is due at `due`.
    pub fn notify_queue(&self, id: LetterId, due: Timestamp) {
        self.notifier.notify(id, due.since(self.now()));
    }

    /// The settings as they are now.
    pub fn settings(&self) -> Arc<PipelineConfig> {
        Arc::clone(&self.settings.borrow())
    }

    /// What is counted.
    pub fn figures(&self) -> &Arc<WorkerMetrics> {
        &self.figures
    }

    /// Walks whatever is due, until `stop`.
    pub async fn run(self: Arc<Self>, mut queue: LetterQueue, stop: CancellationToken) {
        let mut next = Instant::now();
        while !stop.is_cancelled() {
            match self.clear(&mut next, &stop).await {
                Ok(()) => queue.cleared().await,
                Err(error) => {
                    tracing::warn!(%error, "letters wait; the store refuses");
                    if stop.run_until_cancelled(tokio::time::sleep(REST)).await.is_none() {
                        return;
                    }
                    continue;
                }
            }
            if stop.run_until_cancelled(queue.woken(&self.store, self.clock)).await.is_none() {
                return;
            }
        }
    }

    /// Walks letters until none is due; the first not before `next`, which then says when to
    /// look again.
    async fn clear(&self, next: &mut Instant, stop: &CancellationToken) -> Result<(), StoreError> {
        let store = &self.store;
        while !stop.is_cancelled() {
            tokio::time::sleep_until(*next).await;
            let due = store.due_letters(None, BATCH, self.clock.now()).await?;
            if due.is_empty() {
                return Ok(());
            }
            // One alone is followed by nobody, and many fill a commit as they are.
            if (2..COMMIT).contains(&due.len()) {
                *next = Instant::now() + GATHER;
            }
            let arrivals = due.into_iter().map(|row| PendingLetter { row, said: None }).collect();
            for (id, went) in self.process_batch(arrivals).await? {
                match went {
                    Ok(_) => {}
                    // Somebody else moved it meanwhile. Should it be due all the same, it is
                    // not asked for again at once.
                    Err(StoreError::Conflict { .. } | StoreError::InvalidTransition(_)) => {
                        *next = Instant::now() + GATHER;
                    }
                    Err(error) if refuses(&error) => return Err(error),
                    Err(error) => self.give_up(id, &error).await?,
                }
            }
        }
        Ok(())
    }

    /// A letter whose step can't be taken must not hold up those behind it.
    async fn give_up(&self, id: LetterId, error: &StoreError) -> Result<(), StoreError> {
        tracing::error!(letter = %id, %error, "a letter is given up");
        let row = self.store.letter(id).await?;
        let then = NextAction::MarkDead { why: error.to_string() };
        let advance = LetterStep::only(&row, then);
        let mut given_up = self.store.step_letters(vec![advance], self.clock.now()).await;
        given_up.pop().unwrap_or_else(|| Err(error.clone())).map(|_| ())
    }

    /// Walks these letters as far as they get, some in each commit.
    ///
    /// # Errors
    ///
    /// When what the walk has to know can't be read. Some may have gone on by then.
    pub async fn process_batch(
        &self,
        arrivals: Vec<PendingLetter>,
    ) -> Result<Vec<StepOutcome>, StoreError> {
        let _alone = self.batch_lock.lock().await;
        let settings = self.settings();
        let mut walk = BatchContext {
            settings: &settings,
            now: self.clock.now(),
            booked: BTreeMap::new(),
            groups: HashMap::new(),
            merged: HashSet::new(),
            unwelcome: HashMap::new(),
        };
        self.read_ahead(&mut walk, &arrivals).await?;
        let (now, mut arrivals) = (walk.now, arrivals.into_iter());
        let (mut walked, mut answers) = (Vec::new(), Vec::with_capacity(arrivals.len()));
        while arrivals.len() > 0 {
            let some = arrivals.by_ref().take(COMMIT);
            // The store's writer has the last ones while this one walks the next.
            let (filed, next) =
                tokio::join!(self.file(walked, now), self.walk_some(&mut walk, some));
            let mut errors = filed.iter().filter_map(|(_, went)| went.as_ref().err());
            let refused = errors.find(|error| refuses(error)).cloned();
            answers.extend(filed);
            walked = next?;
            // Those behind letters that can't be filed must not overtake them.
            if let Some(error) = refused {
                answers.extend(walked.into_iter().map(|advance| (advance.id, Err(error.clone()))));
                return Ok(answers);
            }
        }
        answers.extend(self.file(walked, now).await);
        Ok(answers)
    }

    /// Walks some letters as far as they get.
    async fn walk_some(
        &self,
        walk: &mut BatchContext<'_>,
        arrivals: impl Iterator<Item = PendingLetter>,
    ) -> Result<Vec<LetterStep>, StoreError> {
        let mut advances = Vec::with_capacity(COMMIT);
        for arrival in arrivals {
            if !walk.merged.contains(&arrival.row.id) {
                advances.push(self.walk(walk, arrival).await?);
            }
        }
        Ok(advances)
    }

    /// Puts on record how far some letters got, in one commit.
    async fn file(&self, advances: Vec<LetterStep>, now: Timestamp) -> Vec<StepOutcome> {
        if advances.is_empty() {
            return Vec::new();
        }
        let ids: Vec<_> = advances.iter().map(|advance| advance.id).collect();
        let kept: Vec<_> = advances.iter().filter_map(kept_until).collect();
        let answers = self.store.step_letters(advances, now).await;
        for (id, due) in kept {
            self.notify_queue(id, due);
        }
        ids.into_iter().zip(answers).collect()
    }

    /// Walks one letter as far as it gets.
    async fn walk(
        &self,
        walk: &mut BatchContext<'_>,
        arrival: PendingLetter,
    ) -> Result<LetterStep, StoreError> {
        let PendingLetter { row, said } = arrival;
        let (kept_by, key) = (row.held_by.clone(), row.key.clone());
        let mut going = LetterInProgress::new(row);
        if let Some(ExternalResult { worker, opinion }) = said
            && let Some(then) = going.said(&worker, opinion, walk.now)
        {
            return Ok(going.then(then));
        }
        if let Some(keeper) = kept_by {
            self.returned(walk, &mut going, keeper, key).await?;
        }
        loop {
            let chain = walk.settings.chain(going.row.direction, going.row.tunnel.as_ref());
            let Some(name) = chain.next(&going.had).cloned() else {
                let why = "its chain has no end: no worker is left that sends or delivers it";
                return Ok(going.then(NextAction::MarkDead { why: why.to_owned() }));
            };
            let Some(worker) = walk.settings.workers.get(&name) else {
                let why = format!("there is no worker {name}");
                return Ok(going.then(NextAction::MarkDead { why }));
            };
            let started = Instant::now();
            let opinion = match worker {
                WorkerConfig::Block(block) => match block.work(&going.letter) {
                    WorkerResult::PASS => self.blocked(walk, &going).await?,
                    listed => listed,
                },
                WorkerConfig::Spam(_)
                | WorkerConfig::Subject(_)
                | WorkerConfig::Footer(_)
                | WorkerConfig::Trash => {
                    opinion(worker, &going.letter, walk.now).unwrap_or(WorkerResult::PASS)
                }
                WorkerConfig::Limit(limit) => match self
                    .limit(walk, &mut going, &name, limit)
                    .await?
                {
                    due if due <= walk.now => WorkerResult::PASS,
                    due => return Ok(going.then(NextAction::Hold { by: name, key: None, due })),
                },
                WorkerConfig::Merge(rule) => {
                    let key = merge::key(&going.letter);
                    let due = self.group(walk, &name, &key, rule).await?;
                    return Ok(going.then(NextAction::Hold { by: name, key: Some(key), due }));
                }
                WorkerConfig::Outside(_) => {
                    let then = NextAction::Wait { worker: Some(name), due: walk.now };
                    return Ok(going.then(then));
                }
                WorkerConfig::Send { .. } | WorkerConfig::Deliver => {
                    let then = self.end(walk.settings, worker, &going).await?;
                    going.passed(&name, Verdict::Pass, None, walk.now);
                    self.figures.said(&name, Verdict::Pass, started.elapsed());
                    return Ok(going.then(then));
                }
            };
            self.figures.said(&name, opinion.verdict, started.elapsed());
            if let Some(then) = going.said(&name, opinion, walk.now) {
                return Ok(going.then(then));
            }
        }
    }

    /// Whether somebody is blocked, by the contacts.
    async fn blocked(
        &self,
        walk: &mut BatchContext<'_>,
        going: &LetterInProgress,
    ) -> Result<WorkerResult, StoreError> {
        let Letter { from, to, .. } = &going.letter;
        let place = (from.clone(), to.clone());
        let why = match walk.unwelcome.get(&place) {
            Some(known) => known.clone(),
            None => {
                let why = self.unwelcome(walk.settings, &going.row, &going.letter).await?;
                walk.unwelcome.insert(place, why.clone());
                why
            }
        };
        Ok(why.map_or(WorkerResult::PASS, WorkerResult::trash))
    }

    /// Why somebody keeps a letter from going on, by the contacts.
    ///
    /// # Errors
    ///
    /// When they can't be read.
    pub async fn unwelcome(
        &self,
        settings: &PipelineConfig,
        row: &LetterRow,
        letter: &Letter,
    ) -> Result<Option<String>, StoreError> {
        let tunnel = tunnel_of(row, settings);
        let did = |address: &String| as_did(address, tunnel);
        let Some(author) = did(&letter.from) else { return Ok(None) };
        let to: Vec<Did> = letter.to.iter().filter_map(did).collect();
        self.store.find_block(&author, &to, row.tunnel.as_ref()).await
    }

    /// What a letter becomes that is through.
    async fn end(
        &self,
        settings: &PipelineConfig,
        worker: &WorkerConfig,
        going: &LetterInProgress,
    ) -> Result<NextAction, StoreError> {
        let (row, letter) = (&going.row, &going.letter);
        let too_late = |error: FinishError| NextAction::MarkDead { why: error.to_string() };
        Ok(match (worker, &row.source) {
            (WorkerConfig::Send { .. }, LetterSource::Submitted { .. }) => {
                let subject = match letter.is_mail() && letter.extra("subject").is_none() {
                    true => monoco_mime::subject(&letter.bytes()),
                    false => None,
                };
                let mut sealing = FinishContext {
                    id: row.id,
                    at: row.created_at,
                    tunnel: tunnel_of(row, settings),
                    bytes: None,
                    mail_subject: subject.as_deref(),
                };
                // Its bytes are no more than its text, so a small one is not asked for them.
                if letter.is_mail() && letter.data.len() > INLINE_MAIL {
                    let bytes = letter.bytes();
                    let size = bytes.len() as u64;
                    if bytes.len() > INLINE_MAIL {
                        sealing.bytes =
                            Some((self.store.put_blob(bytes.into_owned()).await?, size));
                    }
                }
                match letter_to_message(letter, sealing) {
                    Ok(msg) => {
                        NextAction::Send(Box::new(SendRequest { msg, key: None, not_before: None }))
                    }
                    Err(error) => too_late(error),
                }
            }
            (WorkerConfig::Send { .. }, LetterSource::Send(post)) => {
                match apply_to_message(&post.msg, letter, row.id) {
                    Ok(msg) => {
                        let not_before = post.not_before;
                        NextAction::Send(Box::new(SendRequest { msg, key: None, not_before }))
                    }
                    Err(error) => too_late(error),
                }
            }
            (WorkerConfig::Deliver, LetterSource::Inbound(keep)) => {
                match apply_to_inbound(&keep.message, letter) {
                    Ok(message) => {
                        let request = StoreInboundRequest { message, ..keep.clone() };
                        NextAction::Deliver(Box::new(request))
                    }
                    Err(error) => too_late(error),
                }
            }
            (WorkerConfig::Deliver, LetterSource::Dispatch(dispatch)) => {
                match apply_to_message(&dispatch.msg, letter, row.id) {
                    Ok(msg) => {
                        NextAction::Dispatch(Box::new(DispatchRequest { msg, ..dispatch.clone() }))
                    }
                    Err(error) => too_late(error),
                }
            }
            _ => {
                let why = "its chain ends with a worker of the other direction";
                NextAction::MarkDead { why: why.to_owned() }
            }
        })
    }
}

impl LetterInProgress {
    fn new(mut row: LetterRow) -> Self {
        let (letter, had) = (mem::take(&mut row.letter), mem::take(&mut row.verdicts));
        let new = had.len();
        Self { row, letter, changed: false, had, new, booked: Vec::new(), joins: Vec::new() }
    }

    fn change(&mut self, letter: Letter) {
        self.changed |= letter != self.letter;
        self.letter = letter;
    }

    fn passed(&mut self, by: &WorkerName, result: Verdict, note: Option<String>, at: Timestamp) {
        self.had.push(WorkerVerdict { worker: by.clone(), result, at, note });
    }

    /// Takes an opinion over. Returns how the letter goes on when that ends the walk.
    fn said(
        &mut self,
        by: &WorkerName,
        opinion: WorkerResult,
        at: Timestamp,
    ) -> Option<NextAction> {
        let WorkerResult { verdict, note, letter } = opinion;
        if let Some(letter) = letter {
            self.change(letter);
        }
        self.passed(by, verdict, note.clone(), at);
        (verdict == Verdict::Trash).then(|| {
            let note = note.map(|note| format!(": {note}")).unwrap_or_default();
            NextAction::Trash { why: format!("{by}{note}") }
        })
    }

    fn then(mut self, then: NextAction) -> LetterStep {
        LetterStep {
            id: self.row.id,
            revision: self.row.revision,
            // A small text is part of the message as it is; see `posted` and `resealed`.
            in_object: matches!(then, NextAction::Send(_)) && self.letter.data.len() <= SMALL,
            letter: self.changed.then_some(self.letter),
            verdicts: self.had.split_off(self.new),
            reservations: self.booked,
            joins: self.joins,
            then,
        }
    }
}

/// Whether this is the store's trouble, and no letter's.
fn refuses(error: &StoreError) -> bool {
    matches!(error, StoreError::DiskFull | StoreError::Broken(_) | StoreError::Unavailable(_))
}

/// The tunnel for addresses that do not name one.
fn tunnel_of<'s>(row: &'s LetterRow, settings: &'s PipelineConfig) -> Option<&'s TunnelId> {
    let by_settings = || {
        settings.workers.values().find_map(|worker| match worker {
            WorkerConfig::Send { tunnel } => tunnel.as_ref(),
            _ => None,
        })
    };
    row.tunnel.as_ref().or_else(by_settings)
}

fn as_did(address: &str, tunnel: Option<&TunnelId>) -> Option<Did> {
    if address.starts_with("did:") {
        return address.parse().ok();
    }
    let (account, kind) = (address.to_owned(), EndpointKind::Addr);
    Endpoint { account, kind, tunnel: tunnel?.clone() }.did().ok()
}

mod holding_workers;
#[cfg(test)]
mod tests;
