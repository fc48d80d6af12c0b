//! Letters: list them, retry, trash, restore and replay them.

use axum::extract::State;
use monoco_core::letter::{ChainDirection, LetterId, LetterState};
use monoco_core::time::Timestamp;
use monoco_store::{LetterQuery, OperatorAction, PageRequest, StoreError};
use serde::Deserialize;
use serde_json::Value;
#[cfg(test)]
use utoipa::ToSchema;

use super::error::ApiError;
use super::input::{self, JsonBody, PathParams, QueryParams};
use super::views::letters::{LetterDetailView, LetterPage, LetterView};
use super::{Api, SharedApi, ids};
use crate::pipeline::letter_pages::LetterPages;

/// Longest reason for trashing a letter, in bytes. The rest is cut.
const MAX_REASON_BYTES: usize = 500;

/// The parameters of a query, in order. A name may occur more than once.
pub type QueryPairs = Vec<(String, String)>;

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct LetterDetailQuery {
    /// Also return the letter as it was accepted; default false
    original: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TrashLetterBody {
    /// Why the letter is trashed, at most 500 bytes
    reason: Option<String>,
}

/// List letters, newest first
///
/// Without their text, and with at most ten recipients of each.
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/letters", operation_id = "list_letters",
    tag = "letters",
    params(
        ("state" = Option<String>, Query, description =
            "States to list, separated by commas or repeated: WAITING, AWAY, DONE, MERGED, TRASHED, DEAD"),
        ("worker" = Option<String>, Query, description = "Worker that is next or holds the letter"),
        ("direction" = Option<String>, Query, description = "`inbound` or `outbound`"),
        ("tunnel" = Option<String>, Query, description = "Tunnel of the letters"),
        ("since" = Option<String>, Query, description = "Earliest time of acceptance, RFC 3339"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
        ("limit" = Option<i64>, Query, description = "Maximum number of letters, 1 to 1000; default 50"),
    ),
    responses((status = 200, body = LetterPage))
))]
pub async fn list(
    State(api): State<SharedApi>,
    QueryParams(pairs): QueryParams<QueryPairs>,
) -> Result<axum::Json<LetterPage>, ApiError> {
    let (query, request) = parse_query(pairs)?;
    let mut pages = LetterPages::new(query, request.clone());
    let mut letters = Vec::new();
    while let Some(page) = pages.next_page(&api.store).await? {
        letters.extend(page.iter().map(LetterView::from));
    }
    let next_cursor = input::next_cursor("letters", &request, pages.next());
    Ok(axum::Json(LetterPage { letters, next_cursor }))
}

fn parse_query(pairs: QueryPairs) -> Result<(LetterQuery, PageRequest), ApiError> {
    let mut query = LetterQuery::default();
    let mut paging = input::PagingQuery { cursor: None, limit: None, order: None };
    for (name, value) in pairs {
        let bad = |why: String| ApiError::bad_parameter(&name, why);
        match name.as_str() {
            "state" => {
                for word in value.split(',') {
                    query.states.push(LetterState::parse(word.trim()).ok_or_else(|| {
                        let known = LetterState::ALL.map(LetterState::as_str).join(", ");
                        bad(format!("expected one of {known}"))
                    })?);
                }
            }
            "worker" => query.worker = Some(parse(&value).map_err(bad)?),
            "direction" => query.direction = Some(parse_direction(&value).map_err(bad)?),
            "tunnel" => query.tunnel = Some(parse(&value).map_err(bad)?),
            "since" => query.since = Some(parse_time(&value).map_err(bad)?),
            "cursor" => paging.cursor = Some(value),
            "limit" => paging.limit = Some(parse(&value).map_err(bad)?),
            _ => {
                let known = "state, worker, direction, tunnel, since, cursor or limit";
                return Err(bad(format!("unknown parameter; expected {known}")));
            }
        }
    }
    Ok((query, paging.page_request("letters")?))
}

fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

pub fn parse_direction(text: &str) -> Result<ChainDirection, String> {
    ChainDirection::parse(text).ok_or_else(|| "expected inbound or outbound".to_owned())
}

pub fn parse_time(text: &str) -> Result<Timestamp, String> {
    Timestamp::from_rfc3339(text).map_err(|error| error.to_string())
}

/// Get a letter with its text
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/letters/{id}", operation_id = "get_letter",
    tag = "letters",
    params(("id" = String, Path, description = "Id of the letter, `ltr_…`, or `ltr_` and its number"), LetterDetailQuery),
    responses((status = 200, body = LetterDetailView))
))]
pub async fn show(
    State(api): State<SharedApi>,
    path: PathParams,
    QueryParams(LetterDetailQuery { original }): QueryParams<LetterDetailQuery>,
) -> Result<axum::Json<LetterDetailView>, ApiError> {
    let row = api.store.letter(letter_id(&api, &path).await?).await?;
    let wanted = original.unwrap_or(false);
    let original = row.source.letter().ok().filter(|letter| wanted && *letter != row.letter);
    let merged = row.letter.extra.get("merged").and_then(Value::as_array);
    let merged = merged.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    Ok(axum::Json(LetterDetailView {
        view: LetterView::with_notes(&row),
        letter: row.letter.to_json(row.id, &row.verdicts),
        original: original.map(|letter| letter.to_json(row.id, &[])),
        merged: merged.collect(),
        revision: row.revision,
    }))
}

/// Retry a dead letter, or process a waiting letter now
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/letters/{id}/retry", operation_id = "retry_letter",
    tag = "letters",
    params(("id" = String, Path, description = "Id of the letter, `ltr_…`, or `ltr_` and its number")),
    responses((status = 200, body = LetterView))
))]
pub async fn retry(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<LetterView>, ApiError> {
    operate(&api, &path, OperatorAction::Retry).await
}

/// Trash a letter
///
/// It stays in the trash until it is purged by retention, and can be restored until then.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/letters/{id}/trash", operation_id = "trash_letter",
    tag = "letters", request_body = TrashLetterBody,
    params(("id" = String, Path, description = "Id of the letter, `ltr_…`, or `ltr_` and its number")),
    responses((status = 200, body = LetterView))
))]
pub async fn trash(
    State(api): State<SharedApi>,
    path: PathParams,
    JsonBody(TrashLetterBody { reason }): JsonBody<TrashLetterBody>,
) -> Result<axum::Json<LetterView>, ApiError> {
    let mut why = reason.unwrap_or_else(|| "by hand".to_owned());
    why.truncate(why.floor_char_boundary(MAX_REASON_BYTES));
    operate(&api, &path, OperatorAction::Trash { why }).await
}

/// Restore a trashed letter
///
/// It continues with the worker after the one that trashed it.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/letters/{id}/restore", operation_id = "restore_letter",
    tag = "letters",
    params(("id" = String, Path, description = "Id of the letter, `ltr_…`, or `ltr_` and its number")),
    responses((status = 200, body = LetterView))
))]
pub async fn restore(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<LetterView>, ApiError> {
    operate(&api, &path, OperatorAction::Restore).await
}

/// Replay a letter through its chain, as it was accepted
///
/// Only a letter that is TRASHED or DEAD: a letter that was sent or delivered is not sent again.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/letters/{id}/replay", operation_id = "replay_letter",
    tag = "letters",
    params(("id" = String, Path, description = "Id of the letter, `ltr_…`, or `ltr_` and its number")),
    responses((status = 200, body = LetterView))
))]
pub async fn replay(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<LetterView>, ApiError> {
    operate(&api, &path, OperatorAction::Replay).await
}

async fn operate(
    api: &Api,
    path: &PathParams,
    action: OperatorAction,
) -> Result<axum::Json<LetterView>, ApiError> {
    let id = letter_id(api, path).await?;
    let row = api.pipeline.move_letter(id, action).await.map_err(transition_error)?;
    Ok(axum::Json(LetterView::with_notes(&row)))
}

/// Adds the next step to the error of an invalid transition.
fn transition_error(error: StoreError) -> ApiError {
    let StoreError::InvalidTransition(wrong) = &error else { return error.into() };
    let why = match wrong.from {
        "WAITING" => "the letter is being processed; wait for it to finish",
        "AWAY" => "an external worker is processing it; wait for its timeout or trash it",
        "DONE" => "the letter was sent or delivered, which cannot be undone",
        "MERGED" => "the letter was merged into another one; use that letter",
        "TRASHED" => "the letter is in the trash; restore it first",
        "DEAD" => "the letter is dead; retry or trash it",
        _ => return error.into(),
    };
    ApiError::wrong_state(wrong, why)
}

/// The id in the path. Text that is not an id is reported as a letter that does not exist.
async fn letter_id(api: &Api, path: &PathParams) -> Result<LetterId, ApiError> {
    let text = path.text("id");
    let missing =
        |_| StoreError::Missing { what: "letter", key: text.chars().take(80).collect() }.into();
    ids::resolve(api, text, missing).await
}
