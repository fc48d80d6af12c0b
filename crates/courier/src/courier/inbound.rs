//! Stores inbound messages. Returns after the commit, so that the adapter may acknowledge.

use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use monoco_adapters::{ConnectionEvent, InboundError, InboundPage, InboundSink, PageResult};
use monoco_core::inbound::{
    Artifact, ChatPosition, FetchedMail, InboundAttachment, InboundEvent, InboundMessage,
    MessageEdit, RawMail, StoredBytes, check_external_id,
};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::time::Timestamp;
use monoco_store::{
    RegisterMailsRequest, SharedStore, StoreError, StoreEventResult, StoreInboundEvent,
    StoreInboundRequest, StoreInboundResult,
};
use tokio::io::AsyncRead;

use super::approval_asks::take_answer;
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
        let events = vec![InboundEvent::Message { message, attachments }];
        let mut results = self.receive_events(events).await;
        results.pop().unwrap_or_else(|| {
            Err(InboundError::Unavailable("the store returned no result".to_owned()))
        })
    }

    async fn receive_events(&self, events: Vec<InboundEvent>) -> Vec<Result<bool, InboundError>> {
        let (mut results, mut numbers, mut batch) = (Vec::new(), Vec::new(), Vec::new());
        for (number, event) in events.into_iter().enumerate() {
            match self.request(event) {
                Ok(event) => {
                    results.push(Ok(false));
                    numbers.push(number);
                    batch.push(event);
                }
                Err(error) => results.push(Err(error)),
            }
        }
        let stored = store_events(self.store, self.entry, batch, self.clock.now()).await;
        for (number, stored) in numbers.into_iter().zip(stored) {
            results[number] = stored.map_err(inbound_error);
        }
        if results.iter().any(Result::is_ok) {
            self.record(Ok(results.iter().flatten().filter(|new| **new).count()));
        }
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            self.record(Err(error));
        }
        results
    }

    async fn last_received(&self) -> Result<Vec<ChatPosition>, InboundError> {
        self.store.chat_positions(self.tunnel.adapter.id()).await.map_err(inbound_error)
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
        let registered = match self.charge(&mails) {
            Ok(()) => {
                let page = RegisterMailsRequest { tunnel, stream, cursor, mails };
                let registered = self.store.register_mails(page, self.clock.now()).await;
                registered.map_err(inbound_error)
            }
            Err(over_quota) => Err(over_quota),
        };
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
        let is_scan = matches!(event, ConnectionEvent::Scanned { .. });
        self.tunnel.update_health(|health| match event {
            ConnectionEvent::Connected => health.record_connected(now),
            ConnectionEvent::Frame => health.record_frame(now),
            ConnectionEvent::Lost(error) => health.record_lost(error, now),
            ConnectionEvent::Backlog(count) => health.record_backlog(count, now),
            ConnectionEvent::Scanned { backlog } => health.record_scanned(backlog, now),
        });
        if is_scan {
            self.tunnel.record_scan();
        }
    }
}

impl DurableInboundSink<'_> {
    /// Charges mails to the quota of the tunnel. Mails that exceed it stay on the server until
    /// the adapter fetches them again.
    fn charge(&self, mails: &[FetchedMail]) -> Result<(), InboundError> {
        let bytes = mails.iter().map(|mail| match &mail.raw {
            RawMail::Bytes(bytes) => bytes.len() as u64,
            RawMail::Stored(stored) => stored.size,
            RawMail::HeadersOnly { headers, .. } => headers.len() as u64,
        });
        self.tunnel.quota.charge(bytes.sum(), self.clock.now()).map_err(|wait| {
            InboundError::Unavailable(format!(
                "the daily quota of this tunnel is used; mails stay on the server for {} s, or \
                 raise max_mb_per_day of the tunnel",
                wait.as_secs() + 1
            ))
        })
    }

    /// Records the number of new messages, or the error, in the tunnel's health.
    fn record(&self, result: Result<usize, &InboundError>) {
        let now = self.clock.now();
        self.tunnel.update_health(|health| match result {
            Ok(new) => health.record_received(u64::try_from(new).unwrap_or(u64::MAX), now),
            Err(error) => health.record_receive_error(error.to_string(), now),
        });
    }

    /// Checks the limits of an event and converts it for the store.
    fn request(&self, event: InboundEvent) -> Result<StoreInboundEvent, InboundError> {
        let tunnel = self.tunnel.adapter.id().clone();
        Ok(match event {
            InboundEvent::Message { message, attachments } => {
                StoreInboundEvent::Message(Box::new(self.message_request(message, attachments)?))
            }
            InboundEvent::Edit(MessageEdit { edit_id, message }) => {
                check_external_id(&edit_id).map_err(|error| unusable(&error))?;
                let request = Box::new(self.message_request(message, Vec::new())?);
                StoreInboundEvent::Edit { edit_id, request }
            }
            InboundEvent::Recall(recall) => {
                recall.check().map_err(|error| unusable(&error))?;
                let provider = self.tunnel.adapter.provider().to_owned();
                let debounce = self.tunnel.settings().debounce;
                StoreInboundEvent::Recall { recall, tunnel, provider, debounce }
            }
            InboundEvent::Notice(notice) => {
                let notice = notice.check().map_err(|error| unusable(&error))?;
                StoreInboundEvent::Notice { tunnel, notice }
            }
        })
    }

    fn message_request(
        &self,
        mut message: InboundMessage,
        attachments: Vec<InboundAttachment>,
    ) -> Result<StoreInboundRequest, InboundError> {
        message.received_at = self.clock.now();
        message.artifacts.extend(attachments.iter().map(artifact));
        Ok(StoreInboundRequest {
            tunnel: self.tunnel.adapter.id().clone(),
            provider: self.tunnel.adapter.provider().to_owned(),
            message: message.validate().map_err(|error| unusable(&error))?,
            attachments: attachments.into_iter().map(|it| it.bytes).collect(),
            debounce: self.tunnel.settings().debounce,
            mail: None,
        })
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
    let event = |request| StoreInboundEvent::Message(Box::new(request));
    store_events(store, entry, requests.into_iter().map(event).collect(), now).await
}

/// Stores events and notifies the dispatcher of new letters. Answers to approvals are taken before.
/// Each result tells whether the event is new.
async fn store_events(
    store: &SharedStore,
    entry: &PipelineEntry,
    batch: Vec<StoreInboundEvent>,
    now: Timestamp,
) -> Vec<Result<bool, StoreError>> {
    if batch.is_empty() {
        return Vec::new();
    }
    let mut results = Vec::with_capacity(batch.len());
    let mut rest = Vec::new();
    for event in batch {
        let answer = match &event {
            StoreInboundEvent::Message(request) => take_answer(store, request, now).await,
            _ => None,
        };
        if answer.is_none() {
            rest.push(event);
        }
        results.push(answer);
    }
    let mut stored = store.store_events(rest, entry.inbound(), now).await.into_iter();
    let missing = || StoreError::Unavailable("the store returned no result".to_owned());
    results
        .into_iter()
        .map(|answer| {
            let result = match answer {
                Some(answer) => answer?,
                None => {
                    let stored: StoreEventResult = stored.next().ok_or_else(missing)??;
                    if let Some(letter) = stored.letter {
                        entry.notifier.notify(letter, Duration::ZERO);
                    }
                    stored.result
                }
            };
            Ok(result == StoreInboundResult::Stored)
        })
        .collect()
}

fn unusable(error: &dyn std::error::Error) -> InboundError {
    InboundError::Unusable(error.to_string())
}

/// The attachment as a message refers to it.
fn artifact(attachment: &InboundAttachment) -> Artifact {
    Artifact {
        name: attachment.name.clone(),
        mime_type: attachment.mime_type.clone(),
        size: u64::try_from(attachment.bytes.len()).ok(),
        hash: Some(ObjId::of(ObjKind::Bytes, &attachment.bytes)),
        ..Artifact::default()
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
