//! Letters in the post office: what the store is asked about them.
//!
//! A letter's row is the truth; queues only carry its name. Every step is one
//! transaction: what the workers said, how the letter goes on, and what it becomes
//! when it is through are written together or not at all.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use monoco_core::did::{Did, InvalidDid, TunnelId};
use monoco_core::letter::{
    ChainDirection, Letter, LetterId, LetterState, LetterStatus, WorkerName, WorkerVerdict,
};
use monoco_core::object::ObjId;
use monoco_core::rate_limit::ReservedUntil;
use monoco_core::time::Timestamp;
use tokio::sync::watch;

use crate::{
    DispatchRequest, DispatchResult, Page, PageRequest, SendRequest, SendResult, StoreError,
    StoreInboundRequest, StoreInboundResult,
};

/// Which messages of a direction go through the post office.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PipelineRouting {
    /// Those of tunnels that have no rule of their own, and of none.
    pub all: bool,
    /// Those of tunnels that have.
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

/// What became of a message that may have to go through the post office.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcceptResult {
    /// It is a letter.
    Letter {
        /// Which.
        id: LetterId,
        /// Whether it was before; then nothing was done.
        duplicate: bool,
        /// The message it was made of, if it was made of one.
        msg_id: Option<ObjId>,
    },
    /// It was heard before, or its author is not wanted.
    Inbound(StoreInboundResult),
    /// It came before, or its author is not wanted.
    Dispatched(DispatchResult),
    /// It was posted before, its author is blocked, or no chain is in its way.
    Sent(SendResult),
}

/// A letter as the store has it.
#[derive(Clone, Debug)]
pub struct LetterRow {
    /// Its name.
    pub id: LetterId,
    /// Which way it goes.
    pub direction: ChainDirection,
    /// The tunnel it comes or goes through, as far as that is known.
    pub tunnel: Option<TunnelId>,
    /// What it was made of.
    pub source: LetterSource,
    /// How it is now.
    pub letter: Letter,
    /// Who had it, and what they said.
    pub verdicts: Vec<WorkerVerdict>,
    /// Where it stands.
    pub status: LetterStatus,
    /// Whose turn it is, when that is a worker outside; for a dead letter, who failed.
    pub worker: Option<WorkerName>,
    /// The worker of ours that keeps it for a while.
    pub held_by: Option<WorkerName>,
    /// What that worker keeps it under.
    pub key: Option<String>,
    /// Why it last failed.
    pub failure: Option<String>,
    /// The message it became.
    pub became: Option<ObjId>,
    /// Counts every change.
    pub revision: i64,
    /// When it came.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

/// One step of one letter.
#[derive(Clone, Debug)]
pub struct LetterStep {
    /// Which.
    pub id: LetterId,
    /// The revision it was looked at with.
    pub revision: i64,
    /// The letter from now on, when workers changed it.
    pub letter: Option<Letter>,
    /// Whether the message that is posted says its `data` word for word. Then that is
    /// not kept twice.
    pub in_object: bool,
    /// What workers said since it was last looked at.
    pub verdicts: Vec<WorkerVerdict>,
    /// Up to when keys of a limit are booked now.
    pub reservations: Vec<(String, ReservedUntil)>,
    /// Letters that are part of this one from now on, with the revisions they were
    /// looked at with. One that changed since refuses the whole step.
    pub joins: Vec<(LetterId, i64)>,
    /// How it goes on.
    pub then: NextAction,
}

/// How a letter goes on.
#[derive(Clone, Debug)]
pub enum NextAction {
    /// It waits for the dispatcher, or at the desk of a worker outside.
    Wait {
        /// At which; `None`: the dispatcher's.
        worker: Option<WorkerName>,
        /// Not before this.
        due: Timestamp,
    },
    /// One of our workers keeps it for a while.
    Hold {
        /// Which.
        by: WorkerName,
        /// Under which key.
        key: Option<String>,
        /// Until then.
        due: Timestamp,
    },
    /// The worker at whose desk it waits has it.
    HandOver {
        /// Until then.
        until: Timestamp,
    },
    /// That worker failed, did not answer in time, or is down.
    Return {
        /// The next try is not before this.
        due: Timestamp,
        /// Whether the worker was reached at all.
        tried: bool,
        /// What went wrong.
        why: String,
    },
    /// It is through, and is sent.
    Send(Box<SendRequest>),
    /// It is through, and joins what was heard of its session.
    Deliver(Box<StoreInboundRequest>),
    /// It is through, and is put into boxes.
    Dispatch(Box<DispatchRequest>),
    /// Into the bin.
    Trash {
        /// Why.
        why: String,
    },
    /// It is given up.
    MarkDead {
        /// Why.
        why: String,
    },
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LetterStepResult {
    /// Where the letter stands now. One that can't be sent is DEAD, whatever was meant.
    pub state: LetterState,
    /// Its revision now.
    pub revision: i64,
}

/// What a person does with a letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorAction {
    /// DEAD → WAITING for the worker that failed; a WAITING one is due now.
    Retry,
    /// Into the bin.
    Trash {
        /// Why.
        why: String,
    },
    /// TRASHED → WAITING, for whoever comes after the worker that threw it away.
    Restore,
    /// TRASHED or DEAD → WAITING, as it came, for the first worker of its chain.
    Replay,
}

/// Which letters.
#[derive(Clone, Debug, Default)]
pub struct LetterQuery {
    /// Only those that stand so; none: all.
    pub states: Vec<LetterState>,
    /// Only those at this worker's desk, or kept by it.
    pub worker: Option<WorkerName>,
    /// Only those of this direction.
    pub direction: Option<ChainDirection>,
    /// Only those of this tunnel.
    pub tunnel: Option<TunnelId>,
    /// Only those that came at this time or later.
    pub since: Option<Timestamp>,
}

/// What the store counts of letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterCounts {
    /// How many there are of each state.
    pub states: BTreeMap<LetterState, i64>,
    /// How many wait, or are away, at each desk; under "" for the dispatcher.
    pub waiting: BTreeMap<String, i64>,
    /// How many of those are away.
    pub away: BTreeMap<String, i64>,
    /// How many each of our workers keeps.
    pub held: BTreeMap<String, i64>,
    /// Since when the oldest letter that is due waits for the dispatcher.
    pub oldest_due: Option<Timestamp>,
}

/// Letters go through the post office.
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
    ) -> Vec<Result<AcceptResult, StoreError>>;

    /// At most `limit` letters that wait at a desk (`None`: the dispatcher's) and are
    /// due, the one that was due first before the others. Fewer when they are large;
    /// none only when none is due. One that is damaged is DEAD, and left out.
    async fn due_letters(
        &self,
        desk: Option<&WorkerName>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<LetterRow>, StoreError>;

    /// When the next letter at a desk is due, if one waits.
    async fn next_letter(&self, desk: Option<&WorkerName>)
    -> Result<Option<Timestamp>, StoreError>;

    /// At most `limit` letters that a worker of ours keeps under a key, in the order
    /// they came.
    async fn held_letters(
        &self,
        by: &WorkerName,
        key: &str,
        limit: usize,
    ) -> Result<Vec<LetterRow>, StoreError>;

    /// Letters at an outside worker, those whose time is over first; at most `limit`.
    async fn away_letters(
        &self,
        desk: &WorkerName,
        limit: usize,
    ) -> Result<Vec<LetterRow>, StoreError>;

    /// Up to when these keys of a limit are booked.
    async fn reservations(
        &self,
        keys: Vec<String>,
    ) -> Result<BTreeMap<String, ReservedUntil>, StoreError>;

    /// Takes one step with each of some letters, all in one commit. One that is refused
    /// does not harm the others.
    ///
    /// # Errors
    ///
    /// [`StoreError::Conflict`] when a letter changed since it was looked at.
    async fn step_letters(
        &self,
        batch: Vec<LetterStep>,
        now: Timestamp,
    ) -> Vec<Result<LetterStepResult, StoreError>>;

    /// One letter.
    async fn letter(&self, id: LetterId) -> Result<LetterRow, StoreError>;

    /// Letters by number.
    async fn letters(
        &self,
        query: LetterQuery,
        window: PageRequest,
    ) -> Result<Page<LetterRow>, StoreError>;

    /// Letters that were made of a message, or became it.
    async fn letters_of(&self, msg_id: ObjId) -> Result<Vec<LetterRow>, StoreError>;

    /// Letters that were given up, the oldest first.
    async fn dead_letters(&self, limit: usize) -> Result<Vec<LetterRow>, StoreError>;

    /// Moves a letter by hand.
    async fn move_letter(
        &self,
        id: LetterId,
        how: OperatorAction,
        now: Timestamp,
    ) -> Result<LetterRow, StoreError>;

    /// Takes back at most `limit` letters that wait at, or are with, a worker that is
    /// not one of `desks`. Returns how many there were.
    async fn recall_letters(
        &self,
        desks: &[WorkerName],
        limit: usize,
        now: Timestamp,
    ) -> Result<usize, StoreError>;

    /// Takes back at most `limit` letters that a worker of ours keeps, and what it has
    /// booked: its rule changed. Returns how many there were.
    async fn recall_held_letters(
        &self,
        by: &WorkerName,
        limit: usize,
        now: Timestamp,
    ) -> Result<usize, StoreError>;

    /// Puts back, for another try, every letter that is away at one of these workers:
    /// they were run by an earlier courier, and can't answer any more.
    async fn release_letters(
        &self,
        desks: &[WorkerName],
        now: Timestamp,
    ) -> Result<usize, StoreError>;

    /// Why `author` or one of those it is for keeps a letter from being delivered, if
    /// anything does: somebody is blocked.
    async fn find_block(
        &self,
        author: &Did,
        to: &[Did],
        tunnel: Option<&TunnelId>,
    ) -> Result<Option<String>, StoreError>;

    /// Forgets at most `limit` letters that were thrown away on the day `trashed` of
    /// the hub's life or before, or are through since the day `done` or before. Returns
    /// how many there were.
    async fn purge_letters(
        &self,
        trashed: i64,
        done: i64,
        limit: usize,
    ) -> Result<usize, StoreError>;

    /// Looks at the `limit` bookings whose keys follow `after`, and forgets those that are
    /// over by `now`. Returns how many these were, and the last key; `None` at the end.
    async fn purge_reservations(
        &self,
        after: &str,
        limit: usize,
        now: Timestamp,
    ) -> Result<(usize, Option<String>), StoreError>;

    /// What the store counts of letters.
    async fn letter_counts(&self, now: Timestamp) -> Result<LetterCounts, StoreError>;

    /// Changes after each commit by which a letter waits that did not before.
    fn newest_letter(&self) -> watch::Receiver<u64>;
}

impl LetterStep {
    /// A step of a letter about which nobody said anything.
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
    /// Whether a message of this tunnel, or of none, goes through the post office.
    pub fn applies_to(&self, tunnel: Option<&TunnelId>) -> bool {
        let own = tunnel.and_then(|tunnel| self.tunnels.get(tunnel));
        *own.unwrap_or(&self.all)
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        !self.all && !self.tunnels.values().any(|through| *through)
    }
}

impl LetterSource {
    pub const fn kind(&self) -> LetterSourceKind {
        match self {
            Self::Submitted { .. } => LetterSourceKind::Submitted,
            Self::Inbound(_) => LetterSourceKind::Inbound,
            Self::Dispatch(_) => LetterSourceKind::Dispatch,
            Self::Send(_) => LetterSourceKind::Send,
        }
    }

    /// The letter as it came.
    ///
    /// # Errors
    ///
    /// When what is stored does not fit into a DID, which it did when it came.
    pub fn letter(&self) -> Result<Letter, InvalidDid> {
        match self {
            Self::Submitted { letter, .. } => Ok(letter.clone()),
            Self::Inbound(keep) => {
                Letter::from_inbound(&keep.message, &keep.tunnel, &keep.provider)
            }
            Self::Dispatch(dispatch) => {
                Ok(Letter::from_message(&dispatch.msg, ChainDirection::Inbound))
            }
            Self::Send(post) => Ok(Letter::from_message(&post.msg, ChainDirection::Outbound)),
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
