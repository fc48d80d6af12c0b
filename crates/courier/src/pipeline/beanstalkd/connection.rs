//! A connection to beanstalkd: a task that owns the socket, and a queue of requests to it.
//!
//! The task writes requests in their order and assigns each reply to the oldest request
//! without one. The reply of a request whose caller is gone is read and dropped. No request is
//! sent twice: when the connection is lost, all requests without a reply fail, and the next
//! request makes a new connection.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use monoco_core::retry::Backoff;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::wire::{BeanstalkdCommand, BeanstalkdReply, CommandKind, ReplyParser};
use super::{BeanstalkdAddress, BeanstalkdError, TubeName};

/// Maximum number of queued requests. Further callers wait.
const MAX_QUEUED: usize = 1024;

/// Maximum number of requests without a reply.
const MAX_IN_FLIGHT: usize = 1024;

/// Number of unwritten bytes from which no further request is taken from the queue.
const MAX_UNWRITTEN_BYTES: usize = 1024 * 1024;

/// Maximum number of bytes per read.
const READ_BYTES: usize = 64 * 1024;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Delay before the next connection to a beanstalkd that did not answer.
const RECONNECT_BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(5) };

/// A reply, and the connection it arrived on.
#[derive(Debug)]
pub struct ReplyResult {
    /// Number of the connection, from 1.
    pub connection: u64,
    pub reply: BeanstalkdReply,
}

/// A reply that has not arrived yet.
pub type PendingReply = oneshot::Receiver<Result<ReplyResult, BeanstalkdError>>;

/// The handle of callers. The connection is closed when the last one is dropped.
#[derive(Clone, Debug)]
pub struct BeanstalkdConnection {
    requests: mpsc::Sender<QueuedRequest>,
    connections: watch::Receiver<u64>,
}

#[derive(Debug)]
struct QueuedRequest {
    command: BeanstalkdCommand,
    /// The only connection on which the request is valid.
    only_on: Option<u64>,
    reply: oneshot::Sender<Result<ReplyResult, BeanstalkdError>>,
}

impl BeanstalkdConnection {
    /// Spawns the task. Every connection watches the tubes in `watched`.
    pub fn new(
        address: BeanstalkdAddress,
        watched: Vec<TubeName>,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let (requests, queue) = mpsc::channel(MAX_QUEUED);
        let (count, connections) = watch::channel(0);
        let task = ConnectionTask {
            address,
            watched,
            requests: queue,
            connections: count,
            failures: 0,
            not_before: Instant::now(),
            last_error: String::new(),
        };
        // Dropping the task fails all requests without a reply.
        tasks.spawn(async move { stop.run_until_cancelled(task.run()).await });
        Self { requests, connections }
    }

    /// Returns the number of connections so far.
    pub fn connections(&self) -> watch::Receiver<u64> {
        self.connections.clone()
    }

    /// Sends a command and waits for its reply.
    pub async fn ask(
        &self,
        command: BeanstalkdCommand,
    ) -> Result<BeanstalkdReply, BeanstalkdError> {
        let pending = self.send(command, None).await?;
        Ok(received(pending.await)?.reply)
    }

    /// Queues a command and returns its pending reply. With `only_on`, the reply is
    /// [`BeanstalkdReply::NotFound`] when the command would be sent on another connection.
    pub async fn send(
        &self,
        command: BeanstalkdCommand,
        only_on: Option<u64>,
    ) -> Result<PendingReply, BeanstalkdError> {
        let (reply, pending) = oneshot::channel();
        let request = QueuedRequest { command, only_on, reply };
        self.requests.send(request).await.map_err(|_| stopped())?;
        Ok(pending)
    }
}

/// Returns the reply, or an error when the task has ended.
pub fn received(
    reply: Result<Result<ReplyResult, BeanstalkdError>, oneshot::error::RecvError>,
) -> Result<ReplyResult, BeanstalkdError> {
    reply.unwrap_or_else(|_| Err(stopped()))
}

fn stopped() -> BeanstalkdError {
    BeanstalkdError::Down(
        "the client is stopping; the command may or may not have been executed".to_owned(),
    )
}

/// The task that owns the socket.
struct ConnectionTask {
    address: BeanstalkdAddress,
    watched: Vec<TubeName>,
    requests: mpsc::Receiver<QueuedRequest>,
    connections: watch::Sender<u64>,
    /// Failed connections in a row.
    failures: u32,
    not_before: Instant,
    /// Why the last connection ended.
    last_error: String,
}

impl ConnectionTask {
    async fn run(mut self) {
        while let Some(request) = self.requests.recv().await {
            if request.only_on.is_some() {
                request.reply_not_found(*self.connections.borrow());
            } else if Instant::now() < self.not_before {
                request.fail(&format!(
                    "waiting before the next connection to {}: {}",
                    self.address, self.last_error
                ));
            } else {
                match connect(&self.address).await {
                    Ok(stream) => self.serve(stream, request).await,
                    Err(why) => {
                        request.fail(&format!("cannot connect to {}: {why}", self.address));
                        self.record_end(why, false);
                    }
                }
            }
        }
    }

    /// Serves requests on one connection until it ends.
    async fn serve(&mut self, stream: TcpStream, first: QueuedRequest) {
        let number = *self.connections.borrow() + 1;
        self.connections.send_replace(number);
        let mut session = ConnectionSession::new(number);
        for command in BeanstalkdCommand::watch_only(&self.watched) {
            session.write(command, None);
        }
        session.take(first);
        let why = self.exchange(stream, &mut session).await;
        tracing::debug!(address = %self.address, connection = number, why, "connection ended");
        for waiting in session.waiting {
            if let Some(reply) = waiting.reply {
                let why = format!(
                    "{}: {why}; the command may or may not have been executed",
                    self.address
                );
                // The caller may be gone.
                let _ = reply.send(Err(BeanstalkdError::Down(why)));
            }
        }
        self.record_end(why, session.replied);
    }

    /// Reads and writes at the same time: otherwise both sides could wait for the other to
    /// read. Returns why the connection ended.
    async fn exchange(&mut self, mut stream: TcpStream, session: &mut ConnectionSession) -> String {
        let (mut from, mut to) = stream.split();
        loop {
            session.parser.input.reserve(READ_BYTES);
            let due = session.waiting.front().map_or_else(Instant::now, |waiting| waiting.due);
            tokio::select! {
                read = from.read_buf(&mut session.parser.input) => match read {
                    Ok(0) => return "connection closed".to_owned(),
                    Ok(_) => if let Err(why) = session.assign_replies() {
                        return why;
                    },
                    Err(error) => return error.to_string(),
                },
                written = to.write(&session.unwritten), if !session.unwritten.is_empty() => match written {
                    Ok(count) => session.unwritten.advance(count),
                    Err(error) => return error.to_string(),
                },
                request = self.requests.recv(), if session.has_room() => match request {
                    Some(request) => self.take_all(request, session),
                    None => return "the client was dropped".to_owned(),
                },
                () = sleep_until(due), if !session.waiting.is_empty() => {
                    return format!("no reply within {} s", REPLY_TIMEOUT.as_secs());
                }
            }
        }
    }

    /// Takes all queued requests, so that they are sent with one write.
    fn take_all(&mut self, first: QueuedRequest, session: &mut ConnectionSession) {
        session.take(first);
        while session.has_room() {
            let Ok(request) = self.requests.try_recv() else { return };
            session.take(request);
        }
    }

    /// After a connection with a valid reply, the next connection is made at once.
    fn record_end(&mut self, why: String, replied: bool) {
        self.failures = if replied { 0 } else { self.failures.saturating_add(1) };
        let wait = match self.failures {
            0 => Duration::ZERO,
            failures => RECONNECT_BACKOFF.delay(failures, crate::clock::jitter()),
        };
        self.not_before = Instant::now() + wait;
        self.last_error = why;
    }
}

async fn connect(address: &BeanstalkdAddress) -> Result<TcpStream, String> {
    let stream =
        timeout(CONNECT_TIMEOUT, TcpStream::connect((address.host.as_str(), address.port)))
            .await
            .map_err(|_| format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()))?
            .map_err(|error| error.to_string())?;
    // Small commands are sent without delay.
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    Ok(stream)
}

impl QueuedRequest {
    fn fail(self, why: &str) {
        // The caller may be gone; so below.
        let _ = self.reply.send(Err(BeanstalkdError::Down(why.to_owned())));
    }

    /// Replies that the job does not exist: reservations end with their connection.
    fn reply_not_found(self, connection: u64) {
        let _ = self.reply.send(Ok(ReplyResult { connection, reply: BeanstalkdReply::NotFound }));
    }
}

/// The state of one connection.
struct ConnectionSession {
    number: u64,
    /// The tube in use after the commands written so far.
    using: TubeName,
    unwritten: BytesMut,
    parser: ReplyParser,
    waiting: VecDeque<AwaitedReply>,
    /// Whether a valid reply has arrived.
    replied: bool,
}

/// A sent request without a reply.
struct AwaitedReply {
    kind: CommandKind,
    due: Instant,
    /// `None` for commands of the connection itself.
    reply: Option<oneshot::Sender<Result<ReplyResult, BeanstalkdError>>>,
}

impl ConnectionSession {
    fn new(number: u64) -> Self {
        Self {
            number,
            using: TubeName::default_tube(),
            unwritten: BytesMut::new(),
            parser: ReplyParser::default(),
            waiting: VecDeque::new(),
            replied: false,
        }
    }

    fn has_room(&self) -> bool {
        self.waiting.len() < MAX_IN_FLIGHT && self.unwritten.len() < MAX_UNWRITTEN_BYTES
    }

    /// Writes a request, and before it the `use` that it needs.
    fn take(&mut self, request: QueuedRequest) {
        if request.only_on.is_some_and(|number| number != self.number) {
            return request.reply_not_found(self.number);
        }
        // A request whose caller is gone is not sent.
        if request.reply.is_closed() {
            return;
        }
        if let Some(tube) = request.command.tube.as_ref().filter(|tube| **tube != self.using) {
            self.using = tube.clone();
            self.write(BeanstalkdCommand::use_tube(tube), None);
        }
        self.write(request.command, Some(request.reply));
    }

    fn write(
        &mut self,
        command: BeanstalkdCommand,
        reply: Option<oneshot::Sender<Result<ReplyResult, BeanstalkdError>>>,
    ) {
        self.unwritten.extend_from_slice(&command.bytes);
        let due = Instant::now() + REPLY_TIMEOUT + server_wait(command.kind);
        self.waiting.push_back(AwaitedReply { kind: command.kind, due, reply });
    }

    /// Assigns the received replies to their requests.
    fn assign_replies(&mut self) -> Result<(), String> {
        while let Some(reply) = self.parser.next().map_err(|error| error.to_string())? {
            let Some(waiting) = self.waiting.front() else {
                return Err("a reply without a command".to_owned());
            };
            let kind = waiting.kind;
            if !kind.accepts(&reply) {
                return Err(format!("a reply that does not belong to {kind:?}"));
            }
            self.replied = true;
            let misread = kind == CommandKind::Put && super::is_rejection(&reply);
            let sender = self.waiting.pop_front().and_then(|waiting| waiting.reply);
            match sender {
                Some(sender) => {
                    let _ = sender.send(Ok(ReplyResult { connection: self.number, reply }));
                }
                None if matches!(
                    reply,
                    BeanstalkdReply::Using(_) | BeanstalkdReply::Watching(_)
                ) => {}
                // Later commands would use the wrong tube.
                None => return Err(format!("{kind:?} failed with {reply:?}")),
            }
            if misread {
                return Err("the server could not parse a put; its body may be taken for commands"
                    .to_owned());
            }
        }
        Ok(())
    }
}

/// Returns how long the server may wait before it replies.
fn server_wait(kind: CommandKind) -> Duration {
    if kind == CommandKind::Reserve { super::consumer::MAX_RESERVE_WAIT } else { Duration::ZERO }
}
