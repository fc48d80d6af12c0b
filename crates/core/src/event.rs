//! What happened, for anyone who wants to know.
//!
//! The log only grows, and each entry has a number that only grows, so that a
//! reader can go on from where it stopped.

use serde_json::Value;

use crate::did::Did;
use crate::object::ObjId;
use crate::record::RecordId;
use crate::time::Timestamp;

/// What sort of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventKind {
    /// A message from a provider was stored.
    Received,
    /// What was heard of one session became a Mail.
    Merged,
    /// A workspace's agent took a Mail.
    Claimed,
    /// It holds it for longer.
    Renewed,
    /// A workspace is done with a Mail.
    Completed,
    /// A Mail's file moved.
    Moved,
    /// A message came in and was put into boxes.
    Dispatched,
    /// A message left its author's hands.
    Posted,
    /// The same message came again; nothing was done twice.
    Duplicate,
    /// A message was not delivered because its author is blocked.
    Blocked,
    /// A stranger's message was dropped by its tunnel's rule.
    Dropped,
    /// A record was taken by a reader.
    Taken,
    /// A record or delivery was moved to another state by somebody.
    Marked,
    /// A reader let its lease end.
    LeaseEnded,
    /// A delivery is being tried.
    Sending,
    /// A provider took a delivery.
    Sent,
    /// A try failed; another follows.
    Failed,
    /// A delivery may have arrived and nobody can know.
    Uncertain,
    /// A delivery was given up.
    Dead,
    /// A reader said how far it is with a message.
    Receipt,
    /// A contact, group or tunnel changed.
    Changed,
    /// What is stored no longer reads as what was written; it was put aside.
    Damaged,
    /// The post office took a letter in.
    Letter,
    /// Workers said something of a letter, or it came to an end.
    Verdict,
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its number. Later ones are larger; a number may be missing.
    pub seq: i64,
    /// When it happened, by our clock.
    pub at: Timestamp,
    /// What happened.
    pub kind: EventKind,
    /// The message it is about.
    pub msg_id: Option<ObjId>,
    /// The record or delivery it is about.
    pub record_id: Option<RecordId>,
    /// Whose it is.
    pub owner: Option<Did>,
    /// The rest, as the kind has it.
    pub detail: Value,
}

impl EventKind {
    /// All of them.
    pub const ALL: [Self; 24] = [
        Self::Received,
        Self::Merged,
        Self::Claimed,
        Self::Renewed,
        Self::Completed,
        Self::Moved,
        Self::Dispatched,
        Self::Posted,
        Self::Duplicate,
        Self::Blocked,
        Self::Dropped,
        Self::Taken,
        Self::Marked,
        Self::LeaseEnded,
        Self::Sending,
        Self::Sent,
        Self::Failed,
        Self::Uncertain,
        Self::Dead,
        Self::Receipt,
        Self::Changed,
        Self::Damaged,
        Self::Letter,
        Self::Verdict,
    ];

    /// The word the API, the CLI and the store use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Merged => "merged",
            Self::Claimed => "claimed",
            Self::Renewed => "renewed",
            Self::Completed => "completed",
            Self::Moved => "moved",
            Self::Dispatched => "dispatched",
            Self::Posted => "posted",
            Self::Duplicate => "duplicate",
            Self::Blocked => "blocked",
            Self::Dropped => "dropped",
            Self::Taken => "taken",
            Self::Marked => "marked",
            Self::LeaseEnded => "lease_ended",
            Self::Sending => "sending",
            Self::Sent => "sent",
            Self::Failed => "failed",
            Self::Uncertain => "uncertain",
            Self::Dead => "dead",
            Self::Receipt => "receipt",
            Self::Changed => "changed",
            Self::Damaged => "damaged",
            Self::Letter => "letter",
            Self::Verdict => "verdict",
        }
    }

    /// Reads that word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}
