//! One WebSocket loop for all providers that push messages through a connection.
//!
//! A provider implements [`SocketProtocol`]: where to connect, and what a frame means. [`run`]
//! does the rest: a fresh endpoint for every connection, pings with a deadline, a deadline for
//! traffic, jittered delays between connections, and the new connection before the old one when
//! the server announces a disconnect. At most two connections are open.
//!
//! Frames that have arrived are stored as one batch and acknowledged after the commit, each on
//! its own connection. What cannot be stored is not acknowledged, so that the provider sends it
//! again.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, StatusCode};
use monoco_core::inbound::InboundEvent;
use monoco_core::retry::{Backoff, Failure};
use monoco_core::time::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::InboundSink;
use crate::egress::{EgressTarget, status_failure};
use crate::net::{ConnectLimits, ProxyUrl};

mod batch;
mod catch_up;
mod clock;
mod health;
mod live;
mod plan;
mod receiver;

#[cfg(test)]
mod tests;

use clock::SocketClock;
use receiver::SocketReceiver;

/// Longest message that a server may send, in bytes. A longer one ends the connection.
pub const MAX_FRAME_BYTES: usize = 4 << 20;

/// What one provider sends through a socket.
#[async_trait]
pub trait SocketProtocol: Send + Sync {
    /// Asks the provider for a place to connect to. Called before every connection, because
    /// URLs and tickets are valid once and for a short time.
    async fn endpoint(&self) -> Result<SocketEndpoint, ConnectError>;

    /// Decides what a frame means; an empty list ignores it. Must not block: the actions say
    /// what is stored and sent.
    fn read_frame(&self, frame: SocketFrame<'_>, now: Timestamp) -> Vec<FrameAction>;

    /// Returns the time limits. Read before every connection.
    fn timing(&self) -> SocketTiming {
        SocketTiming::default()
    }

    /// Returns the ping of the provider's own protocol; `None` sends a WebSocket ping.
    fn ping(&self) -> Option<SocketMessage> {
        None
    }

    /// Classifies a handshake that the server answered with an HTTP error. By default 408,
    /// 425, 429 and 5xx are retried with the usual delay and everything else slowly.
    fn handshake_rejected(&self, status: StatusCode, headers: &HeaderMap) -> ConnectError {
        ConnectError::from_handshake(status, headers)
    }

    /// Fetches what may have been missed, when the provider has a history. Called when a
    /// connection is ready and messages may have been lost before it: at the start, and after
    /// a connection was lost. Frames are received meanwhile. A temporary failure repeats the
    /// call later.
    async fn catch_up(&self, _sink: &dyn InboundSink, _gap: ConnectionGap) -> Result<(), Failure> {
        Ok(())
    }
}

/// Where to connect to, once.
#[derive(Clone)]
pub struct SocketEndpoint {
    /// The URL, checked by [`HostRule::socket`](crate::egress::HostRule::socket). It often
    /// holds a secret and is never shown.
    pub target: EgressTarget,
    /// Headers of the handshake.
    pub headers: HeaderMap,
    /// The message that is sent first, such as a login.
    pub first_message: Option<SocketMessage>,
}

impl SocketEndpoint {
    pub fn new(target: EgressTarget) -> Self {
        Self { target, headers: HeaderMap::new(), first_message: None }
    }
}

impl fmt::Debug for SocketEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketEndpoint").field("target", &self.target).finish_non_exhaustive()
    }
}

/// A message that the server sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketFrame<'a> {
    Text(&'a str),
    Binary(&'a [u8]),
}

/// A message to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketMessage {
    Text(String),
    Binary(Vec<u8>),
}

/// What the loop does because of a frame.
#[derive(Clone, Debug, PartialEq)]
pub enum FrameAction {
    /// Stores the events, and then sends the acknowledgement. It is also sent for events that
    /// are not new, or that exceed a limit, because sending them again would not help.
    Receive { events: Vec<InboundEvent>, ack: SocketMessage },
    /// Sends a message instead of the acknowledgement when the events of the `Receive` before it
    /// cannot be stored now, for providers that want to be asked to send them again.
    WhenUnstored(SocketMessage),
    /// Sends a message at once.
    Reply(SocketMessage),
    /// The server has accepted the connection. Needed when [`SocketTiming::ready`] is set.
    Ready,
    /// The frame answers [`SocketProtocol::ping`], so it is no traffic of the server's own.
    Pong,
    /// The server sets the time between two pings of this connection.
    PingInterval(Duration),
    /// Replaces the connection. With `keep_old` the new one is opened first.
    Reconnect { reason: String, keep_old: bool },
    /// Ends the loop, because no further connection can succeed.
    Stop(Failure),
}

/// Time limits of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketTiming {
    /// Time between the handshake and [`FrameAction::Ready`]; `None`: the handshake suffices.
    pub ready: Option<Duration>,
    /// Time between two pings.
    pub ping_interval: Duration,
    /// Time for an answer to a ping. Any frame is an answer.
    pub pong_deadline: Duration,
    /// How long a server that sends regularly may send nothing but answers to pings; `None`: for
    /// ever. After it the connection is replaced.
    pub traffic_deadline: Option<Duration>,
    /// The same for a server that may send nothing at all: the deadline holds from its first
    /// WebSocket ping on.
    pub deadline_after_ping: Option<Duration>,
    /// How long a replaced connection stays open after the new one is ready.
    pub drain: Duration,
    /// Delays between failed connections.
    pub backoff: Backoff,
    /// Delays between connections after [`ConnectRetry::Slow`].
    pub slow_backoff: Backoff,
}

impl Default for SocketTiming {
    /// A dead connection is noticed within 50 s.
    fn default() -> Self {
        Self {
            ready: None,
            ping_interval: Duration::from_secs(30),
            pong_deadline: Duration::from_secs(20),
            traffic_deadline: None,
            deadline_after_ping: None,
            drain: Duration::from_secs(12),
            backoff: Backoff::DEFAULT,
            slow_backoff: Backoff {
                first: Duration::from_secs(60),
                longest: Duration::from_secs(900),
            },
        }
    }
}

impl SocketTiming {
    /// Returns limits by which a connection that does not work is noticed within about `silence`,
    /// whether the server sends nothing of its own or answers no pings. Never longer than these.
    pub fn within(self, silence: Duration) -> Self {
        let earlier = |limit: Option<Duration>| limit.map(|limit| limit.min(silence));
        Self {
            ping_interval: self.ping_interval.min(silence / 4),
            pong_deadline: self.pong_deadline.min(silence / 4),
            traffic_deadline: earlier(self.traffic_deadline),
            deadline_after_ping: earlier(self.deadline_after_ping),
            ..self
        }
    }
}

/// Why a connection cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectError {
    pub failure: Failure,
    pub retry: ConnectRetry,
    /// The delay that the provider asked for.
    pub after: Option<Duration>,
}

impl From<Failure> for ConnectError {
    /// A permanent failure is retried slowly, because the config or the account can be repaired.
    fn from(failure: Failure) -> Self {
        let (retry, after) = match &failure {
            Failure::Temporary { retry_after_ms, .. } => {
                (ConnectRetry::Backoff, retry_after_ms.map(Duration::from_millis))
            }
            Failure::Unknown { .. } => (ConnectRetry::Backoff, None),
            Failure::Permanent { .. } => (ConnectRetry::Slow, None),
        };
        Self { failure, retry, after }
    }
}

impl ConnectError {
    /// Classifies a handshake that was answered with an HTTP error.
    pub fn from_handshake(status: StatusCode, headers: &HeaderMap) -> Self {
        status_failure(status, headers, "WebSocket handshake").into()
    }
}

/// When a failed connection is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectRetry {
    /// With [`SocketTiming::backoff`]: the provider or the network is not available.
    Backoff,
    /// With [`SocketTiming::slow_backoff`]: the config is probably wrong.
    Slow,
    /// Never, such as with a revoked token.
    Never,
}

/// The time during which messages may have been lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionGap {
    /// When the last connection last worked; `None`: this is the first connection.
    pub since: Option<Timestamp>,
    pub until: Timestamp,
}

impl ConnectionGap {
    /// Returns the gap that contains both.
    fn merge(self, other: Self) -> Self {
        // `None`, before the first connection, is the earliest.
        Self { since: self.since.min(other.since), until: self.until.max(other.until) }
    }
}

/// How sockets are opened.
#[derive(Clone, Debug, Default)]
pub struct SocketConnector {
    pub proxy: Option<ProxyUrl>,
    /// A PEM file with certificates that are trusted beside those of the system.
    pub ca_file: Option<PathBuf>,
    pub limits: ConnectLimits,
    clock: SocketClock,
}

impl SocketConnector {
    /// Connects through `proxy`, with the default limits.
    pub fn new(proxy: Option<ProxyUrl>) -> Self {
        Self { proxy, ..Self::default() }
    }
}

/// Receives messages until `stop`. Returns after its connections are closed, and reports to
/// `sink` when they are open, lost, or received something.
///
/// # Errors
///
/// The failure after which no further connection can succeed: of [`FrameAction::Stop`] or
/// [`ConnectRetry::Never`].
pub async fn run(
    protocol: &dyn SocketProtocol,
    connector: &SocketConnector,
    sink: &dyn InboundSink,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    SocketReceiver::new(protocol, connector, sink).run(stop).await
}
