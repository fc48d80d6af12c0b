//! Files that are fetched after their message: announced with it, fetched, and applied when it
//! is merged.

use std::collections::HashMap;

use async_trait::async_trait;
use monoco_core::did::TunnelId;
use monoco_core::inbound::{
    FetchedFile, FileResult, FileRetry, InboundMessage, NOT_FETCHED_YET, StoredBytes,
};
use monoco_core::merge::MAX_FILE_WAIT;
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::retry::{Failure, Jitter};
use monoco_core::time::Timestamp;
use tokio::io::AsyncRead;
use tokio::sync::watch;

use crate::sql::db::{Db, Row, RowResult, params};
use crate::sql::rows::{self, unsigned};
use crate::sql::writer::Tx;
use crate::sql::{SqlStore, contacts, purged_files, put_blob_row};
use crate::{FileLabels, InboundFile, InboundFileStore, StoreError};

const INSERT: &str = "
    INSERT INTO inbound_files (tunnel, external_id, position, handle, due_at, attempts, announced_at)
    VALUES (?1, ?2, ?3, ?4, ?5, 0, ?5)
";

const COUNT: &str = "SELECT count(*), count(due_at) FROM inbound_files WHERE external_id = ?1";

const DUE: &str = "
    SELECT seq, handle, attempts
      FROM inbound_files
     WHERE tunnel = ?1 AND due_at <= ?2
     ORDER BY due_at, seq
     LIMIT ?3
";

const OF_WINDOW: &str = "
    SELECT external_id, position, hash, bytes, name, mime_type, missing
      FROM inbound_files
     WHERE merge_window = ?1
";

const SET_FETCHED: &str = "
    UPDATE inbound_files
       SET handle = NULL, due_at = NULL, hash = ?2, bytes = ?3, name = ?4, mime_type = ?5,
           missing = NULL
     WHERE seq = ?1
";

const SET_FAILED: &str = "
    UPDATE inbound_files
       SET attempts = ?2, due_at = ?3, missing = ?4,
           handle = CASE WHEN CAST(?3 AS BIGINT) IS NULL THEN NULL ELSE handle END
     WHERE seq = ?1
";

// The window closes when its last file is fetched.
const FILE_ENDED: &str = "
    UPDATE merge_windows
       SET pending_files = pending_files - 1, revision = revision + 1,
           closes_at = CASE WHEN pending_files <= 1 THEN ready_at ELSE closes_at END
     WHERE id = ?1
";

const ADD_FILES: &str = "
    UPDATE merge_windows
       SET files = files + ?2, pending_files = pending_files + ?2,
           closes_at = CASE WHEN closes_at > last_at + ?3 THEN closes_at ELSE last_at + ?3 END
     WHERE id = ?1
";

const REMOVE_FILES: &str = "
    UPDATE merge_windows
       SET files = files - ?2, pending_files = pending_files - ?3, revision = revision + 1,
           closes_at = CASE WHEN pending_files <= ?3 AND ready_at < closes_at THEN ready_at
                            ELSE closes_at END
     WHERE id = ?1
";

/// How many files a message has that are fetched later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileCounts {
    pub(super) all: u32,
    pub(super) pending: u32,
}

/// Stores which files of a message are to be fetched, from the attachment number `first` on.
/// Returns their number.
pub(in crate::sql) fn announce(
    tx: &mut Tx<'_>,
    tunnel: i64,
    external_id: i64,
    message: &InboundMessage,
    now: Timestamp,
) -> Result<u32, StoreError> {
    let mut count = 0;
    for (position, artifact) in message.artifacts.iter().enumerate() {
        let Some(handle) = &artifact.fetch else { continue };
        let row = params![tunnel, external_id, rows::limit(position), handle, now.ms()];
        rows::execute(tx.db, INSERT, row)?;
        count += 1;
    }
    tx.effects.inbound_file |= count > 0;
    Ok(count)
}

/// Counts the files of a message. A message that announces none costs no query.
pub(super) fn count(
    db: &Db,
    external_id: i64,
    message: &InboundMessage,
) -> Result<FileCounts, StoreError> {
    if !message.has_announced_files() {
        return Ok(FileCounts::default());
    }
    rows::one(db, COUNT, [external_id], |row| {
        Ok(FileCounts { all: row.get(0)?, pending: row.get(1)? })
    })
}

/// Stores that a message with files is in a window.
pub(super) fn enter_window(tx: &Tx<'_>, external_id: i64, window: i64) -> Result<(), StoreError> {
    let sql = "UPDATE inbound_files SET merge_window = ?2 WHERE external_id = ?1";
    rows::execute(tx.db, sql, [external_id, window])?;
    Ok(())
}

/// Adds files that an edit announced to a message in a window.
pub(super) fn add_to_window(
    tx: &mut Tx<'_>,
    tunnel: i64,
    external_id: i64,
    window: i64,
    message: &InboundMessage,
    now: Timestamp,
) -> Result<(), StoreError> {
    let count = announce(tx, tunnel, external_id, message, now)?;
    if count > 0 {
        enter_window(tx, external_id, window)?;
        let wait = Timestamp::default() + MAX_FILE_WAIT;
        rows::execute(tx.db, ADD_FILES, params![window, count, wait.ms()])?;
    }
    Ok(())
}

/// Deletes the files of a message. Returns those that were fetched.
pub(in crate::sql) fn remove(tx: &Tx<'_>, external_id: i64) -> Result<Vec<ObjId>, StoreError> {
    let fetched = fetched(tx.db, external_id)?;
    let sql = "
        SELECT merge_window, count(*), count(due_at) FROM inbound_files
         WHERE external_id = ?1 GROUP BY merge_window
    ";
    let found: Vec<(Option<i64>, i64, i64)> =
        rows::list(tx.db, sql, [external_id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    for (window, all, pending) in found {
        if let Some(window) = window {
            rows::execute(tx.db, REMOVE_FILES, [window, all, pending])?;
        }
    }
    rows::execute(tx.db, "DELETE FROM inbound_files WHERE external_id = ?1", [external_id])?;
    Ok(fetched)
}

/// The stored files of a message that is not merged yet.
pub(in crate::sql) fn fetched(db: &Db, external_id: i64) -> Result<Vec<ObjId>, StoreError> {
    let sql = "SELECT hash FROM inbound_files WHERE external_id = ?1 AND hash IS NOT NULL";
    rows::list(db, sql, [external_id], |row| Ok(ObjId::from_parts(ObjKind::Bytes, row.get(0)?)))
}

/// Applies the files of a window to its messages.
pub(super) fn apply(
    db: &Db,
    window: i64,
    messages: &mut [(i64, InboundMessage)],
) -> Result<(), StoreError> {
    let mut files: HashMap<i64, Vec<(usize, FileResult)>> = HashMap::new();
    for (external_id, position, result) in rows::list(db, OF_WINDOW, [window], read_result)? {
        files.entry(external_id).or_default().push((position, result));
    }
    for (external_id, message) in messages {
        for (position, result) in files.remove(external_id).unwrap_or_default() {
            if let Some(artifact) = message.artifacts.get_mut(position) {
                artifact.apply_file(result);
            }
        }
    }
    Ok(())
}

fn read_result(row: &Row<'_>) -> RowResult<(i64, usize, FileResult)> {
    let hash: Option<[u8; 32]> = row.get(2)?;
    let result = match hash {
        Some(hash) => {
            let hash = ObjId::from_parts(ObjKind::Bytes, hash);
            let stored = StoredBytes { hash, size: unsigned(row, 3)? };
            FileResult::Fetched(FetchedFile { stored, name: row.get(4)?, mime_type: row.get(5)? })
        }
        None => {
            let reason: Option<String> = row.get(6)?;
            FileResult::Missing(reason.unwrap_or_else(|| NOT_FETCHED_YET.to_owned()))
        }
    };
    let position = usize::try_from(unsigned(row, 1)?).unwrap_or(usize::MAX);
    Ok((row.get(0)?, position, result))
}

/// A file that is still to be fetched.
struct PendingFile {
    window: Option<i64>,
    attempts: u32,
    announced_at: Timestamp,
}

fn find_pending(db: &Db, id: i64) -> Result<Option<PendingFile>, StoreError> {
    let sql = "
        SELECT merge_window, attempts, announced_at FROM inbound_files
         WHERE seq = ?1 AND due_at IS NOT NULL
    ";
    rows::optional(db, sql, [id], |row| {
        let announced_at = Timestamp::from_ms(row.get(2)?);
        Ok(PendingFile { window: row.get(0)?, attempts: row.get(1)?, announced_at })
    })
}

/// Lets the window of a file that is not pending any more close.
fn end(tx: &mut Tx<'_>, file: &PendingFile) -> Result<(), StoreError> {
    if let Some(window) = file.window {
        rows::execute(tx.db, FILE_ENDED, [window])?;
        tx.effects.inbound = true;
    }
    Ok(())
}

fn set_fetched(
    tx: &mut Tx<'_>,
    id: i64,
    stored: &StoredBytes,
    labels: &FileLabels,
) -> Result<bool, StoreError> {
    let Some(file) = find_pending(tx.db, id)? else {
        // Recalled or merged while the bytes were written.
        purged_files::note(tx, stored.hash.hash())?;
        return Ok(false);
    };
    put_blob_row(tx, stored)?;
    let size = rows::signed(stored.size);
    let row = params![id, stored.hash.hash(), size, labels.name, labels.mime_type];
    rows::execute(tx.db, SET_FETCHED, row)?;
    end(tx, &file)?;
    Ok(true)
}

fn set_failed(
    tx: &mut Tx<'_>,
    id: i64,
    failure: &Failure,
    jitter: Jitter,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let Some(file) = find_pending(tx.db, id)? else { return Ok(false) };
    let attempts = file.attempts.saturating_add(1);
    let retry = FileRetry::after(failure, attempts, file.announced_at, now, jitter);
    let due = retry.due.map(Timestamp::ms);
    rows::execute(tx.db, SET_FAILED, params![id, attempts, due, retry.reason])?;
    if due.is_none() {
        end(tx, &file)?;
    }
    Ok(true)
}

#[async_trait]
impl InboundFileStore for SqlStore {
    async fn due_files(
        &self,
        tunnel: &TunnelId,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<InboundFile>, StoreError> {
        let did = tunnel.did();
        self.read(move |db| {
            let Some(tunnel) = contacts::find(db, &did)? else { return Ok(Vec::new()) };
            rows::list(db, DUE, params![tunnel, now.ms(), rows::limit(limit)], |row| {
                Ok(InboundFile { id: row.get(0)?, handle: row.get(1)?, attempts: row.get(2)? })
            })
        })
        .await
    }

    async fn next_file(&self, tunnel: &TunnelId) -> Result<Option<Timestamp>, StoreError> {
        let did = tunnel.did();
        self.read(move |db| {
            let Some(tunnel) = contacts::find(db, &did)? else { return Ok(None) };
            let sql = "
                SELECT due_at FROM inbound_files
                 WHERE tunnel = ?1 AND due_at IS NOT NULL ORDER BY due_at LIMIT 1
            ";
            let due = rows::optional(db, sql, [tunnel], |row| row.get(0))?;
            Ok(due.map(Timestamp::from_ms))
        })
        .await
    }

    async fn wants_file(&self, id: i64) -> Result<bool, StoreError> {
        self.read(move |db| Ok(find_pending(db, id)?.is_some())).await
    }

    async fn store_file(
        &self,
        id: i64,
        labels: FileLabels,
        bytes: &mut (dyn AsyncRead + Send + Unpin),
        limit: u64,
    ) -> Result<bool, StoreError> {
        // An erasure need not wait for a download: the file has no name until it is checked.
        let file = self.write_stream(bytes, limit).await?;
        let _lock = self.erasing.read().await;
        if self.read(move |db| find_pending(db, id)).await?.is_none() {
            return Ok(false);
        }
        let stored = self.write_blob(move |blobs| blobs.finish(file)).await?;
        self.writer.run(move |tx| set_fetched(tx, id, &stored, &labels)).await
    }

    async fn fail_file(
        &self,
        id: i64,
        failure: Failure,
        jitter: Jitter,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        self.writer.run(move |tx| set_failed(tx, id, &failure, jitter, now)).await
    }

    async fn resume_files(
        &self,
        tunnel: Option<&TunnelId>,
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        let (until, tunnel) = ((now + MAX_FILE_WAIT).ms(), tunnel.cloned());
        self.writer
            .run(move |tx| match &tunnel {
                Some(tunnel) => {
                    let sql = "
                        UPDATE merge_windows SET closes_at = ?1
                         WHERE pending_files > 0 AND closes_at < ?1 AND tunnel_name = ?2
                    ";
                    rows::changed_rows(tx.db, sql, params![until, tunnel.as_str()])
                }
                None => {
                    let sql = "
                        UPDATE merge_windows SET closes_at = ?1
                         WHERE pending_files > 0 AND closes_at < ?1
                    ";
                    rows::changed_rows(tx.db, sql, [until])
                }
            })
            .await
    }

    fn newest_file(&self) -> watch::Receiver<u64> {
        self.channels.inbound_file.subscribe()
    }
}
