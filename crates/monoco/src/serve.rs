//! Builds the courier. The only place that wires.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use monoco_adapters::Adapter;
use monoco_adapters::stub::Stub;
use monoco_core::contact::{Contact, Level, Strangers, Tunnel};
use monoco_core::did::{Did, TunnelId};
use monoco_core::lease::Holder;
use monoco_core::retry::Retry;
use monoco_store::sqlite::SqliteStore;
use monoco_store::{Shared, StoreError};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api;
use crate::center::Center;
use crate::clock::Clock;
use crate::courier::sender::Sender;
use crate::courier::{HOLDER, sweep};
use crate::home::{Home, HomeError, Running};

/// How many deliveries of one tunnel are tried at the same time.
const LANES: usize = 4;

/// How long what is under way may take to finish when the courier is stopped.
const GRACE: Duration = Duration::from_secs(30);

/// How to run the courier.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it lives.
    pub home: Home,
    /// The port on loopback; 0 for any.
    pub port: u16,
}

/// Why the courier did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its home can't be used.
    #[error(transparent)]
    Home(#[from] HomeError),
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
pub async fn run(options: Options, ready: impl FnOnce(&Running)) -> Result<(), StartError> {
    let Options { home, port } = options;
    home.create()?;
    let _lock = home.lock()?;
    let token = home.ensure_token()?;
    let listener = listen(port).await?;
    let address = listener.local_addr()?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Caught, a file at its size limit is an error like any other, and not our end.
    let _file_limit = signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?;

    let clock = Arc::new(Clock::default());
    let path = home.store();
    let broken = |error| StartError::Store { path: path.clone(), error };
    let store: Shared = Arc::new(SqliteStore::open(&path).map_err(broken)?);
    let center = Center::new(store, Arc::clone(&clock), Retry::DELIVERY);
    let adapters = adapters();
    prepare(&center, &adapters).await.map_err(broken)?;

    let stop = CancellationToken::new();
    let tasks = TaskTracker::new();
    let holder = Holder::new(format!("{HOLDER}{}", clock.now().ms()));
    let holder = holder.unwrap_or_else(|_| Holder::anonymous());
    for adapter in &adapters {
        for _ in 0..LANES {
            let (center, adapter) = (center.clone(), Arc::clone(adapter));
            let sender = Sender { center, adapter, holder: holder.clone() };
            tasks.spawn(sender.run(stop.clone()));
        }
    }
    tasks.spawn(sweep::run(center.clone(), stop.clone()));
    let door = api::Door::new(address, token);
    let running = adapters
        .iter()
        .map(|adapter| api::Tunnel { id: adapter.id().clone(), provider: adapter.provider() });
    let api = api::Api {
        center,
        metrics: Arc::new(api::Metrics::new()),
        adapters: running.collect(),
        stop: stop.clone(),
    };
    let router = api::router(api, door);
    tasks.spawn(api::server::serve(listener, router, tasks.clone(), stop.clone()));

    let running = Running {
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        address,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at_ms: clock.now().ms(),
    };
    home.announce(&running)?;
    ready(&running);

    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping; a second signal does not wait");
    stop.cancel();
    tasks.close();
    let finished = tokio::select! {
        finished = tokio::time::timeout(GRACE, tasks.wait()) => finished.is_ok(),
        _ = terminate.recv() => false,
        _ = interrupt.recv() => false,
    };
    if !finished {
        tracing::warn!("not everything is finished; what was acknowledged is safe");
    }
    home.withdraw();
    Ok(())
}

async fn listen(port: u16) -> Result<TcpListener, StartError> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => StartError::PortInUse(port),
        _ => StartError::Listen { port, error },
    })
}

/// The tunnels this courier runs itself.
fn adapters() -> Vec<Arc<dyn Adapter>> {
    let id = |name: &str| name.parse::<TunnelId>().expect("the name of a built-in tunnel");
    vec![Arc::new(Stub::new(id("stub")))]
}

/// Whose INBOX direct messages reach.
pub fn owner() -> Did {
    "did:monoco:me".parse().expect("the default owner is a DID")
}

/// Brings the store to where the loops can start.
async fn prepare(center: &Center, adapters: &[Arc<dyn Adapter>]) -> Result<(), StoreError> {
    let store = center.store();
    let now = center.now();
    if !store.is_known(&owner()).await? {
        let (did, names) = (owner(), vec!["me".to_owned()]);
        let contact =
            Contact { did, names, level: Level::Friend, here: true, bindings: Vec::new() };
        store.put_contact(contact, now).await?;
    }
    for adapter in adapters {
        let tunnel = Tunnel {
            id: adapter.id().clone(),
            provider: adapter.provider().to_owned(),
            strangers: Strangers::Accept,
            idempotent: adapter.takes_keys(),
        };
        store.put_tunnel(tunnel, now).await?;
    }
    let released = store.release(HOLDER, center.again(), now).await?;
    if released.deliveries > 0 {
        tracing::warn!(released.deliveries, "an earlier courier died while it was sending");
    }
    Ok(())
}
