//! Counters of events per minute.

use async_trait::async_trait;
use monoco_core::event::EventKind;
use monoco_core::figures::{Figure, FigureKey, minute_of};
use monoco_core::time::Timestamp;

use super::db::{Row, RowResult, params};
use super::retention::{progress, set_progress};
use super::writer::Tx;
use super::{SqlStore, rows};
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
    SELECT (minute / ?2) * ?2 AS start, kind, tunnel, worker, SUM(count)
      FROM figures
     WHERE minute >= ?1
     GROUP BY start, kind, tunnel, worker
     ORDER BY start, kind, tunnel, worker
     LIMIT ?3
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
        let from = minute_of(since);
        let page = params_of(from, step_minutes, limit);
        self.read(move |db| rows::list(db, LIST, page, read)).await
    }
}

fn params_of(from: i64, step: i64, limit: usize) -> [i64; 3] {
    [from, step.max(1), rows::limit(limit)]
}
