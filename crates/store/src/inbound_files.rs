//! Files that are fetched from a provider after their message is stored.

use async_trait::async_trait;
use monoco_core::did::TunnelId;
use monoco_core::retry::{Failure, Jitter};
use monoco_core::time::Timestamp;
use tokio::io::AsyncRead;
use tokio::sync::watch;

use crate::StoreError;

/// A file to fetch.
#[derive(Clone, PartialEq, Eq)]
pub struct InboundFile {
    /// Number of the file in the store.
    pub id: i64,
    /// As the adapter wrote it. It can be a secret.
    pub handle: String,
    /// Number of failed attempts.
    pub attempts: u32,
}

impl std::fmt::Debug for InboundFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, attempts, handle: _ } = self;
        let mut shown = f.debug_struct("InboundFile");
        shown.field("id", id).field("attempts", attempts).finish_non_exhaustive()
    }
}

/// Name and type of a file as the provider gave them with its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileLabels {
    pub name: Option<String>,
    pub mime_type: Option<String>,
}

/// Stores files that are fetched after their message.
#[async_trait]
pub trait InboundFileStore: Send + Sync {
    /// Lists files of a tunnel whose next attempt is due, the longest due first.
    async fn due_files(
        &self,
        tunnel: &TunnelId,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<InboundFile>, StoreError>;

    /// Returns when the next file of a tunnel is due, or `None` when there is none.
    async fn next_file(&self, tunnel: &TunnelId) -> Result<Option<Timestamp>, StoreError>;

    /// Tells whether a file is still to be fetched. It is not when its message was merged, recalled
    /// or erased.
    async fn wants_file(&self, id: i64) -> Result<bool, StoreError>;

    /// Stores the bytes of a file while they are read. Returns `false` and stores nothing when
    /// the file is not wanted any more: its message was merged, recalled or erased.
    ///
    /// # Errors
    ///
    /// [`StoreError::TooLarge`] when it has more than `limit` bytes, and
    /// [`StoreError::SourceFailed`] when reading fails.
    async fn store_file(
        &self,
        id: i64,
        labels: FileLabels,
        bytes: &mut (dyn AsyncRead + Send + Unpin),
        limit: u64,
    ) -> Result<bool, StoreError>;

    /// Stores that an attempt failed, and when the next one starts, if there is one. Returns
    /// `false` when the file is not wanted any more.
    async fn fail_file(
        &self,
        id: i64,
        failure: Failure,
        jitter: Jitter,
        now: Timestamp,
    ) -> Result<bool, StoreError>;

    /// Lets windows of a tunnel, or of all tunnels, wait again for their pending files, after a
    /// start. Returns the number of windows.
    async fn resume_files(
        &self,
        tunnel: Option<&TunnelId>,
        now: Timestamp,
    ) -> Result<usize, StoreError>;

    /// A counter that changes after each commit that stores a message with files to fetch.
    fn newest_file(&self) -> watch::Receiver<u64>;
}
