//! Reserves jobs from some tubes over a connection of its own.
//!
//! A call that is dropped loses no job: pending requests and reserved jobs belong to the
//! consumer, and the next call continues with them.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::{BeanstalkdConnection, PendingReply, ReplyResult, received};
use super::wire::{BeanstalkdCommand, BeanstalkdReply, CommandKind, seconds};
use super::{BeanstalkdAddress, BeanstalkdError, BeanstalkdJob, JobId, TubeName, reply_error};

/// Longest wait of one reserve command. A longer wait is split into several commands, so that
/// a `delete` behind a dropped reserve waits at most this long.
pub const MAX_RESERVE_WAIT: Duration = Duration::from_secs(1);

/// Maximum number of jobs per call.
const MAX_JOBS_PER_CALL: usize = 256;

/// Maximum number of remembered reservations. Only jobs that callers never delete or release
/// can be so many.
const MAX_RESERVED: usize = 65_536;

/// Priority of a job that is buried for its size.
const LOWEST_PRIORITY: u32 = u32::MAX;

/// Pause after DEADLINE_SOON, which the server would return again at once.
const DEADLINE_PAUSE: Duration = Duration::from_millis(100);

/// Reserves jobs from some tubes.
///
/// A reserve blocks later commands on its connection, so consumers do not share one. Dropping
/// a consumer closes the connection, and beanstalkd releases its reservations.
pub struct JobConsumer {
    connection: BeanstalkdConnection,
    /// Sent reserve commands without a reply.
    pending: VecDeque<PendingReply>,
    /// Reserved jobs that are not returned to the caller yet.
    ready: VecDeque<BeanstalkdJob>,
    /// Jobs over the size limit, to be buried.
    too_long: Vec<JobId>,
    /// Jobs reserved on connection `number` that are not deleted, released or buried. Only
    /// these ids may be used in commands: after a restart, an id may belong to another job.
    reserved: BTreeSet<JobId>,
    /// Number of the connection of the last reply.
    number: u64,
}

/// What replies to reserve commands say about further ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum JobSupply {
    /// Each command returned a job.
    Flowing,
    /// A command returned no job.
    Empty,
    /// No job, and a reservation is about to time out.
    Deadline,
}

impl JobConsumer {
    /// Reserves only from these tubes; from the default tube if there are none. Connects with
    /// the first call.
    pub fn new(
        address: BeanstalkdAddress,
        tubes: Vec<TubeName>,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        Self {
            connection: BeanstalkdConnection::new(address, tubes, tasks, stop),
            pending: VecDeque::new(),
            ready: VecDeque::new(),
            too_long: Vec::new(),
            reserved: BTreeSet::new(),
            number: 0,
        }
    }

    /// Waits up to `wait`, rounded up to whole seconds, for a job, and returns it with the other
    /// ready jobs, at most `limit` and at most 256. May return early without a job when a
    /// reservation is about to time out.
    ///
    /// Dropping the future loses no job: a job that arrives for it is returned by the next call
    /// if it is still reserved by then. A consumer that is no longer called should be dropped:
    /// beanstalkd 1.12 may forget to time out reservations of an idle connection.
    pub async fn reserve_some(
        &mut self,
        limit: usize,
        wait: Duration,
    ) -> Result<Vec<BeanstalkdJob>, BeanstalkdError> {
        let limit = limit.min(MAX_JOBS_PER_CALL);
        if limit == 0 {
            return Ok(Vec::new());
        }
        // An error of an earlier call is not an error of this one.
        let _ = self.collect_replies().await;
        self.check_ready().await?;
        let slice = seconds(wait.min(MAX_RESERVE_WAIT));
        let mut supply = JobSupply::Flowing;
        for _ in 0..seconds(wait).max(1) {
            if !self.ready.is_empty() || supply == JobSupply::Deadline {
                break;
            }
            supply = self.send_reserves(1, slice).await?;
        }
        if supply == JobSupply::Deadline {
            tokio::time::sleep(DEADLINE_PAUSE).await;
        }
        // Doubled each time: few useless commands when there are few jobs.
        let mut step = 2;
        while supply == JobSupply::Flowing && self.ready.len() < limit {
            supply = self.send_reserves(step.min(limit - self.ready.len()), 0).await?;
            step *= 2;
        }
        let count = limit.min(self.ready.len());
        Ok(self.ready.drain(..count).collect())
    }

    /// Deletes jobs. Jobs that are no longer reserved are skipped; they are reserved again.
    pub async fn delete(&mut self, ids: &[JobId]) -> Result<(), BeanstalkdError> {
        self.send_each(ids, CommandKind::Delete, |id| format!("delete {id}")).await?;
        Ok(())
    }

    /// Releases jobs. Jobs that are no longer reserved are skipped.
    pub async fn release(
        &mut self,
        ids: &[JobId],
        priority: u32,
        delay: Duration,
    ) -> Result<(), BeanstalkdError> {
        let delay = seconds(delay);
        self.send_each(ids, CommandKind::Release, |id| format!("release {id} {priority} {delay}"))
            .await?;
        Ok(())
    }

    /// Buries jobs. Jobs that are no longer reserved are skipped.
    pub(super) async fn bury(
        &mut self,
        ids: &[JobId],
        priority: u32,
    ) -> Result<(), BeanstalkdError> {
        self.send_each(ids, CommandKind::Bury, |id| format!("bury {id} {priority}")).await?;
        Ok(())
    }

    /// Restarts the timeout of jobs. Returns those that are no longer reserved.
    pub(super) async fn touch(&mut self, ids: &[JobId]) -> Result<Vec<JobId>, BeanstalkdError> {
        self.send_each(ids, CommandKind::Touch, |id| format!("touch {id}")).await
    }

    /// Sends `count` reserve commands and waits for their replies.
    async fn send_reserves(
        &mut self,
        count: usize,
        seconds: u32,
    ) -> Result<JobSupply, BeanstalkdError> {
        for _ in 0..count {
            let line = format!("reserve-with-timeout {seconds}");
            let pending = self
                .connection
                .send(BeanstalkdCommand::line(CommandKind::Reserve, line), None)
                .await?;
            self.pending.push_back(pending);
        }
        self.collect_replies().await
    }

    /// Waits for the replies to all reserve commands. There is no await between a reply and its
    /// place in `ready`, so a dropped future cannot lose a job.
    async fn collect_replies(&mut self) -> Result<JobSupply, BeanstalkdError> {
        let mut result = Ok(JobSupply::Flowing);
        while let Some(pending) = self.pending.front_mut() {
            let reply = received(pending.await);
            self.pending.pop_front();
            // The first error is the cause of the others.
            match (reply.and_then(|reply| self.record_reply(reply)), &mut result) {
                (Ok(supply), Ok(worst)) => *worst = supply.max(*worst),
                (Err(error), Ok(_)) => result = Err(error),
                (_, Err(_)) => {}
            }
        }
        let too_long = self.too_long.clone();
        self.bury(&too_long, LOWEST_PRIORITY).await?;
        self.too_long.clear();
        result
    }

    fn record_reply(&mut self, reply: ReplyResult) -> Result<JobSupply, BeanstalkdError> {
        if reply.connection != self.number {
            // The reservations of the old connection have ended.
            self.reserved.clear();
            self.ready.clear();
            self.too_long.clear();
            self.number = reply.connection;
        }
        match reply.reply {
            BeanstalkdReply::Reserved(job) => {
                self.remember(job.id);
                self.ready.push_back(job);
                Ok(JobSupply::Flowing)
            }
            BeanstalkdReply::TooLong(job, size) => {
                tracing::warn!(job = job.0, size, "burying a job over the size limit");
                self.remember(job);
                self.too_long.push(job);
                Ok(JobSupply::Flowing)
            }
            BeanstalkdReply::TimedOut => Ok(JobSupply::Empty),
            BeanstalkdReply::DeadlineSoon => Ok(JobSupply::Deadline),
            other => Err(reply_error(other)),
        }
    }

    fn remember(&mut self, job: JobId) {
        self.reserved.insert(job);
        if self.reserved.len() > MAX_RESERVED {
            self.reserved.pop_first();
        }
    }

    /// Drops jobs of earlier calls whose reservation has timed out.
    async fn check_ready(&mut self) -> Result<(), BeanstalkdError> {
        let ids: Vec<_> = self.ready.iter().map(|job| job.id).collect();
        let lost = self.touch(&ids).await?;
        self.ready.retain(|job| !lost.contains(&job.id));
        Ok(())
    }

    /// Sends one command per job. Returns the jobs that are no longer reserved.
    async fn send_each(
        &mut self,
        ids: &[JobId],
        kind: CommandKind,
        line: impl Fn(JobId) -> String,
    ) -> Result<Vec<JobId>, BeanstalkdError> {
        let (reserved, mut lost): (Vec<_>, Vec<_>) =
            ids.iter().partition(|id| self.reserved.contains(id));
        let mut pending = Vec::with_capacity(reserved.len());
        for id in reserved {
            let command = BeanstalkdCommand::line(kind, line(id));
            pending.push((id, self.connection.send(command, Some(self.number)).await?));
        }
        let mut result = Ok(());
        for (id, reply) in pending {
            match received(reply.await)?.reply {
                BeanstalkdReply::Touched => continue,
                BeanstalkdReply::NotFound => lost.push(id),
                BeanstalkdReply::Deleted | BeanstalkdReply::Released => {}
                BeanstalkdReply::Buried(_) if kind == CommandKind::Bury => {}
                // The command may have been executed, so the job stays in `reserved`.
                other => {
                    result = result.and(Err(reply_error(other)));
                    continue;
                }
            }
            self.reserved.remove(&id);
        }
        result.map(|()| lost)
    }
}
