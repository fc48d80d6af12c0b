//! Boxes: list entries, lease them, change their state, report deliveries.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use monoco_core::delivery::{DeliveryOutcome, SentPart};
use monoco_core::did::Did;
use monoco_core::lease::LeaseDuration;
use monoco_core::record::{RecordId, RecordKind};
use monoco_core::retry::Failure;
use monoco_core::tag::Tag;
use monoco_core::token::{Scope, scope_of_delivery_change};
use monoco_store::{LeasedEntry, StoreError};
use serde::Deserialize;
#[cfg(test)]
use utoipa::{IntoParams, ToSchema};

use super::caller::Caller;
use super::error::ApiError;
use super::input::{self, JsonBody, PagingQuery, PathParams, QueryParams};
use super::views::boxes::{BoxPage, LeasedEntryView, RecordPage, RecordView};
use super::views::raw;
use super::{Api, SharedApi, ids, visibility};
use crate::center::boxes::{self, BoxEntry};
use crate::center::lease::{delivery_retry, lease_next};

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct BoxesQuery {
    /// `next_cursor` of the previous page
    cursor: Option<String>,
    /// Maximum number of owners, 1 to 1000; default 50
    limit: Option<i64>,
}

/// List boxes
///
/// In the order in which their owners became known.
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/boxes", operation_id = "list_boxes",
    tag = "boxes", params(BoxesQuery),
    responses((status = 200, body = BoxPage))
))]
pub async fn boxes(
    State(api): State<SharedApi>,
    caller: Caller,
    QueryParams(BoxesQuery { cursor, limit }): QueryParams<BoxesQuery>,
) -> Result<axum::Json<BoxPage>, ApiError> {
    let order = Some("oldest".to_owned());
    let request = PagingQuery { cursor, limit, order }.page_request("boxes")?;
    let page = api.store.boxes(request.clone()).await?;
    let next_cursor = input::next_cursor("boxes", &request, page.next);
    // An agent gets pages with fewer entries; `next_cursor` still leads to all of its boxes.
    let own = page.entries.into_iter().filter(|found| caller.check_box(&found.owner).is_ok());
    let boxes = own.map(Into::into).collect();
    Ok(axum::Json(BoxPage { boxes, next_cursor }))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct BoxListQuery {
    /// States to list, separated by commas; default all
    state: Option<String>,
    /// Only records with this tag; not in a TUNNEL_OUTBOX
    tag: Option<String>,
    /// Only records of this thread; not in a TUNNEL_OUTBOX
    thread_key: Option<String>,
    /// `next_cursor` of the previous page
    cursor: Option<String>,
    /// Maximum number of records, 1 to 1000; default 50
    limit: Option<i64>,
    /// `newest` (default) or `oldest` first
    order: Option<String>,
}

/// List the records of a box
///
/// In the order in which they were created. Listing changes nothing.
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/boxes/{owner}/{box}", operation_id = "list_records",
    tag = "boxes",
    params(
        ("owner" = String, Path, description = "A DID"),
        ("box" = String, Path, description = "INBOX, OUTBOX, GROUP_INBOX, REQUEST_BOX or TUNNEL_OUTBOX"),
        BoxListQuery
    ),
    responses((status = 200, body = RecordPage))
))]
pub async fn list(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    QueryParams(query): QueryParams<BoxListQuery>,
) -> Result<axum::Json<RecordPage>, ApiError> {
    let owner: Did = path.parse("owner")?;
    caller.check_box(&owner)?;
    let box_kind = path.box_kind()?;
    let BoxListQuery { state, tag, thread_key, cursor, limit, order } = query;
    let scope = format!("box {owner} {}", box_kind.as_str());
    let request = PagingQuery { cursor, limit, order }.page_request(&scope)?;
    let states: Vec<String> =
        state.iter().flat_map(|names| names.split(',')).map(str::to_owned).collect();
    let (store, page) = (&api.store, request.clone());
    let page = boxes::list(store, &owner, box_kind, &states, tag, thread_key, page).await?;
    let next_cursor = input::next_cursor(&scope, &request, page.next);
    Ok(axum::Json(RecordPage { next_cursor, ..page.into() }))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct PeekQuery {
    /// Maximum number of records, 1 to 1000; default 1
    n: Option<i64>,
}

/// List the records that `next` would lease
///
/// Peeking changes nothing.
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/boxes/{owner}/{box}/peek", operation_id = "peek_records",
    tag = "boxes",
    params(
        ("owner" = String, Path, description = "A DID"),
        ("box" = String, Path, description = "INBOX, OUTBOX, GROUP_INBOX, REQUEST_BOX or TUNNEL_OUTBOX"),
        PeekQuery
    ),
    responses((status = 200, body = RecordPage))
))]
pub async fn peek(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    QueryParams(query): QueryParams<PeekQuery>,
) -> Result<axum::Json<RecordPage>, ApiError> {
    let count = input::count("n", query.n, 1, input::MAX_PAGE)?;
    let owner: Did = path.parse("owner")?;
    caller.check_box(&owner)?;
    let page = boxes::peek(&api.store, &owner, path.box_kind()?, count).await?;
    Ok(axum::Json(page.into()))
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LeaseBody {
    /// States to lease from: UNREAD, or WAIT in a TUNNEL_OUTBOX, which includes FAILED
    /// deliveries that are due
    #[serde(default)]
    states: Vec<String>,
    /// Duration of the lease, 1 to 86400 s; default 300
    lease_s: Option<i64>,
    /// Name of the caller, shown to others while it holds the lease
    holder: Option<String>,
}

/// Lease the next record of a box
///
/// The caller holds it until the lease expires. Before that, report the outcome with the
/// returned `epoch`. 204 when nothing waits.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/boxes/{owner}/{box}/next", operation_id = "lease_record",
    tag = "boxes",
    params(
        ("owner" = String, Path, description = "A DID"),
        ("box" = String, Path, description = "INBOX, GROUP_INBOX, REQUEST_BOX or TUNNEL_OUTBOX"),
    ),
    request_body = LeaseBody,
    responses(
        (status = 200, body = LeasedEntryView),
        (status = 204, description = "The box has no waiting record"),
    )
))]
pub async fn next(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    JsonBody(body): JsonBody<LeaseBody>,
) -> Result<Response, ApiError> {
    let owner: Did = path.parse("owner")?;
    caller.check_box(&owner)?;
    let box_kind = path.box_kind()?;
    let duration = input::lease_duration("lease_s", body.lease_s)?;
    let holder = caller.holder(body.holder)?;
    let (store, states) = (&api.store, &body.states);
    let leased = lease_next(store, api.clock, &owner, box_kind, states, holder, duration).await?;
    let Some(LeasedEntry { entry, message }) = leased else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    visibility::record(&api, &caller, message.id()).await?;
    Ok(axum::Json(LeasedEntryView {
        record: entry.into(),
        msg: raw(message.canonical().to_owned())?,
    })
    .into_response())
}

/// The record id in the path.
async fn record_id(api: &Api, path: &PathParams) -> Result<RecordId, ApiError> {
    let invalid = |error| ApiError::bad_parameter("record_id", error);
    ids::resolve(api, path.text("record_id"), invalid).await
}

/// Checks that an agent may change an entry by hand: a record of its own, or with the scope that
/// the delivery needs in its state.
async fn check_change(api: &Api, caller: &Caller, id: RecordId) -> Result<(), ApiError> {
    let Some(token) = caller.agent() else { return Ok(()) };
    let entry = boxes::get(&api.store, id).await?;
    match &entry {
        BoxEntry::Record(_) => {
            token.check_scope(&[Scope::Claim, Scope::Operate])?;
            token.check_box(entry.owner())?;
        }
        BoxEntry::Delivery(delivery) => {
            token.check_scope(&[scope_of_delivery_change(delivery.sending.state.name())])?;
        }
    }
    Ok(caller.check_lease(entry.lease()).map_err(StoreError::from)?)
}

/// Get a record or delivery
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/records/{record_id}", operation_id = "get_record",
    tag = "boxes",
    params(("record_id" = String, Path, description = "`rec_…` or `dlv_…`, or a unique prefix")),
    responses((status = 200, body = RecordView))
))]
pub async fn record(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
) -> Result<axum::Json<RecordView>, ApiError> {
    let entry = boxes::get(&api.store, record_id(&api, &path).await?).await?;
    caller.check_box(entry.owner())?;
    Ok(axum::Json(entry.into()))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RecordStateBody {
    /// The state to change to
    state: String,
    /// Reject the change unless the entry has this revision
    revision: Option<i64>,
    /// The epoch that the lease was returned with
    epoch: Option<i64>,
    /// Name of the caller, as given for the lease
    holder: Option<String>,
    /// For READING: duration of the lease, 1 to 86400 s; default 300
    lease_s: Option<i64>,
}

/// Change the state of a record or delivery
///
/// Setting the current state changes nothing. docs/states.md lists all transitions; any
/// other one is rejected with 409 and both states.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/records/{record_id}/state", operation_id = "update_record_state",
    tag = "boxes",
    params(("record_id" = String, Path, description = "`rec_…` or `dlv_…`, or a unique prefix")),
    request_body = RecordStateBody,
    responses((status = 200, body = RecordView))
))]
pub async fn update_state(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    JsonBody(body): JsonBody<RecordStateBody>,
) -> Result<axum::Json<RecordView>, ApiError> {
    let id = record_id(&api, &path).await?;
    check_change(&api, &caller, id).await?;
    let proof = input::lease_proof(body.epoch, caller.holder(body.holder)?)?;
    let duration = input::lease_duration("lease_s", body.lease_s)?;
    let (store, now) = (&api.store, api.clock.now());
    let changed = boxes::update_state(store, id, &body.state, proof, body.revision, duration, now);
    let entry = changed.await?;
    Ok(axum::Json(entry.into()))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RecordTagsBody {
    /// Tags to add, 1 to 64 bytes each, without spaces
    #[serde(default)]
    add: Vec<String>,
    /// Tags to remove from it
    #[serde(default)]
    remove: Vec<String>,
}

/// Add and remove tags of a record
///
/// A record has at most 32 tags, e.g. `starred`. The courier sets `group:<did>`, which cannot
/// be changed. Deliveries have no tags.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/records/{record_id}/tags", operation_id = "update_record_tags",
    tag = "boxes",
    params(("record_id" = String, Path, description = "`rec_…`, or a unique prefix")),
    request_body = RecordTagsBody,
    responses((status = 200, body = RecordView))
))]
pub async fn update_tags(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    JsonBody(body): JsonBody<RecordTagsBody>,
) -> Result<axum::Json<RecordView>, ApiError> {
    let id = record_id(&api, &path).await?;
    if id.kind() != RecordKind::Record {
        let why = "found the id of a delivery (dlv_…), expected that of a record (rec_…)";
        return Err(ApiError::bad_parameter("record_id", why));
    }
    let parse = |field: &str, tags: Vec<String>| {
        let tags = tags.into_iter().map(Tag::try_from).collect::<Result<Vec<_>, _>>();
        tags.map_err(|error| ApiError::bad_field(field, error))
    };
    let (add, remove) = (parse("add", body.add)?, parse("remove", body.remove)?);
    check_change(&api, &caller, id).await?;
    let record = api.store.tag_record(id, add, remove, api.clock.now()).await?;
    Ok(axum::Json(BoxEntry::Record(record).into()))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReportBody {
    /// Whether the provider accepted the message
    ok: bool,
    /// The provider's id of the message
    external_msg_id: Option<String>,
    /// The provider's error message, when `ok` is false
    error: Option<String>,
    /// The provider's error code, when `ok` is false
    error_code: Option<String>,
    /// true: another attempt may succeed. false: none will. Omitted: the outcome is unknown,
    /// the provider may have the message
    retryable: Option<bool>,
    /// Time to wait before the next attempt, if the provider asked for it
    retry_after_ms: Option<u64>,
    /// The epoch that the lease was returned with
    epoch: Option<i64>,
    /// Name of the caller, as given for the lease
    holder: Option<String>,
    /// Number of a part that was sent, from 0, when more parts follow. The last part is reported
    /// without it
    part: Option<u32>,
}

/// Report the outcome of a delivery attempt
///
/// Temporary failures are retried with backoff. Permanent failures make the delivery DEAD. An
/// unknown outcome makes it UNCERTAIN, unless the tunnel is idempotent. A message that is sent in
/// parts is reported part by part: each report with `part` stores a receipt and renews the lease, and
/// the next attempt continues after `delivery.parts`.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/deliveries/{record_id}/report", operation_id = "report_delivery",
    tag = "boxes",
    params(("record_id" = String, Path, description = "`dlv_…`, or a unique prefix")),
    request_body = ReportBody,
    responses((status = 200, body = RecordView))
))]
pub async fn report(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    JsonBody(body): JsonBody<ReportBody>,
) -> Result<axum::Json<RecordView>, ApiError> {
    let id = record_id(&api, &path).await?;
    if id.kind() != RecordKind::Delivery {
        let why = "found the id of a record (rec_…), expected that of a delivery (dlv_…)";
        return Err(ApiError::bad_parameter("record_id", why));
    }
    if caller.agent().is_some() {
        let entry = boxes::get(&api.store, id).await?;
        caller.check_box(entry.owner())?;
        caller.check_lease(entry.lease()).map_err(StoreError::from)?;
    }
    let proof = input::lease_proof(body.epoch, caller.holder(body.holder.clone())?)?;
    let part = body.part;
    let (outcome, now) = (outcome(body)?, api.clock.now());
    if let Some(part) = part {
        let DeliveryOutcome::Accepted { external_msg_id } = outcome else {
            let why = "found with `ok: false`; report the failure without it";
            return Err(ApiError::bad_field("part", why));
        };
        let (part, term) = (SentPart { part, external_msg_id }, LeaseDuration::DEFAULT);
        let delivery = api.store.record_part(id, part, proof, term, now).await?;
        return Ok(axum::Json(BoxEntry::Delivery(delivery).into()));
    }
    let retry = delivery_retry(api.config.borrow().deliveries);
    let delivery = api.store.report_delivery(id, outcome, proof, retry, now).await?;
    Ok(axum::Json(BoxEntry::Delivery(delivery).into()))
}

fn outcome(body: ReportBody) -> Result<DeliveryOutcome, ApiError> {
    let ReportBody { ok, external_msg_id, error, error_code, retryable, retry_after_ms, .. } = body;
    let too_long = |text: &Option<String>| text.as_ref().is_some_and(|text| text.len() > 4096);
    if too_long(&external_msg_id) || too_long(&error) || too_long(&error_code) {
        return Err(ApiError::bad_field(
            "error",
            "error, error_code or external_msg_id is longer than 4096 bytes",
        ));
    }
    if ok {
        return Ok(DeliveryOutcome::Accepted { external_msg_id });
    }
    let Some(detail) = error.filter(|message| !message.is_empty()) else {
        return Err(ApiError::bad_field(
            "error",
            "missing; give the error message of the provider",
        ));
    };
    Ok(DeliveryOutcome::Failed(match retryable {
        Some(true) => Failure::Temporary { detail, retry_after_ms, error_code },
        Some(false) => Failure::Permanent { detail, error_code },
        None => Failure::Unknown { detail, error_code },
    }))
}
