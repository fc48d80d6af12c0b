//! Provider `slack`: receives through Socket Mode or the Events API, and sends through the Web
//! API.
//!
//! * [`config`]: the keys of a tunnel.
//! * `wire`: ids, error codes, and what is cut from payloads; `client`: calls of the Web API.
//! * `inbound`, `notices`, `message_text`, `files`: convert events, with `blocks`, `mrkdwn` and
//!   `markup`.
//! * `workspace`, `names`: the account of the bot and names.
//! * `protocol`: Socket Mode; `events_api`: requests of the Events API; `history`: what was
//!   missed.
//! * `outbound`, `upload`, `sent_search`: send messages and files, with `rich_text`.
//! * `reactions`: reacts to messages.
//! * `probe`: checks tokens and scopes.

use std::time::Duration;

use async_trait::async_trait;
use http::HeaderMap;
use monoco_core::chat_receipt::Reaction;
use monoco_core::delivery::{DeliveryOutcome, SentPart};
use monoco_core::did::{EndpointKind, TunnelId};
use monoco_core::inbound::InboundEvent;
use monoco_core::rate_limit::{Rate, SendLimits};
use monoco_core::retry::Failure;
use tokio_util::sync::CancellationToken;

use crate::egress::{Egress, EgressRequest};
use crate::missed_history::HistoryCatchUp;
use crate::naming_sink::{EventNamer as _, NamingSink};
use crate::registry::ProviderConfig;
use crate::socket::{self, SocketConnector};
use crate::webhook::WebhookVerification;
use crate::webhook::wire::Signer;
use crate::{
    Adapter, DeliveryRequest, FileDownload, InboundSink, ProbeReport, WebhookContent, WebhookError,
    WebhookRequest,
};

mod blocks;
mod client;
pub mod config;
mod events_api;
mod files;
mod history;
mod inbound;
mod markup;
mod message_text;
mod mrkdwn;
mod names;
mod notices;
mod outbound;
mod probe;
mod protocol;
mod reactions;
mod rich_text;
mod sent_search;
mod upload;
mod wire;
mod workspace;

use client::SlackClient;
use config::{SlackConfig, SlackMode};
use files::SlackFileHandle;
use outbound::SlackSender;
use protocol::SlackSocket;
use workspace::SlackWorkspace;

/// Time limit of one part of a message. A file of 100 MB needs about 1 MB/s. After a crash the
/// next attempt waits for the end of this time.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(100);

/// Largest file that is downloaded, in bytes. The courier has a lower limit for each tunnel.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Slack allows several hundred messages per minute and workspace.
const TUNNEL_RATE: Rate = Rate { count: 300, span_ms: 60_000 };

/// The adapter of one Slack tunnel.
#[derive(Debug)]
pub struct SlackAdapter {
    id: TunnelId,
    mode: SlackMode,
    send_rate: Rate,
    max_silence: Duration,
    /// Verifies requests of the Events API; `None` in Socket Mode.
    signer: Option<Signer>,
    workspace: SlackWorkspace,
    catch_up: HistoryCatchUp,
    sender: SlackSender,
}

impl SlackAdapter {
    /// Builds the adapter of tunnel `id`. The error says why the tunnel cannot run.
    pub fn new(id: TunnelId, config: SlackConfig, egress: Egress) -> Result<Self, String> {
        let signer = match config.mode {
            SlackMode::Socket => None,
            SlackMode::Webhook => {
                let signer = Signer::new(&WebhookVerification::Slack, &config.signing_secret);
                Some(signer.map_err(|error| format!("signing_{error}"))?)
            }
        };
        let client = SlackClient::new(egress, config.base_url, config.app_token, config.bot_token);
        let mut workspace = SlackWorkspace::new(client);
        workspace.accepts_bots = config.accepts_bots;
        Ok(Self {
            id,
            mode: config.mode,
            send_rate: config.send_rate,
            max_silence: Duration::from_secs(config.max_silence_s),
            signer,
            workspace,
            catch_up: HistoryCatchUp::new(config.catch_up),
            sender: SlackSender::default(),
        })
    }
}

#[async_trait]
impl Adapter for SlackAdapter {
    fn id(&self) -> &TunnelId {
        &self.id
    }

    fn provider(&self) -> &'static str {
        SlackConfig::PROVIDER
    }

    fn mode(&self) -> &'static str {
        self.mode.name()
    }

    fn accepts_idempotency_keys(&self) -> bool {
        false
    }

    fn opens_connection(&self) -> bool {
        self.mode == SlackMode::Socket
    }

    fn reads_history(&self) -> bool {
        true
    }

    fn attempt_timeout(&self) -> Duration {
        ATTEMPT_TIMEOUT
    }

    async fn probe(&self) -> Result<ProbeReport, Failure> {
        probe::probe(&self.workspace, self.mode).await
    }

    fn check_webhook_headers(&self, headers: &HeaderMap) -> Result<(), WebhookError> {
        self.signer.as_ref().ok_or(WebhookError::NotSupported)?.check_headers(headers)
    }

    fn parse_webhook(&self, request: &WebhookRequest<'_>) -> Result<WebhookContent, WebhookError> {
        self.signer.as_ref().ok_or(WebhookError::NotSupported)?.verify(request)?;
        events_api::read(&self.workspace, request)
    }

    async fn complete_events(&self, events: Vec<InboundEvent>) -> Vec<InboundEvent> {
        self.workspace.add_names(events).await
    }

    async fn open_file(&self, handle: &str) -> Result<FileDownload, Failure> {
        let handle = SlackFileHandle::parse(handle)?;
        let client = &self.workspace.client;
        let url = match &handle.url {
            Some(url) => url.clone(),
            None => {
                let reply = client.read("files.info", &[("file", &handle.id)]).await;
                let reply = reply.map_err(|error| error.failure)?;
                files::private_url(&reply.value()["file"])?
            }
        };
        let target = client.hosts.http(&url)?;
        let token = client.bot_token().await?;
        let request = EgressRequest::get(&target).bearer(token.expose());
        let download = client.egress.download(request, MAX_FILE_BYTES, &client.hosts).await?;
        let file = download.into_file(None)?;
        handle.check(&file)?;
        Ok(file)
    }

    async fn react(&self, message_id: &str, reaction: Reaction) -> Result<(), Failure> {
        reactions::add(&self.workspace.client, message_id, reaction).await
    }

    async fn listen(&self, sink: &dyn InboundSink, stop: CancellationToken) -> Result<(), Failure> {
        let sink = NamingSink { sink, namer: &self.workspace };
        match sink.last_received().await {
            Ok(positions) => self.catch_up.set_start(positions),
            Err(error) => tracing::warn!(tunnel = %self.id, %error, "cannot read chat positions"),
        }
        match self.mode {
            SlackMode::Socket => {
                let socket = SlackSocket::new(&self.workspace, &self.catch_up, self.max_silence);
                socket::run(&socket, &SocketConnector::default(), &sink, &stop).await
            }
            SlackMode::Webhook => {
                events_api::listen(&self.workspace, &self.catch_up, &sink, &stop).await;
                Ok(())
            }
        }
    }

    fn send_limits(&self, _kind: EndpointKind) -> SendLimits {
        SendLimits { per_target: vec![self.send_rate], per_tunnel: vec![self.tunnel_rate()] }
    }

    fn finds_sent(&self) -> bool {
        true
    }

    async fn find_sent(&self, request: &DeliveryRequest<'_>) -> Result<Option<SentPart>, Failure> {
        self.sender.find_sent(&self.workspace, request).await
    }

    async fn deliver(&self, request: &DeliveryRequest<'_>) -> DeliveryOutcome {
        self.sender.deliver(&self.workspace, request).await
    }
}

impl SlackAdapter {
    /// Returns the rate of the tunnel: never less than that of one chat.
    fn tunnel_rate(&self) -> Rate {
        let per_minute = u64::from(self.send_rate.count) * 60_000 / self.send_rate.span_ms.max(1);
        let count = u32::try_from(per_minute).unwrap_or(u32::MAX).max(TUNNEL_RATE.count);
        Rate { count, ..TUNNEL_RATE }
    }
}
