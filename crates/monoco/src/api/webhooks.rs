//! Webhooks, on a listener of their own.
//!
//! This listener is the one that is exposed to the network, so it serves nothing else. Every
//! tunnel verifies its requests itself; the token of the API is not used here. The courier
//! answers 200 after the message is stored, not before.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use monoco_adapters::{InboundSink, WebhookRequest};
use monoco_store::SharedStore;
use serde_json::json;
use tokio::sync::Semaphore;

use super::error::ApiError;
use super::input;
use crate::center::PipelineEntry;
use crate::clock::Clock;
use crate::courier::inbound::DurableInboundSink;
use crate::courier::tunnels::TunnelRegistry;

/// Largest body, in bytes. It includes attachments.
const MAX_BODY: usize = 8 << 20;

/// Total size of all bodies that are read at the same time, in KiB. Further requests are
/// answered with 503.
const MAX_BODIES_KIB: usize = 32 << 10;

/// What the webhook handler works with. One value is shared by all requests.
pub struct WebhookListener {
    store: SharedStore,
    clock: Clock,
    entry: PipelineEntry,
    tunnels: Arc<TunnelRegistry>,
    /// Space for bodies that are being read, in KiB.
    body_space: Semaphore,
}

impl WebhookListener {
    pub fn new(
        store: SharedStore,
        clock: Clock,
        entry: PipelineEntry,
        tunnels: Arc<TunnelRegistry>,
    ) -> Self {
        Self { store, clock, entry, tunnels, body_space: Semaphore::new(MAX_BODIES_KIB) }
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
            response
        }))
        .with_state(Arc::new(webhooks))
}

async fn receive(
    State(webhooks): State<Arc<WebhookListener>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let WebhookListener { store, clock, entry, tunnels, body_space } = webhooks.as_ref();
    let tunnel = tunnels.get(&id).ok_or_else(ApiError::no_webhook)?;
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > MAX_BODY) {
        return Err(ApiError::too_large(MAX_BODY));
    }
    let kib = u32::try_from(announced.unwrap_or(MAX_BODY) / 1024 + 1).unwrap_or(u32::MAX);
    let _space = body_space.try_acquire_many(kib).map_err(|_| ApiError::busy())?;
    let headers = request.headers().clone();
    let body = input::body(request, MAX_BODY).await?;

    let webhook = WebhookRequest { headers: &headers, body: &body, now: clock.wall() };
    let received = tunnel.adapter.parse_webhook(&webhook).map_err(|error| {
        let now = clock.now();
        let reason = error.reason();
        tunnel.update_health(|health| health.record_rejected(reason, error.to_string(), now));
        tracing::warn!(tunnel = %tunnel.adapter.id(), %error, "webhook request rejected");
        error
    })?;
    drop(body);
    let sink = DurableInboundSink { store, clock: *clock, entry, tunnel: &tunnel };
    let (mut stored, mut duplicates) = (0, 0);
    for (message, attachments) in received {
        // If one message is not stored, the whole request fails. The provider sends it
        // again, and messages that were stored are recognised as duplicates.
        match sink.receive(message, attachments).await? {
            true => stored += 1,
            false => duplicates += 1,
        }
    }
    let body = json!({"ok": true, "stored": stored, "duplicate": stored == 0 && duplicates > 0});
    Ok((StatusCode::OK, axum::Json(body)).into_response())
}
