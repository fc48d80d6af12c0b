//! Mails: looking, claiming, and saying what became of it.

use axum::extract::State;
use monoco_core::claim::{ClaimState, Workspace};
use monoco_core::delivery::SendState;
use monoco_core::lease::LeaseLost;
use monoco_core::letter::LetterState;
use monoco_core::mail::MailId;
use monoco_core::time::Timestamp;
use monoco_store::{ClaimUpdate, LetterQuery, MailQuery, MailRow, PageRequest, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use super::error::{ApiError, ApiErrorView};
use super::input::{self, JsonBody, PagingQuery, PathParams, QueryParams};
use super::letters::LetterView;
use super::trace::{TraceView, story};
use super::views::RecordView;
use super::{Api, SharedApi};
use crate::courier::file_projector::ProjectorError;
use crate::courier::locks_file::OpenClaimView;
use crate::courier::mailbox_check::RebuildResult;
use crate::pipeline::letter_pages::LetterPages;

/// The route that may take long.
pub const REBUILD: &str = "/api/v1/mailbox/rebuild";

/// Most ids in one question about claims.
const MAX_IDS: usize = 1_000;

/// Longest reason, in bytes. Longer ones are cut.
const MAX_REASON: usize = 4_096;

/// A Mail, and how the workspace that asks stands to it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Mail)]
pub struct MailView {
    /// `id`, `msg_id`, `tunnel`, `session`, `participants`, `received_at`, `title`,
    /// `binding`, `trust`, `messages`, `preview`, `file`, `sha256`
    #[serde(flatten)]
    #[schema(value_type = Object)]
    entry: Value,
    /// Where its file is: `inbound`, `archive`, `deadletter` or `gone`
    place: &'static str,
    /// NEW, CLAIMED, COMPLETED or DEADLETTER, for this workspace
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    claim: Option<OpenClaimView>,
}

/// A page of Mails.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Mails)]
pub struct MailPage {
    messages: Vec<MailView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// One Mail with its text.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WholeMail)]
pub struct MailDetailView {
    #[serde(flatten)]
    mail: MailView,
    /// Every workspace's claim on it
    claims: Vec<OpenClaimView>,
    /// The MsgObject; none when it is damaged
    #[schema(value_type = Option<Object>)]
    msg: Option<Value>,
}

/// Claims of one workspace.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Claims)]
pub struct ClaimsView {
    claims: Vec<OpenClaimView>,
}

/// What was given up.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Dead)]
pub struct DeadView {
    claims: Vec<OpenClaimView>,
    deliveries: Vec<RecordView>,
    letters: Vec<LetterView>,
}

/// Which Mails.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct MailListQuery {
    /// Whose claims count; without it the shared ones
    workspace: Option<String>,
    /// Only those with this status: NEW, CLAIMED, COMPLETED or DEADLETTER
    status: Option<String>,
    /// Only those of this provider
    provider: Option<String>,
    /// Only those that became Mails then or later, RFC 3339
    since: Option<String>,
    /// Only those in whose title, names or text's start this occurs. A page looks at
    /// 10000 Mails; when it ends there, `next_cursor` says where to go on.
    q: Option<String>,
    /// Where the last page ended: its `next_cursor`
    cursor: Option<String>,
    /// Most Mails to return, 1 to 1000
    limit: Option<i64>,
    /// `newest` first (the default) or `oldest` first
    order: Option<String>,
}

/// Whose claim.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceQuery {
    /// Whose claim to show; without it the shared one
    workspace: Option<String>,
}

/// Which claims.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimStatusBody {
    /// Whose claims; without it the shared ones
    workspace: Option<String>,
    /// Of which Mails, 1000 at most
    ids: Vec<String>,
}

/// Who wants a Mail, and for how long.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimBody {
    /// Who: agents of one workspace exclude each other
    agent_id: String,
    /// For how many seconds, 1 to 86400; without it as configured, 300
    timeout: Option<i64>,
    /// For which workspace; without it the shared one
    workspace: Option<String>,
}

/// Who wants to keep a Mail for longer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewBody {
    agent_id: String,
    workspace: Option<String>,
    /// The epoch the claim came with; without it the agent is checked by name
    epoch: Option<i64>,
    timeout: Option<i64>,
}

/// Who is done with a Mail.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompleteBody {
    agent_id: String,
    workspace: Option<String>,
    /// The epoch the claim came with; without it the agent is checked by name
    epoch: Option<i64>,
}

/// Who could not deal with a Mail, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FailBody {
    agent_id: String,
    /// For whoever looks at it next
    reason: Option<String>,
    /// Whether another try may help; true unless said otherwise
    retryable: Option<bool>,
    workspace: Option<String>,
    /// The epoch the claim came with; without it the agent is checked by name
    epoch: Option<i64>,
}

/// List Mails
#[utoipa::path(
    get, path = "/api/v1/messages", tag = "mails", params(MailListQuery),
    responses((status = 200, body = MailPage), (status = "4XX", body = ApiErrorView))
)]
pub async fn list(
    State(api): State<SharedApi>,
    QueryParams(asked): QueryParams<MailListQuery>,
) -> Result<axum::Json<MailPage>, ApiError> {
    let MailListQuery { workspace, status, provider, since, q, cursor, limit, order } = asked;
    let window = PagingQuery { cursor, limit, order }.window("mails")?;
    let status = status.map(|word| {
        ClaimState::parse(&word.to_uppercase()).ok_or_else(|| {
            let known = ClaimState::ALL.map(ClaimState::as_str).join(", ");
            ApiError::bad_parameter("status", format!("want one of {known}"))
        })
    });
    let since = since.map(|text| Timestamp::from_rfc3339(&text));
    let query = MailQuery {
        workspace: named(workspace).map_err(|error| ApiError::bad_parameter("workspace", error))?,
        status: status.transpose()?,
        provider,
        since: since.transpose().map_err(|error| ApiError::bad_parameter("since", error))?,
        text: q,
    };
    let page = api.store.mails(query, window.clone()).await?;
    let next_cursor = input::next_cursor("mails", &window, page.next);
    let messages = page.entries.into_iter().map(MailView::from).collect();
    Ok(axum::Json(MailPage { messages, next_cursor }))
}

/// Show one Mail
#[utoipa::path(
    get, path = "/api/v1/messages/{id}", tag = "mails", params(WorkspaceQuery),
    params(("id" = String, Path, description = "The id of the Mail")),
    responses((status = 200, body = MailDetailView), (status = "4XX", body = ApiErrorView))
)]
pub async fn mail(
    State(api): State<SharedApi>,
    path: PathParams,
    QueryParams(WorkspaceQuery { workspace }): QueryParams<WorkspaceQuery>,
) -> Result<axum::Json<MailDetailView>, ApiError> {
    let id = mail_id(&path)?;
    let workspace =
        named(workspace).map_err(|error| ApiError::bad_parameter("workspace", error))?;
    let store = &api.store;
    let row = store.mail(&id, &workspace).await?;
    let claims = store.claims(&id).await?;
    let msg = match store.object(row.entry.msg_id).await {
        Ok(bytes) => serde_json::from_slice(&bytes).ok(),
        Err(StoreError::Damaged { .. } | StoreError::Missing { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let claims = claims.iter().map(OpenClaimView::from).collect();
    Ok(axum::Json(MailDetailView { mail: row.into(), claims, msg }))
}

/// Follow one Mail through everything that happened to it
#[utoipa::path(
    get, path = "/api/v1/messages/{id}/trace", tag = "mails",
    params(("id" = String, Path, description = "The id of the Mail")),
    responses((status = 200, body = TraceView), (status = "4XX", body = ApiErrorView))
)]
pub async fn trace(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<TraceView>, ApiError> {
    story(&api, &mail_id(&path)?.to_string()).await
}

/// Show a workspace's claims on some Mails
///
/// Mails that it never claimed are NEW, and not listed.
#[utoipa::path(
    post, path = "/api/v1/messages/status", tag = "mails", request_body = ClaimStatusBody,
    responses((status = 200, body = ClaimsView), (status = "4XX", body = ApiErrorView))
)]
pub async fn status(
    State(api): State<SharedApi>,
    JsonBody(ClaimStatusBody { workspace, ids }): JsonBody<ClaimStatusBody>,
) -> Result<axum::Json<ClaimsView>, ApiError> {
    let workspace = named(workspace).map_err(|error| ApiError::bad_field("workspace", error))?;
    if ids.len() > MAX_IDS {
        return Err(ApiError::bad_field("ids", format!("{MAX_IDS} is the most")));
    }
    let mut claims = Vec::new();
    for id in ids {
        let id: MailId = id.parse().map_err(|error| ApiError::bad_field("ids", error))?;
        match api.store.mail(&id, &workspace).await {
            Ok(row) => claims.extend(row.claim.as_ref().map(OpenClaimView::from)),
            Err(StoreError::Missing { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(axum::Json(ClaimsView { claims }))
}

/// Claim a Mail
///
/// It is the agent's until the time is over; two agents of one workspace exclude each
/// other, two workspaces do not. 409 `claimed` says who has it, 409 `not_due` when it
/// may be claimed after a failure.
#[utoipa::path(
    post, path = "/api/v1/messages/{id}/claim", tag = "mails", request_body = ClaimBody,
    params(("id" = String, Path, description = "The id of the Mail")),
    responses((status = 200, body = OpenClaimView), (status = "4XX", body = ApiErrorView))
)]
pub async fn claim(
    State(api): State<SharedApi>,
    path: PathParams,
    JsonBody(ClaimBody { agent_id, timeout, workspace }): JsonBody<ClaimBody>,
) -> Result<axum::Json<OpenClaimView>, ApiError> {
    let id = mail_id(&path)?;
    let workspace = named(workspace).map_err(|error| ApiError::bad_field("workspace", error))?;
    let holder = agent(agent_id)?;
    let term = match timeout {
        Some(_) => input::term("timeout", timeout)?,
        None => api.claims().term,
    };
    let (retry, now) = (api.claims().retry, api.clock.now());
    let claimed = api.store.claim(&id, &workspace, holder, term, retry, now).await;
    Ok(axum::Json(OpenClaimView::from(&claimed.map_err(refused)?)))
}

/// Keep a claim for longer
#[utoipa::path(
    post, path = "/api/v1/messages/{id}/renew", tag = "mails", request_body = RenewBody,
    params(("id" = String, Path, description = "The id of the Mail")),
    responses((status = 200, body = OpenClaimView), (status = "4XX", body = ApiErrorView))
)]
pub async fn renew(
    State(api): State<SharedApi>,
    path: PathParams,
    JsonBody(RenewBody { agent_id, workspace, epoch, timeout }): JsonBody<RenewBody>,
) -> Result<axum::Json<OpenClaimView>, ApiError> {
    let term = match timeout {
        Some(_) => input::term("timeout", timeout)?,
        None => api.claims().term,
    };
    settle(&api, &path, agent_id, workspace, epoch, ClaimUpdate::Renew(term)).await
}

/// Say that a Mail is dealt with
///
/// Its file moves to the archive when no other workspace is at it.
#[utoipa::path(
    post, path = "/api/v1/messages/{id}/complete", tag = "mails", request_body = CompleteBody,
    params(("id" = String, Path, description = "The id of the Mail")),
    responses((status = 200, body = OpenClaimView), (status = "4XX", body = ApiErrorView))
)]
pub async fn complete(
    State(api): State<SharedApi>,
    path: PathParams,
    JsonBody(CompleteBody { agent_id, workspace, epoch }): JsonBody<CompleteBody>,
) -> Result<axum::Json<OpenClaimView>, ApiError> {
    settle(&api, &path, agent_id, workspace, epoch, ClaimUpdate::Complete).await
}

/// Say that a Mail could not be dealt with
///
/// It may be claimed again after 1 s, 2 s and 4 s; the fourth failure, or one that no
/// other try can help, makes it a dead letter.
#[utoipa::path(
    post, path = "/api/v1/messages/{id}/fail", tag = "mails", request_body = FailBody,
    params(("id" = String, Path, description = "The id of the Mail")),
    responses((status = 200, body = OpenClaimView), (status = "4XX", body = ApiErrorView))
)]
pub async fn fail(
    State(api): State<SharedApi>,
    path: PathParams,
    JsonBody(FailBody { agent_id, reason, retryable, workspace, epoch }): JsonBody<FailBody>,
) -> Result<axum::Json<OpenClaimView>, ApiError> {
    let mut reason = reason.unwrap_or_else(|| "no reason given".to_owned());
    reason.truncate(reason.floor_char_boundary(MAX_REASON));
    let retry = api.claims().retry;
    let step = ClaimUpdate::Fail { reason, retryable: retryable.unwrap_or(true), retry };
    settle(&api, &path, agent_id, workspace, epoch, step).await
}

/// Put a dead letter back, with all its tries
#[utoipa::path(
    post, path = "/api/v1/messages/{id}/revive", tag = "mails", params(WorkspaceQuery),
    params(("id" = String, Path, description = "The id of the Mail")),
    responses((status = 200, body = OpenClaimView), (status = "4XX", body = ApiErrorView))
)]
pub async fn revive(
    State(api): State<SharedApi>,
    path: PathParams,
    QueryParams(WorkspaceQuery { workspace }): QueryParams<WorkspaceQuery>,
) -> Result<axum::Json<OpenClaimView>, ApiError> {
    let id = mail_id(&path)?;
    let workspace =
        named(workspace).map_err(|error| ApiError::bad_parameter("workspace", error))?;
    let revived = api.store.retry_claim(&id, &workspace, api.clock.now()).await;
    Ok(axum::Json(OpenClaimView::from(&revived.map_err(refused)?)))
}

/// Have nobody deal with a dead letter any more
#[utoipa::path(
    post, path = "/api/v1/messages/{id}/drop", tag = "mails", params(WorkspaceQuery),
    params(("id" = String, Path, description = "The id of the Mail")),
    responses((status = 200, body = OpenClaimView), (status = "4XX", body = ApiErrorView))
)]
pub async fn lay_to_rest(
    State(api): State<SharedApi>,
    path: PathParams,
    QueryParams(WorkspaceQuery { workspace }): QueryParams<WorkspaceQuery>,
) -> Result<axum::Json<OpenClaimView>, ApiError> {
    let id = mail_id(&path)?;
    let workspace =
        named(workspace).map_err(|error| ApiError::bad_parameter("workspace", error))?;
    let rested = api.store.drop_claim(&id, &workspace, api.clock.now()).await;
    Ok(axum::Json(OpenClaimView::from(&rested.map_err(refused)?)))
}

/// Make the mailbox's files again from the store
///
/// Writes what is missing or was changed, moves what is in the wrong place, and starts a
/// new index. Files that are not ours are counted and left alone.
#[utoipa::path(
    post, path = "/api/v1/mailbox/rebuild", tag = "mails",
    responses((status = 200, body = RebuildResult), (status = "4XX", body = ApiErrorView))
)]
pub async fn rebuild(State(api): State<SharedApi>) -> Result<axum::Json<RebuildResult>, ApiError> {
    match api.filer.rebuild().await {
        Ok(rebuilt) => Ok(axum::Json(rebuilt)),
        Err(ProjectorError::Store(error)) => Err(error.into()),
        Err(error) => Err(StoreError::Unavailable(error.to_string()).into()),
    }
}

/// What was given up
///
/// Claims, letters, and deliveries that are DEAD or UNCERTAIN: the oldest thousand of each
/// kind, and of each tunnel.
#[utoipa::path(
    get, path = "/api/v1/dead", tag = "mails",
    responses((status = 200, body = DeadView), (status = "4XX", body = ApiErrorView))
)]
pub async fn dead(State(api): State<SharedApi>) -> Result<axum::Json<DeadView>, ApiError> {
    let store = &api.store;
    let claims = store.dead_claims(input::MAX_PAGE).await?;
    let mut deliveries = Vec::new();
    for tunnel in store.tunnels().await? {
        let states = [SendState::Dead, SendState::Uncertain];
        let window = PageRequest { beyond: None, limit: input::MAX_PAGE, newest_first: false };
        let page = store.deliveries(&tunnel.id.did(), &states, window).await?;
        deliveries.extend(page.entries.into_iter().map(RecordView::from));
    }
    let claims = claims.iter().map(OpenClaimView::from).collect();
    let query = LetterQuery { states: vec![LetterState::Dead], ..LetterQuery::default() };
    let window = PageRequest { beyond: None, limit: input::MAX_PAGE, newest_first: false };
    let mut leafing = LetterPages::new(query, window);
    let mut letters = Vec::new();
    while let Some(few) = leafing.next_page(store).await? {
        letters.extend(few.iter().map(LetterView::from));
    }
    Ok(axum::Json(DeadView { claims, deliveries, letters }))
}

async fn settle(
    api: &Api,
    path: &PathParams,
    agent_id: String,
    workspace: Option<String>,
    epoch: Option<i64>,
    step: ClaimUpdate,
) -> Result<axum::Json<OpenClaimView>, ApiError> {
    let id = mail_id(path)?;
    let workspace = named(workspace).map_err(|error| ApiError::bad_field("workspace", error))?;
    agent(agent_id.clone())?;
    let guard = input::guard(epoch, Some(agent_id))?;
    let now = api.clock.now();
    let settled = api.store.update_claim(&id, &workspace, guard, step, now).await;
    Ok(axum::Json(OpenClaimView::from(&settled.map_err(refused)?)))
}

/// The Mail that the path names. What can't be an id is no Mail either.
fn mail_id(path: &PathParams) -> Result<MailId, ApiError> {
    path.text("id").parse().map_err(|_| {
        StoreError::Missing { what: "Mail", key: path.text("id").chars().take(80).collect() }.into()
    })
}

fn named(workspace: Option<String>) -> Result<Workspace, monoco_core::claim::InvalidWorkspace> {
    workspace.map_or_else(|| Ok(Workspace::shared()), Workspace::new)
}

fn agent(name: String) -> Result<monoco_core::lease::Holder, ApiError> {
    monoco_core::lease::Holder::new(name).map_err(|error| ApiError::bad_field("agent_id", error))
}

/// Claims are refused in words of their own.
fn refused(error: StoreError) -> ApiError {
    match &error {
        StoreError::LeaseLost(LeaseLost::Held(lease)) => ApiError::claimed(lease),
        StoreError::InvalidTransition(wrong) => match wrong.from {
            "COMPLETED" => ApiError::ended("completed", "this workspace is done with it"),
            "DEADLETTER" => ApiError::ended("dead", "this workspace gave it up; revive it first"),
            "NEW" => ApiError::ended("not_claimed", "nobody of this workspace has claimed it"),
            _ => error.into(),
        },
        _ => error.into(),
    }
}

impl From<MailRow> for MailView {
    fn from(row: MailRow) -> Self {
        let state = row.claim.as_ref().map_or(ClaimState::New, |it| it.claiming.state.name());
        Self {
            entry: json!(row.entry),
            place: row.place.as_str(),
            status: state.as_str(),
            claim: row.claim.as_ref().map(OpenClaimView::from),
        }
    }
}
