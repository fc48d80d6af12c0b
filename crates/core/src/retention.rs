//! How long the hub has lived, for what is thrown away by age.
//!
//! The machine's clock may be wrong by years, and an hour later right again. What is
//! deleted does not come back, so age is not the difference of two clock readings: it
//! is the sum of the short steps between them, and a step of more than a day is not
//! believed and counts nothing. A machine that was off for a week keeps its files a
//! week longer.

use std::time::Duration;

use crate::time::Timestamp;

/// The longest step of the clock that is believed.
pub const LONGEST_STEP: Duration = Duration::from_secs(86_400);

/// How long the hub has lived, and when that was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionClock {
    /// What the clock said.
    pub noted_at: Timestamp,
    /// How long, in milliseconds.
    pub lived_ms: i64,
}

/// What a step of the clock was taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockStep {
    /// Time that passed.
    Passed,
    /// A jump: nothing grows older by it.
    Jumped,
}

impl RetentionClock {
    /// A life that starts.
    pub const fn start(now: Timestamp) -> Self {
        Self { noted_at: now, lived_ms: 0 }
    }

    /// Goes on to `now`.
    #[must_use]
    pub fn advance(self, now: Timestamp) -> (Self, ClockStep) {
        let step = now.ms().saturating_sub(self.noted_at.ms());
        let believed = (0..=86_400_000).contains(&step);
        let lived_ms = self.lived_ms.saturating_add(if believed { step } else { 0 });
        (
            Self { noted_at: now, lived_ms },
            if believed { ClockStep::Passed } else { ClockStep::Jumped },
        )
    }

    /// The day of this life, from 0.
    pub const fn day(&self) -> i64 {
        self.lived_ms / 86_400_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    fn days(steps: &[i64]) -> i64 {
        let mut life = RetentionClock::start(Timestamp::from_ms(0));
        let mut now = 0;
        for step in steps {
            now += step;
            life = life.advance(Timestamp::from_ms(now)).0;
        }
        life.day()
    }

    #[test]
    fn a_jump_makes_nothing_older() {
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
            let life = RetentionClock { noted_at: Timestamp::from_ms(from), lived_ms: i64::MAX };
            let (life, step) = life.advance(Timestamp::from_ms(to));
            assert_eq!((life.lived_ms, step), (i64::MAX, ClockStep::Jumped), "{from} {to}");
        }
    }
}
