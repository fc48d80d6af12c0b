//! Elapsed-time counter for retention. Clock steps of more than one day are ignored.
//!
//! The machine's clock can be wrong by years and correct again an hour later, and purged
//! data cannot be restored. So age is not the difference of two clock readings but the sum
//! of the steps between them, without steps of more than one day and steps back. A machine
//! that was off for a week keeps its files a week longer.

use std::time::Duration;

use crate::time::Timestamp;

/// The longest step of the clock that is counted.
pub const MAX_CLOCK_STEP: Duration = Duration::from_secs(86_400);

/// The elapsed time, and the clock reading that it was counted up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionClock {
    /// The last clock reading.
    pub noted_at: Timestamp,
    /// The elapsed time in milliseconds.
    pub elapsed_ms: i64,
}

/// Whether a step of the clock was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockStep {
    Passed,
    /// Longer than one day, or backwards: not counted.
    Jumped,
}

impl RetentionClock {
    /// A counter that starts at `now`.
    pub const fn start(now: Timestamp) -> Self {
        Self { noted_at: now, elapsed_ms: 0 }
    }

    /// Counts the step from the last clock reading to `now`.
    #[must_use]
    pub fn advance(self, now: Timestamp) -> (Self, ClockStep) {
        let step = now.ms().saturating_sub(self.noted_at.ms());
        let counted =
            u64::try_from(step).is_ok_and(|ms| Duration::from_millis(ms) <= MAX_CLOCK_STEP);
        let elapsed_ms = self.elapsed_ms.saturating_add(if counted { step } else { 0 });
        (
            Self { noted_at: now, elapsed_ms },
            if counted { ClockStep::Passed } else { ClockStep::Jumped },
        )
    }

    pub const fn day(&self) -> i64 {
        self.elapsed_ms / 86_400_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    fn days(steps: &[i64]) -> i64 {
        let mut clock = RetentionClock::start(Timestamp::from_ms(0));
        let mut now = 0;
        for step in steps {
            now += step;
            clock = clock.advance(Timestamp::from_ms(now)).0;
        }
        clock.day()
    }

    #[test]
    fn clock_jumps_are_not_counted() {
        assert_eq!(days(&[24 * HOUR; 30]), 30);
        assert_eq!(days(&[12 * HOUR; 30]), 15);
        let ten_years = 10 * 365 * 24 * HOUR;
        assert_eq!(days(&[ten_years, HOUR, -ten_years, HOUR]), 0);
        assert_eq!(days(&[24 * HOUR + 1; 30]), 0);
        assert_eq!(days(&[-HOUR, 2 * HOUR]), 0);
        let step =
            RetentionClock::start(Timestamp::from_ms(0)).advance(Timestamp::from_ms(ten_years)).1;
        assert_eq!(step, ClockStep::Jumped);
        for (from, to) in [(i64::MIN, i64::MAX), (i64::MAX, i64::MIN), (0, i64::MAX)] {
            let clock = RetentionClock { noted_at: Timestamp::from_ms(from), elapsed_ms: i64::MAX };
            let (clock, step) = clock.advance(Timestamp::from_ms(to));
            assert_eq!((clock.elapsed_ms, step), (i64::MAX, ClockStep::Jumped), "{from} {to}");
        }
    }
}
