//! Limits a log message that other processes can cause to one per second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Shortest time between two messages.
const INTERVAL: Duration = Duration::from_secs(1);

/// Counts the messages that are not logged.
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<(Option<Instant>, u64)>);

impl LogLimit {
    /// Returns how many messages were suppressed since the last one, or `None` when this one
    /// is to be suppressed.
    pub fn admit(&self) -> Option<u64> {
        // Nothing panics while it holds the lock.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, suppressed) = &mut *state;
        let now = Instant::now();
        if last.is_some_and(|last| now.duration_since(last) < INTERVAL) {
            *suppressed += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_per_second_is_logged_with_the_number_of_suppressed_ones() {
        let limit = LogLimit::default();
        assert_eq!([limit.admit(), limit.admit(), limit.admit()], [Some(0), None, None]);
        let before = Instant::now().checked_sub(INTERVAL);
        limit.0.lock().unwrap().0 = before;
        assert_eq!([limit.admit(), limit.admit()], [Some(2), None]);
    }
}
