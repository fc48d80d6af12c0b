//! The hub's persistent state: one trait per noun, and the SQLite backend.
//!
//! Each method is one transaction. It reads the current rows, calls the state machine in
//! [`monoco_core`] and writes the result, guarded by the row's revision. The store makes no
//! domain decision of its own, and no caller can hold a transaction open.
//!
//! Reading order:
//!
//! * [`ObjectStore`]: immutable message objects and attachments, found by their hash
//! * [`RecordStore`]: messages in the boxes of local owners; [`DeliveryStore`]: messages on
//!   their way through tunnels
//! * [`ApprovalStore`]: messages that wait for a person; [`HaltStore`]: the kill switch
//! * [`InboundStore`]: messages from providers, until they are merged into Mails;
//!   [`InboundFileStore`]: their files that are fetched later
//! * [`MailStore`]: Mails; [`MailFileStore`]: where their files belong; [`ClaimStore`]: the
//!   claims of workspaces on them
//! * [`DraftStore`]: messages that are sent from files
//! * [`LetterStore`]: letters in the pipeline
//! * [`EmailStore`]: watched e-mail accounts, their mails and tasks
//! * [`ContactStore`]: contacts, groups, blocks and tunnels
//! * [`SessionStore`]: conversations and read receipts
//! * [`TokenStore`]: tokens of agents, and the Mails that agents have read
//! * [`FigureStore`]: counters of events per minute
//! * [`EventStore`]: the event log and the trace of one message
//! * [`RetentionStore`]: elapsed time, and what is purged by age
//! * [`ErasureStore`]: erases what one person wrote
//! * [`DutyStore`]: couriers that share the store, and their duties
//! * [`SearchStore`]: what the search index reads; [`SearchIndex`]: the index itself
//! * [`StatusStore`]: counts and health
//!
//! [`sqlite`] is the embedded backend. Every backend must pass the conformance tests in
//! `src/conformance`.

use std::sync::Arc;

use monoco_core::approval::{AlreadyAnswered, ApprovalId};
use monoco_core::contact::UnresolvableTargets;
use monoco_core::courier::CourierId;
use monoco_core::did::Did;
use monoco_core::lease::LeaseLost;
use monoco_core::object::ObjId;
use monoco_core::record::{BoxKind, InvalidTransition, TransitionError};
use monoco_core::routing::NoLocalRecipient;
use monoco_core::tag::InvalidTag;
use monoco_core::time::Timestamp;

mod approvals;
mod blobs;
mod claims;
#[cfg(test)]
mod conformance;
mod contacts;
mod deliveries;
mod drafts;
mod duties;
mod email;
mod erasure;
mod events;
mod figures;
mod files;
mod halts;
mod inbound;
mod inbound_files;
mod letters;
mod mails;
mod objects;
pub mod postgres;
mod records;
mod remote_objects;
mod retention;
mod search;
mod sessions;
mod sql;
pub mod sqlite;
mod status;
mod tokens;
mod transfer;

pub use approvals::{ApprovalStore, AskRequest, ChatAnswerResult, StoredDecision};
pub use blobs::BlobReader;
pub use claims::{ClaimStore, ClaimUpdate};
pub use contacts::{ContactStore, Group};
pub use deliveries::{DeliveryStore, JitteredRetry, SendRequest, SendResult, TargetResult};
pub use drafts::{DraftResult, DraftSendRequest, DraftStore};
pub use duties::DutyStore;
pub use email::{
    DeadForward, EmailStore, EmailTaskCounts, EmailTaskQuery, RegisterMailsRequest,
    RegisterMailsResult, SettleCounts, StartedTask,
};
pub use erasure::{ErasureCounts, ErasureRequest, ErasureStore};
pub use events::{EventStore, MessageTrace};
pub use figures::FigureStore;
pub use files::{FileChange, FileProgress, MailFileStore};
pub use halts::{HaltCounts, HaltStore};
pub use inbound::{
    InboundStore, MergeContext, StoreEventResult, StoreInboundEvent, StoreInboundRequest,
    StoreInboundResult,
};
pub use inbound_files::{FileLabels, InboundFile, InboundFileStore};
pub use letters::{
    AcceptResult, LetterCounts, LetterQuery, LetterRow, LetterSource, LetterSourceKind, LetterStep,
    LetterStepResult, LetterStore, NextAction, OperatorAction, PipelineRouting,
};
pub use mails::{MailQuery, MailRow, MailStore, RestoreMailResult};
pub use objects::ObjectStore;
pub use records::{
    BoxSummary, CreatedRecord, DispatchOutcome, DispatchRequest, DispatchResult, LeasedEntry,
    RecordFilter, RecordStore, SweepCounts,
};
pub use remote_objects::{ObjectSource, RemoteObjects, RemotePlace};
pub use retention::RetentionStore;
pub use search::{
    FtsIndex, IndexedMessage, MAX_RANKED, SearchBatch, SearchHit, SearchIndex, SearchProgress,
    SearchRange, SearchStore, SearchableMessage, SearchablePage,
};
pub use sessions::{SessionEntry, SessionStore, SessionSummary};
pub use sql::SqlStore;
pub use status::{StatusStore, StoreCounts, StoreHealth};
pub use tokens::TokenStore;
pub use transfer::{StoreLocation, TransferResult, transfer};

/// Result of a store operation.
pub type StoreResult<T> = Result<T, StoreError>;

/// Error of a store operation.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    #[error("there is no {what} {key}")]
    Missing { what: &'static str, key: String },
    /// The name is used already.
    #[error("there is already a {what} {key}; revoke it first or choose another name")]
    Exists { what: &'static str, key: String },
    /// The text was erased on request; ids that refer to it stay valid.
    #[error("{key} was erased at {}{}", .at.rfc3339(), superseded(.by.as_ref()))]
    Erased {
        key: String,
        at: Timestamp,
        /// The Mail without the erased text that supersedes it.
        by: Option<ObjId>,
    },
    /// The row has another revision than the caller read.
    #[error("{what} was changed by another caller and has revision {revision} now; read it again")]
    Conflict { what: &'static str, revision: i64 },
    /// The state machine has no such transition.
    #[error(transparent)]
    InvalidTransition(#[from] InvalidTransition),
    /// The caller's lease has expired or belongs to another holder.
    #[error(transparent)]
    LeaseLost(#[from] LeaseLost),
    /// A failed claim waits for its next attempt.
    #[error("the claim failed before and cannot be claimed again before {}", .0.rfc3339())]
    NotDue(Timestamp),
    /// At least one target cannot be reached; nothing was written.
    #[error(transparent)]
    UnresolvableTargets(#[from] UnresolvableTargets),
    /// No recipient of the message has a box here; nothing was written.
    #[error(transparent)]
    NoLocalRecipient(#[from] NoLocalRecipient),
    /// The message expired before it was sent.
    #[error("message expired at {}, before it was sent", .0.rfc3339())]
    Expired(Timestamp),
    /// The idempotency key belongs to another message or letter.
    #[error("idempotency key was already used for {0}; use a new key for a different message")]
    KeyReused(String),
    /// The approval policy does not allow the message; nothing was written.
    #[error("the message is refused by the approval rule `{rule}`: {why}; nothing was sent")]
    Refused { rule: String, why: String },
    /// The approval has another answer.
    #[error(transparent)]
    AlreadyAnswered(#[from] AlreadyAnswered),
    /// The delivery waits for an approval, which must be answered instead.
    #[error("the delivery waits for approval {0}; answer it with `monoco approve yes {0}`")]
    WaitsForApproval(ApprovalId),
    /// The edited message is one that was sent or held before.
    #[error("{0} was sent or held before; change the text")]
    AlreadySent(ObjId),
    /// The receipts of the parts of a message are stored in order.
    #[error("found part {found} of the message, expected part {expected}")]
    UnexpectedPart { found: u32, expected: u32 },
    /// Another courier has acquired the duty, or it was released; nothing was written.
    #[error("the duty {duty} with epoch {epoch} has ended; nothing was written")]
    DutyLost { duty: String, epoch: i64 },
    /// Another process has registered the same courier.
    #[error(
        "courier {0} was started again by another process; a copy of a home directory needs an id \
         of its own: remove courier/id there"
    )]
    CourierReplaced(CourierId),
    /// The tags cannot be set.
    #[error(transparent)]
    InvalidTag(#[from] InvalidTag),
    /// The bytes to store exceed the limit of the caller; nothing was stored.
    #[error("more than {0} bytes; nothing was stored")]
    TooLarge(u64),
    /// The source of the bytes to store failed; nothing was stored.
    #[error("cannot read the bytes to store: {0}")]
    SourceFailed(String),
    /// The disk is full. The next write tries again.
    #[error("disk full: nothing was stored; free some space and try again")]
    DiskFull,
    /// Stored data does not match what was written.
    #[error("stored {what} is damaged: {detail}")]
    Damaged { what: &'static str, detail: String },
    /// A sync to disk failed. The kernel may have dropped the pages, so nothing is
    /// acknowledged until the courier is restarted and reads back what is on disk.
    #[error("a sync to disk failed ({0}); no write is accepted until the courier is restarted")]
    Broken(String),
    /// The database cannot be used at the moment.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
}

fn superseded(by: Option<&ObjId>) -> String {
    by.map(|by| format!(" and superseded by {by}")).unwrap_or_default()
}

impl From<TransitionError> for StoreError {
    fn from(error: TransitionError) -> Self {
        match error {
            TransitionError::WrongState(invalid) => invalid.into(),
            TransitionError::LeaseLost(lost) => lost.into(),
            TransitionError::NotDue(at) => Self::NotDue(at),
        }
    }
}

/// Selects one page of a list.
#[derive(Clone, Debug)]
pub struct PageRequest {
    /// Start after this sequence number, in the direction of `newest_first`.
    pub beyond: Option<i64>,
    /// Maximum number of entries.
    pub limit: usize,
    pub newest_first: bool,
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    pub entries: Vec<T>,
    /// `beyond` of the next page; `None` on the last page.
    pub next: Option<i64>,
}

/// Tells that a box may have a new entry. Hints can be lost, so that readers must also poll.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BoxHint {
    pub owner: Did,
    pub box_kind: BoxKind,
}

/// The sum of all store traits, implemented by every backend.
pub trait Store:
    ObjectStore
    + RecordStore
    + DeliveryStore
    + ApprovalStore
    + HaltStore
    + InboundStore
    + InboundFileStore
    + MailStore
    + MailFileStore
    + ClaimStore
    + DraftStore
    + LetterStore
    + EmailStore
    + ContactStore
    + SessionStore
    + TokenStore
    + FigureStore
    + EventStore
    + RetentionStore
    + ErasureStore
    + DutyStore
    + SearchStore
    + StatusStore
{
}

/// Shared handle to a store.
pub type SharedStore = Arc<dyn Store>;
