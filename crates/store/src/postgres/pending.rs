//! Statements that are sent together with the next one that reads.
//!
//! Rows that a statement inserts are sent as one statement with arrays, if no other statement on
//! the same table is between them, and so are updates of different rows. No table refers to another
//! one, so that the order of statements on different tables does not matter, and they become the parts
//! of one statement. So a batch of dispatches inserts its objects, records and events with one.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;

use futures_util::TryStreamExt;
use futures_util::future::join_all;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::batches::{NewestCommit, ORDER_LOCK};
use super::dialect::split_relative;
use super::driver::{PreparedStatement, RowNumbers};
use crate::sql::db::SqlValue;

/// Rows and bytes at which deferred statements are sent. They bound the memory of a batch.
const MAX_ROWS: usize = 4_096;
const MAX_BYTES: usize = 4 << 20;

/// Whether the session is in a transaction that has the lock of the writers.
const IN_BATCH: &str = "current_setting('monoco.batch', true) = 'on'";

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
    /// The number of rows that it must change for each row of parameters.
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

    /// Whether relative numbers in the statements are recognised, and all are writes.
    pub(super) fn can_be_relative(&self) -> bool {
        let translations = self.writes.iter().map(|write| &write.prepared.translation);
        translations.into_iter().all(|it| it.any_integers.is_some() && it.is_write())
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

    /// The statements to send, as few as possible.
    pub(super) fn into_groups(self) -> Vec<WriteGroup> {
        let mut groups: Vec<WriteGroup> = Vec::new();
        for write in self.writes.into_iter().flat_map(PendingWrite::split) {
            match groups.last_mut().filter(|group| group.accepts(&write)) {
                Some(group) => group.writes.push(write),
                None => groups.push(WriteGroup { writes: vec![write], place: GroupPlace::Inside }),
            }
        }
        groups
    }
}

impl PendingWrite {
    /// A write for each row, unless the rows can be sent in arrays.
    fn split(self) -> Vec<Self> {
        if self.rows.len() < 2 || self.prepared.in_arrays {
            return vec![self];
        }
        let Self { prepared, rows, expected, .. } = self;
        let one = |row| {
            let (prepared, updated) = (Arc::clone(&prepared), HashSet::new());
            Self { prepared, rows: vec![row], expected, updated }
        };
        rows.into_iter().map(one).collect()
    }

    /// The parameters with relative numbers, from 0.
    fn relative(&self) -> Vec<usize> {
        let PreparedStatement { statement, translation, .. } = &*self.prepared;
        let any = translation.any_integers.as_deref().unwrap_or_default();
        let is_relative = |row: &Vec<OwnedValue>, at: usize| matches!(row[at], OwnedValue::Integer(number) if split_relative(number).is_some());
        (0..statement.params().len())
            .filter(|at| !any.contains(at) && self.rows.iter().any(|row| is_relative(row, *at)))
            .collect()
    }

    /// The statement with parameters from `first` on, and the number of rows that it must change.
    fn sql(&self, first: usize, relative: &[usize]) -> (String, Option<String>) {
        let PreparedStatement { statement, translation, .. } = &*self.prepared;
        match translation.many_rows(statement.params(), first, relative) {
            Some(sql) => {
                let expected = |rows| format!("{rows} * cardinality(${first})");
                (sql, self.expected.map(expected))
            }
            None => {
                let expected = self.expected.map(|rows| rows.to_string());
                (translation.renumbered(first, relative), expected)
            }
        }
    }

    fn values(&self) -> Vec<Box<dyn ToSql + Sync + '_>> {
        let PreparedStatement { statement, in_arrays, .. } = &*self.prepared;
        let columns = 0..statement.params().len();
        let value = |at: usize| -> Box<dyn ToSql + Sync + '_> {
            let mut column = self.rows.iter().map(|row| row[at].as_value());
            match in_arrays {
                true => Box::new(column.collect::<Vec<_>>()),
                false => Box::new(column.next()),
            }
        };
        columns.map(value).collect()
    }
}

/// Where a group of writes is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum GroupPlace {
    /// In a transaction whose start is sent before.
    Inside,
    /// Alone: it is a whole batch, without a transaction around it.
    Alone(RowNumbers),
}

/// Writes of different tables, which are sent as one statement: each one costs the server and this
/// process a message and its answer.
pub(super) struct WriteGroup {
    writes: Vec<PendingWrite>,
    pub(super) place: GroupPlace,
}

/// Equal for groups with the same statement: the ids of their statements, how many rows each must
/// change, and which parameters are relative; and their place.
pub(super) type GroupKey = (Vec<(usize, Option<u64>, Vec<usize>)>, GroupPlace);

impl WriteGroup {
    /// Whether the result does not depend on the order of a write and those of the group.
    fn accepts(&self, write: &PendingWrite) -> bool {
        let table = |write: &PendingWrite| write.prepared.translation.table.clone();
        table(write).is_some()
            && self
                .writes
                .iter()
                .all(|other| table(other).is_some_and(|it| Some(it) != table(write)))
    }

    fn is_relative(&self) -> bool {
        self.place == GroupPlace::Alone(RowNumbers::Relative)
    }

    /// The parameters of a write with relative numbers.
    fn relative(&self, write: &PendingWrite) -> Vec<usize> {
        if self.is_relative() { write.relative() } else { Vec::new() }
    }

    fn values(&self) -> Vec<Box<dyn ToSql + Sync + '_>> {
        self.writes.iter().flat_map(PendingWrite::values).collect()
    }

    pub(super) fn key(&self) -> GroupKey {
        let key = |write: &PendingWrite| (write.prepared.id, write.expected, self.relative(write));
        (self.writes.iter().map(key).collect(), self.place)
    }

    /// All writes as parts of one query. It fails by a division when one of them has changed
    /// another number of rows than expected, and outside of a batch: the statement that starts a
    /// batch is sent before, and can fail. A whole batch takes the lock first: conditions are
    /// evaluated in their order, and a write runs when its rows are counted, or at the end.
    ///
    /// With relative numbers it takes the lock when it reads the newest commit. It counts the
    /// commit as well, and also fails when another courier has changed the address book.
    pub(super) fn sql(&self) -> String {
        let (mut parts, mut conditions) = match self.place {
            GroupPlace::Inside => (vec![], vec![IN_BATCH.to_owned()]),
            GroupPlace::Alone(RowNumbers::Absolute) => {
                (vec![], vec![format!("{ORDER_LOCK} IS NOT NULL")])
            }
            GroupPlace::Alone(RowNumbers::Relative) => (vec![BASE.to_owned()], vec![]),
        };
        let mut first = 1;
        for (at, write) in self.writes.iter().enumerate() {
            let (sql, expected) = write.sql(first, &self.relative(write));
            if !write.prepared.translation.is_write() {
                return sql;
            }
            first += write.prepared.statement.params().len();
            if let Some(expected) = expected {
                parts.push(format!("w{at} AS ({sql} RETURNING 1)"));
                conditions.push(format!("(SELECT count(*) FROM w{at}) = {expected}"));
            } else {
                parts.push(format!("w{at} AS ({sql})"));
            }
        }
        let (mut newest, mut from) = ("", "");
        if self.is_relative() {
            (newest, from) = ("seq, known, book, ", " FROM base");
            conditions.push(format!("book = ${first}"));
            parts.push(format!("next AS ({})", insert_commit(first + 1)));
        }
        format!(
            "WITH {} SELECT {newest}1 / (CASE WHEN {} THEN 1 ELSE 0 END){from}",
            parts.join(", "),
            conditions.join(" AND ")
        )
    }
}

/// The newest commit when the batch has its turn.
const BASE: &str = "
    base AS MATERIALIZED (SELECT seq, numbers AS known, book,
                                 string_to_array(numbers, ',', '')::BIGINT[] AS numbers
                            FROM take_turn())";

/// Inserts the next commit. The parameter has the numbers of new rows of each table.
fn insert_commit(counts: usize) -> String {
    format!(
        "INSERT INTO commits (seq, numbers, book)
         SELECT seq + 1,
                (SELECT string_agg(coalesce((number + added)::TEXT, ''), ',' ORDER BY place)
                   FROM unnest(numbers, ${counts}::BIGINT[])
                        WITH ORDINALITY AS new(number, added, place)),
                book
           FROM base"
    )
}

/// What a batch with relative numbers needs beside its rows.
pub(super) struct RelativeBatch {
    /// The newest commit that has changed the address book.
    pub(super) book: i64,
    /// The numbers of new rows of each table.
    pub(super) counts: Vec<i64>,
}

/// Deferred statements that the server knows.
pub(super) struct PreparedWrites(pub(super) Vec<(Arc<PreparedStatement>, WriteGroup)>);

impl PreparedWrites {
    /// Sends all statements at the first poll.
    ///
    /// # Errors
    ///
    /// Also when a statement has changed another number of rows than expected.
    pub(super) async fn send(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let sent = self.0.iter().map(async |(prepared, group)| {
            client.execute_raw(&prepared.statement, group.values()).await
        });
        join_all(sent).await.into_iter().try_for_each(|answer| answer.map(drop))
    }

    /// Like [`Self::send`], of a whole batch with relative numbers. Returns the commit before it.
    pub(super) async fn send_relative(
        &self,
        client: &Client,
        batch: &RelativeBatch,
    ) -> Result<NewestCommit, tokio_postgres::Error> {
        let mut newest = NewestCommit::default();
        for (prepared, group) in &self.0 {
            let mut values = group.values();
            values.push(Box::new(batch.book));
            values.push(Box::new(batch.counts.as_slice()));
            let mut rows = pin!(client.query_raw(&prepared.statement, values).await?);
            while let Some(row) = rows.try_next().await? {
                newest = NewestCommit::read(&row)?;
            }
        }
        Ok(newest)
    }
}

/// The name of the array type of a parameter, or `None` when there is no such array.
pub(super) fn array_type(element: &Type) -> Option<&'static str> {
    match *element {
        Type::INT8 => Some("BIGINT[]"),
        Type::INT4 => Some("INTEGER[]"),
        // As the columns, so that they can be compared.
        Type::TEXT => Some("TEXT[] COLLATE \"C\""),
        Type::BYTEA => Some("BYTEA[]"),
        _ => None,
    }
}
