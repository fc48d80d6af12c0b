//! Keeps the duties of a courier that shares its store with others.
//!
//! Every 5 s one transaction reports that the courier lives, and renews and acquires duties.
//! Tunnels run only while their duty is held. A duty that another courier is to have is released
//! after the tunnel has stopped. Without an answer of the store all work stops 3 s before the
//! leases expire.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use monoco_core::courier::CourierRun;
use monoco_core::did::TunnelId;
use monoco_core::duty::{DUTY_LEASE, DutyName, DutyStep, RENEW_INTERVAL, STOP_MARGIN, plan_duties};
use monoco_core::time::Timestamp;
use monoco_store::{SharedStore, StoreError, SweepCounts};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::held_duties::{DutyDeadlines, HeldDuties};
use super::tunnels::TunnelRegistry;
use crate::background::{self, BackgroundTask, NextStep};
use crate::center::lease::delivery_retry;
use crate::clock::{self, Clock};
use crate::config::Config;

/// How long a tunnel may take to stop before its duty is released. The lease is longer.
const MAX_STOP_TIME: Duration = Duration::from_secs(7);

/// How often a courier looks for duties that another courier has released or lost.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Renews the duties of this run.
pub struct DutyLoop {
    pub store: SharedStore,
    pub clock: Clock,
    pub duties: HeldDuties,
    pub tunnels: Arc<TunnelRegistry>,
    pub config: watch::Receiver<Arc<Config>>,
    /// Reading of the elapsed-time clock at which the duties are renewed next.
    pub renew_at: Duration,
    /// Dead runs whose leases this run has released as the leader.
    pub released: BTreeSet<CourierRun>,
}

impl BackgroundTask for DutyLoop {
    const NAME: &'static str = "duties";
    const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);
    type Error = StoreError;

    async fn step(&mut self) -> Result<NextStep, StoreError> {
        let reloaded = self.config.has_changed().unwrap_or(false);
        self.config.mark_unchanged();
        let timeout = self.first_deadline().saturating_sub(clock::elapsed());
        let renewal = async {
            if reloaded || clock::elapsed() >= self.renew_at || self.has_work_to_take().await? {
                self.renew().await?;
                self.renew_at = clock::elapsed() + RENEW_INTERVAL;
            }
            Ok(NextStep::Poll(CHECK_INTERVAL))
        };
        // A store that does not answer must not keep the work going.
        let renewed = tokio::time::timeout(timeout, renewal).await;
        let renewed = renewed.unwrap_or_else(|_| {
            Err(StoreError::Unavailable("no answer before the leases expire".to_owned()))
        });
        if renewed.is_err() {
            self.stop_expired();
        }
        renewed
    }

    /// A reload can add and remove tunnels.
    async fn hint(&mut self) {
        background::changed(&mut self.config).await;
    }
}

impl DutyLoop {
    /// Keeps duties until `stop`. The only courier of its store holds all of them, and this
    /// returns at once.
    pub async fn run(mut self, stop: CancellationToken) {
        if !self.duties.is_shared() {
            return;
        }
        background::run(&mut self, &stop).await;
    }

    /// Whether this courier would acquire or release a duty now.
    async fn has_work_to_take(&self) -> Result<bool, StoreError> {
        let (couriers, duties) = (self.store.couriers().await?, self.store.duties().await?);
        let plan = plan_duties(self.duties.run(), &couriers, &duties, self.clock.now());
        let changes = |step: &DutyStep| matches!(step, DutyStep::Acquire | DutyStep::Release);
        Ok(plan.iter().any(|(_, step)| changes(step)))
    }

    /// Reports that this courier lives, and updates what it works for.
    async fn renew(&mut self) -> Result<(), StoreError> {
        self.follow_server_clock().await?;
        // Read before the request, so that the deadline is not later than the stored one.
        let (asked_at, now) = (clock::elapsed(), self.clock.now());
        let run = self.duties.run();
        let tunnels = enabled_tunnels(&self.config.borrow());
        let renewed = match self.store.renew_duties(run, tunnels, now).await {
            Ok(renewed) => renewed,
            Err(error @ StoreError::CourierReplaced(_)) => {
                tracing::error!(%error, "another courier uses this id; all work of this courier stops");
                self.duties.set(DutyDeadlines::new());
                self.apply().await;
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        let deadline = asked_at + DUTY_LEASE - STOP_MARGIN;
        let before = self.duties.names().unwrap_or_default();
        let (mut held, mut released) = (DutyDeadlines::new(), Vec::new());
        for (duty, step) in &renewed {
            match step {
                DutyStep::Acquire | DutyStep::Renew => {
                    held.insert(duty.name.clone(), (duty.epoch, deadline));
                }
                DutyStep::Release => released.push(duty.proof()),
                DutyStep::Leave => {}
            }
        }
        for name in held.keys().filter(|name| !before.contains(name)) {
            tracing::info!(duty = %name, "acquired duty");
            if let DutyName::Tunnel(tunnel) = name {
                self.store.resume_files(Some(tunnel), now).await?;
            }
        }
        for name in before.iter().filter(|name| !held.contains_key(name)) {
            tracing::info!(duty = %name, "duty goes to another courier");
        }
        self.duties.set(held);
        self.apply().await;
        if !released.is_empty() {
            self.store.release_duties(released).await?;
        }
        self.apply_pauses().await?;
        if self.duties.holds(&DutyName::Leader) {
            self.release_dead_couriers(now).await?;
        }
        Ok(())
    }

    /// Compares this courier's clock with that of the database server.
    async fn follow_server_clock(&self) -> Result<(), StoreError> {
        let asked_at = clock::elapsed();
        if let Some(time) = self.store.server_time().await? {
            self.clock.follow(time, asked_at, clock::elapsed());
        }
        Ok(())
    }

    /// Applies pauses that an operator has set at another courier.
    async fn apply_pauses(&self) -> Result<(), StoreError> {
        let paused = self.store.paused_tunnels().await?;
        for tunnel in self.tunnels.running().iter() {
            let pause = paused.contains(tunnel.adapter.id());
            if tunnel.is_paused() != pause {
                tunnel.set_active(!pause);
            }
        }
        Ok(())
    }

    /// Releases the leases of couriers that have died, once per run: they cannot report any more.
    async fn release_dead_couriers(&mut self, now: Timestamp) -> Result<(), StoreError> {
        let own = self.duties.run().id;
        let retry = delivery_retry(self.config.borrow().deliveries);
        for courier in self.store.couriers().await? {
            let run = courier.run;
            if run.id == own || courier.is_live(now) || self.released.contains(&run) {
                continue;
            }
            let prefix = run.id.holder_prefix();
            let SweepCounts { records, deliveries, email_tasks } =
                self.store.release_leases(&prefix, retry, now).await?;
            let letters = self.store.release_letters(&prefix, now).await?;
            if records + deliveries + email_tasks + letters > 0 {
                let courier = run.id;
                tracing::info!(%courier, records, deliveries, email_tasks, letters, "released leases of a dead courier");
            }
            self.released.insert(run);
        }
        Ok(())
    }

    /// Starts and stops tunnels as their duties say, and waits until those have stopped that
    /// must.
    async fn apply(&self) {
        let running = self.tunnels.running();
        let mut stopping = Vec::new();
        for tunnel in running.iter() {
            let holds = self.duties.holds(&DutyName::Tunnel(tunnel.adapter.id().clone()));
            if tunnel.set_on_duty(holds) && !holds {
                stopping.push(tunnel.wait_until_idle(MAX_STOP_TIME));
            }
        }
        join_all(stopping).await;
    }

    /// Ends the work for duties whose lease expires before it can be renewed.
    fn stop_expired(&self) {
        let Some(held) = self.duties.names() else { return };
        for tunnel in self.tunnels.running().iter() {
            let name = DutyName::Tunnel(tunnel.adapter.id().clone());
            if !held.contains(&name) && tunnel.set_on_duty(false) {
                tracing::warn!(duty = %name, "duty not renewed in time; the work for it stops");
            }
        }
    }

    /// The earliest end of a duty that is held, on the elapsed-time clock.
    fn first_deadline(&self) -> Duration {
        let now = clock::elapsed();
        let held = self.duties.changes();
        let ends =
            |held: &DutyDeadlines| held.values().map(|it| it.1).filter(|end| *end > now).min();
        // Without duties there is nothing to stop.
        held.and_then(|held| ends(&held.borrow())).unwrap_or(now + DUTY_LEASE)
    }
}

/// The tunnels of a config that are enabled.
pub fn enabled_tunnels(config: &Config) -> BTreeSet<TunnelId> {
    let enabled = config.tunnels.iter().filter(|(_, tunnel)| tunnel.enabled);
    enabled.map(|(id, _)| id.clone()).collect()
}

#[cfg(test)]
mod tests;
