//! The story of one message.

use axum::extract::State;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::Api;
use super::input::Segments;
use super::problem::{Problem, ProblemView};
use super::views::{EventView, RecordView, raw};
use crate::center::Entry;
use crate::courier::locks::ClaimView;

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
    /// The Mail it is, when it is one
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    mail: Option<Value>,
    /// What it was merged from: each message's `id`, `from`, `at` and `heard_at`
    #[schema(value_type = Vec<Object>)]
    heard: Vec<Value>,
    /// Every workspace's claim on that
    claims: Vec<ClaimView>,
    /// What happened to it, in order
    events: Vec<EventView>,
    /// Whether there is more than is shown
    truncated: bool,
}

/// Follow one message through everything that happened to it
#[utoipa::path(
    get, path = "/api/v1/trace/{id}", tag = "events",
    params(("id" = String, Path, description =
        "Any id: of the message, of a Mail, of a record, of a delivery, or one that a provider gave")),
    responses((status = 200, body = TraceView), (status = "4XX", body = ProblemView))
)]
pub async fn trace(
    State(api): State<Api>,
    path: Segments,
) -> Result<axum::Json<TraceView>, Problem> {
    story(&api, path.text("id")).await
}

/// Everything about the message that `id` leads to.
pub async fn story(api: &Api, id: &str) -> Result<axum::Json<TraceView>, Problem> {
    let trace = api.center.trace(id).await?;
    let deliveries = trace.deliveries.into_iter().map(Entry::Delivery).map(Into::into);
    Ok(axum::Json(TraceView {
        msg_id: trace.msg_id.to_string(),
        heard: trace.body.as_deref().map(heard).unwrap_or_default(),
        msg: trace.body.map(raw).transpose()?,
        records: trace.records.into_iter().map(Into::into).collect(),
        deliveries: deliveries.collect(),
        mail: trace.mail.map(|entry| json!(entry)),
        claims: trace.claims.iter().map(ClaimView::from).collect(),
        events: trace.events.into_iter().map(Into::into).collect(),
        truncated: trace.truncated,
    }))
}

/// What a Mail was merged from, without the texts.
fn heard(body: &str) -> Vec<Value> {
    let msg: Value = serde_json::from_str(body).unwrap_or_default();
    let messages = msg.pointer("/content/machine/data/messages").and_then(Value::as_array);
    let fields = ["id", "from", "at", "heard_at"];
    messages
        .into_iter()
        .flatten()
        .map(|message| {
            fields.iter().map(|key| ((*key).to_owned(), message[*key].clone())).collect()
        })
        .collect()
}
