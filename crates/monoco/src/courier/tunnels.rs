//! The tunnels of this courier: which ones run, with their health, and which ones do not.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use monoco_adapters::Adapter;
use monoco_core::did::TunnelId;
use monoco_core::merge::Debounce;
use monoco_core::tunnel_health::TunnelHealth;
use monoco_store::TunnelLabels;
use tokio_util::sync::CancellationToken;

use super::intake_quota::IntakeQuota;

/// A tunnel that runs.
pub struct RunningTunnel {
    pub adapter: Arc<dyn Adapter>,
    /// How long to wait for another message of a session.
    pub debounce: Debounce,
    /// The labels of the tunnel's Mails.
    pub labels: TunnelLabels,
    pub quota: IntakeQuota,
    /// Stops the tunnel's senders and its listener.
    pub stop: CancellationToken,
    health: Mutex<TunnelHealth>,
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
        debounce: Debounce,
        labels: TunnelLabels,
        quota: IntakeQuota,
        stop: CancellationToken,
    ) -> Self {
        let health = Mutex::new(TunnelHealth { listening: true, ..TunnelHealth::default() });
        Self { adapter, debounce, labels, quota, stop, health }
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
