//! Events of the courier's log.

use std::borrow::Cow;

use monoco_core::event::Event;
use serde::{Deserialize, Serialize};
use serde_json::Value;
#[cfg(test)]
use utoipa::ToSchema;

/// One event of the log.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Event))]
pub struct EventView {
    pub seq: i64,
    pub at: String,
    pub kind: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub msg_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[cfg_attr(test, schema(value_type = Object))]
    pub detail: Value,
}

/// A page of events.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct EventPage {
    pub events: Vec<EventView>,
    /// Number of the last event; pass it as `after` to get the next page
    pub last: i64,
}

impl From<Event> for EventView {
    fn from(event: Event) -> Self {
        Self {
            seq: event.seq,
            at: event.at.rfc3339(),
            kind: event.kind.as_str().into(),
            msg_id: event.msg_id.map(|id| id.to_string()),
            record_id: event.record_id.map(|id| id.to_string()),
            owner: event.owner.map(Into::into),
            detail: event.detail,
        }
    }
}
