//! The built courier, running in a home of its own, asked as any program would.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::http::Conn;
use super::{Error, Result};

/// How long the courier may take to start.
const START: Duration = Duration::from_secs(60);

/// A running courier and its home. Both are gone when this is.
pub struct Running {
    child: Child,
    /// Where its API is.
    pub addr: SocketAddr,
    /// Where its webhooks are.
    pub webhooks: SocketAddr,
    /// What opens its API.
    pub token: String,
    data: TempDir,
}

/// The command under measurement.
pub fn program() -> &'static str {
    env!("CARGO_BIN_EXE_monoco")
}

impl Running {
    /// Starts it, and waits until it answers.
    pub fn start(data: TempDir) -> Result<Self> {
        let note = data.path().join("run/courier.json");
        // A note of an earlier one would be believed.
        let _ = std::fs::remove_file(&note);
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
        let note = loop {
            if let Ok(note) = std::fs::read_to_string(&note) {
                break note;
            }
            if let Some(status) = running.child.try_wait()? {
                return Err(format!("the courier ended at once ({status})").into());
            }
            if started.elapsed() > START {
                return Err(format!("the courier is not ready after {START:?}").into());
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let address = |key: &str| -> Result<SocketAddr> {
            Ok(between(note.as_bytes(), key, "\"").ok_or("no address")?.parse()?)
        };
        running.addr = address(r#""address":""#)?;
        running.webhooks = address(r#""webhook_address":""#)?;
        running.token = std::fs::read_to_string(running.data.path().join("run/courier.token"))?;
        let mut conn = Conn::open(running.addr, &running.token, "application/json")?;
        let next = "/api/v1/boxes/did:monoco:me/INBOX/next";
        let (status, answer) = conn.post(next, br#"{"states":["NONE"]}"#)?;
        // It knows no such state, and says so: it is there.
        if status == 422 { Ok(running) } else { Err(refused(status, answer)) }
    }

    /// The id of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where its files are.
    pub fn home(&self) -> &Path {
        self.data.path()
    }

    /// A command that speaks to it.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(args).env("MONOCO_HOME", self.home());
        command
    }

    /// Ends it in good order, and keeps its home.
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

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself; either way there is none to wait for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What stands between two marks.
pub fn between<'a>(text: &'a [u8], start: &str, end: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(text).ok()?;
    text.split_once(start)?.1.split_once(end).map(|(found, _)| found)
}

/// An answer that is not the one hoped for, in words.
pub fn refused(status: u16, answer: &[u8]) -> Error {
    let said: String = String::from_utf8_lossy(answer).chars().take(300).collect();
    format!("the answer was {status}: {said}").into()
}
