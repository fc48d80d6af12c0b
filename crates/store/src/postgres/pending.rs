//! Statements that are sent together with the next one that reads.
//!
//! Rows that a statement inserts are sent as one statement with arrays, if no other statement on
//! the same table is between them, and so are updates of different rows. So a batch of dispatches
//! inserts its objects with one statement, and its records with another. No table refers to another
//! one, so that the order of statements on different tables does not matter.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::driver::PreparedStatement;
use crate::StoreResult;
use crate::sql::db::SqlValue;

/// Rows and bytes at which deferred statements are sent. They bound the memory of a batch.
const MAX_ROWS: usize = 4_096;
const MAX_BYTES: usize = 4 << 20;

/// Deferred statements, in the order in which they are sent.
#[derive(Debug, Default)]
pub(super) struct PendingWrites {
    writes: Vec<PendingWrite>,
    rows: usize,
    bytes: usize,
}

/// A statement and the rows of parameters with which it is run.
#[derive(Debug)]
struct PendingWrite {
    prepared: Arc<PreparedStatement>,
    rows: Vec<Vec<OwnedValue>>,
    /// The number of rows that one run must change.
    expected: Option<u64>,
    /// The numbers of the rows that an update changes.
    updated: HashSet<i64>,
}

/// A parameter of a deferred statement.
#[derive(Debug)]
enum OwnedValue {
    Null,
    Integer(i64),
    Text(String),
    Blob(Vec<u8>),
}

/// Deferred statements, and the same statements with arrays.
pub(super) struct PreparedWrites(Vec<(PendingWrite, Option<Arc<PreparedStatement>>)>);

impl OwnedValue {
    fn new(value: &SqlValue<'_>) -> Self {
        match *value {
            SqlValue::Null => Self::Null,
            SqlValue::Integer(number) => Self::Integer(number),
            SqlValue::Text(text) => Self::Text(text.to_owned()),
            SqlValue::Blob(bytes) => Self::Blob(bytes.to_vec()),
        }
    }

    fn as_value(&self) -> SqlValue<'_> {
        match self {
            Self::Null => SqlValue::Null,
            Self::Integer(number) => SqlValue::Integer(*number),
            Self::Text(text) => SqlValue::Text(text),
            Self::Blob(bytes) => SqlValue::Blob(bytes),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Null | Self::Integer(_) => 8,
            Self::Text(text) => text.len(),
            Self::Blob(bytes) => bytes.len(),
        }
    }
}

impl PendingWrites {
    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Adds a statement. Returns whether the statements should be sent.
    pub(super) fn add(
        &mut self,
        prepared: Arc<PreparedStatement>,
        values: &[SqlValue<'_>],
        expected: Option<u64>,
    ) -> bool {
        let row: Vec<OwnedValue> = values.iter().map(OwnedValue::new).collect();
        self.rows += 1;
        self.bytes += row.iter().map(OwnedValue::bytes).sum::<usize>();
        let table = prepared.translation.table.as_deref();
        let related = |write: &&mut PendingWrite| {
            let other = write.prepared.translation.table.as_deref();
            table.is_none() || other.is_none() || other == table
        };
        // One statement changes a row once.
        let number = match values.first() {
            Some(SqlValue::Integer(number)) if prepared.translation.updates_by_number() => {
                Some(*number)
            }
            _ => None,
        };
        if let Some(write) = self.writes.iter_mut().rev().find(related)
            && table.is_some()
            && Arc::ptr_eq(&write.prepared, &prepared)
            && number.is_none_or(|number| write.updated.insert(number))
        {
            write.rows.push(row);
        } else {
            let updated = number.into_iter().collect();
            self.writes.push(PendingWrite { prepared, rows: vec![row], expected, updated });
        }
        self.rows >= MAX_ROWS || self.bytes >= MAX_BYTES
    }

    /// Prepares the statements with arrays.
    pub(super) fn prepare(
        self,
        prepare: impl Fn(&str) -> StoreResult<Arc<PreparedStatement>>,
    ) -> StoreResult<PreparedWrites> {
        let writes = self.writes.into_iter().map(|write| {
            let many = if write.rows.len() > 1 {
                let types = write.prepared.statement.params();
                let sql = write.prepared.translation.many_rows(types);
                sql.map(|sql| prepare(&sql)).transpose()?
            } else {
                None
            };
            Ok((write, many))
        });
        writes.collect::<StoreResult<_>>().map(PreparedWrites)
    }
}

impl PreparedWrites {
    /// Sends all statements at the first poll. Returns whether they have changed as many rows as
    /// expected.
    pub(super) async fn send(&self, client: &Client) -> Result<bool, tokio_postgres::Error> {
        let sent = self.0.iter().flat_map(|(write, many)| write.parts(many.as_ref()));
        let answers = join_all(sent.map(|part| part.send(client))).await;
        let answers: Result<Vec<bool>, _> = answers.into_iter().collect();
        Ok(answers?.into_iter().all(|as_expected| as_expected))
    }
}

/// What is sent of one deferred statement.
struct WritePart<'w> {
    statement: &'w PreparedStatement,
    rows: &'w [Vec<OwnedValue>],
    expected: Option<u64>,
    in_arrays: bool,
}

impl PendingWrite {
    fn parts<'w>(&'w self, many: Option<&'w Arc<PreparedStatement>>) -> Vec<WritePart<'w>> {
        let (statement, expected) = (&*self.prepared, self.expected);
        match many {
            Some(many) => {
                let expected = expected.map(|rows| rows * self.rows.len() as u64);
                vec![WritePart { statement: many, rows: &self.rows, expected, in_arrays: true }]
            }
            None => {
                let rows = self.rows.chunks(1);
                rows.map(|rows| WritePart { statement, rows, expected, in_arrays: false }).collect()
            }
        }
    }
}

impl WritePart<'_> {
    async fn send(self, client: &Client) -> Result<bool, tokio_postgres::Error> {
        let Self { statement, rows, expected, in_arrays } = self;
        let statement = &statement.statement;
        let changed = if in_arrays {
            let columns = 0..statement.params().len();
            let column = |at: usize| rows.iter().map(|row| row[at].as_value()).collect::<Vec<_>>();
            let arrays: Vec<Vec<SqlValue<'_>>> = columns.map(column).collect();
            let arrays = arrays.iter().map(|column| column as &(dyn ToSql + Sync));
            client.execute_raw(statement, arrays).await?
        } else {
            let values = rows.iter().flatten().map(OwnedValue::as_value);
            client.execute_raw(statement, values.collect::<Vec<_>>()).await?
        };
        Ok(expected.is_none_or(|expected| expected == changed))
    }
}

/// The name of the array type of a parameter, or `None` when there is no such array.
pub(super) fn array_type(element: &Type) -> Option<&'static str> {
    match *element {
        Type::INT8 => Some("BIGINT[]"),
        Type::INT4 => Some("INTEGER[]"),
        Type::TEXT => Some("TEXT[]"),
        Type::BYTEA => Some("BYTEA[]"),
        _ => None,
    }
}
