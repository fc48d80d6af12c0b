//! Events: the append-only log of what happened in the hub.
//!
//! Each event has a number that only increases, so that a reader can continue where it
//! stopped.

use serde_json::Value;

use crate::did::Did;
use crate::names::variant_names;
use crate::object::ObjId;
use crate::record::RecordId;
use crate::time::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventKind {
    /// A message from a provider was stored.
    Received,
    /// The messages of one window became a Mail.
    Merged,
    /// An agent claimed a Mail.
    Claimed,
    /// An agent renewed its claim.
    Renewed,
    /// An agent with a token of its own read a Mail for the first time.
    Read,
    /// A workspace completed a Mail.
    Completed,
    /// The file of a Mail moved to another directory.
    Moved,
    /// A Mail that no workspace claimed was archived.
    Expired,
    /// A Mail that the store had lost was stored again from its file.
    Restored,
    /// An inbound message was put into boxes.
    Dispatched,
    /// A message was accepted for sending.
    Posted,
    /// A message waits for approval, its approval was answered or has expired, or a rule refused it.
    Approval,
    /// Deliveries were halted or resumed.
    Halted,
    /// The author of a message edited it.
    Edited,
    /// A message was recalled or removed at the provider.
    Recalled,
    /// A provider reported something that is no message, such as a new member of a chat.
    Notice,
    /// A message was received again and not processed again.
    Duplicate,
    /// A message was not delivered, because its author is blocked.
    Blocked,
    /// A message of a stranger was dropped by the policy of its tunnel.
    Dropped,
    /// A record was leased to a reader.
    Taken,
    /// A caller changed the state of a record or delivery.
    Marked,
    /// The lease of a reader expired.
    LeaseEnded,
    /// An attempt to deliver began.
    Sending,
    /// A provider accepted one part of a delivery.
    PartSent,
    /// A delivery waits for the next slot of a rate limit.
    Postponed,
    /// A provider accepted a delivery.
    Sent,
    /// An attempt failed; another one follows.
    Failed,
    /// A provider may have accepted a delivery.
    Uncertain,
    /// A delivery became a dead letter.
    Dead,
    /// A reader reported its read status.
    Receipt,
    /// A contact, group or tunnel changed.
    Changed,
    /// The text of a person was erased.
    Erased,
    /// A stored row is damaged and was set aside.
    Damaged,
    /// The pipeline accepted a letter.
    Letter,
    /// Workers returned verdicts for a letter, or it was finished.
    Verdict,
    /// Mails of a watched account were registered, or an e-mail task changed its status.
    EmailTask,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Later events have larger numbers; numbers can be missing.
    pub seq: i64,
    /// By the hub's clock.
    pub at: Timestamp,
    pub kind: EventKind,
    pub msg_id: Option<ObjId>,
    /// The record or delivery, if any.
    pub record_id: Option<RecordId>,
    pub owner: Option<Did>,
    /// Further fields, which depend on the kind.
    pub detail: Value,
}

variant_names! { EventKind:
    Received = "received", Merged = "merged", Claimed = "claimed", Renewed = "renewed", Read = "read",
    Completed = "completed", Moved = "moved", Expired = "expired", Restored = "restored",
    Dispatched = "dispatched", Posted = "posted", Approval = "approval",
    Halted = "halted",
    Edited = "edited", Recalled = "recalled", Notice = "notice",
    Duplicate = "duplicate", Blocked = "blocked", Dropped = "dropped", Taken = "taken",
    Marked = "marked", LeaseEnded = "lease_ended", Sending = "sending",
    PartSent = "part_sent", Postponed = "postponed", Sent = "sent",
    Failed = "failed", Uncertain = "uncertain", Dead = "dead", Receipt = "receipt",
    Changed = "changed", Erased = "erased", Damaged = "damaged", Letter = "letter", Verdict = "verdict",
    EmailTask = "email_task",
}
