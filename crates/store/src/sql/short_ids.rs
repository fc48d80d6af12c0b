//! Finds whole ids by shortened ones, with a range scan of an index.

use std::collections::BTreeMap;

use monoco_core::hex;
use monoco_core::letter::LetterId;
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::record::{RecordId, RecordKind};
use monoco_core::short_id::{ShortId, ShortIdKind};

use super::bulk_index::RecentEntries;
use super::db::{Db, params};
use super::rows;
use crate::StoreResult;

/// Rows of one range that are read. With a million messages, four digits select 15 of them.
const MAX_ROWS: usize = 1_000;

const OBJECTS: &str = "
    SELECT o.seq, o.hash
      FROM object_hashes h
      JOIN objects o ON o.seq = h.object
     WHERE h.hash_prefix BETWEEN ?1 AND ?2 AND o.kind = ?3
     LIMIT ?4
";

const MAILS: &str = "
    SELECT provider || '_' || uid
      FROM mails
     WHERE uid >= ?1 AND uid < ?2 AND provider = ?3
     LIMIT ?4
";

const BYTES: &str = "
    SELECT hash
      FROM blobs
     WHERE hash BETWEEN ?1 AND ?2
     LIMIT ?3
";

/// Returns at most `limit` ids that `short` can mean, in ascending order.
pub(super) fn find(
    db: &Db,
    recent: &RecentEntries,
    short: &ShortId,
    limit: usize,
) -> StoreResult<Vec<String>> {
    let mut ids = match &short.kind {
        ShortIdKind::Message => messages(db, recent, short, ObjKind::Msg)?,
        ShortIdKind::Receipt => messages(db, recent, short, ObjKind::Receipt)?,
        ShortIdKind::Record => records(db, recent, short, RecordKind::Record)?,
        ShortIdKind::Delivery => records(db, recent, short, RecordKind::Delivery)?,
        ShortIdKind::Letter => letter(db, short)?,
        ShortIdKind::Bytes => {
            let [low, high] = bounds::<32>(&short.start);
            let range = params![low, high, limit_of_rows()];
            let hashes = rows::list(db, BYTES, range, |row| row.get(0))?;
            let ids = hashes.into_iter().map(|hash| ObjId::from_parts(ObjKind::Bytes, hash));
            ids.map(|id| id.to_string()).collect()
        }
        ShortIdKind::Mail { provider } => {
            // `g` follows the last hex digit.
            let range =
                params![short.start, format!("{}g", short.start), provider, limit_of_rows()];
            rows::list(db, MAILS, range, |row| row.get(0))?
        }
    };
    ids.retain(|id| short.matches(id));
    ids.sort();
    ids.truncate(limit);
    Ok(ids)
}

fn limit_of_rows() -> i64 {
    rows::limit(MAX_ROWS)
}

/// The smallest and the largest `N` bytes that start with the given hex digits.
fn bounds<const N: usize>(digits: &str) -> [[u8; N]; 2] {
    let digits = &digits[..digits.len().min(2 * N)];
    ["0", "f"].map(|fill| {
        let bytes = hex::decode(&format!("{digits}{}", fill.repeat(2 * N - digits.len())));
        bytes.unwrap_or([0; N])
    })
}

/// Returns the objects whose hashes start with the given digits, as pairs of row and id.
fn objects(
    db: &Db,
    recent: &RecentEntries,
    short: &ShortId,
    kind: ObjKind,
) -> StoreResult<Vec<(i64, ObjId)>> {
    let [low, high] = bounds(&short.start).map(i64::from_be_bytes);
    // Before the first statement, see [`RecentEntries`].
    let newest = recent.rows_between(low, high, MAX_ROWS);
    let range = params![low, high, kind.prefix(), limit_of_rows()];
    let found = rows::list(db, OBJECTS, range, |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut hashes: BTreeMap<i64, [u8; 32]> = found.into_iter().collect();
    for seq in newest {
        let sql = "SELECT hash FROM objects WHERE seq = ?1 AND kind = ?2";
        if let Some(hash) = rows::optional(db, sql, params![seq, kind.prefix()], |row| row.get(0))?
        {
            hashes.insert(seq, hash);
        }
    }
    Ok(hashes.into_iter().map(|(seq, hash)| (seq, ObjId::from_parts(kind, hash))).collect())
}

fn messages(
    db: &Db,
    recent: &RecentEntries,
    short: &ShortId,
    kind: ObjKind,
) -> StoreResult<Vec<String>> {
    let found = objects(db, recent, short, kind)?;
    Ok(found.into_iter().map(|(_, id)| id.to_string()).collect())
}

/// Returns the records or deliveries of the messages whose hashes start with the given digits.
fn records(
    db: &Db,
    recent: &RecentEntries,
    short: &ShortId,
    kind: RecordKind,
) -> StoreResult<Vec<String>> {
    let sql = match kind {
        RecordKind::Record => "SELECT tag FROM records WHERE object = ?1 LIMIT ?2",
        RecordKind::Delivery => "SELECT tag FROM deliveries WHERE object = ?1 LIMIT ?2",
    };
    let mut ids = Vec::new();
    for (object, msg_id) in objects(db, recent, short, ObjKind::Msg)? {
        let tags = rows::numbers(db, sql, [object, limit_of_rows()])?;
        ids.extend(tags.iter().map(|tag| RecordId::from_tag(kind, &msg_id, *tag).to_string()));
    }
    Ok(ids)
}

fn letter(db: &Db, short: &ShortId) -> StoreResult<Vec<String>> {
    let Ok(seq) = short.start.parse::<i64>() else { return Ok(Vec::new()) };
    let sql = "SELECT mark FROM letters WHERE seq = ?1";
    let mark = rows::optional(db, sql, [seq], |row| row.get(0))?;
    Ok(mark.map(|mark| LetterId { seq, mark }.to_string()).into_iter().collect())
}
