//! Wakes the dispatcher: by hints of the store, or by jobs of a beanstalkd.
//!
//! A job contains the id of a letter and only means that letters may be due. The store decides
//! which letters are due and in which order, so beanstalkd may be killed, emptied, full or
//! draining at any time: lost jobs are put again when none arrives for a while, and without
//! beanstalkd the dispatcher polls the store.

use std::time::Duration;

use futures_util::future::join_all;
use monoco_core::letter::LetterId;
use monoco_store::SharedStore;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::beanstalkd::{
    BeanstalkdAddress, BeanstalkdClient, JobConsumer, JobId, PutOptions, TubeName,
};
use super::config::QueueKind;
use crate::clock::Clock;

/// Tube of the dispatcher.
pub const LETTERS_TUBE: &str = "monoco.letters";

/// Priority of all jobs.
pub const JOB_PRIORITY: u32 = 1024;

/// How often letters are polled when no hint or job arrives.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// How often letters are polled while beanstalkd is down.
const POLL_INTERVAL_WITHOUT_BEANSTALKD: Duration = Duration::from_secs(1);

/// How long the dispatcher may hold a job.
const JOB_TTR: Duration = Duration::from_secs(120);

/// Maximum number of jobs that are reserved or put at the same time.
const MAX_JOBS: usize = 256;

/// Maximum number of notifications that wait to be put. Further ones are dropped, and their
/// letters are found by polling.
const MAX_PENDING_NOTIFICATIONS: usize = 10_000;

/// What the dispatcher waits for.
pub enum LetterQueue {
    /// Hints of the store, and the time of the next letter.
    Store(watch::Receiver<u64>),
    Beanstalkd(Box<BeanstalkdQueue>),
}

/// A beanstalkd and the jobs that are reserved from it.
pub struct BeanstalkdQueue {
    client: BeanstalkdClient,
    consumer: JobConsumer,
    tube: TubeName,
    reserved: Vec<JobId>,
    hints: watch::Receiver<u64>,
}

/// Notifies the queue of new letters. Does nothing when the store is the queue.
#[derive(Clone, Default)]
pub struct QueueNotifier(Option<mpsc::Sender<(LetterId, Duration)>>);

fn letters_tube() -> TubeName {
    LETTERS_TUBE.parse().expect("the name of the dispatcher's tube is valid")
}

impl LetterQueue {
    /// Opens the configured queue. Tasks of a beanstalkd connection run on `tasks`.
    pub fn open(
        kind: &QueueKind,
        store: &SharedStore,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> (Self, QueueNotifier) {
        match kind {
            QueueKind::Store => (Self::Store(store.newest_letter()), QueueNotifier::default()),
            QueueKind::Beanstalkd(address) => Self::beanstalkd(address, store, tasks, stop),
        }
    }

    fn beanstalkd(
        address: &BeanstalkdAddress,
        store: &SharedStore,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> (Self, QueueNotifier) {
        let client = BeanstalkdClient::new(address.clone(), tasks, stop.clone());
        let tubes = vec![letters_tube()];
        let consumer = JobConsumer::new(address.clone(), tubes, tasks, stop.clone());
        let (sender, pending) = mpsc::channel(MAX_PENDING_NOTIFICATIONS);
        tasks.spawn(put_notifications(client.clone(), pending, stop.clone()));
        let (tube, hints) = (letters_tube(), store.newest_letter());
        let queue = BeanstalkdQueue { client, consumer, tube, reserved: Vec::new(), hints };
        (Self::Beanstalkd(Box::new(queue)), QueueNotifier(Some(sender)))
    }

    /// Returns when a letter may be due.
    pub async fn wait(&mut self, store: &SharedStore, clock: Clock) {
        match self {
            Self::Store(hints) => wait_for_hint(hints, store, clock, POLL_INTERVAL).await,
            Self::Beanstalkd(queue) => queue.wait(store, clock).await,
        }
    }

    /// Deletes the jobs that ended the last wait, after their letters were processed.
    pub async fn acknowledge(&mut self) {
        if let Self::Beanstalkd(queue) = self {
            let reserved = std::mem::take(&mut queue.reserved);
            // A job that is not deleted ends one more wait; that is harmless.
            let _ = queue.consumer.delete(&reserved).await;
        }
    }
}

impl BeanstalkdQueue {
    async fn wait(&mut self, store: &SharedStore, clock: Clock) {
        loop {
            match self.consumer.reserve_some(MAX_JOBS, POLL_INTERVAL).await {
                Ok(jobs) if !jobs.is_empty() => {
                    self.reserved = jobs.into_iter().map(|job| job.id).collect();
                    return;
                }
                Ok(_) if self.put_lost_letters(store, clock).await => {}
                // Full or draining: the letters are processed without it.
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!(%error, "polling letters without beanstalkd");
                    let poll = POLL_INTERVAL_WITHOUT_BEANSTALKD;
                    return wait_for_hint(&mut self.hints, store, clock, poll).await;
                }
            }
        }
    }

    /// Puts jobs of letters that are due although no job arrived. Returns whether all were put.
    async fn put_lost_letters(&self, store: &SharedStore, clock: Clock) -> bool {
        let Ok(due) = store.due_letters(None, MAX_JOBS, clock.now()).await else { return true };
        if due.is_empty() {
            return true;
        }
        tracing::info!(letters = due.len(), "beanstalkd lost jobs of letters; putting them again");
        let puts = due.iter().map(|row| put(&self.client, &self.tube, row.id, Duration::ZERO));
        join_all(puts).await.into_iter().all(|put| put)
    }
}

/// Returns at a hint, when the next letter is due, or after `poll`.
async fn wait_for_hint(
    hints: &mut watch::Receiver<u64>,
    store: &SharedStore,
    clock: Clock,
    poll: Duration,
) {
    let due = store.next_letter(None).await.ok().flatten();
    let wait = due.map_or(poll, |due| due.since(clock.now()).min(poll));
    // Without a sender there are no hints, and only the time ends the wait.
    let hint = async {
        if hints.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = hint => {}
        () = tokio::time::sleep(wait) => {}
    }
}

impl QueueNotifier {
    /// Notifies the dispatcher of a letter after `delay`.
    pub fn notify(&self, id: LetterId, delay: Duration) {
        if let Some(sender) = &self.0 {
            // When the channel is full, the letter is found by polling.
            let _ = sender.try_send((id, delay));
        }
    }
}

async fn put_notifications(
    client: BeanstalkdClient,
    mut pending: mpsc::Receiver<(LetterId, Duration)>,
    stop: CancellationToken,
) {
    let tube = letters_tube();
    let mut batch = Vec::with_capacity(MAX_JOBS);
    loop {
        let received = stop.run_until_cancelled(pending.recv_many(&mut batch, MAX_JOBS)).await;
        if received.is_none_or(|count| count == 0) {
            return;
        }
        join_all(batch.drain(..).map(|(id, delay)| put(&client, &tube, id, delay))).await;
    }
}

/// Puts the job of a letter. Returns whether beanstalkd accepted it.
async fn put(client: &BeanstalkdClient, tube: &TubeName, id: LetterId, delay: Duration) -> bool {
    let body = json!({"id": id}).to_string().into_bytes();
    client.put(tube, PutOptions { body, priority: JOB_PRIORITY, delay, ttr: JOB_TTR }).await.is_ok()
}
