//! The story of one message.

use axum::extract::State;
use monoco_core::letter::LetterId;
use monoco_store::MessageTrace;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::error::{ApiError, ApiErrorView};
use super::input::PathParams;
use super::letters::LetterView;
use super::views::{EventView, RecordView, raw};
use super::{Api, SharedApi};
use crate::center::boxes::BoxEntry;
use crate::center::trace::{self, LetterTrace};
use crate::courier::locks_file::OpenClaimView;

/// Everything about one message.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct TraceView {
    /// None for a letter that is no message yet
    #[serde(skip_serializing_if = "Option::is_none")]
    msg_id: Option<String>,
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
    /// What it was merged from: each message's `id`, `from`, `at` and `received_at`
    #[schema(value_type = Vec<Object>)]
    heard: Vec<Value>,
    /// The letters that it was made of, or became, with what workers said of them
    letters: Vec<LetterView>,
    /// Every workspace's claim on that
    claims: Vec<OpenClaimView>,
    /// What happened to it, in order
    events: Vec<EventView>,
    /// Whether there is more than is shown
    truncated: bool,
}

/// Follow one message through everything that happened to it
#[utoipa::path(
    get, path = "/api/v1/trace/{id}", tag = "events",
    params(("id" = String, Path, description =
        "Any id: of the message, of a Mail, of a letter, of a record, of a delivery, or one that a provider gave")),
    responses((status = 200, body = TraceView), (status = "4XX", body = ApiErrorView))
)]
pub async fn trace(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<TraceView>, ApiError> {
    story(&api, path.text("id")).await
}

/// Everything about the message that `id` refers to.
pub async fn story(api: &Api, id: &str) -> Result<axum::Json<TraceView>, ApiError> {
    let Ok(letter) = id.parse::<LetterId>() else {
        let trace = trace::trace(&api.store, id).await?;
        return Ok(axum::Json(TraceView::try_from(trace)?));
    };
    let LetterTrace { letters, message } = trace::trace_letter(&api.store, letter).await?;
    let mut view = message.map(TraceView::try_from).transpose()?.unwrap_or_default();
    let mut letters: Vec<_> = letters.iter().map(LetterView::whole).collect();
    letters.retain(|own| view.letters.iter().all(|letter| letter.id != own.id));
    letters.append(&mut view.letters);
    Ok(axum::Json(TraceView { letters, ..view }))
}

impl TryFrom<MessageTrace> for TraceView {
    type Error = ApiError;

    fn try_from(trace: MessageTrace) -> Result<Self, ApiError> {
        let deliveries = trace.deliveries.into_iter().map(BoxEntry::Delivery).map(Into::into);
        Ok(Self {
            msg_id: Some(trace.msg_id.to_string()),
            heard: trace.body.as_deref().map(heard).unwrap_or_default(),
            msg: trace.body.map(raw).transpose()?,
            records: trace.records.into_iter().map(Into::into).collect(),
            deliveries: deliveries.collect(),
            mail: trace.mail.map(|entry| json!(entry)),
            letters: trace.letters.iter().map(LetterView::whole).collect(),
            claims: trace.claims.iter().map(OpenClaimView::from).collect(),
            events: trace.events.into_iter().map(Into::into).collect(),
            truncated: trace.truncated,
        })
    }
}

/// What a Mail was merged from, without the texts.
fn heard(body: &str) -> Vec<Value> {
    let msg: Value = serde_json::from_str(body).unwrap_or_default();
    let messages = msg.pointer("/content/machine/data/messages").and_then(Value::as_array);
    let fields = ["id", "from", "at", "received_at"];
    messages
        .into_iter()
        .flatten()
        .map(|message| {
            fields.iter().map(|key| ((*key).to_owned(), message[*key].clone())).collect()
        })
        .collect()
}
