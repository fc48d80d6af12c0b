//! Keeps the search index equal to the texts in the store.
//!
//! ```text
//!   page of messages ─▶ tokens ─▶ one commit of the index: messages and progress
//! ```
//!
//! The index is a projection of the store; no caller waits for it. After a crash, the indexer
//! continues after the progress that the index has committed. An index that belongs to another
//! store, such as one before a restore, is built again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use monoco_core::object::ObjId;
use monoco_core::search::SearchDocument;
use monoco_store::{
    IndexedMessage, SearchBatch, SearchIndex, SearchProgress, SearchableMessage, SharedStore,
    StoreError,
};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

use crate::background::{self, BackgroundTask, NextStep};

/// Interval between checks when no hint arrives.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Events per second from which the courier counts as busy.
const BUSY_RATE: f64 = 500.0;

/// While the courier is busy, the indexer waits this many times as long as it has worked, so that
/// it takes a tenth of one processor. The index catches up later.
const BUSY_PAUSE: u32 = 9;

/// Longest wait of a busy courier.
const MAX_BUSY_PAUSE: Duration = Duration::from_secs(1);

/// Pages whose messages are committed together.
const MAX_PAGES_PER_BATCH: usize = 16;

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
    /// End of the last step, and the number of the newest event then.
    last: (Instant, i64),
}

impl BackgroundTask for IndexerTask {
    const NAME: &'static str = "search indexer";
    type Error = StoreError;

    async fn step(&mut self) -> Result<NextStep, StoreError> {
        let started = Instant::now();
        let newest = *self.events.borrow_and_update();
        self.rebuilds.mark_unchanged();
        let next = self.indexer.step().await?;
        let (since, before) = std::mem::replace(&mut self.last, (Instant::now(), newest));
        // A store has fewer events than a float has exact integers.
        let rate = (newest - before) as f64 / since.elapsed().as_secs_f64().max(0.001);
        if rate < BUSY_RATE {
            return Ok(next);
        }
        Ok(NextStep::After((started.elapsed() * BUSY_PAUSE).min(MAX_BUSY_PAUSE)))
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

    /// Indexes new messages until `stop` is cancelled.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        if !self.is_enabled {
            return;
        }
        let (events, rebuilds) = (self.store.newest_event(), self.rebuilds.subscribe());
        let last = (Instant::now(), *events.borrow());
        let mut task = IndexerTask { indexer: self, events, rebuilds, last };
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
        let _state = self.state.lock().await;
        let mut progress = self.index.progress().await?;
        let mut after = 0;
        loop {
            let page = self.store.erased_messages(after).await?;
            let Some((last, _)) = page.last() else { break };
            after = *last;
            let mut batch = SearchBatch { progress, ..SearchBatch::default() };
            for (seq, rest) in page {
                batch.remove.extend([seq, rest]);
                // A message behind the progress is indexed in its turn.
                if rest != seq
                    && rest <= progress.object
                    && let Some(message) = self.store.searchable_message(rest).await?
                {
                    batch.insert.extend(self.indexed_messages(vec![message]).await?);
                }
            }
            self.index.apply(batch).await?;
        }
        // The last message can have got another hash.
        if let Some((_, hash)) = self.store.object_mark(Some(progress.object)).await? {
            progress.object_hash = hash;
            self.index.apply(SearchBatch { progress, ..SearchBatch::default() }).await?;
        }
        self.index.compact().await
    }

    /// Indexes one batch of messages.
    async fn step(&self) -> Result<NextStep, StoreError> {
        let mut state = self.state.lock().await;
        let mut progress = self.index.progress().await?;
        if !state.is_checked {
            if !self.belongs_to_store(progress).await? {
                tracing::info!("search index belongs to another store; building it again");
                self.index.clear().await?;
                progress = SearchProgress::default();
            }
            state.is_checked = true;
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

    /// Whether the last indexed object is still the same object in the store.
    async fn belongs_to_store(&self, progress: SearchProgress) -> Result<bool, StoreError> {
        if progress.object == 0 {
            return Ok(true);
        }
        let found = self.store.object_mark(Some(progress.object)).await?;
        Ok(found == Some((progress.object, progress.object_hash)))
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
