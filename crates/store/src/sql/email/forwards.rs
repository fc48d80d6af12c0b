//! Follows the forwards of tasks: their letters in the outbound chain, then their deliveries.

use monoco_core::contact::DeliveryPlan;
use monoco_core::delivery::SendState;
use monoco_core::email::task::{
    EmailTask, EmailTaskId, ForwardDelivery, ForwardProgress, TaskProgress, TaskStateData,
};
use monoco_core::lease::Holder;
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::record::{RecordId, RecordKind};
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;

use super::rows::{self, TaskRow};
use super::tasks;
use crate::sql::db::Db;
use crate::sql::deliveries;
use crate::sql::letters::operator;
use crate::sql::rows as sql;
use crate::sql::send::{self, SendProgress};
use crate::sql::writer::Tx;
use crate::{DeadForward, OperatorAction, SettleCounts, StoreError};

/// Forwards that one call reads. Few in tests, so that they reach the limit.
const MAX_FORWARDS_READ: usize = if cfg!(test) { 5 } else { 1_000 };

// Whether a forward is still on its way is found out here, where that costs one seek.
pub(super) const FORWARDING: &str = "
    SELECT seq,
           status = 'in_progress' AND EXISTS (
               SELECT 1 FROM deliveries d
                WHERE d.object = t.forward AND d.state IN ('WAIT', 'SENDING', 'FAILED', 'HELD')),
           due_at
      FROM email_tasks t
     WHERE tunnel = ?1 AND seq > ?2 AND forward IS NOT NULL AND dropped = 0
       AND status IN ('in_progress', 'error')
     ORDER BY seq
     LIMIT ?3
";

pub(super) const DELIVERIES: &str = "
    SELECT plan, state, failure
      FROM deliveries
     WHERE object = ?1
     ORDER BY seq
";

// The messages whose letters became this message.
pub(super) const SOURCES: &str = "
    SELECT object FROM letters WHERE became = ?1 AND object IS NOT NULL ORDER BY seq LIMIT 100
";

pub(super) const OF_FORWARD: &str = "
    SELECT seq FROM email_tasks WHERE forward = ?1 ORDER BY seq LIMIT 100
";

pub(super) const DEAD_FORWARDS: &str = "
    SELECT seq, forward
      FROM email_tasks
     WHERE status = 'error' AND due_at IS NULL AND dropped = 0 AND forward IS NOT NULL
     ORDER BY seq
     LIMIT ?1
";

pub(super) const DEAD_DELIVERIES: &str = "
    SELECT o.hash, d.tag
      FROM deliveries d
      JOIN objects o ON o.seq = d.object
     WHERE d.object = ?1 AND d.state IN ('DEAD', 'UNCERTAIN')
     ORDER BY d.seq
";

/// The next progress of a task.
struct ForwardStep {
    next: TaskProgress,
    /// Whether the DEAD deliveries are sent again.
    retry: bool,
}

/// Returns at most `limit` tasks of a tunnel beyond the task `after` whose forwards have ended or
/// are to be retried, or that are due and damaged. Also returns the task after which the next
/// call continues; 0 at the end.
pub(super) fn changed(
    db: &Db,
    tunnel: i64,
    after: i64,
    limit: usize,
    now: Timestamp,
) -> Result<(Vec<i64>, i64), StoreError> {
    let most = sql::limit(MAX_FORWARDS_READ);
    let read: Vec<(i64, bool, Option<i64>)> =
        sql::list(db, FORWARDING, [tunnel, after, most], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
    let is_last_page = read.len() < MAX_FORWARDS_READ;
    let mut changed = Vec::new();
    let mut last = 0;
    for (seq, on_its_way, due) in read {
        if changed.len() == limit {
            return Ok((changed, last));
        }
        last = seq;
        if on_its_way {
            continue;
        }
        let step = rows::find(db, EmailTaskId(seq)).and_then(|row| step(db, &row, now));
        let is_due = || due.is_some_and(|due| due <= now.ms());
        let step = db.unless_damaged("e-mail task", seq, step)?;
        if step.map_or_else(is_due, |step| step.is_some()) {
            changed.push(seq);
        }
    }
    Ok((changed, if is_last_page { 0 } else { last }))
}

/// Applies the steps of these tasks.
pub(super) fn settle(
    tx: &mut Tx<'_>,
    seqs: &[i64],
    now: Timestamp,
) -> Result<SettleCounts, StoreError> {
    let mut counts = SettleCounts::default();
    for seq in seqs {
        // The forward can have changed since it was read.
        let found = rows::find(tx.db, EmailTaskId(*seq))
            .and_then(|row| Ok(step(tx.db, &row, now)?.map(|step| (row, step))));
        let Some(found) = tx.db.unless_damaged("e-mail task", seq, found)? else {
            tasks::postpone(tx, *seq, now)?;
            continue;
        };
        let Some((row, ForwardStep { next, retry: is_retry })) = found else { continue };
        match &next.state {
            _ if is_retry => counts.retried += 1,
            TaskStateData::Forwarded => counts.forwarded += 1,
            TaskStateData::Error { .. } => counts.failed += 1,
            TaskStateData::Skipped { .. } => counts.skipped += 1,
            _ => {}
        }
        if let (true, Some(object)) = (is_retry, row.forward) {
            retry(tx, &row.task, object, false, now)?;
        }
        rows::save(tx, row, next, false, now)?;
    }
    Ok(counts)
}

/// Decides what follows for a task with a forward; `None` when nothing changes.
fn step(db: &Db, row: &TaskRow, now: Timestamp) -> Result<Option<ForwardStep>, StoreError> {
    let progress = &row.task.progress;
    let Some(object) = row.forward else { return Ok(None) };
    // Only while the task waits for its forward.
    let Ok(next) = progress.clone().settle(&forward_progress(db, object)?, now) else {
        return Ok(None);
    };
    if next != *progress {
        return Ok(Some(ForwardStep { next, retry: false }));
    }
    let resumed = progress.clone().resume(now).ok();
    Ok(resumed.map(|next| ForwardStep { next, retry: true }))
}

fn forward_progress(db: &Db, object: i64) -> Result<ForwardProgress, StoreError> {
    let object = match send::follow(db, object)? {
        SendProgress::InChain | SendProgress::Held => return Ok(ForwardProgress::InChain),
        SendProgress::Trashed { why, .. } => return Ok(ForwardProgress::LetterTrashed { why }),
        SendProgress::Dead { why, .. } | SendProgress::Rejected { why } => {
            return Ok(ForwardProgress::LetterDead { why });
        }
        SendProgress::Queued(object) => object,
    };
    let deliveries = sql::list(db, DELIVERIES, [object], |row| {
        let (plan, state): (String, String) = (row.get(0)?, row.get(1)?);
        let plan: DeliveryPlan =
            serde_json::from_str(&plan).map_err(|_| sql::damaged(0, "invalid plan"))?;
        let failure: Option<String> = row.get(2)?;
        let failure = failure.and_then(|text| serde_json::from_str::<Failure>(&text).ok());
        Ok(ForwardDelivery {
            target: plan.target_did,
            state: SendState::parse(&state).ok_or_else(|| sql::damaged(1, "unknown state"))?,
            why: failure.map(|failure| failure.detail().to_owned()),
        })
    })?;
    Ok(ForwardProgress::Queued(deliveries))
}

/// Lists what else is dead of the forwards of dead tasks.
pub(super) fn dead(db: &Db, limit: usize) -> Result<Vec<DeadForward>, StoreError> {
    let tasks: Vec<(i64, i64)> =
        sql::list(db, DEAD_FORWARDS, [sql::limit(limit)], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut dead = Vec::new();
    for (task, object) in tasks {
        let followed = send::follow(db, object);
        let Some(progress) = db.unless_damaged("e-mail task", task, followed)? else { continue };
        let (deliveries, letter) = match progress {
            SendProgress::InChain
            | SendProgress::Trashed { .. }
            | SendProgress::Held
            | SendProgress::Rejected { .. } => continue,
            SendProgress::Dead { letter, .. } => (Vec::new(), Some(letter)),
            SendProgress::Queued(object) => (dead_deliveries(db, object)?, None),
        };
        if letter.is_some() || !deliveries.is_empty() {
            dead.push(DeadForward { task: EmailTaskId(task), deliveries, letter });
        }
    }
    Ok(dead)
}

fn dead_deliveries(db: &Db, object: i64) -> Result<Vec<RecordId>, StoreError> {
    sql::list(db, DEAD_DELIVERIES, [object], |row| {
        let msg = ObjId::from_parts(ObjKind::Msg, row.get(0)?);
        Ok(RecordId::from_tag(RecordKind::Delivery, &msg, row.get(1)?))
    })
}

/// Sets the task of a forward to error when one of its deliveries has bounced. `object` is the
/// message that was delivered; a chain can have made it from the forward.
pub(in crate::sql) fn bounce_forward(
    tx: &mut Tx<'_>,
    object: i64,
    failure: &Failure,
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut forwards = sql::numbers(tx.db, SOURCES, [object])?;
    forwards.push(object);
    for forward in forwards {
        for seq in sql::numbers(tx.db, OF_FORWARD, [forward])? {
            let row = rows::find(tx.db, EmailTaskId(seq));
            let Some(row) = tx.db.unless_damaged("e-mail task", seq, row)? else { continue };
            if let Ok(next) = row.task.progress.clone().bounce(failure) {
                rows::save(tx, row, next, false, now)?;
            }
        }
    }
    Ok(())
}

/// Sends the DEAD deliveries of a forward again, or its dead letter. An operator also restores a
/// trashed letter. UNCERTAIN deliveries stay.
pub(super) fn retry(
    tx: &mut Tx<'_>,
    task: &EmailTask,
    object: i64,
    by_operator: bool,
    now: Timestamp,
) -> Result<(), StoreError> {
    match send::follow(tx.db, object)? {
        SendProgress::InChain | SendProgress::Held | SendProgress::Rejected { .. } => Ok(()),
        SendProgress::Trashed { letter, .. } if by_operator => {
            operator::apply(tx, letter, &OperatorAction::Restore, now)
        }
        SendProgress::Trashed { .. } => Ok(()),
        SendProgress::Dead { letter, .. } => {
            operator::apply(tx, letter, &OperatorAction::Retry, now)
        }
        SendProgress::Queued(object) => {
            let by = Holder::new(task.id.to_string()).unwrap_or_else(|_| Holder::anonymous());
            deliveries::retry_dead(tx, object, &by, now)
        }
    }
}
