//! Helpers for statements, rows and pages.

use rusqlite::{Connection, OptionalExtension, Params, Row};
use serde::Serialize;

use super::damage::{self, Db};
use super::open::db_error;
use crate::{Page, PageRequest, StoreError, StoreResult};

/// Runs a statement and returns the number of changed rows.
pub(crate) fn execute(db: &Connection, sql: &str, params: impl Params) -> StoreResult<usize> {
    db.prepare_cached(sql).and_then(|mut statement| statement.execute(params)).map_err(db_error)
}

/// Inserts one row and returns its number.
pub(super) fn insert(db: &Connection, sql: &str, params: impl Params) -> StoreResult<i64> {
    db.prepare_cached(sql).and_then(|mut statement| statement.insert(params)).map_err(db_error)
}

/// Reads the first row of a query that has at least one.
pub(crate) fn one<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> StoreResult<T> {
    db.prepare_cached(sql)
        .and_then(|mut statement| statement.query_row(params, read))
        .map_err(db_error)
}

/// Reads the first row of a query, or returns `None` when it has no rows.
pub(crate) fn optional<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> StoreResult<Option<T>> {
    db.prepare_cached(sql)
        .and_then(|mut statement| statement.query_row(params, read).optional())
        .map_err(db_error)
}

/// Reads all rows of a query.
pub(crate) fn list<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> StoreResult<Vec<T>> {
    let mut statement = db.prepare_cached(sql).map_err(db_error)?;
    let rows = statement.query_map(params, read).map_err(db_error)?;
    rows.collect::<rusqlite::Result<_>>().map_err(db_error)
}

/// Reads up to `limit` rows of a query. Damaged rows are passed over and reported as `what`
/// and their first column. The query has no limit of its own, which would count them.
pub(super) fn list_undamaged<T>(
    db: &Db,
    what: &str,
    limit: usize,
    sql: &str,
    params: impl Params,
    mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> StoreResult<Vec<T>> {
    let mut statement = db.prepare_cached(sql).map_err(db_error)?;
    let mut rows = statement.query(params).map_err(db_error)?;
    let mut entries = Vec::new();
    while entries.len() < limit
        && let Some(row) = rows.next().map_err(db_error)?
    {
        let entry = read(row).map_err(db_error);
        entries.extend(db.unless_damaged(what, damage::key(row), entry)?);
    }
    Ok(entries)
}

/// Finds the first row of a query on row numbers that `find` can read. Damaged rows are passed
/// over and reported as `what` and their number.
pub(super) fn first_undamaged<T>(
    db: &Db,
    what: &str,
    sql: &str,
    params: impl Params,
    find: impl Fn(i64) -> StoreResult<T>,
) -> StoreResult<Option<T>> {
    let mut statement = db.prepare_cached(sql).map_err(db_error)?;
    let mut rows = statement.query(params).map_err(db_error)?;
    while let Some(row) = rows.next().map_err(db_error)? {
        let seq = row.get(0).map_err(db_error)?;
        let found = db.unless_damaged(what, seq, find(seq))?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Reads the first column of all rows of a query.
pub(crate) fn numbers(db: &Connection, sql: &str, params: impl Params) -> StoreResult<Vec<i64>> {
    list(db, sql, params, |row| row.get(0))
}

/// The comparison operator and the sort order of a page.
pub(super) fn direction(page: &PageRequest) -> (&'static str, &'static str) {
    if page.newest_first { ("<", "DESC") } else { (">", "ASC") }
}

/// The number that the rows of a page are compared with.
pub(super) fn start(page: &PageRequest) -> i64 {
    page.beyond.unwrap_or(if page.newest_first { i64::MAX } else { i64::MIN })
}

/// A row limit as SQLite takes it. One below the maximum, so that callers can add one.
pub(crate) fn limit(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX - 1)
}

/// Sorts numbered entries and cuts them to a page. Callers read one entry more than the page
/// has, which shows whether there is another page.
pub(super) fn page<T>(mut entries: Vec<(i64, T)>, page: &PageRequest) -> Page<T> {
    entries.sort_by_key(|(seq, _)| if page.newest_first { seq.wrapping_neg() } else { *seq });
    let more = entries.len() > page.limit;
    entries.truncate(page.limit);
    let next = entries.last().filter(|_| more).map(|(seq, _)| *seq);
    Page { entries: entries.into_iter().map(|(_, entry)| entry).collect(), next }
}

/// Serialises a value for a JSON column.
pub(super) fn as_json(value: &impl Serialize) -> StoreResult<String> {
    serde_json::to_string(value)
        .map_err(|error| StoreError::Damaged { what: "row", detail: error.to_string() })
}

/// Rejects a change that is based on an outdated revision.
pub(super) fn check_revision(
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
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|_| damaged(column, "negative"))
}

/// Parses a text column.
pub(super) fn parsed<T>(row: &Row<'_>, column: usize) -> rusqlite::Result<T>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    let text: String = row.get(column)?;
    text.parse().map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(
            column,
            rusqlite::types::Type::Text,
            Box::new(error),
        )
    })
}

pub(super) fn damaged(column: usize, why: &'static str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, why.into())
}
