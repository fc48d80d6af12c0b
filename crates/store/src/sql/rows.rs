//! Helpers for statements, rows and pages.

use monoco_core::time::Timestamp;
use serde::Serialize;

use super::damage;
use super::db::{Db, Params, Row, RowError, RowResult};
use crate::{Page, PageRequest, StoreError, StoreResult};

/// Runs a statement. PostgreSQL can run it later, before the next statement that reads. A command
/// whose statement fails then is run again, and gets the error itself.
pub(crate) fn execute(db: &Db, sql: &str, params: impl Params) -> StoreResult<()> {
    db.execute(sql, &params)
}

/// Runs a statement and returns the number of changed rows.
pub(crate) fn changed_rows(db: &Db, sql: &str, params: impl Params) -> StoreResult<usize> {
    db.changed_rows(sql, &params)
}

/// Runs a statement that changes one row, as [`execute`] does. Returns `false` when it has not.
pub(crate) fn update_one(db: &Db, sql: &str, params: impl Params) -> StoreResult<bool> {
    db.update_one(sql, &params)
}

/// Inserts one row and returns its number.
pub(crate) fn insert(db: &Db, sql: &str, params: impl Params) -> StoreResult<i64> {
    db.insert(sql, &params)?.ok_or_else(|| no_row("inserted no row"))
}

/// Inserts one row and returns its number, or `None` when it exists. The statement ignores
/// conflicts.
pub(crate) fn insert_new(db: &Db, sql: &str, params: impl Params) -> StoreResult<Option<i64>> {
    db.insert(sql, &params)
}

/// Reads the first row of a query that has at least one.
pub(crate) fn one<T>(
    db: &Db,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> RowResult<T>,
) -> StoreResult<T> {
    optional(db, sql, params, read)?.ok_or_else(|| no_row("the query returned no rows"))
}

/// Returns the first number of a time or later, by bisection, in a table in which times grow with the
/// numbers `ends.0..ends.1`; `None` when all are older. `next` reads number and time of the first row
/// in a range.
pub(crate) fn first_since(
    since: Timestamp,
    ends: (i64, i64),
    next: impl Fn(i64, i64) -> StoreResult<Option<(i64, i64)>>,
) -> StoreResult<Option<i64>> {
    // All rows before `low` are older, and none from `high` on.
    let (mut low, mut high) = ends;
    let mut first = None;
    while low < high {
        let middle = low.midpoint(high);
        match next(middle, high)? {
            Some((number, at)) if since.ms() > at => low = number + 1,
            Some((number, _)) => (first, high) = (Some(number), middle),
            None => high = middle,
        }
    }
    Ok(first)
}

/// Reads the first row of a query, or returns `None` when it has no rows.
pub(crate) fn optional<T>(
    db: &Db,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> RowResult<T>,
) -> StoreResult<Option<T>> {
    let (mut read, mut found) = (Some(read), None);
    db.scan(sql, &params, 1, &mut |row| {
        if let Some(read) = read.take() {
            found = Some(read(row)?);
        }
        Ok(false)
    })?;
    Ok(found)
}

/// Reads all rows of a query.
pub(crate) fn list<T>(
    db: &Db,
    sql: &str,
    params: impl Params,
    mut read: impl FnMut(&Row<'_>) -> RowResult<T>,
) -> StoreResult<Vec<T>> {
    let mut entries = Vec::new();
    db.scan(sql, &params, usize::MAX, &mut |row| {
        entries.push(read(row)?);
        Ok(true)
    })?;
    Ok(entries)
}

/// Calls `visit` for each row of a query until it returns `false`. About `expected` rows are
/// visited.
pub(crate) fn scan(
    db: &Db,
    expected: usize,
    sql: &str,
    params: impl Params,
    mut visit: impl FnMut(&Row<'_>) -> StoreResult<bool>,
) -> StoreResult<()> {
    db.scan(sql, &params, expected, &mut visit)
}

/// Reads up to `limit` rows of a query. Damaged rows are passed over and reported as `what`
/// and their first column. The query has no limit of its own, which would count them.
pub(crate) fn list_undamaged<T>(
    db: &Db,
    what: &str,
    limit: usize,
    sql: &str,
    params: impl Params,
    mut read: impl FnMut(&Row<'_>) -> RowResult<T>,
) -> StoreResult<Vec<T>> {
    let mut entries = Vec::new();
    if limit == 0 {
        return Ok(entries);
    }
    db.scan(sql, &params, limit, &mut |row| {
        let entry = read(row).map_err(Into::into);
        entries.extend(db.unless_damaged(what, damage::key(row), entry)?);
        Ok(entries.len() < limit)
    })?;
    Ok(entries)
}

/// Reads the first column of all rows of a query.
pub(crate) fn numbers(db: &Db, sql: &str, params: impl Params) -> StoreResult<Vec<i64>> {
    list(db, sql, params, |row| row.get(0))
}

/// The comparison operator and the sort order of a page.
pub(crate) fn direction(page: &PageRequest) -> (&'static str, &'static str) {
    if page.newest_first { ("<", "DESC") } else { (">", "ASC") }
}

/// The number that the rows of a page are compared with.
pub(crate) fn start(page: &PageRequest) -> i64 {
    page.beyond.unwrap_or(if page.newest_first { i64::MAX } else { i64::MIN })
}

/// A row limit as SQLite takes it. One below the maximum, so that callers can add one.
pub(crate) fn limit(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX - 1)
}

/// Sorts numbered entries and cuts them to a page. Callers read one entry more than the page
/// has, which shows whether there is another page.
pub(crate) fn page<T>(mut entries: Vec<(i64, T)>, page: &PageRequest) -> Page<T> {
    entries.sort_by_key(|(seq, _)| if page.newest_first { seq.wrapping_neg() } else { *seq });
    let more = entries.len() > page.limit;
    entries.truncate(page.limit);
    let next = entries.last().filter(|_| more).map(|(seq, _)| *seq);
    Page { entries: entries.into_iter().map(|(_, entry)| entry).collect(), next }
}

/// Serialises a value for a JSON column.
pub(crate) fn as_json(value: &impl Serialize) -> StoreResult<String> {
    serde_json::to_string(value)
        .map_err(|error| StoreError::Damaged { what: "row", detail: error.to_string() })
}

/// Rejects a change that is based on an outdated revision.
pub(crate) fn check_revision(
    what: &'static str,
    expected: Option<i64>,
    revision: i64,
) -> StoreResult<()> {
    match expected {
        Some(expected) if expected != revision => Err(StoreError::Conflict { what, revision }),
        _ => Ok(()),
    }
}

/// Converts to SQLite's signed integers. Larger values do not occur and are cut.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(row: &Row<'_>, column: usize) -> RowResult<u64> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|_| damaged(column, "negative"))
}

/// Parses a text column.
pub(crate) fn parsed<T>(row: &Row<'_>, column: usize) -> RowResult<T>
where
    T: std::str::FromStr<Err: std::error::Error>,
{
    row.get_str(column)?.parse().map_err(|error: T::Err| damaged(column, error.to_string()))
}

pub(crate) fn damaged(column: usize, why: impl Into<String>) -> RowError {
    RowError::new(column, why)
}

fn no_row(detail: &str) -> StoreError {
    StoreError::Damaged { what: "row", detail: detail.to_owned() }
}
