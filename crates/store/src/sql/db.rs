//! The database as commands and reads see it: statements with `?N` parameters, and their rows.
//!
//! There is one text for each statement. [`Db`] passes it to its driver, which is chosen when the
//! store is opened. An enum instead of a trait: each command is compiled once, and a statement of
//! SQLite costs no more than before.

use std::borrow::Cow;
use std::sync::Arc;

use super::damage::DamagedRows;
use crate::postgres::driver::{PgConnection, PgRow};
use crate::postgres::{Assumption, BatchStart, OtherCommits};
use crate::sqlite::driver::SqliteConnection;
use crate::{StoreError, StoreResult};

/// A connection, and where it reports damaged rows.
#[derive(Debug)]
pub(crate) struct Db {
    driver: Driver,
    pub(crate) damaged: Arc<DamagedRows>,
}

#[derive(Debug)]
enum Driver {
    Sqlite(SqliteConnection),
    Postgres(Box<PgConnection>),
}

impl Db {
    pub(crate) const fn sqlite(connection: SqliteConnection, damaged: Arc<DamagedRows>) -> Self {
        Self { driver: Driver::Sqlite(connection), damaged }
    }

    pub(crate) fn postgres(connection: PgConnection, damaged: Arc<DamagedRows>) -> Self {
        Self { driver: Driver::Postgres(Box::new(connection)), damaged }
    }

    /// Runs a statement. PostgreSQL can run it later, before the next statement that reads.
    pub(crate) fn execute(&self, sql: &str, params: &dyn Params) -> StoreResult<()> {
        match &self.driver {
            Driver::Sqlite(db) => db.changed_rows(sql, params).map(drop),
            Driver::Postgres(db) => db.execute(sql, params),
        }
    }

    /// Runs a statement and returns the number of changed rows.
    pub(crate) fn changed_rows(&self, sql: &str, params: &dyn Params) -> StoreResult<usize> {
        match &self.driver {
            Driver::Sqlite(db) => db.changed_rows(sql, params),
            Driver::Postgres(db) => db.changed_rows(sql, params),
        }
    }

    /// Runs a statement that changes one row. Returns `false` when it has not. PostgreSQL can run
    /// it later.
    pub(crate) fn update_one(&self, sql: &str, params: &dyn Params) -> StoreResult<bool> {
        match &self.driver {
            Driver::Sqlite(db) => Ok(db.changed_rows(sql, params)? == 1),
            Driver::Postgres(db) => db.update_one(sql, params),
        }
    }

    /// Inserts one row into a table with numbered rows. Returns its number, or `None` when the
    /// statement ignores conflicts and the row exists.
    pub(crate) fn insert(&self, sql: &str, params: &dyn Params) -> StoreResult<Option<i64>> {
        match &self.driver {
            Driver::Sqlite(db) => db.insert(sql, params),
            Driver::Postgres(db) => db.insert(sql, params),
        }
    }

    /// Calls `visit` for each row of a query until it returns `false`. Callers that stop early say
    /// how many rows they expect to read, so that a driver does not fetch more.
    pub(crate) fn scan(
        &self,
        sql: &str,
        params: &dyn Params,
        expected: usize,
        visit: RowVisitor<'_>,
    ) -> StoreResult<()> {
        match &self.driver {
            // SQLite finds a row when it is asked for.
            Driver::Sqlite(db) => db.scan(sql, params, visit),
            Driver::Postgres(db) => db.scan(sql, params, expected, visit),
        }
    }

    /// Starts the transaction of a batch of commands. PostgreSQL can start it later, by what is
    /// assumed.
    pub(crate) fn begin(&self, assumption: Assumption) -> StoreResult<BatchStart> {
        match &self.driver {
            Driver::Sqlite(db) => {
                db.control(TxControl::Begin)?;
                Ok(BatchStart::Started { others: OtherCommits::None })
            }
            Driver::Postgres(db) => db.begin_batch(assumption),
        }
    }

    /// Commits the transaction of a batch of commands. Other couriers hear whether it has changed
    /// the address book.
    pub(crate) fn commit(&self, address_book: bool) -> StoreResult<()> {
        match &self.driver {
            Driver::Sqlite(db) => db.control(TxControl::Commit),
            Driver::Postgres(db) => db.commit_batch(address_book),
        }
    }

    /// The number of a row after the commit of its batch: on PostgreSQL it can be relative before.
    /// `None` when it cannot be read.
    pub(crate) fn final_number(&self, number: i64) -> Option<i64> {
        match &self.driver {
            Driver::Sqlite(_) => Some(number),
            Driver::Postgres(db) => db.final_number(number),
        }
    }

    /// Makes sure that a commit that was found after a lost connection stays.
    pub(crate) fn confirm_commit(&self) -> StoreResult<()> {
        match &self.driver {
            Driver::Sqlite(_) => Ok(()),
            Driver::Postgres(db) => db.confirm_commit(),
        }
    }

    /// Whether it is unknown if the last batch is committed.
    pub(crate) fn has_unknown_commit(&self) -> bool {
        self.as_postgres().is_some_and(PgConnection::has_unknown_commit)
    }

    /// Runs a statement that controls the transaction.
    pub(crate) fn control(&self, statement: TxControl) -> StoreResult<()> {
        match &self.driver {
            Driver::Sqlite(db) => db.control(statement),
            Driver::Postgres(db) => db.control(statement),
        }
    }

    pub(crate) fn status(&self) -> TxStatus {
        match &self.driver {
            Driver::Sqlite(db) => db.status(),
            Driver::Postgres(db) => db.status(),
        }
    }

    /// The number of rows that were changed since the connection was opened.
    pub(crate) fn total_changes(&self) -> u64 {
        match &self.driver {
            Driver::Sqlite(db) => db.total_changes(),
            Driver::Postgres(db) => db.total_changes(),
        }
    }

    /// The connection, when it is one of PostgreSQL.
    pub(crate) const fn as_postgres(&self) -> Option<&PgConnection> {
        match &self.driver {
            Driver::Sqlite(_) => None,
            Driver::Postgres(db) => Some(db),
        }
    }

    /// The connection to change, when it is one of SQLite.
    pub(crate) const fn as_sqlite_mut(&mut self) -> Option<&mut rusqlite::Connection> {
        match &mut self.driver {
            Driver::Sqlite(db) => Some(db.connection_mut()),
            Driver::Postgres(_) => None,
        }
    }

    /// The connection, when it is one of SQLite.
    pub(crate) const fn as_sqlite(&self) -> Option<&rusqlite::Connection> {
        match &self.driver {
            Driver::Sqlite(db) => Some(db.connection()),
            Driver::Postgres(_) => None,
        }
    }
}

/// Reads one row. Returns whether the next row is wanted.
pub(crate) type RowVisitor<'v> = &'v mut dyn FnMut(&Row<'_>) -> StoreResult<bool>;

/// A statement that controls the transaction of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TxControl {
    /// Starts a transaction that writes.
    Begin,
    /// Starts a transaction whose statements all read one snapshot.
    BeginRead,
    Commit,
    Rollback,
    /// Starts a part of the transaction that can be undone.
    Savepoint,
    /// Undoes what was written since the savepoint.
    Undo,
    /// Ends the part of the savepoint.
    Release,
}

/// The transaction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxStatus {
    /// No transaction is open. Some errors of SQLite roll back by themselves.
    None,
    Open,
    /// A statement failed, and PostgreSQL accepts no other one before the rollback.
    Aborted,
    /// The connection to PostgreSQL is lost, or the server has ended the transaction.
    Lost,
}

/// A value of a parameter or a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SqlValue<'v> {
    Null,
    Integer(i64),
    Text(&'v str),
    Blob(&'v [u8]),
}

/// A Rust value that can be a parameter of a statement.
pub(crate) trait ToParam {
    fn to_param(&self) -> SqlValue<'_>;
}

/// The parameters of one statement.
pub(crate) trait Params {
    fn count(&self) -> usize;
    /// The value of the parameter `?N`, where N is `at + 1`.
    fn value(&self, at: usize) -> SqlValue<'_>;
}

/// A list of parameters of several types.
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        &[$(&$value as &dyn $crate::sql::db::ToParam),*] as &[&dyn $crate::sql::db::ToParam]
    };
}
pub(crate) use params;

impl Params for &[&dyn ToParam] {
    fn count(&self) -> usize {
        self.len()
    }

    fn value(&self, at: usize) -> SqlValue<'_> {
        self[at].to_param()
    }
}

// The type of the elements of an empty list.
impl Params for [i64; 0] {
    fn count(&self) -> usize {
        0
    }

    fn value(&self, _at: usize) -> SqlValue<'_> {
        SqlValue::Null
    }
}

macro_rules! lists_of_params {
    ($($count:literal)*) => {$(
        impl<T: ToParam> Params for [T; $count] {
            fn count(&self) -> usize {
                $count
            }

            fn value(&self, at: usize) -> SqlValue<'_> {
                self[at].to_param()
            }
        }
    )*};
}
lists_of_params!(1 2 3 4 5 6);

macro_rules! integer_params {
    ($($integer:ty)*) => {$(
        impl ToParam for $integer {
            fn to_param(&self) -> SqlValue<'_> {
                SqlValue::Integer(i64::from(*self))
            }
        }
    )*};
}
integer_params!(i64 i32 u32 bool);

macro_rules! text_params {
    ($($text:ty)*) => {$(
        impl ToParam for $text {
            fn to_param(&self) -> SqlValue<'_> {
                SqlValue::Text(self)
            }
        }
    )*};
}
text_params!(str String Cow<'_, str>);

impl ToParam for [u8] {
    fn to_param(&self) -> SqlValue<'_> {
        SqlValue::Blob(self)
    }
}

impl ToParam for Vec<u8> {
    fn to_param(&self) -> SqlValue<'_> {
        SqlValue::Blob(self)
    }
}

impl<const N: usize> ToParam for [u8; N] {
    fn to_param(&self) -> SqlValue<'_> {
        SqlValue::Blob(self)
    }
}

impl<T: ToParam + ?Sized> ToParam for &T {
    fn to_param(&self) -> SqlValue<'_> {
        (**self).to_param()
    }
}

impl<T: ToParam> ToParam for Option<T> {
    fn to_param(&self) -> SqlValue<'_> {
        self.as_ref().map_or(SqlValue::Null, T::to_param)
    }
}

/// One row of a query.
pub(crate) enum Row<'r> {
    Sqlite(&'r rusqlite::Row<'r>),
    Postgres(&'r PgRow),
}

/// Why a column cannot be read.
#[derive(Debug)]
pub(crate) struct RowError {
    column: usize,
    why: String,
}

/// Result of reading a row.
pub(crate) type RowResult<T> = Result<T, RowError>;

impl RowError {
    pub(crate) fn new(column: usize, why: impl Into<String>) -> Self {
        Self { column, why: why.into() }
    }
}

impl From<RowError> for StoreError {
    fn from(error: RowError) -> Self {
        let RowError { column, why } = error;
        Self::Damaged { what: "row", detail: format!("column {column}: {why}") }
    }
}

impl Row<'_> {
    /// Reads a column.
    ///
    /// # Errors
    ///
    /// When the column has another type, or its value is out of range.
    pub(crate) fn get<T: FromColumn>(&self, column: usize) -> RowResult<T> {
        T::from_column(self.get_ref(column)?)
            .map_err(|expected| RowError::new(column, format!("the value is not {expected}")))
    }

    /// Reads a column without copying its value.
    pub(crate) fn get_ref(&self, column: usize) -> RowResult<SqlValue<'_>> {
        match self {
            Row::Sqlite(row) => crate::sqlite::driver::column(row, column),
            Row::Postgres(row) => row.column(column),
        }
    }

    /// Reads a text without copying it.
    pub(crate) fn get_str(&self, column: usize) -> RowResult<&str> {
        match self.get_ref(column)? {
            SqlValue::Text(text) => Ok(text),
            _ => Err(RowError::new(column, "the value is not a text")),
        }
    }
}

/// A Rust value that is read from a column.
pub(crate) trait FromColumn: Sized {
    /// Converts a value. The error says what was expected.
    fn from_column(value: SqlValue<'_>) -> Result<Self, &'static str>;
}

impl FromColumn for i64 {
    fn from_column(value: SqlValue<'_>) -> Result<Self, &'static str> {
        match value {
            SqlValue::Integer(number) => Ok(number),
            _ => Err("an integer"),
        }
    }
}

impl FromColumn for i32 {
    fn from_column(value: SqlValue<'_>) -> Result<Self, &'static str> {
        i64::from_column(value)?.try_into().map_err(|_| "an integer of 32 bits")
    }
}

impl FromColumn for u32 {
    fn from_column(value: SqlValue<'_>) -> Result<Self, &'static str> {
        i64::from_column(value)?.try_into().map_err(|_| "an unsigned integer of 32 bits")
    }
}

impl FromColumn for bool {
    fn from_column(value: SqlValue<'_>) -> Result<Self, &'static str> {
        i64::from_column(value).map(|number| number != 0)
    }
}

impl FromColumn for String {
    fn from_column(value: SqlValue<'_>) -> Result<Self, &'static str> {
        match value {
            SqlValue::Text(text) => Ok(text.to_owned()),
            _ => Err("a text"),
        }
    }
}

impl FromColumn for Vec<u8> {
    fn from_column(value: SqlValue<'_>) -> Result<Self, &'static str> {
        match value {
            SqlValue::Blob(bytes) => Ok(bytes.to_vec()),
            _ => Err("a blob"),
        }
    }
}

impl<const N: usize> FromColumn for [u8; N] {
    fn from_column(value: SqlValue<'_>) -> Result<Self, &'static str> {
        match value {
            SqlValue::Blob(bytes) => bytes.try_into().map_err(|_| "a blob of the right size"),
            _ => Err("a blob"),
        }
    }
}

impl<T: FromColumn> FromColumn for Option<T> {
    fn from_column(value: SqlValue<'_>) -> Result<Self, &'static str> {
        match value {
            SqlValue::Null => Ok(None),
            value => T::from_column(value).map(Some),
        }
    }
}
