//! The embedded backend: SQLite in WAL mode, with a sync after every commit.
//!
//! The statements of the store are in `crate::sql`. This folder has what only SQLite needs: it
//! opens, migrates, copies and checks the database file, and its checkpointer thread copies the
//! log into the file.

use std::path::Path;
use std::sync::Arc;

use crate::StoreResult;
use crate::blobs::{self, BlobFiles};
use crate::sql::damage::DamagedRows;
use crate::sql::db::Db;
use crate::sql::facts;
use crate::sql::writer::WriterChannels;
use crate::sql::{ReaderSource, SqlStore, StoreParts, blob_error, bulk_index, disk_error};
pub use backup::{StoreCopy, copy, verify};
pub use check::{StoreCheck, check};
pub(crate) use checkpoint::{Checkpointer, WalSize, vacuum};
pub(crate) use database_file::DatabaseFile;
use driver::SqliteConnection;

mod backup;
mod check;
mod checkpoint;
mod database_file;
pub(crate) mod driver;
mod open;

pub(crate) use backup::files;
pub(crate) use open::{MIGRATIONS, db_error};

/// Opens stores in directories.
#[derive(Debug)]
pub struct SqliteStore;

impl SqliteStore {
    /// Opens the store in `dir`, and creates it when it does not exist.
    ///
    /// # Errors
    ///
    /// When the directory or the database cannot be opened, or was written by a newer version.
    pub fn open(dir: &Path) -> StoreResult<SqlStore> {
        open_with(dir, bulk_index::MERGE_SIZE)
    }
}

/// Opens the store with bulk indexes that are merged at `merge_size` entries.
pub(crate) fn open_with(dir: &Path, merge_size: usize) -> StoreResult<SqlStore> {
    blobs::create_dir(dir).map_err(blob_error)?;
    let path = dir.join("monoco.db");
    let mut db = open_writer(&path)?;
    facts::check_complete(&db)?;
    let file = DatabaseFile::open(path.clone()).map_err(disk_error)?;
    let channels = Arc::new(WriterChannels::new(&db, Some(file), None)?);
    let checkpointer =
        Checkpointer::start(open::writer(&path)?, Arc::clone(&channels)).map_err(disk_error)?;
    let wal = checkpointer.watch(&mut db)?;
    SqlStore::start(StoreParts {
        db,
        readers: ReaderSource::Sqlite(path),
        blobs: Arc::new(BlobFiles::open(dir.join("blobs")).map_err(blob_error)?),
        channels,
        merge_size,
        log: Some((wal, checkpointer)),
        hints: None,
    })
}

/// Opens a read-write connection to a database file.
pub(crate) fn open_writer(path: &Path) -> StoreResult<Db> {
    Ok(Db::sqlite(SqliteConnection::new(open::writer(path)?), Arc::default()))
}

/// Opens a read-only connection to a database file.
pub(crate) fn open_reader(path: &Path, damaged: Arc<DamagedRows>) -> StoreResult<Db> {
    Ok(Db::sqlite(SqliteConnection::new(open::reader(path)?), damaged))
}
