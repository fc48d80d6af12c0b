//! The long connection: what the frames mean, and how they are answered.
//!
//! A frame with an event is answered with the same frame and a status after the event is stored.
//! Lark sends an event that is not answered within 3 s again. The client pings; the answer has the
//! settings of the server. Lark's servers do not say how many connections are open: each event goes
//! to one of them.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, StatusCode};
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use serde_json::Value;

use super::client::ConnectionSettings;
use super::failure::LarkFault;
use super::fragments::FragmentBuffer;
use super::frame::{CONTROL, DATA, LarkSocketFrame};
use super::history::LarkHistory;
use super::notices;
use super::tenant::LarkTenant;
use crate::InboundSink;
use crate::missed_history::HistoryCatchUp;
use crate::socket::{
    ConnectError, ConnectRetry, ConnectionGap, FrameAction, SocketEndpoint, SocketFrame,
    SocketMessage, SocketProtocol, SocketTiming,
};

/// The time between two pings, in seconds, when the server names none, and its limits. With the
/// deadline of the answer, a dead connection is noticed within 150 s.
const DEFAULT_PING_S: u64 = 60;
const PING_RANGE_S: std::ops::RangeInclusive<u64> = 1..=120;

/// Time for the answer to a ping.
const PONG_DEADLINE: Duration = Duration::from_secs(25);

/// Status of a handshake that is not allowed, and of one whose login failed (SDK).
const FORBIDDEN: &str = "403";
const AUTH_FAILED: &str = "514";

/// The reason of [`AUTH_FAILED`] when the app has as many connections as it may have (SDK).
const TOO_MANY_CONNECTIONS: &str = "1000040350";

/// The long connection of one tunnel.
pub(super) struct LarkSocket<'a> {
    tenant: &'a LarkTenant,
    catch_up: &'a HistoryCatchUp,
    fragments: Mutex<FragmentBuffer>,
    /// The number that pings carry. It is the same for all connections of an app.
    service_id: AtomicI32,
    ping_s: AtomicU64,
}

#[async_trait]
impl SocketProtocol for LarkSocket<'_> {
    async fn endpoint(&self) -> Result<SocketEndpoint, ConnectError> {
        let endpoint = self.tenant.client.open_socket().await.map_err(connect_error)?;
        self.service_id.store(endpoint.service_id, Ordering::Relaxed);
        self.configure(endpoint.settings);
        let first_message = self.ping();
        Ok(SocketEndpoint { first_message, ..SocketEndpoint::new(endpoint.target) })
    }

    fn read_frame(&self, frame: SocketFrame<'_>, now: Timestamp) -> Vec<FrameAction> {
        let SocketFrame::Binary(bytes) = frame else { return Vec::new() };
        let frame = match LarkSocketFrame::parse(bytes) {
            Ok(frame) => frame,
            Err(error) => {
                tracing::warn!(bytes = bytes.len(), %error, "cannot parse a frame of Lark");
                return Vec::new();
            }
        };
        match frame.method {
            CONTROL if frame.header("type") == Some("pong") => self.pong(&frame),
            DATA => self.data(&frame, now),
            _ => Vec::new(),
        }
    }

    fn timing(&self) -> SocketTiming {
        SocketTiming {
            ping_interval: self.ping_interval(),
            pong_deadline: PONG_DEADLINE,
            ..SocketTiming::default()
        }
    }

    fn ping(&self) -> Option<SocketMessage> {
        let frame = LarkSocketFrame::ping(self.service_id.load(Ordering::Relaxed));
        Some(SocketMessage::Binary(frame.encode()))
    }

    fn handshake_rejected(&self, status: StatusCode, headers: &HeaderMap) -> ConnectError {
        handshake_error(status, headers)
    }

    async fn catch_up(&self, sink: &dyn InboundSink, gap: ConnectionGap) -> Result<(), Failure> {
        self.catch_up.run(&mut LarkHistory::new(self.tenant, sink), sink, gap).await
    }
}

impl<'a> LarkSocket<'a> {
    pub fn new(tenant: &'a LarkTenant, catch_up: &'a HistoryCatchUp) -> Self {
        Self {
            tenant,
            catch_up,
            fragments: Mutex::default(),
            service_id: AtomicI32::new(0),
            ping_s: AtomicU64::new(DEFAULT_PING_S),
        }
    }

    /// Applies the settings of the server, within the limits.
    fn configure(&self, settings: ConnectionSettings) {
        let seconds = settings.ping_interval.and_then(|seconds| u64::try_from(seconds).ok());
        if let Some(seconds) = seconds.filter(|seconds| *seconds > 0) {
            let seconds = seconds.clamp(*PING_RANGE_S.start(), *PING_RANGE_S.end());
            self.ping_s.store(seconds, Ordering::Relaxed);
        }
    }

    fn ping_interval(&self) -> Duration {
        Duration::from_secs(self.ping_s.load(Ordering::Relaxed))
    }

    fn pong(&self, frame: &LarkSocketFrame) -> Vec<FrameAction> {
        self.configure(serde_json::from_slice(&frame.payload).unwrap_or_default());
        vec![FrameAction::Pong, FrameAction::PingInterval(self.ping_interval())]
    }

    fn data(&self, frame: &LarkSocketFrame, now: Timestamp) -> Vec<FrameAction> {
        let added = {
            let mut fragments = self.fragments.lock().unwrap_or_else(PoisonError::into_inner);
            fragments.add(frame, now)
        };
        let payload = match added {
            Ok(Some(payload)) => payload,
            Ok(None) => return Vec::new(),
            Err(error) => {
                // Without an answer, Lark sends the event again.
                tracing::warn!(%error, "cannot use a fragment of an event of Lark");
                return Vec::new();
            }
        };
        let answer = |code| SocketMessage::Binary(frame.answer(code).encode());
        let events = match serde_json::from_slice::<Value>(&payload) {
            Ok(payload) => self.tenant.read(payload),
            Err(_) => vec![notices::unreadable(&payload, now)],
        };
        if events.is_empty() {
            return vec![FrameAction::Reply(answer(200))];
        }
        vec![
            FrameAction::Receive { events, ack: answer(200) },
            FrameAction::WhenUnstored(answer(500)),
        ]
    }
}

/// Returns when a failed request for an address is repeated. Wrong credentials are tried again
/// slowly, because they can become valid without a change of the config.
fn connect_error(fault: LarkFault) -> ConnectError {
    let after = match &fault {
        LarkFault::Throttled { retry_after, .. } => *retry_after,
        _ => None,
    };
    let is_config = fault.is_rejection() || matches!(fault, LarkFault::Token(_));
    let retry = if is_config { ConnectRetry::Slow } else { ConnectRetry::Backoff };
    ConnectError { failure: fault.into_failure(), retry, after }
}

/// Classifies a rejected handshake by the headers that the SDKs read.
fn handshake_error(status: StatusCode, headers: &HeaderMap) -> ConnectError {
    let header = |name: &str| {
        let value = headers.get(name)?.to_str().ok()?.trim();
        let plain: String = value.chars().filter(|c| !c.is_control()).take(120).collect();
        (!plain.is_empty()).then_some(plain)
    };
    let code = header("handshake-status").unwrap_or_else(|| status.as_str().to_owned());
    let words = header("handshake-msg").map(|words| format!(" ({words})")).unwrap_or_default();
    let auth_code = header("handshake-autherrcode");
    let detail = format!("Lark rejects the long connection with {code}{words}");
    let error_code = Some(auth_code.clone().unwrap_or_else(|| code.clone()));
    let slow = |advice: &str| ConnectError {
        failure: Failure::Permanent {
            detail: format!("{detail}; {advice}"),
            error_code: error_code.clone(),
        },
        retry: ConnectRetry::Slow,
        after: None,
    };
    match (code.as_str(), auth_code.as_deref()) {
        (FORBIDDEN, _) => slow(
            "check that the app is published and subscribes to events by long connection; if that \
             is not offered, set `mode: webhook`",
        ),
        (AUTH_FAILED, Some(TOO_MANY_CONNECTIONS)) => {
            slow("the app has its 50 connections already; end another process that uses it")
        }
        _ => Failure::Temporary { detail, retry_after_ms: None, error_code }.into(),
    }
}

#[cfg(test)]
mod tests;
