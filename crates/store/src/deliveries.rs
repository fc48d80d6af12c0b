//! Deliveries: messages on their way to targets through tunnels.

use async_trait::async_trait;
use monoco_core::approval::{Approval, SendOrigin};
use monoco_core::contact::DeliveryPlan;
use monoco_core::delivery::{Delivery, DeliveryOutcome, SendState, SentPart};
use monoco_core::did::Did;
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::letter::LetterId;
use monoco_core::object::{MsgObject, ObjId};
use monoco_core::record::RecordId;
use monoco_core::retry::{Failure, Jitter, RetryPolicy};
use monoco_core::time::Timestamp;

use crate::{LeasedEntry, Page, PageRequest, StoreResult};

/// A message to send to its targets.
#[derive(Clone, Debug)]
pub struct SendRequest {
    pub msg: MsgObject,
    /// The caller's idempotency key.
    pub key: Option<String>,
    /// The first attempt is not made before this time.
    pub not_before: Option<Timestamp>,
    /// On whose behalf it is sent. The approval policy depends on it.
    pub origin: SendOrigin,
}

/// Result of a send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendResult {
    /// The message is queued for every target.
    Queued {
        msg_id: ObjId,
        /// An earlier call queued the message; this call changed nothing.
        duplicate: bool,
        ways: Vec<TargetResult>,
    },
    /// The message waits for approval, or was rejected, withdrawn or replaced before.
    Held {
        msg_id: ObjId,
        /// An earlier call posted the message; this call changed nothing.
        duplicate: bool,
        ways: Vec<TargetResult>,
        approval: Box<Approval>,
    },
    /// The author is blocked; nothing was stored.
    BlockedAuthor { msg_id: ObjId },
    /// The message goes through its chain first, as this letter.
    Chained { msg_id: ObjId, letter: LetterId, duplicate: bool },
}

/// How one target gets a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetResult {
    pub target: Did,
    /// The delivery, or the record in the box of a local target. `None` when a local target
    /// has blocked the author.
    pub record_id: Option<RecordId>,
    /// `None` for a local target.
    pub plan: Option<DeliveryPlan>,
}

impl TargetResult {
    /// The result of a local target.
    pub(crate) const fn local(target: Did, record_id: Option<RecordId>) -> Self {
        Self { target, record_id, plan: None }
    }
}

/// The retry policy of deliveries, with the jitter of one call.
#[derive(Clone, Copy, Debug)]
pub struct JitteredRetry {
    pub retry: RetryPolicy,
    pub jitter: Jitter,
}

/// Queues messages for tunnels and leases them to senders.
#[async_trait]
pub trait DeliveryStore: Send + Sync {
    /// Puts a message into the OUTBOX of its author and queues it for every target.
    ///
    /// # Errors
    ///
    /// `StoreError::UnresolvableTargets` names every target that cannot be reached,
    /// `StoreError::Refused` the approval rule; then nothing is written.
    async fn send(&self, request: SendRequest, now: Timestamp) -> StoreResult<SendResult>;

    /// Resolves the targets of a message as [`Self::send`] would, and stores nothing.
    ///
    /// # Errors
    ///
    /// `StoreError::UnresolvableTargets` names every target that cannot be reached.
    async fn plan_send(&self, msg: MsgObject) -> StoreResult<Vec<TargetResult>>;

    /// Leases the delivery of a tunnel that has been due the longest, or returns `None` when
    /// none is due.
    ///
    /// Deliveries to one address are leased one at a time, in the order in which they became due.
    /// One that has been attempted is the first of its address until it is SENT, DEAD, UNCERTAIN,
    /// HELD, ARCHIVED or DELETED, or an operator sets it to WAIT.
    ///
    /// Returns `None` while a halt stops the tunnel. Due deliveries of a halted agent become HELD.
    ///
    /// A delivery has at most one holder until its lease expires. A delivery whose object is
    /// damaged becomes DEAD, and the next delivery is leased instead.
    async fn lease_delivery(
        &self,
        tunnel: &Did,
        holder: Holder,
        term: LeaseDuration,
        now: Timestamp,
    ) -> StoreResult<Option<LeasedEntry<Delivery>>>;

    /// Returns when the next delivery of a tunnel is due, if one waits.
    async fn next_due(&self, tunnel: &Did) -> StoreResult<Option<Timestamp>>;

    /// Returns one delivery by id.
    async fn delivery(&self, id: RecordId) -> StoreResult<Delivery>;

    /// Changes the state of a delivery on behalf of an operator.
    async fn mark_delivery(
        &self,
        id: RecordId,
        to: SendState,
        proof: LeaseProof,
        revision: Option<i64>,
        now: Timestamp,
    ) -> StoreResult<Delivery>;

    /// Stores the outcome of an attempt and schedules the next one if needed.
    async fn report_delivery(
        &self,
        id: RecordId,
        outcome: DeliveryOutcome,
        proof: LeaseProof,
        retry: JitteredRetry,
        now: Timestamp,
    ) -> StoreResult<Delivery>;

    /// Stores the receipt of one part of a message, and renews the lease. Storing it again
    /// changes nothing.
    ///
    /// # Errors
    ///
    /// `StoreError::UnexpectedPart` when it is not the part after the last one.
    async fn record_part(
        &self,
        id: RecordId,
        part: SentPart,
        proof: LeaseProof,
        term: LeaseDuration,
        now: Timestamp,
    ) -> StoreResult<Delivery>;

    /// Gives a lease back before anything was sent, because a rate limit allows the attempt at
    /// `until`. The delivery stays the first of its address.
    async fn postpone_delivery(
        &self,
        id: RecordId,
        until: Timestamp,
        proof: LeaseProof,
        now: Timestamp,
    ) -> StoreResult<Delivery>;

    /// Stores the provider's report that it accepted a message and could not deliver it: SENT
    /// and UNCERTAIN become DEAD. Changes nothing in any other state.
    async fn bounce_delivery(
        &self,
        id: RecordId,
        why: Failure,
        now: Timestamp,
    ) -> StoreResult<Delivery>;

    /// Lists the deliveries of a tunnel in the order of creation. No `states` means all
    /// states.
    async fn deliveries(
        &self,
        tunnel: &Did,
        states: &[SendState],
        page: PageRequest,
    ) -> StoreResult<Page<Delivery>>;
}
