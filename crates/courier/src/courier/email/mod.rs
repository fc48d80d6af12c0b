//! Processes the mails of one e-mail tunnel: each becomes a message of the hub, and is forwarded
//! to the addresses that the rules of the tunnel name.
//!
//! The listener of the tunnel registers mails; this loop takes their tasks, oldest first, also
//! those that an earlier run did not finish. Every step can be repeated: the message has the
//! external id of the mail, and the forward has an idempotency key of its own. So a crash between
//! two steps neither loses nor doubles anything.
//!
//! * `read_mail`: parses a mail and decides what happens to it.
//! * `mail_memory`: limits the memory of the mails that are being processed.
//! * `delivery_reports`: applies reports of other servers to deliveries.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use monoco_adapters::email::config::EmailConfig;
use monoco_core::approval::SendOrigin;
use monoco_core::did::TunnelId;
use monoco_core::email::ScanReport;
use monoco_core::email::directory::Directory;
use monoco_core::email::rounds::LastRound;
use monoco_core::email::task::{EmailTask, EmailTaskId, TaskOutcome};
use monoco_core::lease::{Holder, LeaseDuration};
use monoco_core::object::MsgObject;
use monoco_core::retry::Failure;
use monoco_store::{SendRequest, SendResult, SharedStore, StartedTask, StoreError};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::inbound::store_requests;
use super::tunnels::RunningTunnel;
use crate::background::{self, BackgroundTask, NextStep};
use crate::center::{PipelineEntry, post_send};
use crate::clock::Clock;

mod delivery_reports;
mod mail_memory;
mod read_mail;

pub use mail_memory::MailMemory;
use mail_memory::{BATCH_BYTES, MailRoom};
use read_mail::{MailReadError, MailReader, ReadMail};

/// How many tasks one step processes.
const TASKS_PER_STEP: usize = 256;

/// Length of the lease of a task. Longer than the processing of 256 mails.
const LEASE_SECS: i64 = 300;

/// How often the loop looks for due tasks and for ended deliveries without a hint.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// How many mails of a step are parsed at the same time. More would not be faster on most
/// machines, and the allocator keeps memory for every thread that has parsed a mail.
const PARALLEL_PARSES: usize = 2;

/// How many forwards one step settles.
const FORWARDS_PER_STEP: usize = 200;

/// The task loop of one tunnel.
pub struct EmailTaskLoop {
    store: SharedStore,
    clock: Clock,
    entry: PipelineEntry,
    tunnel: Arc<RunningTunnel>,
    holder: Holder,
    memory: MailMemory,
    /// Tasks that a failing store has interrupted. They are processed again when it works: the
    /// mails are not the reason, so that no attempt is used up.
    interrupted: Vec<EmailTask>,
    new_tasks: watch::Receiver<u64>,
    scans: watch::Receiver<u64>,
    round: Round,
}

/// What was done since the last stored round.
struct Round {
    report: ScanReport,
    /// Time of the steps.
    elapsed: Duration,
    last: LastRound,
    /// The numbers of registered mails and copies at the start of the round; `None` before the
    /// first step.
    registered: Option<(i64, i64)>,
}

impl BackgroundTask for EmailTaskLoop {
    const NAME: &'static str = "e-mail tasks";
    type Error = StoreError;

    async fn step(&mut self) -> Result<NextStep, StoreError> {
        self.new_tasks.borrow_and_update();
        self.scans.borrow_and_update();
        let started = Instant::now();
        if !self.tunnel.is_active() {
            return Ok(NextStep::Poll(POLL_INTERVAL));
        }
        let id = self.tunnel.adapter.id().clone();
        if self.round.registered.is_none() {
            self.round.registered = Some(self.registered().await?);
        }
        let settled = self.store.settle_forwards(&id, FORWARDS_PER_STEP, self.clock.now()).await?;
        self.round.report.forwarded += settled.forwarded as u64;
        self.round.report.failed += settled.failed as u64;
        self.round.report.retried += settled.retried as u64;
        self.round.report.skipped += settled.skipped as u64;
        let room = self.memory.reserve(BATCH_BYTES).await;
        let tasks = self.next_tasks(&id).await?;
        if !tasks.is_empty() {
            let _room = self.room_for(&tasks, room).await;
            let known: Vec<_> = tasks.iter().map(|started| started.task.clone()).collect();
            let processed = self.process(tasks).await;
            if processed.as_ref().is_err_and(is_failing_store) {
                self.interrupted = known;
            }
            self.round.elapsed += started.elapsed();
            return processed.map(|()| NextStep::Now);
        }
        drop(room);
        self.round.elapsed += started.elapsed();
        self.end_round().await?;
        let due = self.store.next_task(&id).await?;
        let wait = due.map_or(POLL_INTERVAL, |due| due.since(self.clock.now()));
        Ok(NextStep::Poll(wait.clamp(Duration::from_millis(10), POLL_INTERVAL)))
    }

    async fn hint(&mut self) {
        tokio::select! {
            () = background::changed(&mut self.new_tasks) => {}
            () = background::changed(&mut self.scans) => {}
        }
    }
}

impl EmailTaskLoop {
    pub fn new(
        store: SharedStore,
        clock: Clock,
        entry: PipelineEntry,
        tunnel: Arc<RunningTunnel>,
        holder: Holder,
        memory: MailMemory,
    ) -> Self {
        let (new_tasks, scans) = (store.newest_email_task(), tunnel.scans());
        let round = Round {
            report: ScanReport::default(),
            elapsed: Duration::ZERO,
            last: LastRound::default(),
            registered: None,
        };
        let interrupted = Vec::new();
        Self { store, clock, entry, tunnel, holder, memory, interrupted, new_tasks, scans, round }
    }

    /// Processes tasks until `stop`. Tasks that have been started are finished.
    pub async fn run(mut self, stop: CancellationToken) {
        background::run(&mut self, &stop).await;
    }

    /// Starts the tasks of a step, or returns those that were interrupted.
    async fn next_tasks(&mut self, id: &TunnelId) -> Result<Vec<StartedTask>, StoreError> {
        if self.interrupted.is_empty() {
            let term = LeaseDuration::from_secs(LEASE_SECS).unwrap_or(LeaseDuration::DEFAULT);
            let (holder, now) = (self.holder.clone(), self.clock.now());
            return self.store.start_tasks(id, holder, term, TASKS_PER_STEP, now).await;
        }
        let mut tasks = Vec::with_capacity(self.interrupted.len());
        for task in &self.interrupted {
            match self.store.raw_mail(task.id).await {
                Ok(raw) => tasks.push(StartedTask { task: task.clone(), raw }),
                Err(error) if is_failing_store(&error) => return Err(error),
                // Its lease expires, and the next attempt finds out what is wrong.
                Err(error) => tracing::warn!(task = %task.id, %error, "cannot read mail again"),
            }
        }
        self.interrupted.clear();
        Ok(tasks)
    }

    /// Returns room for all mails of the tasks: `room`, which is enough for a batch, or more for
    /// one large mail. Its bytes are not in memory yet.
    async fn room_for(&self, tasks: &[StartedTask], room: MailRoom) -> MailRoom {
        let whole = tasks.iter().filter(|started| started.task.cut.is_none());
        let bytes: u64 = whole.map(|started| started.task.size).sum();
        if bytes <= BATCH_BYTES {
            return room;
        }
        drop(room);
        self.memory.reserve(bytes).await
    }

    /// Parses mails, stores their attachments with one sync, stores their messages in one commit,
    /// posts their forwards, and stores the outcomes in one commit.
    async fn process(&mut self, tasks: Vec<StartedTask>) -> Result<(), StoreError> {
        let Some(email) = self.tunnel.adapter.email() else { return Ok(()) };
        let config = email.config();
        let retried = tasks.iter().filter(|started| started.task.progress.attempts > 1).count();
        self.round.report.retried += retried as u64;
        let mut mails = self.read(tasks, &config).await?;
        let parts = mails.iter_mut().flatten().flat_map(|mail| std::mem::take(&mut mail.parts));
        self.store.put_blobs(parts.collect()).await?;
        let mut outcomes = Vec::with_capacity(mails.len());
        let (mut requests, mut waiting) = (Vec::new(), Vec::new());
        for mail in mails {
            match mail {
                Ok(mut mail) => {
                    if let Some(report) = mail.report.take() {
                        self.apply_report(&report).await?;
                    }
                    requests.extend(mail.request.take());
                    waiting.push(mail);
                }
                Err((id, epoch, failure)) => {
                    outcomes.push((id, epoch, TaskOutcome::Failed(failure)));
                }
            }
        }
        // One rejected message does not affect the others: each has a result of its own.
        let stored = store_requests(&self.store, &self.entry, requests, self.clock.now()).await;
        let mut stored = stored.into_iter();
        for mail in waiting {
            let stored = if config.deliver { stored.next() } else { None };
            let outcome = match stored {
                Some(Err(error)) => TaskOutcome::Failed(temporary(&error)?),
                _ => self.forward(&mail).await?,
            };
            outcomes.push((mail.id, mail.epoch, outcome));
        }
        self.finish(outcomes).await
    }

    /// Parses mails on threads for blocking work, and stores their large attachments.
    async fn read(
        &self,
        tasks: Vec<StartedTask>,
        config: &Arc<EmailConfig>,
    ) -> Result<Vec<Result<ReadMail, (EmailTaskId, u64, Failure)>>, StoreError> {
        let people = match config.forward.iter().any(|rule| rule.uses_directory()) {
            true => self.store.directory().await?,
            false => Vec::new(),
        };
        let reader = Arc::new(MailReader {
            store: Arc::clone(&self.store),
            tunnel: self.tunnel.adapter.id().clone(),
            config: Arc::clone(config),
            directory: Directory::new(people),
            debounce: self.tunnel.settings().debounce,
            has_chain: self.entry.inbound().applies_to(Some(self.tunnel.adapter.id())),
            now: self.clock.now(),
            runtime: Handle::current(),
        });
        let lanes = PARALLEL_PARSES.min(tasks.len());
        let queue = Arc::new(Mutex::new(tasks.into_iter().enumerate()));
        let lanes = (0..lanes).map(|_| {
            let (reader, queue) = (Arc::clone(&reader), Arc::clone(&queue));
            tokio::task::spawn_blocking(move || {
                let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                let mut read = Vec::new();
                while let Some((number, started)) = next() {
                    let (id, epoch) = (started.task.id, started.task.progress.epoch);
                    read.push((number, (id, epoch), reader.read(started)));
                }
                read
            })
        });
        let mut mails = Vec::new();
        for lane in join_all(lanes).await {
            let stopped = |error| StoreError::Unavailable(format!("cannot parse mails: {error}"));
            mails.extend(lane.map_err(stopped)?);
        }
        mails.sort_by_key(|(number, ..)| *number);
        let outcome = |(_, (id, epoch), mail)| match mail {
            Ok(mail) => Ok(Ok(mail)),
            Err(MailReadError::Attempt(failure)) => Ok(Err((id, epoch, failure))),
            Err(MailReadError::Store(error)) => Err(error),
        };
        mails.into_iter().map(outcome).collect()
    }

    /// Posts the forward of a mail, once.
    async fn forward(&self, mail: &ReadMail) -> Result<TaskOutcome, StoreError> {
        let msg: &MsgObject = match &mail.forward {
            Ok(msg) => msg,
            Err(outcome) => return Ok(outcome.clone()),
        };
        let key = format!("forward:{}:{}", self.tunnel.adapter.id(), mail.hash);
        let request = SendRequest {
            msg: msg.clone(),
            key: Some(key),
            not_before: None,
            origin: SendOrigin::Forward,
        };
        let forward = match post_send(&self.store, &self.entry, request, self.clock.now()).await {
            Ok(
                SendResult::Queued { msg_id, .. }
                | SendResult::Held { msg_id, .. }
                | SendResult::Chained { msg_id, .. },
            ) => msg_id,
            Ok(SendResult::BlockedAuthor { .. }) => {
                let why = Some("the address of this tunnel is blocked".to_owned());
                return Ok(TaskOutcome::Skipped { why });
            }
            // An attempt with other rules has posted it; the mail is not forwarded twice.
            Err(StoreError::KeyReused(first)) => match first.parse() {
                Ok(first) => first,
                Err(_) => {
                    return Ok(TaskOutcome::Failed(permanent("the forward was posted before")));
                }
            },
            Err(error) => return Ok(TaskOutcome::Failed(temporary(&error)?)),
        };
        Ok(TaskOutcome::Forwarding { forward })
    }

    async fn finish(
        &mut self,
        outcomes: Vec<(EmailTaskId, u64, TaskOutcome)>,
    ) -> Result<(), StoreError> {
        for (_, _, outcome) in &outcomes {
            match outcome {
                TaskOutcome::Forwarding { .. } => {}
                TaskOutcome::Skipped { .. } => self.round.report.skipped += 1,
                TaskOutcome::Failed(_) => self.round.report.failed += 1,
            }
        }
        for result in self.store.finish_tasks(outcomes, self.clock.now()).await {
            match result {
                // Another attempt has the task; its outcome counts.
                Ok(()) | Err(StoreError::LeaseLost(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Stores what was done, when the listener has read all folders since the last time.
    async fn end_round(&mut self) -> Result<(), StoreError> {
        let scans = *self.scans.borrow();
        let ended = self.round.last.next(scans, self.clock.now());
        let Some((last, ended_at)) = ended else { return Ok(()) };
        let backlog = self.tunnel.health().last_scan.map_or(0, |(_, backlog)| backlog);
        let id = self.tunnel.adapter.id().clone();
        let registered = self.registered().await?;
        let before = self.round.registered.unwrap_or(registered);
        let since = |now: i64, before: i64| u64::try_from(now - before).unwrap_or(0);
        let report = ScanReport {
            registered: since(registered.0, before.0),
            copies: since(registered.1, before.1),
            backlog,
            // Rounded up: a round that found nothing takes less than a millisecond, not none.
            duration_ms: u64::try_from(self.round.elapsed.as_micros().div_ceil(1_000))
                .unwrap_or(u64::MAX),
            ..self.round.report
        };
        self.store.set_scanned(&id, report, ended_at).await?;
        self.tunnel.record_round(&report);
        self.round = Round {
            report: ScanReport::default(),
            elapsed: Duration::ZERO,
            last,
            registered: Some(registered),
        };
        Ok(())
    }

    /// Returns how many mails of the account are stored, and how many copies.
    async fn registered(&self) -> Result<(i64, i64), StoreError> {
        let counts = self.store.task_counts().await?;
        let counts = counts.get(self.tunnel.adapter.id()).cloned().unwrap_or_default();
        Ok((counts.statuses.values().sum(), counts.copies))
    }
}

/// Whether the store cannot do anything at the moment, whatever the mail.
fn is_failing_store(error: &StoreError) -> bool {
    matches!(error, StoreError::DiskFull | StoreError::Broken(_) | StoreError::Unavailable(_))
}

/// The failure of a task when the store rejects a step. An error of the store itself stops the
/// step instead: the tasks keep their leases and are processed again.
fn temporary(error: &StoreError) -> Result<Failure, StoreError> {
    if is_failing_store(error) {
        return Err(error.clone());
    }
    let detail = error.to_string();
    Ok(Failure::Temporary { detail, retry_after_ms: None, error_code: None })
}

fn permanent(detail: &str) -> Failure {
    Failure::Permanent { detail: detail.to_owned(), error_code: None }
}
