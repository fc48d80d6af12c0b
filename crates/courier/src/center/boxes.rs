//! Lists and changes the entries of boxes: records and deliveries alike.

use monoco_core::delivery::{Delivery, SendState, SendStateData};
use monoco_core::did::Did;
use monoco_core::lease::{Lease, LeaseDuration, LeaseProof};
use monoco_core::record::{BoxKind, MsgRecord, ReadState, ReadStateData, RecordId, RecordKind};
use monoco_core::time::Timestamp;
use monoco_store::{Page, PageRequest, RecordFilter, SharedStore, StoreResult};

use super::{CenterError, UnknownState, check_owner};

/// An entry of a box: a delivery in a TUNNEL_OUTBOX, a record in any other box.
#[derive(Clone, Debug)]
pub enum BoxEntry {
    Record(MsgRecord),
    Delivery(Delivery),
}

impl BoxEntry {
    /// The owner of the box: for a delivery, its tunnel.
    pub fn owner(&self) -> &Did {
        match self {
            Self::Record(record) => &record.owner,
            Self::Delivery(delivery) => &delivery.plan.tunnel_did,
        }
    }

    /// The lease of the entry; `None` when it is not leased.
    pub fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Record(record) => match &record.reading.state {
                ReadStateData::Reading(lease) => Some(lease),
                _ => None,
            },
            Self::Delivery(delivery) => match &delivery.sending.state {
                SendStateData::Sending(lease) => Some(lease),
                _ => None,
            },
        }
    }
}

/// States of entries that a caller asked for.
#[derive(Clone, Debug)]
pub(super) enum StateFilter {
    Read(Vec<ReadState>),
    Send(Vec<SendState>),
}

impl StateFilter {
    pub(super) fn parse(box_kind: BoxKind, names: &[String]) -> Result<Self, UnknownState> {
        Ok(if box_kind == BoxKind::TunnelOutbox {
            Self::Send(names.iter().map(|name| parse_send_state(name)).collect::<Result<_, _>>()?)
        } else {
            Self::Read(names.iter().map(|name| parse_read_state(name)).collect::<Result<_, _>>()?)
        })
    }
}

/// Lists entries of a box in the order they were created.
///
/// # Errors
///
/// When the owner or a state is unknown, or the store fails.
pub async fn list(
    store: &SharedStore,
    owner: &Did,
    box_kind: BoxKind,
    states: &[String],
    tag: Option<String>,
    thread_key: Option<String>,
    request: PageRequest,
) -> Result<Page<BoxEntry>, CenterError> {
    check_owner(store, owner).await?;
    Ok(match StateFilter::parse(box_kind, states)? {
        StateFilter::Read(states) => {
            let filter = RecordFilter { states, tag, thread_key };
            let page = store.records(owner, box_kind, &filter, request).await?;
            let entries = page.entries.into_iter().map(BoxEntry::Record).collect();
            Page { entries, next: page.next }
        }
        StateFilter::Send(_) if tag.is_some() || thread_key.is_some() => {
            return Err(CenterError::DeliveriesHaveNoTags);
        }
        StateFilter::Send(states) => {
            let page = store.deliveries(owner, &states, request).await?;
            let entries = page.entries.into_iter().map(BoxEntry::Delivery).collect();
            Page { entries, next: page.next }
        }
    })
}

/// Lists the entries that [`super::lease::lease_next`] would return, without leasing them.
///
/// # Errors
///
/// When the owner is unknown or the store fails.
pub async fn peek(
    store: &SharedStore,
    owner: &Did,
    box_kind: BoxKind,
    count: usize,
) -> Result<Page<BoxEntry>, CenterError> {
    let waiting: &[String] = match box_kind {
        BoxKind::TunnelOutbox => &["WAIT".to_owned(), "FAILED".to_owned()],
        BoxKind::Outbox => &["SENT".to_owned()],
        _ => &["UNREAD".to_owned()],
    };
    let request = PageRequest { beyond: None, limit: count, newest_first: false };
    list(store, owner, box_kind, waiting, None, None, request).await
}

/// Gets one record or delivery.
///
/// # Errors
///
/// `StoreError::Missing` when there is none with this id.
pub async fn get(store: &SharedStore, id: RecordId) -> StoreResult<BoxEntry> {
    match id.kind() {
        RecordKind::Record => store.record(id).await.map(BoxEntry::Record),
        RecordKind::Delivery => store.delivery(id).await.map(BoxEntry::Delivery),
    }
}

/// Changes the state of a record or a delivery.
///
/// # Errors
///
/// When the state is unknown, the transition is invalid, or the lease or revision does not
/// match.
pub async fn update_state(
    store: &SharedStore,
    id: RecordId,
    state: &str,
    proof: LeaseProof,
    revision: Option<i64>,
    duration: LeaseDuration,
    now: Timestamp,
) -> Result<BoxEntry, CenterError> {
    Ok(match id.kind() {
        RecordKind::Record => {
            let to = parse_read_state(state)?;
            BoxEntry::Record(store.mark_record(id, to, proof, revision, duration, now).await?)
        }
        RecordKind::Delivery => {
            let to = parse_send_state(state)?;
            BoxEntry::Delivery(store.mark_delivery(id, to, proof, revision, now).await?)
        }
    })
}

/// Longest part of an unknown state that an error quotes, in characters.
const MAX_QUOTED_CHARS: usize = 40;

fn parse_read_state(name: &str) -> Result<ReadState, UnknownState> {
    ReadState::parse(name).ok_or_else(|| UnknownState {
        found: name.chars().take(MAX_QUOTED_CHARS).collect(),
        of: "a record",
        known: ReadState::ALL.map(ReadState::as_str).to_vec(),
    })
}

fn parse_send_state(name: &str) -> Result<SendState, UnknownState> {
    SendState::parse(name).ok_or_else(|| UnknownState {
        found: name.chars().take(MAX_QUOTED_CHARS).collect(),
        of: "a delivery",
        known: SendState::ALL.map(SendState::as_str).to_vec(),
    })
}
