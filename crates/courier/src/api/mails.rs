//! Mails: list them, claim them, report the outcome; rebuild of the files.

use axum::extract::State;
use axum::http::HeaderMap;
use monoco_core::claim::{Claim, ClaimState, InvalidWorkspace, Workspace};
use monoco_core::draft::DraftAttachment;
use monoco_core::lease::Holder;
use monoco_core::mail::MailId;
use monoco_core::time::Timestamp;
use monoco_mailbox::claim_info::ClaimInfo;
use monoco_store::{ClaimUpdate, MailQuery, SearchHit, StoreError};
use serde::Deserialize;
#[cfg(test)]
use utoipa::{IntoParams, ToSchema};

use super::caller::Caller;
use super::error::ApiError;
use super::input::{
    self, JsonBody, MAX_PAGE, OptionalJsonBody, PagingQuery, PathParams, QueryParams,
};
use super::messages::{parse_key, respond};
use super::trace::trace_of;
use super::views::mails::{ClaimList, MailDetailView, MailPage, RebuildView};
use super::views::messages::SendResponse;
#[cfg(test)]
use super::views::schemas::ClaimSchema;
use super::views::trace::TraceView;
use super::{Api, SharedApi, ids, visibility};
use crate::center;
use crate::center::reply::ReplyRequest;
use crate::center::search::{SearchOrder, SearchRequest, search as search_messages};

/// Path of the rebuild, which has a longer time limit than other requests.
pub const REBUILD_PATH: &str = "/api/v1/mailbox/rebuild";

/// Path of the claims on given Mails.
pub const STATUS_PATH: &str = "/api/v1/messages/status";

/// Most ids in one request for claims.
const MAX_IDS: usize = 1_000;

/// Longest reason of a failure, in bytes. The rest is cut.
const MAX_REASON_BYTES: usize = 4_096;

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct MailListQuery {
    /// Workspace whose claims count; default `shared`
    workspace: Option<String>,
    /// Status of the Mails: NEW, CLAIMED, COMPLETED or DEADLETTER; default all
    status: Option<String>,
    /// Provider of the Mails; default all
    provider: Option<String>,
    /// Earliest time at which they became Mails, RFC 3339
    since: Option<String>,
    /// Query of `GET /api/v1/search`. A page examines at most 5000 hits; `next_cursor` continues
    /// the search.
    q: Option<String>,
    /// `next_cursor` of the previous page
    cursor: Option<String>,
    /// Maximum number of Mails, 1 to 1000; default 50
    limit: Option<i64>,
    /// `newest` (default) or `oldest` first
    order: Option<String>,
    /// Only Mails that no workspace has claimed, and that no workspace on the machine of the
    /// courier has pulled; not with `q`. A page can be short and still have `next_cursor`
    unrouted: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct RebuildQuery {
    /// Restore Mails that the store has lost from intact files; default false
    from_files: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct WorkspaceQuery {
    /// Workspace of the claim; default `shared`
    workspace: Option<String>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DeadClaimBody {
    /// Workspace of the claim; default `shared`
    workspace: Option<String>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimStatusBody {
    /// Workspace of the claims; default `shared`
    workspace: Option<String>,
    /// Ids of the Mails, at most 1000
    ids: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimBody {
    /// Name of the agent; agents of one workspace exclude each other. Needed with the owner's
    /// token; the token of an agent has the name
    agent_id: Option<String>,
    /// Duration of the claim, 1 to 86400 s; default as configured, 300
    timeout: Option<i64>,
    /// Workspace of the claim; default that of the agent's token, or `shared`
    workspace: Option<String>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RenewBody {
    agent_id: Option<String>,
    workspace: Option<String>,
    /// The epoch that the claim was returned with; without it only the name is checked
    epoch: Option<i64>,
    timeout: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CompleteBody {
    agent_id: Option<String>,
    workspace: Option<String>,
    /// The epoch that the claim was returned with; without it only the name is checked
    epoch: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FailBody {
    agent_id: Option<String>,
    /// Why it failed, at most 4096 bytes
    reason: Option<String>,
    /// Whether another attempt may succeed; default true
    retryable: Option<bool>,
    workspace: Option<String>,
    /// The epoch that the claim was returned with; without it only the name is checked
    epoch: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReplyBody {
    /// Text of the answer, Markdown
    text: String,
    /// Subject of the answer
    title: Option<String>,
    /// Attachments; their bytes must be stored with `POST /api/v1/objects` before
    #[serde(default)]
    #[cfg_attr(test, schema(value_type = Vec<Object>))]
    attachments: Vec<DraftAttachment>,
    /// Idempotency key, 1 to 256 bytes; the same as the header `Idempotency-Key`
    idempotency_key: Option<String>,
}

/// List Mails with their status for a workspace
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/messages", operation_id = "list_mails",
    tag = "mails", params(MailListQuery),
    responses((status = 200, body = MailPage))
))]
pub async fn list(
    State(api): State<SharedApi>,
    caller: Caller,
    QueryParams(asked): QueryParams<MailListQuery>,
) -> Result<axum::Json<MailPage>, ApiError> {
    let MailListQuery { workspace, status, provider, since, q, cursor, limit, order, unrouted } =
        asked;
    let unrouted = unrouted.unwrap_or(false);
    let status = status.map(|word| {
        ClaimState::parse(&word.to_uppercase()).ok_or_else(|| {
            let known = ClaimState::ALL.map(ClaimState::as_str).join(", ");
            ApiError::bad_parameter("status", format!("expected one of {known}"))
        })
    });
    let since = since.map(|text| Timestamp::from_rfc3339(&text));
    let workspace =
        parse_workspace(workspace).map_err(|error| ApiError::bad_parameter("workspace", error))?;
    let query = MailQuery {
        workspace: caller.shown_workspace(workspace)?,
        status: status.transpose()?,
        provider,
        since: since.transpose().map_err(|error| ApiError::bad_parameter("since", error))?,
        unclaimed: false,
    };
    if let Some(q) = q {
        if unrouted {
            let why = "found both `q` and `unrouted`, expected one of them";
            return Err(ApiError::bad_parameter("unrouted", why));
        }
        return search(&api, &caller, q, query, PagingQuery { cursor, limit, order }).await;
    }
    let request = PagingQuery { cursor, limit, order }.page_request("mails")?;
    let page = if unrouted {
        api.projector.unrouted_mails(&api.store, query, &request).await?
    } else {
        api.store.mails(query, request.clone()).await?
    };
    visibility::record_shown(&api, &caller, &page.entries).await?;
    let next_cursor = input::next_cursor("mails", &request, page.next);
    let messages = page.entries.into_iter().map(Into::into).collect();
    Ok(axum::Json(MailPage { messages, next_cursor }))
}

/// Lists the Mails that a search finds.
async fn search(
    api: &Api,
    caller: &Caller,
    q: String,
    query: MailQuery,
    paging: PagingQuery,
) -> Result<axum::Json<MailPage>, ApiError> {
    let PagingQuery { cursor, limit, order } = paging;
    let order = match order.as_deref() {
        None | Some("newest") => SearchOrder::Newest,
        Some("oldest") => SearchOrder::Oldest,
        Some(_) => return Err(ApiError::bad_parameter("order", "expected newest or oldest")),
    };
    let MailQuery { workspace, status, provider, since, .. } = query;
    let limit = input::count("limit", limit, 50, MAX_PAGE)?;
    let request = SearchRequest { query: q, order, cursor, limit, workspace };
    let is_wanted = |hit: &SearchHit| {
        hit.mail.as_ref().is_some_and(|row| {
            let state = row.claim.as_ref().map_or(ClaimState::New, |it| it.claiming.state.name());
            status.is_none_or(|status| status == state)
                && provider.as_ref().is_none_or(|it| it == row.entry.id.provider())
                && since.is_none_or(|since| row.entry.received_at >= since)
        })
    };
    let now = api.clock.now();
    let found = search_messages(&api.store, &api.search, &request, now, is_wanted).await?;
    let rows: Vec<_> = found.messages.into_iter().filter_map(|found| found.hit.mail).collect();
    visibility::record_shown(api, caller, &rows).await?;
    let (messages, next_cursor) = (rows.into_iter().map(Into::into).collect(), found.next_cursor);
    Ok(axum::Json(MailPage { messages, next_cursor }))
}

/// Get a Mail with its text
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/messages/{id}", operation_id = "get_mail",
    tag = "mails", params(WorkspaceQuery),
    params(("id" = String, Path, description = "Id of the Mail")),
    responses((status = 200, body = MailDetailView))
))]
pub async fn mail(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    QueryParams(WorkspaceQuery { workspace }): QueryParams<WorkspaceQuery>,
) -> Result<axum::Json<MailDetailView>, ApiError> {
    let id = mail_id(&api, &path).await?;
    let workspace =
        parse_workspace(workspace).map_err(|error| ApiError::bad_parameter("workspace", error))?;
    let workspace = caller.shown_workspace(workspace)?;
    let store = &api.store;
    let row = store.mail(&id, &workspace).await?;
    visibility::read_mail(&api, &caller, &row).await?;
    if let Some(at) = row.entry.tombstone() {
        return Err(StoreError::Erased { key: id.to_string(), at, by: None }.into());
    }
    let claims = store.claims(&id).await?;
    let msg = match store.object(row.entry.msg_id).await {
        Ok(bytes) => serde_json::from_slice(&bytes).ok(),
        Err(StoreError::Damaged { .. } | StoreError::Missing { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let claims = claims.iter().map(ClaimInfo::from).collect();
    Ok(axum::Json(MailDetailView { mail: row.into(), claims, msg }))
}

/// Get the history of a Mail
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/messages/{id}/trace", operation_id = "trace_mail",
    tag = "mails",
    params(("id" = String, Path, description = "Id of the Mail")),
    responses((status = 200, body = TraceView))
))]
pub async fn trace(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
) -> Result<axum::Json<TraceView>, ApiError> {
    trace_of(&api, &caller, &mail_id(&api, &path).await?.to_string()).await
}

/// List the claims of a workspace on given Mails
///
/// Mails that it never claimed are NEW and are not listed.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/messages/status", operation_id = "list_claims",
    tag = "mails", request_body = ClaimStatusBody,
    responses((status = 200, body = ClaimList))
))]
pub async fn status(
    State(api): State<SharedApi>,
    caller: Caller,
    JsonBody(ClaimStatusBody { workspace, ids }): JsonBody<ClaimStatusBody>,
) -> Result<axum::Json<ClaimList>, ApiError> {
    let workspace =
        parse_workspace(workspace).map_err(|error| ApiError::bad_field("workspace", error))?;
    let workspace = caller.shown_workspace(workspace)?;
    if ids.len() > MAX_IDS {
        return Err(ApiError::bad_field(
            "ids",
            format!("found {} ids, expected at most {MAX_IDS}", ids.len()),
        ));
    }
    let mut claims = Vec::new();
    for id in ids {
        let id: MailId = id.parse().map_err(|error| ApiError::bad_field("ids", error))?;
        match api.store.mail(&id, &workspace).await {
            Ok(row) => claims.extend(row.claim.as_ref().map(ClaimInfo::from)),
            Err(StoreError::Missing { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(axum::Json(ClaimList { claims }))
}

/// Claim a Mail
///
/// The agent holds the Mail until the claim expires. Two agents of one workspace exclude each
/// other, two workspaces do not. 409 `claimed` names the holder; 409 `not_due` has the time
/// at which the Mail can be claimed again after a failure.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/messages/{id}/claim", operation_id = "claim_mail",
    tag = "mails", request_body = ClaimBody,
    params(("id" = String, Path, description = "Id of the Mail")),
    responses((status = 200, body = ClaimSchema))
))]
pub async fn claim(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    JsonBody(ClaimBody { agent_id, timeout, workspace }): JsonBody<ClaimBody>,
) -> Result<axum::Json<ClaimInfo>, ApiError> {
    let (id, workspace) = claim_key(&api, &path, workspace).await?;
    let (workspace, holder) = (caller.claim_workspace(workspace)?, agent(&caller, agent_id)?);
    let term = match timeout {
        Some(_) => input::lease_duration("timeout", timeout)?,
        None => api.claims().term,
    };
    let (retry, now) = (api.claims().retry, api.clock.now());
    claim_view(api.store.claim(&id, &workspace, holder, term, retry, now).await)
}

/// Renew a claim before it expires
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/messages/{id}/renew", operation_id = "renew_claim",
    tag = "mails", request_body = RenewBody,
    params(("id" = String, Path, description = "Id of the Mail")),
    responses((status = 200, body = ClaimSchema))
))]
pub async fn renew(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    JsonBody(RenewBody { agent_id, workspace, epoch, timeout }): JsonBody<RenewBody>,
) -> Result<axum::Json<ClaimInfo>, ApiError> {
    let term = match timeout {
        Some(_) => input::lease_duration("timeout", timeout)?,
        None => api.claims().term,
    };
    update(&api, &caller, &path, agent_id, workspace, epoch, ClaimUpdate::Renew(term)).await
}

/// Complete a claim
///
/// The file of the Mail moves to `archive` when no other workspace has claimed it.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/messages/{id}/complete", operation_id = "complete_claim",
    tag = "mails", request_body = CompleteBody,
    params(("id" = String, Path, description = "Id of the Mail")),
    responses((status = 200, body = ClaimSchema))
))]
pub async fn complete(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    JsonBody(CompleteBody { agent_id, workspace, epoch }): JsonBody<CompleteBody>,
) -> Result<axum::Json<ClaimInfo>, ApiError> {
    update(&api, &caller, &path, agent_id, workspace, epoch, ClaimUpdate::Complete).await
}

/// Fail a claim
///
/// The Mail can be claimed again after 1 s, 2 s and 4 s. The fourth failure, or one that is
/// not retryable, makes it a dead letter.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/messages/{id}/fail", operation_id = "fail_claim",
    tag = "mails", request_body = FailBody,
    params(("id" = String, Path, description = "Id of the Mail")),
    responses((status = 200, body = ClaimSchema))
))]
pub async fn fail(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    JsonBody(FailBody { agent_id, reason, retryable, workspace, epoch }): JsonBody<FailBody>,
) -> Result<axum::Json<ClaimInfo>, ApiError> {
    let mut reason = reason.unwrap_or_else(|| "no reason given".to_owned());
    reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
    let retry = api.claims().retry;
    let step = ClaimUpdate::Fail { reason, retryable: retryable.unwrap_or(true), retry };
    update(&api, &caller, &path, agent_id, workspace, epoch, step).await
}

/// Answer a Mail
///
/// The answer goes exactly to the `answer_to` of the Mail, in its thread. Each attachment is
/// `{name, mime_type?, hash}`, where `hash` is the id of stored bytes.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/messages/{id}/reply", operation_id = "reply_to_mail",
    tag = "mails", request_body = ReplyBody,
    params(("id" = String, Path, description = "Id of the Mail")),
    responses((status = 200, body = SendResponse))
))]
pub async fn reply(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    headers: HeaderMap,
    JsonBody(body): JsonBody<ReplyBody>,
) -> Result<axum::Json<SendResponse>, ApiError> {
    let ReplyBody { text, title, attachments, idempotency_key } = body;
    if text.trim().is_empty() && attachments.is_empty() {
        return Err(ApiError::bad_field("text", "empty; expected text or attachments"));
    }
    let key = parse_key(&caller, &headers, idempotency_key)?;
    let id = mail_id(&api, &path).await?;
    if caller.agent().is_some() {
        visibility::check_mail(&caller, &api.store.mail(&id, &Workspace::shared()).await?)?;
    }
    let request = ReplyRequest { mail: id, text, title, attachments, key, origin: caller.origin() };
    let now = api.clock.now();
    let sender = match caller.agent() {
        Some(token) => token.did.clone(),
        None => api.config.borrow().owner.clone(),
    };
    let result = center::reply::reply(&api.store, &api.entry, &sender, request, now).await?;
    respond(&api, result).await.map(axum::Json)
}

/// Retry a dead letter, with all its attempts
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/messages/{id}/retry", operation_id = "retry_claim",
    tag = "mails", request_body = Option<DeadClaimBody>,
    params(("id" = String, Path, description = "Id of the Mail")),
    responses((status = 200, body = ClaimSchema))
))]
pub async fn retry(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    OptionalJsonBody(DeadClaimBody { workspace }): OptionalJsonBody<DeadClaimBody>,
) -> Result<axum::Json<ClaimInfo>, ApiError> {
    let (id, workspace) = claim_key(&api, &path, workspace).await?;
    let workspace = caller.shown_workspace(workspace)?;
    claim_view(api.store.retry_claim(&id, &workspace, api.clock.now()).await)
}

/// Drop a dead letter without retrying it
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/messages/{id}/drop", operation_id = "drop_claim",
    tag = "mails", request_body = Option<DeadClaimBody>,
    params(("id" = String, Path, description = "Id of the Mail")),
    responses((status = 200, body = ClaimSchema))
))]
pub async fn drop_claim(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    OptionalJsonBody(DeadClaimBody { workspace }): OptionalJsonBody<DeadClaimBody>,
) -> Result<axum::Json<ClaimInfo>, ApiError> {
    let (id, workspace) = claim_key(&api, &path, workspace).await?;
    let workspace = caller.shown_workspace(workspace)?;
    claim_view(api.store.drop_claim(&id, &workspace, api.clock.now()).await)
}

/// Rebuild the files of the mailbox from the store
///
/// Writes files that are missing or changed, moves files from wrong directories, and starts a
/// new index. Files of other programs are counted and not changed. With `from_files`, Mails
/// that the store has lost are first stored again from their files.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/mailbox/rebuild", operation_id = "rebuild_mailbox",
    tag = "mails", params(RebuildQuery),
    responses((status = 200, body = RebuildView))
))]
pub async fn rebuild(
    State(api): State<SharedApi>,
    QueryParams(RebuildQuery { from_files }): QueryParams<RebuildQuery>,
) -> Result<axum::Json<RebuildView>, ApiError> {
    let rebuilt = if from_files.unwrap_or(false) {
        let owner = api.config.borrow().owner.clone();
        api.projector.rebuild_from_files(owner, api.clock.now()).await
    } else {
        api.projector.rebuild().await
    };
    Ok(axum::Json(rebuilt?.into()))
}

async fn update(
    api: &Api,
    caller: &Caller,
    path: &PathParams,
    agent_id: Option<String>,
    workspace: Option<String>,
    epoch: Option<i64>,
    step: ClaimUpdate,
) -> Result<axum::Json<ClaimInfo>, ApiError> {
    let (id, workspace) = claim_key(api, path, workspace).await?;
    let workspace = caller.claim_workspace(workspace)?;
    let proof = input::lease_proof(epoch, agent(caller, agent_id)?)?;
    if caller.agent().is_some() {
        let claim = api.store.mail(&id, &workspace).await?.claim;
        let lease = claim.as_ref().and_then(|claim| claim.claiming.state.lease());
        caller.check_lease(lease).map_err(|lost| ApiError::of_claim(lost.into()))?;
    }
    claim_view(api.store.update_claim(&id, &workspace, proof, step, api.clock.now()).await)
}

/// The Mail in the path and the workspace in the body.
async fn claim_key(
    api: &Api,
    path: &PathParams,
    workspace: Option<String>,
) -> Result<(MailId, Option<Workspace>), ApiError> {
    let id = mail_id(api, path).await?;
    let workspace = parse_workspace(workspace);
    Ok((id, workspace.map_err(|error| ApiError::bad_field("workspace", error))?))
}

fn claim_view(result: Result<Claim, StoreError>) -> Result<axum::Json<ClaimInfo>, ApiError> {
    Ok(axum::Json(ClaimInfo::from(&result.map_err(ApiError::of_claim)?)))
}

/// The id in the path. Text that is not an id is reported as a Mail that does not exist.
pub(super) async fn mail_id(api: &Api, path: &PathParams) -> Result<MailId, ApiError> {
    let text = path.text("id");
    let missing =
        |_| StoreError::Missing { what: "Mail", key: text.chars().take(80).collect() }.into();
    ids::resolve(api, text, missing).await
}

pub(super) fn parse_workspace(
    workspace: Option<String>,
) -> Result<Option<Workspace>, InvalidWorkspace> {
    workspace.map(Workspace::new).transpose()
}

/// The name of the agent that claims. Only the token of an agent has a name of its own.
fn agent(caller: &Caller, name: Option<String>) -> Result<Holder, ApiError> {
    if let Some(token) = caller.agent() {
        return Ok(token.claim_holder(name.as_deref())?);
    }
    let name = name.ok_or_else(|| ApiError::bad_field("agent_id", "missing; name the agent"))?;
    Holder::new(name).map_err(|error| ApiError::bad_field("agent_id", error))
}
