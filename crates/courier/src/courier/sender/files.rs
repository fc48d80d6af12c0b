//! Opens the attachments of outgoing messages for adapters.

use std::io::Cursor;

use async_trait::async_trait;
use monoco_adapters::{AttachmentSource, OpenAttachment};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::outgoing::AttachmentRef;
use monoco_core::retry::Failure;
use monoco_store::{SharedStore, StoreError};

/// The attachments in the store. An adapter reads them in parts, so that large files are never
/// in memory.
pub struct StoredAttachments<'a>(pub &'a SharedStore);

#[async_trait]
impl AttachmentSource for StoredAttachments<'_> {
    async fn open(&self, attachment: &AttachmentRef) -> Result<OpenAttachment, Failure> {
        open_attachment(self.0, attachment.hash).await.map_err(|error| match error {
            StoreError::Missing { .. } | StoreError::Damaged { .. } => {
                let detail = format!("attachment {} is no longer stored", attachment.hash);
                Failure::Permanent { detail, error_code: None }
            }
            error => {
                let detail = format!("cannot open attachment {}: {error}", attachment.hash);
                Failure::Temporary { detail, retry_after_ms: None, error_code: None }
            }
        })
    }
}

/// Opens an attachment in the store.
///
/// # Errors
///
/// When the store has none, or cannot be read.
pub async fn open_attachment(
    store: &SharedStore,
    hash: ObjId,
) -> Result<OpenAttachment, StoreError> {
    if hash.kind() == ObjKind::Bytes {
        let bytes = store.open_blob(hash).await?;
        return Ok(OpenAttachment { size: bytes.size(), bytes: Box::pin(bytes) });
    }
    // A message can be attached to another one. Its text is small.
    let bytes = store.object(hash).await?;
    Ok(OpenAttachment { size: bytes.len() as u64, bytes: Box::pin(Cursor::new(bytes)) })
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::courier::test_hub::TestHub;

    fn reference(hash: ObjId) -> AttachmentRef {
        AttachmentRef { hash, name: "a.bin".to_owned(), mime_type: "text/plain".to_owned() }
    }

    /// The reader has one buffer, whatever the size of the file.
    #[tokio::test]
    async fn attachment_is_read_in_parts() {
        let hub = TestHub::new().await;
        let size = 5_usize << 20;
        let bytes: Vec<u8> = (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let hash = hub.store().put_blob(bytes.clone()).await.unwrap();
        let files = StoredAttachments(hub.store());
        let mut open = files.open(&reference(hash)).await.unwrap();
        assert_eq!(open.size, size as u64);
        let mut part = vec![0; 64 << 10];
        let (mut read, mut reads) = (Vec::new(), 0);
        loop {
            let count = open.bytes.read(&mut part).await.unwrap();
            if count == 0 {
                break;
            }
            read.extend_from_slice(&part[..count]);
            reads += 1;
        }
        assert!(read == bytes && reads >= size / part.len());
    }

    #[tokio::test]
    async fn missing_attachment_is_a_permanent_failure() {
        let hub = TestHub::new().await;
        let hash = ObjId::of(ObjKind::Bytes, b"never stored");
        let opened = StoredAttachments(hub.store()).open(&reference(hash)).await;
        assert!(matches!(opened.err(), Some(Failure::Permanent { .. })));
    }
}
