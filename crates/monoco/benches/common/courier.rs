//! Runs the built courier in a temporary home.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::http::Conn;
use super::{Error, Result};

/// Maximum time until the courier answers.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running courier and its home. Both are removed on drop.
pub struct RunningCourier {
    child: Child,
    /// Address of the API.
    pub addr: SocketAddr,
    pub webhooks: SocketAddr,
    /// Bearer token of the API.
    pub token: String,
    data: TempDir,
}

/// Path of the measured binary.
pub fn program() -> &'static str {
    env!("CARGO_BIN_EXE_monoco")
}

impl RunningCourier {
    /// Starts the courier and waits until it answers.
    pub fn start(data: TempDir) -> Result<Self> {
        let info_path = data.path().join("run/courier.json");
        // The file of an earlier process has old addresses.
        let _ = std::fs::remove_file(&info_path);
        let child = Command::new(program())
            .args(["courier", "start", "--foreground", "--port", "0"])
            .env("MONOCO_HOME", data.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let token = String::new();
        let mut running = Self { child, addr: nowhere, webhooks: nowhere, token, data };
        let started = Instant::now();
        let info = loop {
            if let Ok(info) = std::fs::read_to_string(&info_path)
                && info.contains(r#""state":"running""#)
            {
                break info;
            }
            if let Some(status) = running.child.try_wait()? {
                return Err(format!("the courier exited during the start ({status})").into());
            }
            if started.elapsed() > START_TIMEOUT {
                return Err(format!("the courier is not ready after {START_TIMEOUT:?}").into());
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let address = |key: &str| -> Result<SocketAddr> {
            let port = between(info.as_bytes(), key, ",").ok_or("no port")?.parse()?;
            Ok(SocketAddr::from(([127, 0, 0, 1], port)))
        };
        running.addr = address(r#""port":"#)?;
        running.webhooks = address(r#""webhook_port":"#)?;
        running.token = std::fs::read_to_string(running.data.path().join("run/courier.token"))?;
        let mut conn = Conn::open(running.addr, &running.token, "application/json")?;
        let next = "/api/v1/boxes/did:monoco:me/INBOX/next";
        let (status, answer) = conn.post(next, br#"{"states":["NONE"]}"#)?;
        // 422 for the unknown state: the courier answers.
        if status == 422 { Ok(running) } else { Err(unexpected_response(status, answer)) }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn home(&self) -> &Path {
        self.data.path()
    }

    /// A command of the CLI that uses this courier.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(args).env("MONOCO_HOME", self.home());
        command
    }

    /// Stops the courier and returns its home.
    pub fn stop(mut self) -> Result<TempDir> {
        let mut command = self.command(&["courier", "stop"]);
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        self.child.wait()?;
        if !status.success() {
            return Err(format!("the courier did not stop: {status}").into());
        }
        let below = self.data.path().parent().ok_or("the home has no directory")?.to_owned();
        Ok(std::mem::replace(&mut self.data, TempDir::new_in(below)?))
    }
}

impl Drop for RunningCourier {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn between<'a>(text: &'a [u8], start: &str, end: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(text).ok()?;
    text.split_once(start)?.1.split_once(end).map(|(found, _)| found)
}

/// Error for a response with an unexpected status.
pub fn unexpected_response(status: u16, answer: &[u8]) -> Error {
    let body: String = String::from_utf8_lossy(answer).chars().take(300).collect();
    format!("unexpected response {status}: {body}").into()
}
