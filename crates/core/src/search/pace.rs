//! How much time the search index takes while the courier is busy.
//!
//! | events per second | the index has been behind for | share of the indexer's time |
//! | --- | --- | --- |
//! | below 100 | – | all |
//! | 100 and more | less than 1 minute | 1/40 |
//! | 100 and more | less than 10 minutes | 1/10 |
//! | 100 and more | longer | 1/2 |
//!
//! Indexing takes processor and disk from dispatches, and can be done later. So a burst of messages
//! is indexed when it is over. The share grows with the time, so that the index of a courier that
//! is busy all day does not fall behind without limit.

use std::time::Duration;

/// Events per second from which the courier is busy.
const BUSY_RATE: u64 = 100;

/// Longest pause between two steps.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// What the indexer and the rest of the courier have done.
#[derive(Clone, Copy, Debug, Default)]
pub struct IndexingLoad {
    /// How long the last step of the indexer took.
    pub worked: Duration,
    /// How many events were appended in the time `measured`.
    pub events: u64,
    pub measured: Duration,
    /// For how long the index has not had all messages.
    pub behind: Duration,
}

impl IndexingLoad {
    /// Whether the courier has other work.
    pub fn is_busy(&self) -> bool {
        let millis = u64::try_from(self.measured.as_millis()).unwrap_or(u64::MAX).max(1);
        self.events.saturating_mul(1_000) / millis >= BUSY_RATE
    }

    /// How long the indexer waits before its next step, unless the courier is less busy before.
    pub fn pause(&self) -> Duration {
        if !self.is_busy() {
            return Duration::ZERO;
        }
        let rest = match self.behind.as_secs() {
            0..60 => 39,
            60..600 => 9,
            _ => 1,
        };
        self.worked.saturating_mul(rest).min(MAX_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_grows_with_the_work_and_shrinks_with_the_time_behind() {
        for (events, measured_ms, behind_s, expected_ms) in [
            (0, 0, 0, 0),
            (99, 1_000, 0, 0),
            (100, 1_000, 0, 3_900),
            (20, 200, 59, 3_900),
            (19, 200, 59, 0),
            (9_000, 1_000, 60, 900),
            (9_000, 1_000, 599, 900),
            (9_000, 1_000, 600, 100),
            (9_000, 1_000, u64::MAX, 100),
            (99, 1_000, u64::MAX, 0),
            (u64::MAX, 0, 0, 3_900),
        ] {
            let load = IndexingLoad {
                worked: Duration::from_millis(100),
                events,
                measured: Duration::from_millis(measured_ms),
                behind: Duration::from_secs(behind_s),
            };
            assert_eq!(load.pause(), Duration::from_millis(expected_ms), "{load:?}");
        }
    }

    #[test]
    fn pause_after_a_long_step_is_bounded() {
        let load = IndexingLoad {
            worked: Duration::MAX,
            events: 100,
            measured: Duration::from_secs(1),
            behind: Duration::ZERO,
        };
        assert_eq!(load.pause(), MAX_PAUSE);
    }
}
