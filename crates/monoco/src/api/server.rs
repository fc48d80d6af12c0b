//! Serves HTTP/1 connections with limits on time, size and number.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Time limit of the head of a request, and of an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit of a request body.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit of a handler.
pub const HANDLER_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit of a rebuild of the mailbox.
pub const REBUILD_TIMEOUT: Duration = Duration::from_secs(3600);

/// Most open connections. Further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 1024;

/// Largest head of a request, in bytes.
const MAX_HEAD: usize = 32 * 1024;

/// Most header fields of a request.
const MAX_HEADERS: usize = 64;

/// Pause after a connection could not be accepted.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// A bound listener of the courier.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    /// Accepts only processes of the courier's user, and of root.
    Unix(UnixListener),
}

type ClientStream = Either<TcpStream, UnixStream>;

impl Listener {
    /// Accepts one connection. Returns `None` when another user has connected to the socket.
    async fn accept(&self) -> io::Result<Option<ClientStream>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Small responses are sent without delay.
                let _ = stream.set_nodelay(true);
                Ok(Some(Either::Left(stream)))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = stream.peer_cred()?.uid();
                if peer == rustix::process::geteuid().as_raw() || peer == 0 {
                    return Ok(Some(Either::Right(stream)));
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

/// What the listeners of one router share.
#[derive(Clone)]
pub struct HttpServer {
    router: Router,
    slots: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl HttpServer {
    /// Serves `router`. `tasks` tracks all connections.
    pub fn new(router: Router, tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self { router, slots: Arc::new(Semaphore::new(MAX_CONNECTIONS)), tasks, stop }
    }

    /// Accepts connections until the courier stops. Requests that are being handled then are
    /// finished.
    pub async fn serve(self, listener: Arc<Listener>) {
        let Self { router, slots, tasks, stop } = self;
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_HEADERS);
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            let Some(accepted) = stop.run_until_cancelled(listener.accept()).await else { return };
            let stream = match accepted {
                Ok(Some(stream)) => stream,
                Ok(None) => continue,
                Err(error) => {
                    // Usually the limit of open files. Retrying at once would only spin.
                    tracing::warn!(%error, "cannot accept connection");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };
            let service = TowerToHyperService::new(router.clone());
            let connection = http.serve_connection(TokioIo::new(stream), service);
            let stop = stop.clone();
            tasks.spawn(async move {
                let _slot = slot;
                let mut connection = std::pin::pin!(connection);
                // An error of one connection concerns only its client.
                if stop.run_until_cancelled(connection.as_mut()).await.is_none() {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            });
        }
    }
}
