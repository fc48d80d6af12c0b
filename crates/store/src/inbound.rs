//! Inbound messages from providers, stored until they are merged into Mails.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use monoco_core::did::{Did, TunnelId};
use monoco_core::inbound::{ChatPosition, MessageRecall, TunnelNotice, ValidInboundMessage};
use monoco_core::letter::LetterId;
use monoco_core::merge::Debounce;
use monoco_core::time::Timestamp;
use tokio::sync::watch;

use crate::{PipelineRouting, StoreResult};

/// An inbound message to store.
#[derive(Clone, Debug)]
pub struct StoreInboundRequest {
    pub tunnel: TunnelId,
    pub provider: String,
    pub message: ValidInboundMessage,
    /// The bytes of its attachments. They are stored before the message, and only if it is new.
    pub attachments: Vec<Vec<u8>>,
    /// How long to wait for further messages of the session.
    pub debounce: Debounce,
    /// The mail that the message was read from, for its letter. It is not stored without an
    /// inbound chain.
    pub mail: Option<Vec<u8>>,
}

/// An event of a provider to store.
#[derive(Clone, Debug)]
pub enum StoreInboundEvent {
    Message(Box<StoreInboundRequest>),
    /// The id of the message is that of the edited message, and its content is the new one.
    Edit {
        edit_id: String,
        request: Box<StoreInboundRequest>,
    },
    Recall {
        recall: MessageRecall,
        tunnel: TunnelId,
        provider: String,
        debounce: Debounce,
    },
    Notice {
        tunnel: TunnelId,
        notice: TunnelNotice,
    },
}

/// Result of storing an event of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreEventResult {
    pub result: StoreInboundResult,
    /// The new letter, when the message goes through the inbound chain.
    pub letter: Option<LetterId>,
}

/// Result of storing an inbound message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreInboundResult {
    /// The message is on disk.
    Stored,
    /// The tunnel delivered this external id before.
    Duplicate,
    /// The author is blocked. The external id is stored, the text is not.
    Blocked,
    /// The author is a stranger, and the tunnel drops strangers. The external id is stored,
    /// the text is not.
    Dropped,
}

/// Parameters of a merge that are not stored with the messages or with their tunnel.
#[derive(Clone, Debug)]
pub struct MergeContext {
    /// The recipient of direct messages.
    pub owner: Did,
    /// Merge only windows of these tunnels; `None`: of all tunnels.
    pub tunnels: Option<BTreeSet<TunnelId>>,
    /// Also close windows that could still wait for messages, because the courier stops. Windows
    /// that wait for files stay open.
    pub all: bool,
}

/// Stores inbound messages and merges them into Mails.
#[async_trait]
pub trait InboundStore: Send + Sync {
    /// Stores inbound messages, each external id once, all in one commit.
    async fn store_inbound(
        &self,
        batch: Vec<StoreInboundRequest>,
        now: Timestamp,
    ) -> Vec<StoreResult<StoreInboundResult>>;

    /// Stores events of providers in their order, each id once, in one commit where possible.
    /// Messages of tunnels with an inbound chain become letters.
    ///
    /// An edit or recall changes a message that waits in its merge window. Later it is an event
    /// on the Mail, and a message that names the corrected one. An edit that changes nothing is a
    /// duplicate.
    async fn store_events(
        &self,
        batch: Vec<StoreInboundEvent>,
        inbound: Arc<PipelineRouting>,
        now: Timestamp,
    ) -> Vec<StoreResult<StoreEventResult>>;

    /// Returns the newest message of each chat of a tunnel that reads the history of its
    /// provider, for at most the 1,000 chats with the newest messages.
    async fn chat_positions(&self, tunnel: &TunnelId) -> StoreResult<Vec<ChatPosition>>;

    /// Merges at most `limit` windows that have ended into Mails. The messages of a window
    /// are removed in the transaction that inserts their Mail. Returns the number of windows.
    async fn merge(
        &self,
        context: Arc<MergeContext>,
        limit: usize,
        now: Timestamp,
    ) -> StoreResult<usize>;

    /// Returns when the next open window ends, or `None` when no window is open.
    async fn next_merge(&self) -> StoreResult<Option<Timestamp>>;

    /// A counter that changes after each commit that stores an inbound message.
    fn newest_inbound(&self) -> watch::Receiver<u64>;
}
