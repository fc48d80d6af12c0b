//! Mail files: the changes of their locations, and how far the disk has followed.

use async_trait::async_trait;
use monoco_core::claim::MailLocation;

use tokio::sync::watch;

use super::db::Db;
use super::retention::{progress, set_progress};
use super::{SqlStore, claims, mails, rows};
use crate::{FileChange, FileProgress, MailFileStore, StoreError, StoreResult};

// Names of rows in the table `progress`.
const CHANGE: &str = "files_change";
const INDEX_BYTES: &str = "files_index_bytes";
const INDEX_SEQ: &str = "files_index_seq";
const INDEX_GENERATION: &str = "files_index_generation";

/// The number of the newest file change, 0 when there is none.
pub(super) fn newest_change(db: &Db) -> StoreResult<i64> {
    rows::one(db, "SELECT coalesce(max(change), 0) FROM mails", [], |row| row.get(0))
}

/// Makes the index outdated: its lines have erased text, and the file projector rewrites it.
pub(super) fn invalidate_index(db: &Db) -> StoreResult<()> {
    set_progress(db, INDEX_BYTES, 0)
}

/// Lists the locations of Mails that match a condition on `?1`, with an order.
fn list(db: &Db, condition: &str, after: i64, limit: usize) -> StoreResult<Vec<FileChange>> {
    let sql = format!("SELECT {} FROM mails m WHERE {condition}", mails::COLUMNS);
    let found = rows::list_undamaged(db, "Mail", limit, &sql, [after], mails::read)?;
    let with_reasons = |mail: mails::StoredMail| {
        let reasons = if mail.location == MailLocation::Deadletter {
            claims::failure_reasons(db, mail.seq)?
        } else {
            Vec::new()
        };
        Ok(FileChange { change: mail.change, entry: mail.entry, location: mail.location, reasons })
    };
    found.into_iter().map(with_reasons).collect()
}

#[async_trait]
impl MailFileStore for SqlStore {
    async fn list_index_entries(&self, after: i64, limit: usize) -> StoreResult<Vec<FileChange>> {
        let condition = "m.seq > ?1 AND m.location <> 'held' ORDER BY m.seq";
        self.read(move |db| list(db, condition, after, limit)).await
    }

    async fn list_file_changes(&self, after: i64, limit: usize) -> StoreResult<Vec<FileChange>> {
        self.read(move |db| list(db, "m.change > ?1 ORDER BY m.change", after, limit)).await
    }

    async fn file_progress(&self) -> StoreResult<FileProgress> {
        self.read(|db| {
            let number = |name| Ok::<_, StoreError>(progress(db, name)?.unwrap_or(0));
            Ok(FileProgress {
                change: number(CHANGE)?,
                index_bytes: u64::try_from(number(INDEX_BYTES)?).unwrap_or(0),
                index_seq: number(INDEX_SEQ)?,
                generation: number(INDEX_GENERATION)?,
            })
        })
        .await
    }

    async fn set_file_progress(&self, files: FileProgress) -> StoreResult<()> {
        self.writer
            .run(move |tx| {
                set_progress(tx.db, CHANGE, files.change)?;
                set_progress(tx.db, INDEX_BYTES, rows::signed(files.index_bytes))?;
                set_progress(tx.db, INDEX_SEQ, files.index_seq)?;
                set_progress(tx.db, INDEX_GENERATION, files.generation)
            })
            .await
    }

    fn newest_file_change(&self) -> watch::Receiver<i64> {
        self.channels.file_change.subscribe()
    }
}
