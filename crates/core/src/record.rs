//! One owner's view of one object in one box: the reading machine.
//!
//! ```text
//!                 take                 finish
//!    UNREAD ─────────────▶ READING ─────────────▶ READED
//!      ▲                      │                     │
//!      │  give back, or the   │                     │
//!      ├── lease ends ────────┘                     │
//!      └── reopen, by hand ─────────────────────────┘
//!
//!    SENT      the only state of an OUTBOX: this left my hands
//!
//!    UNREAD, READING, READED, SENT ──▶ ARCHIVED      any ──▶ DELETED
//! ```
//!
//! `READING` is a promise with a deadline. A reader that dies breaks it, and
//! [`ReadStatus::expire`] makes the message unread again. Who reads is counted when
//! he takes it, so that a message that kills its readers can be seen.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::did::Did;
use crate::hex;
use crate::lease::{Holder, Lease, LeaseDuration, LeaseLost, LeaseProof};
use crate::object::ObjId;
use crate::time::Timestamp;

/// The boxes an owner can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BoxKind {
    /// What came for the owner.
    Inbox,
    /// What left the owner's hands. History, not proof of delivery.
    Outbox,
    /// What was said in a group; the owner is the group.
    GroupInbox,
    /// What strangers sent, until a person has looked. No agent is fed from it.
    RequestBox,
    /// What a tunnel is to deliver; the owner is the tunnel.
    TunnelOutbox,
}

/// Where a record stands, without the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReadState {
    /// Waiting for a reader.
    Unread,
    /// A reader has it until its lease ends. If he dies, the sweeper makes it
    /// UNREAD again.
    Reading,
    /// Dealt with.
    Readed,
    /// Left the owner's hands. Only in an OUTBOX.
    Sent,
    /// Put away by its owner.
    Archived,
    /// Thrown away by its owner. The object itself stays while others refer to it.
    Deleted,
}

/// A record's place in the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadStatus {
    /// The state, with what only it has.
    pub state: ReadStateData,
    /// How often it was taken.
    pub attempts: u32,
    /// Which take is the current one.
    pub epoch: u64,
}

/// A [`ReadState`] with what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadStateData {
    /// UNREAD.
    Unread,
    /// READING, by the holder of the lease.
    Reading(Lease),
    /// READED.
    Readed,
    /// SENT.
    Sent,
    /// ARCHIVED.
    Archived,
    /// DELETED.
    Deleted,
}

/// The step is not one that the state allows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{from} can't become {to}")]
pub struct InvalidTransition {
    /// Where it stands.
    pub from: &'static str,
    /// Where it was to go.
    pub to: &'static str,
}

/// Why a step was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransitionError {
    /// The machine has no such step.
    #[error(transparent)]
    WrongState(#[from] InvalidTransition),
    /// Somebody else holds it.
    #[error(transparent)]
    LeaseLost(#[from] LeaseLost),
    /// It failed, and waits for its next try.
    #[error("not before {}", .0.rfc3339())]
    NotDue(Timestamp),
}

impl ReadStatus {
    /// A record as it starts out in `box_kind`.
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
    /// From any other state.
    pub fn lease(
        self,
        holder: Holder,
        now: Timestamp,
        term: LeaseDuration,
    ) -> Result<Self, InvalidTransition> {
        let ReadStateData::Unread = self.state else {
            return Err(self.wrong(ReadState::Reading));
        };
        Ok(Self {
            state: ReadStateData::Reading(Lease::start(holder, now, term)),
            attempts: self.attempts.saturating_add(1),
            epoch: self.epoch + 1,
        })
    }

    /// READING → UNREAD, when its lease has ended by `now`.
    ///
    /// # Errors
    ///
    /// When nobody reads it, or somebody still may.
    pub fn expire(self, now: Timestamp) -> Result<Self, InvalidTransition> {
        match &self.state {
            ReadStateData::Reading(lease) if lease.has_expired(now) => {
                Ok(Self { state: ReadStateData::Unread, ..self })
            }
            _ => Err(self.wrong(ReadState::Unread)),
        }
    }

    /// Moves to `to` on behalf of whoever shows `guard`. To where it already
    /// stands is no step and changes nothing.
    ///
    /// # Errors
    ///
    /// [`Refused`], when the drawing has no such arrow or the caller lost his
    /// lease.
    pub fn mark(
        self,
        to: ReadState,
        guard: &LeaseProof,
        now: Timestamp,
        term: LeaseDuration,
    ) -> Result<Self, TransitionError> {
        use ReadState as To;
        use ReadStateData::{Readed, Reading, Sent, Unread};
        match &self.state {
            Reading(lease) => lease.check(self.epoch, guard)?,
            _ => guard.check_free(self.epoch)?,
        }
        let state = match (&self.state, to) {
            (from, to) if from.name() == to => return Ok(self),
            (Unread, To::Reading) => return Ok(self.lease(guard.holder.clone(), now, term)?),
            (Reading(_) | Readed, To::Unread) => Unread,
            (Reading(_), To::Readed) => Readed,
            (Unread | Reading(_) | Readed | Sent, To::Archived) => ReadStateData::Archived,
            (_, To::Deleted) => ReadStateData::Deleted,
            _ => return Err(self.wrong(to).into()),
        };
        Ok(Self { state, ..self })
    }

    fn wrong(&self, to: ReadState) -> InvalidTransition {
        InvalidTransition { from: self.state.name().as_str(), to: to.as_str() }
    }
}

impl ReadStateData {
    /// The state without the details.
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

impl ReadState {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Unread, Self::Reading, Self::Readed, Self::Sent, Self::Archived, Self::Deleted];

    /// The word the API, the CLI and the store use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unread => "UNREAD",
            Self::Reading => "READING",
            Self::Readed => "READED",
            Self::Sent => "SENT",
            Self::Archived => "ARCHIVED",
            Self::Deleted => "DELETED",
        }
    }

    /// Reads that word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

impl BoxKind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Inbox, Self::Outbox, Self::GroupInbox, Self::RequestBox, Self::TunnelOutbox];

    /// The word the API, the CLI and the store use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inbox => "INBOX",
            Self::Outbox => "OUTBOX",
            Self::GroupInbox => "GROUP_INBOX",
            Self::RequestBox => "REQUEST_BOX",
            Self::TunnelOutbox => "TUNNEL_OUTBOX",
        }
    }

    /// Reads that word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// The name of a record or a delivery, derived from what it is about.
///
/// It starts with the first half of the message's hash and ends with a tag of
/// owner, box and target. So it can be computed by anyone who knows these, and
/// found through the one index that objects have anyway.
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
    /// A [`MsgRecord`]: `rec_`.
    Record,
    /// A [`crate::delivery::Delivery`]: `dlv_`.
    Delivery,
}

/// The text is not the id of a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a record id: {0:?} (want rec_ or dlv_ and 48 lower-case hex digits)")]
pub struct InvalidRecordId(String);

impl RecordId {
    /// The record of `msg` in the `box_kind` of `owner`.
    pub fn record(owner: &Did, box_kind: BoxKind, msg: &ObjId) -> Self {
        Self::derive(RecordKind::Record, &[owner.as_str(), box_kind.as_str()], msg)
    }

    /// The delivery of `msg` to `target` through `tunnel`.
    pub fn delivery(tunnel: &Did, target: &Did, msg: &ObjId) -> Self {
        Self::derive(RecordKind::Delivery, &[tunnel.as_str(), target.as_str()], msg)
    }

    fn derive(kind: RecordKind, parts: &[&str], msg: &ObjId) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update(part.as_bytes());
            // DIDs and box names never hold a line feed, so the parts stay apart.
            hash.update(b"\n");
        }
        let digest: [u8; 32] = hash.finalize().into();
        let (Some(msg), Some(tag)) = (msg.hash().first_chunk(), digest.first_chunk()) else {
            unreachable!("a SHA-256 has 32 bytes")
        };
        Self { kind, msg: *msg, tag: *tag }
    }

    /// The id that a row with this tag has, which is about `msg`.
    pub fn from_tag(kind: RecordKind, msg: &ObjId, tag: i64) -> Self {
        let Some(msg) = msg.hash().first_chunk() else { unreachable!("a SHA-256 has 32 bytes") };
        Self { kind, msg: *msg, tag: tag.to_be_bytes() }
    }

    /// Which table it belongs to.
    pub const fn kind(&self) -> RecordKind {
        self.kind
    }

    /// The first half of its message's hash.
    pub const fn msg_prefix(&self) -> &[u8; 16] {
        &self.msg
    }

    /// What tells the records of one message apart.
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

impl TryFrom<String> for RecordId {
    type Error = InvalidRecordId;

    fn try_from(text: String) -> Result<Self, InvalidRecordId> {
        text.parse()
    }
}

impl From<RecordId> for String {
    fn from(id: RecordId) -> Self {
        id.to_string()
    }
}

/// One owner's view of one object in one box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MsgRecord {
    /// Its name.
    pub id: RecordId,
    /// Where it stands in its box: later ones are larger. Never reused.
    pub seq: i64,
    /// Whose it is.
    pub owner: Did,
    /// In which box.
    pub box_kind: BoxKind,
    /// The object it is a view of.
    pub msg_id: ObjId,
    /// Its place in the machine.
    pub reading: ReadStatus,
    /// Counts every change; swaps are guarded by it.
    pub revision: i64,
    /// The conversation it belongs to: the other party, or the group.
    pub session: Did,
    /// `group:<did>` for messages that came through a group.
    pub tags: Vec<String>,
    /// The tunnel it came through, if any.
    pub tunnel: Option<Did>,
    /// When we put it there.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_ms(secs * 1000)
    }

    fn guard(name: &str) -> LeaseProof {
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

    /// Every step from every state. A new state or step does not pass unnoticed.
    #[test]
    fn every_step_from_every_state() {
        let end = |reading: ReadStatus| reading.state.name().as_str();
        let mut table = crate::state_tables::StateTable::new("reading");
        for state in ReadState::ALL {
            let holder = Holder::new("ann").unwrap();
            let from = state.as_str();
            table.row(
                from,
                "take",
                standing(state).lease(holder, at(1), LeaseDuration::DEFAULT).map(end),
            );
            table.row(from, "expire", standing(state).expire(at(301)).map(end));
            for to in ReadState::ALL {
                let marked = standing(state).mark(to, &guard("ann"), at(1), LeaseDuration::DEFAULT);
                table.row(from, &format!("mark {}", to.as_str()), marked.map(end));
            }
        }
        table.check();
    }

    #[test]
    fn a_take_counts_and_starts_a_new_epoch() {
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
        let mark = |guard: LeaseProof| {
            let reading = ReadStatus { epoch: 3, ..standing(ReadState::Reading) };
            reading.mark(ReadState::Readed, &guard, at(1), LeaseDuration::DEFAULT)
        };
        assert!(mark(guard("ann")).is_ok());
        assert!(mark(LeaseProof { epoch: Some(3), ..guard("bob") }).is_ok());
        assert!(matches!(mark(guard("bob")), Err(TransitionError::LeaseLost(LeaseLost::Held(_)))));
        let stale = mark(LeaseProof { epoch: Some(2), ..guard("ann") });
        assert!(matches!(stale, Err(TransitionError::LeaseLost(LeaseLost::Stale { .. }))));
    }

    #[test]
    fn a_stale_epoch_is_refused_even_when_nobody_holds_it() {
        let stale = LeaseProof { epoch: Some(1), ..guard("ann") };
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
        fn record_ids_survive_printing(a in "[a-z]{1,9}", b in any::<[u8; 32]>(), delivery: bool) {
            let owner: Did = format!("did:web:{a}").parse().unwrap();
            let msg = ObjId::from_parts(crate::object::ObjKind::Msg, b);
            let id = if delivery { RecordId::delivery(&owner, &owner, &msg) }
                     else { RecordId::record(&owner, BoxKind::Inbox, &msg) };
            prop_assert_eq!(id.to_string().parse::<RecordId>().unwrap(), id);
            prop_assert_eq!(id.msg_prefix(), &b[..16]);
        }

        #[test]
        fn nothing_else_is_a_record_id(text in "(rec_|dlv_|)[0-9a-fA-F_é]{0,60}") {
            if let Ok(id) = text.parse::<RecordId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }
}
