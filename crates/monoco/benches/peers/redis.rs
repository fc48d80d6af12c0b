//! Redis Streams, with an append-only file that is synced before every answer.
//!
//! Redis answers many clients after one sync, so it is the fastest peer. Finished entries stay
//! in the stream (no `XDEL`), and the file is not rewritten during the measurement; both make
//! Redis faster.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::Result;
use crate::common::resources::IdleCost;
use crate::common::server::{self, Launch, Server};
use crate::contender::{Call, Peer};
use crate::payload::{self, Payload};
use crate::resp::{Answer, Connection};

pub const NAME: &str = "redis";

const PROGRAM: &str = "redis-server";

/// Entries per request while the stream is filled.
const PIPELINE: u64 = 500;

pub struct Redis {
    below: PathBuf,
    version: String,
}

impl Redis {
    pub fn new(below: &Path) -> Result<Self> {
        // "Redis server v=7.0.15 sha=…"
        let output = server::version(PROGRAM, "--version")?;
        let number = output.split_whitespace().find_map(|word| word.strip_prefix("v="));
        let version = format!("Redis {}", number.unwrap_or("of unknown version"));
        Ok(Self { below: below.to_owned(), version })
    }
}

impl Peer for Redis {
    type Queue = Server;

    fn version(&self) -> String {
        self.version.clone()
    }

    fn start(&self) -> Result<Server> {
        let server = Server::start(&self.below, DURABLE)?;
        Client::new(server.connect()?).make_group()?;
        Ok(server)
    }

    /// Adds entries without a sync for each, then enables syncing again.
    fn fill(&self, server: Server, messages: u64) -> Result<Server> {
        let mut client = Client::new(server.connect()?);
        client.set_sync("no")?;
        let mut payload = Payload::new();
        let mut left = messages;
        while left > 0 {
            let batch = left.min(PIPELINE);
            client.add_many(batch, &mut payload)?;
            left -= batch;
        }
        client.set_sync("always")?;
        server.sync_files()?;
        Ok(server)
    }

    fn producer<'q>(&'q self, server: &'q Server, _: usize) -> Result<Call<'q>> {
        let (mut client, mut payload) = (Client::new(server.connect()?), Payload::new());
        Ok(Box::new(move || client.add(payload.next()).map(|()| 1)))
    }

    fn taker<'q>(&'q self, server: &'q Server, number: usize) -> Result<Call<'q>> {
        let (mut client, consumer) = (Client::new(server.connect()?), format!("taker-{number}"));
        Ok(Box::new(move || {
            let id = client.take(consumer.as_bytes())?;
            client.finish(&id).map(|()| 1)
        }))
    }

    fn idle_cost(&self, watch: Duration) -> Result<Option<IdleCost>> {
        let server = Server::start(&self.below, DURABLE)?;
        IdleCost::watch(server.pid(), watch, Command::new(PROGRAM).arg("--version")).map(Some)
    }
}

const DURABLE: Launch = Launch { command, ping: b"PING\r\n" };

fn command(addr: SocketAddr, data: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["--bind", &addr.ip().to_string(), "--port", &addr.port().to_string()]);
    command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", ""]);
    command.args(["--auto-aof-rewrite-percentage", "0", "--daemonize", "no", "--dir"]).arg(data);
    command
}

/// The commands of a queue, over one connection.
struct Client(Connection);

impl Client {
    fn new(stream: TcpStream) -> Self {
        Self(Connection::new(stream))
    }

    fn make_group(&mut self) -> Result<()> {
        let words: [&[u8]; 6] = [b"XGROUP", b"CREATE", b"queue", b"takers", b"0", b"MKSTREAM"];
        self.0.call(&words).map(drop)
    }

    fn set_sync(&mut self, when: &str) -> Result<()> {
        self.0.call(&[b"CONFIG", b"SET", b"appendfsync", when.as_bytes()]).map(drop)
    }

    fn add(&mut self, body: &[u8]) -> Result<()> {
        self.0.call(&[b"XADD", b"queue", b"*", b"body", body]).map(drop)
    }

    fn add_many(&mut self, many: u64, payload: &mut Payload) -> Result<()> {
        for _ in 0..many {
            self.0.add(&[b"XADD", b"queue", b"*", b"body", payload.next()])?;
        }
        self.0.send()?;
        (0..many).try_for_each(|_| self.0.answer().map(drop))
    }

    /// Takes the next entry and checks its size. Returns its id.
    fn take(&mut self, consumer: &[u8]) -> Result<Vec<u8>> {
        let group: [&[u8]; 4] = [b"XREADGROUP", b"GROUP", b"takers", consumer];
        let one: [&[u8]; 5] = [b"COUNT", b"1", b"STREAMS", b"queue", b">"];
        let answer = self.0.call(&[&group[..], &one[..]].concat())?;
        // The first stream, its entries, the first entry: an id and its fields.
        let mut entry = answer.nth(0)?.nth(1)?.nth(0)?.list()?;
        let fields = entry.pop().ok_or("an entry without fields")?;
        let id = entry.pop().ok_or("an entry without an id")?;
        match fields.nth(1)?.bytes()?.len() {
            payload::SIZE => id.bytes(),
            other => Err(format!("an entry of {other} B").into()),
        }
    }

    fn finish(&mut self, id: &[u8]) -> Result<()> {
        match self.0.call(&[b"XACK", b"queue", b"takers", id])? {
            Answer::Number(1) => Ok(()),
            other => Err(format!("XACK answered {other:?}").into()),
        }
    }
}
