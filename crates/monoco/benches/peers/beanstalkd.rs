//! beanstalkd, with a log that is synced for every job.
//!
//! The log records jobs and deletions, but no reservations: take and finish is one durable
//! step here, and two in the other contenders.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::Result;
use crate::common::drive::{Bounds, drive};
use crate::common::resources::IdleCost;
use crate::contender::Contender;
use crate::payload::{self, Payload};
use crate::server::{self, Launch, Server};

pub const NAME: &str = "beanstalkd";

/// Puts per request while the queue is filled.
const PIPELINE: u64 = 500;

pub struct Beanstalkd {
    below: PathBuf,
    version: String,
    /// The filled queue and the number of waiting messages.
    filled: Option<(Server, u64)>,
}

impl Beanstalkd {
    pub fn new(below: &Path) -> Result<Self> {
        let version = server::version(NAME, "-v")?;
        Ok(Self { below: below.to_owned(), version, filled: None })
    }
}

impl Contender for Beanstalkd {
    fn version(&self) -> String {
        self.version.clone()
    }

    fn enqueue(&mut self, producers: usize, bounds: Bounds) -> Result<Option<f64>> {
        let server = Server::start(&self.below, DURABLE)?;
        let measured = drive(producers, bounds, |_| {
            let (mut client, mut payload) = (Client::new(server.connect()?), Payload::new());
            Ok(move || client.put(payload.next()).map(|()| 1))
        })?;
        Ok(Some(measured.rate))
    }

    fn take_finish(&mut self, takers: usize, backlog: u64, bounds: Bounds) -> Result<Option<f64>> {
        let (server, waiting) = match self.filled.take() {
            Some(filled) => filled,
            None => (Server::start(&self.below, DURABLE)?, 0),
        };
        let server = fill(server, backlog.saturating_sub(waiting))?;
        let bounds = Bounds { calls: bounds.calls.min(backlog), ..bounds };
        let measured = drive(takers, bounds, |_| {
            let mut client = Client::new(server.connect()?);
            Ok(move || {
                let id = client.reserve()?;
                client.delete(id).map(|()| 1)
            })
        })?;
        self.filled = Some((server, backlog - measured.messages));
        Ok(Some(measured.rate))
    }

    fn release(&mut self) {
        self.filled = None;
    }

    fn idle_cost(&mut self, watch: Duration) -> Result<Option<IdleCost>> {
        let server = Server::start(&self.below, DURABLE)?;
        IdleCost::watch(server.pid(), watch, Command::new(NAME).arg("-v")).map(Some)
    }
}

const DURABLE: Launch =
    Launch { command: |addr, data| command(addr, data, "-f0"), ping: b"list-tube-used\r\n" };

const WITHOUT_SYNC: Launch = Launch { command: |addr, data| command(addr, data, "-F"), ..DURABLE };

fn command(addr: SocketAddr, data: &Path, sync: &str) -> Command {
    let mut command = Command::new(NAME);
    command.args(["-l", &addr.ip().to_string(), "-p", &addr.port().to_string()]);
    command.args(["-z", "65535", sync, "-b"]).arg(data);
    command
}

/// Adds messages without a sync for each, then enables syncing again.
///
/// Pipelining does not help: beanstalkd syncs each put before it reads the next, so that
/// 1,000,000 puts would take minutes.
fn fill(server: Server, messages: u64) -> Result<Server> {
    if messages == 0 {
        return Ok(server);
    }
    let server = server.restart(WITHOUT_SYNC)?;
    let mut client = Client::new(server.connect()?);
    let mut payload = Payload::new();
    let mut left = messages;
    while left > 0 {
        let batch = left.min(PIPELINE);
        client.put_many(batch, &mut payload)?;
        left -= batch;
    }
    server.sync_files()?;
    server.restart(DURABLE)
}

/// One connection with reused buffers.
struct Client {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
    line: String,
    body: Vec<u8>,
}

impl Client {
    fn new(stream: TcpStream) -> Self {
        let stream = BufReader::new(stream);
        Self { stream, out: Vec::new(), line: String::new(), body: Vec::new() }
    }

    fn put(&mut self, body: &[u8]) -> Result<()> {
        self.add_put(body)?;
        self.send()?;
        self.answer("INSERTED ").map(drop)
    }

    fn put_many(&mut self, many: u64, payload: &mut Payload) -> Result<()> {
        for _ in 0..many {
            self.add_put(payload.next())?;
        }
        self.send()?;
        (0..many).try_for_each(|_| self.answer("INSERTED ").map(drop))
    }

    fn reserve(&mut self) -> Result<u64> {
        self.out.extend_from_slice(b"reserve\r\n");
        self.send()?;
        let answer = self.answer("RESERVED ")?;
        let (id, bytes) = answer.split_once(' ').ok_or("RESERVED without a length")?;
        let (id, bytes): (u64, usize) = (id.parse()?, bytes.parse()?);
        self.body.resize(bytes + 2, 0);
        self.stream.read_exact(&mut self.body)?;
        if bytes == payload::SIZE { Ok(id) } else { Err(format!("a job of {bytes} B").into()) }
    }

    fn delete(&mut self, id: u64) -> Result<()> {
        write!(self.out, "delete {id}\r\n")?;
        self.send()?;
        self.answer("DELETED").map(drop)
    }

    fn add_put(&mut self, body: &[u8]) -> Result<()> {
        // Time to run of 1 h: no job may be released during the measurement.
        write!(self.out, "put 0 0 3600 {}\r\n", body.len())?;
        self.out.extend_from_slice(body);
        self.out.extend_from_slice(b"\r\n");
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        self.stream.get_mut().write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Reads a line that must start with `want`, and returns the rest.
    fn answer(&mut self, want: &str) -> Result<&str> {
        self.line.clear();
        self.stream.read_line(&mut self.line)?;
        let line = self.line.trim_end();
        line.strip_prefix(want).ok_or_else(|| format!("expected {want}, found {line:?}").into())
    }
}
