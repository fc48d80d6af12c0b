//! That somebody read a message, or refused it: an object of its own.
//!
//! Read state in a group belongs to the reader, not to the message, so it can't
//! live in either. The shape is BuckyOS's `MsgReceiptObj`: `group_id` is written
//! even when it is `null`, `reason` only when there is one.

use serde::{Deserialize, Serialize};

use crate::did::Did;
use crate::json;
use crate::object::{ObjId, ObjKind};
use crate::time::Timestamp;

/// How far a reader is with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReceiptStatus {
    /// Not looked at.
    Unread,
    /// Being looked at.
    Reading,
    /// Looked at.
    Readed,
    /// Taken.
    Accepted,
    /// Refused.
    Rejected,
    /// Put aside for a person to judge.
    Quarantined,
}

/// One reader's word on one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// The message.
    pub msg_id: ObjId,
    /// Who says so.
    pub iss: Did,
    /// Whose reading it is about.
    pub reader: Did,
    /// The group it was read in, if any.
    pub group_id: Option<Did>,
    /// When, by the clock of whoever says so.
    pub at_ms: Timestamp,
    /// What became of it.
    pub status: ReceiptStatus,
    /// Why, where that needs saying.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Receipt {
    /// The text that is hashed and stored.
    pub fn canonical(&self) -> String {
        let value = serde_json::to_value(self).expect("a receipt has only string keys");
        json::canonical(&value)
    }

    /// Its name.
    pub fn id(&self) -> ObjId {
        ObjId::of(ObjKind::Receipt, self.canonical().as_bytes())
    }
}

impl ReceiptStatus {
    /// All of them, in order.
    pub const ALL: [Self; 6] = [
        Self::Unread,
        Self::Reading,
        Self::Readed,
        Self::Accepted,
        Self::Rejected,
        Self::Quarantined,
    ];

    /// The word the API and the store use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unread => "UNREAD",
            Self::Reading => "READING",
            Self::Readed => "READED",
            Self::Accepted => "ACCEPTED",
            Self::Rejected => "REJECTED",
            Self::Quarantined => "QUARANTINED",
        }
    }

    /// Reads that word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }
}
