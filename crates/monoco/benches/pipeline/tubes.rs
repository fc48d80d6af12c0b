//! A beanstalkd that syncs every job, a connection to it, and a worker behind it.

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

/// Where the courier puts letters for the worker, and where it reads answers.
const LETTERS: &str = "monoco.worker.tagger";
const ANSWERS: &str = "monoco.results";

/// What the worker says of every letter, behind its id.
const SAID: &str = r#","last_worker":"tagger","result":"pass","extra":{"tags":[]}}"#;

/// How many programs the worker is, when it answers one by one, and many at once.
const PROGRAMS: [usize; 2] = [4, 3];

/// How long letters gather that are answered together.
const GATHER: Duration = Duration::from_millis(50);

const DURABLE: Launch = Launch {
    command: |addr, data| {
        let mut command = Command::new(NAME);
        command.args(["-l", &addr.ip().to_string(), "-p", &addr.port().to_string()]);
        command.args(["-z", "65535", "-f0", "-b"]).arg(data);
        command
    },
    ping: b"list-tube-used\r\n",
};

/// The version that is measured, or what is missing.
pub fn version() -> Result<String> {
    server::version(NAME, "-v")
}

/// A running beanstalkd and its log. Both are gone when this is.
pub struct Beanstalkd(Server);

impl Beanstalkd {
    /// Starts one, and waits until it answers.
    pub fn start(below: &Path) -> Result<Self> {
        Ok(Self(Server::start(below, DURABLE)?))
    }

    /// As the config names it.
    pub fn url(&self) -> Result<String> {
        Ok(format!("beanstalkd://{}", self.0.connect()?.peer_addr()?))
    }

    /// A connection that reserves from one tube and puts into the other.
    pub fn line(&self, from: &str, into: &str) -> Result<Line> {
        let stream = BufReader::new(self.0.connect()?);
        let mut line = Line { stream, out: Vec::new(), word: String::new(), body: Vec::new() };
        line.say(format_args!("watch {from}\r\nignore default\r\nuse {into}\r\n"))?;
        for want in ["WATCHING ", "WATCHING ", "USING "] {
            line.answer(want)?;
        }
        Ok(line)
    }
}

/// One connection, its buffers kept.
pub struct Line {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
    word: String,
    body: Vec<u8>,
}

impl Line {
    /// Puts a job.
    pub fn put(&mut self, body: &[u8]) -> Result<()> {
        // An hour to run: no job may come back while it is measured.
        write!(self.out, "put 0 0 3600 {}\r\n", body.len())?;
        self.out.extend_from_slice(body);
        self.say(format_args!("\r\n"))?;
        self.answer("INSERTED ").map(drop)
    }

    /// Reserves a job, unless none comes within so many seconds.
    pub fn reserve(&mut self, seconds: u32) -> Result<Option<u64>> {
        self.say(format_args!("reserve-with-timeout {seconds}\r\n"))?;
        let answer = self.answer("")?;
        if answer == "TIMED_OUT" {
            return Ok(None);
        }
        let parts: Vec<_> = answer.split(' ').collect();
        let ["RESERVED", id, bytes] = parts[..] else {
            return Err(format!("wanted a job, got {answer:?}").into());
        };
        let (id, bytes): (u64, usize) = (id.parse()?, bytes.parse()?);
        self.body.resize(bytes + 2, 0);
        self.stream.read_exact(&mut self.body)?;
        self.body.truncate(bytes);
        Ok(Some(id))
    }

    /// Deletes jobs, without waiting in between.
    pub fn delete(&mut self, ids: &[u64]) -> Result<()> {
        for id in ids {
            write!(self.out, "delete {id}\r\n")?;
        }
        self.say(format_args!(""))?;
        ids.iter().try_for_each(|_| self.answer("DELETED").map(drop))
    }

    fn say(&mut self, words: std::fmt::Arguments<'_>) -> Result<()> {
        self.out.write_fmt(words)?;
        self.stream.get_mut().write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// What follows the word we want, or an error that quotes the other one.
    fn answer(&mut self, want: &str) -> Result<&str> {
        self.word.clear();
        self.stream.read_line(&mut self.word)?;
        let line = self.word.trim_end();
        line.strip_prefix(want).ok_or_else(|| format!("wanted {want}, got {line:?}").into())
    }
}

/// A worker that lets every letter pass.
pub struct Tagger {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Tagger {
    /// Starts it. It puts at most `together` answers into one job.
    pub fn start(beanstalkd: &Beanstalkd, together: usize) -> Result<Self> {
        let mut tagger = Self { stop: Arc::default(), threads: Vec::new() };
        for _ in 0..PROGRAMS[usize::from(together > 1)] {
            let (line, stop) = (beanstalkd.line(LETTERS, ANSWERS)?, Arc::clone(&tagger.stop));
            tagger.threads.push(thread::spawn(move || work(line, together, &stop)));
        }
        Ok(tagger)
    }

    /// Ends it, and says what went wrong in it.
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

/// Answers letters until it is told to stop.
fn work(mut line: Line, together: usize, stop: &AtomicBool) -> Result<()> {
    let (mut jobs, mut answers) = (Vec::new(), Vec::new());
    while !stop.load(Relaxed) {
        // It waits for the first, lets others gather, and takes what is there then.
        while jobs.len() < together
            && let Some(job) = line.reserve(u32::from(jobs.is_empty()))?
        {
            if jobs.is_empty() && together > 1 {
                thread::sleep(GATHER);
            }
            jobs.push(job);
            let Letter { id } = serde_json::from_slice(&line.body)?;
            writeln!(answers, "{{\"id\":\"{id}\"{SAID}")?;
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

/// What the worker reads of a letter.
#[derive(Deserialize)]
struct Letter {
    id: String,
}
