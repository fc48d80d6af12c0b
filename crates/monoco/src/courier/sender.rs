//! Sends the deliveries of one tunnel: leases one, makes one attempt, reports the outcome.

use std::sync::Arc;
use std::time::Duration;

use monoco_adapters::DeliveryRequest;
use monoco_core::delivery::{Delivery, DeliveryOutcome, SendState};
use monoco_core::did::{Endpoint, EndpointKind};
use monoco_core::inbound::InboundAttachment;
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::object::MsgObject;
use monoco_core::outgoing::OutgoingMessage;
use monoco_core::record::BoxKind;
use monoco_core::retry::Failure;
use monoco_store::{BoxHint, LeasedEntry, SharedStore, StoreError};
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use super::tunnels::RunningTunnel;
use crate::background::{self, BackgroundTask, NextStep};
use crate::center::lease::{delivery_retry, lease_next_delivery};
use crate::clock::Clock;
use crate::config::Config;

/// How often the sender looks for due deliveries without a hint.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Shortest wait for a delivery that is due: another sender of the tunnel may be leasing it.
const MIN_WAIT: Duration = Duration::from_millis(10);

/// How much longer a lease is than an attempt, so that the sender reports in time: it reads the
/// attachments before the attempt, and writes the outcome after it.
const LEASE_MARGIN: Duration = Duration::from_secs(15);

/// Limit of the attachments of one message together, in bytes.
const MAX_ATTACHMENT_BYTES: usize = 32 << 20;

/// One of the senders of a tunnel.
pub struct DeliverySender {
    store: SharedStore,
    clock: Clock,
    tunnel: Arc<RunningTunnel>,
    holder: Holder,
    hints: broadcast::Receiver<BoxHint>,
    config: watch::Receiver<Arc<Config>>,
}

impl BackgroundTask for DeliverySender {
    const NAME: &'static str = "delivery sender";
    const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);
    type Error = StoreError;

    async fn step(&mut self) -> Result<NextStep, StoreError> {
        if self.deliver_one().await? {
            return Ok(NextStep::Now);
        }
        let due = self.store.next_due(&self.tunnel.adapter.id().did()).await?;
        let wait = due.map_or(POLL_INTERVAL, |due| due.since(self.clock.now()));
        Ok(NextStep::Poll(wait.clamp(MIN_WAIT, POLL_INTERVAL)))
    }

    /// Waits for a hint that the tunnel has a delivery.
    async fn hint(&mut self) {
        let tunnel = self.tunnel.adapter.id().did();
        loop {
            match self.hints.recv().await {
                Ok(BoxHint { owner, box_kind }) => {
                    if box_kind == BoxKind::TunnelOutbox && owner == tunnel {
                        return;
                    }
                }
                // One of the lost hints may have been for this tunnel.
                Err(broadcast::error::RecvError::Lagged(_)) => return,
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
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
        let hints = store.hints();
        Self { store, clock, tunnel, holder, hints, config }
    }

    /// Sends deliveries until `stop`. An attempt that has begun is finished and reported.
    pub async fn run(mut self, stop: CancellationToken) {
        background::run(&mut self, &stop).await;
    }

    /// Leases one delivery, attempts it and reports the outcome. Returns `false` when no
    /// delivery is due.
    async fn deliver_one(&self) -> Result<bool, StoreError> {
        let tunnel = self.tunnel.adapter.id().did();
        let length = LeaseDuration::covering(self.tunnel.adapter.attempt_timeout() + LEASE_MARGIN);
        let holder = self.holder.clone();
        let leased = lease_next_delivery(&self.store, self.clock, &tunnel, holder, length).await?;
        let Some(LeasedEntry { entry: delivery, message }) = leased else { return Ok(false) };
        let outcome = self.attempt(&delivery, &message).await?;
        let now = self.clock.now();
        self.tunnel.update_health(|health| match &outcome {
            DeliveryOutcome::Accepted { .. } => health.record_sent(now),
            DeliveryOutcome::Failed(failure) => health.record_send_error(failure.detail(), now),
        });
        self.report(&delivery, outcome).await?;
        Ok(true)
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
        if delivery.plan.kind == EndpointKind::Addr && message.has_unresolved_targets() {
            self.resolve_targets(object, &mut message).await?;
        }
        let attachments = match self.read_attachments(&message).await? {
            Ok(attachments) => attachments,
            Err(detail) => return permanent(detail),
        };
        let request = DeliveryRequest {
            address: &delivery.plan.address,
            kind: delivery.plan.kind,
            message: &message,
            attachments: &attachments,
            key: delivery.id,
            now: self.clock.wall(),
        };
        let adapter = &self.tunnel.adapter;
        let timeout = adapter.attempt_timeout();
        let outcome = tokio::time::timeout(timeout, adapter.deliver(&request)).await;
        Ok(outcome.unwrap_or_else(|_| {
            let detail = format!("no answer within {} s", timeout.as_secs());
            DeliveryOutcome::Failed(Failure::Unknown { detail, error_code: None })
        }))
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

    /// Reports the outcome of an attempt. A report after the end of the lease is dropped:
    /// the sweeper or another sender has changed the delivery since.
    async fn report(
        &self,
        delivery: &Delivery,
        outcome: DeliveryOutcome,
    ) -> Result<(), StoreError> {
        let (id, now) = (delivery.id, self.clock.now());
        let epoch = Some(delivery.sending.epoch);
        let proof = LeaseProof { epoch, holder: self.holder.clone() };
        let retry = delivery_retry(self.config.borrow().deliveries);
        match self.store.report_delivery(id, outcome, proof, retry, now).await {
            Ok(reported) => {
                let state = reported.sending.state.name();
                if matches!(state, SendState::Dead | SendState::Uncertain) {
                    tracing::warn!(delivery = %id, state = state.as_str(), "not delivered");
                }
                Ok(())
            }
            Err(StoreError::LeaseLost(_) | StoreError::InvalidTransition(_)) => {
                tracing::warn!(delivery = %id, "outcome dropped: the lease had expired");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the attachments of a message, or returns why they cannot be sent.
    async fn read_attachments(
        &self,
        message: &OutgoingMessage,
    ) -> Result<Result<Vec<InboundAttachment>, String>, StoreError> {
        let mut attachments = Vec::new();
        let mut room = MAX_ATTACHMENT_BYTES;
        for attachment in &message.attachments {
            let hash = attachment.hash;
            let bytes = match self.store.object(hash).await {
                Ok(bytes) => bytes,
                Err(StoreError::Missing { .. } | StoreError::Damaged { .. }) => {
                    return Ok(Err(format!("attachment {hash} is no longer stored")));
                }
                Err(error) => return Err(error),
            };
            let Some(left) = room.checked_sub(bytes.len()) else {
                let detail = format!("the attachments exceed {MAX_ATTACHMENT_BYTES} bytes");
                return Ok(Err(detail));
            };
            room = left;
            let (name, mime_type) = (attachment.name.clone(), attachment.mime_type.clone());
            attachments.push(InboundAttachment { name, mime_type, bytes });
        }
        Ok(Ok(attachments))
    }
}
