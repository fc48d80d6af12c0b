//! Provider `lark`: Lark and Feishu. The bot of an app receives and sends, and a custom robot sends.
//!
//! * [`config`]: the keys of a tunnel.
//! * `wire`: fields, ids, and what is cut from payloads; `client`: the token and the calls;
//!   `failure`: what each error means.
//! * `frame`, `fragments`, `protocol`: the long connection; `crypto`, `callback`: HTTP events.
//! * `inbound`, `notices`, `content`, `post`, `card`, `forward`: convert events.
//! * `tenant`: names and chats; `history`: what was missed; `files`: fetches and uploads.
//! * `outbound`, `markdown`, `deliver`: send messages; `reactions`: reacts to them.
//! * `probe`: checks the app.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use http::HeaderMap;
use monoco_core::chat_receipt::Reaction;
use monoco_core::delivery::{DeliveryOutcome, SentPart};
use monoco_core::did::{EndpointKind, TunnelId};
use monoco_core::inbound::InboundEvent;
use monoco_core::rate_limit::{Rate, SendLimits};
use monoco_core::retry::Failure;
use tokio_util::sync::CancellationToken;

use crate::egress::Egress;
use crate::missed_history::HistoryCatchUp;
use crate::naming_sink::{EventNamer as _, NamingSink};
use crate::registry::ProviderConfig as _;
use crate::socket::{self, SocketConnector};
use crate::{
    Adapter, DeliveryRequest, FileDownload, InboundSink, ProbeReport, WebhookContent, WebhookError,
    WebhookRequest, push_mode,
};

mod callback;
mod card;
mod client;
pub mod config;
mod content;
mod crypto;
mod deliver;
mod failure;
mod files;
mod forward;
mod fragments;
mod frame;
mod history;
mod inbound;
mod markdown;
mod notices;
mod outbound;
mod post;
mod probe;
mod protocol;
mod reactions;
mod tenant;
mod wire;

#[cfg(test)]
mod tests;

use callback::{CallbackKeys, VerifiedCallback};
use client::LarkClient;
use config::{LarkConfig, LarkMode};
use deliver::LarkSender;
use history::LarkHistory;
use protocol::LarkSocket;
use tenant::LarkTenant;

/// Calls of one method per app and organisation (docs).
const APP_RATES: [Rate; 2] =
    [Rate { count: 50, span_ms: 1_000 }, Rate { count: 1_000, span_ms: 60_000 }];

/// Messages of a custom robot (docs).
const ROBOT_RATES: [Rate; 2] =
    [Rate { count: 5, span_ms: 1_000 }, Rate { count: 100, span_ms: 60_000 }];

/// Time limit of one part. A file of 30 MB needs about 400 kB/s.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(100);

/// The adapter of one Lark tunnel.
#[derive(Debug)]
pub struct LarkAdapter {
    id: TunnelId,
    config: LarkConfig,
    /// Verifies HTTP events; `None` when the tunnel receives none.
    callback: Option<CallbackKeys>,
    tenant: LarkTenant,
    catch_up: HistoryCatchUp,
    sender: LarkSender,
}

impl LarkAdapter {
    /// Builds the adapter of tunnel `id`.
    pub fn new(id: TunnelId, config: LarkConfig, egress: Egress) -> Self {
        let is_push = config.mode == LarkMode::Webhook;
        let callback = config.app.as_ref().filter(|_| is_push).map(|app| CallbackKeys {
            app_id: app.id.clone(),
            verification_token: config.verification_token.clone(),
            encrypt_key: config.encrypt_key.clone(),
        });
        let client = LarkClient::new(egress, config.base_url.clone(), config.app.clone());
        let tenant = LarkTenant::new(client);
        let catch_up = HistoryCatchUp::new(config.catch_up);
        let sender = LarkSender::new(config.robot.clone());
        Self { id, config, callback, tenant, catch_up, sender }
    }
}

#[async_trait]
impl Adapter for LarkAdapter {
    fn id(&self) -> &TunnelId {
        &self.id
    }

    fn provider(&self) -> &'static str {
        LarkConfig::PROVIDER
    }

    fn mode(&self) -> &'static str {
        self.config.mode()
    }

    /// Lark remembers keys for one hour only, so an unknown outcome is resolved by
    /// [`Adapter::find_sent`].
    fn accepts_idempotency_keys(&self) -> bool {
        false
    }

    fn opens_connection(&self) -> bool {
        self.config.app.is_some() && self.config.mode == LarkMode::Stream
    }

    fn reads_history(&self) -> bool {
        self.config.app.is_some()
    }

    fn attempt_timeout(&self) -> Duration {
        ATTEMPT_TIMEOUT
    }

    async fn probe(&self) -> Result<ProbeReport, Failure> {
        probe::probe(&self.tenant, self.config.mode).await
    }

    /// The challenge of a new address has no signature, so nothing is known before the body.
    fn check_webhook_headers(&self, _headers: &HeaderMap) -> Result<(), WebhookError> {
        self.callback.as_ref().map(drop).ok_or(WebhookError::NotSupported)
    }

    fn parse_webhook(&self, request: &WebhookRequest<'_>) -> Result<WebhookContent, WebhookError> {
        let keys = self.callback.as_ref().ok_or(WebhookError::NotSupported)?;
        let (events, answer) = match callback::verify(keys, request)? {
            VerifiedCallback::Challenge(answer) => (Vec::new(), answer),
            VerifiedCallback::Event(payload) => (self.tenant.read(payload), callback::accepted()),
        };
        Ok(WebhookContent { events, answer: Some(answer) })
    }

    async fn complete_events(&self, events: Vec<InboundEvent>) -> Vec<InboundEvent> {
        self.tenant.add_names(events).await
    }

    async fn open_file(&self, handle: &str) -> Result<FileDownload, Failure> {
        files::open(&self.tenant, handle).await
    }

    async fn react(&self, message_id: &str, reaction: Reaction) -> Result<(), Failure> {
        reactions::add(&self.tenant.client, message_id, reaction).await
    }

    async fn listen(&self, sink: &dyn InboundSink, stop: CancellationToken) -> Result<(), Failure> {
        if self.config.app.is_none() {
            stop.cancelled().await;
            return Ok(());
        }
        let sink = NamingSink { sink, namer: &self.tenant };
        match sink.last_received().await {
            Ok(positions) => {
                self.tenant.learn_chats(&positions);
                self.catch_up.set_start(positions);
            }
            Err(error) => tracing::warn!(tunnel = %self.id, %error, "cannot read chat positions"),
        }
        match self.config.mode {
            LarkMode::Stream => {
                let socket = LarkSocket::new(&self.tenant, &self.catch_up);
                socket::run(&socket, &SocketConnector::default(), &sink, &stop).await
            }
            LarkMode::Webhook => {
                let read = |gap| {
                    let mut history = LarkHistory::new(&self.tenant, &sink);
                    let sink = &sink;
                    async move { self.catch_up.run(&mut history, sink, gap).await }.boxed()
                };
                push_mode::listen(&stop, read).await;
                Ok(())
            }
        }
    }

    fn send_limits(&self, kind: EndpointKind) -> SendLimits {
        match kind {
            EndpointKind::Channel => {
                SendLimits { per_target: ROBOT_RATES.to_vec(), ..SendLimits::default() }
            }
            _ => SendLimits {
                per_target: vec![self.config.send_rate],
                per_tunnel: APP_RATES.to_vec(),
            },
        }
    }

    fn finds_sent(&self) -> bool {
        true
    }

    async fn find_sent(&self, request: &DeliveryRequest<'_>) -> Result<Option<SentPart>, Failure> {
        self.sender.find_sent(&self.tenant, request).await
    }

    async fn deliver(&self, request: &DeliveryRequest<'_>) -> DeliveryOutcome {
        self.sender.deliver(&self.tenant, request).await
    }
}
