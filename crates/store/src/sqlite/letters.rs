//! Letters in the post office: their rows, and the steps they take.
//!
//! * [`accept`]: how a message becomes a letter, once.
//! * [`advance`]: one step, with all that it leads to.
//! * [`operator`]: what people do, and what is taken back and forgotten.
//! * [`lists`]: which letters there are.
//! * [`rows`] and [`texts`]: how letters are kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use monoco_core::did::{Did, TunnelId};
use monoco_core::letter::{LetterId, WorkerName};
use monoco_core::object::ObjId;
use monoco_core::rate_limit::ReservedUntil;
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension};
use tokio::sync::watch;

use super::open::fault;
use super::{RELEASED, SqliteStore, contacts, counts, objects};
use crate::{
    AcceptResult, LetterCounts, LetterQuery, LetterRow, LetterSource, LetterStep, LetterStepResult,
    LetterStore, OperatorAction, Page, PageRequest, PipelineRouting, StoreError,
};
use rows::LetterWithTexts;

pub(super) mod accept;
mod lists;
mod operator;
pub(super) mod rows;
mod step;
mod texts;

/// Most bytes of letters that are handed out at once; one letter may have more.
const AT_ONCE: usize = 32 << 20;

impl SqliteStore {
    /// Letters with what they say, as many as memory is meant for. One that is damaged
    /// is given up, and does not hold up the others.
    async fn hand_out(
        &self,
        bundles: Vec<LetterWithTexts>,
        now: Option<Timestamp>,
    ) -> Result<Vec<LetterRow>, StoreError> {
        let (mut letters, mut bytes) = (Vec::with_capacity(bundles.len()), 0);
        for bundle in bundles {
            let (id, revision) = (bundle.stub.id, bundle.stub.revision);
            let now = now.unwrap_or(bundle.stub.updated_at);
            match self.whole(bundle).await {
                Ok(row) => {
                    bytes += row.letter.data.len();
                    letters.push(row);
                }
                Err(StoreError::Damaged { detail, .. }) => {
                    tracing::error!(letter = %id, detail, "damaged");
                    let put_aside = self
                        .writer
                        .run(move |tx| operator::put_aside(tx, id, revision, &detail, now));
                    put_aside.await?;
                }
                Err(error) => return Err(error),
            }
            if bytes > AT_ONCE {
                break;
            }
        }
        Ok(letters)
    }

    /// Letters for somebody who wants to see them, damaged ones among them, as many as
    /// memory is meant for.
    async fn show(&self, bundles: Vec<LetterWithTexts>) -> Result<Vec<LetterRow>, StoreError> {
        let (mut letters, mut bytes) = (Vec::with_capacity(bundles.len()), 0);
        for bundle in bundles {
            let row = self.what_is_left(bundle).await?;
            bytes += row.letter.data.len();
            letters.push(row);
            if bytes > AT_ONCE {
                break;
            }
        }
        Ok(letters)
    }
}

fn booked(db: &Connection, keys: &[String]) -> Result<BTreeMap<String, ReservedUntil>, StoreError> {
    let sql = "SELECT booked FROM bookings WHERE key = ?1";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let mut found = BTreeMap::new();
    for key in keys {
        let booked = statement.query_row([key], |row| row.get(0)).optional().map_err(fault)?;
        found.extend(booked.map(|booked| (key.clone(), booked)));
    }
    Ok(found)
}

fn unwelcome(
    db: &Connection,
    author: &Did,
    to: &[Did],
    tunnel: Option<&TunnelId>,
) -> Result<Option<String>, StoreError> {
    let others: Vec<&Did> = to.iter().collect();
    let book = contacts::book_by(db, |did| contacts::find(db, did), author, &others, tunnel)?;
    if book.blocks(author) {
        return Ok(Some("its author is blocked".to_owned()));
    }
    let blocked = to.iter().find(|target| book.is_block(author, target));
    Ok(blocked.map(|target| format!("{target} has blocked its author")))
}

#[async_trait]
impl LetterStore for SqliteStore {
    async fn accept(
        &self,
        batch: Vec<LetterSource>,
        outbound: Arc<PipelineRouting>,
        now: Timestamp,
    ) -> Vec<Result<AcceptResult, StoreError>> {
        let count = batch.len();
        let mut prepared = Vec::with_capacity(count);
        for origin in batch {
            match self.prepare(origin).await {
                Ok(one) => prepared.push(one),
                Err(error) => return vec![Err(error); count],
            }
        }
        self.writer
            .run_each(prepared, move |tx, prepared| {
                tx.each(prepared, |tx, one| accept::accept(tx, one, &outbound, now))
            })
            .await
    }

    async fn due_letters(
        &self,
        desk: Option<&WorkerName>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<LetterRow>, StoreError> {
        loop {
            let desk = desk.map_or_else(String::new, WorkerName::to_string);
            let bundles = self.read(move |db| lists::due(db, &desk, limit, now)).await?;
            let any = !bundles.is_empty();
            let letters = self.hand_out(bundles, Some(now)).await?;
            // When all of them were damaged, they are out of the way now.
            if !letters.is_empty() || !any {
                return Ok(letters);
            }
        }
    }

    async fn next_letter(
        &self,
        desk: Option<&WorkerName>,
    ) -> Result<Option<Timestamp>, StoreError> {
        let desk = desk.map_or_else(String::new, WorkerName::to_string);
        self.read(move |db| lists::next(db, &desk)).await
    }

    async fn held_letters(
        &self,
        by: &WorkerName,
        key: &str,
        limit: usize,
    ) -> Result<Vec<LetterRow>, StoreError> {
        let (by, key) = (by.clone(), key.to_owned());
        let bundles = self.read(move |db| lists::kept(db, &by, &key, limit)).await?;
        self.hand_out(bundles, None).await
    }

    async fn away_letters(
        &self,
        desk: &WorkerName,
        limit: usize,
    ) -> Result<Vec<LetterRow>, StoreError> {
        let desk = desk.clone();
        let bundles = self.read(move |db| lists::away(db, &desk, limit)).await?;
        self.hand_out(bundles, None).await
    }

    async fn reservations(
        &self,
        keys: Vec<String>,
    ) -> Result<BTreeMap<String, ReservedUntil>, StoreError> {
        self.read(move |db| booked(db, &keys)).await
    }

    async fn step_letters(
        &self,
        batch: Vec<LetterStep>,
        now: Timestamp,
    ) -> Vec<Result<LetterStepResult, StoreError>> {
        let count = batch.len();
        let mut steps = Vec::with_capacity(count);
        for one in batch {
            match self.prepare_step(one).await {
                Ok(step) => steps.push(step),
                Err(error) => return vec![Err(error); count],
            }
        }
        self.writer
            .run_each(steps, move |tx, steps| {
                let answers = tx.each(steps, |tx, step| step::advance(tx, step, now))?;
                step::book(tx, steps.iter().zip(&answers))?;
                Ok(answers)
            })
            .await
    }

    async fn letter(&self, id: LetterId) -> Result<LetterRow, StoreError> {
        let bundle = self.read(move |db| lists::one(db, id)).await?;
        self.whole(bundle).await
    }

    async fn letters(
        &self,
        query: LetterQuery,
        window: PageRequest,
    ) -> Result<Page<LetterRow>, StoreError> {
        let Page { entries, mut next } =
            self.read(move |db| lists::page(db, &query, &window)).await?;
        let count = entries.len();
        let entries = self.show(entries).await?;
        if entries.len() < count {
            next = entries.last().map(|row| row.id.seq);
        }
        Ok(Page { entries, next })
    }

    async fn letters_of(&self, msg_id: ObjId) -> Result<Vec<LetterRow>, StoreError> {
        let bundles = self
            .look_up(move |db, recent| lists::of_object(db, objects::row_of(db, recent, &msg_id)?))
            .await?;
        self.show(bundles).await
    }

    async fn dead_letters(&self, limit: usize) -> Result<Vec<LetterRow>, StoreError> {
        let bundles = self.read(move |db| lists::dead(db, limit)).await?;
        self.show(bundles).await
    }

    async fn move_letter(
        &self,
        id: LetterId,
        how: OperatorAction,
        now: Timestamp,
    ) -> Result<LetterRow, StoreError> {
        let bundle = self
            .writer
            .run(move |tx| {
                operator::move_letter(tx, id, &how, now)?;
                lists::one(tx.db, id)
            })
            .await?;
        self.what_is_left(bundle).await
    }

    async fn recall_letters(
        &self,
        desks: &[WorkerName],
        limit: usize,
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        let desks = desks.to_vec();
        self.writer.run(move |tx| operator::recall(tx, &desks, limit, now)).await
    }

    async fn recall_held_letters(
        &self,
        by: &WorkerName,
        limit: usize,
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        let by = by.clone();
        self.writer.run(move |tx| operator::recall_kept(tx, &by, limit, now)).await
    }

    async fn release_letters(
        &self,
        desks: &[WorkerName],
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        let mut all = 0;
        for desk in desks {
            loop {
                let desk = desk.clone();
                let some =
                    self.writer.run(move |tx| operator::release(tx, &desk, RELEASED, now)).await?;
                all += some;
                if some < RELEASED {
                    break;
                }
            }
        }
        Ok(all)
    }

    async fn find_block(
        &self,
        author: &Did,
        to: &[Did],
        tunnel: Option<&TunnelId>,
    ) -> Result<Option<String>, StoreError> {
        let (author, to, tunnel) = (author.clone(), to.to_vec(), tunnel.cloned());
        self.read(move |db| unwelcome(db, &author, &to, tunnel.as_ref())).await
    }

    async fn purge_letters(
        &self,
        trashed: i64,
        done: i64,
        limit: usize,
    ) -> Result<usize, StoreError> {
        self.writer.run(move |tx| operator::purge(tx, trashed, done, limit)).await
    }

    async fn purge_reservations(
        &self,
        after: &str,
        limit: usize,
        now: Timestamp,
    ) -> Result<(usize, Option<String>), StoreError> {
        let (after, over) = (after.to_owned(), now.ms().saturating_mul(1_000));
        let some = self.read(move |db| operator::bookings(db, &after, limit)).await?;
        let last = some.last().map(|(key, _)| key.clone());
        let keys: Vec<_> =
            some.into_iter().filter_map(|(key, booked)| (booked <= over).then_some(key)).collect();
        if keys.is_empty() {
            return Ok((0, last));
        }
        let gone = self.writer.run(move |tx| operator::forget_bookings(tx, &keys, over)).await?;
        Ok((gone, last))
    }

    async fn letter_counts(&self, now: Timestamp) -> Result<LetterCounts, StoreError> {
        self.read(move |db| {
            let oldest_due = lists::next(db, "")?.filter(|due| *due <= now);
            Ok(LetterCounts { oldest_due, ..counts::letter_figures(db)? })
        })
        .await
    }

    fn newest_letter(&self) -> watch::Receiver<u64> {
        self.board.letter.subscribe()
    }
}

#[cfg(test)]
mod tests;
