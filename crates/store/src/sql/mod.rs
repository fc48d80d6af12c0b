//! The store: one implementation of the traits, in SQL, on a small driver per database.
//!
//! ```text
//!   callers ──▶ writer thread ──▶ one commit for all waiting commands   (writer.rs)
//!   callers ──▶ pool of read-only connections                           (this file)
//!                     │
//!                     ▼
//!                    Db ──▶ driver: statements, rows, transactions      (db.rs)
//! ```
//!
//! Each noun has one file with its SQL and the implementation of its trait. `dispatch.rs` and
//! `send.rs` contain the two operations that combine several nouns, `bulk_index.rs` the indexes
//! with random keys. [`crate::sqlite`] opens a store.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use monoco_core::inbound::StoredBytes;
use monoco_core::object::{MsgObject, ObjId};
use monoco_fs::WriteError;
use tokio::sync::{RwLock, Semaphore};

use crate::blobs::BlobStorage;
use crate::postgres::connect::Connector;
use crate::postgres::driver::PgConnection;
use crate::postgres::{ErasureLock, HintExchange};
use crate::sqlite::{Checkpointer, WalSize};
use crate::{StoreError, StoreHealth, StoreResult};
use bulk_index::{BulkIndexes, RecentEntries};
use damage::DamagedRows;
use db::{Db, TxControl, TxStatus, params};
use objects::ObjectBody;
use result_slot::ResultSlot;
use writer::{Tx, Writer, WriterChannels};

mod address_book;
mod approvals;
mod boxes;
pub(crate) mod bulk_index;
mod claims;
mod contact_lookup;
mod contacts;
mod counts;
pub(crate) mod damage;
pub(crate) mod db;
mod deliveries;
mod dispatch;
mod drafts;
mod duties;
pub(crate) mod email;
pub(crate) mod erasure;
pub(crate) mod events;
mod external_ids;
pub(crate) mod facts;
mod figures;
pub(crate) mod files;
mod halts;
mod inbound;
mod letters;
pub(crate) mod mails;
pub(crate) mod objects;
mod purged_files;
mod records;
mod restore;
mod result_slot;
mod retention;
pub(crate) mod rows;
mod search;
mod send;
mod sessions;
mod short_ids;
#[cfg(test)]
mod tests;
mod tokens;
pub(crate) mod writer;

/// Connections that can read at the same time.
const MAX_READERS: usize = 4;

/// Rows of each kind that one commit releases at start. Bounds how long other commands wait.
const MAX_RELEASED_PER_COMMIT: usize = 1_000;

/// Writes the row of a file whose bytes are stored.
pub(crate) const PUT_BLOB_ROW: &str = "
    INSERT INTO blobs (hash, bytes) VALUES (?1, ?2)
        ON CONFLICT (hash) DO UPDATE SET bytes = excluded.bytes
";

/// How long a damaged row that is due waits until it is read again.
const DAMAGED_ROW_DELAY: Duration = Duration::from_secs(3600);

/// The store on one of its databases.
#[derive(Debug)]
pub struct SqlStore {
    // Dropped in this order: the checkpointer must outlive the writer, which wakes it, and the
    // last connection removes the log, which a read-only connection cannot.
    pub(crate) readers: Arc<Readers>,
    writer: Writer,
    _checkpointer: Option<Checkpointer>,
    _hints: Option<HintExchange>,
    recent: BulkIndexCaches,
    blobs: Arc<dyn BlobStorage>,
    forwards_read: email::ForwardsRead,
    channels: Arc<WriterChannels>,
    /// Held for reading from the first file of a message to the commit of its rows, and for
    /// writing by an erasure, which deletes files without rows.
    erasing: RwLock<()>,
    /// Held from the start of an erasure to its end, so that other couriers wait.
    erasure_lock: Mutex<Option<ErasureLock>>,
    /// Where a test stops an erasure.
    #[cfg(test)]
    pub(crate) deletion_pause: Arc<erasure::DeletionPause>,
}

/// The entries of the bulk indexes that are not in their tables yet.
#[derive(Debug)]
struct BulkIndexCaches {
    hashes: Arc<RecentEntries>,
    external_ids: Arc<RecentEntries>,
    timeline: Arc<RecentEntries>,
}

#[derive(Debug)]
pub(crate) struct Readers {
    source: ReaderSource,
    idle: Mutex<Vec<Db>>,
    damaged: Arc<DamagedRows>,
    permits: Semaphore,
}

/// Where read-only connections come from.
#[derive(Debug)]
pub(crate) enum ReaderSource {
    /// The path of a database file.
    Sqlite(PathBuf),
    Postgres(Arc<Connector>),
}

/// What a store is made of.
pub(crate) struct StoreParts {
    /// The connection of the writer thread.
    pub(crate) db: Db,
    pub(crate) readers: ReaderSource,
    pub(crate) blobs: Arc<dyn BlobStorage>,
    pub(crate) channels: Arc<WriterChannels>,
    /// Entries at which a bulk index is merged.
    pub(crate) merge_size: usize,
    /// The log of SQLite, and the thread that copies it into the database file.
    pub(crate) log: Option<(Arc<WalSize>, Checkpointer)>,
    /// What couriers of a PostgreSQL database tell each other.
    pub(crate) hints: Option<HintExchange>,
}

impl crate::Store for SqlStore {}

impl SqlStore {
    /// Starts the writer thread.
    pub(crate) fn start(parts: StoreParts) -> StoreResult<Self> {
        let StoreParts { db, readers, blobs, channels, merge_size, log, hints } = parts;
        let indexes = BulkIndexes::open(&db, merge_size)?;
        let recent = BulkIndexCaches {
            hashes: Arc::clone(indexes.hashes.recent()),
            external_ids: Arc::clone(indexes.external_ids.recent()),
            timeline: Arc::clone(indexes.timeline.recent()),
        };
        let readers = Readers {
            source: readers,
            idle: Mutex::new(Vec::new()),
            damaged: Arc::clone(&db.damaged),
            permits: Semaphore::new(MAX_READERS),
        };
        let (wal, checkpointer) = log.unzip();
        Ok(Self {
            recent,
            writer: Writer::start(db, indexes, wal, Arc::clone(&channels)).map_err(disk_error)?,
            _checkpointer: checkpointer,
            _hints: hints,
            readers: Arc::new(readers),
            blobs,
            forwards_read: email::ForwardsRead::default(),
            channels,
            erasing: RwLock::new(()),
            erasure_lock: Mutex::default(),
            #[cfg(test)]
            deletion_pause: Arc::default(),
        })
    }

    /// How the sessions of a store in PostgreSQL are opened.
    #[cfg(test)]
    pub(crate) fn connector(&self) -> Option<Arc<Connector>> {
        match &self.readers.source {
            ReaderSource::Sqlite(_) => None,
            ReaderSource::Postgres(connector) => Some(Arc::clone(connector)),
        }
    }

    /// Runs `work` in the writer.
    #[cfg(test)]
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        work: impl Fn(&Db) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.writer.run(move |tx| work(tx.db)).await
    }

    /// Runs `work` on a read-only connection, in one snapshot.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Db) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        let result = ResultSlot::new();
        let slot = result.share();
        self.readers.run(Box::new(move |db| slot.put(work(db)))).await?;
        result.take()
    }

    /// Like [`Self::read`], for `work` that looks up objects by hash.
    async fn read_by_hash<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Db, &RecentEntries) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        let hashes = Arc::clone(&self.recent.hashes);
        self.read(move |db| work(db, &hashes)).await
    }

    /// Writes a body that is too large for a row to a file, and its row. Returns after the sync,
    /// so that other rows may refer to it.
    async fn put_file(&self, id: ObjId, body: Vec<u8>) -> StoreResult<()> {
        let file = StoredBytes { hash: id, size: body.len() as u64 };
        self.write_file(id, body).await?;
        self.put_file_row(file).await
    }

    /// Writes the row of a file that was written and synced, unless it exists.
    async fn put_file_row(&self, file: StoredBytes) -> StoreResult<()> {
        if self.is_shared() {
            return Ok(());
        }
        let known = self.read(move |db| blob_size(db, &file.hash)).await?;
        if known != Some(rows::signed(file.size)) {
            self.writer.run(move |tx| put_blob_row(tx, &file)).await?;
        }
        Ok(())
    }

    /// Writes a body to a file, without its row. Returns after the sync.
    async fn write_file(&self, id: ObjId, body: Vec<u8>) -> StoreResult<()> {
        self.write_blob(move |blobs| blobs.put(&id, &body)).await
    }

    /// Whether other couriers use the store as well. Then files are stored with their rows.
    fn is_shared(&self) -> bool {
        matches!(self.readers.source, ReaderSource::Postgres(_))
    }

    /// Runs `work`, which writes files, and records a failure in the health of the store. A remote
    /// place has a health of its own: messages without large objects do not need it.
    async fn write_blob<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn BlobStorage) -> Result<T, WriteError> + Send + 'static,
    ) -> StoreResult<T> {
        if let StoreHealth::Broken(why) = self.channels.health() {
            return Err(StoreError::Broken(why));
        }
        let blobs = Arc::clone(&self.blobs);
        let written = match tokio::task::spawn_blocking(move || work(&*blobs)).await {
            Ok(result) => result.map_err(blob_error),
            Err(_) => Err(closed()),
        };
        if let Err(error) = &written
            && self.blobs.remote().is_none()
        {
            self.channels.record_health(Err(error));
        }
        written
    }

    /// Writes the text of a message to a file when it is too large for a row, unless it was
    /// erased before.
    async fn put_large_message(&self, msg: &MsgObject) -> StoreResult<()> {
        let id = msg.id();
        if msg.canonical().len() <= objects::MAX_INLINE_BYTES
            || self.read_by_hash(move |db, recent| objects::is_erased(db, recent, &id)).await?
        {
            return Ok(());
        }
        self.put_file(msg.id(), msg.canonical().as_bytes().to_vec()).await
    }

    async fn read_file(&self, id: ObjId) -> StoreResult<Vec<u8>> {
        let blobs = Arc::clone(&self.blobs);
        match tokio::task::spawn_blocking(move || blobs.get(&id)).await {
            Ok(Ok(Some(bytes))) => Ok(bytes),
            Ok(Ok(None)) => Err(StoreError::Missing { what: "object", key: id.to_string() }),
            Ok(Err(error)) => Err(disk_error(error)),
            Err(_) => Err(closed()),
        }
    }

    /// Returns the bytes of an object after checking their hash. `body` is `None` when they
    /// are in a file.
    async fn verified_bytes(&self, id: ObjId, body: Option<Vec<u8>>) -> StoreResult<Vec<u8>> {
        let body = match body {
            Some(body) => body,
            None => self.read_file(id).await?,
        };
        if ObjId::of(id.kind(), &body) == id {
            return Ok(body);
        }
        Err(damaged_object(format!("{id} has another hash")))
    }

    /// Returns the text of an object that has a row. A lost file counts as damage.
    async fn verified_text(&self, id: ObjId, body: Option<Vec<u8>>) -> StoreResult<String> {
        let bytes = match self.verified_bytes(id, body).await {
            Err(StoreError::Missing { .. }) => {
                return Err(damaged_object(format!("the file of {id} is missing")));
            }
            bytes => bytes?,
        };
        String::from_utf8(bytes).map_err(|_| damaged_object(format!("{id} is not UTF-8")))
    }

    /// Returns the text of an object, or `None` when it is damaged or erased, so that the data
    /// around it can still be shown.
    async fn text_unless_damaged(&self, object: i64) -> StoreResult<Option<String>> {
        let read = self.read(move |db| objects::body_or_erased(db, object));
        let Ok((id, body)) = read.await? else { return Ok(None) };
        match self.verified_text(id, body).await {
            Ok(text) => Ok(Some(text)),
            Err(error @ StoreError::Damaged { .. }) => {
                tracing::error!(%error, "cannot read damaged object");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the message of a leased entry.
    async fn leased_message(&self, body: ObjectBody) -> StoreResult<MsgObject> {
        let (id, body) = body?;
        self.message(id, body).await
    }

    /// Returns a message that has a row, after checking its hash.
    async fn message(&self, id: ObjId, body: Option<Vec<u8>>) -> StoreResult<MsgObject> {
        let text = self.verified_text(id, body).await?;
        let value =
            serde_json::from_str(&text).map_err(|error| damaged_object(error.to_string()))?;
        // The limit was checked when the message was stored.
        MsgObject::from_json_up_to(value, usize::MAX)
            .map_err(|error| damaged_object(format!("{id}: {error}")))
    }
}

impl ReaderSource {
    fn open(&self, damaged: Arc<DamagedRows>) -> StoreResult<Db> {
        match self {
            Self::Sqlite(path) => crate::sqlite::open_reader(path, damaged),
            Self::Postgres(connector) => {
                Ok(Db::postgres(PgConnection::open(Arc::clone(connector))?, damaged))
            }
        }
    }
}

/// The work of a read, which keeps its result.
type ReadWork = Box<dyn FnOnce(&Db) + Send>;

impl Readers {
    /// Runs `work` on a connection, in one snapshot, on a thread that may wait for the disk.
    async fn run(self: &Arc<Self>, work: ReadWork) -> StoreResult<()> {
        let _permit = self.permits.acquire().await.map_err(|_| closed())?;
        let readers = Arc::clone(self);
        let read = move || {
            readers.with(|db| {
                work(db);
                Ok(())
            })
        };
        tokio::task::spawn_blocking(read).await.map_err(|_| closed())?
    }

    pub(crate) fn with<T>(&self, work: impl FnOnce(&Db) -> StoreResult<T>) -> StoreResult<T> {
        // One snapshot for all statements: between two of them the writer could move a row
        // from a part that is not read yet to a part that is.
        let db = self.begin()?;
        let result = work(&db);
        // A rollback loses nothing, because the connection is read-only. One that cannot roll
        // back is not used again.
        if db.control(TxControl::Rollback).is_ok()
            && let Ok(mut idle) = self.idle.lock()
        {
            idle.push(db);
        }
        result
    }

    /// Starts a transaction on an idle connection, or on a new one when there is none. The
    /// connections that were idle while the server was restarted are lost.
    fn begin(&self) -> StoreResult<Db> {
        while let Some(db) = self.idle.lock().ok().and_then(|mut idle| idle.pop()) {
            match db.control(TxControl::BeginRead) {
                Ok(()) => return Ok(db),
                Err(_) if db.status() == TxStatus::Lost => {}
                Err(error) => return Err(error),
            }
        }
        let db = self.source.open(Arc::clone(&self.damaged))?;
        db.control(TxControl::BeginRead)?;
        Ok(db)
    }
}

/// The stored size of the file of an object or attachment, or `None` when it has no file.
fn blob_size(db: &Db, id: &ObjId) -> StoreResult<Option<i64>> {
    rows::optional(db, "SELECT bytes FROM blobs WHERE hash = ?1", [id.hash()], |row| row.get(0))
}

/// Writes the row of a file that is on disk. In PostgreSQL the row was written with the bytes, and
/// must be there.
fn put_blob_row(tx: &Tx<'_>, file: &StoredBytes) -> StoreResult<()> {
    if tx.db.as_postgres().is_some() {
        return require_file(tx, &file.hash);
    }
    rows::execute(tx.db, PUT_BLOB_ROW, params![file.hash.hash(), rows::signed(file.size)])
}

/// Must be called before a row refers to a file that was stored for it. An erasure of another
/// courier keeps the file when it has only been noted.
///
/// # Errors
///
/// When another courier has deleted the file since it was stored; the caller must store it again.
fn require_file(tx: &Tx<'_>, id: &ObjId) -> StoreResult<()> {
    // The lock `erasing` is enough for one courier.
    if tx.db.as_postgres().is_none() {
        return Ok(());
    }
    let sql = "
        SELECT EXISTS (SELECT 1 FROM blobs WHERE hash = ?1),
               EXISTS (SELECT 1 FROM erased_files WHERE hash = ?1)
    ";
    let (is_stored, is_noted): (bool, bool) =
        rows::one(tx.db, sql, [id.hash()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if !is_stored {
        let why = format!("the file {id} was deleted by an erasure meanwhile; try again");
        return Err(StoreError::Unavailable(why));
    }
    if is_noted {
        rows::execute(tx.db, "DELETE FROM erased_files WHERE hash = ?1", [id.hash()])?;
    }
    Ok(())
}

pub(crate) fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".to_owned())
}

fn damaged_object(detail: String) -> StoreError {
    StoreError::Damaged { what: "object", detail }
}

pub(crate) fn blob_error(error: WriteError) -> StoreError {
    match error {
        WriteError::Write(error) => disk_error(error),
        WriteError::Sync(error) => StoreError::Broken(error.to_string()),
    }
}

pub(crate) fn disk_error(error: std::io::Error) -> StoreError {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => StoreError::DiskFull,
        _ => StoreError::Unavailable(error.to_string()),
    }
}
