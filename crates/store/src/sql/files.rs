//! Mail files: the changes of their locations, and how far the disk has followed.

use async_trait::async_trait;
use monoco_core::claim::MailLocation;
use monoco_core::courier::CourierId;
use tokio::sync::watch;

use super::db::{Db, params};
use super::{SqlStore, claims, mails, rows};
use crate::{FileChange, FileProgress, MailFileStore, StoreResult};

const PROGRESS: &str = "
    SELECT change, index_bytes, index_seq, generation FROM file_progress WHERE courier = ?1
";

const PUT_PROGRESS: &str = "
    INSERT INTO file_progress (courier, change, index_bytes, index_seq, generation)
    VALUES (?1, ?2, ?3, ?4, ?5)
        ON CONFLICT (courier) DO UPDATE
       SET change = excluded.change, index_bytes = excluded.index_bytes,
           index_seq = excluded.index_seq, generation = excluded.generation
";

/// The number of the newest file change, 0 when there is none.
pub(super) fn newest_change(db: &Db) -> StoreResult<i64> {
    rows::one(db, "SELECT coalesce(max(change), 0) FROM mails", [], |row| row.get(0))
}

/// Makes the index of every courier outdated: its lines have erased text, and the file projectors
/// rewrite it.
pub(super) fn invalidate_index(db: &Db) -> StoreResult<()> {
    rows::execute(db, "UPDATE file_progress SET index_bytes = 0", [])?;
    Ok(())
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

    async fn file_progress(&self, courier: CourierId) -> StoreResult<FileProgress> {
        self.read(move |db| {
            let stored = rows::optional(db, PROGRESS, [courier.to_string()], |row| {
                Ok(FileProgress {
                    change: row.get(0)?,
                    index_bytes: rows::unsigned(row, 1)?,
                    index_seq: row.get(2)?,
                    generation: row.get(3)?,
                })
            })?;
            Ok(stored.unwrap_or_default())
        })
        .await
    }

    async fn set_file_progress(
        &self,
        courier: CourierId,
        progress: FileProgress,
    ) -> StoreResult<()> {
        let FileProgress { change, index_bytes, index_seq, generation } = progress;
        self.writer
            .run(move |tx| {
                let bytes = rows::signed(index_bytes);
                let row = params![courier.to_string(), change, bytes, index_seq, generation];
                rows::execute(tx.db, PUT_PROGRESS, row)?;
                Ok(())
            })
            .await
    }

    fn newest_file_change(&self) -> watch::Receiver<i64> {
        self.channels.file_change.subscribe()
    }
}
