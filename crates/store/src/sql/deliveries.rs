//! Deliveries: one message on its way to one target through one tunnel.

use async_trait::async_trait;
use monoco_core::contact::{DeliveryPlan, DeliveryPlans, plan_delivery};
use monoco_core::delivery::{
    Delivery, DeliveryOutcome, SendState, SendStateData, SendStatus, SentPart, TunnelCapabilities,
};
use monoco_core::did::Did;
use monoco_core::event::EventKind;
use monoco_core::halt::HaltSet;
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::object::{MAX_TARGETS, MsgObject, ObjId, ObjKind};
use monoco_core::record::{BoxKind, RecordId, RecordKind};
use monoco_core::retry::{Failure, Jitter, RetryPolicy};
use monoco_core::time::Timestamp;
use serde_json::{Value, json};

mod parts;
mod target_queue;

use target_queue::QueueTarget;

use super::bulk_index::RecentEntries;
use super::db::{Db, Row, RowResult, params};
use super::events::{self, EventSubject};
use super::records::{self, LeaseEndCause};
use super::rows::{self, parsed};
use super::writer::{Lookups, Tx};
use super::{
    DAMAGED_ROW_DELAY, SqlStore, address_book, approvals, contacts, email, halts, objects, send,
};
use crate::{
    BoxHint, DeliveryStore, JitteredRetry, LeasedEntry, Page, PageRequest, SendRequest, SendResult,
    StoreError, TargetResult,
};

const COLUMNS: &str = "
    d.seq, o.hash, d.tag, d.plan, a.did, d.state, d.due_at, d.attempts, d.epoch, d.revision,
    d.holder, d.lease_until, d.first_try, d.failure, d.external_msg_id, d.created_at,
    d.updated_at, d.object, d.delivered_at, d.outcome_unknown,
    (SELECT json_group_array(json_array(p.part, p.external_msg_id))
       FROM (SELECT part, external_msg_id FROM delivery_parts
              WHERE delivery = d.seq ORDER BY part) p),
    d.rate_limited
";

const TABLES: &str = "
    deliveries d
      JOIN objects o ON o.seq = d.object
      JOIN parties a ON a.id = d.author
";

const INSERT: &str = "
    INSERT INTO deliveries (object, tag, tunnel, author, plan, state, due_at, attempts, epoch,
                            revision, created_at, updated_at, target, place, ready_at,
                            outcome_unknown)
    VALUES (?1, ?2, ?3, ?4, ?5, ?11, ?6, 0, 0, 0, ?7, ?7, ?8, ?9, ?10, 0)
";

/// How many deliveries one call takes into the queues of their targets.
const MAX_PASSED_PER_LEASE: usize = 1_000;

// A single index seek, however many deliveries wait for a later time or behind another one.
const LONGEST_DUE: &str = "
    SELECT seq, place IS NOT NULL
      FROM deliveries
     WHERE tunnel = ?1 AND ready_at <= ?2
     ORDER BY ready_at, seq
     LIMIT 1
";

const NEXT_READY: &str = "
    SELECT ready_at
      FROM deliveries
     WHERE tunnel = ?1 AND ready_at IS NOT NULL
     ORDER BY ready_at
     LIMIT 1
";

const UPDATE: &str = "
    UPDATE deliveries
       SET state = ?3, due_at = ?4, attempts = ?5, epoch = ?6, holder = ?7, lease_until = ?8,
           first_try = ?9, failure = ?10, external_msg_id = ?11, updated_at = ?12,
           delivered_at = ?13, outcome_unknown = ?14, place = CASE WHEN ?15 = 1 THEN place END,
           ready_at = CASE WHEN ?15 = 1 THEN CAST(?4 AS BIGINT) END, rate_limited = ?16, revision = revision + 1
     WHERE seq = ?1 AND revision = ?2
";

const EXPIRED: &str = "
    SELECT seq
      FROM deliveries
     WHERE state = 'SENDING' AND lease_until <= ?1
     ORDER BY lease_until, seq
     LIMIT ?2
";

const HELD_BY_PREFIX: &str = "
    SELECT seq
      FROM deliveries
     WHERE state = 'SENDING' AND substr(holder, 1, length(?1)) = ?1
     LIMIT ?2
";

/// Queues a message for one target. Without `due` it is HELD until it is approved.
pub(super) fn insert(
    tx: &mut Tx<'_>,
    object: i64,
    msg_id: &ObjId,
    author: i64,
    plan: &DeliveryPlan,
    due: Option<Timestamp>,
    now: Timestamp,
) -> Result<RecordId, StoreError> {
    let id = RecordId::delivery(&plan.tunnel_did, &plan.target_did, msg_id);
    let tunnel = contacts::party_id(tx, &plan.tunnel_did)?;
    let target = QueueTarget::new(tunnel, plan);
    let place = due.filter(|due| *due <= now).map(Timestamp::ms);
    let waits = place.is_some() && target_queue::is_busy(tx.db, target)?;
    let ready_at = due.filter(|_| !waits).map(Timestamp::ms);
    let plan_json = rows::as_json(plan)?;
    let state = if due.is_some() { SendState::Wait } else { SendState::Held };
    let row = params![
        object,
        id.tag(),
        tunnel,
        author,
        plan_json,
        due.map(Timestamp::ms),
        now.ms(),
        target.key,
        place,
        ready_at,
        state.as_str(),
    ];
    rows::insert(tx.db, INSERT, row)?;
    tx.effects.counts.delivery(state, 1);
    if due.is_some() {
        hint(tx, &plan.tunnel_did);
    }
    Ok(id)
}

fn hint(tx: &mut Tx<'_>, tunnel: &Did) {
    tx.effects.hints.insert(BoxHint { owner: tunnel.clone(), box_kind: BoxKind::TunnelOutbox });
}

fn read(row: &Row<'_>) -> RowResult<Delivery> {
    let msg_id = ObjId::from_parts(ObjKind::Msg, row.get(1)?);
    let plan: String = row.get(3)?;
    let state: String = row.get(5)?;
    let due = row.get::<Option<i64>>(6)?.map(Timestamp::from_ms);
    let lease = records::lease(row, 10, 11)?;
    let why: Option<Failure> =
        row.get::<Option<String>>(13)?.and_then(|text| serde_json::from_str(&text).ok());
    let state = match (SendState::parse(&state), due, lease, why) {
        (Some(SendState::Wait), Some(due), None, None) => SendStateData::Wait { due },
        (Some(SendState::Sending), None, Some(lease), None) => SendStateData::Sending(lease),
        (Some(SendState::Sent), None, None, None) => {
            let delivered_at = Timestamp::from_ms(row.get(18)?);
            SendStateData::Sent { external_msg_id: row.get(14)?, delivered_at }
        }
        (Some(SendState::Failed), Some(due), None, Some(why)) => SendStateData::Failed { due, why },
        (Some(SendState::Dead), None, None, Some(why)) => SendStateData::Dead { why },
        (Some(SendState::Uncertain), None, None, Some(why)) => SendStateData::Uncertain { why },
        (Some(SendState::Held), None, None, None) => SendStateData::Held,
        (Some(SendState::Archived), None, None, None) => SendStateData::Archived,
        (Some(SendState::Deleted), None, None, None) => SendStateData::Deleted,
        _ => return Err(rows::damaged(5, "the state does not match the other columns")),
    };
    Ok(Delivery {
        id: RecordId::from_tag(RecordKind::Delivery, &msg_id, row.get(2)?),
        seq: row.get(0)?,
        msg_id,
        plan: serde_json::from_str(&plan).map_err(|_| rows::damaged(3, "invalid plan"))?,
        author: parsed(row, 4)?,
        sending: SendStatus {
            state,
            attempts: row.get(7)?,
            rate_limited: row.get(21)?,
            epoch: rows::unsigned(row, 8)?,
            first_try: row.get::<Option<i64>>(12)?.map(Timestamp::from_ms),
            outcome_unknown: row.get(19)?,
        },
        parts: parts::read(row, 20)?,
        revision: row.get(9)?,
        created_at: Timestamp::from_ms(row.get(15)?),
        updated_at: Timestamp::from_ms(row.get(16)?),
    })
}

fn by_seq(db: &Db, seq: i64) -> Result<(Delivery, i64), StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE d.seq = ?1");
    rows::one(db, &sql, [seq], |row| Ok((read(row)?, row.get(17)?)))
}

/// Returns a delivery and the row of its object.
fn by_id(db: &Db, recent: &RecentEntries, id: &RecordId) -> Result<(Delivery, i64), StoreError> {
    let missing = || StoreError::Missing { what: "delivery", key: id.to_string() };
    let object = objects::find_by_half_hash(db, recent, id.msg_prefix())?.ok_or_else(missing)?;
    let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE d.object = ?1 AND d.tag = ?2");
    let found =
        rows::optional(db, &sql, params![object, id.tag()], |row| Ok((read(row)?, row.get(17)?)))?;
    found.ok_or_else(missing)
}

/// Looks up deliveries by id, for the batch. One alone is found as fast when it is needed.
pub(super) fn look_up(tx: &mut Tx<'_>, ids: &[RecordId]) -> Result<(), StoreError> {
    if ids.len() < 2 {
        return Ok(());
    }
    let prefixes = ids.iter().map(|id| objects::hash_prefix(id.msg_prefix()).to_string());
    let tags = ids.iter().map(|id| id.tag().to_string());
    let (prefixes, tags): (Vec<_>, Vec<_>) = (prefixes.collect(), tags.collect());
    let sql = format!(
        "SELECT {COLUMNS}, n.hash
           FROM unnest(CAST(string_to_array(?1, ',') AS BIGINT[]),
                       CAST(string_to_array(?2, ',') AS BIGINT[])) AS k(hash_prefix, tag)
           JOIN object_hashes h ON h.hash_prefix = k.hash_prefix
           JOIN objects n ON n.seq = h.object AND n.kind = 'cymsg'
           JOIN deliveries d ON d.object = coalesce(n.superseded_by, n.seq) AND d.tag = k.tag
           JOIN objects o ON o.seq = d.object
           JOIN parties a ON a.id = d.author"
    );
    let row = params![prefixes.join(","), tags.join(",")];
    let found = rows::list_undamaged(tx.db, "delivery", usize::MAX, &sql, row, |row| {
        let named = ObjId::from_parts(ObjKind::Msg, row.get(22)?);
        let id = RecordId::from_tag(RecordKind::Delivery, &named, row.get(2)?);
        Ok((id, (read(row)?, row.get(17)?)))
    })?;
    // Those that were not found are looked for again, and get their error then.
    tx.cache.deliveries = found.into_iter().filter(|(id, _)| ids.contains(id)).collect();
    Ok(())
}

/// Like [`by_id`], in the writer.
fn by_id_in_tx(tx: &mut Tx<'_>, id: &RecordId) -> Result<(Delivery, i64), StoreError> {
    match tx.cache.deliveries.remove(id) {
        Some(known) => Ok(known),
        None => by_id(tx.db, tx.indexes.hashes.recent(), id),
    }
}

/// Lists the first deliveries of a message.
pub(super) fn of_object(db: &Db, object: i64, limit: usize) -> Result<Vec<Delivery>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE d.object = ?1 ORDER BY d.seq");
    rows::list_undamaged(db, "delivery", limit, &sql, [object], read)
}

fn lease_longest_due(
    tx: &mut Tx<'_>,
    tunnel: &Did,
    holder: &Holder,
    term: LeaseDuration,
    now: Timestamp,
) -> Result<Option<(Delivery, i64)>, StoreError> {
    let halts = halts::read(tx.db)?;
    if halts.of_tunnel(tunnel.tunnel().as_ref()).is_some() {
        return Ok(None);
    }
    let Some(tunnel) = contacts::find_party_id(tx, tunnel)? else { return Ok(None) };
    let Some((delivery, object)) = first_not_halted(tx, tunnel, &halts, now)? else {
        return Ok(None);
    };
    let next = delivery.sending.clone().lease(holder.clone(), now, term)?;
    let detail = json!({"by": holder, "attempt": next.attempts, "epoch": next.epoch});
    let delivery = update(tx, delivery, next, now)?;
    append_event(tx, EventKind::Sending, &delivery, object, detail, now)?;
    Ok(Some((delivery, object)))
}

/// Returns the delivery that has been due the longest and is not of a halted agent. The messages
/// of halted agents that are found on the way are held.
fn first_not_halted(
    tx: &mut Tx<'_>,
    tunnel: i64,
    halts: &HaltSet,
    now: Timestamp,
) -> Result<Option<(Delivery, i64)>, StoreError> {
    for _ in 0..MAX_PASSED_PER_LEASE {
        let Some((delivery, object)) = first_of_longest_due(tx, tunnel, now)? else {
            return Ok(None);
        };
        if !halts.has_agents() {
            return Ok(Some((delivery, object)));
        }
        let origin = approvals::agent_of(tx.db, object)?;
        let halted = origin.and_then(|origin| {
            let halt = origin.agent().and_then(|name| halts.of_agent(name))?;
            Some((format!("{} is halted", halt.scope), origin))
        });
        let Some((why, origin)) = halted else { return Ok(Some((delivery, object))) };
        approvals::hold_waiting(tx, object, &origin, &why, now)?;
    }
    // The next call goes on behind them.
    Ok(None)
}

/// Returns the delivery that has been due the longest among the first ones of all targets. Those
/// that were scheduled take their places.
fn first_of_longest_due(
    tx: &mut Tx<'_>,
    tunnel: i64,
    now: Timestamp,
) -> Result<Option<(Delivery, i64)>, StoreError> {
    for _ in 0..MAX_PASSED_PER_LEASE {
        let row = params![tunnel, now.ms()];
        let found = rows::optional(tx.db, LONGEST_DUE, row, |row| Ok((row.get(0)?, row.get(1)?)))?;
        let Some((seq, has_place)) = found else { return Ok(None) };
        let Some((delivery, object)) = tx.db.unless_damaged("delivery", seq, by_seq(tx.db, seq))?
        else {
            target_queue::set_aside(tx, seq, now + DAMAGED_ROW_DELAY)?;
            continue;
        };
        let (SendStateData::Wait { due } | SendStateData::Failed { due, .. }) =
            delivery.sending.state
        else {
            target_queue::set_aside(tx, seq, now + DAMAGED_ROW_DELAY)?;
            continue;
        };
        let target = QueueTarget::new(tunnel, &delivery.plan);
        if has_place || target_queue::join(tx, target, seq, due)? {
            return Ok(Some((delivery, object)));
        }
    }
    // The next call goes on behind them.
    Ok(None)
}

/// The deliveries of a message in some states.
fn in_states(tx: &Tx<'_>, object: i64, states: &[SendState]) -> Result<Vec<Delivery>, StoreError> {
    let all = of_object(tx.db, object, MAX_TARGETS)?;
    Ok(all.into_iter().filter(|it| states.contains(&it.sending.state.name())).collect())
}

/// Sets the HELD deliveries of an approved message to WAIT.
pub(super) fn release_held(
    tx: &mut Tx<'_>,
    object: i64,
    due: Timestamp,
    now: Timestamp,
) -> Result<(), StoreError> {
    for delivery in in_states(tx, object, &[SendState::Held])? {
        let next = delivery.sending.clone().approve(due)?;
        let delivery = update(tx, delivery, next, now)?;
        let tunnel = contacts::party_id(tx, &delivery.plan.tunnel_did)?;
        if due > now {
            target_queue::schedule(tx, delivery.seq, due)?;
        } else {
            let target = QueueTarget::new(tunnel, &delivery.plan);
            target_queue::join(tx, target, delivery.seq, due)?;
        }
        hint(tx, &delivery.plan.tunnel_did);
    }
    Ok(())
}

/// Archives the HELD deliveries of a message that is not sent.
pub(super) fn end_held(
    tx: &mut Tx<'_>,
    object: i64,
    by: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    mark_all(tx, object, &[SendState::Held], SendState::Archived, by, now).map(drop)
}

/// Holds the deliveries of a message that wait. Returns them.
pub(super) fn hold_waiting(
    tx: &mut Tx<'_>,
    object: i64,
    now: Timestamp,
) -> Result<Vec<Delivery>, StoreError> {
    mark_all(tx, object, &approvals::WAITING, SendState::Held, "halt", now)
}

/// Changes the state of the deliveries of a message that are in some states.
fn mark_all(
    tx: &mut Tx<'_>,
    object: i64,
    from: &[SendState],
    to: SendState,
    by: &str,
    now: Timestamp,
) -> Result<Vec<Delivery>, StoreError> {
    let mut changed = Vec::new();
    for delivery in in_states(tx, object, from)? {
        let proof = LeaseProof { epoch: None, holder: Holder::anonymous() };
        let was = delivery.sending.state.name();
        let next = delivery.sending.clone().mark(to, &proof, now)?;
        let delivery = update(tx, delivery, next, now)?;
        let detail = json!({"from": was.as_str(), "to": to.as_str(), "by": by});
        append_event(tx, EventKind::Marked, &delivery, object, detail, now)?;
        changed.push(delivery);
    }
    Ok(changed)
}

/// Deletes the deliveries of an erased message that were not sent. An attempt that is in progress
/// cannot be reported any more.
pub(super) fn erase(tx: &mut Tx<'_>, object: i64, now: Timestamp) -> Result<(), StoreError> {
    let sql = "
        SELECT seq FROM deliveries
         WHERE object = ?1 AND state NOT IN ('SENT', 'ARCHIVED', 'DELETED')
    ";
    for seq in rows::numbers(tx.db, sql, [object])? {
        let found = tx.db.unless_damaged("delivery", seq, by_seq(tx.db, seq))?;
        let Some((delivery, _)) = found else { continue };
        let (from, to) = (delivery.sending.state.name(), SendState::Deleted);
        let proof = LeaseProof { epoch: Some(delivery.sending.epoch), holder: Holder::anonymous() };
        let next = delivery.sending.clone().mark(to, &proof, now)?;
        let detail = json!({"from": from.as_str(), "to": to.as_str(), "by": "erasure"});
        let delivery = update(tx, delivery, next, now)?;
        append_event(tx, EventKind::Marked, &delivery, object, detail, now)?;
    }
    Ok(())
}

/// Ends attempts whose leases have expired, or whose senders are gone.
pub(super) fn end_leases(
    tx: &mut Tx<'_>,
    cause: LeaseEndCause<'_>,
    retry: JitteredRetry,
    limit: usize,
    now: Timestamp,
) -> Result<usize, StoreError> {
    let limit = rows::limit(limit);
    let seqs = match cause {
        LeaseEndCause::Expired => rows::numbers(tx.db, EXPIRED, params![now.ms(), limit])?,
        LeaseEndCause::HolderGone(prefix) => {
            rows::numbers(tx.db, HELD_BY_PREFIX, params![prefix, limit])?
        }
    };
    let mut ended = 0;
    for seq in seqs {
        let found = tx.db.unless_damaged("delivery", seq, by_seq(tx.db, seq))?;
        let Some((mut delivery, object)) = found else { continue };
        if let (LeaseEndCause::HolderGone(_), SendStateData::Sending(lease)) =
            (cause, &mut delivery.sending.state)
        {
            lease.until = lease.until.min(now);
        }
        let capabilities = capabilities(tx, &delivery)?;
        let status = delivery.sending.clone();
        let next = status.expire(now, &retry.retry, capabilities, retry.jitter)?;
        let delivery = update(tx, delivery, next, now)?;
        append_outcome(tx, &delivery, object, now)?;
        ended += 1;
    }
    Ok(ended)
}

/// Sets the DEAD deliveries of a message to WAIT.
pub(super) fn retry_dead(
    tx: &mut Tx<'_>,
    object: i64,
    by: &Holder,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "SELECT seq FROM deliveries WHERE object = ?1 AND state = 'DEAD' ORDER BY seq";
    for seq in rows::numbers(tx.db, sql, [object])? {
        let found = tx.db.unless_damaged("delivery", seq, by_seq(tx.db, seq))?;
        let Some((delivery, object)) = found else { continue };
        let proof = LeaseProof { epoch: None, holder: by.clone() };
        mark(tx, delivery, object, SendState::Wait, &proof, now)?;
    }
    Ok(())
}

/// Changes the state of a delivery on behalf of an operator.
fn mark(
    tx: &mut Tx<'_>,
    delivery: Delivery,
    object: i64,
    to: SendState,
    proof: &LeaseProof,
    now: Timestamp,
) -> Result<Delivery, StoreError> {
    let from = delivery.sending.state.name();
    let next = delivery.sending.clone().mark(to, proof, now)?;
    if next == delivery.sending {
        return Ok(delivery);
    }
    let detail = json!({"from": from.as_str(), "to": to.as_str(), "by": proof.holder});
    let delivery = update(tx, delivery, next, now)?;
    append_event(tx, EventKind::Marked, &delivery, object, detail, now)?;
    if let SendStateData::Wait { due } = delivery.sending.state {
        // A delivery that is retried is the first one, and stays it.
        if from != SendState::Failed {
            let tunnel = contacts::party_id(tx, &delivery.plan.tunnel_did)?;
            let target = QueueTarget::new(tunnel, &delivery.plan);
            target_queue::join(tx, target, delivery.seq, due)?;
        }
        hint(tx, &delivery.plan.tunnel_did);
    }
    Ok(delivery)
}

/// The capabilities of a delivery's tunnel. A tunnel that was removed has none.
fn capabilities(tx: &mut Tx<'_>, delivery: &Delivery) -> Result<TunnelCapabilities, StoreError> {
    let tunnel = match delivery.plan.tunnel_did.tunnel() {
        Some(id) => address_book::tunnel_in_tx(tx, &id)?,
        None => None,
    };
    Ok(TunnelCapabilities {
        idempotent: tunnel.as_ref().is_some_and(|tunnel| tunnel.idempotent),
        finds_sent: tunnel.is_some_and(|tunnel| tunnel.finds_sent),
    })
}

/// Writes a new status, if the row still has the revision of `delivery`. A delivery that is no
/// longer sent or retried loses its place, and the next one of its target becomes leasable.
fn update(
    tx: &mut Tx<'_>,
    delivery: Delivery,
    next: SendStatus,
    now: Timestamp,
) -> Result<Delivery, StoreError> {
    let (due, lease, external, delivered_at) = match &next.state {
        SendStateData::Wait { due } | SendStateData::Failed { due, .. } => {
            (Some(due.ms()), None, None, None)
        }
        SendStateData::Sending(lease) => (None, Some(lease), None, None),
        SendStateData::Sent { external_msg_id, delivered_at } => {
            (None, None, external_msg_id.as_deref(), Some(delivered_at.ms()))
        }
        _ => (None, None, None, None),
    };
    let from = delivery.sending.state.name();
    // A caller that sets WAIT gives the delivery a new place, unless it has one.
    let keeps_place = match next.state.name() {
        SendState::Sending | SendState::Failed => true,
        SendState::Wait => matches!(from, SendState::Sending | SendState::Failed),
        _ => false,
    };
    let row = params![
        delivery.seq,
        delivery.revision,
        next.state.name().as_str(),
        due,
        next.attempts,
        rows::signed(next.epoch),
        lease.map(|lease| lease.holder.as_str()),
        lease.map(|lease| lease.until.ms()),
        next.first_try.map(Timestamp::ms),
        next.state.failure().map(rows::as_json).transpose()?,
        external,
        now.ms(),
        delivered_at,
        next.outcome_unknown,
        keeps_place,
        next.rate_limited,
    ];
    tx.cache.deliveries.remove(&delivery.id);
    if !rows::update_one(tx.db, UPDATE, row)? {
        return Err(StoreError::Conflict { what: "delivery", revision: delivery.revision });
    }
    tx.effects.counts.delivery(from, -1);
    tx.effects.counts.delivery(next.state.name(), 1);
    if !keeps_place && [SendState::Wait, SendState::Failed, SendState::Sending].contains(&from) {
        let tunnel = contacts::party_id(tx, &delivery.plan.tunnel_did)?;
        if target_queue::promote(tx, QueueTarget::new(tunnel, &delivery.plan))? {
            hint(tx, &delivery.plan.tunnel_did);
        }
    }
    Ok(Delivery { sending: next, revision: delivery.revision + 1, updated_at: now, ..delivery })
}

/// Appends the event of a finished attempt.
fn append_outcome(
    tx: &mut Tx<'_>,
    delivery: &Delivery,
    object: i64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let (kind, mut detail) = match &delivery.sending.state {
        SendStateData::Sent { external_msg_id, .. } => {
            (EventKind::Sent, json!({"external_msg_id": external_msg_id}))
        }
        SendStateData::Failed { due, why } => {
            (EventKind::Failed, json!({"why": why, "next_try_at": due}))
        }
        SendStateData::Uncertain { why } => (EventKind::Uncertain, json!({"why": why})),
        SendStateData::Dead { why } => (EventKind::Dead, json!({"why": why})),
        _ => (EventKind::Marked, json!({})),
    };
    detail["attempt"] = json!(delivery.sending.attempts);
    append_event(tx, kind, delivery, object, detail, now)
}

fn append_event(
    tx: &mut Tx<'_>,
    kind: EventKind,
    delivery: &Delivery,
    object: i64,
    mut detail: Value,
    now: Timestamp,
) -> Result<(), StoreError> {
    detail["target"] = json!(delivery.plan.target_did);
    let owner = contacts::party_id(tx, &delivery.plan.tunnel_did)?;
    let subject =
        EventSubject { object: Some(object), record: Some(delivery.id), owner: Some(owner) };
    events::append(tx, kind, subject, &detail, now)
}

/// Creation time of the oldest delivery that is not sent yet.
pub(super) fn oldest_waiting(db: &Db) -> Result<Option<Timestamp>, StoreError> {
    Ok(oldest_waiting_by_tunnel(db)?.into_iter().map(|(_, at)| at).min())
}

/// Creation time of the oldest delivery of each tunnel that is not sent yet: one seek per tunnel
/// and state. Tunnels without one are left out.
pub(super) fn oldest_waiting_by_tunnel(db: &Db) -> Result<Vec<(String, Timestamp)>, StoreError> {
    let sql = "
        SELECT t.name, min((SELECT d.created_at
                              FROM deliveries d
                             WHERE d.tunnel = t.party AND d.state = s.state
                             ORDER BY d.seq
                             LIMIT 1))
          FROM tunnels t
         CROSS JOIN (SELECT 'WAIT' AS state UNION ALL SELECT 'FAILED'
                      UNION ALL SELECT 'SENDING' UNION ALL SELECT 'HELD') s
         GROUP BY t.name
    ";
    let found: Vec<(String, Option<i64>)> =
        rows::list(db, sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let waiting = found.into_iter().filter_map(|(name, at)| Some((name, at?)));
    Ok(waiting.map(|(name, at)| (name, Timestamp::from_ms(at))).collect())
}

#[async_trait]
impl DeliveryStore for SqlStore {
    async fn send(&self, request: SendRequest, now: Timestamp) -> Result<SendResult, StoreError> {
        let _lock = self.erasing.read().await;
        self.put_large_message(&request.msg).await?;
        let send = move |tx: &mut Tx<'_>| match send::send(tx, &request, now) {
            Err(refused @ StoreError::Refused { .. }) => {
                approvals::append_refusal(tx, &request, &refused, now)?;
                Ok(Err(refused))
            }
            result => result.map(Ok),
        };
        self.writer.run(send).await?
    }

    async fn plan_send(&self, msg: MsgObject) -> Result<Vec<TargetResult>, StoreError> {
        self.read(move |db| {
            let others: Vec<&Did> = msg.to.iter().chain([&msg.from]).collect();
            let book = address_book::read(db, msg.author(), &others, None)?;
            let DeliveryPlans { remote, local } = plan_delivery(&msg, &book)?;
            let result = |target, plan| TargetResult { target, record_id: None, plan };
            let remote = remote.into_iter().map(|plan| result(plan.target_did.clone(), Some(plan)));
            let local = local.into_iter().map(|target| result(target, None));
            Ok(remote.chain(local).collect())
        })
        .await
    }

    async fn lease_delivery(
        &self,
        tunnel: &Did,
        holder: Holder,
        term: LeaseDuration,
        now: Timestamp,
    ) -> Result<Option<LeasedEntry<Delivery>>, StoreError> {
        // Ends when a delivery is undamaged or none is due.
        loop {
            let (tunnel, sender) = (tunnel.clone(), holder.clone());
            let leased = self.writer.run(move |tx| {
                let leased = lease_longest_due(tx, &tunnel, &sender, term, now)?;
                let with_body =
                    |(entry, object)| Ok((entry, objects::body_or_erased(tx.db, object)?));
                leased.map(with_body).transpose()
            });
            let Some((entry, body)) = leased.await? else { return Ok(None) };
            match self.leased_message(body).await {
                Ok(message) => return Ok(Some(LeasedEntry { entry, message })),
                Err(error @ (StoreError::Damaged { .. } | StoreError::Erased { .. })) => {
                    let detail = match error {
                        StoreError::Damaged { detail, .. } => detail,
                        erased => erased.to_string(),
                    };
                    let epoch = Some(entry.sending.epoch);
                    let proof = LeaseProof { epoch, holder: holder.clone() };
                    let retry =
                        JitteredRetry { retry: RetryPolicy::DELIVERY, jitter: Jitter::NONE };
                    let outcome =
                        DeliveryOutcome::Failed(Failure::Permanent { detail, error_code: None });
                    self.report_delivery(entry.id, outcome, proof, retry, now).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn next_due(&self, tunnel: &Did) -> Result<Option<Timestamp>, StoreError> {
        let tunnel = tunnel.clone();
        self.read(move |db| {
            let Some(tunnel) = contacts::find(db, &tunnel)? else { return Ok(None) };
            let due = rows::optional(db, NEXT_READY, [tunnel], |row| row.get(0))?;
            Ok(due.map(Timestamp::from_ms))
        })
        .await
    }

    async fn delivery(&self, id: RecordId) -> Result<Delivery, StoreError> {
        let found = self.read_by_hash(move |db, recent| by_id(db, recent, &id)).await;
        found.map(|(delivery, _)| delivery)
    }

    async fn mark_delivery(
        &self,
        id: RecordId,
        to: SendState,
        proof: LeaseProof,
        revision: Option<i64>,
        now: Timestamp,
    ) -> Result<Delivery, StoreError> {
        self.writer
            .run(move |tx| {
                let (delivery, object) = by_id(tx.db, tx.indexes.hashes.recent(), &id)?;
                rows::check_revision("delivery", revision, delivery.revision)?;
                let is_held = delivery.sending.state.name() == SendState::Held;
                if is_held
                    && to == SendState::Wait
                    && let Some(approval) = approvals::pending_of_object(tx.db, object)?
                {
                    return Err(StoreError::WaitsForApproval(approval));
                }
                mark(tx, delivery, object, to, &proof, now)
            })
            .await
    }

    async fn report_delivery(
        &self,
        id: RecordId,
        outcome: DeliveryOutcome,
        proof: LeaseProof,
        retry: JitteredRetry,
        now: Timestamp,
    ) -> Result<Delivery, StoreError> {
        self.writer
            .run_on(Lookups::of_delivery(id), move |tx| {
                let (delivery, object) = by_id_in_tx(tx, &id)?;
                let capabilities = capabilities(tx, &delivery)?;
                let next = delivery.sending.clone().report(
                    outcome.clone(),
                    &proof,
                    now,
                    &retry.retry,
                    capabilities,
                    retry.jitter,
                )?;
                if next == delivery.sending {
                    return Ok(delivery);
                }
                let mut delivery = update(tx, delivery, next, now)?;
                parts::insert_last(tx, &mut delivery)?;
                append_outcome(tx, &delivery, object, now)?;
                Ok(delivery)
            })
            .await
    }

    async fn record_part(
        &self,
        id: RecordId,
        part: SentPart,
        proof: LeaseProof,
        term: LeaseDuration,
        now: Timestamp,
    ) -> Result<Delivery, StoreError> {
        self.writer
            .run_on(Lookups::of_delivery(id), move |tx| {
                let (delivery, object) = by_id_in_tx(tx, &id)?;
                let next = delivery.sending.clone().part_sent(&proof, now, term)?;
                if delivery.parts.contains(&part) {
                    return Ok(delivery);
                }
                let mut delivery = delivery;
                parts::insert(tx, &mut delivery, part.clone())?;
                let delivery = update(tx, delivery, next, now)?;
                let detail = json!({"part": part.part, "external_msg_id": part.external_msg_id});
                append_event(tx, EventKind::PartSent, &delivery, object, detail, now)?;
                Ok(delivery)
            })
            .await
    }

    async fn postpone_delivery(
        &self,
        id: RecordId,
        until: Timestamp,
        proof: LeaseProof,
        now: Timestamp,
    ) -> Result<Delivery, StoreError> {
        self.writer
            .run_on(Lookups::of_delivery(id), move |tx| {
                let (delivery, object) = by_id_in_tx(tx, &id)?;
                let next = delivery.sending.clone().postpone(until, &proof)?;
                let delivery = update(tx, delivery, next, now)?;
                let detail = json!({"until": until});
                append_event(tx, EventKind::Postponed, &delivery, object, detail, now)?;
                Ok(delivery)
            })
            .await
    }

    async fn bounce_delivery(
        &self,
        id: RecordId,
        why: Failure,
        now: Timestamp,
    ) -> Result<Delivery, StoreError> {
        self.writer
            .run(move |tx| {
                let (delivery, object) = by_id(tx.db, tx.indexes.hashes.recent(), &id)?;
                let from = delivery.sending.state.name();
                let next = delivery.sending.clone().bounce(why.clone());
                if next == delivery.sending {
                    return Ok(delivery);
                }
                let detail = json!({"why": why, "from": from.as_str(), "bounced": true});
                let mut delivery = update(tx, delivery, next, now)?;
                // A retry sends the whole message again.
                parts::remove(tx, &mut delivery)?;
                append_event(tx, EventKind::Dead, &delivery, object, detail, now)?;
                email::forwards::bounce_forward(tx, object, &why, now)?;
                Ok(delivery)
            })
            .await
    }

    async fn deliveries(
        &self,
        tunnel: &Did,
        states: &[SendState],
        page: PageRequest,
    ) -> Result<Page<Delivery>, StoreError> {
        let tunnel = tunnel.clone();
        let states = if states.is_empty() { SendState::ALL.to_vec() } else { states.to_vec() };
        self.read(move |db| {
            let Some(tunnel) = contacts::find(db, &tunnel)? else {
                return Ok(rows::page(Vec::new(), &page));
            };
            let (beyond, order) = rows::direction(&page);
            let sql = format!(
                "SELECT {COLUMNS} FROM {TABLES}
                  WHERE d.tunnel = ?1 AND d.state = ?2 AND d.seq {beyond} ?3
                  ORDER BY d.seq {order}"
            );
            let (start, limit) = (rows::start(&page), page.limit.saturating_add(1));
            let mut entries = Vec::new();
            for state in states {
                let row = params![tunnel, state.as_str(), start];
                let read = |row: &Row<'_>| read(row).map(|delivery| (delivery.seq, delivery));
                entries.extend(rows::list_undamaged(db, "delivery", limit, &sql, row, read)?);
            }
            Ok(rows::page(entries, &page))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::SqliteStore;

    /// A million deliveries that wait must not slow down a lease.
    #[tokio::test]
    async fn leases_and_ends_of_deliveries_use_an_index() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        for (sql, index) in [
            (LONGEST_DUE, "deliveries_ready (tunnel=? AND ready_at<?)"),
            (NEXT_READY, "deliveries_ready (tunnel=? AND ready_at>?)"),
            (target_queue::FIRST, "deliveries_by_target (tunnel=? AND target=? AND place>?)"),
            (EXPIRED, "deliveries_leased (lease_until<?)"),
        ] {
            let plan = store.readers.with(|db| {
                let mut statement =
                    db.as_sqlite().unwrap().prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
                let nothing = vec![rusqlite::types::Null; statement.parameter_count()];
                let nothing = rusqlite::params_from_iter(nothing);
                let rows = statement.query_map(nothing, |row| row.get::<_, String>(3));
                Ok(rows.unwrap().collect::<Result<Vec<_>, _>>().unwrap())
            });
            let plan = plan.unwrap().join("; ");
            assert!(plan.contains(index) && !plan.contains("TEMP B-TREE"), "{sql}\n{plan}");
        }
    }
}
