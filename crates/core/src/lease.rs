//! Leases: exclusive access for a limited time.
//!
//! A holder gets a lease until a point in time, and a number, the **epoch**, that increases
//! with every lease. A holder that stalls beyond the end of its lease can lose it to another
//! holder; its later requests show the old epoch and are rejected. The state alone could not
//! detect that, because it is the same under the second holder.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The name that the holder of a lease gives itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Holder(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("holder: {0}")]
pub struct InvalidHolder(&'static str);

/// The length of a lease: 1 s to 24 h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseDuration(Duration);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lease of {0} s; expected 1 to 86400 s")]
pub struct InvalidLeaseDuration(i64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub holder: Holder,
    /// When the lease expires, unless it is renewed.
    pub until: Timestamp,
}

/// What a caller shows to prove that it holds the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseProof {
    /// The epoch of the lease. Without it, the name of the holder is checked.
    pub epoch: Option<u64>,
    pub holder: Holder,
}

/// The caller's lease has expired or belongs to another holder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseLost {
    #[error("the lease with epoch {shown} has expired; the current epoch is {current}")]
    Stale { shown: u64, current: u64 },
    #[error(
        "held by {holder} until {}; wait for it to expire or ask {holder} to release it",
        .0.until.rfc3339(), holder = .0.holder.as_str()
    )]
    Held(Lease),
}

impl Holder {
    /// The name of callers that give no name.
    pub fn anonymous() -> Self {
        Self("anonymous".to_owned())
    }

    /// # Errors
    ///
    /// [`InvalidHolder`] when the name is empty, longer than 256 bytes, or has control characters.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidHolder> {
        let name = name.into();
        if name.is_empty() {
            return Err(InvalidHolder("empty; expected the name of the agent or program"));
        }
        if name.len() > 256 {
            return Err(InvalidHolder("longer than 256 bytes"));
        }
        if name.chars().any(char::is_control) {
            return Err(InvalidHolder("has control characters"));
        }
        Ok(Self(name))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl LeaseDuration {
    /// The default: 300 s.
    pub const DEFAULT: Self = Self(Duration::from_secs(300));

    /// # Errors
    ///
    /// [`InvalidLeaseDuration`] outside of 1 s to 24 h.
    pub fn from_secs(secs: i64) -> Result<Self, InvalidLeaseDuration> {
        match u64::try_from(secs) {
            Ok(secs @ 1..=86_400) => Ok(Self(Duration::from_secs(secs))),
            _ => Err(InvalidLeaseDuration(secs)),
        }
    }

    /// Returns the shortest lease of whole seconds that covers `work`, at most 24 h.
    pub fn covering(work: Duration) -> Self {
        let secs = work.as_secs() + u64::from(work.subsec_nanos() > 0);
        Self(Duration::from_secs(secs.clamp(1, 86_400)))
    }

    pub const fn length(self) -> Duration {
        self.0
    }
}

impl Lease {
    /// Creates a lease that starts at `now`.
    pub fn start(holder: Holder, now: Timestamp, term: LeaseDuration) -> Self {
        Self { holder, until: now + term.length() }
    }

    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.until <= now
    }

    /// Checks that the caller with this proof holds the lease with number `epoch`.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`] with the current holder or epoch.
    pub fn check(&self, epoch: u64, proof: &LeaseProof) -> Result<(), LeaseLost> {
        match proof.epoch {
            Some(shown) if shown != epoch => Err(LeaseLost::Stale { shown, current: epoch }),
            Some(_) => Ok(()),
            None if proof.holder == self.holder => Ok(()),
            None => Err(LeaseLost::Held(self.clone())),
        }
    }
}

impl LeaseProof {
    /// Checks the proof of a caller while there is no lease.
    ///
    /// # Errors
    ///
    /// [`LeaseLost::Stale`] when the proof has an epoch that is not the latest.
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
    fn invalid_durations_and_names_are_rejected() {
        for secs in [0, -1, i64::MIN, 86_401, 1_000_000_000_000] {
            assert_eq!(LeaseDuration::from_secs(secs), Err(InvalidLeaseDuration(secs)));
        }
        assert!(LeaseDuration::from_secs(1).is_ok() && LeaseDuration::from_secs(86_400).is_ok());
        let covering = |ms| LeaseDuration::covering(Duration::from_millis(ms)).length().as_secs();
        assert_eq!([0, 59_000, 59_001].map(covering), [1, 59, 60]);
        assert_eq!(covering(u64::MAX), 86_400);
        for text in ["", "a\nb", "\u{1b}[31m", &"x".repeat(257)] {
            assert!(Holder::new(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn proof_is_checked_by_epoch_or_else_by_name() {
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
