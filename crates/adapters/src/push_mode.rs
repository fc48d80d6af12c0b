//! Tunnels that receive through the webhook listener and read the provider's history.

use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::socket::ConnectionGap;

/// Delays between attempts to read the history at the start.
const FIRST_DELAY: Duration = Duration::from_secs(2);
const LONGEST_DELAY: Duration = Duration::from_secs(600);

/// Reads what was missed before the start once, with as many attempts as that takes, and waits for
/// `stop`. Requests are received meanwhile.
pub(crate) async fn listen<'a>(
    stop: &CancellationToken,
    read_missed: impl Fn(ConnectionGap) -> BoxFuture<'a, Result<(), Failure>>,
) {
    let mut delay = FIRST_DELAY;
    let gap = || ConnectionGap { since: None, until: wall_clock() };
    while let Some(Err(failure)) = stop.run_until_cancelled(read_missed(gap())).await {
        tracing::warn!(error = failure.detail(), "cannot read the history of the provider");
        if stop.run_until_cancelled(sleep(delay)).await.is_none() {
            return;
        }
        delay = (delay * 2).min(LONGEST_DELAY);
    }
    stop.cancelled().await;
}

#[expect(clippy::disallowed_methods, reason = "bounds a history by the clock of the provider")]
fn wall_clock() -> Timestamp {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_ms(i64::try_from(now.as_millis()).unwrap_or(i64::MAX))
}
