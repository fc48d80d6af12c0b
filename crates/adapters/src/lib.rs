//! One folder per provider: hear and speak, nothing else.
//!
//! An adapter can't see the store, so it can't route, retry or remember. It
//! hands over what it hears, and acknowledges it to the provider only when that
//! is safe on disk. It tries once to deliver what it is given, and says what came
//! of it. Only the queue tries again, and only the queue remembers.

use std::fmt;

use async_trait::async_trait;
use http::HeaderMap;
use monoco_core::delivery::DeliveryOutcome;
use monoco_core::did::{EndpointKind, TunnelId};
use monoco_core::inbound::{InboundAttachment, InboundMessage};
use monoco_core::record::RecordId;
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use tokio_util::sync::CancellationToken;

pub mod egress;
pub mod stub;
pub mod webhook;

#[cfg(test)]
mod scripted;

/// One connection to one provider.
#[async_trait]
pub trait Adapter: Send + Sync {
    /// The tunnel it is.
    fn id(&self) -> &TunnelId;

    /// The provider's name.
    fn provider(&self) -> &'static str;

    /// Whether the provider recognises a second copy by the parcel's key. Then,
    /// and only then, a delivery that may have arrived is tried again.
    fn accepts_idempotency_keys(&self) -> bool;

    /// Reads a request that the provider pushed to us: verified, or refused.
    ///
    /// # Errors
    ///
    /// [`WebhookError`]. Adapters whose providers push nothing refuse everything.
    fn pushed(
        &self,
        push: &WebhookRequest<'_>,
    ) -> Result<Vec<(InboundMessage, Vec<InboundAttachment>)>, WebhookError> {
        let _ = push;
        Err(WebhookError::NotTaken)
    }

    /// Listens until `stop`, handing over what it hears.
    ///
    /// Returns early only when listening again is pointless, such as with a
    /// revoked token. Dropped connections are the adapter's own business.
    async fn listen(&self, ear: &dyn InboundSink, stop: CancellationToken) -> Result<(), Failure>;

    /// Tries once to deliver `parcel`, and says what came of it.
    ///
    /// Never tries again by itself: the queue does, and it remembers.
    async fn deliver(&self, parcel: &DeliveryRequest<'_>) -> DeliveryOutcome;
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

/// A request that a provider pushed to us.
#[derive(Clone, Copy, Debug)]
pub struct WebhookRequest<'a> {
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// Its body, as it came: signatures are over bytes.
    pub body: &'a [u8],
    /// What time it is.
    pub now: Timestamp,
}

/// Why a pushed request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebhookError {
    /// This tunnel takes none.
    #[error("this tunnel takes no webhooks")]
    NotTaken,
    /// It is not signed by whoever has the secret.
    #[error("not verified: {0}")]
    Unverified(&'static str),
    /// It was signed too long ago, or in the future.
    #[error("not verified: its timestamp is more than {0} s off")]
    Stale(u64),
    /// It is authentic and can't be read.
    #[error("{0}")]
    Unreadable(String),
}

/// Something nobody else may know. It is not shown, logged or compared in plain.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes it.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// The secret itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// One message for one address.
#[derive(Clone, Copy, Debug)]
pub struct DeliveryRequest<'a> {
    /// The account it is for, as the provider spells it.
    pub address: &'a str,
    /// What sort of account it is.
    pub kind: EndpointKind,
    /// The message's canonical JSON.
    pub body: &'a str,
    /// What goes with it.
    pub attachments: &'a [InboundAttachment],
    /// The same for every try of the same delivery.
    pub key: RecordId,
    /// What time it is.
    pub now: Timestamp,
}
