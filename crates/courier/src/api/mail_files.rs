//! The index and the files of Mails, for workspaces on machines without a courier.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt};
use monoco_core::claim::Workspace;
use monoco_core::mail::{Mail, MailId, digest};
use monoco_store::{FileChange, StoreError};
use serde::Deserialize;
use tokio::time::Instant;
#[cfg(test)]
use utoipa::{IntoParams, ToSchema};

use super::caller::Caller;
use super::error::ApiError;
use super::input::{self, JsonBody, MAX_PAGE, PathParams, QueryParams};
use super::mails::mail_id;
use super::views::mails::{MailFileList, MailFileView, MailIndexPage};
use super::{Api, SharedApi, visibility};

/// Path of the files of several Mails.
pub const FILES_PATH: &str = "/api/v1/mailbox/files";

/// Most ids in one request for files.
const MAX_FILES: usize = 1_000;

/// A response with this many bytes of files gets no further file.
const MAX_FILES_BYTES: usize = 4 << 20;

/// A response gets no further file after this time, so that it does not miss the time limit of the
/// handler.
const MAX_FILES_TIME: Duration = Duration::from_secs(10);

/// Mails of one request that are read at the same time.
const CONCURRENT_READS: usize = 8;

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
    let (seq, file) = render(&api, &caller, &id).await?;
    visibility::record_reads(&api, &caller, vec![seq]).await?;
    // A browser must never render text from outside.
    let headers = [
        (header::CONTENT_TYPE, "text/markdown; charset=utf-8"),
        (header::CONTENT_DISPOSITION, "attachment"),
    ];
    Ok((headers, file).into_response())
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MailFilesBody {
    /// Ids of the Mails, at most 1000
    ids: Vec<String>,
}

/// Get the files of several Mails
///
/// The response has the files in the order of `ids`. It ends after 4 MiB or 10 s, with at least one
/// file: ask again for the Mails that it does not have.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/mailbox/files", operation_id = "get_mail_files",
    tag = "mails", request_body = MailFilesBody,
    responses((status = 200, body = MailFileList))
))]
pub async fn files(
    State(api): State<SharedApi>,
    caller: Caller,
    JsonBody(MailFilesBody { ids }): JsonBody<MailFilesBody>,
) -> Result<axum::Json<MailFileList>, ApiError> {
    if ids.len() > MAX_FILES {
        let why = format!("found {} ids, expected at most {MAX_FILES}", ids.len());
        return Err(ApiError::bad_field("ids", why));
    }
    let ids: Result<Vec<MailId>, _> = ids.iter().map(|id| id.parse()).collect();
    let ids = ids.map_err(|error| ApiError::bad_field("ids", error))?;
    let (mut files, mut mails, mut bytes) = (Vec::new(), Vec::new(), 0);
    let reads = stream::iter(ids).map(|id| {
        let (api, caller) = (Arc::clone(&api), caller.clone());
        async move {
            let read = render(&api, &caller, &id).await;
            (id, read)
        }
    });
    let mut reads = Box::pin(reads.buffered(CONCURRENT_READS));
    let started = Instant::now();
    while bytes < MAX_FILES_BYTES
        && (files.is_empty() || started.elapsed() < MAX_FILES_TIME)
        && let Some((id, read)) = reads.next().await
    {
        let (file, code) = match read {
            Ok((seq, file)) => {
                mails.push(seq);
                bytes += file.len();
                (Some(file), None)
            }
            // The other Mails do not depend on this one.
            Err(error) if matches!(error.code, "not_found" | "erased" | "damaged") => {
                (None, Some(error.code.into()))
            }
            Err(error) => return Err(error),
        };
        files.push(MailFileView { id: id.to_string(), file, code });
    }
    // Reads that were started and are not needed hold connections to the store.
    drop(reads);
    visibility::record_reads(&api, &caller, mails).await?;
    Ok(axum::Json(MailFileList { files }))
}

/// Renders the file of a Mail that the caller may see. Returns it with the number of the Mail.
async fn render(api: &Api, caller: &Caller, id: &MailId) -> Result<(i64, String), ApiError> {
    let row = api.store.mail(id, &Workspace::shared()).await?;
    visibility::check_mail(caller, &row)?;
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
    Ok((entry.seq, file))
}
