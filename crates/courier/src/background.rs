//! The one background loop: run a step, wait for a hint or a poll interval, back off on
//! errors, stop on request.
//!
//! Hints may be lost, so every task also polls: [`NextStep::Poll`] names the interval. A
//! task must forget pending hints before it reads the store, so that a change during the
//! step starts another step.

use std::fmt::Display;
use std::time::Duration;

use monoco_core::retry::{Backoff, Jitter};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Work that is repeated until the courier stops.
pub trait BackgroundTask {
    /// Name of the task in the log.
    const NAME: &'static str;

    /// Upper limit of the delay after an error. Delays are 1 s, 2 s, 4 s, … up to this.
    const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

    type Error: Display;

    /// Does a bounded amount of work and says when to continue.
    ///
    /// # Errors
    ///
    /// The loop logs the first error of a series and runs the step again after a delay.
    async fn step(&mut self) -> Result<NextStep, Self::Error>;

    /// Waits for a hint that there is new work. Must be cancel-safe. Without an
    /// implementation there are no hints.
    async fn hint(&mut self) {
        std::future::pending::<()>().await;
    }
}

/// When the loop runs the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// At once: there is more work.
    Now,
    /// After this time, whatever hints arrive.
    After(Duration),
    /// After a hint, at the latest after this time.
    Poll(Duration),
}

/// Runs the steps of `task` until `stop` is cancelled. A step that has begun is finished.
pub async fn run<T: BackgroundTask>(task: &mut T, stop: &CancellationToken) {
    let mut failures: u32 = 0;
    while !stop.is_cancelled() {
        let next = match task.step().await {
            Ok(next) => {
                if failures > 0 {
                    tracing::info!(task = T::NAME, failures, "background task recovered");
                    failures = 0;
                }
                next
            }
            Err(error) => {
                if failures == 0 {
                    tracing::warn!(task = T::NAME, %error, "background task failed; retrying");
                }
                failures = failures.saturating_add(1);
                NextStep::After(
                    Backoff::DEFAULT.delay(failures, Jitter::NONE).min(T::MAX_RETRY_DELAY),
                )
            }
        };
        match next {
            // Other tasks of this thread get a turn.
            NextStep::Now => tokio::task::yield_now().await,
            NextStep::After(delay) => {
                stop.run_until_cancelled(tokio::time::sleep(delay)).await;
            }
            NextStep::Poll(interval) => {
                let hint = tokio::time::timeout(interval, task.hint());
                // The end of the interval is as good a reason for a step as a hint.
                let _ = stop.run_until_cancelled(hint).await;
            }
        }
    }
}

/// Waits for a new value; forever when there will be none because the sender is gone.
pub async fn changed<V>(receiver: &mut watch::Receiver<V>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any test waits.
    const HOUR: Duration = Duration::from_secs(3600);

    /// Returns scripted results, then cancels the loop.
    struct Script {
        results: Vec<Result<NextStep, &'static str>>,
        hints: watch::Receiver<u32>,
        steps: usize,
        stop: CancellationToken,
    }

    impl BackgroundTask for Script {
        const NAME: &'static str = "script";
        const MAX_RETRY_DELAY: Duration = Duration::from_millis(1);
        type Error = &'static str;

        async fn step(&mut self) -> Result<NextStep, &'static str> {
            self.steps += 1;
            if self.results.is_empty() {
                self.stop.cancel();
                return Ok(NextStep::After(HOUR));
            }
            self.results.remove(0)
        }

        async fn hint(&mut self) {
            changed(&mut self.hints).await;
        }
    }

    /// Runs a script and returns the number of steps.
    async fn run_script(
        hints: watch::Receiver<u32>,
        results: Vec<Result<NextStep, &'static str>>,
    ) -> usize {
        let stop = CancellationToken::new();
        let mut script = Script { results, hints, steps: 0, stop: stop.clone() };
        run(&mut script, &stop).await;
        script.steps
    }

    #[tokio::test]
    async fn hint_ends_a_poll_and_a_short_delay_passes() {
        let (sender, mut hints) = watch::channel(0);
        hints.mark_changed();
        let short = Duration::from_millis(1);
        let results = vec![
            Ok(NextStep::Poll(HOUR)),
            Ok(NextStep::Now),
            Ok(NextStep::After(short)),
            Ok(NextStep::Poll(short)),
        ];
        assert_eq!(run_script(hints, results).await, 5);
        drop(sender);
    }

    #[tokio::test]
    async fn poll_interval_passes_when_the_sender_of_hints_is_gone() {
        let (_, hints) = watch::channel(0);
        let results = vec![Ok(NextStep::Poll(Duration::from_millis(1)))];
        assert_eq!(run_script(hints, results).await, 2);
    }

    #[tokio::test]
    async fn failed_step_is_repeated_and_cancellation_ends_a_wait() {
        let (_sender, hints) = watch::channel(0);
        let results = vec![Err("disk full"), Err("disk full"), Ok(NextStep::Now)];
        assert_eq!(run_script(hints, results).await, 4);
    }
}
