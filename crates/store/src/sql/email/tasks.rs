//! Starts, finishes, retries, lists and purges e-mail tasks.

use monoco_core::did::Did;
use monoco_core::email::task::{EmailTask, EmailTaskId, TaskOutcome, TaskStateData, TaskStatus};
use monoco_core::inbound::{RawMail, StoredBytes};
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::time::Timestamp;

use super::forwards;
use super::rows::{self, TaskRow};
use crate::blobs::BlobStorage;
use crate::sql::db::{Db, params};
use crate::sql::records::LeaseEndCause;
use crate::sql::rows as sql;
use crate::sql::writer::Tx;
use crate::sql::{DAMAGED_ROW_DELAY, blob_size, contacts, purged_files};
use crate::{EmailTaskQuery, Page, PageRequest, StoreError};

/// Bytes of mails that are started at once; a larger mail is started alone. The caller has all of
/// them in memory.
const MAX_BYTES_STARTED: i64 = 2 << 20;

// Of a mail that was cut, only the header is stored.
pub(super) const DUE: &str = "
    SELECT seq, attempts, CASE WHEN cut IS NULL THEN bytes ELSE 0 END
      FROM email_tasks
     WHERE tunnel = ?1 AND due_at <= ?2 AND due_at IS NOT NULL AND forward IS NULL
     ORDER BY due_at, seq
     LIMIT ?3
";

pub(super) const NEXT_DUE: &str = "
    SELECT due_at
      FROM email_tasks
     WHERE tunnel = ?1 AND due_at IS NOT NULL
     ORDER BY due_at
     LIMIT 1
";

pub(super) const EXPIRED: &str = "
    SELECT seq
      FROM email_tasks
     WHERE holder IS NOT NULL AND due_at <= ?1
     ORDER BY due_at, seq
     LIMIT ?2
";

pub(super) const HELD_BY_PREFIX: &str = "
    SELECT seq
      FROM email_tasks
     WHERE holder IS NOT NULL AND substr(holder, 1, length(?1)) = ?1
     LIMIT ?2
";

// The newest task stays, so that no number is used twice.
pub(super) const ENDED: &str = "
    SELECT seq
      FROM email_tasks
     WHERE day IS NOT NULL AND day <= ?1 AND seq < (SELECT max(seq) FROM email_tasks)
     ORDER BY day, seq
     LIMIT ?2
";

// The file of a mail that is too large for a row.
const FILE: &str = "
    SELECT h.hash
      FROM email_mails m
      JOIN email_hashes h ON h.task = m.task
     WHERE m.task = ?1 AND m.raw IS NULL
";

/// Leases due tasks. Returns them, and whether any was due: one that was not started has ended,
/// or is damaged and was postponed.
pub(super) fn start(
    tx: &mut Tx<'_>,
    tunnel: &Did,
    holder: &Holder,
    term: LeaseDuration,
    limit: usize,
    now: Timestamp,
) -> Result<(Vec<EmailTask>, bool), StoreError> {
    let Some(tunnel) = contacts::find_party_id(tx, tunnel)? else {
        return Ok((Vec::new(), false));
    };
    let due: Vec<(i64, u32, i64)> =
        sql::list(tx.db, DUE, params![tunnel, now.ms(), sql::limit(limit)], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
    let any_due = !due.is_empty();
    let (mut started, mut bytes) = (Vec::new(), 0);
    for (seq, attempts, size) in due {
        bytes = size.saturating_add(bytes);
        // A task that was started before is started alone.
        if !started.is_empty() && (attempts > 0 || bytes > MAX_BYTES_STARTED) {
            break;
        }
        let found = rows::find(tx.db, EmailTaskId(seq));
        let Some(row) = tx.db.unless_damaged("e-mail task", seq, found)? else {
            postpone(tx, seq, now)?;
            continue;
        };
        let progress = row.task.progress.clone();
        match progress.clone().start(holder.clone(), now, term) {
            Ok(next) => started.push(rows::save(tx, row, next, false, now)?.task),
            // The lease of the last attempt has expired.
            Err(_) => {
                rows::save(tx, row, progress.expire(now)?, false, now)?;
            }
        }
        if attempts > 0 && !started.is_empty() {
            break;
        }
    }
    Ok((started, any_due))
}

/// Delays a damaged task that is due, so that the task loop does not wake for it.
pub(super) fn postpone(tx: &Tx<'_>, seq: i64, now: Timestamp) -> Result<(), StoreError> {
    let until = (now + DAMAGED_ROW_DELAY).ms();
    let sql = "UPDATE email_tasks SET due_at = ?2 WHERE seq = ?1 AND due_at IS NOT NULL";
    sql::execute(tx.db, sql, params![seq, until])?;
    Ok(())
}

/// When the next task of a tunnel can be started, or its forward retried.
pub(super) fn next_due(db: &Db, tunnel: i64) -> Result<Option<Timestamp>, StoreError> {
    let due: Option<i64> = sql::optional(db, NEXT_DUE, [tunnel], |row| row.get(0))?;
    Ok(due.map(Timestamp::from_ms))
}

/// Stores the outcome of the lease with number `epoch`.
pub(super) fn finish(
    tx: &mut Tx<'_>,
    id: EmailTaskId,
    epoch: u64,
    outcome: &TaskOutcome,
    now: Timestamp,
) -> Result<(), StoreError> {
    let row = rows::find(tx.db, id)?;
    let proof = LeaseProof { epoch: Some(epoch), holder: Holder::anonymous() };
    let next = row.task.progress.clone().finish(outcome.clone(), &proof, now)?;
    if next != row.task.progress {
        rows::save(tx, row, next, false, now)?;
    }
    Ok(())
}

/// Makes tasks startable again whose leases have expired, or whose holders are gone. Damaged tasks
/// do not count, so that a page of them ends a loop.
pub(in crate::sql) fn end_leases(
    tx: &mut Tx<'_>,
    cause: LeaseEndCause<'_>,
    limit: usize,
    now: Timestamp,
) -> Result<usize, StoreError> {
    let limit = sql::limit(limit);
    let (seqs, expire_at) = match cause {
        LeaseEndCause::Expired => (sql::numbers(tx.db, EXPIRED, params![now.ms(), limit])?, now),
        LeaseEndCause::HolderGone(prefix) => {
            let seqs = sql::numbers(tx.db, HELD_BY_PREFIX, params![prefix, limit])?;
            (seqs, Timestamp::from_ms(i64::MAX))
        }
    };
    let mut ended = 0;
    for seq in seqs {
        let found = rows::find(tx.db, EmailTaskId(seq));
        let Some(row) = tx.db.unless_damaged("e-mail task", seq, found)? else {
            postpone(tx, seq, now)?;
            continue;
        };
        let next = row.task.progress.clone().expire(expire_at)?;
        rows::save(tx, row, next, false, now)?;
        ended += 1;
    }
    Ok(ended)
}

/// Retries a task for an operator.
pub(super) fn retry(
    tx: &mut Tx<'_>,
    id: EmailTaskId,
    now: Timestamp,
) -> Result<EmailTask, StoreError> {
    let row = rows::find(tx.db, id)?;
    let next = row.task.progress.clone().retry()?;
    if let (TaskStateData::Forwarding, Some(object)) = (&next.state, row.forward) {
        forwards::retry(tx, &row.task, object, true, now)?;
    }
    rows::save(tx, row, next, true, now).map(|row| row.task)
}

/// Drops the error of a task for an operator.
pub(super) fn drop_error(
    tx: &mut Tx<'_>,
    id: EmailTaskId,
    now: Timestamp,
) -> Result<EmailTask, StoreError> {
    let row = rows::find(tx.db, id)?;
    let next = row.task.progress.clone().drop_error()?;
    if next == row.task.progress {
        return Ok(row.task);
    }
    rows::save(tx, row, next, true, now).map(|row| row.task)
}

/// Reads the mail of a task and checks its hash. Of a large mail only the size is checked.
pub(super) fn mail(
    db: &Db,
    blobs: &dyn BlobStorage,
    task: &EmailTask,
) -> Result<RawMail, StoreError> {
    let of = match task.progress.state {
        TaskStateData::Copy { of } => of,
        _ => task.id,
    };
    let select = "SELECT raw FROM email_mails WHERE task = ?1";
    let found: Option<Option<Vec<u8>>> = sql::optional(db, select, [of.0], |row| row.get(0))?;
    let damaged = |detail: String| StoreError::Damaged { what: "mail", detail };
    let id = task.hash;
    let raw = match found {
        Some(Some(raw)) if ObjId::of(ObjKind::Bytes, &raw) == id => RawMail::Bytes(raw),
        Some(Some(_)) => return Err(damaged(format!("{} has another hash than {id}", task.id))),
        Some(None) => {
            let size = blob_size(db, &id)?.and_then(|size| u64::try_from(size).ok());
            match size.filter(|size| blobs.has(&id, *size)) {
                Some(size) => RawMail::Stored(StoredBytes { hash: id, size }),
                None => return Err(damaged(format!("the file of {id} is missing or was changed"))),
            }
        }
        // Only the mails of tasks that have ended are purged.
        None if task.progress.state.has_ended() => {
            return Err(StoreError::Missing { what: "mail of", key: task.id.to_string() });
        }
        None => return Err(damaged(format!("{} has no mail", task.id))),
    };
    Ok(match (raw, &task.cut) {
        (RawMail::Bytes(headers), Some(why)) => RawMail::HeadersOnly { headers, why: why.clone() },
        (raw, _) => raw,
    })
}

/// Lists tasks in the order of registration, with one range scan per tunnel and status.
pub(super) fn list(
    db: &Db,
    query: &EmailTaskQuery,
    page: &PageRequest,
) -> Result<Page<EmailTask>, StoreError> {
    let tunnels = match &query.tunnel {
        Some(tunnel) => contacts::find(db, &tunnel.did())?.into_iter().collect(),
        None => sql::numbers(db, "SELECT DISTINCT tunnel FROM email_folders", [])?,
    };
    let all = &TaskStatus::ALL[..];
    let statuses = if query.statuses.is_empty() { all } else { &query.statuses };
    let (beyond, order) = sql::direction(page);
    let condition = list_condition(beyond, order);
    let (start, limit) = (sql::start(page), page.limit.saturating_add(1));
    let mut entries = Vec::new();
    for tunnel in tunnels {
        for status in statuses {
            let values = params![tunnel, status.as_str(), start];
            let found = rows::list(db, &condition, values, limit)?;
            entries.extend(found.into_iter().map(|task| (task.id.0, task)));
        }
    }
    Ok(sql::page(entries, page))
}

/// The condition and order of one range scan.
pub(super) fn list_condition(beyond: &str, order: &str) -> String {
    format!("t.tunnel = ?1 AND t.status = ?2 AND t.seq {beyond} ?3 ORDER BY t.seq {order}")
}

/// Deletes tasks that ended on this retention day or before, and their mails. Notes the files of
/// large mails.
pub(super) fn purge(tx: &mut Tx<'_>, day: i64, limit: usize) -> Result<usize, StoreError> {
    let seqs = sql::numbers(tx.db, ENDED, params![day, sql::limit(limit)])?;
    for seq in &seqs {
        let found = rows::find(tx.db, EmailTaskId(*seq));
        if let Some(TaskRow { task, .. }) = tx.db.unless_damaged("e-mail task", seq, found)? {
            tx.effects.counts.email_task(&task.tunnel, &task.progress.state, -1);
        }
        if let Some(hash) = sql::optional(tx.db, FILE, [seq], |row| row.get(0))? {
            purged_files::note(tx, &hash)?;
        }
        sql::execute(tx.db, "DELETE FROM email_mails WHERE task = ?1", [seq])?;
        sql::execute(tx.db, "DELETE FROM email_tasks WHERE seq = ?1", [seq])?;
    }
    Ok(seqs.len())
}
