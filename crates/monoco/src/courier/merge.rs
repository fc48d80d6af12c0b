//! Makes Mails of bursts that are over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use monoco_core::did::Did;
use monoco_store::{MergeContext, SharedStore, StoreError};
use tokio_util::sync::CancellationToken;

use super::tunnels::TunnelRegistry;
use crate::clock::Clock;

/// Most windows in one go.
const AT_ONCE: usize = 200;

/// How long a window that is over may go unnoticed, when another one was awaited.
const NOTICE: Duration = Duration::from_millis(100);

/// How long nothing is looked for when no hint comes.
const LOOK: Duration = Duration::from_secs(30);

/// How soon to look again after the store said no.
const PAUSE: Duration = Duration::from_secs(1);

/// Merges what was heard.
pub struct MergeLoop {
    pub store: SharedStore,
    pub clock: Clock,
    /// Whom direct messages are for.
    pub owner: Did,
    /// The tunnels, for their labels.
    pub tunnels: Arc<TunnelRegistry>,
}

impl MergeLoop {
    /// Merges until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut news = self.store.newest_event();
        while !stop.is_cancelled() {
            // Before looking, so that what comes while we look is not missed.
            news.mark_unchanged();
            let wait = match self.merge(false).await {
                Ok(AT_ONCE) => continue,
                Ok(_) => self.until_due().await,
                Err(error) => {
                    tracing::warn!(%error, "merging put off");
                    Some(PAUSE)
                }
            };
            let pause = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    // Nothing waits, so only something new can.
                    None => {
                        let _ = tokio::time::timeout(LOOK, news.changed()).await;
                    }
                }
            };
            let _ = stop.run_until_cancelled(pause).await;
        }
    }

    /// Closes every window, whatever it could still wait for: the courier stops.
    pub async fn close_all(&self) {
        loop {
            match self.merge(true).await {
                Ok(0) => return,
                Ok(merged) => tracing::info!(merged, "closed what was still open"),
                Err(error) => {
                    // They are on disk, and merged at the next start.
                    tracing::warn!(%error, "windows stay open");
                    return;
                }
            }
        }
    }

    async fn merge(&self, all: bool) -> Result<usize, StoreError> {
        let labels: BTreeMap<_, _> = self
            .tunnels
            .all()
            .iter()
            .map(|tunnel| (tunnel.adapter.id().clone(), tunnel.labels.clone()))
            .collect();
        let merging = Arc::new(MergeContext { owner: self.owner.clone(), labels, all });
        self.store.merge(merging, AT_ONCE, self.clock.now()).await
    }

    /// How long until the next window is over; `None` when none is open.
    async fn until_due(&self) -> Option<Duration> {
        match self.store.next_merge().await {
            // Another tunnel may wait for less long.
            Ok(at) => {
                at.map(|at| at.since(self.clock.now()).clamp(Duration::from_millis(5), NOTICE))
            }
            Err(_) => Some(PAUSE),
        }
    }
}
