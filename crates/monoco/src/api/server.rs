//! The listener: limits on everything a caller can make us wait for or hold.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long the head of a request may take, and how long a connection may idle.
const HEAD: Duration = Duration::from_secs(30);

/// How long a body may take.
pub const BODY: Duration = Duration::from_secs(30);

/// How long an answer may take.
pub const ANSWER: Duration = Duration::from_secs(60);

/// How long it may take to write a whole mailbox again.
pub const REBUILD: Duration = Duration::from_secs(3600);

/// Connections at the same time. Further ones wait to be accepted.
const CONNECTIONS: usize = 1024;

/// Largest head of a request.
const HEAD_BYTES: usize = 32 * 1024;

/// Serves until `stop`, then lets what is under way finish. `tasks` has it all.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .max_headers(64);
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Some(accepted) = stop.run_until_cancelled(listener.accept()).await else { return };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of files, most likely. Trying again at once would only spin.
                tracing::warn!(%error, "no connection accepted");
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        // Small answers go out at once.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let connection = http.serve_connection(TokioIo::new(stream), service);
        let stop = stop.clone();
        tasks.spawn(async move {
            let _place = place;
            let mut connection = std::pin::pin!(connection);
            // What goes wrong on one connection is its own caller's business.
            if stop.run_until_cancelled(connection.as_mut()).await.is_none() {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
        });
    }
}
