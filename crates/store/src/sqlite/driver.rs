//! Statements and rows of SQLite.

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql, params_from_iter};

use super::open::db_error;
use crate::StoreResult;
use crate::sql::db::{Params, Row, RowError, RowResult, RowVisitor, SqlValue, TxControl, TxStatus};

/// A connection to an SQLite database.
#[derive(Debug)]
pub(crate) struct SqliteConnection(Connection);

impl SqliteConnection {
    pub(crate) const fn new(connection: Connection) -> Self {
        Self(connection)
    }

    pub(crate) const fn connection(&self) -> &Connection {
        &self.0
    }

    pub(crate) const fn connection_mut(&mut self) -> &mut Connection {
        &mut self.0
    }

    pub(crate) fn changed_rows(&self, sql: &str, params: &dyn Params) -> StoreResult<usize> {
        let mut statement = self.0.prepare_cached(sql).map_err(db_error)?;
        statement.execute(params_from_iter(values(params))).map_err(db_error)
    }

    /// Inserts a row, whose number SQLite assigns. `None` when the row exists.
    pub(crate) fn insert(&self, sql: &str, params: &dyn Params) -> StoreResult<Option<i64>> {
        // No RETURNING clause: SQLite would build a temporary table for its result and keep a
        // statement journal, which costs more than the insert.
        let inserted = self.changed_rows(sql, params)?;
        Ok((inserted == 1).then(|| self.0.last_insert_rowid()))
    }

    pub(crate) fn scan(
        &self,
        sql: &str,
        params: &dyn Params,
        visit: RowVisitor<'_>,
    ) -> StoreResult<()> {
        let mut statement = self.0.prepare_cached(sql).map_err(db_error)?;
        let mut rows = statement.query(params_from_iter(values(params))).map_err(db_error)?;
        while let Some(row) = rows.next().map_err(db_error)? {
            if !visit(&Row::Sqlite(row))? {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn control(&self, statement: TxControl) -> StoreResult<()> {
        let sql = match statement {
            TxControl::Begin => "BEGIN IMMEDIATE",
            TxControl::BeginRead => "BEGIN",
            TxControl::Commit => "COMMIT",
            TxControl::Rollback => "ROLLBACK",
            TxControl::Savepoint => "SAVEPOINT command",
            TxControl::Undo => "ROLLBACK TO command",
            TxControl::Release => "RELEASE command",
        };
        let mut statement = self.0.prepare_cached(sql).map_err(db_error)?;
        statement.raw_execute().map_err(db_error)?;
        Ok(())
    }

    pub(crate) fn status(&self) -> TxStatus {
        if self.0.is_autocommit() { TxStatus::None } else { TxStatus::Open }
    }

    pub(crate) fn total_changes(&self) -> u64 {
        self.0.total_changes()
    }
}

fn values(params: &dyn Params) -> impl Iterator<Item = SqlValue<'_>> {
    (0..params.count()).map(|at| params.value(at))
}

impl ToSql for SqlValue<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match *self {
            Self::Null => ValueRef::Null,
            Self::Integer(number) => ValueRef::Integer(number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

/// Reads a column of a row.
pub(crate) fn column<'r>(row: &'r rusqlite::Row<'_>, column: usize) -> RowResult<SqlValue<'r>> {
    match row.get_ref(column) {
        Ok(ValueRef::Null) => Ok(SqlValue::Null),
        Ok(ValueRef::Integer(number)) => Ok(SqlValue::Integer(number)),
        Ok(ValueRef::Text(text)) => match str::from_utf8(text) {
            Ok(text) => Ok(SqlValue::Text(text)),
            Err(error) => Err(RowError::new(column, error.to_string())),
        },
        Ok(ValueRef::Blob(bytes)) => Ok(SqlValue::Blob(bytes)),
        Ok(ValueRef::Real(_)) => Err(RowError::new(column, "found a floating-point number")),
        Err(error) => Err(RowError::new(column, error.to_string())),
    }
}
