//! Stores inbound messages. Returns after the commit, so that the adapter may acknowledge.

use std::pin::Pin;

use async_trait::async_trait;
use monoco_adapters::{ConnectionEvent, InboundError, InboundPage, InboundSink, PageResult};
use monoco_core::inbound::{Artifact, InboundAttachment, InboundMessage, StoredBytes};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::time::Timestamp;
use monoco_store::{
    AcceptResult, LetterSource, RegisterMailsRequest, SharedStore, StoreError, StoreInboundRequest,
    StoreInboundResult,
};
use tokio::io::AsyncRead;

use super::tunnels::RunningTunnel;
use crate::center::PipelineEntry;
use crate::clock::Clock;

/// Largest stream that the sink stores, in bytes. Adapters have lower limits of their own.
const MAX_STORED_BYTES: u64 = 1 << 30;

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
        self.record(result.as_ref().map(|new| usize::from(*new)));
        result
    }

    async fn receive_page(&self, page: InboundPage) -> Result<PageResult, InboundError> {
        let InboundPage { stream, cursor, messages, mails } = page;
        let mut result = PageResult::default();
        for (message, attachments) in messages {
            match self.receive(message, attachments).await? {
                true => result.new += 1,
                false => result.duplicates += 1,
            }
        }
        if mails.is_empty() && cursor.is_none() {
            return Ok(result);
        }
        let tunnel = self.tunnel.adapter.id().clone();
        let page = RegisterMailsRequest { tunnel, stream, cursor, mails };
        let registered = self.store.register_mails(page, self.clock.now()).await;
        let registered = registered.map_err(inbound_error);
        self.record(registered.as_ref().map(|registered| registered.new));
        let registered = registered?;
        result.new += registered.new;
        result.duplicates += registered.copies + registered.known;
        Ok(result)
    }

    async fn cursor(&self, stream: &str) -> Result<Option<String>, InboundError> {
        self.store.cursor(self.tunnel.adapter.id(), stream).await.map_err(inbound_error)
    }

    async fn store_bytes<'a>(
        &'a self,
        mut bytes: Pin<Box<dyn AsyncRead + Send + 'a>>,
    ) -> Result<StoredBytes, InboundError> {
        let stored = self.store.put_blob_from(&mut bytes, MAX_STORED_BYTES).await;
        stored.map_err(inbound_error)
    }

    fn report(&self, event: ConnectionEvent) {
        let now = self.clock.now();
        self.tunnel.update_health(|health| match event {
            ConnectionEvent::Connected => health.record_connected(now),
            ConnectionEvent::Frame => health.record_frame(now),
            ConnectionEvent::Lost(error) => health.record_lost(error, now),
            ConnectionEvent::Backlog(count) => health.record_backlog(count, now),
            ConnectionEvent::Scanned { backlog } => health.record_scanned(backlog, now),
        });
    }
}

impl DurableInboundSink<'_> {
    /// Records the number of new messages, or the error, in the tunnel's health.
    fn record(&self, result: Result<usize, &InboundError>) {
        let now = self.clock.now();
        self.tunnel.update_health(|health| match result {
            Ok(new) => health.record_received(u64::try_from(new).unwrap_or(u64::MAX), now),
            Err(error) => health.record_receive_error(error.to_string(), now),
        });
    }

    async fn store_message(
        &self,
        mut message: InboundMessage,
        attachments: Vec<InboundAttachment>,
    ) -> Result<bool, InboundError> {
        message.received_at = self.clock.now();
        message.artifacts.extend(attachments.iter().map(artifact));
        let message =
            message.validate().map_err(|error| InboundError::Unusable(error.to_string()))?;
        let request = StoreInboundRequest {
            tunnel: self.tunnel.adapter.id().clone(),
            provider: self.tunnel.adapter.provider().to_owned(),
            message,
            attachments: attachments.into_iter().map(|it| it.bytes).collect(),
            debounce: self.tunnel.settings().debounce,
            mail: None,
        };
        let stored = store_requests(self.store, self.entry, vec![request], self.clock.now()).await;
        match stored.into_iter().next() {
            Some(is_new) => is_new.map_err(inbound_error),
            None => Err(InboundError::Unavailable("the store returned no result".to_owned())),
        }
    }
}

/// Stores messages of one tunnel in one commit, or passes them to its inbound chain. Each result
/// tells whether the message is new.
pub async fn store_requests(
    store: &SharedStore,
    entry: &PipelineEntry,
    requests: Vec<StoreInboundRequest>,
    now: Timestamp,
) -> Vec<Result<bool, StoreError>> {
    let Some(first) = requests.first() else { return Vec::new() };
    if entry.inbound().applies_to(Some(&first.tunnel)) {
        let sources = requests.into_iter().map(LetterSource::Inbound).collect();
        let accepted = entry.submit(store, sources, now).await.into_iter();
        let is_new = |accepted| matches!(accepted, AcceptResult::Letter { duplicate: false, .. });
        return accepted.map(|accepted| accepted.map(is_new)).collect();
    }
    let stored = store.store_inbound(requests, now).await.into_iter();
    stored.map(|stored| stored.map(|result| result == StoreInboundResult::Stored)).collect()
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
        StoreError::TooLarge(_) => InboundError::Unusable(error.to_string()),
        other => {
            tracing::warn!(error = %other, "cannot store inbound message");
            InboundError::Unavailable(other.to_string())
        }
    }
}

#[cfg(test)]
mod tests;
