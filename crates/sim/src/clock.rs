//! Reads the wall clock: signatures and message ids carry the real time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the microseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "this is the clock of the emulator")]
pub fn now_us() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the milliseconds since 1970.
pub fn now_ms() -> u64 {
    now_us() / 1000
}

/// Gives times that are unique and increase, for message ids.
#[derive(Debug, Default)]
pub struct UniqueClock {
    last_us: u64,
}

impl UniqueClock {
    pub fn next_us(&mut self) -> u64 {
        self.last_us = now_us().max(self.last_us + 1);
        self.last_us
    }
}

/// Formats microseconds as the id of a Slack message: seconds, a point and six digits.
pub fn slack_ts(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

/// Parses an id as [`slack_ts`] formats it. Fewer digits after the point are padded.
pub fn parse_slack_ts(ts: &str) -> Option<u64> {
    let (seconds, fraction) = ts.split_once('.').unwrap_or((ts, "0"));
    if fraction.len() > 6 {
        return None;
    }
    let micros: u64 = format!("{fraction:0<6}").parse().ok()?;
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slack_ts_survives_a_round_trip_and_accepts_short_fractions() {
        assert_eq!(slack_ts(1_700_000_000_000_100), "1700000000.000100");
        assert_eq!(parse_slack_ts("1700000000.000100"), Some(1_700_000_000_000_100));
        assert_eq!(parse_slack_ts("1700000000"), Some(1_700_000_000_000_000));
        assert_eq!(parse_slack_ts("1700000000.5"), Some(1_700_000_000_500_000));
        assert_eq!(parse_slack_ts("yesterday"), None);
    }

    #[test]
    fn unique_clock_never_repeats_a_time() {
        let mut clock = UniqueClock::default();
        let times: Vec<_> = (0..1000).map(|_| clock.next_us()).collect();
        assert!(times.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
