//! Receipts: the read status of one reader for one message, as an object of its own.
//!
//! Read status in a group belongs to the reader and not to the message. The format is
//! BuckyOS's `MsgReceiptObj`: `group_id` is written even when it is `null`, `reason` only
//! when there is one.

use serde::{Deserialize, Serialize};

use crate::did::Did;
use crate::json;
use crate::names::variant_names;
use crate::object::{ObjId, ObjKind};
use crate::time::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReceiptStatus {
    Unread,
    Reading,
    Readed,
    Accepted,
    Rejected,
    /// Waits for the decision of a person.
    Quarantined,
}

/// The statement of an issuer about one reader and one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    pub msg_id: ObjId,
    pub iss: Did,
    pub reader: Did,
    /// The group of the message, if any.
    pub group_id: Option<Did>,
    /// By the clock of the issuer.
    pub at_ms: Timestamp,
    pub status: ReceiptStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Receipt {
    /// The canonical JSON, which is hashed and stored.
    pub fn canonical(&self) -> String {
        let value = serde_json::to_value(self).expect("a receipt has only string keys");
        json::canonical(&value)
    }

    pub fn id(&self) -> ObjId {
        ObjId::of(ObjKind::Receipt, self.canonical().as_bytes())
    }
}

variant_names! { ReceiptStatus:
    Unread = "UNREAD", Reading = "READING", Readed = "READED", Accepted = "ACCEPTED",
    Rejected = "REJECTED", Quarantined = "QUARANTINED",
}
