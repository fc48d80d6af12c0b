//! One open WebSocket: connecting, reading, sending and closing, each under a deadline.

use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use http::HeaderValue;
use http::header::USER_AGENT;
use monoco_core::retry::Failure;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Bytes, Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::batch::SocketId;
use super::health::SocketHealth;
use super::{
    ConnectError, MAX_FRAME_BYTES, SocketConnector, SocketEndpoint, SocketMessage, SocketProtocol,
};
use crate::net::{MailStream, connect_target};

/// Bytes of the buffer of each connection: many tunnels are open and mostly silent.
const READ_BUFFER_BYTES: usize = 16 << 10;

/// Time for a provider to name an endpoint, beside the limits of its requests.
const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(90);

/// Time for a message to leave this machine.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest reason of a server that is shown, in characters.
const MAX_REASON_CHARS: usize = 120;

/// What a connection is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketRole {
    /// Not accepted by the server yet.
    Opening,
    Current,
    /// The server has asked for a new connection, which is being opened.
    Leaving,
    /// A newer connection is in use. This one is closed at the stated time.
    Draining {
        until: Duration,
    },
}

/// What a connection delivered.
#[derive(Debug)]
pub(super) enum Arrival {
    Message(Message),
    /// The connection has ended.
    End(String),
}

/// One open connection of the loop.
pub(super) struct LiveSocket {
    pub id: SocketId,
    pub role: SocketRole,
    pub health: SocketHealth,
    stream: WebSocketStream<MailStream>,
}

impl LiveSocket {
    /// Asks for an endpoint and connects to it.
    pub async fn open(
        id: SocketId,
        protocol: &dyn SocketProtocol,
        connector: &SocketConnector,
    ) -> Result<Self, ConnectError> {
        let timing = protocol.timing();
        let endpoint = timeout(ENDPOINT_TIMEOUT, protocol.endpoint()).await;
        let endpoint = endpoint
            .unwrap_or_else(|_| Err(temporary("the provider names no endpoint in time".into())))?;
        let target = endpoint.target.clone();
        let SocketConnector { proxy, ca_file, limits, .. } = connector;
        let stream = connect_target(&target, proxy.as_ref(), ca_file.as_deref(), *limits).await?;
        let shown = target.shown();
        let handshake = timeout(connector.limits.tls, handshake(protocol, endpoint, stream));
        let stream = handshake.await.unwrap_or_else(|_| {
            Err(temporary(format!("{shown}: no answer to the WebSocket handshake in time")))
        })?;
        let clock = &connector.clock;
        let health = SocketHealth::new(timing, clock.check_interval, clock.elapsed());
        Ok(Self { id, role: SocketRole::Opening, health, stream })
    }

    /// Reads the next message, if one has arrived.
    pub fn poll_arrival(&mut self, cx: &mut Context<'_>) -> Poll<Arrival> {
        self.stream.poll_next_unpin(cx).map(|next| match next {
            Some(Ok(message)) => Arrival::Message(message),
            Some(Err(error)) => Arrival::End(describe(&error)),
            None => Arrival::End("the server closed the connection".to_owned()),
        })
    }

    /// Sends messages, and waits until they have left.
    pub async fn send(&mut self, messages: Vec<Message>) -> Result<(), String> {
        let send = async {
            for message in messages {
                self.stream.feed(message).await?;
            }
            self.stream.flush().await
        };
        match timeout(WRITE_TIMEOUT, send).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(describe(&error)),
            Err(_) => Err("the server does not read".to_owned()),
        }
    }

    /// Sends a ping of the provider or of WebSocket.
    pub async fn ping(&mut self, message: Option<SocketMessage>) -> Result<(), String> {
        let message = message.map_or(Message::Ping(Bytes::new()), Message::from);
        self.send(vec![message]).await
    }

    /// Closes the connection, and returns what the server sent before it did the same. Takes at
    /// most `limit`.
    pub async fn close(mut self, limit: Duration) -> Vec<Message> {
        let mut late = Vec::new();
        let close = async {
            if self.stream.close(None).await.is_ok() {
                while let Some(Ok(message)) = self.stream.next().await {
                    late.push(message);
                }
            }
        };
        let _ = timeout(limit, close).await;
        late
    }
}

async fn handshake(
    protocol: &dyn SocketProtocol,
    endpoint: SocketEndpoint,
    stream: MailStream,
) -> Result<WebSocketStream<MailStream>, ConnectError> {
    let shown = endpoint.target.shown();
    let request = endpoint.target.socket_url().into_client_request();
    let mut request = request.map_err(|_| {
        let detail = format!("{shown}: the URL of the socket cannot be used");
        Failure::Permanent { detail, error_code: None }
    })?;
    const AGENT: HeaderValue =
        HeaderValue::from_static(concat!("monoco/", env!("CARGO_PKG_VERSION")));
    request.headers_mut().insert(USER_AGENT, AGENT);
    request.headers_mut().extend(endpoint.headers);
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .max_message_size(Some(MAX_FRAME_BYTES))
        .max_frame_size(Some(MAX_FRAME_BYTES));
    let opened = client_async_with_config(request, stream, Some(config)).await;
    let (mut stream, _) = opened.map_err(|error| match error {
        Error::Http(response) => protocol.handshake_rejected(response.status(), response.headers()),
        error => temporary(format!("{shown}: WebSocket handshake: {}", describe(&error))),
    })?;
    if let Some(message) = endpoint.first_message {
        let sent = stream.send(message.into()).await;
        sent.map_err(|error| temporary(format!("{shown}: {}", describe(&error))))?;
    }
    Ok(stream)
}

impl From<SocketMessage> for Message {
    fn from(message: SocketMessage) -> Self {
        match message {
            SocketMessage::Text(text) => Self::text(text),
            SocketMessage::Binary(bytes) => Self::binary(bytes),
        }
    }
}

fn temporary(detail: String) -> ConnectError {
    Failure::Temporary { detail, retry_after_ms: None, error_code: None }.into()
}

/// Describes an error without any content of the connection.
fn describe(error: &Error) -> String {
    match error {
        Error::ConnectionClosed | Error::AlreadyClosed => "the connection is closed".to_owned(),
        Error::Io(error) => format!("connection lost: {error}"),
        Error::Capacity(error) => {
            format!("the server sends too much at once: {error}; at most {MAX_FRAME_BYTES} bytes")
        }
        Error::Protocol(error) => format!("the server violates the WebSocket protocol: {error}"),
        Error::Utf8(_) => "the server sends text that is not UTF-8".to_owned(),
        Error::WriteBufferFull(_) => "the server does not read".to_owned(),
        _ => "the connection cannot be used".to_owned(),
    }
}

/// Describes a close frame of the server.
pub(super) fn describe_close(code: u16, reason: &str) -> String {
    let reason = reason.chars().filter(|c| !c.is_control()).take(MAX_REASON_CHARS);
    let reason: String = reason.collect();
    let colon = if reason.is_empty() { "" } else { ": " };
    format!("the server closed the connection with code {code}{colon}{reason}")
}
