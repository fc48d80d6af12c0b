//! Transactions of the writer thread, and commits whose result is unknown.
//!
//! ```text
//!   BEGIN
//!   insert (courier, boot, n) into batches     waits for an older transaction with the same n
//!   lock ORDER                                 one writer at a time, of all couriers
//!   … commands …
//!   insert the next number into commits        shows others that their caches are old
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
use crate::sql::db::{TxControl, TxStatus};
use crate::{StoreError, StoreResult};

/// Batches and commits whose rows are kept. Older rows are deleted now and then.
const KEPT_ROWS: i64 = 1_000;

/// Held by the transaction that writes.
const LOCK_ORDER: &str = "SELECT pg_advisory_xact_lock(1297040201, hashtext(current_schema()))";

/// How a batch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchStart {
    Started {
        /// Whether another courier has written since the last batch.
        others_wrote: bool,
    },
    /// The commit with an unknown result was successful.
    Committed,
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
            courier: quoted_text(&options.courier),
            boot: quoted_text(&options.boot),
            n: Cell::new(0),
            commit: Cell::new(-1),
            unknown: Cell::new(false),
            changes: Cell::new(0),
        };
        // Rows of earlier processes of this courier, which do not ask any more.
        db.run_script(&format!(
            "DELETE FROM batches WHERE courier = {} AND boot <> {}",
            batches.courier, batches.boot
        ))?;
        db.batches = Some(batches);
        Ok(db)
    }

    /// Starts the transaction of a batch.
    pub(crate) fn begin_batch(&self) -> StoreResult<BatchStart> {
        let Some(batches) = &self.batches else {
            self.control(TxControl::Begin)?;
            return Ok(BatchStart::Started { others_wrote: true });
        };
        let Batches { courier, boot, n, commit, unknown, changes } = batches;
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
             INSERT INTO batches (courier, boot, n) VALUES ({courier}, {boot}, {});
             {LOCK_ORDER};
             SELECT coalesce(max(seq), 0) FROM commits",
            n.get()
        );
        self.reach(Failpoint::BeforeOrder);
        let newest = match self.begin(&begin) {
            Err(error) if self.status() == TxStatus::Aborted => {
                let committed = self.is_committed()?;
                return if committed { Ok(BatchStart::Committed) } else { Err(error) };
            }
            newest => newest?,
        };
        let newest = newest.and_then(|number| number.parse().ok()).unwrap_or(0);
        let others_wrote = newest != commit.get();
        if others_wrote {
            self.forget_numbers();
        }
        commit.set(newest);
        unknown.set(false);
        changes.set(self.total_changes());
        Ok(BatchStart::Started { others_wrote })
    }

    /// Ends a transaction that could not start. Returns whether the reason is that the batch was
    /// committed before.
    fn is_committed(&self) -> StoreResult<bool> {
        let Some(Batches { courier, boot, n, unknown, .. }) = &self.batches else {
            return Ok(false);
        };
        self.control(TxControl::Rollback)?;
        let found = self.run_script(&format!(
            "SELECT EXISTS (SELECT 1 FROM batches
                             WHERE courier = {courier} AND boot = {boot} AND n = {})",
            n.get()
        ))?;
        Ok(unknown.get() && found.as_deref() == Some("t"))
    }

    /// Commits the transaction of a batch.
    pub(crate) fn commit_batch(&self) -> StoreResult<()> {
        let Some(batches) = &self.batches else { return self.control(TxControl::Commit) };
        let Batches { courier, boot, n, commit, unknown, changes } = batches;
        if changes.get() == self.total_changes() {
            // Nothing to keep, and no sync to wait for.
            return self.end_without_changes();
        }
        let (number, next) = (n.get(), commit.get() + 1);
        let mut script = format!("INSERT INTO commits (seq) VALUES ({next});");
        if next % KEPT_ROWS == 0 {
            script += &format!("DELETE FROM commits WHERE seq <= {};", next - KEPT_ROWS);
        }
        if number % KEPT_ROWS == 0 {
            script += &format!(
                "DELETE FROM batches WHERE courier = {courier} AND boot = {boot} AND n < {number};"
            );
        }
        // All that can be rejected is sent before the commit, whose answer can be lost.
        self.run_script(&script)?;
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
        Ok(())
    }

    /// Makes one more commit after a commit was found, so that both are on a standby.
    pub(crate) fn confirm_commit(&self) -> StoreResult<()> {
        let Some(batches) = &self.batches else { return Ok(()) };
        let Batches { courier, boot, n, unknown, .. } = batches;
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
