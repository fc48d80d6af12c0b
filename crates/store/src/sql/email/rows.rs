//! The rows of e-mail tasks: queries, inserts and updates.

use monoco_core::did::Did;
use monoco_core::email::task::{
    EmailTask, EmailTaskId, TaskProgress, TaskRetry, TaskStateData, TaskStatus,
};
use monoco_core::event::EventKind;
use monoco_core::lease::{Holder, Lease};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::time::Timestamp;
use serde_json::json;

use crate::StoreError;
use crate::sql::db::{Db, Row, RowError, RowResult, ToParam, params};
use crate::sql::events::{self, EventSubject};
use crate::sql::rows::{self as sql, damaged, parsed};
use crate::sql::writer::Tx;
use crate::sql::{contacts, objects, retention};

const COLUMNS: &str = "
    t.seq, p.did, f.name, f.uid_validity, t.uid, t.subject, t.sent_at, t.internal_date, t.bytes,
    t.cut, t.copy_of, t.status, t.due_at, t.holder, t.attempts, t.epoch, t.revision, o.hash,
    t.error, t.dropped, h.hash, t.created_at, t.updated_at, t.forward
";

// A missing row makes the task damaged instead of invisible.
const TABLES: &str = "
    email_tasks t
      LEFT JOIN parties p ON p.id = t.tunnel
      LEFT JOIN email_folders f ON f.id = t.folder
      LEFT JOIN email_hashes h ON h.task = coalesce(t.copy_of, t.seq)
      LEFT JOIN objects o ON o.seq = t.forward
";

// Conditions and orders for `list`.
pub(super) const OF_FORWARD: &str = "t.forward = ?1 ORDER BY t.seq";
pub(super) const DEAD: &str =
    "t.status = 'error' AND t.due_at IS NULL AND t.dropped = 0 ORDER BY t.seq";

const UPDATE: &str = "
    UPDATE email_tasks
       SET status = ?3, due_at = ?4, holder = ?5, attempts = ?6, epoch = ?7, forward = ?8,
           error = ?9, dropped = ?10, day = ?11, updated_at = ?12, revision = revision + 1
     WHERE seq = ?1 AND revision = ?2
";

/// Longer reasons are cut.
const MAX_REASON_BYTES: usize = 4_096;

/// A task with the row of its forward.
#[derive(Clone, Debug)]
pub(super) struct TaskRow {
    pub(super) task: EmailTask,
    /// `objects.seq` of the message that forwards it.
    pub(super) forward: Option<i64>,
}

/// The columns that depend on the state of a task.
pub(super) struct StateColumns {
    pub(super) due: Option<i64>,
    holder: Option<String>,
    error: Option<String>,
    dropped: bool,
}

impl StateColumns {
    /// `now` is when a received task became startable.
    pub(super) fn new(state: &TaskStateData, now: Timestamp) -> Self {
        let why = |why: &str| Some(why[..why.floor_char_boundary(MAX_REASON_BYTES)].to_owned());
        let none = Self { due: None, holder: None, error: None, dropped: false };
        match state {
            TaskStateData::Received => Self { due: Some(now.ms()), ..none },
            TaskStateData::Processing(lease) => {
                let holder = Some(lease.holder.as_str().to_owned());
                Self { due: Some(lease.until.ms()), holder, ..none }
            }
            TaskStateData::Forwarding | TaskStateData::Forwarded | TaskStateData::Copy { .. } => {
                none
            }
            TaskStateData::Skipped { why: reason } => {
                Self { error: reason.as_deref().and_then(why), ..none }
            }
            TaskStateData::Error { why: reason, next } => {
                let due = match next {
                    TaskRetry::At(due) => Some(due.ms()),
                    TaskRetry::Dead | TaskRetry::Dropped => None,
                };
                let dropped = *next == TaskRetry::Dropped;
                Self { due, error: why(reason), dropped, ..none }
            }
        }
    }
}

/// Returns a task that must exist.
pub(super) fn find(db: &Db, id: EmailTaskId) -> Result<TaskRow, StoreError> {
    let missing = || StoreError::Missing { what: "e-mail task", key: id.to_string() };
    sql::optional(db, &select("t.seq = ?1"), [id.0], read)?.ok_or_else(missing)
}

/// Lists tasks that match a condition, which can have an order.
pub(super) fn list(
    db: &Db,
    condition: &str,
    values: &[&dyn ToParam],
    limit: usize,
) -> Result<Vec<EmailTask>, StoreError> {
    sql::list_undamaged(db, "e-mail task", limit, &select(condition), values, |row| {
        read(row).map(|row| row.task)
    })
}

pub(super) fn select(condition: &str) -> String {
    format!("SELECT {COLUMNS} FROM {TABLES} WHERE {condition}")
}

fn read(row: &Row<'_>) -> RowResult<TaskRow> {
    let tunnel: Did = parsed(row, 1)?;
    let time = |column| Ok::<_, RowError>(row.get::<Option<i64>>(column)?.map(at));
    let forward_hash: Option<[u8; 32]> = row.get(17)?;
    let forward = forward_hash.map(|hash| ObjId::from_parts(ObjKind::Msg, hash));
    let task = EmailTask {
        id: EmailTaskId(row.get(0)?),
        tunnel: tunnel.tunnel().ok_or_else(|| damaged(1, "not the DID of a tunnel"))?,
        folder: row.get(2)?,
        uid_validity: row.get(3)?,
        uid: row.get(4)?,
        subject: row.get(5)?,
        date: time(6)?,
        internal_date: time(7)?,
        size: sql::unsigned(row, 8)?,
        hash: ObjId::from_parts(ObjKind::Bytes, row.get(20)?),
        cut: row.get(9)?,
        progress: TaskProgress {
            state: state(row, forward.is_some())?,
            attempts: row.get(14)?,
            epoch: sql::unsigned(row, 15)?,
            forward,
        },
        revision: row.get(16)?,
        created_at: at(row.get(21)?),
        updated_at: at(row.get(22)?),
    };
    Ok(TaskRow { task, forward: row.get(23)? })
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_ms(ms)
}

fn state(row: &Row<'_>, has_forward: bool) -> RowResult<TaskStateData> {
    let status: String = row.get(11)?;
    let (due, holder): (Option<i64>, Option<String>) = (row.get(12)?, row.get(13)?);
    let (error, dropped): (Option<String>, bool) = (row.get(18)?, row.get(19)?);
    let copy_of: Option<i64> = row.get(10)?;
    let lease = holder.and_then(|holder| Holder::new(holder).ok()).zip(due);
    let status = TaskStatus::parse(&status).ok_or_else(|| damaged(11, "unknown status"))?;
    Ok(match (status, due, lease, has_forward) {
        (TaskStatus::Received, Some(_), None, false) => TaskStateData::Received,
        (TaskStatus::InProgress, Some(_), Some((holder, until)), false) => {
            TaskStateData::Processing(Lease { holder, until: at(until) })
        }
        (TaskStatus::InProgress, None, None, true) => TaskStateData::Forwarding,
        (TaskStatus::Forwarded, None, None, true) => TaskStateData::Forwarded,
        (TaskStatus::SkippedNoMatch, None, None, _) => match copy_of {
            Some(of) => TaskStateData::Copy { of: EmailTaskId(of) },
            None => TaskStateData::Skipped { why: error },
        },
        (TaskStatus::Error, due, None, _) => {
            let next = match (due, dropped) {
                (Some(due), _) => TaskRetry::At(at(due)),
                (None, false) => TaskRetry::Dead,
                (None, true) => TaskRetry::Dropped,
            };
            TaskStateData::Error { why: error.unwrap_or_default(), next }
        }
        _ => return Err(damaged(11, "the status does not match the other columns")),
    })
}

/// Writes the progress of a task, if the row still has the revision of `row`. Failures, forwards
/// and steps of operators are events.
pub(super) fn save(
    tx: &mut Tx<'_>,
    row: TaskRow,
    next: TaskProgress,
    by_operator: bool,
    now: Timestamp,
) -> Result<TaskRow, StoreError> {
    let TaskRow { task, forward } = row;
    let forward = match (&next.forward, forward) {
        (Some(id), None) => Some(objects::seq_of(tx.db, tx.indexes.hashes.recent(), id)?),
        (_, known) => known,
    };
    let columns = StateColumns::new(&next.state, now);
    let day = if next.state.has_ended() { Some(retention::day(tx)?) } else { None };
    let values = params![
        task.id.0,
        task.revision,
        next.state.status().as_str(),
        columns.due,
        columns.holder,
        next.attempts,
        sql::signed(next.epoch),
        forward,
        columns.error,
        columns.dropped,
        day,
        now.ms(),
    ];
    if !sql::update_one(tx.db, UPDATE, values)? {
        return Err(StoreError::Conflict { what: "e-mail task", revision: task.revision });
    }
    tx.effects.counts.email_task(&task.tunnel, &task.progress.state, -1);
    tx.effects.counts.email_task(&task.tunnel, &next.state, 1);
    tx.effects.email_task |= columns.due.is_some() && columns.holder.is_none();
    let from = task.progress.state.status();
    let task = EmailTask { progress: next, revision: task.revision + 1, updated_at: now, ..task };
    let (to, why) = (task.progress.state.status(), task.progress.state.why());
    let ended = match to {
        TaskStatus::Forwarded | TaskStatus::Error => from != to,
        TaskStatus::SkippedNoMatch => why.is_some(),
        TaskStatus::Received | TaskStatus::InProgress => false,
    };
    if ended || by_operator {
        let mut detail = json!({
            "task": task.id, "tunnel": task.tunnel, "from": from.as_str(), "to": to.as_str(),
            "attempt": task.progress.attempts,
        });
        if let Some(why) = why {
            detail["why"] = json!(why);
        }
        if by_operator {
            detail["by"] = json!("operator");
        }
        let owner = Some(contacts::party_id(tx, &task.tunnel.did())?);
        let subject = EventSubject { object: forward, record: None, owner };
        events::append(tx, EventKind::EmailTask, subject, &detail, now)?;
    }
    Ok(TaskRow { task, forward })
}
