//! What the hub does with messages, for whoever asks: HTTP, the command line,
//! later MCP.
//!
//! The store decides nothing and the doors translate; what lies between is here:
//! which time it is, how long a lease runs, what an id may mean.

use std::sync::Arc;
use std::time::Duration;

use monoco_core::claim::Workspace;
use monoco_core::delivery::{Delivery, DeliveryOutcome, SendState};
use monoco_core::did::Did;
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::letter::{LetterId, LetterStateData};
use monoco_core::mail::MailId;
use monoco_core::object::{MsgObject, ObjId};
use monoco_core::record::{BoxKind, MsgRecord, ReadState, RecordId, RecordKind};
use monoco_core::retry::{Failure, RetryPolicy};
use monoco_core::time::Timestamp;
use monoco_store::{
    AcceptResult, DispatchOutcome, DispatchRequest, DispatchResult, JitteredRetry, LeasedEntry,
    LetterRow, LetterSource, MessageTrace, OperatorAction, Page, PageRequest, PipelineRouting,
    SendRequest, SendResult, SharedStore, StoreError,
};
use tokio::sync::watch;

use crate::clock::{self, Clock};
use crate::pipeline::queue::QueueNotifier;

/// Expired deliveries that one `next` may clear away before it gives up.
const MAX_EXPIRED_PER_CALL: usize = 100;

/// The hub's verbs.
#[derive(Clone)]
pub struct Center {
    store: SharedStore,
    clock: Arc<Clock>,
    retry: RetryPolicy,
    chains: ChainRouting,
    carrier: QueueNotifier,
}

/// Which messages go through the post office, as things are now.
#[derive(Clone)]
pub struct ChainRouting {
    /// Those that come in.
    pub inbound: watch::Receiver<Arc<PipelineRouting>>,
    /// Those that go out.
    pub outbound: watch::Receiver<Arc<PipelineRouting>>,
}

impl ChainRouting {
    /// None does.
    pub fn none() -> Self {
        let none = || watch::channel(Arc::new(PipelineRouting::default())).1;
        Self { inbound: none(), outbound: none() }
    }
}

/// A record or a delivery: whatever a box holds.
#[derive(Clone, Debug)]
pub enum BoxEntry {
    /// Of a box that is read.
    Record(MsgRecord),
    /// Of a TUNNEL_OUTBOX.
    Delivery(Delivery),
}

/// A state of either machine that a caller named.
#[derive(Clone, Debug)]
pub enum StateFilter {
    /// Of records.
    Read(Vec<ReadState>),
    /// Of deliveries.
    Send(Vec<SendState>),
}

/// The caller named a state that the box does not have.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{found:?} is no state of {of}; it has {}", .known.join(", "))]
pub struct UnknownState {
    /// What the caller said.
    pub found: String,
    /// The box, or what sort of record it is.
    pub of: &'static str,
    /// What there is.
    pub known: Vec<&'static str>,
}

/// Why the center did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CenterError {
    /// The store said no.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No such state.
    #[error(transparent)]
    UnknownState(#[from] UnknownState),
    /// Nothing can be taken in that state.
    #[error("nothing is taken in state {0}; only {1} is")]
    NotTakeable(&'static str, &'static str),
    /// Nobody by that name has a box here.
    #[error("{0} has no boxes here: it is no contact, group or tunnel and got no message yet")]
    UnknownOwner(Did),
    /// An OUTBOX is history.
    #[error("an OUTBOX is history; nothing is taken from it")]
    History,
    /// The id is of nothing we know the form of.
    #[error("there is nothing with the id {0}")]
    UnknownId(String),
}

impl Center {
    /// A center on `store`.
    pub fn new(store: SharedStore, clock: Arc<Clock>, retry: RetryPolicy) -> Self {
        let (chains, carrier) = (ChainRouting::none(), QueueNotifier::default());
        Self { store, clock, retry, chains, carrier }
    }

    /// The same center, with these chains in the way of messages.
    #[must_use]
    pub fn with_chains(self, chains: ChainRouting, carrier: QueueNotifier) -> Self {
        Self { chains, carrier, ..self }
    }

    /// The store behind it, for what needs no more than that.
    pub fn store(&self) -> &SharedStore {
        &self.store
    }

    /// What time it is.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// What the machine's clock says, for what others have signed.
    pub fn wall_clock(&self) -> Timestamp {
        self.clock.wall()
    }

    /// How far the machine's clock is from ours, in milliseconds.
    pub fn clock_drift_ms(&self) -> i64 {
        self.clock.drift()
    }

    /// How deliveries are tried again, this time.
    pub fn jittered_retry(&self) -> JitteredRetry {
        JitteredRetry { retry: self.retry, jitter: clock::jitter() }
    }

    /// Puts messages that came in into their boxes, all in one commit; those with a
    /// chain in their way become letters, all in another.
    pub async fn dispatch(
        &self,
        batch: Vec<DispatchRequest>,
    ) -> Vec<Result<DispatchResult, StoreError>> {
        let through = self.inbound();
        if through.is_empty() {
            return self.store.dispatch(batch, self.now()).await;
        }
        let chained: Vec<bool> =
            batch.iter().map(|dispatch| through.applies_to(dispatch.tunnel.as_ref())).collect();
        let (mut letters, mut plain) = (Vec::new(), Vec::new());
        for (dispatch, chained) in batch.into_iter().zip(&chained) {
            match chained {
                true => letters.push(LetterSource::Dispatch(dispatch)),
                false => plain.push(dispatch),
            }
        }
        let ids: Vec<_> = letters.iter().map(named).collect();
        let letters = self.submit(letters).await.into_iter().zip(ids);
        let mut letters = letters.map(|(accepted, id)| dispatched(accepted?, id));
        let mut plain = match plain.is_empty() {
            true => Vec::new().into_iter(),
            false => self.store.dispatch(plain, self.now()).await.into_iter(),
        };
        let next = |chained| if chained { letters.next() } else { plain.next() };
        chained.into_iter().filter_map(next).collect()
    }

    /// Puts a message on its way.
    pub async fn post_send(
        &self,
        msg: MsgObject,
        key: Option<String>,
        not_before: Option<Timestamp>,
    ) -> Result<SendResult, StoreError> {
        let (through, msg_id) = (self.outbound(), msg.id());
        let post = SendRequest { msg, key, not_before };
        if through.is_empty() {
            return self.store.send(post, self.now()).await;
        }
        let accepted = self.submit(vec![LetterSource::Send(post)]).await.pop();
        match accepted.unwrap_or_else(|| Err(no_answer()))? {
            AcceptResult::Sent(posted) => Ok(posted),
            AcceptResult::Letter { id, duplicate, .. } => {
                Ok(SendResult::Chained { msg_id, letter: id, duplicate })
            }
            AcceptResult::Inbound(_) | AcceptResult::Dispatched(_) => Err(no_answer()),
        }
    }

    /// Takes letters in, all in one commit, and has them carried to the dispatcher.
    pub async fn submit(&self, batch: Vec<LetterSource>) -> Vec<Result<AcceptResult, StoreError>> {
        let answers = self.store.accept(batch, self.outbound(), self.now()).await;
        for answer in answers.iter().flatten() {
            if let AcceptResult::Letter { id, duplicate: false, .. } = answer {
                self.carrier.notify(*id, Duration::ZERO);
            }
        }
        answers
    }

    /// Moves a letter by hand, and has it carried to the dispatcher if it waits.
    ///
    /// # Errors
    ///
    /// When there is no such letter, or it can't be moved so.
    pub async fn move_letter(
        &self,
        id: LetterId,
        how: OperatorAction,
    ) -> Result<LetterRow, StoreError> {
        let row = self.store.move_letter(id, how, self.now()).await?;
        if let LetterStateData::Waiting { due } = row.status.standing {
            self.notify_queue(id, due);
        }
        Ok(row)
    }

    /// Has a letter carried to the dispatcher later.
    pub fn notify_queue(&self, id: LetterId, due: Timestamp) {
        self.carrier.notify(id, due.since(self.now()));
    }

    /// Which messages that come in go through the post office.
    pub fn inbound(&self) -> Arc<PipelineRouting> {
        Arc::clone(&self.chains.inbound.borrow())
    }

    /// Which messages that go out do.
    pub fn outbound(&self) -> Arc<PipelineRouting> {
        Arc::clone(&self.chains.outbound.borrow())
    }

    /// Takes the next entry of a box.
    pub async fn next(
        &self,
        owner: &Did,
        box_kind: BoxKind,
        states: &[String],
        holder: Holder,
        term: LeaseDuration,
    ) -> Result<Option<LeasedEntry<BoxEntry>>, CenterError> {
        if box_kind == BoxKind::Outbox {
            return Err(CenterError::History);
        }
        match StateFilter::parse(box_kind, states)? {
            StateFilter::Read(states) => {
                if let Some(state) = states.iter().find(|state| **state != ReadState::Unread) {
                    return Err(CenterError::NotTakeable(state.as_str(), "UNREAD"));
                }
                let taken =
                    self.store.lease_record(owner, box_kind, holder, term, self.now()).await?;
                if let Some(LeasedEntry { entry, body }) = taken {
                    return Ok(Some(LeasedEntry { entry: BoxEntry::Record(entry), body }));
                }
            }
            StateFilter::Send(states) => {
                let takeable = [SendState::Wait, SendState::Failed];
                if let Some(state) = states.iter().find(|state| !takeable.contains(state)) {
                    return Err(CenterError::NotTakeable(state.as_str(), "WAIT"));
                }
                if let Some(LeasedEntry { entry, body }) =
                    self.next_delivery(owner, holder, term).await?
                {
                    return Ok(Some(LeasedEntry { entry: BoxEntry::Delivery(entry), body }));
                }
            }
        }
        // Only now, so that whoever has mail does not pay for the question.
        self.check_owner(owner).await?;
        Ok(None)
    }

    /// Takes the next delivery of a tunnel whose message is still wanted.
    pub async fn next_delivery(
        &self,
        tunnel: &Did,
        holder: Holder,
        term: LeaseDuration,
    ) -> Result<Option<LeasedEntry<Delivery>>, StoreError> {
        for _ in 0..MAX_EXPIRED_PER_CALL {
            let now = self.now();
            let taken = self.store.lease_delivery(tunnel, holder.clone(), term, now).await?;
            let Some(taken) = taken else { return Ok(None) };
            let Some(expired_at) = expired(&taken.body, now) else { return Ok(Some(taken)) };
            let detail = format!("expired at {} ms, before it was sent", expired_at.ms());
            let guard =
                LeaseProof { epoch: Some(taken.entry.sending.epoch), holder: holder.clone() };
            let outcome = DeliveryOutcome::Failed(Failure::Permanent { detail });
            self.report(taken.entry.id, outcome, guard).await?;
        }
        Ok(None)
    }

    /// What `next` would give, without taking it.
    pub async fn peek(
        &self,
        owner: &Did,
        box_kind: BoxKind,
        count: usize,
    ) -> Result<Page<BoxEntry>, CenterError> {
        let waiting: &[String] = match box_kind {
            BoxKind::TunnelOutbox => &["WAIT".to_owned(), "FAILED".to_owned()],
            BoxKind::Outbox => &["SENT".to_owned()],
            _ => &["UNREAD".to_owned()],
        };
        let window = PageRequest { beyond: None, limit: count, newest_first: false };
        self.list(owner, box_kind, waiting, window).await
    }

    /// Entries of a box in the order they came.
    pub async fn list(
        &self,
        owner: &Did,
        box_kind: BoxKind,
        states: &[String],
        window: PageRequest,
    ) -> Result<Page<BoxEntry>, CenterError> {
        self.check_owner(owner).await?;
        Ok(match StateFilter::parse(box_kind, states)? {
            StateFilter::Read(states) => {
                let page = self.store.records(owner, box_kind, &states, window).await?;
                let entries = page.entries.into_iter().map(BoxEntry::Record).collect();
                Page { entries, next: page.next }
            }
            StateFilter::Send(states) => {
                let page = self.store.deliveries(owner, &states, window).await?;
                let entries = page.entries.into_iter().map(BoxEntry::Delivery).collect();
                Page { entries, next: page.next }
            }
        })
    }

    /// One record or delivery.
    pub async fn entry(&self, id: RecordId) -> Result<BoxEntry, StoreError> {
        match id.kind() {
            RecordKind::Record => self.store.record(id).await.map(BoxEntry::Record),
            RecordKind::Delivery => self.store.delivery(id).await.map(BoxEntry::Delivery),
        }
    }

    /// Moves a record or a delivery to another state.
    pub async fn update_state(
        &self,
        id: RecordId,
        state: &str,
        guard: LeaseProof,
        revision: Option<i64>,
        term: LeaseDuration,
    ) -> Result<BoxEntry, CenterError> {
        let now = self.now();
        Ok(match id.kind() {
            RecordKind::Record => {
                let to = ReadState::parse(state).ok_or_else(|| UnknownState::read(state))?;
                let record = self.store.mark_record(id, to, guard, revision, term, now).await?;
                BoxEntry::Record(record)
            }
            RecordKind::Delivery => {
                let to = SendState::parse(state).ok_or_else(|| UnknownState::send(state))?;
                BoxEntry::Delivery(self.store.mark_delivery(id, to, guard, revision, now).await?)
            }
        })
    }

    /// Files what came of a try.
    pub async fn report(
        &self,
        id: RecordId,
        outcome: DeliveryOutcome,
        guard: LeaseProof,
    ) -> Result<Delivery, StoreError> {
        self.store.report_delivery(id, outcome, guard, self.jittered_retry(), self.now()).await
    }

    /// Everything about the message that `id` leads to: an object, a record, a
    /// delivery, or an id that a provider gave.
    pub async fn trace(&self, id: &str) -> Result<MessageTrace, CenterError> {
        let msg_id = if let Ok(msg_id) = id.parse::<ObjId>() {
            msg_id
        } else if let Ok(mail) = id.parse::<MailId>() {
            self.store.mail(&mail, &Workspace::shared()).await?.entry.msg_id
        } else if let Ok(record_id) = id.parse::<RecordId>() {
            self.store.object_of_record(record_id).await?
        } else {
            match self.store.find_by_external_id(id).await {
                Err(StoreError::Missing { .. }) => {
                    return Err(CenterError::UnknownId(id.to_owned()));
                }
                other => other?,
            }
        };
        Ok(self.store.trace(msg_id).await?)
    }

    /// Refuses owners nobody has heard of: more likely a slip of the pen than an
    /// empty box.
    pub async fn check_owner(&self, owner: &Did) -> Result<(), CenterError> {
        if self.store.owner_exists(owner).await? {
            return Ok(());
        }
        Err(CenterError::UnknownOwner(owner.clone()))
    }
}

/// The message that a letter to be made is about.
fn named(origin: &LetterSource) -> Option<ObjId> {
    match origin {
        LetterSource::Dispatch(dispatch) => Some(dispatch.msg.id()),
        LetterSource::Send(post) => Some(post.msg.id()),
        LetterSource::Submitted { .. } | LetterSource::Inbound(_) => None,
    }
}

/// What became of a message that came in and had a chain in its way.
fn dispatched(accepted: AcceptResult, msg_id: Option<ObjId>) -> Result<DispatchResult, StoreError> {
    match (accepted, msg_id) {
        (AcceptResult::Dispatched(dispatched), _) => Ok(dispatched),
        (AcceptResult::Letter { id, duplicate, msg_id: first }, Some(msg_id)) => {
            let outcome = DispatchOutcome::Chained { letter: id, duplicate };
            Ok(DispatchResult { msg_id: first.unwrap_or(msg_id), outcome })
        }
        _ => Err(no_answer()),
    }
}

fn no_answer() -> StoreError {
    StoreError::Unavailable("the store gave no answer".to_owned())
}

/// When the message stopped being wanted, if it did by `now`.
fn expired(body: &str, now: Timestamp) -> Option<Timestamp> {
    #[derive(serde::Deserialize)]
    struct Expiry {
        expires_at_ms: Option<Timestamp>,
    }
    let expiry: Expiry = serde_json::from_str(body).ok()?;
    expiry.expires_at_ms.filter(|at| *at <= now)
}

impl StateFilter {
    fn parse(box_kind: BoxKind, names: &[String]) -> Result<Self, UnknownState> {
        Ok(if box_kind == BoxKind::TunnelOutbox {
            let parse =
                |name: &String| SendState::parse(name).ok_or_else(|| UnknownState::send(name));
            Self::Send(names.iter().map(parse).collect::<Result<_, _>>()?)
        } else {
            let parse =
                |name: &String| ReadState::parse(name).ok_or_else(|| UnknownState::read(name));
            Self::Read(names.iter().map(parse).collect::<Result<_, _>>()?)
        })
    }
}

impl UnknownState {
    fn read(found: &str) -> Self {
        let known = ReadState::ALL.map(ReadState::as_str).to_vec();
        Self { found: found.chars().take(40).collect(), of: "a record", known }
    }

    fn send(found: &str) -> Self {
        let known = SendState::ALL.map(SendState::as_str).to_vec();
        Self { found: found.chars().take(40).collect(), of: "a delivery", known }
    }
}
