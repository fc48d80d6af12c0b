//! The desk of one worker outside: takes the letters that wait there, has each tried
//! once, and files what came of it.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use monoco_adapters::egress::Egress;
use monoco_adapters::webhook::wire::Signer;
use monoco_core::letter::{Answer, LetterId, Standing, Verdict, WorkerName};
use monoco_core::time::Timestamp;
use monoco_store::{Advance, LetterRow, StoreError, Then};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Tried, exec, http, rspamd};
use crate::clock;
use crate::postoffice::dispatcher::{Arrival, Dispatcher, Said};
use crate::postoffice::settings::{How, Outside, WhenDown};
use crate::postoffice::workers::Opinion;

/// How long to wait for a hint before looking by oneself.
const POLL: Duration = Duration::from_secs(5);

/// How long a worker that is down is left alone, at first and at most.
const DOWN_FIRST: Duration = Duration::from_secs(1);
const DOWN_LONGEST: Duration = Duration::from_secs(15);

/// How long after its time a letter is taken back whose try is not ours.
const GRACE: Duration = Duration::from_secs(5);

/// The desk of one worker.
#[derive(Clone)]
pub struct Desk {
    /// The worker.
    pub name: WorkerName,
    /// What it is to us.
    pub outside: Outside,
    /// Who takes the letters on.
    pub dispatcher: Arc<Dispatcher>,
    /// The way out.
    pub egress: Option<Egress>,
    /// What requests are signed with, where they are.
    pub signer: Option<Signer>,
}

impl Desk {
    /// Has letters tried, until `stop`; what is being tried then is finished.
    pub async fn run(self, stop: CancellationToken) {
        let mut hints = self.dispatcher.center().store().newest_letter();
        let mut tries: JoinSet<Option<Duration>> = JoinSet::new();
        let mut down = Down::default();
        loop {
            if stop.is_cancelled() {
                while tries.join_next().await.is_some() {}
                return;
            }
            let mut wait = POLL;
            if let Some(rest) = down.rest() {
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
        let center = self.dispatcher.center();
        let due = center.store().next_letter(Some(&self.name)).await.ok().flatten();
        // What is due and was not taken is somebody's whose step is under way.
        due.map_or(POLL, |due| due.since(center.now()).max(Duration::from_millis(50)))
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
        let center = self.dispatcher.center();
        let away = center.store().away_letters(&self.name, self.outside.at_once).await?;
        for row in away.into_iter().filter(|row| is_late(row, center.now(), GRACE)) {
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
            Tried::Answered(bytes) => self.read(&bytes, &row),
            Tried::Opinion(opinion) => Ok(opinion),
            Tried::Failed(why) => Err(why),
            Tried::Down(why) => {
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

    async fn attempt(&self, row: &LetterRow) -> Tried {
        let Outside { how, timeout, .. } = &self.outside;
        let no_way = || Tried::Down("there is no way out over HTTP".to_owned());
        match how {
            How::Exec { command, memory } => {
                exec(command, *memory, to_worker(row).as_bytes(), *timeout).await
            }
            How::Http { target, .. } => {
                let (Some(egress), Some(signer)) = (&self.egress, &self.signer) else {
                    return no_way();
                };
                let (body, wall) = (to_worker(row).into_bytes(), self.dispatcher.center().wall());
                let attempt = row.journey.attempts;
                http(egress, target, signer, row.id, attempt, body, *timeout, wall).await
            }
            How::Rspamd { target, password, rules } => {
                let ruled = rules.work(&row.letter);
                if ruled.verdict == Verdict::Trash {
                    return Tried::Opinion(ruled);
                }
                let letter = ruled.letter.as_ref().unwrap_or(&row.letter);
                let Some(egress) = &self.egress else { return no_way() };
                rspamd(egress, target, password.as_ref(), letter, row.id, *timeout).await
            }
            How::Beanstalkd { .. } => Tried::Down("tubes have desks of their own".to_owned()),
        }
    }

    fn read(&self, bytes: &[u8], row: &LetterRow) -> Result<Opinion, String> {
        read(bytes, row, &self.name, &self.outside)
    }
}

/// How a worker that is down is left alone.
#[derive(Default)]
pub(super) struct Down {
    pause: Option<Duration>,
    until: Option<Instant>,
}

impl Down {
    pub(super) fn is_up(&self) -> bool {
        self.pause.is_none()
    }

    /// How long it is still to be left alone.
    pub(super) fn rest(&self) -> Option<Duration> {
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
    let mut value = row.letter.to_worker(row.id, &row.had);
    value["extra"]["attempt"] = json!(row.journey.attempts);
    value.to_string()
}

/// Reads a worker's answer.
pub(super) fn read(
    bytes: &[u8],
    row: &LetterRow,
    name: &WorkerName,
    outside: &Outside,
) -> Result<Opinion, String> {
    let answer = Answer::read(bytes, row.id, name, &row.letter, outside.readdress);
    let Answer { result, note, letter } = answer.map_err(|error| error.to_string())?;
    if result == Verdict::Pass && letter.is_mail() && letter.data != row.letter.data {
        let checked = monoco_mime::check(&letter.bytes());
        checked.map_err(|error| format!("bad answer: `data` is no mail any more: {error}"))?;
    }
    let letter = (letter != row.letter).then_some(letter);
    Ok(Opinion { verdict: result, note, letter })
}

/// Whether the time of a letter that is away is over for longer than `grace`.
pub(super) fn is_late(row: &LetterRow, now: Timestamp, grace: Duration) -> bool {
    matches!(row.journey.standing, Standing::Away { until } if until + grace <= now)
}

/// Hands at most `most` letters that are due over to a worker. Returns them as they are
/// then.
pub(in crate::postoffice) async fn take(
    dispatcher: &Dispatcher,
    name: &WorkerName,
    outside: &Outside,
    most: usize,
) -> Result<Vec<LetterRow>, StoreError> {
    let center = dispatcher.center();
    let now = center.now();
    let due = center.store().due_letters(Some(name), most, now).await?;
    // One that took the courier down with it each time has used its tries up as well.
    let tries = outside.retry.tries.unwrap_or(u32::MAX);
    let (due, spent): (Vec<_>, Vec<_>) =
        due.into_iter().partition(|row| row.journey.attempts < tries);
    for row in spent {
        let last = row.failure.as_deref().unwrap_or("no answer");
        let why = format!("{name}: tried {} times: {last}", row.journey.attempts);
        step(dispatcher, &row, Then::GiveUp { why }).await;
    }
    if due.is_empty() {
        return Ok(due);
    }
    let until = now + outside.timeout;
    let over = due.iter().map(|row| Advance::only(row, Then::HandOver { until })).collect();
    let answers = center.store().advance(over, now).await;
    let mut taken = Vec::with_capacity(due.len());
    for (mut row, answer) in due.into_iter().zip(answers) {
        match answer {
            Ok(advanced) => {
                row.revision = advanced.revision;
                row.journey.standing = Standing::Away { until };
                row.journey.attempts += 1;
                taken.push(row);
            }
            // Somebody moved it by hand; it is not ours.
            Err(StoreError::Conflict { .. } | StoreError::WrongState(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(taken)
}

/// Takes letters on with what workers said of them. Returns, for each, whether that is
/// on record or never will be.
pub(super) async fn said(
    dispatcher: &Dispatcher,
    letters: Vec<(WorkerName, LetterRow, Opinion)>,
) -> bool {
    let arrivals = letters
        .into_iter()
        .map(|(worker, row, opinion)| Arrival { row, said: Some(Said { worker, opinion }) })
        .collect();
    match dispatcher.go_on(arrivals).await {
        Ok(answers) => answers.into_iter().all(|(id, answer)| settled(id, answer)),
        Err(error) => {
            tracing::warn!(%error, "an answer is not on record yet");
            false
        }
    }
}

/// One that failed: tried again, or given up.
pub(super) async fn failed(
    dispatcher: &Dispatcher,
    name: &WorkerName,
    outside: &Outside,
    row: LetterRow,
    why: &str,
) -> bool {
    let center = dispatcher.center();
    let elapsed = center.now().since(row.created_at);
    let wait = outside.retry.wait(row.journey.attempts, elapsed, None, clock::jitter());
    let why = reason(name, why);
    let then = match wait {
        Some(wait) => Then::PutBack { due: center.now() + wait, tried: true, why },
        None => Then::GiveUp { why },
    };
    step(dispatcher, &row, then).await
}

/// One whose worker is down: held, passed on or given up.
pub(super) async fn is_down(
    dispatcher: &Dispatcher,
    name: &WorkerName,
    outside: &Outside,
    row: LetterRow,
    why: &str,
) -> bool {
    let center = dispatcher.center();
    let why = reason(format_args!("{name} is down"), why);
    match outside.when_down {
        WhenDown::Hold => {
            let due = center.now() + DOWN_FIRST;
            step(dispatcher, &row, Then::PutBack { due, tried: false, why }).await
        }
        WhenDown::Skip => {
            let figures = dispatcher.figures();
            figures.said(name, Verdict::Skip, Duration::ZERO);
            said(dispatcher, vec![(name.clone(), row, Opinion::skip(why))]).await
        }
        WhenDown::Dead => step(dispatcher, &row, Then::GiveUp { why }).await,
    }
}

/// Why a letter got no answer, as it is kept with it: a worker may say any amount.
fn reason(what: impl Display, why: &str) -> String {
    format!("{what}: {why:.1000}")
}

pub(super) async fn step(dispatcher: &Dispatcher, row: &LetterRow, then: Then) -> bool {
    let center = dispatcher.center();
    let mut answers = center.store().advance(vec![Advance::only(row, then)], center.now()).await;
    answers.pop().is_none_or(|answer| settled(row.id, answer))
}

fn settled<T>(id: LetterId, answer: Result<T, StoreError>) -> bool {
    match answer {
        // Too late: somebody else settled it.
        Ok(_) | Err(StoreError::Conflict { .. } | StoreError::WrongState(_)) => true,
        Err(error) => {
            tracing::warn!(letter = %id, %error, "what a worker said is not on record");
            false
        }
    }
}
