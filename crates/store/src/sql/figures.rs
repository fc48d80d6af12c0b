//! Counters of events per minute, and how long deliveries and letters wait.

use async_trait::async_trait;
use monoco_core::event::EventKind;
use monoco_core::figures::{Figure, FigureKey, WaitingAge, minute_of};
use monoco_core::time::Timestamp;

use super::db::{Db, Row, RowResult, params};
use super::retention::{progress, set_progress};
use super::writer::Tx;
use super::{SqlStore, counts, deliveries, rows};
use crate::{FigureStore, StoreResult};

/// Name of the last counted event in the table `progress`.
const COUNTED_EVENTS: &str = "counted_events";

const ADD: &str = "
    INSERT INTO figures (minute, kind, tunnel, worker, count)
    VALUES (?1, ?2, ?3, ?4, ?5)
        ON CONFLICT (minute, kind, tunnel, worker) DO UPDATE
       SET count = figures.count + excluded.count
";

const LIST: &str = "
    SELECT (minute / ?2) * ?2 AS start, kind, tunnel, worker, CAST(SUM(count) AS BIGINT)
      FROM figures
     WHERE minute >= ?1
     GROUP BY start, kind, tunnel, worker
     ORDER BY start, kind, tunnel, worker
     LIMIT ?3
";

const PUT_AGE: &str = "
    INSERT INTO waiting_ages (minute, tunnel, worker, oldest_ms)
    VALUES (?1, ?2, ?3, ?4)
        ON CONFLICT (minute, tunnel, worker) DO UPDATE
       SET oldest_ms = excluded.oldest_ms
     WHERE waiting_ages.oldest_ms < excluded.oldest_ms
";

const LIST_AGES: &str = "
    SELECT (minute / ?2) * ?2 AS start, tunnel, worker, max(oldest_ms)
      FROM waiting_ages
     WHERE minute >= ?1
     GROUP BY start, tunnel, worker
     ORDER BY start, tunnel, worker
     LIMIT ?3
";

// Two seeks: the letter that is due first, and the one whose worker has to answer first.
const OLDEST_OF_WORKER: &str = "
    SELECT min(o.at)
      FROM (SELECT w.at
              FROM (SELECT created_at AS at FROM letters
                     WHERE state = 'WAITING' AND worker = ?1 ORDER BY due_at, seq LIMIT 1) AS w
            UNION ALL
            SELECT a.at
              FROM (SELECT created_at AS at FROM letters
                     WHERE state = 'AWAY' AND worker = ?1 ORDER BY until, seq LIMIT 1) AS a) AS o
";

fn read(row: &Row<'_>) -> RowResult<Figure> {
    let kind: String = row.get(1)?;
    let kind = EventKind::parse(&kind).ok_or_else(|| rows::damaged(1, "unknown kind"))?;
    let (tunnel, worker) = (row.get(2)?, row.get(3)?);
    let key = FigureKey { minute: row.get(0)?, kind, tunnel, worker };
    Ok(Figure { key, count: row.get(4)? })
}

fn add(
    tx: &mut Tx<'_>,
    after: i64,
    up_to: i64,
    figures: &[Figure],
    keep_from: Timestamp,
) -> StoreResult<bool> {
    if progress(tx.db, COUNTED_EVENTS)?.unwrap_or(0) != after {
        return Ok(false);
    }
    for Figure { key, count } in figures {
        let FigureKey { minute, kind, tunnel, worker } = key;
        rows::execute(tx.db, ADD, params![minute, kind.as_str(), tunnel, worker, count])?;
    }
    rows::execute(tx.db, "DELETE FROM figures WHERE minute < ?1", [minute_of(keep_from)])?;
    set_progress(tx.db, COUNTED_EVENTS, up_to)?;
    Ok(true)
}

/// How long the oldest items have been waiting: deliveries by tunnel, letters by worker.
fn oldest(db: &Db, now: Timestamp) -> StoreResult<Vec<WaitingAge>> {
    let minute = minute_of(now);
    let age = |at: Timestamp| now.ms().saturating_sub(at.ms()).max(0);
    let mut ages = Vec::new();
    for (tunnel, at) in deliveries::oldest_waiting_by_tunnel(db)? {
        ages.push(WaitingAge { minute, tunnel, worker: String::new(), oldest_ms: age(at) });
    }
    for worker in counts::workers_with_letters(db)? {
        let at: Option<i64> = rows::one(db, OLDEST_OF_WORKER, [&worker], |row| row.get(0))?;
        let Some(at) = at.map(Timestamp::from_ms) else { continue };
        ages.push(WaitingAge { minute, tunnel: String::new(), worker, oldest_ms: age(at) });
    }
    Ok(ages)
}

fn put_ages(tx: &Tx<'_>, ages: &[WaitingAge], keep_from: Timestamp) -> StoreResult<()> {
    for WaitingAge { minute, tunnel, worker, oldest_ms } in ages {
        rows::execute(tx.db, PUT_AGE, params![minute, tunnel, worker, oldest_ms])?;
    }
    rows::execute(tx.db, "DELETE FROM waiting_ages WHERE minute < ?1", [minute_of(keep_from)])?;
    Ok(())
}

fn read_age(row: &Row<'_>) -> RowResult<WaitingAge> {
    let (minute, tunnel, worker) = (row.get(0)?, row.get(1)?, row.get(2)?);
    Ok(WaitingAge { minute, tunnel, worker, oldest_ms: row.get(3)? })
}

#[async_trait]
impl FigureStore for SqlStore {
    async fn counted_events(&self) -> StoreResult<i64> {
        self.read(|db| Ok(progress(db, COUNTED_EVENTS)?.unwrap_or(0))).await
    }

    async fn add_figures(
        &self,
        after: i64,
        up_to: i64,
        figures: Vec<Figure>,
        keep_from: Timestamp,
    ) -> StoreResult<bool> {
        self.writer.run(move |tx| add(tx, after, up_to, &figures, keep_from)).await
    }

    async fn figures(
        &self,
        since: Timestamp,
        step_minutes: i64,
        limit: usize,
    ) -> StoreResult<Vec<Figure>> {
        let page = [minute_of(since), step_minutes.max(1), rows::limit(limit)];
        self.read(move |db| rows::list(db, LIST, page, read)).await
    }

    async fn sample_waiting(&self, now: Timestamp, keep_from: Timestamp) -> StoreResult<bool> {
        let ages = self.read(move |db| oldest(db, now)).await?;
        let waits = !ages.is_empty();
        if waits {
            self.writer.run(move |tx| put_ages(tx, &ages, keep_from)).await?;
        }
        Ok(waits)
    }

    async fn waiting_ages(
        &self,
        since: Timestamp,
        step_minutes: i64,
        limit: usize,
    ) -> StoreResult<Vec<WaitingAge>> {
        let page = [minute_of(since), step_minutes.max(1), rows::limit(limit)];
        self.read(move |db| rows::list(db, LIST_AGES, page, read_age)).await
    }
}
