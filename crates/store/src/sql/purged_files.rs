//! Deletes the files of purged mails and letters that nothing else refers to.
//!
//! The transaction that purges a mail or a letter notes its files. They are deleted later: a search
//! for references reads all texts once, for all files together.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use monoco_core::erasure::{ErasedAuthors, attachments};
use monoco_core::inbound::StoredBytes;
use monoco_core::object::{ObjId, ObjKind};
use monoco_fs::WriteError;

use super::db::params;
use super::erasure::TextPositions;
use super::writer::Tx;
use super::{SqlStore, blob_error, closed, disk_error, email, put_blob_row, rows};
use crate::StoreResult;

/// Files that one call searches for.
const MAX_FILES: usize = 10_000;

const NOTE: &str = "INSERT INTO purged_files (hash) VALUES (?1) ON CONFLICT DO NOTHING";

/// Notes a file whose last reference may have been deleted.
pub(super) fn note(tx: &Tx<'_>, hash: &[u8; 32]) -> StoreResult<()> {
    rows::execute(tx.db, NOTE, [hash])
}

/// Notes the files of a letter that is purged: its texts, and what texts in rows refer to.
pub(super) fn note_letter(tx: &Tx<'_>, letter: i64) -> StoreResult<()> {
    let sql = "
        SELECT hash, body FROM letter_sources WHERE letter = ?1
         UNION ALL
        SELECT hash, body FROM letter_changes WHERE letter = ?1
    ";
    let texts: Vec<(Option<[u8; 32]>, Option<String>)> =
        rows::list(tx.db, sql, [letter], |row| Ok((row.get(0)?, row.get(1)?)))?;
    for (hash, body) in texts {
        if let Some(hash) = hash {
            note(tx, &hash)?;
        }
        for id in attachments(&body.unwrap_or_default()) {
            note(tx, id.hash())?;
        }
    }
    let sql = "
        INSERT INTO purged_files (hash)
        SELECT f.hash
          FROM letters l
          JOIN inbound_files f ON f.external_id = l.external_id
         WHERE l.seq = ?1 AND f.hash IS NOT NULL
            ON CONFLICT DO NOTHING
    ";
    rows::execute(tx.db, sql, [letter])
}

impl SqlStore {
    pub(super) async fn remove_purged_files(&self, min_age: Duration) -> StoreResult<usize> {
        let noted: BTreeSet<_> = self.noted_files(min_age).await?;
        if noted.is_empty() {
            return Ok(0);
        }
        let (no_author, mut read) = (ErasedAuthors::default(), TextPositions::default());
        let unused = self.retain_unused(noted.clone(), &no_author, &mut read).await?;
        // The long search was without the lock. Now no text is stored, and those that were stored
        // meanwhile are searched.
        let _lock = self.erasing.write().await;
        let unused = self.retain_unused(unused, &no_author, &mut read).await?;
        let unused = self.retain_without_object(unused).await?;
        let Some(_deletions) = self.blobs.try_lock_deletions().map_err(disk_error)? else {
            return Ok(0);
        };
        let delete_rows = self.writer.run(move |tx| {
            let mut deleted = Vec::new();
            for id in &noted {
                if unused.contains(id) && !email::has_mail_file(tx, id)? {
                    rows::execute(tx.db, "DELETE FROM blobs WHERE hash = ?1", [id.hash()])?;
                    deleted.push(*id);
                } else {
                    forget(tx, id)?;
                }
            }
            Ok(deleted)
        });
        let deleted = delete_rows.await?;
        let blobs = Arc::clone(&self.blobs);
        let remove = tokio::task::spawn_blocking(move || {
            let remove = |hash| Ok((hash, blobs.remove_old(&hash, min_age)?));
            deleted.into_iter().map(remove).collect::<Result<Vec<_>, WriteError>>()
        });
        let removed = remove.await.map_err(|_| closed())?.map_err(blob_error)?;
        // Only now: after a crash, files without a row are still noted.
        let finish = self.writer.run(move |tx| {
            for (hash, stays) in &removed {
                if let Some(size) = *stays
                    && tx.db.as_postgres().is_none()
                {
                    put_blob_row(tx, &StoredBytes { hash: *hash, size })?;
                }
                forget(tx, hash)?;
            }
            Ok(removed.iter().filter(|(_, stays)| stays.is_none()).count())
        });
        finish.await
    }

    /// Returns the noted files that were not stored again within `min_age`.
    async fn noted_files(&self, min_age: Duration) -> StoreResult<BTreeSet<ObjId>> {
        let list = self.read(|db| {
            let sql = "SELECT hash FROM purged_files ORDER BY hash LIMIT ?1";
            rows::list(db, sql, params![rows::limit(MAX_FILES)], |row| {
                Ok(ObjId::from_parts(ObjKind::Bytes, row.get(0)?))
            })
        });
        let noted = list.await?;
        let blobs = Arc::clone(&self.blobs);
        let old = tokio::task::spawn_blocking(move || {
            let mut old = BTreeSet::new();
            for id in noted {
                if blobs.is_old(&id, min_age)? {
                    old.insert(id);
                }
            }
            Ok::<_, io::Error>(old)
        });
        old.await.map_err(|_| closed())?.map_err(disk_error)
    }
}

fn forget(tx: &Tx<'_>, id: &ObjId) -> StoreResult<()> {
    rows::execute(tx.db, "DELETE FROM purged_files WHERE hash = ?1", [id.hash()])
}
