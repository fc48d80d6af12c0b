//! Searches the index and reads the messages that it finds.
//!
//! The index has the words of a message, the store its state. So hits are read in chunks, hidden
//! ones are left out, and a page examines a bounded number of them: a page can be short, or empty,
//! and still have a cursor.

use std::time::Duration;

use monoco_core::claim::{ClaimState, Workspace};
use monoco_core::cursor::{self, InvalidCursor};
use monoco_core::search::{InvalidQuery, SearchDocument, SearchQuery, SearchSnippet, SearchStatus};
use monoco_core::time::Timestamp;
use monoco_store::{SearchHit, SearchRange, SharedStore, StoreError};

use crate::courier::search_indexer::SearchIndexer;

/// How long a search waits for messages that were stored before it. Then it answers with what the
/// index has.
const MAX_INDEX_WAIT: Duration = Duration::from_millis(500);

/// Hits whose rows are read together.
const HITS_PER_CHUNK: usize = 50;

/// Hits that one page examines.
const MAX_EXAMINED: usize = 5_000;

/// Bits of a number in a cursor that count ranked hits; the others are the number of a message.
const RANK_BITS: u32 = 12;

/// The order of the messages that a search returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchOrder {
    Newest,
    Oldest,
    /// The newest 2,000 hits, the best ones first.
    Relevance,
}

/// What to search for, and which page to return.
#[derive(Clone, Debug)]
pub struct SearchRequest {
    /// The text that [`SearchQuery::parse`] reads.
    pub query: String,
    pub order: SearchOrder,
    pub cursor: Option<String>,
    pub limit: usize,
    /// The workspace whose claims count.
    pub workspace: Workspace,
}

/// A message that was found, with its searchable parts.
#[derive(Clone, Debug)]
pub struct FoundMessage {
    pub hit: SearchHit,
    pub document: SearchDocument,
    pub snippet: SearchSnippet,
}

/// One page of a search.
#[derive(Clone, Debug)]
pub struct SearchResults {
    pub messages: Vec<FoundMessage>,
    pub next_cursor: Option<String>,
    /// Whether the index had all messages that were stored before the search.
    pub is_complete: bool,
}

/// Why a search returns nothing.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error(
        "search is turned off; set `search: true` in `courier.storage` and restart the courier"
    )]
    Off,
    #[error(transparent)]
    Query(#[from] InvalidQuery),
    #[error("the cursor belongs to another search; use it with the query and options it came from")]
    Cursor(#[from] InvalidCursor),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Returns the page of messages that meet the query and `is_wanted`.
///
/// # Errors
///
/// [`SearchError`] when the query or the cursor is invalid, or the store fails.
pub async fn search(
    store: &SharedStore,
    indexer: &SearchIndexer,
    request: &SearchRequest,
    now: Timestamp,
    is_wanted: impl Fn(&SearchHit) -> bool,
) -> Result<SearchResults, SearchError> {
    if !indexer.is_enabled() {
        return Err(SearchError::Off);
    }
    let SearchRequest { query: text, order, cursor, limit, workspace } = request;
    let query = SearchQuery::parse(text, now)?;
    let scope = format!("search {order:?} {} {text}", workspace.as_str());
    let start = cursor.as_deref().map(|cursor| cursor::read(&scope, cursor)).transpose()?;
    let is_complete = indexer.wait_for_newest(MAX_INDEX_WAIT).await?;
    let mut source = HitSource::new(store, indexer, &query, *order, start).await?;
    let (mut messages, mut examined, mut last) = (Vec::new(), 0, start);
    let next = 'page: loop {
        let chunk = source.next_chunk().await?;
        if chunk.is_empty() {
            break None;
        }
        let seqs = chunk.iter().map(|(_, seq)| *seq).collect();
        let mut hits = store.search_hits(seqs, workspace).await?.into_iter().peekable();
        for (place, seq) in chunk {
            if messages.len() == *limit || examined == MAX_EXAMINED {
                break 'page last;
            }
            if let Some(hit) = hits.next_if(|hit| hit.seq == seq)
                && matches(&query, &hit)
                && is_wanted(&hit)
            {
                messages.extend(read(store, &query, hit).await?);
            }
            (last, examined) = (Some(place), examined + 1);
        }
    };
    let next_cursor = next.map(|place| cursor::write(&scope, place));
    Ok(SearchResults { messages, next_cursor, is_complete })
}

/// Whether a hit meets the conditions that the store decides.
fn matches(query: &SearchQuery, hit: &SearchHit) -> bool {
    let status = |status: SearchStatus| match status {
        SearchStatus::Claim(state) => hit.mail.as_ref().is_some_and(|row| {
            let claim = row.claim.as_ref();
            claim.map_or(ClaimState::New, |claim| claim.claiming.state.name()) == state
        }),
        SearchStatus::Delivery(state) => hit.deliveries.contains(&state),
    };
    query.status.is_none_or(status)
        && query.tunnels.iter().all(|tunnel| hit.tunnels.iter().any(|it| it == tunnel.as_str()))
        && query.since.is_none_or(|since| hit.at.is_some_and(|at| at >= since))
}

/// Reads the text of a hit; `None` when it is damaged or was erased meanwhile.
async fn read(
    store: &SharedStore,
    query: &SearchQuery,
    mut hit: SearchHit,
) -> Result<Option<FoundMessage>, StoreError> {
    if let Some(body) = hit.body.take() {
        return Ok(excerpt(hit, &body, query));
    }
    let body = match store.object(hit.id).await {
        Ok(bytes) => String::from_utf8(bytes).unwrap_or_default(),
        Err(
            StoreError::Damaged { .. } | StoreError::Missing { .. } | StoreError::Erased { .. },
        ) => return Ok(None),
        Err(error) => return Err(error),
    };
    // A text in a file is large: its tokens take milliseconds.
    let query = query.clone();
    let excerpt = tokio::task::spawn_blocking(move || excerpt(hit, &body, &query));
    excerpt.await.map_err(|_| StoreError::Unavailable("the courier stops".to_owned()))
}

fn excerpt(hit: SearchHit, body: &str, query: &SearchQuery) -> Option<FoundMessage> {
    let document = SearchDocument::read(hit.id, body)?;
    let files = document.files.join(" ");
    let texts = [document.text.as_str(), document.title.as_deref().unwrap_or_default(), &files];
    let snippet = SearchSnippet::new(&texts, query);
    Some(FoundMessage { hit, document, snippet })
}

/// Hits of the index in chunks, each with its place for a cursor.
struct HitSource<'a> {
    indexer: &'a SearchIndexer,
    query: &'a SearchQuery,
    /// `None`: by number, from `beyond` on.
    ranked: Option<std::vec::IntoIter<(i64, i64)>>,
    newest_first: bool,
    beyond: Option<i64>,
}

impl<'a> HitSource<'a> {
    async fn new(
        store: &SharedStore,
        indexer: &'a SearchIndexer,
        query: &'a SearchQuery,
        order: SearchOrder,
        start: Option<i64>,
    ) -> Result<Self, StoreError> {
        let ranked = match order {
            SearchOrder::Newest | SearchOrder::Oldest => None,
            SearchOrder::Relevance => {
                // Later pages rank the same messages as the first one.
                let (newest, seen) = match start {
                    Some(start) => (start >> RANK_BITS, start & ((1 << RANK_BITS) - 1)),
                    None => (store.object_mark(None).await?.map_or(0, |(seq, _)| seq), 0),
                };
                let found = indexer.index().rank(query, newest).await?;
                let places = (1..).map(|rank: i64| (newest << RANK_BITS) | rank);
                let rest = places.zip(found).skip(usize::try_from(seen).unwrap_or(0));
                Some(rest.collect::<Vec<_>>().into_iter())
            }
        };
        let newest_first = order != SearchOrder::Oldest;
        Ok(Self { indexer, query, ranked, newest_first, beyond: start })
    }

    /// The next places and numbers of messages; none at the end.
    async fn next_chunk(&mut self) -> Result<Vec<(i64, i64)>, StoreError> {
        if let Some(ranked) = &mut self.ranked {
            return Ok(ranked.by_ref().take(HITS_PER_CHUNK).collect());
        }
        let (beyond, newest_first) = (self.beyond, self.newest_first);
        let range = SearchRange { beyond, newest_first, limit: HITS_PER_CHUNK };
        let found = self.indexer.index().find(self.query, range).await?;
        self.beyond = found.last().copied().or(self.beyond);
        Ok(found.into_iter().map(|seq| (seq, seq)).collect())
    }
}
