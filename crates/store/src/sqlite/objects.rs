//! Objects: stored once, found by their hash.

use monoco_core::object::{ObjId, ObjKind};
use rusqlite::{Connection, OptionalExtension, params};

use super::bulk_index::{BulkTable, RecentEntries};
use super::open::fault;
use super::writer::Tx;
use crate::StoreError;

/// Bodies above this are files. A row this size is a handful of pages.
pub(super) const INLINE: usize = 64 * 1024;

/// Objects by the first eight bytes of their hash. Whoever follows an entry compares
/// the rest.
pub(super) const HASHES: BulkTable = BulkTable {
    name: "hashes",
    insert: "INSERT INTO hashes (hash8, object) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
    beyond: "SELECT seq, hash FROM objects WHERE seq > ?1",
    key: |row| row.get::<_, [u8; 32]>(1).map(|hash| hash8(&hash)),
};

const IS_IT: &str = "
    SELECT seq
      FROM objects
     WHERE seq = ?1 AND hash = ?2
";

const FIND: &str = "
    SELECT o.seq
      FROM hashes h
      JOIN objects o ON o.seq = h.object
     WHERE h.hash8 = ?1 AND o.hash = ?2
";

const INSERT: &str = "
    INSERT INTO objects (hash, kind, body)
    VALUES (?1, ?2, ?3)
";

const BODY: &str = "
    SELECT hash, kind, body
      FROM objects
     WHERE seq = ?1
";

// Two objects may share half a hash only if somebody has broken SHA-256.
const IS_PREFIX_OF: &str = "
    SELECT seq
      FROM objects
     WHERE seq = ?1 AND substr(hash, 1, 16) = ?2 AND kind = 'cymsg'
";

const FIND_PREFIX: &str = "
    SELECT o.seq
      FROM hashes h
      JOIN objects o ON o.seq = h.object
     WHERE h.hash8 = ?1 AND substr(o.hash, 1, 16) = ?2 AND o.kind = 'cymsg'
";

/// The row of an object.
pub(super) fn find(
    db: &Connection,
    recent: &RecentEntries,
    id: &ObjId,
) -> Result<Option<i64>, StoreError> {
    look_up(db, recent, id.hash(), IS_IT, FIND)
}

/// The row of the message whose hash starts with `prefix`.
pub(super) fn by_prefix(
    db: &Connection,
    recent: &RecentEntries,
    prefix: &[u8; 16],
) -> Result<Option<i64>, StoreError> {
    look_up(db, recent, prefix, IS_PREFIX_OF, FIND_PREFIX)
}

/// Follows the entries for `hash` in memory, then those in the table, to the row that
/// really has it.
fn look_up(
    db: &Connection,
    recent: &RecentEntries,
    hash: &[u8],
    at_row: &str,
    by_table: &str,
) -> Result<Option<i64>, StoreError> {
    let ask = |sql: &str, key: i64| {
        db.prepare_cached(sql)
            .and_then(|mut s| s.query_row(params![key, hash], |row| row.get(0)).optional())
            .map_err(fault)
    };
    let key = hash8(hash);
    for seq in recent.rows(key) {
        if let Some(seq) = ask(at_row, seq)? {
            return Ok(Some(seq));
        }
    }
    ask(by_table, key)
}

/// The row of an object that must be there.
pub(super) fn row_of(
    db: &Connection,
    recent: &RecentEntries,
    id: &ObjId,
) -> Result<i64, StoreError> {
    let missing = || StoreError::Missing { what: "object", key: id.to_string() };
    find(db, recent, id)?.ok_or_else(missing)
}

/// Stores an object that is not there yet. `body` is `None` when it is a file.
pub(super) fn insert(tx: &mut Tx<'_>, id: &ObjId, body: Option<&str>) -> Result<i64, StoreError> {
    let row = params![id.hash(), id.kind().prefix(), body.map(str::as_bytes)];
    let seq = tx.db.prepare_cached(INSERT).and_then(|mut s| s.insert(row)).map_err(fault)?;
    tx.indexes.hashes.add(tx.db, hash8(id.hash()), seq)?;
    Ok(seq)
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

/// The part of a hash that is indexed.
pub(super) fn hash8(hash: &[u8]) -> i64 {
    let first = hash.first_chunk().copied().unwrap_or_default();
    i64::from_be_bytes(first)
}
