//! The index and the files of Mails, for workspaces on machines without a courier.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use monoco_core::claim::Workspace;
use monoco_core::mail::{Mail, digest};
use monoco_store::{FileChange, StoreError};
use serde::Deserialize;
#[cfg(test)]
use utoipa::IntoParams;

use super::caller::Caller;
use super::error::ApiError;
use super::input::{self, MAX_PAGE, PathParams, QueryParams};
use super::mails::mail_id;
use super::views::mails::MailIndexPage;
use super::{SharedApi, visibility};

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct MailIndexQuery {
    /// `last` of the previous page; default 0
    after: Option<i64>,
    /// Maximum number of Mails, 1 to 1000; default 1000
    limit: Option<i64>,
}

/// List the index of Mails, the oldest first
///
/// The lines of the index that workspaces read. When `generation` differs from that of an earlier
/// page, lines have changed or were removed: read the index again from the start.
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/mailbox/index", operation_id = "list_mail_index",
    tag = "mails", params(MailIndexQuery),
    responses((status = 200, body = MailIndexPage))
))]
pub async fn index(
    State(api): State<SharedApi>,
    QueryParams(MailIndexQuery { after, limit }): QueryParams<MailIndexQuery>,
) -> Result<axum::Json<MailIndexPage>, ApiError> {
    let after = after.unwrap_or(0).max(0);
    let limit = input::count("limit", limit, MAX_PAGE, MAX_PAGE)?;
    let courier = api.duties.run().id;
    // Before the lines: a page of an older generation is then read again.
    let generation = api.store.file_progress(courier).await?.generation;
    let changes = api.store.list_index_entries(after, limit).await?;
    let has_more = changes.len() == limit;
    let last = changes.last().map_or(after, |change| change.entry.seq);
    let entries = changes.into_iter().filter(FileChange::is_listed).map(|change| change.entry);
    Ok(axum::Json(MailIndexPage {
        // Another courier of a shared store rewrites its index at other times.
        generation: format!("{}-{generation}", courier.short()),
        entries: entries.collect(),
        last,
        has_more,
    }))
}

/// Get the file of a Mail
///
/// Markdown with a YAML front matter, exactly the bytes whose SHA-256 is in the index.
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/messages/{id}/file", operation_id = "get_mail_file",
    tag = "mails",
    params(("id" = String, Path, description = "Id of the Mail")),
    responses((status = 200, description = "The file", content((String = "text/markdown"))))
))]
pub async fn file(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
) -> Result<Response, ApiError> {
    let id = mail_id(&api, &path).await?;
    let row = api.store.mail(&id, &Workspace::shared()).await?;
    visibility::read_mail(&api, &caller, &row).await?;
    let entry = row.entry;
    if let Some(at) = entry.tombstone() {
        return Err(StoreError::Erased { key: id.to_string(), at, by: None }.into());
    }
    let bytes = api.store.object(entry.msg_id).await?;
    let damaged = |detail: String| StoreError::Damaged { what: "Mail", detail };
    let text = std::str::from_utf8(&bytes).map_err(|error| damaged(error.to_string()))?;
    let mail = Mail::read(entry.msg_id, text).map_err(|error| damaged(error.to_string()))?;
    let file = mail.render();
    if digest(file.as_bytes()) != entry.sha256 {
        return Err(damaged(format!("{id} does not produce the file of its index entry")).into());
    }
    // A browser must never render text from outside.
    let headers = [
        (header::CONTENT_TYPE, "text/markdown; charset=utf-8"),
        (header::CONTENT_DISPOSITION, "attachment"),
    ];
    Ok((headers, file).into_response())
}
