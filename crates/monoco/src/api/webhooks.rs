//! The other door: webhooks, on a listener of their own.
//!
//! It is the one that gets exposed, so nothing else is behind it: no token opens
//! anything here, and what is not a webhook is not found. A provider is told that we
//! have its message when the message is on disk, and not before.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use monoco_adapters::{InboundError, InboundSink, WebhookError, WebhookRequest};
use monoco_store::SharedStore;
use serde_json::json;
use tokio::sync::Semaphore;

use super::error::ApiError;
use super::input;
use crate::center::PipelineEntry;
use crate::clock::Clock;
use crate::courier::inbound::DurableInboundSink;
use crate::courier::tunnels::TunnelRegistry;

/// Largest body: attachments are inside.
const MAX_BODY: usize = 8 << 20;

/// Bytes of all bodies that are read at the same time, in KiB. Whoever comes when there
/// is no room is asked to come again.
const MAX_ALL: usize = (32 << 20) >> 10;

/// What the webhook handler works with.
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
        Self { store, clock, entry, tunnels, body_space: Semaphore::new(MAX_ALL) }
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
    let _room = body_space.try_acquire_many(kib).map_err(|_| ApiError::busy())?;
    let headers = request.headers().clone();
    let body = input::body(request, MAX_BODY).await?;

    let push = WebhookRequest { headers: &headers, body: &body, now: clock.wall() };
    let received = tunnel.adapter.parse_webhook(&push).map_err(|why| {
        let now = clock.now();
        tunnel.note(|pulse| pulse.record_receive_error(why.to_string(), now));
        tracing::warn!(tunnel = %tunnel.adapter.id(), %why, "webhook refused");
        refusal(&why)
    })?;
    drop(body);
    let keeper = DurableInboundSink { store, clock: *clock, entry, tunnel: &tunnel };
    let (mut kept, mut duplicates) = (0, 0);
    for (message, attachments) in received {
        // One that is not kept fails the whole: the provider sends it again, and what
        // was kept already is recognised.
        match keeper.receive(message, attachments).await.map_err(|why| unkept(&why))? {
            true => kept += 1,
            false => duplicates += 1,
        }
    }
    let answer = json!({"ok": true, "kept": kept, "duplicate": kept == 0 && duplicates > 0});
    Ok((StatusCode::OK, axum::Json(answer)).into_response())
}

fn refusal(why: &WebhookError) -> ApiError {
    match why {
        WebhookError::NotSupported => ApiError::no_webhook(),
        WebhookError::Unverified(_) | WebhookError::Stale(_) => {
            ApiError::unverified(why.to_string())
        }
        WebhookError::Unreadable(_) => ApiError::unreadable(why.to_string()),
    }
}

fn unkept(why: &InboundError) -> ApiError {
    match why {
        InboundError::Full => monoco_store::StoreError::DiskFull.into(),
        InboundError::Unavailable(detail) => {
            monoco_store::StoreError::Unavailable(detail.clone()).into()
        }
        InboundError::Unusable(_) => ApiError::unreadable(why.to_string()),
    }
}
