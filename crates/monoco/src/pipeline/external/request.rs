//! Runs an external worker that answers each request: a command, an HTTP service or rspamd.

use std::sync::Arc;
use std::time::{Duration, Instant};

use monoco_adapters::egress::Egress;
use monoco_adapters::webhook::wire::Signer;
use monoco_core::letter::{LetterStateData, Verdict};
use monoco_store::{LetterRow, StoreError};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::worker::{ExternalWorker, WorkerBackoff, nonce};
use super::{AttemptResult, WorkerTransport, egress, exec, http, rspamd};

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
    client: Option<Egress>,
    signer: Option<Signer>,
}

impl RequestLoop {
    pub fn new(worker: ExternalWorker) -> Self {
        let client = egress(worker.config.timeout);
        if let Err(error) = &client {
            tracing::error!(worker = %worker.name, %error, "cannot build HTTP client of worker");
        }
        let signer = match &worker.config.transport {
            // The secret was checked when the config was read.
            WorkerTransport::Http(service) => http::signer(&service.secret).ok(),
            _ => None,
        };
        Self { worker, client: client.ok(), signer }
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
    async fn lease(&self, limit: usize) -> Result<Vec<LetterRow>, StoreError> {
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
        let result = match self.attempt(&row).await {
            AttemptResult::Answered(bytes) => worker.parse_answer(&bytes, &row),
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

    async fn attempt(&self, row: &LetterRow) -> AttemptResult {
        let timeout = self.worker.config.timeout;
        let no_client = || AttemptResult::Down("the HTTP client cannot be built".to_owned());
        match &self.worker.config.transport {
            WorkerTransport::Exec(command) => {
                let letter = self.worker.letter_json(row);
                exec::run_command(&command.command, command.memory, &letter, timeout).await
            }
            WorkerTransport::Http(service) => {
                let (Some(client), Some(signer)) = (&self.client, &self.signer) else {
                    return no_client();
                };
                let request = http::LetterRequest {
                    id: row.id,
                    nonce: nonce(row),
                    body: self.worker.letter_json(row),
                    now: self.worker.dispatcher.wall_clock(),
                };
                http::post_letter(client, &service.target, signer, request, timeout).await
            }
            WorkerTransport::Rspamd(filter) => {
                // The rules passed the letter when it was handed over. They may have changed
                // since, and their findings become part of the letter.
                let ruled = filter.rules.apply(&row.letter);
                if ruled.verdict == Verdict::Trash {
                    return AttemptResult::Decided(ruled);
                }
                let letter = ruled.letter.as_ref().unwrap_or(&row.letter);
                let Some(client) = &self.client else { return no_client() };
                rspamd::check(client, filter, letter, row.id, timeout).await
            }
            WorkerTransport::Tube(_) => {
                AttemptResult::Down("a tube worker takes no requests".to_owned())
            }
        }
    }
}
