//! Halts: the kill switch.

use async_trait::async_trait;
use monoco_core::halt::{Halt, HaltScope, HaltSet};
use monoco_core::time::Timestamp;

use crate::StoreResult;

/// What a halt finds, or leaves behind when it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HaltCounts {
    /// Attempts that are in progress and cannot be recalled.
    pub sending: i64,
    /// Deliveries that wait in the queue.
    pub waiting: i64,
    /// Messages that wait for approval.
    pub pending: i64,
}

/// Stores halts. Leases read them in their own transaction.
#[async_trait]
pub trait HaltStore: Send + Sync {
    /// Stores a halt. When it returns, no delivery in its scope is leased any more. Repeating it
    /// changes only `lock`.
    async fn put_halt(&self, halt: Halt) -> StoreResult<HaltCounts>;

    /// Ends a halt. `None` as counts means that there was none.
    async fn remove_halt(
        &self,
        scope: &HaltScope,
        by: &str,
        now: Timestamp,
    ) -> StoreResult<Option<HaltCounts>>;

    /// Returns all halts that apply now.
    async fn halts(&self) -> StoreResult<HaltSet>;
}
