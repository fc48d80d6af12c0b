//! Moves on what leases ended on.

use std::sync::Arc;
use std::time::Duration;

use monoco_store::SharedStore;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::center::lease::delivery_retry;
use crate::clock::Clock;
use crate::config::Config;

/// How long an ended lease may go unnoticed.
const EVERY: Duration = Duration::from_secs(1);

/// Rows of each kind in one commit, so that nobody waits long behind it.
const AT_ONCE: usize = 500;

/// Sweeps until `stop`.
pub async fn run(
    store: SharedStore,
    clock: Clock,
    config: watch::Receiver<Arc<Config>>,
    stop: CancellationToken,
) {
    while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        let retry = config.borrow().claims.retry;
        loop {
            match store.expire_claims(retry, AT_ONCE, clock.now()).await {
                Ok(0) => break,
                Ok(claims) => {
                    tracing::info!(claims, "claims ran out");
                    if claims < AT_ONCE || stop.is_cancelled() {
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "sweep of claims put off");
                    break;
                }
            }
        }
        loop {
            match store.expire_leases(delivery_retry(), AT_ONCE, clock.now()).await {
                Ok(swept) => {
                    if swept.records + swept.deliveries > 0 {
                        tracing::info!(swept.records, swept.deliveries, "leases ended");
                    }
                    // There may be more where these came from.
                    if swept.records.max(swept.deliveries) < AT_ONCE || stop.is_cancelled() {
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "sweep put off");
                    break;
                }
            }
        }
    }
}
