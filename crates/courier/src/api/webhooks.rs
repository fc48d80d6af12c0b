//! Webhooks, on a listener of their own.
//!
//! This listener is the one that is exposed to the network, so it serves nothing else. Every
//! tunnel verifies its requests itself; the token of the API is not used here. The courier
//! answers 200 after the message is stored, not before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use monoco_adapters::{InboundSink, WebhookAnswer, WebhookError, WebhookRequest};
use monoco_store::SharedStore;
use serde_json::json;

use super::error::ApiError;
use super::input::{self, BodySpace};
use super::server;
use crate::center::PipelineEntry;
use crate::clock::Clock;
use crate::courier::inbound::DurableInboundSink;
use crate::courier::tunnels::{RunningTunnel, TunnelRegistry};
use crate::log_limit::LogLimit;

/// Largest body, in bytes. It includes attachments.
const MAX_BODY: usize = 8 << 20;

/// Space for the bodies of all tunnels, which are not verified while they are read. A body
/// without space is answered with 503.
static UNVERIFIED_BODIES: BodySpace = BodySpace::new(32 << 20);

/// What the webhook handler works with. One value is shared by all requests.
pub struct WebhookListener {
    store: SharedStore,
    clock: Clock,
    entry: PipelineEntry,
    tunnels: Arc<TunnelRegistry>,
    /// Rejections by tunnel. Every request names a tunnel that runs, so the map stays small.
    rejections: Mutex<HashMap<String, Arc<LogLimit>>>,
}

impl WebhookListener {
    pub fn new(
        store: SharedStore,
        clock: Clock,
        entry: PipelineEntry,
        tunnels: Arc<TunnelRegistry>,
    ) -> Self {
        Self { store, clock, entry, tunnels, rejections: Mutex::default() }
    }

    /// Logs and counts a rejected request. If it is authentic, it is an error of its tunnel.
    fn record_rejection(
        &self,
        tunnel: &RunningTunnel,
        reason: &'static str,
        is_authentic: bool,
        error: &str,
    ) {
        let (id, now) = (tunnel.adapter.id(), self.clock.now());
        tunnel.update_health(|health| {
            health.record_rejected(reason);
            if is_authentic {
                health.record_receive_error(error, now);
            }
        });
        // Nothing panics while it holds the lock.
        let mut limits = self.rejections.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = Arc::clone(limits.entry(id.to_string()).or_default());
        drop(limits);
        if let Some(suppressed) = limit.admit() {
            tracing::warn!(tunnel = %id, error, suppressed, "webhook request rejected");
        }
    }

    fn reject(&self, tunnel: &RunningTunnel, error: WebhookError) -> ApiError {
        let is_authentic = error.is_authentic();
        self.record_rejection(tunnel, error.reason(), is_authentic, &error.to_string());
        error.into()
    }
}

/// The only route of the webhook listener.
pub fn router(webhooks: WebhookListener) -> Router {
    Router::new()
        .route("/webhooks/{tunnel}", post(receive))
        .fallback(async || ApiError::no_webhook())
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .layer(axum::middleware::map_response(async |mut response: Response| {
            let nosniff = HeaderValue::from_static("nosniff");
            response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
            if !response.status().is_success() {
                server::close(&mut response);
            }
            response
        }))
        .with_state(Arc::new(webhooks))
}

async fn receive(
    State(webhooks): State<Arc<WebhookListener>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let tunnel = webhooks.tunnels.get(&id).ok_or_else(ApiError::no_webhook)?;
    if !tunnel.is_active() {
        return Err(ApiError::tunnel_paused());
    }
    let (parts, body) = request.into_parts();
    // Before the body, so that a client without a signature occupies no memory.
    let headers = tunnel.adapter.check_webhook_headers(&parts.headers);
    headers.map_err(|error| webhooks.reject(&tunnel, error))?;
    let body = input::body(body, MAX_BODY, &UNVERIFIED_BODIES).await?;

    let WebhookListener { store, clock, entry, .. } = webhooks.as_ref();
    let webhook = WebhookRequest {
        headers: &parts.headers,
        query: parts.uri.query().unwrap_or_default(),
        body: &body,
        now: clock.wall(),
    };
    let content = tunnel.adapter.parse_webhook(&webhook);
    let content = content.map_err(|error| webhooks.reject(&tunnel, error))?;
    let size = u64::try_from(body.len()).unwrap_or(u64::MAX);
    tunnel.quota.charge(size, clock.now()).map_err(|retry_after| {
        let error = ApiError::over_quota(retry_after);
        webhooks.record_rejection(&tunnel, "over_quota", true, &error.message);
        error
    })?;
    drop(body);
    let sink = DurableInboundSink { store, clock: *clock, entry, tunnel: &tunnel };
    let (mut stored, mut duplicates) = (0, 0);
    let events = tunnel.adapter.complete_events(content.events).await;
    for result in sink.receive_events(events).await {
        // If one event is not stored, the whole request fails. The provider sends it again,
        // and events that were stored are recognised as duplicates.
        match result? {
            true => stored += 1,
            false => duplicates += 1,
        }
    }
    if let Some(WebhookAnswer { status, content_type, body }) = content.answer {
        return Ok((status, [(header::CONTENT_TYPE, content_type)], body).into_response());
    }
    let body = json!({"ok": true, "stored": stored, "duplicate": stored == 0 && duplicates > 0});
    Ok((StatusCode::OK, axum::Json(body)).into_response())
}
