//! Full-text search: the index, and what it reads from the store.
//!
//! The index is a projection of the store in a database of its own. It follows the numbers of
//! objects outside of the commits of the store, and can be built again at any time. It has tokens
//! and times, no texts: the store has the texts of hits, and decides which hits are visible.

use async_trait::async_trait;
use monoco_core::claim::Workspace;
use monoco_core::delivery::SendState;
use monoco_core::object::ObjId;
use monoco_core::search::{SearchColumns, SearchDocument, SearchQuery};
use monoco_core::time::Timestamp;

use crate::{MailRow, StoreResult};

mod filter;
mod fts;
mod parts;
#[cfg(test)]
mod tests;

pub use fts::FtsIndex;

/// How many of the newest hits are ranked by relevance.
pub const MAX_RANKED: usize = 2_000;

/// The mark of a message whose tunnel was not known when it was indexed. Marks start with a colon,
/// which no word has.
const UNKNOWN_TUNNEL: &str = ":tunnel:-";

/// A message that the index can contain.
#[derive(Clone, Debug)]
pub struct SearchableMessage {
    /// `objects.seq`, the number of the message in the index.
    pub seq: i64,
    pub id: ObjId,
    /// When it was stored; `None` while it waits in the pipeline.
    pub at: Option<Timestamp>,
    /// The tunnels that it came or leaves through; `None` while they are not known yet.
    pub tunnels: Option<Vec<String>>,
    /// The canonical JSON; `None` when it is in a file, which [`crate::ObjectStore::object`] reads.
    pub body: Option<String>,
}

/// Messages in the order of their numbers.
#[derive(Clone, Debug, Default)]
pub struct SearchablePage {
    /// Without erased, purged and damaged messages.
    pub messages: Vec<SearchableMessage>,
    /// Number and beginning of the hash of the last object that was read; `None` at the end.
    pub last: Option<(i64, i64)>,
}

/// A visible message that a search has found.
#[derive(Clone, Debug)]
pub struct SearchHit {
    pub seq: i64,
    pub id: ObjId,
    pub at: Option<Timestamp>,
    /// The Mail with the claim of the workspace, when the message is one.
    pub mail: Option<MailRow>,
    /// Whether a local owner has sent it.
    pub is_sent: bool,
    pub tunnels: Vec<String>,
    pub deliveries: Vec<SendState>,
    /// DIDs of the owners of its boxes, and of authors and tunnels of its deliveries.
    pub parties: Vec<String>,
    /// The canonical JSON; `None` when it is in a file.
    pub body: Option<String>,
}

/// What the index reads from the store.
#[async_trait]
pub trait SearchStore: Send + Sync {
    /// Reads the messages with numbers above `after`, at most one page.
    async fn searchable_messages(&self, after: i64) -> StoreResult<SearchablePage>;

    /// Reads one message; `None` when it must not be found any more.
    async fn searchable_message(&self, seq: i64) -> StoreResult<Option<SearchableMessage>>;

    /// Returns the number of the newest object and the beginning of its hash, or those of the
    /// object `seq`; `None` when there is none.
    async fn object_mark(&self, seq: Option<i64>) -> StoreResult<Option<(i64, i64)>>;

    /// Lists the messages of Mails that were purged or erased by changes with numbers above
    /// `after`, and the number of the last change that was read.
    async fn purged_messages(&self, after: i64) -> StoreResult<(Vec<i64>, i64)>;

    /// Lists the numbers of erasures above `after`, each with the message whose text was erased or
    /// rewritten, at most one page. Erasures are numbered in their order, by all couriers.
    async fn erased_messages(&self, after: i64) -> StoreResult<Vec<(i64, i64)>>;

    /// Returns those of `seqs` that are visible, in their order. Held, purged, erased and damaged
    /// ones, and those that wait in the pipeline, are left out.
    async fn search_hits(
        &self,
        seqs: Vec<i64>,
        workspace: &Workspace,
    ) -> StoreResult<Vec<SearchHit>>;
}

/// A message as the index stores it.
#[derive(Clone, Debug)]
pub struct IndexedMessage {
    pub seq: i64,
    pub at: Option<Timestamp>,
    pub columns: SearchColumns,
    /// Properties, such as `:has:image` and `:tunnel:lark-main`.
    pub marks: Vec<String>,
}

impl IndexedMessage {
    pub fn new(message: &SearchableMessage, document: &SearchDocument) -> Self {
        let mut marks: Vec<_> =
            document.marks.iter().map(|mark| format!(":has:{}", mark.as_str())).collect();
        match &message.tunnels {
            Some(tunnels) => marks.extend(tunnels.iter().map(|name| format!(":tunnel:{name}"))),
            None => marks.push(UNKNOWN_TUNNEL.to_owned()),
        }
        Self { seq: message.seq, at: message.at, columns: document.columns(), marks }
    }

    /// The bytes of its tokens.
    pub fn bytes(&self) -> usize {
        let SearchColumns { title, text, files, authors, chat } = &self.columns;
        [title, text, files, authors, chat].iter().map(|column| column.len()).sum()
    }
}

/// How far the index has followed the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SearchProgress {
    /// Number of the last object, 0 in an empty index.
    pub object: i64,
    /// Beginning of the hash of that object. Another hash shows that the index belongs to another
    /// store.
    pub object_hash: i64,
    /// Number of the last change of a Mail.
    pub change: i64,
    /// Number of the last erasure.
    pub erasure: i64,
}

/// Changes of the index that are committed together.
#[derive(Clone, Debug, Default)]
pub struct SearchBatch {
    /// Messages to insert or to replace.
    pub insert: Vec<IndexedMessage>,
    pub remove: Vec<i64>,
    pub progress: SearchProgress,
}

/// Selects hits by their numbers.
#[derive(Clone, Copy, Debug)]
pub struct SearchRange {
    /// Only hits behind this number, in the order of `newest_first`.
    pub beyond: Option<i64>,
    pub newest_first: bool,
    /// Maximum number of hits.
    pub limit: usize,
}

/// An index of the texts of messages.
#[async_trait]
pub trait SearchIndex: Send + Sync {
    /// Returns how far the index has followed the store.
    async fn progress(&self) -> StoreResult<SearchProgress>;

    /// Commits a batch together with its progress. Can be repeated.
    async fn apply(&self, batch: SearchBatch) -> StoreResult<()>;

    /// Removes all messages and the progress.
    async fn clear(&self) -> StoreResult<()>;

    /// Overwrites what is left of removed messages in the files of the index.
    async fn compact(&self) -> StoreResult<()>;

    /// Returns the numbers of messages that meet phrases, marks and time of the query, in the order
    /// of their numbers. The tunnel of a message can be unknown: the caller checks it, as well as
    /// the status.
    async fn find(&self, query: &SearchQuery, range: SearchRange) -> StoreResult<Vec<i64>>;

    /// Returns the numbers of the [`MAX_RANKED`] newest messages that [`Self::find`] returns up to
    /// `newest`, the most relevant first. Without phrases, the newest is first.
    async fn rank(&self, query: &SearchQuery, newest: i64) -> StoreResult<Vec<i64>>;
}
