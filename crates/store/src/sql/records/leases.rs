//! Leases of records: the next record is leased, and leases end.

use monoco_core::did::Did;
use monoco_core::event::EventKind;
use monoco_core::lease::{Holder, LeaseDuration};
use monoco_core::record::{BoxKind, MsgRecord, ReadStateData};
use monoco_core::time::Timestamp;
use serde_json::json;

use super::rows::{COLUMN_COUNT, COLUMNS, TABLES, by_seq, read};
use super::{append_event, update};
use crate::sql::db::params;
use crate::sql::objects::{self, ObjectBody};
use crate::sql::writer::Tx;
use crate::sql::{contacts, deliveries, email, rows};
use crate::{BoxHint, JitteredRetry, StoreResult, SweepCounts};

const EXPIRED: &str = "
    SELECT seq
      FROM records
     WHERE state = 'READING' AND lease_until <= ?1
     ORDER BY lease_until, seq
     LIMIT ?2
";

const HELD_BY_PREFIX: &str = "
    SELECT seq
      FROM records
     WHERE state = 'READING' AND substr(holder, 1, length(?1)) = ?1
     LIMIT ?2
";

pub(super) const ANY_EXPIRED: &str = "
    SELECT EXISTS (SELECT 1 FROM records WHERE state = 'READING' AND lease_until <= ?1)
        OR EXISTS (SELECT 1 FROM deliveries WHERE state = 'SENDING' AND lease_until <= ?1)
        OR EXISTS (SELECT 1 FROM email_tasks WHERE holder IS NOT NULL AND due_at <= ?1)
";

/// Why leases are ended.
#[derive(Clone, Copy)]
pub(in crate::sql) enum LeaseEndCause<'a> {
    Expired,
    /// The holders' names start with this prefix: an earlier process of the courier.
    HolderGone(&'a str),
}

/// The query for the records of a box that can be leased, with their messages. A single index seek,
/// however many records there are.
fn unread_query() -> String {
    format!(
        "SELECT {COLUMNS}, {}
           FROM {TABLES}
           {}
          WHERE r.owner = ?1 AND r.box = ?2 AND r.state = 'UNREAD'
          ORDER BY r.seq",
        objects::BODY_COLUMNS,
        objects::SUPERSEDING,
    )
}

/// Leases the oldest record of a box. Returns its message as well.
pub(super) fn lease_oldest(
    tx: &mut Tx<'_>,
    owner: &Did,
    box_kind: BoxKind,
    holder: &Holder,
    term: LeaseDuration,
    now: Timestamp,
) -> StoreResult<Option<(MsgRecord, ObjectBody)>> {
    let Some(owner) = contacts::find_party_id(tx, owner)? else { return Ok(None) };
    let row = params![owner, box_kind.as_str()];
    let found = rows::list_undamaged(tx.db, "record", 1, &unread_query(), row, |row| {
        Ok((read(row)?, row.get(16)?, objects::read_columns(row, COLUMN_COUNT)?))
    })?;
    let Some((record, object, columns)) = found.into_iter().next() else { return Ok(None) };
    let body = columns.body_or_erased(object)?;
    let next = record.reading.clone().lease(holder.clone(), now, term)?;
    let detail = json!({"by": holder, "attempt": next.attempts, "epoch": next.epoch});
    let record = update(tx, record, next, now)?;
    append_event(tx, EventKind::Taken, &record, object, &detail, now)?;
    Ok(Some((record, body)))
}

/// Ends leases of records, deliveries and e-mail tasks.
pub(super) fn end_all(
    tx: &mut Tx<'_>,
    cause: LeaseEndCause<'_>,
    retry: JitteredRetry,
    limit: usize,
    now: Timestamp,
) -> StoreResult<SweepCounts> {
    Ok(SweepCounts {
        records: end_leases(tx, cause, limit, now)?,
        deliveries: deliveries::end_leases(tx, cause, retry, limit, now)?,
        email_tasks: email::tasks::end_leases(tx, cause, limit, now)?,
    })
}

/// Sets records to UNREAD whose leases have expired, or whose holders are gone.
fn end_leases(
    tx: &mut Tx<'_>,
    cause: LeaseEndCause<'_>,
    limit: usize,
    now: Timestamp,
) -> StoreResult<usize> {
    let limit = rows::limit(limit);
    let (seqs, expire_at) = match cause {
        LeaseEndCause::Expired => (rows::numbers(tx.db, EXPIRED, params![now.ms(), limit])?, now),
        // These leases end now, however long they were to run.
        LeaseEndCause::HolderGone(prefix) => {
            let seqs = rows::numbers(tx.db, HELD_BY_PREFIX, params![prefix, limit])?;
            (seqs, Timestamp::from_ms(i64::MAX))
        }
    };
    let mut ended = 0;
    for seq in seqs {
        let found = tx.db.unless_damaged("record", seq, by_seq(tx.db, seq))?;
        let Some((record, object)) = found else { continue };
        let next = record.reading.clone().expire(expire_at)?;
        let detail = match &record.reading.state {
            ReadStateData::Reading(lease) => json!({"held_by": lease.holder, "until": lease.until}),
            _ => json!({}),
        };
        let record = update(tx, record, next, now)?;
        append_event(tx, EventKind::LeaseEnded, &record, object, &detail, now)?;
        tx.effects.hints.insert(BoxHint { owner: record.owner, box_kind: record.box_kind });
        ended += 1;
    }
    Ok(ended)
}
