//! Conversations, and how far each reader of a group is.

use axum::extract::State;
use monoco_core::did::Did;
use monoco_core::object::ObjId;
use monoco_core::receipt::{Receipt, ReceiptStatus};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::SharedApi;
use super::error::{ApiError, ApiErrorView};
use super::input::{self, JsonBody, PagingQuery, PathParams, QueryParams};
use super::views::{SessionEntryView, SessionSummaryView};
use crate::center::check_owner;

/// What a reader says.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiptBody {
    msg_id: String,
    /// Whose reading it is: a DID
    reader: String,
    /// UNREAD, READING, READED, ACCEPTED, REJECTED or QUARANTINED
    state: String,
}

/// How far a reader is with a message.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReceiptView {
    /// The receipt as an object of its own
    receipt_id: String,
    msg_id: String,
    reader: String,
    group: Option<String>,
    state: &'static str,
    at_ms: i64,
}

impl From<Receipt> for ReceiptView {
    fn from(receipt: Receipt) -> Self {
        Self {
            receipt_id: receipt.id().to_string(),
            msg_id: receipt.msg_id.to_string(),
            reader: receipt.reader.into(),
            group: receipt.group_id.map(Into::into),
            state: receipt.status.as_str(),
            at_ms: receipt.at_ms.ms(),
        }
    }
}

/// Say how far a reader is with a message of a group
#[utoipa::path(
    put, path = "/api/v1/groups/{group}/receipts", tag = "sessions",
    params(("group" = String, Path, description = "A DID")),
    request_body = ReceiptBody,
    responses((status = 200, body = ReceiptView), (status = "4XX", body = ApiErrorView))
)]
pub async fn set_receipt(
    State(api): State<SharedApi>,
    path: PathParams,
    JsonBody(body): JsonBody<ReceiptBody>,
) -> Result<axum::Json<ReceiptView>, ApiError> {
    let group: Did = path.parse("group")?;
    let msg_id: ObjId =
        body.msg_id.parse().map_err(|error| ApiError::bad_field("msg_id", error))?;
    let reader = input::did("reader", &body.reader)?;
    let status = ReceiptStatus::parse(&body.state).ok_or_else(|| {
        let known: Vec<_> = ReceiptStatus::ALL.iter().map(|s| s.as_str()).collect();
        ApiError::bad_field("state", format_args!("want {}", known.join(", ")))
    })?;
    let now = api.clock.now();
    let receipt = api.store.set_receipt(&group, msg_id, &reader, status, now).await?;
    Ok(axum::Json(receipt.into()))
}

/// Whose receipts.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct ReceiptQuery {
    /// The message
    msg_id: String,
    /// Only this reader's
    reader: Option<String>,
}

/// Receipts.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReceiptList {
    receipts: Vec<ReceiptView>,
}

/// List how far the readers of a group are with a message
#[utoipa::path(
    get, path = "/api/v1/groups/{group}/receipts", tag = "sessions",
    params(("group" = String, Path, description = "A DID"), ReceiptQuery),
    responses((status = 200, body = ReceiptList), (status = "4XX", body = ApiErrorView))
)]
pub async fn receipts(
    State(api): State<SharedApi>,
    path: PathParams,
    QueryParams(query): QueryParams<ReceiptQuery>,
) -> Result<axum::Json<ReceiptList>, ApiError> {
    let group: Did = path.parse("group")?;
    let msg_id: ObjId =
        query.msg_id.parse().map_err(|error| ApiError::bad_parameter("msg_id", error))?;
    let reader = query.reader.map(|reader| reader.parse::<Did>()).transpose();
    let reader = reader.map_err(|error| ApiError::bad_parameter("reader", error))?;
    let receipts = api.store.receipts(&group, msg_id, reader.as_ref()).await?;
    Ok(axum::Json(ReceiptList { receipts: receipts.into_iter().map(Into::into).collect() }))
}

/// Whose conversations.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct SessionQuery {
    /// Whose: a DID
    owner: String,
    /// Where the last page ended: its `next_cursor`
    cursor: Option<String>,
    /// Most entries to return, 1 to 1000
    limit: Option<i64>,
    /// `newest` first (the default) or `oldest` first
    order: Option<String>,
}

impl SessionQuery {
    fn read(self) -> Result<(Did, PagingQuery), ApiError> {
        let Self { owner, cursor, limit, order } = self;
        let owner = owner.parse().map_err(|error| ApiError::bad_parameter("owner", error))?;
        Ok((owner, PagingQuery { cursor, limit, order }))
    }
}

/// A page of conversations.
#[derive(Debug, Serialize, ToSchema)]
pub struct SessionPage {
    sessions: Vec<SessionSummaryView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// List an owner's conversations, the liveliest first
#[utoipa::path(
    get, path = "/api/v1/sessions", tag = "sessions", params(SessionQuery),
    responses((status = 200, body = SessionPage), (status = "4XX", body = ApiErrorView))
)]
pub async fn sessions(
    State(api): State<SharedApi>,
    QueryParams(query): QueryParams<SessionQuery>,
) -> Result<axum::Json<SessionPage>, ApiError> {
    let (owner, paging) = query.read()?;
    check_owner(&api.store, &owner).await?;
    let scope = format!("sessions {owner}");
    let window = paging.window(&scope)?;
    let page = api.store.sessions(&owner, window.clone()).await?;
    let next_cursor = input::next_cursor(&scope, &window, page.next);
    let sessions =
        page.entries.into_iter().map(SessionSummaryView::try_from).collect::<Result<_, _>>()?;
    Ok(axum::Json(SessionPage { sessions, next_cursor }))
}

/// A page of a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct SessionEntryPage {
    lines: Vec<SessionEntryView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// One conversation in both directions
#[utoipa::path(
    get, path = "/api/v1/sessions/{id}", tag = "sessions",
    params(("id" = String, Path, description = "The other party: a DID"), SessionQuery),
    responses((status = 200, body = SessionEntryPage), (status = "4XX", body = ApiErrorView))
)]
pub async fn session(
    State(api): State<SharedApi>,
    path: PathParams,
    QueryParams(query): QueryParams<SessionQuery>,
) -> Result<axum::Json<SessionEntryPage>, ApiError> {
    let (owner, paging) = query.read()?;
    check_owner(&api.store, &owner).await?;
    let peer: Did = path.parse("id")?;
    let scope = format!("session {owner} {peer}");
    let window = paging.window(&scope)?;
    let page = api.store.session(&owner, &peer, window.clone()).await?;
    let next_cursor = input::next_cursor(&scope, &window, page.next);
    let lines =
        page.entries.into_iter().map(SessionEntryView::try_from).collect::<Result<_, _>>()?;
    Ok(axum::Json(SessionEntryPage { lines, next_cursor }))
}
