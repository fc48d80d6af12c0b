//! Conversations of owners, and read receipts of groups.

use async_trait::async_trait;
use monoco_core::delivery::SendState;
use monoco_core::did::Did;
use monoco_core::object::ObjId;
use monoco_core::receipt::{Receipt, ReceiptStatus};
use monoco_core::record::MsgRecord;
use monoco_core::time::Timestamp;

use crate::{Page, PageRequest, StoreResult};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionEntry {
    pub record: MsgRecord,
    /// The canonical text of the message; `None` when its object is damaged.
    pub body: Option<String>,
    /// The combined state of its deliveries, for a message that was sent through tunnels.
    pub delivery: Option<SendState>,
}

/// One conversation in the list of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSummary {
    pub peer: Did,
    /// The first name of the peer in the address book.
    pub name: Option<String>,
    pub unread: usize,
    pub last: SessionEntry,
}

/// Reads conversations and manages read receipts.
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Stores the receipt of a group's reader for a message.
    async fn set_receipt(
        &self,
        group: &Did,
        msg_id: ObjId,
        reader: &Did,
        status: ReceiptStatus,
        reason: Option<String>,
        now: Timestamp,
    ) -> StoreResult<Receipt>;

    /// Lists the receipts of one message in a group, of all readers or of one.
    async fn receipts(
        &self,
        group: &Did,
        msg_id: ObjId,
        reader: Option<&Did>,
    ) -> StoreResult<Vec<Receipt>>;

    /// Lists the conversations of an owner by their newest message.
    async fn sessions(&self, owner: &Did, page: PageRequest) -> StoreResult<Page<SessionSummary>>;

    /// Lists the messages of one conversation, in both directions.
    async fn session(
        &self,
        owner: &Did,
        peer: &Did,
        page: PageRequest,
    ) -> StoreResult<Page<SessionEntry>>;
}
