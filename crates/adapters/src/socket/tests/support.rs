//! Test support: a scripted WebSocket server, a small protocol, and a sink in memory.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{SinkExt as _, StreamExt as _};
use monoco_core::inbound::{
    ChatPosition, InboundAttachment, InboundEvent, InboundMessage, StoredBytes, TunnelNotice,
};
use monoco_core::retry::{Backoff, Failure};
use monoco_core::time::Timestamp;
use tokio::io::AsyncRead;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, accept_async};
use tokio_util::sync::CancellationToken;

use crate::egress::{EgressTarget, HostRule};
use crate::socket::{
    ConnectError, ConnectRetry, ConnectionGap, FrameAction, SocketConnector, SocketEndpoint,
    SocketFrame, SocketMessage, SocketProtocol, SocketTiming, run,
};
use crate::{ConnectionEvent, InboundError, InboundPage, InboundSink, PageResult};

/// The longest time that a test waits for a condition.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `condition` holds.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not in time");
        sleep(Duration::from_millis(2)).await;
    }
}

/// One connection of the server, from the side of the server.
pub struct ServerSocket {
    /// Counts the connections from 0.
    pub n: usize,
    pub stream: WebSocketStream<TcpStream>,
    /// Counts the connection as open until it is dropped.
    _open: OpenCount,
}

struct OpenCount(Arc<AtomicUsize>);

impl Drop for OpenCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ServerSocket {
    pub async fn send(&mut self, text: &str) {
        self.stream.send(Message::text(text)).await.unwrap();
    }

    /// Returns the next text of the client; `None` when it has closed the connection.
    pub async fn text(&mut self) -> Option<String> {
        loop {
            match timeout(PATIENCE, self.stream.next()).await.expect("no frame in time") {
                Some(Ok(Message::Text(text))) => return Some(text.to_string()),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return None,
            }
        }
    }

    /// Answers pings until the client closes the connection. Returns the texts it sent.
    pub async fn drain(mut self) -> Vec<String> {
        let mut texts = Vec::new();
        while let Some(text) = self.text().await {
            texts.push(text);
        }
        texts
    }
}

/// A server that runs a script for each connection.
pub struct SocketServer {
    pub url: String,
    pub accepted: Arc<AtomicUsize>,
    pub open: Arc<AtomicUsize>,
    pub most_open: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl SocketServer {
    pub async fn start<F, S>(script: S) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
        S: Fn(ServerSocket) -> F + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/link?ticket=canary", listener.local_addr().unwrap());
        let (accepted, open) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let most_open = Arc::<AtomicUsize>::default();
        let counts = (accepted.clone(), open.clone(), most_open.clone());
        let task = tokio::spawn(async move {
            let (accepted, open, most_open) = counts;
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let n = accepted.fetch_add(1, Ordering::SeqCst);
                most_open.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let count = OpenCount(open.clone());
                let Ok(stream) = accept_async(stream).await else { continue };
                tokio::spawn(script(ServerSocket { n, stream, _open: count }));
            }
        });
        Self { url, accepted, open, most_open, task }
    }

    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for SocketServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A protocol of words: `m:ID` is a message, acknowledged with `a:ID`.
pub struct WordProtocol {
    pub url: String,
    pub timing: SocketTiming,
    /// Sends `ping` instead of a WebSocket ping.
    pub own_ping: bool,
    pub endpoints: AtomicUsize,
    pub gaps: Mutex<Vec<ConnectionGap>>,
    /// How many calls of `catch_up` fail.
    pub failing_catch_ups: AtomicUsize,
    /// What `endpoint` fails with.
    pub refusal: Mutex<Option<ConnectError>>,
    pub rejected_with: Mutex<Vec<u16>>,
}

impl WordProtocol {
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            timing: quick_timing(),
            own_ping: false,
            endpoints: AtomicUsize::new(0),
            gaps: Mutex::default(),
            failing_catch_ups: AtomicUsize::new(0),
            refusal: Mutex::default(),
            rejected_with: Mutex::default(),
        }
    }
}

/// Deadlines that are long enough for a busy machine where nothing is expected to happen.
pub fn quick_timing() -> SocketTiming {
    let quick = |ms| Duration::from_millis(ms);
    SocketTiming {
        ready: None,
        ping_interval: Duration::from_secs(30),
        pong_deadline: Duration::from_secs(30),
        traffic_deadline: None,
        deadline_after_ping: None,
        drain: Duration::from_secs(60),
        backoff: Backoff { first: quick(20), longest: quick(100) },
        slow_backoff: Backoff { first: quick(40), longest: quick(200) },
    }
}

pub fn notice(id: &str) -> InboundEvent {
    InboundEvent::Notice(TunnelNotice {
        id: id.to_owned(),
        kind: "test".to_owned(),
        session: None,
        by: None,
        detail: String::new(),
        at: None,
    })
}

#[async_trait]
impl SocketProtocol for WordProtocol {
    async fn endpoint(&self) -> Result<SocketEndpoint, ConnectError> {
        self.endpoints.fetch_add(1, Ordering::SeqCst);
        if let Some(refusal) = self.refusal.lock().unwrap().clone() {
            return Err(refusal);
        }
        let base = EgressTarget::parse("http://127.0.0.1/", true).unwrap();
        let target = HostRule::new(&[], &base).socket(&self.url)?;
        Ok(SocketEndpoint::new(target))
    }

    fn read_frame(&self, frame: SocketFrame<'_>, _now: Timestamp) -> Vec<FrameAction> {
        let SocketFrame::Text(text) = frame else { return Vec::new() };
        let failure =
            || Failure::Permanent { detail: "link disabled".to_owned(), error_code: None };
        let reconnect =
            |keep_old| FrameAction::Reconnect { reason: "refresh".to_owned(), keep_old };
        match text.split_once(':') {
            Some(("m", id)) => vec![FrameAction::Receive {
                events: vec![notice(id)],
                ack: SocketMessage::Text(format!("a:{id}")),
            }],
            Some(("ask", word)) => vec![FrameAction::Reply(SocketMessage::Text(word.to_owned()))],
            _ => match text {
                "hello" => vec![FrameAction::Ready],
                "pong" => vec![FrameAction::Pong],
                "bye" => vec![reconnect(true)],
                "bye-now" => vec![reconnect(false)],
                "stop" => vec![FrameAction::Stop(failure())],
                _ => Vec::new(),
            },
        }
    }

    fn timing(&self) -> SocketTiming {
        self.timing
    }

    fn ping(&self) -> Option<SocketMessage> {
        self.own_ping.then(|| SocketMessage::Text("ping".to_owned()))
    }

    fn handshake_rejected(
        &self,
        status: http::StatusCode,
        headers: &http::HeaderMap,
    ) -> ConnectError {
        self.rejected_with.lock().unwrap().push(status.as_u16());
        ConnectError::from_handshake(status, headers)
    }

    async fn catch_up(&self, _sink: &dyn InboundSink, gap: ConnectionGap) -> Result<(), Failure> {
        self.gaps.lock().unwrap().push(gap);
        let failing = |left: usize| left.checked_sub(1);
        let order = Ordering::SeqCst;
        if self.failing_catch_ups.fetch_update(order, order, failing).is_ok() {
            let detail = "history is not available".to_owned();
            return Err(Failure::Temporary { detail, retry_after_ms: None, error_code: None });
        }
        Ok(())
    }
}

/// Refuses to connect for the stated reason.
pub fn refusal(retry: ConnectRetry) -> ConnectError {
    let failure = Failure::Permanent { detail: "invalid_auth".to_owned(), error_code: None };
    ConnectError { failure, retry, after: None }
}

/// Stores ids in memory, and recognises duplicates.
#[derive(Default)]
pub struct IdSink {
    pub ids: Mutex<Vec<String>>,
    pub known: Mutex<HashSet<String>>,
    pub batches: AtomicUsize,
    /// Whether the store is not available.
    pub is_down: AtomicBool,
    /// How long one batch takes to be stored.
    pub delay: Duration,
    pub reports: Mutex<Vec<ConnectionEvent>>,
}

impl IdSink {
    pub fn count(&self) -> usize {
        self.ids.lock().unwrap().len()
    }

    pub fn reported(&self, wanted: impl Fn(&ConnectionEvent) -> bool) -> usize {
        self.reports.lock().unwrap().iter().filter(|event| wanted(event)).count()
    }

    pub fn connected(&self) -> usize {
        self.reported(|event| *event == ConnectionEvent::Connected)
    }

    pub fn losses(&self) -> Vec<String> {
        let reports = self.reports.lock().unwrap();
        let lost = reports.iter().filter_map(|event| match event {
            ConnectionEvent::Lost(why) => Some(why.clone()),
            _ => None,
        });
        lost.collect()
    }
}

#[async_trait]
impl InboundSink for IdSink {
    async fn receive(
        &self,
        _message: InboundMessage,
        _attachments: Vec<InboundAttachment>,
    ) -> Result<bool, InboundError> {
        panic!("sockets pass batches of events")
    }

    async fn receive_events(&self, events: Vec<InboundEvent>) -> Vec<Result<bool, InboundError>> {
        self.batches.fetch_add(1, Ordering::SeqCst);
        if !self.delay.is_zero() {
            sleep(self.delay).await;
        }
        let is_down = self.is_down.load(Ordering::SeqCst);
        let store = |event: InboundEvent| {
            let InboundEvent::Notice(notice) = event else { panic!("a notice is expected") };
            if is_down {
                return Err(InboundError::Unavailable("the disk is away".to_owned()));
            }
            if notice.id.starts_with("huge") {
                return Err(InboundError::Unusable("too long".to_owned()));
            }
            let is_new = self.known.lock().unwrap().insert(notice.id.clone());
            if is_new {
                self.ids.lock().unwrap().push(notice.id);
            }
            Ok(is_new)
        };
        events.into_iter().map(store).collect()
    }

    async fn last_received(&self) -> Result<Vec<ChatPosition>, InboundError> {
        Ok(Vec::new())
    }

    async fn receive_page(&self, _page: InboundPage) -> Result<PageResult, InboundError> {
        panic!("sockets pass batches of events")
    }

    async fn cursor(&self, _stream: &str) -> Result<Option<String>, InboundError> {
        Ok(None)
    }

    async fn store_bytes<'a>(
        &'a self,
        _bytes: Pin<Box<dyn AsyncRead + Send + 'a>>,
    ) -> Result<StoredBytes, InboundError> {
        panic!("sockets pass batches of events")
    }

    fn report(&self, event: ConnectionEvent) {
        self.reports.lock().unwrap().push(event);
    }
}

/// A loop that runs in the background.
pub struct RunningLoop {
    pub protocol: Arc<WordProtocol>,
    pub sink: Arc<IdSink>,
    pub connector: SocketConnector,
    stop: CancellationToken,
    task: JoinHandle<Result<(), Failure>>,
}

impl RunningLoop {
    pub fn start(protocol: WordProtocol, sink: IdSink, connector: SocketConnector) -> Self {
        let (protocol, sink, stop) = (Arc::new(protocol), Arc::new(sink), CancellationToken::new());
        let task = tokio::spawn({
            let (protocol, sink) = (protocol.clone(), sink.clone());
            let (connector, stop) = (connector.clone(), stop.clone());
            async move { run(&*protocol, &connector, &*sink, &stop).await }
        });
        Self { protocol, sink, connector, stop, task }
    }

    /// Starts a loop with default parts.
    pub fn simple(server: &SocketServer) -> Self {
        let protocol = WordProtocol::new(&server.url);
        Self::start(protocol, IdSink::default(), SocketConnector::default())
    }

    /// Stops the loop, which must take less than a second.
    pub async fn stop(self) {
        self.stop.cancel();
        let ended = timeout(Duration::from_secs(1), self.task).await.expect("the loop hangs");
        assert_eq!(ended.unwrap(), Ok(()));
    }

    /// Waits until the loop ends by itself.
    pub async fn result(self) -> Result<(), Failure> {
        timeout(PATIENCE, self.task).await.expect("the loop goes on").unwrap()
    }
}
