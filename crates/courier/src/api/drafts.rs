//! Dead drafts: retries and drops them.

use std::io;
use std::sync::Arc;

use axum::extract::State;
use monoco_store::StoreError;

use super::SharedApi;
use super::error::ApiError;
use super::input::PathParams;
use super::views::dead::DeadDraftView;
use crate::courier::dead_drafts::{DeadDraft, DeadDrafts};

/// Retry a dead draft: move its file back into the outbound directory
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/drafts/{id}/retry", operation_id = "retry_draft",
    tag = "mails",
    params(("id" = String, Path, description = "Id of the draft")),
    responses((status = 200, body = DeadDraftView))
))]
pub async fn retry(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<DeadDraftView>, ApiError> {
    change(&api, &path, |drafts, uid| drafts.retry(uid)).await
}

/// Drop a dead draft: move its file to the archive
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/drafts/{id}/drop", operation_id = "drop_draft",
    tag = "mails",
    params(("id" = String, Path, description = "Id of the draft")),
    responses((status = 200, body = DeadDraftView))
))]
pub async fn drop_draft(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<DeadDraftView>, ApiError> {
    let (retention, _) = api.store.advance_retention_clock(api.clock.now()).await?;
    change(&api, &path, move |drafts, uid| drafts.archive(uid, retention.day())).await
}

async fn change(
    api: &SharedApi,
    path: &PathParams,
    change: impl FnOnce(&DeadDrafts, &str) -> io::Result<Option<DeadDraft>> + Send + 'static,
) -> Result<axum::Json<DeadDraftView>, ApiError> {
    let uid = path.text("id").to_owned();
    let missing = StoreError::Missing { what: "dead draft", key: uid.clone() };
    let changed = read(&api.dead_drafts, move |drafts| change(drafts, &uid)).await?;
    Ok(axum::Json(changed.ok_or(missing)?.into()))
}

/// Runs an operation on the files of dead drafts.
///
/// # Errors
///
/// When the file system returns an error.
pub async fn read<T: Send + 'static>(
    drafts: &Arc<DeadDrafts>,
    operation: impl FnOnce(&DeadDrafts) -> io::Result<T> + Send + 'static,
) -> Result<T, ApiError> {
    let drafts = Arc::clone(drafts);
    let done = tokio::task::spawn_blocking(move || operation(&drafts)).await;
    let done = done.unwrap_or_else(|error| Err(io::Error::other(error)));
    done.map_err(|error| StoreError::Unavailable(format!("dead drafts: {error}")).into())
}
