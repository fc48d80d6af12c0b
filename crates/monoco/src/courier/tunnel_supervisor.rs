//! Starts and stops tunnels, so that those of the config run.

use std::sync::Arc;

use monoco_adapters::Adapter;
use monoco_adapters::registry::{self, AdapterResources};
use monoco_core::contact::TunnelInfo;
use monoco_core::did::TunnelId;
use monoco_core::lease::Holder;
use monoco_store::{SharedStore, StoreError, TunnelLabels};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::inbound::DurableInboundSink;
use super::intake_quota::IntakeQuota;
use super::sender::DeliverySender;
use super::tunnels::{InactiveTunnel, RunningTunnel, TunnelRegistry};
use crate::center::PipelineEntry;
use crate::clock::Clock;
use crate::config::{Config, TunnelConfig};
use crate::task_group::TaskGroup;

/// How many deliveries of one tunnel are attempted at the same time.
const SENDS_PER_TUNNEL: usize = 4;

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
    /// The group of tasks that receive messages.
    pub receivers: TaskGroup,
    /// The group of background loops.
    pub loops: TaskGroup,
}

impl TunnelSupervisor {
    /// Starts the tunnels of `new` that do not run yet or whose config differs from `old`,
    /// and stops those that are gone or disabled. Other tunnels keep running.
    pub async fn apply(&self, old: Option<&Config>, new: &Config) -> Result<(), StoreError> {
        let before = self.tunnels.running();
        let (mut running, mut inactive) = (Vec::new(), Vec::new());
        for (id, config) in &new.tunnels {
            if !config.enabled {
                inactive.push(inactive_tunnel(id, config, "turned off in the config"));
                continue;
            }
            let unchanged = old
                .and_then(|old| old.tunnels.get(id))
                .is_some_and(|old| old.changed_keys(config).is_empty());
            let current = before.iter().find(|tunnel| unchanged && tunnel.adapter.id() == id);
            if let Some(tunnel) = current {
                running.push(Arc::clone(tunnel));
                continue;
            }
            match config.adapter.build(id.clone(), &self.resources) {
                Ok(adapter) => running.push(self.start(adapter, config).await?),
                Err(error) => {
                    tracing::error!(tunnel = %id, error, "cannot start tunnel");
                    inactive.push(inactive_tunnel(id, config, &error));
                }
            }
        }
        self.remove_unconfigured(new).await?;
        for tunnel in before.iter() {
            if !running.iter().any(|kept| Arc::ptr_eq(kept, tunnel)) {
                tunnel.stop.cancel();
            }
        }
        self.tunnels.set(running, inactive);
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

    /// Stores the tunnel's properties and starts its senders and its listener.
    async fn start(
        &self,
        adapter: Arc<dyn Adapter>,
        config: &TunnelConfig,
    ) -> Result<Arc<RunningTunnel>, StoreError> {
        let info = TunnelInfo {
            id: adapter.id().clone(),
            provider: adapter.provider().to_owned(),
            strangers: config.strangers,
            idempotent: adapter.accepts_idempotency_keys(),
        };
        self.store.put_tunnel(info, self.clock.now()).await?;
        let labels =
            TunnelLabels { binding: config.binding.clone(), bindings: config.bindings.clone() };
        let stop = self.loops.stop.child_token();
        let quota = IntakeQuota::new(config.max_mb_per_day << 20, self.clock.now());
        let tunnel = RunningTunnel::new(adapter, config.debounce, labels, quota, stop);
        let tunnel = Arc::new(tunnel);
        for _ in 0..SENDS_PER_TUNNEL {
            let (store, holder) = (Arc::clone(&self.store), self.holder.clone());
            let (of_tunnel, config) = (Arc::clone(&tunnel), self.config.clone());
            let sender = DeliverySender::new(store, self.clock, of_tunnel, holder, config);
            self.loops.spawn(sender.run(tunnel.stop.clone()));
        }
        let (store, entry) = (Arc::clone(&self.store), self.entry.clone());
        let (listening, stop) = (Arc::clone(&tunnel), self.receivers.stop.clone());
        self.receivers.spawn(listen(store, self.clock, entry, listening, stop));
        Ok(tunnel)
    }
}

fn inactive_tunnel(id: &TunnelId, config: &TunnelConfig, why: &str) -> InactiveTunnel {
    InactiveTunnel {
        id: id.clone(),
        provider: config.provider,
        mode: config.adapter.mode(),
        why: why.to_owned(),
    }
}

/// Receives messages of a tunnel until the tunnel or the courier stops, or the adapter
/// reports that reconnecting cannot help.
async fn listen(
    store: SharedStore,
    clock: Clock,
    entry: PipelineEntry,
    tunnel: Arc<RunningTunnel>,
    stop: CancellationToken,
) {
    let sink = DurableInboundSink { store: &store, clock, entry: &entry, tunnel: &tunnel };
    let result = tokio::select! {
        result = tunnel.adapter.listen(&sink, tunnel.stop.child_token()) => result,
        () = stop.cancelled() => Ok(()),
    };
    let now = clock.now();
    tunnel.update_health(|health| {
        health.listening = false;
        if let Err(failure) = &result {
            health.record_receive_error(failure.detail(), now);
        }
    });
    if let Err(failure) = result {
        let (tunnel, error) = (tunnel.adapter.id(), failure.detail());
        tracing::error!(%tunnel, error, "tunnel stopped receiving");
    }
}
