//! Conversations, and the receipts of group readers.

use axum::extract::State;
use monoco_core::did::Did;
use monoco_core::object::ObjId;
use monoco_core::receipt::ReceiptStatus;
use monoco_core::token::Scope;
use serde::Deserialize;
#[cfg(test)]
use utoipa::{IntoParams, ToSchema};

use super::caller::Caller;
use super::error::ApiError;
use super::input::{self, JsonBody, PagingQuery, PathParams, QueryParams};
use super::views::sessions::{
    ReceiptList, ReceiptView, SessionEntryPage, SessionEntryView, SessionPage, SessionSummaryView,
};
use super::{SharedApi, ids, visibility};
use crate::center::check_owner;

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReceiptBody {
    msg_id: String,
    /// DID of the reader
    reader: String,
    /// UNREAD, READING, READED, ACCEPTED, REJECTED or QUARANTINED
    state: String,
    /// Why the reader has set this state; at most 4096 bytes
    reason: Option<String>,
}

/// Set the read state of a group message for a reader
#[cfg_attr(test, utoipa::path(
    put, path = "/api/v1/groups/{group}/receipts", operation_id = "set_receipt",
    tag = "sessions",
    params(("group" = String, Path, description = "A DID")),
    request_body = ReceiptBody,
    responses((status = 200, body = ReceiptView))
))]
pub async fn set_receipt(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    JsonBody(body): JsonBody<ReceiptBody>,
) -> Result<axum::Json<ReceiptView>, ApiError> {
    let group: Did = path.parse("group")?;
    let invalid = |error| ApiError::bad_field("msg_id", error);
    let msg_id: ObjId = ids::resolve(&api, &body.msg_id, invalid).await?;
    let reader = input::did("reader", &body.reader)?;
    caller.check_box(&reader)?;
    let status = ReceiptStatus::parse(&body.state).ok_or_else(|| {
        let known: Vec<_> = ReceiptStatus::ALL.iter().map(|s| s.as_str()).collect();
        ApiError::bad_field("state", format_args!("expected {}", known.join(", ")))
    })?;
    let (reason, now) = (body.reason.filter(|reason| !reason.is_empty()), api.clock.now());
    if reason.as_ref().is_some_and(|reason| reason.len() > 4096) {
        return Err(ApiError::bad_field("reason", "longer than 4096 bytes"));
    }
    let receipt = api.store.set_receipt(&group, msg_id, &reader, status, reason, now).await?;
    Ok(axum::Json(receipt.into()))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct ReceiptQuery {
    /// Id of the message
    msg_id: String,
    /// DID of the reader; default all readers
    reader: Option<String>,
}

/// List the read states of a group message
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/groups/{group}/receipts", operation_id = "list_receipts",
    tag = "sessions",
    params(("group" = String, Path, description = "A DID"), ReceiptQuery),
    responses((status = 200, body = ReceiptList))
))]
pub async fn receipts(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    QueryParams(query): QueryParams<ReceiptQuery>,
) -> Result<axum::Json<ReceiptList>, ApiError> {
    let group: Did = path.parse("group")?;
    let invalid = |error| ApiError::bad_parameter("msg_id", error);
    let msg_id: ObjId = ids::resolve(&api, &query.msg_id, invalid).await?;
    let reader = query.reader.map(|reader| reader.parse::<Did>()).transpose();
    let reader = reader.map_err(|error| ApiError::bad_parameter("reader", error))?;
    // An agent without the scope operate gets only its own receipts.
    let own = caller.agent().filter(|_| !caller.has_scope(Scope::Operate));
    let reader = reader.or_else(|| own.map(|token| token.did.clone()));
    reader.as_ref().map_or(Ok(()), |reader| caller.check_box(reader))?;
    let receipts = api.store.receipts(&group, msg_id, reader.as_ref()).await?;
    Ok(axum::Json(ReceiptList { receipts: receipts.into_iter().map(Into::into).collect() }))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct SessionQuery {
    /// DID of the owner
    owner: String,
    /// `next_cursor` of the previous page
    cursor: Option<String>,
    /// Maximum number of entries, 1 to 1000; default 50
    limit: Option<i64>,
    /// `newest` (default) or `oldest` first
    order: Option<String>,
}

impl SessionQuery {
    fn parse(self) -> Result<(Did, PagingQuery), ApiError> {
        let Self { owner, cursor, limit, order } = self;
        let owner = owner.parse().map_err(|error| ApiError::bad_parameter("owner", error))?;
        Ok((owner, PagingQuery { cursor, limit, order }))
    }
}

/// List the conversations of an owner, most recent first
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/sessions", operation_id = "list_sessions",
    tag = "sessions", params(SessionQuery),
    responses((status = 200, body = SessionPage))
))]
pub async fn sessions(
    State(api): State<SharedApi>,
    caller: Caller,
    QueryParams(query): QueryParams<SessionQuery>,
) -> Result<axum::Json<SessionPage>, ApiError> {
    let (owner, paging) = query.parse()?;
    caller.check_box(&owner)?;
    check_owner(&api.store, &owner).await?;
    let scope = format!("sessions {owner}");
    let request = paging.page_request(&scope)?;
    let page = api.store.sessions(&owner, request.clone()).await?;
    for session in &page.entries {
        visibility::record(&api, &caller, session.last.record.msg_id).await?;
    }
    let next_cursor = input::next_cursor(&scope, &request, page.next);
    let sessions =
        page.entries.into_iter().map(SessionSummaryView::try_from).collect::<Result<_, _>>()?;
    Ok(axum::Json(SessionPage { sessions, next_cursor }))
}

/// List the messages of a conversation, in both directions
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/sessions/{id}", operation_id = "get_session",
    tag = "sessions",
    params(("id" = String, Path, description = "DID of the other party or the group"), SessionQuery),
    responses((status = 200, body = SessionEntryPage))
))]
pub async fn session(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    QueryParams(query): QueryParams<SessionQuery>,
) -> Result<axum::Json<SessionEntryPage>, ApiError> {
    let (owner, paging) = query.parse()?;
    caller.check_box(&owner)?;
    check_owner(&api.store, &owner).await?;
    let peer: Did = path.parse("id")?;
    let scope = format!("session {owner} {peer}");
    let request = paging.page_request(&scope)?;
    let page = api.store.session(&owner, &peer, request.clone()).await?;
    for line in &page.entries {
        visibility::record(&api, &caller, line.record.msg_id).await?;
    }
    let next_cursor = input::next_cursor(&scope, &request, page.next);
    let lines =
        page.entries.into_iter().map(SessionEntryView::try_from).collect::<Result<_, _>>()?;
    Ok(axum::Json(SessionEntryPage { lines, next_cursor }))
}
