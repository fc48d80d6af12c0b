//! Attachments and large objects in tables, in parts of 1 MiB.
//!
//! Bytes whose hash is not known yet, and bytes that are read in parts, are in a file of this
//! courier meanwhile. So a transaction is as short as the copy, and no body is in memory twice.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use monoco_core::inbound::StoredBytes;
use monoco_core::object::{ObjId, ObjKind};
use monoco_fs::WriteError;

use super::connect::Connector;
use super::driver::PgConnection;
use crate::blobs::{BlobFiles, BlobReader, BlobStorage, BlobWriter, DeletionLock};
use crate::sql::db::{Params, Row, TxControl, TxStatus, params};
use crate::sql::rows;
use crate::{StoreError, StoreResult};

/// Bytes of one row.
const PART_BYTES: usize = 1 << 20;

/// How often a transaction is run when its connection is lost.
const MAX_ATTEMPTS: usize = 3;

const PUT_FILE: &str = "
    INSERT INTO stored_files (hash, bytes, stored_at)
    VALUES (?1, ?2, CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT))
        ON CONFLICT (hash) DO UPDATE SET bytes = excluded.bytes, stored_at = excluded.stored_at
";

// A part that is damaged is replaced.
const PUT_PART: &str = "
    INSERT INTO stored_parts (hash, part, bytes)
    VALUES (?1, ?2, ?3)
        ON CONFLICT (hash, part) DO UPDATE SET bytes = excluded.bytes
";

// Locked, so that it is not stored again between the look and the deletion.
const AGE: &str = "
    SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT) - stored_at, bytes
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

/// Bodies in the database.
#[derive(Debug)]
pub(super) struct PgBlobs {
    connector: Arc<Connector>,
    idle: Mutex<Vec<PgConnection>>,
    /// Files while they are read or written.
    spool: BlobFiles,
    /// Locked while a file of the spool has a name.
    named: Mutex<()>,
}

impl PgBlobs {
    pub(super) fn new(connector: Arc<Connector>, spool: BlobFiles) -> Self {
        Self { connector, idle: Mutex::default(), spool, named: Mutex::default() }
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

    /// Stores the parts that `read` returns.
    fn store(
        &self,
        id: &ObjId,
        size: u64,
        read: impl Fn() -> io::Result<Box<dyn Read>>,
    ) -> Result<(), WriteError> {
        let stored = self.write(|db| {
            db.execute(PUT_FILE, &params![id.hash(), rows::signed(size)])?;
            let mut bytes = read().map_err(crate::sql::disk_error)?;
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
            Ok(())
        });
        stored.map_err(WriteError::Write)
    }

    /// Calls `take` for each part of a body until it returns `false`. Returns whether there is
    /// such a body.
    fn load(
        &self,
        id: &ObjId,
        mut take: impl FnMut(&[u8]) -> io::Result<bool>,
    ) -> io::Result<bool> {
        self.read(|db| {
            let sql = "SELECT 1 FROM stored_files WHERE hash = ?1";
            if first(db, sql, &[id.hash()], |_| Ok(()))?.is_none() {
                return Ok(false);
            }
            let sql = "SELECT bytes FROM stored_parts WHERE hash = ?1 AND part = ?2";
            for number in 0_i64.. {
                let part: Option<Vec<u8>> =
                    first(db, sql, &params![id.hash(), number], |row| Ok(row.get(0)?))?;
                let Some(part) = part else { break };
                if !take(&part).map_err(crate::sql::disk_error)? {
                    break;
                }
            }
            Ok(true)
        })
    }

    fn delete(db: &PgConnection, id: &ObjId) -> StoreResult<()> {
        db.execute("DELETE FROM stored_parts WHERE hash = ?1", &[id.hash()])?;
        db.execute("DELETE FROM stored_files WHERE hash = ?1", &[id.hash()])?;
        Ok(())
    }
}

impl BlobStorage for PgBlobs {
    fn put(&self, id: &ObjId, bytes: &[u8]) -> Result<(), WriteError> {
        let bytes: Arc<[u8]> = bytes.into();
        self.store(id, bytes.len() as u64, || Ok(Box::new(io::Cursor::new(Arc::clone(&bytes)))))
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
        let _lock = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let stored = self.spool.finish(writer)?;
        let path = self.spool.path(&stored.hash);
        let open = || Ok(Box::new(std::fs::File::open(&path)?) as Box<dyn Read>);
        let copied = self.store(&stored.hash, stored.size, open);
        self.spool.remove(&stored.hash)?;
        copied.map(|()| stored)
    }

    fn open_file(&self, id: &ObjId) -> io::Result<Option<BlobReader>> {
        let _lock = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = self.spool.start().map_err(into_io)?;
        let found = self.load(id, |part| {
            file.append(part).map_err(into_io)?;
            Ok(true)
        })?;
        if !found {
            return Ok(None);
        }
        // Another hash is reported by the reader.
        let hash = self.spool.finish(file).map_err(into_io)?.hash;
        let reader = self.spool.open_file(&hash)?;
        self.spool.remove(&hash).map_err(into_io)?;
        Ok(reader.map(|reader| reader.of(*id)))
    }

    fn get(&self, id: &ObjId) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let found = self.load(id, |part| {
            bytes.extend_from_slice(part);
            Ok(true)
        })?;
        Ok(found.then_some(bytes))
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
        self.load(id, |part| {
            bytes.extend_from_slice(part);
            Ok(bytes.starts_with(b"{"))
        })?;
        Ok(String::from_utf8(bytes).ok().filter(|text| text.starts_with('{')))
    }

    fn remove(&self, id: &ObjId) -> Result<(), WriteError> {
        self.write(|db| Self::delete(db, id)).map_err(WriteError::Write)
    }

    fn is_old(&self, id: &ObjId, min_age: Duration) -> io::Result<bool> {
        self.write(|db| {
            let age = first(db, AGE, &[id.hash()], |row| Ok(row.get::<i64>(0)?))?;
            Ok(age.is_none_or(|age| is_at_least(age, min_age)))
        })
    }

    fn remove_old(&self, id: &ObjId, min_age: Duration) -> Result<Option<u64>, WriteError> {
        let removed = self.write(|db| {
            let found = first(db, AGE, &[id.hash()], |row| {
                Ok((row.get::<i64>(0)?, rows::unsigned(row, 1)?))
            })?;
            match found {
                Some((age, bytes)) if !is_at_least(age, min_age) => Ok(Some(bytes)),
                _ => Self::delete(db, id).map(|()| None),
            }
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

fn into_io(error: WriteError) -> io::Error {
    match error {
        WriteError::Write(error) | WriteError::Sync(error) => error,
    }
}
