//! Halts: the rows that stop deliveries.

use async_trait::async_trait;
use monoco_core::delivery::SendState;
use monoco_core::event::EventKind;
use monoco_core::halt::{Halt, HaltScope, HaltSet};
use monoco_core::time::Timestamp;
use serde_json::json;

use super::db::{Db, params};
use super::events::{self, EventSubject};
use super::rows::{self, parsed};
use super::writer::Tx;
use super::{SqlStore, approvals, contacts};
use crate::{BoxHint, HaltCounts, HaltStore, StoreResult};

/// Maximum number of halts that are read.
const MAX_HALTS: usize = 1_000;

const LIST: &str = "SELECT scope, locked, halted_by, at FROM halts ORDER BY scope";

// A lock stays until the halt ends: who may halt may not be allowed to resume.
const PUT: &str = "
    INSERT INTO halts (scope, locked, halted_by, at)
    VALUES (?1, ?2, ?3, ?4)
        ON CONFLICT (scope) DO UPDATE
        SET locked = CASE WHEN halts.locked = 1 THEN 1 ELSE excluded.locked END
";

/// Returns all halts that apply now.
pub(super) fn read(db: &Db) -> StoreResult<HaltSet> {
    let halts = rows::list_undamaged(db, "halt", MAX_HALTS, LIST, [], |row| {
        Ok(Halt {
            scope: parsed(row, 0)?,
            lock: row.get(1)?,
            by: row.get(2)?,
            at: Timestamp::from_ms(row.get(3)?),
        })
    })?;
    Ok(HaltSet(halts))
}

/// Counts what is in the scope of a halt. Deliveries of one agent that wait are not counted: they
/// are found when they are due.
fn counts(db: &Db, scope: &HaltScope) -> StoreResult<HaltCounts> {
    let number = |sql: &str, value: &str| rows::one(db, sql, [value], |row| row.get(0));
    let pending = "SELECT count(*) FROM approvals WHERE state = ?1";
    let pending: i64 = number(pending, "PENDING")?;
    let waiting_states = approvals::WAITING.map(SendState::as_str);
    match scope {
        HaltScope::All => {
            let sql = "SELECT CAST(coalesce(sum(entries), 0) AS BIGINT) FROM counts WHERE kind = 'TUNNEL_OUTBOX' AND state = ?1";
            let mut waiting = 0;
            for state in waiting_states {
                waiting += number(sql, state)?;
            }
            let sending =
                "SELECT count(*) FROM deliveries WHERE state = ?1 AND lease_until IS NOT NULL";
            Ok(HaltCounts { sending: number(sending, "SENDING")?, waiting, pending })
        }
        HaltScope::Tunnel(id) => {
            let Some(tunnel) = contacts::find(db, &id.did())? else {
                return Ok(HaltCounts { pending, ..HaltCounts::default() });
            };
            let sql = "SELECT count(*) FROM deliveries WHERE tunnel = ?1 AND state = ?2";
            let of_state =
                |state: &str| rows::one(db, sql, params![tunnel, state], |row| row.get(0));
            let mut waiting = 0;
            for state in waiting_states {
                waiting += of_state(state)?;
            }
            Ok(HaltCounts { sending: of_state("SENDING")?, waiting, pending })
        }
        HaltScope::Agent(name) => {
            let sql = "
                SELECT count(*)
                  FROM deliveries d
                 WHERE d.state = 'SENDING' AND d.lease_until IS NOT NULL
                   AND EXISTS (SELECT 1 FROM events e JOIN send_decisions s ON s.event = e.seq
                                WHERE e.object = d.object AND s.agent = ?1)
            ";
            Ok(HaltCounts { sending: number(sql, name)?, waiting: 0, pending })
        }
    }
}

fn append_event(
    tx: &mut Tx<'_>,
    scope: &HaltScope,
    resumed: bool,
    lock: bool,
    by: &str,
    now: Timestamp,
) -> StoreResult<()> {
    let detail = json!({"scope": scope.to_string(), "resumed": resumed, "lock": lock, "by": by});
    events::append(tx, EventKind::Halted, EventSubject::default(), &detail, now)
}

/// Wakes the senders of all tunnels: what was halted can be leased again.
fn hint_tunnels(tx: &mut Tx<'_>) -> StoreResult<()> {
    let sql = "SELECT p.did FROM tunnels t JOIN parties p ON p.id = t.party";
    for owner in rows::list(tx.db, sql, [], |row| parsed(row, 0))? {
        let box_kind = monoco_core::record::BoxKind::TunnelOutbox;
        tx.effects.hints.insert(BoxHint { owner, box_kind });
    }
    Ok(())
}

#[async_trait]
impl HaltStore for SqlStore {
    async fn put_halt(&self, halt: Halt) -> StoreResult<HaltCounts> {
        self.writer
            .run(move |tx| {
                let Halt { scope, lock, by, at } = &halt;
                rows::execute(tx.db, PUT, params![scope.to_string(), lock, by, at.ms()])?;
                append_event(tx, scope, false, *lock, by, *at)?;
                counts(tx.db, scope)
            })
            .await
    }

    async fn remove_halt(
        &self,
        scope: &HaltScope,
        by: &str,
        now: Timestamp,
    ) -> StoreResult<Option<HaltCounts>> {
        let (scope, by) = (scope.clone(), by.to_owned());
        self.writer
            .run(move |tx| {
                let sql = "DELETE FROM halts WHERE scope = ?1";
                if rows::changed_rows(tx.db, sql, [scope.to_string()])? == 0 {
                    return Ok(None);
                }
                append_event(tx, &scope, true, false, &by, now)?;
                hint_tunnels(tx)?;
                counts(tx.db, &scope).map(Some)
            })
            .await
    }

    async fn halts(&self) -> StoreResult<HaltSet> {
        self.read(read).await
    }
}
