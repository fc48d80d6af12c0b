//! Halts: stop deliveries, and resume them.

use axum::extract::State;
use monoco_core::halt::{Halt, HaltScope};
use monoco_store::{HaltCounts, StoreError};
use serde::Deserialize;
#[cfg(test)]
use utoipa::ToSchema;

use super::caller::Caller;
use super::error::ApiError;
use super::input::{OptionalJsonBody, PathParams};
use super::views::approvals::{HaltList, HaltResult, HaltView};
use super::{Api, SharedApi};

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct HaltBody {
    /// Whether to reject all writes of agents; default false
    lock: bool,
}

/// List the halts that apply now
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/halts", operation_id = "list_halts",
    tag = "approvals",
    responses((status = 200, body = HaltList))
))]
pub async fn list(State(api): State<SharedApi>) -> Result<axum::Json<HaltList>, ApiError> {
    Ok(axum::Json(HaltList { halts: halts(&api).await? }))
}

/// Halt deliveries
///
/// When the request is answered, no attempt in the scope starts any more, also not through tunnels
/// of other programs. Messages that agents send meanwhile are held for approval. A halt that has
/// `lock` keeps it until deliveries are resumed.
#[cfg_attr(test, utoipa::path(
    put, path = "/api/v1/halts/{scope}", operation_id = "halt",
    tag = "approvals", request_body = Option<HaltBody>,
    params(("scope" = String, Path, description = "`all`, `agent:NAME` or `tunnel:ID`")),
    responses((status = 200, body = HaltResult))
))]
pub async fn halt(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
    OptionalJsonBody(HaltBody { lock }): OptionalJsonBody<HaltBody>,
) -> Result<axum::Json<HaltResult>, ApiError> {
    let scope: HaltScope = path.parse("scope")?;
    // A misspelt name would stop nothing.
    let missing = match &scope {
        HaltScope::All => None,
        HaltScope::Tunnel(id) => {
            (!api.store.owner_exists(&id.did()).await?).then(|| ("tunnel", id.to_string()))
        }
        HaltScope::Agent(name) => {
            let is_known = api.store.tokens().await?.iter().any(|it| it.name.as_str() == name);
            (!is_known).then(|| ("token", name.clone()))
        }
    };
    if let Some((what, key)) = missing {
        return Err(StoreError::Missing { what, key }.into());
    }
    if lock && matches!(scope, HaltScope::Tunnel(_)) {
        let why = "a tunnel cannot be locked; lock all agents or one agent";
        return Err(ApiError::bad_field("lock", why));
    }
    let halt =
        Halt { scope: scope.clone(), lock, by: caller.name().to_owned(), at: api.clock.now() };
    let counts = api.store.put_halt(halt).await?;
    result(&api, &scope, true, counts).await
}

/// Resume deliveries
///
/// Messages that were held meanwhile stay held until they are approved.
#[cfg_attr(test, utoipa::path(
    delete, path = "/api/v1/halts/{scope}", operation_id = "resume",
    tag = "approvals",
    params(("scope" = String, Path, description = "`all`, `agent:NAME` or `tunnel:ID`")),
    responses((status = 200, body = HaltResult))
))]
pub async fn resume(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
) -> Result<axum::Json<HaltResult>, ApiError> {
    let scope: HaltScope = path.parse("scope")?;
    let counts = api.store.remove_halt(&scope, caller.name(), api.clock.now()).await?;
    let missing = || StoreError::Missing { what: "halt of", key: scope.to_string() };
    result(&api, &scope, false, counts.ok_or_else(missing)?).await
}

async fn result(
    api: &Api,
    scope: &HaltScope,
    halted: bool,
    counts: HaltCounts,
) -> Result<axum::Json<HaltResult>, ApiError> {
    let halts = halts(api).await?;
    Ok(axum::Json(HaltResult::new(scope.to_string(), halted, counts, halts)))
}

/// All halts that apply now.
pub async fn halts(api: &Api) -> Result<Vec<HaltView>, StoreError> {
    Ok(api.store.halts().await?.0.iter().map(HaltView::from).collect())
}
