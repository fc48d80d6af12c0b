//! Objects: stored once, found by their hash.

use monoco_core::object::{ObjId, ObjKind};
use rusqlite::{Connection, OptionalExtension, params};

use super::open::fault;
use super::writer::Tx;
use crate::StoreError;

/// Bodies above this are files. A row this size is a handful of pages.
pub(super) const INLINE: usize = 64 * 1024;

const FIND: &str = "
    SELECT seq
      FROM objects
     WHERE hash8 = ?1 AND hash = ?2
";

const INSERT: &str = "
    INSERT INTO objects (hash8, hash, kind, body)
    VALUES (?1, ?2, ?3, ?4)
";

const BODY: &str = "
    SELECT hash, kind, body
      FROM objects
     WHERE seq = ?1
";

// Two objects may share half a hash only if somebody has broken SHA-256.
const BY_PREFIX: &str = "
    SELECT seq, hash
      FROM objects
     WHERE hash8 = ?1 AND substr(hash, 1, 16) = ?2 AND kind = 'cymsg'
";

/// The row of an object.
pub(super) fn find(db: &Connection, id: &ObjId) -> Result<Option<i64>, StoreError> {
    let mut statement = db.prepare_cached(FIND).map_err(fault)?;
    statement
        .query_row(params![hash8(id.hash()), id.hash()], |row| row.get(0))
        .optional()
        .map_err(fault)
}

/// The row of an object that must be there.
pub(super) fn row_of(db: &Connection, id: &ObjId) -> Result<i64, StoreError> {
    let missing = || StoreError::Missing { what: "object", key: id.to_string() };
    find(db, id)?.ok_or_else(missing)
}

/// Stores an object that is not there yet. `body` is `None` when it is a file.
pub(super) fn insert(tx: &Tx<'_>, id: &ObjId, body: Option<&str>) -> Result<i64, StoreError> {
    let mut statement = tx.db.prepare_cached(INSERT).map_err(fault)?;
    statement
        .insert(params![hash8(id.hash()), id.hash(), id.kind().prefix(), body.map(str::as_bytes)])
        .map_err(fault)
}

/// An object's name and body, unchecked. The body is `None` when it is a file.
pub(super) fn body(db: &Connection, seq: i64) -> Result<(ObjId, Option<Vec<u8>>), StoreError> {
    let mut statement = db.prepare_cached(BODY).map_err(fault)?;
    let (hash, kind, body) = statement
        .query_row([seq], |row| {
            Ok((row.get::<_, [u8; 32]>(0)?, row.get::<_, String>(1)?, row.get(2)?))
        })
        .map_err(fault)?;
    let kind = match kind.as_str() {
        "cymsg" => ObjKind::Msg,
        "cymsgr" => ObjKind::Receipt,
        other => {
            let detail = format!("{seq} has the kind {other}");
            return Err(StoreError::Damaged { what: "object", detail });
        }
    };
    Ok((ObjId::from_parts(kind, hash), body))
}

/// The message whose hash starts with `prefix`.
pub(super) fn by_prefix(
    db: &Connection,
    prefix: &[u8; 16],
) -> Result<Option<(i64, ObjId)>, StoreError> {
    let mut statement = db.prepare_cached(BY_PREFIX).map_err(fault)?;
    statement
        .query_row(params![hash8(prefix), prefix], |row| {
            Ok((row.get(0)?, ObjId::from_parts(ObjKind::Msg, row.get(1)?)))
        })
        .optional()
        .map_err(fault)
}

fn hash8(hash: &[u8]) -> i64 {
    let first = hash.first_chunk().copied().unwrap_or_default();
    i64::from_be_bytes(first)
}
