//! A client for beanstalkd: pipelined, reconnecting, and safe when a call is dropped.
//!
//! It has the commands that the pipeline uses. A beanstalkd may be restarted without its data
//! at any time, so callers must be able to put their jobs again.
//!
//! # Reading order
//!
//! * [`BeanstalkdClient`]: all commands except reserving jobs; clones share a connection.
//! * `consumer`: reserves jobs over a connection of its own.
//! * `connection`: the task that owns a connection.
//! * `wire`: encodes commands and parses replies, without I/O.
//! * `names`: addresses and tube names.

mod connection;
mod consumer;
mod names;
#[cfg(test)]
mod tests;
mod wire;

use std::fmt;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use connection::BeanstalkdConnection;
pub use consumer::JobConsumer;
pub use names::{BeanstalkdAddress, TubeName};
use wire::{BeanstalkdCommand, BeanstalkdReply, CommandKind, MAX_BODY_BYTES, StatsFields};

/// The id of a job. A beanstalkd that is restarted without a binlog assigns the same ids again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A job to be put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutOptions {
    pub body: Vec<u8>,
    /// Jobs with a smaller number are reserved first.
    pub priority: u32,
    /// Time before the job can be reserved, rounded up to whole seconds.
    pub delay: Duration,
    /// Time a consumer may hold the job, rounded up to whole seconds, at least 1 s.
    pub ttr: Duration,
}

/// A job that was reserved or peeked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BeanstalkdJob {
    pub id: JobId,
    pub body: Vec<u8>,
}

/// State of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStats {
    pub tube: String,
    /// `ready`, `delayed`, `reserved` or `buried`.
    pub state: String,
    pub ttr: Duration,
    /// Time until a reserved job times out or a delayed one becomes ready.
    pub time_left: Duration,
    /// How often the job was reserved.
    pub reserves: u64,
}

/// Numbers of jobs and connections of a tube.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TubeStats {
    pub ready: u64,
    pub reserved: u64,
    pub delayed: u64,
    pub buried: u64,
    /// Connections that watch the tube.
    pub watching: u64,
    /// Connections that wait for a job.
    pub waiting: u64,
}

/// State of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStats {
    /// Changes with every restart.
    pub id: String,
    pub version: String,
    pub uptime: Duration,
    /// Whether the server rejects new jobs.
    pub draining: bool,
    /// Largest body, in bytes.
    pub max_job_size: u64,
    /// Ready jobs in all tubes.
    pub ready: u64,
    /// Open connections, this one included.
    pub connections: u64,
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BeanstalkdError {
    /// The server cannot be reached, the connection was lost, a reply took too long or was
    /// not valid. Returned at once during the pause before the next connection, so a caller
    /// that retries has to pause, too.
    #[error("beanstalkd is down: {0}")]
    Down(String),
    #[error("beanstalkd is out of memory: {0}")]
    Full(String),
    #[error("beanstalkd is draining and rejects new jobs until it is restarted")]
    Draining,
    #[error("a job of {size} bytes is too large{}", limit_text(*.limit))]
    TooBig {
        size: usize,
        /// The limit, if it is known.
        limit: Option<usize>,
    },
    #[error("beanstalkd rejected the command: {0}")]
    Rejected(String),
}

fn limit_text(limit: Option<usize>) -> String {
    limit.map(|limit| format!(" (the limit is {limit})")).unwrap_or_default()
}

/// Tells whether the server could not parse the command.
fn is_rejection(reply: &BeanstalkdReply) -> bool {
    matches!(
        reply,
        BeanstalkdReply::ExpectedCrlf
            | BeanstalkdReply::BadFormat
            | BeanstalkdReply::UnknownCommand
    )
}

/// Maps an unexpected reply to an error.
fn reply_error(reply: BeanstalkdReply) -> BeanstalkdError {
    match reply {
        BeanstalkdReply::OutOfMemory
        | BeanstalkdReply::InternalError
        | BeanstalkdReply::Buried(_) => BeanstalkdError::Full(format!("{reply:?}")),
        BeanstalkdReply::Draining => BeanstalkdError::Draining,
        BeanstalkdReply::TooLong(_, size) => {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            BeanstalkdError::TooBig { size, limit: Some(MAX_BODY_BYTES) }
        }
        reply if is_rejection(&reply) => BeanstalkdError::Rejected(format!("{reply:?}")),
        reply => BeanstalkdError::Down(format!("unexpected reply {reply:?}")),
    }
}

/// A client of one beanstalkd. All clones share one connection.
///
/// Commands are pipelined. A command whose future is dropped may or may not be executed.
#[derive(Clone)]
pub struct BeanstalkdClient {
    connection: BeanstalkdConnection,
}

impl BeanstalkdClient {
    /// Connects with the first command. The connection's task runs on `tasks` until `stop`, or
    /// until the last clone is dropped.
    pub fn new(address: BeanstalkdAddress, tasks: &TaskTracker, stop: CancellationToken) -> Self {
        Self { connection: BeanstalkdConnection::new(address, Vec::new(), tasks, stop) }
    }

    /// Returns the number of connections so far. A change means that jobs may have been lost
    /// with the previous connection.
    pub fn connections(&self) -> watch::Receiver<u64> {
        self.connection.connections()
    }

    /// Puts a job into a tube. Returns its id.
    pub async fn put(&self, tube: &TubeName, job: PutOptions) -> Result<JobId, BeanstalkdError> {
        let size = job.body.len();
        if size > MAX_BODY_BYTES {
            return Err(BeanstalkdError::TooBig { size, limit: Some(MAX_BODY_BYTES) });
        }
        match self.connection.ask(BeanstalkdCommand::put(tube, &job)).await? {
            BeanstalkdReply::Inserted(id) => Ok(id),
            BeanstalkdReply::JobTooBig => {
                let stats = self.stats().await.ok();
                let limit = stats.and_then(|stats| usize::try_from(stats.max_job_size).ok());
                Err(BeanstalkdError::TooBig { size, limit })
            }
            other => Err(reply_error(other)),
        }
    }

    /// Deletes a job that is not reserved by another connection. Returns whether it existed.
    pub async fn delete(&self, id: JobId) -> Result<bool, BeanstalkdError> {
        let delete = BeanstalkdCommand::line(CommandKind::Delete, format!("delete {id}"));
        match self.connection.ask(delete).await? {
            BeanstalkdReply::Deleted => Ok(true),
            BeanstalkdReply::NotFound => Ok(false),
            other => Err(reply_error(other)),
        }
    }

    /// Returns a job without reserving it; `None` when it does not exist.
    pub async fn peek(&self, id: JobId) -> Result<Option<BeanstalkdJob>, BeanstalkdError> {
        let peek = BeanstalkdCommand::line(CommandKind::Peek, format!("peek {id}"));
        match self.connection.ask(peek).await? {
            BeanstalkdReply::Found(job) => Ok(Some(job)),
            BeanstalkdReply::NotFound => Ok(None),
            other => Err(reply_error(other)),
        }
    }

    /// Returns the state of a job; `None` when it does not exist.
    pub async fn stats_job(&self, id: JobId) -> Result<Option<JobStats>, BeanstalkdError> {
        let found = self.stats_fields(format!("stats-job {id}")).await?;
        found.map(|fields| job_stats(&fields).map_err(missing)).transpose()
    }

    /// Returns the numbers of a tube; `None` when it has no jobs and no connections.
    pub async fn stats_tube(&self, tube: &TubeName) -> Result<Option<TubeStats>, BeanstalkdError> {
        let found = self.stats_fields(format!("stats-tube {tube}")).await?;
        found.map(|fields| tube_stats(&fields).map_err(missing)).transpose()
    }

    /// Returns the state of the server.
    pub async fn stats(&self) -> Result<ServerStats, BeanstalkdError> {
        let fields = self.stats_fields("stats".to_owned()).await?;
        stats(&fields.ok_or_else(|| reply_error(BeanstalkdReply::NotFound))?).map_err(missing)
    }

    async fn stats_fields(&self, line: String) -> Result<Option<StatsFields>, BeanstalkdError> {
        match self.connection.ask(BeanstalkdCommand::line(CommandKind::Stats, line)).await? {
            BeanstalkdReply::NotFound => Ok(None),
            BeanstalkdReply::Stats(yaml) => Ok(Some(StatsFields::parse(&yaml))),
            other => Err(reply_error(other)),
        }
    }
}

fn missing(key: &'static str) -> BeanstalkdError {
    BeanstalkdError::Down(format!("statistics without {key}"))
}

fn job_stats(fields: &StatsFields) -> Result<JobStats, &'static str> {
    Ok(JobStats {
        tube: fields.text("tube")?,
        state: fields.text("state")?,
        ttr: fields.time("ttr")?,
        time_left: fields.time("time-left")?,
        reserves: fields.number("reserves")?,
    })
}

fn tube_stats(fields: &StatsFields) -> Result<TubeStats, &'static str> {
    Ok(TubeStats {
        ready: fields.number("current-jobs-ready")?,
        reserved: fields.number("current-jobs-reserved")?,
        delayed: fields.number("current-jobs-delayed")?,
        buried: fields.number("current-jobs-buried")?,
        watching: fields.number("current-watching")?,
        waiting: fields.number("current-waiting")?,
    })
}

fn stats(fields: &StatsFields) -> Result<ServerStats, &'static str> {
    Ok(ServerStats {
        id: fields.text("id")?,
        version: fields.text("version")?,
        uptime: fields.time("uptime")?,
        // Older servers do not report it.
        draining: fields.text("draining").is_ok_and(|value| value == "true"),
        max_job_size: fields.number("max-job-size")?,
        ready: fields.number("current-jobs-ready")?,
        connections: fields.number("current-connections")?,
    })
}
