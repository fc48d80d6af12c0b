//! The retention clock, and what is purged by age.
//!
//! Ages are counted in days of the retention clock, which ignores steps of the system clock.

use std::time::Duration;

use async_trait::async_trait;
use monoco_core::retention::{ClockStep, RetentionClock};
use monoco_core::time::Timestamp;

use crate::StoreResult;

/// Keeps the retention clock and purges old data.
#[async_trait]
pub trait RetentionStore: Send + Sync {
    /// Returns the latest stored time, or `None` in an empty store.
    async fn last_clock_reading(&self) -> StoreResult<Option<Timestamp>>;

    /// Ends leases and waits that reach further into the future than any lease or wait that
    /// was started by `now` can: they were set by a wrong clock. Returns their number.
    async fn expire_future_leases(&self, now: Timestamp) -> StoreResult<usize>;

    /// Advances the retention clock to `now` and returns its new value.
    async fn advance_retention_clock(
        &self,
        now: Timestamp,
    ) -> StoreResult<(RetentionClock, ClockStep)>;

    /// Archives at most `limit` Mails that arrived in `inbound` on `day` or before and that no
    /// workspace has ever claimed. Their records keep their states. Returns their number, without
    /// damaged Mails, which are passed over.
    async fn expire_unclaimed_mails(
        &self,
        day: i64,
        limit: usize,
        now: Timestamp,
    ) -> StoreResult<usize>;

    /// Removes the files of at most `limit` Mails that were archived on `day` or before.
    /// Mails with an open claim stay. Returns their number, without damaged Mails, which are
    /// passed over.
    async fn purge_archived_mails(
        &self,
        day: i64,
        limit: usize,
        now: Timestamp,
    ) -> StoreResult<usize>;

    /// Deletes the files of purged mails and letters that nothing refers to any more. Files that
    /// were stored again within `min_age` stay until a later call, because a caller can be about to
    /// refer to them. Returns the number of deleted files.
    async fn delete_purged_files(&self, min_age: Duration) -> StoreResult<usize>;

    /// Deletes at most `limit` events of `day` or before. Returns their number.
    async fn purge_events(&self, day: i64, limit: usize) -> StoreResult<usize>;
}
