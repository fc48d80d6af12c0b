//! Opens connections, applies migrations and maps SQLite errors.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, ffi};

use crate::{StoreError, StoreResult};

/// Schema migrations, oldest first. Each is applied in its own transaction and must not be
/// edited after a release.
pub(crate) const MIGRATIONS: [&str; 1] = [include_str!("../../migrations/sqlite/0001_initial.sql")];

/// Prepared statements that each connection caches.
const CACHED_STATEMENTS: usize = 128;

/// How long a connection waits for a lock of another connection.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens a read-write connection and migrates the schema.
pub(super) fn writer(path: &Path) -> StoreResult<Connection> {
    let mut db = Connection::open(path).map_err(db_error)?;
    configure(&db)?;
    // No automatic checkpoints: every few commits would wait until the whole log is copied.
    // The checkpointer thread does that work.
    db.execute_batch(
        "PRAGMA journal_mode = WAL;
         PRAGMA synchronous = FULL;
         PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = 67108864;
         PRAGMA cache_size = -8192;
         PRAGMA temp_store = MEMORY;",
    )
    .map_err(db_error)?;
    migrate(&mut db)?;
    Ok(db)
}

/// Opens a read-only connection. Readers do not block the writer.
pub(super) fn reader(path: &Path) -> StoreResult<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags).map_err(db_error)?;
    configure(&db)?;
    db.execute_batch("PRAGMA cache_size = -1024; PRAGMA query_only = ON;").map_err(db_error)?;
    Ok(db)
}

fn configure(db: &Connection) -> StoreResult<()> {
    db.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
    db.busy_timeout(LOCK_TIMEOUT).map_err(db_error)?;
    // Keeps the plan of a prepared statement whatever values are bound. Otherwise SQLite
    // plans again for each value that is compared with the condition of a partial index.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(db_error)?;
    Ok(())
}

fn migrate(db: &mut Connection) -> StoreResult<()> {
    let version: u32 =
        db.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(db_error)?;
    let version = version as usize;
    if version > MIGRATIONS.len() {
        return Err(StoreError::Unavailable(format!(
            "the store has schema {version}, this program supports schemas up to {}; \
             use the newer program that wrote it",
            MIGRATIONS.len()
        )));
    }
    for (number, sql) in (1_u32..).zip(MIGRATIONS).skip(version) {
        let tx = db.transaction().map_err(db_error)?;
        tx.execute_batch(sql).map_err(db_error)?;
        tx.pragma_update(None, "user_version", number).map_err(db_error)?;
        tx.commit().map_err(db_error)?;
    }
    Ok(())
}

/// Maps an SQLite error to a store error.
pub(crate) fn db_error(error: rusqlite::Error) -> StoreError {
    let rusqlite::Error::SqliteFailure(cause, _) = &error else {
        return StoreError::Damaged { what: "row", detail: error.to_string() };
    };
    match (cause.extended_code, cause.extended_code & 0xff) {
        // SHMSIZE: the shared-memory file of the log could not grow, because the disk is full.
        (_, ffi::SQLITE_FULL) | (ffi::SQLITE_IOERR_SHMSIZE, _) => StoreError::DiskFull,
        (ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC, _) => {
            StoreError::Broken(error.to_string())
        }
        (_, ffi::SQLITE_CORRUPT | ffi::SQLITE_NOTADB) => {
            StoreError::Damaged { what: "database", detail: error.to_string() }
        }
        _ => StoreError::Unavailable(error.to_string()),
    }
}
