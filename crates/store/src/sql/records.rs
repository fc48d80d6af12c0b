//! Records: one message in one box of one owner.

use std::collections::BTreeSet;

use async_trait::async_trait;
use monoco_core::did::Did;
use monoco_core::event::EventKind;
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::object::{MsgObject, ObjId};
use monoco_core::record::{BoxKind, MsgRecord, ReadState, ReadStateData, ReadStatus, RecordId};
use monoco_core::routing::Placement;
use monoco_core::tag::{Tag, change_tags};
use monoco_core::time::Timestamp;
use serde::Serialize;
use serde_json::json;
use tokio::sync::broadcast;

use super::db::params;
use super::events::{self, EventSubject};
use super::rows as sql;
use super::writer::{Lookups, Tx};
use super::{
    MAX_RELEASED_PER_COMMIT, SqlStore, boxes, contacts, dispatch, external_ids, objects, sessions,
};
use crate::{
    BoxHint, BoxSummary, CreatedRecord, DispatchRequest, DispatchResult, JitteredRetry,
    LeasedEntry, Page, PageRequest, RecordFilter, RecordStore, StoreError, StoreResult,
    SweepCounts,
};
use leases::{ANY_EXPIRED, end_all, lease_oldest};
use list::list;

mod leases;
mod list;
mod rows;

pub(super) use leases::{LeaseEndCause, UnreadRecord, look_up_unread};
pub(super) use rows::{COLUMNS, TABLES, by_id, by_id_in_tx, by_seq, created, lease, read};

const INSERT: &str = "
    INSERT INTO records (object, tag, owner, box, state, attempts, epoch, revision, session,
                         group_id, tunnel, thread_key, created_at, updated_at)
    VALUES (?1, ?2, ?3, ?4, ?5, 0, 0, 0, ?6, ?7, ?8, ?9, ?10, ?10)
        ON CONFLICT (object, tag) DO NOTHING
";

const UPDATE: &str = "
    UPDATE records
       SET state = ?3, attempts = ?4, epoch = ?5, holder = ?6, lease_until = ?7,
           updated_at = ?8, revision = revision + 1
     WHERE seq = ?1 AND revision = ?2
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

/// Puts a message into one box and into the owner's conversation.
pub(super) fn insert(
    tx: &mut Tx<'_>,
    new: &NewRecord<'_>,
    placement: &Placement,
    now: Timestamp,
) -> StoreResult<CreatedRecord> {
    insert_row(tx, new, placement, now).map(|(created, _)| created)
}

/// Like [`insert`]. Returns the number of the new row as well, or `None` when the record exists.
fn insert_row(
    tx: &mut Tx<'_>,
    new: &NewRecord<'_>,
    placement: &Placement,
    now: Timestamp,
) -> StoreResult<(CreatedRecord, Option<i64>)> {
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
    let seq = sql::insert_new(tx.db, INSERT, row)?;
    if let Some(seq) = seq {
        if tx.cache.boxes.insert(owner_id) && sql::changed_rows(tx.db, SET_HAS_BOX, [owner_id])? > 0
        {
            tx.change_address_book();
        }
        if in_conversation(*box_kind) {
            let session = sessions::add_record(tx, owner_id, session_id, seq, true)?;
            tx.indexes.timeline.add(tx.db, session, seq)?;
        }
        tx.effects.counts.record(*box_kind, state, 1);
        tx.effects.hints.insert(BoxHint { owner: owner.clone(), box_kind: *box_kind });
    }
    Ok((CreatedRecord { owner: owner.clone(), box_kind: *box_kind, record_id }, seq))
}

/// Puts a message into its author's OUTBOX and into the conversation with each target.
pub(super) fn insert_outbox(
    tx: &mut Tx<'_>,
    new: &NewRecord<'_>,
    placement: &Placement,
    peers: &[Did],
    now: Timestamp,
) -> StoreResult<()> {
    let Some(seq) = insert_row(tx, new, placement, now)?.1 else { return Ok(()) };
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

fn mark(
    tx: &mut Tx<'_>,
    id: &RecordId,
    to: ReadState,
    proof: &LeaseProof,
    revision: Option<i64>,
    term: LeaseDuration,
    now: Timestamp,
) -> StoreResult<MsgRecord> {
    // A record that was leased is known. Its row is read only when the step would not change it:
    // the revision shows whether the row has changed meanwhile.
    if let Some((record, object)) = tx.cache.leased.remove(id)
        && revision.is_none_or(|revision| revision == record.revision)
        && let Ok(next) = record.reading.clone().mark(to, proof, now, term)
        && next != record.reading
    {
        match set_state(tx, (record, object), next, proof, now) {
            Err(StoreError::Conflict { .. }) => {}
            marked => return marked,
        }
    }
    let (record, object) = by_id_in_tx(tx, id)?;
    sql::check_revision("record", revision, record.revision)?;
    let next = record.reading.clone().mark(to, proof, now, term)?;
    if next == record.reading {
        return Ok(record);
    }
    set_state(tx, (record, object), next, proof, now)
}

/// Changes a record to a state that its reader has set.
fn set_state(
    tx: &mut Tx<'_>,
    (record, object): (MsgRecord, i64),
    next: ReadStatus,
    proof: &LeaseProof,
    now: Timestamp,
) -> StoreResult<MsgRecord> {
    let (from, to) = (record.reading.state.name(), next.state.name());
    let detail = json!({"from": from.as_str(), "to": to.as_str(), "by": proof.holder});
    let record = update(tx, record, next, now)?;
    append_event(tx, EventKind::Marked, &record, object, &detail, now)?;
    if to == ReadState::Unread {
        tx.effects.hints.insert(BoxHint { owner: record.owner.clone(), box_kind: record.box_kind });
    }
    Ok(record)
}

/// Marks the record of a completed Mail in the INBOX of `owner` as read, where there is one.
pub(super) fn complete(
    tx: &mut Tx<'_>,
    object: i64,
    owner: i64,
    now: Timestamp,
) -> StoreResult<()> {
    let sql = "SELECT seq FROM records WHERE object = ?1 AND owner = ?2 AND box = 'INBOX'";
    let seq = sql::optional(tx.db, sql, [object, owner], |row| row.get(0))?;
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

/// Archives the records of an erased message that wait for a reader, and deletes its thread.
pub(super) fn erase(tx: &mut Tx<'_>, object: i64, now: Timestamp) -> StoreResult<()> {
    // They have texts.
    tx.cache.unread.clear();
    let open = "SELECT seq FROM records WHERE object = ?1 AND state IN ('UNREAD', 'READING')";
    for seq in sql::numbers(tx.db, open, [object])? {
        let found = tx.db.unless_damaged("record", seq, by_seq(tx.db, seq))?;
        let Some((record, _)) = found else { continue };
        let (from, to) = (record.reading.state.name(), ReadState::Archived);
        let proof = LeaseProof { epoch: Some(record.reading.epoch), holder: Holder::anonymous() };
        let next = record.reading.clone().mark(to, &proof, now, LeaseDuration::DEFAULT)?;
        let detail = json!({"from": from.as_str(), "to": to.as_str(), "by": "erasure"});
        let record = update(tx, record, next, now)?;
        append_event(tx, EventKind::Marked, &record, object, &detail, now)?;
    }
    sql::execute(tx.db, "UPDATE records SET thread_key = NULL WHERE object = ?1", [object])?;
    Ok(())
}

/// Adds and removes tags of a record.
fn set_tags(
    tx: &mut Tx<'_>,
    id: &RecordId,
    add: &[Tag],
    remove: &[Tag],
    now: Timestamp,
) -> StoreResult<MsgRecord> {
    let (record, object) = by_id_in_tx(tx, id)?;
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
        sql::execute(tx.db, sql, params![owner, kind, tag.as_str(), record.seq])?;
    }
    for tag in tags.difference(&before) {
        let sql = "INSERT INTO record_tags (owner, box, tag, record) VALUES (?1, ?2, ?3, ?4)";
        sql::execute(tx.db, sql, params![owner, kind, tag.as_str(), record.seq])?;
    }
    tx.cache.unread.clear();
    let json = if tags.is_empty() { None } else { Some(sql::as_json(&tags)?) };
    let sql = "
        UPDATE records SET tags = ?3, updated_at = ?4, revision = revision + 1
         WHERE seq = ?1 AND revision = ?2
    ";
    sql::execute(tx.db, sql, params![record.seq, record.revision, json, now.ms()])?;
    let detail = json!({"tags": tags});
    append_event(tx, EventKind::Marked, &record, object, &detail, now)?;
    by_seq(tx.db, record.seq).map(|(record, _)| record)
}

/// Writes a new status, if the row still has the revision of `record`.
fn update(
    tx: &mut Tx<'_>,
    record: MsgRecord,
    next: ReadStatus,
    now: Timestamp,
) -> StoreResult<MsgRecord> {
    let lease = match &next.state {
        ReadStateData::Reading(lease) => Some(lease),
        _ => None,
    };
    let row = params![
        record.seq,
        record.revision,
        next.state.name().as_str(),
        next.attempts,
        sql::signed(next.epoch),
        lease.map(|lease| lease.holder.as_str()),
        lease.map(|lease| lease.until.ms()),
        now.ms(),
    ];
    if !sql::update_one(tx.db, UPDATE, row)? {
        return Err(StoreError::Conflict { what: "record", revision: record.revision });
    }
    let (from, to) = (record.reading.state.name(), next.state.name());
    if [from, to].contains(&ReadState::Unread) {
        tx.cache.unread.clear();
    }
    if to == ReadState::Unread {
        tx.cache.leased_up_to.clear();
    }
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
) -> StoreResult<()> {
    let owner = contacts::party_id(tx, &record.owner)?;
    let subject =
        EventSubject { object: Some(object), record: Some(record.id), owner: Some(owner) };
    events::append(tx, kind, subject, detail, now)
}

#[async_trait]
impl RecordStore for SqlStore {
    async fn dispatch(
        &self,
        batch: Vec<DispatchRequest>,
        now: Timestamp,
    ) -> Vec<StoreResult<DispatchResult>> {
        let count = batch.len();
        let _lock = self.erasing.read().await;
        for request in &batch {
            if let Err(error) = self.put_large_message(&request.msg).await {
                return vec![Err(error); count];
            }
        }
        let hashes = batch.iter().map(|request| objects::hash_prefix(request.msg.id().hash()));
        let ids = batch.iter().filter_map(|request| request.external_id.as_deref());
        let lookups = Lookups {
            objects: hashes.collect(),
            external_ids: ids.map(external_ids::hash_prefix).collect(),
            ..Lookups::default()
        };
        self.writer
            .run_each_on(lookups, batch, move |tx, batch| {
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
    ) -> StoreResult<Option<LeasedEntry<MsgRecord>>> {
        // Ends when a record is undamaged or none is left.
        loop {
            let (owner, reader) = (owner.clone(), holder.clone());
            let unread = Some((owner.clone(), box_kind));
            let lookups = Lookups { unread, ..Lookups::default() };
            let leased = self
                .writer
                .run_on(lookups, move |tx| lease_oldest(tx, &owner, box_kind, &reader, term, now));
            let Some((entry, body)) = leased.await? else { return Ok(None) };
            match self.leased_message(body).await {
                Ok(message) => return Ok(Some(LeasedEntry { entry, message })),
                Err(error @ (StoreError::Damaged { .. } | StoreError::Erased { .. })) => {
                    let detail = match error {
                        StoreError::Damaged { detail, .. } => detail,
                        erased => erased.to_string(),
                    };
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

    async fn record(&self, id: RecordId) -> StoreResult<MsgRecord> {
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
    ) -> StoreResult<MsgRecord> {
        self.writer.run(move |tx| mark(tx, &id, to, &proof, revision, term, now)).await
    }

    async fn records(
        &self,
        owner: &Did,
        box_kind: BoxKind,
        filter: &RecordFilter,
        page: PageRequest,
    ) -> StoreResult<Page<MsgRecord>> {
        let (owner, filter) = (owner.clone(), filter.clone());
        self.read(move |db| match contacts::find(db, &owner)? {
            Some(owner) => list(db, owner, box_kind, &filter, &page),
            None => Ok(sql::page(Vec::new(), &page)),
        })
        .await
    }

    async fn tag_record(
        &self,
        id: RecordId,
        add: Vec<Tag>,
        remove: Vec<Tag>,
        now: Timestamp,
    ) -> StoreResult<MsgRecord> {
        self.writer.run(move |tx| set_tags(tx, &id, &add, &remove, now)).await
    }

    async fn boxes(&self, page: PageRequest) -> StoreResult<Page<BoxSummary>> {
        self.read(move |db| boxes::list(db, &page)).await
    }

    async fn expire_leases(
        &self,
        retry: JitteredRetry,
        limit: usize,
        now: Timestamp,
    ) -> StoreResult<SweepCounts> {
        // A read first, because a read is cheaper than a commit and usually finds nothing.
        let any =
            self.read(move |db| sql::one(db, ANY_EXPIRED, [now.ms()], |row| row.get::<bool>(0)));
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
    ) -> StoreResult<SweepCounts> {
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
            total.email_tasks += some.email_tasks;
            let most = some.records.max(some.deliveries).max(some.email_tasks);
            if most < MAX_RELEASED_PER_COMMIT {
                return Ok(total);
            }
        }
    }

    fn hints(&self) -> broadcast::Receiver<BoxHint> {
        self.channels.hints.subscribe()
    }
}
