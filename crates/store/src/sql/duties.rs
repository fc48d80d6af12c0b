//! Couriers and their duties.

use std::collections::BTreeSet;

use async_trait::async_trait;
use monoco_core::courier::{CourierId, CourierRun};
use monoco_core::did::TunnelId;
use monoco_core::duty::{Duty, DutyProof, DutyStep, RegisteredCourier, plan_duties};
use monoco_core::time::Timestamp;

use super::db::{Db, Row, RowResult, params};
use super::rows::{self, parsed};
use super::writer::Tx;
use super::{ReaderSource, SqlStore};
use crate::postgres::ServerFacts;
use crate::{DutyStore, StoreError, StoreResult};

const REGISTER: &str = "
    INSERT INTO couriers (id, boot, tunnels, seen_at, live) VALUES (?1, 1, ?2, ?3, 1)
        ON CONFLICT (id) DO UPDATE
       SET boot = couriers.boot + 1, tunnels = excluded.tunnels, seen_at = excluded.seen_at,
           live = 1
";

const REPORT: &str = "
    UPDATE couriers SET tunnels = ?3, seen_at = ?4, live = 1 WHERE id = ?1 AND boot = ?2
";

const COURIERS: &str = "SELECT id, boot, tunnels, seen_at, live FROM couriers ORDER BY id";

const DUTIES: &str = "SELECT name, courier, boot, epoch, until FROM duties ORDER BY name";

const INSERT_DUTY: &str = "
    INSERT INTO duties (name, courier, boot, epoch, until) VALUES (?1, ?2, ?3, ?4, ?5)
        ON CONFLICT (name) DO NOTHING
";

// The epoch and the end of the lease are those that the decision was based on.
const UPDATE_DUTY: &str = "
    UPDATE duties SET courier = ?2, boot = ?3, epoch = ?4, until = ?5
     WHERE name = ?1 AND epoch = ?6 AND until = ?7
";

const RELEASE_DUTY: &str = "
    UPDATE duties SET courier = NULL, boot = 0, until = 0 WHERE name = ?1 AND epoch = ?2
";

const ADOPT_DRAFTS: &str = "
    UPDATE drafts SET courier = ?1 WHERE open = 1 AND courier <> ?1
";

fn read_courier(row: &Row<'_>) -> RowResult<RegisteredCourier> {
    let (tunnels, live): (String, bool) = (row.get(2)?, row.get(4)?);
    let tunnels =
        serde_json::from_str(&tunnels).map_err(|_| rows::damaged(2, "invalid list of tunnels"))?;
    let run = CourierRun { id: parsed(row, 0)?, boot: row.get(1)? };
    let seen_at = Timestamp::from_ms(row.get(3)?);
    Ok(RegisteredCourier { run, tunnels, seen_at: live.then_some(seen_at) })
}

fn read_duty(row: &Row<'_>) -> RowResult<Duty> {
    let holder: Option<String> = row.get(1)?;
    let holder = match holder {
        Some(_) => Some(CourierRun { id: parsed(row, 1)?, boot: row.get(2)? }),
        None => None,
    };
    let (epoch, until) = (row.get(3)?, Timestamp::from_ms(row.get(4)?));
    Ok(Duty { name: parsed(row, 0)?, holder, epoch, until })
}

fn couriers(db: &Db) -> StoreResult<Vec<RegisteredCourier>> {
    rows::list_undamaged(db, "courier", usize::MAX, COURIERS, [], read_courier)
}

fn duties(db: &Db) -> StoreResult<Vec<Duty>> {
    rows::list_undamaged(db, "duty", usize::MAX, DUTIES, [], read_duty)
}

/// Writes a duty that was `before`. Returns `false` when another courier has changed it.
fn put(tx: &Tx<'_>, before: &Duty, after: &Duty) -> StoreResult<bool> {
    let name = after.name.to_string();
    let courier = after.holder.map(|run| run.id.to_string());
    let boot = after.holder.map_or(0, |run| run.boot);
    let until = after.until.ms();
    if before.epoch == 0 {
        let row = params![name, courier, boot, after.epoch, until];
        return Ok(rows::changed_rows(tx.db, INSERT_DUTY, row)? == 1);
    }
    let row = params![name, courier, boot, after.epoch, until, before.epoch, before.until.ms()];
    Ok(rows::changed_rows(tx.db, UPDATE_DUTY, row)? == 1)
}

/// Rejects a write of a duty that another courier has acquired since, or that was released.
///
/// # Errors
///
/// [`StoreError::DutyLost`].
pub(super) fn check(tx: &mut Tx<'_>, proof: &DutyProof) -> StoreResult<()> {
    if tx.cache.duty.as_ref() == Some(proof) {
        return Ok(());
    }
    let sql = "SELECT epoch, courier FROM duties WHERE name = ?1";
    let found: Option<(i64, Option<String>)> =
        rows::optional(tx.db, sql, [proof.name.to_string()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    match found {
        Some((epoch, Some(_))) if epoch == proof.epoch => {
            tx.cache.duty = Some(proof.clone());
            Ok(())
        }
        _ => Err(StoreError::DutyLost { duty: proof.name.to_string(), epoch: proof.epoch }),
    }
}

fn renew(
    tx: &mut Tx<'_>,
    run: CourierRun,
    tunnels: &BTreeSet<TunnelId>,
    now: Timestamp,
) -> StoreResult<Vec<(Duty, DutyStep)>> {
    tx.cache.duty = None;
    let row = params![run.id.to_string(), run.boot, rows::as_json(tunnels)?, now.ms()];
    if rows::changed_rows(tx.db, REPORT, row)? == 0 {
        return Err(StoreError::CourierReplaced(run.id));
    }
    let plan = plan_duties(run, &couriers(tx.db)?, &duties(tx.db)?, now);
    let mut done = Vec::with_capacity(plan.len());
    for (before, step) in plan {
        let after = match step {
            DutyStep::Acquire => before.clone().acquire(run, now),
            DutyStep::Renew => before.clone().renew(now),
            DutyStep::Release | DutyStep::Leave => {
                done.push((before, step));
                continue;
            }
        };
        if put(tx, &before, &after)? {
            done.push((after, step));
        } else {
            done.push((before, DutyStep::Leave));
        }
    }
    Ok(done)
}

#[async_trait]
impl DutyStore for SqlStore {
    fn is_shared(&self) -> bool {
        matches!(self.readers.source, ReaderSource::Postgres(_))
    }

    async fn server_time(&self) -> StoreResult<Option<Timestamp>> {
        if !self.is_shared() {
            return Ok(None);
        }
        let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
        let ms = self.read(move |db| rows::one(db, sql, [], |row| row.get(0))).await?;
        Ok(Some(Timestamp::from_ms(ms)))
    }

    async fn server_facts(&self) -> StoreResult<Option<ServerFacts>> {
        if !self.is_shared() {
            return Ok(None);
        }
        self.read(ServerFacts::read).await.map(Some)
    }

    async fn register_courier(
        &self,
        id: CourierId,
        tunnels: BTreeSet<TunnelId>,
        now: Timestamp,
    ) -> StoreResult<CourierRun> {
        let is_shared = self.is_shared();
        self.writer
            .run(move |tx| {
                let row = params![id.to_string(), rows::as_json(&tunnels)?, now.ms()];
                rows::execute(tx.db, REGISTER, row)?;
                if !is_shared {
                    // A store that was restored from a backup has a courier with another id.
                    rows::execute(tx.db, ADOPT_DRAFTS, [id.to_string()])?;
                }
                let sql = "SELECT boot FROM couriers WHERE id = ?1";
                let boot = rows::one(tx.db, sql, [id.to_string()], |row| row.get(0))?;
                Ok(CourierRun { id, boot })
            })
            .await
    }

    async fn renew_duties(
        &self,
        run: CourierRun,
        tunnels: BTreeSet<TunnelId>,
        now: Timestamp,
    ) -> StoreResult<Vec<(Duty, DutyStep)>> {
        self.writer.run(move |tx| renew(tx, run, &tunnels, now)).await
    }

    async fn release_duties(&self, duties: Vec<DutyProof>) -> StoreResult<()> {
        self.writer
            .run(move |tx| {
                tx.cache.duty = None;
                for DutyProof { name, epoch } in &duties {
                    rows::execute(tx.db, RELEASE_DUTY, params![name.to_string(), epoch])?;
                }
                Ok(())
            })
            .await
    }

    async fn end_courier(&self, run: CourierRun, now: Timestamp) -> StoreResult<bool> {
        self.writer
            .run(move |tx| {
                tx.cache.duty = None;
                let own = params![run.id.to_string(), run.boot];
                rows::execute(
                    tx.db,
                    "UPDATE couriers SET live = 0 WHERE id = ?1 AND boot = ?2",
                    own,
                )?;
                let sql = "
                    UPDATE duties SET courier = NULL, boot = 0, until = 0
                     WHERE courier = ?1 AND boot = ?2
                ";
                rows::execute(tx.db, sql, params![run.id.to_string(), run.boot])?;
                Ok(!couriers(tx.db)?.iter().any(|it| it.run.id != run.id && it.is_live(now)))
            })
            .await
    }

    async fn couriers(&self) -> StoreResult<Vec<RegisteredCourier>> {
        self.read(couriers).await
    }

    async fn duties(&self) -> StoreResult<Vec<Duty>> {
        self.read(duties).await
    }

    async fn remove_couriers(&self, before: Timestamp) -> StoreResult<usize> {
        let sql = "DELETE FROM couriers WHERE seen_at < ?1";
        self.writer.run(move |tx| rows::changed_rows(tx.db, sql, [before.ms()])).await
    }
}

#[cfg(test)]
mod tests {
    use monoco_core::object::MsgObject;
    use serde_json::json;

    use super::*;
    use crate::sqlite::SqliteStore;
    use crate::{DraftSendRequest, DraftStore, PipelineRouting, SendRequest};

    #[tokio::test]
    async fn drafts_of_a_restored_store_belong_to_its_new_courier() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        let [old, new] = [1, 2].map(|number| CourierId::from_random([number; 16]));
        let now = Timestamp::from_ms(1_770_000_000_000);
        store.register_courier(old, BTreeSet::new(), now).await.unwrap();
        let msg = json!({"from": "did:web:ann", "to": ["did:web:ann"], "kind": "chat",
                         "content": {"content": "hello"}});
        let contact = monoco_core::contact::Contact {
            did: "did:web:ann".parse().unwrap(),
            names: Vec::new(),
            level: monoco_core::contact::ContactLevel::Friend,
            here: true,
            bindings: Vec::new(),
        };
        crate::ContactStore::put_contact(&store, contact, now).await.unwrap();
        let msg = MsgObject::from_json(msg).unwrap();
        let origin = monoco_core::approval::SendOrigin::Owner;
        let post = SendRequest { msg, key: None, not_before: None, origin };
        let (uid, provider) = ("d1".to_owned(), "lark".to_owned());
        let draft = DraftSendRequest { uid, provider, courier: old, post };
        store.send_draft(draft, &PipelineRouting::default(), now).await.unwrap();
        let finished = async |courier| store.finished_drafts(courier, 9).await.unwrap().len();
        assert_eq!((finished(old).await, finished(new).await), (1, 0));
        store.register_courier(new, BTreeSet::new(), now).await.unwrap();
        assert_eq!((finished(old).await, finished(new).await), (0, 1));
    }
}
