//! Starts and stops tunnels, so that those of the config run.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use monoco_adapters::Adapter;
use monoco_adapters::registry::{self, AdapterResources};
use monoco_core::contact::TunnelInfo;
use monoco_core::did::TunnelId;
use monoco_core::lease::Holder;
use monoco_core::retry::{Backoff, Jitter};
use monoco_store::{SharedStore, StoreError, TunnelLabels};
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;

use super::delivery_hints;
use super::email::{EmailTaskLoop, MailMemory};
use super::inbound::DurableInboundSink;
use super::intake_quota::IntakeQuota;
use super::receipts::ReceiptLoop;
use super::sender::DeliverySender;
use super::tunnels::{InactiveTunnel, RunningTunnel, TunnelRegistry, TunnelSettings};
use crate::background;
use crate::center::PipelineEntry;
use crate::clock::Clock;
use crate::config::{Config, TunnelConfig};
use crate::task_group::TaskGroup;

/// How many deliveries of one tunnel are attempted at the same time.
const SENDS_PER_TUNNEL: usize = 4;

/// How long an adapter may take to close its connections before its task is aborted.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 5_000 });

/// How much longer a reload waits for an aborted task.
const CLOSE_MARGIN: Duration = Duration::from_secs(1);

/// An adapter that listened for this time before it crashed is started again after 1 s.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// Runs the tunnels of the courier.
pub struct TunnelSupervisor {
    pub store: SharedStore,
    pub clock: Clock,
    pub entry: PipelineEntry,
    pub resources: AdapterResources,
    pub tunnels: Arc<TunnelRegistry>,
    pub config: watch::Receiver<Arc<Config>>,
    /// The holder of the senders' leases.
    pub holder: Holder,
    /// The memory that the task loops of all e-mail tunnels share.
    pub mail_memory: MailMemory,
    /// The group of tasks that receive messages.
    pub receivers: TaskGroup,
    /// The group of background loops.
    pub loops: TaskGroup,
}

impl TunnelSupervisor {
    /// Starts the tunnels of `new` that do not run yet, and stops those that are gone or
    /// disabled. A tunnel whose changes apply while it runs keeps its adapter; others are
    /// stopped, and started again after their connections are closed.
    pub async fn apply(&self, old: Option<&Config>, new: &Config) -> Result<(), StoreError> {
        if old.is_none() {
            let (hints, tunnels) = (self.store.hints(), Arc::clone(&self.tunnels));
            self.loops.spawn(delivery_hints::run(hints, tunnels, self.loops.stop.clone()));
        }
        let before = self.tunnels.running();
        let mut plan = TunnelPlan::default();
        for (id, config) in &new.tunnels {
            if !config.enabled {
                plan.inactive.push(inactive_tunnel(id, config, "turned off in the config"));
                continue;
            }
            let old = old.and_then(|old| old.tunnels.get(id));
            let changed = old.map(|old| old.changed_keys(config));
            let current = before.iter().find(|tunnel| tunnel.adapter.id() == id);
            match (current, changed) {
                (Some(tunnel), Some(keys)) if config.applies_live(&keys) => {
                    plan.kept.push((Arc::clone(tunnel), config, keys));
                }
                _ => match config.adapter.build(id.clone(), &self.resources) {
                    Ok(adapter) => plan.new.push((adapter, config)),
                    Err(error) => {
                        tracing::error!(tunnel = %id, error, "cannot start tunnel");
                        plan.inactive.push(inactive_tunnel(id, config, &error));
                    }
                },
            }
        }
        self.store_tunnels(&plan, new).await?;
        self.store_accounts(&plan).await?;
        let paused = self.store.paused_tunnels().await?;
        let TunnelPlan { kept, new, inactive } = plan;
        let mut running = Vec::new();
        for (tunnel, config, keys) in kept {
            apply_live(&tunnel, config, &keys);
            running.push(tunnel);
        }
        let replaced =
            |tunnel: &&Arc<RunningTunnel>| !running.iter().any(|t| Arc::ptr_eq(t, tunnel));
        join_all(before.iter().filter(replaced).map(|tunnel| async {
            if !tunnel.shut_down(CLOSE_TIMEOUT + CLOSE_MARGIN).await {
                tracing::warn!(tunnel = %tunnel.adapter.id(), "adapter did not close its connections");
            }
        }))
        .await;
        for (adapter, config) in new {
            let active = !paused.contains(adapter.id());
            running.push(self.start(adapter, config, active));
        }
        self.tunnels.set(running, inactive);
        self.apply_pauses().await
    }

    /// Pauses and resumes tunnels as stored. Called after the tunnels are registered: a tunnel
    /// that is paused during a reload is either found by the caller or here.
    async fn apply_pauses(&self) -> Result<(), StoreError> {
        let paused = self.store.paused_tunnels().await?;
        for tunnel in self.tunnels.running().iter() {
            let active = !paused.contains(tunnel.adapter.id());
            if tunnel.is_active() != active {
                tunnel.set_active(active);
            }
        }
        Ok(())
    }

    /// Stores the properties of new and changed tunnels, before any of them is changed.
    async fn store_tunnels(&self, plan: &TunnelPlan<'_>, new: &Config) -> Result<(), StoreError> {
        let changed = plan.kept.iter().filter(|(.., keys)| keys.contains(&"strangers"));
        let changed = changed.map(|(tunnel, config, _)| (&tunnel.adapter, *config));
        let started = plan.new.iter().map(|(adapter, config)| (adapter, *config));
        for (adapter, config) in changed.chain(started) {
            let info = TunnelInfo {
                id: adapter.id().clone(),
                provider: adapter.provider().to_owned(),
                strangers: config.strangers,
                idempotent: adapter.accepts_idempotency_keys(),
                finds_sent: adapter.finds_sent(),
            };
            self.store.put_tunnel(info, self.clock.now()).await?;
        }
        self.remove_unconfigured(new).await
    }

    /// Stores the accounts of e-mail tunnels.
    async fn store_accounts(&self, plan: &TunnelPlan<'_>) -> Result<(), StoreError> {
        let kept = plan.kept.iter().map(|(tunnel, ..)| &tunnel.adapter);
        for adapter in kept.chain(plan.new.iter().map(|(adapter, _)| adapter)) {
            let Some(email) = adapter.email() else { continue };
            let (id, config, now) = (adapter.id(), email.config(), self.clock.now());
            let description = config.description.as_deref();
            self.store.put_account(id, &config.address, description, now).await?;
        }
        Ok(())
    }

    /// Removes the stored tunnels of built-in providers that are not in the config: a message
    /// to one of them would wait forever. Tunnels of other programs have other providers.
    async fn remove_unconfigured(&self, config: &Config) -> Result<(), StoreError> {
        for tunnel in self.store.tunnels().await? {
            if registry::find(&tunnel.provider).is_some()
                && !config.tunnels.contains_key(&tunnel.id)
            {
                tracing::info!(tunnel = %tunnel.id, "removed tunnel that is not configured");
                self.store.remove_tunnel(&tunnel.id, self.clock.now()).await?;
            }
        }
        Ok(())
    }

    /// Starts the tunnel's senders and its listener.
    fn start(
        &self,
        adapter: Arc<dyn Adapter>,
        config: &TunnelConfig,
        active: bool,
    ) -> Arc<RunningTunnel> {
        let (stop, listener_stop) =
            (self.loops.stop.child_token(), self.receivers.stop.child_token());
        let quota = IntakeQuota::new(config.max_mb_per_day << 20, self.clock.now());
        let tunnel = RunningTunnel::new(adapter, settings(config), quota, stop, listener_stop);
        let tunnel = Arc::new(tunnel);
        tunnel.set_active(active);
        for _ in 0..SENDS_PER_TUNNEL {
            let (store, holder) = (Arc::clone(&self.store), self.holder.clone());
            let (of_tunnel, config, clock) = (Arc::clone(&tunnel), self.config.clone(), self.clock);
            self.loops.spawn(send(Arc::clone(&tunnel), clock, move || {
                let (store, of_tunnel) = (Arc::clone(&store), Arc::clone(&of_tunnel));
                DeliverySender::new(store, clock, of_tunnel, holder.clone(), config.clone())
            }));
        }
        if tunnel.adapter.email().is_some() {
            let (store, entry) = (Arc::clone(&self.store), self.entry.clone());
            let (of_tunnel, holder) = (Arc::clone(&tunnel), self.holder.clone());
            let memory = self.mail_memory.clone();
            let tasks = EmailTaskLoop::new(store, self.clock, entry, of_tunnel, holder, memory);
            self.loops.spawn(tasks.run(tunnel.stop.clone()));
        }
        if let Some(rate) = config.reaction_rate() {
            let (store, of_tunnel) = (Arc::clone(&self.store), Arc::clone(&tunnel));
            let receipts = ReceiptLoop::new(store, self.clock, of_tunnel, config.receipt, rate);
            self.loops.spawn(receipts.run());
        }
        let (store, entry) = (Arc::clone(&self.store), self.entry.clone());
        let listener = Listener { store, clock: self.clock, entry, tunnel: Arc::clone(&tunnel) };
        self.receivers.spawn(tunnel.listener.track_future(listener.run()));
        tunnel
    }
}

/// What a reload does with the tunnels that are configured.
#[derive(Default)]
struct TunnelPlan<'a> {
    /// Tunnels that keep running, with the keys that have changed.
    kept: Vec<(Arc<RunningTunnel>, &'a TunnelConfig, Vec<&'static str>)>,
    new: Vec<(Arc<dyn Adapter>, &'a TunnelConfig)>,
    inactive: Vec<InactiveTunnel>,
}

/// Applies the changed values of `keys` to a tunnel that runs.
fn apply_live(tunnel: &RunningTunnel, config: &TunnelConfig, keys: &[&'static str]) {
    tunnel.set_settings(settings(config));
    tunnel.quota.set_limit(config.max_mb_per_day << 20);
    if keys.iter().any(|key| config.adapter.live_keys().contains(key)) {
        tunnel.adapter.apply_live(config.adapter.as_ref());
    }
}

fn settings(config: &TunnelConfig) -> TunnelSettings {
    let labels =
        TunnelLabels { binding: config.binding.clone(), bindings: config.bindings.clone() };
    let max_file_bytes = config.max_file_mb << 20;
    TunnelSettings { debounce: config.debounce, labels, max_file_bytes }
}

fn inactive_tunnel(id: &TunnelId, config: &TunnelConfig, why: &str) -> InactiveTunnel {
    InactiveTunnel {
        id: id.clone(),
        provider: config.provider,
        mode: config.adapter.mode(),
        why: why.to_owned(),
    }
}

/// Runs one sender of a tunnel until the tunnel stops, except while the tunnel is paused. A sender
/// whose adapter panics is replaced: the lease of its delivery expires, which decides whether there
/// is another attempt.
async fn send(
    tunnel: Arc<RunningTunnel>,
    clock: Clock,
    new_sender: impl Fn() -> DeliverySender + Send,
) {
    let mut failures = 0;
    while !tunnel.stop.is_cancelled() {
        tunnel.stop.run_until_cancelled(tunnel.wait_for_active(true)).await;
        let stop = tunnel.stop.child_token();
        #[expect(clippy::disallowed_methods, reason = "awaited here, by a task of the group")]
        let task = tokio::spawn(new_sender().run(stop.clone()));
        let mut task = AbortOnDropHandle::new(task);
        let paused = async {
            tunnel.wait_for_active(false).await;
            stop.cancel();
            std::future::pending().await
        };
        let ended = tokio::select! {
            ended = &mut task => ended,
            ended = paused => ended,
        };
        let Err(error) = ended else { continue };
        let error = panic_text(error);
        tracing::error!(tunnel = %tunnel.adapter.id(), error, "adapter crashed while sending");
        tunnel.update_health(|health| health.record_send_error(error, clock.now()));
        failures += 1;
        let delay = Backoff::DEFAULT.delay(failures, Jitter::NONE);
        tunnel.stop.run_until_cancelled(tokio::time::sleep(delay)).await;
    }
}

/// The task that receives the messages of one tunnel.
#[derive(Clone)]
struct Listener {
    store: SharedStore,
    clock: Clock,
    entry: PipelineEntry,
    tunnel: Arc<RunningTunnel>,
}

impl Listener {
    /// Receives messages until the tunnel or the courier stops. An adapter that panics is started
    /// again, after 1 s, 2 s, 4 s and so on up to 30 s. One that reports that reconnecting cannot
    /// help is started again when an operator has paused and resumed the tunnel.
    async fn run(self) {
        let (tunnel, clock) = (&self.tunnel, self.clock);
        let (id, stop) = (tunnel.adapter.id(), &tunnel.listener_stop);
        let (mut failures, mut changes) = (0, tunnel.active_changes());
        while !stop.is_cancelled() {
            changes.mark_unchanged();
            if stop.run_until_cancelled(tunnel.wait_for_active(true)).await.is_none() {
                return;
            }
            let started = clock.now();
            tunnel.update_health(|health| health.record_started(tunnel.adapter.opens_connection()));
            let end = self.listen_once().await;
            let error = match &end {
                ListenerEnd::Stopped => None,
                ListenerEnd::Failed(error) | ListenerEnd::Crashed(error) => Some(error.as_str()),
            };
            tunnel.update_health(|health| health.record_stopped(error, clock.now()));
            match &end {
                ListenerEnd::Stopped => {}
                ListenerEnd::Failed(error) => {
                    tracing::error!(tunnel = %id, error, "tunnel stopped receiving");
                    stop.run_until_cancelled(background::changed(&mut changes)).await;
                }
                ListenerEnd::Crashed(error) => {
                    let lasted = clock.now().since(started);
                    failures = if lasted >= STABLE_AFTER { 1 } else { failures + 1 };
                    let delay = Backoff::DEFAULT.delay(failures, Jitter::NONE);
                    let delay_s = delay.as_secs();
                    tracing::error!(tunnel = %id, error, delay_s, "adapter crashed; starting it again");
                    stop.run_until_cancelled(tokio::time::sleep(delay)).await;
                }
            }
        }
    }

    /// Runs the adapter's listener once, in a task of its own, so that a panic ends only that.
    async fn listen_once(&self) -> ListenerEnd {
        let (listener, stop) = (self.clone(), self.tunnel.listener_stop.child_token());
        let stop_listening = stop.clone();
        #[expect(clippy::disallowed_methods, reason = "awaited here, by a task of the group")]
        let task = tokio::spawn(async move {
            let Self { store, clock, entry, tunnel } = &listener;
            let sink = DurableInboundSink { store, clock: *clock, entry, tunnel };
            tunnel.adapter.listen(&sink, stop_listening).await
        });
        let mut task = AbortOnDropHandle::new(task);
        let stopped = async {
            stop.run_until_cancelled(self.tunnel.wait_for_active(false)).await;
            stop.cancel();
        };
        let result = tokio::select! {
            result = &mut task => Some(result),
            () = stopped => tokio::time::timeout(CLOSE_TIMEOUT, &mut task).await.ok(),
        };
        match result {
            None => {
                task.abort();
                let _ = task.await;
                ListenerEnd::Stopped
            }
            Some(Ok(Ok(()))) if stop.is_cancelled() => ListenerEnd::Stopped,
            Some(Ok(Ok(()))) => ListenerEnd::Crashed("the adapter stopped listening".to_owned()),
            Some(Ok(Err(failure))) => ListenerEnd::Failed(failure.detail().to_owned()),
            Some(Err(error)) => ListenerEnd::Crashed(panic_text(error)),
        }
    }
}

/// Why the listener of an adapter ended.
enum ListenerEnd {
    /// The tunnel or the courier stops, or the tunnel is paused.
    Stopped,
    /// The adapter reported that reconnecting cannot help.
    Failed(String),
    /// The adapter panicked or ended without a reason.
    Crashed(String),
}

/// Returns the message of a panic.
fn panic_text(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "the task was cancelled".to_owned() };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the adapter panicked: {}", text.unwrap_or_else(|| "unknown panic".to_owned()))
}

#[cfg(test)]
mod tests;
