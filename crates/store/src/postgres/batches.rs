//! Transactions of the writer thread, and commits whose result is unknown.
//!
//! ```text
//!   BEGIN
//!   lock ORDER                                 one writer at a time, of all couriers
//!   … commands …
//!   insert the next number into commits        shows others what is new
//!   insert (courier, boot, n) into batches
//!   COMMIT
//! ```
//!
//! All but the statements that read are sent at once, with the first of those or with the commit. So
//! a batch that reads nothing costs one round trip, and is usually one statement, which takes the lock
//! and commits by itself. It has run before it has the lock, by what the writer has cached: it assumes
//! that no other courier has committed meanwhile. If one has, the next number exists in `commits`, and
//! the batch is run again. Where couriers take turns, a batch waits for its lock before it runs.
//!
//! Batches of dispatches do not wait there. They run with relative numbers of their rows, which the
//! server adds to those of the newest commit once the statement has the lock. Only a change of the
//! address book, by which they have been routed, makes them run again.
//!
//! When the connection is lost during `COMMIT`, the transaction is committed or not. The batch is
//! run again with the same n, whose row is inserted first then: that waits for an older transaction
//! with the same n. If the row in `batches` exists, the batch is committed, and the
//! results in memory are valid. It may be missing on the standby, so another commit must succeed
//! before callers are answered.

use std::cell::Cell;
use std::sync::Arc;

use super::PostgresOptions;
use super::connect::{Connector, quoted_text};
use super::driver::{PgConnection, RowNumbers, WRITER_SETTINGS};
use super::failpoints::Failpoint;
use super::pending::RelativeBatch;
use crate::sql::db::{Params, TxControl, TxStatus, params};
use crate::{StoreError, StoreResult};

/// Batches and commits whose rows are kept. Older rows are deleted now and then.
const KEPT_ROWS: i64 = 1_000;

/// Batches after which plans are made again: one that was made for a small table scans it, and the
/// statistics of a table that grows are a minute old.
const BATCHES_PER_PLAN: i64 = 256;

const INSERT_BATCH: &str = "INSERT INTO batches (courier, boot, n) VALUES (?1, ?2, ?3)";

/// Takes the lock that one writer holds at a time, until the transaction ends.
macro_rules! order_lock {
    () => {
        "pg_advisory_xact_lock(1297040201, hashtext(current_schema()))"
    };
}
pub(super) const ORDER_LOCK: &str = order_lock!();

/// Marks the transaction of a batch that was started, and takes its lock.
pub(super) const TAKE_ORDER: &str =
    concat!("SELECT set_config('monoco.batch', 'on', true), ", order_lock!());

/// Starts the transaction of a batch, marks it, and takes its lock.
pub(super) const START: &str = concat!(
    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; ",
    "SELECT set_config('monoco.batch', 'on', true), ",
    order_lock!()
);

pub(super) const NEWEST_COMMIT: &str =
    "SELECT seq, numbers, book FROM commits ORDER BY seq DESC LIMIT 1";
const INSERT_COMMIT: &str = "INSERT INTO commits (seq, numbers, book) VALUES (?1, ?2, ?3)";
const DELETE_COMMITS: &str = "DELETE FROM commits WHERE seq <= ?1";
const DELETE_BATCHES: &str = "DELETE FROM batches WHERE courier = ?1 AND boot = ?2 AND n < ?3";

/// Batches that wait for their lock before they run, after another courier has committed.
pub(super) const BATCHES_AFTER_OTHERS: u32 = 32;

/// What is assumed about a batch before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assumption {
    Nothing,
    /// No other courier commits meanwhile, unless one has committed shortly before.
    Undisturbed,
    /// The commands read nothing and need no numbers of their rows, so that other couriers can commit
    /// meanwhile.
    Independent,
}

/// How a batch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchStart {
    Started {
        /// What other couriers have written since the last batch.
        others: OtherCommits,
    },
    /// The commit with an unknown result was successful.
    Committed,
}

/// What other couriers have committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtherCommits {
    None,
    /// Rows beside the address book.
    Rows,
    /// Rows of the address book, and others.
    AddressBook,
}

/// The newest row of the table `commits`.
#[derive(Debug, Default)]
pub(super) struct NewestCommit {
    seq: i64,
    /// Largest numbers of tables.
    numbers: String,
    /// The newest commit that changed the address book.
    book: i64,
}

impl NewestCommit {
    /// From the columns of [`NEWEST_COMMIT`].
    pub(super) fn read(row: &tokio_postgres::Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self { seq: row.try_get(0)?, numbers: row.try_get(1)?, book: row.try_get(2)? })
    }
}

/// The batches of one writer.
#[derive(Debug)]
pub(super) struct Batches {
    courier: String,
    boot: String,
    /// The number of the current batch.
    n: Cell<i64>,
    /// The number of the last commit of any courier that this writer has seen.
    commit: Cell<i64>,
    /// The number of the newest commit that changed the address book.
    book: Cell<i64>,
    /// Whether the commit of the current batch has an unknown result.
    unknown: Cell<bool>,
    /// The number of changed rows when the batch started.
    changes: Cell<u64>,
    /// The number of next batches that wait for their lock before they run.
    waiting: Cell<u32>,
    /// Whether the row of the current batch is inserted already.
    marked: Cell<bool>,
    /// The number of the batch before which plans were discarded.
    planned: Cell<i64>,
}

impl Batches {
    /// Whether the current batch deletes rows about older ones.
    fn deletes_old_rows(&self) -> bool {
        self.n.get() % KEPT_ROWS == 0
    }

    /// Counts a batch after which other couriers have committed or not.
    fn count_turn(&self, others: bool) {
        let waiting = self.waiting.get().saturating_sub(1);
        self.waiting.set(if others { BATCHES_AFTER_OTHERS } else { waiting });
    }
}

impl PgConnection {
    /// Opens the connection of a writer.
    pub(super) fn open_writer(
        connector: Arc<Connector>,
        options: &PostgresOptions,
    ) -> StoreResult<Self> {
        let mut db = Self::open(connector)?;
        let batches = Batches {
            courier: options.courier.clone(),
            boot: options.boot.clone(),
            n: Cell::new(0),
            commit: Cell::new(-1),
            book: Cell::new(-1),
            unknown: Cell::new(false),
            changes: Cell::new(0),
            waiting: Cell::new(0),
            marked: Cell::new(false),
            planned: Cell::new(0),
        };
        db.run_script(WRITER_SETTINGS)?;
        // Rows of earlier processes of this courier, which do not ask any more.
        db.run_script(&format!(
            "DELETE FROM batches WHERE courier = {} AND boot <> {}",
            quoted_text(&batches.courier),
            quoted_text(&batches.boot)
        ))?;
        db.batches = Some(batches);
        Ok(db)
    }

    /// Starts the transaction of a batch. Unless nothing is assumed, the start is sent with the
    /// first statement that reads, or with all others. When an assumption is wrong, the transaction
    /// is aborted, and must be run again.
    pub(crate) fn begin_batch(&self, assumption: Assumption) -> StoreResult<BatchStart> {
        let Some(batches) = &self.batches else {
            self.control(TxControl::Begin)?;
            return Ok(BatchStart::Started { others: OtherCommits::AddressBook });
        };
        let Batches { courier, boot, n, commit, book, unknown, .. } = batches;
        let Batches { changes, waiting, marked, planned, .. } = batches;
        self.reach(Failpoint::BeforeOrder);
        if n.get() - planned.get() >= BATCHES_PER_PLAN && self.is_connected() {
            self.run_script("DISCARD PLANS")?;
            planned.set(n.get());
        }
        changes.set(self.total_changes());
        let is_known = commit.get() >= 0 && !unknown.get() && self.is_connected();
        marked.set(false);
        let numbers = match assumption {
            Assumption::Nothing => None,
            _ if !is_known => None,
            _ if waiting.get() == 0 => Some((RowNumbers::Absolute, OtherCommits::None)),
            // Rows of the tables in which it counts are not deleted by the same statement.
            Assumption::Independent if !batches.deletes_old_rows() => {
                Some((RowNumbers::Relative, OtherCommits::Rows))
            }
            Assumption::Independent | Assumption::Undisturbed => None,
        };
        if let Some((numbers, others)) = numbers {
            self.start_later(numbers);
            self.start_deferring();
            return Ok(BatchStart::Started { others });
        }
        let batch = params![courier, boot, n.get()];
        // Waits for an older transaction with the same number, whose commit is unknown.
        let marker = unknown.get().then_some((INSERT_BATCH, &batch as &dyn Params));
        let newest = match self.start_now(marker) {
            Err(error) if self.status() == TxStatus::Aborted => {
                let committed = self.is_committed()?;
                return if committed { Ok(BatchStart::Committed) } else { Err(error) };
            }
            newest => newest?,
        };
        let others = match (newest.seq == commit.get(), newest.book == book.get()) {
            (true, _) => OtherCommits::None,
            (false, true) => OtherCommits::Rows,
            (false, false) => OtherCommits::AddressBook,
        };
        batches.count_turn(others != OtherCommits::None);
        // As SQLite does at a start: the largest rows may be deleted.
        if commit.get() < 0 {
            self.forget_numbers();
        } else {
            self.set_numbers(&newest.numbers);
        }
        commit.set(newest.seq);
        book.set(newest.book);
        marked.set(unknown.replace(false));
        self.start_deferring();
        Ok(BatchStart::Started { others })
    }

    /// Checks that no other courier has committed since the last batch.
    pub(super) fn check_newest(&self, newest: &NewestCommit) -> StoreResult<()> {
        match &self.batches {
            Some(batches) if newest.seq != batches.commit.get() => {
                batches.waiting.set(BATCHES_AFTER_OTHERS);
                Err(self.abort("another courier has committed"))
            }
            _ => Ok(()),
        }
    }

    /// Ends a transaction that could not start. Returns whether the reason is that the batch was
    /// committed before.
    fn is_committed(&self) -> StoreResult<bool> {
        let Some(Batches { courier, boot, n, unknown, .. }) = &self.batches else {
            return Ok(false);
        };
        self.control(TxControl::Rollback)?;
        let (courier, boot) = (quoted_text(courier), quoted_text(boot));
        let found = self.run_script(&format!(
            "SELECT EXISTS (SELECT 1 FROM batches
                             WHERE courier = {courier} AND boot = {boot} AND n = {})",
            n.get()
        ))?;
        Ok(unknown.get() && found.as_deref() == Some("t"))
    }

    /// Commits the transaction of a batch, which has changed the `address_book` or not.
    pub(crate) fn commit_batch(&self, address_book: bool) -> StoreResult<()> {
        let Some(batches) = &self.batches else { return self.control(TxControl::Commit) };
        let Batches { courier, boot, n, commit, book, unknown, changes, marked, .. } = batches;
        if changes.get() == self.total_changes() {
            // Nothing to keep, and no sync to wait for.
            return self.end_without_changes();
        }
        let (number, next) = (n.get(), commit.get() + 1);
        let next_book = if address_book { next } else { book.get() };
        let relative = match self.pending_start() {
            Some(RowNumbers::Relative) if address_book => {
                return Err(self.abort("a batch with relative numbers changed the address book"));
            }
            Some(RowNumbers::Relative) => {
                Some(RelativeBatch { book: next_book, counts: self.relative_counts() })
            }
            // Fails when another courier has committed, and this batch has not waited for its lock.
            _ => {
                self.execute(INSERT_COMMIT, &params![next, self.numbers_text(), next_book])?;
                None
            }
        };
        if !marked.replace(false) {
            self.execute(INSERT_BATCH, &params![courier, boot, number])?;
        }
        if batches.deletes_old_rows() {
            self.execute(DELETE_COMMITS, &[next - KEPT_ROWS])?;
            self.execute(DELETE_BATCHES, &params![courier, boot, number])?;
        }
        self.reach(Failpoint::BeforeCommit);
        unknown.set(true);
        let committed = self.commit_with_pending(relative.as_ref());
        if self.status() == TxStatus::Aborted {
            // The server has answered that it did not commit.
            unknown.set(false);
        }
        let before = committed?;
        self.reach(Failpoint::AfterCommit);
        if self.status() == TxStatus::Lost {
            return Err(StoreError::Unavailable("the connection to PostgreSQL is lost".to_owned()));
        }
        unknown.set(false);
        n.set(number + 1);
        book.set(next_book);
        commit.set(match before {
            Some(before) => {
                batches.count_turn(before.seq != commit.get());
                self.set_numbers(&before.numbers);
                self.add_relative_counts();
                before.seq + 1
            }
            None => next,
        });
        Ok(())
    }

    /// Ends the transaction of a batch that has changed nothing. Its results are valid when no other
    /// courier has committed before its start.
    fn end_without_changes(&self) -> StoreResult<()> {
        if self.cancel_start() {
            let newest = self.newest_commit()?;
            return self.check_newest(&newest).inspect_err(|_| self.end_aborted());
        }
        self.end_reading()
    }

    /// Makes one more commit after a commit was found, so that both are on a standby.
    pub(crate) fn confirm_commit(&self) -> StoreResult<()> {
        let Some(batches) = &self.batches else { return Ok(()) };
        let Batches { courier, boot, n, unknown, .. } = batches;
        let (courier, boot) = (quoted_text(courier), quoted_text(boot));
        // Below zero, so that it is not the number of a batch.
        self.begin(&format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
             DELETE FROM batches WHERE courier = {courier} AND boot = {boot} AND n = -1;
             INSERT INTO batches (courier, boot, n) VALUES ({courier}, {boot}, -1)"
        ))?;
        self.commit("COMMIT")?;
        unknown.set(false);
        n.set(n.get() + 1);
        Ok(())
    }

    /// Whether other couriers have committed shortly before.
    pub(crate) fn takes_turns(&self) -> bool {
        self.batches.as_ref().is_some_and(|batches| batches.waiting.get() > 0)
    }

    /// Whether it is unknown if the last batch is committed.
    pub(crate) fn has_unknown_commit(&self) -> bool {
        self.batches.as_ref().is_some_and(|batches| batches.unknown.get())
    }
}
