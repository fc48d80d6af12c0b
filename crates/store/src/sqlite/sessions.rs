//! Conversations and group receipts.

use monoco_core::delivery::SendState;
use monoco_core::did::Did;
use monoco_core::event::EventKind;
use monoco_core::object::ObjId;
use monoco_core::receipt::{Receipt, ReceiptStatus};
use monoco_core::record::MsgRecord;
use monoco_core::session::aggregate;
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::json;

use super::bulk_index::{BulkTable, RecentEntries};
use super::contacts::{self, parsed};
use super::events::{self, EventSubject};
use super::open::fault;
use super::rows;
use super::writer::Tx;
use super::{objects, records};
use crate::{Page, PageRequest, StoreError};

/// The lines of each conversation. Those of a message that was sent to several are
/// entered at once but for the first, which alone can be told from the record.
pub(super) const TIMELINE: BulkTable = BulkTable {
    name: "timeline",
    insert: "INSERT INTO timeline (session, record) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
    beyond: "
        SELECT r.seq, s.id
          FROM records r
          JOIN sessions s ON s.owner = r.owner AND s.peer = r.session
         WHERE r.seq > ?1 AND r.box IN ('INBOX', 'REQUEST_BOX', 'OUTBOX')
    ",
    key: |row| row.get(1),
};

const SESSION: &str = "SELECT id FROM sessions WHERE owner = ?1 AND peer = ?2";

const INSERT: &str = "
    INSERT INTO sessions (owner, peer, last, unread)
    VALUES (?1, ?2, ?3, ?4)
";

const TOUCH: &str = "
    UPDATE sessions
       SET last = ?2, unread = unread + ?3
     WHERE id = ?1
";

const COUNT: &str = "
    UPDATE sessions
       SET unread = unread + ?2
     WHERE id = ?1
";

/// One line of a conversation before its text is read: the record, the row of its
/// object, and how far it got.
pub(super) type SessionEntryHead = (MsgRecord, i64, Option<SendState>);

/// A conversation before the text of its last line is read.
pub(super) struct SessionHead {
    pub(super) peer: Did,
    pub(super) name: Option<String>,
    pub(super) unread: usize,
    pub(super) last: SessionEntryHead,
}

/// Adds a record to the conversation of `owner` with `peer`. Returns the conversation.
pub(super) fn add_line(
    tx: &mut Tx<'_>,
    owner: i64,
    peer: i64,
    record: i64,
    unread: bool,
) -> Result<i64, StoreError> {
    if let Some(session) = find(tx, owner, peer)? {
        let row = params![session, record, unread];
        tx.db.prepare_cached(TOUCH).and_then(|mut s| s.execute(row)).map_err(fault)?;
        return Ok(session);
    }
    let row = params![owner, peer, record, unread];
    let session = tx.db.prepare_cached(INSERT).and_then(|mut s| s.insert(row)).map_err(fault)?;
    tx.known.sessions.insert((owner, peer), session);
    Ok(session)
}

/// Counts unread messages of a conversation up or down.
pub(super) fn count(tx: &mut Tx<'_>, owner: &Did, peer: &Did, by: i64) -> Result<(), StoreError> {
    let (owner, peer) = (contacts::row_of(tx, owner)?, contacts::row_of(tx, peer)?);
    if let Some(session) = find(tx, owner, peer)? {
        let row = params![session, by];
        tx.db.prepare_cached(COUNT).and_then(|mut s| s.execute(row)).map_err(fault)?;
    }
    Ok(())
}

fn find(tx: &mut Tx<'_>, owner: i64, peer: i64) -> Result<Option<i64>, StoreError> {
    if let Some(&session) = tx.known.sessions.get(&(owner, peer)) {
        return Ok(Some(session));
    }
    let session = tx
        .db
        .prepare_cached(SESSION)
        .and_then(|mut s| s.query_row([owner, peer], |row| row.get(0)).optional())
        .map_err(fault)?;
    if let Some(session) = session {
        tx.known.sessions.insert((owner, peer), session);
    }
    Ok(session)
}

/// An owner's conversations by their newest message.
pub(super) fn list(
    db: &Connection,
    owner: &Did,
    window: &PageRequest,
) -> Result<Page<SessionHead>, StoreError> {
    let Some(owner) = contacts::find(db, owner)? else { return Ok(rows::cut(Vec::new(), window)) };
    let (beyond, order) = rows::range(window);
    let sql = format!(
        "SELECT s.last, s.unread, p.did, p.names
           FROM sessions s
           JOIN parties p ON p.id = s.peer
          WHERE s.owner = ?1 AND s.last {beyond} ?2
          ORDER BY s.last {order}
          LIMIT ?3"
    );
    let mut statement = db.prepare_cached(&sql).map_err(fault)?;
    let row = params![owner, rows::start(window), rows::count(window) + 1];
    let rows = statement
        .query_map(row, |row| {
            let names: String = row.get(3)?;
            Ok((row.get::<_, i64>(0)?, rows::unsigned(row, 1)?, parsed::<Did>(row, 2)?, names))
        })
        .map_err(fault)?;
    let mut entries = Vec::new();
    for row in rows {
        let (last, unread, peer, names) = row.map_err(fault)?;
        let names: Vec<String> = serde_json::from_str(&names).unwrap_or_default();
        let session = SessionHead {
            name: names.into_iter().next(),
            unread: usize::try_from(unread).unwrap_or(usize::MAX),
            last: stub(db, last, &peer)?,
            peer,
        };
        entries.push((last, session));
    }
    Ok(rows::cut(entries, window))
}

/// The conversation of `owner` with `peer`.
pub(super) fn session(db: &Connection, owner: &Did, peer: &Did) -> Result<i64, StoreError> {
    let missing = || StoreError::Missing { what: "session", key: peer.to_string() };
    let owner = contacts::find(db, owner)?.ok_or_else(missing)?;
    let peer = contacts::find(db, peer)?.ok_or_else(missing)?;
    db.prepare_cached(SESSION)
        .and_then(|mut s| s.query_row([owner, peer], |row| row.get(0)).optional())
        .map_err(fault)?
        .ok_or_else(missing)
}

/// The lines of one conversation.
pub(super) fn lines(
    db: &Connection,
    recent: &RecentEntries,
    session: i64,
    peer: &Did,
    window: &PageRequest,
) -> Result<Page<SessionEntryHead>, StoreError> {
    let one_more = PageRequest { limit: window.limit.saturating_add(1), ..window.clone() };
    let mut records = recent.page(session, &one_more);
    let (beyond, order) = rows::range(window);
    let sql = format!(
        "SELECT record
           FROM timeline
          WHERE session = ?1 AND record {beyond} ?2
          ORDER BY record {order}
          LIMIT ?3"
    );
    let row = params![session, rows::start(window), rows::count(&one_more)];
    records.extend(rows::seqs(db, &sql, row)?);
    records.sort_unstable();
    // While it is merged, an entry is in both places.
    records.dedup();
    if window.newest_first {
        records.reverse();
    }
    records.truncate(one_more.limit);
    let mut entries = Vec::with_capacity(records.len());
    for seq in records {
        entries.push((seq, stub(db, seq, peer)?));
    }
    Ok(rows::cut(entries, window))
}

fn stub(db: &Connection, seq: i64, peer: &Did) -> Result<SessionEntryHead, StoreError> {
    let (record, object) = records::by_seq(db, seq)?;
    let delivery = delivery_to(db, object, peer)?;
    Ok((record, object, delivery))
}

/// How far a message got on its way to `peer`.
fn delivery_to(db: &Connection, object: i64, peer: &Did) -> Result<Option<SendState>, StoreError> {
    let sql = "SELECT state FROM deliveries WHERE object = ?1 AND plan ->> 'target_did' = ?2";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let rows = statement
        .query_map(params![object, peer.as_str()], |row| row.get::<_, String>(0))
        .map_err(fault)?;
    let states: Vec<String> = rows.collect::<rusqlite::Result<_>>().map_err(fault)?;
    Ok(aggregate(states.iter().filter_map(|state| SendState::parse(state))))
}

/// Files how far a reader of a group is with a message.
pub(super) fn set_receipt(
    tx: &mut Tx<'_>,
    group: &Did,
    msg_id: ObjId,
    reader: &Did,
    status: ReceiptStatus,
    now: Timestamp,
) -> Result<Receipt, StoreError> {
    let object = objects::row_of(tx.db, tx.indexes.hashes.recent(), &msg_id)?;
    let (group_id, reader_id) = (contacts::row_of(tx, group)?, contacts::row_of(tx, reader)?);
    if !said_in(tx.db, object, group_id)? {
        let key = format!("{msg_id} in {group}");
        return Err(StoreError::Missing { what: "message", key });
    }
    if let Some(before) =
        receipts(tx.db, tx.indexes.hashes.recent(), group, msg_id, Some(reader))?.pop()
        && before.status == status
    {
        return Ok(before);
    }
    let receipt = Receipt {
        msg_id,
        iss: reader.clone(),
        reader: reader.clone(),
        group_id: Some(group.clone()),
        at_ms: now,
        status,
        reason: None,
    };
    let id = receipt.id();
    let stored = match objects::find(tx.db, tx.indexes.hashes.recent(), &id)? {
        Some(seq) => seq,
        None => objects::insert(tx, &id, Some(&receipt.canonical()))?,
    };
    let sql = "
        INSERT INTO receipts (grp, object, reader, status, at, receipt)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6)
            ON CONFLICT (grp, object, reader) DO UPDATE
           SET status = excluded.status, at = excluded.at, receipt = excluded.receipt
    ";
    tx.db
        .prepare_cached(sql)
        .and_then(|mut s| {
            s.execute(params![group_id, object, reader_id, status.as_str(), now.ms(), stored])
        })
        .map_err(fault)?;
    let about = EventSubject { object: Some(object), record: None, owner: Some(reader_id) };
    let detail = json!({"group": group, "status": status.as_str(), "receipt": id});
    events::append(tx, EventKind::Receipt, about, &detail, now)?;
    Ok(receipt)
}

fn said_in(db: &Connection, object: i64, group: i64) -> Result<bool, StoreError> {
    let sql = "
        SELECT EXISTS (SELECT 1
                         FROM records
                        WHERE object = ?1 AND owner = ?2 AND box = 'GROUP_INBOX')
    ";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    statement.query_row([object, group], |row| row.get(0)).map_err(fault)
}

/// The receipts of one message in a group, of all readers or of one.
pub(super) fn receipts(
    db: &Connection,
    recent: &RecentEntries,
    group: &Did,
    msg_id: ObjId,
    reader: Option<&Did>,
) -> Result<Vec<Receipt>, StoreError> {
    let object = objects::row_of(db, recent, &msg_id)?;
    let Some(group_id) = contacts::find(db, group)? else { return Ok(Vec::new()) };
    let sql = "
        SELECT p.did, r.status, r.at
          FROM receipts r
          JOIN parties p ON p.id = r.reader
         WHERE r.grp = ?1 AND r.object = ?2 AND (?3 IS NULL OR p.did = ?3)
         ORDER BY r.reader
         LIMIT 10000
    ";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let rows = statement
        .query_map(params![group_id, object, reader.map(Did::as_str)], |row| {
            let reader: Did = parsed(row, 0)?;
            let status: String = row.get(1)?;
            Ok(Receipt {
                msg_id,
                iss: reader.clone(),
                reader,
                group_id: Some(group.clone()),
                at_ms: Timestamp::from_ms(row.get(2)?),
                status: ReceiptStatus::parse(&status)
                    .ok_or_else(|| rows::damaged(1, "no such status"))?,
                reason: None,
            })
        })
        .map_err(fault)?;
    rows.collect::<rusqlite::Result<_>>().map_err(fault)
}
