//! Rows of records: their columns, and how they are found and read.

use std::collections::BTreeSet;

use monoco_core::lease::{Holder, Lease};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::record::{
    BoxKind, MsgRecord, ReadState, ReadStateData, ReadStatus, RecordId, RecordKind,
};
use monoco_core::tag::Tag;
use monoco_core::time::Timestamp;

use crate::sql::bulk_index::RecentEntries;
use crate::sql::db::{Db, Row, RowResult, params};
use crate::sql::objects;
use crate::sql::rows::{self, parsed};
use crate::sql::writer::Tx;
use crate::{CreatedRecord, StoreError, StoreResult};

/// Columns of [`read`], in its order.
pub(in crate::sql) const COLUMNS: &str = "
    r.seq, o.hash, r.tag, p.did, r.box, r.state, r.attempts, r.epoch, r.revision, r.holder,
    r.lease_until, s.did, g.did, t.did, r.created_at, r.updated_at, r.object, r.thread_key,
    r.tags
";

pub(super) const COLUMN_COUNT: usize = 19;

pub(in crate::sql) const TABLES: &str = "
    records r
      JOIN objects o ON o.seq = r.object
      JOIN parties p ON p.id = r.owner
      JOIN parties s ON s.id = r.session
      LEFT JOIN parties g ON g.id = r.group_id
      LEFT JOIN parties t ON t.id = r.tunnel
";

pub(in crate::sql) fn read(row: &Row<'_>) -> RowResult<MsgRecord> {
    let msg_id = ObjId::from_parts(ObjKind::Msg, row.get(1)?);
    let state: String = row.get(5)?;
    let lease = lease(row, 9, 10)?;
    let state = match (ReadState::parse(&state), lease) {
        (Some(ReadState::Unread), None) => ReadStateData::Unread,
        (Some(ReadState::Reading), Some(lease)) => ReadStateData::Reading(lease),
        (Some(ReadState::Readed), None) => ReadStateData::Readed,
        (Some(ReadState::Sent), None) => ReadStateData::Sent,
        (Some(ReadState::Archived), None) => ReadStateData::Archived,
        (Some(ReadState::Deleted), None) => ReadStateData::Deleted,
        _ => return Err(rows::damaged(5, "the state does not match the lease")),
    };
    let group: Option<String> = row.get(12)?;
    let mut tags: Vec<String> = group.map(|group| format!("group:{group}")).into_iter().collect();
    tags.extend(user_tags(row)?.into_iter().map(String::from));
    Ok(MsgRecord {
        id: RecordId::from_tag(RecordKind::Record, &msg_id, row.get(2)?),
        seq: row.get(0)?,
        owner: parsed(row, 3)?,
        box_kind: box_kind(row, 4)?,
        msg_id,
        reading: ReadStatus { state, attempts: row.get(6)?, epoch: rows::unsigned(row, 7)? },
        revision: row.get(8)?,
        session: parsed(row, 11)?,
        tags,
        thread_key: row.get(17)?,
        tunnel: row.get::<Option<String>>(13)?.and_then(|did| did.parse().ok()),
        created_at: Timestamp::from_ms(row.get(14)?),
        updated_at: Timestamp::from_ms(row.get(15)?),
    })
}

/// The user's tags of a record.
fn user_tags(row: &Row<'_>) -> RowResult<BTreeSet<Tag>> {
    let Some(tags) = row.get::<Option<String>>(18)? else { return Ok(BTreeSet::new()) };
    serde_json::from_str(&tags).map_err(|_| rows::damaged(18, "invalid tags"))
}

/// Reads the columns of a lease; `None` when they are NULL.
pub(in crate::sql) fn lease(
    row: &Row<'_>,
    holder: usize,
    until: usize,
) -> RowResult<Option<Lease>> {
    let (holder, until) = (row.get::<Option<String>>(holder)?, row.get::<Option<i64>>(until)?);
    let holder = holder.and_then(|holder| Holder::new(holder).ok());
    Ok(holder.zip(until).map(|(holder, until)| Lease { holder, until: Timestamp::from_ms(until) }))
}

fn box_kind(row: &Row<'_>, column: usize) -> RowResult<BoxKind> {
    let text: String = row.get(column)?;
    BoxKind::parse(&text).ok_or_else(|| rows::damaged(column, "unknown box"))
}

/// Returns a record and the row of its object.
pub(in crate::sql) fn by_seq(db: &Db, seq: i64) -> StoreResult<(MsgRecord, i64)> {
    let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE r.seq = ?1");
    rows::one(db, &sql, [seq], |row| Ok((read(row)?, row.get(16)?)))
}

/// Returns a record and the row of its object.
pub(in crate::sql) fn by_id(
    db: &Db,
    recent: &RecentEntries,
    id: &RecordId,
) -> StoreResult<(MsgRecord, i64)> {
    of_object(db, objects::find_by_half_hash(db, recent, id.msg_prefix())?, id)
}

/// Like [`by_id`], in the writer.
pub(in crate::sql) fn by_id_in_tx(tx: &Tx<'_>, id: &RecordId) -> StoreResult<(MsgRecord, i64)> {
    of_object(tx.db, objects::find_by_half_hash_in_tx(tx, id.msg_prefix())?, id)
}

fn of_object(db: &Db, object: Option<i64>, id: &RecordId) -> StoreResult<(MsgRecord, i64)> {
    let missing = || StoreError::Missing { what: "record", key: id.to_string() };
    let object = object.ok_or_else(missing)?;
    let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE r.object = ?1 AND r.tag = ?2");
    let found =
        rows::optional(db, &sql, params![object, id.tag()], |row| Ok((read(row)?, row.get(16)?)))?;
    found.ok_or_else(missing)
}

/// The records that a dispatch created for a message.
pub(in crate::sql) fn created(
    db: &Db,
    object: i64,
    msg_id: &ObjId,
) -> StoreResult<Vec<CreatedRecord>> {
    let sql = "
        SELECT p.did, r.box, r.tag
          FROM records r
          JOIN parties p ON p.id = r.owner
         WHERE r.object = ?1 AND r.box <> 'OUTBOX'
         ORDER BY r.seq
    ";
    rows::list_undamaged(db, "record of", usize::MAX, sql, [object], |row| {
        Ok(CreatedRecord {
            owner: parsed(row, 0)?,
            box_kind: box_kind(row, 1)?,
            record_id: RecordId::from_tag(RecordKind::Record, msg_id, row.get(2)?),
        })
    })
}
