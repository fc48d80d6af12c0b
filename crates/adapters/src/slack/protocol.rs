//! Socket Mode: what the frames mean, and how they are acknowledged.
//!
//! The first frame of a connection is `hello`. Each envelope is acknowledged by its id within
//! 3 s; Slack sends an envelope that was not acknowledged again, with another envelope id and
//! the same event id. A `disconnect` frame comes some seconds before the server closes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use serde_json::{Value, json};

use super::client::{ApiArguments, ApiErrorKind, SlackApiError, SlackToken};
use super::history::SlackHistory;
use super::wire::text;
use super::workspace::{EventSource, SlackWorkspace};
use crate::InboundSink;
use crate::missed_history::HistoryCatchUp;
use crate::socket::{
    ConnectError, ConnectRetry, ConnectionGap, FrameAction, SocketEndpoint, SocketFrame,
    SocketMessage, SocketProtocol, SocketTiming,
};

/// Socket Mode of one tunnel.
pub(super) struct SlackSocket<'a> {
    workspace: &'a SlackWorkspace,
    catch_up: &'a HistoryCatchUp,
    max_silence: Duration,
    /// Whether Slack has asked for a new connection while the old one is open.
    replacing: AtomicBool,
}

#[async_trait]
impl SocketProtocol for SlackSocket<'_> {
    async fn endpoint(&self) -> Result<SocketEndpoint, ConnectError> {
        // Without the own account the answers of the bot could be taken for messages.
        self.workspace.own_account().await.map_err(connect_error)?;
        let client = &self.workspace.client;
        let arguments = ApiArguments::Write(&[]);
        let answer = client.call(SlackToken::App, "apps.connections.open", arguments).await;
        let answer = answer.map_err(connect_error)?;
        let url = answer.reply.text("url").unwrap_or_default();
        Ok(SocketEndpoint::new(client.hosts.socket(url)?))
    }

    fn read_frame(&self, frame: SocketFrame<'_>, _now: Timestamp) -> Vec<FrameAction> {
        let parsed = match frame {
            SocketFrame::Text(text) => serde_json::from_str::<Value>(text),
            SocketFrame::Binary(bytes) => serde_json::from_slice(bytes),
        };
        let Ok(frame) = parsed else {
            tracing::warn!("frame of Slack is no JSON");
            return Vec::new();
        };
        match text(&frame, "type") {
            Some("hello") => self.hello(&frame),
            Some("disconnect") => {
                self.replacing.store(true, Ordering::Relaxed);
                vec![disconnect(&frame)]
            }
            kind => self.envelope(kind.unwrap_or_default().to_owned(), frame),
        }
    }

    fn timing(&self) -> SocketTiming {
        let timing = SocketTiming {
            ready: Some(Duration::from_secs(20)),
            deadline_after_ping: Some(self.max_silence),
            ..SocketTiming::default()
        };
        timing.within(self.max_silence)
    }

    async fn catch_up(&self, sink: &dyn InboundSink, gap: ConnectionGap) -> Result<(), Failure> {
        self.catch_up.run(&mut SlackHistory::new(self.workspace, sink), sink, gap).await
    }
}

impl<'a> SlackSocket<'a> {
    pub fn new(
        workspace: &'a SlackWorkspace,
        catch_up: &'a HistoryCatchUp,
        max_silence: Duration,
    ) -> Self {
        Self { workspace, catch_up, max_silence, replacing: AtomicBool::new(false) }
    }

    fn hello(&self, frame: &Value) -> Vec<FrameAction> {
        let connections = frame["num_connections"].as_u64().unwrap_or(1);
        let own = if self.replacing.swap(false, Ordering::Relaxed) { 2 } else { 1 };
        let others = connections.saturating_sub(own);
        self.workspace.other_connections.store(others, Ordering::Relaxed);
        if others > 0 {
            tracing::warn!(
                others,
                "other connections use the same app token; each receives a part of the messages"
            );
        }
        vec![FrameAction::Ready]
    }

    fn envelope(&self, kind: String, mut frame: Value) -> Vec<FrameAction> {
        let Some(id) = text(&frame, "envelope_id").map(str::to_owned) else { return Vec::new() };
        let payload = frame["payload"].take();
        let source = match kind.as_str() {
            "slash_commands" | "interactive" => EventSource::Interaction(kind),
            _ => EventSource::Callback,
        };
        let events = self.workspace.read(source, payload);
        let ack = SocketMessage::Text(json!({ "envelope_id": id }).to_string());
        if events.is_empty() {
            return vec![FrameAction::Reply(ack)];
        }
        vec![FrameAction::Receive { events, ack }]
    }
}

/// Returns what a `disconnect` frame asks for.
fn disconnect(frame: &Value) -> FrameAction {
    let reason = text(frame, "reason").unwrap_or("unknown");
    if reason == "link_disabled" {
        let detail = "Socket Mode was turned off; turn it on in the settings of the app and \
                      restart the tunnel, or set `mode: webhook`";
        let error_code = Some(reason.to_owned());
        return FrameAction::Stop(Failure::Permanent { detail: detail.to_owned(), error_code });
    }
    let reason: String = reason.chars().filter(|c| !c.is_control()).take(60).collect();
    FrameAction::Reconnect { reason, keep_old: true }
}

/// Returns when a failed call is repeated. A wrong token is tried again slowly, because it can
/// be renewed; with a token that expires that happens soon.
fn connect_error(error: SlackApiError) -> ConnectError {
    let after = match error.kind {
        ApiErrorKind::Throttled { retry_after } => retry_after,
        _ => None,
    };
    let retry = match &error.failure {
        Failure::Permanent { .. } => ConnectRetry::Slow,
        _ => ConnectRetry::Backoff,
    };
    ConnectError { failure: error.failure, retry, after }
}

#[cfg(test)]
mod tests;
