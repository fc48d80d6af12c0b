//! Provider `dingtalk`: the robot of an app receives and sends, and a custom robot sends.
//!
//! * [`config`]: the keys of a tunnel.
//! * `wire`: the JSON of frames and answers; `signature`: signatures in both directions.
//! * `inbound`: converts payloads into messages and notices.
//! * `stream`: the WebSocket; messages can also be posted to the webhook listener.
//! * `outbound`: converts a message into requests; `markdown`: the subset that DingTalk shows.
//! * `deliver`: sends the parts of a message; `session_webhooks`: where chats are answered.
//! * `api`: the token and the calls; `failure`: what each error means.

use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, StatusCode};
use monoco_core::config::{Secret, SecretSource};
use monoco_core::delivery::DeliveryOutcome;
use monoco_core::did::{EndpointKind, TunnelId};
use monoco_core::inbound::{BodyHash, InboundEvent};
use monoco_core::rate_limit::{Rate, SendLimits};
use monoco_core::retry::Failure;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::egress::Egress;
use crate::registry::ProviderConfig as _;
use crate::socket::{self, SocketConnector};
use crate::{
    Adapter, DeliveryRequest, FileDownload, InboundSink, ProbeReport, WebhookAnswer,
    WebhookContent, WebhookError, WebhookRequest,
};

mod api;
pub mod config;
mod deliver;
mod failure;
mod inbound;
mod markdown;
mod outbound;
mod session_webhooks;
mod signature;
mod stream;
mod wire;

#[cfg(test)]
mod tests;

use api::DingTalkApi;
use config::{DingTalkConfig, DingTalkMode};
use inbound::FileHandle;
use session_webhooks::SessionWebhooks;
use signature::CallbackVerifier;
use stream::DingTalkStream;

/// Calls of one API per second and app on the standard plan (docs).
const APP_RATE: Rate = Rate { count: 20, span_ms: 1_000 };

/// Messages of a custom robot per minute (reports).
const ROBOT_RATE: Rate = Rate { count: 20, span_ms: 60_000 };

/// Time for one part. Uploads of 20 MB take minutes on slow lines.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(300);

/// The adapter of one DingTalk tunnel.
#[derive(Debug)]
pub struct DingTalkAdapter {
    id: TunnelId,
    config: DingTalkConfig,
    api: DingTalkApi,
    webhooks: SessionWebhooks,
    verifier: CallbackVerifier,
}

impl DingTalkAdapter {
    /// Builds the adapter of tunnel `id`. The error says why the tunnel cannot run.
    pub fn new(id: TunnelId, config: DingTalkConfig, egress: Egress) -> Result<Self, String> {
        let api = DingTalkApi::new(&config, egress)?;
        let (webhooks, verifier) = (SessionWebhooks::default(), CallbackVerifier::default());
        Ok(Self { id, config, api, webhooks, verifier })
    }

    /// Returns the code of the app's robot; empty when there is no app.
    fn robot_code(&self) -> &str {
        self.config.app.as_ref().map_or("", |app| &app.robot_code)
    }

    fn is_stream(&self) -> bool {
        self.config.app.is_some() && self.config.mode == DingTalkMode::Stream
    }

    /// Returns the secret that signs requests to the webhook listener.
    fn callback_secret(&self) -> Result<&Secret, WebhookError> {
        match self.config.app.as_ref().map(|app| &app.secret) {
            Some(SecretSource::Value(secret)) if self.config.mode == DingTalkMode::Webhook => {
                Ok(secret)
            }
            _ => Err(WebhookError::NotSupported),
        }
    }
}

#[async_trait]
impl Adapter for DingTalkAdapter {
    fn id(&self) -> &TunnelId {
        &self.id
    }

    fn provider(&self) -> &'static str {
        DingTalkConfig::PROVIDER
    }

    fn mode(&self) -> &'static str {
        self.config.mode()
    }

    fn accepts_idempotency_keys(&self) -> bool {
        false
    }

    fn opens_connection(&self) -> bool {
        self.is_stream()
    }

    fn attempt_timeout(&self) -> Duration {
        ATTEMPT_TIMEOUT
    }

    async fn probe(&self) -> Result<ProbeReport, Failure> {
        if self.config.app.is_none() {
            let found = "not checked: a custom robot can only be checked by a message";
            let lines = vec![("custom robot".to_owned(), found.to_owned())];
            return Ok(ProbeReport { lines, warnings: Vec::new() });
        }
        let lines = self.api.probe(self.is_stream()).await?;
        Ok(ProbeReport { lines, warnings: Vec::new() })
    }

    fn check_webhook_headers(&self, headers: &HeaderMap) -> Result<(), WebhookError> {
        self.callback_secret()?;
        CallbackVerifier::check_headers(headers)
    }

    fn parse_webhook(&self, request: &WebhookRequest<'_>) -> Result<WebhookContent, WebhookError> {
        self.verifier.verify(self.callback_secret()?, request)?;
        let payload: Value = serde_json::from_slice(request.body)
            .ok()
            .filter(Value::is_object)
            .ok_or_else(|| WebhookError::Unreadable("the body is not a JSON object".to_owned()))?;
        let mut message = inbound::read_message(&payload, self.robot_code());
        if let Some((kind, account, webhook)) = message.webhook.take() {
            self.webhooks.insert(kind, account, webhook);
        }
        if let Some(InboundEvent::Message { message, .. }) = &mut message.event {
            message.body_hash = Some(content_hash(payload));
        }
        // DingTalk reads other answers as a message to the chat.
        let answer = WebhookAnswer {
            status: StatusCode::OK,
            content_type: "application/json",
            body: b"{}".to_vec(),
        };
        Ok(WebhookContent { events: message.event.into_iter().collect(), answer: Some(answer) })
    }

    async fn open_file(&self, handle: &str) -> Result<FileDownload, Failure> {
        let handle: FileHandle = serde_json::from_str(handle).map_err(|_| Failure::Permanent {
            detail: "the stored code of the file is not valid".to_owned(),
            error_code: None,
        })?;
        self.api.open_file(&handle).await
    }

    async fn listen(&self, sink: &dyn InboundSink, stop: CancellationToken) -> Result<(), Failure> {
        if !self.is_stream() {
            // Requests arrive through `parse_webhook`.
            stop.cancelled().await;
            return Ok(());
        }
        let (stream, connector) = (DingTalkStream::new(self), SocketConnector::default());
        let result = tokio::select! {
            result = socket::run(&stream, &connector, sink, &stop) => result,
            () = stream.store_progress(sink) => Ok(()),
        };
        stream.store_last_frame(sink, 0).await;
        result
    }

    fn send_limits(&self, kind: EndpointKind) -> SendLimits {
        match kind {
            EndpointKind::Channel => {
                SendLimits { per_target: vec![ROBOT_RATE], ..SendLimits::default() }
            }
            _ => SendLimits { per_tunnel: vec![APP_RATE], ..SendLimits::default() },
        }
    }

    async fn deliver(&self, request: &DeliveryRequest<'_>) -> DeliveryOutcome {
        self.deliver_parts(request).await
    }
}

/// Returns the hash of a message without its id. The signature does not cover the body, so a copy
/// of a request can have another id.
fn content_hash(mut payload: Value) -> BodyHash {
    if let Some(entries) = payload.as_object_mut() {
        for key in ["msgId", "sessionWebhook", "sessionWebhookExpiredTime"] {
            entries.remove(key);
        }
    }
    let hash = Sha256::digest(payload.to_string().as_bytes()).into();
    // The time of a signature may be one hour in the past or in the future.
    BodyHash { hash, window: Some(Duration::from_secs(2 * signature::TOLERANCE_S)) }
}
