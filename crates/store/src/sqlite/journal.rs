//! The log of events, and the story of one message.

use monoco_core::did::TunnelId;
use monoco_core::event::{Event, EventKind};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::record::{MsgRecord, RecordId};
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;

use super::open::fault;
use super::writer::Tx;
use super::{deliveries, objects, people, records};
use crate::{StoreError, Trace};

const APPEND: &str = "
    INSERT INTO events (at, kind, object, record, owner, detail)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6)
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
pub(super) struct About {
    pub(super) object: Option<i64>,
    pub(super) record: Option<RecordId>,
    pub(super) owner: Option<i64>,
}

/// Adds an event.
pub(super) fn append(
    tx: &mut Tx<'_>,
    kind: EventKind,
    about: About,
    detail: &Value,
    now: Timestamp,
) -> Result<(), StoreError> {
    let record = about.record.map(|id| id.to_string());
    let row =
        params![now.ms(), kind.as_str(), about.object, record, about.owner, detail.to_string()];
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
    detail: &Value,
    now: Timestamp,
) -> Result<(), StoreError> {
    let about = About { object: Some(object), record: Some(record.id), owner: Some(owner) };
    append(tx, kind, about, detail, now)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Event> {
    let kind: String = row.get(2)?;
    let detail: String = row.get(6)?;
    let hash: Option<[u8; 32]> = row.get(3)?;
    Ok(Event {
        seq: row.get(0)?,
        at: Timestamp::from_ms(row.get(1)?),
        kind: EventKind::parse(&kind).ok_or_else(|| super::damaged(2, "no such kind of event"))?,
        msg_id: hash.map(|hash| ObjId::from_parts(ObjKind::Msg, hash)),
        record_id: row.get::<_, Option<String>>(4)?.and_then(|id| id.parse().ok()),
        owner: row.get::<_, Option<String>>(5)?.and_then(|did| did.parse().ok()),
        detail: serde_json::from_str(&detail)
            .map_err(|_| super::damaged(6, "unreadable detail"))?,
    })
}

/// Events after `after`, oldest first.
pub(super) fn events(db: &Connection, after: i64, limit: usize) -> Result<Vec<Event>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE e.seq > ?1 ORDER BY e.seq LIMIT ?2");
    let mut statement = db.prepare_cached(&sql).map_err(fault)?;
    let rows = statement.query_map(params![after, super::limit(limit)], read).map_err(fault)?;
    rows.collect::<rusqlite::Result<_>>().map_err(fault)
}

/// The number of the newest event, 0 when there is none.
pub(super) fn newest(db: &Connection) -> Result<i64, StoreError> {
    let sql = "SELECT coalesce(max(seq), 0) FROM events";
    db.query_row(sql, [], |row| row.get(0)).map_err(fault)
}

/// Everything about one message but its text.
pub(super) fn trace(db: &Connection, msg_id: ObjId) -> Result<Trace, StoreError> {
    let object = objects::row_of(db, &msg_id)?;
    let most = super::limit(TRACED);
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
    Ok(Trace { msg_id, body: String::new(), records, deliveries, events, truncated })
}

/// The message that an external id became: one we heard, or one we sent.
pub(super) fn message_heard(db: &Connection, external_id: &str) -> Result<ObjId, StoreError> {
    for tunnel in people::tunnels(db)? {
        if let Some(object) = heard(db, &tunnel.id, external_id)? {
            return objects::body(db, object).map(|(id, _)| id);
        }
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

/// The message that an external id of one tunnel became.
pub(super) fn heard(
    db: &Connection,
    tunnel: &TunnelId,
    external_id: &str,
) -> Result<Option<i64>, StoreError> {
    let Some(tunnel) = people::find(db, &tunnel.did())? else { return Ok(None) };
    let sql = "SELECT object FROM heard WHERE tunnel = ?1 AND external_id = ?2";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let row = params![tunnel, external_id];
    statement.query_row(row, |row| row.get(0)).optional().map_err(fault)
}
