//! Classification of failures and delays before the next attempt.
//!
//! Failures are classified as temporary, permanent or unknown where they occur. Callers
//! must not parse `detail`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why an attempt failed, which decides whether it is retried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Failure {
    /// Another attempt may succeed: rate limit, lost connection, unavailable peer.
    Temporary {
        detail: String,
        /// The delay that the peer asked for, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
        /// The peer's error code, if it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error_code: Option<String>,
    },
    /// No further attempt can succeed: invalid address, no permission.
    Permanent {
        detail: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error_code: Option<String>,
    },
    /// The request was sent and no response came back. The peer may have accepted it.
    Unknown {
        detail: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error_code: Option<String>,
    },
}

/// Exponential backoff: the delay doubles with each failure up to a cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Delay after the first failure.
    pub first: Duration,
    /// Upper limit of the delay.
    pub longest: Duration,
}

/// When to retry, and when to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    pub backoff: Backoff,
    /// Maximum number of attempts, the first one included; `None`: no limit.
    pub max_attempts: Option<u32>,
    /// Time since the first attempt after which there is no further one; `None`: no limit.
    pub give_up_after: Option<Duration>,
}

/// A random number in 0…1 that shortens delays by up to a quarter, drawn by the caller.
///
/// Without it, all senders would retry at the same instant after an outage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jitter(f64);

/// Upper limit of the delay that a peer can ask for. Some peers send absurd values.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

impl Failure {
    pub fn detail(&self) -> &str {
        match self {
            Self::Temporary { detail, .. }
            | Self::Permanent { detail, .. }
            | Self::Unknown { detail, .. } => detail,
        }
    }

    /// The peer's error code, if it has one.
    pub fn error_code(&self) -> Option<&str> {
        match self {
            Self::Temporary { error_code, .. }
            | Self::Permanent { error_code, .. }
            | Self::Unknown { error_code, .. } => error_code.as_deref(),
        }
    }
}

impl Jitter {
    /// The full delay, for tests and for what is not shared.
    pub const NONE: Self = Self(1.0);

    pub fn from_random(random: u32) -> Self {
        Self(f64::from(random) / f64::from(u32::MAX))
    }
}

impl Backoff {
    /// 1 s, 2 s, 4 s, … up to 30 s: the default of deliveries, claims and background loops.
    pub const DEFAULT: Self =
        Self { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

    /// Returns a backoff with a tenth of the delays.
    pub fn tenth(&self) -> Self {
        Self { first: self.first / 10, longest: self.longest / 10 }
    }

    /// Returns the delay after `failures` failures in a row (from 1).
    pub fn delay(&self, failures: u32, jitter: Jitter) -> Duration {
        let doublings = failures.saturating_sub(1).min(20);
        let full = self.first.saturating_mul(1 << doublings).min(self.longest);
        full.mul_f64(0.75 + 0.25 * jitter.0.clamp(0.0, 1.0))
    }
}

impl RetryPolicy {
    /// Deliveries: retried for 24 h, so that they survive an outage of hours.
    pub const DELIVERY: Self = Self {
        backoff: Backoff::DEFAULT,
        max_attempts: None,
        give_up_after: Some(Duration::from_secs(24 * 3600)),
    };

    /// Claims: retried 3 times, after 1 s, 2 s and 4 s. The fourth failure makes a dead letter.
    pub const CLAIM: Self =
        Self { backoff: Backoff::DEFAULT, max_attempts: Some(4), give_up_after: None };

    /// Returns the delay after the failure of attempt number `attempts` (from 1), `elapsed`
    /// after the first attempt began; `None` when no further attempt is allowed.
    pub fn next_delay(
        &self,
        attempts: u32,
        elapsed: Duration,
        retry_after: Option<Duration>,
        jitter: Jitter,
    ) -> Option<Duration> {
        let attempts_used_up = self.max_attempts.is_some_and(|max| attempts >= max);
        let too_late = self.give_up_after.is_some_and(|max| elapsed >= max);
        if attempts_used_up || too_late {
            return None;
        }
        let requested = retry_after.unwrap_or_default().min(MAX_RETRY_AFTER);
        Some(self.backoff.delay(attempts, jitter).max(requested))
    }

    /// Returns the policy after a rate limit. It says nothing about the message, so the number of
    /// attempts has no limit. A delay that the peer asked for is used as it is, unless it is far
    /// below the own one: some peers ask for 0 s again and again.
    pub fn after_rate_limit(&self, retry_after: Option<Duration>) -> Self {
        let backoff = if retry_after.is_some() { self.backoff.tenth() } else { self.backoff };
        Self { backoff, max_attempts: None, ..*self }
    }

    /// Returns the delay after a rate limit, `elapsed` after the first attempt began; `None` when
    /// no further attempt is allowed. Attempts that a rate limit has ended are not counted, so the
    /// delay grows with the time that has passed: it doubles, as after other failures.
    pub fn rate_limit_delay(
        &self,
        elapsed: Duration,
        retry_after: Option<Duration>,
        jitter: Jitter,
    ) -> Option<Duration> {
        let policy = self.after_rate_limit(retry_after);
        let Backoff { first, longest } = policy.backoff;
        let delay = elapsed.clamp(first, longest.max(first));
        let backoff = Backoff { first: delay, longest: delay };
        Self { backoff, ..policy }.next_delay(1, elapsed, retry_after, jitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(retry: &RetryPolicy, attempts: u32) -> Option<u64> {
        retry.next_delay(attempts, Duration::ZERO, None, Jitter::NONE).map(|delay| delay.as_secs())
    }

    #[test]
    fn delays_double_up_to_the_longest() {
        let waits: Vec<_> = (1..=8).map(|n| secs(&RetryPolicy::DELIVERY, n).unwrap()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(secs(&RetryPolicy::DELIVERY, u32::MAX), Some(30));
    }

    #[test]
    fn fourth_failure_of_a_claim_is_the_last() {
        let waits: Vec<_> = (1..=5).map(|n| secs(&RetryPolicy::CLAIM, n)).collect();
        assert_eq!(waits, [Some(1), Some(2), Some(4), None, None]);
    }

    #[test]
    fn deliveries_are_given_up_after_24_hours() {
        let day = Duration::from_secs(24 * 3600);
        let wait = |elapsed| RetryPolicy::DELIVERY.next_delay(3, elapsed, None, Jitter::NONE);
        assert!(wait(day - Duration::from_secs(1)).is_some());
        assert_eq!(wait(day), None);
    }

    #[test]
    fn retry_after_is_honoured_up_to_one_hour() {
        let wait = |after| {
            let after = Some(Duration::from_secs(after));
            RetryPolicy::DELIVERY
                .next_delay(1, Duration::ZERO, after, Jitter::NONE)
                .unwrap()
                .as_secs()
        };
        assert_eq!(wait(0), 1);
        assert_eq!(wait(120), 120);
        assert_eq!(wait(u64::MAX), 3600);
    }

    #[test]
    fn delay_after_rate_limits_grows_with_the_time_that_has_passed() {
        let wait = |elapsed, after: Option<u64>| {
            let (elapsed, after) = (Duration::from_secs(elapsed), after.map(Duration::from_secs));
            RetryPolicy::CLAIM.rate_limit_delay(elapsed, after, Jitter::NONE).unwrap().as_millis()
        };
        assert_eq!(
            [0, 1, 2, 8, 40].map(|elapsed| wait(elapsed, None)),
            [1_000, 1_000, 2_000, 8_000, 30_000]
        );
        assert_eq!([0, 1, 40].map(|elapsed| wait(elapsed, Some(0))), [100, 1_000, 3_000]);
        assert_eq!(wait(40, Some(60)), 60_000);
        let day = Duration::from_secs(24 * 3600);
        assert_eq!(RetryPolicy::DELIVERY.rate_limit_delay(day, None, Jitter::NONE), None);
    }

    #[test]
    fn jitter_shortens_a_delay_by_a_quarter_at_most() {
        for random in [0, 1, u32::MAX / 2, u32::MAX] {
            let jitter = Jitter::from_random(random);
            let wait = RetryPolicy::DELIVERY.next_delay(3, Duration::ZERO, None, jitter).unwrap();
            assert!((3_000..=4_000).contains(&wait.as_millis()), "{wait:?}");
        }
    }
}
