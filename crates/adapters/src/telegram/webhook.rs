//! Webhooks: Telegram posts one update per request, with a secret in a header.
//!
//! Telegram repeats a request that is not answered with 2xx, after 1 s, 2 s, 4 s and so on, for up
//! to 24 h, and keeps the order of each chat. The repeated update is recognised by its message.

use std::time::Duration;

use http::{HeaderMap, HeaderName, StatusCode};
use monoco_core::config::Secret;
use monoco_core::retry::{Backoff, Failure, Jitter};
use serde_json::json;
use subtle::ConstantTimeEq as _;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::TelegramAdapter;
use super::client::ALLOWED_UPDATES;
use super::failure::{TelegramError, TelegramErrorKind};
use super::wire::{TelegramUpdate, parse_update};
use crate::{ConnectionEvent, InboundSink, WebhookAnswer, WebhookError, WebhookRequest};

const SECRET_HEADER: HeaderName = HeaderName::from_static("x-telegram-bot-api-secret-token");

/// Delays between attempts to set the webhook.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_secs(2), longest: Duration::from_secs(900) };

/// Longest delay that Telegram can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Checks the secret in the headers of a request.
pub(super) fn check_secret(secret: &Secret, headers: &HeaderMap) -> Result<(), WebhookError> {
    let given = headers.get(SECRET_HEADER);
    let given = given.ok_or(WebhookError::Unverified("the secret token is missing"))?;
    match bool::from(secret.expose().as_bytes().ct_eq(given.as_bytes())) {
        true => Ok(()),
        false => Err(WebhookError::Unverified("the secret token is wrong")),
    }
}

/// Parses the body of a verified request.
pub(super) fn read(request: &WebhookRequest<'_>) -> Result<TelegramUpdate, WebhookError> {
    let body = String::from_utf8_lossy(request.body);
    parse_update(&body).ok_or_else(|| {
        WebhookError::Unreadable("the body is not an update: JSON with `update_id`".to_owned())
    })
}

/// Telegram executes an answer that names a method, so the answer is empty.
pub(super) fn answer() -> WebhookAnswer {
    WebhookAnswer { status: StatusCode::OK, content_type: "application/json", body: b"{}".to_vec() }
}

/// Sets the webhook if the config names its URL, and waits for `stop`. Requests are received
/// meanwhile.
pub(super) async fn listen(
    adapter: &TelegramAdapter,
    sink: &dyn InboundSink,
    stop: &CancellationToken,
) {
    let mut failures = 0;
    while let Some(url) = &adapter.config.webhook_url {
        let Some(result) = stop.run_until_cancelled(set(adapter, url)).await else { return };
        let error = match result {
            Ok(()) => {
                sink.report(ConnectionEvent::Connected);
                break;
            }
            Err(error) => error,
        };
        failures += 1;
        let asked = match error.kind {
            TelegramErrorKind::Throttled { retry_after } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        let first = if matches!(error.failure, Failure::Permanent { .. }) { 5 } else { 0 };
        let delay = BACKOFF.delay(failures + first, Jitter::NONE).max(asked.min(MAX_RETRY_AFTER));
        let detail = error.failure.detail().to_owned();
        tracing::warn!(tunnel = %adapter.id, error = detail, "cannot set the webhook");
        sink.report(ConnectionEvent::Lost(detail));
        if stop.run_until_cancelled(sleep(delay)).await.is_none() {
            return;
        }
    }
    stop.cancelled().await;
}

async fn set(adapter: &TelegramAdapter, url: &str) -> Result<(), TelegramError> {
    let secret = adapter.config.secret_token.expose();
    let body = json!({
        "url": url,
        "secret_token": secret,
        "allowed_updates": ALLOWED_UPDATES,
        "drop_pending_updates": false,
    });
    adapter.client.read("setWebhook", &body).await.map(drop)
}

#[cfg(test)]
mod tests;
