//! The embedded index: SQLite FTS5 in `search.db`, beside the database of the store.
//!
//! FTS5 gets the tokens of `core/search/tokens.rs` with spaces between them, so that its own
//! tokenizer only splits at spaces. The tables have no copy of the texts (`content=''`), and each
//! has the messages of a range of numbers: see `parts.rs`.
//!
//! A commit is not synced (`synchronous = NORMAL`): after a power cut the last batches can be missing
//! together with their progress, and are read from the store again. The log is copied and synced
//! when it has 16 MiB, so that the disk is left to the commits of the store.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use monoco_core::search::SearchQuery;
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Params, Row, Transaction, params};
use tokio::sync::Semaphore;

use super::parts::{self, PartSize};
use super::{MAX_RANKED, SearchBatch, SearchIndex, SearchProgress, SearchRange};
use crate::sql::disk_error;
use crate::sql::rows::{self, limit};
use crate::sqlite::{db_error, vacuum};
use crate::{StoreError, StoreResult};

/// Name of the database in the directory of the store.
const DATABASE: &str = "search.db";

/// Version of the tables and of the tokens. An index of another version is built again.
const VERSION: u32 = 4;

/// Searches that run at the same time.
const MAX_SEARCHES: usize = 2;

const SCHEMA: &str = "
    -- How far the index has followed the store.
    CREATE TABLE progress (
        name      TEXT    NOT NULL PRIMARY KEY,
        value     INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;

    -- The messages of the index. Numbers and times grow together, because the courier's clock does
    -- not jump.
    CREATE TABLE documents (
        seq       INTEGER PRIMARY KEY,          -- objects.seq
        at        INTEGER NOT NULL              -- when it was stored; unknown: as the one before
    ) STRICT;

    -- Tables of their tokens, `messages_{number}`: see `parts.rs`.
    CREATE TABLE parts (
        number    INTEGER PRIMARY KEY,
        first     INTEGER NOT NULL,             -- lowest number of its messages
        bytes     INTEGER NOT NULL,             -- of the tokens that were inserted
        blocks    INTEGER NOT NULL,             -- of its filter; 0: not full yet
        removed   INTEGER NOT NULL              -- messages whose words are still in its pages
    ) STRICT;

    -- Filters of the words of full parts: see `filter.rs`.
    CREATE TABLE filters (
        part      INTEGER NOT NULL,             -- parts.number
        block     INTEGER NOT NULL,
        bits      BLOB    NOT NULL,
        PRIMARY KEY (part, block)
    ) STRICT, WITHOUT ROWID;
";

const SET_PROGRESS: &str = "
    INSERT INTO progress (name, value) VALUES (?1, ?2)
        ON CONFLICT (name) DO UPDATE SET value = excluded.value
";

/// The index of one store.
#[derive(Clone, Debug)]
pub struct FtsIndex {
    shared: Arc<SharedIndex>,
}

#[derive(Debug)]
struct SharedIndex {
    path: PathBuf,
    part_size: PartSize,
    writer: Mutex<Connection>,
    /// Read-only connections that are not in use.
    readers: Mutex<Vec<Connection>>,
    searches: Semaphore,
}

impl FtsIndex {
    /// Opens the index in the directory of a store, which is created. A missing index, a damaged one
    /// and one of another version are created empty.
    ///
    /// # Errors
    ///
    /// When the files cannot be opened or written.
    pub fn open(dir: &Path) -> StoreResult<Self> {
        Self::with_part_size(dir, PartSize::default())
    }

    pub(super) fn with_part_size(dir: &Path, part_size: PartSize) -> StoreResult<Self> {
        std::fs::create_dir_all(dir).map_err(disk_error)?;
        let path = dir.join(DATABASE);
        let writer = match open_writer(&path) {
            Ok(Some(writer)) => writer,
            Ok(None) | Err(StoreError::Damaged { .. }) => {
                tracing::warn!("search index is damaged or of another version; building it again");
                for suffix in ["", "-wal", "-shm"] {
                    // A file that cannot be removed shows as an error of the next line.
                    let _ = std::fs::remove_file(dir.join(format!("{DATABASE}{suffix}")));
                }
                open_writer(&path)?.ok_or_else(closed)?
            }
            Err(error) => return Err(error),
        };
        let (readers, searches) = (Mutex::default(), Semaphore::new(MAX_SEARCHES));
        let writer = Mutex::new(writer);
        let shared = SharedIndex { path, part_size, writer, readers, searches };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Runs `work` on the connection that writes.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        let shared = Arc::clone(&self.shared);
        let run = move || {
            let mut writer = shared.writer.lock().unwrap_or_else(PoisonError::into_inner);
            work(&mut writer)
        };
        tokio::task::spawn_blocking(run).await.map_err(|_| closed())?
    }

    /// Runs `work` on a connection that only reads.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        let _permit = self.shared.searches.acquire().await.map_err(|_| closed())?;
        let shared = Arc::clone(&self.shared);
        let run = move || {
            let idle = shared.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let db = match idle {
                Some(db) => db,
                None => open_reader(&shared.path)?,
            };
            let result = work(&db);
            shared.readers.lock().unwrap_or_else(PoisonError::into_inner).push(db);
            result
        };
        tokio::task::spawn_blocking(run).await.map_err(|_| closed())?
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("the search index is closed".to_owned())
}

/// Opens the connection that writes.
fn connect_writer(path: &Path) -> StoreResult<Connection> {
    let db = Connection::open(path).map_err(db_error)?;
    db.execute_batch(
        "PRAGMA journal_mode = WAL;
         PRAGMA synchronous = NORMAL;
         PRAGMA wal_autocheckpoint = 4096;
         PRAGMA journal_size_limit = 16777216;
         PRAGMA cache_size = -8192;
         PRAGMA temp_store = MEMORY;",
    )
    .map_err(db_error)?;
    Ok(db)
}

/// Opens or creates the database; `None` when it has another version.
fn open_writer(path: &Path) -> StoreResult<Option<Connection>> {
    let mut db = connect_writer(path)?;
    let version: u32 =
        db.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(db_error)?;
    match version {
        0 => {
            let tx = db.transaction().map_err(db_error)?;
            tx.execute_batch(SCHEMA).map_err(db_error)?;
            tx.pragma_update(None, "user_version", VERSION).map_err(db_error)?;
            tx.commit().map_err(db_error)?;
        }
        VERSION => {
            // Reads the first pages of the tables, which shows most damage.
            optional(&db, "SELECT seq FROM documents LIMIT 1", [], |row| row.get::<_, i64>(0))?;
            parts::check(&db)?;
            // A connection has some memory for each part that it has used.
            db = connect_writer(path)?;
        }
        _ => return Ok(None),
    }
    Ok(Some(db))
}

fn open_reader(path: &Path) -> StoreResult<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags).map_err(db_error)?;
    db.execute_batch("PRAGMA cache_size = -2048; PRAGMA query_only = ON;").map_err(db_error)?;
    db.set_prepared_statement_cache_capacity(parts::MAX_STATEMENTS);
    Ok(db)
}

pub(super) fn execute(db: &Connection, sql: &str, params: impl Params) -> StoreResult<usize> {
    db.prepare_cached(sql).and_then(|mut statement| statement.execute(params)).map_err(db_error)
}

/// Reads the first row of a query, or returns `None` when it has no rows.
pub(super) fn optional<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> StoreResult<Option<T>> {
    db.prepare_cached(sql)
        .and_then(|mut statement| statement.query_row(params, read).optional())
        .map_err(db_error)
}

/// Reads the first column of all rows of a query.
pub(super) fn numbers(db: &Connection, sql: &str, params: impl Params) -> StoreResult<Vec<i64>> {
    let mut statement = db.prepare_cached(sql).map_err(db_error)?;
    let rows = statement.query_map(params, |row| row.get(0)).map_err(db_error)?;
    rows.collect::<rusqlite::Result<_>>().map_err(db_error)
}

/// A read transaction, so that a search sees the list of parts and all parts as of one moment.
fn snapshot(db: &Connection) -> StoreResult<Transaction<'_>> {
    db.unchecked_transaction().map_err(db_error)
}

/// Removes a message, if the index has it.
fn remove(db: &Connection, seq: i64) -> StoreResult<()> {
    if execute(db, "DELETE FROM documents WHERE seq = ?1", [seq])? > 0 {
        parts::remove(db, seq)?;
    }
    Ok(())
}

/// Applies a batch. Returns whether it has started a part.
fn apply(db: &mut Connection, batch: &SearchBatch, size: PartSize) -> StoreResult<bool> {
    let tx = db.transaction().map_err(db_error)?;
    let mut has_new_part = false;
    for seq in &batch.remove {
        remove(&tx, *seq)?;
    }
    for message in &batch.insert {
        remove(&tx, message.seq)?;
        let at = match message.at {
            Some(at) => at.ms(),
            None => {
                let sql = "SELECT at FROM documents WHERE seq < ?1 ORDER BY seq DESC LIMIT 1";
                optional(&tx, sql, [message.seq], |row| row.get(0))?.unwrap_or(i64::MIN)
            }
        };
        let sql = "INSERT INTO documents (seq, at) VALUES (?1, ?2)";
        execute(&tx, sql, [message.seq, at])?;
        has_new_part |= parts::insert(&tx, message, size)?;
    }
    let SearchProgress { object, object_hash, change, erasure } = batch.progress;
    for (name, value) in
        [("object", object), ("object_hash", object_hash), ("change", change), ("erasure", erasure)]
    {
        execute(&tx, SET_PROGRESS, params![name, value])?;
    }
    tx.commit().map_err(db_error)?;
    Ok(has_new_part)
}

/// The number of the first message of a time or later, by bisection: an index of the times would be
/// a thirtieth of all.
fn first_since(db: &Connection, since: Timestamp) -> StoreResult<Option<i64>> {
    let sql = "SELECT coalesce(min(seq), 0), coalesce(max(seq) + 1, 0) FROM documents";
    let ends = optional(db, sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows::first_since(since, ends.unwrap_or_default(), |from, to| {
        let sql = "SELECT seq, at FROM documents WHERE seq >= ?1 AND seq < ?2 ORDER BY seq LIMIT 1";
        optional(db, sql, [from, to], |row| Ok((row.get(0)?, row.get(1)?)))
    })
}

fn find(db: &Connection, query: &SearchQuery, range: SearchRange) -> StoreResult<Vec<i64>> {
    let first = match query.since {
        None => i64::MIN,
        Some(since) => match first_since(db, since)? {
            Some(first) => first,
            None => return Ok(Vec::new()),
        },
    };
    let (from, to) = match (range.beyond, range.newest_first) {
        (Some(beyond), true) => (first, beyond.saturating_sub(1)),
        (Some(beyond), false) => (first.max(beyond.saturating_add(1)), i64::MAX),
        (None, _) => (first, i64::MAX),
    };
    if let Some(found) = parts::find(db, query, from..=to, range)? {
        return Ok(found);
    }
    let order = if range.newest_first { "DESC" } else { "ASC" };
    let sql = format!(
        "SELECT seq FROM documents WHERE seq >= ?1 AND seq <= ?2 ORDER BY seq {order} LIMIT ?3"
    );
    numbers(db, &sql, params![from, to, limit(range.limit)])
}

fn rank(db: &Connection, query: &SearchQuery, newest: i64) -> StoreResult<Vec<i64>> {
    let beyond = Some(newest.saturating_add(1));
    let range = SearchRange { beyond, newest_first: true, limit: MAX_RANKED };
    parts::rank(db, query, find(db, query, range)?)
}

#[async_trait]
impl SearchIndex for FtsIndex {
    async fn progress(&self) -> StoreResult<SearchProgress> {
        self.write(|db| {
            let number = |name: &str| {
                let sql = "SELECT value FROM progress WHERE name = ?1";
                optional(db, sql, [name], |row| row.get(0)).map(Option::unwrap_or_default)
            };
            Ok(SearchProgress {
                object: number("object")?,
                object_hash: number("object_hash")?,
                change: number("change")?,
                erasure: number("erasure")?,
            })
        })
        .await
    }

    async fn apply(&self, batch: SearchBatch) -> StoreResult<()> {
        let (size, path) = (self.shared.part_size, self.shared.path.clone());
        self.write(move |db| {
            if apply(db, &batch, size)? {
                // Frees the memory of the parts that are full.
                *db = connect_writer(&path)?;
            }
            Ok(())
        })
        .await
    }

    async fn clear(&self) -> StoreResult<()> {
        self.write(|db| {
            let tx = db.transaction().map_err(db_error)?;
            parts::drop_all(&tx)?;
            tx.execute_batch("DELETE FROM documents; DELETE FROM progress;").map_err(db_error)?;
            tx.commit().map_err(db_error)
        })
        .await
    }

    /// A removed row is only marked: its tokens stay in their segment until FTS5 merges it. So the
    /// segments of its part are merged, and the database is rewritten without its unused pages.
    async fn compact(&self) -> StoreResult<()> {
        let path = self.shared.path.clone();
        self.write(move |db| {
            let tx = db.transaction().map_err(db_error)?;
            parts::compact(&tx)?;
            tx.commit().map_err(db_error)?;
            vacuum(db, &path)?;
            let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
            let is_busy: bool = db.query_row(sql, [], |row| row.get(0)).map_err(db_error)?;
            if is_busy {
                let why = "a search reads the index; try again when it is done";
                return Err(StoreError::Unavailable(why.to_owned()));
            }
            Ok(())
        })
        .await
    }

    async fn find(&self, query: &SearchQuery, range: SearchRange) -> StoreResult<Vec<i64>> {
        let query = query.clone();
        self.read(move |db| {
            let snapshot = snapshot(db)?;
            find(&snapshot, &query, range)
        })
        .await
    }

    async fn rank(&self, query: &SearchQuery, newest: i64) -> StoreResult<Vec<i64>> {
        let query = query.clone();
        self.read(move |db| {
            let snapshot = snapshot(db)?;
            rank(&snapshot, &query, newest)
        })
        .await
    }
}
