//! Adds names to events before they are stored.

use std::pin::Pin;

use async_trait::async_trait;
use monoco_core::inbound::{
    ChatPosition, InboundAttachment, InboundEvent, InboundMessage, StoredBytes,
};
use tokio::io::AsyncRead;

use super::workspace::SlackWorkspace;
use crate::{ConnectionEvent, InboundError, InboundPage, InboundSink, PageResult};

/// A sink in front of that of the courier.
pub(super) struct NamingSink<'a> {
    pub sink: &'a dyn InboundSink,
    pub workspace: &'a SlackWorkspace,
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
        let events = self.workspace.add_names(events).await;
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
