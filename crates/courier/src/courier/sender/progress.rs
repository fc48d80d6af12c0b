//! Stores the receipts of parts while a message is sent, and bounds the time of each part.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use monoco_adapters::DeliveryProgress;
use monoco_core::delivery::{Delivery, DeliveryOutcome, SentPart, ThrottleScope};
use monoco_core::retry::Failure;
use tokio::time::Instant;

use super::{DeliverySender, MAX_SLOT_WAIT};

/// Why an attempt ends between two parts.
const NEXT_PART_WAITS: &str = "the next part waits for the rate limit of the provider";

/// The receipts of one attempt.
pub struct PartReceipts<'a> {
    sender: &'a DeliverySender,
    delivery: &'a Delivery,
    /// How long the attempt may take, or the next part of it.
    timeout: Duration,
    state: Mutex<AttemptState>,
}

struct AttemptState {
    deadline: Instant,
    /// Whether the slot of the part that is being sent is reserved.
    has_slot: bool,
    /// How long the next part has to wait, when the attempt ends because of that.
    next_slot: Option<Duration>,
}

impl<'a> PartReceipts<'a> {
    /// The first part has a slot.
    pub fn new(sender: &'a DeliverySender, delivery: &'a Delivery) -> Self {
        let timeout = sender.tunnel.adapter.attempt_timeout();
        let state =
            AttemptState { deadline: Instant::now() + timeout, has_slot: true, next_slot: None };
        Self { sender, delivery, timeout, state: Mutex::new(state) }
    }

    /// Runs an attempt. When it takes too long, its outcome is unknown.
    pub async fn run(&self, attempt: impl Future<Output = DeliveryOutcome>) -> DeliveryOutcome {
        self.extend();
        let mut attempt = std::pin::pin!(attempt);
        loop {
            let deadline = self.state().deadline;
            if let Ok(outcome) = tokio::time::timeout_at(deadline, &mut attempt).await {
                return outcome;
            }
            // A part that was sent meanwhile has moved the deadline.
            if self.state().deadline <= Instant::now() {
                let detail = format!("no answer within {} s", self.timeout.as_secs());
                return DeliveryOutcome::Failed(Failure::Unknown { detail, error_code: None });
            }
        }
    }

    /// Stores the receipt of a part. Returns after the commit.
    ///
    /// # Errors
    ///
    /// Without a receipt the part could be sent twice, so the outcome is unknown.
    pub async fn store(&self, part: SentPart) -> Result<(), Failure> {
        let (sender, number) = (self.sender, part.part);
        let (proof, term) = (sender.proof(self.delivery), sender.lease_duration());
        let now = sender.clock.now();
        let stored = sender.store.record_part(self.delivery.id, part, proof, term, now).await;
        stored.map(|_| ()).map_err(|error| {
            let detail = format!("part {number} was sent, but its receipt was not stored: {error}");
            Failure::Unknown { detail, error_code: None }
        })
    }

    /// Waits until the limits of the tunnel allow another part. The slot is reserved when the part
    /// is reported, so that a message does not use a slot for a part that it does not have.
    async fn wait_for_slot(&self) -> Result<(), Failure> {
        let (tunnel, plan) = (&self.sender.tunnel, &self.delivery.plan);
        let limits = tunnel.adapter.send_limits(plan.kind);
        let now = self.sender.clock.now();
        let had_slot = std::mem::replace(&mut self.state().has_slot, false);
        let slot = {
            let mut pacer = tunnel.pacer();
            if !had_slot {
                pacer.reserve(plan.kind, &plan.address, &limits, now);
            }
            let slot = pacer.target_slot(plan.kind, &plan.address, &limits, now);
            slot.max(pacer.tunnel_slot(&limits, now)).max(pacer.paused_until(now).unwrap_or(now))
        };
        let wait = slot.since(now);
        if wait > MAX_SLOT_WAIT {
            self.state().next_slot = Some(wait);
            let detail = NEXT_PART_WAITS.to_owned();
            let retry_after_ms = u64::try_from(wait.as_millis()).ok();
            return Err(Failure::Temporary { detail, retry_after_ms, error_code: None });
        }
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// Returns the outcome of an attempt that ended because the next part has to wait for a rate
    /// limit. It is no failure of the message, and does not count as an attempt.
    pub fn throttled_outcome(&self) -> Option<DeliveryOutcome> {
        let retry_after = self.state().next_slot?;
        Some(DeliveryOutcome::Throttled {
            detail: NEXT_PART_WAITS.to_owned(),
            error_code: None,
            retry_after: Some(retry_after),
            scope: ThrottleScope::Target,
        })
    }

    fn extend(&self) {
        self.state().deadline = Instant::now() + self.timeout;
    }

    // Nothing panics while it holds the lock.
    fn state(&self) -> std::sync::MutexGuard<'_, AttemptState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl DeliveryProgress for PartReceipts<'_> {
    async fn part_sent(&self, part: SentPart) -> Result<(), Failure> {
        self.store(part).await?;
        // The pause does not count as time of the next part.
        self.state().deadline = Instant::now() + self.timeout + MAX_SLOT_WAIT;
        self.wait_for_slot().await?;
        self.extend();
        Ok(())
    }
}
