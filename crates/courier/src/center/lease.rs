//! Leases the next entry of a box.

use monoco_core::delivery::{Delivery, DeliveryOutcome, SendState};
use monoco_core::did::Did;
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::record::{BoxKind, ReadState};
use monoco_core::retry::{Failure, RetryPolicy};
use monoco_store::{JitteredRetry, LeasedEntry, SharedStore, StoreResult};

use super::boxes::{BoxEntry, StateFilter};
use super::{CenterError, check_owner};
use crate::clock::{self, Clock};

/// Expired deliveries that one call marks as failed before it gives up.
const MAX_EXPIRED_PER_CALL: usize = 100;

/// A retry policy of deliveries, with new jitter.
pub fn delivery_retry(retry: RetryPolicy) -> JitteredRetry {
    JitteredRetry { retry, jitter: clock::jitter() }
}

/// Leases the next entry of a box. Returns `None` when nothing waits in it.
///
/// # Errors
///
/// When entries of this box or in these states cannot be leased, the owner is unknown, or the
/// store fails.
pub async fn lease_next(
    store: &SharedStore,
    clock: Clock,
    owner: &Did,
    box_kind: BoxKind,
    states: &[String],
    holder: Holder,
    duration: LeaseDuration,
) -> Result<Option<LeasedEntry<BoxEntry>>, CenterError> {
    if box_kind == BoxKind::Outbox {
        return Err(CenterError::OutboxNotLeasable);
    }
    let leased = match StateFilter::parse(box_kind, states)? {
        StateFilter::Read(states) => {
            if let Some(state) = states.iter().find(|state| **state != ReadState::Unread) {
                return Err(CenterError::NotLeasable(state.as_str(), "UNREAD"));
            }
            let leased = store.lease_record(owner, box_kind, holder, duration, clock.now()).await?;
            leased.map(|LeasedEntry { entry, message }| LeasedEntry {
                entry: BoxEntry::Record(entry),
                message,
            })
        }
        StateFilter::Send(states) => {
            let leasable = [SendState::Wait, SendState::Failed];
            if let Some(state) = states.iter().find(|state| !leasable.contains(state)) {
                return Err(CenterError::NotLeasable(state.as_str(), "WAIT"));
            }
            let leased = lease_next_delivery(store, clock, owner, holder, duration).await?;
            leased.map(|LeasedEntry { entry, message }| LeasedEntry {
                entry: BoxEntry::Delivery(entry),
                message,
            })
        }
    };
    if leased.is_none() {
        // Only now, so that a box with entries does not cost this query.
        check_owner(store, owner).await?;
    }
    Ok(leased)
}

/// Leases the next delivery of a tunnel. Deliveries whose message has expired fail
/// permanently and are skipped.
///
/// # Errors
///
/// When the store fails.
pub async fn lease_next_delivery(
    store: &SharedStore,
    clock: Clock,
    tunnel: &Did,
    holder: Holder,
    duration: LeaseDuration,
) -> StoreResult<Option<LeasedEntry<Delivery>>> {
    for _ in 0..MAX_EXPIRED_PER_CALL {
        let now = clock.now();
        let leased = store.lease_delivery(tunnel, holder.clone(), duration, now).await?;
        let Some(leased) = leased else { return Ok(None) };
        let Some(expired_at) = leased.message.expires_at.filter(|at| *at <= now) else {
            return Ok(Some(leased));
        };
        let detail = format!("message expired at {} before it was sent", expired_at.rfc3339());
        let proof = LeaseProof { epoch: Some(leased.entry.sending.epoch), holder: holder.clone() };
        let outcome = DeliveryOutcome::Failed(Failure::Permanent { detail, error_code: None });
        let id = leased.entry.id;
        // A permanent failure is not retried, whatever the policy.
        let retry = delivery_retry(RetryPolicy::DELIVERY);
        store.report_delivery(id, outcome, proof, retry, clock.now()).await?;
    }
    Ok(None)
}
