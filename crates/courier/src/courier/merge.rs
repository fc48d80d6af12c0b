//! Merges inbound messages into Mails when their merge windows have closed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use monoco_core::did::{Did, TunnelId};
use monoco_core::duty::DutyName;
use monoco_core::time::Timestamp;
use monoco_store::{MergeContext, SharedStore, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::held_duties::HeldDuties;
use crate::background::{self, BackgroundTask, NextStep};
use crate::clock::Clock;

const MAX_WINDOWS_PER_COMMIT: usize = 200;

/// Limits of the delay until the next open window is checked. A window of another tunnel
/// can close earlier than the one that is awaited, so the delay is short.
const MIN_WINDOW_DELAY: Duration = Duration::from_millis(5);
const MAX_WINDOW_DELAY: Duration = Duration::from_millis(100);

/// Delay until windows are checked again when only those of other couriers have closed.
const FOREIGN_WINDOW_DELAY: Duration = Duration::from_millis(200);

/// How long after its end a window is merged by the leader: its tunnel has no courier.
const MAX_OVERDUE_MS: i64 = 60_000;

/// Interval between checks for new messages when no hint arrives.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Merges the messages of closed windows.
pub struct MergeLoop {
    pub store: SharedStore,
    pub clock: Clock,
    /// Recipient of direct messages.
    pub owner: Did,
    /// Windows are merged by the courier that has the duty of their tunnel.
    pub duties: HeldDuties,
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
                if delay.is_zero() && merge.duties.is_shared() {
                    // Another courier merges it.
                    return Ok(NextStep::After(FOREIGN_WINDOW_DELAY));
                }
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

    /// Merges all windows, closed or not, before the last courier of the store stops.
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
        let now = self.clock.now();
        let Some(held) = self.duties.names().filter(|_| !all) else {
            return self.merge_of(None, all, now).await;
        };
        let mut merged = 0;
        if held.contains(&DutyName::Leader) {
            // Also windows of tunnels that no courier has any more.
            let overdue = Timestamp::from_ms(now.ms().saturating_sub(MAX_OVERDUE_MS));
            merged = self.merge_of(None, all, overdue).await?;
        }
        let tunnels = held.into_iter().filter_map(|name| match name {
            DutyName::Tunnel(tunnel) => Some(tunnel),
            DutyName::Leader | DutyName::Dispatcher => None,
        });
        Ok(merged.max(self.merge_of(Some(tunnels.collect()), all, now).await?))
    }

    async fn merge_of(
        &self,
        tunnels: Option<BTreeSet<TunnelId>>,
        all: bool,
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        let context = Arc::new(MergeContext { owner: self.owner.clone(), tunnels, all });
        self.store.merge(context, MAX_WINDOWS_PER_COMMIT, now).await
    }
}
