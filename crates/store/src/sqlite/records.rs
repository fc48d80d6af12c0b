//! Records: one message in one box of one owner.

use std::collections::BTreeSet;

use async_trait::async_trait;
use monoco_core::did::Did;
use monoco_core::event::EventKind;
use monoco_core::lease::{Holder, Lease, LeaseDuration, LeaseProof};
use monoco_core::object::{MsgObject, ObjId, ObjKind};
use monoco_core::record::{
    BoxKind, MsgRecord, ReadState, ReadStateData, ReadStatus, RecordId, RecordKind,
};
use monoco_core::routing::Placement;
use monoco_core::tag::{Tag, change_tags};
use monoco_core::time::Timestamp;
use rusqlite::types::Null;
use rusqlite::{Row, ToSql, params};
use serde::Serialize;
use serde_json::json;
use tokio::sync::broadcast;

use super::bulk_index::RecentEntries;
use super::damage::{self, Db};
use super::events::{self, EventSubject};
use super::open::db_error;
use super::rows::{self, parsed};
use super::writer::Tx;
use super::{
    MAX_RELEASED_PER_COMMIT, SqliteStore, boxes, contacts, deliveries, dispatch, objects, sessions,
};
use crate::{
    BoxHint, BoxSummary, CreatedRecord, DispatchRequest, DispatchResult, JitteredRetry,
    LeasedEntry, Page, PageRequest, RecordFilter, RecordStore, StoreError, SweepCounts,
};

/// Columns of [`read`], in its order.
pub(super) const COLUMNS: &str = "
    r.seq, o.hash, r.tag, p.did, r.box, r.state, r.attempts, r.epoch, r.revision, r.holder,
    r.lease_until, s.did, g.did, t.did, r.created_at, r.updated_at, r.object, r.thread_key,
    r.tags
";

pub(super) const TABLES: &str = "
    records r
      JOIN objects o ON o.seq = r.object
      JOIN parties p ON p.id = r.owner
      JOIN parties s ON s.id = r.session
      LEFT JOIN parties g ON g.id = r.group_id
      LEFT JOIN parties t ON t.id = r.tunnel
";

const INSERT: &str = "
    INSERT INTO records (object, tag, owner, box, state, attempts, epoch, revision, session,
                         group_id, tunnel, thread_key, created_at, updated_at)
    VALUES (?1, ?2, ?3, ?4, ?5, 0, 0, 0, ?6, ?7, ?8, ?9, ?10, ?10)
        ON CONFLICT (object, tag) DO NOTHING
";

// A single index seek, however many records there are.
const OLDEST_UNREAD: &str = "
    SELECT seq
      FROM records
     WHERE owner = ?1 AND box = ?2 AND state = 'UNREAD'
     ORDER BY seq
";

const UPDATE: &str = "
    UPDATE records
       SET state = ?3, attempts = ?4, epoch = ?5, holder = ?6, lease_until = ?7,
           updated_at = ?8, revision = revision + 1
     WHERE seq = ?1 AND revision = ?2
";

const EXPIRED: &str = "
    SELECT seq
      FROM records
     WHERE state = 'READING' AND lease_until <= ?1
     ORDER BY lease_until
     LIMIT ?2
";

const HELD_BY_PREFIX: &str = "
    SELECT seq
      FROM records
     WHERE state = 'READING' AND substr(holder, 1, length(?1)) = ?1
     LIMIT ?2
";

const ANY_EXPIRED: &str = "
    SELECT EXISTS (SELECT 1 FROM records WHERE state = 'READING' AND lease_until <= ?1)
        OR EXISTS (SELECT 1 FROM deliveries WHERE state = 'SENDING' AND lease_until <= ?1)
";

/// Longer thread keys are not stored with records.
const MAX_THREAD_KEY_BYTES: usize = 512;

const SET_HAS_BOX: &str = "UPDATE parties SET has_box = 1 WHERE id = ?1 AND has_box = 0";

/// The message of a new record.
pub(super) struct NewRecord<'a> {
    pub(super) object: i64,
    pub(super) msg_id: &'a ObjId,
    pub(super) tunnel: Option<i64>,
    pub(super) thread_key: Option<&'a str>,
}

/// The thread of a message, unless its key is too long for an index.
pub(super) fn thread_key(msg: &MsgObject) -> Option<&str> {
    msg.topic.as_deref().filter(|key| key.len() <= MAX_THREAD_KEY_BYTES)
}

/// Why leases are ended.
#[derive(Clone, Copy)]
pub(super) enum LeaseEndCause<'a> {
    Expired,
    /// The holders' names start with this prefix: an earlier process of the courier.
    HolderGone(&'a str),
}

/// Puts a message into one box and into the owner's conversation.
pub(super) fn insert(
    tx: &mut Tx<'_>,
    new: &NewRecord<'_>,
    placement: &Placement,
    now: Timestamp,
) -> Result<CreatedRecord, StoreError> {
    let Placement { owner, box_kind, session, group } = placement;
    let record_id = RecordId::record(owner, *box_kind, new.msg_id);
    let owner_id = contacts::party_id(tx, owner)?;
    let session_id = contacts::party_id(tx, session)?;
    let group_id = group.as_ref().map(|group| contacts::party_id(tx, group)).transpose()?;
    let state = ReadStatus::start(*box_kind).state.name();
    let row = params![
        new.object,
        record_id.tag(),
        owner_id,
        box_kind.as_str(),
        state.as_str(),
        session_id,
        group_id,
        new.tunnel,
        new.thread_key,
        now.ms(),
    ];
    // No RETURNING clause: SQLite would build a temporary table for its result and keep a
    // statement journal, which costs more than the insert.
    if rows::execute(tx.db, INSERT, row)? == 1 {
        let seq = tx.db.last_insert_rowid();
        if tx.cache.boxes.insert(owner_id) && rows::execute(tx.db, SET_HAS_BOX, [owner_id])? > 0 {
            tx.cache.address_book.clear();
        }
        if in_conversation(*box_kind) {
            let session = sessions::add_record(tx, owner_id, session_id, seq, true)?;
            tx.indexes.timeline.add(tx.db, session, seq)?;
        }
        tx.effects.counts.record(*box_kind, state, 1);
        tx.effects.hints.insert(BoxHint { owner: owner.clone(), box_kind: *box_kind });
    }
    Ok(CreatedRecord { owner: owner.clone(), box_kind: *box_kind, record_id })
}

/// Puts a message into its author's OUTBOX and into the conversation with each target.
pub(super) fn insert_outbox(
    tx: &mut Tx<'_>,
    new: &NewRecord<'_>,
    placement: &Placement,
    peers: &[Did],
    now: Timestamp,
) -> Result<(), StoreError> {
    insert(tx, new, placement, now)?;
    let seq = tx.db.last_insert_rowid();
    let owner = contacts::party_id(tx, &placement.owner)?;
    for peer in peers {
        let peer_id = contacts::party_id(tx, peer)?;
        let session = sessions::add_record(tx, owner, peer_id, seq, false)?;
        if *peer == placement.session {
            tx.indexes.timeline.add(tx.db, session, seq)?;
        } else {
            tx.indexes.timeline.add_to_table(tx.db, session, seq)?;
        }
    }
    Ok(())
}

/// Whether the records of a box are part of the owner's conversations.
fn in_conversation(box_kind: BoxKind) -> bool {
    matches!(box_kind, BoxKind::Inbox | BoxKind::RequestBox)
}

/// The records that a dispatch created for a message.
pub(super) fn created(
    db: &Db,
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
    rows::list_undamaged(db, "record of", usize::MAX, sql, [object], |row| {
        Ok(CreatedRecord {
            owner: parsed(row, 0)?,
            box_kind: box_kind(row, 1)?,
            record_id: RecordId::from_tag(RecordKind::Record, msg_id, row.get(2)?),
        })
    })
}

pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<MsgRecord> {
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
        tunnel: row.get::<_, Option<String>>(13)?.and_then(|did| did.parse().ok()),
        created_at: Timestamp::from_ms(row.get(14)?),
        updated_at: Timestamp::from_ms(row.get(15)?),
    })
}

/// The user's tags of a record.
fn user_tags(row: &Row<'_>) -> rusqlite::Result<BTreeSet<Tag>> {
    let Some(tags) = row.get::<_, Option<String>>(18)? else { return Ok(BTreeSet::new()) };
    serde_json::from_str(&tags).map_err(|_| rows::damaged(18, "invalid tags"))
}

/// Reads the columns of a lease; `None` when they are NULL.
pub(super) fn lease(row: &Row<'_>, holder: usize, until: usize) -> rusqlite::Result<Option<Lease>> {
    let (holder, until) =
        (row.get::<_, Option<String>>(holder)?, row.get::<_, Option<i64>>(until)?);
    let holder = holder.and_then(|holder| Holder::new(holder).ok());
    Ok(holder.zip(until).map(|(holder, until)| Lease { holder, until: Timestamp::from_ms(until) }))
}

fn box_kind(row: &Row<'_>, column: usize) -> rusqlite::Result<BoxKind> {
    let text: String = row.get(column)?;
    BoxKind::parse(&text).ok_or_else(|| rows::damaged(column, "unknown box"))
}

/// Returns a record and the row of its object.
pub(super) fn by_seq(db: &Db, seq: i64) -> Result<(MsgRecord, i64), StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE r.seq = ?1");
    rows::one(db, &sql, [seq], |row| Ok((read(row)?, row.get(16)?)))
}

/// Returns a record and the row of its object.
pub(super) fn by_id(
    db: &Db,
    recent: &RecentEntries,
    id: &RecordId,
) -> Result<(MsgRecord, i64), StoreError> {
    let missing = || StoreError::Missing { what: "record", key: id.to_string() };
    let object = objects::find_by_half_hash(db, recent, id.msg_prefix())?.ok_or_else(missing)?;
    let sql = "SELECT seq FROM records WHERE object = ?1 AND tag = ?2";
    let seq = rows::optional(db, sql, params![object, id.tag()], |row| row.get(0))?;
    by_seq(db, seq.ok_or_else(missing)?)
}

fn lease_oldest(
    tx: &mut Tx<'_>,
    owner: &Did,
    box_kind: BoxKind,
    holder: &Holder,
    term: LeaseDuration,
    now: Timestamp,
) -> Result<Option<(MsgRecord, i64)>, StoreError> {
    let Some(owner) = contacts::find_party_id(tx, owner)? else { return Ok(None) };
    let row = params![owner, box_kind.as_str()];
    let Some((record, object)) =
        rows::first_undamaged(tx.db, "record", OLDEST_UNREAD, row, |seq| by_seq(tx.db, seq))?
    else {
        return Ok(None);
    };
    let next = record.reading.clone().lease(holder.clone(), now, term)?;
    let detail = json!({"by": holder, "attempt": next.attempts, "epoch": next.epoch});
    let record = update(tx, record, next, now)?;
    append_event(tx, EventKind::Taken, &record, object, &detail, now)?;
    Ok(Some((record, object)))
}

fn mark(
    tx: &mut Tx<'_>,
    id: &RecordId,
    to: ReadState,
    proof: &LeaseProof,
    revision: Option<i64>,
    term: LeaseDuration,
    now: Timestamp,
) -> Result<MsgRecord, StoreError> {
    let (record, object) = by_id(tx.db, tx.indexes.hashes.recent(), id)?;
    rows::check_revision("record", revision, record.revision)?;
    let from = record.reading.state.name();
    let next = record.reading.clone().mark(to, proof, now, term)?;
    if next == record.reading {
        return Ok(record);
    }
    let detail = json!({"from": from.as_str(), "to": to.as_str(), "by": proof.holder});
    let record = update(tx, record, next, now)?;
    append_event(tx, EventKind::Marked, &record, object, &detail, now)?;
    if to == ReadState::Unread {
        tx.effects.hints.insert(BoxHint { owner: record.owner.clone(), box_kind: record.box_kind });
    }
    Ok(record)
}

/// Ends leases of records and of deliveries.
fn end_all(
    tx: &mut Tx<'_>,
    cause: LeaseEndCause<'_>,
    retry: JitteredRetry,
    limit: usize,
    now: Timestamp,
) -> Result<SweepCounts, StoreError> {
    Ok(SweepCounts {
        records: end_leases(tx, cause, limit, now)?,
        deliveries: deliveries::end_leases(tx, cause, retry, limit, now)?,
    })
}

/// Marks the record of a completed Mail in the INBOX of `owner` as read, where there is one.
pub(super) fn complete(
    tx: &mut Tx<'_>,
    object: i64,
    owner: i64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "SELECT seq FROM records WHERE object = ?1 AND owner = ?2 AND box = 'INBOX'";
    let seq = rows::optional(tx.db, sql, [object, owner], |row| row.get(0))?;
    let Some(seq) = seq else { return Ok(()) };
    let found = tx.db.unless_damaged("record", seq, by_seq(tx.db, seq))?;
    let Some((record, object)) = found else { return Ok(()) };
    let from = record.reading.state.name();
    // A record that was read, archived or deleted before stays as it is.
    let Ok(next) = record.reading.clone().complete() else { return Ok(()) };
    let detail = json!({"from": from.as_str(), "to": next.state.name().as_str(), "by": "claim"});
    let record = update(tx, record, next, now)?;
    append_event(tx, EventKind::Marked, &record, object, &detail, now)
}

/// Adds and removes tags of a record.
fn set_tags(
    tx: &mut Tx<'_>,
    id: &RecordId,
    add: &[Tag],
    remove: &[Tag],
    now: Timestamp,
) -> Result<MsgRecord, StoreError> {
    let (record, object) = by_id(tx.db, tx.indexes.hashes.recent(), id)?;
    let own = record.tags.iter().filter_map(|tag| tag.parse::<Tag>().ok());
    let before: BTreeSet<Tag> = own.collect();
    let tags = change_tags(&before, add, remove)?;
    if tags == before {
        return Ok(record);
    }
    let owner = contacts::party_id(tx, &record.owner)?;
    let kind = record.box_kind.as_str();
    for tag in before.difference(&tags) {
        let sql = "
            DELETE FROM record_tags WHERE owner = ?1 AND box = ?2 AND tag = ?3 AND record = ?4
        ";
        rows::execute(tx.db, sql, params![owner, kind, tag.as_str(), record.seq])?;
    }
    for tag in tags.difference(&before) {
        let sql = "INSERT INTO record_tags (owner, box, tag, record) VALUES (?1, ?2, ?3, ?4)";
        rows::execute(tx.db, sql, params![owner, kind, tag.as_str(), record.seq])?;
    }
    let json = if tags.is_empty() { None } else { Some(rows::as_json(&tags)?) };
    let sql = "
        UPDATE records SET tags = ?3, updated_at = ?4, revision = revision + 1
         WHERE seq = ?1 AND revision = ?2
    ";
    rows::execute(tx.db, sql, params![record.seq, record.revision, json, now.ms()])?;
    let detail = json!({"tags": tags});
    append_event(tx, EventKind::Marked, &record, object, &detail, now)?;
    by_seq(tx.db, record.seq).map(|(record, _)| record)
}

/// Lists a page of records that match a filter.
fn list(
    db: &Db,
    owner: i64,
    box_kind: BoxKind,
    filter: &RecordFilter,
    page: &PageRequest,
) -> Result<Page<MsgRecord>, StoreError> {
    let (beyond, order) = rows::direction(page);
    let (start, limit) = (rows::start(page), page.limit.saturating_add(1));
    let (kind, states) = (box_kind.as_str(), &filter.states);
    let read = |row: &Row<'_>| read(row).map(|record| (record.seq, record));
    let group = filter.tag.as_ref().and_then(|tag| tag.strip_prefix("group:"));
    let of_box = "r.owner = ?1 AND r.box = ?2 AND r.seq";
    let (index, rows_of, condition, key): (_, _, _, Box<dyn ToSql>) =
        match (&filter.tag, group, &filter.thread_key) {
            (Some(_), Some(group), _) => {
                ("", of_box, "r.group_id = ?4", Box::new(group_id(db, group)?))
            }
            (Some(tag), None, _) => (
                "record_tags x CROSS JOIN",
                "x.owner = ?1 AND x.box = ?2 AND x.record",
                "x.tag = ?4 AND r.seq = x.record",
                Box::new(tag.clone()),
            ),
            (None, _, Some(thread)) => ("", of_box, "r.thread_key = ?4", Box::new(thread.clone())),
            (None, _, None) => ("", of_box, "r.state = ?4", Box::new(Null)),
        };
    let seq = if index.is_empty() { "r.seq" } else { "x.record" };
    let sql = format!(
        "SELECT {COLUMNS} FROM {index} {TABLES}
          WHERE {rows_of} {beyond} ?3 AND {condition}
          ORDER BY {seq} {order}"
    );
    let mut entries = Vec::new();
    if filter.tag.is_none() && filter.thread_key.is_none() {
        // One range scan per state: the index starts with the state, so that leasing the next
        // record is a single seek.
        let all = if states.is_empty() { &ReadState::ALL[..] } else { states };
        for state in all {
            let row = params![owner, kind, start, state.as_str()];
            entries.extend(rows::list_undamaged(db, "record", limit, &sql, row, read)?);
        }
        return Ok(rows::page(entries, page));
    }
    let mut statement = db.prepare_cached(&sql).map_err(db_error)?;
    let mut found = statement.query(params![owner, kind, start, key]).map_err(db_error)?;
    while entries.len() < limit
        && let Some(row) = found.next().map_err(db_error)?
    {
        let entry = read(row).map_err(db_error);
        let Some((seq, record)) = db.unless_damaged("record", damage::key(row), entry)? else {
            continue;
        };
        let in_state = states.is_empty() || states.contains(&record.reading.state.name());
        let in_thread = filter.thread_key.is_none() || filter.thread_key == record.thread_key;
        if in_state && in_thread {
            entries.push((seq, record));
        }
    }
    Ok(rows::page(entries, page))
}

/// The party of the group that a tag `group:<did>` names; 0 when it is unknown.
fn group_id(db: &Db, did: &str) -> Result<i64, StoreError> {
    let Ok(did) = did.parse::<Did>() else { return Ok(0) };
    Ok(contacts::find(db, &did)?.unwrap_or(0))
}

/// Sets records to UNREAD whose leases have expired, or whose holders are gone.
fn end_leases(
    tx: &mut Tx<'_>,
    cause: LeaseEndCause<'_>,
    limit: usize,
    now: Timestamp,
) -> Result<usize, StoreError> {
    let limit = rows::limit(limit);
    let (seqs, expire_at) = match cause {
        LeaseEndCause::Expired => (rows::numbers(tx.db, EXPIRED, params![now.ms(), limit])?, now),
        // These leases end now, however long they were to run.
        LeaseEndCause::HolderGone(prefix) => {
            let seqs = rows::numbers(tx.db, HELD_BY_PREFIX, params![prefix, limit])?;
            (seqs, Timestamp::from_ms(i64::MAX))
        }
    };
    for seq in &seqs {
        let found = tx.db.unless_damaged("record", seq, by_seq(tx.db, *seq))?;
        let Some((record, object)) = found else { continue };
        let next = record.reading.clone().expire(expire_at)?;
        let detail = match &record.reading.state {
            ReadStateData::Reading(lease) => json!({"held_by": lease.holder, "until": lease.until}),
            _ => json!({}),
        };
        let record = update(tx, record, next, now)?;
        append_event(tx, EventKind::LeaseEnded, &record, object, &detail, now)?;
        tx.effects.hints.insert(BoxHint { owner: record.owner, box_kind: record.box_kind });
    }
    Ok(seqs.len())
}

/// Writes a new status, if the row still has the revision of `record`.
fn update(
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
    if rows::execute(tx.db, UPDATE, row)? != 1 {
        return Err(StoreError::Conflict { what: "record", revision: record.revision });
    }
    let (from, to) = (record.reading.state.name(), next.state.name());
    tx.effects.counts.record(record.box_kind, from, -1);
    tx.effects.counts.record(record.box_kind, to, 1);
    let unread = i64::from(to == ReadState::Unread) - i64::from(from == ReadState::Unread);
    if unread != 0 && in_conversation(record.box_kind) {
        sessions::add_unread(tx, &record.owner, &record.session, unread)?;
    }
    Ok(MsgRecord { reading: next, revision: record.revision + 1, updated_at: now, ..record })
}

fn append_event(
    tx: &mut Tx<'_>,
    kind: EventKind,
    record: &MsgRecord,
    object: i64,
    detail: &impl Serialize,
    now: Timestamp,
) -> Result<(), StoreError> {
    let owner = contacts::party_id(tx, &record.owner)?;
    let subject =
        EventSubject { object: Some(object), record: Some(record.id), owner: Some(owner) };
    events::append(tx, kind, subject, detail, now)
}

#[async_trait]
impl RecordStore for SqliteStore {
    async fn dispatch(
        &self,
        batch: Vec<DispatchRequest>,
        now: Timestamp,
    ) -> Vec<Result<DispatchResult, StoreError>> {
        let count = batch.len();
        for request in &batch {
            if let Err(error) = self.put_large_message(&request.msg).await {
                return vec![Err(error); count];
            }
        }
        self.writer
            .run_each(batch, move |tx, batch| {
                tx.each(batch, |tx, request| dispatch::dispatch(tx, request, now))
            })
            .await
    }

    async fn lease_record(
        &self,
        owner: &Did,
        box_kind: BoxKind,
        holder: Holder,
        term: LeaseDuration,
        now: Timestamp,
    ) -> Result<Option<LeasedEntry<MsgRecord>>, StoreError> {
        // Ends when a record is undamaged or none is left.
        loop {
            let (owner, reader) = (owner.clone(), holder.clone());
            let leased = self.writer.run(move |tx| {
                let leased = lease_oldest(tx, &owner, box_kind, &reader, term, now)?;
                leased.map(|(entry, object)| Ok((entry, objects::body(tx.db, object)?))).transpose()
            });
            let Some((entry, (id, body))) = leased.await? else { return Ok(None) };
            match self.message(id, body).await {
                Ok(message) => return Ok(Some(LeasedEntry { entry, message })),
                Err(StoreError::Damaged { detail, .. }) => {
                    let epoch = Some(entry.reading.epoch);
                    let proof = LeaseProof { epoch, holder: holder.clone() };
                    let archive = self.writer.run(move |tx| {
                        let (id, to) = (&entry.id, ReadState::Archived);
                        let term = LeaseDuration::DEFAULT;
                        let record = mark(tx, id, to, &proof, None, term, now)?;
                        let recent = tx.indexes.hashes.recent();
                        let object = objects::seq_of(tx.db, recent, &record.msg_id)?;
                        let detail = json!({"why": detail});
                        append_event(tx, EventKind::Damaged, &record, object, &detail, now)
                    });
                    archive.await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn record(&self, id: RecordId) -> Result<MsgRecord, StoreError> {
        let found = self.read_by_hash(move |db, recent| by_id(db, recent, &id)).await;
        found.map(|(record, _)| record)
    }

    async fn mark_record(
        &self,
        id: RecordId,
        to: ReadState,
        proof: LeaseProof,
        revision: Option<i64>,
        term: LeaseDuration,
        now: Timestamp,
    ) -> Result<MsgRecord, StoreError> {
        self.writer.run(move |tx| mark(tx, &id, to, &proof, revision, term, now)).await
    }

    async fn records(
        &self,
        owner: &Did,
        box_kind: BoxKind,
        filter: &RecordFilter,
        page: PageRequest,
    ) -> Result<Page<MsgRecord>, StoreError> {
        let (owner, filter) = (owner.clone(), filter.clone());
        self.read(move |db| match contacts::find(db, &owner)? {
            Some(owner) => list(db, owner, box_kind, &filter, &page),
            None => Ok(rows::page(Vec::new(), &page)),
        })
        .await
    }

    async fn tag_record(
        &self,
        id: RecordId,
        add: Vec<Tag>,
        remove: Vec<Tag>,
        now: Timestamp,
    ) -> Result<MsgRecord, StoreError> {
        self.writer.run(move |tx| set_tags(tx, &id, &add, &remove, now)).await
    }

    async fn boxes(&self, page: PageRequest) -> Result<Page<BoxSummary>, StoreError> {
        self.read(move |db| boxes::list(db, &page)).await
    }

    async fn expire_leases(
        &self,
        retry: JitteredRetry,
        limit: usize,
        now: Timestamp,
    ) -> Result<SweepCounts, StoreError> {
        // A read first, because a read is cheaper than a commit and usually finds nothing.
        let any = self
            .read(move |db| rows::one(db, ANY_EXPIRED, [now.ms()], |row| row.get::<_, bool>(0)));
        if !any.await? {
            return Ok(SweepCounts::default());
        }
        self.writer.run(move |tx| end_all(tx, LeaseEndCause::Expired, retry, limit, now)).await
    }

    async fn release_leases(
        &self,
        prefix: &str,
        retry: JitteredRetry,
        now: Timestamp,
    ) -> Result<SweepCounts, StoreError> {
        let mut total = SweepCounts::default();
        // Ends when a commit releases less than its maximum.
        loop {
            let prefix = prefix.to_owned();
            let release = self.writer.run(move |tx| {
                let cause = LeaseEndCause::HolderGone(&prefix);
                end_all(tx, cause, retry, MAX_RELEASED_PER_COMMIT, now)
            });
            let some = release.await?;
            total.records += some.records;
            total.deliveries += some.deliveries;
            if some.records.max(some.deliveries) < MAX_RELEASED_PER_COMMIT {
                return Ok(total);
            }
        }
    }

    fn hints(&self) -> broadcast::Receiver<BoxHint> {
        self.channels.hints.subscribe()
    }
}
