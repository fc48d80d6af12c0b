//! Merges inbound messages into Mails when their merge windows have closed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use monoco_core::did::Did;
use monoco_store::{MergeContext, SharedStore, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::tunnels::TunnelRegistry;
use crate::background::{self, BackgroundTask, NextStep};
use crate::clock::Clock;

const MAX_WINDOWS_PER_COMMIT: usize = 200;

/// Limits of the delay until the next open window is checked. A window of another tunnel
/// can close earlier than the one that is awaited, so the delay is short.
const MIN_WINDOW_DELAY: Duration = Duration::from_millis(5);
const MAX_WINDOW_DELAY: Duration = Duration::from_millis(100);

/// Interval between checks for new messages when no hint arrives.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Merges the messages of closed windows.
pub struct MergeLoop {
    pub store: SharedStore,
    pub clock: Clock,
    /// Recipient of direct messages.
    pub owner: Did,
    /// The tunnels, for their labels.
    pub tunnels: Arc<TunnelRegistry>,
}

struct MergeTask {
    merge: Arc<MergeLoop>,
    inbound: watch::Receiver<u64>,
}

impl BackgroundTask for MergeTask {
    const NAME: &'static str = "merge";
    const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);
    type Error = StoreError;

    async fn step(&mut self) -> Result<NextStep, StoreError> {
        self.inbound.mark_unchanged();
        let merge = &self.merge;
        if merge.merge(false).await? == MAX_WINDOWS_PER_COMMIT {
            return Ok(NextStep::Now);
        }
        Ok(match merge.store.next_merge().await? {
            Some(at) => {
                let delay = at.since(merge.clock.now());
                NextStep::After(delay.clamp(MIN_WINDOW_DELAY, MAX_WINDOW_DELAY))
            }
            None => NextStep::Poll(POLL_INTERVAL),
        })
    }

    async fn hint(&mut self) {
        background::changed(&mut self.inbound).await;
    }
}

impl MergeLoop {
    /// Merges closed windows until `stop` is cancelled.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let inbound = self.store.newest_inbound();
        background::run(&mut MergeTask { merge: self, inbound }, &stop).await;
    }

    /// Merges all windows, closed or not, before the courier stops.
    pub async fn close_all(&self) {
        loop {
            match self.merge(true).await {
                Ok(0) => return,
                Ok(merged) => tracing::info!(merged, "merged open windows before shutdown"),
                Err(error) => {
                    // The messages are in the store and are merged after the next start.
                    tracing::warn!(%error, "cannot merge open windows before shutdown");
                    return;
                }
            }
        }
    }

    async fn merge(&self, all: bool) -> Result<usize, StoreError> {
        let running = self.tunnels.running();
        let read_history: BTreeSet<_> = running
            .iter()
            .filter(|tunnel| tunnel.adapter.reads_history())
            .map(|tunnel| tunnel.adapter.id().clone())
            .collect();
        let labels: BTreeMap<_, _> = running
            .iter()
            .map(|tunnel| (tunnel.adapter.id().clone(), tunnel.settings().labels.clone()))
            .collect();
        let context =
            Arc::new(MergeContext { owner: self.owner.clone(), labels, read_history, all });
        self.store.merge(context, MAX_WINDOWS_PER_COMMIT, self.clock.now()).await
    }
}
