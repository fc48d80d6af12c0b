//! Rows and pages: what every family of tables reads and cuts the same way.

use rusqlite::{Connection, Row, ToSql};
use serde::Serialize;

use super::open::fault;
use crate::{Page, PageRequest, StoreError};

/// The comparison and the order that walk a list in the window's direction.
pub(super) fn range(window: &PageRequest) -> (&'static str, &'static str) {
    if window.newest_first { ("<", "DESC") } else { (">", "ASC") }
}

pub(super) fn start(window: &PageRequest) -> i64 {
    window.beyond.unwrap_or(if window.newest_first { i64::MAX } else { i64::MIN })
}

pub(super) fn count(window: &PageRequest) -> i64 {
    limit(window.limit)
}

pub(super) fn limit(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX - 1)
}

/// Puts entries in order and cuts them to a page. There is one more than fits
/// when there is another page.
pub(super) fn cut<T>(mut entries: Vec<(i64, T)>, window: &PageRequest) -> Page<T> {
    entries.sort_by_key(|(seq, _)| if window.newest_first { seq.wrapping_neg() } else { *seq });
    let more = entries.len() > window.limit;
    entries.truncate(window.limit);
    let next = entries.last().filter(|_| more).map(|(seq, _)| *seq);
    Page { entries: entries.into_iter().map(|(_, entry)| entry).collect(), next }
}

pub(super) fn seqs(db: &Connection, sql: &str, row: &[&dyn ToSql]) -> Result<Vec<i64>, StoreError> {
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let rows = statement.query_map(row, |row| row.get(0)).map_err(fault)?;
    rows.collect::<rusqlite::Result<_>>().map_err(fault)
}

/// A value as a column of JSON has it. All that is kept so has such a text.
pub(super) fn as_json(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value)
        .map_err(|error| StoreError::Damaged { what: "row", detail: error.to_string() })
}

pub(super) fn check_revision(
    what: &'static str,
    seen: Option<i64>,
    revision: i64,
) -> Result<(), StoreError> {
    match seen {
        Some(seen) if seen != revision => Err(StoreError::Conflict { what, revision }),
        _ => Ok(()),
    }
}

/// Epochs and counts are stored signed, for that is what SQLite has.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|_| damaged(column, "negative"))
}

pub(super) fn damaged(column: usize, why: &'static str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, why.into())
}
