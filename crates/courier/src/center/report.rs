//! Repeats reports to the store until it has answered.
//!
//! What a provider or a worker has answered is known only to the task that asked. If the report
//! were dropped while the store is full or unreachable, the attempt would count as unknown.

use std::time::Duration;

use monoco_core::retry::{Backoff, Jitter};
use monoco_store::StoreError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Delays before a report is repeated.
const REPORT_BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(if cfg!(test) { 1 } else { 250 }),
    longest: Duration::from_millis(if cfg!(test) { 8 } else { 2_000 }),
};

/// How long reports are repeated after the courier was asked to stop.
const MAX_REPORT_TIME_AFTER_STOP: Duration =
    Duration::from_millis(if cfg!(test) { 100 } else { 5_000 });

/// Whether the store could not be asked, and the same request can succeed later.
pub fn is_unanswered(error: &StoreError) -> bool {
    matches!(error, StoreError::DiskFull | StoreError::Unavailable(_))
}

/// Calls `report` until the store has answered, however long that takes. After `stop`, it is
/// repeated for 5 s; then the lease of the entry decides.
///
/// # Errors
///
/// The answer of the store, or its last failure.
pub async fn until_answered<T, F>(
    what: &str,
    stop: &CancellationToken,
    mut report: impl FnMut() -> F + Send,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>> + Send,
{
    let (mut failures, mut stop_at) = (0, None);
    loop {
        let answer = report().await;
        let error = match answer {
            Err(error) if is_unanswered(&error) => error,
            answer => return answer,
        };
        if stop.is_cancelled() {
            let stop_at = *stop_at.get_or_insert(Instant::now() + MAX_REPORT_TIME_AFTER_STOP);
            if Instant::now() >= stop_at {
                return Err(error);
            }
        }
        if failures == 0 {
            tracing::warn!(what, %error, "cannot report to the store; repeating the report");
        }
        failures += 1;
        let delay = REPORT_BACKOFF.delay(failures, Jitter::NONE);
        if stop.is_cancelled() {
            tokio::time::sleep(delay).await;
        } else {
            stop.run_until_cancelled(tokio::time::sleep(delay)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports to a store that fails as scripted, and returns the number of calls.
    async fn calls(stop: &CancellationToken, script: Vec<Result<(), StoreError>>) -> (usize, bool) {
        let (mut calls, last) = (0, script.last().cloned().unwrap());
        let result = until_answered("test", stop, || {
            let answer = script.get(calls).cloned().unwrap_or_else(|| last.clone());
            calls += 1;
            async move { answer }
        });
        let result = result.await.is_ok();
        (calls, result)
    }

    #[tokio::test]
    async fn report_is_repeated_until_the_store_answers() {
        let stop = CancellationToken::new();
        let down = || Err(StoreError::Unavailable("down".to_owned()));
        assert_eq!(calls(&stop, vec![Ok(())]).await, (1, true));
        assert_eq!(calls(&stop, vec![down(), Err(StoreError::DiskFull), Ok(())]).await, (3, true));
        let mut outage: Vec<_> = (0..100).map(|_| down()).collect();
        outage.push(Ok(()));
        assert_eq!(calls(&stop, outage).await, (101, true), "however long the outage is");
    }

    #[tokio::test]
    async fn answer_of_the_store_ends_the_report() {
        let stop = CancellationToken::new();
        let lost = StoreError::Conflict { what: "the letter", revision: 2 };
        assert_eq!(calls(&stop, vec![Err(lost)]).await, (1, false));
        let broken = StoreError::Broken("sync".to_owned());
        assert_eq!(calls(&stop, vec![Err(broken)]).await, (1, false), "only a restart helps");
    }

    #[tokio::test]
    async fn courier_that_stops_repeats_a_report_for_a_limited_time() {
        let stop = CancellationToken::new();
        stop.cancel();
        let down = || Err(StoreError::Unavailable("down".to_owned()));
        assert_eq!(calls(&stop, vec![down(), down(), Ok(())]).await, (3, true));
        let (calls, stored) = calls(&stop, vec![down()]).await;
        assert!(!stored && calls > 1, "{calls}");
    }
}
