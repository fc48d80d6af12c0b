//! Serves HTTP/1 connections with limits on time, size and number.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::{self, ClientAddress, ClientStream, ConnectionTimeouts, PlainStream};
use super::{FORGET_PATH, REBUILD_PATH};
use crate::log_limit::LogLimit;
use crate::remote_listener::RemoteListener;

/// Time limit of a handler.
pub const HANDLER_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit of operations on all data: a rebuild of the mailbox, and an erasure.
const LONG_HANDLER_TIMEOUT: Duration = Duration::from_secs(3600);

/// Most open connections. Further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 1024;

/// Most open connections of one address, so that one address cannot use all of them.
const MAX_CONNECTIONS_PER_ADDRESS: usize = 512;

/// Time limit of a TLS handshake. It runs beside other connections, so that a slow client delays
/// only itself.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Response to a client that speaks HTTP without TLS to a port with TLS.
const NEEDS_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n\
    Connection: close\r\nContent-Length: 74\r\n\r\n\
    {\"code\":\"needs_tls\",\"message\":\"this port needs TLS; use an https:// URL\"}\n";

/// Pause after a connection could not be accepted.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Time limit of the handler of a route.
pub fn handler_timeout(route: &str) -> Duration {
    if [REBUILD_PATH, FORGET_PATH].contains(&route) {
        return LONG_HANDLER_TIMEOUT;
    }
    HANDLER_TIMEOUT
}

/// A bound listener of the courier.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    /// Accepts only processes of the courier's user, and of root.
    Unix(UnixListener),
    /// For clients on other machines.
    Tls(Arc<RemoteListener>),
}

/// A connection before its first request.
enum AcceptedStream {
    Plain(PlainStream),
    /// The handshake is still to do.
    Tls(TcpStream, Arc<ServerConfig>),
}

impl AcceptedStream {
    /// Returns the stream of requests; `None` when the client does not complete the handshake.
    async fn open(self) -> Option<ClientStream> {
        match self {
            Self::Plain(stream) => Some(Either::Left(stream)),
            Self::Tls(stream, config) => {
                let opened = tokio::time::timeout(HANDSHAKE_TIMEOUT, shake_hands(stream, config));
                opened.await.ok().flatten()
            }
        }
    }
}

/// Encrypts a connection. A client that does not speak TLS is told so.
async fn shake_hands(mut stream: TcpStream, config: Arc<ServerConfig>) -> Option<ClientStream> {
    let mut first = [0];
    let read = stream.peek(&mut first).await.ok()?;
    // A TLS handshake starts with 22, an HTTP request with a letter.
    if read == 1 && first[0].is_ascii_alphabetic() {
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).await;
        let _ = stream.write_all(NEEDS_TLS).await;
        let _ = stream.shutdown().await;
        return None;
    }
    let stream = TlsAcceptor::from(config).accept(stream).await.ok()?;
    Some(Either::Right(Box::new(stream)))
}

impl Listener {
    /// Accepts one connection, with the address of a TCP client. Returns `None` when another
    /// user has connected to the socket.
    async fn accept(&self) -> io::Result<Option<(AcceptedStream, Option<IpAddr>)>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = accept_tcp(listener).await?;
                Ok(Some((AcceptedStream::Plain(Either::Left(stream)), Some(address))))
            }
            Self::Tls(listener) => {
                let (stream, peer, config) = listener.accept().await?;
                let address = prepare(&stream, peer);
                Ok(Some((AcceptedStream::Tls(stream, config), Some(address))))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = stream.peer_cred()?.uid();
                if peer == rustix::process::geteuid().as_raw() || peer == 0 {
                    return Ok(Some((AcceptedStream::Plain(Either::Right(stream)), None)));
                }
                tracing::warn!(uid = peer, "connection of another user to the socket rejected");
                Ok(None)
            }
        }
    }

    /// Closes every new connection. The port stays bound, so that no other process can take
    /// it and receive the tokens of clients while the courier stops.
    pub async fn reject_connections(&self) {
        loop {
            if self.accept().await.is_err() {
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

async fn accept_tcp(listener: &TcpListener) -> io::Result<(TcpStream, IpAddr)> {
    let (stream, peer) = listener.accept().await?;
    let address = prepare(&stream, peer);
    Ok((stream, address))
}

/// Sends small responses without delay. Returns the address of the client.
fn prepare(stream: &TcpStream, peer: SocketAddr) -> IpAddr {
    let _ = stream.set_nodelay(true);
    peer.ip().to_canonical()
}

/// Closes the connection after this response: a client that was not verified has one request
/// per connection.
pub fn close(response: &mut Response) {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
}

/// Serves one router on one or more listeners, which share its limits.
#[derive(Clone)]
pub struct HttpServer {
    router: Router,
    slots: Arc<Semaphore>,
    addresses: Arc<AddressCounts>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl HttpServer {
    /// Serves `router`. `tasks` tracks all connections.
    pub fn new(router: Router, tasks: TaskTracker, stop: CancellationToken) -> Self {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        Self { router, slots, addresses: Arc::default(), tasks, stop }
    }

    /// Accepts connections until the courier stops. Requests that are being handled then are
    /// finished.
    pub async fn serve(self, listener: Arc<Listener>) {
        let Self { router, slots, addresses, tasks, stop } = self;
        let timeouts = ConnectionTimeouts::default();
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            let Some(accepted) = stop.run_until_cancelled(listener.accept()).await else { return };
            let (stream, address) = match accepted {
                Ok(Some(accepted)) => accepted,
                Ok(None) => continue,
                Err(error) => {
                    // Usually the limit of open files. Retrying at once would only spin.
                    tracing::warn!(%error, "cannot accept connection");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };
            let Some(counted) = addresses.count(address) else { continue };
            let (router, stop) = (router.clone(), stop.clone());
            let address = address.map(ClientAddress);
            tasks.spawn(async move {
                let _slots = (slot, counted);
                // A courier that stops does not wait for handshakes.
                let opened = stop.run_until_cancelled(stream.open()).await.flatten();
                let Some(stream) = opened else { return };
                connection::serve(stream, address, router, timeouts, stop).await;
            });
        }
    }
}

/// Open connections by address.
#[derive(Default)]
struct AddressCounts {
    open: Mutex<HashMap<IpAddr, usize>>,
    log: LogLimit,
}

/// One counted connection; not counted any more when dropped.
struct CountedConnection {
    counts: Arc<AddressCounts>,
    address: Option<IpAddr>,
}

impl AddressCounts {
    /// Counts a connection. Returns `None` when its address has too many.
    fn count(self: &Arc<Self>, address: Option<IpAddr>) -> Option<CountedConnection> {
        if let Some(address) = address {
            // Nothing panics while it holds the lock.
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            let count = open.entry(address).or_default();
            if *count >= MAX_CONNECTIONS_PER_ADDRESS {
                drop(open);
                if let Some(suppressed) = self.log.admit() {
                    tracing::warn!(%address, suppressed, "too many connections of one address");
                }
                return None;
            }
            *count += 1;
        }
        Some(CountedConnection { counts: Arc::clone(self), address })
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let Some(address) = self.address else { return };
        let mut open = self.counts.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_one_address_are_limited_and_counted_down() {
        let counts = Arc::new(AddressCounts::default());
        let [one, other] = ["127.0.0.1", "::1"].map(|text| text.parse().ok());
        let mut open: Vec<_> = (0..MAX_CONNECTIONS_PER_ADDRESS)
            .map(|_| counts.count(one).expect("below the limit"))
            .collect();
        assert!(counts.count(one).is_none());
        assert!(counts.count(other).is_some() && counts.count(None).is_some());
        open.pop();
        assert!(counts.count(one).is_some());
        drop(open);
        assert!(counts.open.lock().unwrap().is_empty());
    }
}
