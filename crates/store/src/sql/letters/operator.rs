//! Actions of operators on letters, and recalls, releases and purges.

use monoco_core::event::EventKind;
use monoco_core::letter::{LetterId, LetterState, WorkerName};
use monoco_core::time::Timestamp;
use serde_json::json;

use super::rows::{self, LetterHead};
use crate::sql::db::params;
use crate::sql::events::{self, EventSubject};
use crate::sql::writer::Tx;
use crate::sql::{counts, rows as sql};
use crate::{OperatorAction, StoreError, StoreResult};

const WAITING_FOR: &str = "
    SELECT seq
      FROM letters
     WHERE state = 'WAITING' AND worker = ?1
     ORDER BY due_at, seq
     LIMIT ?2
";

pub(super) const AWAY_AT: &str = "
    SELECT seq
      FROM letters
     WHERE state = 'AWAY' AND worker = ?1
     ORDER BY until, seq
     LIMIT ?2
";

pub(super) const HELD_BY: &str = "
    SELECT seq
      FROM letters
     WHERE held_by = ?1
     ORDER BY hold_key, seq
     LIMIT ?2
";

// The newest letter stays, so that no number is used twice. The letter of an open draft stays,
// because the result of the draft depends on it; so does that of the forward of an open task.
pub(super) const ENDED: &str = "
    SELECT seq
      FROM letters l
     WHERE day IS NOT NULL AND state = ?1 AND day <= ?2
       AND seq < (SELECT max(seq) FROM letters)
       AND NOT EXISTS (SELECT 1 FROM drafts d WHERE d.object = l.object AND d.open = 1)
       AND NOT EXISTS (SELECT 1 FROM email_tasks t
                        WHERE t.forward = l.object AND t.day IS NULL)
     ORDER BY day, seq
     LIMIT ?3
";

/// Applies an operator's action to a letter.
pub(in crate::sql) fn apply(
    tx: &mut Tx<'_>,
    id: LetterId,
    action: &OperatorAction,
    now: Timestamp,
) -> StoreResult<()> {
    let before = rows::find(tx.db, id)?;
    if let Some(at) = before.erased_at {
        return Err(StoreError::Erased { key: id.to_string(), at, by: None });
    }
    let (mut after, status) = (before.clone(), before.status.clone());
    match action {
        // The letter keeps its worker, and a worker that holds it goes on holding it.
        OperatorAction::Retry => after.status = status.retry(now)?,
        OperatorAction::Trash { why } => after.finish(status.trash(why.clone())?),
        OperatorAction::Restore => after.finish(status.restore(now)?),
        OperatorAction::Replay => {
            let waiting = match status.standing.name() {
                LetterState::Dead => status.retry(now),
                _ => status.restore(now),
            };
            after.finish(waiting?);
            after.verdicts.clear();
            sql::execute(tx.db, "DELETE FROM letter_changes WHERE letter = ?1", [id.seq])?;
        }
    }
    rows::save(tx, &before, &after, now)?;
    let mut detail = json!({"letter": id, "to": after.status.standing.name().as_str()});
    match action {
        OperatorAction::Trash { why } => detail["why"] = json!(why),
        OperatorAction::Replay => detail["replayed"] = json!(true),
        OperatorAction::Retry | OperatorAction::Restore => {}
    }
    let subject = EventSubject { object: before.object, ..EventSubject::default() };
    events::append(tx, EventKind::Marked, subject, &detail, now)
}

/// Sets a letter with a damaged text to DEAD, unless it has changed meanwhile.
pub(super) fn mark_damaged(
    tx: &mut Tx<'_>,
    id: LetterId,
    revision: i64,
    why: &str,
    now: Timestamp,
) -> StoreResult<()> {
    let before = rows::find(tx.db, id)?;
    if before.revision != revision {
        return Ok(());
    }
    let mut after = before.clone();
    after.finish(before.status.clone().mark_dead(why.to_owned())?);
    rows::save(tx, &before, &after, now)?;
    let subject = EventSubject { object: before.object, ..EventSubject::default() };
    let detail = json!({"letter": id, "why": why, "state": LetterState::Dead.as_str()});
    events::append(tx, EventKind::Damaged, subject, &detail, now)
}

/// Returns letters of workers other than these to the dispatcher. Damaged letters stay, and do not
/// count.
pub(super) fn recall(
    tx: &mut Tx<'_>,
    workers: &[WorkerName],
    limit: usize,
    now: Timestamp,
) -> StoreResult<usize> {
    let mut recalled = 0;
    for worker in counts::letters(tx.db)?.waiting.into_keys() {
        if worker.is_empty() || workers.iter().any(|known| known.as_str() == worker) {
            continue;
        }
        for select in [WAITING_FOR, AWAY_AT] {
            let left = sql::limit(limit - recalled);
            for seq in sql::numbers(tx.db, select, params![worker, left])? {
                recalled += usize::from(return_to_dispatcher(tx, seq, now)?);
            }
        }
    }
    Ok(recalled)
}

/// Returns letters that a built-in worker holds to the dispatcher, and deletes the worker's
/// reservations.
pub(super) fn recall_held(
    tx: &mut Tx<'_>,
    by: &WorkerName,
    limit: usize,
    now: Timestamp,
) -> StoreResult<usize> {
    let found = sql::numbers(tx.db, HELD_BY, params![by.as_str(), sql::limit(limit)])?;
    let mut recalled = 0;
    for seq in found {
        recalled += usize::from(return_to_dispatcher(tx, seq, now)?);
    }
    // All keys that start with the name and a colon; the next character is a semicolon.
    let delete = "DELETE FROM reservations WHERE key >= ?1 AND key < ?2";
    sql::execute(tx.db, delete, [format!("{by}:"), format!("{by};")])?;
    Ok(recalled)
}

/// Returns whether the letter is not damaged.
fn return_to_dispatcher(tx: &mut Tx<'_>, seq: i64, now: Timestamp) -> StoreResult<bool> {
    let Some(before) = undamaged(tx, seq)? else { return Ok(false) };
    let mut after = before.clone();
    after.finish(before.status.clone().continue_chain(now)?);
    rows::save(tx, &before, &after, now)?;
    Ok(true)
}

/// Returns the letter with a number; `None` when it is damaged.
fn undamaged(tx: &Tx<'_>, seq: i64) -> StoreResult<Option<LetterHead>> {
    Ok(tx.db.unless_damaged("letter", seq, rows::by_seq(tx.db, seq))?.flatten())
}

/// Queues letters that an external worker has for another attempt. Damaged letters stay, and do not
/// count.
pub(super) fn release(
    tx: &mut Tx<'_>,
    worker: &WorkerName,
    limit: usize,
    now: Timestamp,
) -> StoreResult<usize> {
    let found = sql::numbers(tx.db, AWAY_AT, params![worker.as_str(), sql::limit(limit)])?;
    let mut released = 0;
    for seq in found {
        let Some(before) = undamaged(tx, seq)? else { continue };
        let why = "the courier stopped before the worker answered";
        let after = LetterHead {
            // Counted as an attempt, so that a letter that stops the courier each time is not
            // tried without end.
            status: before.status.clone().return_to_queue(now, true)?,
            failure: Some(why.to_owned()),
            ..before.clone()
        };
        rows::save(tx, &before, &after, now)?;
        released += 1;
    }
    Ok(released)
}

/// Deletes letters that ended on these retention days or before, also damaged ones.
pub(super) fn purge(tx: &mut Tx<'_>, trashed: i64, done: i64, limit: usize) -> StoreResult<usize> {
    let mut purged = 0;
    for (state, day) in
        [(LetterState::Trashed, trashed), (LetterState::Done, done), (LetterState::Merged, done)]
    {
        let left = sql::limit(limit - purged);
        for seq in sql::numbers(tx.db, ENDED, params![state.as_str(), day, left])? {
            rows::delete(tx, seq, state)?;
            purged += 1;
        }
    }
    Ok(purged)
}
