//! Adapters: one folder per provider, which receives and sends messages and does nothing else.
//!
//! An adapter has no access to the store, so it cannot route, retry or store state. It
//! passes received messages to an [`InboundSink`] and acknowledges them to the provider
//! only after the sink has stored them. It makes one attempt at each delivery and reports
//! the outcome; the queue retries. [`registry`] lists the providers.

use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderMap;
use monoco_core::delivery::DeliveryOutcome;
use monoco_core::did::{EndpointKind, TunnelId};
use monoco_core::inbound::{FetchedMail, InboundAttachment, InboundMessage, StoredBytes};
use monoco_core::outgoing::OutgoingMessage;
use monoco_core::record::RecordId;
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use tokio::io::AsyncRead;
use tokio_util::sync::CancellationToken;

use crate::email::EmailAdapter;
use crate::registry::AdapterConfig;

pub mod egress;
pub mod email;
pub mod net;
pub mod registry;
pub mod secret_command;
pub mod stub;
pub mod webhook;

#[cfg(test)]
mod scripted;
#[cfg(test)]
mod toy;

/// The default of [`Adapter::attempt_timeout`].
const DEFAULT_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(45);

/// One tunnel: a connection to one provider.
#[async_trait]
pub trait Adapter: Send + Sync {
    /// Returns the id of the tunnel.
    fn id(&self) -> &TunnelId;

    /// Returns the provider's name in the config.
    fn provider(&self) -> &'static str;

    /// Returns how the tunnel receives messages, such as `push`, `idle` or `memory`.
    fn mode(&self) -> &'static str;

    /// Tells whether the provider recognises a second copy by [`DeliveryRequest::key`].
    /// Only then is a delivery with an unknown outcome retried.
    fn accepts_idempotency_keys(&self) -> bool;

    /// Tells whether the tunnel receives messages through a connection that it opens. Then it
    /// is down until it reports [`ConnectionEvent::Connected`].
    fn opens_connection(&self) -> bool {
        false
    }

    /// Applies the values of [`ProviderConfig::LIVE_KEYS`](registry::ProviderConfig::LIVE_KEYS)
    /// that a reload has changed. The tunnel keeps its connections.
    fn apply_live(&self, _config: &dyn AdapterConfig) {}

    /// Returns how long one delivery attempt may take. The lease of the delivery is longer.
    fn attempt_timeout(&self) -> Duration {
        DEFAULT_ATTEMPT_TIMEOUT
    }

    /// Checks connection and login once, without receiving or sending anything. Adapters
    /// that open no connection of their own have nothing to check.
    async fn probe(&self) -> Result<ProbeReport, Failure> {
        Ok(ProbeReport::default())
    }

    /// Returns the e-mail side of the tunnel, when it is an e-mail account.
    fn email(&self) -> Option<&dyn EmailAdapter> {
        None
    }

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
    /// Returns early only when reconnecting cannot help, such as with a revoked token. The
    /// courier calls it again when it panics.
    /// The adapter handles lost connections itself and reports them to `sink`. Returns only
    /// after its connections are closed, because a reload then opens new ones.
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

    /// Stores a page. Mails and the cursor are stored in one transaction; messages are stored
    /// before it, and recognised as duplicates when the page is received again.
    async fn receive_page(&self, page: InboundPage) -> Result<PageResult, InboundError>;

    /// Returns the stored cursor of a stream of this tunnel, such as a mail folder.
    async fn cursor(&self, stream: &str) -> Result<Option<String>, InboundError>;

    /// Stores bytes that are too large for memory while they are read, and returns their hash
    /// after they are on disk.
    async fn store_bytes<'a>(
        &'a self,
        bytes: Pin<Box<dyn AsyncRead + Send + 'a>>,
    ) -> Result<StoredBytes, InboundError>;

    /// Reports the state of the connection, for the tunnel's health.
    fn report(&self, event: ConnectionEvent);
}

/// What an adapter received from one stream of its tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InboundPage {
    /// The stream that the cursor belongs to, such as a mail folder.
    pub stream: String,
    /// The cursor after this page; `None` leaves the stored cursor as it is.
    pub cursor: Option<String>,
    pub messages: Vec<(InboundMessage, Vec<InboundAttachment>)>,
    pub mails: Vec<FetchedMail>,
}

/// How many entries of a page were stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageResult {
    pub new: usize,
    /// Not new, or not wanted.
    pub duplicates: usize,
}

/// A change of the connection through which a tunnel receives messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    Connected,
    /// The provider sent something, so the connection works.
    Frame,
    /// The connection was lost, or could not be opened. Holds the error.
    Lost(String),
    /// A stream is being read, and about this number of messages is not fetched yet.
    Backlog(u64),
    /// All streams were read; `backlog` counts the messages that are not fetched yet.
    Scanned {
        backlog: u64,
    },
}

/// The result of [`Adapter::probe`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeReport {
    /// What was checked and what was found, such as `IMAP login` and `ok, IDLE, UIDPLUS`.
    pub lines: Vec<(String, String)>,
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

    /// Tells whether the request comes from the provider and not from any peer.
    pub const fn is_authentic(&self) -> bool {
        matches!(self, Self::Unreadable(_))
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
