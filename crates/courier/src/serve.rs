//! Builds the courier and starts its tasks. The only place that wires.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use monoco_adapters::egress::Egress;
use monoco_adapters::email::envelope_key::EnvelopeKey;
use monoco_adapters::registry::AdapterResources;
use monoco_core::contact::{Contact, ContactLevel};
use monoco_core::courier::{CourierId, CourierRun};
use monoco_core::did::Did;
use monoco_core::letter::ChainDirection;
use monoco_core::retention::MAX_CLOCK_STEP;
use monoco_core::time::Timestamp;
use monoco_store::{FtsIndex, PipelineRouting, SharedStore, StoreError, SweepCounts};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

use crate::api;
use crate::api::caller::{self, AgentTokens};
use crate::api::guard::{self, GuardParts, RequestGuard};
use crate::api::remote_guard::{self, RemoteGuard};
use crate::api::server::{HttpServer, Listener};
use crate::center::PipelineEntry;
use crate::center::lease::delivery_retry;
use crate::clock::{Clock, wall_now};
use crate::config::{Config, ConfigError, ConfigSource};
use crate::courier::dead_drafts::DeadDrafts;
use crate::courier::drafts::DraftLoop;
use crate::courier::duties::{DutyLoop, enabled_tunnels};
use crate::courier::email::MailMemory;
use crate::courier::file_fetcher::FileFetcher;
use crate::courier::file_projector::FileProjector;
use crate::courier::forget::TextEraser;
use crate::courier::held_duties::HeldDuties;
use crate::courier::mailbox_dir::MailboxDir;
use crate::courier::merge::MergeLoop;
use crate::courier::search_indexer::SearchIndexer;
use crate::courier::tunnel_supervisor::TunnelSupervisor;
use crate::courier::tunnels::TunnelRegistry;
use crate::courier::{
    approval_asks, database_check, figures, locks_file, missing_couriers, object_check, retention,
    sweeper,
};
use crate::home::{ApiToken, CourierInfo, CourierState, Home, HomeError, PageAccess, ReloadResult};
use crate::log::LogWriter;
use crate::open_store::open_store;
use crate::pipeline::Pipeline;
use crate::pipeline::config::PipelineConfig;
use crate::pipeline::queue::{LetterQueue, QueueNotifier};
use crate::remote_listener::{RemoteListener, check_certificate};
use crate::signals::{ProcessSignals, SignalAction};
use crate::supervisor;
use crate::task_group::TaskGroup;
use crate::tls::ServerCertificate;

/// How long tasks may take to finish when the courier stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// How many free ports are tried until one is free on both loopback addresses.
const MAX_PORT_ATTEMPTS: usize = 16;

/// How to run the courier.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    pub home: Home,
    pub config: ConfigSource,
    pub log: LogWriter,
}

/// Why the courier did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot open the store in {place}: {error}")]
    Store { place: String, error: StoreError },
    #[error("other users can write to the mailbox directory {path} (mode {mode:o})")]
    OpenMailbox { path: PathBuf, mode: u32 },
    #[error("port {0} is in use")]
    PortInUse(u16),
    #[error("cannot listen on port {port}: {error}")]
    Listen { port: u16, error: std::io::Error },
    #[error("cannot listen on {address}, the address of courier.remote: {error}")]
    ListenRemote { address: SocketAddr, error: std::io::Error },
    #[error("cannot create the socket run/courier.sock in the home directory: {0}")]
    Socket(std::io::Error),
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// Runs the courier until a signal stops it. Calls `ready` once it listens.
///
/// Neither async nor generic: then the code of the courier is compiled in this crate, and not with
/// the options of the crate that calls it.
pub fn run(options: ServeOptions, ready: &dyn Fn(&CourierInfo)) -> Result<(), StartError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(options, ready))
}

async fn serve(options: ServeOptions, ready: &dyn Fn(&CourierInfo)) -> Result<(), StartError> {
    let ServeOptions { home, config: source, log } = options;
    // All files, also those of the store, are readable only by the user.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    set_limits();
    home.create()?;
    let config = Arc::new(source.load()?);
    check_mailbox(&config.mailbox(&home))?;
    log.set_level(config.log_level);
    let _lock = home.lock()?;
    // Processes of workers of a courier that was killed together with their supervisors.
    let _ = tokio::task::spawn_blocking(supervisor::kill_orphans).await;
    let listeners = Listeners::bind(&home, &config).await?;
    let mut signals = ProcessSignals::install()?;
    let mut info = CourierInfo {
        state: CourierState::Starting,
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        host: listeners.address.ip(),
        port: listeners.address.port(),
        webhook_port: listeners.webhook_port,
        remote: None,
        remote_problem: None,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: wall_now().rfc3339(),
        config: Some(source.clone()),
        log: log.path().map(Into::into),
        reload: None,
    };
    let remote = listeners.remote.clone();
    set_remote(&mut info, remote.as_deref());
    home.announce(&info)?;
    let id = home.courier_id()?;
    let place = config.store.place(&home);
    let courier = async {
        let store = open_store(&home, id, &config.store).await?;
        Courier::start(&home, id, store, config, source.clone(), listeners).await
    };
    let courier = courier.await.map_err(|error| StartError::Store { place, error })?;
    info.state = CourierState::Running;
    home.announce(&info)?;
    ready(&info);
    let mut changes = remote.as_ref().map(|remote| remote.changes());
    loop {
        let remote_changed = async {
            match &mut changes {
                Some(changes) => changes.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            action = signals.next() => {
                if action == SignalAction::Stop {
                    break;
                }
                log.reopen();
                let result = courier.reload(&source).await;
                log.set_level(courier.config.borrow().log_level);
                info.reload = Some(ReloadResult::after(info.reload.as_ref(), result));
            }
            () = remote_changed => {}
        }
        set_remote(&mut info, remote.as_deref());
        // Only commands read it; a failure to write it changes nothing.
        let _ = home.announce(&info);
    }
    // Commands must not use a courier that stops. The ports stay bound until the end.
    info.state = CourierState::Stopping;
    if home.announce(&info).is_err() {
        home.withdraw();
    }
    courier.stop(&mut signals).await;
    home.withdraw();
    Ok(())
}

/// Sets the address of the listener for other machines, or why it is not served.
fn set_remote(info: &mut CourierInfo, remote: Option<&RemoteListener>) {
    let status = remote.map(RemoteListener::status);
    let (served, others): (Vec<_>, Vec<_>) = status.into_iter().partition(|it| it.is_served);
    info.remote = served.first().map(|status| status.address);
    info.remote_problem = others.into_iter().find_map(|status| status.problem);
}

/// Turns off core dumps, which would contain messages and secrets, and allows as many open
/// files as possible, because each connection needs one.
fn set_limits() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::warn!(%error, "cannot turn off core dumps");
    }
    let files = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
}

/// Rejects a mailbox directory in which other users can write: they could replace Mails.
fn check_mailbox(path: &Path) -> Result<(), StartError> {
    // A missing directory is created with mode 0700.
    let Ok(found) = std::fs::metadata(path) else { return Ok(()) };
    let mode = found.permissions().mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(StartError::OpenMailbox { path: path.to_owned(), mode });
    }
    Ok(())
}

/// The bound ports and the socket, and the token that the API asks for.
struct Listeners {
    api: Vec<Arc<Listener>>,
    webhooks: Vec<Arc<Listener>>,
    /// The listener for other machines.
    remote: Option<Arc<RemoteListener>>,
    socket: Arc<Listener>,
    address: SocketAddr,
    webhook_port: u16,
    token: Arc<ApiToken>,
    page: Arc<PageAccess>,
}

impl Listeners {
    async fn bind(home: &Home, config: &Config) -> Result<Self, StartError> {
        let token = Arc::new(ApiToken::open(home)?);
        let page = Arc::new(PageAccess::open(home)?);
        let (api, address) = bind_loopback(config.host, config.port).await?;
        let (webhooks, webhook_address) = bind_loopback(config.host, config.webhook_port).await?;
        let remote = match &config.remote {
            Some(remote) => {
                let address = remote.listen;
                let failed = |error| StartError::ListenRemote { address, error };
                Some(Arc::new(RemoteListener::start(remote).await.map_err(failed)?))
            }
            None => None,
        };
        let socket = home.socket().and_then(|path| UnixListener::bind(&path));
        let socket = Arc::new(Listener::Unix(socket.map_err(StartError::Socket)?));
        let webhook_port = webhook_address.port();
        Ok(Self { api, webhooks, remote, socket, address, webhook_port, token, page })
    }

    fn all(&self) -> Vec<Arc<Listener>> {
        let tcp = self.api.iter().chain(&self.webhooks);
        let remote = self.remote.iter().map(|it| Arc::new(Listener::Tls(Arc::clone(it))));
        tcp.chain([&self.socket]).map(Arc::clone).chain(remote).collect()
    }
}

/// Binds a port on `host` and on the loopback address of the other IP version: a client that
/// connects to `localhost` tries both, and another process must not have one of them.
async fn bind_loopback(
    host: IpAddr,
    port: u16,
) -> Result<(Vec<Arc<Listener>>, SocketAddr), StartError> {
    let other = match host {
        IpAddr::V4(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    for _ in 0..MAX_PORT_ATTEMPTS {
        let listener = bind(host, port).await?;
        let address = listener.local_addr()?;
        let mut listeners = vec![listener];
        match bind(other, address.port()).await {
            Ok(listener) => listeners.push(listener),
            Err(StartError::PortInUse(_)) if port == 0 => continue,
            Err(StartError::Listen { error, .. }) if is_no_address(&error) => {
                tracing::info!(host = %other, %error, "machine has no such loopback address");
            }
            Err(error) => return Err(error),
        }
        let listeners = listeners.into_iter().map(|it| Arc::new(Listener::Tcp(it))).collect();
        return Ok((listeners, address));
    }
    Err(StartError::PortInUse(port))
}

/// Whether the machine does not support an address, such as `::1` without IPv6.
fn is_no_address(error: &std::io::Error) -> bool {
    let unsupported = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
    error.kind() == std::io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(unsupported)
}

async fn bind(host: IpAddr, port: u16) -> Result<TcpListener, StartError> {
    let address = SocketAddr::from((host, port));
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => StartError::PortInUse(port),
        _ => StartError::Listen { port, error },
    })
}

/// A courier that runs.
struct Courier {
    config: watch::Sender<Arc<Config>>,
    routing: RoutingSenders,
    pipeline: Arc<Pipeline>,
    supervisor: TunnelSupervisor,
    merge_loop: Arc<MergeLoop>,
    /// Tasks that receive messages and requests. They stop first, so that the loops can
    /// process what was received.
    receivers: TaskGroup,
    loops: TaskGroup,
    /// The listener for other machines, if there is one.
    remote: Option<Arc<RemoteListener>>,
    /// Bound until the courier has stopped.
    listeners: Vec<Arc<Listener>>,
}

impl Courier {
    /// Prepares the store and starts all tasks.
    async fn start(
        home: &Home,
        id: CourierId,
        store: SharedStore,
        config: Arc<Config>,
        source: ConfigSource,
        listeners: Listeners,
    ) -> Result<Self, StoreError> {
        store.set_approval_policy(Arc::clone(&config.approvals));
        let index = Arc::new(FtsIndex::open(&home.store())?);
        let search = Arc::new(SearchIndexer::new(Arc::clone(&store), index, config.search));
        let clock = start_clock(&store, id).await?;
        let run = store.register_courier(id, enabled_tunnels(&config), clock.now()).await?;
        let duties = if store.is_shared() { HeldDuties::none(run) } else { HeldDuties::all(run) };
        prepare_store(&store, clock, run, &config).await?;

        let (receivers, loops) = (TaskGroup::default(), TaskGroup::default());
        let settings = Arc::new(config.pipeline.clone());
        let routing = RoutingSenders::new(&settings);
        let (queue, notifier) =
            LetterQueue::open(&settings.queue, &store, &loops.tasks, &loops.stop);
        let entry = routing.entry(notifier.clone());
        let pipeline = Pipeline::start(
            Arc::clone(&store),
            clock,
            notifier,
            settings,
            queue,
            duties.clone(),
            &loops,
        );
        let pipeline = Arc::new(pipeline.await?);

        let (config_sender, config_receiver) = watch::channel(Arc::clone(&config));
        let supervisor = TunnelSupervisor {
            store: Arc::clone(&store),
            clock,
            entry: entry.clone(),
            resources: AdapterResources {
                egress: Egress::new().map_err(|error| error.to_string()),
                envelope_key: Some(EnvelopeKey::new(store.email_secret().await?)),
            },
            tunnels: Arc::new(TunnelRegistry::default()),
            config: config_receiver.clone(),
            duties: duties.clone(),
            mail_memory: MailMemory::default(),
            receivers: receivers.clone(),
            loops: loops.clone(),
        };
        supervisor.apply(None, &config).await?;

        let tunnels = Arc::clone(&supervisor.tunnels);
        let config = config_receiver;
        let parts =
            CourierParts { store, search, clock, entry, tunnels, duties, config, source, pipeline };
        if !parts.duties.is_shared() {
            // Before the merge loop starts: otherwise it merges windows without the files they wait
            // for. With other couriers, that is done for each tunnel with its duty.
            parts.store.resume_files(None, clock.now()).await?;
        }
        receivers.spawn(parts.duty_loop().run(receivers.stop.clone()));
        let (merge_loop, projector, dead_drafts) = start_loops(&parts, home, &loops);
        let pipeline = Arc::clone(&parts.pipeline);
        loops.spawn(Arc::clone(&pipeline).recall_at_duty(loops.stop.clone()));
        let bound = listeners.all();
        let remote = listeners.remote.clone();
        if let Some(remote) = &remote {
            let (remote, config) = (Arc::clone(remote), parts.config.clone());
            loops.spawn(check_certificate(remote, config, loops.stop.clone()));
        }
        start_listeners(parts, listeners, projector, dead_drafts, &receivers);
        Ok(Self {
            config: config_sender,
            routing,
            pipeline,
            supervisor,
            merge_loop,
            receivers,
            loops,
            remote,
            listeners: bound,
        })
    }

    /// Reads the config again, applies it and returns what changed. An invalid config
    /// changes nothing.
    async fn reload(&self, source: &ConfigSource) -> Result<Vec<String>, String> {
        let result = self.try_reload(source).await;
        match &result {
            Err(error) => tracing::error!(error, "config not reloaded"),
            Ok(changes) if changes.is_empty() => {
                tracing::info!("config reloaded, nothing changed");
            }
            Ok(changes) => {
                for change in changes {
                    tracing::info!(change, "config reloaded");
                }
            }
        }
        result
    }

    async fn try_reload(&self, source: &ConfigSource) -> Result<Vec<String>, String> {
        let old = Arc::clone(&self.config.borrow());
        let new = source.load().map_err(|error| error.to_string())?;
        let mut changes: Vec<_> = old.changes(&new).iter().map(ToString::to_string).collect();
        let new = Arc::new(old.reloaded(new));
        let certificate = new.remote.as_ref().map(|it| ServerCertificate::load(it, wall_now()));
        let is_usable =
            self.remote.as_ref().is_some_and(|remote| remote.status().is_usable(wall_now()));
        let certificate = match certificate.transpose() {
            Ok(certificate) => certificate,
            Err(error) if is_usable => return Err(format!("courier.remote: {error}")),
            // Other changes do not wait for a certificate that could not be used before.
            Err(error) => {
                changes.push(format!("courier.remote is still not served: {error}"));
                None
            }
        };
        let applied = self.supervisor.apply(Some(&old), &new).await;
        applied.map_err(|error| error.to_string())?;
        self.supervisor.store.set_approval_policy(Arc::clone(&new.approvals));
        self.routing.set(&new.pipeline);
        let reloaded = self.pipeline.reload(Arc::new(new.pipeline.clone())).await;
        reloaded.map_err(|error| error.to_string())?;
        self.config.send_replace(new);
        if let (Some(remote), Some(certificate)) = (&self.remote, certificate) {
            let expires_at = certificate.validity.not_after.rfc3339();
            let replaced = remote.serve_with(certificate).await;
            if replaced.map_err(|error| format!("courier.remote: {error}"))? {
                changes.push(format!("remote certificate: replaced, expires at {expires_at}"));
            }
        }
        Ok(changes)
    }

    /// Stops all tasks. A second signal, or 30 s, ends the wait for them.
    async fn stop(&self, signals: &mut ProcessSignals) {
        tracing::info!("stopping; a second signal does not wait");
        let finish = async {
            self.receivers.finish().await;
            if self.supervisor.end().await {
                self.merge_loop.close_all().await;
            }
            self.loops.finish().await;
        };
        let rejections = self.listeners.iter().map(|listener| listener.reject_connections());
        let finished = tokio::select! {
            finished = tokio::time::timeout(SHUTDOWN_TIMEOUT, finish) => finished.is_ok(),
            () = signals.stop() => false,
            _ = join_all(rejections) => false,
        };
        if !finished {
            tracing::warn!("stopped before all tasks had finished; acknowledged messages are safe");
        }
    }
}

/// What the background loops and the listeners share.
struct CourierParts {
    store: SharedStore,
    search: Arc<SearchIndexer>,
    clock: Clock,
    entry: PipelineEntry,
    tunnels: Arc<TunnelRegistry>,
    duties: HeldDuties,
    config: watch::Receiver<Arc<Config>>,
    source: ConfigSource,
    pipeline: Arc<Pipeline>,
}

impl CourierParts {
    fn duty_loop(&self) -> DutyLoop {
        DutyLoop {
            store: Arc::clone(&self.store),
            clock: self.clock,
            duties: self.duties.clone(),
            tunnels: Arc::clone(&self.tunnels),
            config: self.config.clone(),
            renew_at: Duration::ZERO,
            released: BTreeSet::new(),
        }
    }
}

/// Starts the background loops beside those of the tunnels and of the pipeline.
fn start_loops(
    parts: &CourierParts,
    home: &Home,
    loops: &TaskGroup,
) -> (Arc<MergeLoop>, Arc<FileProjector>, Arc<DeadDrafts>) {
    let (clock, config) = (parts.clock, Arc::clone(&parts.config.borrow()));
    let (store, stop) = (|| Arc::clone(&parts.store), || loops.stop.clone());
    let (owner, tunnels) = (|| config.owner.clone(), || Arc::clone(&parts.tunnels));
    let settings = || parts.config.clone();
    let mailbox = Arc::new(MailboxDir::new(config.mailbox(home), home.dropzone()));
    let courier = parts.duties.run().id;
    let shared = parts.duties.is_shared().then_some(courier);
    if let Err(error) = mailbox.create().and_then(|()| mailbox.publish_courier(shared)) {
        // The file projector tries again; messages are stored meanwhile.
        tracing::error!(%error, "cannot create the mailbox directory");
    }
    let tree = || Arc::clone(&mailbox);
    let duties = || parts.duties.clone();
    let merge_loop =
        Arc::new(MergeLoop { store: store(), clock, owner: owner(), duties: duties() });
    let projector = Arc::new(FileProjector::new(store(), tree(), courier));
    let dead_drafts = Arc::new(DeadDrafts::new(tree()));
    let drafts = Arc::new(DraftLoop {
        store: store(),
        clock,
        entry: parts.entry.clone(),
        tree: tree(),
        courier,
        owner: owner(),
        tunnels: tunnels(),
        dead: Arc::clone(&dead_drafts),
    });

    let fetcher = FileFetcher::new(store(), clock, tunnels(), loops.clone());
    loops.spawn(fetcher.run(stop()));
    loops.spawn(Arc::clone(&merge_loop).run(stop()));
    loops.spawn(Arc::clone(&projector).run(stop()));
    loops.spawn(drafts.run(stop()));
    loops.spawn(locks_file::run(store(), clock, tree(), stop()));
    loops.spawn(retention::run(store(), clock, duties(), tree(), settings(), stop()));
    loops.spawn(sweeper::run(store(), clock, settings(), stop()));
    loops.spawn(approval_asks::run(store(), clock, settings(), stop()));
    loops.spawn(figures::run(store(), clock, stop()));
    if parts.duties.is_shared() {
        loops.spawn(database_check::run(store(), config.store.durability(), stop()));
        loops.spawn(object_check::run(store(), stop()));
    }
    let search = Arc::clone(&parts.search);
    loops.spawn(Arc::clone(&search).run(stop()));
    let eraser = TextEraser { projector: Arc::clone(&projector), search, clock, owner: owner() };
    loops.spawn(eraser.resume());
    (merge_loop, projector, dead_drafts)
}

/// Starts the API and the webhook listener.
fn start_listeners(
    parts: CourierParts,
    listeners: Listeners,
    projector: Arc<FileProjector>,
    dead_drafts: Arc<DeadDrafts>,
    receivers: &TaskGroup,
) {
    let CourierParts { store, search, clock, entry, tunnels, duties, config, source, pipeline } =
        parts;
    let webhooks = api::webhooks::WebhookListener::new(
        Arc::clone(&store),
        clock,
        entry.clone(),
        Arc::clone(&tunnels),
    );
    let agents = Arc::new(AgentTokens::new(Arc::clone(&store), clock));
    let remote_guard = RemoteGuard::new(config.clone(), Arc::clone(&agents));
    let api = api::Api {
        store,
        clock,
        agents: Arc::clone(&agents),
        entry,
        metrics: api::ApiMetrics::default(),
        tunnels,
        projector,
        search,
        dead_drafts,
        pipeline,
        duties,
        config,
        source,
        remote: listeners.remote.clone(),
        stop: receivers.stop.clone(),
    };
    let Listeners {
        api: api_listeners,
        webhooks: webhook_listeners,
        socket,
        remote,
        address,
        token,
        page,
        ..
    } = listeners;
    let router = api::router(api);
    let guard = RequestGuard::new(
        address,
        GuardParts {
            token: Arc::clone(&token),
            agents: Arc::clone(&agents),
            page: Arc::clone(&page),
            clock,
        },
    );
    let on_socket = api::token::with_socket_routes(router.clone(), token, agents);
    let on_socket = api::page::with_socket_routes(on_socket, Arc::clone(&page), clock);
    let over_tls = remote_guard::protect(router.clone(), remote_guard);
    let over_tcp = api::page::with_page(router, page, clock);
    let remote = remote.into_iter().map(|it| Arc::new(Listener::Tls(it))).collect();
    let routers = [
        (remote, over_tls),
        (vec![socket], caller::as_owner(on_socket)),
        (api_listeners, guard::protect(over_tcp, guard)),
        (webhook_listeners, api::webhooks::router(webhooks)),
    ];
    for (listeners, router) in routers {
        let (tasks, stop) = (receivers.tasks.clone(), receivers.stop.clone());
        let server = HttpServer::new(router, tasks, stop);
        for listener in listeners {
            receivers.spawn(server.clone().serve(listener));
        }
    }
}

/// Starts the clock at the last reading in the store. A reading of more than a day in the
/// future was wrong: leases and delays that count from it end now.
async fn start_clock(store: &SharedStore, me: CourierId) -> Result<Clock, StoreError> {
    let last = store.last_clock_reading().await?;
    if let Some(time) = store.server_time().await? {
        if let Some(time) = missing_couriers::wait_for_report(store, me, time).await? {
            return Ok(Clock::following(last.map_or(time, |last| last.max(time))));
        }
        return start_shared_clock(store, last, time).await;
    }
    let wall = wall_now();
    let ahead = last.map_or(Duration::ZERO, |last| last.since(wall));
    if ahead <= MAX_CLOCK_STEP {
        return Ok(Clock::start(last));
    }
    tracing::warn!(
        hours = ahead.as_secs() / 3600,
        "the clock was ahead when the courier last ran; leases and delays of that run end now"
    );
    let clock = Clock::start(None);
    store.expire_future_leases(clock.now()).await?;
    Ok(clock)
}

/// Starts the clock at that of the database server. Leases that count from a time of more than a
/// day in the future end now, unless another courier lives, which still holds them.
async fn start_shared_clock(
    store: &SharedStore,
    last: Option<Timestamp>,
    time: Timestamp,
) -> Result<Clock, StoreError> {
    let ahead = last.map_or(Duration::ZERO, |last| last.since(time));
    if ahead <= MAX_CLOCK_STEP {
        // Not before what was stored; the difference to the server is removed slowly.
        return Ok(Clock::following(last.map_or(time, |last| last.max(time))));
    }
    if !store.couriers().await?.iter().any(|courier| courier.is_live(time)) {
        let hours = ahead.as_secs() / 3600;
        tracing::warn!(
            hours,
            "the clock of the database server was ahead; leases and delays end now"
        );
        store.expire_future_leases(time).await?;
    }
    Ok(Clock::following(time))
}

/// Adds the owner as a contact and releases the leases of earlier runs of this courier.
async fn prepare_store(
    store: &SharedStore,
    clock: Clock,
    run: CourierRun,
    config: &Config,
) -> Result<(), StoreError> {
    let now = clock.now();
    add_owner(store, &config.owner, now).await?;
    let (prefix, retry) = (run.id.holder_prefix(), delivery_retry(config.deliveries));
    let released = store.release_leases(&prefix, retry, now).await?;
    if released.records + released.deliveries + released.email_tasks > 0 {
        let SweepCounts { records, deliveries, email_tasks } = released;
        tracing::info!(records, deliveries, email_tasks, "leases of an earlier run ended");
    }
    Ok(())
}

/// Adds the owner as a contact with a local INBOX, unless the contact exists.
///
/// # Errors
///
/// When the store fails.
pub async fn add_owner(store: &SharedStore, owner: &Did, now: Timestamp) -> Result<(), StoreError> {
    if store.owner_exists(owner).await? {
        return Ok(());
    }
    let (did, names) = (owner.clone(), vec!["me".to_owned()]);
    let contact =
        Contact { did, names, level: ContactLevel::Friend, here: true, bindings: Vec::new() };
    store.put_contact(contact, now).await?;
    Ok(())
}

/// Publishes which messages go through the pipeline.
struct RoutingSenders {
    inbound: watch::Sender<Arc<PipelineRouting>>,
    outbound: watch::Sender<Arc<PipelineRouting>>,
}

impl RoutingSenders {
    fn new(pipeline: &PipelineConfig) -> Self {
        let sender = |direction| watch::Sender::new(Arc::new(pipeline.routing(direction)));
        Self {
            inbound: sender(ChainDirection::Inbound),
            outbound: sender(ChainDirection::Outbound),
        }
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
