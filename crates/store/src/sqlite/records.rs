//! Records: one owner's view of one object in one box.

use monoco_core::event::EventKind;
use monoco_core::lease::{Holder, Lease, LeaseDuration, LeaseProof};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::record::{
    BoxKind, MsgRecord, ReadState, ReadStateData, ReadStatus, RecordId, RecordKind,
};
use monoco_core::routing::Placement;
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::json;

use super::bulk_index::RecentEntries;
use super::contacts::{self, parsed};
use super::events;
use super::open::fault;
use super::rows;
use super::writer::Tx;
use super::{objects, sessions};
use crate::{BoxHint, CreatedRecord, Page, PageRequest, StoreError};

/// Columns that [`read`] reads, in its order.
pub(super) const COLUMNS: &str = "
    r.seq, o.hash, r.tag, p.did, r.box, r.state, r.attempts, r.epoch, r.revision, r.holder,
    r.lease_until, s.did, g.did, t.did, r.created_at, r.updated_at, r.object
";

/// Tables that [`COLUMNS`] come from.
pub(super) const TABLES: &str = "
    records r
      JOIN objects o ON o.seq = r.object
      JOIN parties p ON p.id = r.owner
      JOIN parties s ON s.id = r.session
      LEFT JOIN parties g ON g.id = r.grp
      LEFT JOIN parties t ON t.id = r.tunnel
";

const INSERT: &str = "
    INSERT INTO records (object, tag, owner, box, state, attempts, epoch, revision, session,
                         grp, tunnel, created_at, updated_at)
    VALUES (?1, ?2, ?3, ?4, ?5, 0, 0, 0, ?6, ?7, ?8, ?9, ?9)
        ON CONFLICT (object, tag) DO NOTHING
";

// One seek: the first entry of the owner's unread ones.
const OLDEST_UNREAD: &str = "
    SELECT seq
      FROM records
     WHERE owner = ?1 AND box = ?2 AND state = 'UNREAD'
     ORDER BY seq
     LIMIT 1
";

const SWAP: &str = "
    UPDATE records
       SET state = ?3, attempts = ?4, epoch = ?5, holder = ?6, lease_until = ?7,
           updated_at = ?8, revision = revision + 1
     WHERE seq = ?1 AND revision = ?2
";

const ENDED: &str = "
    SELECT seq
      FROM records
     WHERE state = 'READING' AND lease_until <= ?1
     ORDER BY lease_until
     LIMIT ?2
";

const HELD_BY: &str = "
    SELECT seq
      FROM records
     WHERE state = 'READING' AND substr(holder, 1, length(?1)) = ?1
     LIMIT ?2
";

const HAS_BOX: &str = "UPDATE parties SET has_box = 1 WHERE id = ?1 AND has_box = 0";

/// What a new record is about.
pub(super) struct NewRecord<'a> {
    pub(super) object: i64,
    pub(super) msg_id: &'a ObjId,
    pub(super) tunnel: Option<i64>,
}

/// Puts a message into one box, and into the owner's conversation.
pub(super) fn place(
    tx: &mut Tx<'_>,
    what: &NewRecord<'_>,
    placement: &Placement,
    now: Timestamp,
) -> Result<CreatedRecord, StoreError> {
    let Placement { owner, box_kind, session, group } = placement;
    let record_id = RecordId::record(owner, *box_kind, what.msg_id);
    let owner_id = contacts::row_of(tx, owner)?;
    let session_id = contacts::row_of(tx, session)?;
    let group_id = group.as_ref().map(|group| contacts::row_of(tx, group)).transpose()?;
    let state = ReadStatus::start(*box_kind).state.name();
    let row = params![
        what.object,
        record_id.tag(),
        owner_id,
        box_kind.as_str(),
        state.as_str(),
        session_id,
        group_id,
        what.tunnel,
        now.ms(),
    ];
    // Not RETURNING: that makes SQLite build a table for the answer, and keep a
    // journal of the statement, which costs more than the statement does.
    let added = tx.db.prepare_cached(INSERT).and_then(|mut s| s.execute(row)).map_err(fault)?;
    if added == 1 {
        let seq = tx.db.last_insert_rowid();
        if tx.known.boxes.insert(owner_id) {
            tx.db.prepare_cached(HAS_BOX).and_then(|mut s| s.execute([owner_id])).map_err(fault)?;
        }
        if in_conversation(*box_kind) {
            let session = sessions::add_line(tx, owner_id, session_id, seq, true)?;
            tx.indexes.timeline.add(tx.db, session, seq)?;
        }
        tx.news.tally.record(*box_kind, state, 1);
        tx.news.hints.insert(BoxHint { owner: owner.clone(), box_kind: *box_kind });
    }
    Ok(CreatedRecord { owner: owner.clone(), box_kind: *box_kind, record_id })
}

/// The record of a message in its author's OUTBOX, with one line in each
/// conversation it belongs to. `false` when it is there already.
pub(super) fn place_outbox(
    tx: &mut Tx<'_>,
    what: &NewRecord<'_>,
    placement: &Placement,
    peers: &[monoco_core::did::Did],
    now: Timestamp,
) -> Result<(), StoreError> {
    place(tx, what, placement, now)?;
    let seq = tx.db.last_insert_rowid();
    let owner = contacts::row_of(tx, &placement.owner)?;
    for peer in peers {
        let peer_id = contacts::row_of(tx, peer)?;
        let session = sessions::add_line(tx, owner, peer_id, seq, false)?;
        if *peer == placement.session {
            tx.indexes.timeline.add(tx.db, session, seq)?;
        } else {
            tx.indexes.timeline.add_now(tx.db, session, seq)?;
        }
    }
    Ok(())
}

/// Whether what is put into a box is a line of its owner's conversation.
fn in_conversation(box_kind: BoxKind) -> bool {
    matches!(box_kind, BoxKind::Inbox | BoxKind::RequestBox)
}

/// Where a message went that came in before.
pub(super) fn placed(
    db: &Connection,
    object: i64,
    msg_id: &ObjId,
) -> Result<Vec<CreatedRecord>, StoreError> {
    let sql = "
        SELECT p.did, r.box, r.tag
          FROM records r
          JOIN parties p ON p.id = r.owner
         WHERE r.object = ?1 AND r.box <> 'OUTBOX'
         ORDER BY r.seq
    ";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let rows = statement
        .query_map([object], |row| {
            Ok(CreatedRecord {
                owner: parsed(row, 0)?,
                box_kind: box_kind(row, 1)?,
                record_id: RecordId::from_tag(RecordKind::Record, msg_id, row.get(2)?),
            })
        })
        .map_err(fault)?;
    rows.collect::<rusqlite::Result<_>>().map_err(fault)
}

/// A record and its row of the object.
pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<MsgRecord> {
    let msg_id = ObjId::from_parts(ObjKind::Msg, row.get(1)?);
    let state: String = row.get(5)?;
    let lease = match (row.get::<_, Option<String>>(9)?, row.get::<_, Option<i64>>(10)?) {
        (Some(holder), Some(until)) => Holder::new(holder)
            .ok()
            .map(|holder| Lease { holder, until: Timestamp::from_ms(until) }),
        _ => None,
    };
    let state = match (ReadState::parse(&state), lease) {
        (Some(ReadState::Unread), None) => ReadStateData::Unread,
        (Some(ReadState::Reading), Some(lease)) => ReadStateData::Reading(lease),
        (Some(ReadState::Readed), None) => ReadStateData::Readed,
        (Some(ReadState::Sent), None) => ReadStateData::Sent,
        (Some(ReadState::Archived), None) => ReadStateData::Archived,
        (Some(ReadState::Deleted), None) => ReadStateData::Deleted,
        _ => return Err(rows::damaged(5, "state and lease do not belong together")),
    };
    let group: Option<String> = row.get(12)?;
    Ok(MsgRecord {
        id: RecordId::from_tag(RecordKind::Record, &msg_id, row.get(2)?),
        seq: row.get(0)?,
        owner: parsed(row, 3)?,
        box_kind: box_kind(row, 4)?,
        msg_id,
        reading: ReadStatus { state, attempts: row.get(6)?, epoch: rows::unsigned(row, 7)? },
        revision: row.get(8)?,
        session: parsed(row, 11)?,
        tags: group.map(|group| format!("group:{group}")).into_iter().collect(),
        tunnel: row.get::<_, Option<String>>(13)?.and_then(|did| did.parse().ok()),
        created_at: Timestamp::from_ms(row.get(14)?),
        updated_at: Timestamp::from_ms(row.get(15)?),
    })
}

fn box_kind(row: &Row<'_>, column: usize) -> rusqlite::Result<BoxKind> {
    let text: String = row.get(column)?;
    BoxKind::parse(&text).ok_or_else(|| rows::damaged(column, "no such box"))
}

/// A record by its row, with the row of its object.
pub(super) fn by_seq(db: &Connection, seq: i64) -> Result<(MsgRecord, i64), StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE r.seq = ?1");
    let mut statement = db.prepare_cached(&sql).map_err(fault)?;
    statement.query_row([seq], |row| Ok((read(row)?, row.get(16)?))).map_err(fault)
}

/// A record by its name, with the row of its object.
pub(super) fn by_id(
    db: &Connection,
    recent: &RecentEntries,
    id: &RecordId,
) -> Result<(MsgRecord, i64), StoreError> {
    let missing = || StoreError::Missing { what: "record", key: id.to_string() };
    let object = objects::by_prefix(db, recent, id.msg_prefix())?.ok_or_else(missing)?;
    let sql = "SELECT seq FROM records WHERE object = ?1 AND tag = ?2";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let seq = statement.query_row(params![object, id.tag()], |row| row.get(0)).optional();
    by_seq(db, seq.map_err(fault)?.ok_or_else(missing)?)
}

/// Takes the oldest unread record.
pub(super) fn take(
    tx: &mut Tx<'_>,
    owner: &monoco_core::did::Did,
    box_kind: BoxKind,
    holder: &Holder,
    term: LeaseDuration,
    now: Timestamp,
) -> Result<Option<(MsgRecord, i64)>, StoreError> {
    let Some(owner) = contacts::peek(tx, owner)? else { return Ok(None) };
    let seq: Option<i64> = tx
        .db
        .prepare_cached(OLDEST_UNREAD)
        .and_then(|mut s| {
            s.query_row(params![owner, box_kind.as_str()], |row| row.get(0)).optional()
        })
        .map_err(fault)?;
    let Some(seq) = seq else { return Ok(None) };
    let (record, object) = by_seq(tx.db, seq)?;
    let next = record.reading.clone().lease(holder.clone(), now, term)?;
    let detail = json!({"by": holder, "attempt": next.attempts, "epoch": next.epoch});
    let record = swap(tx, record, next, now)?;
    events::record(tx, EventKind::Taken, &record, object, owner, &detail, now)?;
    Ok(Some((record, object)))
}

/// Moves a record on behalf of whoever shows `guard`.
pub(super) fn mark(
    tx: &mut Tx<'_>,
    id: &RecordId,
    to: ReadState,
    guard: &LeaseProof,
    revision: Option<i64>,
    term: LeaseDuration,
    now: Timestamp,
) -> Result<MsgRecord, StoreError> {
    let (record, object) = by_id(tx.db, tx.indexes.hashes.recent(), id)?;
    rows::check_revision("record", revision, record.revision)?;
    let from = record.reading.state.name();
    let next = record.reading.clone().mark(to, guard, now, term)?;
    if next == record.reading {
        return Ok(record);
    }
    let detail = json!({"from": from.as_str(), "to": to.as_str(), "by": guard.holder});
    let record = swap(tx, record, next, now)?;
    let owner = contacts::row_of(tx, &record.owner)?;
    events::record(tx, EventKind::Marked, &record, object, owner, &detail, now)?;
    if to == ReadState::Unread {
        tx.news.hints.insert(BoxHint { owner: record.owner.clone(), box_kind: record.box_kind });
    }
    Ok(record)
}

/// Puts away a record whose object is damaged, so that it is not handed out again and
/// again.
pub(super) fn put_aside(
    tx: &mut Tx<'_>,
    id: &RecordId,
    guard: &LeaseProof,
    why: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    let record = mark(tx, id, ReadState::Archived, guard, None, LeaseDuration::DEFAULT, now)?;
    let object = objects::row_of(tx.db, tx.indexes.hashes.recent(), &record.msg_id)?;
    let owner = contacts::row_of(tx, &record.owner)?;
    let detail = json!({"why": why});
    events::record(tx, EventKind::Damaged, &record, object, owner, &detail, now)
}

/// Makes records unread again whose leases ended, or whose holder is gone.
pub(super) fn sweep(
    tx: &mut Tx<'_>,
    ended: LeaseEndCause<'_>,
    limit: usize,
    now: Timestamp,
) -> Result<usize, StoreError> {
    let (rows, by) = match ended {
        LeaseEndCause::ByTime => {
            (rows::seqs(tx.db, ENDED, params![now.ms(), rows::limit(limit)])?, now)
        }
        // An earlier boot can't come back: its leases end now, however long they
        // were to run.
        LeaseEndCause::ByHolder(prefix) => {
            let rows = rows::seqs(tx.db, HELD_BY, params![prefix, rows::limit(limit)])?;
            (rows, Timestamp::from_ms(i64::MAX))
        }
    };
    for seq in &rows {
        let (record, object) = by_seq(tx.db, *seq)?;
        let next = record.reading.clone().expire(by)?;
        let detail = match &record.reading.state {
            ReadStateData::Reading(lease) => json!({"held_by": lease.holder, "until": lease.until}),
            _ => json!({}),
        };
        let record = swap(tx, record, next, now)?;
        let owner = contacts::row_of(tx, &record.owner)?;
        events::record(tx, EventKind::LeaseEnded, &record, object, owner, &detail, now)?;
        tx.news.hints.insert(BoxHint { owner: record.owner, box_kind: record.box_kind });
    }
    Ok(rows.len())
}

/// Why a lease is over.
#[derive(Clone, Copy)]
pub(super) enum LeaseEndCause<'a> {
    /// It ran out.
    ByTime,
    /// Whoever holds it is gone: an earlier boot of the courier.
    ByHolder(&'a str),
}

fn swap(
    tx: &mut Tx<'_>,
    record: MsgRecord,
    next: ReadStatus,
    now: Timestamp,
) -> Result<MsgRecord, StoreError> {
    let lease = match &next.state {
        ReadStateData::Reading(lease) => Some(lease),
        _ => None,
    };
    let row = params![
        record.seq,
        record.revision,
        next.state.name().as_str(),
        next.attempts,
        rows::signed(next.epoch),
        lease.map(|lease| lease.holder.as_str()),
        lease.map(|lease| lease.until.ms()),
        now.ms(),
    ];
    let changed = tx.db.prepare_cached(SWAP).and_then(|mut s| s.execute(row)).map_err(fault)?;
    if changed != 1 {
        return Err(StoreError::Conflict { what: "record", revision: record.revision });
    }
    let (from, to) = (record.reading.state.name(), next.state.name());
    tx.news.tally.record(record.box_kind, from, -1);
    tx.news.tally.record(record.box_kind, to, 1);
    let unread = i64::from(to == ReadState::Unread) - i64::from(from == ReadState::Unread);
    if unread != 0 && in_conversation(record.box_kind) {
        sessions::count(tx, &record.owner, &record.session, unread)?;
    }
    Ok(MsgRecord { reading: next, revision: record.revision + 1, updated_at: now, ..record })
}

/// Records of one box, of some states, in order.
pub(super) fn list(
    db: &Connection,
    owner: &monoco_core::did::Did,
    box_kind: BoxKind,
    states: &[ReadState],
    window: &PageRequest,
) -> Result<Page<MsgRecord>, StoreError> {
    let Some(owner) = contacts::find(db, owner)? else { return Ok(rows::cut(Vec::new(), window)) };
    let (beyond, order) = rows::range(window);
    let sql = format!(
        "SELECT {COLUMNS} FROM {TABLES}
          WHERE r.owner = ?1 AND r.box = ?2 AND r.state = ?3 AND r.seq {beyond} ?4
          ORDER BY r.seq {order}
          LIMIT ?5"
    );
    let mut statement = db.prepare_cached(&sql).map_err(fault)?;
    // One short walk per state, merged: the index leads with the state, so that
    // taking the next one is a single seek.
    let mut entries = Vec::new();
    for state in states {
        let row = params![
            owner,
            box_kind.as_str(),
            state.as_str(),
            rows::start(window),
            rows::count(window) + 1,
        ];
        for record in statement.query_map(row, read).map_err(fault)? {
            let record = record.map_err(fault)?;
            entries.push((record.seq, record));
        }
    }
    Ok(rows::cut(entries, window))
}
