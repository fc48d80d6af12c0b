//! One HTTP/1 connection with its deadlines, all by one timer.
//!
//! | phase | deadline |
//! | --- | --- |
//! | head of a request | 5 s after its first byte; for the first request, after the connection was accepted |
//! | request that is handled | none here: `input.rs` limits the body, the router the handler |
//! | between requests | 30 s |
//! | write that waits for the client | 10 s without progress |
//!
//! A request only stores the time and the phase. The timer runs until the earliest deadline
//! of the phase in which it was set, and then computes the current one.

use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::body::Body;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, Sleep};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;

use super::server;

/// Time limits of one connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTimeouts {
    /// Of the head of a request.
    head: Duration,
    /// Of a connection without a request.
    idle: Duration,
    /// Of a write without progress.
    write: Duration,
}

impl Default for ConnectionTimeouts {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(5),
            idle: Duration::from_secs(30),
            write: Duration::from_secs(10),
        }
    }
}

/// How often a connection is checked in a phase without a deadline.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Largest head of a request, in bytes.
const MAX_HEAD: usize = 32 * 1024;

/// Most header fields of a request.
const MAX_HEADERS: usize = 64;

/// A connection of a client: without TLS, or with it.
pub type ClientStream = Either<PlainStream, Box<TlsStream<TcpStream>>>;

/// A connection on this machine.
pub type PlainStream = Either<TcpStream, UnixStream>;

/// The address of a client on another machine, as an extension of its requests.
#[derive(Clone, Copy, Debug)]
pub struct ClientAddress(pub IpAddr);

/// Serves the requests of one client until it closes the connection or misses a deadline.
/// After `stop`, the current request is the last.
pub async fn serve(
    stream: ClientStream,
    address: Option<ClientAddress>,
    router: Router,
    timeouts: ConnectionTimeouts,
    stop: CancellationToken,
) {
    let progress = Arc::new(Progress::new(timeouts));
    let stream = TimedStream { stream, progress: Arc::clone(&progress) };
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: hyper::Request<hyper::body::Incoming>| {
        progress.enter(Phase::Request);
        if let Some(address) = address {
            request.extensions_mut().insert(address);
        }
        let (response, progress) = (router.call(request), Arc::clone(&progress));
        async move {
            let mut response = response.await?;
            if response.body().size_hint().exact().is_some() {
                progress.enter(Phase::Idle);
            } else {
                // The end of a stream is not seen here, so no idle time can follow it.
                server::close(&mut response);
            }
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    let mut http = http1::Builder::new();
    http.max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let mut stopped = pin!(stop.cancelled());
    let mut timer = pin!(tokio::time::sleep(timeouts.head));
    let mut is_stopping = false;
    std::future::poll_fn(|cx| {
        if !is_stopping && stopped.as_mut().poll(cx).is_ready() {
            is_stopping = true;
            connection.as_mut().graceful_shutdown();
        }
        // An error of one connection concerns only its client.
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        poll_deadline(timer.as_mut(), &progress, cx)
    })
    .await;
}

/// Returns `Ready` when the connection has missed a deadline.
fn poll_deadline(
    mut timer: Pin<&mut Sleep>,
    progress: &Progress,
    cx: &mut Context<'_>,
) -> Poll<()> {
    while timer.as_mut().poll(cx).is_ready() {
        let left = progress.time_left();
        if left.is_zero() {
            return Poll::Ready(());
        }
        timer.as_mut().reset(Instant::now() + left);
    }
    Poll::Pending
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Waits for the first byte of a request, or sends the last response.
    Idle = 0,
    Head = 1,
    /// Reads the body, runs the handler, or sends a stream.
    Request = 2,
}

/// The phase of a connection and when it began. Its stream, its service and its timer share
/// it; all three are polled by the same task.
struct Progress {
    timeouts: ConnectionTimeouts,
    origin: Instant,
    /// The phase in the lower two bits; above, the milliseconds from `origin` to its begin.
    phase: AtomicU64,
    /// Since when a write waits for the client, in milliseconds from `origin`, from 1 on;
    /// 0 when none waits.
    blocked: AtomicU64,
}

impl Progress {
    fn new(timeouts: ConnectionTimeouts) -> Self {
        let phase = AtomicU64::new(Phase::Head as u64);
        Self { timeouts, origin: Instant::now(), phase, blocked: AtomicU64::new(0) }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX >> 2)
    }

    fn enter(&self, phase: Phase) {
        self.phase.store(self.now() << 2 | phase as u64, Ordering::Relaxed);
    }

    fn is_idle(&self) -> bool {
        self.phase.load(Ordering::Relaxed) & 3 == Phase::Idle as u64
    }

    fn record_write(&self, is_pending: bool) {
        let was_blocked = self.blocked.load(Ordering::Relaxed) != 0;
        if is_pending && !was_blocked {
            self.blocked.store(self.now().max(1), Ordering::Relaxed);
        } else if was_blocked && !is_pending {
            self.blocked.store(0, Ordering::Relaxed);
            if self.is_idle() {
                // The client still reads the response.
                self.enter(Phase::Idle);
            }
        }
    }

    /// Time until the next deadline, or until the next check; zero when one was missed.
    fn time_left(&self) -> Duration {
        let ConnectionTimeouts { head, idle, write } = self.timeouts;
        let phase = self.phase.load(Ordering::Relaxed);
        let (since, limit) = match self.blocked.load(Ordering::Relaxed) {
            0 if phase & 3 == Phase::Request as u64 => return write.min(CHECK_INTERVAL),
            0 if phase & 3 == Phase::Head as u64 => (phase >> 2, head),
            0 => (phase >> 2, idle),
            blocked => (blocked, write),
        };
        limit.saturating_sub(Duration::from_millis(self.now().saturating_sub(since)))
    }
}

/// A stream that records the begin of requests, and writes that wait for the client.
struct TimedStream {
    stream: ClientStream,
    progress: Arc<Progress>,
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if polled.is_ready() && self.progress.is_idle() {
            self.progress.enter(Phase::Head);
        }
        polled
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.progress.record_write(polled.is_pending());
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.progress.record_write(polled.is_pending());
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // With TLS, bytes can be written and not sent yet.
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.progress.record_write(polled.is_pending());
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    impl Progress {
        /// Moves the origin back, as if time had passed.
        fn pass(&mut self, secs: u64) {
            self.origin -= Duration::from_secs(secs);
        }

        fn seconds_left(&self) -> u64 {
            (self.time_left() + Duration::from_millis(500)).as_secs()
        }
    }

    #[test]
    fn each_phase_has_its_deadline() {
        let mut progress = Progress::new(ConnectionTimeouts::default());
        assert_eq!(progress.seconds_left(), 5);
        progress.pass(4);
        assert_eq!(progress.seconds_left(), 1);
        progress.enter(Phase::Request);
        progress.pass(100);
        assert_eq!(progress.time_left(), CHECK_INTERVAL);
        progress.enter(Phase::Idle);
        progress.pass(29);
        assert_eq!(progress.seconds_left(), 1);
        progress.pass(1);
        assert!(progress.time_left().is_zero());
    }

    #[test]
    fn write_without_progress_has_a_deadline_in_every_phase() {
        let mut progress = Progress::new(ConnectionTimeouts::default());
        for phase in [Phase::Idle, Phase::Head, Phase::Request] {
            progress.enter(phase);
            progress.record_write(true);
            progress.pass(9);
            progress.record_write(true);
            assert_eq!(progress.seconds_left(), 1);
            progress.record_write(false);
            progress.record_write(true);
            assert_eq!(progress.seconds_left(), 10, "progress starts the time again");
            progress.pass(10);
            assert!(progress.time_left().is_zero());
            progress.record_write(false);
        }
        progress.enter(Phase::Idle);
        progress.pass(25);
        progress.record_write(true);
        progress.record_write(false);
        assert_eq!(progress.seconds_left(), 30, "the client still reads");
    }

    /// Serves one connection with short timeouts, and returns when the server has closed it.
    async fn served(client: impl AsyncFnOnce(&mut TcpStream)) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let large = axum::routing::get(|| async { vec![0; 64 << 20] });
        let router = Router::new().route("/large", large).fallback(async || "small");
        let ms = Duration::from_millis;
        let timeouts = ConnectionTimeouts { head: ms(50), idle: ms(50), write: ms(50) };
        let stream_of = Either::Left(Either::Left(accepted));
        let server = serve(stream_of, None, router, timeouts, CancellationToken::new());
        tokio::join!(server, client(&mut stream));
    }

    #[tokio::test]
    async fn connection_that_misses_a_deadline_is_closed() {
        // Nothing is sent, or half a head.
        served(async |_| {}).await;
        served(async |stream| stream.write_all(b"GET / HT").await.unwrap()).await;
        // The response is read, and nothing follows.
        served(async |stream| {
            stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("small"), "{answer}");
        })
        .await;
        // The response is not read.
        served(async |stream| {
            stream.write_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        })
        .await;
    }

    #[tokio::test]
    async fn slow_reader_that_makes_progress_gets_the_whole_response() {
        served(async |stream| {
            stream.write_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            let mut total = 0;
            let mut part = vec![0; 4 << 20];
            loop {
                let read = stream.read(&mut part).await.unwrap();
                total += read;
                if read == 0 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert!(total > 64 << 20, "{total}");
        })
        .await;
    }
}
