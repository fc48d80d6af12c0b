//! The event log, and the trace of one message.

use async_trait::async_trait;
use monoco_core::event::{Event, EventKind};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::record::RecordId;
use monoco_core::time::Timestamp;
use serde::Serialize;
use tokio::sync::watch;

use super::db::{Db, Row, RowResult, params};
use super::writer::Tx;
use super::{SqlStore, claims, deliveries, mails, objects, records, retention, rows};
use crate::{EventStore, LetterStore, MessageTrace, StoreError, StoreResult};

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

/// Maximum number of rows of each kind in a trace.
const MAX_TRACE_ROWS: usize = 1_000;

/// What an event is about.
#[derive(Default)]
pub(super) struct EventSubject {
    /// `objects.seq` of the message.
    pub(super) object: Option<i64>,
    pub(super) record: Option<RecordId>,
    /// `parties.id` of the owner.
    pub(super) owner: Option<i64>,
}

/// The name of a reader's row in the table `progress`.
fn cursor_name(reader: &str) -> String {
    format!("events:{reader}")
}

/// Appends an event to the log.
pub(super) fn append(
    tx: &mut Tx<'_>,
    kind: EventKind,
    subject: EventSubject,
    detail: &impl Serialize,
    now: Timestamp,
) -> StoreResult<()> {
    append_numbered(tx, kind, subject, detail, now)?;
    Ok(())
}

/// Like [`append`]. Returns the number of the event.
pub(super) fn append_numbered(
    tx: &mut Tx<'_>,
    kind: EventKind,
    subject: EventSubject,
    detail: &impl Serialize,
    now: Timestamp,
) -> StoreResult<i64> {
    let (record, detail) = (subject.record.map(|id| id.to_string()), rows::as_json(detail)?);
    let row = params![now.ms(), kind.as_str(), subject.object, record, subject.owner, detail];
    let seq = rows::insert(tx.db, APPEND, row)?;
    tx.effects.event = Some(seq);
    Ok(seq)
}

fn read(row: &Row<'_>) -> RowResult<Event> {
    let kind: String = row.get(2)?;
    let detail: String = row.get(6)?;
    let hash: Option<[u8; 32]> = row.get(3)?;
    Ok(Event {
        seq: row.get(0)?,
        at: Timestamp::from_ms(row.get(1)?),
        kind: EventKind::parse(&kind).ok_or_else(|| rows::damaged(2, "unknown kind of event"))?,
        msg_id: hash.map(|hash| ObjId::from_parts(ObjKind::Msg, hash)),
        record_id: row.get::<Option<String>>(4)?.and_then(|id| id.parse().ok()),
        owner: row.get::<Option<String>>(5)?.and_then(|did| did.parse().ok()),
        detail: serde_json::from_str(&detail).map_err(|_| rows::damaged(6, "invalid detail"))?,
    })
}

/// The number of the newest event, 0 when there is none.
pub(super) fn newest(db: &Db) -> StoreResult<i64> {
    rows::one(db, "SELECT coalesce(max(seq), 0) FROM events", [], |row| row.get(0))
}

#[async_trait]
impl EventStore for SqlStore {
    async fn events(&self, after: i64, limit: usize) -> StoreResult<Vec<Event>> {
        self.read(move |db| {
            let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE e.seq > ?1 ORDER BY e.seq");
            rows::list_undamaged(db, "event", limit, &sql, [after], read)
        })
        .await
    }

    async fn trace(&self, msg_id: ObjId) -> StoreResult<MessageTrace> {
        let rows_of_message = self.read_by_hash(move |db, recent| {
            // The trace of a superseded Mail is that of the Mail that supersedes it.
            let object = objects::seq_of(db, recent, &msg_id)?;
            let msg_id = objects::id_of(db, object)?;
            let erased_at = match objects::body(db, object) {
                Err(StoreError::Erased { at, .. }) => Some(at),
                _ => None,
            };
            let sql = format!(
                "SELECT {} FROM {} WHERE r.object = ?1 ORDER BY r.seq",
                records::COLUMNS,
                records::TABLES
            );
            let limit = MAX_TRACE_ROWS;
            let records = rows::list_undamaged(db, "record", limit, &sql, [object], records::read)?;
            let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE e.object = ?1 ORDER BY e.seq");
            let events = rows::list_undamaged(db, "event", limit, &sql, [object], read)?;
            let deliveries = deliveries::of_object(db, object, MAX_TRACE_ROWS)?;
            let truncated =
                [records.len(), deliveries.len(), events.len()].contains(&MAX_TRACE_ROWS);
            let mail = mails::of_object(db, object)?;
            let claims = match &mail {
                Some(mail) => claims::of_mail(db, mail)?,
                None => Vec::new(),
            };
            let trace = MessageTrace {
                msg_id,
                body: None,
                erased_at,
                records,
                deliveries,
                mail: mail.map(|mail| mail.entry),
                claims,
                letters: Vec::new(),
                events,
                truncated,
            };
            Ok((trace, object))
        });
        let (trace, object) = rows_of_message.await?;
        let letters = self.letters_of(trace.msg_id).await?;
        Ok(MessageTrace { body: self.text_unless_damaged(object).await?, letters, ..trace })
    }

    async fn event_cursor(&self, reader: &str) -> StoreResult<Option<i64>> {
        let name = cursor_name(reader);
        self.read(move |db| retention::progress(db, &name)).await
    }

    async fn set_event_cursor(&self, reader: &str, seq: i64) -> StoreResult<()> {
        let name = cursor_name(reader);
        self.writer.run(move |tx| retention::set_progress(tx.db, &name, seq)).await
    }

    fn newest_event(&self) -> watch::Receiver<i64> {
        self.channels.event.subscribe()
    }
}
