//! Letters that are moved by hand, taken back from workers, or forgotten.

use monoco_core::event::EventKind;
use monoco_core::letter::{LetterId, LetterState, WorkerName};
use monoco_core::rate_limit::ReservedUntil;
use monoco_core::time::Timestamp;
use rusqlite::{Connection, params};
use serde_json::json;

use super::rows::{self, LetterHead};
use crate::sqlite::counts;
use crate::sqlite::events::{self, EventSubject};
use crate::sqlite::open::fault;
use crate::sqlite::rows::{limit as most, seqs};
use crate::sqlite::writer::Tx;
use crate::{OperatorAction, StoreError};

const AT_DESK: &str = "
    SELECT seq
      FROM letters
     WHERE state = 'WAITING' AND desk = ?1
     ORDER BY due_at, seq
     LIMIT ?2
";

pub(super) const AWAY_AT: &str = "
    SELECT seq
      FROM letters
     WHERE state = 'AWAY' AND desk = ?1
     ORDER BY until, seq
     LIMIT ?2
";

pub(super) const KEPT_BY: &str = "
    SELECT seq
      FROM letters
     WHERE kept_by = ?1
     ORDER BY keep_key, seq
     LIMIT ?2
";

// The newest stays, so that no number is given twice. One that a draft was stays while
// somebody waits to hear of that.
pub(super) const ENDED: &str = "
    SELECT seq
      FROM letters l
     WHERE day IS NOT NULL AND state = ?1 AND day <= ?2
       AND seq < (SELECT max(seq) FROM letters)
       AND NOT EXISTS (SELECT 1 FROM drafts d WHERE d.object = l.object AND d.open = 1)
     ORDER BY day, seq
     LIMIT ?3
";

const BOOKED: &str = "
    SELECT key, booked
      FROM bookings
     WHERE key > ?1
     ORDER BY key
     LIMIT ?2
";

/// Moves a letter by hand.
pub(super) fn move_letter(
    tx: &mut Tx<'_>,
    id: LetterId,
    how: &OperatorAction,
    now: Timestamp,
) -> Result<(), StoreError> {
    let before = rows::find(tx.db, id)?;
    let (mut after, journey) = (before.clone(), before.journey.clone());
    match how {
        // It stays where it waits or failed, and whoever keeps it goes on keeping it.
        OperatorAction::Retry => after.journey = journey.retry(now)?,
        OperatorAction::Trash { why } => after.rest(journey.trash(why.clone())?),
        OperatorAction::Restore => after.rest(journey.restore(now)?),
        OperatorAction::Replay => {
            let again = match journey.standing.name() {
                LetterState::Dead => journey.retry(now),
                _ => journey.restore(now),
            };
            after.rest(again?);
            after.had.clear();
            let sql = "DELETE FROM letter_changes WHERE letter = ?1";
            tx.db.prepare_cached(sql).and_then(|mut s| s.execute([id.seq])).map_err(fault)?;
        }
    }
    rows::save(tx, &before, &after, now)?;
    let mut detail = json!({"letter": id, "to": after.journey.standing.name().as_str()});
    match how {
        OperatorAction::Trash { why } => detail["why"] = json!(why),
        OperatorAction::Replay => detail["replayed"] = json!(true),
        OperatorAction::Retry | OperatorAction::Restore => {}
    }
    let about = EventSubject { object: before.object, ..EventSubject::default() };
    events::append(tx, EventKind::Marked, about, &detail, now)
}

/// Gives a letter up whose texts are damaged.
pub(super) fn put_aside(
    tx: &mut Tx<'_>,
    id: LetterId,
    revision: i64,
    why: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    let before = rows::find(tx.db, id)?;
    if before.revision != revision {
        // Somebody else moved it meanwhile.
        return Ok(());
    }
    let mut after = before.clone();
    after.rest(before.journey.clone().mark_dead(why.to_owned())?);
    rows::save(tx, &before, &after, now)?;
    let about = EventSubject { object: before.object, ..EventSubject::default() };
    let detail = json!({"letter": id, "why": why, "state": LetterState::Dead.as_str()});
    events::append(tx, EventKind::Damaged, about, &detail, now)
}

/// Takes back letters that are at desks other than these.
pub(super) fn recall(
    tx: &mut Tx<'_>,
    desks: &[WorkerName],
    limit: usize,
    now: Timestamp,
) -> Result<usize, StoreError> {
    let mut taken = 0;
    for desk in counts::letter_figures(tx.db)?.waiting.into_keys() {
        if desk.is_empty() || desks.iter().any(|known| known.as_str() == desk) {
            continue;
        }
        for sql in [AT_DESK, AWAY_AT] {
            let left = most(limit - taken);
            for seq in seqs(tx.db, sql, params![desk, left])? {
                to_dispatcher(tx, seq, now)?;
                taken += 1;
            }
        }
    }
    Ok(taken)
}

/// Takes back letters that a worker of ours keeps, and what it has booked.
pub(super) fn recall_kept(
    tx: &mut Tx<'_>,
    by: &WorkerName,
    limit: usize,
    now: Timestamp,
) -> Result<usize, StoreError> {
    let found = seqs(tx.db, KEPT_BY, params![by.as_str(), most(limit)])?;
    for seq in &found {
        to_dispatcher(tx, *seq, now)?;
    }
    // All keys that start with the name and a colon: a semicolon is what follows that.
    let sql = "DELETE FROM bookings WHERE key >= ?1 AND key < ?2";
    let range = [format!("{by}:"), format!("{by};")];
    tx.db.prepare_cached(sql).and_then(|mut s| s.execute(range)).map_err(fault)?;
    Ok(found.len())
}

fn to_dispatcher(tx: &mut Tx<'_>, seq: i64, now: Timestamp) -> Result<(), StoreError> {
    let Some(before) = rows::by_seq(tx.db, seq)? else { return Ok(()) };
    let mut after = before.clone();
    after.rest(before.journey.clone().continue_chain(now)?);
    rows::save(tx, &before, &after, now)?;
    Ok(())
}

/// Puts back letters that are away at a worker.
pub(super) fn release(
    tx: &mut Tx<'_>,
    desk: &WorkerName,
    limit: usize,
    now: Timestamp,
) -> Result<usize, StoreError> {
    let found = seqs(tx.db, AWAY_AT, params![desk.as_str(), most(limit)])?;
    for seq in &found {
        let Some(before) = rows::by_seq(tx.db, *seq)? else { continue };
        let why = "the courier stopped before the worker answered";
        let after = LetterHead {
            // A letter that stops the courier each time has to run out of tries.
            journey: before.journey.clone().return_to_queue(now, true)?,
            failure: Some(why.to_owned()),
            ..before.clone()
        };
        rows::save(tx, &before, &after, now)?;
    }
    Ok(found.len())
}

/// Forgets letters that ended long ago.
pub(super) fn purge(
    tx: &mut Tx<'_>,
    trashed: i64,
    done: i64,
    limit: usize,
) -> Result<usize, StoreError> {
    let mut forgotten = 0;
    for (state, day) in
        [(LetterState::Trashed, trashed), (LetterState::Done, done), (LetterState::Merged, done)]
    {
        let left = most(limit - forgotten);
        for seq in seqs(tx.db, ENDED, params![state.as_str(), day, left])? {
            let Some(stub) = rows::by_seq(tx.db, seq)? else { continue };
            rows::forget(tx, &stub)?;
            forgotten += 1;
        }
    }
    Ok(forgotten)
}

/// At most `limit` bookings behind `after`, by their keys.
pub(super) fn bookings(
    db: &Connection,
    after: &str,
    limit: usize,
) -> Result<Vec<(String, ReservedUntil)>, StoreError> {
    let mut statement = db.prepare_cached(BOOKED).map_err(fault)?;
    let row = params![after, most(limit)];
    let rows = statement.query_map(row, |row| Ok((row.get(0)?, row.get(1)?))).map_err(fault)?;
    rows.collect::<rusqlite::Result<_>>().map_err(fault)
}

/// Forgets those of some bookings that are over still.
pub(super) fn forget_bookings(
    tx: &Tx<'_>,
    keys: &[String],
    over: ReservedUntil,
) -> Result<usize, StoreError> {
    let sql = "DELETE FROM bookings WHERE key = ?1 AND booked <= ?2";
    let mut statement = tx.db.prepare_cached(sql).map_err(fault)?;
    keys.iter().try_fold(0, |gone, key| {
        statement.execute(params![key, over]).map(|one| gone + one).map_err(fault)
    })
}
