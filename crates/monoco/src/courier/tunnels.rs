//! The tunnels of this courier: which ones run, with their health, and which ones do not.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use monoco_adapters::Adapter;
use monoco_core::did::TunnelId;
use monoco_core::email::{RoundTotals, ScanReport};
use monoco_core::merge::Debounce;
use monoco_core::tunnel_health::TunnelHealth;
use monoco_store::TunnelLabels;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::intake_quota::IntakeQuota;

/// A tunnel that runs.
pub struct RunningTunnel {
    pub adapter: Arc<dyn Adapter>,
    pub quota: IntakeQuota,
    /// Stops the tunnel's senders.
    pub stop: CancellationToken,
    /// Stops the tunnel's listener.
    pub listener_stop: CancellationToken,
    /// The task of the listener. It has ended when the adapter has closed its connections.
    pub listener: TaskTracker,
    settings: RwLock<Arc<TunnelSettings>>,
    health: Mutex<TunnelHealth>,
    /// What an e-mail account has done since it was started.
    rounds: Mutex<RoundTotals>,
    /// `false` while an operator has paused the tunnel.
    active: watch::Sender<bool>,
}

/// What a reload changes while the tunnel runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelSettings {
    /// How long to wait for another message of a session.
    pub debounce: Debounce,
    /// The labels of the tunnel's Mails.
    pub labels: TunnelLabels,
}

/// A tunnel that is configured and does not run.
#[derive(Clone, Debug)]
pub struct InactiveTunnel {
    pub id: TunnelId,
    pub provider: &'static str,
    /// How the tunnel would receive messages.
    pub mode: &'static str,
    /// Why the tunnel does not run.
    pub why: String,
}

/// All tunnels of the courier. A reload replaces them while others read.
#[derive(Default)]
pub struct TunnelRegistry(RwLock<TunnelSet>);

#[derive(Clone, Default)]
struct TunnelSet {
    running: Arc<[Arc<RunningTunnel>]>,
    inactive: Arc<[InactiveTunnel]>,
}

impl RunningTunnel {
    pub fn new(
        adapter: Arc<dyn Adapter>,
        settings: TunnelSettings,
        quota: IntakeQuota,
        stop: CancellationToken,
        listener_stop: CancellationToken,
    ) -> Self {
        let mut health = TunnelHealth::default();
        health.record_started(adapter.opens_connection());
        Self {
            adapter,
            quota,
            stop,
            listener_stop,
            listener: TaskTracker::new(),
            settings: RwLock::new(Arc::new(settings)),
            health: Mutex::new(health),
            rounds: Mutex::default(),
            active: watch::Sender::new(true),
        }
    }

    /// Pauses or resumes the tunnel: a paused one receives nothing, and sends as before.
    pub fn set_active(&self, active: bool) {
        self.active.send_replace(active);
    }

    pub fn is_active(&self) -> bool {
        *self.active.borrow()
    }

    /// Returns when the tunnel is `active`, or not.
    pub async fn wait_for_active(&self, active: bool) {
        // The sender lives as long as the tunnel.
        let _ = self.active.subscribe().wait_for(|now| *now == active).await;
    }

    pub fn settings(&self) -> Arc<TunnelSettings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the settings. Messages received from now on have the new ones.
    pub fn set_settings(&self, settings: TunnelSettings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// Stops senders and listener, and waits until the listener has ended. Returns `false` when
    /// that takes longer than `timeout`.
    pub async fn shut_down(&self, timeout: Duration) -> bool {
        self.stop.cancel();
        self.listener_stop.cancel();
        self.listener.close();
        tokio::time::timeout(timeout, self.listener.wait()).await.is_ok()
    }

    /// Counts a round of an e-mail account.
    pub fn record_round(&self, round: &ScanReport) {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner).add(round);
    }

    /// Returns the rounds of an e-mail account since it was started.
    pub fn rounds(&self) -> RoundTotals {
        *self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the tunnel's health.
    pub fn update_health(&self, update: impl FnOnce(&mut TunnelHealth)) {
        // Nothing panics while it holds the lock.
        update(&mut self.health.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns a copy of the tunnel's health.
    pub fn health(&self) -> TunnelHealth {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl TunnelRegistry {
    /// Returns the tunnels that run.
    pub fn running(&self) -> Arc<[Arc<RunningTunnel>]> {
        Arc::clone(&self.tunnels().running)
    }

    /// Returns the tunnels that are configured and do not run.
    pub fn inactive(&self) -> Arc<[InactiveTunnel]> {
        Arc::clone(&self.tunnels().inactive)
    }

    /// Returns the tunnel `id` when it runs.
    pub fn get(&self, id: &str) -> Option<Arc<RunningTunnel>> {
        self.tunnels().running.iter().find(|tunnel| tunnel.adapter.id().as_str() == id).cloned()
    }

    pub fn set(&self, running: Vec<Arc<RunningTunnel>>, inactive: Vec<InactiveTunnel>) {
        let tunnels = TunnelSet { running: running.into(), inactive: inactive.into() };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = tunnels;
    }

    fn tunnels(&self) -> TunnelSet {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
