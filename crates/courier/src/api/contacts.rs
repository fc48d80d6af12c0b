//! Contacts and groups.

use axum::extract::State;
use axum::http::StatusCode;
use monoco_core::contact::{Binding, Contact, ContactLevel};
use monoco_core::did::{Did, EndpointKind, TunnelId};
use serde::Deserialize;
#[cfg(test)]
use utoipa::{IntoParams, ToSchema};

use super::error::ApiError;
use super::input::{self, JsonBody, PagingQuery, PathParams, QueryParams};
use super::views::contacts::{ContactPage, ContactView, DidList, GroupPage, GroupView};
use super::{Api, SharedApi};
use crate::center::find_contacts;

/// Longest name of a contact, group or provider.
const MAX_NAME_BYTES: usize = 256;

/// Most names of one contact.
const MAX_NAMES: usize = 16;

/// List contacts, newest first
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/contacts", operation_id = "list_contacts",
    tag = "people", params(PagingQuery),
    responses((status = 200, body = ContactPage))
))]
pub async fn contacts(
    State(api): State<SharedApi>,
    QueryParams(paging): QueryParams<PagingQuery>,
) -> Result<axum::Json<ContactPage>, ApiError> {
    let request = paging.page_request("contacts")?;
    let page = api.store.contacts(request.clone()).await?;
    let next_cursor = input::next_cursor("contacts", &request, page.next);
    let contacts = page.entries.into_iter().map(Into::into).collect();
    Ok(axum::Json(ContactPage { contacts, next_cursor }))
}

/// Get a contact with its bindings
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/contacts/{did}", operation_id = "get_contact",
    tag = "people",
    params(("did" = String, Path, description = "A DID")),
    responses((status = 200, body = ContactView))
))]
pub async fn contact(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<ContactView>, ApiError> {
    let contact = api.store.contact(&path.parse("did")?).await?;
    Ok(axum::Json(contact.into()))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct DidQuery {
    /// A DID, `tunnel:account`, an e-mail address, or the name of a contact or group
    text: String,
}

/// Find the DIDs that a text can mean
///
/// None when the text is unknown, several when it is ambiguous; at most 10.
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/dids", operation_id = "find_dids",
    tag = "people", params(DidQuery),
    responses((status = 200, body = DidList))
))]
pub async fn dids(
    State(api): State<SharedApi>,
    QueryParams(DidQuery { text }): QueryParams<DidQuery>,
) -> Result<axum::Json<DidList>, ApiError> {
    let dids = find_contacts(&api.store, &text).await?;
    Ok(axum::Json(DidList { dids: dids.into_iter().map(Into::into).collect() }))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ContactBody {
    /// Names of the contact; the first is shown
    #[serde(default)]
    names: Vec<String>,
    /// `block`, `stranger`, `temporary` or `friend` (default)
    level: Option<String>,
    /// Whether the contact reads its messages from an INBOX of this hub; default false
    #[serde(default)]
    here: bool,
}

/// Create or replace a contact
#[cfg_attr(test, utoipa::path(
    put, path = "/api/v1/contacts/{did}", operation_id = "put_contact",
    tag = "people",
    params(("did" = String, Path, description = "A DID")),
    request_body = ContactBody,
    responses((status = 200, body = ContactView))
))]
pub async fn put_contact(
    State(api): State<SharedApi>,
    path: PathParams,
    JsonBody(body): JsonBody<ContactBody>,
) -> Result<axum::Json<ContactView>, ApiError> {
    let ContactBody { names, level, here } = body;
    if names.len() > MAX_NAMES || names.iter().any(|name| !is_name(name)) {
        return Err(ApiError::bad_field("names", "expected at most 16 names of 1 to 256 bytes"));
    }
    let level = match level.as_deref() {
        None => ContactLevel::Friend,
        Some(text) => ContactLevel::parse(text).ok_or_else(|| {
            ApiError::bad_field("level", "expected block, stranger, temporary or friend")
        })?,
    };
    let did = path.parse("did")?;
    let contact = Contact { did, names, level, here, bindings: Vec::new() };
    let contact = api.store.put_contact(contact, api.clock.now()).await?;
    Ok(axum::Json(contact.into()))
}

pub(super) fn is_name(name: &str) -> bool {
    !name.trim().is_empty() && name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_control)
}

/// Remove a contact and its bindings
///
/// Its boxes are kept.
#[cfg_attr(test, utoipa::path(
    delete, path = "/api/v1/contacts/{did}", operation_id = "remove_contact",
    tag = "people",
    params(("did" = String, Path, description = "A DID")),
    responses((status = 204, description = "The contact is removed"))
))]
pub async fn remove_contact(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<StatusCode, ApiError> {
    api.store.remove_contact(&path.parse("did")?, api.clock.now()).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BindingBody {
    /// Id of the tunnel
    tunnel: String,
    /// The account, as the provider spells it
    address: String,
    /// `user` (default), `group`, `channel` or `addr`
    kind: Option<String>,
    /// The binding with the highest priority is used; default 0
    #[serde(default)]
    priority: i32,
}

/// Bind a contact to an account behind a tunnel
#[cfg_attr(test, utoipa::path(
    put, path = "/api/v1/contacts/{did}/bindings", operation_id = "add_binding",
    tag = "people",
    params(("did" = String, Path, description = "A DID")),
    request_body = BindingBody,
    responses((status = 200, body = ContactView))
))]
pub async fn bind(
    State(api): State<SharedApi>,
    path: PathParams,
    JsonBody(body): JsonBody<BindingBody>,
) -> Result<axum::Json<ContactView>, ApiError> {
    let BindingBody { tunnel, address, kind, priority } = body;
    let tunnel: TunnelId = tunnel.parse().map_err(|e| ApiError::bad_field("tunnel", e))?;
    let kind: EndpointKind = kind
        .as_deref()
        .unwrap_or("user")
        .parse()
        .map_err(|error| ApiError::bad_field("kind", error))?;
    if address.is_empty() || address.len() > 512 {
        return Err(ApiError::bad_field("address", "expected 1 to 512 bytes"));
    }
    let binding = Binding { tunnel, kind, address, priority };
    let contact = path.parse("did")?;
    let contact = api.store.bind(&contact, binding, api.clock.now()).await?;
    Ok(axum::Json(contact.into()))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct UnbindQuery {
    /// Id of the tunnel
    tunnel: String,
    /// The account, as the provider spells it
    address: String,
}

/// Remove a binding of a contact
#[cfg_attr(test, utoipa::path(
    delete, path = "/api/v1/contacts/{did}/bindings", operation_id = "remove_binding",
    tag = "people",
    params(("did" = String, Path, description = "A DID"), UnbindQuery),
    responses((status = 200, body = ContactView))
))]
pub async fn unbind(
    State(api): State<SharedApi>,
    path: PathParams,
    QueryParams(query): QueryParams<UnbindQuery>,
) -> Result<axum::Json<ContactView>, ApiError> {
    let tunnel: TunnelId =
        query.tunnel.parse().map_err(|error| ApiError::bad_parameter("tunnel", error))?;
    let did = path.parse("did")?;
    let now = api.clock.now();
    let contact = api.store.unbind(&did, &tunnel, &query.address, now).await?;
    Ok(axum::Json(contact.into()))
}

/// Block a sender for one target
///
/// To block a sender for all targets, give the contact the level `block`.
#[cfg_attr(test, utoipa::path(
    put, path = "/api/v1/blocks/{target}/{sender}", operation_id = "block_sender",
    tag = "people",
    params(
        ("target" = String, Path, description = "DID that does not receive the messages"),
        ("sender" = String, Path, description = "DID of the sender"),
    ),
    responses((status = 204, description = "The sender is blocked"))
))]
pub async fn block(State(api): State<SharedApi>, path: PathParams) -> Result<StatusCode, ApiError> {
    set_block(&api, &path, true).await
}

/// Unblock a sender for one target
#[cfg_attr(test, utoipa::path(
    delete, path = "/api/v1/blocks/{target}/{sender}", operation_id = "unblock_sender",
    tag = "people",
    params(
        ("target" = String, Path, description = "DID that receives the messages again"),
        ("sender" = String, Path, description = "DID of the sender"),
    ),
    responses((status = 204, description = "The sender is not blocked any more"))
))]
pub async fn unblock(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<StatusCode, ApiError> {
    set_block(&api, &path, false).await
}

async fn set_block(api: &Api, path: &PathParams, blocked: bool) -> Result<StatusCode, ApiError> {
    let (sender, target): (Did, Did) = (path.parse("sender")?, path.parse("target")?);
    api.store.set_block(&sender, &target, blocked, api.clock.now()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List groups with their subscribers
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/groups", operation_id = "list_groups",
    tag = "people", params(PagingQuery),
    responses((status = 200, body = GroupPage))
))]
pub async fn groups(
    State(api): State<SharedApi>,
    QueryParams(paging): QueryParams<PagingQuery>,
) -> Result<axum::Json<GroupPage>, ApiError> {
    let request = paging.page_request("groups")?;
    let page = api.store.groups(request.clone()).await?;
    let next_cursor = input::next_cursor("groups", &request, page.next);
    let groups = page.entries.into_iter().map(Into::into).collect();
    Ok(axum::Json(GroupPage { groups, next_cursor }))
}

/// Get a group with its subscribers
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/groups/{group}", operation_id = "get_group",
    tag = "people",
    params(("group" = String, Path, description = "A DID")),
    responses((status = 200, body = GroupView))
))]
pub async fn group(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<GroupView>, ApiError> {
    Ok(axum::Json(api.store.group(&path.parse("group")?).await?.into()))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GroupBody {
    name: Option<String>,
}

/// Create or rename a group
#[cfg_attr(test, utoipa::path(
    put, path = "/api/v1/groups/{group}", operation_id = "put_group",
    tag = "people",
    params(("group" = String, Path, description = "A DID")),
    request_body = GroupBody,
    responses((status = 200, body = GroupView))
))]
pub async fn put_group(
    State(api): State<SharedApi>,
    path: PathParams,
    JsonBody(body): JsonBody<GroupBody>,
) -> Result<axum::Json<GroupView>, ApiError> {
    if body.name.as_deref().is_some_and(|name| !is_name(name)) {
        return Err(ApiError::bad_field("name", "expected 1 to 256 bytes"));
    }
    let group: Did = path.parse("group")?;
    let group = api.store.put_group(&group, body.name, api.clock.now()).await?;
    Ok(axum::Json(group.into()))
}

/// Subscribe a reader to a group
#[cfg_attr(test, utoipa::path(
    put, path = "/api/v1/groups/{group}/subscribers/{reader}", operation_id = "add_subscriber",
    tag = "people",
    params(
        ("group" = String, Path, description = "A DID"),
        ("reader" = String, Path, description = "A DID"),
    ),
    responses((status = 200, body = GroupView))
))]
pub async fn subscribe(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<GroupView>, ApiError> {
    set_subscriber(&api, &path, true).await
}

/// Unsubscribe a reader from a group
#[cfg_attr(test, utoipa::path(
    delete, path = "/api/v1/groups/{group}/subscribers/{reader}", operation_id = "remove_subscriber",
    tag = "people",
    params(
        ("group" = String, Path, description = "A DID"),
        ("reader" = String, Path, description = "A DID"),
    ),
    responses((status = 200, body = GroupView))
))]
pub async fn unsubscribe(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<GroupView>, ApiError> {
    set_subscriber(&api, &path, false).await
}

async fn set_subscriber(
    api: &Api,
    path: &PathParams,
    subscribed: bool,
) -> Result<axum::Json<GroupView>, ApiError> {
    let (group, reader): (Did, Did) = (path.parse("group")?, path.parse("reader")?);
    let now = api.clock.now();
    let group = api.store.set_subscriber(&group, &reader, subscribed, now).await?;
    Ok(axum::Json(group.into()))
}
