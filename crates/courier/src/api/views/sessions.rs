//! Conversations and the receipts of group readers.

use std::borrow::Cow;

use monoco_core::receipt::Receipt;
use monoco_core::record::BoxKind;
use monoco_store::{SessionEntry, SessionSummary};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
#[cfg(test)]
use utoipa::ToSchema;

use super::boxes::RecordView;
use super::raw;
#[cfg(test)]
use super::schemas::MsgObjectSchema;
use crate::api::error::ApiError;

/// One message of a conversation.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = SessionEntry))]
pub struct SessionEntryView {
    /// Either `in` or `out`
    pub direction: Cow<'static, str>,
    pub record: RecordView,
    /// The MsgObject; null when it is damaged
    #[cfg_attr(test, schema(value_type = Option<MsgObjectSchema>))]
    pub msg: Option<Box<RawValue>>,
    /// The worst state among the deliveries of a sent message
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_state: Option<Cow<'static, str>>,
}

/// A page of messages of a conversation.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct SessionEntryPage {
    pub lines: Vec<SessionEntryView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A conversation with its last message.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Session))]
pub struct SessionSummaryView {
    /// DID of the other party, or of the group
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Number of UNREAD messages
    pub unread: usize,
    pub last: SessionEntryView,
}

/// A page of conversations.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct SessionPage {
    pub sessions: Vec<SessionSummaryView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// The read state of one group message for one reader.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct ReceiptView {
    /// Id of the receipt object
    pub receipt_id: String,
    pub msg_id: String,
    pub reader: String,
    pub group: Option<String>,
    pub state: Cow<'static, str>,
    pub at: String,
    /// Why the reader has set this state
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The read states of a message.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct ReceiptList {
    pub receipts: Vec<ReceiptView>,
}

impl TryFrom<SessionEntry> for SessionEntryView {
    type Error = ApiError;

    fn try_from(entry: SessionEntry) -> Result<Self, ApiError> {
        let out = entry.record.box_kind == BoxKind::Outbox;
        Ok(Self {
            direction: if out { "out" } else { "in" }.into(),
            msg: entry.body.map(raw).transpose()?,
            record: entry.record.into(),
            delivery_state: entry.delivery.map(|state| state.as_str().into()),
        })
    }
}

impl TryFrom<SessionSummary> for SessionSummaryView {
    type Error = ApiError;

    fn try_from(session: SessionSummary) -> Result<Self, ApiError> {
        Ok(Self {
            id: session.peer.into(),
            name: session.name,
            unread: session.unread,
            last: session.last.try_into()?,
        })
    }
}

impl From<Receipt> for ReceiptView {
    fn from(receipt: Receipt) -> Self {
        Self {
            receipt_id: receipt.id().to_string(),
            msg_id: receipt.msg_id.to_string(),
            reader: receipt.reader.into(),
            group: receipt.group_id.map(Into::into),
            state: receipt.status.as_str().into(),
            at: receipt.at_ms.rfc3339(),
            reason: receipt.reason,
        }
    }
}
