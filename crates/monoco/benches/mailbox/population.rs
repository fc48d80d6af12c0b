//! A courier with many Mails. Each message has its own session, so each becomes a Mail.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::Result;
use crate::common::courier::RunningCourier;
use crate::mailbox_files::Index;
use crate::plan::Plan;
use crate::target::{self, Target, until};
use crate::webhook::{Provider, StreamMessage};

/// Concurrent connections of the provider.
const CONNECTIONS: usize = 32;

/// Maximum time until the messages of one [`Population::add`] are files.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A running courier and the index of its Mails.
pub struct Population {
    pub courier: RunningCourier,
    pub index: Index,
}

impl Population {
    pub fn empty(plan: &Plan) -> Result<Self> {
        // No merge window: each message becomes a Mail at once.
        let courier = target::courier(&plan.dir, Duration::ZERO)?;
        let index = Index::of(&Target::of(&courier).mailbox);
        Ok(Self { courier, index })
    }

    /// Starts a courier and stores `plan.mails` Mails.
    pub fn make(plan: &Plan) -> Result<Self> {
        let mut population = Self::empty(plan)?;
        eprintln!("making {} Mails", plan.mails);
        let started = Instant::now();
        // In steps, to print the progress.
        let step = (plan.mails / 10).max(1);
        while population.index.lines.len() < plan.mails {
            let have = population.index.lines.len();
            population.add(step.min(plan.mails - have))?;
            let (have, secs) = (population.index.lines.len(), started.elapsed().as_secs_f64());
            eprintln!("{have} Mails after {secs:.1} s");
        }
        Ok(population)
    }

    pub fn target(&self) -> Target {
        Target::of(&self.courier)
    }

    /// Stores `count` more Mails and waits for their files.
    pub fn add(&mut self, count: usize) -> Result<()> {
        let have = self.index.look()?;
        let (next, end) = (AtomicU64::new(have as u64), (have + count) as u64);
        let webhooks = self.courier.webhooks;
        thread::scope(|scope| {
            let push = || -> Result<()> {
                let mut provider = Provider::open(webhooks)?;
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= end {
                        return Ok(());
                    }
                    provider.push(StreamMessage { number, session: number })?;
                }
            };
            let pushing: Vec<_> = (0..CONNECTIONS.min(count)).map(|_| scope.spawn(push)).collect();
            for push in pushing {
                push.join().map_err(|_| "a provider panicked")??;
            }
            Ok::<(), crate::common::Error>(())
        })?;
        until("the files of new Mails", TIMEOUT, || Ok(self.index.look()? >= have + count))?;
        Ok(())
    }

    /// Stops the courier, calls `run`, and starts the courier again.
    pub fn without_courier<T>(
        self,
        run: impl FnOnce(&std::path::Path) -> Result<T>,
    ) -> Result<(Self, T)> {
        let Self { courier, index } = self;
        let home = courier.stop()?;
        let measured = run(home.path())?;
        Ok((Self { courier: RunningCourier::start(home)?, index }, measured))
    }
}
