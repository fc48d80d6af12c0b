//! Adds names to events before they are stored.

use std::pin::Pin;

use async_trait::async_trait;
use monoco_core::inbound::{
    ChatPosition, InboundAttachment, InboundEvent, InboundMessage, StoredBytes,
};
use tokio::io::AsyncRead;

use crate::{ConnectionEvent, InboundError, InboundPage, InboundSink, PageResult};

/// Adds the names that events lack.
#[async_trait]
pub(crate) trait EventNamer: Send + Sync {
    /// Looks up missing names within the time that the provider waits, and never fails.
    async fn add_names(&self, events: Vec<InboundEvent>) -> Vec<InboundEvent>;
}

/// A sink in front of that of the courier.
pub(crate) struct NamingSink<'a> {
    pub sink: &'a dyn InboundSink,
    pub namer: &'a dyn EventNamer,
}

#[async_trait]
impl InboundSink for NamingSink<'_> {
    async fn receive(
        &self,
        message: InboundMessage,
        attachments: Vec<InboundAttachment>,
    ) -> Result<bool, InboundError> {
        self.sink.receive(message, attachments).await
    }

    async fn receive_events(&self, events: Vec<InboundEvent>) -> Vec<Result<bool, InboundError>> {
        let events = self.namer.add_names(events).await;
        self.sink.receive_events(events).await
    }

    async fn last_received(&self) -> Result<Vec<ChatPosition>, InboundError> {
        self.sink.last_received().await
    }

    async fn receive_page(&self, page: InboundPage) -> Result<PageResult, InboundError> {
        self.sink.receive_page(page).await
    }

    async fn cursor(&self, stream: &str) -> Result<Option<String>, InboundError> {
        self.sink.cursor(stream).await
    }

    async fn store_bytes<'a>(
        &'a self,
        bytes: Pin<Box<dyn AsyncRead + Send + 'a>>,
    ) -> Result<StoredBytes, InboundError> {
        self.sink.store_bytes(bytes).await
    }

    fn report(&self, event: ConnectionEvent) {
        self.sink.report(event);
    }
}
