//! Letters: messages in the pipeline.
//!
//! The row of a letter is authoritative; queues only carry its id. Every step is one
//! transaction: the verdicts of the workers, the next action, and the message that the letter
//! becomes at the end of its chain are written together or not at all.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use monoco_core::approval::SendOrigin;
use monoco_core::did::{InvalidDid, TunnelId};
use monoco_core::letter::{
    ChainDirection, Letter, LetterId, LetterState, LetterStatus, WorkerName, WorkerVerdict,
};
use monoco_core::object::ObjId;
use monoco_core::rate_limit::ReservedUntil;
use monoco_core::time::Timestamp;
use tokio::sync::watch;

use crate::{
    DispatchRequest, DispatchResult, Page, PageRequest, SendRequest, SendResult,
    StoreInboundRequest, StoreInboundResult, StoreResult,
};

/// Which messages of one direction go through the pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PipelineRouting {
    /// Messages of tunnels without an own setting, and messages without a tunnel.
    pub all: bool,
    /// Settings of single tunnels.
    pub tunnels: BTreeMap<TunnelId, bool>,
}

/// What a letter was created from: the input of [`LetterStore::accept`], and part of every
/// stored letter, because the end of the chain needs it.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "one per letter, moved rarely")]
pub enum LetterSource {
    /// A letter that a program submitted to be sent.
    Submitted {
        letter: Letter,
        /// The tunnel the letter goes through, if it is already known.
        tunnel: Option<TunnelId>,
        /// Idempotency key of the caller. Used when the letter is accepted; `None` in a
        /// letter that was read from the store.
        key: Option<String>,
        /// On whose behalf the letter is sent.
        origin: SendOrigin,
    },
    /// An inbound message of a tunnel of this courier.
    Inbound(StoreInboundRequest),
    /// A MsgObject that another program received and dispatched.
    Dispatch(DispatchRequest),
    /// A MsgObject to be sent.
    Send(SendRequest),
}

/// The variants of [`LetterSource`], as stored in the database and shown by the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterSourceKind {
    Submitted,
    Inbound,
    Dispatch,
    Send,
}

/// Result of accepting a message that may have to go through the pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcceptResult {
    /// The message is a letter.
    Letter {
        id: LetterId,
        /// An earlier call created the letter; this call changed nothing.
        duplicate: bool,
        /// The message that the letter was created from, if it was one.
        msg_id: Option<ObjId>,
    },
    /// An inbound message that is a duplicate or whose author is blocked or dropped.
    Inbound(StoreInboundResult),
    /// A dispatched message that is a duplicate or whose author is blocked or dropped.
    Dispatched(DispatchResult),
    /// A message that was sent before, whose author is blocked, or that has no chain.
    Sent(SendResult),
}

/// A letter with its current text and status.
#[derive(Clone, Debug)]
pub struct LetterRow {
    pub id: LetterId,
    pub direction: ChainDirection,
    /// The tunnel that the letter comes or goes through, when it is known.
    pub tunnel: Option<TunnelId>,
    /// What the letter was created from.
    pub source: LetterSource,
    /// The letter with all changes by workers.
    pub letter: Letter,
    /// Verdicts so far, oldest first.
    pub verdicts: Vec<WorkerVerdict>,
    pub status: LetterStatus,
    /// The external worker that the letter waits for; for a dead letter, the worker that
    /// failed.
    pub worker: Option<WorkerName>,
    /// The built-in worker that holds the letter for later.
    pub held_by: Option<WorkerName>,
    /// The key under which that worker holds the letter.
    pub key: Option<String>,
    /// Reason of the last failure.
    pub failure: Option<String>,
    /// The message that the letter became at the end of its chain.
    pub became: Option<ObjId>,
    pub revision: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// When the text was erased; then `source` and `letter` are empty.
    pub erased_at: Option<Timestamp>,
}

/// One step of one letter.
#[derive(Clone, Debug)]
pub struct LetterStep {
    pub id: LetterId,
    /// The revision that the step is based on.
    pub revision: i64,
    /// The new text, when a worker changed it.
    pub letter: Option<Letter>,
    /// Whether the message that is sent contains `letter.data` unchanged. Then the store does
    /// not keep a second copy.
    pub in_object: bool,
    pub verdicts: Vec<WorkerVerdict>,
    /// New ends of rate limit reservations, by key.
    pub reservations: Vec<(String, ReservedUntil)>,
    /// Letters that are merged into this one, with the revisions that were read. If one of
    /// them has changed, the whole step is rejected.
    pub joins: Vec<(LetterId, i64)>,
    pub then: NextAction,
}

/// What happens to a letter after a step.
#[derive(Clone, Debug)]
pub enum NextAction {
    /// Wait for the dispatcher (`worker` is `None`) or for an external worker.
    Wait {
        worker: Option<WorkerName>,
        due: Timestamp,
    },
    /// Be held by a built-in worker until `due`.
    Hold {
        by: WorkerName,
        key: Option<String>,
        due: Timestamp,
    },
    /// The external worker that the letter waits for has it until `until`.
    HandOver {
        until: Timestamp,
    },
    /// The external worker failed, did not answer in time or is down.
    Return {
        /// Time of the next attempt.
        due: Timestamp,
        /// Whether the worker was reached, so that the attempt counts.
        tried: bool,
        why: String,
    },
    /// The chain is finished: send the message.
    Send(Box<SendRequest>),
    /// The chain is finished: add the message to the merge window of its session.
    Deliver(Box<StoreInboundRequest>),
    /// The chain is finished: put the message into boxes.
    Dispatch(Box<DispatchRequest>),
    Trash {
        why: String,
    },
    MarkDead {
        why: String,
    },
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LetterStepResult {
    /// The new state. A letter that cannot be sent is DEAD instead of DONE.
    pub state: LetterState,
    pub revision: i64,
}

/// An action of an operator on one letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorAction {
    /// DEAD → WAITING for the worker that failed; a WAITING letter becomes due now.
    Retry,
    Trash {
        why: String,
    },
    /// TRASHED → WAITING for the worker after the one that trashed it.
    Restore,
    /// TRASHED or DEAD → WAITING with its original text, for the first worker of its chain.
    Replay,
}

/// Filter for a list of letters.
#[derive(Clone, Debug, Default)]
pub struct LetterQuery {
    /// Only letters in these states; empty for all.
    pub states: Vec<LetterState>,
    /// Only letters that wait for this worker or are held by it.
    pub worker: Option<WorkerName>,
    pub direction: Option<ChainDirection>,
    pub tunnel: Option<TunnelId>,
    /// Only letters that were created at this time or later.
    pub since: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterCounts {
    pub states: BTreeMap<LetterState, i64>,
    /// WAITING and AWAY letters by external worker; the dispatcher has the name "".
    pub waiting: BTreeMap<String, i64>,
    /// AWAY letters by external worker.
    pub away: BTreeMap<String, i64>,
    /// Held letters by built-in worker.
    pub held: BTreeMap<String, i64>,
    /// Due time of the oldest letter that waits for the dispatcher.
    pub oldest_due: Option<Timestamp>,
}

/// Stores letters and their steps.
#[async_trait]
pub trait LetterStore: Send + Sync {
    /// Creates a letter of each source, all in one commit. A source that was accepted before
    /// is reported as a duplicate. `outbound` decides whether a [`LetterSource::Send`] becomes
    /// a letter or is sent at once.
    async fn accept(
        &self,
        batch: Vec<LetterSource>,
        outbound: Arc<PipelineRouting>,
        now: Timestamp,
    ) -> Vec<StoreResult<AcceptResult>>;

    /// Lists at most `limit` due letters of an external worker (`None`: the dispatcher),
    /// longest due first. Returns fewer when they are large, and none only when none is due.
    /// A damaged letter becomes DEAD and is left out.
    async fn due_letters(
        &self,
        worker: Option<&WorkerName>,
        limit: usize,
        now: Timestamp,
    ) -> StoreResult<Vec<LetterRow>>;

    /// Returns when the next letter of a worker is due, if one waits.
    async fn next_letter(&self, worker: Option<&WorkerName>) -> StoreResult<Option<Timestamp>>;

    /// Lists at most `limit` letters that a built-in worker holds under `key`, oldest first.
    async fn held_letters(
        &self,
        by: &WorkerName,
        key: &str,
        limit: usize,
    ) -> StoreResult<Vec<LetterRow>>;

    /// Lists at most `limit` letters that an external worker has, earliest deadline first.
    async fn away_letters(&self, worker: &WorkerName, limit: usize) -> StoreResult<Vec<LetterRow>>;

    /// Returns the ends of the reservations with these keys.
    async fn reservations(&self, keys: Vec<String>)
    -> StoreResult<BTreeMap<String, ReservedUntil>>;

    /// Applies one step to each of several letters, all in one commit. A rejected step does
    /// not affect the others.
    ///
    /// # Errors
    ///
    /// `StoreError::Conflict` when a letter has changed since it was read.
    async fn step_letters(
        &self,
        batch: Vec<LetterStep>,
        now: Timestamp,
    ) -> Vec<StoreResult<LetterStepResult>>;

    /// Returns one letter by id.
    async fn letter(&self, id: LetterId) -> StoreResult<LetterRow>;

    /// Lists letters by number.
    async fn letters(&self, query: LetterQuery, page: PageRequest) -> StoreResult<Page<LetterRow>>;

    /// Lists the letters that were created from a message or became it.
    async fn letters_of(&self, msg_id: ObjId) -> StoreResult<Vec<LetterRow>>;

    /// Lists dead letters, oldest first.
    async fn dead_letters(&self, limit: usize) -> StoreResult<Vec<LetterRow>>;

    /// Applies an operator's action to a letter.
    async fn move_letter(
        &self,
        id: LetterId,
        action: OperatorAction,
        now: Timestamp,
    ) -> StoreResult<LetterRow>;

    /// Returns at most `limit` letters of external workers that are not in `workers` to the
    /// dispatcher, because these workers were removed. Returns their number.
    async fn recall_letters(
        &self,
        workers: &[WorkerName],
        limit: usize,
        now: Timestamp,
    ) -> StoreResult<usize>;

    /// Returns at most `limit` letters that a built-in worker holds to the dispatcher, and
    /// deletes its reservations, because its configuration has changed. Returns the number of
    /// letters.
    async fn recall_held_letters(
        &self,
        by: &WorkerName,
        limit: usize,
        now: Timestamp,
    ) -> StoreResult<usize>;

    /// Queues every letter that one of these workers has for another attempt. Used at start
    /// for workers of an earlier process, which cannot answer any more.
    async fn release_letters(&self, workers: &[WorkerName], now: Timestamp) -> StoreResult<usize>;

    /// Deletes at most `limit` letters that were trashed on day `trashed` of the retention
    /// clock or before, or finished on day `done` or before. Returns their number.
    async fn purge_letters(&self, trashed: i64, done: i64, limit: usize) -> StoreResult<usize>;

    /// Reads the `limit` reservations with keys above `after`, and deletes those that have
    /// ended by `now`. Returns the number of deleted reservations and the last key that was
    /// read; `None` at the end.
    async fn purge_reservations(
        &self,
        after: &str,
        limit: usize,
        now: Timestamp,
    ) -> StoreResult<(usize, Option<String>)>;

    /// Returns the numbers of letters.
    async fn letter_counts(&self, now: Timestamp) -> StoreResult<LetterCounts>;

    /// A counter that changes after each commit that makes a letter wait.
    fn newest_letter(&self) -> watch::Receiver<u64>;
}

impl LetterStep {
    /// A step with an action only.
    pub fn only(row: &LetterRow, then: NextAction) -> Self {
        Self {
            id: row.id,
            revision: row.revision,
            letter: None,
            in_object: false,
            verdicts: Vec::new(),
            reservations: Vec::new(),
            joins: Vec::new(),
            then,
        }
    }
}

impl PipelineRouting {
    /// Whether messages of this tunnel, or of no tunnel, go through the pipeline.
    pub fn applies_to(&self, tunnel: Option<&TunnelId>) -> bool {
        let own = tunnel.and_then(|tunnel| self.tunnels.get(tunnel));
        *own.unwrap_or(&self.all)
    }

    /// Whether no message goes through the pipeline.
    pub fn is_empty(&self) -> bool {
        !self.all && !self.tunnels.values().any(|applies| *applies)
    }
}

impl LetterSource {
    /// On whose behalf the letter is sent; `None` for inbound messages.
    pub const fn origin(&self) -> Option<&SendOrigin> {
        match self {
            Self::Submitted { origin, .. } | Self::Send(SendRequest { origin, .. }) => Some(origin),
            Self::Inbound(_) | Self::Dispatch(_) => None,
        }
    }

    pub const fn kind(&self) -> LetterSourceKind {
        match self {
            Self::Submitted { .. } => LetterSourceKind::Submitted,
            Self::Inbound(_) => LetterSourceKind::Inbound,
            Self::Dispatch(_) => LetterSourceKind::Dispatch,
            Self::Send(_) => LetterSourceKind::Send,
        }
    }

    /// The letter with its original text.
    ///
    /// # Errors
    ///
    /// When a stored address does not fit into a DID. It did when the letter was created, so
    /// that the stored text is damaged.
    pub fn letter(&self) -> Result<Letter, InvalidDid> {
        match self {
            Self::Submitted { letter, .. } => Ok(letter.clone()),
            Self::Inbound(request) => {
                let StoreInboundRequest { message, tunnel, provider, mail, .. } = request;
                let letter = Letter::from_inbound(message, tunnel, provider)?;
                Ok(match mail {
                    Some(mail) => letter.with_mail(mail),
                    None => letter,
                })
            }
            Self::Dispatch(request) => {
                Ok(Letter::from_message(&request.msg, ChainDirection::Inbound))
            }
            Self::Send(request) => Ok(Letter::from_message(&request.msg, ChainDirection::Outbound)),
        }
    }
}

impl LetterSourceKind {
    const ALL: [Self; 4] = [Self::Submitted, Self::Inbound, Self::Dispatch, Self::Send];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Inbound => "inbound",
            Self::Dispatch => "dispatch",
            Self::Send => "send",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}
