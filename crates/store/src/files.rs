//! Mail files: which directory each file belongs in, and how far the disk has followed.

use async_trait::async_trait;
use monoco_core::claim::{MailLocation, Workspace};
use monoco_core::courier::CourierId;
use monoco_core::mail::MailIndexEntry;
use tokio::sync::watch;

use crate::StoreResult;

/// The current location of one Mail's file, numbered by its last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChange {
    /// Numbers rise with every change. A Mail has only its last change.
    pub change: i64,
    pub entry: MailIndexEntry,
    pub location: MailLocation,
    /// For a dead letter: the failure reason of each workspace.
    pub reasons: Vec<(Workspace, String)>,
}

impl FileChange {
    /// Whether the index has a line for the Mail: it has a file, or readers learn from the line that
    /// its text was erased.
    pub fn is_listed(&self) -> bool {
        self.location.dir().is_some() || self.entry.tombstone().is_some()
    }
}

/// How far the mailbox directory is known to be on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileProgress {
    /// Every change up to this number is on disk.
    pub change: i64,
    /// Synced bytes of the index.
    pub index_bytes: u64,
    /// The last Mail within `index_bytes`.
    pub index_seq: i64,
    /// Number of the index. Rebuilding the index starts a new generation.
    pub generation: i64,
}

/// Feeds the file projector, which writes Mails as files.
#[async_trait]
pub trait MailFileStore: Send + Sync {
    /// Lists Mails with numbers above `after`, in order: the lines of the index. A held Mail
    /// gets a new number when it is released, so that no Mail appears below a number that a
    /// reader has already passed.
    async fn list_index_entries(&self, after: i64, limit: usize) -> StoreResult<Vec<FileChange>>;

    /// Lists the file changes with numbers above `after`, in order.
    async fn list_file_changes(&self, after: i64, limit: usize) -> StoreResult<Vec<FileChange>>;

    /// Returns how far the files of a courier are known to be on disk.
    async fn file_progress(&self, courier: CourierId) -> StoreResult<FileProgress>;

    /// Stores how far the files of a courier are on disk.
    async fn set_file_progress(
        &self,
        courier: CourierId,
        progress: FileProgress,
    ) -> StoreResult<()>;

    /// The number of the newest file change, updated after each commit that has one.
    fn newest_file_change(&self) -> watch::Receiver<i64>;
}
