//! A beanstalkd that syncs every job, a connection to it, and a worker that uses it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::Deserialize;

use crate::common::Result;
use crate::server::{self, Launch, Server};

const NAME: &str = "beanstalkd";

/// Tubes of the letters for the worker, and of its answers.
const LETTERS: &str = "monoco.worker.tagger";
const ANSWERS: &str = "monoco.results";

/// The answer to every letter, after its id and nonce.
const VERDICT: &str = r#","last_worker":"tagger","result":"pass","extra":{"tags":[]}}"#;

/// Connections of the worker with one answer per job, and with combined answers.
const WORKER_CONNECTIONS: [usize; 2] = [4, 3];

/// How long the worker waits for more letters before it answers them in one job.
const GATHER_TIME: Duration = Duration::from_millis(50);

const DURABLE: Launch = Launch {
    command: |addr, data| {
        let mut command = Command::new(NAME);
        command.args(["-l", &addr.ip().to_string(), "-p", &addr.port().to_string()]);
        command.args(["-z", "65535", "-f0", "-b"]).arg(data);
        command
    },
    ping: b"list-tube-used\r\n",
};

/// Version of beanstalkd; an error when it is not installed.
pub fn version() -> Result<String> {
    server::version(NAME, "-v")
}

/// A running beanstalkd and its log. Both are removed on drop.
pub struct Beanstalkd(Server);

impl Beanstalkd {
    /// Starts beanstalkd and waits until it answers.
    pub fn start(below: &Path) -> Result<Self> {
        Ok(Self(Server::start(below, DURABLE)?))
    }

    /// URL for the configuration of the courier.
    pub fn url(&self) -> Result<String> {
        Ok(format!("beanstalkd://{}", self.0.connect()?.peer_addr()?))
    }

    /// Opens a connection that reserves from `from` and puts into `into`.
    pub fn connect(&self, from: &str, into: &str) -> Result<BeanstalkdConnection> {
        let stream = BufReader::new(self.0.connect()?);
        let mut line =
            BeanstalkdConnection { stream, out: Vec::new(), word: String::new(), body: Vec::new() };
        line.send(format_args!("watch {from}\r\nignore default\r\nuse {into}\r\n"))?;
        for want in ["WATCHING ", "WATCHING ", "USING "] {
            line.read_reply(want)?;
        }
        Ok(line)
    }
}

/// One connection with reused buffers.
pub struct BeanstalkdConnection {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
    word: String,
    body: Vec<u8>,
}

impl BeanstalkdConnection {
    pub fn put(&mut self, body: &[u8]) -> Result<()> {
        // Time to run of 1 h: no job may be released during the measurement.
        write!(self.out, "put 0 0 3600 {}\r\n", body.len())?;
        self.out.extend_from_slice(body);
        self.send(format_args!("\r\n"))?;
        self.read_reply("INSERTED ").map(drop)
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
        self.word.clear();
        self.stream.read_line(&mut self.word)?;
        let line = self.word.trim_end();
        line.strip_prefix(want).ok_or_else(|| format!("expected {want}, found {line:?}").into())
    }
}

/// A worker that passes every letter.
pub struct Tagger {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Tagger {
    /// Starts a worker that puts at most `answers_per_job` answers into one job.
    pub fn start(beanstalkd: &Beanstalkd, answers_per_job: usize) -> Result<Self> {
        let mut tagger = Self { stop: Arc::default(), threads: Vec::new() };
        for _ in 0..WORKER_CONNECTIONS[usize::from(answers_per_job > 1)] {
            let (line, stop) = (beanstalkd.connect(LETTERS, ANSWERS)?, Arc::clone(&tagger.stop));
            tagger.threads.push(thread::spawn(move || work(line, answers_per_job, &stop)));
        }
        Ok(tagger)
    }

    /// Stops the worker. Returns its first error.
    pub fn stop(mut self) -> Result<()> {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| "the worker panicked")??;
        }
        Ok(())
    }
}

impl Drop for Tagger {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// Answers letters until `stop` is set.
fn work(mut line: BeanstalkdConnection, answers_per_job: usize, stop: &AtomicBool) -> Result<()> {
    let (mut jobs, mut answers) = (Vec::new(), Vec::new());
    while !stop.load(Relaxed) {
        // Waits for the first letter, then for more, then takes those that have arrived.
        while jobs.len() < answers_per_job
            && let Some(job) = line.reserve(u32::from(jobs.is_empty()))?
        {
            if jobs.is_empty() && answers_per_job > 1 {
                thread::sleep(GATHER_TIME);
            }
            jobs.push(job);
            let Letter { id, nonce } = serde_json::from_slice(&line.body)?;
            writeln!(answers, "{{\"id\":\"{id}\",\"nonce\":\"{nonce}\"{VERDICT}")?;
        }
        if !jobs.is_empty() {
            line.put(&answers)?;
            line.delete(&jobs)?;
        }
        jobs.clear();
        answers.clear();
    }
    Ok(())
}

#[derive(Deserialize)]
struct Letter {
    id: String,
    nonce: String,
}
