//! Stores inbound messages. Returns after the commit, so that the adapter may acknowledge.

use async_trait::async_trait;
use monoco_adapters::{InboundError, InboundSink};
use monoco_core::inbound::{Artifact, InboundAttachment, InboundMessage};
use monoco_core::object::{ObjId, ObjKind};
use monoco_store::{
    AcceptResult, LetterSource, SharedStore, StoreError, StoreInboundRequest, StoreInboundResult,
};

use super::tunnels::RunningTunnel;
use crate::center::PipelineEntry;
use crate::clock::Clock;

/// The sink of one tunnel: writes to the store, or through the inbound chain.
pub struct DurableInboundSink<'a> {
    pub store: &'a SharedStore,
    pub clock: Clock,
    pub entry: &'a PipelineEntry,
    pub tunnel: &'a RunningTunnel,
}

#[async_trait]
impl InboundSink for DurableInboundSink<'_> {
    async fn receive(
        &self,
        message: InboundMessage,
        attachments: Vec<InboundAttachment>,
    ) -> Result<bool, InboundError> {
        let result = self.store_message(message, attachments).await;
        let now = self.clock.now();
        match &result {
            Ok(new) => {
                self.tunnel.update_health(|health| health.record_received(u64::from(*new), now));
            }
            Err(error) => {
                self.tunnel
                    .update_health(|health| health.record_receive_error(error.to_string(), now));
            }
        }
        result
    }
}

impl DurableInboundSink<'_> {
    async fn store_message(
        &self,
        mut message: InboundMessage,
        attachments: Vec<InboundAttachment>,
    ) -> Result<bool, InboundError> {
        message.received_at = self.clock.now();
        message.artifacts.extend(attachments.iter().map(artifact));
        let message =
            message.validate().map_err(|error| InboundError::Unusable(error.to_string()))?;
        // Attachments first: the message must not refer to bytes that are not stored.
        for attachment in attachments {
            self.store.put_blob(attachment.bytes).await.map_err(inbound_error)?;
        }
        let request = StoreInboundRequest {
            tunnel: self.tunnel.adapter.id().clone(),
            provider: self.tunnel.adapter.provider().to_owned(),
            message,
            debounce: self.tunnel.debounce,
        };
        let now = self.clock.now();
        let is_new = if self.entry.inbound().applies_to(Some(&request.tunnel)) {
            let source = vec![LetterSource::Inbound(request)];
            let accepted = self.entry.submit(self.store, source, now).await.pop();
            let new = |accepted| matches!(accepted, AcceptResult::Letter { duplicate: false, .. });
            accepted.map(|accepted| accepted.map(new))
        } else {
            let stored = self.store.store_inbound(vec![request], now).await.pop();
            stored.map(|stored| stored.map(|result| result == StoreInboundResult::Stored))
        };
        match is_new {
            Some(is_new) => is_new.map_err(inbound_error),
            None => Err(InboundError::Unavailable("the store returned no result".to_owned())),
        }
    }
}

/// The attachment as a message refers to it.
fn artifact(attachment: &InboundAttachment) -> Artifact {
    Artifact {
        name: attachment.name.clone(),
        mime_type: attachment.mime_type.clone(),
        size: u64::try_from(attachment.bytes.len()).ok(),
        hash: Some(ObjId::of(ObjKind::Bytes, &attachment.bytes)),
        url: None,
    }
}

fn inbound_error(error: StoreError) -> InboundError {
    match error {
        StoreError::DiskFull => InboundError::Full,
        other => {
            tracing::warn!(error = %other, "cannot store inbound message");
            InboundError::Unavailable(other.to_string())
        }
    }
}
