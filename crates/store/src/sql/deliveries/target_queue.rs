//! The order of the deliveries to one target: one at a time, in the order in which they became
//! due.
//!
//! A delivery that is due has a place among those of its target. Only the first one has a time at
//! which it can be leased, so that the index of the leasable deliveries has no other. The first
//! one stays the first while it is sent and retried. When it ends, the next one becomes leasable in
//! the same transaction. A delivery that is scheduled for later has no place, and takes one when
//! it is due.

use monoco_core::contact::DeliveryPlan;
use monoco_core::delivery::SendState;
use monoco_core::time::Timestamp;

use crate::StoreError;
use crate::sql::db::{Db, params};
use crate::sql::writer::Tx;
use crate::sql::{external_ids, rows};

pub(super) const FIRST: &str = "
    SELECT seq, place, first_try IS NOT NULL, ready_at, state, due_at
      FROM deliveries
     WHERE tunnel = ?1 AND target = ?2 AND place IS NOT NULL
     ORDER BY place, seq
     LIMIT 1
";

const PUT: &str = "UPDATE deliveries SET place = ?2, ready_at = ?3 WHERE seq = ?1";

/// The place of a delivery that no other can precede.
const FRONT: i64 = i64::MIN;

/// The target of a delivery: the row of its tunnel, and the key of kind and address.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueTarget {
    pub(super) tunnel: i64,
    pub(super) key: i64,
}

impl QueueTarget {
    pub(super) fn new(tunnel: i64, plan: &DeliveryPlan) -> Self {
        let key = external_ids::hash_prefix(&format!("{}\0{}", plan.kind, plan.address));
        Self { tunnel, key }
    }
}

/// The first delivery of a target.
struct FirstDelivery {
    seq: i64,
    place: i64,
    is_attempted: bool,
    ready_at: Option<i64>,
    state: String,
    due_at: Option<i64>,
}

fn first(db: &Db, target: QueueTarget) -> Result<Option<FirstDelivery>, StoreError> {
    rows::optional(db, FIRST, params![target.tunnel, target.key], |row| {
        Ok(FirstDelivery {
            seq: row.get(0)?,
            place: row.get(1)?,
            is_attempted: row.get(2)?,
            ready_at: row.get(3)?,
            state: row.get(4)?,
            due_at: row.get(5)?,
        })
    })
}

/// Tells whether a delivery of the target is due, leased or retried.
pub(super) fn is_busy(db: &Db, target: QueueTarget) -> Result<bool, StoreError> {
    Ok(first(db, target)?.is_some())
}

/// Gives a delivery in WAIT, which is due, its place. Returns `true` when it is the first one.
pub(super) fn join(
    tx: &Tx<'_>,
    target: QueueTarget,
    seq: i64,
    due: Timestamp,
) -> Result<bool, StoreError> {
    let due = due.ms();
    let put = |seq: i64, place: i64, ready: Option<i64>| {
        rows::execute(tx.db, PUT, params![seq, place, ready])
    };
    let is_first = match first(tx.db, target)? {
        None => true,
        Some(first) if (first.place, first.seq) < (due, seq) => false,
        Some(first) if first.is_attempted => {
            put(first.seq, FRONT, first.ready_at)?;
            false
        }
        Some(first) => {
            put(first.seq, first.place, None)?;
            true
        }
    };
    put(seq, due, is_first.then_some(due))?;
    Ok(is_first)
}

/// Schedules a delivery in WAIT that has no place: it takes one when it is due.
pub(super) fn schedule(tx: &Tx<'_>, seq: i64, due: Timestamp) -> Result<(), StoreError> {
    rows::execute(tx.db, PUT, params![seq, None::<i64>, due.ms()])?;
    Ok(())
}

/// Makes the first delivery of a target leasable, after the one before it has ended.
/// Returns `true` when there is one.
pub(super) fn promote(tx: &Tx<'_>, target: QueueTarget) -> Result<bool, StoreError> {
    let Some(first) = first(tx.db, target)? else { return Ok(false) };
    if first.ready_at.is_some() || first.state == SendState::Sending.as_str() {
        return Ok(false);
    }
    let ready = first.due_at.unwrap_or_default();
    rows::execute(tx.db, PUT, params![first.seq, first.place, ready])?;
    Ok(true)
}

/// Takes a damaged delivery out of the way of those behind it, until it is read again.
pub(super) fn set_aside(tx: &Tx<'_>, seq: i64, until: Timestamp) -> Result<(), StoreError> {
    let sql = "SELECT tunnel, target FROM deliveries WHERE seq = ?1";
    let target = rows::one(tx.db, sql, [seq], |row| {
        Ok(QueueTarget { tunnel: row.get(0)?, key: row.get(1)? })
    })?;
    rows::execute(tx.db, PUT, params![seq, None::<i64>, until.ms()])?;
    promote(tx, target)?;
    Ok(())
}
