//! The history of one message.

use axum::extract::State;
use monoco_core::letter::LetterId;

use super::caller::Caller;
use super::error::ApiError;
use super::input::PathParams;
use super::views::letters::LetterView;
use super::views::trace::TraceView;
use super::{Api, SharedApi, ids, visibility};
use crate::center::trace::{self, LetterTrace};

/// Get the history of a message
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/trace/{id}", operation_id = "trace_message",
    tag = "events",
    params(("id" = String, Path, description =
        "Id of a message, Mail, letter, record or delivery, which can be shortened, or an id given by a provider")),
    responses((status = 200, body = TraceView))
))]
pub async fn trace(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
) -> Result<axum::Json<TraceView>, ApiError> {
    trace_of(&api, &caller, path.text("id")).await
}

/// The history of the message that `id` refers to, if the caller may see it.
pub async fn trace_of(
    api: &Api,
    caller: &Caller,
    id: &str,
) -> Result<axum::Json<TraceView>, ApiError> {
    let whole = ids::expand(api, id).await?;
    let id = whole.as_deref().unwrap_or(id);
    let Ok(letter) = id.parse::<LetterId>() else {
        let trace = trace::trace(&api.store, id).await?;
        visibility::read_message(api, caller, &trace).await?;
        return Ok(axum::Json(trace.try_into()?));
    };
    let LetterTrace { letters, message } = trace::trace_letter(&api.store, letter).await?;
    visibility::read_letter(api, caller, &letters, message.as_ref()).await?;
    let mut view = message.map(TraceView::try_from).transpose()?.unwrap_or_default();
    let mut letters: Vec<_> = letters.iter().map(LetterView::with_notes).collect();
    letters.retain(|own| view.letters.iter().all(|letter| letter.id != own.id));
    letters.append(&mut view.letters);
    Ok(axum::Json(TraceView { letters, ..view }))
}
