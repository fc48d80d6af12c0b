//! Immutable objects: messages, receipts and attachments, found by their hash.

use std::collections::HashMap;

use async_trait::async_trait;
use monoco_core::inbound::StoredBytes;
use monoco_core::object::ObjId;
use monoco_core::record::RecordId;
use monoco_core::short_id::ShortId;

use tokio::io::AsyncRead;

use crate::{BlobReader, StoreResult};

/// Reads and writes objects, and resolves other ids to objects.
#[async_trait]
pub trait ObjectStore: Send + Sync {
    /// Reads the canonical text of an object, or the bytes of an attachment, and verifies
    /// its hash.
    async fn object(&self, id: ObjId) -> StoreResult<Vec<u8>>;

    /// Reads the texts of several objects together, and verifies their hashes. Those of them that
    /// are large, missing, erased or damaged are left out: [`Self::object`] reads them, or says
    /// why not.
    async fn small_objects(&self, ids: Vec<ObjId>) -> StoreResult<HashMap<ObjId, Vec<u8>>>;

    /// Stores the bytes of an attachment. Returns after the sync to disk.
    async fn put_blob(&self, bytes: Vec<u8>) -> StoreResult<ObjId>;

    /// Stores the bytes of several attachments. Returns after the sync to disk, which is one sync
    /// for many attachments. After a failure, some of them may be stored.
    async fn put_blobs(&self, blobs: Vec<Vec<u8>>) -> StoreResult<()>;

    /// Stores the bytes of an attachment while they are read, at most `limit`. Returns after the
    /// sync to disk. A failure leaves nothing behind.
    ///
    /// # Errors
    ///
    /// `StoreError::TooLarge` beyond the limit; `StoreError::SourceFailed` when `bytes`
    /// cannot be read to its end.
    async fn put_blob_from(
        &self,
        bytes: &mut (dyn AsyncRead + Send + Unpin),
        limit: u64,
    ) -> StoreResult<StoredBytes>;

    /// Opens the bytes of an attachment for reading. The reader verifies their hash.
    async fn open_blob(&self, id: ObjId) -> StoreResult<BlobReader>;

    /// Returns the id of the message that a record or delivery refers to.
    async fn object_of_record(&self, id: RecordId) -> StoreResult<ObjId>;

    /// Returns the ids that a shortened id can mean, at most `limit`, in ascending order.
    async fn find_ids(&self, short: &ShortId, limit: usize) -> StoreResult<Vec<String>>;

    /// Returns the message with a provider's message id: one that was received or one that
    /// was sent. A received message that is not merged into a Mail yet counts as missing.
    async fn find_by_external_id(&self, external_id: &str) -> StoreResult<ObjId>;
}
