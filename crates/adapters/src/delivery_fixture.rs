//! Files in memory and recorded parts, for the tests of deliveries.

use std::io::Cursor;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use monoco_core::delivery::SentPart;
use monoco_core::inbound::InboundAttachment;
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::outgoing::AttachmentRef;
use monoco_core::retry::Failure;

use crate::{AttachmentSource, DeliveryProgress, OpenAttachment};

/// Attachments in memory, found by the hash of their bytes.
#[derive(Debug, Default)]
pub struct MemoryFiles(pub Vec<InboundAttachment>);

impl MemoryFiles {
    /// Returns what a message that has these files refers to.
    pub fn references(&self) -> Vec<AttachmentRef> {
        let reference = |file: &InboundAttachment| AttachmentRef {
            hash: ObjId::of(ObjKind::Bytes, &file.bytes),
            name: file.name.clone(),
            mime_type: file.mime_type.clone(),
        };
        self.0.iter().map(reference).collect()
    }
}

#[async_trait]
impl AttachmentSource for MemoryFiles {
    async fn open(&self, attachment: &AttachmentRef) -> Result<OpenAttachment, Failure> {
        let is_named =
            |file: &&InboundAttachment| ObjId::of(ObjKind::Bytes, &file.bytes) == attachment.hash;
        let Some(file) = self.0.iter().find(is_named) else {
            let detail = format!("attachment {} is no longer stored", attachment.hash);
            return Err(Failure::Permanent { detail, error_code: None });
        };
        let (size, bytes) = (file.bytes.len() as u64, Box::pin(Cursor::new(file.bytes.clone())));
        Ok(OpenAttachment { size, bytes })
    }
}

/// The parts that an attempt has reported.
#[derive(Debug, Default)]
pub struct RecordedParts {
    pub recorded: Mutex<Vec<SentPart>>,
    /// The failure after this number of parts, as when a receipt cannot be stored.
    pub fails_after: Option<usize>,
}

impl RecordedParts {
    pub fn parts(&self) -> Vec<SentPart> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl DeliveryProgress for RecordedParts {
    async fn part_sent(&self, part: SentPart) -> Result<(), Failure> {
        let mut parts = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        if self.fails_after.is_some_and(|count| parts.len() >= count) {
            let detail = "the receipt of the part was not stored".to_owned();
            return Err(Failure::Unknown { detail, error_code: None });
        }
        parts.push(part);
        Ok(())
    }
}
