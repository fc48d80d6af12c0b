//! The tunnels that this courier runs: who they are, how they are, and how they
//! change while it runs.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use monoco_adapters::Adapter;
use monoco_core::did::TunnelId;
use monoco_core::merge::Debounce;
use monoco_core::tunnel_health::TunnelHealth;
use monoco_store::TunnelLabels;
use tokio_util::sync::CancellationToken;

/// One tunnel that runs.
pub struct RunningTunnel {
    /// The connection.
    pub adapter: Arc<dyn Adapter>,
    /// How long to wait for another message.
    pub debounce: Debounce,
    /// What its Mails are labelled with.
    pub labels: TunnelLabels,
    /// Ends its loops.
    pub stop: CancellationToken,
    pulse: Mutex<TunnelHealth>,
}

/// A tunnel that is configured and does not run.
#[derive(Clone, Debug)]
pub struct InactiveTunnel {
    /// Which.
    pub id: TunnelId,
    pub provider: &'static str,
    /// How it would receive messages.
    pub mode: &'static str,
    /// Why it does not run.
    pub why: String,
}

/// All of them.
#[derive(Default)]
pub struct TunnelRegistry(RwLock<TunnelSet>);

#[derive(Clone, Default)]
struct TunnelSet {
    running: Arc<[Arc<RunningTunnel>]>,
    idle: Arc<[InactiveTunnel]>,
}

impl RunningTunnel {
    /// A tunnel that listens from now on.
    pub fn new(
        adapter: Arc<dyn Adapter>,
        debounce: Debounce,
        labels: TunnelLabels,
        stop: CancellationToken,
    ) -> Self {
        let pulse = Mutex::new(TunnelHealth { listening: true, ..TunnelHealth::default() });
        Self { adapter, debounce, labels, stop, pulse }
    }

    /// Notes how it goes.
    pub fn note(&self, how: impl FnOnce(&mut TunnelHealth)) {
        // Nothing panics while it holds the lock.
        how(&mut self.pulse.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// How it goes.
    pub fn pulse(&self) -> TunnelHealth {
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl TunnelRegistry {
    /// Those that run.
    pub fn all(&self) -> Arc<[Arc<RunningTunnel>]> {
        Arc::clone(&self.now().running)
    }

    /// Those that are configured and do not.
    pub fn idle(&self) -> Arc<[InactiveTunnel]> {
        Arc::clone(&self.now().idle)
    }

    /// One that runs.
    pub fn get(&self, id: &str) -> Option<Arc<RunningTunnel>> {
        self.now().running.iter().find(|tunnel| tunnel.adapter.id().as_str() == id).cloned()
    }

    /// Puts these in the place of those before.
    pub fn set(&self, running: Vec<Arc<RunningTunnel>>, idle: Vec<InactiveTunnel>) {
        let now = TunnelSet { running: running.into(), idle: idle.into() };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = now;
    }

    fn now(&self) -> TunnelSet {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
