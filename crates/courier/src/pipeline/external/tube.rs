//! Runs external workers that reserve letters from a beanstalkd tube, and reads their answers
//! from a results tube.
//!
//! The store knows which letters a worker has; beanstalkd only carries them. A lost job is put
//! again when the connection is back, and a letter that was not reserved or answered in time is
//! retried like that of any other worker.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use monoco_core::config::InvalidConfig;
use monoco_core::letter::{LetterId, LetterState, WorkerName};
use monoco_core::time::Timestamp;
use monoco_store::{LetterRow, NextAction, StoreError, StoreResult};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::worker::{ExternalWorker, WorkerBackoff, nonce, parse_answer, record_results};
use super::{ExternalWorkerConfig, WhenDown, WorkerTransport};
use crate::pipeline::beanstalkd::{
    BeanstalkdAddress, BeanstalkdClient, BeanstalkdError, BeanstalkdJob, JobConsumer, JobId,
    PutOptions, TubeName,
};
use crate::pipeline::config::QueueKind;
use crate::pipeline::dispatcher::LetterDispatcher;
use crate::pipeline::queue::{JOB_PRIORITY, LETTERS_TUBE};
use crate::pipeline::workers::{Worker, WorkerKind, WorkerSection, changed, downcast};

pub const KIND: WorkerKind = WorkerKind {
    name: "beanstalkd",
    built_in: false,
    keys: &[
        "server",
        "tube",
        "results",
        "in_flight",
        "timeout_s",
        "retries",
        "when_down",
        "readdress",
    ],
    parse,
};

const DEFAULT_SERVER: &str = "beanstalkd://127.0.0.1:11300";
const DEFAULT_RESULTS_TUBE: &str = "monoco.results";

/// How long letters and answers are gathered for one commit when there is more than one. A
/// commit of ten costs about as much as a commit of one, and both the store and beanstalkd may
/// sync the same disk.
const GATHER_TIME: Duration = Duration::from_millis(20);

/// How often letters and answers are polled when no hint arrives.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// How much longer than the timeout a worker may hold a job.
const JOB_GRACE: Duration = Duration::from_secs(5);

/// First and longest pause before answers are read again after an error.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Maximum number of answers per commit, and of result jobs that are reserved together.
const MAX_ANSWERS_PER_COMMIT: usize = 256;

/// Maximum number of answers in one job.
const MAX_ANSWERS_PER_JOB: usize = 1_000;

/// A tube of letters, and one of answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TubeTransport {
    pub server: BeanstalkdAddress,
    pub tube: TubeName,
    pub results: TubeName,
}

fn parse(section: &WorkerSection<'_>) -> Result<Arc<dyn Worker>, InvalidConfig> {
    let keys = &section.keys;
    let server = match (keys.parsed("server")?, section.queue) {
        (Some(server), _) => server,
        (None, QueueKind::Beanstalkd(server)) => server.clone(),
        (None, QueueKind::Store) => DEFAULT_SERVER.parse().expect("the default server is valid"),
    };
    let tube = |key: &str, default: &str| {
        let tube: Option<TubeName> = keys.parsed(key)?;
        let tube = match tube {
            Some(tube) => tube,
            None => default.parse().map_err(|error| keys.invalid_key(key, format!("{error}")))?,
        };
        if tube.as_str() == LETTERS_TUBE {
            let why = format!("{LETTERS_TUBE} is the tube of the dispatcher; use another one");
            return Err(keys.invalid_key(key, why));
        }
        Ok(tube)
    };
    let results = tube("results", DEFAULT_RESULTS_TUBE)?;
    let tube = tube("tube", &format!("monoco.worker.{}", section.name))?;
    let in_flight = keys.number_or("in_flight", 1..=10_000, 1_000)?;
    let transport = WorkerTransport::Tube(TubeTransport { server, tube, results });
    ExternalWorkerConfig::parse(keys, transport, in_flight)
}

impl TubeTransport {
    pub fn changed_keys(&self, new: &Self) -> Vec<&'static str> {
        changed(&[
            ("server", self.server != new.server),
            ("tube", self.tube != new.tube),
            ("results", self.results != new.results),
        ])
    }
}

/// Checks that every worker has a tube of its own, which is not used for answers: a job does
/// not say which worker it is for.
///
/// # Errors
///
/// Names the second user of a tube.
pub fn check_tubes(
    path: &str,
    workers: &BTreeMap<WorkerName, Arc<dyn Worker>>,
) -> Result<(), InvalidConfig> {
    let mut used: BTreeMap<(&BeanstalkdAddress, &TubeName), &WorkerName> = BTreeMap::new();
    let mut answers: BTreeMap<(&BeanstalkdAddress, &TubeName), &WorkerName> = BTreeMap::new();
    for (name, worker) in workers {
        let Some(config) = downcast::<ExternalWorkerConfig>(&**worker) else { continue };
        let WorkerTransport::Tube(transport) = &config.transport else { continue };
        let TubeTransport { server, tube, results } = transport;
        answers.entry((server, results)).or_insert(name);
        if let Some(other) = used.insert((server, tube), name) {
            let why = format!("{tube} is already the tube of worker {other}; use another one");
            return Err(InvalidConfig::at(format!("{path}.{name}.tube"), why));
        }
    }
    match used.iter().find(|(tube, _)| answers.contains_key(tube)) {
        None => Ok(()),
        Some((tube, name)) => {
            let why = format!(
                "{} is the results tube of worker {}; use another one",
                tube.1, answers[tube]
            );
            Err(InvalidConfig::at(format!("{path}.{name}.tube"), why))
        }
    }
}

/// Puts letters of one worker into its tube and watches them.
pub struct TubeLoop {
    pub worker: ExternalWorker,
    pub tube: TubeName,
    pub client: BeanstalkdClient,
    pub in_flight: Arc<InFlightLetters>,
}

/// The letters that one worker has.
#[derive(Default)]
pub struct InFlightLetters {
    letters: Mutex<HashMap<LetterId, InFlightLetter>>,
    removed: Notify,
}

#[derive(Clone, Copy)]
struct InFlightLetter {
    /// `None` while the job is being put, and when an earlier process has put it.
    job: Option<JobId>,
    since: Instant,
    until: Timestamp,
    /// Whether an answer was rejected because of its nonce.
    rejected: bool,
}

impl InFlightLetters {
    fn lock(&self) -> MutexGuard<'_, HashMap<LetterId, InFlightLetter>> {
        // No code panics while it holds the lock.
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, id: LetterId) {
        self.lock().remove(&id);
        self.removed.notify_one();
    }
}

impl TubeLoop {
    pub async fn run(self, stop: CancellationToken) {
        let mut hints = self.worker.dispatcher.store().newest_letter();
        let mut connections = self.client.connections();
        let mut backoff = WorkerBackoff::default();
        // Letters of an earlier process are checked like those of an earlier connection.
        let mut unchecked = true;
        let mut last_request = Instant::now();
        while !stop.is_cancelled() {
            let next = tokio::time::Instant::now() + GATHER_TIME;
            // A connection is only made by a request. Without this one, a lost connection would
            // be noticed only when the letters are late.
            if last_request.elapsed() >= POLL_INTERVAL && !self.in_flight.lock().is_empty() {
                last_request = Instant::now();
                let _ = self.client.stats().await;
            }
            if unchecked || connections.has_changed().unwrap_or_default() {
                connections.mark_unchanged();
                unchecked = self.put_lost_letters().await.is_err();
            }
            let mut wait = POLL_INTERVAL;
            match backoff.remaining() {
                Some(pause) => wait = wait.min(pause),
                None => match self.put_due_letters(backoff.is_up()).await {
                    Ok(Some(accepted)) => backoff.record(!accepted),
                    Ok(None) => {}
                    Err(error) => {
                        let worker = &self.worker.name;
                        tracing::warn!(%worker, %error, "cannot lease letters for worker");
                    }
                },
            }
            self.fail_late_letters().await;
            tokio::select! {
                changed = hints.changed() => if changed.is_err() { return },
                () = self.in_flight.removed.notified() => {}
                _ = connections.changed() => connections.mark_changed(),
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => {}
            }
            if self.in_flight.lock().len() > 1 {
                tokio::time::sleep_until(next).await;
            }
        }
    }

    /// Puts letters that are due into the tube. Returns whether beanstalkd accepted all of
    /// them, `None` when there were none.
    async fn put_due_letters(&self, up: bool) -> StoreResult<Option<bool>> {
        let free = self.worker.config.parallel.saturating_sub(self.in_flight.lock().len());
        // A server that was down is tried with a single letter.
        let free = if up { free } else { free.min(1) };
        if free == 0 {
            return Ok(None);
        }
        let rows = self.worker.lease(free).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        if let Some(why) = self.unwatched().await {
            for row in rows {
                self.worker.report_down(row, &why).await;
            }
            return Ok(Some(false));
        }
        let puts = join_all(rows.iter().map(|row| self.put(row))).await;
        let mut accepted = true;
        for (row, put) in rows.into_iter().zip(puts) {
            accepted &= self.record_put(row, put).await;
        }
        Ok(Some(accepted))
    }

    /// Returns why the worker counts as down when no connection watches its tube. With
    /// `when_down: hold`, letters wait in the tube instead.
    async fn unwatched(&self) -> Option<String> {
        if self.worker.config.when_down == WhenDown::Hold {
            return None;
        }
        let stats = self.client.stats_tube(&self.tube).await.ok()?;
        let watching = stats.map_or(0, |stats| stats.watching);
        (watching == 0).then(|| format!("no worker watches {}", self.tube))
    }

    async fn put(&self, row: &LetterRow) -> Result<JobId, BeanstalkdError> {
        // Inserted before the put: the answer may be recorded before the job id is known.
        let until = self.worker.dispatcher.now() + self.worker.config.timeout;
        let letter = InFlightLetter { job: None, since: Instant::now(), until, rejected: false };
        self.in_flight.lock().insert(row.id, letter);
        let request = self.worker.request(row, &nonce(row)).to_json(&row.verdicts);
        let body = request.to_string().into_bytes();
        let ttr = self.worker.config.timeout + JOB_GRACE;
        let job = PutOptions { body, priority: JOB_PRIORITY, delay: Duration::ZERO, ttr };
        self.client.put(&self.tube, job).await
    }

    /// Records the job of a letter, or that it could not be put. Returns whether beanstalkd
    /// is up.
    async fn record_put(&self, row: LetterRow, put: Result<JobId, BeanstalkdError>) -> bool {
        if put.is_err() {
            self.in_flight.lock().remove(&row.id);
        }
        match put {
            Ok(job) => {
                if let Some(letter) = self.in_flight.lock().get_mut(&row.id) {
                    letter.job = Some(job);
                }
                true
            }
            Err(error @ BeanstalkdError::TooBig { .. }) => {
                let name = &self.worker.name;
                let why = format!("{name}: {error}; raise the limit with `beanstalkd -z`");
                self.worker.dispatcher.metrics().record_failure(name, Duration::ZERO);
                self.worker.step(&row, NextAction::MarkDead { why }).await;
                true
            }
            Err(error) => {
                self.worker.report_down(row, &error.to_string()).await;
                false
            }
        }
    }

    /// Puts the letters again whose jobs were lost with a connection.
    async fn put_lost_letters(&self) -> Result<(), BeanstalkdError> {
        let dispatcher = &self.worker.dispatcher;
        let (name, config) = (&self.worker.name, &self.worker.config);
        let stats = self.client.stats().await?;
        let away = dispatcher.store().away_letters(name, config.parallel).await;
        let away = away.map_err(|error| BeanstalkdError::Down(error.to_string()))?;
        let ids: Vec<_> = away.iter().map(|row| row.id).collect();
        let mut lost = Vec::new();
        for row in away {
            let known = self.in_flight.lock().get(&row.id).copied();
            let exists = match known.and_then(|letter| letter.job) {
                Some(job) => self.job_has_letter(job, row.id).await?,
                // A server that was started before the letter was put has the job or the
                // answer.
                None => stats.uptime >= dispatcher.now().since(row.updated_at),
            };
            if exists {
                let until = row.updated_at + config.timeout;
                let letter =
                    InFlightLetter { job: None, since: Instant::now(), until, rejected: false };
                self.in_flight.lock().entry(row.id).or_insert(letter);
            } else {
                lost.push(row);
            }
        }
        if !lost.is_empty() {
            tracing::info!(worker = %name, letters = lost.len(), "putting lost letters again");
        }
        let puts = join_all(lost.iter().map(|row| self.put(row))).await;
        for (row, put) in lost.into_iter().zip(puts) {
            self.record_put(row, put).await;
        }
        self.remove_answered(ids).await;
        Ok(())
    }

    /// Removes letters that were answered while they were checked.
    async fn remove_answered(&self, ids: Vec<LetterId>) {
        for id in ids {
            let row = self.worker.dispatcher.store().letter(id).await;
            if row.is_ok_and(|row| row.status.standing.name() != LetterState::Away) {
                self.in_flight.remove(id);
            }
        }
    }

    /// Tells whether a job exists and contains this letter: a server that lost its data assigns
    /// the same ids again. An answered job is gone, too; then the worker gets the letter twice,
    /// which it can detect by the letter id.
    async fn job_has_letter(&self, job: JobId, id: LetterId) -> Result<bool, BeanstalkdError> {
        let found = self.client.peek(job).await?;
        Ok(found
            .is_some_and(|job| answered_letter(&job.body).is_some_and(|letter| letter.id == id)))
    }

    /// Takes letters back that were not answered in time.
    async fn fail_late_letters(&self) {
        let now = self.worker.dispatcher.now();
        let late: Vec<(LetterId, InFlightLetter)> = {
            let letters = self.in_flight.lock();
            let late = letters.iter().filter(|(_, letter)| letter.until <= now);
            late.map(|(id, letter)| (*id, *letter)).collect()
        };
        for (id, letter) in late {
            let never_reserved = match letter.job {
                Some(job) => self.withdraw(job, id).await,
                None => false,
            };
            self.in_flight.remove(id);
            let Ok(row) = self.worker.dispatcher.store().letter(id).await else { continue };
            if row.status.standing.name() != LetterState::Away {
                continue;
            }
            if never_reserved {
                let why = format!("no worker reserved the letter from {} in time", self.tube);
                self.worker.report_down(row, &why).await;
            } else {
                let metrics = self.worker.dispatcher.metrics();
                metrics.record_failure(&self.worker.name, letter.since.elapsed());
                let why = match letter.rejected {
                    true => "no answer in time; an answer without the current `nonce` was rejected",
                    false => "no answer in time",
                };
                self.worker.fail(row, why).await;
            }
        }
    }

    /// Deletes a job. Returns whether it was never reserved.
    async fn withdraw(&self, job: JobId, id: LetterId) -> bool {
        if !self.job_has_letter(job, id).await.unwrap_or_default() {
            return false;
        }
        let stats = self.client.stats_job(job).await.ok().flatten();
        let reserves = stats.map_or(1, |stats| stats.reserves);
        // It may be reserved at this moment; then its answer is late.
        let _ = self.client.delete(job).await;
        reserves == 0
    }
}

/// Reads a results tube, which several workers may share.
pub struct TubeResultReader {
    pub consumer: JobConsumer,
    pub workers: BTreeMap<WorkerName, (ExternalWorker, Arc<InFlightLetters>)>,
    pub dispatcher: Arc<LetterDispatcher>,
}

impl TubeResultReader {
    pub async fn run(mut self, stop: CancellationToken) {
        let mut delay = FIRST_RETRY_DELAY;
        while !stop.is_cancelled() {
            let reserve = self.consumer.reserve_some(MAX_ANSWERS_PER_COMMIT, POLL_INTERVAL);
            match stop.run_until_cancelled(reserve).await {
                None => return,
                Some(Ok(jobs)) => {
                    delay = FIRST_RETRY_DELAY;
                    let next = tokio::time::Instant::now() + GATHER_TIME;
                    if self.record_jobs(jobs).await > 1 {
                        tokio::time::sleep_until(next).await;
                    }
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, "cannot reserve worker answers");
                    let _ = stop.run_until_cancelled(tokio::time::sleep(delay)).await;
                    delay = (delay * 2).min(RETRY_DELAY);
                }
            }
        }
    }

    /// Records the answers in some jobs and deletes the jobs, or releases them when an answer
    /// could not be recorded. Returns the number of answers.
    async fn record_jobs(&mut self, jobs: Vec<BeanstalkdJob>) -> usize {
        if jobs.is_empty() {
            return 0;
        }
        let answers: Vec<_> = jobs.iter().flat_map(|job| split_answers(&job.body)).collect();
        let mut settled = true;
        for chunk in answers.chunks(MAX_ANSWERS_PER_COMMIT) {
            settled &= self.record_answers(chunk).await;
        }
        let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
        // A job that could not be deleted comes again; its letters are answered by then.
        let _ = match settled {
            true => self.consumer.delete(&ids).await,
            false => self.consumer.release(&ids, JOB_PRIORITY, RETRY_DELAY).await,
        };
        answers.len()
    }

    /// Records answers. Returns whether all are recorded or never can be.
    async fn record_answers(&self, bodies: &[&[u8]]) -> bool {
        let rows = join_all(bodies.iter().map(|body| self.find_letter(body))).await;
        let (mut results, mut answered) = (Vec::new(), Vec::new());
        let mut settled = true;
        for (body, row) in bodies.iter().zip(rows) {
            let row = match row {
                Ok(Some(row)) => row,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(%error, "cannot read the letter of a worker answer");
                    settled = false;
                    continue;
                }
            };
            let Some((worker, in_flight)) =
                row.worker.as_ref().and_then(|name| self.workers.get(name))
            else {
                continue;
            };
            let letter = in_flight.lock().get(&row.id).copied();
            let elapsed = letter.map_or(Duration::ZERO, |letter| letter.since.elapsed());
            let metrics = self.dispatcher.metrics();
            match parse_answer(&worker.request(&row, &nonce(&row)), body) {
                Ok(result) => {
                    metrics.record_verdict(&worker.name, result.verdict, elapsed);
                    answered.push((Arc::clone(in_flight), row.id));
                    results.push((worker.name.clone(), row, result));
                }
                Err(why) => {
                    in_flight.remove(row.id);
                    metrics.record_failure(&worker.name, elapsed);
                    settled &= worker.fail(row, &why).await;
                }
            }
        }
        if !results.is_empty() {
            settled &= record_results(&self.dispatcher, results).await;
        }
        // Removed only after the commit: before it, the letter would be taken for a lost one.
        for (in_flight, id) in answered {
            in_flight.remove(id);
        }
        settled
    }

    /// Returns the letter that an answer belongs to, `None` when no worker of this tube has it
    /// or when the answer belongs to another attempt. Such an answer does not count as a failed
    /// attempt: it may be a repeated answer of an earlier worker of the chain.
    async fn find_letter(&self, body: &[u8]) -> StoreResult<Option<LetterRow>> {
        let Some(AnsweredLetter { id, nonce: answered }) = answered_letter(body) else {
            let start = String::from_utf8_lossy(&body[..body.len().min(100)]);
            tracing::warn!(start = %start.escape_debug(), "worker answer names no letter");
            return Ok(None);
        };
        let row = match self.dispatcher.store().letter(id).await {
            Err(StoreError::Missing { .. }) => return Ok(None),
            other => other?,
        };
        let Some(worker) = &row.worker else { return Ok(None) };
        let Some((_, in_flight)) = self.workers.get(worker) else { return Ok(None) };
        let away = row.status.standing.name() == LetterState::Away;
        if away && answered.as_str() == Some(&nonce(&row)) {
            return Ok(Some(row));
        }
        self.dispatcher.metrics().record_rejected_answer(worker);
        if away {
            tracing::warn!(letter = %id, %worker, "worker answer lacks the nonce of this attempt");
            if let Some(letter) = in_flight.lock().get_mut(&id) {
                letter.rejected = true;
            }
        }
        Ok(None)
    }
}

/// Splits the body of a job into its answers: concatenated JSON values, so that a busy worker
/// can return many with one job. The rest after `MAX_ANSWERS_PER_JOB` values or after invalid
/// JSON counts as one more answer.
pub fn split_answers(body: &[u8]) -> Vec<&[u8]> {
    let mut values = serde_json::Deserializer::from_slice(body).into_iter::<IgnoredAny>();
    let (mut answers, mut start) = (Vec::new(), 0);
    while answers.len() < MAX_ANSWERS_PER_JOB
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

/// The letter and the attempt that a job belongs to.
#[derive(Deserialize)]
pub struct AnsweredLetter {
    pub id: LetterId,
    #[serde(default)]
    nonce: Value,
}

/// Returns the letter of an answer, `None` when it names none.
pub fn answered_letter(body: &[u8]) -> Option<AnsweredLetter> {
    serde_json::from_slice(body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_may_contain_several_answers() {
        for (body, want) in [
            (r#"{"id":"a"}"#, vec![r#"{"id":"a"}"#]),
            ("{\"id\":\n \"a\"}\n", vec!["{\"id\":\n \"a\"}"]),
            ("{\"id\":1}\n{\"id\":2}\n", vec![r#"{"id":1}"#, "\n{\"id\":2}"]),
            (r#"{"id":1}{"id":2}"#, vec![r#"{"id":1}"#, r#"{"id":2}"#]),
            // An answer that is not JSON is reported as one.
            (r#"{"id":1} oops {"id":2}"#, vec![r#"{"id":1}"#, r#" oops {"id":2}"#]),
            (r#"{"id":1}{"id":"#, vec![r#"{"id":1}"#, r#"{"id":"#]),
            ("rubbish", vec!["rubbish"]),
            ("  ", vec!["  "]),
            ("", vec![""]),
        ] {
            let found: Vec<_> =
                split_answers(body.as_bytes()).into_iter().map(<[u8]>::to_vec).collect();
            let want: Vec<_> = want.into_iter().map(|text| text.as_bytes().to_vec()).collect();
            assert_eq!(found, want, "{body:?}");
        }
        let many = "1\n".repeat(MAX_ANSWERS_PER_JOB);
        assert_eq!(split_answers(many.as_bytes()).len(), MAX_ANSWERS_PER_JOB);
        let more = split_answers(&[many.as_bytes(), many.as_bytes()].concat()).pop().unwrap().len();
        assert_eq!(more, many.len() + 1, "the rest is one answer");
    }
}
