//! Erasure: removes what one person wrote, and keeps the ids that refer to it.
//!
//! An erasure is several commits, each of which can be repeated. Its DIDs are stored until it is
//! complete, so that it can be continued after a crash.

use std::collections::BTreeSet;

use async_trait::async_trait;
use monoco_core::did::Did;
use monoco_core::erasure::ErasedAuthors;
use monoco_core::object::ObjId;
use monoco_core::time::Timestamp;

use crate::StoreError;

/// Whose text is erased, and what is not.
#[derive(Clone, Debug, Default)]
pub struct ErasureRequest {
    pub authors: ErasedAuthors,
    /// Attachments that are in use outside of the store.
    pub attachments_in_use: BTreeSet<ObjId>,
    /// The contact of this DID is not removed: it is the owner of the courier.
    pub owner: Option<Did>,
}

/// What an erasure changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErasureCounts {
    /// Messages, Mails and receipts that become tombstones.
    pub objects: usize,
    /// Mails of several authors that are rewritten.
    pub mails: usize,
    /// Inbound messages that are not merged into a Mail yet.
    pub inbound_messages: usize,
    pub letters: usize,
    /// Attachments that no other text refers to.
    pub attachments: usize,
    pub contacts: usize,
    pub bindings: usize,
    /// Provider message ids that stay as keys, so that a repeated message is a duplicate.
    pub external_ids: usize,
    /// Mail files that are removed or replaced.
    pub files: usize,
}

/// Erases what one person wrote.
#[async_trait]
pub trait ErasureStore: Send + Sync {
    /// Counts what [`ErasureStore::erase`] would change.
    ///
    /// # Errors
    ///
    /// [`StoreError::Missing`] when the store has seen none of the DIDs.
    async fn count_erasure(&self, request: &ErasureRequest) -> Result<ErasureCounts, StoreError>;

    /// Erases texts, attachments, contact and bindings. The rewrite of the index of Mails
    /// becomes due. Other writes wait meanwhile. Can be repeated.
    async fn erase(
        &self,
        request: &ErasureRequest,
        now: Timestamp,
    ) -> Result<ErasureCounts, StoreError>;

    /// Returns the DIDs of an erasure that is not complete.
    async fn open_erasure(&self) -> Result<ErasedAuthors, StoreError>;

    /// Returns the attachments that were deleted, whose copies must be removed before
    /// [`ErasureStore::finish_erasure`].
    async fn erased_attachments(&self) -> Result<Vec<ObjId>, StoreError>;

    /// Overwrites the unused parts of the database and its log, which can still have erased
    /// text, and completes the erasure. Other writes wait meanwhile.
    async fn finish_erasure(&self) -> Result<(), StoreError>;
}
