//! Deliveries: one object on its way to one target through one tunnel.

use monoco_core::contact::DeliveryPlan;
use monoco_core::delivery::{
    Delivery, DeliveryOutcome, SendState, SendStateData, SendStatus, TunnelCapabilities,
};
use monoco_core::did::Did;
use monoco_core::event::EventKind;
use monoco_core::lease::{Holder, Lease, LeaseDuration, LeaseProof};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::record::{BoxKind, RecordId, RecordKind};
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::{Value, json};

use super::bulk_index::RecentEntries;
use super::contacts::{self, parsed};
use super::events::{self, EventSubject};
use super::objects;
use super::open::fault;
use super::records::LeaseEndCause;
use super::rows;
use super::writer::Tx;
use crate::{BoxHint, JitteredRetry, Page, PageRequest, StoreError};

const COLUMNS: &str = "
    d.seq, o.hash, d.tag, d.plan, a.did, d.state, d.due_at, d.attempts, d.epoch, d.revision,
    d.holder, d.lease_until, d.first_try, d.failure, d.external_msg_id, d.created_at,
    d.updated_at, d.object
";

const TABLES: &str = "
    deliveries d
      JOIN objects o ON o.seq = d.object
      JOIN parties a ON a.id = d.author
";

const INSERT: &str = "
    INSERT INTO deliveries (object, tag, tunnel, author, plan, state, due_at, attempts, epoch,
                            revision, created_at, updated_at)
    VALUES (?1, ?2, ?3, ?4, ?5, 'WAIT', ?6, 0, 0, 0, ?7, ?7)
";

// One seek, however many wait for a later time: the due time leads.
const LONGEST_DUE: &str = "
    SELECT seq
      FROM deliveries
     WHERE tunnel = ?1 AND state IN ('WAIT', 'FAILED') AND due_at <= ?2
     ORDER BY due_at, seq
     LIMIT 1
";

const SWAP: &str = "
    UPDATE deliveries
       SET state = ?3, due_at = ?4, attempts = ?5, epoch = ?6, holder = ?7, lease_until = ?8,
           first_try = ?9, failure = ?10, external_msg_id = ?11, updated_at = ?12,
           revision = revision + 1
     WHERE seq = ?1 AND revision = ?2
";

const ENDED: &str = "
    SELECT seq
      FROM deliveries
     WHERE state = 'SENDING' AND lease_until <= ?1
     ORDER BY lease_until
     LIMIT ?2
";

const HELD_BY: &str = "
    SELECT seq
      FROM deliveries
     WHERE state = 'SENDING' AND substr(holder, 1, length(?1)) = ?1
     LIMIT ?2
";

/// Puts a message on its way to one target.
pub(super) fn insert(
    tx: &mut Tx<'_>,
    object: i64,
    msg_id: &ObjId,
    author: i64,
    plan: &DeliveryPlan,
    due: Timestamp,
    now: Timestamp,
) -> Result<RecordId, StoreError> {
    let id = RecordId::delivery(&plan.tunnel_did, &plan.target_did, msg_id);
    let tunnel = contacts::row_of(tx, &plan.tunnel_did)?;
    let row = params![object, id.tag(), tunnel, author, rows::as_json(plan)?, due.ms(), now.ms()];
    tx.db.prepare_cached(INSERT).and_then(|mut s| s.insert(row)).map_err(fault)?;
    tx.news.tally.delivery(SendState::Wait, 1);
    hint(tx, &plan.tunnel_did);
    Ok(id)
}

fn hint(tx: &mut Tx<'_>, tunnel: &Did) {
    tx.news.hints.insert(BoxHint { owner: tunnel.clone(), box_kind: BoxKind::TunnelOutbox });
}

/// A delivery.
fn read(row: &Row<'_>) -> rusqlite::Result<Delivery> {
    let msg_id = ObjId::from_parts(ObjKind::Msg, row.get(1)?);
    let plan: String = row.get(3)?;
    let state: String = row.get(5)?;
    let due = row.get::<_, Option<i64>>(6)?.map(Timestamp::from_ms);
    let lease = match (row.get::<_, Option<String>>(10)?, row.get::<_, Option<i64>>(11)?) {
        (Some(holder), Some(until)) => Holder::new(holder)
            .ok()
            .map(|holder| Lease { holder, until: Timestamp::from_ms(until) }),
        _ => None,
    };
    let why: Option<Failure> =
        row.get::<_, Option<String>>(13)?.and_then(|text| serde_json::from_str(&text).ok());
    let state = match (SendState::parse(&state), due, lease, why) {
        (Some(SendState::Wait), Some(due), None, None) => SendStateData::Wait { due },
        (Some(SendState::Sending), None, Some(lease), None) => SendStateData::Sending(lease),
        (Some(SendState::Sent), None, None, None) => {
            SendStateData::Sent { external_msg_id: row.get(14)? }
        }
        (Some(SendState::Failed), Some(due), None, Some(why)) => SendStateData::Failed { due, why },
        (Some(SendState::Dead), None, None, Some(why)) => SendStateData::Dead { why },
        (Some(SendState::Uncertain), None, None, Some(why)) => SendStateData::Uncertain { why },
        (Some(SendState::Held), None, None, None) => SendStateData::Held,
        (Some(SendState::Archived), None, None, None) => SendStateData::Archived,
        (Some(SendState::Deleted), None, None, None) => SendStateData::Deleted,
        _ => return Err(rows::damaged(5, "the state and its details do not belong together")),
    };
    Ok(Delivery {
        id: RecordId::from_tag(RecordKind::Delivery, &msg_id, row.get(2)?),
        seq: row.get(0)?,
        msg_id,
        plan: serde_json::from_str(&plan).map_err(|_| rows::damaged(3, "unreadable plan"))?,
        author: parsed(row, 4)?,
        sending: SendStatus {
            state,
            attempts: row.get(7)?,
            epoch: rows::unsigned(row, 8)?,
            first_try: row.get::<_, Option<i64>>(12)?.map(Timestamp::from_ms),
        },
        revision: row.get(9)?,
        created_at: Timestamp::from_ms(row.get(15)?),
        updated_at: Timestamp::from_ms(row.get(16)?),
    })
}

fn by_seq(db: &Connection, seq: i64) -> Result<(Delivery, i64), StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE d.seq = ?1");
    let mut statement = db.prepare_cached(&sql).map_err(fault)?;
    statement.query_row([seq], |row| Ok((read(row)?, row.get(17)?))).map_err(fault)
}

/// A delivery by its name, with the row of its object.
pub(super) fn by_id(
    db: &Connection,
    recent: &RecentEntries,
    id: &RecordId,
) -> Result<(Delivery, i64), StoreError> {
    let missing = || StoreError::Missing { what: "delivery", key: id.to_string() };
    let object = objects::by_prefix(db, recent, id.msg_prefix())?.ok_or_else(missing)?;
    let sql = "SELECT seq FROM deliveries WHERE object = ?1 AND tag = ?2";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let seq = statement.query_row(params![object, id.tag()], |row| row.get(0)).optional();
    by_seq(db, seq.map_err(fault)?.ok_or_else(missing)?)
}

/// The first deliveries of a message.
pub(super) fn of_object(
    db: &Connection,
    object: i64,
    limit: usize,
) -> Result<Vec<Delivery>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE d.object = ?1 ORDER BY d.seq LIMIT ?2");
    let mut statement = db.prepare_cached(&sql).map_err(fault)?;
    let rows = statement.query_map(params![object, rows::limit(limit)], read).map_err(fault)?;
    rows.collect::<rusqlite::Result<_>>().map_err(fault)
}

/// Takes the delivery that has been due the longest.
pub(super) fn take(
    tx: &mut Tx<'_>,
    tunnel: &Did,
    holder: &Holder,
    term: LeaseDuration,
    now: Timestamp,
) -> Result<Option<(Delivery, i64)>, StoreError> {
    let Some(tunnel) = contacts::peek(tx, tunnel)? else { return Ok(None) };
    let seq: Option<i64> = tx
        .db
        .prepare_cached(LONGEST_DUE)
        .and_then(|mut s| s.query_row(params![tunnel, now.ms()], |row| row.get(0)).optional())
        .map_err(fault)?;
    let Some(seq) = seq else { return Ok(None) };
    let (delivery, object) = by_seq(tx.db, seq)?;
    let next = delivery.sending.clone().lease(holder.clone(), now, term)?;
    let detail = json!({"by": holder, "attempt": next.attempts, "epoch": next.epoch});
    let delivery = swap(tx, delivery, next, now)?;
    log(tx, EventKind::Sending, &delivery, object, detail, now)?;
    Ok(Some((delivery, object)))
}

/// Files what came of a try.
pub(super) fn settle(
    tx: &mut Tx<'_>,
    id: &RecordId,
    outcome: &DeliveryOutcome,
    guard: &LeaseProof,
    again: JitteredRetry,
    now: Timestamp,
) -> Result<Delivery, StoreError> {
    let (delivery, object) = by_id(tx.db, tx.indexes.hashes.recent(), id)?;
    let manner = manner(tx.db, &delivery)?;
    let next = delivery.sending.clone().report(
        outcome.clone(),
        guard,
        now,
        &again.retry,
        manner,
        again.jitter,
    )?;
    if next == delivery.sending {
        return Ok(delivery);
    }
    let delivery = swap(tx, delivery, next, now)?;
    log_outcome(tx, &delivery, object, now)?;
    Ok(delivery)
}

/// Moves a delivery by hand.
pub(super) fn mark(
    tx: &mut Tx<'_>,
    id: &RecordId,
    to: SendState,
    guard: &LeaseProof,
    revision: Option<i64>,
    now: Timestamp,
) -> Result<Delivery, StoreError> {
    let (delivery, object) = by_id(tx.db, tx.indexes.hashes.recent(), id)?;
    rows::check_revision("delivery", revision, delivery.revision)?;
    let from = delivery.sending.state.name();
    let next = delivery.sending.clone().mark(to, guard, now)?;
    if next == delivery.sending {
        return Ok(delivery);
    }
    let detail = json!({"from": from.as_str(), "to": to.as_str(), "by": guard.holder});
    let delivery = swap(tx, delivery, next, now)?;
    log(tx, EventKind::Marked, &delivery, object, detail, now)?;
    if to == SendState::Wait {
        hint(tx, &delivery.plan.tunnel_did.clone());
    }
    Ok(delivery)
}

/// Moves on deliveries nobody reported on.
pub(super) fn sweep(
    tx: &mut Tx<'_>,
    ended: LeaseEndCause<'_>,
    again: JitteredRetry,
    limit: usize,
    now: Timestamp,
) -> Result<usize, StoreError> {
    let rows = match ended {
        LeaseEndCause::ByTime => rows::seqs(tx.db, ENDED, params![now.ms(), rows::limit(limit)])?,
        LeaseEndCause::ByHolder(prefix) => {
            rows::seqs(tx.db, HELD_BY, params![prefix, rows::limit(limit)])?
        }
    };
    for seq in &rows {
        let (mut delivery, object) = by_seq(tx.db, *seq)?;
        if let (LeaseEndCause::ByHolder(_), SendStateData::Sending(lease)) =
            (ended, &mut delivery.sending.state)
        {
            lease.until = lease.until.min(now);
        }
        let manner = manner(tx.db, &delivery)?;
        let next = delivery.sending.clone().expire(now, &again.retry, manner, again.jitter)?;
        let delivery = swap(tx, delivery, next, now)?;
        log_outcome(tx, &delivery, object, now)?;
    }
    Ok(rows.len())
}

/// A tunnel that is gone takes no key, as far as anybody knows.
fn manner(db: &Connection, delivery: &Delivery) -> Result<TunnelCapabilities, StoreError> {
    let tunnel = match delivery.plan.tunnel_did.tunnel() {
        Some(id) => contacts::tunnel(db, &id)?,
        None => None,
    };
    Ok(TunnelCapabilities { idempotent: tunnel.is_some_and(|tunnel| tunnel.idempotent) })
}

fn swap(
    tx: &mut Tx<'_>,
    delivery: Delivery,
    next: SendStatus,
    now: Timestamp,
) -> Result<Delivery, StoreError> {
    let (due, lease, external) = match &next.state {
        SendStateData::Wait { due } | SendStateData::Failed { due, .. } => {
            (Some(due.ms()), None, None)
        }
        SendStateData::Sending(lease) => (None, Some(lease), None),
        SendStateData::Sent { external_msg_id } => (None, None, external_msg_id.as_deref()),
        _ => (None, None, None),
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
    ];
    let changed = tx.db.prepare_cached(SWAP).and_then(|mut s| s.execute(row)).map_err(fault)?;
    if changed != 1 {
        return Err(StoreError::Conflict { what: "delivery", revision: delivery.revision });
    }
    tx.news.tally.delivery(delivery.sending.state.name(), -1);
    tx.news.tally.delivery(next.state.name(), 1);
    Ok(Delivery { sending: next, revision: delivery.revision + 1, updated_at: now, ..delivery })
}

/// Says what came of a try, in the words of its end.
fn log_outcome(
    tx: &mut Tx<'_>,
    delivery: &Delivery,
    object: i64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let (kind, mut detail) = match &delivery.sending.state {
        SendStateData::Sent { external_msg_id } => {
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
    log(tx, kind, delivery, object, detail, now)
}

fn log(
    tx: &mut Tx<'_>,
    kind: EventKind,
    delivery: &Delivery,
    object: i64,
    mut detail: Value,
    now: Timestamp,
) -> Result<(), StoreError> {
    detail["target"] = json!(delivery.plan.target_did);
    let owner = contacts::row_of(tx, &delivery.plan.tunnel_did)?;
    let about =
        EventSubject { object: Some(object), record: Some(delivery.id), owner: Some(owner) };
    events::append(tx, kind, about, &detail, now)
}

/// Deliveries of one tunnel, of some states, in order.
pub(super) fn list(
    db: &Connection,
    tunnel: &Did,
    states: &[SendState],
    window: &PageRequest,
) -> Result<Page<Delivery>, StoreError> {
    let Some(tunnel) = contacts::find(db, tunnel)? else {
        return Ok(rows::cut(Vec::new(), window));
    };
    let (beyond, order) = rows::range(window);
    let sql = format!(
        "SELECT {COLUMNS} FROM {TABLES}
          WHERE d.tunnel = ?1 AND d.state = ?2 AND d.seq {beyond} ?3
          ORDER BY d.seq {order}
          LIMIT ?4"
    );
    let mut statement = db.prepare_cached(&sql).map_err(fault)?;
    let mut entries = Vec::new();
    for state in states {
        let row = params![tunnel, state.as_str(), rows::start(window), rows::count(window) + 1];
        for delivery in statement.query_map(row, read).map_err(fault)? {
            let delivery = delivery.map_err(fault)?;
            entries.push((delivery.seq, delivery));
        }
    }
    Ok(rows::cut(entries, window))
}

/// When the next delivery of a tunnel is due.
pub(super) fn next_due(db: &Connection, tunnel: &Did) -> Result<Option<Timestamp>, StoreError> {
    let Some(tunnel) = contacts::find(db, tunnel)? else { return Ok(None) };
    let sql = "
        SELECT due_at
          FROM deliveries
         WHERE tunnel = ?1 AND state IN ('WAIT', 'FAILED')
         ORDER BY due_at
         LIMIT 1
    ";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let due = statement.query_row([tunnel], |row| row.get(0)).optional().map_err(fault)?;
    Ok(due.map(Timestamp::from_ms))
}

/// When the oldest delivery was posted that is not yet sent: one seek for each
/// tunnel and state.
pub(super) fn oldest_waiting(db: &Connection) -> Result<Option<Timestamp>, StoreError> {
    let sql = "
        SELECT min((SELECT d.created_at
                      FROM deliveries d
                     WHERE d.tunnel = t.party AND d.state = s.state
                     ORDER BY d.seq
                     LIMIT 1))
          FROM tunnels t
         CROSS JOIN (SELECT 'WAIT' AS state UNION ALL SELECT 'FAILED'
                      UNION ALL SELECT 'SENDING' UNION ALL SELECT 'HELD') s
    ";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let oldest: Option<i64> = statement.query_row([], |row| row.get(0)).map_err(fault)?;
    Ok(oldest.map(Timestamp::from_ms))
}
