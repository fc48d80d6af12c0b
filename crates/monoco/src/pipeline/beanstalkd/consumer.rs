//! Takes jobs from some tubes, over a connection of its own.
//!
//! A call that is dropped in the middle leaves its question and what came for it with
//! the taker, not in the future that is gone; the next call goes on from there.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::{BeanstalkdConnection, PendingReply, ReplyResult, arrived};
use super::wire::{BeanstalkdCommand, BeanstalkdReply, CommandKind, seconds};
use super::{BeanstalkdAddress, BeanstalkdError, BeanstalkdJob, JobId, TubeName, refusal};

/// How long one question waits in the server. A longer wait is several questions, so
/// that a `delete` behind a reserve that was given up waits no longer than this.
pub const SLICE: Duration = Duration::from_secs(1);

/// How many jobs one call takes at most.
const MOST_AT_ONCE: usize = 256;

/// How many jobs are remembered as held. Only those that were handed out and then
/// forgotten by everybody can be so many.
const MOST_HELD: usize = 65_536;

/// The priority of a job that is buried for its size.
const LEAST_URGENT: u32 = u32::MAX;

/// How long to leave the server alone that only says that a held job is about to run
/// out. It would say so again at once.
const DEADLINE_PAUSE: Duration = Duration::from_millis(100);

/// A connection of its own that takes jobs from some tubes.
///
/// A reserve blocks everything behind it on its connection, so takers do not share.
/// Dropping it closes the connection, and beanstalkd gives what it held to others.
pub struct JobConsumer {
    line: BeanstalkdConnection,
    /// Reserves that were sent and whose answers were not looked at yet.
    asked: VecDeque<PendingReply>,
    /// Jobs that came and were not handed out yet.
    ready: VecDeque<BeanstalkdJob>,
    /// Jobs that are larger than we take, to be buried.
    too_long: Vec<JobId>,
    /// Jobs that came over `connection` and were not given back. Only these may be named
    /// to the server: after a restart the same number may be another job.
    held: BTreeSet<JobId>,
    connection: u64,
}

/// What the answers to some reserves say about the next one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum JobSupply {
    /// There was a job for each.
    Flowing,
    /// There was none for the last.
    Dry,
    /// There was none, and a job that we hold is about to run out.
    Deadline,
}

impl JobConsumer {
    /// Takes from these tubes and no others; from the default tube if there are none.
    /// Nothing is connected until something is asked.
    pub fn new(
        address: BeanstalkdAddress,
        tubes: Vec<TubeName>,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        Self {
            line: BeanstalkdConnection::new(address, tubes, tasks, stop),
            asked: VecDeque::new(),
            ready: VecDeque::new(),
            too_long: Vec::new(),
            held: BTreeSet::new(),
            connection: 0,
        }
    }

    /// The next job within `wait`, which is rounded up to whole seconds. `None` may come
    /// early, when a job that is held is about to run out.
    ///
    /// Dropping the future loses nothing: a job that comes for it is handed to the next
    /// call if it is still ours by then. If not, beanstalkd has given it to somebody.
    /// A taker that nobody calls any more should be dropped: beanstalkd 1.12 may forget to
    /// take back what a silent connection holds.
    #[cfg_attr(not(test), expect(dead_code, reason = "the courier takes many at once"))]
    pub async fn reserve(
        &mut self,
        wait: Duration,
    ) -> Result<Option<BeanstalkdJob>, BeanstalkdError> {
        Ok(self.reserve_some(1, wait).await?.pop())
    }

    /// Up to `most` jobs (and up to 256) that are ready now, once the first came within
    /// `wait`. Waits and is dropped like [`JobConsumer::reserve`].
    pub async fn reserve_some(
        &mut self,
        most: usize,
        wait: Duration,
    ) -> Result<Vec<BeanstalkdJob>, BeanstalkdError> {
        let most = most.min(MOST_AT_ONCE);
        if most == 0 {
            return Ok(Vec::new());
        }
        // What went wrong with a question of before is not this call's error.
        let _ = self.look().await;
        self.check().await?;
        let slice = seconds(wait.min(SLICE));
        let mut supply = JobSupply::Flowing;
        for _ in 0..seconds(wait).max(1) {
            if !self.ready.is_empty() || supply == JobSupply::Deadline {
                break;
            }
            supply = self.ask(1, slice).await?;
        }
        if supply == JobSupply::Deadline {
            tokio::time::sleep(DEADLINE_PAUSE).await;
        }
        // Twice as many each time: few questions in vain when there is little to do.
        let mut step = 2;
        while supply == JobSupply::Flowing && self.ready.len() < most {
            supply = self.ask(step.min(most - self.ready.len()), 0).await?;
            step *= 2;
        }
        let count = most.min(self.ready.len());
        Ok(self.ready.drain(..count).collect())
    }

    /// Deletes jobs. One that is not ours any more is passed over: it will come again.
    pub async fn delete(&mut self, ids: &[JobId]) -> Result<(), BeanstalkdError> {
        self.each(ids, CommandKind::Delete, |id| format!("delete {id}")).await?;
        Ok(())
    }

    /// Puts jobs back, for anybody. One that is not ours any more is passed over.
    pub async fn release(
        &mut self,
        ids: &[JobId],
        priority: u32,
        delay: Duration,
    ) -> Result<(), BeanstalkdError> {
        let delay = seconds(delay);
        self.each(ids, CommandKind::Release, |id| format!("release {id} {priority} {delay}"))
            .await?;
        Ok(())
    }

    /// Puts jobs aside until somebody kicks them. One that is not ours any more is
    /// passed over.
    pub async fn bury(&mut self, ids: &[JobId], priority: u32) -> Result<(), BeanstalkdError> {
        self.each(ids, CommandKind::Bury, |id| format!("bury {id} {priority}")).await?;
        Ok(())
    }

    /// Lets the time of jobs begin anew. Returns those that are not ours any more.
    pub async fn touch(&mut self, ids: &[JobId]) -> Result<Vec<JobId>, BeanstalkdError> {
        self.each(ids, CommandKind::Touch, |id| format!("touch {id}")).await
    }

    /// Sends as many reserves, all at once, and looks at the answers.
    async fn ask(&mut self, count: usize, seconds: u32) -> Result<JobSupply, BeanstalkdError> {
        for _ in 0..count {
            let line = format!("reserve-with-timeout {seconds}");
            let coming =
                self.line.send(BeanstalkdCommand::line(CommandKind::Reserve, line), None).await?;
            self.asked.push_back(coming);
        }
        self.look().await
    }

    /// Waits for all that was asked. Between an answer and its place in `ready` nothing
    /// waits, so a dropped future can't lose it.
    async fn look(&mut self) -> Result<JobSupply, BeanstalkdError> {
        let mut seen = Ok(JobSupply::Flowing);
        while let Some(coming) = self.asked.front_mut() {
            let answer = arrived(coming.await);
            self.asked.pop_front();
            // The first error is the cause of the others.
            match (answer.and_then(|answer| self.keep(answer)), &mut seen) {
                (Ok(supply), Ok(worst)) => *worst = supply.max(*worst),
                (Err(error), Ok(_)) => seen = Err(error),
                (_, Err(_)) => {}
            }
        }
        let too_long = self.too_long.clone();
        self.bury(&too_long, LEAST_URGENT).await?;
        self.too_long.clear();
        seen
    }

    fn keep(&mut self, answer: ReplyResult) -> Result<JobSupply, BeanstalkdError> {
        if answer.connection != self.connection {
            // What the old connection held is somebody else's by now.
            self.held.clear();
            self.ready.clear();
            self.too_long.clear();
            self.connection = answer.connection;
        }
        match answer.reply {
            BeanstalkdReply::Reserved(job) => {
                self.hold(job.id);
                self.ready.push_back(job);
                Ok(JobSupply::Flowing)
            }
            BeanstalkdReply::TooLong(job, size) => {
                tracing::warn!(job = job.0, size, "job is too large to be read, and buried");
                self.hold(job);
                self.too_long.push(job);
                Ok(JobSupply::Flowing)
            }
            BeanstalkdReply::TimedOut => Ok(JobSupply::Dry),
            BeanstalkdReply::DeadlineSoon => Ok(JobSupply::Deadline),
            other => Err(refusal(other)),
        }
    }

    fn hold(&mut self, job: JobId) {
        self.held.insert(job);
        if self.held.len() > MOST_HELD {
            self.held.pop_first();
        }
    }

    /// Sees to it that jobs from before are still ours: they may have run out while
    /// nobody called.
    async fn check(&mut self) -> Result<(), BeanstalkdError> {
        let ids: Vec<_> = self.ready.iter().map(|job| job.id).collect();
        let lost = self.touch(&ids).await?;
        self.ready.retain(|job| !lost.contains(&job.id));
        Ok(())
    }

    /// Sends one line for each job, all at once. Returns those that are not ours any more.
    async fn each(
        &mut self,
        ids: &[JobId],
        kind: CommandKind,
        line: impl Fn(JobId) -> String,
    ) -> Result<Vec<JobId>, BeanstalkdError> {
        let (ours, mut lost): (Vec<_>, Vec<_>) = ids.iter().partition(|id| self.held.contains(id));
        let mut asked = Vec::with_capacity(ours.len());
        for id in ours {
            let command = BeanstalkdCommand::line(kind, line(id));
            asked.push((id, self.line.send(command, Some(self.connection)).await?));
        }
        let mut seen = Ok(());
        for (id, coming) in asked {
            match arrived(coming.await)?.reply {
                BeanstalkdReply::Touched => continue,
                BeanstalkdReply::NotFound => lost.push(id),
                BeanstalkdReply::Deleted | BeanstalkdReply::Released => {}
                BeanstalkdReply::Buried(_) if kind == CommandKind::Bury => {}
                // The server may have done it or not; so may a second try.
                other => {
                    seen = seen.and(Err(refusal(other)));
                    continue;
                }
            }
            self.held.remove(&id);
        }
        seen.map(|()| lost)
    }
}
