//! Decides when the next connection is opened.

use std::time::Duration;

use monoco_core::retry::Jitter;

use super::{ConnectError, ConnectRetry, SocketTiming};

/// Upper limit of the delay that a provider can ask for.
pub(super) const MAX_AFTER: Duration = Duration::from_secs(3600);

/// Counts the failures in a row.
#[derive(Clone, Debug, Default)]
pub(super) struct ReconnectPlan {
    failures: u32,
}

impl ReconnectPlan {
    /// Returns the delay after a connection has ended: none when it was good, because messages
    /// may be lost in the meantime.
    pub fn after_end(&mut self, was_good: bool, timing: &SocketTiming, jitter: Jitter) -> Duration {
        if was_good {
            self.failures = 0;
            return Duration::ZERO;
        }
        self.failures = self.failures.saturating_add(1);
        timing.backoff.delay(self.failures, jitter)
    }

    /// Returns the delay after a connection could not be opened; `None`: no further attempt.
    pub fn after_error(
        &mut self,
        error: &ConnectError,
        timing: &SocketTiming,
        jitter: Jitter,
    ) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        let delay = match error.retry {
            ConnectRetry::Backoff => timing.backoff.delay(self.failures, jitter),
            ConnectRetry::Slow => timing.slow_backoff.delay(self.failures, jitter),
            ConnectRetry::Never => return None,
        };
        Some(delay.max(error.after.unwrap_or_default().min(MAX_AFTER)))
    }
}
