//! Builds the courier. The only place that wires.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use monoco_adapters::egress::Egress;
use monoco_adapters::registry::AdapterResources;
use monoco_adapters::{Adapter, InboundSink};
use monoco_core::contact::{Contact, ContactLevel};
use monoco_core::did::Did;
use monoco_core::lease::Holder;
use monoco_core::letter::ChainDirection;
use monoco_core::retention::MAX_CLOCK_STEP;
use monoco_core::time::Timestamp;
use monoco_store::sqlite::SqliteStore;
use monoco_store::{PipelineRouting, SharedStore, StoreError, TunnelLabels};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api;
use crate::center::PipelineEntry;
use crate::center::lease::delivery_retry;
use crate::clock::{Clock, wall_now};
use crate::config::{Config, ConfigError, ConfigSource, TunnelConfig};
use crate::courier::drafts::DraftLoop;
use crate::courier::file_projector::FileProjector;
use crate::courier::inbound::DurableInboundSink;
use crate::courier::mailbox_dir::MailboxDir;
use crate::courier::merge::MergeLoop;
use crate::courier::sender::DeliverySender;
use crate::courier::tunnels::{InactiveTunnel, RunningTunnel, TunnelRegistry};
use crate::courier::{HOLDER, locks_file, retention, sweeper};
use crate::home::{CourierInfo, Home, HomeError, ReloadResult};
use crate::log::LogWriter;
use crate::pipeline::Pipeline;
use crate::pipeline::config::PipelineConfig;
use crate::pipeline::queue::LetterQueue;
use crate::pipeline::queue::QueueNotifier;

/// How many deliveries of one tunnel are tried at the same time.
const SENDS_PER_TUNNEL: usize = 4;

/// How long what is under way may take to finish when the courier is stopped.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// How to run the courier.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Where it lives.
    pub home: Home,
    /// Where its config is, and what the command line says beyond it.
    pub config: ConfigSource,
    /// Where it says how it goes.
    pub log: LogWriter,
}

/// Why the courier did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its home can't be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// Its config can't.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its store can't be opened.
    #[error("the store in {path} can't be opened: {error}")]
    Store {
        /// Where it is.
        path: std::path::PathBuf,
        /// What it says.
        error: StoreError,
    },
    /// Somebody else listens there.
    #[error("port {0} is in use")]
    PortInUse(u16),
    /// The port can't be had for another reason.
    #[error("can't listen on port {port}: {error}")]
    Listen {
        /// The port.
        port: u16,
        /// What the system says.
        error: std::io::Error,
    },
    /// The system does not let us.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// Runs the courier until it is told to stop. `ready` is called once it listens.
///
/// # Errors
///
/// [`StartError`], when it does not get that far.
pub async fn run(
    options: ServeOptions,
    ready: impl FnOnce(&CourierInfo),
) -> Result<(), StartError> {
    let ServeOptions { home, config: source, log } = options;
    // Whatever is made here, also by the store, is for the user alone.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    home.create()?;
    let config = Arc::new(source.load()?);
    log.set_level(config.log_level);
    let _lock = home.lock()?;
    let token = home.ensure_token()?;
    let listener = listen(config.host, config.port).await?;
    let webhook_listener = listen(config.host, config.webhook_port).await?;
    let (address, webhook_address) = (listener.local_addr()?, webhook_listener.local_addr()?);
    let mut signals = ProcessSignals::catch()?;

    let path = home.store();
    let broken = |error| StartError::Store { path: path.clone(), error };
    let store: SharedStore = Arc::new(SqliteStore::open(&path).map_err(broken)?);
    let clock = start_clock(&store).await.map_err(broken)?;
    prepare(&store, clock, &config.owner).await.map_err(broken)?;

    // Those who hear stop first, so that what they heard can be finished by the rest.
    let (doors, loops) = (TaskGroup::default(), TaskGroup::default());
    let pipeline = Arc::new(config.pipeline.clone());
    let gates = RoutingSenders::new(&pipeline);
    let (queue, notifier) = LetterQueue::open(&pipeline.queue, &store, &loops.tasks, &loops.stop);
    let entry = gates.entry(notifier.clone());
    let (tasks, stop) = (&loops.tasks, &loops.stop);
    let post_office =
        Pipeline::start(Arc::clone(&store), clock, notifier, pipeline, queue, tasks, stop).await;
    let post_office = Arc::new(post_office.map_err(broken)?);
    let (now, settings) = watch::channel(Arc::clone(&config));
    let office = TunnelSupervisor {
        store: Arc::clone(&store),
        clock,
        entry: entry.clone(),
        resources: AdapterResources { egress: Egress::new().map_err(|error| error.to_string()) },
        tunnels: Arc::new(TunnelRegistry::default()),
        holder: Holder::new(format!("{HOLDER}{}", clock.now().ms()))
            .unwrap_or_else(|_| Holder::anonymous()),
        doors: doors.clone(),
        loops: loops.clone(),
        post_office: Arc::clone(&post_office),
        gates,
    };
    office.run_tunnels(None, &config).await.map_err(broken)?;
    let tunnels = Arc::clone(&office.tunnels);
    let merger = Arc::new(MergeLoop {
        store: Arc::clone(&store),
        clock,
        owner: config.owner.clone(),
        tunnels: Arc::clone(&tunnels),
    });
    loops.spawn(Arc::clone(&merger).run(loops.stop.clone()));
    let tree = Arc::new(MailboxDir::new(config.mailbox(&home), home.dropzone()));
    if let Err(error) = tree.create() {
        // The filer tries again; nobody's message waits for it.
        tracing::error!(%error, "the mailbox can't be made");
    }
    let filer = Arc::new(FileProjector::new(Arc::clone(&store), Arc::clone(&tree)));
    loops.spawn(Arc::clone(&filer).run(loops.stop.clone()));
    let drafts = DraftLoop {
        store: Arc::clone(&store),
        clock,
        entry: entry.clone(),
        tree: Arc::clone(&tree),
        owner: config.owner.clone(),
        tunnels: Arc::clone(&tunnels),
    };
    loops.spawn(Arc::new(drafts).run(loops.stop.clone()));
    let stop = || loops.stop.clone();
    let store_of = || Arc::clone(&store);
    loops.spawn(locks_file::run(store_of(), clock, Arc::clone(&tree), stop()));
    loops.spawn(retention::run(store_of(), clock, tree, settings.clone(), stop()));
    loops.spawn(sweeper::run(store_of(), clock, settings.clone(), stop()));

    let webhooks = api::webhooks::WebhookListener::new(
        Arc::clone(&store),
        clock,
        entry.clone(),
        Arc::clone(&tunnels),
    );
    let webhooks = api::webhooks::router(webhooks);
    let api = api::Api {
        store,
        clock,
        entry,
        metrics: api::ApiMetrics::new(),
        tunnels,
        projector: filer,
        pipeline: post_office,
        config: settings,
        stop: doors.stop.clone(),
    };
    let router = api::router(api, api::RequestGuard::new(address, token));
    for (listener, router) in [(listener, router), (webhook_listener, webhooks)] {
        let (tasks, stop) = (doors.tasks.clone(), doors.stop.clone());
        doors.spawn(api::server::serve(listener, router, tasks, stop));
    }

    let mut running = CourierInfo {
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        address,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at_ms: clock.now().ms(),
        webhook_address: Some(webhook_address),
        config: Some(source.clone()),
        log: log.path().map(Into::into),
        reload: None,
    };
    home.announce(&running)?;
    ready(&running);

    while signals.next().await == SignalAction::Reload {
        log.reopen();
        let said = office.reload(&source, &now).await;
        log.set_level(now.borrow().log_level);
        running.reload = Some(ReloadResult::after(running.reload.as_ref(), said));
        // It is only for whoever asked for it.
        let _ = home.announce(&running);
    }
    tracing::info!("stopping; a second signal does not wait");
    let finish = async {
        doors.finish().await;
        merger.close_all().await;
        loops.finish().await;
    };
    let finished = tokio::select! {
        finished = tokio::time::timeout(SHUTDOWN_TIMEOUT, finish) => finished.is_ok(),
        () = signals.stop() => false,
    };
    if !finished {
        tracing::warn!("not everything is finished; what was acknowledged is safe");
    }
    home.withdraw();
    Ok(())
}

async fn listen(host: IpAddr, port: u16) -> Result<TcpListener, StartError> {
    let address = SocketAddr::from((host, port));
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => StartError::PortInUse(port),
        _ => StartError::Listen { port, error },
    })
}

/// Starts the clock where the store left off. One that was far in the future then was
/// wrong, and what it started is not waited for.
async fn start_clock(store: &SharedStore) -> Result<Clock, StoreError> {
    let noted = store.last_clock_reading().await?;
    let wall = wall_now();
    let ahead = noted.map_or(Duration::ZERO, |noted| noted.since(wall));
    if ahead <= MAX_CLOCK_STEP {
        return Ok(Clock::start(noted));
    }
    tracing::warn!(
        hours = ahead.as_secs() / 3600,
        "the clock was ahead when the courier last ran; its leases and waits end now"
    );
    let clock = Clock::start(None);
    store.expire_future_leases(clock.now()).await?;
    Ok(clock)
}

/// Brings the store to where the loops can start.
async fn prepare(store: &SharedStore, clock: Clock, owner: &Did) -> Result<(), StoreError> {
    let now = clock.now();
    if !store.owner_exists(owner).await? {
        let (did, names) = (owner.clone(), vec!["me".to_owned()]);
        let contact =
            Contact { did, names, level: ContactLevel::Friend, here: true, bindings: Vec::new() };
        store.put_contact(contact, now).await?;
    }
    let released = store.release_leases(HOLDER, delivery_retry(), now).await?;
    if released.records + released.deliveries > 0 {
        tracing::info!(released.records, released.deliveries, "leases of an earlier run ended");
    }
    Ok(())
}

/// Tasks that are stopped together.
#[derive(Clone, Default)]
struct TaskGroup {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl TaskGroup {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Tells them to stop, and waits until they have.
    async fn finish(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Which messages have a chain in their way, for whoever lets them in.
struct RoutingSenders {
    inbound: watch::Sender<Arc<PipelineRouting>>,
    outbound: watch::Sender<Arc<PipelineRouting>>,
}

impl RoutingSenders {
    fn new(pipeline: &PipelineConfig) -> Self {
        let gate = |direction| watch::Sender::new(Arc::new(pipeline.routing(direction)));
        Self { inbound: gate(ChainDirection::Inbound), outbound: gate(ChainDirection::Outbound) }
    }

    fn entry(&self, notifier: QueueNotifier) -> PipelineEntry {
        let (inbound, outbound) = (self.inbound.subscribe(), self.outbound.subscribe());
        PipelineEntry { inbound, outbound, notifier }
    }

    fn set(&self, pipeline: &PipelineConfig) {
        self.inbound.send_replace(Arc::new(pipeline.routing(ChainDirection::Inbound)));
        self.outbound.send_replace(Arc::new(pipeline.routing(ChainDirection::Outbound)));
    }
}

/// What tunnels are run with.
struct TunnelSupervisor {
    store: SharedStore,
    clock: Clock,
    entry: PipelineEntry,
    resources: AdapterResources,
    tunnels: Arc<TunnelRegistry>,
    holder: Holder,
    doors: TaskGroup,
    loops: TaskGroup,
    post_office: Arc<Pipeline>,
    gates: RoutingSenders,
}

impl TunnelSupervisor {
    /// Reads the config again, and says what changed. One that is wrong changes nothing.
    async fn reload(
        &self,
        source: &ConfigSource,
        now: &watch::Sender<Arc<Config>>,
    ) -> Result<Vec<String>, String> {
        let old = Arc::clone(&now.borrow());
        let refused = |error: String| {
            tracing::error!(error, "config not reloaded");
            error
        };
        let new = source.load().map_err(|error| refused(error.to_string()))?;
        let changes = old.changes(&new);
        let new = Arc::new(old.reloaded(new));
        let ran = self.run_tunnels(Some(&old), &new).await;
        ran.map_err(|error| refused(error.to_string()))?;
        self.gates.set(&new.pipeline);
        let ran = self.post_office.reload(Arc::new(new.pipeline.clone())).await;
        ran.map_err(|error| refused(error.to_string()))?;
        now.send_replace(new);
        for change in &changes {
            tracing::info!(%change, "config reloaded");
        }
        if changes.is_empty() {
            tracing::info!("config reloaded, nothing changed");
        }
        Ok(changes.iter().map(ToString::to_string).collect())
    }

    /// Starts, stops and leaves tunnels alone, so that those of `new` run.
    async fn run_tunnels(&self, old: Option<&Config>, new: &Config) -> Result<(), StoreError> {
        let before = self.tunnels.all();
        let (mut running, mut idle) = (Vec::new(), Vec::new());
        for (id, config) in &new.tunnels {
            let not_run = |why: &str| InactiveTunnel {
                id: id.clone(),
                provider: config.provider,
                mode: config.adapter.mode(),
                why: why.to_owned(),
            };
            if !config.enabled {
                idle.push(not_run("turned off in the config"));
                continue;
            }
            let known = before.iter().find(|tunnel| tunnel.adapter.id() == id);
            let same = old.and_then(|old| old.tunnels.get(id)).map(|old| old.changed_keys(config));
            if let (Some(tunnel), Some(changes)) = (known, same)
                && changes.is_empty()
            {
                running.push(Arc::clone(tunnel));
                continue;
            }
            match config.adapter.build(id.clone(), &self.resources) {
                Ok(adapter) => running.push(self.start(adapter, config).await?),
                Err(why) => {
                    tracing::error!(tunnel = %id, why, "tunnel does not start");
                    idle.push(not_run(&why));
                }
            }
        }
        // What runs on is the same one; whatever else there was ends.
        for tunnel in before.iter() {
            if !running.iter().any(|runs| Arc::ptr_eq(runs, tunnel)) {
                tunnel.stop.cancel();
            }
        }
        self.tunnels.set(running, idle);
        Ok(())
    }

    /// Makes a tunnel known, and starts whoever listens and delivers for it.
    async fn start(
        &self,
        adapter: Arc<dyn Adapter>,
        config: &TunnelConfig,
    ) -> Result<Arc<RunningTunnel>, StoreError> {
        let known = monoco_core::contact::TunnelInfo {
            id: adapter.id().clone(),
            provider: adapter.provider().to_owned(),
            strangers: config.strangers,
            idempotent: adapter.accepts_idempotency_keys(),
        };
        self.store.put_tunnel(known, self.clock.now()).await?;
        let labels =
            TunnelLabels { binding: config.binding.clone(), bindings: config.bindings.clone() };
        let stop = self.loops.stop.child_token();
        let tunnel = Arc::new(RunningTunnel::new(adapter, config.debounce, labels, stop));
        for _ in 0..SENDS_PER_TUNNEL {
            let sender = DeliverySender {
                store: Arc::clone(&self.store),
                clock: self.clock,
                tunnel: Arc::clone(&tunnel),
                holder: self.holder.clone(),
            };
            self.loops.spawn(sender.run(tunnel.stop.clone()));
        }
        let (store, entry) = (Arc::clone(&self.store), self.entry.clone());
        let (listening, stop) = (Arc::clone(&tunnel), self.doors.stop.clone());
        self.doors.spawn(listen_to(store, self.clock, entry, listening, stop));
        Ok(tunnel)
    }
}

/// Has a tunnel listen until it or the courier is stopped, or listening is pointless.
async fn listen_to(
    store: SharedStore,
    clock: Clock,
    entry: PipelineEntry,
    tunnel: Arc<RunningTunnel>,
    stop: CancellationToken,
) {
    let own = tunnel.stop.child_token();
    let keeper = DurableInboundSink { store: &store, clock, entry: &entry, tunnel: &tunnel };
    let ear: &dyn InboundSink = &keeper;
    let listened = tokio::select! {
        listened = tunnel.adapter.listen(ear, own.clone()) => listened,
        () = stop.cancelled() => Ok(()),
    };
    let now: Timestamp = clock.now();
    tunnel.note(|pulse| {
        pulse.listening = false;
        if let Err(why) = &listened {
            pulse.record_receive_error(why.detail(), now);
        }
    });
    if let Err(why) = listened {
        tracing::error!(tunnel = %tunnel.adapter.id(), why = why.detail(), "tunnel is down");
    }
}

/// What somebody tells the process.
struct ProcessSignals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    // Caught, a file at its size limit is an error like any other, and not our end.
    _file_limit: Signal,
}

#[derive(PartialEq, Eq)]
enum SignalAction {
    Stop,
    Reload,
}

impl ProcessSignals {
    fn catch() -> std::io::Result<Self> {
        let file_limit = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            _file_limit: signal(file_limit)?,
        })
    }

    async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.terminate.recv() => SignalAction::Stop,
            _ = self.interrupt.recv() => SignalAction::Stop,
            _ = self.hang_up.recv() => SignalAction::Reload,
        }
    }

    /// Returns when somebody wants it stopped.
    async fn stop(&mut self) {
        while self.next().await == SignalAction::Reload {}
    }
}
