//! Row counts by box and state, and the status of the store.
//!
//! The counts are updated with every commit. Counting a million rows takes half a second.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use monoco_core::delivery::SendState;
use monoco_core::did::TunnelId;
use monoco_core::email::task::{TaskRetry, TaskStateData, TaskStatus};
use monoco_core::letter::LetterState;
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::record::{BoxKind, ReadState};

use super::db::{Db, params};
use super::{SqlStore, closed, deliveries, disk_error, inbound, mails, rows};
use crate::{
    EmailTaskCounts, LetterCounts, RemotePlace, StatusStore, StoreCounts, StoreError, StoreHealth,
    StoreResult,
};

const ADD: &str = "
    INSERT INTO counts (kind, state, entries)
    VALUES (?1, ?2, ?3)
        ON CONFLICT (kind, state) DO UPDATE SET entries = counts.entries + excluded.entries
";

// Each reads an index that has only these rows.
const WAITING_MAILS: &str = "SELECT count(*) FROM mails WHERE location = 'inbound'";
const PENDING_APPROVALS: &str = "SELECT count(*) FROM approvals WHERE state = 'PENDING'";
const DEAD_CLAIMS: &str = "SELECT count(*) FROM claims WHERE state = 'DEADLETTER'";

// Kinds beside the boxes.
const LETTERS: &str = "LETTER";
/// WAITING and AWAY letters by external worker, without the held ones.
const LETTERS_WAITING: &str = "LETTER_WAITING";
/// AWAY letters by external worker.
const LETTERS_AWAY: &str = "LETTER_AWAY";
/// Held letters by built-in worker.
const LETTERS_HELD: &str = "LETTER_HELD";
/// E-mail tasks by tunnel and status, as `tunnel/status`. Copies are counted as `copy`, and dead
/// letters in addition as `dead`.
const EMAIL_TASKS: &str = "EMAIL_TASK";

/// The names of the last two counts.
const COPIES: &str = "copy";
const DEAD: &str = "dead";

/// Changes of the counts in one transaction, by kind and state.
#[derive(Debug, Default)]
pub(crate) struct RowCounts(BTreeMap<(&'static str, Cow<'static, str>), i64>);

/// The columns of a letter that its counts depend on.
pub(super) struct LetterCountKey<'a> {
    pub(super) state: LetterState,
    pub(super) worker: &'a str,
    pub(super) held_by: Option<&'a str>,
}

impl RowCounts {
    pub(super) fn record(&mut self, box_kind: BoxKind, state: ReadState, by: i64) {
        *self.0.entry((box_kind.as_str(), state.as_str().into())).or_default() += by;
    }

    pub(super) fn delivery(&mut self, state: SendState, by: i64) {
        let outbox = BoxKind::TunnelOutbox.as_str();
        *self.0.entry((outbox, state.as_str().into())).or_default() += by;
    }

    pub(super) fn letter(&mut self, key: &LetterCountKey<'_>, by: i64) {
        *self.0.entry((LETTERS, key.state.as_str().into())).or_default() += by;
        if !matches!(key.state, LetterState::Waiting | LetterState::Away) {
            return;
        }
        let (kind, name) = match key.held_by {
            Some(worker) => (LETTERS_HELD, worker),
            None => (LETTERS_WAITING, key.worker),
        };
        *self.0.entry((kind, name.to_owned().into())).or_default() += by;
        if key.state == LetterState::Away {
            *self.0.entry((LETTERS_AWAY, key.worker.to_owned().into())).or_default() += by;
        }
    }

    pub(super) fn email_task(&mut self, tunnel: &TunnelId, state: &TaskStateData, by: i64) {
        let mut add = |name: &str| {
            *self.0.entry((EMAIL_TASKS, format!("{tunnel}/{name}").into())).or_default() += by;
        };
        match state {
            TaskStateData::Copy { .. } => add(COPIES),
            TaskStateData::Error { next: TaskRetry::Dead, .. } => {
                add(TaskStatus::Error.as_str());
                add(DEAD);
            }
            other => add(other.status().as_str()),
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        for (key, by) in other.0 {
            *self.0.entry(key).or_default() += by;
        }
    }

    /// Writes the changes to the table.
    pub(super) fn save(&self, db: &Db) -> StoreResult<()> {
        for ((kind, state), by) in self.0.iter().filter(|(_, by)| **by != 0) {
            rows::execute(db, ADD, params![kind, state, by])?;
        }
        Ok(())
    }
}

fn by_box(db: &Db) -> StoreResult<StoreCounts> {
    let sql = "
        SELECT kind, state, entries
          FROM counts
         WHERE entries <> 0 AND kind NOT IN (?1, ?2, ?3, ?4, ?5)
    ";
    let others = [LETTERS, LETTERS_WAITING, LETTERS_AWAY, LETTERS_HELD, EMAIL_TASKS];
    let counted: Vec<(String, String, i64)> =
        rows::list(db, sql, others, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let mut counts = StoreCounts::default();
    for (box_kind, state, entries) in counted {
        match (BoxKind::parse(&box_kind), ReadState::parse(&state), SendState::parse(&state)) {
            (Some(BoxKind::TunnelOutbox), _, Some(state)) => {
                counts.deliveries.insert(state, entries);
            }
            (Some(box_kind), Some(state), _) => {
                counts.records.insert((box_kind, state), entries);
            }
            _ => {
                let detail = format!("unknown box {box_kind} or state {state}");
                return Err(StoreError::Damaged { what: "count", detail });
            }
        }
    }
    Ok(counts)
}

/// Names of external workers that letters wait for.
pub(super) fn workers_with_letters(db: &Db) -> StoreResult<Vec<String>> {
    let sql = "
        SELECT state FROM counts WHERE kind = ?1 AND entries <> 0 AND state <> '' ORDER BY state
    ";
    rows::list(db, sql, [LETTERS_WAITING], |row| row.get(0))
}

/// Numbers of letters; `oldest_due` is left empty.
pub(super) fn letters(db: &Db) -> StoreResult<LetterCounts> {
    let count = |kind: &str| -> StoreResult<Vec<(String, i64)>> {
        let sql = "SELECT state, entries FROM counts WHERE kind = ?1 AND entries <> 0";
        rows::list(db, sql, [kind], |row| Ok((row.get(0)?, row.get(1)?)))
    };
    let mut states = BTreeMap::new();
    for (state, entries) in count(LETTERS)? {
        let Some(state) = LetterState::parse(&state) else {
            let detail = format!("unknown letter state {state}");
            return Err(StoreError::Damaged { what: "count", detail });
        };
        states.insert(state, entries);
    }
    Ok(LetterCounts {
        states,
        waiting: count(LETTERS_WAITING)?.into_iter().collect(),
        away: count(LETTERS_AWAY)?.into_iter().collect(),
        held: count(LETTERS_HELD)?.into_iter().collect(),
        oldest_due: None,
    })
}

/// Numbers of e-mail tasks by tunnel.
pub(super) fn email_tasks(db: &Db) -> StoreResult<BTreeMap<TunnelId, EmailTaskCounts>> {
    let sql = "SELECT state, entries FROM counts WHERE kind = ?1 AND entries <> 0";
    let counted: Vec<(String, i64)> =
        rows::list(db, sql, [EMAIL_TASKS], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut counts: BTreeMap<TunnelId, EmailTaskCounts> = BTreeMap::new();
    for (key, entries) in counted {
        let unknown = || {
            let detail = format!("unknown tunnel or status {key:?}");
            StoreError::Damaged { what: "count", detail }
        };
        let (tunnel, name) = key.split_once('/').ok_or_else(unknown)?;
        let counts = counts.entry(tunnel.parse().map_err(|_| unknown())?).or_default();
        match (name, TaskStatus::parse(name)) {
            (COPIES, _) => counts.copies = entries,
            (DEAD, _) => counts.dead = entries,
            (_, Some(status)) => {
                counts.statuses.insert(status, entries);
            }
            (_, None) => return Err(unknown()),
        }
    }
    Ok(counts)
}

#[async_trait]
impl StatusStore for SqlStore {
    async fn counts(&self) -> StoreResult<StoreCounts> {
        self.read(|db| {
            Ok(StoreCounts {
                oldest_waiting: deliveries::oldest_waiting(db)?,
                unmerged: inbound::count_waiting(db)?,
                waiting_mails: rows::one(db, WAITING_MAILS, [], |row| row.get(0))?,
                pending_approvals: rows::one(db, PENDING_APPROVALS, [], |row| row.get(0))?,
                dead_claims: rows::one(db, DEAD_CLAIMS, [], |row| row.get(0))?,
                oldest_unclaimed: mails::oldest_unclaimed(db)?,
                ..by_box(db)?
            })
        })
        .await
    }

    fn health(&self) -> StoreHealth {
        self.channels.checked_health()
    }

    fn remote_objects(&self) -> Option<RemotePlace> {
        let remote = self.blobs.remote()?;
        Some(RemotePlace { place: remote.place().to_owned(), failure: remote.failure() })
    }

    async fn check_remote_objects(&self) -> StoreResult<()> {
        let blobs = Arc::clone(&self.blobs);
        let check =
            tokio::task::spawn_blocking(move || blobs.remote().map_or(Ok(()), |it| it.check()));
        check.await.map_err(|_| closed())?.map_err(disk_error)
    }

    async fn missing_blobs(&self, limit: usize) -> StoreResult<(usize, Vec<String>)> {
        let blobs = Arc::clone(&self.blobs);
        self.read(move |db| {
            let (mut missing, mut names) = (0, Vec::new());
            let sql = "SELECT hash, bytes FROM blobs";
            let all = rows::list_undamaged(db, "blob", usize::MAX, sql, [], |row| {
                let id = ObjId::from_parts(ObjKind::Bytes, row.get(0)?);
                let there = blobs.has(&id, rows::unsigned(row, 1)?);
                Ok((id, there))
            })?;
            for (id, _) in all.into_iter().filter(|(_, there)| !there) {
                missing += 1;
                if names.len() < limit {
                    names.push(id.to_string());
                }
            }
            Ok((missing, names))
        })
        .await
    }

    fn damaged_rows(&self) -> Vec<String> {
        self.readers.damaged.list()
    }
}
