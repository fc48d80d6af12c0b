//! What a provider reports about its chats: messages, edits, recalls and notices.
//!
//! An adapter converts each frame or request of its provider into [`InboundEvent`]s. All have a
//! stable id, so that an event that is received twice is recognised.

use crate::inbound::{
    ChatSession, InboundAttachment, InboundMessage, InvalidInboundMessage, MAX_ACCOUNT_BYTES,
    MAX_NAME_BYTES, Participant, check_external_id, check_length, invalid,
};
use crate::time::Timestamp;

/// One event of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InboundEvent {
    Message {
        message: InboundMessage,
        /// Bytes that came with the message. Files that are fetched later are artifacts with a
        /// [`fetch`](super::Artifact::fetch) handle.
        attachments: Vec<InboundAttachment>,
    },
    Edit(MessageEdit),
    Recall(MessageRecall),
    Notice(TunnelNotice),
}

/// The new content of a message that its author has edited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageEdit {
    /// Identifies this edit in its tunnel. Two edits of one message have different ids.
    pub edit_id: String,
    /// The edited message: its `id` is that of the original message, `session` and `from` are
    /// those of the original message, and `at` is the time of the edit.
    pub message: InboundMessage,
}

/// The removal of a message on the provider's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRecall {
    /// Identifies this recall in its tunnel.
    pub recall_id: String,
    pub message_id: String,
    pub session: ChatSession,
    /// The account that removed the message, when the provider names it.
    pub by: Option<Participant>,
    pub at: Option<Timestamp>,
}

/// An occurrence in a tunnel that is no message, such as a new member of a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelNotice {
    /// Identifies this notice in its tunnel.
    pub id: String,
    /// A short name in snake case, such as `member_joined`, `reaction_added` or `gap`.
    pub kind: String,
    pub session: Option<ChatSession>,
    /// The account that the notice is about.
    pub by: Option<Participant>,
    /// One sentence for people. It names no secret.
    pub detail: String,
    pub at: Option<Timestamp>,
}

/// The newest stored message of one chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatPosition {
    /// The chat with its id, kind and name; it has no thread key.
    pub session: ChatSession,
    pub message_id: String,
    /// When the message was written, by the provider's clock.
    pub at: Option<Timestamp>,
}

/// Maximum length of the kind of a notice, in bytes.
const MAX_KIND_BYTES: usize = 64;

impl MessageRecall {
    /// Checks the limits.
    ///
    /// # Errors
    ///
    /// [`InvalidInboundMessage`] with the first field that exceeds its limit.
    pub fn check(&self) -> Result<(), InvalidInboundMessage> {
        for (field, id) in [("recall_id", &self.recall_id), ("message_id", &self.message_id)] {
            check_external_id(id).map_err(|error| invalid(field, error.to_string()))?;
        }
        check_length("session.id", &self.session.id, 1, MAX_ACCOUNT_BYTES)?;
        check_account(self.by.as_ref())
    }
}

impl TunnelNotice {
    /// Checks the limits, and cuts a long detail.
    ///
    /// # Errors
    ///
    /// [`InvalidInboundMessage`] with the first field that exceeds its limit.
    pub fn check(mut self) -> Result<Self, InvalidInboundMessage> {
        check_external_id(&self.id).map_err(|error| invalid("id", error.to_string()))?;
        check_length("kind", &self.kind, 1, MAX_KIND_BYTES)?;
        if let Some(session) = &self.session {
            check_length("session.id", &session.id, 0, MAX_ACCOUNT_BYTES)?;
            let name = session.name.as_deref().unwrap_or_default();
            check_length("session.name", name, 0, MAX_NAME_BYTES)?;
        }
        check_account(self.by.as_ref())?;
        self.detail.truncate(self.detail.floor_char_boundary(MAX_NAME_BYTES));
        Ok(self)
    }
}

fn check_account(by: Option<&Participant>) -> Result<(), InvalidInboundMessage> {
    let Some(by) = by else { return Ok(()) };
    check_length("by.id", &by.id, 1, MAX_ACCOUNT_BYTES)?;
    check_length("by.name", by.name.as_deref().unwrap_or_default(), 0, MAX_NAME_BYTES)
}
