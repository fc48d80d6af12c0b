//! Counts calls in a sliding window, for the documented rate limits.

use std::collections::{HashMap, VecDeque};

/// Keys with calls that are kept; beyond that the counts start over.
const MAX_KEYS: usize = 10_000;

/// Times of the newest calls by key, in milliseconds.
#[derive(Debug, Default)]
pub struct CallRates {
    calls: HashMap<String, VecDeque<u64>>,
}

impl CallRates {
    /// Returns whether there were `max` calls in the window; counts this one if not.
    pub fn is_too_fast(&mut self, key: &str, max: usize, window_ms: u64, now_ms: u64) -> bool {
        if self.calls.len() > MAX_KEYS {
            self.calls.clear();
        }
        let calls = self.calls.entry(key.to_owned()).or_default();
        while calls.front().is_some_and(|at| at + window_ms <= now_ms) {
            calls.pop_front();
        }
        let is_full = calls.len() >= max;
        if !is_full {
            calls.push_back(now_ms);
        }
        is_full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_one_key_are_limited_in_the_window() {
        let mut rates = CallRates::default();
        let results: Vec<_> =
            [0, 10, 20, 1000, 1001].map(|at| rates.is_too_fast("a", 2, 1000, at)).into();
        assert_eq!(results, [false, false, true, false, true]);
        assert!(!rates.is_too_fast("b", 2, 1000, 20));
    }
}
