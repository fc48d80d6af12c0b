//! Runs `predecessor.py`, the algorithms of the Python predecessor, as a process.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::common::Result;
use crate::target::Target;
use crate::webhook::SECRET;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/mailbox/predecessor.py");

/// The daemon and its mailbox. Both are removed on drop.
pub struct Predecessor {
    child: Child,
    pub target: Target,
    _data: TempDir,
}

impl Predecessor {
    /// Starts the daemon with an empty mailbox.
    pub fn start(below: &Path, window: Duration) -> Result<Self> {
        Self::start_on(TempDir::new_in(below)?, window)
    }

    /// Starts the daemon with an existing mailbox.
    pub fn start_on(data: TempDir, window: Duration) -> Result<Self> {
        let mut child = command("serve")
            .args(["--mailbox".as_ref(), data.path()])
            .args(["--secret", SECRET, "--window-ms", &window.as_millis().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(missing)?;
        let mut port = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut port)?;
        }
        let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let target = Target {
            webhooks: nowhere,
            api: nowhere,
            token: String::new(),
            pid: child.id(),
            mailbox: data.path().to_owned(),
        };
        let mut it = Self { child, target, _data: data };
        let port: u16 = port.trim().parse().map_err(|_| "the predecessor did not start")?;
        it.target.webhooks.set_port(port);
        it.target.api.set_port(port);
        Ok(it)
    }
}

impl Drop for Predecessor {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn command(name: &str) -> Command {
    let mut command = Command::new("python3");
    command.args([SCRIPT, name]);
    command
}

/// Version of the Python interpreter.
pub fn version() -> Result<String> {
    let output = Command::new("python3").arg("--version").output().map_err(missing)?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn missing(error: std::io::Error) -> String {
    format!("cannot run python3 ({error}); ./bench installs it")
}
