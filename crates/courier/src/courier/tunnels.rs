//! The tunnels of this courier: which ones run, with their health, and which ones do not.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use monoco_adapters::Adapter;
use monoco_core::did::{Did, TunnelId};
use monoco_core::email::{RoundTotals, ScanReport};
use monoco_core::merge::Debounce;
use monoco_core::rate_limit::SendPacer;
use monoco_core::tunnel_health::TunnelHealth;
use monoco_store::TunnelLabels;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::intake_quota::IntakeQuota;
use super::receipts::ReceiptCounts;

/// A tunnel that runs.
pub struct RunningTunnel {
    pub adapter: Arc<dyn Adapter>,
    pub quota: IntakeQuota,
    pub receipts: ReceiptCounts,
    /// Stops the tunnel's senders.
    pub stop: CancellationToken,
    /// Stops the tunnel's listener.
    pub listener_stop: CancellationToken,
    /// The task of the listener. It has ended when the adapter has closed its connections.
    pub listener: TaskTracker,
    settings: RwLock<Arc<TunnelSettings>>,
    health: Mutex<TunnelHealth>,
    /// The slots of the provider's limits, shared by the tunnel's senders.
    pacer: Mutex<SendPacer>,
    /// Wakes one of the tunnel's senders.
    deliveries: Notify,
    /// What an e-mail account has done since it was started.
    rounds: Mutex<RoundTotals>,
    /// `false` while an operator has paused the tunnel.
    active: watch::Sender<bool>,
    /// The number of completed scans of an e-mail account.
    scans: watch::Sender<u64>,
}

/// What a reload changes while the tunnel runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelSettings {
    /// How long to wait for another message of a session.
    pub debounce: Debounce,
    /// The labels of the tunnel's Mails.
    pub labels: TunnelLabels,
    /// Largest file that is fetched for a message, in bytes.
    pub max_file_bytes: u64,
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
    by_did: Arc<HashMap<Did, Arc<RunningTunnel>>>,
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
            receipts: ReceiptCounts::default(),
            stop,
            listener_stop,
            listener: TaskTracker::new(),
            settings: RwLock::new(Arc::new(settings)),
            health: Mutex::new(health),
            pacer: Mutex::default(),
            deliveries: Notify::new(),
            rounds: Mutex::default(),
            active: watch::Sender::new(true),
            scans: watch::Sender::new(0),
        }
    }

    /// Pauses or resumes the tunnel: a paused one neither receives nor sends. An attempt that
    /// has begun is finished.
    pub fn set_active(&self, active: bool) {
        self.update_health(|health| health.paused = !active);
        self.active.send_replace(active);
    }

    pub fn is_active(&self) -> bool {
        *self.active.borrow()
    }

    /// Changes when the tunnel is paused or resumed.
    pub fn active_changes(&self) -> watch::Receiver<bool> {
        self.active.subscribe()
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

    /// Returns the slots of the provider's limits.
    pub fn pacer(&self) -> MutexGuard<'_, SendPacer> {
        // Nothing panics while it holds the lock.
        self.pacer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes one sender: there may be a delivery for this tunnel.
    pub fn hint_delivery(&self) {
        self.deliveries.notify_one();
    }

    /// Returns after a hint that there may be a delivery for this tunnel.
    pub async fn wait_for_delivery(&self) {
        self.deliveries.notified().await;
    }

    /// Stops senders and listener, and waits until the listener has ended. Returns `false` when
    /// that takes longer than `timeout`.
    pub async fn shut_down(&self, timeout: Duration) -> bool {
        self.stop.cancel();
        self.listener_stop.cancel();
        self.listener.close();
        tokio::time::timeout(timeout, self.listener.wait()).await.is_ok()
    }

    /// Notifies the task loop of an e-mail account that all folders have been read.
    pub fn record_scan(&self) {
        self.scans.send_modify(|scans| *scans += 1);
    }

    /// Returns the number of completed scans, as it changes.
    pub fn scans(&self) -> watch::Receiver<u64> {
        self.scans.subscribe()
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

    /// Returns the tunnel with this DID when it runs.
    pub fn find(&self, did: &Did) -> Option<Arc<RunningTunnel>> {
        self.tunnels().by_did.get(did).cloned()
    }

    pub fn set(&self, running: Vec<Arc<RunningTunnel>>, inactive: Vec<InactiveTunnel>) {
        let by_did = running.iter().map(|tunnel| (tunnel.adapter.id().did(), Arc::clone(tunnel)));
        let by_did = Arc::new(by_did.collect());
        let tunnels = TunnelSet { running: running.into(), by_did, inactive: inactive.into() };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = tunnels;
    }

    fn tunnels(&self) -> TunnelSet {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
