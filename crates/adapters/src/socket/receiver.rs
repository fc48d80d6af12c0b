//! The loop: reads all connections, stores and acknowledges, and replaces connections.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use monoco_core::retry::{Failure, Jitter};
use monoco_core::time::Timestamp;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;

use super::batch::{FrameBatch, SocketId};
use super::catch_up::CatchUp;
use super::live::{Arrival, LiveSocket, describe_close};
use super::plan::ReconnectPlan;
use super::{
    ConnectError, FrameAction, SocketConnector, SocketFrame, SocketMessage, SocketProtocol,
};
use crate::{ConnectionEvent, InboundSink};

mod connections;

/// How many connections may be open or being opened.
const MAX_SOCKETS: usize = 2;

/// How many frames are stored together, and how many bytes they may have.
const MAX_BATCH_FRAMES: usize = 512;
const MAX_BATCH_BYTES: usize = 8 << 20;

/// How long connections may take to close at the end of the loop. A reload waits for it.
const STOP_TIMEOUT: Duration = Duration::from_millis(250);

/// What the loop waits for.
enum Wake {
    Arrivals(Vec<(SocketId, Arrival)>),
    Opened(Box<Result<LiveSocket, ConnectError>>),
    /// A connection is closed. Holds what it delivered before.
    Closed(SocketId, Vec<Message>),
    CaughtUp(Result<(), Failure>),
    /// A deadline may have passed.
    Tick,
}

type Closing = (SocketId, BoxFuture<'static, Vec<Message>>);

/// All connections of one tunnel.
pub(super) struct SocketReceiver<'a> {
    protocol: &'a dyn SocketProtocol,
    connector: &'a SocketConnector,
    sink: &'a dyn InboundSink,
    sockets: Vec<LiveSocket>,
    opening: Option<BoxFuture<'a, Result<LiveSocket, ConnectError>>>,
    closing: Vec<Closing>,
    /// When the next connection is opened, as elapsed time.
    open_at: Option<Duration>,
    plan: ReconnectPlan,
    catch_up: CatchUp<'a>,
    /// Since when messages may have been missed. Set until a connection is ready.
    gap: Option<GapStart>,
    /// Whether the sink was told that a connection is ready.
    is_up: bool,
    last_id: SocketId,
    timer: Pin<Box<Sleep>>,
}

/// The beginning of a gap; `None`: before the first connection.
type GapStart = Option<Timestamp>;

impl<'a> SocketReceiver<'a> {
    pub fn new(
        protocol: &'a dyn SocketProtocol,
        connector: &'a SocketConnector,
        sink: &'a dyn InboundSink,
    ) -> Self {
        Self {
            protocol,
            connector,
            sink,
            sockets: Vec::new(),
            opening: None,
            closing: Vec::new(),
            open_at: Some(connector.clock.elapsed()),
            plan: ReconnectPlan::default(),
            catch_up: CatchUp::new(protocol, sink),
            gap: Some(None),
            is_up: false,
            last_id: 0,
            timer: Box::pin(sleep(Duration::ZERO)),
        }
    }

    /// Receives until `stop`, or until no further connection can succeed.
    pub async fn run(mut self, stop: &CancellationToken) -> Result<(), Failure> {
        let result = loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break Ok(()),
                step = self.step() => {
                    if let Err(failure) = step {
                        break Err(failure);
                    }
                }
            }
        };
        self.opening = None;
        let open = self.sockets.drain(..).map(|socket| socket.close(STOP_TIMEOUT).boxed());
        let closing = join_all(open.chain(self.closing.drain(..).map(|(_, closing)| closing)));
        let _ = timeout(STOP_TIMEOUT, closing).await;
        result
    }

    /// Waits for one event and processes it.
    async fn step(&mut self) -> Result<(), Failure> {
        let now = self.now();
        self.close_drained(now);
        self.open_next(now);
        if self.is_up {
            self.catch_up.start(now);
        }
        let wait = self.next_tick(now).saturating_sub(now);
        self.timer.as_mut().reset(Instant::now() + wait);
        match poll_fn(|cx| self.poll_wake(cx)).await {
            Wake::Arrivals(arrivals) => self.process(arrivals).await,
            Wake::Opened(opened) => self.opened(*opened),
            Wake::Closed(id, late) => {
                self.closing.retain(|(closing, _)| *closing != id);
                let late = late.into_iter().map(|message| (id, Arrival::Message(message)));
                self.process(late.collect()).await
            }
            Wake::CaughtUp(result) => {
                self.catch_up.finish(result, self.now(), jitter());
                Ok(())
            }
            Wake::Tick => {
                self.check().await;
                Ok(())
            }
        }
    }

    /// Frames come before the timer, so that a deadline is only checked when none has arrived,
    /// and after everything that happens rarely.
    fn poll_wake(&mut self, cx: &mut Context<'_>) -> Poll<Wake> {
        if let Some(opening) = &mut self.opening
            && let Poll::Ready(opened) = opening.poll_unpin(cx)
        {
            self.opening = None;
            return Poll::Ready(Wake::Opened(Box::new(opened)));
        }
        for (id, closing) in &mut self.closing {
            if let Poll::Ready(late) = closing.poll_unpin(cx) {
                return Poll::Ready(Wake::Closed(*id, late));
            }
        }
        if let Poll::Ready(result) = self.catch_up.poll(cx) {
            return Poll::Ready(Wake::CaughtUp(result));
        }
        let arrivals = self.poll_arrivals(cx);
        if !arrivals.is_empty() {
            return Poll::Ready(Wake::Arrivals(arrivals));
        }
        self.timer.as_mut().poll_unpin(cx).map(|()| Wake::Tick)
    }

    /// Reads what has arrived on all connections, up to the limits of a batch.
    fn poll_arrivals(&mut self, cx: &mut Context<'_>) -> Vec<(SocketId, Arrival)> {
        let (mut arrivals, mut bytes) = (Vec::new(), 0);
        for socket in &mut self.sockets {
            while arrivals.len() < MAX_BATCH_FRAMES && bytes < MAX_BATCH_BYTES {
                let Poll::Ready(arrival) = socket.poll_arrival(cx) else { break };
                let is_end = match &arrival {
                    Arrival::Message(message) => {
                        bytes += message.len();
                        matches!(message, Message::Close(_))
                    }
                    Arrival::End(_) => true,
                };
                arrivals.push((socket.id, arrival));
                if is_end {
                    break;
                }
            }
        }
        // The next batch begins with the other connection.
        self.sockets.reverse();
        arrivals
    }

    fn now(&self) -> Duration {
        self.connector.clock.elapsed()
    }

    fn find(&mut self, id: SocketId) -> Option<&mut LiveSocket> {
        self.sockets.iter_mut().find(|socket| socket.id == id)
    }
}

/// What frames ask for beside storing and answering.
enum Change {
    Ready,
    PingInterval(Duration),
    Reconnect { reason: String, keep_old: bool },
    End(String),
}

/// The work of one batch of frames.
#[derive(Default)]
struct FrameWork {
    batch: FrameBatch,
    replies: Vec<(SocketId, SocketMessage)>,
    changes: Vec<(SocketId, Change)>,
    stop: Option<Failure>,
}

/// Receiving: from frames to acknowledgements.
impl SocketReceiver<'_> {
    async fn process(&mut self, arrivals: Vec<(SocketId, Arrival)>) -> Result<(), Failure> {
        let mut work = self.read(arrivals);
        let replies = std::mem::take(&mut work.replies);
        self.send(replies, &mut work.changes).await;
        if !work.batch.is_empty() {
            let events = work.batch.take_events();
            let results = match events.is_empty() {
                true => Vec::new(),
                false => self.sink.receive_events(events).await,
            };
            let outcome = work.batch.finish(&results);
            if outcome.unstored > 0 {
                let error = outcome.error.map(|error| error.to_string());
                tracing::warn!(
                    frames = outcome.unstored,
                    error,
                    "frames are not stored, so they are not acknowledged"
                );
            }
            if outcome.unusable > 0 {
                tracing::warn!(events = outcome.unusable, "dropped events that exceed a limit");
            }
            for id in outcome.progress {
                if let Some(socket) = self.find(id) {
                    socket.health.record_progress();
                }
            }
            self.send(outcome.acks, &mut work.changes).await;
        }
        for (id, change) in work.changes {
            match change {
                Change::Ready => self.ready(id),
                Change::PingInterval(interval) => {
                    if let Some(socket) = self.find(id) {
                        socket.health.set_ping_interval(interval);
                    }
                }
                Change::Reconnect { reason, keep_old } => self.replace(id, reason, keep_old),
                Change::End(why) => self.end(id, why),
            }
        }
        work.stop.map_or(Ok(()), Err)
    }

    /// Asks the protocol about each frame, in the order of arrival.
    fn read(&mut self, arrivals: Vec<(SocketId, Arrival)>) -> FrameWork {
        let (now, wall) = (self.now(), self.connector.clock.wall());
        let mut work = FrameWork::default();
        // Messages of a connection that is being closed say nothing about the others.
        let is_live = |id: &SocketId| self.sockets.iter().any(|socket| socket.id == *id);
        let is_news = |(id, arrival): &(SocketId, Arrival)| {
            matches!(arrival, Arrival::Message(_)) && is_live(id)
        };
        if arrivals.iter().any(is_news) {
            self.sink.report(ConnectionEvent::Frame);
        }
        for (id, arrival) in arrivals {
            let is_traffic = match &arrival {
                Arrival::Message(Message::Text(text)) => {
                    self.read_frame(id, SocketFrame::Text(text), wall, &mut work)
                }
                Arrival::Message(Message::Binary(bytes)) => {
                    self.read_frame(id, SocketFrame::Binary(bytes), wall, &mut work)
                }
                Arrival::Message(Message::Close(frame)) => {
                    let (code, reason) = frame
                        .as_ref()
                        .map_or((1005, ""), |frame| (frame.code.into(), frame.reason.as_str()));
                    work.changes.push((id, Change::End(describe_close(code, reason))));
                    true
                }
                Arrival::Message(Message::Pong(_)) => false,
                Arrival::Message(_) => true,
                Arrival::End(why) => {
                    work.changes.push((id, Change::End(why.clone())));
                    continue;
                }
            };
            if let Some(socket) = self.find(id) {
                socket.health.record_frame(now, is_traffic);
                if matches!(arrival, Arrival::Message(Message::Ping(_))) {
                    socket.health.record_server_ping();
                }
            }
        }
        work
    }

    /// Returns whether the frame is traffic of the server's own.
    fn read_frame(
        &self,
        id: SocketId,
        frame: SocketFrame<'_>,
        wall: Timestamp,
        work: &mut FrameWork,
    ) -> bool {
        let mut is_traffic = true;
        for action in self.protocol.read_frame(frame, wall) {
            match action {
                FrameAction::Receive { events, ack } => work.batch.push(id, events, ack),
                FrameAction::WhenUnstored(message) => work.batch.set_nack(message),
                FrameAction::Reply(message) => work.replies.push((id, message)),
                FrameAction::Ready => work.changes.push((id, Change::Ready)),
                FrameAction::Pong => is_traffic = false,
                FrameAction::PingInterval(interval) => {
                    work.changes.push((id, Change::PingInterval(interval)));
                }
                FrameAction::Reconnect { reason, keep_old } => {
                    work.changes.push((id, Change::Reconnect { reason, keep_old }));
                }
                FrameAction::Stop(failure) => {
                    work.stop.get_or_insert(failure);
                }
            }
        }
        is_traffic
    }

    /// Sends each message on its connection. What cannot be sent is lost: the provider repeats
    /// the frame, and it is recognised.
    async fn send(
        &mut self,
        messages: Vec<(SocketId, SocketMessage)>,
        changes: &mut Vec<(SocketId, Change)>,
    ) {
        let mut by_socket: Vec<(SocketId, Vec<Message>)> = Vec::new();
        for (id, message) in messages {
            match by_socket.iter_mut().find(|(known, _)| *known == id) {
                Some((_, list)) => list.push(message.into()),
                None => by_socket.push((id, vec![message.into()])),
            }
        }
        for (id, messages) in by_socket {
            if let Some(socket) = self.find(id)
                && let Err(why) = socket.send(messages).await
            {
                changes.push((id, Change::End(why)));
            }
        }
    }
}

fn jitter() -> Jitter {
    // Without randomness the full delay is used.
    Jitter::from_random(getrandom::u32().unwrap_or(u32::MAX))
}
