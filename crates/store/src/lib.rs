//! What the hub remembers.
//!
//! The traits are the hub's own verbs. Each method is one transaction: it reads
//! the facts, asks [`monoco_core`] for the decision, and writes the result,
//! guarded by the row's revision. Nothing is decided here, and no caller can hold
//! a transaction open.
//!
//! * [`BoxStore`]: messages come in, wait in boxes, are taken, and go out.
//! * [`MailStore`]: what was heard becomes Mails, and workspaces claim them.
//! * [`Drafts`]: what is to be sent from files.
//! * [`LetterStore`]: what goes through the post office.
//! * [`ContactStore`]: contacts, groups and tunnels.
//! * [`EventStore`]: what happened, who read what, conversations, figures.
//!
//! [`sqlite`] is the embedded backend. A second one is put beside it and run
//! through the same laws (`src/conformance`).

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use monoco_core::claim::Claim;
use monoco_core::contact::{Binding, Contact, DeliveryPlan, TunnelInfo, UnresolvableTargets};
use monoco_core::delivery::{Delivery, DeliveryOutcome, SendState};
use monoco_core::did::{Did, TunnelId};
use monoco_core::event::Event;
use monoco_core::lease::{Holder, LeaseDuration, LeaseLost, LeaseProof};
use monoco_core::letter::LetterId;
use monoco_core::mail::MailIndexEntry;
use monoco_core::object::{MsgObject, ObjId};
use monoco_core::receipt::{Receipt, ReceiptStatus};
use monoco_core::record::{
    BoxKind, InvalidTransition, MsgRecord, ReadState, RecordId, TransitionError,
};
use monoco_core::retry::{Jitter, RetryPolicy};
use monoco_core::routing::NoLocalRecipient;
use monoco_core::time::Timestamp;
use tokio::sync::{broadcast, watch};

mod blobs;
#[cfg(test)]
mod conformance;
mod letters;
mod mails;
pub mod sqlite;

pub use letters::{
    AcceptResult, LetterCounts, LetterQuery, LetterRow, LetterSource, LetterSourceKind, LetterStep,
    LetterStepResult, LetterStore, NextAction, OperatorAction, PipelineRouting,
};
pub use mails::{
    ClaimUpdate, DraftResult, DraftSendRequest, DraftStore, FileChange, FileProgress, MailQuery,
    MailRow, MailStore, MergeContext, StoreInboundRequest, StoreInboundResult, TunnelLabels,
};

/// Why the store did not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such thing.
    #[error("there is no {what} {key}")]
    Missing {
        /// What sort of thing.
        what: &'static str,
        /// Which one.
        key: String,
    },
    /// Somebody else changed it first.
    #[error("{what} changed meanwhile, it has revision {revision} now")]
    Conflict {
        /// What sort of thing.
        what: &'static str,
        /// Its revision now.
        revision: i64,
    },
    /// The machine has no such step.
    #[error(transparent)]
    InvalidTransition(#[from] InvalidTransition),
    /// The caller does not hold what he thinks he holds.
    #[error(transparent)]
    LeaseLost(#[from] LeaseLost),
    /// It failed before, and waits for its next try.
    #[error("it failed and is not to be claimed before {}", .0.rfc3339())]
    NotDue(Timestamp),
    /// Targets that can't be reached; nothing was written.
    #[error(transparent)]
    UnresolvableTargets(#[from] UnresolvableTargets),
    /// Nobody the message is for has a box here; nothing was written.
    #[error(transparent)]
    NoLocalRecipient(#[from] NoLocalRecipient),
    /// The message expired before it was sent.
    #[error("the message expired at {} ms", .0.ms())]
    Expired(Timestamp),
    /// The idempotency key stands for something else.
    #[error("the idempotency key stands for {0}")]
    KeyReused(String),
    /// No room on the disk. Writing goes on when there is.
    #[error("the disk is full")]
    DiskFull,
    /// What is stored no longer reads as what was written.
    #[error("stored {what} is damaged: {detail}")]
    Damaged {
        /// What sort of thing.
        what: &'static str,
        /// What is wrong with it.
        detail: String,
    },
    /// A sync to disk failed. What is in memory can no longer be trusted to be on
    /// disk, so nothing is acknowledged until the courier is started anew.
    #[error("the disk lost a write ({0}); nothing is accepted until the courier is restarted")]
    Broken(String),
    /// The database could not be reached, or gave up.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
}

impl From<TransitionError> for StoreError {
    fn from(refused: TransitionError) -> Self {
        match refused {
            TransitionError::WrongState(wrong) => wrong.into(),
            TransitionError::LeaseLost(lost) => lost.into(),
            TransitionError::NotDue(at) => Self::NotDue(at),
        }
    }
}

/// A message that came in.
#[derive(Clone, Debug)]
pub struct DispatchRequest {
    /// The message.
    pub msg: MsgObject,
    /// The tunnel it came through, if any.
    pub tunnel: Option<TunnelId>,
    /// The provider's stable id of it, by which it is recognised when it is
    /// repeated. Only with a tunnel.
    pub external_id: Option<String>,
}

/// What became of a message that came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DispatchResult {
    /// The message's name; for a repeated external id, the first one's.
    pub msg_id: ObjId,
    /// What was done.
    pub outcome: DispatchOutcome,
}

/// What was done with a message that came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DispatchOutcome {
    /// It was put into these boxes, now or (then nothing was done) before.
    Delivered {
        /// Whether it had come before.
        duplicate: bool,
        /// Where it went.
        records: Vec<CreatedRecord>,
    },
    /// Its author is blocked.
    Blocked,
    /// Its author is a stranger, and the tunnel drops strangers.
    Dropped,
    /// It goes through its chain first.
    Chained {
        /// As this letter.
        letter: LetterId,
        /// Whether it did before; then nothing was done.
        duplicate: bool,
    },
}

/// A record that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedRecord {
    /// Whose.
    pub owner: Did,
    /// In which box.
    pub box_kind: BoxKind,
    /// Its name.
    pub record_id: RecordId,
}

/// A message that leaves its author's hands.
#[derive(Clone, Debug)]
pub struct SendRequest {
    /// The message.
    pub msg: MsgObject,
    /// The caller's own name for this send.
    pub key: Option<String>,
    /// Not to be sent before this.
    pub not_before: Option<Timestamp>,
}

/// What became of a message that left its author's hands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendResult {
    /// It is on its way.
    Queued {
        /// The message's name.
        msg_id: ObjId,
        /// Whether it was posted before; then nothing was done.
        duplicate: bool,
        /// One for each target.
        ways: Vec<TargetResult>,
    },
    /// Its author is blocked.
    BlockedAuthor {
        /// The message's name.
        msg_id: ObjId,
    },
    /// It goes through its chain first.
    Chained {
        /// The message's name.
        msg_id: ObjId,
        /// As this letter.
        letter: LetterId,
        /// Whether it did before; then nothing was done.
        duplicate: bool,
    },
}

/// How one target gets a posted message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetResult {
    /// The target.
    pub target: Did,
    /// The delivery, or the record in the target's box here. `None`: the target
    /// has blocked the author.
    pub record_id: Option<RecordId>,
    /// The plan; `None` for a target that lives here.
    pub plan: Option<DeliveryPlan>,
}

/// Something taken from a box, with what was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedEntry<T> {
    /// The record or delivery, as it is now.
    pub entry: T,
    /// The object's canonical text.
    pub body: String,
}

/// Which entries of a list, and how many.
#[derive(Clone, Debug)]
pub struct PageRequest {
    /// Beyond this sequence number, in the direction of `newest_first`.
    pub beyond: Option<i64>,
    /// At most so many.
    pub limit: usize,
    /// Which end to start at.
    pub newest_first: bool,
}

/// Some entries of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The entries, in order.
    pub entries: Vec<T>,
    /// Where the next page starts, when there is more.
    pub next: Option<i64>,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionEntry {
    /// The owner's record of it.
    pub record: MsgRecord,
    /// What was said; `None` when it is damaged.
    pub body: Option<String>,
    /// How far it got, when it went out through tunnels.
    pub delivery: Option<SendState>,
}

/// One conversation of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSummary {
    /// The other party.
    pub peer: Did,
    /// What we call them.
    pub name: Option<String>,
    /// Unread messages.
    pub unread: usize,
    /// The newest message.
    pub last: SessionEntry,
}

/// One box, and what waits in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoxSummary {
    /// Whose.
    pub owner: Did,
    /// Which.
    pub box_kind: BoxKind,
    /// Entries that may be taken now or later, counted up to a thousand.
    pub waiting: usize,
}

/// A group and who gets what is said in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Which.
    pub did: Did,
    /// What people call it.
    pub name: Option<String>,
    /// Who gets what is said in it.
    pub subscribers: Vec<Did>,
}

/// Everything the store knows about one message.
#[derive(Clone, Debug)]
pub struct MessageTrace {
    /// The message.
    pub msg_id: ObjId,
    /// Its text; `None` when it is damaged.
    pub body: Option<String>,
    /// Every owner's view of it.
    pub records: Vec<MsgRecord>,
    /// Every way it was sent.
    pub deliveries: Vec<Delivery>,
    /// The Mail it is, if it is one.
    pub mail: Option<MailIndexEntry>,
    /// Every workspace's hold on that.
    pub claims: Vec<Claim>,
    /// Letters that were made of it, or became it.
    pub letters: Vec<LetterRow>,
    /// What happened to it, in order.
    pub events: Vec<Event>,
    /// Whether there are more of these than are shown.
    pub truncated: bool,
}

/// What the store counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Records by box and state.
    pub records: BTreeMap<(BoxKind, ReadState), i64>,
    /// Deliveries by state.
    pub deliveries: BTreeMap<SendState, i64>,
    /// When the oldest delivery that is not yet sent was posted.
    pub oldest_waiting: Option<Timestamp>,
    /// Messages kept and not yet part of a Mail.
    pub kept: i64,
    /// When the oldest Mail came that nobody has claimed.
    pub oldest_unclaimed: Option<Timestamp>,
}

/// Whether the store can be written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreHealth {
    /// Yes.
    Ok,
    /// The last write found no room. The next one tries again.
    Full,
    /// The last write failed in a way that may pass, such as a read-only disk.
    Failing(String),
    /// A sync failed; nothing is accepted until the courier is restarted.
    Broken(String),
}

/// What the sweeper found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepCounts {
    /// Records whose reader let its lease end.
    pub records: usize,
    /// Deliveries nobody reported on.
    pub deliveries: usize,
}

/// How deliveries are retried, for one call.
#[derive(Clone, Copy, Debug)]
pub struct JitteredRetry {
    /// When, and for how long.
    pub retry: RetryPolicy,
    /// Spreads the waits.
    pub jitter: Jitter,
}

/// Something may be waiting in a box. A hint may be lost.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BoxHint {
    /// Whose box.
    pub owner: Did,
    /// Which box.
    pub box_kind: BoxKind,
}

/// Messages come in, wait in boxes, are taken, and go out.
#[async_trait]
pub trait BoxStore: Send + Sync {
    /// Puts messages that came in into their boxes, all in one commit.
    ///
    /// One answer for each, in order; one that is refused does not harm the
    /// others. A message that came before is not delivered again.
    async fn dispatch(
        &self,
        batch: Vec<DispatchRequest>,
        now: Timestamp,
    ) -> Vec<Result<DispatchResult, StoreError>>;

    /// Puts a message into its author's OUTBOX, and on its way to every target.
    ///
    /// # Errors
    ///
    /// [`StoreError::UnresolvableTargets`] names every target that can't be reached;
    /// then nothing is written at all, and nothing is remembered.
    async fn send(&self, post: SendRequest, now: Timestamp) -> Result<SendResult, StoreError>;

    /// The canonical text of an object, checked against its name.
    async fn object(&self, id: ObjId) -> Result<Vec<u8>, StoreError>;

    /// Keeps plain bytes, such as an attachment, and names them.
    async fn put_blob(&self, bytes: Vec<u8>) -> Result<ObjId, StoreError>;

    /// Takes the record that has been unread the longest.
    ///
    /// No two callers are given the same one before its lease ends. One whose object
    /// is damaged is put aside, with an event, and does not hold up the others.
    async fn lease_record(
        &self,
        owner: &Did,
        box_kind: BoxKind,
        holder: Holder,
        term: LeaseDuration,
        now: Timestamp,
    ) -> Result<Option<LeasedEntry<MsgRecord>>, StoreError>;

    /// Takes the delivery that has been due the longest.
    ///
    /// No two callers are given the same one before its lease ends. One whose object
    /// is damaged is dead, with that reason, and does not hold up the others.
    async fn lease_delivery(
        &self,
        tunnel: &Did,
        holder: Holder,
        term: LeaseDuration,
        now: Timestamp,
    ) -> Result<Option<LeasedEntry<Delivery>>, StoreError>;

    /// When the next delivery of a tunnel is due, if one waits.
    async fn next_due(&self, tunnel: &Did) -> Result<Option<Timestamp>, StoreError>;

    /// One record.
    async fn record(&self, id: RecordId) -> Result<MsgRecord, StoreError>;

    /// One delivery.
    async fn delivery(&self, id: RecordId) -> Result<Delivery, StoreError>;

    /// Moves a record to another state, unless it is not at `revision` (where the
    /// caller says one) or the caller lost his lease.
    async fn mark_record(
        &self,
        id: RecordId,
        to: ReadState,
        guard: LeaseProof,
        revision: Option<i64>,
        term: LeaseDuration,
        now: Timestamp,
    ) -> Result<MsgRecord, StoreError>;

    /// Moves a delivery to another state by hand.
    async fn mark_delivery(
        &self,
        id: RecordId,
        to: SendState,
        guard: LeaseProof,
        revision: Option<i64>,
        now: Timestamp,
    ) -> Result<Delivery, StoreError>;

    /// Files what came of a try.
    async fn report_delivery(
        &self,
        id: RecordId,
        outcome: DeliveryOutcome,
        guard: LeaseProof,
        again: JitteredRetry,
        now: Timestamp,
    ) -> Result<Delivery, StoreError>;

    /// Records of one box in the order they came, of all states or of some.
    async fn records(
        &self,
        owner: &Did,
        box_kind: BoxKind,
        states: &[ReadState],
        window: PageRequest,
    ) -> Result<Page<MsgRecord>, StoreError>;

    /// Deliveries of one tunnel in the order they came, of all states or of some.
    async fn deliveries(
        &self,
        tunnel: &Did,
        states: &[SendState],
        window: PageRequest,
    ) -> Result<Page<Delivery>, StoreError>;

    /// The boxes of `window.limit` owners, in the order we came to know these.
    async fn boxes(&self, window: PageRequest) -> Result<Page<BoxSummary>, StoreError>;

    /// Moves on what leases ended on, at most `limit` of each kind.
    async fn expire_leases(
        &self,
        again: JitteredRetry,
        limit: usize,
        now: Timestamp,
    ) -> Result<SweepCounts, StoreError>;

    /// Ends every lease whose holder's name starts with `prefix`: an earlier boot
    /// of the courier, which can't report any more.
    async fn release_leases(
        &self,
        prefix: &str,
        again: JitteredRetry,
        now: Timestamp,
    ) -> Result<SweepCounts, StoreError>;

    /// Hints about boxes, sent after the commit that filled them.
    fn hints(&self) -> broadcast::Receiver<BoxHint>;
}

/// Contacts, groups and tunnels.
#[async_trait]
pub trait ContactStore: Send + Sync {
    /// Adds a contact, or replaces its names, level and `here`. Its bindings stay.
    async fn put_contact(&self, contact: Contact, now: Timestamp) -> Result<Contact, StoreError>;

    /// One contact.
    async fn contact(&self, did: &Did) -> Result<Contact, StoreError>;

    /// All contacts, in the order we came to know them.
    async fn contacts(&self, window: PageRequest) -> Result<Page<Contact>, StoreError>;

    /// Forgets a contact and its bindings. Its boxes stay.
    async fn remove_contact(&self, did: &Did, now: Timestamp) -> Result<(), StoreError>;

    /// Adds a binding to a contact, or changes its priority.
    async fn bind(
        &self,
        contact: &Did,
        binding: Binding,
        now: Timestamp,
    ) -> Result<Contact, StoreError>;

    /// Removes the bindings of a contact to an address of a tunnel.
    async fn unbind(
        &self,
        contact: &Did,
        tunnel: &TunnelId,
        address: &str,
        now: Timestamp,
    ) -> Result<Contact, StoreError>;

    /// Sets whether `target` does not want to hear from `sender`.
    async fn set_block(
        &self,
        sender: &Did,
        target: &Did,
        blocked: bool,
        now: Timestamp,
    ) -> Result<(), StoreError>;

    /// Adds a group, or renames it.
    async fn put_group(
        &self,
        group: &Did,
        name: Option<String>,
        now: Timestamp,
    ) -> Result<Group, StoreError>;

    /// One group.
    async fn group(&self, group: &Did) -> Result<Group, StoreError>;

    /// All groups.
    async fn groups(&self, window: PageRequest) -> Result<Page<Group>, StoreError>;

    /// Sets whether `reader` gets what is said in a group.
    async fn set_subscriber(
        &self,
        group: &Did,
        reader: &Did,
        subscribed: bool,
        now: Timestamp,
    ) -> Result<Group, StoreError>;

    /// Adds a tunnel, or changes its rules.
    async fn put_tunnel(
        &self,
        tunnel: TunnelInfo,
        now: Timestamp,
    ) -> Result<TunnelInfo, StoreError>;

    /// All tunnels.
    async fn tunnels(&self) -> Result<Vec<TunnelInfo>, StoreError>;

    /// Whether `owner` is anybody we know: a contact, a group, a tunnel, or
    /// somebody with a box here.
    async fn owner_exists(&self, owner: &Did) -> Result<bool, StoreError>;
}

/// What happened, who read what, conversations, figures.
#[async_trait]
pub trait EventStore: Send + Sync {
    /// Files how far a reader of a group is with a message.
    async fn set_receipt(
        &self,
        group: &Did,
        msg_id: ObjId,
        reader: &Did,
        status: ReceiptStatus,
        now: Timestamp,
    ) -> Result<Receipt, StoreError>;

    /// The receipts of one message in a group, of all readers or of one.
    async fn receipts(
        &self,
        group: &Did,
        msg_id: ObjId,
        reader: Option<&Did>,
    ) -> Result<Vec<Receipt>, StoreError>;

    /// An owner's conversations, the liveliest first.
    async fn sessions(
        &self,
        owner: &Did,
        window: PageRequest,
    ) -> Result<Page<SessionSummary>, StoreError>;

    /// One conversation in both directions.
    async fn session(
        &self,
        owner: &Did,
        peer: &Did,
        window: PageRequest,
    ) -> Result<Page<SessionEntry>, StoreError>;

    /// Events after number `after`, oldest first.
    async fn events(&self, after: i64, limit: usize) -> Result<Vec<Event>, StoreError>;

    /// Everything about the message that `msg_id` names.
    async fn trace(&self, msg_id: ObjId) -> Result<MessageTrace, StoreError>;

    /// The message that a record or delivery is about.
    async fn object_of_record(&self, id: RecordId) -> Result<ObjId, StoreError>;

    /// The message that an external id became: one we heard, or one we sent.
    async fn find_by_external_id(&self, external_id: &str) -> Result<ObjId, StoreError>;

    /// The number of the newest event; changes after each commit that has one.
    fn newest_event(&self) -> watch::Receiver<i64>;

    /// What the store counts.
    async fn counts(&self) -> Result<StoreCounts, StoreError>;

    /// Whether the store can be written to.
    fn health(&self) -> StoreHealth;
}

/// All of it.
pub trait Store:
    BoxStore + MailStore + DraftStore + LetterStore + ContactStore + EventStore
{
}

impl<T: BoxStore + MailStore + DraftStore + LetterStore + ContactStore + EventStore> Store for T {}

/// The handle everything else holds.
pub type SharedStore = Arc<dyn Store>;
