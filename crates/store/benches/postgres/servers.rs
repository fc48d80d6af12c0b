//! Servers of the benchmark: one alone, and one with a synchronous standby on the same machine.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use monoco_store::postgres::Durability;
use tempfile::TempDir;

use crate::common::Result;
use crate::server;
use crate::tables::connect;

const SETTINGS: [&str; 2] = ["shared_buffers=256MB", "max_wal_size=2GB"];

/// How long a standby may take to become synchronous.
const STANDBY_TIMEOUT: Duration = Duration::from_secs(60);

const STANDBYS: &str = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";

/// A running server and its directories. It ends with this process.
pub struct Servers {
    pub url: Arc<str>,
    has_standby: bool,
    _dirs: Vec<TempDir>,
}

impl Servers {
    /// Starts a server with its tables in `below`, and a standby of it.
    pub fn start(below: &Path, with_standby: bool) -> Result<Self> {
        // The path of a socket has at most 107 bytes.
        let (socket, data) = (tempfile::tempdir()?, TempDir::new_in(below)?);
        server::start(socket.path(), data.path(), &SETTINGS);
        let url: Arc<str> = server::url_in(socket.path()).into();
        let mut dirs = vec![socket, data];
        if with_standby {
            let (standby, copy) = (tempfile::tempdir()?, TempDir::new_in(below)?);
            server::create_dirs(standby.path(), copy.path());
            // Created by the copy, with the permissions that a server demands.
            let copied_data = copy.path().join("data");
            let copied = server::command("pg_basebackup")
                .args(["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast"])
                .args(["-U", "postgres", "-h"])
                .arg(dirs[0].path())
                .arg("-D")
                .arg(&copied_data)
                .output()?;
            if !copied.status.success() {
                return Err(String::from_utf8_lossy(&copied.stderr).into());
            }
            server::run(standby.path(), &copied_data, &SETTINGS);
            wait_for_standby(&url)?;
            dirs.extend([standby, copy]);
        }
        Ok(Self { url, has_standby: with_standby, _dirs: dirs })
    }

    /// When its stores acknowledge a commit.
    pub fn durability(&self) -> Durability {
        if self.has_standby { Durability::Replicated } else { Durability::Primary }
    }
}

/// Makes the standby synchronous, and waits until it is.
fn wait_for_standby(url: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = connect(url).await?;
        client.batch_execute("ALTER SYSTEM SET synchronous_standby_names = '*'").await?;
        client.batch_execute("SELECT pg_reload_conf()").await?;
        let started = Instant::now();
        while client.query_one(STANDBYS, &[]).await?.get::<_, i64>(0) == 0 {
            if started.elapsed() > STANDBY_TIMEOUT {
                return Err("the standby is not synchronous".into());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    })
}
