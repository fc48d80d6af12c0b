//! Opening the database: connections, migrations, and what its errors mean.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, ffi};

use crate::StoreError;

/// Schema versions, oldest first. Each is applied in a transaction of its own,
/// and never edited once it has shipped.
const MIGRATIONS: [&str; 4] = [
    include_str!("../../migrations/sqlite/0001_initial.sql"),
    include_str!("../../migrations/sqlite/0002_mails.sql"),
    include_str!("../../migrations/sqlite/0003_letters.sql"),
    include_str!("../../migrations/sqlite/0004_bookings.sql"),
];

/// Statements each connection keeps ready.
const STATEMENTS: usize = 128;

/// Opens the connection that writes, and brings the schema up to date.
pub(super) fn writer(path: &Path) -> Result<Connection, StoreError> {
    let mut db = Connection::open(path).map_err(fault)?;
    prepare(&db)?;
    // Checkpoints are somebody else's work: done here, every few commits would
    // wait for the whole log to be copied.
    db.execute_batch(
        "PRAGMA journal_mode = WAL;
         PRAGMA synchronous = FULL;
         PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = 67108864;
         PRAGMA cache_size = -8192;
         PRAGMA temp_store = MEMORY;",
    )
    .map_err(fault)?;
    migrate(&mut db)?;
    Ok(db)
}

/// Opens a connection that only reads. Writing goes on beside it.
pub(super) fn reader(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags).map_err(fault)?;
    prepare(&db)?;
    db.execute_batch("PRAGMA cache_size = -1024; PRAGMA query_only = ON;").map_err(fault)?;
    Ok(db)
}

fn prepare(db: &Connection) -> Result<(), StoreError> {
    db.set_prepared_statement_cache_capacity(STATEMENTS);
    db.busy_timeout(Duration::from_secs(10)).map_err(fault)?;
    // A statement keeps its plan whatever is bound to it. Without this, SQLite
    // plans anew for each value that is compared with a partial index.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(fault)?;
    Ok(())
}

fn migrate(db: &mut Connection) -> Result<(), StoreError> {
    let version: u32 = db.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(fault)?;
    let version = version as usize;
    if version > MIGRATIONS.len() {
        return Err(StoreError::Unavailable(format!(
            "the store has schema {version} and this program knows up to {}; \
             use the newer program that wrote it",
            MIGRATIONS.len()
        )));
    }
    for (number, sql) in (1_u32..).zip(MIGRATIONS).skip(version) {
        let tx = db.transaction().map_err(fault)?;
        tx.execute_batch(sql).map_err(fault)?;
        tx.pragma_update(None, "user_version", number).map_err(fault)?;
        tx.commit().map_err(fault)?;
    }
    Ok(())
}

/// What an error of SQLite means for us.
pub(super) fn fault(error: rusqlite::Error) -> StoreError {
    let rusqlite::Error::SqliteFailure(cause, _) = &error else {
        return StoreError::Damaged { what: "row", detail: error.to_string() };
    };
    match (cause.extended_code, cause.extended_code & 0xff) {
        // The shared index of the log could not grow: a full disk by another name.
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
