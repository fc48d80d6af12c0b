//! What wakes the dispatcher: the store itself, or a beanstalkd.
//!
//! A job names a letter, and is no more than a reason to look: which letters are due,
//! and in which order, the store says. So a beanstalkd may be killed, wiped, full or
//! draining at any time. What it lost is put again when nothing came for a while, and
//! as long as it is down the store does without it.

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
use crate::clock::Clock;

/// The tube that letters wait in for the dispatcher.
pub const TUBE: &str = "monoco.letters";

/// How long to wait for a hint before looking by oneself.
const POLL: Duration = Duration::from_secs(5);

/// How long a look lasts while the beanstalkd is down.
const WITHOUT: Duration = Duration::from_secs(1);

/// How long the dispatcher may hold a job.
const TTR: Duration = Duration::from_secs(120);

/// Jobs taken, and put again, at once.
const AT_ONCE: usize = 256;

/// Letters that may wait to be put. Beyond it they are put when they are missed.
const WAITING: usize = 10_000;

/// What the dispatcher waits at.
pub enum LetterQueue {
    /// The store: hints, and the time of the next letter.
    Store(watch::Receiver<u64>),
    /// A beanstalkd.
    Beanstalkd(Box<BeanstalkdQueue>),
}

/// A beanstalkd, and what of it we hold.
pub struct BeanstalkdQueue {
    client: BeanstalkdClient,
    taker: JobConsumer,
    tube: TubeName,
    held: Vec<JobId>,
    hints: watch::Receiver<u64>,
}

/// Tells the queue of letters that came. Does nothing where the store is the queue.
#[derive(Clone, Default)]
pub struct QueueNotifier(Option<mpsc::Sender<(LetterId, Duration)>>);

/// The dispatcher's tube.
fn letters() -> TubeName {
    TUBE.parse().expect("the tube's name is plain")
}

impl LetterQueue {
    /// The store as a queue.
    pub fn store(store: &SharedStore) -> Self {
        Self::Store(store.newest_letter())
    }

    /// A beanstalkd as a queue, with its carrier.
    pub fn beanstalkd(
        address: &BeanstalkdAddress,
        store: &SharedStore,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> (Self, QueueNotifier) {
        let client = BeanstalkdClient::new(address.clone(), tasks, stop.clone());
        let taker = JobConsumer::new(address.clone(), vec![letters()], tasks, stop.clone());
        let (carrier, waiting) = mpsc::channel(WAITING);
        tasks.spawn(carry(client.clone(), waiting, stop.clone()));
        let hints = store.newest_letter();
        let tubed = BeanstalkdQueue { client, taker, tube: letters(), held: Vec::new(), hints };
        (Self::Beanstalkd(Box::new(tubed)), QueueNotifier(Some(carrier)))
    }

    /// Returns when a letter may be due.
    pub async fn woken(&mut self, store: &SharedStore, clock: Clock) {
        match self {
            Self::Store(hints) => by_hint(hints, store, clock, POLL).await,
            Self::Beanstalkd(tubed) => tubed.woken(store, clock).await,
        }
    }

    /// What woke the dispatcher is dealt with.
    pub async fn cleared(&mut self) {
        if let Self::Beanstalkd(tubed) = self {
            let held = std::mem::take(&mut tubed.held);
            // One that stays wakes us once more, and that is all.
            let _ = tubed.taker.delete(&held).await;
        }
    }
}

impl BeanstalkdQueue {
    async fn woken(&mut self, store: &SharedStore, clock: Clock) {
        loop {
            match self.taker.reserve_some(AT_ONCE, POLL).await {
                Ok(jobs) if !jobs.is_empty() => {
                    self.held = jobs.into_iter().map(|job| job.id).collect();
                    return;
                }
                Ok(_) if self.put_missed(store, clock).await => {}
                // It is full or draining: as good as down.
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!(%error, "letters do without the queue");
                    return by_hint(&mut self.hints, store, clock, WITHOUT).await;
                }
            }
        }
    }

    /// Puts letters again that are due and were not carried to us. Says whether all that
    /// are due will be.
    async fn put_missed(&self, store: &SharedStore, clock: Clock) -> bool {
        let due = store.due_letters(None, AT_ONCE, clock.now()).await;
        let Ok(due) = due else { return true };
        if due.is_empty() {
            return true;
        }
        tracing::info!(letters = due.len(), "the queue lost letters; they are put again");
        let puts = due.iter().map(|row| put(&self.client, &self.tube, row.id, Duration::ZERO));
        join_all(puts).await.into_iter().all(|put| put)
    }
}

/// Returns at a hint, when the next letter is due, or after a while.
pub(super) async fn by_hint(
    hints: &mut watch::Receiver<u64>,
    store: &SharedStore,
    clock: Clock,
    poll: Duration,
) {
    let due = store.next_letter(None).await.ok().flatten();
    let wait = due.map_or(poll, |due| due.since(clock.now()).min(poll));
    // Whoever is gone hints no more; then the time alone wakes us.
    let hinted = async {
        if hints.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = hinted => {}
        () = tokio::time::sleep(wait) => {}
    }
}

impl QueueNotifier {
    /// Has a letter carried to the dispatcher, not before `delay` is over.
    pub fn notify(&self, id: LetterId, delay: Duration) {
        if let Some(waiting) = &self.0 {
            // One that finds no room is put when it is missed.
            let _ = waiting.try_send((id, delay));
        }
    }
}

async fn carry(
    client: BeanstalkdClient,
    mut waiting: mpsc::Receiver<(LetterId, Duration)>,
    stop: CancellationToken,
) {
    let tube = letters();
    let mut batch = Vec::with_capacity(AT_ONCE);
    loop {
        let came = stop.run_until_cancelled(waiting.recv_many(&mut batch, AT_ONCE)).await;
        if came.is_none_or(|count| count == 0) {
            return;
        }
        join_all(batch.drain(..).map(|(id, delay)| put(&client, &tube, id, delay))).await;
    }
}

/// Says whether the beanstalkd took it. Failing is fine: the store has the letter.
async fn put(client: &BeanstalkdClient, tube: &TubeName, id: LetterId, delay: Duration) -> bool {
    let body = json!({"id": id}).to_string().into_bytes();
    client.put(tube, PutOptions { body, priority: 1024, delay, ttr: TTR }).await.is_ok()
}
