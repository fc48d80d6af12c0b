//! Leases of records: the next record is leased, and leases end.

use std::collections::VecDeque;

use monoco_core::did::Did;
use monoco_core::event::EventKind;
use monoco_core::lease::{Holder, LeaseDuration};
use monoco_core::record::{BoxKind, MsgRecord, ReadStateData};
use monoco_core::time::Timestamp;
use serde_json::json;

use super::rows::{COLUMN_COUNT, COLUMNS, TABLES, by_seq, read};
use super::{append_event, update};
use crate::sql::db::params;
use crate::sql::objects::{self, ObjectBody, ObjectColumns};
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

/// Records that are looked up for each one that a batch leases.
const LOOKED_UP_PER_LEASE: usize = 8;

/// Maximum size of the messages that are looked up for later batches.
const MAX_UNREAD_BYTES: usize = 1 << 20;

/// The query for the records of a box that can be leased, after a number, with their messages. A single
/// index seek, however many records there are. The state is compared as a range, so that it counts for
/// the order: otherwise PostgreSQL can choose the primary key, and pass all records that were read.
/// It is compared together with the number, so that the seek passes the entries of records that were
/// leased: PostgreSQL keeps them in the index until `VACUUM`.
fn unread_query() -> String {
    format!(
        "SELECT {COLUMNS}, {}
           FROM {TABLES}
           {}
          WHERE r.owner = ?1 AND r.box = ?2
            AND (r.state, r.seq) > ('UNREAD', ?3) AND r.state <= 'UNREAD'
          ORDER BY r.state, r.seq",
        objects::BODY_COLUMNS,
        objects::SUPERSEDING,
    )
}

/// A record that can be leased, with its message.
pub(in crate::sql) struct UnreadRecord {
    record: MsgRecord,
    object: i64,
    columns: ObjectColumns,
}

impl UnreadRecord {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.columns.body_bytes()
    }
}

/// The oldest unread records of a box.
fn unread(
    tx: &Tx<'_>,
    owner: i64,
    box_kind: BoxKind,
    limit: usize,
) -> StoreResult<Vec<UnreadRecord>> {
    let after = tx.cache.leased_up_to.get(&(owner, box_kind)).copied().unwrap_or(0);
    let row = params![owner, box_kind.as_str(), after];
    rows::list_undamaged(tx.db, "record", limit, &unread_query(), row, |row| {
        let columns = objects::read_columns(row, COLUMN_COUNT)?;
        Ok(UnreadRecord { record: read(row)?, object: row.get(16)?, columns })
    })
}

/// Looks up the oldest unread records of a box, of which several commands lease one each, and some
/// for later batches. A record that changes meanwhile has another revision: its lease fails, and the
/// batch is run again.
pub(in crate::sql) fn look_up_unread(
    tx: &mut Tx<'_>,
    owner: &Did,
    box_kind: BoxKind,
    count: usize,
) -> StoreResult<()> {
    let Some(owner) = contacts::find_party_id(tx, owner)? else { return Ok(()) };
    if tx.cache.unread.get(&(owner, box_kind)).is_some_and(|known| known.len() >= count) {
        return Ok(());
    }
    let mut found = unread(tx, owner, box_kind, count.saturating_mul(LOOKED_UP_PER_LEASE))?;
    let mut bytes = tx.cache.unread.values().flatten().map(UnreadRecord::bytes).sum::<usize>();
    let fits = found.iter().take_while(|record| {
        bytes += record.bytes();
        bytes <= MAX_UNREAD_BYTES
    });
    let fitting = fits.count();
    found.truncate(fitting.max(count));
    tx.cache.unread.insert((owner, box_kind), found.into());
    Ok(())
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
    let known = tx.cache.unread.get_mut(&(owner, box_kind)).and_then(VecDeque::pop_front);
    let found = match known {
        Some(known) => Some(known),
        None => unread(tx, owner, box_kind, 1)?.pop(),
    };
    let Some(UnreadRecord { record, object, columns }) = found else { return Ok(None) };
    let body = columns.body_or_erased(object)?;
    let next = record.reading.clone().lease(holder.clone(), now, term)?;
    let detail = json!({"by": holder, "attempt": next.attempts, "epoch": next.epoch});
    // The other records that were looked up are still unread.
    let others = tx.cache.unread.remove(&(owner, box_kind));
    let record = update(tx, record, next, now)?;
    tx.cache.unread.extend(others.map(|others| ((owner, box_kind), others)));
    tx.cache.leased_up_to.insert((owner, box_kind), record.seq);
    tx.cache.leased.insert(record.id, (record.clone(), object));
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
