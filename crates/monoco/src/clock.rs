//! The only caller of `now()`.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use monoco_core::retry::Jitter;
use monoco_core::time::Timestamp;

/// The courier's clock. It never goes back while the courier runs, so that what
/// is ordered by it stays in order when somebody sets the machine's clock.
#[derive(Debug, Default)]
pub struct Clock {
    latest: AtomicI64,
}

impl Clock {
    /// What time it is.
    pub fn now(&self) -> Timestamp {
        #[expect(clippy::disallowed_methods, reason = "this is the clock")]
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_ms(self.latest.fetch_max(wall, Ordering::Relaxed).max(wall))
    }
}

/// A random number that spreads waits.
pub fn jitter() -> Jitter {
    // Without randomness everybody waits the full time; that is no error.
    Jitter::from_random(getrandom::u32().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_goes_back() {
        let clock = Clock::default();
        let late = Timestamp::from_ms(i64::MAX - 1);
        clock.latest.store(late.ms(), Ordering::Relaxed);
        assert_eq!(clock.now(), late);
    }
}
