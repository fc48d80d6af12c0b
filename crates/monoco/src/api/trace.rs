//! The story of one message.

use axum::extract::State;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::Api;
use super::input::Segments;
use super::problem::{Problem, ProblemView};
use super::views::{EventView, RecordView, raw};
use crate::center::Entry;

/// Everything about one message.
#[derive(Debug, Serialize, ToSchema)]
pub struct TraceView {
    msg_id: String,
    /// What was said; none when it is damaged
    #[schema(value_type = Option<Object>)]
    msg: Option<Box<RawValue>>,
    /// Every owner's view of it
    records: Vec<RecordView>,
    /// Every way it was sent
    deliveries: Vec<RecordView>,
    /// What happened to it, in order
    events: Vec<EventView>,
    /// Whether there is more than is shown
    truncated: bool,
}

/// Follow one message through everything that happened to it
#[utoipa::path(
    get, path = "/api/v1/trace/{id}", tag = "events",
    params(("id" = String, Path, description =
        "Any id: of the message, of a record, of a delivery, or one that a provider gave")),
    responses((status = 200, body = TraceView), (status = "4XX", body = ProblemView))
)]
pub async fn trace(
    State(api): State<Api>,
    path: Segments,
) -> Result<axum::Json<TraceView>, Problem> {
    let trace = api.center.trace(path.text("id")).await?;
    let deliveries = trace.deliveries.into_iter().map(Entry::Delivery).map(Into::into);
    Ok(axum::Json(TraceView {
        msg_id: trace.msg_id.to_string(),
        msg: trace.body.map(raw).transpose()?,
        records: trace.records.into_iter().map(Into::into).collect(),
        deliveries: deliveries.collect(),
        events: trace.events.into_iter().map(Into::into).collect(),
        truncated: trace.truncated,
    }))
}
