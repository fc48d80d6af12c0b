//! Copies a store, also while a courier writes to it, and checks a copy.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use monoco_core::object::{ObjId, ObjKind};
use monoco_fs::FileOptions;
use rusqlite::Connection;

use super::open::db_error;
use super::open_reader;
use crate::blobs;
use crate::sql::db::Db;
use crate::sql::{blob_error, disk_error, rows};
use crate::{StoreError, StoreResult};

/// Name of the database in the directory of a store.
const DATABASE: &str = "monoco.db";

/// What a copy of a store contains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreCopy {
    pub mails: u64,
    pub records: u64,
    /// Attachments and large objects.
    pub files: u64,
    /// Names of files that are missing or damaged in the source, and not in the copy.
    pub missing: Vec<String>,
}

/// Copies the store in `from` to the new directory `to`, and checks the copy. Calls `progress`
/// with the number of copied files and the number of all files.
///
/// The database is copied in one snapshot. Files are never deleted while a row refers to them, and
/// retention deletes none while the store is copied, so that those of the snapshot exist when they
/// are copied after it.
///
/// # Errors
///
/// When the source cannot be read, the copy cannot be written, or the copied database is damaged.
pub fn copy(
    from: &Path,
    to: &Path,
    progress: &mut dyn FnMut(usize, usize),
) -> StoreResult<StoreCopy> {
    blobs::create_dir(to).map_err(blob_error)?;
    let target = to.join(DATABASE);
    let _lock = blobs::lock_for_copy(&from.join("blobs")).map_err(disk_error)?;
    let source = Connection::open_with_flags(
        from.join(DATABASE),
        rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )
    .map_err(db_error)?;
    source.execute("VACUUM INTO ?1", [target.to_string_lossy().as_ref()]).map_err(db_error)?;
    drop(source);
    sync(&target)?;
    let db = open_copy(&target)?;
    let mut copied = counts(&db)?;
    let files = files(&db)?;
    for (at, (id, bytes)) in files.iter().enumerate() {
        progress(at, files.len());
        let name = Path::new("blobs").join(blobs::relative_path(id));
        if copy_file(id, *bytes, &from.join(&name), &to.join(&name))? {
            copied.files += 1;
        } else {
            copied.missing.push(id.to_string());
        }
    }
    progress(files.len(), files.len());
    monoco_fs::sync_dir(to).map_err(disk_error)?;
    Ok(copied)
}

/// Checks that the store in `dir` is undamaged and complete. Changes nothing.
///
/// # Errors
///
/// When the database is damaged, or a file is missing or has another hash.
pub fn verify(dir: &Path) -> StoreResult<StoreCopy> {
    let db = open_copy(&dir.join(DATABASE))?;
    let mut found = counts(&db)?;
    for (id, bytes) in files(&db)? {
        let path = dir.join("blobs").join(blobs::relative_path(&id));
        if read_file(&id, bytes, &path)?.is_some() {
            found.files += 1;
        } else {
            found.missing.push(id.to_string());
        }
    }
    Ok(found)
}

/// Opens a copied database, which has no log, and checks its pages.
fn open_copy(path: &Path) -> StoreResult<Db> {
    let db = open_reader(path, Arc::default())?;
    let result: String = rows::one(&db, "PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if result == "ok" {
        return Ok(db);
    }
    Err(StoreError::Damaged { what: "database", detail: result })
}

fn counts(db: &Db) -> StoreResult<StoreCopy> {
    let count = |sql| rows::one(db, sql, [], |row| rows::unsigned(row, 0));
    Ok(StoreCopy {
        mails: count("SELECT count(*) FROM mails")?,
        records: count("SELECT count(*) FROM records")?,
        ..StoreCopy::default()
    })
}

/// Lists the files of a store with their sizes.
pub(crate) fn files(db: &Db) -> StoreResult<Vec<(ObjId, u64)>> {
    rows::list(db, "SELECT hash, bytes FROM blobs ORDER BY hash", [], |row| {
        Ok((ObjId::from_parts(ObjKind::Bytes, row.get(0)?), rows::unsigned(row, 1)?))
    })
}

/// Copies a file and syncs it. Returns `false` when the source is missing or damaged.
fn copy_file(id: &ObjId, bytes: u64, from: &Path, to: &Path) -> StoreResult<bool> {
    let Some(body) = read_file(id, bytes, from)? else { return Ok(false) };
    let dir = to.parent().unwrap_or(to);
    blobs::create_dir(dir).map_err(blob_error)?;
    monoco_fs::write(to, &body, FileOptions::PRIVATE_SYNCED).map_err(blob_error)?;
    Ok(true)
}

/// Reads a file; `None` when it is missing or has another size or hash.
fn read_file(id: &ObjId, bytes: u64, path: &Path) -> StoreResult<Option<Vec<u8>>> {
    if !path.metadata().is_ok_and(|found| found.is_file() && found.len() == bytes) {
        return Ok(None);
    }
    let body = fs::read(path).map_err(disk_error)?;
    Ok((ObjId::of(ObjKind::Bytes, &body).hash() == id.hash()).then_some(body))
}

fn sync(path: &Path) -> StoreResult<()> {
    let synced = fs::File::open(path).and_then(|file| file.sync_all());
    synced.map_err(|error| StoreError::Broken(error.to_string()))
}
