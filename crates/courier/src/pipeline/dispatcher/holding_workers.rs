//! Workers that hold letters: `merge` until a window closes, `limit` until a slot is free.

use std::time::Duration;

use monoco_core::letter::{LetterStateData, Verdict, WorkerName, WorkerResult};
use monoco_core::rate_limit::{Rate, ReservedUntil, reserve};
use monoco_core::time::Timestamp;
use monoco_store::{LetterRow, StoreResult};

use super::{BatchContext, LetterDispatcher, LetterInProgress, PendingLetter};
use crate::pipeline::workers::downcast;
use crate::pipeline::workers::limit::LimitConfig;
use crate::pipeline::workers::merge::{self, MergeConfig};

impl LetterDispatcher {
    /// Reads the reservations of all letters in one query.
    pub(super) async fn read_reservations(
        &self,
        batch: &mut BatchContext<'_>,
        pending: &[PendingLetter],
    ) -> StoreResult<()> {
        let mut keys = Vec::new();
        for PendingLetter { row, .. } in
            pending.iter().filter(|letter| letter.row.held_by.is_none())
        {
            let tunnel = row.tunnel.as_ref();
            for name in &batch.config.chain(row.direction, tunnel).0 {
                let worker = batch.config.workers.get(name);
                if let Some(limit) = worker.and_then(|worker| downcast::<LimitConfig>(&**worker)) {
                    keys.extend(limit.slots(name, tunnel, &row.letter).map(|(key, _)| key));
                }
            }
        }
        keys.sort_unstable();
        keys.dedup();
        self.read_reserved(batch, keys).await
    }

    async fn read_reserved(
        &self,
        batch: &mut BatchContext<'_>,
        keys: Vec<String>,
    ) -> StoreResult<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let mut reserved = self.store.reservations(keys.clone()).await?;
        batch.reserved.extend(keys.into_iter().map(|key| {
            let until = reserved.remove(&key);
            (key, until)
        }));
        Ok(())
    }

    /// Continues with a letter that a worker has held until now.
    pub(super) async fn resume_held(
        &self,
        batch: &mut BatchContext<'_>,
        letter: &mut LetterInProgress,
        holder: WorkerName,
        key: Option<String>,
    ) -> StoreResult<()> {
        let worker = batch.config.workers.get(&holder);
        let merge = worker.and_then(|worker| downcast::<MergeConfig>(&**worker));
        let note = match (merge, key) {
            (Some(merge), Some(key)) => {
                self.join_letters(batch, letter, &holder, &key, merge).await?
            }
            _ => {
                let waited = batch.now.since(letter.row.updated_at).as_secs();
                Some(format!("waited {waited} s"))
            }
        };
        self.metrics.record_verdict(&holder, Verdict::Pass, Duration::ZERO);
        letter.run.record(&holder, WorkerResult { note, ..WorkerResult::PASS }, batch.now);
        Ok(())
    }

    /// Joins the letters of a closed window into this one. Returns the note of the verdict.
    async fn join_letters(
        &self,
        batch: &mut BatchContext<'_>,
        letter: &mut LetterInProgress,
        holder: &WorkerName,
        key: &str,
        merge: &MergeConfig,
    ) -> StoreResult<Option<String>> {
        let own = letter.row.id;
        batch.merged.insert(own);
        let limit = merge.max_letters + batch.merged.len();
        let held = self.store.held_letters(holder, key, limit).await?;
        let others = held.into_iter().filter(|row| {
            let closed = matches!(row.status.standing,
                LetterStateData::Waiting { due } if due <= batch.now);
            // What an agent wrote must not be sent as the owner's.
            let same_origin = row.source.origin() == letter.row.source.origin();
            row.id != own && closed && same_origin && !batch.merged.contains(&row.id)
        });
        let others: Vec<_> = others.take(merge.max_letters.saturating_sub(1)).collect();
        let mut letters = vec![(own, letter.run.letter())];
        letters.extend(others.iter().map(|row| (row.id, &row.letter)));
        letters.truncate(merge::joinable(&letters).max(1));
        if letters.len() < 2 {
            return Ok(None);
        }
        let count = letters.len();
        let joined = merge::join(&letters);
        for row in &others[..count - 1] {
            batch.merged.insert(row.id);
            letter.joins.push((row.id, row.revision));
        }
        letter.run.replace_letter(joined);
        Ok(Some(format!("{count} letters became one")))
    }

    /// Adds a letter to the open window of its key, or opens one. Returns when it closes.
    pub(super) async fn join_window(
        &self,
        batch: &mut BatchContext<'_>,
        name: &WorkerName,
        key: &str,
        merge: &MergeConfig,
    ) -> StoreResult<Timestamp> {
        let window_key = (name.clone(), key.to_owned());
        let open = match batch.windows.get(&window_key) {
            Some(open) => Some(*open),
            None => {
                let held = self.store.held_letters(name, key, merge.max_letters).await?;
                let due = |row: &LetterRow| match row.status.standing {
                    LetterStateData::Waiting { due } => Some(due),
                    _ => None,
                };
                let due = held.iter().filter_map(due).max();
                due.map(|due| (due, held.len()))
            }
        };
        let (due, count) = match open {
            Some((due, count)) if due > batch.now && count < merge.max_letters => (due, count + 1),
            _ => (batch.now + merge.window, 1),
        };
        batch.windows.insert(window_key, (due, count));
        Ok(due)
    }

    /// Reserves the next slot of a letter. Returns its time.
    pub(super) async fn reserve_slot(
        &self,
        batch: &mut BatchContext<'_>,
        letter: &mut LetterInProgress,
        name: &WorkerName,
        limit: &LimitConfig,
    ) -> StoreResult<Timestamp> {
        let tunnel = letter.row.tunnel.as_ref();
        let keys: Vec<_> = limit.slots(name, tunnel, letter.run.letter()).collect();
        let unread = keys.iter().filter(|(key, _)| !batch.reserved.contains_key(key));
        let unread = unread.map(|(key, _)| key.clone()).collect();
        self.read_reserved(batch, unread).await?;
        let slots: Vec<(Rate, Option<ReservedUntil>)> = keys
            .iter()
            .map(|(key, rate)| (*rate, batch.reserved.get(key).copied().flatten()))
            .collect();
        let (due, reserved) = reserve(&slots, batch.now);
        for ((key, _), until) in keys.into_iter().zip(reserved) {
            batch.reserved.insert(key.clone(), Some(until));
            letter.reservations.push((key, until));
        }
        Ok(due)
    }
}
