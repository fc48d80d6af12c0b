//! Which letters there are: due, kept, away, dead, or as somebody asks.

use monoco_core::letter::{LetterId, LetterState, WorkerName};
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::rows::{self, LetterWithTexts};
use crate::sqlite::open::fault;
use crate::sqlite::rows::{limit as most, range, seqs, start};
use crate::{LetterQuery, Page, PageRequest, StoreError};

/// Most rows that a search looks at for one page. Few in tests, so that they get there.
const SEARCHED: usize = if cfg!(test) { 5 } else { 10_000 };

/// Most letters of one message that are shown.
const SHOWN: usize = 1_000;

pub(super) const DUE: &str =
    "l.state = 'WAITING' AND l.desk = ?1 AND l.due_at <= ?2 ORDER BY l.due_at, l.seq LIMIT ?3";

pub(super) const NEXT: &str = "
    SELECT due_at
      FROM letters
     WHERE state = 'WAITING' AND desk = ?1
     ORDER BY due_at
     LIMIT 1
";

pub(super) const KEPT: &str = "l.kept_by = ?1 AND l.keep_key = ?2 ORDER BY l.seq LIMIT ?3";

pub(super) const AWAY: &str = "l.state = 'AWAY' AND l.desk = ?1 ORDER BY l.until, l.seq LIMIT ?2";

pub(super) const DEAD: &str = "l.state = 'DEAD' AND l.state <> 'DONE' ORDER BY l.seq LIMIT ?1";

pub(super) fn due(
    db: &Connection,
    desk: &str,
    limit: usize,
    now: Timestamp,
) -> Result<Vec<LetterWithTexts>, StoreError> {
    rows::bundles(db, DUE, params![desk, now.ms(), most(limit)])
}

pub(super) fn next(db: &Connection, desk: &str) -> Result<Option<Timestamp>, StoreError> {
    let mut statement = db.prepare_cached(NEXT).map_err(fault)?;
    let at = statement.query_row([desk], |row| row.get(0)).optional().map_err(fault)?;
    Ok(at.map(Timestamp::from_ms))
}

pub(super) fn kept(
    db: &Connection,
    by: &WorkerName,
    key: &str,
    limit: usize,
) -> Result<Vec<LetterWithTexts>, StoreError> {
    rows::bundles(db, KEPT, params![by.as_str(), key, most(limit)])
}

pub(super) fn away(
    db: &Connection,
    desk: &WorkerName,
    limit: usize,
) -> Result<Vec<LetterWithTexts>, StoreError> {
    rows::bundles(db, AWAY, params![desk.as_str(), most(limit)])
}

pub(super) fn dead(db: &Connection, limit: usize) -> Result<Vec<LetterWithTexts>, StoreError> {
    rows::bundles(db, DEAD, params![most(limit)])
}

pub(super) fn one(db: &Connection, id: LetterId) -> Result<LetterWithTexts, StoreError> {
    let found = by_seq(db, id.seq)?;
    found.filter(|bundle| bundle.stub.id == id).ok_or_else(|| rows::missing(id))
}

fn by_seq(db: &Connection, seq: i64) -> Result<Option<LetterWithTexts>, StoreError> {
    Ok(rows::bundles(db, "l.seq = ?1", params![seq])?.pop())
}

/// Letters that were made of an object, or became it.
pub(super) fn of_object(db: &Connection, object: i64) -> Result<Vec<LetterWithTexts>, StoreError> {
    let mut found = Vec::new();
    for sql in [
        "SELECT seq FROM letters WHERE object = ?1 ORDER BY seq LIMIT ?2",
        "SELECT seq FROM letters WHERE became = ?1 ORDER BY seq LIMIT ?2",
    ] {
        found.extend(seqs(db, sql, params![object, most(SHOWN)])?);
    }
    found.sort_unstable();
    found.dedup();
    found.truncate(SHOWN);
    let bundles = found.into_iter().map(|seq| by_seq(db, seq));
    bundles.filter_map(Result::transpose).collect()
}

/// Letters by number, newest or oldest first.
pub(super) fn page(
    db: &Connection,
    query: &LetterQuery,
    window: &PageRequest,
) -> Result<Page<LetterWithTexts>, StoreError> {
    let from = match query.since {
        Some(since) => first_since(db, since)?,
        None => i64::MIN,
    };
    // Only such letters are with a worker.
    let with_worker = [LetterState::Waiting, LetterState::Away, LetterState::Dead];
    let states = match (&query.worker, query.states.is_empty()) {
        (Some(_), true) => &with_worker[..],
        _ => &query.states,
    };
    let (mut found, mut cuts) = (Vec::new(), Vec::new());
    // Most letters are done, and have no index for that.
    if states.is_empty() || states.contains(&LetterState::Done) {
        let walked = walk(db, query, states, None, from, window)?;
        found.extend(walked.found);
        cuts.extend(walked.cut);
    } else {
        for state in states {
            let walked = walk(db, query, states, Some(*state), from, window)?;
            found.extend(walked.found);
            cuts.extend(walked.cut);
        }
    }
    let order = |seq: &i64| if window.newest_first { seq.wrapping_neg() } else { *seq };
    found.sort_unstable_by_key(order);
    found.dedup();
    // Behind the nearest place where a walk stopped, something may have been missed.
    let cut = cuts.into_iter().min_by_key(order);
    if let Some(cut) = cut {
        found.retain(|seq| order(seq) <= order(&cut));
    }
    let more = found.len() > window.limit;
    found.truncate(window.limit);
    let next = if more { found.last().copied() } else { cut };
    let entries = found.into_iter().map(|seq| by_seq(db, seq)).filter_map(Result::transpose);
    Ok(Page { entries: entries.collect::<Result<_, _>>()?, next })
}

/// What a walk along the letters found.
struct PageScan {
    found: Vec<i64>,
    /// Where it stopped, because it had looked at enough.
    cut: Option<i64>,
}

/// The walk along all letters, or along those of one state.
pub(super) fn walk_sql(of_state: bool, window: &PageRequest) -> String {
    let (beyond, order) = range(window);
    let state = if of_state { "AND state = ?4 AND state <> 'DONE'" } else { "AND ?4 IS NULL" };
    format!(
        "SELECT seq, state, direction, tunnel, desk, kept_by, created_at
           FROM letters
          WHERE seq {beyond} ?1 AND seq >= ?2 {state}
          ORDER BY seq {order}
          LIMIT ?3"
    )
}

fn walk(
    db: &Connection,
    query: &LetterQuery,
    states: &[LetterState],
    state: Option<LetterState>,
    from: i64,
    window: &PageRequest,
) -> Result<PageScan, StoreError> {
    let mut statement = db.prepare_cached(&walk_sql(state.is_some(), window)).map_err(fault)?;
    let values = params![start(window), from, most(SEARCHED), state.map(LetterState::as_str)];
    let mut rows = statement.query(values).map_err(fault)?;
    let (mut found, mut seen, mut last) = (Vec::new(), 0, None);
    while let Some(row) = rows.next().map_err(fault)? {
        if found.len() > window.limit {
            return Ok(PageScan { found, cut: None });
        }
        seen += 1;
        last = Some(row.get(0).map_err(fault)?);
        if is_wanted(row, query, states).map_err(fault)? {
            found.extend(last);
        }
    }
    Ok(PageScan { found, cut: last.filter(|_| seen >= SEARCHED) })
}

fn is_wanted(row: &Row<'_>, query: &LetterQuery, states: &[LetterState]) -> rusqlite::Result<bool> {
    let is = |column, wanted: &str| {
        Ok::<_, rusqlite::Error>(row.get_ref(column)?.as_str_or_null()? == Some(wanted))
    };
    let state: String = row.get(1)?;
    if !states.is_empty() && !states.iter().any(|wanted| wanted.as_str() == state) {
        return Ok(false);
    }
    if let Some(direction) = query.direction
        && !is(2, direction.as_str())?
    {
        return Ok(false);
    }
    if let Some(tunnel) = &query.tunnel
        && !is(3, tunnel.as_str())?
    {
        return Ok(false);
    }
    if let Some(worker) = &query.worker
        && !is(4, worker.as_str())?
        && !is(5, worker.as_str())?
    {
        return Ok(false);
    }
    let created_at = Timestamp::from_ms(row.get(6)?);
    Ok(query.since.is_none_or(|since| created_at >= since))
}

/// The number from which on letters came at this time or later. Our clock does not go
/// back, so that numbers and times rise together.
fn first_since(db: &Connection, since: Timestamp) -> Result<i64, StoreError> {
    let sql = "SELECT seq, created_at FROM letters WHERE seq >= ?1 ORDER BY seq LIMIT 1";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let newest = db
        .prepare_cached("SELECT coalesce(max(seq), 0) FROM letters")
        .and_then(|mut s| s.query_row([], |row| row.get::<_, i64>(0)))
        .map_err(fault)?;
    // All before `low` are older, all from `high` on are not.
    let (mut low, mut high) = (0, newest + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        let found: Option<(i64, i64)> = statement
            .query_row([middle], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()
            .map_err(fault)?;
        match found {
            Some((seq, at)) if at < since.ms() => low = seq + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}
