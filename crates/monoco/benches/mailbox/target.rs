//! Who is measured, and where: the courier and the predecessor take the same requests.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::Result;
use crate::common::resources::cpu_share;
use crate::common::running::Running;
use crate::hook::SECRET;

/// Processor time per second below which an office is idle, and how long that is watched.
const IDLE: f64 = 0.02;
const GLANCE: Duration = Duration::from_secs(1);

/// How long it may take to become so.
const PATIENCE: Duration = Duration::from_secs(300);

/// A post office that is running.
#[derive(Clone, Debug)]
pub struct Office {
    /// Where it hears webhooks.
    pub webhooks: SocketAddr,
    /// Where Mails are claimed.
    pub api: SocketAddr,
    /// What opens that.
    pub token: String,
    /// Its process.
    pub pid: u32,
    /// Where its files are.
    pub mailbox: PathBuf,
}

impl Office {
    /// The one that a courier runs.
    pub fn of(courier: &Running) -> Self {
        Self {
            webhooks: courier.webhooks,
            api: courier.addr,
            token: courier.token.clone(),
            pid: courier.pid(),
            mailbox: courier.home().join("mailbox"),
        }
    }
}

/// A courier with one webhook tunnel, that waits so long for another message.
pub fn courier(below: &Path, window: Duration) -> Result<Running> {
    let home = TempDir::new_in(below)?;
    std::fs::create_dir_all(home.path().join("courier"))?;
    let config = format!(
        "courier:\n  debounce: {{ window_ms: {} }}\n  adapters:\n    ci: {{ provider: webhook, \
         verify: standard, secret: '{SECRET}' }}\n",
        window.as_millis()
    );
    std::fs::write(home.path().join("courier/config.yaml"), config)?;
    Running::start(home)
}

/// Brings everything to the disk and waits until the office is idle, so that what was
/// prepared is not finished while something else is measured: files are written back, and
/// a courier looks through all of them after its start.
pub fn settle(office: &Office) -> Result<()> {
    rustix::fs::sync();
    let idle = || Ok(cpu_share(office.pid, GLANCE)? < IDLE);
    let waited = until("the office is idle", PATIENCE, idle)?;
    eprintln!("idle after {:.1} s", waited.as_secs_f64());
    Ok(())
}

/// Looks until it is so, and says how long that took.
pub fn until(
    what: &str,
    patience: Duration,
    mut so: impl FnMut() -> Result<bool>,
) -> Result<Duration> {
    let started = Instant::now();
    while !so()? {
        if started.elapsed() > patience {
            return Err(format!("{what}: not after {patience:?}").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(started.elapsed())
}
