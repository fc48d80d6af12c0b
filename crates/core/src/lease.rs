//! Holding something for a while.
//!
//! A lease is a promise with a deadline: whoever takes a thing names himself and
//! gets it until a moment, and a number, the **epoch**, that grows with every
//! take. A holder that stalls past its deadline loses the thing to the next one;
//! when it wakes up, its old epoch gives it away. Guarding on the state alone
//! would not: the state reads the same under the second holder.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// Who holds something, as the holder calls itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Holder(String);

/// The text can't name a holder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("holder: {0}")]
pub struct InvalidHolder(&'static str);

/// How long a lease runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseDuration(Duration);

/// The number of seconds is not one a lease can run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a lease runs from 1 to 86400 seconds, not {0}")]
pub struct InvalidLeaseDuration(i64);

/// A hold on something, until it ends or is given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Who has it.
    pub holder: Holder,
    /// Until when, unless renewed.
    pub until: Timestamp,
}

/// What a caller shows to prove that the hold is his.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseProof {
    /// The epoch he was given. Callers that keep none are checked by name.
    pub epoch: Option<u64>,
    /// His name.
    pub holder: Holder,
}

/// The caller does not hold what he thinks he holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseLost {
    /// His epoch is over: the lease ended, and perhaps somebody else has it now.
    #[error("epoch {shown} is over, the current one is {current}")]
    Stale {
        /// What the caller showed.
        shown: u64,
        /// What is current.
        current: u64,
    },
    /// Somebody else holds it.
    #[error("held by {} until {}", .0.holder.as_str(), .0.until.ms())]
    Held(Lease),
}

impl Holder {
    /// The name of callers that give none.
    pub fn anonymous() -> Self {
        Self("anonymous".to_owned())
    }

    /// Checks and takes a name.
    ///
    /// # Errors
    ///
    /// When it is empty, longer than 256 bytes, or has control characters.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidHolder> {
        let name = name.into();
        if name.is_empty() {
            return Err(InvalidHolder("empty; want the name of whoever takes it"));
        }
        if name.len() > 256 {
            return Err(InvalidHolder("longer than 256 bytes"));
        }
        if name.chars().any(char::is_control) {
            return Err(InvalidHolder("has control characters"));
        }
        Ok(Self(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl LeaseDuration {
    /// What a lease runs when nobody says otherwise: 300 s.
    pub const DEFAULT: Self = Self(Duration::from_secs(300));

    /// A term of so many seconds.
    ///
    /// # Errors
    ///
    /// Outside 1 s to 24 h.
    pub fn from_secs(secs: i64) -> Result<Self, InvalidLeaseDuration> {
        match u64::try_from(secs) {
            Ok(secs @ 1..=86_400) => Ok(Self(Duration::from_secs(secs))),
            _ => Err(InvalidLeaseDuration(secs)),
        }
    }

    /// Its length.
    pub const fn length(self) -> Duration {
        self.0
    }
}

impl Lease {
    /// A lease that starts now.
    pub fn start(holder: Holder, now: Timestamp, term: LeaseDuration) -> Self {
        Self { holder, until: now + term.length() }
    }

    /// Whether it has ended.
    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.until <= now
    }

    /// Whether `guard` may act on what this holds in `epoch`.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`], with the truth.
    pub fn check(&self, epoch: u64, guard: &LeaseProof) -> Result<(), LeaseLost> {
        match guard.epoch {
            Some(shown) if shown != epoch => Err(LeaseLost::Stale { shown, current: epoch }),
            Some(_) => Ok(()),
            None if guard.holder == self.holder => Ok(()),
            None => Err(LeaseLost::Held(self.clone())),
        }
    }
}

impl LeaseProof {
    /// Nobody holds it now. A caller that shows an epoch thinks otherwise.
    ///
    /// # Errors
    ///
    /// [`LeaseLost::Stale`] when an epoch is shown that is not the latest.
    pub fn check_free(&self, epoch: u64) -> Result<(), LeaseLost> {
        match self.epoch {
            Some(shown) if shown != epoch => Err(LeaseLost::Stale { shown, current: epoch }),
            _ => Ok(()),
        }
    }
}

impl TryFrom<String> for Holder {
    type Error = InvalidHolder;

    fn try_from(name: String) -> Result<Self, InvalidHolder> {
        Self::new(name)
    }
}

impl From<Holder> for String {
    fn from(holder: Holder) -> Self {
        holder.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Holder {
        Holder::new(text).unwrap()
    }

    #[test]
    fn absurd_terms_and_names_are_refused() {
        for secs in [0, -1, i64::MIN, 86_401, 1_000_000_000_000] {
            assert_eq!(LeaseDuration::from_secs(secs), Err(InvalidLeaseDuration(secs)));
        }
        assert!(LeaseDuration::from_secs(1).is_ok() && LeaseDuration::from_secs(86_400).is_ok());
        for text in ["", "a\nb", "\u{1b}[31m", &"x".repeat(257)] {
            assert!(Holder::new(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_epoch_counts_and_the_name_stands_in_for_it() {
        let lease = Lease::start(name("a"), Timestamp::from_ms(0), LeaseDuration::DEFAULT);
        let check = |epoch, holder| lease.check(2, &LeaseProof { epoch, holder: name(holder) });
        assert!(check(Some(2), "a").is_ok());
        assert!(check(Some(2), "anyone with the epoch").is_ok());
        assert!(check(Some(1), "a").is_err());
        assert!(check(Some(3), "a").is_err());
        assert!(check(None, "a").is_ok());
        assert!(check(None, "b").is_err());
    }
}
