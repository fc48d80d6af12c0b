//! The embedded index: SQLite FTS5 in `search.db`, beside the database of the store.
//!
//! FTS5 gets the tokens of `core/search/tokens.rs` with spaces between them, so that its own
//! tokenizer only splits at spaces. The table has no copy of the texts (`content=''`).
//!
//! A commit is not synced at once (`synchronous = NORMAL`): after a power cut the last batches can
//! be missing together with their progress, and are read from the store again.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use monoco_core::search::{SearchPhrase, SearchQuery};
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Params, Row, params};
use tokio::sync::Semaphore;

use super::{MAX_RANKED, SearchBatch, SearchIndex, SearchProgress, SearchRange, UNKNOWN_TUNNEL};
use crate::sql::disk_error;
use crate::sql::rows::limit;
use crate::sqlite::db_error;
use crate::{StoreError, StoreResult};

/// Name of the database in the directory of the store.
const DATABASE: &str = "search.db";

/// Version of the tables and of the tokens. An index of another version is built again.
const VERSION: u32 = 2;

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

    -- Their tokens. The characters below occur in marks, and in no other token.
    CREATE VIRTUAL TABLE messages USING fts5 (
        title, text, files, authors, chat, marks,
        content = '', contentless_delete = 1, tokenize = \"ascii tokenchars '-_:'\"
    );
";

const INSERT: &str = "
    INSERT INTO messages (rowid, title, text, files, authors, chat, marks)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
";

const SET_PROGRESS: &str = "
    INSERT INTO progress (name, value) VALUES (?1, ?2)
        ON CONFLICT (name) DO UPDATE SET value = excluded.value
";

// Weights of title, text, files, authors, chat and marks.
const RANK: &str = "
    SELECT rowid
      FROM messages
     WHERE messages MATCH ?1 AND rowid >= ?2 AND rowid <= ?3
     ORDER BY bm25(messages, 4.0, 1.0, 2.0, 2.0, 1.0, 0.0), rowid DESC
     LIMIT ?4
";

/// The index of one store.
#[derive(Clone, Debug)]
pub struct FtsIndex {
    shared: Arc<SharedIndex>,
}

#[derive(Debug)]
struct SharedIndex {
    path: PathBuf,
    writer: Mutex<Connection>,
    /// Read-only connections that are not in use.
    readers: Mutex<Vec<Connection>>,
    searches: Semaphore,
}

impl FtsIndex {
    /// Opens the index in the directory of a store, which is created. A missing index, a damaged one and one of
    /// another version are created empty.
    ///
    /// # Errors
    ///
    /// When the files cannot be opened or written.
    pub fn open(dir: &Path) -> StoreResult<Self> {
        std::fs::create_dir_all(dir).map_err(disk_error)?;
        let path = dir.join(DATABASE);
        let writer = match open_writer(&path) {
            Err(error @ StoreError::Damaged { .. }) => {
                tracing::warn!(%error, "search index is damaged; building it again");
                for suffix in ["", "-wal", "-shm"] {
                    // A file that cannot be removed shows as an error of the next line.
                    let _ = std::fs::remove_file(dir.join(format!("{DATABASE}{suffix}")));
                }
                open_writer(&path)?
            }
            writer => writer?,
        };
        let (readers, searches) = (Mutex::default(), Semaphore::new(MAX_SEARCHES));
        let shared = SharedIndex { path, writer: Mutex::new(writer), readers, searches };
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

fn open_writer(path: &Path) -> StoreResult<Connection> {
    let mut db = Connection::open(path).map_err(db_error)?;
    db.execute_batch(
        "PRAGMA journal_mode = WAL;
         PRAGMA synchronous = NORMAL;
         PRAGMA journal_size_limit = 16777216;
         PRAGMA cache_size = -8192;
         PRAGMA temp_store = MEMORY;",
    )
    .map_err(db_error)?;
    let version: u32 =
        db.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(db_error)?;
    if version == VERSION {
        // Reads the first pages of both tables, which shows most damage.
        for sql in ["SELECT rowid FROM messages LIMIT 1", "SELECT seq FROM documents LIMIT 1"] {
            optional(&db, sql, [], |row| row.get::<_, i64>(0))?;
        }
        return Ok(db);
    }
    let tx = db.transaction().map_err(db_error)?;
    for table in ["messages", "documents", "progress"] {
        tx.execute_batch(&format!("DROP TABLE IF EXISTS {table}")).map_err(db_error)?;
    }
    tx.execute_batch(SCHEMA).map_err(db_error)?;
    tx.pragma_update(None, "user_version", VERSION).map_err(db_error)?;
    tx.commit().map_err(db_error)?;
    Ok(db)
}

fn open_reader(path: &Path) -> StoreResult<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags).map_err(db_error)?;
    db.execute_batch("PRAGMA cache_size = -2048; PRAGMA query_only = ON;").map_err(db_error)?;
    Ok(db)
}

fn execute(db: &Connection, sql: &str, params: impl Params) -> StoreResult<usize> {
    db.prepare_cached(sql).and_then(|mut statement| statement.execute(params)).map_err(db_error)
}

/// Reads the first row of a query, or returns `None` when it has no rows.
fn optional<T>(
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
fn numbers(db: &Connection, sql: &str, params: impl Params) -> StoreResult<Vec<i64>> {
    let mut statement = db.prepare_cached(sql).map_err(db_error)?;
    let rows = statement.query_map(params, |row| row.get(0)).map_err(db_error)?;
    rows.collect::<rusqlite::Result<_>>().map_err(db_error)
}

/// Removes a message, if the index has it.
fn remove(db: &Connection, seq: i64) -> StoreResult<()> {
    if execute(db, "DELETE FROM documents WHERE seq = ?1", [seq])? > 0 {
        execute(db, "DELETE FROM messages WHERE rowid = ?1", [seq])?;
    }
    Ok(())
}

fn apply(db: &mut Connection, batch: &SearchBatch) -> StoreResult<()> {
    let tx = db.transaction().map_err(db_error)?;
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
        let (seq, columns, marks) = (message.seq, &message.columns, message.marks.join(" "));
        let row = params![
            seq,
            columns.title,
            columns.text,
            columns.files,
            columns.authors,
            columns.chat,
            marks
        ];
        execute(&tx, INSERT, row)?;
    }
    let SearchProgress { object, object_hash, change } = batch.progress;
    for (name, value) in [("object", object), ("object_hash", object_hash), ("change", change)] {
        execute(&tx, SET_PROGRESS, params![name, value])?;
    }
    tx.commit().map_err(db_error)
}

/// Returns the expression of FTS5 for a query; `None` when every message meets it.
fn expression(query: &SearchQuery) -> Option<String> {
    let phrases = |columns: &str, phrases: &[SearchPhrase]| {
        // Tokens have letters, digits and characters beyond ASCII only: nothing to escape.
        let phrase = |phrase: &SearchPhrase| {
            let star = if phrase.is_prefix { " *" } else { "" };
            format!("{{{columns}}} : \"{}\"{star}", phrase.tokens.join(" "))
        };
        phrases.iter().map(phrase).collect::<Vec<_>>()
    };
    let mut all = phrases("title text files authors chat", &query.phrases);
    all.extend(phrases("authors", &query.from));
    all.extend(phrases("chat", &query.chat));
    all.extend(query.has.iter().map(|mark| format!("marks : \"has:{}\"", mark.as_str())));
    all.extend(
        query
            .tunnels
            .iter()
            .map(|tunnel| format!("(marks : \"tunnel:{tunnel}\" OR marks : \"{UNKNOWN_TUNNEL}\")")),
    );
    (!all.is_empty()).then(|| all.join(" AND "))
}

/// The number of the first message of a time or later, by bisection: an index of the times would be
/// a thirtieth of all.
fn first_since(db: &Connection, since: Timestamp) -> StoreResult<Option<i64>> {
    let sql = "SELECT coalesce(min(seq), 0), coalesce(max(seq) + 1, 0) FROM documents";
    let ends = optional(db, sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    // All messages before `low` are older, and none from `high` on.
    let (mut low, mut high): (i64, i64) = ends.unwrap_or_default();
    let mut first = None;
    while low < high {
        let middle = low.midpoint(high);
        let sql = "SELECT seq, at FROM documents WHERE seq >= ?1 AND seq < ?2 ORDER BY seq LIMIT 1";
        let found = optional(db, sql, [middle, high], |row| Ok((row.get(0)?, row.get(1)?)))?;
        match found {
            Some((seq, at)) if since.ms() > at => low = seq + 1,
            Some((seq, _)) => (first, high) = (Some(seq), middle),
            None => high = middle,
        }
    }
    Ok(first)
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
    let order = if range.newest_first { "DESC" } else { "ASC" };
    let limit = limit(range.limit);
    match expression(query) {
        Some(expression) => {
            let sql = format!(
                "SELECT rowid FROM messages
                  WHERE messages MATCH ?1 AND rowid >= ?2 AND rowid <= ?3
                  ORDER BY rowid {order} LIMIT ?4"
            );
            numbers(db, &sql, params![expression, from, to, limit])
        }
        None => {
            let sql = format!(
                "SELECT seq FROM documents WHERE seq >= ?1 AND seq <= ?2 ORDER BY seq {order} LIMIT ?3"
            );
            numbers(db, &sql, params![from, to, limit])
        }
    }
}

fn rank(db: &Connection, query: &SearchQuery, newest: i64) -> StoreResult<Vec<i64>> {
    let beyond = Some(newest.saturating_add(1));
    let range = SearchRange { beyond, newest_first: true, limit: MAX_RANKED };
    let found = find(db, query, range)?;
    match (expression(query), found.last()) {
        (Some(expression), Some(oldest)) if !query.phrases.is_empty() => {
            let limit = limit(MAX_RANKED);
            numbers(db, RANK, params![expression, oldest, newest, limit])
        }
        _ => Ok(found),
    }
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
            })
        })
        .await
    }

    async fn apply(&self, batch: SearchBatch) -> StoreResult<()> {
        self.write(move |db| apply(db, &batch)).await
    }

    async fn clear(&self) -> StoreResult<()> {
        self.write(|db| {
            let tx = db.transaction().map_err(db_error)?;
            tx.execute_batch(
                "INSERT INTO messages (messages) VALUES ('delete-all');
                 DELETE FROM documents;
                 DELETE FROM progress;",
            )
            .map_err(db_error)?;
            tx.commit().map_err(db_error)
        })
        .await
    }

    /// A removed row is only marked: its tokens stay in their segment until FTS5 merges it. So all
    /// segments are merged, and the database is rewritten without its unused pages.
    async fn compact(&self) -> StoreResult<()> {
        self.write(|db| {
            db.execute_batch("INSERT INTO messages (messages) VALUES ('optimize'); VACUUM;")
                .map_err(db_error)?;
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
        self.read(move |db| find(db, &query, range)).await
    }

    async fn rank(&self, query: &SearchQuery, newest: i64) -> StoreResult<Vec<i64>> {
        let query = query.clone();
        self.read(move |db| rank(db, &query, newest)).await
    }
}
