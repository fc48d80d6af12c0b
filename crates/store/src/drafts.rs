//! Drafts: messages that are sent from files in the outbound directory.

use async_trait::async_trait;
use monoco_core::courier::CourierId;
use monoco_core::delivery::Delivery;
use monoco_core::object::ObjId;
use monoco_core::time::Timestamp;

use crate::{PipelineRouting, SendRequest, SendResult, StoreResult};

/// A draft that was read from a file.
#[derive(Clone, Debug)]
pub struct DraftSendRequest {
    /// Its name in the outbound directory. A name is never used for a second draft.
    pub uid: String,
    /// The provider directory that contains the file.
    pub provider: String,
    /// The courier that has the file.
    pub courier: CourierId,
    pub post: SendRequest,
}

/// The final result of a draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftResult {
    pub uid: String,
    pub provider: String,
    /// The message that was created from the draft.
    pub msg_id: ObjId,
    /// Its deliveries, all in a final state.
    pub deliveries: Vec<Delivery>,
    /// Why the draft was never sent, when the pipeline trashed it or marked it dead.
    pub ended: Option<String>,
}

/// Sends drafts and reports their results.
#[async_trait]
pub trait DraftStore: Send + Sync {
    /// Sends a draft, through the pipeline if `routing` says so, and keeps it open until
    /// [`DraftStore::close_draft`].
    ///
    /// # Errors
    ///
    /// `StoreError::KeyReused` when the name was used for another message.
    async fn send_draft(
        &self,
        draft: DraftSendRequest,
        routing: &PipelineRouting,
        now: Timestamp,
    ) -> StoreResult<SendResult>;

    /// Lists open drafts of one courier whose deliveries are all final, or whose letter was
    /// trashed or is dead.
    async fn finished_drafts(
        &self,
        courier: CourierId,
        limit: usize,
    ) -> StoreResult<Vec<DraftResult>>;

    /// Returns whether a draft with this name was sent.
    async fn draft_exists(&self, uid: &str) -> StoreResult<bool>;

    /// Marks a draft as reported, so that it is not listed again.
    async fn close_draft(&self, uid: &str) -> StoreResult<()>;
}
