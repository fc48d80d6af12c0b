//! The tunnels that this courier runs: who they are, how they are, and how they
//! change while it runs.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use monoco_adapters::Adapter;
use monoco_core::did::TunnelId;
use monoco_core::merge::Debounce;
use monoco_core::pulse::Pulse;
use monoco_store::Labels;
use tokio_util::sync::CancellationToken;

/// One tunnel that runs.
pub struct Tunnel {
    /// The connection.
    pub adapter: Arc<dyn Adapter>,
    /// How long to wait for another message.
    pub debounce: Debounce,
    /// What its Mails are labelled with.
    pub labels: Labels,
    /// Ends its loops.
    pub stop: CancellationToken,
    pulse: Mutex<Pulse>,
}

/// A tunnel that is configured and does not run.
#[derive(Clone, Debug)]
pub struct Idle {
    /// Which.
    pub id: TunnelId,
    /// Its provider.
    pub provider: String,
    /// Why it does not run.
    pub why: String,
}

/// All of them.
#[derive(Default)]
pub struct Tunnels(RwLock<Now>);

#[derive(Clone, Default)]
struct Now {
    running: Arc<[Arc<Tunnel>]>,
    idle: Arc<[Idle]>,
}

impl Tunnel {
    /// A tunnel that listens from now on.
    pub fn new(
        adapter: Arc<dyn Adapter>,
        debounce: Debounce,
        labels: Labels,
        stop: CancellationToken,
    ) -> Self {
        let pulse = Mutex::new(Pulse { listening: true, ..Pulse::default() });
        Self { adapter, debounce, labels, stop, pulse }
    }

    /// Notes how it goes.
    pub fn note(&self, how: impl FnOnce(&mut Pulse)) {
        // Nothing panics while it holds the lock.
        how(&mut self.pulse.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// How it goes.
    pub fn pulse(&self) -> Pulse {
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Tunnels {
    /// Those that run.
    pub fn all(&self) -> Arc<[Arc<Tunnel>]> {
        Arc::clone(&self.now().running)
    }

    /// Those that are configured and do not.
    pub fn idle(&self) -> Arc<[Idle]> {
        Arc::clone(&self.now().idle)
    }

    /// One that runs.
    pub fn get(&self, id: &str) -> Option<Arc<Tunnel>> {
        self.now().running.iter().find(|tunnel| tunnel.adapter.id().as_str() == id).cloned()
    }

    /// Puts these in the place of those before.
    pub fn set(&self, running: Vec<Arc<Tunnel>>, idle: Vec<Idle>) {
        let now = Now { running: running.into(), idle: idle.into() };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = now;
    }

    fn now(&self) -> Now {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
