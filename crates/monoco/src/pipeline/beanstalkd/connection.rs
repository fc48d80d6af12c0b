//! A line to one beanstalkd: a task that owns the socket, and a queue of requests to it.
//!
//! The task writes requests as they come and gives each reply to the oldest request
//! that has none yet. A caller that goes away changes nothing in that order: its reply
//! is read and dropped. Nothing is ever sent twice; when the connection is lost,
//! whatever has no reply fails, and the next request makes a new connection.

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

/// How many requests wait to be written before callers have to.
const MOST_QUEUED: usize = 1024;

/// How many requests may be without a reply.
const MOST_IN_FLIGHT: usize = 1024;

/// How many bytes wait to be written before no more requests are taken.
const MOST_UNWRITTEN: usize = 1024 * 1024;

/// How much is read at once, if it is there.
const READ: usize = 64 * 1024;

/// How long a connect may take.
const CONNECT: Duration = Duration::from_secs(3);

/// How long a reply may take.
const REPLY: Duration = Duration::from_secs(10);

/// Delay before the next connection to a beanstalkd that did not answer.
const RECONNECT: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(5) };

/// A reply, and the number of the connection that it came over.
#[derive(Debug)]
pub struct ReplyResult {
    /// Which connection of this line, from 1.
    pub connection: u64,
    /// What came.
    pub reply: BeanstalkdReply,
}

/// An answer that may still be on its way.
pub type PendingReply = oneshot::Receiver<Result<ReplyResult, BeanstalkdError>>;

/// The callers' end. Once all of them are gone, the connection is closed.
#[derive(Clone, Debug)]
pub struct BeanstalkdConnection {
    requests: mpsc::Sender<QueuedRequest>,
    connections: watch::Receiver<u64>,
}

#[derive(Debug)]
struct QueuedRequest {
    command: BeanstalkdCommand,
    /// The only connection over which it makes sense.
    only_on: Option<u64>,
    answer: oneshot::Sender<Result<ReplyResult, BeanstalkdError>>,
}

impl BeanstalkdConnection {
    /// A line whose every connection watches these tubes.
    pub fn new(
        address: BeanstalkdAddress,
        watched: Vec<TubeName>,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let (requests, queue) = mpsc::channel(MOST_QUEUED);
        let (count, connections) = watch::channel(0);
        let operator = ConnectionTask {
            address,
            watched,
            requests: queue,
            connections: count,
            failures: 0,
            not_before: Instant::now(),
            trouble: String::new(),
        };
        // Dropping the operator in mid-work fails whoever still waits for an answer.
        tasks.spawn(async move { stop.run_until_cancelled(operator.work()).await });
        Self { requests, connections }
    }

    /// How many connections were made so far.
    pub fn connections(&self) -> watch::Receiver<u64> {
        self.connections.clone()
    }

    /// Asks and waits for the answer.
    pub async fn ask(
        &self,
        command: BeanstalkdCommand,
    ) -> Result<BeanstalkdReply, BeanstalkdError> {
        let coming = self.send(command, None).await?;
        Ok(arrived(coming.await)?.reply)
    }

    /// Asks, and gives back where the answer will come. With `only_on`, it is answered
    /// with [`Reply::NotFound`] unless that is the connection it is written to.
    pub async fn send(
        &self,
        command: BeanstalkdCommand,
        only_on: Option<u64>,
    ) -> Result<PendingReply, BeanstalkdError> {
        let (answer, coming) = oneshot::channel();
        let request = QueuedRequest { command, only_on, answer };
        self.requests.send(request).await.map_err(|_| stopped())?;
        Ok(coming)
    }
}

/// The answer that came, or that none will come any more.
pub fn arrived(
    answer: Result<Result<ReplyResult, BeanstalkdError>, oneshot::error::RecvError>,
) -> Result<ReplyResult, BeanstalkdError> {
    answer.unwrap_or_else(|_| Err(stopped()))
}

fn stopped() -> BeanstalkdError {
    BeanstalkdError::Down("we are stopping; it may or may not have arrived".to_owned())
}

/// The task's end.
struct ConnectionTask {
    address: BeanstalkdAddress,
    watched: Vec<TubeName>,
    requests: mpsc::Receiver<QueuedRequest>,
    connections: watch::Sender<u64>,
    /// How many connections in a row were of no use.
    failures: u32,
    not_before: Instant,
    /// Why the last one ended.
    trouble: String,
}

impl ConnectionTask {
    async fn work(mut self) {
        while let Some(request) = self.requests.recv().await {
            if request.only_on.is_some() {
                request.void(*self.connections.borrow());
            } else if Instant::now() < self.not_before {
                request.fails(&format!("{} not tried again yet: {}", self.address, self.trouble));
            } else {
                match connect(&self.address).await {
                    Ok(stream) => self.serve(stream, request).await,
                    Err(why) => {
                        request.fails(&format!("no connection to {}: {why}", self.address));
                        self.ended(why, false);
                    }
                }
            }
        }
    }

    /// Talks over one connection until it ends.
    async fn serve(&mut self, stream: TcpStream, first: QueuedRequest) {
        let number = *self.connections.borrow() + 1;
        self.connections.send_replace(number);
        let mut talk = ConnectionSession::new(number);
        for command in BeanstalkdCommand::watch_only(&self.watched) {
            talk.write(command, None);
        }
        talk.take(first);
        let why = self.talk(stream, &mut talk).await;
        tracing::debug!(address = %self.address, connection = number, why, "connection ended");
        for waiting in talk.waiting {
            if let Some(answer) = waiting.answer {
                let why = format!("{}: {why}; it may or may not have arrived", self.address);
                // Whoever went away needs no answer.
                let _ = answer.send(Err(BeanstalkdError::Down(why)));
            }
        }
        self.ended(why, talk.heard);
    }

    /// Reads and writes at the same time: a peer that waits for us to read would
    /// otherwise wait for ever. Returns why it ended.
    async fn talk(&mut self, mut stream: TcpStream, talk: &mut ConnectionSession) -> String {
        let (mut from, mut to) = stream.split();
        loop {
            talk.reader.input.reserve(READ);
            let due = talk.waiting.front().map_or_else(Instant::now, |waiting| waiting.due);
            tokio::select! {
                read = from.read_buf(&mut talk.reader.input) => match read {
                    Ok(0) => return "connection closed".to_owned(),
                    Ok(_) => if let Err(why) = talk.hear() {
                        return why;
                    },
                    Err(error) => return error.to_string(),
                },
                written = to.write(&talk.unwritten), if !talk.unwritten.is_empty() => match written {
                    Ok(count) => talk.unwritten.advance(count),
                    Err(error) => return error.to_string(),
                },
                request = self.requests.recv(), if talk.has_room() => match request {
                    Some(request) => self.take_all(request, talk),
                    None => return "nobody needs it any more".to_owned(),
                },
                () = sleep_until(due), if !talk.waiting.is_empty() => {
                    return format!("no answer within {} s", REPLY.as_secs());
                }
            }
        }
    }

    /// Takes what else is there, so that all of it goes out with one write.
    fn take_all(&mut self, first: QueuedRequest, talk: &mut ConnectionSession) {
        talk.take(first);
        while talk.has_room() {
            let Ok(request) = self.requests.try_recv() else { return };
            talk.take(request);
        }
    }

    /// After a connection that was of use the next is made at once.
    fn ended(&mut self, why: String, useful: bool) {
        self.failures = if useful { 0 } else { self.failures.saturating_add(1) };
        let wait = match self.failures {
            0 => Duration::ZERO,
            failures => RECONNECT.delay(failures, crate::clock::jitter()),
        };
        self.not_before = Instant::now() + wait;
        self.trouble = why;
    }
}

async fn connect(address: &BeanstalkdAddress) -> Result<TcpStream, String> {
    let stream = timeout(CONNECT, TcpStream::connect((address.host.as_str(), address.port)))
        .await
        .map_err(|_| format!("no connection within {} s", CONNECT.as_secs()))?
        .map_err(|error| error.to_string())?;
    // Small commands are to leave at once.
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    Ok(stream)
}

impl QueuedRequest {
    fn fails(self, why: &str) {
        // Whoever went away needs no answer; here and below.
        let _ = self.answer.send(Err(BeanstalkdError::Down(why.to_owned())));
    }

    /// What a connection held went with it.
    fn void(self, connection: u64) {
        let _ = self.answer.send(Ok(ReplyResult { connection, reply: BeanstalkdReply::NotFound }));
    }
}

/// The state of one connection.
struct ConnectionSession {
    number: u64,
    /// What the server will have in use once it has read everything written so far.
    using: TubeName,
    unwritten: BytesMut,
    reader: ReplyParser,
    waiting: VecDeque<AwaitedReply>,
    /// Whether it ever answered.
    heard: bool,
}

/// A request that was written and has no reply yet.
struct AwaitedReply {
    kind: CommandKind,
    due: Instant,
    /// Nobody, for commands of the line's own.
    answer: Option<oneshot::Sender<Result<ReplyResult, BeanstalkdError>>>,
}

impl ConnectionSession {
    fn new(number: u64) -> Self {
        Self {
            number,
            using: TubeName::default_tube(),
            unwritten: BytesMut::new(),
            reader: ReplyParser::default(),
            waiting: VecDeque::new(),
            heard: false,
        }
    }

    fn has_room(&self) -> bool {
        self.waiting.len() < MOST_IN_FLIGHT && self.unwritten.len() < MOST_UNWRITTEN
    }

    /// Writes a request, and before it the `use` that it needs.
    fn take(&mut self, request: QueuedRequest) {
        if request.only_on.is_some_and(|number| number != self.number) {
            return request.void(self.number);
        }
        // Nobody will know whether it was done, so better not.
        if request.answer.is_closed() {
            return;
        }
        if let Some(tube) = request.command.tube.as_ref().filter(|tube| **tube != self.using) {
            self.using = tube.clone();
            self.write(BeanstalkdCommand::use_tube(tube), None);
        }
        self.write(request.command, Some(request.answer));
    }

    fn write(
        &mut self,
        command: BeanstalkdCommand,
        answer: Option<oneshot::Sender<Result<ReplyResult, BeanstalkdError>>>,
    ) {
        self.unwritten.extend_from_slice(&command.bytes);
        let due = Instant::now() + REPLY + patience(command.kind);
        self.waiting.push_back(AwaitedReply { kind: command.kind, due, answer });
    }

    /// Gives all replies that have come to those who wait for them.
    fn hear(&mut self) -> Result<(), String> {
        while let Some(reply) = self.reader.next().map_err(|nonsense| nonsense.to_string())? {
            let Some(waiting) = self.waiting.front() else {
                return Err("an answer that nobody asked for".to_owned());
            };
            let kind = waiting.kind;
            if !kind.fits(&reply) {
                return Err(format!("an answer to {kind:?} that is none"));
            }
            self.heard = true;
            let misread = kind == CommandKind::Put && super::is_refusal(&reply);
            let answer = self.waiting.pop_front().and_then(|waiting| waiting.answer);
            match answer {
                Some(answer) => {
                    let _ = answer.send(Ok(ReplyResult { connection: self.number, reply }));
                }
                None if matches!(
                    reply,
                    BeanstalkdReply::Using(_) | BeanstalkdReply::Watching(_)
                ) => {}
                // What stands behind it would go to the wrong tube.
                None => return Err(format!("{kind:?} was answered {reply:?}")),
            }
            if misread {
                return Err("a put was misread, and its body may be taken for commands".to_owned());
            }
        }
        Ok(())
    }
}

/// How long the server itself may hold back its answer.
fn patience(kind: CommandKind) -> Duration {
    if kind == CommandKind::Reserve { super::consumer::SLICE } else { Duration::ZERO }
}
