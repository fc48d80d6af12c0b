//! Runs an external worker that answers each request: a command, an HTTP service or rspamd.

use std::sync::Arc;
use std::time::{Duration, Instant};

use monoco_adapters::egress::Egress;
use monoco_adapters::webhook::wire::Signer;
use monoco_core::letter::{LetterStateData, Verdict, WorkerName, WorkerRequest, WorkerVerdict};
use monoco_core::time::Timestamp;
use monoco_store::{LetterRow, StoreResult};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::worker::{ExternalWorker, WorkerBackoff, nonce, parse_answer};
use super::{
    Attempt, AttemptResult, ExternalWorkerConfig, WorkerTransport, egress, exec, http, rspamd,
};

/// How often letters are polled when no hint arrives.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Shortest wait for letters that are due and could not be leased.
const MIN_WAIT: Duration = Duration::from_millis(50);

/// How long after its timeout an attempt of another process is given up.
const LATE_AFTER: Duration = Duration::from_secs(5);

/// Gives letters to one worker, up to `parallel` at the same time.
#[derive(Clone)]
pub struct RequestLoop {
    worker: ExternalWorker,
    transport: RequestTransport,
}

/// Makes single attempts of a worker.
#[derive(Clone)]
pub struct RequestTransport {
    config: ExternalWorkerConfig,
    client: Option<Egress>,
    signer: Option<Signer>,
}

impl RequestLoop {
    pub fn new(worker: ExternalWorker) -> Self {
        let transport = RequestTransport::new(&worker.name, worker.config.clone());
        Self { worker, transport }
    }

    /// Runs until `stop`. Attempts in progress are finished.
    pub async fn run(self, stop: CancellationToken) {
        let this = Arc::new(self);
        let mut hints = this.worker.dispatcher.store().newest_letter();
        let mut attempts: JoinSet<bool> = JoinSet::new();
        let mut backoff = WorkerBackoff::default();
        loop {
            if stop.is_cancelled() {
                while attempts.join_next().await.is_some() {}
                return;
            }
            let mut wait = POLL_INTERVAL;
            if let Some(pause) = backoff.remaining() {
                wait = wait.min(pause);
            } else {
                // A worker that was down is tried with a single letter first.
                let limit = if backoff.is_up() { this.worker.config.parallel } else { 1 };
                let free = limit.saturating_sub(attempts.len());
                match this.lease(free).await {
                    Ok(leased) => {
                        for row in leased {
                            let this = Arc::clone(&this);
                            attempts.spawn(async move { this.process(row).await });
                        }
                    }
                    Err(error) => {
                        let worker = &this.worker.name;
                        tracing::warn!(%worker, %error, "cannot lease letters for worker");
                    }
                }
                if free > 0 {
                    wait = wait.min(this.next_due().await);
                }
            }
            tokio::select! {
                Some(reached) = attempts.join_next() => backoff.record(!reached.unwrap_or(true)),
                changed = hints.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    async fn next_due(&self) -> Duration {
        let dispatcher = &self.worker.dispatcher;
        let due = dispatcher.store().next_letter(Some(&self.worker.name)).await.ok().flatten();
        due.map_or(POLL_INTERVAL, |due| due.since(dispatcher.now()).max(MIN_WAIT))
    }

    /// Leases letters that are due, and fails those of interrupted attempts.
    async fn lease(&self, limit: usize) -> StoreResult<Vec<LetterRow>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let (worker, now) = (&self.worker, self.worker.dispatcher.now());
        let store = worker.dispatcher.store();
        let is_late = |row: &LetterRow| {
            matches!(row.status.standing,
                LetterStateData::Away { until } if until + LATE_AFTER <= now)
        };
        let away = store.away_letters(&worker.name, worker.config.parallel).await?;
        for row in away.into_iter().filter(is_late) {
            worker.fail(row, "no answer in time").await;
        }
        worker.lease(limit).await
    }

    /// Makes one attempt and records its result. Returns whether the worker was reached.
    async fn process(&self, row: LetterRow) -> bool {
        let (worker, started) = (&self.worker, Instant::now());
        let (nonce, now) = (nonce(&row), worker.dispatcher.wall_clock());
        let request = worker.request(&row, &nonce);
        let result = match self.transport.attempt(&request, &row.verdicts, now).await.result {
            AttemptResult::Answered(bytes) => parse_answer(&request, &bytes),
            AttemptResult::Decided(result) => Ok(result),
            AttemptResult::Failed(why) => Err(why),
            AttemptResult::Down(why) => {
                worker.report_down(row, &why).await;
                return false;
            }
        };
        let metrics = worker.dispatcher.metrics();
        match result {
            Ok(result) => {
                metrics.record_verdict(&worker.name, result.verdict, started.elapsed());
                worker.complete(row, result).await;
            }
            Err(why) => {
                metrics.record_failure(&worker.name, started.elapsed());
                worker.fail(row, &why).await;
            }
        }
        true
    }
}

impl RequestTransport {
    pub fn new(name: &WorkerName, config: ExternalWorkerConfig) -> Self {
        let client = egress(config.timeout);
        if let Err(error) = &client {
            tracing::error!(worker = %name, %error, "cannot build HTTP client of worker");
        }
        let signer = match &config.transport {
            // The secret was checked when the config was read.
            WorkerTransport::Http(service) => http::signer(&service.secret).ok(),
            _ => None,
        };
        Self { config, client: client.ok(), signer }
    }

    /// Sends a letter to the worker and returns its response. `had` are the verdicts so far,
    /// `now` is the time of the machine's clock.
    pub async fn attempt(
        &self,
        request: &WorkerRequest<'_>,
        had: &[WorkerVerdict],
        now: Timestamp,
    ) -> Attempt {
        let timeout = self.config.timeout;
        let no_client = || AttemptResult::Down("the HTTP client cannot be built".to_owned()).into();
        let body = || request.to_json(had).to_string().into_bytes();
        match &self.config.transport {
            WorkerTransport::Exec(command) => {
                exec::run_command(&command.command, command.memory, &body(), timeout).await
            }
            WorkerTransport::Http(service) => {
                let (Some(client), Some(signer)) = (&self.client, &self.signer) else {
                    return no_client();
                };
                let nonce = request.nonce.to_owned();
                let letter = http::LetterRequest { id: request.id, nonce, body: body(), now };
                http::post_letter(client, &service.target, signer, letter, timeout).await.into()
            }
            WorkerTransport::Rspamd(filter) => {
                // The rules passed the letter when it was handed over. They may have changed
                // since, and their findings become part of the letter.
                let ruled = filter.rules.apply(request.letter);
                if ruled.verdict == Verdict::Trash {
                    return AttemptResult::Decided(ruled).into();
                }
                let letter = ruled.letter.as_ref().unwrap_or(request.letter);
                let Some(client) = &self.client else { return no_client() };
                rspamd::check(client, filter, letter, request.id, timeout).await.into()
            }
            WorkerTransport::Tube(_) => {
                AttemptResult::Down("a tube worker takes no requests".to_owned()).into()
            }
        }
    }
}
