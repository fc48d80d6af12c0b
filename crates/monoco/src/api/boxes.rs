//! Boxes: looking, taking, and saying what became of it.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use monoco_core::delivery::DeliveryOutcome;
use monoco_core::did::Did;
use monoco_core::record::{RecordId, RecordKind};
use monoco_core::retry::Failure;
use monoco_store::{LeasedEntry, Page};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::SharedApi;
use super::error::{ApiError, ApiErrorView};
use super::input::{self, JsonBody, PagingQuery, PathParams, QueryParams};
use super::views::{LeasedEntryView, RecordPage, RecordView, raw};
use crate::center::boxes::{self, BoxEntry};
use crate::center::lease::{delivery_retry, lease_next};

/// A box, and what waits in it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Box)]
pub struct BoxView {
    owner: String,
    r#box: &'static str,
    /// Entries that wait, counted up to 1000
    waiting: usize,
}

/// A page of boxes.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Boxes)]
pub struct BoxesView {
    boxes: Vec<BoxView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Which boxes to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct BoxesQuery {
    /// Where the last page ended: its `next_cursor`
    cursor: Option<String>,
    /// Most owners whose boxes to return, 1 to 1000
    limit: Option<i64>,
}

/// List the boxes there are
///
/// In the order we came to know their owners.
#[utoipa::path(
    get, path = "/api/v1/boxes", tag = "boxes", params(BoxesQuery),
    responses((status = 200, body = BoxesView), (status = "4XX", body = ApiErrorView))
)]
pub async fn boxes(
    State(api): State<SharedApi>,
    QueryParams(BoxesQuery { cursor, limit }): QueryParams<BoxesQuery>,
) -> Result<axum::Json<BoxesView>, ApiError> {
    let order = Some("oldest".to_owned());
    let window = PagingQuery { cursor, limit, order }.window("boxes")?;
    let page = api.store.boxes(window.clone()).await?;
    let next_cursor = input::next_cursor("boxes", &window, page.next);
    let boxes = page.entries.into_iter().map(|summary| BoxView {
        owner: summary.owner.into(),
        r#box: summary.box_kind.as_str(),
        waiting: summary.waiting,
    });
    Ok(axum::Json(BoxesView { boxes: boxes.collect(), next_cursor }))
}

/// Which records to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct BoxListQuery {
    /// Only these states, separated by commas
    state: Option<String>,
    /// Where the last page ended: its `next_cursor`
    cursor: Option<String>,
    /// Most records to return, 1 to 1000
    limit: Option<i64>,
    /// `newest` first (the default) or `oldest` first
    order: Option<String>,
}

/// List a box in the order things came
///
/// Looking changes nothing.
#[utoipa::path(
    get, path = "/api/v1/boxes/{owner}/{box}", tag = "boxes",
    params(
        ("owner" = String, Path, description = "A DID"),
        ("box" = String, Path, description = "INBOX, OUTBOX, GROUP_INBOX, REQUEST_BOX or TUNNEL_OUTBOX"),
        BoxListQuery
    ),
    responses((status = 200, body = RecordPage), (status = "4XX", body = ApiErrorView))
)]
pub async fn list(
    State(api): State<SharedApi>,
    path: PathParams,
    QueryParams(query): QueryParams<BoxListQuery>,
) -> Result<axum::Json<RecordPage>, ApiError> {
    let owner: Did = path.parse("owner")?;
    let box_kind = path.box_kind()?;
    let BoxListQuery { state, cursor, limit, order } = query;
    let scope = format!("box {owner} {}", box_kind.as_str());
    let window = PagingQuery { cursor, limit, order }.window(&scope)?;
    let states: Vec<String> =
        state.iter().flat_map(|names| names.split(',')).map(str::to_owned).collect();
    let page = boxes::list(&api.store, &owner, box_kind, &states, window.clone()).await?;
    let next_cursor = input::next_cursor(&scope, &window, page.next);
    Ok(axum::Json(RecordPage { next_cursor, ..page.into() }))
}

/// How many to look at.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct PeekQuery {
    /// Most records to return, 1 to 1000
    n: Option<i64>,
}

/// Look at what `next` would give
///
/// Peeking changes nothing.
#[utoipa::path(
    get, path = "/api/v1/boxes/{owner}/{box}/peek", tag = "boxes",
    params(
        ("owner" = String, Path, description = "A DID"),
        ("box" = String, Path, description = "The box"),
        PeekQuery
    ),
    responses((status = 200, body = RecordPage), (status = "4XX", body = ApiErrorView))
)]
pub async fn peek(
    State(api): State<SharedApi>,
    path: PathParams,
    QueryParams(query): QueryParams<PeekQuery>,
) -> Result<axum::Json<RecordPage>, ApiError> {
    let count = input::count("n", query.n, 1, input::MAX_PAGE)?;
    let page = boxes::peek(&api.store, &path.parse("owner")?, path.box_kind()?, count).await?;
    Ok(axum::Json(page.into()))
}

impl From<Page<BoxEntry>> for RecordPage {
    fn from(page: Page<BoxEntry>) -> Self {
        let records = page.entries.into_iter().map(Into::into).collect();
        Self { records, next_cursor: None }
    }
}

/// How to take.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseBody {
    /// Only in these states: UNREAD, or WAIT in a TUNNEL_OUTBOX (a FAILED one whose
    /// time has come counts as waiting)
    #[serde(default)]
    states: Vec<String>,
    /// How long to hold it, 1 to 86400 s; 300 by default
    lease_s: Option<i64>,
    /// Your name, for others to see who holds it
    holder: Option<String>,
}

/// Take the next record of a box
///
/// It is yours until the lease ends; say what became of it before that, with the
/// `epoch` that comes with it. 204 when there is none.
#[utoipa::path(
    post, path = "/api/v1/boxes/{owner}/{box}/next", tag = "boxes",
    params(
        ("owner" = String, Path, description = "A DID"),
        ("box" = String, Path, description = "INBOX, GROUP_INBOX, REQUEST_BOX or TUNNEL_OUTBOX"),
    ),
    request_body = LeaseBody,
    responses(
        (status = 200, body = LeasedEntryView),
        (status = 204, description = "Nothing is waiting"),
        (status = "4XX", body = ApiErrorView),
    )
)]
pub async fn next(
    State(api): State<SharedApi>,
    path: PathParams,
    JsonBody(body): JsonBody<LeaseBody>,
) -> Result<Response, ApiError> {
    let owner: Did = path.parse("owner")?;
    let box_kind = path.box_kind()?;
    let term = input::term("lease_s", body.lease_s)?;
    let holder = input::holder(body.holder)?;
    let (store, states) = (&api.store, &body.states);
    let leased = lease_next(store, api.clock, &owner, box_kind, states, holder, term).await?;
    let Some(LeasedEntry { entry, body }) = leased else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    Ok(axum::Json(LeasedEntryView { record: entry.into(), msg: raw(body)? }).into_response())
}

/// One record or delivery
#[utoipa::path(
    get, path = "/api/v1/records/{record_id}", tag = "boxes",
    params(("record_id" = String, Path, description = "`rec_…` or `dlv_…`")),
    responses((status = 200, body = RecordView), (status = "4XX", body = ApiErrorView))
)]
pub async fn record(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<RecordView>, ApiError> {
    Ok(axum::Json(boxes::get(&api.store, path.parse("record_id")?).await?.into()))
}

/// Where to move a record.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordStateBody {
    /// The state to move to
    state: String,
    /// Only if it still has this revision
    revision: Option<i64>,
    /// The epoch you were given when you took it
    epoch: Option<i64>,
    /// Your name, as you gave it when you took it
    holder: Option<String>,
    /// With READING: how long to hold it, 1 to 86400 s
    lease_s: Option<i64>,
}

/// Move a record or a delivery to another state
///
/// Moving it to where it already is changes nothing. docs/states.md has every step;
/// one that is not there gets 409 with both states.
#[utoipa::path(
    post, path = "/api/v1/records/{record_id}/state", tag = "boxes",
    params(("record_id" = String, Path, description = "`rec_…` or `dlv_…`")),
    request_body = RecordStateBody,
    responses((status = 200, body = RecordView), (status = "4XX", body = ApiErrorView))
)]
pub async fn update_state(
    State(api): State<SharedApi>,
    path: PathParams,
    JsonBody(body): JsonBody<RecordStateBody>,
) -> Result<axum::Json<RecordView>, ApiError> {
    let id: RecordId = path.parse("record_id")?;
    let guard = input::guard(body.epoch, body.holder)?;
    let term = input::term("lease_s", body.lease_s)?;
    let (store, now) = (&api.store, api.clock.now());
    let changed = boxes::update_state(store, id, &body.state, guard, body.revision, term, now);
    let entry = changed.await?;
    Ok(axum::Json(entry.into()))
}

/// What came of a try.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportBody {
    /// Whether the provider took it
    ok: bool,
    /// The provider's own id of the message
    external_msg_id: Option<String>,
    /// The provider's words, when it did not
    error: Option<String>,
    /// true: another try may work. false: none will. Left out: the provider may have
    /// it and nobody can know
    retryable: Option<bool>,
    /// How long the provider asked to wait
    retry_after_ms: Option<u64>,
    /// The epoch you were given when you took it
    epoch: Option<i64>,
    /// Your name, as you gave it when you took it
    holder: Option<String>,
}

/// Say what came of a delivery
///
/// Temporary failures are tried again with backoff, permanent ones are dead at once,
/// and what may have arrived is UNCERTAIN unless the tunnel is idempotent.
#[utoipa::path(
    post, path = "/api/v1/deliveries/{record_id}/report", tag = "boxes",
    params(("record_id" = String, Path, description = "`dlv_…`")),
    request_body = ReportBody,
    responses((status = 200, body = RecordView), (status = "4XX", body = ApiErrorView))
)]
pub async fn report(
    State(api): State<SharedApi>,
    path: PathParams,
    JsonBody(body): JsonBody<ReportBody>,
) -> Result<axum::Json<RecordView>, ApiError> {
    let id: RecordId = path.parse("record_id")?;
    if id.kind() != RecordKind::Delivery {
        let why = "that is a record of a reader; want a delivery, dlv_…";
        return Err(ApiError::bad_parameter("record_id", why));
    }
    let guard = input::guard(body.epoch, body.holder.clone())?;
    let (outcome, now) = (outcome(body)?, api.clock.now());
    let delivery = api.store.report_delivery(id, outcome, guard, delivery_retry(), now).await?;
    Ok(axum::Json(BoxEntry::Delivery(delivery).into()))
}

fn outcome(body: ReportBody) -> Result<DeliveryOutcome, ApiError> {
    let ReportBody { ok, external_msg_id, error, retryable, retry_after_ms, .. } = body;
    let too_long = |text: &Option<String>| text.as_ref().is_some_and(|text| text.len() > 4096);
    if too_long(&external_msg_id) || too_long(&error) {
        return Err(ApiError::bad_field("error", "want at most 4096 bytes of words or id"));
    }
    if ok {
        return Ok(DeliveryOutcome::Accepted { external_msg_id });
    }
    let Some(detail) = error.filter(|words| !words.is_empty()) else {
        return Err(ApiError::bad_field("error", "say what the provider said"));
    };
    Ok(DeliveryOutcome::Failed(match retryable {
        Some(true) => Failure::Temporary { detail, retry_after_ms },
        Some(false) => Failure::Permanent { detail },
        None => Failure::Unknown { detail },
    }))
}
