//! Letters in the pipeline.
//!
//! * [`accept`]: creates letters
//! * [`corrections`]: messages that are edited or recalled
//! * [`step`]: one step of a letter, with everything that it leads to
//! * [`operator`]: actions of operators, recalls, releases and purges
//! * [`erasure`]: erases the letters of a person
//! * [`lists`]: queries by state, worker or filter
//! * [`rows`] and [`texts`]: how letters are stored

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use monoco_core::letter::{LetterId, WorkerName};
use monoco_core::object::ObjId;
use monoco_core::rate_limit::ReservedUntil;
use monoco_core::time::Timestamp;
use tokio::sync::watch;

use super::db::params;
use super::rows as sql;
use super::writer::Lookups;
use super::{DAMAGED_ROW_DELAY, MAX_RELEASED_PER_COMMIT, SqlStore, counts, objects};
use crate::{
    AcceptResult, LetterCounts, LetterQuery, LetterRow, LetterSource, LetterStep, LetterStepResult,
    LetterStore, OperatorAction, Page, PageRequest, PipelineRouting, StoreError, StoreResult,
};
use accept::PreparedLetter;
use rows::LetterWithTexts;

pub(super) mod accept;
pub(super) mod corrections;
pub(super) mod erasure;
mod lists;
pub(super) mod operator;
pub(super) mod rows;
mod step;
#[cfg(test)]
mod tests;
mod texts;

/// Bytes of letters that one call returns; a single letter may have more.
const MAX_BYTES_RETURNED: usize = 32 << 20;

impl SqlStore {
    /// Reads the texts of letters for processing, up to [`MAX_BYTES_RETURNED`]. A damaged
    /// letter becomes DEAD and is left out.
    async fn read_letters(
        &self,
        found: Vec<LetterWithTexts>,
        now: Option<Timestamp>,
    ) -> StoreResult<Vec<LetterRow>> {
        let (mut letters, mut bytes) = (Vec::with_capacity(found.len()), 0);
        for letter in found {
            let (id, revision) = (letter.head.id, letter.head.revision);
            let now = now.unwrap_or(letter.head.updated_at);
            match self.read_letter(letter).await {
                Ok(row) => {
                    bytes += row.letter.data.len();
                    letters.push(row);
                }
                Err(StoreError::Damaged { detail, .. }) => {
                    tracing::error!(letter = %id, detail, "cannot read damaged letter");
                    let mark_dead = self
                        .writer
                        .run(move |tx| operator::mark_damaged(tx, id, revision, &detail, now));
                    mark_dead.await?;
                }
                Err(error) => return Err(error),
            }
            if bytes > MAX_BYTES_RETURNED {
                break;
            }
        }
        Ok(letters)
    }

    /// Reads the texts of letters for display, up to [`MAX_BYTES_RETURNED`]. Damaged letters
    /// are shown without text.
    async fn show_letters(&self, found: Vec<LetterWithTexts>) -> StoreResult<Vec<LetterRow>> {
        let (mut letters, mut bytes) = (Vec::with_capacity(found.len()), 0);
        for letter in found {
            let row = self.show_letter(letter).await?;
            bytes += row.letter.data.len();
            letters.push(row);
            if bytes > MAX_BYTES_RETURNED {
                break;
            }
        }
        Ok(letters)
    }

    /// Postpones the due letters of a worker when all of them are damaged, so that the
    /// dispatcher does not wake for them.
    async fn postpone_damaged_letters(&self, worker: String, now: Timestamp) -> StoreResult<()> {
        let name = worker.clone();
        let due = self.read(move |db| lists::next_due(db, &name)).await?;
        if due.is_none_or(|due| due > now) {
            return Ok(());
        }
        self.writer
            .run(move |tx| {
                if !rows::list(tx.db, lists::DUE, params![worker, now.ms()], 1)?.is_empty() {
                    return Ok(());
                }
                let until = (now + DAMAGED_ROW_DELAY).ms();
                sql::execute(tx.db, lists::POSTPONE_DUE, params![worker, now.ms(), until])?;
                Ok(())
            })
            .await
    }
}

/// The name of a worker in the column `worker`; the dispatcher has the name "".
fn worker_column(worker: Option<&WorkerName>) -> String {
    worker.map_or_else(String::new, WorkerName::to_string)
}

#[async_trait]
impl LetterStore for SqlStore {
    async fn accept(
        &self,
        batch: Vec<LetterSource>,
        outbound: Arc<PipelineRouting>,
        now: Timestamp,
    ) -> Vec<StoreResult<AcceptResult>> {
        let count = batch.len();
        let _lock = self.erasing.read().await;
        let mut prepared = Vec::with_capacity(count);
        for source in batch {
            match self.prepare_letter(source, now).await {
                Ok(letter) => prepared.push(letter),
                Err(error) => return vec![Err(error); count],
            }
        }
        let external_ids = prepared.iter().filter_map(PreparedLetter::external_id).collect();
        let lookups = Lookups { external_ids, ..Lookups::default() };
        self.writer
            .run_each_on(lookups, prepared, move |tx, prepared| {
                tx.each(prepared, |tx, letter| accept::accept(tx, letter, &outbound, now))
            })
            .await
    }

    async fn due_letters(
        &self,
        worker: Option<&WorkerName>,
        limit: usize,
        now: Timestamp,
    ) -> StoreResult<Vec<LetterRow>> {
        // Ends when a letter is undamaged or none is due.
        loop {
            let name = worker_column(worker);
            let find =
                self.read(move |db| rows::list(db, lists::DUE, params![name, now.ms()], limit));
            let found = find.await?;
            if found.is_empty() {
                self.postpone_damaged_letters(worker_column(worker), now).await?;
                return Ok(Vec::new());
            }
            let letters = self.read_letters(found, Some(now)).await?;
            if !letters.is_empty() {
                return Ok(letters);
            }
        }
    }

    async fn next_letter(&self, worker: Option<&WorkerName>) -> StoreResult<Option<Timestamp>> {
        let worker = worker_column(worker);
        self.read(move |db| lists::next_due(db, &worker)).await
    }

    async fn held_letters(
        &self,
        by: &WorkerName,
        key: &str,
        limit: usize,
    ) -> StoreResult<Vec<LetterRow>> {
        let (by, key) = (by.clone(), key.to_owned());
        let find =
            self.read(move |db| rows::list(db, lists::HELD, params![by.as_str(), key], limit));
        self.read_letters(find.await?, None).await
    }

    async fn away_letters(&self, worker: &WorkerName, limit: usize) -> StoreResult<Vec<LetterRow>> {
        let worker = worker.clone();
        let find =
            self.read(move |db| rows::list(db, lists::AWAY, params![worker.as_str()], limit));
        self.read_letters(find.await?, None).await
    }

    async fn reservations(
        &self,
        keys: Vec<String>,
    ) -> StoreResult<BTreeMap<String, ReservedUntil>> {
        self.read(move |db| {
            let select = "SELECT reserved_until FROM reservations WHERE key = ?1";
            let mut found = BTreeMap::new();
            for key in keys {
                let until = sql::optional(db, select, [&key], |row| row.get(0))?;
                found.extend(until.map(|until| (key, until)));
            }
            Ok(found)
        })
        .await
    }

    async fn step_letters(
        &self,
        batch: Vec<LetterStep>,
        now: Timestamp,
    ) -> Vec<StoreResult<LetterStepResult>> {
        let count = batch.len();
        let _lock = self.erasing.read().await;
        let mut steps = Vec::with_capacity(count);
        for step in batch {
            match self.prepare_step(step).await {
                Ok(step) => steps.push(step),
                Err(error) => return vec![Err(error); count],
            }
        }
        self.writer
            .run_each(steps, move |tx, steps| {
                rows::look_up(tx, &step::rows_of(steps))?;
                let results = tx.each(steps, |tx, prepared| step::apply(tx, prepared, now));
                tx.cache.letters.clear();
                let results = results?;
                step::put_reservations(tx, steps.iter().zip(&results))?;
                Ok(results)
            })
            .await
    }

    async fn letter(&self, id: LetterId) -> StoreResult<LetterRow> {
        let found = self.read(move |db| lists::by_id(db, id)).await?;
        self.read_letter(found).await
    }

    async fn letters(&self, query: LetterQuery, page: PageRequest) -> StoreResult<Page<LetterRow>> {
        let Page { entries, mut next } =
            self.read(move |db| lists::page(db, &query, &page)).await?;
        let count = entries.len();
        let entries = self.show_letters(entries).await?;
        if entries.len() < count {
            next = entries.last().map(|row| row.id.seq);
        }
        Ok(Page { entries, next })
    }

    async fn letters_of(&self, msg_id: ObjId) -> StoreResult<Vec<LetterRow>> {
        let find = self.read_by_hash(move |db, recent| {
            lists::of_object(db, objects::seq_of(db, recent, &msg_id)?)
        });
        self.show_letters(find.await?).await
    }

    async fn dead_letters(&self, limit: usize) -> StoreResult<Vec<LetterRow>> {
        let find = self.read(move |db| rows::list(db, lists::DEAD, params![], limit));
        self.show_letters(find.await?).await
    }

    async fn move_letter(
        &self,
        id: LetterId,
        action: OperatorAction,
        now: Timestamp,
    ) -> StoreResult<LetterRow> {
        let moved = self.writer.run(move |tx| {
            operator::apply(tx, id, &action, now)?;
            lists::by_id(tx.db, id)
        });
        self.show_letter(moved.await?).await
    }

    async fn recall_letters(
        &self,
        workers: &[WorkerName],
        limit: usize,
        now: Timestamp,
    ) -> StoreResult<usize> {
        let workers = workers.to_vec();
        self.writer.run(move |tx| operator::recall(tx, &workers, limit, now)).await
    }

    async fn recall_held_letters(
        &self,
        by: &WorkerName,
        limit: usize,
        now: Timestamp,
    ) -> StoreResult<usize> {
        let by = by.clone();
        self.writer.run(move |tx| operator::recall_held(tx, &by, limit, now)).await
    }

    async fn release_letters(&self, prefix: &str, now: Timestamp) -> StoreResult<usize> {
        let mut total = 0;
        // Ends when a commit releases less than its maximum.
        loop {
            let (prefix, limit) = (prefix.to_owned(), MAX_RELEASED_PER_COMMIT);
            let release = self.writer.run(move |tx| operator::release(tx, &prefix, limit, now));
            let released = release.await?;
            total += released;
            if released < limit {
                return Ok(total);
            }
        }
    }

    async fn purge_letters(&self, trashed: i64, done: i64, limit: usize) -> StoreResult<usize> {
        self.writer.run(move |tx| operator::purge(tx, trashed, done, limit)).await
    }

    async fn purge_reservations(
        &self,
        after: &str,
        limit: usize,
        now: Timestamp,
    ) -> StoreResult<(usize, Option<String>)> {
        let (after, now_us) = (after.to_owned(), now.ms().saturating_mul(1_000));
        let read = self.read(move |db| {
            let select = "
                SELECT key, reserved_until FROM reservations
                 WHERE key > ?1 ORDER BY key LIMIT ?2
            ";
            let row = params![after, sql::limit(limit)];
            sql::list(db, select, row, |row| Ok((row.get(0)?, row.get(1)?)))
        });
        let found: Vec<(String, ReservedUntil)> = read.await?;
        let last = found.last().map(|(key, _)| key.clone());
        let keys: Vec<_> =
            found.into_iter().filter_map(|(key, until)| (until <= now_us).then_some(key)).collect();
        if keys.is_empty() {
            return Ok((0, last));
        }
        let purge = self.writer.run(move |tx| {
            // A reservation can have been extended since it was read.
            let delete = "DELETE FROM reservations WHERE key = ?1 AND reserved_until <= ?2";
            keys.iter().try_fold(0, |purged, key| {
                sql::changed_rows(tx.db, delete, params![key, now_us]).map(|count| purged + count)
            })
        });
        Ok((purge.await?, last))
    }

    async fn letter_counts(&self, now: Timestamp) -> StoreResult<LetterCounts> {
        self.read(move |db| {
            let oldest_due = lists::next_due(db, "")?.filter(|due| *due <= now);
            Ok(LetterCounts { oldest_due, ..counts::letters(db)? })
        })
        .await
    }

    fn newest_letter(&self) -> watch::Receiver<u64> {
        self.channels.letter.subscribe()
    }
}
