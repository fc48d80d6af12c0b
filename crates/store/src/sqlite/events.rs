//! The log of events, and the story of one message.

use monoco_core::event::{Event, EventKind};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::record::{MsgRecord, RecordId};
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;

use super::bulk_index::{BulkTable, RecentEntries};
use super::open::fault;
use super::rows;
use super::writer::Tx;
use super::{claims, deliveries, mails, objects, records};
use crate::{MessageTrace, StoreError};

/// What was heard, by eight bytes of the external id's hash. Whoever follows an entry
/// compares the id.
pub(super) const HEARD: BulkTable = BulkTable {
    name: "heard",
    insert: "INSERT INTO heard_by_id (hash8, heard) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
    beyond: "SELECT seq, external_id FROM heard WHERE seq > ?1",
    key: |row| row.get_ref(1)?.as_str().map(hash_of).map_err(Into::into),
};

const APPEND: &str = "
    INSERT INTO events (at, kind, object, record, owner, detail)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6)
";

const HEARD_AT: &str = "
    SELECT seq, object
      FROM heard
     WHERE seq = ?1 AND external_id = ?2 AND (?3 IS NULL OR tunnel = ?3)
";

const HEARD_IN_TABLE: &str = "
    SELECT h.seq, h.object
      FROM heard_by_id i
      JOIN heard h ON h.seq = i.heard
     WHERE i.hash8 = ?1 AND h.external_id = ?2 AND (?3 IS NULL OR h.tunnel = ?3)
     ORDER BY i.heard
     LIMIT 1
";

const COLUMNS: &str = "
    e.seq, e.at, e.kind, o.hash, e.record, p.did, e.detail
";

const TABLES: &str = "
    events e
      LEFT JOIN objects o ON o.seq = e.object
      LEFT JOIN parties p ON p.id = e.owner
";

/// Most rows of each kind that a trace shows.
const TRACED: usize = 1_000;

/// What an event is about, by rows.
#[derive(Default)]
pub(super) struct EventSubject {
    pub(super) object: Option<i64>,
    pub(super) record: Option<RecordId>,
    pub(super) owner: Option<i64>,
}

/// Adds an event.
pub(super) fn append(
    tx: &mut Tx<'_>,
    kind: EventKind,
    about: EventSubject,
    detail: &impl Serialize,
    now: Timestamp,
) -> Result<(), StoreError> {
    let (record, detail) = (about.record.map(|id| id.to_string()), rows::as_json(detail)?);
    let row = params![now.ms(), kind.as_str(), about.object, record, about.owner, detail];
    let seq = tx.db.prepare_cached(APPEND).and_then(|mut s| s.insert(row)).map_err(fault)?;
    tx.news.event = Some(seq);
    Ok(())
}

/// Adds an event about a record.
pub(super) fn record(
    tx: &mut Tx<'_>,
    kind: EventKind,
    record: &MsgRecord,
    object: i64,
    owner: i64,
    detail: &impl Serialize,
    now: Timestamp,
) -> Result<(), StoreError> {
    let about = EventSubject { object: Some(object), record: Some(record.id), owner: Some(owner) };
    append(tx, kind, about, detail, now)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Event> {
    let kind: String = row.get(2)?;
    let detail: String = row.get(6)?;
    let hash: Option<[u8; 32]> = row.get(3)?;
    Ok(Event {
        seq: row.get(0)?,
        at: Timestamp::from_ms(row.get(1)?),
        kind: EventKind::parse(&kind).ok_or_else(|| rows::damaged(2, "no such kind of event"))?,
        msg_id: hash.map(|hash| ObjId::from_parts(ObjKind::Msg, hash)),
        record_id: row.get::<_, Option<String>>(4)?.and_then(|id| id.parse().ok()),
        owner: row.get::<_, Option<String>>(5)?.and_then(|did| did.parse().ok()),
        detail: serde_json::from_str(&detail).map_err(|_| rows::damaged(6, "unreadable detail"))?,
    })
}

/// Events after `after`, oldest first.
pub(super) fn events(db: &Connection, after: i64, limit: usize) -> Result<Vec<Event>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE e.seq > ?1 ORDER BY e.seq LIMIT ?2");
    let mut statement = db.prepare_cached(&sql).map_err(fault)?;
    let rows = statement.query_map(params![after, rows::limit(limit)], read).map_err(fault)?;
    rows.collect::<rusqlite::Result<_>>().map_err(fault)
}

/// The number of the newest event, 0 when there is none.
pub(super) fn newest(db: &Connection) -> Result<i64, StoreError> {
    let sql = "SELECT coalesce(max(seq), 0) FROM events";
    db.query_row(sql, [], |row| row.get(0)).map_err(fault)
}

/// Everything about one message but its text and its letters, and the row that has it.
pub(super) fn trace(
    db: &Connection,
    recent: &RecentEntries,
    msg_id: ObjId,
) -> Result<(MessageTrace, i64), StoreError> {
    let object = objects::row_of(db, recent, &msg_id)?;
    let most = rows::limit(TRACED);
    let sql = format!(
        "SELECT {} FROM {} WHERE r.object = ?1 ORDER BY r.seq LIMIT ?2",
        records::COLUMNS,
        records::TABLES
    );
    let mut statement = db.prepare_cached(&sql).map_err(fault)?;
    let rows = statement.query_map(params![object, most], records::read).map_err(fault)?;
    let records: Vec<_> = rows.collect::<rusqlite::Result<_>>().map_err(fault)?;

    let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE e.object = ?1 ORDER BY e.seq LIMIT ?2");
    let mut statement = db.prepare_cached(&sql).map_err(fault)?;
    let rows = statement.query_map(params![object, most], read).map_err(fault)?;
    let events: Vec<_> = rows.collect::<rusqlite::Result<_>>().map_err(fault)?;

    let deliveries = deliveries::of_object(db, object, TRACED)?;
    let truncated = [records.len(), deliveries.len(), events.len()].contains(&TRACED);
    let mail = mails::of_object(db, object)?;
    let claims = match &mail {
        Some(mail) => claims::of_mail(db, mail)?,
        None => Vec::new(),
    };
    let mail = mail.map(|mail| mail.entry);
    let (body, letters) = (None, Vec::new());
    let trace = MessageTrace {
        msg_id,
        body,
        records,
        deliveries,
        mail,
        claims,
        letters,
        events,
        truncated,
    };
    Ok((trace, object))
}

/// Notes which message an external id of a tunnel became; 0: none yet. Returns the row.
pub(super) fn hear(
    tx: &mut Tx<'_>,
    tunnel: i64,
    external_id: &str,
    object: i64,
) -> Result<i64, StoreError> {
    let sql = "INSERT INTO heard (tunnel, external_id, object) VALUES (?1, ?2, ?3)";
    let row = params![tunnel, external_id, object];
    let seq = tx.db.prepare_cached(sql).and_then(|mut s| s.insert(row)).map_err(fault)?;
    tx.indexes.heard.add(tx.db, hash_of(external_id), seq)?;
    Ok(seq)
}

/// The message that an external id became: one we heard, or one we sent.
pub(super) fn message_heard(
    db: &Connection,
    recent: &RecentEntries,
    external_id: &str,
) -> Result<ObjId, StoreError> {
    match heard(db, recent, external_id, None)? {
        // Kept, and not yet merged.
        Some((_, 0)) => {
            let what = "Mail yet of the message";
            return Err(StoreError::Missing { what, key: external_id.to_owned() });
        }
        Some((_, object)) => return objects::body(db, object).map(|(id, _)| id),
        None => {}
    }
    let sql = "SELECT object FROM deliveries WHERE external_msg_id = ?1 ORDER BY seq LIMIT 1";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let object = statement.query_row([external_id], |row| row.get(0)).optional().map_err(fault)?;
    match object {
        Some(object) => objects::body(db, object).map(|(id, _)| id),
        None => {
            Err(StoreError::Missing { what: "message with the id", key: external_id.to_owned() })
        }
    }
}

/// What was heard under an external id of one tunnel, or of any: its row, and that of
/// the object it became.
pub(super) fn heard(
    db: &Connection,
    recent: &RecentEntries,
    external_id: &str,
    tunnel: Option<i64>,
) -> Result<Option<(i64, i64)>, StoreError> {
    let ask = |sql: &str, key: i64| {
        let row = params![key, external_id, tunnel];
        db.prepare_cached(sql)
            .and_then(|mut s| s.query_row(row, |row| Ok((row.get(0)?, row.get(1)?))).optional())
            .map_err(fault)
    };
    let key = hash_of(external_id);
    for seq in recent.rows(key) {
        if let Some(found) = ask(HEARD_AT, seq)? {
            return Ok(Some(found));
        }
    }
    ask(HEARD_IN_TABLE, key)
}

fn hash_of(external_id: &str) -> i64 {
    objects::hash8(ObjId::of(ObjKind::Bytes, external_id.as_bytes()).hash())
}
