//! Trying again: why a try failed, and how long to wait for the next.
//!
//! A failure has a temperature, and only the place where it happens knows it.
//! Nobody downstream reads the words to decide anything.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why a try failed, and so whether another is worth making.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "temperature", rename_all = "snake_case")]
pub enum Failure {
    /// Another try may work: rate limits, lost connections, a peer that is down.
    Temporary {
        /// The peer's words.
        detail: String,
        /// How long the peer asked us to wait, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
    /// No number of tries will help: a bad address, no permission.
    Permanent {
        /// The peer's words.
        detail: String,
    },
    /// The request left and no answer came back. The peer may have it.
    Unknown {
        /// What we saw last.
        detail: String,
    },
}

/// When to try again, and when to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The first wait; each further one is twice as long.
    pub first: Duration,
    /// The longest wait we choose ourselves.
    pub longest: Duration,
    /// How many tries there are, where they are counted.
    pub max_attempts: Option<u32>,
    /// How long we keep trying since the first one, where that is limited.
    pub give_up_after: Option<Duration>,
}

/// A number in 0…1 that spreads waits, drawn by the caller.
///
/// After an outage everybody waits the same time, and without it would come back
/// at the same instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jitter(f64);

/// What a peer may ask us to wait at most. Some send nonsense.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3600);

impl Failure {
    /// The words, whatever the temperature.
    pub fn detail(&self) -> &str {
        match self {
            Self::Temporary { detail, .. }
            | Self::Permanent { detail }
            | Self::Unknown { detail } => detail,
        }
    }
}

impl Jitter {
    /// No spreading: the full wait.
    pub const NONE: Self = Self(1.0);

    /// Spreads by a random number.
    pub fn from_random(random: u32) -> Self {
        Self(f64::from(random) / f64::from(u32::MAX))
    }
}

impl RetryPolicy {
    /// Deliveries: an outage of hours must not kill them.
    pub const DELIVERY: Self = Self {
        first: Duration::from_secs(1),
        longest: Duration::from_secs(30),
        max_attempts: None,
        give_up_after: Some(Duration::from_secs(24 * 3600)),
    };

    /// Claims: three retries, the fourth failure is a dead letter.
    pub const CLAIM: Self = Self {
        first: Duration::from_secs(1),
        longest: Duration::from_secs(30),
        max_attempts: Some(4),
        give_up_after: None,
    };

    /// How long to wait after the try number `attempts` (from 1) has failed,
    /// `elapsed` after the first one began. `None`: give up.
    pub fn wait(
        &self,
        attempts: u32,
        elapsed: Duration,
        retry_after: Option<Duration>,
        jitter: Jitter,
    ) -> Option<Duration> {
        let out_of_tries = self.max_attempts.is_some_and(|most| attempts >= most);
        let out_of_patience = self.give_up_after.is_some_and(|most| elapsed >= most);
        if out_of_tries || out_of_patience {
            return None;
        }
        let doublings = attempts.saturating_sub(1).min(20);
        let nominal = self.first.saturating_mul(1 << doublings).min(self.longest);
        let spread = nominal.mul_f64(0.75 + 0.25 * jitter.0.clamp(0.0, 1.0));
        Some(spread.max(retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(retry: &RetryPolicy, attempts: u32) -> Option<u64> {
        retry.wait(attempts, Duration::ZERO, None, Jitter::NONE).map(|wait| wait.as_secs())
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let waits: Vec<_> = (1..=8).map(|n| secs(&RetryPolicy::DELIVERY, n).unwrap()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(secs(&RetryPolicy::DELIVERY, u32::MAX), Some(30));
    }

    #[test]
    fn the_fourth_failure_of_a_claim_is_the_last() {
        let waits: Vec<_> = (1..=5).map(|n| secs(&RetryPolicy::CLAIM, n)).collect();
        assert_eq!(waits, [Some(1), Some(2), Some(4), None, None]);
    }

    #[test]
    fn patience_ends_after_a_day() {
        let day = Duration::from_secs(24 * 3600);
        let wait = |elapsed| RetryPolicy::DELIVERY.wait(3, elapsed, None, Jitter::NONE);
        assert!(wait(day - Duration::from_secs(1)).is_some());
        assert_eq!(wait(day), None);
    }

    #[test]
    fn retry_after_is_honoured_unless_it_is_absurd() {
        let wait = |after| {
            let after = Some(Duration::from_secs(after));
            RetryPolicy::DELIVERY.wait(1, Duration::ZERO, after, Jitter::NONE).unwrap().as_secs()
        };
        assert_eq!(wait(0), 1);
        assert_eq!(wait(120), 120);
        assert_eq!(wait(u64::MAX), 3600);
    }

    #[test]
    fn jitter_shortens_by_a_quarter_at_most() {
        for random in [0, 1, u32::MAX / 2, u32::MAX] {
            let jitter = Jitter::from_random(random);
            let wait = RetryPolicy::DELIVERY.wait(3, Duration::ZERO, None, jitter).unwrap();
            assert!((3_000..=4_000).contains(&wait.as_millis()), "{wait:?}");
        }
    }
}
