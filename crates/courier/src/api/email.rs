//! E-mail accounts: list, pause, resume, scan and test them; their tasks; the directory of people.

use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{Request, State};
use monoco_core::did::TunnelId;
use monoco_core::email::EmailAccount;
use monoco_core::email::directory::{MAX_CSV_BYTES, parse_csv};
use monoco_core::email::task::{EmailTaskId, TaskStatus};
use monoco_store::{EmailTaskQuery, StoreError};

use super::SharedApi;
use super::error::ApiError;
use super::input::{self, API_BODIES, PathParams, QueryParams};
use super::letters::QueryPairs;
use super::tunnels;
use super::views::email::{
    DirectoryImportView, DirectoryView, EmailAccountView, EmailAccountsView, EmailTaskPage,
    EmailTaskView, InvalidLineView,
};
use super::views::tunnels::TunnelTestView;
use crate::courier::tunnels::RunningTunnel;

/// List all e-mail accounts
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/email/accounts", operation_id = "list_email_accounts",
    tag = "email",
    responses((status = 200, body = EmailAccountsView))
))]
pub async fn accounts(
    State(api): State<SharedApi>,
) -> Result<axum::Json<EmailAccountsView>, ApiError> {
    let (counts, now) = (api.store.task_counts().await?, api.clock.now());
    let accounts = api.store.accounts().await?.into_iter().map(|account| {
        let tunnel = api.tunnels.get(account.tunnel.as_str());
        let tunnel = tunnel.map(|tunnel| (tunnel.adapter.mode(), tunnel.health()));
        let counts = counts.get(&account.tunnel);
        EmailAccountView::new(account, counts, tunnel, now)
    });
    Ok(axum::Json(EmailAccountsView { accounts: accounts.collect() }))
}

/// Get an e-mail account
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/email/accounts/{id}", operation_id = "get_email_account",
    tag = "email",
    params(("id" = String, Path, description = "Tunnel of the account")),
    responses((status = 200, body = EmailAccountView))
))]
pub async fn account(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<EmailAccountView>, ApiError> {
    let id: TunnelId = path.parse("id")?;
    view(&api, find(&api, &id).await?).await
}

/// Pause an e-mail account: close its connection, process none of its tasks and send nothing
///
/// Does the same as `POST /api/v1/tunnels/{id}/pause`.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/email/accounts/{id}/pause", operation_id = "pause_email_account",
    tag = "email",
    params(("id" = String, Path, description = "Tunnel of the account")),
    responses((status = 200, body = EmailAccountView))
))]
pub async fn pause(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<EmailAccountView>, ApiError> {
    set_active(&api, &path, false).await
}

/// Resume a paused e-mail account
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/email/accounts/{id}/resume", operation_id = "resume_email_account",
    tag = "email",
    params(("id" = String, Path, description = "Tunnel of the account")),
    responses((status = 200, body = EmailAccountView))
))]
pub async fn resume(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<EmailAccountView>, ApiError> {
    set_active(&api, &path, true).await
}

/// Check all folders of an e-mail account now
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/email/accounts/{id}/scan", operation_id = "scan_email_account",
    tag = "email",
    params(("id" = String, Path, description = "Tunnel of the account")),
    responses((status = 200, body = EmailAccountView))
))]
pub async fn scan(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<EmailAccountView>, ApiError> {
    let (id, tunnel) = running(&api, &path)?;
    if let Some(email) = tunnel.adapter.email() {
        email.scan_now();
    }
    view(&api, find(&api, &id).await?).await
}

/// Test the connections and logins of an e-mail account
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/email/accounts/{id}/test", operation_id = "test_email_account",
    tag = "email",
    params(("id" = String, Path, description = "Tunnel of the account")),
    responses((status = 200, body = TunnelTestView))
))]
pub async fn test(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<TunnelTestView>, ApiError> {
    let (_, tunnel) = running(&api, &path)?;
    Ok(axum::Json(tunnels::probe(&tunnel).await))
}

/// List e-mail tasks, newest first
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/email/tasks", operation_id = "list_email_tasks",
    tag = "email",
    params(
        ("account" = Option<String>, Query, description = "Tunnel of the account"),
        ("status" = Option<String>, Query, description =
            "Statuses to list, separated by commas or repeated: received, in_progress, forwarded, skipped_no_match, error"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page"),
        ("limit" = Option<i64>, Query, description = "Maximum number of tasks, 1 to 1000; default 50"),
    ),
    responses((status = 200, body = EmailTaskPage))
))]
pub async fn tasks(
    State(api): State<SharedApi>,
    QueryParams(pairs): QueryParams<QueryPairs>,
) -> Result<axum::Json<EmailTaskPage>, ApiError> {
    let mut query = EmailTaskQuery::default();
    let mut paging = input::PagingQuery { cursor: None, limit: None, order: None };
    for (name, value) in pairs {
        match name.as_str() {
            "account" => query.tunnel = Some(parse(&name, &value)?),
            "status" => {
                for word in value.split(',') {
                    query.statuses.push(TaskStatus::parse(word.trim()).ok_or_else(|| {
                        let known = TaskStatus::ALL.map(TaskStatus::as_str).join(", ");
                        ApiError::bad_parameter(&name, format!("expected one of {known}"))
                    })?);
                }
            }
            "cursor" => paging.cursor = Some(value),
            "limit" => paging.limit = Some(parse(&name, &value)?),
            _ => {
                let why = "unknown parameter; expected account, status, cursor or limit";
                return Err(ApiError::bad_parameter(&name, why));
            }
        }
    }
    let request = paging.page_request("email_tasks")?;
    let page = api.store.tasks(query, request.clone()).await?;
    let next_cursor = input::next_cursor("email_tasks", &request, page.next);
    let tasks = page.entries.into_iter().map(EmailTaskView::from).collect();
    Ok(axum::Json(EmailTaskPage { tasks, next_cursor }))
}

/// Get an e-mail task
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/email/tasks/{id}", operation_id = "get_email_task",
    tag = "email",
    params(("id" = String, Path, description = "Id of the task")),
    responses((status = 200, body = EmailTaskView))
))]
pub async fn task(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<EmailTaskView>, ApiError> {
    let id: EmailTaskId = path.parse("id")?;
    Ok(axum::Json(api.store.task(id).await?.into()))
}

/// Retry an e-mail task that failed or that no rule matched
///
/// A task that was forwarded before is not forwarded again: its dead deliveries are retried.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/email/tasks/{id}/retry", operation_id = "retry_email_task",
    tag = "email",
    params(("id" = String, Path, description = "Id of the task")),
    responses((status = 200, body = EmailTaskView))
))]
pub async fn retry(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<EmailTaskView>, ApiError> {
    let id: EmailTaskId = path.parse("id")?;
    Ok(axum::Json(api.store.retry_task(id, api.clock.now()).await?.into()))
}

/// Drop an e-mail task in error: it is not listed as a dead letter any more
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/email/tasks/{id}/drop", operation_id = "drop_email_task",
    tag = "email",
    params(("id" = String, Path, description = "Id of the task")),
    responses((status = 200, body = EmailTaskView))
))]
pub async fn drop_task(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<EmailTaskView>, ApiError> {
    let id: EmailTaskId = path.parse("id")?;
    Ok(axum::Json(api.store.drop_task(id, api.clock.now()).await?.into()))
}

/// Get the directory of people
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/email/directory", operation_id = "get_directory",
    tag = "email",
    responses((status = 200, body = DirectoryView))
))]
pub async fn directory(
    State(api): State<SharedApi>,
) -> Result<axum::Json<DirectoryView>, ApiError> {
    let people = api.store.directory().await?.into_iter().map(Into::into).collect();
    Ok(axum::Json(DirectoryView { people }))
}

/// Replace the directory of people by a CSV file
///
/// The first line names the columns `name`, `address`, `keywords`, `case_numbers` and `active`.
/// Invalid lines are reported and left out.
#[cfg_attr(test, utoipa::path(
    put, path = "/api/v1/email/directory", operation_id = "put_directory",
    tag = "email",
    request_body(content = String, content_type = "text/csv"),
    responses((status = 200, body = DirectoryImportView))
))]
pub async fn put_directory(
    State(api): State<SharedApi>,
    request: Request,
) -> Result<axum::Json<DirectoryImportView>, ApiError> {
    if input::content_type(request.headers()) != Some("text/csv") {
        return Err(ApiError::wrong_type("text/csv"));
    }
    let body = input::body(request.into_body(), MAX_CSV_BYTES, &API_BODIES).await?;
    let text = std::str::from_utf8(&body)
        .map_err(|error| ApiError::bad_field("body", format!("not UTF-8: {error}")))?;
    let import = parse_csv(text).map_err(|error| ApiError::bad_field("body", error))?;
    let imported = import.people.len();
    api.store.put_directory(import.people).await?;
    let invalid = import.invalid.into_iter();
    let invalid = invalid.map(|line| InvalidLineView { line: line.line, why: line.why }).collect();
    Ok(axum::Json(DirectoryImportView { imported, invalid }))
}

async fn set_active(
    api: &SharedApi,
    path: &PathParams,
    active: bool,
) -> Result<axum::Json<EmailAccountView>, ApiError> {
    let (id, _) = running(api, path)?;
    tunnels::set_active(api, &id, active).await?;
    view(api, find(api, &id).await?).await
}

async fn view(
    api: &SharedApi,
    account: EmailAccount,
) -> Result<axum::Json<EmailAccountView>, ApiError> {
    let counts = api.store.task_counts().await?;
    let tunnel = api.tunnels.get(account.tunnel.as_str());
    let tunnel = tunnel.map(|tunnel| (tunnel.adapter.mode(), tunnel.health()));
    let counts = counts.get(&account.tunnel);
    Ok(axum::Json(EmailAccountView::new(account, counts, tunnel, api.clock.now())))
}

async fn find(api: &SharedApi, id: &TunnelId) -> Result<EmailAccount, ApiError> {
    let accounts = api.store.accounts().await?;
    let account = accounts.into_iter().find(|account| account.tunnel == *id);
    Ok(account.ok_or_else(|| missing_account(id))?)
}

/// The e-mail tunnel of the path, when it runs.
fn running(api: &SharedApi, path: &PathParams) -> Result<(TunnelId, Arc<RunningTunnel>), ApiError> {
    let id: TunnelId = path.parse("id")?;
    let tunnel = api.tunnels.get(id.as_str());
    let tunnel = tunnel.filter(|tunnel| tunnel.adapter.email().is_some());
    let tunnel = tunnel.ok_or_else(|| missing_account(&id))?;
    Ok((id, tunnel))
}

fn missing_account(id: &TunnelId) -> StoreError {
    StoreError::Missing { what: "e-mail account", key: id.to_string() }
}

fn parse<T: FromStr<Err: std::fmt::Display>>(name: &str, value: &str) -> Result<T, ApiError> {
    value.parse().map_err(|error| ApiError::bad_parameter(name, error))
}
