//! Boxes, records and deliveries.

use std::borrow::Cow;

use monoco_core::contact::{DeliveryMode, DeliveryPlan};
use monoco_core::delivery::{Delivery, SendStateData, SentPart};
use monoco_core::lease::Lease;
use monoco_core::record::{BoxKind, MsgRecord, ReadStateData};
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use monoco_store::{BoxSummary, Page};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
#[cfg(test)]
use utoipa::ToSchema;

#[cfg(test)]
use super::schemas::{FailureSchema, MsgObjectSchema};
use crate::center::boxes::BoxEntry;

/// A box and its number of waiting entries.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Box))]
pub struct BoxView {
    pub owner: String,
    pub r#box: Cow<'static, str>,
    /// Entries that wait, counted up to 1000
    pub waiting: usize,
}

/// A page of boxes.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Boxes))]
pub struct BoxPage {
    pub boxes: Vec<BoxView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A record of a box, or a delivery of a TUNNEL_OUTBOX.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Record))]
pub struct RecordView {
    pub record_id: String,
    /// Owner of the box: a person, an agent, a group, or for a delivery the tunnel
    pub owner: String,
    pub r#box: Cow<'static, str>,
    pub msg_id: String,
    pub state: Cow<'static, str>,
    /// Number of leases so far
    pub attempts: u32,
    /// Number of the current lease; send it with every report about this entry
    pub epoch: u64,
    /// Number of changes so far
    pub revision: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseView>,
    /// The other party of the conversation, or the group
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The thread of the message within the conversation
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_key: Option<String>,
    /// The tunnel that the message was received through
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliveryView>,
    pub created_at: String,
    pub updated_at: String,
}

/// Who holds an entry, and until when.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Lease))]
pub struct LeaseView {
    pub holder: String,
    pub until: String,
}

/// The fields that a delivery has beyond those of a record.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Delivery))]
pub struct DeliveryView {
    pub target: String,
    pub author: String,
    pub plan: PlanView,
    /// Time of the next attempt, while the delivery waits
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_try_at: Option<String>,
    /// Why the last attempt failed
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(value_type = Option<FailureSchema>))]
    pub failure: Option<Failure>,
    /// The provider's id of the message
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_msg_id: Option<String>,
    /// The parts that were sent, when the message was too long for one
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartView>,
    /// Whether the next attempt first looks for the message at the provider
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outcome_unknown: bool,
    /// When the provider accepted the message
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_at: Option<String>,
}

/// One part of a message that was sent in several.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Part))]
pub struct PartView {
    /// Number of the part, from 0
    pub part: u32,
    /// The provider's id of the part
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_msg_id: Option<String>,
}

/// How a target is reached.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Plan))]
pub struct PlanView {
    pub tunnel_did: String,
    /// The account behind the tunnel
    pub address: String,
    /// `user`, `group`, `channel` or `addr`
    pub kind: String,
    pub target_did: String,
    /// `address`: the DID of the target contains the address; `binding`: a binding of the contact
    #[cfg_attr(test, schema(value_type = String))]
    pub mode: DeliveryMode,
    pub priority: i32,
}

/// A leased record or delivery with its message.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = LeasedEntry))]
pub struct LeasedEntryView {
    pub record: RecordView,
    #[cfg_attr(test, schema(value_type = MsgObjectSchema))]
    pub msg: Box<RawValue>,
}

/// A page of records or deliveries.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Records))]
pub struct RecordPage {
    pub records: Vec<RecordView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl From<BoxSummary> for BoxView {
    fn from(summary: BoxSummary) -> Self {
        Self {
            owner: summary.owner.into(),
            r#box: summary.box_kind.as_str().into(),
            waiting: summary.waiting,
        }
    }
}

impl From<&Lease> for LeaseView {
    fn from(lease: &Lease) -> Self {
        Self { holder: lease.holder.as_str().to_owned(), until: lease.until.rfc3339() }
    }
}

impl From<Page<BoxEntry>> for RecordPage {
    fn from(page: Page<BoxEntry>) -> Self {
        let records = page.entries.into_iter().map(Into::into).collect();
        Self { records, next_cursor: None }
    }
}

impl From<BoxEntry> for RecordView {
    fn from(entry: BoxEntry) -> Self {
        match entry {
            BoxEntry::Record(record) => record.into(),
            BoxEntry::Delivery(delivery) => delivery.into(),
        }
    }
}

impl From<MsgRecord> for RecordView {
    fn from(record: MsgRecord) -> Self {
        let lease = match &record.reading.state {
            ReadStateData::Reading(lease) => Some(lease.into()),
            _ => None,
        };
        Self {
            record_id: record.id.to_string(),
            owner: record.owner.into(),
            r#box: record.box_kind.as_str().into(),
            msg_id: record.msg_id.to_string(),
            state: record.reading.state.name().as_str().into(),
            attempts: record.reading.attempts,
            epoch: record.reading.epoch,
            revision: record.revision,
            lease,
            session: Some(record.session.into()),
            tags: record.tags,
            thread_key: record.thread_key,
            tunnel: record.tunnel.map(Into::into),
            delivery: None,
            created_at: record.created_at.rfc3339(),
            updated_at: record.updated_at.rfc3339(),
        }
    }
}

impl From<Delivery> for RecordView {
    fn from(delivery: Delivery) -> Self {
        let Delivery { plan, sending, .. } = delivery;
        let (mut lease, mut due_at, mut external_msg_id) = (None, None, None);
        let mut sent_at = None;
        match &sending.state {
            SendStateData::Sending(held) => lease = Some(held.into()),
            SendStateData::Wait { due } | SendStateData::Failed { due, .. } => {
                due_at = Some(due.rfc3339());
            }
            SendStateData::Sent { external_msg_id: id, delivered_at } => {
                external_msg_id.clone_from(id);
                sent_at = Some(delivered_at.rfc3339());
            }
            _ => {}
        }
        Self {
            record_id: delivery.id.to_string(),
            owner: plan.tunnel_did.to_string(),
            r#box: BoxKind::TunnelOutbox.as_str().into(),
            msg_id: delivery.msg_id.to_string(),
            state: sending.state.name().as_str().into(),
            attempts: sending.attempts,
            epoch: sending.epoch,
            revision: delivery.revision,
            lease,
            session: None,
            tags: Vec::new(),
            thread_key: None,
            tunnel: None,
            delivery: Some(DeliveryView {
                target: plan.target_did.to_string(),
                author: delivery.author.into(),
                plan: plan.into(),
                due_at,
                first_try_at: sending.first_try.map(Timestamp::rfc3339),
                failure: sending.state.failure().cloned(),
                external_msg_id,
                parts: delivery.parts.into_iter().map(Into::into).collect(),
                outcome_unknown: sending.outcome_unknown,
                delivered_at: sent_at,
            }),
            created_at: delivery.created_at.rfc3339(),
            updated_at: delivery.updated_at.rfc3339(),
        }
    }
}

impl DeliveryView {
    /// Returns the provider's ids of the parts; `?` for a part without one.
    pub fn part_ids(&self) -> Vec<String> {
        let id = |part: &PartView| part.external_msg_id.clone().unwrap_or_else(|| "?".to_owned());
        self.parts.iter().map(id).collect()
    }
}

impl From<SentPart> for PartView {
    fn from(part: SentPart) -> Self {
        Self { part: part.part, external_msg_id: part.external_msg_id }
    }
}

impl From<DeliveryPlan> for PlanView {
    fn from(plan: DeliveryPlan) -> Self {
        Self {
            tunnel_did: plan.tunnel_did.into(),
            address: plan.address,
            kind: plan.kind.to_string(),
            target_did: plan.target_did.into(),
            mode: plan.mode,
            priority: plan.priority,
        }
    }
}
