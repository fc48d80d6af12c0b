//! Counts and health of the store.

use std::collections::BTreeMap;

use async_trait::async_trait;
use monoco_core::delivery::SendState;
use monoco_core::record::{BoxKind, ReadState};
use monoco_core::time::Timestamp;

use crate::{RemotePlace, StoreResult};

/// Numbers of rows, and the ages of the oldest ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    pub records: BTreeMap<(BoxKind, ReadState), i64>,
    pub deliveries: BTreeMap<SendState, i64>,
    /// Creation time of the oldest delivery that is not sent yet.
    pub oldest_waiting: Option<Timestamp>,
    /// Inbound messages that are not merged into a Mail yet.
    pub unmerged: i64,
    /// Mails that are not done: in the location `inbound`, claimed or not.
    pub waiting_mails: i64,
    /// Messages that wait for approval.
    pub pending_approvals: i64,
    /// Claims that are dead letters.
    pub dead_claims: i64,
    /// Time of the oldest Mail without a claim.
    pub oldest_unclaimed: Option<Timestamp>,
}

/// Whether the store accepts writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreHealth {
    Ok,
    /// The last write failed because the disk is full. The next write tries again.
    Full,
    /// The last write failed with an error that can be temporary, such as a read-only disk.
    Failing(String),
    /// A sync failed; no write is accepted until the courier is restarted.
    Broken(String),
}

/// Reports counts and health.
#[async_trait]
pub trait StatusStore: Send + Sync {
    /// Returns the row counts and the ages of the oldest rows.
    async fn counts(&self) -> StoreResult<StoreCounts>;

    /// Lists attachments and large objects whose files are missing or have another size: the
    /// number, and up to `limit` names.
    async fn missing_blobs(&self, limit: usize) -> StoreResult<(usize, Vec<String>)>;

    /// Returns the remote place of large objects, if they have one, and whether it answers.
    fn remote_objects(&self) -> Option<RemotePlace>;

    /// Writes, reads and deletes a small object in the remote place, if there is one. The result is
    /// that of [`Self::remote_objects`] as well.
    async fn check_remote_objects(&self) -> StoreResult<()>;

    /// Returns whether the store accepts writes.
    fn health(&self) -> StoreHealth;

    /// Lists up to 100 damaged rows that were found since the start, with the reasons. Lists
    /// and background loops pass over them.
    fn damaged_rows(&self) -> Vec<String>;
}
