//! Conversations and read receipts.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use monoco_core::delivery::SendState;
use monoco_core::did::Did;
use monoco_core::event::EventKind;
use monoco_core::object::ObjId;
use monoco_core::receipt::{Receipt, ReceiptStatus};
use monoco_core::record::MsgRecord;
use monoco_core::session::aggregate;
use monoco_core::time::Timestamp;
use serde::Deserialize;
use serde_json::json;

use super::bulk_index::{BulkTable, RecentEntries};
use super::db::{Db, params};
use super::events::{self, EventSubject};
use super::rows::{self, parsed};
use super::writer::Tx;
use super::{SqlStore, contacts, objects, records};
use crate::{
    Page, PageRequest, SessionEntry, SessionStore, SessionSummary, StoreError, StoreResult,
};

/// The records of each conversation. Only the first target of a sent message can be derived
/// from its record; the entries for the other targets are written to the table at once.
pub(super) const TIMELINE: BulkTable = BulkTable {
    name: "timeline",
    insert: "INSERT INTO timeline (session, record) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
    rows_after: "
        SELECT r.seq, s.id
          FROM records r
          JOIN sessions s ON s.owner = r.owner AND s.peer = r.session
         WHERE r.seq > ?1 AND r.box IN ('INBOX', 'REQUEST_BOX', 'OUTBOX')
    ",
    key: |row| row.get(1),
    is_postgres_view: false,
};

const FIND: &str = "SELECT id FROM sessions WHERE owner = ?1 AND peer = ?2";

const INSERT: &str = "
    INSERT INTO sessions (owner, peer, last, unread)
    VALUES (?1, ?2, ?3, ?4)
";

const CHANGE: &str = "
    UPDATE sessions
       SET last = coalesce(?2, last), unread = unread + ?3
     WHERE id = ?1
";

/// Maximum number of receipts in a list.
const MAX_RECEIPTS: usize = 10_000;

/// Changes of conversations in one transaction, by their rows. A conversation can get many messages
/// in one transaction, and is written once.
#[derive(Debug, Default)]
pub(crate) struct SessionChanges(BTreeMap<i64, SessionChange>);

#[derive(Debug, Default)]
struct SessionChange {
    /// The newest record, if there is a new one.
    last: Option<i64>,
    unread: i64,
}

impl SessionChanges {
    fn change(&mut self, session: i64, last: Option<i64>, unread: i64) {
        let change = self.0.entry(session).or_default();
        change.last = last.or(change.last);
        change.unread += unread;
    }

    pub(super) fn add(&mut self, later: Self) {
        for (session, SessionChange { last, unread }) in later.0 {
            self.change(session, last, unread);
        }
    }

    /// Writes the changes to the table.
    pub(super) fn save(&self, db: &Db) -> StoreResult<()> {
        for (session, SessionChange { last, unread }) in &self.0 {
            rows::execute(db, CHANGE, params![session, last, unread])?;
        }
        Ok(())
    }
}

/// A message of a conversation before its text is read.
struct SessionEntryHead {
    record: MsgRecord,
    object: i64,
    delivery: Option<SendState>,
}

/// A conversation before the text of its newest message is read.
struct SessionHead {
    peer: Did,
    name: Option<String>,
    unread: usize,
    last: SessionEntryHead,
}

/// Adds a record to the conversation of `owner` with `peer`. Returns the conversation.
pub(super) fn add_record(
    tx: &mut Tx<'_>,
    owner: i64,
    peer: i64,
    record: i64,
    unread: bool,
) -> StoreResult<i64> {
    if let Some(session) = find(tx, owner, peer)? {
        tx.effects.sessions.change(session, Some(record), i64::from(unread));
        return Ok(session);
    }
    let session = rows::insert(tx.db, INSERT, params![owner, peer, record, unread])?;
    tx.cache.sessions.insert((owner, peer), session);
    Ok(session)
}

/// Adds to the number of unread messages of a conversation.
pub(super) fn add_unread(tx: &mut Tx<'_>, owner: &Did, peer: &Did, by: i64) -> StoreResult<()> {
    let (owner, peer) = (contacts::party_id(tx, owner)?, contacts::party_id(tx, peer)?);
    if let Some(session) = find(tx, owner, peer)? {
        tx.effects.sessions.change(session, None, by);
    }
    Ok(())
}

fn find(tx: &mut Tx<'_>, owner: i64, peer: i64) -> StoreResult<Option<i64>> {
    if let Some(&session) = tx.cache.sessions.get(&(owner, peer)) {
        return Ok(Some(session));
    }
    let session = rows::optional(tx.db, FIND, [owner, peer], |row| row.get(0))?;
    if let Some(session) = session {
        tx.cache.sessions.insert((owner, peer), session);
    }
    Ok(session)
}

fn list(db: &Db, owner: &Did, page: &PageRequest) -> StoreResult<Page<SessionHead>> {
    let Some(owner) = contacts::find(db, owner)? else { return Ok(rows::page(Vec::new(), page)) };
    let (beyond, order) = rows::direction(page);
    let sql = format!(
        "SELECT s.last, s.unread, p.did, p.names
           FROM sessions s
           JOIN parties p ON p.id = s.peer
          WHERE s.owner = ?1 AND s.last {beyond} ?2
          ORDER BY s.last {order}"
    );
    let row = params![owner, rows::start(page)];
    let limit = page.limit.saturating_add(1);
    let found: Vec<(i64, u64, Did, String)> =
        rows::list_undamaged(db, "session with last record", limit, &sql, row, |row| {
            Ok((row.get(0)?, rows::unsigned(row, 1)?, parsed(row, 2)?, row.get(3)?))
        })?;
    let next = found.get(page.limit.wrapping_sub(1)).filter(|_| found.len() == limit);
    let next = next.map(|(last, ..)| *last);
    let mut entries = Vec::with_capacity(found.len());
    for (last, unread, peer, names) in found.into_iter().take(page.limit) {
        let names: Vec<String> = serde_json::from_str(&names).unwrap_or_default();
        let Some(newest) = db.unless_damaged("record", last, read_head(db, last, &peer))? else {
            continue;
        };
        entries.push(SessionHead {
            name: names.into_iter().next(),
            unread: usize::try_from(unread).unwrap_or(usize::MAX),
            last: newest,
            peer,
        });
    }
    Ok(Page { entries, next })
}

fn list_entries(
    db: &Db,
    recent: &RecentEntries,
    session: i64,
    peer: &Did,
    page: &PageRequest,
) -> StoreResult<Page<SessionEntryHead>> {
    let one_more = PageRequest { limit: page.limit.saturating_add(1), ..page.clone() };
    let mut records = recent.page(session, &one_more);
    let (beyond, order) = rows::direction(page);
    let sql = format!(
        "SELECT record
           FROM timeline
          WHERE session = ?1 AND record {beyond} ?2
          ORDER BY record {order}
          LIMIT ?3"
    );
    let row = params![session, rows::start(page), rows::limit(one_more.limit)];
    records.extend(rows::numbers(db, &sql, row)?);
    records.sort_unstable();
    // During a merge an entry is both in memory and in the table.
    records.dedup();
    if page.newest_first {
        records.reverse();
    }
    records.truncate(one_more.limit);
    let next = records.get(page.limit.wrapping_sub(1)).copied();
    let next = next.filter(|_| records.len() > page.limit);
    let mut entries = Vec::with_capacity(records.len());
    for seq in records.into_iter().take(page.limit) {
        entries.extend(db.unless_damaged("record", seq, read_head(db, seq, peer))?);
    }
    Ok(Page { entries, next })
}

fn read_head(db: &Db, seq: i64, peer: &Did) -> StoreResult<SessionEntryHead> {
    let (record, object) = records::by_seq(db, seq)?;
    let delivery = delivery_state(db, object, peer)?;
    Ok(SessionEntryHead { record, object, delivery })
}

/// The combined state of the deliveries of a message to `peer`.
fn delivery_state(db: &Db, object: i64, peer: &Did) -> StoreResult<Option<SendState>> {
    /// The field of a delivery plan that names its target.
    #[derive(Deserialize)]
    struct PlanTarget {
        target_did: String,
    }

    let sql = "SELECT state, plan FROM deliveries WHERE object = ?1";
    let states: Vec<Option<SendState>> = rows::list(db, sql, [object], |row| {
        let plan = serde_json::from_str::<PlanTarget>(row.get_str(1)?);
        let is_for_peer = plan.is_ok_and(|plan| plan.target_did == peer.as_str());
        Ok(SendState::parse(row.get_str(0)?).filter(|_| is_for_peer))
    })?;
    Ok(aggregate(states.into_iter().flatten()))
}

fn is_in_group(db: &Db, object: i64, group: i64) -> StoreResult<bool> {
    let sql = "
        SELECT EXISTS (SELECT 1
                         FROM records
                        WHERE object = ?1 AND owner = ?2 AND box = 'GROUP_INBOX')
    ";
    rows::one(db, sql, [object, group], |row| row.get(0))
}

fn receipts(
    db: &Db,
    recent: &RecentEntries,
    group: &Did,
    msg_id: ObjId,
    reader: Option<&Did>,
) -> StoreResult<Vec<Receipt>> {
    let object = objects::seq_of(db, recent, &msg_id)?;
    let Some(group_id) = contacts::find(db, group)? else { return Ok(Vec::new()) };
    let sql = "
        SELECT p.did, r.status, r.at, r.reason
          FROM receipts r
          JOIN parties p ON p.id = r.reader
         WHERE r.group_id = ?1 AND r.object = ?2 AND (CAST(?3 AS TEXT) IS NULL OR p.did = ?3)
         ORDER BY r.reader
    ";
    let row = params![group_id, object, reader.map(Did::as_str)];
    rows::list_undamaged(db, "receipt of", MAX_RECEIPTS, sql, row, |row| {
        let reader: Did = parsed(row, 0)?;
        let status: String = row.get(1)?;
        Ok(Receipt {
            msg_id,
            iss: reader.clone(),
            reader,
            group_id: Some(group.clone()),
            at_ms: Timestamp::from_ms(row.get(2)?),
            status: ReceiptStatus::parse(&status)
                .ok_or_else(|| rows::damaged(1, "unknown status"))?,
            reason: row.get(3)?,
        })
    })
}

impl SqlStore {
    async fn session_entry(&self, head: SessionEntryHead) -> StoreResult<SessionEntry> {
        let SessionEntryHead { record, object, delivery } = head;
        Ok(SessionEntry { record, body: self.text_unless_damaged(object).await?, delivery })
    }
}

#[async_trait]
impl SessionStore for SqlStore {
    async fn set_receipt(
        &self,
        group: &Did,
        msg_id: ObjId,
        reader: &Did,
        status: ReceiptStatus,
        reason: Option<String>,
        now: Timestamp,
    ) -> StoreResult<Receipt> {
        let (group, reader) = (group.clone(), reader.clone());
        self.writer
            .run(move |tx| {
                let object = objects::seq_of(tx.db, tx.indexes.hashes.recent(), &msg_id)?;
                let group_id = contacts::party_id(tx, &group)?;
                let reader_id = contacts::party_id(tx, &reader)?;
                if !is_in_group(tx.db, object, group_id)? {
                    let key = format!("{msg_id} in {group}");
                    return Err(StoreError::Missing { what: "message", key });
                }
                let recent = tx.indexes.hashes.recent();
                if let Some(before) = receipts(tx.db, recent, &group, msg_id, Some(&reader))?.pop()
                    && before.status == status
                    && before.reason == reason
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
                    reason: reason.clone(),
                };
                let id = receipt.id();
                let stored = match objects::find(tx.db, tx.indexes.hashes.recent(), &id)? {
                    Some(seq) => seq,
                    None => objects::insert(tx, &id, Some(&receipt.canonical()))?,
                };
                let sql = "
                    INSERT INTO receipts (group_id, object, reader, status, at, receipt, reason)
                    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                        ON CONFLICT (group_id, object, reader) DO UPDATE
                       SET status = excluded.status, at = excluded.at, receipt = excluded.receipt,
                           reason = excluded.reason
                ";
                let state = status.as_str();
                let row = params![group_id, object, reader_id, state, now.ms(), stored, reason];
                rows::execute(tx.db, sql, row)?;
                let subject =
                    EventSubject { object: Some(object), record: None, owner: Some(reader_id) };
                let detail = json!({"group": group, "status": status.as_str(), "receipt": id});
                events::append(tx, EventKind::Receipt, subject, &detail, now)?;
                Ok(receipt)
            })
            .await
    }

    async fn receipts(
        &self,
        group: &Did,
        msg_id: ObjId,
        reader: Option<&Did>,
    ) -> StoreResult<Vec<Receipt>> {
        let (group, reader) = (group.clone(), reader.cloned());
        self.read_by_hash(move |db, recent| receipts(db, recent, &group, msg_id, reader.as_ref()))
            .await
    }

    async fn sessions(&self, owner: &Did, page: PageRequest) -> StoreResult<Page<SessionSummary>> {
        let owner = owner.clone();
        let page = self.read(move |db| list(db, &owner, &page)).await?;
        let mut entries = Vec::with_capacity(page.entries.len());
        for SessionHead { peer, name, unread, last } in page.entries {
            let last = self.session_entry(last).await?;
            entries.push(SessionSummary { peer, name, unread, last });
        }
        Ok(Page { entries, next: page.next })
    }

    async fn session(
        &self,
        owner: &Did,
        peer: &Did,
        page: PageRequest,
    ) -> StoreResult<Page<SessionEntry>> {
        let (owner, peer) = (owner.clone(), peer.clone());
        let peer_did = peer.clone();
        let find = self.read(move |db| {
            let missing = || StoreError::Missing { what: "session", key: peer_did.to_string() };
            let owner = contacts::find(db, &owner)?.ok_or_else(missing)?;
            let peer = contacts::find(db, &peer_did)?.ok_or_else(missing)?;
            let session = rows::optional(db, FIND, [owner, peer], |row| row.get(0))?;
            session.ok_or_else(missing)
        });
        let session: i64 = find.await?;
        // A second snapshot, because the recent entries must be read before the first statement.
        let timeline = Arc::clone(&self.recent.timeline);
        let list = self.read(move |db| list_entries(db, &timeline, session, &peer, &page));
        let page = list.await?;
        let mut entries = Vec::with_capacity(page.entries.len());
        for head in page.entries {
            entries.push(self.session_entry(head).await?);
        }
        Ok(Page { entries, next: page.next })
    }
}
