//! The only caller of `now()`: the clock of the courier and of commands.
//!
//! The courier reads the wall clock once at its start, and counts elapsed time after that.
//! A change of the wall clock while it runs therefore affects no lease and no order: 5
//! minutes last 5 minutes. The difference is reported as drift; a restart removes it.
//!
//! Couriers that share a store follow the clock of its database server, so that they agree on
//! when a lease expires. Differences are removed by at most 50 ms every 5 s, and the time never
//! goes back.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use monoco_core::clock_skew::clock_problem;
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
    /// The correction by the clock of a database server, if there is one.
    server: Option<&'static ServerOffset>,
}

/// How far the clock of a database server is ahead of the count since the start.
#[derive(Debug)]
struct ServerOffset {
    ms: AtomicI64,
    /// The latest time that was returned.
    latest: AtomicI64,
    /// How far the server was ahead of this clock at the last comparison.
    ahead_ms: AtomicI64,
}

/// Largest correction of one comparison with the database server, in milliseconds.
const MAX_SLEW_MS: i64 = 50;

impl Clock {
    /// Starts the clock. `not_before` is the latest time in the store, so that time does
    /// not go back over a restart.
    pub fn start(not_before: Option<Timestamp>) -> Self {
        let wall = wall_now();
        let start = not_before.map_or(wall, |latest| latest.max(wall));
        Self { start, passed: elapsed(), server: None }
    }

    /// Starts a clock that follows the clock of a database server, which shows `time` now. It is
    /// created once per process, and lives as long.
    pub fn following(time: Timestamp) -> Self {
        let [ms, latest, ahead_ms] = [0; 3].map(AtomicI64::new);
        let server = Some(&*Box::leak(Box::new(ServerOffset { ms, latest, ahead_ms })));
        Self { start: time, passed: elapsed(), server }
    }

    pub fn now(&self) -> Timestamp {
        self.corrected(elapsed())
    }

    /// Compares this clock with the server's, which showed `time` between two readings of the
    /// elapsed-time counter, and removes a part of the difference.
    pub fn follow(&self, time: Timestamp, asked_at: Duration, answered_at: Duration) {
        let Some(server) = self.server else { return };
        let middle = asked_at + answered_at.saturating_sub(asked_at) / 2;
        let shown = self.at(middle).ms().saturating_add(server.ms.load(Ordering::Relaxed));
        let difference = time.ms().saturating_sub(shown);
        server.ahead_ms.store(difference, Ordering::Relaxed);
        server.ms.fetch_add(difference.clamp(-MAX_SLEW_MS, MAX_SLEW_MS), Ordering::Relaxed);
    }

    /// The time at a reading of the elapsed-time counter, with the correction.
    fn corrected(&self, passed: Duration) -> Timestamp {
        let counted = self.at(passed);
        let Some(server) = self.server else { return counted };
        let now = counted.ms().saturating_add(server.ms.load(Ordering::Relaxed));
        let latest = server.latest.fetch_max(now, Ordering::Relaxed);
        Timestamp::from_ms(now.max(latest))
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

    /// Names a clock that differs too much, when this one follows a database server.
    pub fn problem(&self) -> Option<String> {
        clock_problem(self.drift(), self.server?.ahead_ms.load(Ordering::Relaxed))
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

/// Reading of the elapsed-time counter, which a change of the wall clock does not affect.
pub fn elapsed() -> Duration {
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
        let clock = Clock { start: Timestamp::from_ms(5), passed: hour, server: None };
        assert_eq!(clock.at(hour).ms(), 5);
        assert_eq!(clock.at(2 * hour).ms(), 3_600_005, "one hour later");
        assert_eq!(clock.at(Duration::ZERO).ms(), 5, "a counter that goes back holds the time");
        let clock = Clock { start: Timestamp::from_ms(5), passed: elapsed(), server: None };
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

    #[test]
    fn difference_to_the_server_is_removed_slowly_and_never_backwards() {
        let secs = Duration::from_secs;
        let clock = Clock { passed: secs(10), ..Clock::following(Timestamp::from_ms(1_000_000)) };
        let shown = |at| clock.corrected(secs(at)).ms();
        assert_eq!(shown(10), 1_000_000);
        // The server is 120 ms ahead: 50, 50, 20.
        for (at, expected) in [(15, 1_005_050), (20, 1_010_100), (25, 1_015_120)] {
            let time = Timestamp::from_ms(1_000_120 + (at - 10) * 1_000);
            let at = u64::try_from(at).unwrap();
            clock.follow(time, secs(at) - secs(1), secs(at) + secs(1));
            assert_eq!(shown(at), expected);
        }
        // Then it is set back by an hour.
        clock.follow(Timestamp::from_ms(0), secs(25), secs(25));
        assert_eq!(shown(25), 1_015_120, "not back");
        assert_eq!(shown(26), 1_016_070);
        // Reads the counter of this machine, which the clock does not go back behind.
        assert!(clock.problem().is_some_and(|problem| problem.contains("the database server is")));
    }
}
