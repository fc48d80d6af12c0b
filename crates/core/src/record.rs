//! Records: the view of one owner on one object in one box, and the read state machine.
//!
//! ```text
//!                lease                 finish
//!    UNREAD ─────────────▶ READING ─────────────▶ READED
//!      ▲                      │                     │
//!      │  released, or the    │                     │
//!      ├── lease expires ─────┘                     │
//!      └── reopened by an operator ─────────────────┘
//!
//!    UNREAD, READING ──▶ READED     when the Mail of the same object is completed
//!
//!    SENT      the initial state in an OUTBOX: the owner has sent it
//!
//!    UNREAD, READING, READED, SENT ──▶ ARCHIVED      any ──▶ DELETED
//! ```
//!
//! READING has a lease. When the reader crashes and the lease expires,
//! [`ReadStatus::expire`] makes the message unread again. An attempt is counted when the
//! record is leased, so that a message that crashes its readers is visible.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::did::Did;
use crate::hex;
use crate::lease::{Holder, Lease, LeaseDuration, LeaseLost, LeaseProof};
use crate::names::{text_conversions, variant_names};
use crate::object::ObjId;
use crate::time::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BoxKind {
    /// Messages for the owner.
    Inbox,
    /// Messages that the owner has sent. History, not proof of delivery.
    Outbox,
    /// Messages in a group; the owner is the group.
    GroupInbox,
    /// Messages from strangers, until a person has reviewed them. Agents do not get them.
    RequestBox,
    /// Deliveries of a tunnel; the owner is the tunnel.
    TunnelOutbox,
}

/// The state of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReadState {
    /// Waiting for a reader.
    Unread,
    /// Leased to a reader. Becomes UNREAD again when the lease expires.
    Reading,
    /// The reader has finished it.
    Readed,
    /// Sent by the owner. Only in an OUTBOX.
    Sent,
    Archived,
    /// Deleted by its owner. The object stays while other records refer to it.
    Deleted,
}

/// The state of a record with its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadStatus {
    pub state: ReadStateData,
    /// How often the record was leased.
    pub attempts: u32,
    /// Increases with every lease and never goes back.
    pub epoch: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadStateData {
    Unread,
    Reading(Lease),
    Readed,
    Sent,
    Archived,
    Deleted,
}

/// The state machine has no such step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot change state from {from} to {to}")]
pub struct InvalidTransition {
    pub from: &'static str,
    pub to: &'static str,
}

/// Why a step was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransitionError {
    #[error(transparent)]
    WrongState(#[from] InvalidTransition),
    #[error(transparent)]
    LeaseLost(#[from] LeaseLost),
    /// The last attempt failed, and the next one is not due.
    #[error("cannot be claimed before {}; the last attempt failed", .0.rfc3339())]
    NotDue(Timestamp),
}

impl ReadStatus {
    /// The status of a new record in `box_kind`.
    pub fn start(box_kind: BoxKind) -> Self {
        let outbox = box_kind == BoxKind::Outbox;
        Self {
            state: if outbox { ReadStateData::Sent } else { ReadStateData::Unread },
            attempts: 0,
            epoch: 0,
        }
    }

    /// UNREAD → READING, for `holder`.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state.
    pub fn lease(
        self,
        holder: Holder,
        now: Timestamp,
        term: LeaseDuration,
    ) -> Result<Self, InvalidTransition> {
        let ReadStateData::Unread = self.state else {
            return Err(self.invalid(ReadState::Reading));
        };
        Ok(Self {
            state: ReadStateData::Reading(Lease::start(holder, now, term)),
            attempts: self.attempts.saturating_add(1),
            epoch: self.epoch + 1,
        })
    }

    /// READING → UNREAD, after the lease has expired.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] when there is no lease, or it has not expired.
    pub fn expire(self, now: Timestamp) -> Result<Self, InvalidTransition> {
        match &self.state {
            ReadStateData::Reading(lease) if lease.has_expired(now) => {
                Ok(Self { state: ReadStateData::Unread, ..self })
            }
            _ => Err(self.invalid(ReadState::Unread)),
        }
    }

    /// UNREAD, READING → READED, because the Mail of the same object was completed.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state.
    pub fn complete(self) -> Result<Self, InvalidTransition> {
        match self.state {
            ReadStateData::Unread | ReadStateData::Reading(_) => {
                Ok(Self { state: ReadStateData::Readed, ..self })
            }
            _ => Err(self.invalid(ReadState::Readed)),
        }
    }

    /// Changes the state to `to` for a caller with this proof. Changes nothing when that is
    /// already the state.
    ///
    /// # Errors
    ///
    /// [`TransitionError`] when the diagram has no such step or the caller lost the lease.
    pub fn mark(
        self,
        to: ReadState,
        proof: &LeaseProof,
        now: Timestamp,
        term: LeaseDuration,
    ) -> Result<Self, TransitionError> {
        use ReadState as To;
        use ReadStateData::{Readed, Reading, Sent, Unread};
        match &self.state {
            Reading(lease) => lease.check(self.epoch, proof)?,
            _ => proof.check_free(self.epoch)?,
        }
        let state = match (&self.state, to) {
            (from, to) if from.name() == to => return Ok(self),
            (Unread, To::Reading) => return Ok(self.lease(proof.holder.clone(), now, term)?),
            (Reading(_) | Readed, To::Unread) => Unread,
            (Reading(_), To::Readed) => Readed,
            (Unread | Reading(_) | Readed | Sent, To::Archived) => ReadStateData::Archived,
            (_, To::Deleted) => ReadStateData::Deleted,
            _ => return Err(self.invalid(to).into()),
        };
        Ok(Self { state, ..self })
    }

    fn invalid(&self, to: ReadState) -> InvalidTransition {
        InvalidTransition { from: self.state.name().as_str(), to: to.as_str() }
    }
}

impl ReadStateData {
    /// The state without its data.
    pub const fn name(&self) -> ReadState {
        match self {
            Self::Unread => ReadState::Unread,
            Self::Reading(_) => ReadState::Reading,
            Self::Readed => ReadState::Readed,
            Self::Sent => ReadState::Sent,
            Self::Archived => ReadState::Archived,
            Self::Deleted => ReadState::Deleted,
        }
    }
}

variant_names! { ReadState:
    Unread = "UNREAD", Reading = "READING", Readed = "READED", Sent = "SENT",
    Archived = "ARCHIVED", Deleted = "DELETED",
}

variant_names! { BoxKind:
    Inbox = "INBOX", Outbox = "OUTBOX", GroupInbox = "GROUP_INBOX", RequestBox = "REQUEST_BOX",
    TunnelOutbox = "TUNNEL_OUTBOX",
}

/// The id of a record or a delivery, derived from its contents.
///
/// It is the first half of the message's hash and a tag of owner, box and target. It can be
/// computed from these, and is found through the index of objects.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RecordId {
    kind: RecordKind,
    msg: [u8; 16],
    tag: [u8; 8],
}

/// Which table a [`RecordId`] belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RecordKind {
    Record,
    Delivery,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid record id {0:?}; expected rec_ or dlv_ and 48 lower-case hex digits")]
pub struct InvalidRecordId(String);

impl RecordId {
    /// The id of the record of `msg` in the `box_kind` of `owner`.
    pub fn record(owner: &Did, box_kind: BoxKind, msg: &ObjId) -> Self {
        Self::derive(RecordKind::Record, &[owner.as_str(), box_kind.as_str()], msg)
    }

    /// The id of the delivery of `msg` to `target` through `tunnel`.
    pub fn delivery(tunnel: &Did, target: &Did, msg: &ObjId) -> Self {
        Self::derive(RecordKind::Delivery, &[tunnel.as_str(), target.as_str()], msg)
    }

    fn derive(kind: RecordKind, parts: &[&str], msg: &ObjId) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update(part.as_bytes());
            // DIDs and box names have no line feed, so the parts cannot run together.
            hash.update(b"\n");
        }
        let digest: [u8; 32] = hash.finalize().into();
        let (Some(msg), Some(tag)) = (msg.hash().first_chunk(), digest.first_chunk()) else {
            unreachable!("a SHA-256 has 32 bytes")
        };
        Self { kind, msg: *msg, tag: *tag }
    }

    /// The id of the row with this tag that refers to `msg`.
    pub fn from_tag(kind: RecordKind, msg: &ObjId, tag: i64) -> Self {
        let Some(msg) = msg.hash().first_chunk() else { unreachable!("a SHA-256 has 32 bytes") };
        Self { kind, msg: *msg, tag: tag.to_be_bytes() }
    }

    pub const fn kind(&self) -> RecordKind {
        self.kind
    }

    /// The first half of its message's hash.
    pub const fn msg_prefix(&self) -> &[u8; 16] {
        &self.msg
    }

    /// Distinguishes the records of one message.
    pub const fn tag(&self) -> i64 {
        i64::from_be_bytes(self.tag)
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = match self.kind {
            RecordKind::Record => "rec_",
            RecordKind::Delivery => "dlv_",
        };
        write!(f, "{prefix}{}{}", hex::encode(&self.msg), hex::encode(&self.tag))
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for RecordId {
    type Err = InvalidRecordId;

    fn from_str(text: &str) -> Result<Self, InvalidRecordId> {
        let (kind, digits) = match (text.strip_prefix("rec_"), text.strip_prefix("dlv_")) {
            (Some(digits), _) => (RecordKind::Record, digits),
            (_, Some(digits)) => (RecordKind::Delivery, digits),
            _ => return Err(InvalidRecordId(text.chars().take(200).collect())),
        };
        digits
            .split_at_checked(32)
            .and_then(|(msg, tag)| {
                Some(Self { kind, msg: hex::decode(msg)?, tag: hex::decode(tag)? })
            })
            .ok_or_else(|| InvalidRecordId(text.chars().take(200).collect()))
    }
}

text_conversions!(RecordId, InvalidRecordId, |id| id.to_string());

/// The view of one owner on one object in one box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MsgRecord {
    pub id: RecordId,
    /// The position in its box. Later records have larger numbers; never reused.
    pub seq: i64,
    pub owner: Did,
    pub box_kind: BoxKind,
    pub msg_id: ObjId,
    pub reading: ReadStatus,
    /// Increases with every change; updates compare and swap it.
    pub revision: i64,
    /// The conversation: the other party, or the group.
    pub session: Did,
    /// `group:<did>` for a message that came through a group, then the user's tags.
    pub tags: Vec<String>,
    /// The thread of the message, if it has one of at most 512 bytes.
    pub thread_key: Option<String>,
    /// The tunnel that the message came through, if any.
    pub tunnel: Option<Did>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_ms(secs * 1000)
    }

    fn proof(name: &str) -> LeaseProof {
        LeaseProof { epoch: None, holder: Holder::new(name).unwrap() }
    }

    fn standing(state: ReadState) -> ReadStatus {
        let lease = Lease::start(Holder::new("ann").unwrap(), at(0), LeaseDuration::DEFAULT);
        let state = match state {
            ReadState::Unread => ReadStateData::Unread,
            ReadState::Reading => ReadStateData::Reading(lease),
            ReadState::Readed => ReadStateData::Readed,
            ReadState::Sent => ReadStateData::Sent,
            ReadState::Archived => ReadStateData::Archived,
            ReadState::Deleted => ReadStateData::Deleted,
        };
        ReadStatus { state, attempts: 1, epoch: 1 }
    }

    /// Every step from every state. A new state or step changes the table.
    #[test]
    fn every_step_from_every_state() {
        let end = |reading: ReadStatus| reading.state.name().as_str();
        let mut table = crate::state_tables::StateTable::new("reading");
        for state in ReadState::ALL {
            let holder = Holder::new("ann").unwrap();
            let from = state.as_str();
            table.row(
                from,
                "lease",
                standing(state).lease(holder, at(1), LeaseDuration::DEFAULT).map(end),
            );
            table.row(from, "expire", standing(state).expire(at(301)).map(end));
            table.row(from, "complete", standing(state).complete().map(end));
            for to in ReadState::ALL {
                let marked = standing(state).mark(to, &proof("ann"), at(1), LeaseDuration::DEFAULT);
                table.row(from, &format!("mark {}", to.as_str()), marked.map(end));
            }
        }
        table.check();
    }

    #[test]
    fn lease_counts_an_attempt_and_starts_a_new_epoch() {
        let first = ReadStatus::start(BoxKind::Inbox);
        let taken = first.lease(Holder::anonymous(), at(0), LeaseDuration::DEFAULT).unwrap();
        assert_eq!((taken.attempts, taken.epoch), (1, 1));
        assert!(taken.clone().expire(at(299)).is_err(), "the lease still runs");
        let again = taken.expire(at(300)).unwrap();
        let again = again.lease(Holder::anonymous(), at(301), LeaseDuration::DEFAULT).unwrap();
        assert_eq!((again.attempts, again.epoch), (2, 2));
    }

    #[test]
    fn only_the_holder_finishes() {
        let mark = |proof: LeaseProof| {
            let reading = ReadStatus { epoch: 3, ..standing(ReadState::Reading) };
            reading.mark(ReadState::Readed, &proof, at(1), LeaseDuration::DEFAULT)
        };
        assert!(mark(proof("ann")).is_ok());
        assert!(mark(LeaseProof { epoch: Some(3), ..proof("bob") }).is_ok());
        assert!(matches!(mark(proof("bob")), Err(TransitionError::LeaseLost(LeaseLost::Held(_)))));
        let stale = mark(LeaseProof { epoch: Some(2), ..proof("ann") });
        assert!(matches!(stale, Err(TransitionError::LeaseLost(LeaseLost::Stale { .. }))));
    }

    #[test]
    fn stale_epoch_is_rejected_even_without_a_lease() {
        let stale = LeaseProof { epoch: Some(1), ..proof("ann") };
        let free = ReadStatus { epoch: 2, ..standing(ReadState::Unread) };
        assert!(free.mark(ReadState::Archived, &stale, at(1), LeaseDuration::DEFAULT).is_err());
    }

    #[test]
    fn record_ids_are_derived_and_pinned() {
        let owner: Did = "did:web:b.example.com".parse().unwrap();
        let msg = "cymsg:df1f7d75f24031f7e4671258757051ba7c9ce57fe5e6e7852bb949325dd5c86a";
        let msg: ObjId = msg.parse().unwrap();
        let id = RecordId::record(&owner, BoxKind::Inbox, &msg);
        assert_eq!(id.to_string(), "rec_df1f7d75f24031f7e4671258757051ba042ebe9f9740a56c");
        assert_ne!(id, RecordId::record(&owner, BoxKind::Outbox, &msg));
        assert_ne!(id.to_string(), RecordId::delivery(&owner, &owner, &msg).to_string());
    }

    proptest! {
        #[test]
        fn record_ids_are_read_back_unchanged(a in "[a-z]{1,9}", b in any::<[u8; 32]>(), delivery: bool) {
            let owner: Did = format!("did:web:{a}").parse().unwrap();
            let msg = ObjId::from_parts(crate::object::ObjKind::Msg, b);
            let id = if delivery { RecordId::delivery(&owner, &owner, &msg) }
                     else { RecordId::record(&owner, BoxKind::Inbox, &msg) };
            prop_assert_eq!(id.to_string().parse::<RecordId>().unwrap(), id);
            prop_assert_eq!(id.msg_prefix(), &b[..16]);
        }

        #[test]
        fn other_texts_are_not_record_ids(text in "(rec_|dlv_|)[0-9a-fA-F_é]{0,60}") {
            if let Ok(id) = text.parse::<RecordId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }
}
