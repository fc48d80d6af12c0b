//! The result of an erasure.

use monoco_store::ErasureCounts;
use serde::{Deserialize, Serialize};
#[cfg(test)]
use utoipa::ToSchema;

use crate::courier::forget::ForgetCounts;

/// What was erased, or would be.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = ForgetResult))]
pub struct ForgetView {
    /// The given DID, and those of the accounts that are bound to its contact
    pub dids: Vec<String>,
    /// Whether nothing was changed
    pub dry_run: bool,
    /// Messages, Mails and receipts whose text is erased
    pub objects: usize,
    /// Mails of several authors in which the person's messages are replaced by `[erased]`
    pub mails: usize,
    /// Received messages that were not merged into a Mail yet
    pub inbound_messages: usize,
    pub letters: usize,
    /// Files of drafts; only for the owner of the courier
    pub drafts: usize,
    /// Attachments that nothing else refers to
    pub attachments: usize,
    pub contacts: usize,
    pub bindings: usize,
    /// Provider message ids that stay as keys, so that a repeated message is a duplicate
    pub external_ids: usize,
    /// Mail files that are removed or replaced
    pub files: usize,
}

impl ForgetView {
    pub fn new(dids: Vec<String>, dry_run: bool, counts: ForgetCounts) -> Self {
        let ForgetCounts { stored, drafts } = counts;
        let ErasureCounts {
            objects,
            mails,
            inbound_messages,
            letters,
            attachments,
            contacts,
            bindings,
            external_ids,
            files,
        } = stored;
        Self {
            dids,
            dry_run,
            objects,
            mails,
            inbound_messages,
            letters,
            drafts,
            attachments,
            contacts,
            bindings,
            external_ids,
            files,
        }
    }
}
