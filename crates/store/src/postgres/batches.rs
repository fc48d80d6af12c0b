//! Transactions of the writer thread, and commits whose result is unknown.
//!
//! ```text
//!   BEGIN
//!   insert (courier, boot, n) into batches     waits for an older transaction with the same n
//!   lock ORDER                                 one writer at a time, of all couriers
//!   … commands …
//!   insert the next number into commits        shows others what is new
//!   COMMIT
//! ```
//!
//! When the connection is lost during `COMMIT`, the transaction is committed or not. The batch is
//! run again with the same n. If the row in `batches` exists, the batch is committed, and the
//! results in memory are valid. It may be missing on the standby, so another commit must succeed
//! before callers are answered.

use std::cell::Cell;
use std::sync::Arc;

use super::PostgresOptions;
use super::connect::{Connector, quoted_text};
use super::driver::PgConnection;
use super::failpoints::Failpoint;
use crate::sql::db::{TxControl, TxStatus, params};
use crate::{StoreError, StoreResult};

/// Batches and commits whose rows are kept. Older rows are deleted now and then.
const KEPT_ROWS: i64 = 1_000;

const INSERT_BATCH: &str = "INSERT INTO batches (courier, boot, n) VALUES (?1, ?2, ?3)";

/// Held by the transaction that writes.
pub(super) const LOCK_ORDER: &str =
    "SELECT pg_advisory_xact_lock(1297040201, hashtext(current_schema()))";

const NEWEST_COMMIT: &str = "SELECT seq, numbers, book FROM commits ORDER BY seq DESC LIMIT 1";
const INSERT_COMMIT: &str = "INSERT INTO commits (seq, numbers, book) VALUES (?1, ?2, ?3)";
const DELETE_COMMITS: &str = "DELETE FROM commits WHERE seq <= ?1";
const DELETE_BATCHES: &str = "DELETE FROM batches WHERE courier = ?1 AND boot = ?2 AND n < ?3";

const NO_PARAMS: [i64; 0] = [];

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
        };
        // Rows of earlier processes of this courier, which do not ask any more.
        db.run_script(&format!(
            "DELETE FROM batches WHERE courier = {} AND boot <> {}",
            quoted_text(&batches.courier),
            quoted_text(&batches.boot)
        ))?;
        db.batches = Some(batches);
        Ok(db)
    }

    /// Starts the transaction of a batch.
    pub(crate) fn begin_batch(&self) -> StoreResult<BatchStart> {
        let Some(batches) = &self.batches else {
            self.control(TxControl::Begin)?;
            return Ok(BatchStart::Started { others: OtherCommits::AddressBook });
        };
        let Batches { courier, boot, n, commit, book, unknown, changes } = batches;
        self.reach(Failpoint::BeforeOrder);
        let batch = params![courier, boot, n.get()];
        let newest = match self.begin_with(&[
            (INSERT_BATCH, &batch),
            (LOCK_ORDER, &NO_PARAMS),
            (NEWEST_COMMIT, &NO_PARAMS),
        ]) {
            Err(error) if self.status() == TxStatus::Aborted => {
                let committed = self.is_committed()?;
                return if committed { Ok(BatchStart::Committed) } else { Err(error) };
            }
            newest => newest?,
        };
        let newest = newest.map(|row| (row.try_get(0), row.try_get(1), row.try_get(2)));
        let (seq, numbers, newest_book): (i64, String, i64) = match newest {
            Some((Ok(seq), Ok(numbers), Ok(book))) => (seq, numbers, book),
            _ => (0, String::new(), 0),
        };
        let others = match (seq == commit.get(), newest_book == book.get()) {
            (true, _) => OtherCommits::None,
            (false, true) => OtherCommits::Rows,
            (false, false) => OtherCommits::AddressBook,
        };
        match others {
            OtherCommits::None => {}
            // As SQLite does at a start: the largest rows may be deleted.
            _ if commit.get() < 0 => self.forget_numbers(),
            _ => self.set_numbers(&numbers),
        }
        commit.set(seq);
        book.set(newest_book);
        unknown.set(false);
        changes.set(self.total_changes());
        self.start_deferring();
        Ok(BatchStart::Started { others })
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
        let Batches { courier, boot, n, commit, book, unknown, changes } = batches;
        if changes.get() == self.total_changes() {
            // Nothing to keep, and no sync to wait for.
            return self.end_without_changes();
        }
        let (number, next) = (n.get(), commit.get() + 1);
        let next_book = if address_book { next } else { book.get() };
        self.execute(INSERT_COMMIT, &params![next, self.numbers_text(), next_book])?;
        if next % KEPT_ROWS == 0 {
            self.execute(DELETE_COMMITS, &[next - KEPT_ROWS])?;
        }
        if number % KEPT_ROWS == 0 {
            self.execute(DELETE_BATCHES, &params![courier, boot, number])?;
        }
        // All that can be rejected is sent before the commit, whose answer can be lost.
        self.send_pending()?;
        self.reach(Failpoint::BeforeCommit);
        unknown.set(true);
        let committed = self.commit("COMMIT");
        if self.status() == TxStatus::Aborted {
            // The server has answered that it did not commit.
            unknown.set(false);
        }
        committed?;
        self.reach(Failpoint::AfterCommit);
        if self.status() == TxStatus::Lost {
            return Err(StoreError::Unavailable("the connection to PostgreSQL is lost".to_owned()));
        }
        unknown.set(false);
        n.set(number + 1);
        commit.set(next);
        book.set(next_book);
        Ok(())
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

    /// Whether it is unknown if the last batch is committed.
    pub(crate) fn has_unknown_commit(&self) -> bool {
        self.batches.as_ref().is_some_and(|batches| batches.unknown.get())
    }
}
