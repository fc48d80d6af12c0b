//! Statements and rows of PostgreSQL.
//!
//! Commands are synchronous, and so is this connection: it has a runtime of its own, which runs
//! while a statement waits for its answer.
//!
//! A statement whose answer no caller needs is deferred: it is sent with the next one that reads
//! ([`super::pending`]), so that a batch costs a few round trips however many rows it writes.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::BytesMut;
use futures_util::TryStreamExt;
use futures_util::future::{OptionFuture, join, join3};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{SimpleQueryMessage, Statement};

use super::batches::{Batches, NEWEST_COMMIT, NewestCommit, START, TAKE_ORDER};
use super::connect::{Connector, PgFailure, PgSession, failure, store_error};
use super::dialect::{self, NUMBERED_TABLES, Translation, relative_number, split_relative};
use super::pending::{
    GroupKey, GroupPlace, PendingWrites, PreparedWrites, RelativeBatch, WriteGroup,
};
use crate::sql::db::{Params, Row, RowError, RowResult, RowVisitor, SqlValue, TxControl, TxStatus};
use crate::{StoreError, StoreResult};

/// Starts a transaction that writes.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// Settings of the session that writes. Its statements find a few rows by indexes, and a plan is
/// kept: one that was made for an empty table must not scan the table when it has grown, and planning
/// a query with seven tables takes longer than running it.
pub(super) const WRITER_SETTINGS: &str = "
    SET plan_cache_mode = force_generic_plan;
    SET enable_seqscan = off;
    SET enable_hashjoin = off;
    SET enable_mergejoin = off;
";

/// Rows that are fetched in one part. A power of two.
const MAX_PART: usize = 1 << 20;

/// Prepared statements of one connection. Beyond that, all are prepared again.
const MAX_STATEMENTS: usize = 1_000;

/// A connection to a PostgreSQL database.
pub(crate) struct PgConnection {
    pub(super) connector: Arc<Connector>,
    /// Only taken when the connection is dropped.
    runtime: Option<Runtime>,
    /// `None` after the connection was lost.
    session: RefCell<Option<PgSession>>,
    statements: RefCell<HashMap<String, Arc<PreparedStatement>>>,
    /// Statements for groups of deferred ones, whose texts take longer to write than to look up.
    groups: RefCell<HashMap<GroupKey, Arc<PreparedStatement>>>,
    prepared_count: Cell<usize>,
    /// The largest numbers of [`NUMBERED_TABLES`] that are known.
    numbers: RefCell<[Option<i64>; NUMBERED_TABLES.len()]>,
    status: Cell<TxStatus>,
    /// Changed rows. A deferred statement counts as one.
    changes: Cell<u64>,
    /// Whether statements are deferred: in a batch without savepoints.
    deferring: Cell<bool>,
    /// How rows are numbered in a transaction whose start is deferred as well.
    pending_start: Cell<Option<RowNumbers>>,
    /// The numbers of new rows in a batch with relative numbers.
    relative_counts: RefCell<[i64; NUMBERED_TABLES.len()]>,
    /// Whether the server has ended the transaction that is aborted.
    is_ended: Cell<bool>,
    pending: RefCell<PendingWrites>,
    /// Whether the disk of the server was full for a statement.
    disk_full: Cell<bool>,
    /// Only of a writer.
    pub(super) batches: Option<Batches>,
}

/// How rows are numbered in a transaction that is sent later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RowNumbers {
    /// After the largest number of the table.
    Absolute,
    /// From 1: the server adds the largest number of the table.
    Relative,
}

/// A statement that the server knows in this session.
#[derive(Debug)]
pub(super) struct PreparedStatement {
    /// Differs between the statements of a session.
    pub(super) id: usize,
    pub(super) statement: Statement,
    pub(super) translation: Translation,
    /// Whether many rows of parameters can be sent in arrays.
    pub(super) in_arrays: bool,
}

impl std::fmt::Debug for PgConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgConnection").field("status", &self.status).finish_non_exhaustive()
    }
}

impl Drop for PgConnection {
    /// A runtime must not be dropped in asynchronous code, where a store can be dropped.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl PgConnection {
    pub(crate) fn open(connector: Arc<Connector>) -> StoreResult<Self> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let connection = Self {
            connector,
            runtime: Some(runtime),
            session: RefCell::default(),
            statements: RefCell::default(),
            groups: RefCell::default(),
            prepared_count: Cell::new(0),
            numbers: RefCell::default(),
            status: Cell::new(TxStatus::None),
            changes: Cell::new(0),
            deferring: Cell::new(false),
            pending_start: Cell::new(None),
            relative_counts: RefCell::default(),
            is_ended: Cell::new(false),
            pending: RefCell::default(),
            disk_full: Cell::new(false),
            batches: None,
        };
        connection.reconnect()?;
        Ok(connection)
    }

    /// Opens a new session. What the old one has not committed is lost.
    pub(crate) fn reconnect(&self) -> StoreResult<()> {
        self.close();
        let session = self.wait(self.connector.connect())?;
        *self.session.borrow_mut() = Some(session);
        self.status.set(TxStatus::None);
        if self.batches.is_some() {
            self.run_script(WRITER_SETTINGS)?;
        }
        Ok(())
    }

    /// Closes the session with the server.
    pub(crate) fn close(&self) {
        *self.session.borrow_mut() = None;
        self.forget_statements();
        self.forget_numbers();
        self.stop_deferring();
        self.pending_start.set(None);
        self.is_ended.set(false);
        self.status.set(TxStatus::Lost);
    }

    /// Forgets the largest numbers, because the rows that have them may be rolled back.
    pub(crate) fn forget_numbers(&self) {
        *self.numbers.borrow_mut() = Default::default();
    }

    /// The largest numbers as a text. Tables whose number is unknown are empty.
    pub(super) fn numbers_text(&self) -> String {
        let numbers = self.numbers.borrow().map(|number| number.map(|number| number.to_string()));
        numbers.map(Option::unwrap_or_default).join(",")
    }

    /// Sets the largest numbers to those that another courier has written.
    pub(super) fn set_numbers(&self, text: &str) {
        let mut numbers = text.split(',').map(|number| number.parse().ok());
        *self.numbers.borrow_mut() = std::array::from_fn(|_| numbers.next().flatten());
    }

    fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        let runtime = self.runtime.as_ref().expect("the runtime is taken by drop only");
        runtime.block_on(work)
    }

    /// Runs `work` on the session. After an error the transaction is aborted or lost.
    fn with_session<T>(
        &self,
        work: impl AsyncFnOnce(&PgSession) -> Result<T, tokio_postgres::Error>,
    ) -> StoreResult<T> {
        let session = self.session.borrow();
        let lost = || StoreError::Unavailable("the connection to PostgreSQL is lost".to_owned());
        let session = session.as_ref().ok_or_else(lost)?;
        let result = self.wait(work(session));
        result.map_err(|error| {
            self.status.set(match failure(&error) {
                PgFailure::Transient => TxStatus::Lost,
                PgFailure::Statement => TxStatus::Aborted,
            });
            let error = store_error(&error);
            if matches!(error, StoreError::DiskFull) {
                self.disk_full.set(true);
            }
            error
        })
    }

    /// Whether the disk of the server was full since the last call.
    pub(crate) fn take_disk_full(&self) -> bool {
        self.disk_full.take()
    }

    fn forget_statements(&self) {
        self.statements.borrow_mut().clear();
        self.groups.borrow_mut().clear();
    }

    fn prepared(&self, sql: &str) -> StoreResult<Arc<PreparedStatement>> {
        if let Some(known) = self.statements.borrow().get(sql) {
            return Ok(Arc::clone(known));
        }
        if self.statements.borrow().len() >= MAX_STATEMENTS {
            self.forget_statements();
        }
        let translation = dialect::translate(sql);
        let statement =
            self.with_session(async |session| session.client.prepare(&translation.text).await);
        let statement = statement.inspect_err(|error| {
            tracing::debug!(%error, sql = translation.text, "cannot prepare statement");
        })?;
        let in_arrays = translation.many_rows(statement.params(), 1, &[]).is_some();
        let id = self.prepared_count.replace(self.prepared_count.get() + 1);
        let prepared = Arc::new(PreparedStatement { id, statement, translation, in_arrays });
        self.statements.borrow_mut().insert(sql.to_owned(), Arc::clone(&prepared));
        Ok(prepared)
    }

    /// Prepares groups of deferred statements.
    fn prepared_writes(&self, groups: Vec<WriteGroup>) -> StoreResult<PreparedWrites> {
        let prepared = groups.into_iter().map(|group| Ok((self.prepared_group(&group)?, group)));
        prepared.collect::<StoreResult<_>>().map(PreparedWrites)
    }

    fn prepared_group(&self, group: &WriteGroup) -> StoreResult<Arc<PreparedStatement>> {
        let key = group.key();
        if let Some(known) = self.groups.borrow().get(&key) {
            return Ok(Arc::clone(known));
        }
        let prepared = self.prepared(&group.sql())?;
        self.groups.borrow_mut().insert(key, Arc::clone(&prepared));
        Ok(prepared)
    }

    /// Runs a statement. It can be deferred.
    pub(crate) fn execute(&self, sql: &str, params: &dyn Params) -> StoreResult<()> {
        let prepared = self.prepared(sql)?;
        match prepared.translation.numbered {
            Some(table) => self.insert_numbered(&prepared, table, params).map(drop),
            None if self.deferring.get() => self.defer(prepared, params, None, None),
            None => self.execute_prepared(&prepared, params, None).map(drop),
        }
    }

    /// Runs a statement and returns the number of changed rows.
    pub(crate) fn changed_rows(&self, sql: &str, params: &dyn Params) -> StoreResult<usize> {
        let prepared = self.prepared(sql)?;
        match prepared.translation.numbered {
            Some(table) => {
                self.insert_numbered(&prepared, table, params).map(|row| usize::from(row.is_some()))
            }
            None => self.execute_prepared(&prepared, params, None),
        }
    }

    /// Runs a statement that changes one row, unless the row has changed. Deferred, it is assumed
    /// to change the row; when it does not, the batch fails and is run again with savepoints.
    pub(crate) fn update_one(&self, sql: &str, params: &dyn Params) -> StoreResult<bool> {
        let prepared = self.prepared(sql)?;
        if let Some(table) = prepared.translation.numbered {
            return self.insert_numbered(&prepared, table, params).map(|row| row.is_some());
        }
        if self.deferring.get() {
            self.defer(prepared, params, None, Some(1))?;
            return Ok(true);
        }
        Ok(self.execute_prepared(&prepared, params, None)? == 1)
    }

    /// Inserts a row with the number after the largest one. `None` when the row exists. Deferred,
    /// it is assumed not to exist, as by [`Self::update_one`].
    pub(crate) fn insert(&self, sql: &str, params: &dyn Params) -> StoreResult<Option<i64>> {
        let prepared = self.prepared(sql)?;
        let unnumbered = || StoreError::Unavailable(format!("no numbered table: {sql}"));
        let table = prepared.translation.numbered.ok_or_else(unnumbered)?;
        self.insert_numbered(&prepared, table, params)
    }

    fn insert_numbered(
        &self,
        prepared: &Arc<PreparedStatement>,
        table: usize,
        params: &dyn Params,
    ) -> StoreResult<Option<i64>> {
        if self.pending_start.get() == Some(RowNumbers::Relative) {
            let mut counts = self.relative_counts.borrow_mut();
            counts[table] += 1;
            let number = relative_number(table, counts[table]);
            drop(counts);
            self.defer(Arc::clone(prepared), params, Some(number), Some(1))?;
            return Ok(Some(number));
        }
        let largest = self.numbers.borrow()[table];
        let number = match largest {
            Some(largest) => largest + 1,
            None => self.largest_number(table)? + 1,
        };
        let inserted = if self.deferring.get() {
            self.defer(Arc::clone(prepared), params, Some(number), Some(1))?;
            1
        } else {
            self.execute_prepared(prepared, params, Some(number))?
        };
        let last = if inserted == 0 { number - 1 } else { number };
        self.numbers.borrow_mut()[table] = Some(last);
        Ok((inserted > 0).then_some(number))
    }

    fn largest_number(&self, table: usize) -> StoreResult<i64> {
        let (name, column) = NUMBERED_TABLES[table];
        let sql = format!("SELECT coalesce(max({column}), 0) FROM {name}");
        let mut largest = 0;
        let no_params: [i64; 0] = [];
        self.scan(&sql, &no_params, 1, &mut |row| {
            largest = row.get(0)?;
            Ok(false)
        })?;
        Ok(largest)
    }

    fn execute_prepared(
        &self,
        prepared: &PreparedStatement,
        params: &dyn Params,
        number: Option<i64>,
    ) -> StoreResult<usize> {
        let values = values(params, number);
        let changed = self.send_with_pending(async |session| {
            session.client.execute_raw(&prepared.statement, values).await
        })?;
        self.changes.set(self.changes.get() + changed);
        Ok(usize::try_from(changed).unwrap_or(usize::MAX))
    }

    /// Defers a statement. `expected` is the number of rows that it must change.
    fn defer(
        &self,
        prepared: Arc<PreparedStatement>,
        params: &dyn Params,
        number: Option<i64>,
        expected: Option<u64>,
    ) -> StoreResult<()> {
        self.changes.set(self.changes.get() + 1);
        let is_full = self.pending.borrow_mut().add(prepared, &values(params, number), expected);
        if is_full { self.send_pending() } else { Ok(()) }
    }

    /// Sends the deferred statements and waits for their answers.
    pub(super) fn send_pending(&self) -> StoreResult<()> {
        self.send_with_pending(async |_| Ok(()))
    }

    /// Sends the deferred statements, and `last` after them without waiting in between.
    fn send_with_pending<T>(
        &self,
        last: impl AsyncFnOnce(&PgSession) -> Result<T, tokio_postgres::Error>,
    ) -> StoreResult<T> {
        if self.pending_start.get() == Some(RowNumbers::Relative) {
            return Err(self.abort("a batch that was assumed to read nothing reads"));
        }
        let pending = self.pending.take();
        let starts = self.pending_start.get().is_some();
        if pending.is_empty() && !starts {
            return self.with_session(last);
        }
        let writes = self.prepared_writes(pending.into_groups())?;
        let newest = if starts { Some(self.prepared(NEWEST_COMMIT)?) } else { None };
        self.pending_start.set(None);
        let (newest, found) = self.with_session(async |session| {
            // In this order: the first poll of each sends its statements.
            let start =
                OptionFuture::from(newest.as_deref().map(|newest| lock(session, START, newest)));
            let sent = join3(start, writes.send(&session.client), last(session)).await;
            // The first error is the reason for those after it.
            let newest = sent.0.transpose()?;
            sent.1?;
            Ok((newest, sent.2?))
        })?;
        newest.map_or(Ok(()), |newest| self.check_newest(&newest))?;
        Ok(found)
    }

    /// Sends the deferred statements and `COMMIT` without waiting in between. When nothing was sent
    /// before, and the deferred statements are one, it is sent alone, which is a transaction. Returns
    /// the commit before that of a batch with `relative` numbers.
    ///
    /// # Errors
    ///
    /// When the status is `Aborted` then, nothing is committed. When it is `Lost`, also after a
    /// warning of the server, it is unknown whether the transaction is committed and on a standby.
    pub(super) fn commit_with_pending(
        &self,
        relative: Option<&RelativeBatch>,
    ) -> StoreResult<Option<NewestCommit>> {
        let pending = self.pending.take();
        let can_be_relative = pending.can_be_relative();
        let mut groups = pending.into_groups();
        // Nothing is deferred after the connection was lost.
        if relative.is_some() && self.is_connected() && !(can_be_relative && groups.len() == 1) {
            return Err(self.abort("statements of the batch cannot have relative numbers"));
        }
        let numbers = self.pending_start.get();
        if let ([group], Some(numbers)) = (&mut *groups, numbers) {
            group.place = GroupPlace::Alone(numbers);
        }
        let is_alone = numbers.is_some() && groups.len() == 1;
        let writes = self.prepared_writes(groups)?;
        self.pending_start.set(None);
        self.deferring.set(false);
        self.clear_warning();
        let committed = self.with_session(async |session| {
            let client = &session.client;
            if let Some(relative) = relative {
                return writes.send_relative(client, relative).await.map(Some);
            }
            if is_alone {
                return writes.send(client).await.map(|()| None);
            }
            // In this order: the first poll of each sends its statements.
            let start = OptionFuture::from(numbers.map(|_| client.batch_execute(START)));
            let sent = join3(start, writes.send(client), client.batch_execute("COMMIT")).await;
            // After an error the commit is a rollback.
            sent.0.transpose()?;
            sent.1?;
            sent.2.map(|()| None)
        });
        self.is_ended.set(true);
        let before = committed?;
        self.check_commit()?;
        Ok(before)
    }

    /// Defers the start of a transaction until it is needed.
    pub(super) fn start_later(&self, numbers: RowNumbers) {
        self.pending_start.set(Some(numbers));
        *self.relative_counts.borrow_mut() = Default::default();
        self.is_ended.set(false);
        self.status.set(TxStatus::Open);
    }

    /// Ends a transaction whose start was not sent. Returns `false` when there is none.
    pub(super) fn cancel_start(&self) -> bool {
        let is_pending = self.pending_start.take().is_some();
        if is_pending {
            self.stop_deferring();
            self.status.set(TxStatus::None);
        }
        is_pending
    }

    /// How rows are numbered in a transaction whose start was not sent.
    pub(super) fn pending_start(&self) -> Option<RowNumbers> {
        self.pending_start.get()
    }

    /// The numbers of new rows of each table in a batch with relative numbers.
    pub(super) fn relative_counts(&self) -> Vec<i64> {
        self.relative_counts.borrow().to_vec()
    }

    /// Adds the new rows of a batch with relative numbers to the largest numbers, which are those
    /// before the batch.
    pub(super) fn add_relative_counts(&self) {
        let counts = self.relative_counts.borrow();
        for (number, count) in self.numbers.borrow_mut().iter_mut().zip(&*counts) {
            *number = number.map(|number| number + count);
        }
    }

    /// The number of a row in the table, after the commit of its batch. When that was found to be
    /// committed after a lost connection, the largest number of the table, or `None` when it cannot
    /// be read.
    pub(crate) fn final_number(&self, number: i64) -> Option<i64> {
        let Some((table, count)) = split_relative(number) else { return Some(number) };
        match self.numbers.borrow().get(table).copied().flatten() {
            Some(largest) => Some(largest - self.relative_counts.borrow()[table] + count),
            None => self.largest_number(table).ok(),
        }
    }

    /// Says that the server has ended the transaction.
    pub(super) fn end_aborted(&self) {
        self.is_ended.set(true);
    }

    /// Marks the transaction as one that must be run again.
    pub(super) fn abort(&self, why: &str) -> StoreError {
        self.status.set(TxStatus::Aborted);
        StoreError::Unavailable(why.to_owned())
    }

    pub(super) fn is_connected(&self) -> bool {
        self.session.borrow().is_some()
    }

    /// Defers statements from now on, in a transaction that was started.
    pub(super) fn start_deferring(&self) {
        self.deferring.set(true);
    }

    fn stop_deferring(&self) {
        self.deferring.set(false);
        self.pending.take();
    }

    fn clear_warning(&self) {
        if let Some(session) = &*self.session.borrow() {
            session.warned.store(false, Ordering::SeqCst);
        }
    }

    /// Checks that the server has committed without a warning.
    fn check_commit(&self) -> StoreResult<()> {
        self.status.set(TxStatus::None);
        let warned = |session: &PgSession| session.warned.load(Ordering::SeqCst);
        if self.session.borrow().as_ref().is_some_and(warned) {
            self.status.set(TxStatus::Lost);
            let why = "PostgreSQL committed with a warning; see the log";
            return Err(StoreError::Unavailable(why.to_owned()));
        }
        Ok(())
    }

    /// Calls `visit` for the rows of a query. When the caller can stop early, the rows are fetched
    /// in parts of growing size. The parts fit together, because the transaction reads one
    /// snapshot, or is the only one that writes.
    pub(crate) fn scan(
        &self,
        sql: &str,
        params: &dyn Params,
        expected: usize,
        visit: RowVisitor<'_>,
    ) -> StoreResult<()> {
        if expected == usize::MAX || ends_with_limit(sql) {
            for row in self.query(sql, values(params, None))? {
                if !visit(&Row::Postgres(&row))? {
                    break;
                }
            }
            return Ok(());
        }
        // Limits are a part of the text, so that a plan is made for them, and powers of two, so
        // that there are few texts.
        let mut size = expected.clamp(1, MAX_PART).next_power_of_two();
        let mut offset = 0_usize;
        loop {
            let part_sql = match offset {
                0 => format!("{sql} LIMIT {size}"),
                _ => format!("{sql} LIMIT {size} OFFSET ?{}", params.count() + 1),
            };
            let mut part = values(params, None);
            if offset > 0 {
                part.push(SqlValue::Integer(offset.try_into().unwrap_or(i64::MAX)));
            }
            let rows = self.query(&part_sql, part)?;
            let is_last = rows.len() < size;
            for row in rows {
                if !visit(&Row::Postgres(&row))? {
                    return Ok(());
                }
            }
            if is_last {
                return Ok(());
            }
            (offset, size) = (offset.saturating_add(size), (size * 2).min(MAX_PART));
        }
    }

    fn query(&self, sql: &str, values: Vec<SqlValue<'_>>) -> StoreResult<Vec<PgRow>> {
        let prepared = self.prepared(sql)?;
        self.send_with_pending(async |session| {
            let rows = session.client.query_raw(&prepared.statement, values).await?;
            rows.map_ok(PgRow::new).try_collect().await
        })
    }

    /// Runs statements without parameters, and returns the first column of the last row.
    pub(super) fn run_script(&self, script: &str) -> StoreResult<Option<String>> {
        let messages =
            self.with_session(async |session| session.client.simple_query(script).await)?;
        let rows = messages.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        Ok(rows.last())
    }

    pub(crate) fn control(&self, statement: TxControl) -> StoreResult<()> {
        let (sql, status) = match statement {
            TxControl::Begin => (BEGIN, TxStatus::Open),
            TxControl::BeginRead => {
                ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", TxStatus::Open)
            }
            TxControl::Commit => ("COMMIT", TxStatus::None),
            TxControl::Rollback => ("ROLLBACK", TxStatus::None),
            TxControl::Savepoint => ("SAVEPOINT command", TxStatus::Open),
            TxControl::Undo => ("ROLLBACK TO SAVEPOINT command", TxStatus::Open),
            TxControl::Release => ("RELEASE SAVEPOINT command", TxStatus::Open),
        };
        match statement {
            TxControl::Rollback | TxControl::Undo => {
                self.forget_numbers();
                if self.cancel_start() {
                    return Ok(());
                }
                self.stop_deferring();
            }
            // An error must be that of the command in the savepoint.
            TxControl::Savepoint | TxControl::Commit => {
                self.send_pending()?;
                self.stop_deferring();
            }
            TxControl::Begin | TxControl::BeginRead | TxControl::Release => {}
        }
        let is_ended = self.is_ended.replace(false);
        if !(is_ended && matches!(statement, TxControl::Rollback)) {
            self.run_script(sql)?;
        }
        self.status.set(status);
        Ok(())
    }

    /// Ends a transaction that has changed nothing.
    pub(super) fn end_reading(&self) -> StoreResult<()> {
        self.stop_deferring();
        self.run_script("ROLLBACK")?;
        self.status.set(TxStatus::None);
        Ok(())
    }

    /// Starts the transaction of a batch, and runs `first` before its lock is taken. Returns the
    /// newest commit.
    pub(super) fn start_now(
        &self,
        first: Option<(&str, &dyn Params)>,
    ) -> StoreResult<NewestCommit> {
        let first = match first {
            Some((sql, params)) => Some((self.prepared(sql)?, values(params, None))),
            None => None,
        };
        let newest = self.prepared(NEWEST_COMMIT)?;
        self.is_ended.set(false);
        let newest = self.with_session(async |session| {
            let client = &session.client;
            let Some((first, values)) = first else { return lock(session, START, &newest).await };
            // In this order: the first poll of each sends its statement.
            let begin = client.batch_execute(BEGIN);
            let first = client.execute_raw(&first.statement, values);
            let sent = join3(begin, first, lock(session, TAKE_ORDER, &newest)).await;
            sent.0?;
            sent.1?;
            sent.2
        })?;
        self.status.set(TxStatus::Open);
        Ok(newest)
    }

    /// Reads the newest commit, without a transaction.
    pub(super) fn newest_commit(&self) -> StoreResult<NewestCommit> {
        let newest = self.prepared(NEWEST_COMMIT)?;
        self.with_session(async |session| read_newest(session, &newest).await)
    }

    /// Runs `script`, which starts a transaction.
    pub(super) fn begin(&self, script: &str) -> StoreResult<Option<String>> {
        let answer = self.run_script(script)?;
        self.status.set(TxStatus::Open);
        Ok(answer)
    }

    /// Runs `script`, which commits.
    ///
    /// # Errors
    ///
    /// After an error, and after a warning of the server, it is unknown whether the transaction is
    /// committed and on a standby.
    pub(super) fn commit(&self, script: &str) -> StoreResult<()> {
        self.clear_warning();
        self.stop_deferring();
        self.run_script(script)?;
        self.check_commit()
    }

    pub(crate) fn status(&self) -> TxStatus {
        self.status.get()
    }

    pub(crate) fn total_changes(&self) -> u64 {
        self.changes.get()
    }
}

/// Runs `script`, which takes the lock of the writers, and reads the newest commit.
async fn lock(
    session: &PgSession,
    script: &str,
    newest: &PreparedStatement,
) -> Result<NewestCommit, tokio_postgres::Error> {
    // In this order: the first poll of each sends its statement.
    let (locked, found) =
        join(session.client.batch_execute(script), read_newest(session, newest)).await;
    locked?;
    found
}

async fn read_newest(
    session: &PgSession,
    newest: &PreparedStatement,
) -> Result<NewestCommit, tokio_postgres::Error> {
    let no_values: [i64; 0] = [];
    let rows = session.client.query_raw(&newest.statement, no_values).await?;
    let rows: Vec<_> = rows.try_collect().await?;
    rows.first().map_or(Ok(NewestCommit::default()), NewestCommit::read)
}

fn values<'p>(params: &'p dyn Params, number: Option<i64>) -> Vec<SqlValue<'p>> {
    let values = (0..params.count()).map(|at| params.value(at));
    values.chain(number.map(SqlValue::Integer)).collect()
}

/// Whether a query has a limit of its own at its end.
fn ends_with_limit(sql: &str) -> bool {
    let last_line = sql.trim_end().rsplit('\n').next().unwrap_or_default();
    last_line.contains("LIMIT ")
}

impl ToSql for SqlValue<'_> {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match (*self, ty) {
            (Self::Null, _) => return Ok(IsNull::Yes),
            (Self::Integer(number), &Type::INT8) => out.extend_from_slice(&number.to_be_bytes()),
            (Self::Integer(number), &Type::INT4) => {
                out.extend_from_slice(&i32::try_from(number)?.to_be_bytes());
            }
            (Self::Text(text), &(Type::TEXT | Type::VARCHAR | Type::NAME | Type::UNKNOWN)) => {
                out.extend_from_slice(dialect::escape(text).as_bytes());
            }
            (Self::Blob(bytes), &Type::BYTEA) => out.extend_from_slice(bytes),
            (value, ty) => return Err(format!("{value:?} is not a value of type {ty}").into()),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// A row, with the texts that are stored in another form.
pub(crate) struct PgRow {
    row: tokio_postgres::Row,
    /// Columns whose texts contain characters that PostgreSQL does not store.
    unescaped: Vec<(usize, String)>,
}

/// A column as the server has sent it.
struct RawColumn<'r>(&'r [u8]);

impl<'r> FromSql<'r> for RawColumn<'r> {
    fn from_sql(_: &Type, raw: &'r [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

impl PgRow {
    fn new(row: tokio_postgres::Row) -> Self {
        let mut unescaped = Vec::new();
        for (at, column) in row.columns().iter().enumerate() {
            if *column.type_() == Type::TEXT
                && let Ok(Some(RawColumn(raw))) = row.try_get::<_, Option<RawColumn<'_>>>(at)
                && let Some(text) = str::from_utf8(raw).ok().and_then(dialect::unescape)
            {
                unescaped.push((at, text));
            }
        }
        Self { row, unescaped }
    }

    /// Reads one column as a value.
    pub(crate) fn column(&self, column: usize) -> RowResult<SqlValue<'_>> {
        if let Some((_, text)) = self.unescaped.iter().find(|(at, _)| *at == column) {
            return Ok(SqlValue::Text(text));
        }
        let unreadable = |why: String| RowError::new(column, why);
        let raw: Option<RawColumn<'_>> =
            self.row.try_get(column).map_err(|error| unreadable(error.to_string()))?;
        let Some(RawColumn(raw)) = raw else { return Ok(SqlValue::Null) };
        let ty = self.row.columns()[column].type_();
        let found = match *ty {
            Type::INT8 => raw.try_into().ok().map(i64::from_be_bytes).map(SqlValue::Integer),
            Type::INT4 => {
                raw.try_into().ok().map(|raw| SqlValue::Integer(i32::from_be_bytes(raw).into()))
            }
            Type::BOOL => raw.first().map(|byte| SqlValue::Integer((*byte != 0).into())),
            Type::TEXT | Type::VARCHAR | Type::NAME => str::from_utf8(raw).ok().map(SqlValue::Text),
            Type::BYTEA => Some(SqlValue::Blob(raw)),
            _ => None,
        };
        found.ok_or_else(|| unreadable(format!("cannot read a value of type {ty}")))
    }
}
