//! The only caller of `now()`: the clock of the courier and of commands.
//!
//! The courier reads the wall clock once at its start, and counts elapsed time after that.
//! A change of the wall clock while it runs therefore affects no lease and no order: 5
//! minutes last 5 minutes. The difference is reported as drift; a restart removes it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use monoco_core::retry::Jitter;
use monoco_core::time::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// Also counts while the machine is suspended, so that leases expire during that time.
#[cfg(target_os = "linux")]
const ELAPSED_CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const ELAPSED_CLOCK: ClockId = ClockId::Monotonic;

/// The courier's clock. It never goes back and never jumps while the courier runs.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Time at the start of the clock.
    start: Timestamp,
    /// Reading of the elapsed-time counter at the start.
    passed: Duration,
}

impl Clock {
    /// Starts the clock. `not_before` is the latest time in the store, so that time does
    /// not go back over a restart.
    pub fn start(not_before: Option<Timestamp>) -> Self {
        let wall = wall_now();
        Self { start: not_before.map_or(wall, |latest| latest.max(wall)), passed: elapsed() }
    }

    pub fn now(&self) -> Timestamp {
        self.at(elapsed())
    }

    /// The time at a reading of the elapsed-time counter.
    fn at(&self, passed: Duration) -> Timestamp {
        self.start + passed.saturating_sub(self.passed)
    }

    /// Reads the wall clock, which may jump. Only for signatures and times that other
    /// systems check.
    pub fn wall(&self) -> Timestamp {
        wall_now()
    }

    /// Difference between the wall clock and this clock in milliseconds; negative when the
    /// wall clock is behind.
    pub fn drift(&self) -> i64 {
        wall_now().ms().saturating_sub(self.now().ms())
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::start(None)
    }
}

/// Reads the wall clock, for commands that end soon.
pub fn wall_now() -> Timestamp {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_ms(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Reading of the elapsed-time counter.
fn elapsed() -> Duration {
    Duration::try_from(clock_gettime(ELAPSED_CLOCK)).unwrap_or_default()
}

/// Random jitter for retry delays.
pub fn jitter() -> Jitter {
    // Without randomness the full delay is used.
    Jitter::from_random(getrandom::u32().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than the test takes, in milliseconds.
    const LONG: i64 = 3_600_000;

    #[test]
    fn clock_starts_at_the_wall_clock_or_the_latest_stored_time() {
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
    fn clock_counts_elapsed_time_and_ignores_the_wall_clock() {
        // Fixed readings: a machine that has just booted has no reading of an hour ago.
        let hour = Duration::from_secs(3600);
        let clock = Clock { start: Timestamp::from_ms(5), passed: hour };
        assert_eq!(clock.at(hour).ms(), 5);
        assert_eq!(clock.at(2 * hour).ms(), 3_600_005, "one hour later");
        assert_eq!(clock.at(Duration::ZERO).ms(), 5, "a counter that goes back holds the time");
        let clock = Clock { start: Timestamp::from_ms(5), passed: elapsed() };
        let now = clock.now().ms();
        assert!((5..LONG).contains(&now), "{now}");
        assert_eq!(clock.drift().signum(), 1, "the wall clock is decades ahead of 1970");
    }

    #[test]
    fn drift_is_the_difference_to_the_wall_clock() {
        assert!(Clock::start(None).drift().abs() < 60_000);
        let ahead = Clock::start(Some(wall_now() + Duration::from_secs(7200)));
        assert!((-7_200_000..-7_100_000).contains(&ahead.drift()), "{}", ahead.drift());
    }
}
