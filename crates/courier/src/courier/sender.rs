//! Sends the deliveries of one tunnel: leases one, makes one attempt, reports the outcome.
//!
//! The store leases one delivery at a time per address. The senders of a tunnel share a
//! [`SendPacer`](monoco_core::rate_limit::SendPacer), which keeps the limits of the provider: a
//! delivery whose address has no free slot is given back, and a tunnel without one is not asked
//! for deliveries.

use std::sync::Arc;
use std::time::Duration;

use monoco_adapters::DeliveryRequest;
use monoco_core::delivery::{Delivery, DeliveryOutcome, SendState, SentPart, ThrottleScope};
use monoco_core::did::{Endpoint, EndpointKind};
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::object::MsgObject;
use monoco_core::outgoing::OutgoingMessage;
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use monoco_store::{LeasedEntry, SharedStore, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::tunnels::RunningTunnel;
use crate::background::{self, BackgroundTask, NextStep};
use crate::center::lease::{delivery_retry, lease_next_delivery};
use crate::center::report::until_answered;
use crate::clock::{self, Clock};
use crate::config::Config;

mod files;
mod progress;

use files::StoredAttachments;
pub use files::open_attachment;
use progress::PartReceipts;

/// How often the sender looks for due deliveries without a hint.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Shortest wait for a delivery that is due: another sender of the tunnel may be leasing it.
const MIN_WAIT: Duration = Duration::from_millis(10);

/// How much longer a lease is than an attempt, so that the sender reports in time: it reads the
/// attachments before the attempt, and writes the outcome after it.
const LEASE_MARGIN: Duration = Duration::from_secs(15);

/// Longest wait for a slot of the tunnel with a lease. A delivery with a later slot is given back.
const MAX_SLOT_WAIT: Duration = Duration::from_secs(5);

/// How long the adapter may look for a message whose outcome is unknown.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);

/// One of the senders of a tunnel.
pub struct DeliverySender {
    store: SharedStore,
    clock: Clock,
    tunnel: Arc<RunningTunnel>,
    holder: Holder,
    config: watch::Receiver<Arc<Config>>,
}

impl BackgroundTask for DeliverySender {
    const NAME: &'static str = "delivery sender";
    const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);
    type Error = StoreError;

    async fn step(&mut self) -> Result<NextStep, StoreError> {
        if let Some(until) = self.next_slot() {
            return Ok(NextStep::Poll(self.wait_until(until)));
        }
        if self.deliver_one().await? {
            return Ok(NextStep::Now);
        }
        let due = self.store.next_due(&self.tunnel.adapter.id().did()).await?;
        Ok(NextStep::Poll(due.map_or(POLL_INTERVAL, |due| self.wait_until(due))))
    }

    /// Waits for a hint that the tunnel has a delivery.
    async fn hint(&mut self) {
        self.tunnel.wait_for_delivery().await;
    }
}

impl DeliverySender {
    pub fn new(
        store: SharedStore,
        clock: Clock,
        tunnel: Arc<RunningTunnel>,
        holder: Holder,
        config: watch::Receiver<Arc<Config>>,
    ) -> Self {
        Self { store, clock, tunnel, holder, config }
    }

    /// Sends deliveries until `stop`. An attempt that has begun is finished and reported.
    pub async fn run(mut self, stop: CancellationToken) {
        background::run(&mut self, &stop).await;
    }

    /// Returns when the tunnel can send again, while it is paused or all of its slots are used.
    fn next_slot(&self) -> Option<Timestamp> {
        let now = self.clock.now();
        let pacer = self.tunnel.pacer();
        if let Some(until) = pacer.paused_until(now) {
            return Some(until);
        }
        let slot = |kind| pacer.tunnel_slot(&self.tunnel.adapter.send_limits(kind), now);
        let slot = EndpointKind::ALL.into_iter().map(slot).min()?;
        (slot > now).then_some(slot)
    }

    fn wait_until(&self, until: Timestamp) -> Duration {
        until.since(self.clock.now()).clamp(MIN_WAIT, POLL_INTERVAL)
    }

    /// Leases one delivery, attempts it and reports the outcome. Returns `false` when no
    /// delivery is due.
    async fn deliver_one(&self) -> Result<bool, StoreError> {
        let tunnel = self.tunnel.adapter.id().did();
        let (holder, term) = (self.holder.clone(), self.lease_duration());
        let leased = lease_next_delivery(&self.store, self.clock, &tunnel, holder, term).await?;
        let Some(LeasedEntry { entry: delivery, message }) = leased else { return Ok(false) };
        // There may be more to send, to other addresses.
        self.tunnel.hint_delivery();
        if !self.wait_for_slot(&delivery).await? {
            return Ok(true);
        }
        let outcome = self.attempt(&delivery, &message).await?;
        self.record_outcome(&outcome);
        self.report_until_stored(&delivery, outcome).await?;
        Ok(true)
    }

    fn lease_duration(&self) -> LeaseDuration {
        let attempt = self.tunnel.adapter.attempt_timeout() + LOOKUP_TIMEOUT + MAX_SLOT_WAIT;
        LeaseDuration::covering(attempt + LEASE_MARGIN)
    }

    fn proof(&self, delivery: &Delivery) -> LeaseProof {
        LeaseProof { epoch: Some(delivery.sending.epoch), holder: self.holder.clone() }
    }

    /// Reserves a slot for a delivery and waits for it. Returns `false` when the delivery was
    /// given back until its address has one.
    async fn wait_for_slot(&self, delivery: &Delivery) -> Result<bool, StoreError> {
        let (kind, address) = (delivery.plan.kind, delivery.plan.address.as_str());
        let limits = self.tunnel.adapter.send_limits(kind);
        let now = self.clock.now();
        let slot = {
            let mut pacer = self.tunnel.pacer();
            let of_target = pacer.target_slot(kind, address, &limits, now);
            let slot = of_target.max(pacer.tunnel_slot(&limits, now));
            let slot = slot.max(pacer.paused_until(now).unwrap_or(now));
            if of_target > now || slot.since(now) > MAX_SLOT_WAIT {
                Err(slot)
            } else {
                Ok(slot.max(pacer.reserve(kind, address, &limits, now)))
            }
        };
        match slot {
            Ok(slot) => {
                tokio::time::sleep(slot.since(now)).await;
                Ok(true)
            }
            Err(until) => {
                let proof = self.proof(delivery);
                let postponed = self.store.postpone_delivery(delivery.id, until, proof, now).await;
                self.ignore_lost_lease(delivery, postponed.map(|_| ())).map(|()| false)
            }
        }
    }

    /// Records an outcome in the health of the tunnel, and pauses a tunnel at its rate limit.
    fn record_outcome(&self, outcome: &DeliveryOutcome) {
        let now = self.clock.now();
        self.tunnel.update_health(|health| match outcome {
            DeliveryOutcome::Accepted { .. } => health.record_sent(now),
            DeliveryOutcome::Failed(failure) => health.record_send_error(failure.detail(), now),
            DeliveryOutcome::Throttled { detail, .. } => health.record_send_error(detail, now),
        });
        match outcome {
            DeliveryOutcome::Accepted { .. } => self.tunnel.pacer().accepted(),
            DeliveryOutcome::Throttled { retry_after, scope: ThrottleScope::Tunnel, .. } => {
                self.tunnel.pacer().pause(*retry_after, now, clock::jitter());
                let tunnel = self.tunnel.adapter.id();
                tracing::warn!(%tunnel, "tunnel paused: the provider's rate limit is reached");
            }
            _ => {}
        }
    }

    /// Makes one attempt and returns its outcome. Errors of the store are not outcomes.
    async fn attempt(
        &self,
        delivery: &Delivery,
        message: &MsgObject,
    ) -> Result<DeliveryOutcome, StoreError> {
        let permanent =
            |detail| Ok(DeliveryOutcome::Failed(Failure::Permanent { detail, error_code: None }));
        let object = message;
        let mut message = match OutgoingMessage::parse(object.canonical()) {
            Ok(message) => message,
            Err(error) => return permanent(format!("not a message: {error}")),
        };
        // All deliveries of a message are created together, so that copies and later attempts
        // have the same date.
        message.created_at.get_or_insert(delivery.created_at);
        if delivery.plan.kind == EndpointKind::Addr && message.has_unresolved_targets() {
            self.resolve_targets(object, &mut message).await?;
        }
        let progress = PartReceipts::new(self, delivery);
        let mut request = DeliveryRequest {
            address: &delivery.plan.address,
            kind: delivery.plan.kind,
            message: &message,
            files: &StoredAttachments(&self.store),
            sent_parts: &delivery.parts,
            progress: &progress,
            key: delivery.id,
            first_attempt_ago: delivery
                .sending
                .first_try
                .map_or(Duration::ZERO, |first| self.clock.now().since(first)),
            now: self.clock.wall(),
        };
        let mut sent_parts = delivery.parts.clone();
        if delivery.sending.outcome_unknown {
            match self.find_sent(&request, &progress).await {
                Ok(found) => sent_parts.push(found),
                Err(failure) => return Ok(DeliveryOutcome::Failed(failure)),
            }
        }
        request.sent_parts = &sent_parts;
        let outcome = progress.run(self.tunnel.adapter.deliver(&request)).await;
        Ok(progress.throttled_outcome().unwrap_or(outcome))
    }

    /// Looks for the part whose outcome is unknown, and stores its receipt when it is found.
    ///
    /// # Errors
    ///
    /// The outcome of the attempt: unknown when the part was not found.
    async fn find_sent(
        &self,
        request: &DeliveryRequest<'_>,
        progress: &PartReceipts<'_>,
    ) -> Result<SentPart, Failure> {
        let lookup = self.tunnel.adapter.find_sent(request);
        let found = tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await.unwrap_or_else(|_| {
            let detail =
                format!("the provider did not answer within {} s", LOOKUP_TIMEOUT.as_secs());
            Err(Failure::Temporary { detail, retry_after_ms: None, error_code: None })
        })?;
        let Some(found) = found else {
            let detail = "the outcome is unknown, and the provider does not show the message";
            return Err(Failure::Unknown { detail: detail.to_owned(), error_code: None });
        };
        progress.store(found.clone()).await?;
        Ok(found)
    }

    /// Replaces contacts among the visible targets by their addresses, so that all copies of a
    /// mail name the same recipients. A target that can no longer be reached stays as it is.
    async fn resolve_targets(
        &self,
        object: &MsgObject,
        message: &mut OutgoingMessage,
    ) -> Result<(), StoreError> {
        let targets = match self.store.plan_send(object.clone()).await {
            Ok(targets) => targets,
            Err(StoreError::UnresolvableTargets(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        for plan in targets.into_iter().filter_map(|target| target.plan) {
            let (account, kind, tunnel) = (plan.address, plan.kind, plan.tunnel_did.tunnel());
            let endpoint = tunnel.map(|tunnel| Endpoint { account, kind, tunnel }.did());
            if let Some(Ok(endpoint)) = endpoint {
                message.resolve_target(&plan.target_did, &endpoint);
            }
        }
        Ok(())
    }

    /// Reports the outcome of an attempt until the store has answered: only this sender knows it,
    /// and no other delivery to the address is attempted before.
    async fn report_until_stored(
        &self,
        delivery: &Delivery,
        outcome: DeliveryOutcome,
    ) -> Result<(), StoreError> {
        let stop = &self.tunnel.stop;
        until_answered("outcome of a delivery", stop, || self.report(delivery, outcome.clone()))
            .await
    }

    /// Reports the outcome of an attempt. A report after the end of the lease is dropped:
    /// the sweeper or another sender has changed the delivery since.
    async fn report(
        &self,
        delivery: &Delivery,
        outcome: DeliveryOutcome,
    ) -> Result<(), StoreError> {
        let (id, now) = (delivery.id, self.clock.now());
        let retry = delivery_retry(self.config.borrow().deliveries);
        let proof = self.proof(delivery);
        let reported = self.store.report_delivery(id, outcome, proof, retry, now).await;
        let reported = reported.map(|reported| {
            let state = reported.sending.state.name();
            if matches!(state, SendState::Dead | SendState::Uncertain) {
                tracing::warn!(delivery = %id, state = state.as_str(), "message not delivered");
            }
        });
        self.ignore_lost_lease(delivery, reported)
    }

    fn ignore_lost_lease(
        &self,
        delivery: &Delivery,
        result: Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        match result {
            Err(StoreError::LeaseLost(_) | StoreError::InvalidTransition(_)) => {
                tracing::warn!(delivery = %delivery.id, "outcome dropped: the lease had expired");
                Ok(())
            }
            result => result,
        }
    }
}
