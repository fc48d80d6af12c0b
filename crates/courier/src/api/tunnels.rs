//! Tunnels: list, test, pause and resume them, and register those of other programs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use monoco_core::contact::{StrangerPolicy, TunnelInfo};
use monoco_core::did::TunnelId;
use monoco_core::retry::Failure;
use monoco_store::StoreError;
use serde::Deserialize;
#[cfg(test)]
use utoipa::ToSchema;

use super::contacts::is_name;
use super::error::ApiError;
use super::health;
use super::input::{JsonBody, PathParams};
use super::views::tunnels::{TunnelList, TunnelTestView, TunnelView};
use super::{Api, SharedApi};
use crate::courier::tunnels::RunningTunnel;

/// How long a connection test may take. Shorter than the time limit of a request.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// List tunnels, their rules and their health
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/tunnels", operation_id = "list_tunnels",
    tag = "tunnels",
    responses((status = 200, body = TunnelList))
))]
pub async fn tunnels(State(api): State<SharedApi>) -> Result<axum::Json<TunnelList>, ApiError> {
    let tunnels = all_tunnels(&api).await?.into_values().collect();
    Ok(axum::Json(TunnelList { tunnels }))
}

/// Get a tunnel and its health
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/tunnels/{id}", operation_id = "get_tunnel",
    tag = "tunnels",
    params(("id" = String, Path, description = "Id of the tunnel")),
    responses((status = 200, body = TunnelView))
))]
pub async fn tunnel(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<TunnelView>, ApiError> {
    view(&api, &path.parse("id")?).await
}

/// Pause a tunnel: it closes its connections, receives nothing and sends nothing
///
/// Deliveries wait until the tunnel is resumed. Webhook requests are rejected with 503, so that
/// the provider sends them again. The state survives a restart.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/tunnels/{id}/pause", operation_id = "pause_tunnel",
    tag = "tunnels",
    params(("id" = String, Path, description = "Id of the tunnel")),
    responses((status = 200, body = TunnelView))
))]
pub async fn pause(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<TunnelView>, ApiError> {
    let id = path.parse("id")?;
    set_active(&api, &id, false).await?;
    view(&api, &id).await
}

/// Resume a paused tunnel
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/tunnels/{id}/resume", operation_id = "resume_tunnel",
    tag = "tunnels",
    params(("id" = String, Path, description = "Id of the tunnel")),
    responses((status = 200, body = TunnelView))
))]
pub async fn resume(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<TunnelView>, ApiError> {
    let id = path.parse("id")?;
    set_active(&api, &id, true).await?;
    view(&api, &id).await
}

/// Test the connections and the login of a tunnel
///
/// Receives and sends nothing.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/tunnels/{id}/test", operation_id = "test_tunnel",
    tag = "tunnels",
    params(("id" = String, Path, description = "Id of the tunnel")),
    responses((status = 200, body = TunnelTestView))
))]
pub async fn test(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<TunnelTestView>, ApiError> {
    let tunnel = running(&api, &path.parse("id")?)?;
    Ok(axum::Json(probe(&tunnel).await))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TunnelBody {
    /// Name of the network; default `external`
    provider: Option<String>,
    /// What to do with messages of unknown senders: `accept` (default), `hold` or `drop`
    strangers: Option<String>,
    /// Whether the provider recognises a second copy by its idempotency key; default false
    #[serde(default)]
    idempotent: bool,
}

/// Create or change a tunnel that another program runs
///
/// The program dispatches received messages with `ingress.tunnel`, leases deliveries from the
/// TUNNEL_OUTBOX of `did:msgtunnel:{id}`, and reports their outcome.
#[cfg_attr(test, utoipa::path(
    put, path = "/api/v1/tunnels/{id}", operation_id = "put_tunnel",
    tag = "tunnels",
    params(("id" = String, Path, description = "1 to 64 of a-z, 0-9, '-' and '_'")),
    request_body = TunnelBody,
    responses((status = 200, body = TunnelView))
))]
pub async fn put_tunnel(
    State(api): State<SharedApi>,
    path: PathParams,
    JsonBody(body): JsonBody<TunnelBody>,
) -> Result<axum::Json<TunnelView>, ApiError> {
    let id: TunnelId = path.parse("id")?;
    if api.tunnels.get(id.as_str()).is_some() {
        let why = "the courier runs this tunnel itself; change it in the config file";
        return Err(ApiError::bad_parameter("id", why));
    }
    let provider = body.provider.unwrap_or_else(|| "external".to_owned());
    if !is_name(&provider) {
        return Err(ApiError::bad_field("provider", "expected 1 to 256 bytes"));
    }
    let strangers = body.strangers.as_deref().unwrap_or("accept");
    let strangers = StrangerPolicy::parse(strangers)
        .ok_or_else(|| ApiError::bad_field("strangers", "expected accept, hold or drop"))?;
    let (idempotent, finds_sent) = (body.idempotent, false);
    let tunnel = TunnelInfo { id, provider, strangers, idempotent, finds_sent };
    let tunnel = api.store.put_tunnel(tunnel, api.clock.now()).await?;
    Ok(axum::Json(TunnelView::new(tunnel, None)))
}

/// Pauses or resumes a tunnel that this courier runs. The state is stored first, so that it
/// survives a restart.
pub(super) async fn set_active(api: &Api, id: &TunnelId, active: bool) -> Result<(), ApiError> {
    running(api, id)?;
    api.store.set_tunnel_active(id, active, api.clock.now()).await?;
    // A reload may have replaced the tunnel since.
    if let Some(tunnel) = api.tunnels.get(id.as_str()) {
        tunnel.set_active(active);
    }
    Ok(())
}

/// Tests the connections of a tunnel, for a limited time.
pub(super) async fn probe(tunnel: &RunningTunnel) -> TunnelTestView {
    let probe = tokio::time::timeout(TEST_TIMEOUT, tunnel.adapter.probe()).await;
    let probe = probe.unwrap_or_else(|_| {
        let detail = format!("no answer within {} s", TEST_TIMEOUT.as_secs());
        Err(Failure::Temporary { detail, retry_after_ms: None, error_code: None })
    });
    probe.into()
}

/// A tunnel that this courier runs.
fn running(api: &Api, id: &TunnelId) -> Result<Arc<RunningTunnel>, ApiError> {
    api.tunnels.get(id.as_str()).ok_or_else(|| missing(id).into())
}

async fn view(api: &Api, id: &TunnelId) -> Result<axum::Json<TunnelView>, ApiError> {
    let view = all_tunnels(api).await?.remove(id).ok_or_else(|| missing(id))?;
    Ok(axum::Json(view))
}

fn missing(id: &TunnelId) -> StoreError {
    StoreError::Missing { what: "tunnel of this courier", key: id.to_string() }
}

/// The tunnels of the config and those of other programs, by id.
async fn all_tunnels(api: &Api) -> Result<BTreeMap<TunnelId, TunnelView>, ApiError> {
    let mut health = health::adapters(&api.tunnels, api.clock.now());
    let config = Arc::clone(&api.config.borrow());
    // A tunnel that is turned off, or that cannot start, is not stored.
    let configured = config.tunnels.iter().map(|(id, tunnel)| TunnelInfo {
        id: id.clone(),
        provider: tunnel.provider.to_owned(),
        strangers: tunnel.strangers,
        idempotent: false,
        finds_sent: false,
    });
    let tunnels = configured.chain(api.store.tunnels().await?);
    let tunnels: BTreeMap<_, _> = tunnels.map(|tunnel| (tunnel.id.clone(), tunnel)).collect();
    let view = |(id, tunnel): (TunnelId, TunnelInfo)| {
        let health = health.remove(id.as_str());
        (id, TunnelView::new(tunnel, health))
    };
    Ok(tunnels.into_iter().map(view).collect())
}
