//! The only caller of `now()`: the courier's clock, and that of a command.
//!
//! The courier reads the machine's clock once, when it starts, and from then on
//! counts the time that passes. Somebody who sets the machine's clock while it runs
//! moves no lease and no order: what was to last five minutes lasts five minutes.
//! How far the two have come apart is shown, and a restart brings them together.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use monoco_core::retry::Jitter;
use monoco_core::time::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// Counts on while the machine sleeps, so that what was to end meanwhile has ended.
#[cfg(target_os = "linux")]
const PASSING: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const PASSING: ClockId = ClockId::Monotonic;

/// The courier's clock. It never goes back and never jumps while the courier runs.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// What time it was when it was started.
    start: Timestamp,
    /// What had passed by then.
    passed: Duration,
}

impl Clock {
    /// Starts the clock. `not_before` is the latest time that was ever noted: time
    /// does not go back over a restart either.
    pub fn start(not_before: Option<Timestamp>) -> Self {
        let wall = wall_now();
        Self { start: not_before.map_or(wall, |latest| latest.max(wall)), passed: passed() }
    }

    /// What time it is.
    pub fn now(&self) -> Timestamp {
        self.at(passed())
    }

    /// The time at a reading of the elapsed-time counter.
    fn at(&self, passed: Duration) -> Timestamp {
        self.start + passed.saturating_sub(self.passed)
    }

    /// What the machine's clock says. It may jump: only for what others have signed
    /// or are to check by their own clocks.
    pub fn wall(&self) -> Timestamp {
        wall_now()
    }

    /// How far the machine's clock is from ours, in milliseconds; negative when it is
    /// behind.
    pub fn drift(&self) -> i64 {
        wall_now().ms().saturating_sub(self.now().ms())
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::start(None)
    }
}

/// What the machine's clock says, for commands: they are over before it matters.
pub fn wall_now() -> Timestamp {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_ms(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// How much time has passed since some moment before we were.
fn passed() -> Duration {
    Duration::try_from(clock_gettime(PASSING)).unwrap_or_default()
}

/// A random number that spreads waits.
pub fn jitter() -> Jitter {
    // Without randomness everybody waits the full time; that is no error.
    Jitter::from_random(getrandom::u32().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than the test can take.
    const LONG: i64 = 3_600_000;

    #[test]
    fn it_starts_with_the_machine_and_not_before_what_was_noted() {
        let wall = wall_now().ms();
        let late = Timestamp::from_ms(wall + 10 * LONG);
        for (noted, from) in [
            (None, wall),
            (Some(Timestamp::from_ms(0)), wall),
            (Some(late), late.ms()),
            (Some(Timestamp::from_ms(i64::MAX)), i64::MAX),
        ] {
            let now = Clock::start(noted).now().ms();
            assert!(now >= from && now - from < LONG, "{noted:?}: {now}");
        }
    }

    #[test]
    fn it_counts_elapsed_time_and_ignores_the_wall_clock() {
        // The readings are given: a machine that has just booted cannot look an hour back.
        let hour = Duration::from_secs(3600);
        let clock = Clock { start: Timestamp::from_ms(5), passed: hour };
        assert_eq!(clock.at(hour).ms(), 5);
        assert_eq!(clock.at(2 * hour).ms(), 3_600_005, "one hour later");
        assert_eq!(clock.at(Duration::ZERO).ms(), 5, "a counter that goes back holds the time");
        let clock = Clock { start: Timestamp::from_ms(5), passed: passed() };
        let now = clock.now().ms();
        assert!((5..LONG).contains(&now), "{now}");
        assert_eq!(clock.drift().signum(), 1, "the wall clock is decades ahead of 1970");
    }

    #[test]
    fn drift_is_how_far_the_machine_is_from_us() {
        assert!(Clock::start(None).drift().abs() < 60_000);
        let ahead = Clock::start(Some(wall_now() + Duration::from_secs(7200)));
        assert!((-7_200_000..-7_100_000).contains(&ahead.drift()), "{}", ahead.drift());
    }
}
