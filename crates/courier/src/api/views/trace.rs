//! The history of one message.

use monoco_core::inbound::{InboundMessage, Participant};
use monoco_core::mail::{Mail, MailIndexEntry};
use monoco_core::time::Timestamp;
use monoco_mailbox::claim_info::ClaimInfo;
use monoco_store::MessageTrace;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
#[cfg(test)]
use utoipa::ToSchema;

use super::boxes::RecordView;
use super::events::EventView;
use super::letters::LetterView;
use super::raw;
#[cfg(test)]
use super::schemas::{ClaimSchema, MailIndexEntrySchema, MsgObjectSchema, ParticipantSchema};
use crate::api::error::ApiError;

/// Everything that is stored about one message.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct TraceView {
    /// Missing for a letter that has not become a message
    #[serde(skip_serializing_if = "Option::is_none")]
    pub msg_id: Option<String>,
    /// When the text was erased
    #[serde(skip_serializing_if = "Option::is_none")]
    pub erased_at: Option<String>,
    /// The MsgObject; null when it is damaged or erased
    #[cfg_attr(test, schema(value_type = Option<MsgObjectSchema>))]
    pub msg: Option<Box<RawValue>>,
    /// The records of all owners
    pub records: Vec<RecordView>,
    pub deliveries: Vec<RecordView>,
    /// The index entry, if the message is a Mail
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(value_type = Option<MailIndexEntrySchema>))]
    pub mail: Option<MailIndexEntry>,
    /// The received messages that were merged into the Mail
    pub messages: Vec<MergedMessageView>,
    /// The letters that the message was created from or became, with all verdicts
    pub letters: Vec<LetterView>,
    /// The claims of all workspaces on the Mail
    #[cfg_attr(test, schema(value_type = Vec<ClaimSchema>))]
    pub claims: Vec<ClaimInfo>,
    /// All events of the message, oldest first
    pub events: Vec<EventView>,
    /// Whether parts were left out because there are too many
    pub truncated: bool,
}

/// One received message of a Mail, without its text.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = MergedMessage))]
pub struct MergedMessageView {
    /// The provider's id of the message
    pub id: String,
    #[cfg_attr(test, schema(value_type = ParticipantSchema))]
    pub from: Participant,
    /// Time of the message according to the provider
    pub at: Option<String>,
    pub received_at: String,
}

impl TryFrom<MessageTrace> for TraceView {
    type Error = ApiError;

    fn try_from(trace: MessageTrace) -> Result<Self, ApiError> {
        let mail = trace.body.as_deref().and_then(|body| Mail::read(trace.msg_id, body).ok());
        let messages = mail.map(|mail| mail.messages).unwrap_or_default();
        Ok(Self {
            msg_id: Some(trace.msg_id.to_string()),
            erased_at: trace.erased_at.map(Timestamp::rfc3339),
            messages: messages.into_iter().map(Into::into).collect(),
            msg: trace.body.map(raw).transpose()?,
            records: trace.records.into_iter().map(Into::into).collect(),
            deliveries: trace.deliveries.into_iter().map(Into::into).collect(),
            mail: trace.mail,
            letters: trace.letters.iter().map(LetterView::with_notes).collect(),
            claims: trace.claims.iter().map(Into::into).collect(),
            events: trace.events.into_iter().map(Into::into).collect(),
            truncated: trace.truncated,
        })
    }
}

impl From<InboundMessage> for MergedMessageView {
    fn from(message: InboundMessage) -> Self {
        Self {
            id: message.id,
            from: message.from,
            at: message.at.map(Timestamp::rfc3339),
            received_at: message.received_at.rfc3339(),
        }
    }
}
