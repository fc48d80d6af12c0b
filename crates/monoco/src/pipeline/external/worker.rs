//! The desk of one worker outside: takes the letters that wait there, has each tried
//! once, and files what came of it.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use monoco_adapters::egress::Egress;
use monoco_adapters::webhook::wire::Signer;
use monoco_core::letter::{LetterId, LetterStateData, Verdict, WorkerAnswer, WorkerName};
use monoco_core::time::Timestamp;
use monoco_store::{LetterRow, LetterStep, NextAction, StoreError};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{AttemptResult, exec, http, rspamd};
use crate::clock;
use crate::pipeline::config::{ExternalWorkerConfig, WhenDown, WorkerTransport};
use crate::pipeline::dispatcher::{ExternalResult, LetterDispatcher, PendingLetter};
use crate::pipeline::workers::WorkerResult;

/// How long to wait for a hint before looking by oneself.
const POLL: Duration = Duration::from_secs(5);

/// How long a worker that is down is left alone, at first and at most.
const DOWN_FIRST: Duration = Duration::from_secs(1);
const DOWN_LONGEST: Duration = Duration::from_secs(15);

/// How long after its time a letter is taken back whose try is not ours.
const GRACE: Duration = Duration::from_secs(5);

/// The desk of one worker.
#[derive(Clone)]
pub struct ExternalWorker {
    /// The worker.
    pub name: WorkerName,
    /// What it is to us.
    pub outside: ExternalWorkerConfig,
    /// Who takes the letters on.
    pub dispatcher: Arc<LetterDispatcher>,
    /// The way out.
    pub egress: Option<Egress>,
    /// What requests are signed with, where they are.
    pub signer: Option<Signer>,
}

impl ExternalWorker {
    /// Has letters tried, until `stop`; what is being tried then is finished.
    pub async fn run(self, stop: CancellationToken) {
        let mut hints = self.dispatcher.store().newest_letter();
        let mut tries: JoinSet<Option<Duration>> = JoinSet::new();
        let mut down = WorkerBackoff::default();
        loop {
            if stop.is_cancelled() {
                while tries.join_next().await.is_some() {}
                return;
            }
            let mut wait = POLL;
            if let Some(rest) = down.remaining() {
                wait = wait.min(rest);
            } else {
                // One that was down is asked with a single letter first.
                let most = if down.is_up() { self.outside.at_once } else { 1 };
                let free = most.saturating_sub(tries.len());
                match self.take(free).await {
                    Ok(taken) => {
                        for row in taken {
                            let desk = self.clone();
                            tries.spawn(async move { desk.one(row).await });
                        }
                    }
                    Err(error) => tracing::warn!(worker = %self.name, %error, "no letters"),
                }
                if free > 0 {
                    wait = wait.min(self.next_due().await);
                }
            }
            tokio::select! {
                Some(tried) = tries.join_next() => down.note(tried.ok().flatten().is_some()),
                changed = hints.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    async fn next_due(&self) -> Duration {
        let due = self.dispatcher.store().next_letter(Some(&self.name)).await.ok().flatten();
        // What is due and was not taken is somebody's whose step is under way.
        due.map_or(POLL, |due| due.since(self.dispatcher.now()).max(Duration::from_millis(50)))
    }

    /// Takes letters over that are due, and takes those back whose time is over.
    async fn take(&self, most: usize) -> Result<Vec<LetterRow>, StoreError> {
        if most == 0 {
            return Ok(Vec::new());
        }
        self.take_back().await?;
        take(&self.dispatcher, &self.name, &self.outside, most).await
    }

    /// Letters whose try was another courier's, or was cut off.
    async fn take_back(&self) -> Result<(), StoreError> {
        let away = self.dispatcher.store().away_letters(&self.name, self.outside.at_once).await?;
        for row in away.into_iter().filter(|row| is_late(row, self.dispatcher.now(), GRACE)) {
            failed(&self.dispatcher, &self.name, &self.outside, row, "it did not answer in time")
                .await;
        }
        Ok(())
    }

    /// Has one letter tried. Returns something when the worker is down.
    async fn one(&self, row: LetterRow) -> Option<Duration> {
        let started = Instant::now();
        let tried = self.attempt(&row).await;
        let figures = self.dispatcher.figures();
        let answer = match tried {
            AttemptResult::Answered(bytes) => self.read(&bytes, &row),
            AttemptResult::Opinion(opinion) => Ok(opinion),
            AttemptResult::Failed(why) => Err(why),
            AttemptResult::Down(why) => {
                figures.down(&self.name, &why);
                is_down(&self.dispatcher, &self.name, &self.outside, row, &why).await;
                return Some(started.elapsed());
            }
        };
        match answer {
            Ok(opinion) => {
                figures.said(&self.name, opinion.verdict, started.elapsed());
                said(&self.dispatcher, vec![(self.name.clone(), row, opinion)]).await;
            }
            Err(why) => {
                figures.failed(&self.name, started.elapsed());
                failed(&self.dispatcher, &self.name, &self.outside, row, &why).await;
            }
        }
        None
    }

    async fn attempt(&self, row: &LetterRow) -> AttemptResult {
        let ExternalWorkerConfig { how, timeout, .. } = &self.outside;
        let no_way = || AttemptResult::Down("there is no way out over HTTP".to_owned());
        match how {
            WorkerTransport::Exec { command, memory } => {
                exec(command, *memory, to_worker(row).as_bytes(), *timeout).await
            }
            WorkerTransport::Http { target, .. } => {
                let (Some(egress), Some(signer)) = (&self.egress, &self.signer) else {
                    return no_way();
                };
                let (body, wall) = (to_worker(row).into_bytes(), self.dispatcher.wall_clock());
                let attempt = row.status.attempts;
                http(egress, target, signer, row.id, attempt, body, *timeout, wall).await
            }
            WorkerTransport::Rspamd { target, password, rules } => {
                let ruled = rules.work(&row.letter);
                if ruled.verdict == Verdict::Trash {
                    return AttemptResult::Opinion(ruled);
                }
                let letter = ruled.letter.as_ref().unwrap_or(&row.letter);
                let Some(egress) = &self.egress else { return no_way() };
                rspamd(egress, target, password.as_ref(), letter, row.id, *timeout).await
            }
            WorkerTransport::Beanstalkd { .. } => {
                AttemptResult::Down("tubes have desks of their own".to_owned())
            }
        }
    }

    fn read(&self, bytes: &[u8], row: &LetterRow) -> Result<WorkerResult, String> {
        read(bytes, row, &self.name, &self.outside)
    }
}

/// How a worker that is down is left alone.
#[derive(Default)]
pub(super) struct WorkerBackoff {
    pause: Option<Duration>,
    until: Option<Instant>,
}

impl WorkerBackoff {
    pub(super) fn is_up(&self) -> bool {
        self.pause.is_none()
    }

    /// How long it is still to be left alone.
    pub(super) fn remaining(&self) -> Option<Duration> {
        self.until?.checked_duration_since(Instant::now())
    }

    pub(super) fn note(&mut self, down: bool) {
        if !down {
            *self = Self::default();
            return;
        }
        let pause = self.pause.map_or(DOWN_FIRST, |pause| (pause * 2).min(DOWN_LONGEST));
        *self = Self { pause: Some(pause), until: Some(Instant::now() + pause) };
    }
}

/// The letter as a worker gets it, with how often it was tried.
pub(super) fn to_worker(row: &LetterRow) -> String {
    let mut value = row.letter.to_worker(row.id, &row.verdicts);
    value["extra"]["attempt"] = json!(row.status.attempts);
    value.to_string()
}

/// Reads a worker's answer.
pub(super) fn read(
    bytes: &[u8],
    row: &LetterRow,
    name: &WorkerName,
    outside: &ExternalWorkerConfig,
) -> Result<WorkerResult, String> {
    let answer = WorkerAnswer::read(bytes, row.id, name, &row.letter, outside.readdress);
    let WorkerAnswer { result, note, letter } = answer.map_err(|error| error.to_string())?;
    if result == Verdict::Pass && letter.is_mail() && letter.data != row.letter.data {
        let checked = monoco_mime::check(&letter.bytes());
        checked.map_err(|error| format!("bad answer: `data` is no mail any more: {error}"))?;
    }
    let letter = (letter != row.letter).then_some(letter);
    Ok(WorkerResult { verdict: result, note, letter })
}

/// Whether the time of a letter that is away is over for longer than `grace`.
pub(super) fn is_late(row: &LetterRow, now: Timestamp, grace: Duration) -> bool {
    matches!(row.status.standing, LetterStateData::Away { until } if until + grace <= now)
}

/// Hands at most `most` letters that are due over to a worker. Returns them as they are
/// then.
pub(in crate::pipeline) async fn take(
    dispatcher: &LetterDispatcher,
    name: &WorkerName,
    outside: &ExternalWorkerConfig,
    most: usize,
) -> Result<Vec<LetterRow>, StoreError> {
    let now = dispatcher.now();
    let due = dispatcher.store().due_letters(Some(name), most, now).await?;
    // One that took the courier down with it each time has used its tries up as well.
    let tries = outside.retry.max_attempts.unwrap_or(u32::MAX);
    let (due, spent): (Vec<_>, Vec<_>) =
        due.into_iter().partition(|row| row.status.attempts < tries);
    for row in spent {
        let last = row.failure.as_deref().unwrap_or("no answer");
        let why = format!("{name}: tried {} times: {last}", row.status.attempts);
        step(dispatcher, &row, NextAction::MarkDead { why }).await;
    }
    if due.is_empty() {
        return Ok(due);
    }
    let until = now + outside.timeout;
    let over =
        due.iter().map(|row| LetterStep::only(row, NextAction::HandOver { until })).collect();
    let answers = dispatcher.store().step_letters(over, now).await;
    let mut taken = Vec::with_capacity(due.len());
    for (mut row, answer) in due.into_iter().zip(answers) {
        match answer {
            Ok(advanced) => {
                row.revision = advanced.revision;
                row.status.standing = LetterStateData::Away { until };
                row.status.attempts += 1;
                taken.push(row);
            }
            // Somebody moved it by hand; it is not ours.
            Err(StoreError::Conflict { .. } | StoreError::InvalidTransition(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(taken)
}

/// Takes letters on with what workers said of them. Returns, for each, whether that is
/// on record or never will be.
pub(super) async fn said(
    dispatcher: &LetterDispatcher,
    letters: Vec<(WorkerName, LetterRow, WorkerResult)>,
) -> bool {
    let arrivals = letters
        .into_iter()
        .map(|(worker, row, opinion)| PendingLetter {
            row,
            said: Some(ExternalResult { worker, opinion }),
        })
        .collect();
    match dispatcher.process_batch(arrivals).await {
        Ok(answers) => answers.into_iter().all(|(id, answer)| settled(id, answer)),
        Err(error) => {
            tracing::warn!(%error, "an answer is not on record yet");
            false
        }
    }
}

/// One that failed: tried again, or given up.
pub(super) async fn failed(
    dispatcher: &LetterDispatcher,
    name: &WorkerName,
    outside: &ExternalWorkerConfig,
    row: LetterRow,
    why: &str,
) -> bool {
    let elapsed = dispatcher.now().since(row.created_at);
    let wait = outside.retry.next_delay(row.status.attempts, elapsed, None, clock::jitter());
    let why = reason(name, why);
    let then = match wait {
        Some(wait) => NextAction::Return { due: dispatcher.now() + wait, tried: true, why },
        None => NextAction::MarkDead { why },
    };
    step(dispatcher, &row, then).await
}

/// One whose worker is down: held, passed on or given up.
pub(super) async fn is_down(
    dispatcher: &LetterDispatcher,
    name: &WorkerName,
    outside: &ExternalWorkerConfig,
    row: LetterRow,
    why: &str,
) -> bool {
    let why = reason(format_args!("{name} is down"), why);
    match outside.when_down {
        WhenDown::Hold => {
            let due = dispatcher.now() + DOWN_FIRST;
            step(dispatcher, &row, NextAction::Return { due, tried: false, why }).await
        }
        WhenDown::Skip => {
            let figures = dispatcher.figures();
            figures.said(name, Verdict::Skip, Duration::ZERO);
            said(dispatcher, vec![(name.clone(), row, WorkerResult::skip(why))]).await
        }
        WhenDown::Dead => step(dispatcher, &row, NextAction::MarkDead { why }).await,
    }
}

/// Why a letter got no answer, as it is kept with it: a worker may say any amount.
fn reason(what: impl Display, why: &str) -> String {
    format!("{what}: {why:.1000}")
}

pub(super) async fn step(dispatcher: &LetterDispatcher, row: &LetterRow, then: NextAction) -> bool {
    let mut answers =
        dispatcher.store().step_letters(vec![LetterStep::only(row, then)], dispatcher.now()).await;
    answers.pop().is_none_or(|answer| settled(row.id, answer))
}

fn settled<T>(id: LetterId, answer: Result<T, StoreError>) -> bool {
    match answer {
        // Too late: somebody else settled it.
        Ok(_) | Err(StoreError::Conflict { .. } | StoreError::InvalidTransition(_)) => true,
        Err(error) => {
            tracing::warn!(letter = %id, %error, "what a worker said is not on record");
            false
        }
    }
}
