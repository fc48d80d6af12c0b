//! Adapters: one folder per provider, which receives and sends messages and does nothing else.
//!
//! An adapter has no access to the store, so it cannot route, retry or store state. It
//! passes received messages to an [`InboundSink`] and acknowledges them to the provider
//! only after the sink has stored them. It makes one attempt at each delivery and reports
//! the outcome; the queue retries. [`registry`] lists the providers.

use async_trait::async_trait;
use http::HeaderMap;
use monoco_core::delivery::DeliveryOutcome;
use monoco_core::did::{EndpointKind, TunnelId};
use monoco_core::inbound::{InboundAttachment, InboundMessage};
use monoco_core::outgoing::OutgoingMessage;
use monoco_core::record::RecordId;
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use tokio_util::sync::CancellationToken;

pub mod egress;
pub mod registry;
pub mod stub;
pub mod webhook;

#[cfg(test)]
mod scripted;
#[cfg(test)]
mod toy;

/// One tunnel: a connection to one provider.
#[async_trait]
pub trait Adapter: Send + Sync {
    /// Returns the id of the tunnel.
    fn id(&self) -> &TunnelId;

    /// Returns the provider's name in the config.
    fn provider(&self) -> &'static str;

    /// Returns how the tunnel receives messages: `push` or `memory`.
    fn mode(&self) -> &'static str;

    /// Tells whether the provider recognises a second copy by [`DeliveryRequest::key`].
    /// Only then is a delivery with an unknown outcome retried.
    fn accepts_idempotency_keys(&self) -> bool;

    /// Checks the headers of a webhook request before its body is read. Rejects a request that
    /// lacks a header that its verification needs.
    fn check_webhook_headers(&self, _headers: &HeaderMap) -> Result<(), WebhookError> {
        Err(WebhookError::NotSupported)
    }

    /// Verifies and parses a request that the provider posted to the webhook listener.
    /// Adapters of providers without webhooks reject every request.
    fn parse_webhook(
        &self,
        _request: &WebhookRequest<'_>,
    ) -> Result<Vec<(InboundMessage, Vec<InboundAttachment>)>, WebhookError> {
        Err(WebhookError::NotSupported)
    }

    /// Receives messages until `stop` and passes them to `sink`.
    ///
    /// Returns early only when reconnecting cannot help, such as with a revoked token.
    /// The adapter handles lost connections itself.
    async fn listen(&self, sink: &dyn InboundSink, stop: CancellationToken) -> Result<(), Failure>;

    /// Makes one attempt to deliver a message and returns its outcome. Never retries.
    async fn deliver(&self, request: &DeliveryRequest<'_>) -> DeliveryOutcome;
}

/// Where adapters pass inbound messages.
#[async_trait]
pub trait InboundSink: Send + Sync {
    /// Checks the limits of a message and stores it with its attachments. Returns after the
    /// commit: only then may the adapter acknowledge the message to the provider. Returns
    /// `false` when the message is not new or not wanted.
    async fn receive(
        &self,
        message: InboundMessage,
        attachments: Vec<InboundAttachment>,
    ) -> Result<bool, InboundError>;
}

/// Why a message was not stored. It must not be acknowledged to the provider.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InboundError {
    #[error("disk full: message not stored")]
    Full,
    /// The store cannot write now; the provider should send the message again.
    #[error("message not stored: {0}")]
    Unavailable(String),
    /// The message exceeds a limit; sending it again does not help.
    #[error("{0}")]
    Unusable(String),
}

/// A request that a provider posted to the webhook listener.
#[derive(Clone, Copy, Debug)]
pub struct WebhookRequest<'a> {
    pub headers: &'a HeaderMap,
    /// The bytes as received: signatures are over bytes.
    pub body: &'a [u8],
    pub now: Timestamp,
}

/// Why a webhook request was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebhookError {
    #[error("this tunnel does not accept webhooks")]
    NotSupported,
    /// The signature is missing or does not match.
    #[error("not verified: {0}")]
    Unverified(&'static str),
    /// The signature is valid, but too old or in the future. Holds the limit in seconds.
    #[error("not verified: its timestamp is more than {0} s off")]
    Stale(u64),
    /// The request is authentic, but cannot be parsed.
    #[error("{0}")]
    Unreadable(String),
}

impl WebhookError {
    /// Returns the short name of the reason, for metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NotSupported => "not_supported",
            Self::Unverified(_) => "unverified",
            Self::Stale(_) => "stale",
            Self::Unreadable(_) => "unreadable",
        }
    }
}

/// One attempt to deliver a message to one address.
#[derive(Clone, Copy, Debug)]
pub struct DeliveryRequest<'a> {
    /// The recipient's account in the provider's own notation.
    pub address: &'a str,
    pub kind: EndpointKind,
    pub message: &'a OutgoingMessage,
    /// The content of [`OutgoingMessage::attachments`].
    pub attachments: &'a [InboundAttachment],
    /// Identifies the delivery: the same for every attempt.
    pub key: RecordId,
    pub now: Timestamp,
}
