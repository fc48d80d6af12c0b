//! Attachments and large objects: rows for all of them, and their bytes in parts of 1 MiB in
//! tables, or in a remote place.
//!
//! Bytes whose hash is not known yet, and bytes that are read in parts, are in a file of this
//! courier meanwhile. So a transaction is as short as the copy, and no body is in memory twice.
//!
//! The row in `blobs`, which commands look for, is written in the transaction that ends a copy. A
//! courier that deletes a file deletes this row first, and the bytes only while the row is missing:
//! so bytes that another courier has stored again stay. Both lock the row in `stored_files`. Bytes in
//! a remote place are written between two transactions: if `generation` has changed in between, the
//! row was deleted, and the bytes perhaps after they were written, so they are written again.

use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use monoco_core::inbound::StoredBytes;
use monoco_core::object::{ObjId, ObjKind};
use monoco_fs::WriteError;

use super::connect::Connector;
use super::driver::PgConnection;
use crate::blobs::{BlobFiles, BlobReader, BlobStorage, BlobWriter, DeletionLock, into_io};
use crate::sql::db::{Params, Row, TxControl, TxStatus, params};
use crate::sql::{PUT_BLOB_ROW, rows};
use crate::{ObjectSource, RemoteObjects, StoreError, StoreResult};

/// Bytes of one row.
const PART_BYTES: usize = 1 << 20;

/// How often a transaction is run when its connection is lost, and how often bytes are written
/// that another courier deletes meanwhile.
const MAX_ATTEMPTS: usize = 3;

const PUT_FILE: &str = "
    INSERT INTO stored_files (hash, bytes, stored_at, generation)
    VALUES (?1, ?2, CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT),
            CAST(random() * 4503599627370496 AS BIGINT))
        ON CONFLICT (hash) DO UPDATE SET bytes = excluded.bytes, stored_at = excluded.stored_at
    RETURNING generation
";

// A part that is damaged is replaced.
const PUT_PART: &str = "
    INSERT INTO stored_parts (hash, part, bytes)
    VALUES (?1, ?2, ?3)
        ON CONFLICT (hash, part) DO UPDATE SET bytes = excluded.bytes
";

const DELETE_PARTS: &str = "DELETE FROM stored_parts WHERE hash = ?1";

// Locked, so that it is not stored again between the look and the deletion.
const FIND_LOCKED: &str = "
    SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT) - stored_at, bytes, generation
      FROM stored_files
     WHERE hash = ?1
       FOR UPDATE
";

const LIST: &str = "
    SELECT hash
      FROM stored_files
     WHERE hash BETWEEN ?1 AND ?2 AND bytes > ?3
     ORDER BY hash
";

/// A row of `stored_files`.
struct StoredFile {
    age_ms: i64,
    bytes: u64,
    generation: i64,
}

/// Bodies that have rows in the database.
#[derive(Debug)]
pub(super) struct PgBlobs {
    connector: Arc<Connector>,
    idle: Mutex<Vec<PgConnection>>,
    /// Files while they are read or written.
    spool: BlobFiles,
    /// Where the bytes are when they are not in the database.
    remote: Option<Arc<dyn RemoteObjects>>,
}

impl PgBlobs {
    pub(super) fn new(
        connector: Arc<Connector>,
        spool: BlobFiles,
        remote: Option<Arc<dyn RemoteObjects>>,
    ) -> Self {
        Self { connector, idle: Mutex::default(), spool, remote }
    }

    /// Runs `work` in a transaction that writes. It is run again when the connection is lost.
    fn write<T>(&self, work: impl Fn(&PgConnection) -> StoreResult<T>) -> io::Result<T> {
        let mut attempts = 1;
        loop {
            match self.run(TxControl::Begin, &work) {
                Err((_, TxStatus::Lost)) if attempts < MAX_ATTEMPTS => attempts += 1,
                result => return result.map_err(|(error, _)| io_error(error)),
            }
        }
    }

    /// Runs `work` in a transaction that reads one snapshot.
    fn read<T>(&self, work: impl FnOnce(&PgConnection) -> StoreResult<T>) -> io::Result<T> {
        self.run(TxControl::BeginRead, work).map_err(|(error, _)| io_error(error))
    }

    fn run<T>(
        &self,
        start: TxControl,
        work: impl FnOnce(&PgConnection) -> StoreResult<T>,
    ) -> Result<T, (StoreError, TxStatus)> {
        let db = self.begin(start).map_err(|error| (error, TxStatus::None))?;
        let result = work(&db).and_then(|result| db.commit("COMMIT").map(|()| result));
        // A connection whose transaction failed is closed.
        let result = result.map_err(|error| (error, db.status()))?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(db);
        Ok(result)
    }

    /// Starts a transaction on an idle connection, or on a new one.
    fn begin(&self, start: TxControl) -> StoreResult<PgConnection> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        while let Some(db) = idle() {
            // The connections that were idle while the server was restarted are lost.
            if db.control(start).is_ok() {
                return Ok(db);
            }
        }
        let db = PgConnection::open(Arc::clone(&self.connector))?;
        db.control(start)?;
        Ok(db)
    }

    fn store(&self, id: &ObjId, size: u64, source: &ObjectSource) -> Result<(), WriteError> {
        let stored = match &self.remote {
            Some(remote) => self.store_remotely(&**remote, id, size, source),
            None => self.store_parts(id, size, source),
        };
        stored.map_err(WriteError::Write)
    }

    /// Stores bytes in the database.
    fn store_parts(&self, id: &ObjId, size: u64, source: &ObjectSource) -> io::Result<()> {
        self.write(|db| {
            put_file(db, id, size)?;
            let mut bytes: Box<dyn Read> = match source {
                ObjectSource::Bytes(bytes) => Box::new(&bytes[..]),
                ObjectSource::File(path) => {
                    Box::new(File::open(path).map_err(crate::sql::disk_error)?)
                }
            };
            let mut part = Vec::new();
            for number in 0_i64.. {
                part.clear();
                let mut limited = (&mut bytes).take(PART_BYTES as u64);
                limited.read_to_end(&mut part).map_err(crate::sql::disk_error)?;
                if part.is_empty() {
                    break;
                }
                db.execute(PUT_PART, &params![id.hash(), number, part])?;
            }
            db.execute(PUT_BLOB_ROW, &params![id.hash(), rows::signed(size)])
        })
    }

    /// Stores bytes in the remote place.
    fn store_remotely(
        &self,
        remote: &dyn RemoteObjects,
        id: &ObjId,
        size: u64,
        source: &ObjectSource,
    ) -> io::Result<()> {
        for _ in 0..MAX_ATTEMPTS {
            let generation = self.write(|db| put_file(db, id, size))?;
            remote.put(id.hash(), size, source)?;
            let is_kept = self.write(|db| {
                match find_locked(db, id)? {
                    Some(file) if file.generation == generation => {}
                    _ => return Ok(false),
                }
                put_file(db, id, size)?;
                // They were in the database before the place was configured.
                db.execute(DELETE_PARTS, &[id.hash()])?;
                db.execute(PUT_BLOB_ROW, &params![id.hash(), rows::signed(size)])?;
                Ok(true)
            })?;
            if is_kept {
                return Ok(());
            }
        }
        let why = format!("other couriers delete {id} while it is stored; try again");
        Err(io::Error::other(why))
    }

    /// Calls `take` for each part of a body until it returns `false`. Returns whether there is
    /// such a body.
    fn load(
        &self,
        id: &ObjId,
        take: &mut dyn FnMut(&[u8]) -> io::Result<bool>,
    ) -> io::Result<bool> {
        let (size, parts) = self.read(|db| {
            let sql = "SELECT bytes FROM stored_files WHERE hash = ?1";
            let size = first(db, sql, &[id.hash()], |row| Ok(rows::unsigned(row, 0)?))?;
            let sql = "SELECT bytes FROM stored_parts WHERE hash = ?1 AND part = ?2";
            let mut parts = 0_i64;
            while size.is_some() {
                let part: Option<Vec<u8>> =
                    first(db, sql, &params![id.hash(), parts], |row| Ok(row.get(0)?))?;
                let Some(part) = part else { break };
                parts += 1;
                if !take(&part).map_err(crate::sql::disk_error)? {
                    break;
                }
            }
            Ok((size, parts))
        })?;
        match (size, &self.remote) {
            (None, _) => Ok(false),
            (Some(size), Some(remote)) if size > 0 && parts == 0 => {
                remote.get(id.hash(), size, take)
            }
            _ => Ok(true),
        }
    }

    /// Deletes a body whose row is locked, unless it has a row in `blobs`. Returns whether it was
    /// deleted.
    fn delete(&self, db: &PgConnection, id: &ObjId) -> StoreResult<bool> {
        let sql = "SELECT 1 FROM blobs WHERE hash = ?1";
        if first(db, sql, &[id.hash()], |_| Ok(()))?.is_some() {
            return Ok(false);
        }
        if let Some(remote) = &self.remote {
            remote.delete(id.hash()).map_err(crate::sql::disk_error)?;
        }
        db.execute(DELETE_PARTS, &[id.hash()])?;
        db.execute("DELETE FROM stored_files WHERE hash = ?1", &[id.hash()])?;
        Ok(true)
    }
}

impl BlobStorage for PgBlobs {
    fn put(&self, id: &ObjId, bytes: &[u8]) -> Result<(), WriteError> {
        self.store(id, bytes.len() as u64, &ObjectSource::Bytes(bytes.into()))
    }

    fn put_all(&self, blobs: &[(ObjId, Vec<u8>)]) -> Result<Vec<StoredBytes>, WriteError> {
        let put = |(id, bytes): &(ObjId, Vec<u8>)| {
            self.put(id, bytes)?;
            Ok(StoredBytes { hash: *id, size: bytes.len() as u64 })
        };
        blobs.iter().map(put).collect()
    }

    fn start(&self) -> Result<BlobWriter, WriteError> {
        self.spool.start()
    }

    fn finish(&self, writer: BlobWriter) -> Result<StoredBytes, WriteError> {
        let stored = writer.stored();
        self.store(&stored.hash, stored.size, &ObjectSource::File(writer.path().to_owned()))?;
        Ok(stored)
    }

    fn open_file(&self, id: &ObjId) -> io::Result<Option<BlobReader>> {
        let mut file = self.spool.start().map_err(into_io)?;
        match self.copy_to(id, &mut file)? {
            true => BlobReader::open(file.path(), *id).map(Some),
            false => Ok(None),
        }
    }

    fn get(&self, id: &ObjId) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let found = self.load(id, &mut |part| {
            bytes.extend_from_slice(part);
            Ok(true)
        })?;
        Ok(found.then_some(bytes))
    }

    fn copy_to(&self, id: &ObjId, to: &mut BlobWriter) -> io::Result<bool> {
        self.load(id, &mut |part| to.append(part).map(|()| true).map_err(into_io))
    }

    fn list(&self, first_byte: u8, min: u64) -> io::Result<Vec<ObjId>> {
        self.read(|db| {
            let mut found = Vec::new();
            let (mut first, mut last) = ([0; 32], [u8::MAX; 32]);
            (first[0], last[0]) = (first_byte, first_byte);
            let range = params![first, last, rows::signed(min)];
            db.scan(LIST, &range, usize::MAX, &mut |row| {
                found.push(ObjId::from_parts(ObjKind::Bytes, row.get(0)?));
                Ok(true)
            })?;
            Ok(found)
        })
    }

    fn json(&self, id: &ObjId) -> io::Result<Option<String>> {
        let mut bytes = Vec::new();
        self.load(id, &mut |part| {
            bytes.extend_from_slice(part);
            Ok(bytes.starts_with(b"{"))
        })?;
        Ok(String::from_utf8(bytes).ok().filter(|text| text.starts_with('{')))
    }

    fn remove(&self, id: &ObjId) -> Result<(), WriteError> {
        let removed = self.write(|db| match find_locked(db, id)? {
            Some(_) => self.delete(db, id).map(drop),
            None => Ok(()),
        });
        removed.map_err(WriteError::Write)
    }

    fn is_old(&self, id: &ObjId, min_age: Duration) -> io::Result<bool> {
        self.write(|db| Ok(find_locked(db, id)?.is_none_or(|file| file.is_old(min_age))))
    }

    fn remove_old(&self, id: &ObjId, min_age: Duration) -> Result<Option<u64>, WriteError> {
        let removed = self.write(|db| {
            let Some(file) = find_locked(db, id)? else { return Ok(None) };
            if file.is_old(min_age) && self.delete(db, id)? {
                return Ok(None);
            }
            // It was stored again, perhaps before its row was deleted.
            db.execute(PUT_BLOB_ROW, &params![id.hash(), rows::signed(file.bytes)])?;
            Ok(Some(file.bytes))
        });
        removed.map_err(WriteError::Write)
    }

    fn try_lock_deletions(&self) -> io::Result<Option<DeletionLock>> {
        Ok(Some(DeletionLock::NONE))
    }

    fn has(&self, id: &ObjId, bytes: u64) -> bool {
        let found = self.read(|db| {
            let sql = "SELECT bytes FROM stored_files WHERE hash = ?1";
            first(db, sql, &[id.hash()], |row| Ok(rows::unsigned(row, 0)?))
        });
        found.is_ok_and(|found| found == Some(bytes))
    }

    fn is_stored(&self, id: &ObjId, bytes: u64) -> io::Result<bool> {
        if !self.has(id, bytes) {
            return Ok(false);
        }
        let Some(remote) = &self.remote else { return Ok(true) };
        let sql = "SELECT 1 FROM stored_parts WHERE hash = ?1 LIMIT 1";
        let in_database = self.read(|db| first(db, sql, &[id.hash()], |_| Ok(())))?.is_some();
        Ok(in_database || remote.size(id.hash())? == Some(bytes))
    }

    fn remote(&self) -> Option<&dyn RemoteObjects> {
        self.remote.as_deref()
    }
}

impl StoredFile {
    fn is_old(&self, min_age: Duration) -> bool {
        is_at_least(self.age_ms, min_age)
    }
}

/// Writes the row of a file, or makes it new again. Returns its generation.
fn put_file(db: &PgConnection, id: &ObjId, size: u64) -> StoreResult<i64> {
    let row = params![id.hash(), rows::signed(size)];
    let generation = first(db, PUT_FILE, &row, |row| Ok(row.get(0)?))?;
    generation.ok_or_else(|| StoreError::Unavailable("no row of a file was written".to_owned()))
}

/// Locks the row of a file until the end of the transaction.
fn find_locked(db: &PgConnection, id: &ObjId) -> StoreResult<Option<StoredFile>> {
    first(db, FIND_LOCKED, &[id.hash()], |row| {
        Ok(StoredFile {
            age_ms: row.get(0)?,
            bytes: rows::unsigned(row, 1)?,
            generation: row.get(2)?,
        })
    })
}

/// Whether an age in milliseconds is at least this long.
fn is_at_least(age: i64, min: Duration) -> bool {
    u64::try_from(age).is_ok_and(|age| Duration::from_millis(age) >= min)
}

/// Reads the first row of a query.
fn first<T>(
    db: &PgConnection,
    sql: &str,
    params: &dyn Params,
    read: impl Fn(&Row<'_>) -> StoreResult<T>,
) -> StoreResult<Option<T>> {
    let mut found = None;
    db.scan(sql, params, usize::MAX, &mut |row| {
        found = Some(read(row)?);
        Ok(false)
    })?;
    Ok(found)
}

fn io_error(error: StoreError) -> io::Error {
    match error {
        StoreError::DiskFull => io::ErrorKind::StorageFull.into(),
        other => io::Error::other(other.to_string()),
    }
}
