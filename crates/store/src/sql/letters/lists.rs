//! Queries for letters: due, held, away, dead, or by a filter.

use monoco_core::letter::{LetterId, LetterState};
use monoco_core::time::Timestamp;

use super::rows::{self, LetterWithTexts};
use crate::sql::damage;
use crate::sql::db::{Db, Row, RowResult, SqlValue, params};
use crate::sql::rows as sql;
use crate::{LetterQuery, Page, PageRequest, StoreResult};

/// Rows that a search reads for one page. Few in tests, so that they reach the limit.
const MAX_ROWS_SEARCHED: usize = if cfg!(test) { 5 } else { 10_000 };

/// Letters of one message that are listed.
const MAX_OF_OBJECT: usize = 1_000;

// Conditions and orders for `rows::list`.
pub(super) const DUE: &str =
    "l.state = 'WAITING' AND l.worker = ?1 AND l.due_at <= ?2 ORDER BY l.due_at, l.seq";
pub(super) const HELD: &str = "l.held_by = ?1 AND l.hold_key = ?2 ORDER BY l.seq";
pub(super) const AWAY: &str = "l.state = 'AWAY' AND l.worker = ?1 ORDER BY l.until, l.seq";
pub(super) const DEAD: &str = "l.state = 'DEAD' AND l.state <> 'DONE' ORDER BY l.seq";

pub(super) const POSTPONE_DUE: &str = "
    UPDATE letters
       SET due_at = ?3
     WHERE state = 'WAITING' AND worker = ?1 AND due_at <= ?2
";

pub(super) const NEXT_DUE: &str = "
    SELECT due_at
      FROM letters
     WHERE state = 'WAITING' AND worker = ?1
     ORDER BY due_at
     LIMIT 1
";

/// When the next letter of a worker is due.
pub(super) fn next_due(db: &Db, worker: &str) -> StoreResult<Option<Timestamp>> {
    let at = sql::optional(db, NEXT_DUE, [worker], |row| row.get(0))?;
    Ok(at.map(Timestamp::from_ms))
}

pub(super) fn by_id(db: &Db, id: LetterId) -> StoreResult<LetterWithTexts> {
    let found = by_seq(db, id.seq)?;
    found.filter(|letter| letter.head.id == id).ok_or_else(|| rows::missing(id))
}

fn by_seq(db: &Db, seq: i64) -> StoreResult<Option<LetterWithTexts>> {
    Ok(rows::list(db, "l.seq = ?1", params![seq], 1)?.pop())
}

/// Lists letters that were created from an object or became it.
pub(super) fn of_object(db: &Db, object: i64) -> StoreResult<Vec<LetterWithTexts>> {
    let mut found = Vec::new();
    for select in [
        "SELECT seq FROM letters WHERE object = ?1 ORDER BY seq LIMIT ?2",
        "SELECT seq FROM letters WHERE became = ?1 ORDER BY seq LIMIT ?2",
    ] {
        found.extend(sql::numbers(db, select, params![object, sql::limit(MAX_OF_OBJECT)])?);
    }
    found.sort_unstable();
    found.dedup();
    found.truncate(MAX_OF_OBJECT);
    let letters = found.into_iter().map(|seq| by_seq(db, seq));
    letters.filter_map(Result::transpose).collect()
}

/// Lists letters by number.
pub(super) fn page(
    db: &Db,
    query: &LetterQuery,
    page: &PageRequest,
) -> StoreResult<Page<LetterWithTexts>> {
    let from = match query.since {
        Some(since) => first_since(db, since)?,
        None => i64::MIN,
    };
    // Only letters in these states have a worker.
    let with_worker = [LetterState::Waiting, LetterState::Away, LetterState::Dead];
    let states = match (&query.worker, query.states.is_empty()) {
        (Some(_), true) => &with_worker[..],
        _ => &query.states,
    };
    let mut scans = Vec::new();
    // There is no index for DONE, because most letters are done.
    if states.is_empty() || states.contains(&LetterState::Done) {
        scans.push(scan(db, query, states, None, from, page)?);
    } else {
        for state in states {
            scans.push(scan(db, query, states, Some(*state), from, page)?);
        }
    }
    let order = |seq: &i64| if page.newest_first { seq.wrapping_neg() } else { *seq };
    // Behind the first number where a scan was cut, matches can be missing.
    let cut = scans.iter().filter_map(|scan| scan.cut).min_by_key(order);
    let mut found: Vec<i64> = scans.into_iter().flat_map(|scan| scan.found).collect();
    found.sort_unstable_by_key(order);
    found.dedup();
    if let Some(cut) = cut {
        found.retain(|seq| order(seq) <= order(&cut));
    }
    let more = found.len() > page.limit;
    found.truncate(page.limit);
    let next = if more { found.last().copied() } else { cut };
    let entries = found.into_iter().map(|seq| by_seq(db, seq)).filter_map(Result::transpose);
    Ok(Page { entries: entries.collect::<Result<_, _>>()?, next })
}

/// Result of one range scan.
struct PageScan {
    found: Vec<i64>,
    /// The last number that was read, when the scan stopped at [`MAX_ROWS_SEARCHED`].
    cut: Option<i64>,
}

/// The statement that scans all letters, or those of one state.
pub(super) fn scan_sql(by_state: bool, page: &PageRequest) -> String {
    let (beyond, order) = sql::direction(page);
    let state = if by_state { "AND state = ?4 AND state <> 'DONE'" } else { "" };
    format!(
        "SELECT seq, state, direction, tunnel, worker, held_by, created_at
           FROM letters
          WHERE seq {beyond} ?1 AND seq >= ?2 {state}
          ORDER BY seq {order}
          LIMIT ?3"
    )
}

fn scan(
    db: &Db,
    query: &LetterQuery,
    states: &[LetterState],
    state: Option<LetterState>,
    from: i64,
    page: &PageRequest,
) -> StoreResult<PageScan> {
    let limit = sql::limit(MAX_ROWS_SEARCHED);
    let (start, name) = (sql::start(page), state.map(LetterState::as_str));
    let values = params![start, from, limit, name];
    let values = if state.is_some() { values } else { &values[..3] };
    let (mut found, mut searched, mut last, mut full) = (Vec::new(), 0, None, false);
    let expected = page.limit.saturating_add(2);
    sql::scan(db, expected, &scan_sql(state.is_some(), page), values, |row| {
        full = found.len() > page.limit;
        if full {
            return Ok(false);
        }
        searched += 1;
        last = Some(row.get(0)?);
        let matches = matches(row, query, states).map_err(Into::into);
        if db.unless_damaged("letter", damage::key(row), matches)? == Some(true) {
            found.extend(last);
        }
        Ok(true)
    })?;
    Ok(PageScan { found, cut: last.filter(|_| !full && searched >= MAX_ROWS_SEARCHED) })
}

fn matches(row: &Row<'_>, query: &LetterQuery, states: &[LetterState]) -> RowResult<bool> {
    let is =
        |column, expected: &str| row.get_ref(column).map(|value| value == SqlValue::Text(expected));
    let state: String = row.get(1)?;
    if !states.is_empty() && !states.iter().any(|expected| expected.as_str() == state) {
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

/// The number of the first letter that was created at this time or later, by binary search. The
/// courier's clock does not go back, so that numbers and times rise together.
fn first_since(db: &Db, since: Timestamp) -> StoreResult<i64> {
    let select = "SELECT seq, created_at FROM letters WHERE seq >= ?1 ORDER BY seq LIMIT 1";
    let newest: i64 =
        sql::one(db, "SELECT coalesce(max(seq), 0) FROM letters", [], |row| row.get(0))?;
    // Letters below `low` are older than `since`, letters from `high` on are not.
    let (mut low, mut high) = (0, newest + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        let found: Option<(i64, i64)> =
            sql::optional(db, select, [middle], |row| Ok((row.get(0)?, row.get(1)?)))?;
        match found {
            Some((seq, at)) if at < since.ms() => low = seq + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}
