//! What the API shows. Domain types are never sent as they are, so that renaming
//! one breaks nobody.

use monoco_core::contact::{Contact, DeliveryPlan, TunnelInfo};
use monoco_core::delivery::{Delivery, SendStateData};
use monoco_core::event::Event;
use monoco_core::lease::Lease;
use monoco_core::record::{BoxKind, MsgRecord, ReadStateData};
use monoco_core::time::Timestamp;
use monoco_store::{Group, SessionEntry, SessionSummary};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::error::ApiError;
use crate::center::boxes::BoxEntry;

/// A record of a box, or a delivery of a TUNNEL_OUTBOX.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Record)]
pub struct RecordView {
    pub record_id: String,
    /// Whose box: a person, an agent, a group, or for a delivery the tunnel
    pub owner: String,
    pub r#box: &'static str,
    pub msg_id: String,
    pub state: &'static str,
    /// How often it was taken
    pub attempts: u32,
    /// Which take is the current one; send it back with what you do
    pub epoch: u64,
    /// Counts every change
    pub revision: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseView>,
    /// The other party of the conversation, or the group
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The tunnel it came through
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliveryView>,
    pub created_at_ms: i64,
    pub updated_at_ms: i64,
}

/// Who holds something, and until when.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Lease)]
pub struct LeaseView {
    pub holder: String,
    pub until_ms: i64,
}

/// What a delivery has beyond a record.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Delivery)]
pub struct DeliveryView {
    pub target: String,
    pub author: String,
    pub plan: PlanView,
    /// When it may be tried, while it waits
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_at_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_try_at_ms: Option<i64>,
    /// Why the last try failed: `kind` and `detail`
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub failure: Option<Value>,
    /// The provider's own id of the message
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_msg_id: Option<String>,
}

/// How a target is reached.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Plan)]
pub struct PlanView {
    pub tunnel_did: String,
    /// The account behind the tunnel
    pub address: String,
    /// `user`, `group`, `channel` or `addr`
    pub kind: String,
    pub target_did: String,
    /// `address`: the target says so itself; `binding`: by its contact
    #[schema(value_type = String)]
    pub mode: Value,
    pub priority: i32,
}

/// A record with the message it is about.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Taken)]
pub struct LeasedEntryView {
    pub record: RecordView,
    #[schema(value_type = Object)]
    pub msg: Box<RawValue>,
}

/// A page of records.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Records)]
pub struct RecordPage {
    pub records: Vec<RecordView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Something that happened.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Event)]
pub struct EventView {
    pub seq: i64,
    pub at_ms: i64,
    pub kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub msg_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[schema(value_type = Object)]
    pub detail: Value,
}

/// Somebody we know.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Contact)]
pub struct ContactView {
    pub did: String,
    pub names: Vec<String>,
    /// `block`, `stranger`, `temporary` or `friend`
    pub level: &'static str,
    /// Whether they read their mail here
    pub here: bool,
    pub bindings: Vec<BindingView>,
}

/// One way to reach a contact.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Binding)]
pub struct BindingView {
    pub tunnel: String,
    pub kind: String,
    pub address: String,
    pub priority: i32,
}

/// A group and who gets what is said in it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Group)]
pub struct GroupView {
    pub did: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub subscribers: Vec<String>,
}

/// A connection to an outside network.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Tunnel)]
pub struct TunnelView {
    pub id: String,
    pub did: String,
    pub provider: String,
    /// `accept`, `hold` or `drop`
    pub strangers: &'static str,
    /// Whether the provider recognises a second copy by its key
    pub idempotent: bool,
}

/// One message of a conversation.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Line)]
pub struct SessionEntryView {
    /// `in` or `out`
    pub direction: &'static str,
    pub record: RecordView,
    /// What was said; none when it is damaged
    #[schema(value_type = Option<Object>)]
    pub msg: Option<Box<RawValue>>,
    /// How far it got on its way out: the worst state of its deliveries
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_state: Option<&'static str>,
}

/// One conversation.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Session)]
pub struct SessionSummaryView {
    /// The other party, or the group
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How many of its messages are UNREAD
    pub unread: usize,
    pub last: SessionEntryView,
}

/// A canonical text as JSON, without reading it into parts.
pub fn raw(body: String) -> Result<Box<RawValue>, ApiError> {
    RawValue::from_string(body).map_err(|error| {
        let detail = error.to_string();
        monoco_store::StoreError::Damaged { what: "object", detail }.into()
    })
}

impl From<&Lease> for LeaseView {
    fn from(lease: &Lease) -> Self {
        Self { holder: lease.holder.as_str().to_owned(), until_ms: lease.until.ms() }
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
            r#box: record.box_kind.as_str(),
            msg_id: record.msg_id.to_string(),
            state: record.reading.state.name().as_str(),
            attempts: record.reading.attempts,
            epoch: record.reading.epoch,
            revision: record.revision,
            lease,
            session: Some(record.session.into()),
            tags: record.tags,
            tunnel: record.tunnel.map(Into::into),
            delivery: None,
            created_at_ms: record.created_at.ms(),
            updated_at_ms: record.updated_at.ms(),
        }
    }
}

impl From<Delivery> for RecordView {
    fn from(delivery: Delivery) -> Self {
        let Delivery { plan, sending, .. } = delivery;
        let (lease, due) = match &sending.state {
            SendStateData::Sending(lease) => (Some(lease.into()), None),
            SendStateData::Wait { due } | SendStateData::Failed { due, .. } => {
                (None, Some(due.ms()))
            }
            _ => (None, None),
        };
        let external_msg_id = match &sending.state {
            SendStateData::Sent { external_msg_id } => external_msg_id.clone(),
            _ => None,
        };
        Self {
            record_id: delivery.id.to_string(),
            owner: plan.tunnel_did.to_string(),
            r#box: BoxKind::TunnelOutbox.as_str(),
            msg_id: delivery.msg_id.to_string(),
            state: sending.state.name().as_str(),
            attempts: sending.attempts,
            epoch: sending.epoch,
            revision: delivery.revision,
            lease,
            session: None,
            tags: Vec::new(),
            tunnel: None,
            delivery: Some(DeliveryView {
                target: plan.target_did.to_string(),
                author: delivery.author.into(),
                plan: plan.into(),
                due_at_ms: due,
                first_try_at_ms: sending.first_try.map(Timestamp::ms),
                failure: sending.state.failure().map(|why| json!(why)),
                external_msg_id,
            }),
            created_at_ms: delivery.created_at.ms(),
            updated_at_ms: delivery.updated_at.ms(),
        }
    }
}

impl From<DeliveryPlan> for PlanView {
    fn from(plan: DeliveryPlan) -> Self {
        Self {
            tunnel_did: plan.tunnel_did.into(),
            address: plan.address,
            kind: plan.kind.to_string(),
            target_did: plan.target_did.into(),
            mode: json!(plan.mode),
            priority: plan.priority,
        }
    }
}

impl From<Event> for EventView {
    fn from(event: Event) -> Self {
        Self {
            seq: event.seq,
            at_ms: event.at.ms(),
            kind: event.kind.as_str(),
            msg_id: event.msg_id.map(|id| id.to_string()),
            record_id: event.record_id.map(|id| id.to_string()),
            owner: event.owner.map(Into::into),
            detail: event.detail,
        }
    }
}

impl From<Contact> for ContactView {
    fn from(contact: Contact) -> Self {
        let bindings = contact.bindings.into_iter().map(|binding| BindingView {
            tunnel: binding.tunnel.into(),
            kind: binding.kind.to_string(),
            address: binding.address,
            priority: binding.priority,
        });
        Self {
            did: contact.did.into(),
            names: contact.names,
            level: contact.level.as_str(),
            here: contact.here,
            bindings: bindings.collect(),
        }
    }
}

impl From<Group> for GroupView {
    fn from(group: Group) -> Self {
        let subscribers = group.subscribers.into_iter().map(Into::into).collect();
        Self { did: group.did.into(), name: group.name, subscribers }
    }
}

impl From<TunnelInfo> for TunnelView {
    fn from(tunnel: TunnelInfo) -> Self {
        Self {
            did: tunnel.id.did().into(),
            id: tunnel.id.into(),
            provider: tunnel.provider,
            strangers: tunnel.strangers.as_str(),
            idempotent: tunnel.idempotent,
        }
    }
}

impl TryFrom<SessionEntry> for SessionEntryView {
    type Error = ApiError;

    fn try_from(line: SessionEntry) -> Result<Self, ApiError> {
        let out = line.record.box_kind == BoxKind::Outbox;
        Ok(Self {
            direction: if out { "out" } else { "in" },
            msg: line.body.map(raw).transpose()?,
            record: line.record.into(),
            delivery_state: line.delivery.map(|state| state.as_str()),
        })
    }
}

impl TryFrom<SessionSummary> for SessionSummaryView {
    type Error = ApiError;

    fn try_from(session: SessionSummary) -> Result<Self, ApiError> {
        Ok(Self {
            id: session.peer.into(),
            name: session.name,
            unread: session.unread,
            last: session.last.try_into()?,
        })
    }
}
