//! The desk of a worker behind a tube of a beanstalkd, and where the answers come.
//!
//! The store knows which letters are away; the beanstalkd only carries them. A job that
//! was lost with it is put again when the connection is back, and a letter nobody took
//! or answered in time is tried again like any other.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use monoco_core::letter::{LetterId, LetterState, WorkerName};
use monoco_core::time::Timestamp;
use monoco_store::{LetterRow, NextAction, StoreError};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::worker::{self, WorkerBackoff};
use crate::pipeline::beanstalkd::{
    BeanstalkdClient, BeanstalkdError, BeanstalkdJob, JobConsumer, JobId, PutOptions, TubeName,
};
use crate::pipeline::config::{ExternalWorkerConfig, WhenDown};
use crate::pipeline::dispatcher::LetterDispatcher;

/// How long letters and answers gather, where there is more than one, before the next are
/// filed. A commit costs about the same for one as for ten, and syncs the disk that the
/// beanstalkd may sync too.
const GATHER: Duration = Duration::from_millis(20);

/// How long to wait for anything before looking by oneself.
const POLL: Duration = Duration::from_secs(2);

/// How much longer than we wait the worker may hold a job.
const GRACE: Duration = Duration::from_secs(5);

/// How long an answer waits that could not be put on record.
const AGAIN: Duration = Duration::from_secs(5);

/// Answers that are filed at once, and jobs with answers that are taken at once.
const ANSWERS: usize = 256;

/// Answers that one job may hold.
const IN_A_JOB: usize = 1_000;

/// The desk of one worker.
pub struct TubeWorker {
    /// The worker.
    pub name: WorkerName,
    /// What it is to us.
    pub outside: ExternalWorkerConfig,
    /// Where letters are put.
    pub tube: TubeName,
    /// Who takes the letters on.
    pub dispatcher: Arc<LetterDispatcher>,
    /// The beanstalkd.
    pub client: BeanstalkdClient,
    /// What is away.
    pub flights: Arc<InFlightLetters>,
}

/// The letters that are away at one worker.
#[derive(Default)]
pub struct InFlightLetters {
    all: Mutex<HashMap<LetterId, InFlightLetter>>,
    landed: Notify,
}

/// One of them.
#[derive(Clone, Copy)]
struct InFlightLetter {
    /// Its job; `None`: put by an earlier courier, or being put.
    job: Option<JobId>,
    since: Instant,
    until: Timestamp,
}

impl InFlightLetters {
    fn all(&self) -> MutexGuard<'_, HashMap<LetterId, InFlightLetter>> {
        // Nothing panics while it holds the lock.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, id: LetterId) -> Option<InFlightLetter> {
        let flight = self.all().remove(&id);
        self.landed.notify_one();
        flight
    }
}

impl TubeWorker {
    /// Puts letters into the tube and looks after them, until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let mut hints = self.dispatcher.store().newest_letter();
        let mut connections = self.client.connections();
        let mut down = WorkerBackoff::default();
        // Those of an earlier courier are looked after like those of an earlier connection.
        let mut unsure = true;
        let mut asked = Instant::now();
        while !stop.is_cancelled() {
            let next = tokio::time::Instant::now() + GATHER;
            // A connection is made when something is asked. Nothing may be to ask for as
            // long as all letters are away, and they would be missed only when they are late.
            if asked.elapsed() >= POLL && !self.flights.all().is_empty() {
                asked = Instant::now();
                let _ = self.client.stats().await;
            }
            if unsure || connections.has_changed().unwrap_or_default() {
                connections.mark_unchanged();
                unsure = self.look_after().await.is_err();
            }
            let mut wait = POLL;
            match down.remaining() {
                Some(rest) => wait = wait.min(rest),
                None => match self.send(down.is_up()).await {
                    Ok(Some(sent)) => down.note(!sent),
                    Ok(None) => {}
                    Err(error) => tracing::warn!(worker = %self.name, %error, "no letters"),
                },
            }
            self.take_back().await;
            tokio::select! {
                changed = hints.changed() => if changed.is_err() { return },
                () = self.flights.landed.notified() => {}
                _ = connections.changed() => connections.mark_changed(),
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => {}
            }
            if self.flights.all().len() > 1 {
                tokio::time::sleep_until(next).await;
            }
        }
    }

    /// Puts letters that are due into the tube. Says whether the beanstalkd took them;
    /// nothing when there were none.
    async fn send(&self, up: bool) -> Result<Option<bool>, StoreError> {
        let free = self.outside.at_once.saturating_sub(self.flights.all().len());
        // One that was down is asked with a single letter, whatever else is still away.
        let free = if up { free } else { free.min(1) };
        if free == 0 {
            return Ok(None);
        }
        let rows = worker::take(&self.dispatcher, &self.name, &self.outside, free).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        if let Some(why) = self.unwatched().await {
            for row in rows {
                self.is_down(row, &why).await;
            }
            return Ok(Some(false));
        }
        let puts = join_all(rows.iter().map(|row| self.put(row))).await;
        let mut taken = true;
        for (row, put) in rows.into_iter().zip(puts) {
            taken &= self.was_put(row, put).await;
        }
        Ok(Some(taken))
    }

    /// Why nobody will take a letter, where it is not to wait for somebody.
    async fn unwatched(&self) -> Option<String> {
        if self.outside.when_down == WhenDown::Hold {
            return None;
        }
        let stats = self.client.stats_tube(&self.tube).await.ok()?;
        let watching = stats.map_or(0, |stats| stats.watching);
        (watching == 0).then(|| format!("nobody watches {}", self.tube))
    }

    async fn put(&self, row: &LetterRow) -> Result<JobId, BeanstalkdError> {
        // Before it is there: the answer may be on record before we know of the job.
        let until = self.dispatcher.now() + self.outside.timeout;
        let flight = InFlightLetter { job: None, since: Instant::now(), until };
        self.flights.all().insert(row.id, flight);
        let body = worker::to_worker(row).into_bytes();
        let ttr = self.outside.timeout + GRACE;
        let job = PutOptions { body, priority: 1024, delay: Duration::ZERO, ttr };
        self.client.put(&self.tube, job).await
    }

    /// Notes where a letter is, or deals with it when it could not be put.
    async fn was_put(&self, row: LetterRow, put: Result<JobId, BeanstalkdError>) -> bool {
        if put.is_err() {
            self.flights.all().remove(&row.id);
        }
        match put {
            Ok(job) => {
                if let Some(flight) = self.flights.all().get_mut(&row.id) {
                    flight.job = Some(job);
                }
                true
            }
            Err(error @ BeanstalkdError::TooBig { .. }) => {
                let why = format!("{}: {error}; its -z says how large a job may be", self.name);
                self.dispatcher.figures().failed(&self.name, Duration::ZERO);
                worker::step(&self.dispatcher, &row, NextAction::MarkDead { why }).await;
                true
            }
            Err(error) => {
                self.is_down(row, &error.to_string()).await;
                false
            }
        }
    }

    async fn is_down(&self, row: LetterRow, why: &str) {
        self.dispatcher.figures().down(&self.name, why);
        worker::is_down(&self.dispatcher, &self.name, &self.outside, row, why).await;
    }

    /// Sees to it that every letter that is away has a job, and puts those again whose
    /// job was lost.
    async fn look_after(&self) -> Result<(), BeanstalkdError> {
        let stats = self.client.stats().await?;
        let away = self.dispatcher.store().away_letters(&self.name, self.outside.at_once).await;
        let away = away.map_err(|error| BeanstalkdError::Down(error.to_string()))?;
        let ids: Vec<_> = away.iter().map(|row| row.id).collect();
        let mut lost = Vec::new();
        for row in away {
            let known = self.flights.all().get(&row.id).copied();
            let there = match known.and_then(|flight| flight.job) {
                Some(job) => self.carries(job, row.id).await?,
                // It runs since before the letter was put, so it has it still, or the
                // answer.
                None => stats.uptime >= self.dispatcher.now().since(row.updated_at),
            };
            if there {
                let until = row.updated_at + self.outside.timeout;
                let flight = InFlightLetter { job: None, since: Instant::now(), until };
                self.flights.all().entry(row.id).or_insert(flight);
            } else {
                lost.push(row);
            }
        }
        if !lost.is_empty() {
            tracing::info!(worker = %self.name, letters = lost.len(), "lost letters are put again");
        }
        let puts = join_all(lost.iter().map(|row| self.put(row))).await;
        for (row, put) in lost.into_iter().zip(puts) {
            self.was_put(row, put).await;
        }
        self.land_answered(ids).await;
        Ok(())
    }

    /// Forgets flights of letters that were answered while somebody looked after them.
    async fn land_answered(&self, ids: Vec<LetterId>) {
        for id in ids {
            let row = self.dispatcher.store().letter(id).await;
            if row.is_ok_and(|row| row.status.standing.name() != LetterState::Away) {
                self.flights.remove(id);
            }
        }
    }

    /// Whether a job is still there and is that letter's. Numbers are given anew by a
    /// beanstalkd that was wiped. One that was answered already is gone too: then the
    /// worker has it twice, which it can tell.
    async fn carries(&self, job: JobId, id: LetterId) -> Result<bool, BeanstalkdError> {
        let found = self.client.peek(job).await?;
        Ok(found.is_some_and(|job| named(&job.body) == Some(id)))
    }

    /// Takes letters back that were not answered in time.
    async fn take_back(&self) {
        let now = self.dispatcher.now();
        let late: Vec<(LetterId, InFlightLetter)> = {
            let all = self.flights.all();
            let late = all.iter().filter(|(_, flight)| flight.until <= now);
            late.map(|(id, flight)| (*id, *flight)).collect()
        };
        for (id, flight) in late {
            let untouched = match flight.job {
                Some(job) => self.withdraw(job, id).await,
                None => false,
            };
            self.flights.remove(id);
            let store = self.dispatcher.store();
            let Ok(row) = store.letter(id).await else { continue };
            if row.status.standing.name() != LetterState::Away {
                continue;
            }
            if untouched {
                let why = format!("nobody took it from {} in time", self.tube);
                self.is_down(row, &why).await;
            } else {
                self.dispatcher.figures().failed(&self.name, flight.since.elapsed());
                let why = "it did not answer in time";
                worker::failed(&self.dispatcher, &self.name, &self.outside, row, why).await;
            }
        }
    }

    /// Takes a job out of the tube. Says whether nobody had ever taken it.
    async fn withdraw(&self, job: JobId, id: LetterId) -> bool {
        let ours = self.carries(job, id).await.unwrap_or_default();
        if !ours {
            return false;
        }
        let stats = self.client.stats_job(job).await.ok().flatten();
        let reserves = stats.map_or(1, |stats| stats.reserves);
        // It may have been taken this moment; then its answer comes too late.
        let _ = self.client.delete(job).await;
        reserves == 0
    }
}

/// Where the answers of some workers come.
pub struct TubeResultReader {
    /// The tube's connection.
    pub taker: JobConsumer,
    /// The workers that answer there.
    pub desks: BTreeMap<WorkerName, (ExternalWorkerConfig, Arc<InFlightLetters>)>,
    /// Who takes the letters on.
    pub dispatcher: Arc<LetterDispatcher>,
}

impl TubeResultReader {
    /// Reads answers, until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut pause = Duration::from_millis(100);
        while !stop.is_cancelled() {
            let came = stop.run_until_cancelled(self.taker.reserve_some(ANSWERS, POLL)).await;
            match came {
                None => return,
                Some(Ok(jobs)) => {
                    pause = Duration::from_millis(100);
                    let next = tokio::time::Instant::now() + GATHER;
                    if self.file(jobs).await > 1 {
                        tokio::time::sleep_until(next).await;
                    }
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, "no answers");
                    let _ = stop.run_until_cancelled(tokio::time::sleep(pause)).await;
                    pause = (pause * 2).min(AGAIN);
                }
            }
        }
    }

    /// Files what is in some jobs. They are deleted once all of it is on record. Says how
    /// many answers there were.
    async fn file(&mut self, jobs: Vec<BeanstalkdJob>) -> usize {
        if jobs.is_empty() {
            return 0;
        }
        let answers: Vec<_> = jobs.iter().flat_map(|job| answers(&job.body)).collect();
        let mut done = true;
        for some in answers.chunks(ANSWERS) {
            done &= self.file_some(some).await;
        }
        let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
        // One that stays comes again, and finds its letters answered.
        let _ = match done {
            true => self.taker.delete(&ids).await,
            false => self.taker.release(&ids, 1024, AGAIN).await,
        };
        answers.len()
    }

    /// Files some answers. Says whether all of them are on record or never will be.
    async fn file_some(&self, bodies: &[&[u8]]) -> bool {
        let rows = join_all(bodies.iter().map(|body| self.asked(body))).await;
        let (mut answers, mut landing) = (Vec::new(), Vec::new());
        let mut done = true;
        for (body, row) in bodies.iter().zip(rows) {
            let row = match row {
                Ok(Some(row)) => row,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(%error, "an answer waits");
                    done = false;
                    continue;
                }
            };
            let Some((name, (outside, flights))) =
                row.worker.as_ref().and_then(|desk| self.desks.get_key_value(desk))
            else {
                continue;
            };
            let flight = flights.all().get(&row.id).copied();
            let took = flight.map_or(Duration::ZERO, |flight| flight.since.elapsed());
            let figures = self.dispatcher.figures();
            match worker::read(body, &row, name, outside) {
                Ok(opinion) => {
                    figures.said(name, opinion.verdict, took);
                    landing.push((Arc::clone(flights), row.id));
                    answers.push((name.clone(), row, opinion));
                }
                Err(why) => {
                    flights.remove(row.id);
                    figures.failed(name, took);
                    done &= worker::failed(&self.dispatcher, name, outside, row, &why).await;
                }
            }
        }
        if !answers.is_empty() {
            done &= worker::said(&self.dispatcher, answers).await;
        }
        // Not before it is on record: whoever looks after letters would take it for lost.
        for (flights, id) in landing {
            flights.remove(id);
        }
        done
    }

    /// The letter that an answer is to, when it is away at one of these workers.
    async fn asked(&self, body: &[u8]) -> Result<Option<LetterRow>, StoreError> {
        let Some(id) = named(body) else {
            let start = String::from_utf8_lossy(&body[..body.len().min(100)]);
            tracing::warn!(start = %start.escape_debug(), "an answer to no letter");
            return Ok(None);
        };
        let row = match self.dispatcher.store().letter(id).await {
            Err(StoreError::Missing { .. }) => return Ok(None),
            other => other?,
        };
        let Some(desk) = row.worker.as_ref().filter(|desk| self.desks.contains_key(*desk)) else {
            return Ok(None);
        };
        if row.status.standing.name() == LetterState::Away {
            return Ok(Some(row));
        }
        self.dispatcher.figures().late(desk);
        Ok(None)
    }
}

/// The answers in a job: one, or up to [`IN_A_JOB`] one behind the other, which saves a busy
/// worker a job for each. What is left then, or is no JSON, counts as one more.
fn answers(body: &[u8]) -> Vec<&[u8]> {
    let mut values = serde_json::Deserializer::from_slice(body).into_iter::<IgnoredAny>();
    let (mut answers, mut start) = (Vec::new(), 0);
    while answers.len() < IN_A_JOB
        && let Some(Ok(_)) = values.next()
    {
        answers.push(&body[start..values.byte_offset()]);
        start = values.byte_offset();
    }
    let rest = &body[start..];
    if answers.is_empty() || !rest.trim_ascii().is_empty() {
        answers.push(rest);
    }
    answers
}

/// The letter that a job names.
fn named(body: &[u8]) -> Option<LetterId> {
    #[derive(Deserialize)]
    struct NamedAnswer {
        id: LetterId,
    }
    serde_json::from_slice::<NamedAnswer>(body).ok().map(|named| named.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_one_answer_or_many() {
        for (body, want) in [
            (r#"{"id":"a"}"#, vec![r#"{"id":"a"}"#]),
            ("{\"id\":\n \"a\"}\n", vec!["{\"id\":\n \"a\"}"]),
            ("{\"id\":1}\n{\"id\":2}\n", vec![r#"{"id":1}"#, "\n{\"id\":2}"]),
            (r#"{"id":1}{"id":2}"#, vec![r#"{"id":1}"#, r#"{"id":2}"#]),
            // What is unreadable is somebody's answer all the same.
            (r#"{"id":1} oops {"id":2}"#, vec![r#"{"id":1}"#, r#" oops {"id":2}"#]),
            (r#"{"id":1}{"id":"#, vec![r#"{"id":1}"#, r#"{"id":"#]),
            ("rubbish", vec!["rubbish"]),
            ("  ", vec!["  "]),
            ("", vec![""]),
        ] {
            let found: Vec<_> = answers(body.as_bytes()).into_iter().map(<[u8]>::to_vec).collect();
            let want: Vec<_> = want.into_iter().map(|text| text.as_bytes().to_vec()).collect();
            assert_eq!(found, want, "{body:?}");
        }
        let many = "1\n".repeat(IN_A_JOB);
        assert_eq!(answers(many.as_bytes()).len(), IN_A_JOB);
        let more = answers(&[many.as_bytes(), many.as_bytes()].concat()).pop().unwrap().len();
        assert_eq!(more, many.len() + 1, "all that is too much is one");
    }
}
