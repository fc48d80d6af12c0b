//! Counters of events per minute, and how long deliveries and letters wait.

use async_trait::async_trait;
use monoco_core::figures::{Figure, WaitingAge};
use monoco_core::time::Timestamp;

use crate::StoreResult;

/// Stores how many events of each kind happened per minute.
#[async_trait]
pub trait FigureStore: Send + Sync {
    /// Number of the last event that was counted; 0 before the first one.
    async fn counted_events(&self) -> StoreResult<i64>;

    /// Adds counts of the events after `after` up to `up_to`, and deletes counters older than
    /// `keep_from`. Returns whether they were added: not when `after` is not the last event that
    /// was counted.
    async fn add_figures(
        &self,
        after: i64,
        up_to: i64,
        figures: Vec<Figure>,
        keep_from: Timestamp,
    ) -> StoreResult<bool>;

    /// Lists sums of counters since a time, oldest first, for intervals of `step_minutes`.
    async fn figures(
        &self,
        since: Timestamp,
        step_minutes: i64,
        limit: usize,
    ) -> StoreResult<Vec<Figure>>;

    /// Stores how long the oldest delivery of each tunnel and the oldest letter of each external
    /// worker have been waiting, and deletes what is older than `keep_from`. Returns whether
    /// anything waits; when nothing does, nothing is committed.
    async fn sample_waiting(&self, now: Timestamp, keep_from: Timestamp) -> StoreResult<bool>;

    /// Lists the longest times since a time, oldest first, for intervals of `step_minutes`.
    async fn waiting_ages(
        &self,
        since: Timestamp,
        step_minutes: i64,
        limit: usize,
    ) -> StoreResult<Vec<WaitingAge>>;
}
