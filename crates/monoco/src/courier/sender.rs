//! Takes what a tunnel is to deliver, tries it once, and files what came of it.

use std::sync::Arc;
use std::time::Duration;

use monoco_adapters::DeliveryRequest;
use monoco_core::delivery::{DeliveryOutcome, SendState};
use monoco_core::inbound::InboundAttachment;
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::object::ObjId;
use monoco_core::record::BoxKind;
use monoco_core::retry::Failure;
use monoco_store::{BoxHint, LeasedEntry, SharedStore, StoreError};
use serde_json::Value;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::tunnels::RunningTunnel;
use crate::center::lease::{delivery_retry, lease_next_delivery};
use crate::clock::Clock;

/// How long a delivery that is due may go unnoticed when no hint comes.
const LOOK: Duration = Duration::from_secs(30);

/// How soon to look again after the store said no.
const PAUSE: Duration = Duration::from_secs(1);

/// How long one try may take. Shorter than the lease, so that we report before
/// anybody else may think that we are gone.
const TRY: Duration = Duration::from_secs(45);

/// Most bytes that go with one message.
const MAX_ATTACHED: usize = 32 << 20;

/// The type of what has none.
const BYTES: &str = "application/octet-stream";

/// The sender of one tunnel.
pub struct DeliverySender {
    pub store: SharedStore,
    pub clock: Clock,
    /// The tunnel.
    pub tunnel: Arc<RunningTunnel>,
    /// Who we are while we hold a delivery.
    pub holder: Holder,
}

impl DeliverySender {
    /// Delivers until `stop`. A try that is under way is finished and filed.
    pub async fn run(self, stop: CancellationToken) {
        let mut hints = self.store.hints();
        while !stop.is_cancelled() {
            let wait = match self.deliver_one().await {
                Ok(true) => continue,
                Ok(false) => self.until_due().await,
                Err(error) => {
                    tracing::warn!(tunnel = %self.tunnel.adapter.id(), %error, "sending put off");
                    PAUSE
                }
            };
            let look = tokio::time::timeout(wait, self.hinted(&mut hints));
            // Running out is as good a reason to look as a hint.
            let _ = stop.run_until_cancelled(look).await;
        }
    }

    /// How long until the next one is due.
    async fn until_due(&self) -> Duration {
        match self.store.next_due(&self.tunnel.adapter.id().did()).await {
            Ok(Some(due)) => {
                let wait = due.since(self.clock.now());
                // Not at once: whoever else takes it may be at it.
                wait.clamp(Duration::from_millis(10), LOOK)
            }
            Ok(None) => LOOK,
            Err(_) => PAUSE,
        }
    }

    /// Takes one delivery, tries it and files the outcome. Returns whether there
    /// was one to take.
    async fn deliver_one(&self) -> Result<bool, StoreError> {
        let tunnel = self.tunnel.adapter.id().did();
        let lease = LeaseDuration::from_secs(60).unwrap_or(LeaseDuration::DEFAULT);
        let taken =
            lease_next_delivery(&self.store, self.clock, &tunnel, self.holder.clone(), lease)
                .await?;
        let Some(LeasedEntry { entry, message }) = taken else { return Ok(false) };

        let plan = &entry.plan;
        let outcome = match self.attachments(message.canonical()).await? {
            Ok(attachments) => {
                let parcel = DeliveryRequest {
                    address: &plan.address,
                    kind: plan.kind,
                    body: message.canonical(),
                    attachments: &attachments,
                    key: entry.id,
                    now: self.clock.wall(),
                };
                let tried = tokio::time::timeout(TRY, self.tunnel.adapter.deliver(&parcel)).await;
                tried.unwrap_or_else(|_| {
                    let detail = format!("no answer within {} s", TRY.as_secs());
                    DeliveryOutcome::Failed(Failure::Unknown { detail })
                })
            }
            Err(detail) => DeliveryOutcome::Failed(Failure::Permanent { detail }),
        };
        let now = self.clock.now();
        self.tunnel.note(|pulse| match &outcome {
            DeliveryOutcome::Accepted { .. } => pulse.record_sent(now),
            DeliveryOutcome::Failed(why) => pulse.record_send_error(why.detail(), now),
        });

        let guard = LeaseProof { epoch: Some(entry.sending.epoch), holder: self.holder.clone() };
        let reported = self.store.report_delivery(entry.id, outcome, guard, delivery_retry(), now);
        match reported.await {
            Ok(settled) => {
                let state = settled.sending.state.name();
                if matches!(state, SendState::Dead | SendState::Uncertain) {
                    tracing::warn!(delivery = %entry.id, state = state.as_str(), "not delivered");
                }
                Ok(true)
            }
            // We took too long and somebody else has it now. Their word counts.
            Err(StoreError::LeaseLost(_) | StoreError::InvalidTransition(_)) => {
                tracing::warn!(delivery = %entry.id, "report came after the lease ended");
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// The bytes of what goes with a message, or why they can't be had.
    async fn attachments(
        &self,
        body: &str,
    ) -> Result<Result<Vec<InboundAttachment>, String>, StoreError> {
        let mut attachments = Vec::new();
        let mut room = MAX_ATTACHED;
        for (hash, name, mime_type) in attached(body) {
            let bytes = match self.store.object(hash).await {
                Ok(bytes) => bytes,
                Err(StoreError::Missing { .. } | StoreError::Damaged { .. }) => {
                    return Ok(Err(format!("the attachment {hash} is not there any more")));
                }
                Err(error) => return Err(error),
            };
            let Some(left) = room.checked_sub(bytes.len()) else {
                return Ok(Err(format!("the attachments are over {MAX_ATTACHED} bytes")));
            };
            room = left;
            attachments.push(InboundAttachment { name, mime_type, bytes });
        }
        Ok(Ok(attachments))
    }

    /// Returns when something may wait for this tunnel.
    async fn hinted(&self, hints: &mut broadcast::Receiver<BoxHint>) {
        let tunnel = self.tunnel.adapter.id().did();
        loop {
            match hints.recv().await {
                Ok(BoxHint { owner, box_kind }) => {
                    if box_kind == BoxKind::TunnelOutbox && owner == tunnel {
                        return;
                    }
                }
                // We missed some; one of them may have been ours.
                Err(broadcast::error::RecvError::Lagged(_)) => return,
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

/// What goes with a message: the hash, the name and the type of each.
fn attached(body: &str) -> Vec<(ObjId, String, String)> {
    let Ok(msg) = serde_json::from_str::<Value>(body) else { return Vec::new() };
    let refs = msg.pointer("/content/refs").and_then(Value::as_array);
    let attachments = refs.into_iter().flatten().filter(|entry| entry["role"] == "attachment");
    attachments
        .filter_map(|entry| {
            let target = &entry["target"];
            let text = |key: &str| target[key].as_str().map(str::to_owned);
            let mime_type = text("mime_type").unwrap_or_else(|| BYTES.to_owned());
            let name = text("name").or_else(|| entry["label"].as_str().map(str::to_owned));
            Some((text("hash")?.parse().ok()?, name.unwrap_or_default(), mime_type))
        })
        .collect()
}
