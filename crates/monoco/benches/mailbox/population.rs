//! Many Mails, made once through the courier: every message in a session of its own.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::Result;
use crate::common::running::Running;
use crate::hook::{Provider, Said};
use crate::office::{self, Office, until};
use crate::plan::Plan;
use crate::tree::Index;

/// Connections that push at the same time, each as fast as it is answered.
const CONNECTIONS: usize = 32;

/// Messages that one push by [`Population::add`] may wait for to become files.
const PATIENCE: Duration = Duration::from_secs(120);

/// A courier and the Mails it has.
pub struct Population {
    pub courier: Running,
    /// Its Mails, oldest first.
    pub index: Index,
}

impl Population {
    /// A courier without Mails.
    pub fn empty(plan: &Plan) -> Result<Self> {
        // Nothing to wait for: every message is a Mail.
        let courier = office::courier(&plan.dir, Duration::ZERO)?;
        let index = Index::of(&Office::of(&courier).mailbox);
        Ok(Self { courier, index })
    }

    /// One with as many as the plan says.
    pub fn make(plan: &Plan) -> Result<Self> {
        let mut population = Self::empty(plan)?;
        eprintln!("making {} Mails", plan.mails);
        let started = Instant::now();
        // In steps, to show that it goes on.
        let step = (plan.mails / 10).max(1);
        while population.index.lines.len() < plan.mails {
            let have = population.index.lines.len();
            population.add(step.min(plan.mails - have))?;
            let (have, secs) = (population.index.lines.len(), started.elapsed().as_secs_f64());
            eprintln!("{have} Mails after {secs:.1} s");
        }
        Ok(population)
    }

    /// Its office.
    pub fn office(&self) -> Office {
        Office::of(&self.courier)
    }

    /// Makes so many more, and waits until their files are there.
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
                    provider.push(Said { number, session: number })?;
                }
            };
            let pushing: Vec<_> = (0..CONNECTIONS.min(count)).map(|_| scope.spawn(push)).collect();
            for push in pushing {
                push.join().map_err(|_| "a provider panicked")??;
            }
            Ok::<(), crate::common::Error>(())
        })?;
        until("the files of new Mails", PATIENCE, || Ok(self.index.look()? >= have + count))?;
        Ok(())
    }

    /// Stops the courier, does something without it, and starts it again.
    pub fn without_courier<T>(
        self,
        run: impl FnOnce(&std::path::Path) -> Result<T>,
    ) -> Result<(Self, T)> {
        let Self { courier, index } = self;
        let home = courier.stop()?;
        let seen = run(home.path())?;
        Ok((Self { courier: Running::start(home)?, index }, seen))
    }
}
