//! Keeps the search index equal to the texts in the store.
//!
//! ```text
//!   page of messages ─▶ tokens ─▶ one commit of the index: messages and progress
//! ```
//!
//! The index is a projection of the store; no caller waits for it. After a crash, the indexer
//! continues after the progress that the index has committed. An index that belongs to another
//! store, such as one before a restore, is built again.
//!
//! Couriers that share a database have an index each. All of them follow the erasures of the store,
//! so that erased words leave the files of each courier: at once, or when it starts again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use monoco_core::object::ObjId;
use monoco_core::search::{IndexingLoad, SearchDocument};
use monoco_store::{
    IndexedMessage, SearchBatch, SearchIndex, SearchProgress, SearchableMessage, SharedStore,
    StoreError,
};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

use crate::background::{self, BackgroundTask, NextStep};

/// Interval between checks when no hint arrives.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Interval between checks whether a busy courier has become quiet.
const BUSY_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Shortest time over which events are counted. Three events of one message are no load.
const MIN_MEASURED: Duration = Duration::from_millis(100);

/// Pages whose messages are committed together.
const MAX_PAGES_PER_BATCH: usize = 4;

/// Bytes of tokens that one commit has, besides those of its last message.
const MAX_BYTES_PER_BATCH: usize = 4 << 20;

/// Follows the store with the index.
pub struct SearchIndexer {
    store: SharedStore,
    index: Arc<dyn SearchIndex>,
    /// Whether messages are indexed. Erasures remove texts also from an index of an earlier run.
    is_enabled: bool,
    /// Locked from the first read of a text to the commit of its tokens, so that an erasure
    /// removes also those that are on their way.
    state: Mutex<IndexerState>,
    /// The number of the last object that is indexed.
    indexed: watch::Sender<i64>,
    rebuilds: watch::Sender<u64>,
}

#[derive(Default)]
struct IndexerState {
    /// Whether the index was compared with the store since the start.
    is_checked: bool,
}

/// The indexer as a background task.
struct IndexerTask {
    indexer: Arc<SearchIndexer>,
    events: watch::Receiver<i64>,
    rebuilds: watch::Receiver<u64>,
    pace: IndexerPace,
}

/// When the indexer works, so that it does not slow down a busy courier.
#[derive(Debug)]
struct IndexerPace {
    /// When the count of events started, and the number of the newest one then.
    counted: (Instant, i64),
    /// The last step, and the last complete count of events.
    load: IndexingLoad,
    /// When the last step ended.
    worked_at: Instant,
    /// When the index had all messages the last time.
    complete_at: Instant,
}

impl IndexerPace {
    fn new(newest: i64, now: Instant) -> Self {
        let counted = (now, newest);
        Self { counted, load: IndexingLoad::default(), worked_at: now, complete_at: now }
    }

    /// How long the next step has to wait.
    fn wait(&mut self, newest: i64, now: Instant) -> Duration {
        let (since, before) = self.counted;
        if now - since >= MIN_MEASURED {
            self.counted = (now, newest);
            self.load.events = u64::try_from(newest - before).unwrap_or(0);
            self.load.measured = now - since;
        }
        self.load.behind = now - self.complete_at;
        self.load.pause().saturating_sub(now - self.worked_at)
    }

    /// Notes a step that ended now.
    fn note(&mut self, started: Instant, now: Instant, is_complete: bool) {
        (self.load.worked, self.worked_at) = (now - started, now);
        if is_complete {
            self.complete_at = started;
        }
    }
}

impl BackgroundTask for IndexerTask {
    const NAME: &'static str = "search indexer";
    type Error = StoreError;

    async fn step(&mut self) -> Result<NextStep, StoreError> {
        let started = Instant::now();
        let newest = *self.events.borrow_and_update();
        let wait = self.pace.wait(newest, started);
        if !wait.is_zero() {
            return Ok(NextStep::After(wait.min(BUSY_CHECK_INTERVAL)));
        }
        self.rebuilds.mark_unchanged();
        let next = self.indexer.step().await?;
        self.pace.note(started, Instant::now(), next != NextStep::Now);
        Ok(next)
    }

    async fn hint(&mut self) {
        tokio::select! {
            () = background::changed(&mut self.events) => {}
            () = background::changed(&mut self.rebuilds) => {}
        }
    }
}

impl SearchIndexer {
    pub fn new(store: SharedStore, index: Arc<dyn SearchIndex>, is_enabled: bool) -> Self {
        let (indexed, rebuilds) = (watch::Sender::new(0), watch::Sender::new(0));
        Self { store, index, is_enabled, state: Mutex::default(), indexed, rebuilds }
    }

    pub const fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    pub fn index(&self) -> &dyn SearchIndex {
        &*self.index
    }

    /// Indexes new messages, and removes erased ones, until `stop` is cancelled.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let (events, rebuilds) = (self.store.newest_event(), self.rebuilds.subscribe());
        let pace = IndexerPace::new(*events.borrow(), Instant::now());
        let mut task = IndexerTask { indexer: self, events, rebuilds, pace };
        background::run(&mut task, &stop).await;
    }

    /// Waits until the index has all messages that are stored now, at most `limit`. Returns
    /// whether it has them.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn wait_for_newest(&self, limit: Duration) -> Result<bool, StoreError> {
        let newest = self.store.object_mark(None).await?.map_or(0, |(seq, _)| seq);
        let mut indexed = self.indexed.subscribe();
        let wait = indexed.wait_for(|indexed| *indexed >= newest);
        Ok(tokio::time::timeout(limit, wait).await.is_ok_and(|waited| waited.is_ok()))
    }

    /// Empties the index. The background task builds it again.
    ///
    /// # Errors
    ///
    /// When the index fails.
    pub async fn rebuild(&self) -> Result<(), StoreError> {
        let _state = self.state.lock().await;
        self.index.clear().await?;
        self.indexed.send_replace(0);
        self.rebuilds.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Removes erased texts from the index and from its files. Called after they were erased in
    /// the store. Can be repeated.
    ///
    /// # Errors
    ///
    /// When the store or the index fails.
    pub async fn erase(&self) -> Result<(), StoreError> {
        let mut state = self.state.lock().await;
        let progress = self.checked_progress(&mut state).await?;
        self.follow_erasures(progress).await?;
        Ok(())
    }

    /// Indexes one batch of messages, after removing erased ones.
    async fn step(&self) -> Result<NextStep, StoreError> {
        let mut state = self.state.lock().await;
        let progress = self.checked_progress(&mut state).await?;
        let mut progress = self.follow_erasures(progress).await?;
        if !self.is_enabled {
            return Ok(NextStep::Poll(POLL_INTERVAL));
        }
        let start = progress;
        let mut batch = SearchBatch::default();
        let (mut bytes, mut is_end) = (0, false);
        (batch.remove, progress.change) = self.store.purged_messages(progress.change).await?;
        for _ in 0..MAX_PAGES_PER_BATCH {
            let page = self.store.searchable_messages(progress.object).await?;
            let Some(last) = page.last else {
                is_end = true;
                break;
            };
            let messages = self.indexed_messages(page.messages).await?;
            bytes += messages.iter().map(IndexedMessage::bytes).sum::<usize>();
            batch.insert.extend(messages);
            (progress.object, progress.object_hash) = last;
            if bytes >= MAX_BYTES_PER_BATCH {
                break;
            }
        }
        if progress != start {
            batch.progress = progress;
            self.index.apply(batch).await?;
        }
        self.indexed.send_replace(progress.object);
        let is_idle = is_end && progress.change == start.change;
        Ok(if is_idle { NextStep::Poll(POLL_INTERVAL) } else { NextStep::Now })
    }

    /// Returns how far the index is. An index that belongs to another store is emptied.
    async fn checked_progress(
        &self,
        state: &mut IndexerState,
    ) -> Result<SearchProgress, StoreError> {
        let progress = self.index.progress().await?;
        if state.is_checked {
            return Ok(progress);
        }
        let is_own = self.belongs_to_store(progress).await?;
        if !is_own {
            tracing::info!("search index belongs to another store; building it again");
            self.index.clear().await?;
        }
        state.is_checked = true;
        Ok(if is_own { progress } else { SearchProgress::default() })
    }

    /// Removes the messages that were erased by any courier since the last time, and returns the
    /// new progress. The rest of a rewritten message is indexed again.
    ///
    /// The progress is committed last, when the removed words are not in the files any more.
    async fn follow_erasures(
        &self,
        mut progress: SearchProgress,
    ) -> Result<SearchProgress, StoreError> {
        let start = progress;
        let mut is_indexed = false;
        loop {
            let page = self.store.erased_messages(progress.erasure).await?;
            let Some((last, _)) = page.last() else { break };
            progress.erasure = *last;
            let mut batch = SearchBatch { progress: start, ..SearchBatch::default() };
            // A message behind the progress is indexed in its turn.
            for (_, object) in page.into_iter().filter(|(_, object)| *object <= start.object) {
                batch.remove.push(object);
                if let Some(message) = self.store.searchable_message(object).await? {
                    batch.insert.extend(self.indexed_messages(vec![message]).await?);
                }
            }
            if !batch.remove.is_empty() {
                is_indexed = true;
                self.index.apply(batch).await?;
            }
        }
        if progress == start {
            return Ok(progress);
        }
        if is_indexed {
            self.index.compact().await?;
        }
        // The last message can have got another hash.
        if let Some((_, hash)) = self.store.object_mark(Some(progress.object)).await? {
            progress.object_hash = hash;
        }
        self.index.apply(SearchBatch { progress, ..SearchBatch::default() }).await?;
        Ok(progress)
    }

    /// Whether the last indexed object is still the same object in the store, and the store has the
    /// last erasure of the index.
    async fn belongs_to_store(&self, progress: SearchProgress) -> Result<bool, StoreError> {
        let SearchProgress { object, object_hash, erasure, .. } = progress;
        if object > 0 && self.store.object_mark(Some(object)).await? != Some((object, object_hash))
        {
            return Ok(false);
        }
        let erased = self.store.erased_messages(erasure.saturating_sub(1)).await?;
        Ok(erasure == 0 || erased.first().is_some_and(|(number, _)| *number == erasure))
    }

    /// Returns the tokens of messages, without those that are damaged or were erased meanwhile.
    async fn indexed_messages(
        &self,
        messages: Vec<SearchableMessage>,
    ) -> Result<Vec<IndexedMessage>, StoreError> {
        let (mut small, mut indexed) = (Vec::new(), Vec::new());
        for mut message in messages {
            match message.body.take() {
                Some(body) => small.push((message, body)),
                // One text in a file has up to 6 MiB, so that only one of them is in memory.
                None => {
                    if let Some(body) = self.large_body(message.id).await? {
                        indexed.extend(tokenize(vec![(message, body)]).await?);
                    }
                }
            }
        }
        indexed.extend(tokenize(small).await?);
        Ok(indexed)
    }

    async fn large_body(&self, id: ObjId) -> Result<Option<String>, StoreError> {
        match self.store.object(id).await {
            Ok(bytes) => Ok(String::from_utf8(bytes).ok()),
            Err(
                StoreError::Damaged { .. } | StoreError::Missing { .. } | StoreError::Erased { .. },
            ) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Splits texts into tokens on a thread for blocking work.
async fn tokenize(
    messages: Vec<(SearchableMessage, String)>,
) -> Result<Vec<IndexedMessage>, StoreError> {
    let work = move || {
        let indexed = |(message, body): (SearchableMessage, String)| {
            let document = SearchDocument::read(message.id, &body)?;
            Some(IndexedMessage::new(&message, &document))
        };
        messages.into_iter().filter_map(indexed).collect()
    };
    let closed = |_| StoreError::Unavailable("the courier stops".to_owned());
    tokio::task::spawn_blocking(work).await.map_err(closed)
}

#[cfg(test)]
mod tests;
