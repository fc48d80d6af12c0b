//! The program that is measured. Courier and predecessor accept the same requests.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::Result;
use crate::common::courier::RunningCourier;
use crate::common::resources::cpu_share;
use crate::webhook::SECRET;

/// A target is idle when it uses less than this share of a core during [`POLL_INTERVAL`].
const IDLE: f64 = 0.02;
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time until a target is idle.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Addresses and files of a running courier or predecessor.
#[derive(Clone, Debug)]
pub struct Target {
    pub webhooks: SocketAddr,
    pub api: SocketAddr,
    /// Bearer token of the API.
    pub token: String,
    pub pid: u32,
    pub mailbox: PathBuf,
}

impl Target {
    pub fn of(courier: &RunningCourier) -> Self {
        Self {
            webhooks: courier.webhooks,
            api: courier.addr,
            token: courier.token.clone(),
            pid: courier.pid(),
            mailbox: courier.home().join("mailbox"),
        }
    }
}

/// Starts a courier with one webhook tunnel and this merge window.
pub fn courier(below: &Path, window: Duration) -> Result<RunningCourier> {
    let home = TempDir::new_in(below)?;
    std::fs::create_dir_all(home.path().join("courier"))?;
    let config = format!(
        "courier:\n  debounce: {{ window_ms: {} }}\n  adapters:\n    ci: {{ provider: webhook, \
         verify: standard, secret: '{SECRET}' }}\n",
        window.as_millis()
    );
    std::fs::write(home.path().join("courier/config.yaml"), config)?;
    RunningCourier::start(home)
}

/// Syncs all disks and waits until the target is idle. Otherwise work of the preparation
/// would run during the measurement: the kernel writes files back, and a courier scans its
/// mailbox after its start.
pub fn settle(target: &Target) -> Result<()> {
    rustix::fs::sync();
    let idle = || Ok(cpu_share(target.pid, POLL_INTERVAL)? < IDLE);
    let waited = until("target is idle", TIMEOUT, idle)?;
    eprintln!("idle after {:.1} s", waited.as_secs_f64());
    Ok(())
}

/// Polls until `so` is true and returns the elapsed time.
pub fn until(
    what: &str,
    timeout: Duration,
    mut so: impl FnMut() -> Result<bool>,
) -> Result<Duration> {
    let started = Instant::now();
    while !so()? {
        if started.elapsed() > timeout {
            return Err(format!("{what}: not after {timeout:?}").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(started.elapsed())
}
