//! The quota of a tunnel: how many bytes it may receive per day.
//!
//! A provider with a valid signature can still send without end. With the retention time of
//! Mails, the quota limits the disk space that one tunnel can occupy.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use monoco_core::time::Timestamp;

const DAY_MS: u128 = 86_400_000;

/// Counts received bytes. They are released evenly over one day.
#[derive(Debug)]
pub struct IntakeQuota {
    /// Bytes per day, and in one burst.
    limit: AtomicU64,
    used: Mutex<UsedQuota>,
}

#[derive(Clone, Copy, Debug)]
struct UsedQuota {
    bytes: u64,
    at: Timestamp,
}

impl IntakeQuota {
    pub fn new(limit: u64, now: Timestamp) -> Self {
        Self { limit: AtomicU64::new(limit), used: Mutex::new(UsedQuota { bytes: 0, at: now }) }
    }

    /// Sets the limit. What is used stays used.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Charges a request of `bytes`. Fails with the time after which the request is accepted.
    pub fn charge(&self, bytes: u64, now: Timestamp) -> Result<(), Duration> {
        if bytes == 0 {
            return Ok(());
        }
        let limit = self.limit.load(Ordering::Relaxed);
        // Nothing panics while it holds the lock.
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let released = now.since(used.at).as_millis() * u128::from(limit) / DAY_MS;
        let released = u64::try_from(released).unwrap_or(u64::MAX);
        if released > 0 {
            *used = UsedQuota { bytes: used.bytes.saturating_sub(released), at: now };
        }
        // A request that is larger than the whole quota is accepted when nothing is used.
        let excess = (used.bytes + bytes).saturating_sub(limit).min(used.bytes);
        if excess > 0 {
            let wait = u128::from(excess) * DAY_MS / u128::from(limit.max(1));
            return Err(Duration::from_millis(u64::try_from(wait).unwrap_or(u64::MAX)));
        }
        used.bytes += bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_released_over_a_day() {
        let at = |hours: i64| Timestamp::from_ms(hours * 3_600_000);
        let quota = IntakeQuota::new(2400, at(0));
        assert_eq!(quota.charge(2400, at(0)), Ok(()));
        assert_eq!(quota.charge(100, at(0)), Err(Duration::from_secs(3600)));
        assert_eq!(quota.charge(100, at(1)), Ok(()));
        assert_eq!(quota.charge(1, at(1)), Err(Duration::from_secs(36)));
        assert_eq!(quota.charge(5000, at(2)), Err(Duration::from_secs(23 * 3600)));
        assert_eq!(quota.charge(5000, at(25)), Ok(()), "larger than the quota, after a day");
        quota.set_limit(6000);
        assert_eq!(quota.charge(1000, at(25)), Ok(()), "the rest of a larger quota");
        assert!(quota.charge(1, at(25)).is_err());
    }
}
