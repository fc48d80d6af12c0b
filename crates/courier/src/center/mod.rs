//! Operations that combine several store calls, for the HTTP API and the courier's loops.
//!
//! * [`mod@dispatch`]: puts received messages into boxes, or into the inbound chain.
//! * [`send`]: queues a message for its targets, or puts it into the outbound chain.
//! * [`reply`]: answers a Mail in its thread.
//! * [`approvals`]: edits held messages, replays decisions of the approval policy.
//! * [`boxes`]: lists and changes records and deliveries alike.
//! * [`lease`]: leases the next entry of a box.
//! * [`erasure`]: finds the DIDs of one person.
//! * [`mod@contact_lookup`]: finds the DIDs that a person can mean by a name or an address.
//! * [`trace`]: resolves any id to the history of one message.
//!
//! A caller that needs a single store call uses the store itself.

use std::sync::Arc;
use std::time::Duration;

use monoco_core::did::Did;
use monoco_core::time::Timestamp;
use monoco_store::{
    AcceptResult, LetterSource, PipelineRouting, SharedStore, StoreError, StoreResult,
};
use tokio::sync::watch;

use crate::pipeline::queue::QueueNotifier;

pub mod approvals;
pub mod boxes;
mod contact_lookup;
mod dispatch;
pub mod erasure;
pub mod lease;
pub mod reply;
mod send;
pub mod trace;

pub use contact_lookup::find_contacts;
pub use dispatch::dispatch;
pub use send::post_send;

/// Which messages pass a chain under the current config, and how the dispatcher learns of
/// their letters.
#[derive(Clone)]
pub struct PipelineEntry {
    pub inbound: watch::Receiver<Arc<PipelineRouting>>,
    pub outbound: watch::Receiver<Arc<PipelineRouting>>,
    pub notifier: QueueNotifier,
}

impl PipelineEntry {
    pub fn inbound(&self) -> Arc<PipelineRouting> {
        Arc::clone(&self.inbound.borrow())
    }

    pub fn outbound(&self) -> Arc<PipelineRouting> {
        Arc::clone(&self.outbound.borrow())
    }

    /// Stores letters in one commit and notifies the dispatcher of the new ones.
    pub async fn submit(
        &self,
        store: &SharedStore,
        batch: Vec<LetterSource>,
        now: Timestamp,
    ) -> Vec<StoreResult<AcceptResult>> {
        let results = store.accept(batch, self.outbound(), now).await;
        for result in results.iter().flatten() {
            if let AcceptResult::Letter { id, duplicate: false, .. } = result {
                self.notifier.notify(*id, Duration::ZERO);
            }
        }
        results
    }
}

#[cfg(test)]
impl Default for PipelineEntry {
    fn default() -> Self {
        let none = || watch::channel(Arc::new(PipelineRouting::default())).1;
        Self { inbound: none(), outbound: none(), notifier: QueueNotifier::default() }
    }
}

/// A caller named a state that entries of the box do not have.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{found:?} is not a state of {of}; use one of {}", .known.join(", "))]
pub struct UnknownState {
    pub found: String,
    /// `a record` or `a delivery`
    pub of: &'static str,
    pub known: Vec<&'static str>,
}

/// Why an operation of the center was rejected.
#[derive(Debug, thiserror::Error)]
pub enum CenterError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    UnknownState(#[from] UnknownState),
    /// Entries in the first state cannot be leased; those in the second can.
    #[error("entries in state {0} cannot be leased; ask for {1}")]
    NotLeasable(&'static str, &'static str),
    #[error(
        "{0} has no boxes: it is not a contact, group or tunnel and has received no message; \
         check the DID or add it as a contact"
    )]
    UnknownOwner(Did),
    #[error("entries of an OUTBOX cannot be leased: it only records what was sent; list it")]
    OutboxNotLeasable,
    #[error("deliveries have neither tags nor threads; filter a TUNNEL_OUTBOX by state")]
    DeliveriesHaveNoTags,
    #[error(
        "no message found for id {0}; use the id of a message, Mail, letter, record or \
         delivery, or an id given by a provider"
    )]
    UnknownId(String),
}

/// Rejects an owner that is not known: more likely a typing error than an empty box.
///
/// # Errors
///
/// [`CenterError::UnknownOwner`], or the store's error.
pub async fn check_owner(store: &SharedStore, owner: &Did) -> Result<(), CenterError> {
    match store.owner_exists(owner).await? {
        true => Ok(()),
        false => Err(CenterError::UnknownOwner(owner.clone())),
    }
}

/// The store returned fewer results than it was given requests.
fn missing_result() -> StoreError {
    StoreError::Unavailable("the store returned no result for a request".to_owned())
}
