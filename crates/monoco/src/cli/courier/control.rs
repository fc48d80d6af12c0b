//! `monoco courier stop`, `kill`, `reload` and `rebuild`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use monoco_store::sqlite::SqliteStore;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::cli::CliContext;
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, note};
use crate::config;
use crate::courier::mailbox_check;
use crate::home::{CourierInfo, Home};

/// How long `stop` waits: what is under way has 30 s.
pub const STOP: Duration = Duration::from_secs(35);

/// How long a killed process may take to be gone.
const KILLED: Duration = Duration::from_secs(10);

/// How long a courier may take to read its config.
const RELOADED: Duration = Duration::from_secs(5);

/// Tells the courier to stop, and waits until it is gone.
pub fn stop(home: &Home, timeout: Duration) -> Result<(), CliError> {
    let pid = holder(home)?;
    signal(pid, Signal::TERM)?;
    if gone(home, pid, timeout) {
        return Ok(());
    }
    let message = format!(
        "process {pid} has not stopped within {} s",
        timeout.as_secs(),
        pid = pid.as_raw_nonzero()
    );
    Err(CliError::new(CliExit::Courier, message)
        .hint("wait, or end it with `monoco courier kill`; what was acknowledged is safe"))
}

/// Ends the courier without asking.
pub fn kill(home: &Home) -> Result<(), CliError> {
    let pid = holder(home)?;
    signal(pid, Signal::KILL)?;
    let number = pid.as_raw_nonzero();
    if !gone(home, pid, KILLED) {
        let message = format!("process {number} was killed and is not gone yet");
        return Err(CliError::new(CliExit::Courier, message));
    }
    note(&format!("killed process {number}; what was under way is taken up at the next start"));
    Ok(())
}

/// Has the courier read its config, and shows what it says to that.
pub fn reload(home: &Home) -> Result<(), CliError> {
    let number = |running: &CourierInfo| running.reload.as_ref().map_or(0, |last| last.number);
    let before = home.running().ok_or_else(CliError::no_courier)?;
    signal(holder(home)?, Signal::HUP)?;
    let deadline = Instant::now() + RELOADED;
    let said = loop {
        let now = home.note().filter(|now| number(now) > number(&before));
        match now.and_then(|now| now.reload) {
            Some(said) => break said,
            None if Instant::now() > deadline => {
                let message = "the courier has not said that it reloaded its config";
                return Err(CliError::new(CliExit::Courier, message)
                    .hint("`monoco courier logs` shows what it is at"));
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    if let Some(error) = said.error {
        return Err(CliError::new(CliExit::NotPossible, format!("config not reloaded: {error}"))
            .hint("correct it; the courier runs on with the one it had"));
    }
    if said.changes.is_empty() {
        note("config reloaded, nothing changed");
    }
    for change in said.changes {
        note(&format!("config reloaded: {}", output::shown(&change)));
    }
    Ok(())
}

/// Has the mailbox's files written again: by the courier, or by us when none runs.
pub async fn rebuild(context: &CliContext) -> Result<(), CliError> {
    let answer = match context.client() {
        Ok(client) => client.post("/api/v1/mailbox/rebuild", &json!({})).await?,
        Err(failure) if failure.exit == CliExit::NoCourier => {
            rebuild_offline(&context.home).await?
        }
        Err(failure) => return Err(failure),
    };
    let fields: Vec<(&str, &str)> = match answer.as_object() {
        Some(figures) => figures.keys().map(|key| (key.as_str(), key.as_str())).collect(),
        None => Vec::new(),
    };
    output::one(context.format, &answer, "written", &fields)
}

async fn rebuild_offline(home: &Home) -> Result<Value, CliError> {
    let path = home.store();
    if !path.exists() {
        return Err(CliError::new(CliExit::NotPossible, "there is no store to make files from"));
    }
    let failed = |error: String| CliError::new(CliExit::NotPossible, error);
    let mailbox = config::mailbox(home).map_err(|error| failed(error.to_string()))?;
    // No courier may start meanwhile.
    let lock = home.lock()?;
    note("no courier is running; doing it without");
    let store = SqliteStore::open(&path).map_err(|error| failed(error.to_string()))?;
    let rebuilt = mailbox_check::rebuild_offline(Arc::new(store), mailbox, home.dropzone()).await;
    home.withdraw();
    drop(lock);
    let rebuilt = rebuilt.map_err(|error| failed(error.to_string()))?;
    Ok(json!(crate::api::views::mails::RebuildView::from(rebuilt)))
}

/// The process that holds the home.
fn holder(home: &Home) -> Result<Pid, CliError> {
    home.holder().ok_or_else(CliError::no_courier)
}

fn signal(pid: Pid, signal: Signal) -> Result<(), CliError> {
    kill_process(pid, signal).map_err(|error| {
        let message = format!("can't signal process {}: {error}", pid.as_raw_nonzero());
        CliError::new(CliExit::Courier, message)
    })
}

/// Whether that courier is gone within that time. The lock says so: it is free, or has
/// another holder already.
fn gone(home: &Home, pid: Pid, within: Duration) -> bool {
    let deadline = Instant::now() + within;
    while home.is_taken() && home.holder().is_none_or(|holder| holder == pid) {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}
