//! Records: the entries in the boxes of local owners, and how messages get there.

use async_trait::async_trait;
use monoco_core::did::{Did, TunnelId};
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::letter::LetterId;
use monoco_core::object::{MsgObject, ObjId};
use monoco_core::record::{BoxKind, MsgRecord, ReadState, RecordId};
use monoco_core::tag::Tag;
use monoco_core::time::Timestamp;
use tokio::sync::broadcast;

use crate::{BoxHint, JitteredRetry, Page, PageRequest, StoreResult};

/// A message to put into the boxes of its local recipients.
#[derive(Clone, Debug)]
pub struct DispatchRequest {
    pub msg: MsgObject,
    /// The tunnel that the message came through, if any.
    pub tunnel: Option<TunnelId>,
    /// The provider's stable message id, by which a repeated message is recognised. Used only
    /// together with `tunnel`.
    pub external_id: Option<String>,
}

/// Result of a dispatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DispatchResult {
    /// The id of the message; for a repeated external id, the id of the first message.
    pub msg_id: ObjId,
    pub outcome: DispatchOutcome,
}

/// What a dispatch did with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DispatchOutcome {
    /// The message is in these boxes. A duplicate was put there by an earlier dispatch.
    Delivered { duplicate: bool, records: Vec<CreatedRecord> },
    /// The author is blocked; nothing was stored.
    Blocked,
    /// The author is a stranger, and the tunnel drops strangers; nothing was stored.
    Dropped,
    /// The message goes through its chain first, as this letter.
    Chained { letter: LetterId, duplicate: bool },
}

/// A record that a dispatch created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedRecord {
    pub owner: Did,
    pub box_kind: BoxKind,
    pub record_id: RecordId,
}

/// A record or delivery that was leased, with its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedEntry<T> {
    /// The entry after the lease was taken.
    pub entry: T,
    pub message: MsgObject,
}

/// Selects records of a box. An empty filter selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordFilter {
    /// Records in one of these states; empty: in any state.
    pub states: Vec<ReadState>,
    /// Records with this tag: of a user, or `group:<did>`.
    pub tag: Option<String>,
    pub thread_key: Option<String>,
}

/// One box and its number of waiting entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoxSummary {
    pub owner: Did,
    pub box_kind: BoxKind,
    /// Entries that can be leased now or later, counted up to 1,000.
    pub waiting: usize,
}

/// Number of leases that were ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepCounts {
    pub records: usize,
    pub deliveries: usize,
    pub email_tasks: usize,
}

/// Stores messages in boxes and leases them to readers.
#[async_trait]
pub trait RecordStore: Send + Sync {
    /// Puts messages into the boxes of their recipients, all in one commit.
    ///
    /// Returns one result per message, in order. A rejected message does not affect the
    /// others. A message that was dispatched before is not delivered again.
    async fn dispatch(
        &self,
        batch: Vec<DispatchRequest>,
        now: Timestamp,
    ) -> Vec<StoreResult<DispatchResult>>;

    /// Leases the oldest unread record of a box, or returns `None` when there is none.
    ///
    /// A record has at most one holder until its lease expires. A record whose object is
    /// damaged is archived with an event, and the next record is leased instead.
    async fn lease_record(
        &self,
        owner: &Did,
        box_kind: BoxKind,
        holder: Holder,
        term: LeaseDuration,
        now: Timestamp,
    ) -> StoreResult<Option<LeasedEntry<MsgRecord>>>;

    /// Returns one record by id.
    async fn record(&self, id: RecordId) -> StoreResult<MsgRecord>;

    /// Changes the state of a record.
    ///
    /// # Errors
    ///
    /// `StoreError::Conflict` when `revision` is given and outdated;
    /// `StoreError::LeaseLost` when the caller's lease has expired.
    async fn mark_record(
        &self,
        id: RecordId,
        to: ReadState,
        proof: LeaseProof,
        revision: Option<i64>,
        term: LeaseDuration,
        now: Timestamp,
    ) -> StoreResult<MsgRecord>;

    /// Lists the records of a box in the order of arrival.
    async fn records(
        &self,
        owner: &Did,
        box_kind: BoxKind,
        filter: &RecordFilter,
        page: PageRequest,
    ) -> StoreResult<Page<MsgRecord>>;

    /// Adds and removes tags of a record.
    ///
    /// # Errors
    ///
    /// `StoreError::InvalidTag` when the record would have too many tags.
    async fn tag_record(
        &self,
        id: RecordId,
        add: Vec<Tag>,
        remove: Vec<Tag>,
        now: Timestamp,
    ) -> StoreResult<MsgRecord>;

    /// Lists the boxes of `page.limit` owners, oldest owner first.
    async fn boxes(&self, page: PageRequest) -> StoreResult<Page<BoxSummary>>;

    /// Ends leases of records, deliveries and e-mail tasks that have expired, at most `limit` of each.
    async fn expire_leases(
        &self,
        retry: JitteredRetry,
        limit: usize,
        now: Timestamp,
    ) -> StoreResult<SweepCounts>;

    /// Ends every lease whose holder's name starts with `prefix`. Used at start for the
    /// leases of an earlier process, which cannot report any more.
    async fn release_leases(
        &self,
        prefix: &str,
        retry: JitteredRetry,
        now: Timestamp,
    ) -> StoreResult<SweepCounts>;

    /// Subscribes to hints about boxes, which are sent after the commit.
    fn hints(&self) -> broadcast::Receiver<BoxHint>;
}
