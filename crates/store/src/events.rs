//! The event log, and the trace of one message.

use async_trait::async_trait;
use monoco_core::claim::Claim;
use monoco_core::delivery::Delivery;
use monoco_core::event::Event;
use monoco_core::mail::MailIndexEntry;
use monoco_core::object::ObjId;
use monoco_core::record::MsgRecord;
use monoco_core::time::Timestamp;
use tokio::sync::watch;

use crate::{LetterRow, StoreResult};

/// Everything that is stored about one message.
#[derive(Clone, Debug)]
pub struct MessageTrace {
    pub msg_id: ObjId,
    /// The canonical text of the message; `None` when its object is damaged or erased.
    pub body: Option<String>,
    /// When the text was erased.
    pub erased_at: Option<Timestamp>,
    pub records: Vec<MsgRecord>,
    pub deliveries: Vec<Delivery>,
    /// The Mail, when the message is one.
    pub mail: Option<MailIndexEntry>,
    pub claims: Vec<Claim>,
    /// Letters that were created from the message or became it.
    pub letters: Vec<LetterRow>,
    pub events: Vec<Event>,
    /// Whether a list above was cut at 1,000 entries.
    pub truncated: bool,
}

/// Reads the event log, and remembers how far background readers of it have come.
#[async_trait]
pub trait EventStore: Send + Sync {
    /// Lists events with numbers above `after`, oldest first.
    async fn events(&self, after: i64, limit: usize) -> StoreResult<Vec<Event>>;

    /// Collects everything that is stored about one message.
    async fn trace(&self, msg_id: ObjId) -> StoreResult<MessageTrace>;

    /// Returns the number of the last event that `reader` has finished with; `None` when it has
    /// stored none.
    async fn event_cursor(&self, reader: &str) -> StoreResult<Option<i64>>;

    /// Stores the number of the last event that `reader` has finished with.
    async fn set_event_cursor(&self, reader: &str, seq: i64) -> StoreResult<()>;

    /// The number of the newest event, updated after each commit that has one.
    fn newest_event(&self) -> watch::Receiver<i64>;
}
