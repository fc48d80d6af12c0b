//! Our own client for beanstalkd: pipelined, reconnecting, safe to drop in mid-call.
//!
//! Nothing here decides what a lost job means. A beanstalkd only carries: it may be
//! restarted empty at any time, and whoever puts jobs must be able to put them again.
//!
//! # Reading order
//!
//! * [`BeanstalkdClient`]: everything but taking jobs; shared by all.
//! * [`consumer`]: taking jobs, over a connection of its own.
//! * [`mod@line`]: the task that owns a connection.
//! * [`wire`]: bytes and words; pure.
//! * [`inbox_cache`]: addresses and tubes.

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
use wire::{BeanstalkdCommand, BeanstalkdReply, CommandKind, MOST_BODY, StatsFields, seconds};

/// The number of a job, within one life of a beanstalkd. One that was restarted without
/// its binlog gives the same numbers to other jobs.
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
    /// Any bytes.
    pub body: Vec<u8>,
    /// The smaller, the sooner.
    pub priority: u32,
    /// How long nobody gets it, rounded up to whole seconds.
    pub delay: Duration,
    /// How long somebody may hold it, rounded up to whole seconds, at least one.
    pub ttr: Duration,
}

/// A job that was taken or looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BeanstalkdJob {
    /// Its number.
    pub id: JobId,
    /// Its bytes.
    pub body: Vec<u8>,
}

/// Where a job stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStats {
    /// Its tube.
    pub tube: String,
    /// `ready`, `delayed`, `reserved` or `buried`.
    pub state: String,
    /// Its priority.
    pub priority: u64,
    /// How long ago it was put.
    pub age: Duration,
    /// How long somebody may hold it.
    pub ttr: Duration,
    /// How long it stays reserved or delayed.
    pub time_left: Duration,
    /// How often it was taken.
    pub reserves: u64,
    /// How often it was held for too long.
    pub timeouts: u64,
    /// How often it was put back.
    pub releases: u64,
    /// How often it was buried.
    pub buries: u64,
    /// How often it was kicked.
    pub kicks: u64,
}

/// What is in a tube, and who is at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TubeStats {
    /// Jobs to be had.
    pub ready: u64,
    /// Jobs that somebody holds.
    pub reserved: u64,
    /// Jobs whose time has not come.
    pub delayed: u64,
    /// Jobs that were put aside.
    pub buried: u64,
    /// Connections that watch it.
    pub watching: u64,
    /// Connections that wait for a job in it at this moment.
    pub waiting: u64,
}

/// What a beanstalkd says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStats {
    /// A name for this life of the server: another one after each restart.
    pub id: String,
    /// Its version.
    pub version: String,
    /// How long it has run.
    pub uptime: Duration,
    /// Whether it takes no jobs any more.
    pub draining: bool,
    /// The largest body it takes.
    pub max_job_size: u64,
    /// Jobs to be had, in all tubes.
    pub ready: u64,
    /// Open connections, ours among them.
    pub connections: u64,
}

/// Why a beanstalkd did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BeanstalkdError {
    /// It can't be reached, was lost, took too long or talked nonsense. Comes at once
    /// while a server that is down is left alone, so whoever tries again should pause.
    #[error("beanstalkd is down: {0}")]
    Down(String),
    /// It has no room.
    #[error("beanstalkd has no room: {0}")]
    Full(String),
    /// It takes no jobs any more, until it is restarted.
    #[error("beanstalkd takes no jobs any more (it is draining)")]
    Draining,
    /// The body is too large.
    #[error("a job of {size} bytes is too large{}", at_most(*.most))]
    TooBig {
        /// How large it is.
        size: usize,
        /// How large it may be, if that is known.
        most: Option<usize>,
    },
    /// It did not understand us.
    #[error("beanstalkd refused: {0}")]
    Refused(String),
}

fn at_most(most: Option<usize>) -> String {
    most.map(|most| format!(" (at most {most})")).unwrap_or_default()
}

/// Whether the server did not understand what it read.
fn is_refusal(reply: &BeanstalkdReply) -> bool {
    matches!(
        reply,
        BeanstalkdReply::ExpectedCrlf
            | BeanstalkdReply::BadFormat
            | BeanstalkdReply::UnknownCommand
    )
}

/// What a reply means that is not the one hoped for.
fn refusal(reply: BeanstalkdReply) -> BeanstalkdError {
    match reply {
        BeanstalkdReply::OutOfMemory
        | BeanstalkdReply::InternalError
        | BeanstalkdReply::Buried(_) => BeanstalkdError::Full(format!("{reply:?}")),
        BeanstalkdReply::Draining => BeanstalkdError::Draining,
        BeanstalkdReply::TooLong(_, size) => {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            BeanstalkdError::TooBig { size, most: Some(MOST_BODY) }
        }
        reply if is_refusal(&reply) => BeanstalkdError::Refused(format!("{reply:?}")),
        reply => BeanstalkdError::Down(format!("unexpected answer {reply:?}")),
    }
}

/// A way to one beanstalkd. All clones share one connection.
///
/// Commands go out as they come, without waiting for each other's answers. A call whose
/// future is dropped may or may not have been done.
#[derive(Clone)]
pub struct BeanstalkdClient {
    line: BeanstalkdConnection,
}

impl BeanstalkdClient {
    /// Nothing is connected until something is asked. The connection's task runs on
    /// `tasks` and ends with `stop`, or when the last clone is gone.
    pub fn new(address: BeanstalkdAddress, tasks: &TaskTracker, stop: CancellationToken) -> Self {
        Self { line: BeanstalkdConnection::new(address, Vec::new(), tasks, stop) }
    }

    /// Changes each time a new connection was made; 0: never connected. For whoever must
    /// look after what may have been lost with the old one.
    pub fn connections(&self) -> watch::Receiver<u64> {
        self.line.connections()
    }

    /// Puts a job into a tube.
    pub async fn put(&self, tube: &TubeName, job: PutOptions) -> Result<JobId, BeanstalkdError> {
        let size = job.body.len();
        if size > MOST_BODY {
            return Err(BeanstalkdError::TooBig { size, most: Some(MOST_BODY) });
        }
        match self.line.ask(BeanstalkdCommand::put(tube, &job)).await? {
            BeanstalkdReply::Inserted(id) => Ok(id),
            BeanstalkdReply::JobTooBig => {
                let stats = self.stats().await.ok();
                let most = stats.and_then(|stats| usize::try_from(stats.max_job_size).ok());
                Err(BeanstalkdError::TooBig { size, most })
            }
            other => Err(refusal(other)),
        }
    }

    /// Deletes a job that is ready, delayed, buried or held by this client. `false`:
    /// there is none such.
    pub async fn delete(&self, id: JobId) -> Result<bool, BeanstalkdError> {
        self.done(BeanstalkdCommand::line(CommandKind::Delete, format!("delete {id}"))).await
    }

    /// Looks at a job.
    pub async fn peek(&self, id: JobId) -> Result<Option<BeanstalkdJob>, BeanstalkdError> {
        self.job(BeanstalkdCommand::line(CommandKind::Peek, format!("peek {id}"))).await
    }

    /// Where a job stands. `None`: there is none such.
    pub async fn stats_job(&self, id: JobId) -> Result<Option<JobStats>, BeanstalkdError> {
        let found = self.figures(format!("stats-job {id}")).await?;
        found.map(|figures| job_stats(&figures).map_err(missing)).transpose()
    }

    /// What is in a tube. `None`: nothing, and nobody is at it.
    pub async fn stats_tube(&self, tube: &TubeName) -> Result<Option<TubeStats>, BeanstalkdError> {
        let found = self.figures(format!("stats-tube {tube}")).await?;
        found.map(|figures| tube_stats(&figures).map_err(missing)).transpose()
    }

    /// What the server says of itself.
    pub async fn stats(&self) -> Result<ServerStats, BeanstalkdError> {
        let figures = self.figures("stats".to_owned()).await?;
        stats(&figures.ok_or_else(|| refusal(BeanstalkdReply::NotFound))?).map_err(missing)
    }

    /// Whether it was done, where not finding the job is no error.
    async fn done(&self, command: BeanstalkdCommand) -> Result<bool, BeanstalkdError> {
        let kind = command.kind;
        match self.line.ask(command).await? {
            BeanstalkdReply::NotFound => Ok(false),
            BeanstalkdReply::Deleted
            | BeanstalkdReply::Released
            | BeanstalkdReply::Touched
            | BeanstalkdReply::Kicked(None) => Ok(true),
            BeanstalkdReply::Buried(None) if kind == CommandKind::Bury => Ok(true),
            other => Err(refusal(other)),
        }
    }

    async fn job(
        &self,
        command: BeanstalkdCommand,
    ) -> Result<Option<BeanstalkdJob>, BeanstalkdError> {
        match self.line.ask(command).await? {
            BeanstalkdReply::NotFound => Ok(None),
            BeanstalkdReply::Found(job) | BeanstalkdReply::Reserved(job) => Ok(Some(job)),
            other => Err(refusal(other)),
        }
    }

    async fn figures(&self, line: String) -> Result<Option<StatsFields>, BeanstalkdError> {
        match self.line.ask(BeanstalkdCommand::line(CommandKind::Stats, line)).await? {
            BeanstalkdReply::NotFound => Ok(None),
            BeanstalkdReply::Stats(yaml) => Ok(Some(StatsFields::read(&yaml))),
            other => Err(refusal(other)),
        }
    }
}

// The rest of what the protocol can do with jobs.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the client knows every command, the courier needs fewer")
)]
impl BeanstalkdClient {
    /// Takes this very job, which is then held by this client. `None`: there is none, or
    /// somebody else holds it.
    pub async fn reserve_job(&self, id: JobId) -> Result<Option<BeanstalkdJob>, BeanstalkdError> {
        self.job(BeanstalkdCommand::line(CommandKind::ReserveJob, format!("reserve-job {id}")))
            .await
    }

    /// Puts a job back that this client holds. `false`: it does not.
    pub async fn release(
        &self,
        id: JobId,
        priority: u32,
        delay: Duration,
    ) -> Result<bool, BeanstalkdError> {
        let delay = seconds(delay);
        self.done(BeanstalkdCommand::line(
            CommandKind::Release,
            format!("release {id} {priority} {delay}"),
        ))
        .await
    }

    /// Puts a job aside that this client holds. `false`: it does not.
    pub async fn bury(&self, id: JobId, priority: u32) -> Result<bool, BeanstalkdError> {
        self.done(BeanstalkdCommand::line(CommandKind::Bury, format!("bury {id} {priority}"))).await
    }

    /// Lets the time of a job that this client holds begin anew. `false`: it does not.
    pub async fn touch(&self, id: JobId) -> Result<bool, BeanstalkdError> {
        self.done(BeanstalkdCommand::line(CommandKind::Touch, format!("touch {id}"))).await
    }

    /// Makes up to `bound` buried jobs of a tube ready, or delayed ones if none is
    /// buried. Returns how many.
    pub async fn kick(&self, tube: &TubeName, bound: u32) -> Result<u64, BeanstalkdError> {
        let kick = BeanstalkdCommand::in_tube(CommandKind::Kick, tube, format!("kick {bound}"));
        match self.line.ask(kick).await? {
            BeanstalkdReply::Kicked(Some(count)) => Ok(count),
            other => Err(refusal(other)),
        }
    }

    /// Makes one buried or delayed job ready. `false`: there is none such.
    pub async fn kick_job(&self, id: JobId) -> Result<bool, BeanstalkdError> {
        self.done(BeanstalkdCommand::line(CommandKind::KickJob, format!("kick-job {id}"))).await
    }

    /// Looks at the next job of a tube.
    pub async fn peek_ready(
        &self,
        tube: &TubeName,
    ) -> Result<Option<BeanstalkdJob>, BeanstalkdError> {
        self.job(BeanstalkdCommand::in_tube(CommandKind::Peek, tube, "peek-ready".to_owned())).await
    }

    /// Looks at the job of a tube whose delay ends first.
    pub async fn peek_delayed(
        &self,
        tube: &TubeName,
    ) -> Result<Option<BeanstalkdJob>, BeanstalkdError> {
        self.job(BeanstalkdCommand::in_tube(CommandKind::Peek, tube, "peek-delayed".to_owned()))
            .await
    }

    /// Looks at the job of a tube that was buried first.
    pub async fn peek_buried(
        &self,
        tube: &TubeName,
    ) -> Result<Option<BeanstalkdJob>, BeanstalkdError> {
        self.job(BeanstalkdCommand::in_tube(CommandKind::Peek, tube, "peek-buried".to_owned()))
            .await
    }
}

fn missing(key: &'static str) -> BeanstalkdError {
    BeanstalkdError::Down(format!("statistics without {key}"))
}

fn job_stats(figures: &StatsFields) -> Result<JobStats, &'static str> {
    Ok(JobStats {
        tube: figures.text("tube")?,
        state: figures.text("state")?,
        priority: figures.number("pri")?,
        age: figures.time("age")?,
        ttr: figures.time("ttr")?,
        time_left: figures.time("time-left")?,
        reserves: figures.number("reserves")?,
        timeouts: figures.number("timeouts")?,
        releases: figures.number("releases")?,
        buries: figures.number("buries")?,
        kicks: figures.number("kicks")?,
    })
}

fn tube_stats(figures: &StatsFields) -> Result<TubeStats, &'static str> {
    Ok(TubeStats {
        ready: figures.number("current-jobs-ready")?,
        reserved: figures.number("current-jobs-reserved")?,
        delayed: figures.number("current-jobs-delayed")?,
        buried: figures.number("current-jobs-buried")?,
        watching: figures.number("current-watching")?,
        waiting: figures.number("current-waiting")?,
    })
}

fn stats(figures: &StatsFields) -> Result<ServerStats, &'static str> {
    Ok(ServerStats {
        id: figures.text("id")?,
        version: figures.text("version")?,
        uptime: figures.time("uptime")?,
        // Older ones do not say.
        draining: figures.text("draining").is_ok_and(|value| value == "true"),
        max_job_size: figures.number("max-job-size")?,
        ready: figures.number("current-jobs-ready")?,
        connections: figures.number("current-connections")?,
    })
}
