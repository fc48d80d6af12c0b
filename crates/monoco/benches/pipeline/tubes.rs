//! A beanstalkd that syncs every job, and a worker that uses it.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::Deserialize;

use crate::common::Result;
use crate::common::beanstalkd::{BeanstalkdConnection, DURABLE};
use crate::common::server::Server;

/// Tubes of the letters for the worker, and of its answers.
const LETTERS: &str = "monoco.worker.tagger";
const ANSWERS: &str = "monoco.results";

/// The answer to every letter, after its id and nonce.
const VERDICT: &str = r#","last_worker":"tagger","result":"pass","extra":{"tags":[]}}"#;

/// Connections of the worker with one answer per job, and with combined answers.
const WORKER_CONNECTIONS: [usize; 2] = [4, 3];

/// How long the worker waits for more letters before it answers them in one job.
const GATHER_TIME: Duration = Duration::from_millis(50);

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
        let mut line = BeanstalkdConnection::new(self.0.connect()?);
        line.use_tubes(from, into)?;
        Ok(line)
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
