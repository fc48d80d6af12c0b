//! Expires the leases of claims, records, deliveries and e-mail tasks, and approvals.

use std::sync::Arc;
use std::time::Duration;

use monoco_store::{SharedStore, StoreError, SweepCounts};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::background::{self, BackgroundTask, NextStep};
use crate::center::lease::delivery_retry;
use crate::clock::Clock;
use crate::config::Config;

/// Maximum time between the end of a lease and its expiry in the store.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Rows of each kind per commit, so that other writers do not wait long.
const MAX_ROWS_PER_COMMIT: usize = 500;

struct SweepTask {
    store: SharedStore,
    clock: Clock,
    config: watch::Receiver<Arc<Config>>,
}

impl BackgroundTask for SweepTask {
    const NAME: &'static str = "sweeper";
    const MAX_RETRY_DELAY: Duration = SWEEP_INTERVAL;
    type Error = StoreError;

    async fn step(&mut self) -> Result<NextStep, StoreError> {
        let (retry, deliveries) = {
            let config = self.config.borrow();
            (config.claims.retry, delivery_retry(config.deliveries))
        };
        let now = self.clock.now();
        let claims = self.store.expire_claims(retry, MAX_ROWS_PER_COMMIT, now).await?;
        if claims > 0 {
            tracing::info!(claims, "claims expired");
        }
        let leases = self.store.expire_leases(deliveries, MAX_ROWS_PER_COMMIT, now).await?;
        let SweepCounts { records, deliveries, email_tasks } = leases;
        if records + deliveries + email_tasks > 0 {
            tracing::info!(records, deliveries, email_tasks, "leases expired");
        }
        let approvals = self.store.expire_approvals(MAX_ROWS_PER_COMMIT, now).await?;
        if approvals > 0 {
            tracing::info!(approvals, "approvals expired; their messages are not sent");
        }
        let most = claims.max(approvals).max(records).max(deliveries).max(email_tasks);
        let more = most >= MAX_ROWS_PER_COMMIT;
        Ok(if more { NextStep::Now } else { NextStep::After(SWEEP_INTERVAL) })
    }
}

/// Expires leases until `stop` is cancelled.
pub async fn run(
    store: SharedStore,
    clock: Clock,
    config: watch::Receiver<Arc<Config>>,
    stop: CancellationToken,
) {
    background::run(&mut SweepTask { store, clock, config }, &stop).await;
}
