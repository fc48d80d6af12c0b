//! A beanstalkd with a log that is synced for every job, and a connection to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use super::Result;
use super::server::{self, Launch};

pub const NAME: &str = "beanstalkd";

pub const DURABLE: Launch =
    Launch { command: |addr, data| command(addr, data, "-f0"), ping: b"list-tube-used\r\n" };

pub const WITHOUT_SYNC: Launch =
    Launch { command: |addr, data| command(addr, data, "-F"), ..DURABLE };

fn command(addr: SocketAddr, data: &Path, sync: &str) -> Command {
    let mut command = Command::new(NAME);
    command.args(["-l", &addr.ip().to_string(), "-p", &addr.port().to_string()]);
    command.args(["-z", "65535", sync, "-b"]).arg(data);
    command
}

/// Version of beanstalkd; an error when it is not installed.
pub fn version() -> Result<String> {
    server::version(NAME, "-v")
}

/// One connection with reused buffers.
pub struct BeanstalkdConnection {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
    line: String,
    /// The body of the last reserved job.
    pub body: Vec<u8>,
}

impl BeanstalkdConnection {
    pub fn new(stream: TcpStream) -> Self {
        let stream = BufReader::new(stream);
        Self { stream, out: Vec::new(), line: String::new(), body: Vec::new() }
    }

    /// Reserves from `from` and puts into `into` from now on.
    pub fn use_tubes(&mut self, from: &str, into: &str) -> Result<()> {
        self.send(format_args!("watch {from}\r\nignore default\r\nuse {into}\r\n"))?;
        ["WATCHING ", "WATCHING ", "USING "]
            .iter()
            .try_for_each(|want| self.read_reply(want).map(drop))
    }

    pub fn put(&mut self, body: &[u8]) -> Result<()> {
        self.put_many([body])
    }

    /// Puts jobs in one request.
    pub fn put_many(&mut self, bodies: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<()> {
        let mut count = 0;
        for body in bodies {
            let body = body.as_ref();
            // Time to run of 1 h: no job may be released during the measurement.
            write!(self.out, "put 0 0 3600 {}\r\n", body.len())?;
            self.out.extend_from_slice(body);
            self.out.extend_from_slice(b"\r\n");
            count += 1;
        }
        self.send(format_args!(""))?;
        (0..count).try_for_each(|_| self.read_reply("INSERTED ").map(drop))
    }

    /// Reserves a job. Returns `None` when none arrives within `seconds`.
    pub fn reserve(&mut self, seconds: u32) -> Result<Option<u64>> {
        self.send(format_args!("reserve-with-timeout {seconds}\r\n"))?;
        let answer = self.read_reply("")?;
        if answer == "TIMED_OUT" {
            return Ok(None);
        }
        let parts: Vec<_> = answer.split(' ').collect();
        let ["RESERVED", id, bytes] = parts[..] else {
            return Err(format!("expected a job, found {answer:?}").into());
        };
        let (id, bytes): (u64, usize) = (id.parse()?, bytes.parse()?);
        self.body.resize(bytes + 2, 0);
        self.stream.read_exact(&mut self.body)?;
        self.body.truncate(bytes);
        Ok(Some(id))
    }

    /// Deletes jobs in one request.
    pub fn delete(&mut self, ids: &[u64]) -> Result<()> {
        for id in ids {
            write!(self.out, "delete {id}\r\n")?;
        }
        self.send(format_args!(""))?;
        ids.iter().try_for_each(|_| self.read_reply("DELETED").map(drop))
    }

    fn send(&mut self, words: std::fmt::Arguments<'_>) -> Result<()> {
        self.out.write_fmt(words)?;
        self.stream.get_mut().write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Reads a line that must start with `want`, and returns the rest.
    fn read_reply(&mut self, want: &str) -> Result<&str> {
        self.line.clear();
        self.stream.read_line(&mut self.line)?;
        let line = self.line.trim_end();
        line.strip_prefix(want).ok_or_else(|| format!("expected {want}, found {line:?}").into())
    }
}
