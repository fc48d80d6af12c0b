//! Provider `telegram`: a bot receives by long polling or a webhook, and sends by the Bot API.
//!
//! * [`config`]: the keys of a tunnel.
//! * `wire`: ids, pages, and what is cut from payloads; `client`: calls; `failure`: what each error
//!   means.
//! * `inbound`, `content`, `notices`: convert updates, with `entities`; `albums`: joins the items
//!   of an album; `migrations`: groups that have become supergroups; `intake`: all of it.
//! * `poll`, `webhook`: receive updates.
//! * `outbound`: sends messages and files, with `formatting`; `reactions`: reacts to messages.
//! * `probe`: checks token, webhook and privacy mode.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderMap;
use monoco_core::chat_receipt::Reaction;
use monoco_core::delivery::DeliveryOutcome;
use monoco_core::did::{EndpointKind, TunnelId};
use monoco_core::inbound::InboundEvent;
use monoco_core::rate_limit::{Rate, SendLimits};
use monoco_core::retry::Failure;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::egress::Egress;
use crate::registry::{AdapterConfig, ProviderConfig as _};
use crate::throttle::ChatThrottle;
use crate::{
    Adapter, DeliveryRequest, FileDownload, InboundSink, ProbeReport, WebhookContent, WebhookError,
    WebhookRequest,
};

mod albums;
mod client;
pub mod config;
mod content;
mod entities;
mod failure;
mod formatting;
mod inbound;
mod intake;
mod migrations;
mod notices;
mod outbound;
mod poll;
mod probe;
mod reactions;
mod webhook;
mod wire;

#[cfg(test)]
mod tests;

use client::TelegramClient;
use config::{TelegramConfig, TelegramMode, TelegramRates};
use intake::UpdateIntake;

/// Time limit of one part of a message. Uploads of 50 MB take minutes on slow lines.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(300);

/// Telegram accepts about 30 messages per second of one bot.
const TUNNEL_RATE: Rate = Rate { count: 30, span_ms: 1000 };

/// How long a webhook request waits until the ids of migrated groups are stored.
const MIGRATIONS_TIMEOUT: Duration = Duration::from_secs(2);

/// The adapter of one Telegram tunnel.
#[derive(Debug)]
pub struct TelegramAdapter {
    id: TunnelId,
    config: TelegramConfig,
    client: TelegramClient,
    intake: UpdateIntake,
    throttled: ChatThrottle,
    rates: Mutex<TelegramRates>,
}

impl TelegramAdapter {
    /// Builds the adapter of tunnel `id`.
    pub fn new(id: TunnelId, config: TelegramConfig, egress: Egress) -> Self {
        let client = TelegramClient::new(egress, config.base_url.clone(), config.token.clone());
        let rates = Mutex::new(config.rates);
        let (intake, throttled) = (UpdateIntake::default(), ChatThrottle::default());
        Self { id, config, client, intake, throttled, rates }
    }

    /// Removes the webhook of the bot, and keeps the updates that wait. Returns whether it worked.
    async fn delete_webhook(&self) -> bool {
        match self.client.read("deleteWebhook", &json!({"drop_pending_updates": false})).await {
            Ok(_) => {
                tracing::info!(tunnel = %self.id, "removed the webhook of the bot");
                true
            }
            Err(error) => {
                let error = error.failure.detail();
                tracing::warn!(tunnel = %self.id, error, "cannot remove the webhook of the bot");
                false
            }
        }
    }
}

#[async_trait]
impl Adapter for TelegramAdapter {
    fn id(&self) -> &TunnelId {
        &self.id
    }

    fn provider(&self) -> &'static str {
        TelegramConfig::PROVIDER
    }

    fn mode(&self) -> &'static str {
        self.config.mode.name()
    }

    fn accepts_idempotency_keys(&self) -> bool {
        false
    }

    fn opens_connection(&self) -> bool {
        self.config.mode == TelegramMode::Poll
    }

    fn apply_live(&self, config: &dyn AdapterConfig) {
        if let Some(config) = (config as &dyn std::any::Any).downcast_ref::<TelegramConfig>() {
            *self.rates.lock().unwrap_or_else(PoisonError::into_inner) = config.rates;
        }
    }

    fn attempt_timeout(&self) -> Duration {
        ATTEMPT_TIMEOUT
    }

    async fn probe(&self) -> Result<ProbeReport, Failure> {
        probe::probe(self).await
    }

    fn check_webhook_headers(&self, headers: &HeaderMap) -> Result<(), WebhookError> {
        match self.config.mode {
            TelegramMode::Poll => Err(WebhookError::NotSupported),
            TelegramMode::Webhook => webhook::check_secret(&self.config.secret_token, headers),
        }
    }

    fn parse_webhook(&self, request: &WebhookRequest<'_>) -> Result<WebhookContent, WebhookError> {
        self.check_webhook_headers(request.headers)?;
        let update = webhook::read(request)?;
        let events = self.intake.read(&[update]).events;
        Ok(WebhookContent { events, answer: Some(webhook::answer()) })
    }

    async fn complete_events(&self, mut events: Vec<InboundEvent>) -> Vec<InboundEvent> {
        if !self.intake.migrations.is_stored(MIGRATIONS_TIMEOUT).await {
            tracing::warn!(tunnel = %self.id, "the ids of migrated groups are not stored yet");
        }
        self.intake.migrations.set_sessions(&mut events);
        events
    }

    async fn open_file(&self, handle: &str) -> Result<FileDownload, Failure> {
        self.client.open_file(handle).await
    }

    async fn react(&self, message_id: &str, reaction: Reaction) -> Result<(), Failure> {
        reactions::set(&self.client, message_id, reaction).await
    }

    async fn listen(&self, sink: &dyn InboundSink, stop: CancellationToken) -> Result<(), Failure> {
        let receive = async {
            match self.config.mode {
                TelegramMode::Poll => poll::run(self, sink, &stop).await,
                TelegramMode::Webhook => webhook::listen(self, sink, &stop).await,
            }
        };
        tokio::select! {
            () = receive => {}
            () = self.intake.migrations.keep_stored(sink) => {}
        }
        Ok(())
    }

    fn send_limits(&self, kind: EndpointKind) -> SendLimits {
        let rates = *self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let per_target = match kind {
            EndpointKind::User => vec![rates.chat],
            _ => vec![rates.chat, rates.group],
        };
        // Never less than that of one chat.
        let chat = u64::from(rates.chat.count) * 1000 / rates.chat.span_ms.max(1);
        let count = u32::try_from(chat).unwrap_or(u32::MAX).max(TUNNEL_RATE.count);
        SendLimits { per_target, per_tunnel: vec![Rate { count, ..TUNNEL_RATE }] }
    }

    async fn deliver(&self, request: &DeliveryRequest<'_>) -> DeliveryOutcome {
        self.deliver_parts(request).await
    }
}
