//! When a round of an e-mail account ends.

use crate::time::Timestamp;

/// The last round that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastRound {
    /// How often all folders had been read.
    scans: u64,
    /// When the round ended.
    at: Option<Timestamp>,
}

impl LastRound {
    /// Returns the round that ends now, after all folders have been read `scans` times. `None` when
    /// they have not been read since the last round.
    ///
    /// Its time is later than that of the last round, also within one millisecond: who asks for a
    /// scan waits until the time changes.
    pub fn next(self, scans: u64, now: Timestamp) -> Option<(Self, Timestamp)> {
        let after_last = self.at.map_or(now, |last| Timestamp::from_ms(last.ms() + 1));
        let at = now.max(after_last);
        (scans != self.scans).then_some((Self { scans, at: Some(at) }, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scan_ends_a_round_with_a_time_of_its_own() {
        let at = Timestamp::from_ms;
        let none = LastRound::default();
        assert_eq!(none.next(0, at(5)), None);
        let (first, ended) = none.next(1, at(5)).unwrap();
        assert_eq!((ended, first.next(1, at(9))), (at(5), None));
        let (second, ended) = first.next(2, at(5)).unwrap();
        assert_eq!(ended, at(6), "a scan in the same millisecond");
        let (third, ended) = second.next(4, at(5)).unwrap();
        assert_eq!(ended, at(7));
        assert_eq!(third.next(5, at(90)).unwrap().1, at(90));
    }
}
