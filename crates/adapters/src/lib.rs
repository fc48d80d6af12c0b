//! One folder per provider: hear and speak, nothing else.
//!
//! An adapter can't see the store, so it can't route, retry or remember. It
//! hands over what it hears, and acknowledges it to the provider only when that
//! is safe on disk. It tries once to deliver what it is given, and says what came
//! of it. Only the queue tries again, and only the queue remembers.

use async_trait::async_trait;
use monoco_core::delivery::Outcome;
use monoco_core::did::{EndpointKind, TunnelId};
use monoco_core::heard::Heard;
use monoco_core::record::RecordId;
use monoco_core::retry::Failure;
use tokio_util::sync::CancellationToken;

pub mod stub;

/// One connection to one provider.
#[async_trait]
pub trait Adapter: Send + Sync {
    /// The tunnel it is.
    fn id(&self) -> &TunnelId;

    /// The provider's name.
    fn provider(&self) -> &'static str;

    /// Whether the provider recognises a second copy by the parcel's key. Then,
    /// and only then, a delivery that may have arrived is tried again.
    fn takes_keys(&self) -> bool;

    /// Listens until `stop`, handing over what it hears.
    ///
    /// Returns early only when listening again is pointless, such as with a
    /// revoked token. Dropped connections are the adapter's own business.
    async fn listen(&self, ear: &dyn Ear, stop: CancellationToken) -> Result<(), Failure>;

    /// Tries once to deliver `parcel`, and says what came of it.
    ///
    /// Never tries again by itself: the queue does, and it remembers.
    async fn deliver(&self, parcel: &Parcel<'_>) -> Outcome;
}

/// Where an adapter takes what it hears.
#[async_trait]
pub trait Ear: Send + Sync {
    /// Returns once `heard` is safe on disk, and not before. Only then may the
    /// adapter acknowledge it to the provider.
    async fn hear(&self, heard: Heard) -> Result<(), NotKept>;
}

/// What was heard was not kept; the provider must not be told that it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotKept;

/// One message for one address.
#[derive(Clone, Copy, Debug)]
pub struct Parcel<'a> {
    /// The account it is for, as the provider spells it.
    pub address: &'a str,
    /// What sort of account it is.
    pub kind: EndpointKind,
    /// The message's canonical JSON.
    pub body: &'a str,
    /// The same for every try of the same delivery.
    pub key: RecordId,
}
