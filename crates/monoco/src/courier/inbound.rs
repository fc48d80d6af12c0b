//! The doorman's ear: what was heard is on disk before anybody is told so.

use async_trait::async_trait;
use monoco_adapters::{InboundError, InboundSink};
use monoco_core::inbound::{Artifact, InboundEvent};
use monoco_store::{
    AcceptResult, LetterSource, SharedStore, StoreError, StoreInboundRequest, StoreInboundResult,
};

use super::tunnels::RunningTunnel;
use crate::center::PipelineEntry;
use crate::clock::Clock;

/// Keeps what one tunnel hears.
pub struct DurableInboundSink<'a> {
    pub store: &'a SharedStore,
    pub clock: Clock,
    pub entry: &'a PipelineEntry,
    /// The tunnel.
    pub tunnel: &'a RunningTunnel,
}

#[async_trait]
impl InboundSink for DurableInboundSink<'_> {
    async fn receive(&self, heard: InboundEvent) -> Result<bool, InboundError> {
        let kept = self.keep(heard).await;
        let now = self.clock.now();
        match &kept {
            Ok(new) => self.tunnel.note(|pulse| pulse.record_received(u64::from(*new), now)),
            Err(why) => self.tunnel.note(|pulse| pulse.record_receive_error(why.to_string(), now)),
        }
        kept
    }
}

impl DurableInboundSink<'_> {
    async fn keep(&self, heard: InboundEvent) -> Result<bool, InboundError> {
        let InboundEvent { tunnel, mut said, attachments } = heard;
        said.check().map_err(|error| InboundError::Unusable(error.to_string()))?;
        let store = self.store;
        // Bytes first: nothing may refer to what is not there.
        for attachment in attachments {
            let size = u64::try_from(attachment.bytes.len()).ok();
            let hash = store.put_blob(attachment.bytes).await.map_err(not_kept)?;
            said.artifacts.push(Artifact {
                name: attachment.name,
                mime_type: attachment.mime_type,
                size,
                hash: Some(hash),
                url: None,
            });
        }
        said.check().map_err(|error| InboundError::Unusable(error.to_string()))?;
        let provider = self.tunnel.adapter.provider().to_owned();
        let keep = StoreInboundRequest { tunnel, provider, said, debounce: self.tunnel.debounce };
        let kept = match self.entry.inbound().applies_to(Some(&keep.tunnel)) {
            true => self
                .entry
                .submit(store, vec![LetterSource::Inbound(keep)], self.clock.now())
                .await
                .pop()
                .map(|accepted| {
                    accepted.map(|accepted| {
                        matches!(accepted, AcceptResult::Letter { duplicate: false, .. })
                    })
                }),
            false => {
                let kept = store.store_inbound(vec![keep], self.clock.now()).await.pop();
                kept.map(|kept| kept.map(|keeping| keeping == StoreInboundResult::Stored))
            }
        };
        match kept {
            Some(kept) => kept.map_err(not_kept),
            None => Err(InboundError::Unavailable("the store gave no answer".to_owned())),
        }
    }
}

fn not_kept(error: StoreError) -> InboundError {
    match error {
        StoreError::DiskFull => InboundError::Full,
        other => {
            tracing::warn!(error = %other, "not kept");
            InboundError::Unavailable(other.to_string())
        }
    }
}
