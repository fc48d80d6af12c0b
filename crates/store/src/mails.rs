//! What was heard, Mails, claims and drafts: what the store is asked about them.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use monoco_core::claim::{Claim, ClaimState, MailLocation, Workspace};
use monoco_core::delivery::Delivery;
use monoco_core::did::{Did, TunnelId};
use monoco_core::inbound::ValidInboundMessage;
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::mail::{MailId, MailIndexEntry};
use monoco_core::merge::Debounce;
use monoco_core::object::ObjId;
use monoco_core::retention::{ClockStep, RetentionClock};
use monoco_core::retry::RetryPolicy;
use monoco_core::time::Timestamp;
use tokio::sync::watch;

use crate::{Page, PageRequest, PipelineRouting, SendRequest, SendResult, StoreError};

/// One message that was heard, for [`MailStore::keep`].
#[derive(Clone, Debug)]
pub struct StoreInboundRequest {
    /// The tunnel it came through.
    pub tunnel: TunnelId,
    /// Its provider.
    pub provider: String,
    pub message: ValidInboundMessage,
    /// How long to wait for more of it.
    pub debounce: Debounce,
}

/// What became of a message that was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreInboundResult {
    /// It is on disk.
    Stored,
    /// It was before.
    Duplicate,
    /// Its author is blocked. It is remembered as heard, and its text is not kept.
    Blocked,
    /// Its author is a stranger, and the tunnel drops strangers.
    Dropped,
}

/// What a Mail is merged with, beyond what was said.
#[derive(Clone, Debug)]
pub struct MergeContext {
    /// Whom direct messages are for.
    pub owner: Did,
    /// The labels of tunnels and chats.
    pub labels: BTreeMap<TunnelId, TunnelLabels>,
    /// Whether to close windows that could still wait: the courier stops.
    pub all: bool,
}

/// What the Mails of one tunnel are labelled with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelLabels {
    /// All of them, unless their chat has a label of its own.
    pub binding: Option<String>,
    /// Those of single chats, by session id.
    pub bindings: BTreeMap<String, String>,
}

impl TunnelLabels {
    /// The label of a session's Mails.
    pub fn of(&self, session: &str) -> Option<&str> {
        self.bindings.get(session).or(self.binding.as_ref()).map(String::as_str)
    }
}

/// A Mail as the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailRow {
    /// What filters and lists look at.
    pub entry: MailIndexEntry,
    /// Where its file belongs.
    pub place: MailLocation,
    /// The claim of the workspace that was asked for, if it has one.
    pub claim: Option<Claim>,
}

/// Which Mails.
#[derive(Clone, Debug)]
pub struct MailQuery {
    /// Whose claims count.
    pub workspace: Workspace,
    /// Only those whose claim stands so.
    pub status: Option<ClaimState>,
    /// Only those of this provider.
    pub provider: Option<String>,
    /// Only those that became Mails at this time or later.
    pub since: Option<Timestamp>,
    /// Only those in whose title, names or text's start this occurs.
    pub text: Option<String>,
}

/// Where one Mail's file belongs, since change number `change`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChange {
    /// The number of the change. Later ones are larger, and a Mail has only its last.
    pub change: i64,
    /// The Mail.
    pub entry: MailIndexEntry,
    /// Where it belongs.
    pub place: MailLocation,
    /// Why it was given up, by workspace, when it was.
    pub reasons: Vec<(Workspace, String)>,
}

/// How far the files are surely on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileProgress {
    /// Every change up to this number.
    pub change: i64,
    /// How many bytes of the index.
    pub index_bytes: u64,
    /// The last Mail in those.
    pub index_seq: i64,
    /// Which index: rebuilding it starts another.
    pub generation: i64,
}

/// What was heard becomes Mails, and workspaces claim them.
#[async_trait]
pub trait MailStore: Send + Sync {
    /// Keeps messages that were heard, each once, all in one commit.
    async fn store_inbound(
        &self,
        batch: Vec<StoreInboundRequest>,
        now: Timestamp,
    ) -> Vec<Result<StoreInboundResult, StoreError>>;

    /// Merges at most `limit` windows that are over into Mails, each in the
    /// transaction that takes its messages away. Returns how many were merged.
    async fn merge(
        &self,
        merging: Arc<MergeContext>,
        limit: usize,
        now: Timestamp,
    ) -> Result<usize, StoreError>;

    /// When the next window is over, if one is open.
    async fn next_merge(&self) -> Result<Option<Timestamp>, StoreError>;

    /// Claims a Mail for a workspace.
    ///
    /// # Errors
    ///
    /// [`StoreError::Missing`], [`StoreError::LeaseLost`] when another agent of the
    /// workspace has it, [`StoreError::NotDue`], or [`StoreError::InvalidTransition`] when
    /// the workspace is done with it.
    async fn claim(
        &self,
        id: &MailId,
        workspace: &Workspace,
        holder: Holder,
        term: LeaseDuration,
        retry: RetryPolicy,
        now: Timestamp,
    ) -> Result<Claim, StoreError>;

    /// Takes a step with a claim that is held.
    async fn update_claim(
        &self,
        id: &MailId,
        workspace: &Workspace,
        guard: LeaseProof,
        step: ClaimUpdate,
        now: Timestamp,
    ) -> Result<Claim, StoreError>;

    /// Moves on at most `limit` claims whose leases ended. Returns how many there were.
    async fn expire_claims(
        &self,
        retry: RetryPolicy,
        limit: usize,
        now: Timestamp,
    ) -> Result<usize, StoreError>;

    /// Puts a dead claim back, by hand.
    async fn retry_claim(
        &self,
        id: &MailId,
        workspace: &Workspace,
        now: Timestamp,
    ) -> Result<Claim, StoreError>;

    /// Nobody is to deal with a dead claim any more, by hand.
    async fn drop_claim(
        &self,
        id: &MailId,
        workspace: &Workspace,
        now: Timestamp,
    ) -> Result<Claim, StoreError>;

    /// Claims that are dead, the oldest first.
    async fn dead_claims(&self, limit: usize) -> Result<Vec<Claim>, StoreError>;

    /// Claims that are open, the oldest first.
    async fn open_claims(&self, limit: usize) -> Result<Vec<Claim>, StoreError>;

    /// One Mail, with the claim of `workspace`.
    async fn mail(&self, id: &MailId, workspace: &Workspace) -> Result<MailRow, StoreError>;

    /// All claims on one Mail.
    async fn claims(&self, id: &MailId) -> Result<Vec<Claim>, StoreError>;

    /// Mails by number. With a `status` other than NEW, those of its claims.
    async fn mails(
        &self,
        query: MailQuery,
        window: PageRequest,
    ) -> Result<Page<MailRow>, StoreError>;

    /// Mails that became visible after the one with number `after`, in order: the lines
    /// of the index. A Mail that was held gets its number when it is let in, so that
    /// none appears behind one that was seen.
    async fn list_index_entries(
        &self,
        after: i64,
        limit: usize,
    ) -> Result<Vec<FileChange>, StoreError>;

    /// Where files belong, for changes after number `after`, in order. A Mail that
    /// changed again has only its last change.
    async fn list_file_changes(
        &self,
        after: i64,
        limit: usize,
    ) -> Result<Vec<FileChange>, StoreError>;

    /// How far the files surely are on disk.
    async fn file_progress(&self) -> Result<FileProgress, StoreError>;

    /// Notes how far they are now.
    async fn set_file_progress(&self, filed: FileProgress) -> Result<(), StoreError>;

    /// The number of the newest change of a place; changes after each commit that has
    /// one.
    fn newest_file_change(&self) -> watch::Receiver<i64>;

    /// The latest time that was ever noted, if any was.
    async fn last_clock_reading(&self) -> Result<Option<Timestamp>, StoreError>;

    /// Ends leases and waits that reach further than any could that was started by
    /// `now`: they were started by a clock that was wrong. Returns how many there were.
    async fn expire_future_leases(&self, now: Timestamp) -> Result<usize, StoreError>;

    /// Lets the hub live on to `now`, and returns how long it has lived.
    async fn advance_retention_clock(
        &self,
        now: Timestamp,
    ) -> Result<(RetentionClock, ClockStep), StoreError>;

    /// Lets the files of at most `limit` Mails go that were archived on this day of
    /// the hub's life or before. Returns how many there were.
    async fn purge_archived_mails(
        &self,
        day: i64,
        limit: usize,
        now: Timestamp,
    ) -> Result<usize, StoreError>;

    /// Forgets at most `limit` events of this day of the hub's life or before.
    async fn purge_events(&self, day: i64, limit: usize) -> Result<usize, StoreError>;
}

/// A step with a claim that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimUpdate {
    /// Hold it for longer.
    Renew(LeaseDuration),
    /// It is dealt with.
    Complete,
    /// It is not.
    Fail {
        /// Why.
        reason: String,
        /// Whether another try may help.
        retryable: bool,
        /// When to try again, and how often.
        retry: RetryPolicy,
    },
}

/// A draft that was read from a file.
#[derive(Clone, Debug)]
pub struct DraftSendRequest {
    /// Its name in the outbound directory, unique for ever.
    pub uid: String,
    /// The provider in whose directory it is.
    pub provider: String,
    /// What is to be sent.
    pub post: SendRequest,
}

/// What became of a draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftResult {
    /// Its name.
    pub uid: String,
    /// The provider in whose directory it is.
    pub provider: String,
    /// The message it became.
    pub msg_id: ObjId,
    /// Its deliveries; none of them moves by itself any more.
    pub deliveries: Vec<Delivery>,
    /// Why it was never sent, when the post office threw it away or gave it up.
    pub ended: Option<String>,
}

/// What is to be sent from files.
#[async_trait]
pub trait DraftStore: Send + Sync {
    /// Posts a draft, through the post office where `through` says so, and remembers
    /// that somebody waits to hear what became of it.
    async fn send_draft(
        &self,
        draft: DraftSendRequest,
        through: &PipelineRouting,
        now: Timestamp,
    ) -> Result<SendResult, StoreError>;

    /// Drafts that are not closed, and whose deliveries have all ended, or that the post
    /// office has thrown away or given up.
    async fn finished_drafts(&self, limit: usize) -> Result<Vec<DraftResult>, StoreError>;

    /// Whether a draft was posted.
    async fn draft_exists(&self, uid: &str) -> Result<bool, StoreError>;

    /// Nobody waits for a draft any more.
    async fn close_draft(&self, uid: &str) -> Result<(), StoreError>;
}
