//! `monoco courier stop`, `kill`, `reload` and `rebuild`.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::logs;
use crate::cli::Context;
use crate::cli::failure::{Exit, Failure};
use crate::cli::output::{self, note};
use crate::home::Home;

/// How long `stop` waits: what is under way has 30 s.
pub const STOP: Duration = Duration::from_secs(35);

/// How long a killed process may take to be gone.
const KILLED: Duration = Duration::from_secs(10);

/// How long a courier may take to read its config.
const RELOADED: Duration = Duration::from_secs(5);

/// Tells the courier to stop, and waits until it is gone.
pub fn stop(home: &Home, timeout: Duration) -> Result<(), Failure> {
    let pid = holder(home)?;
    signal(pid, Signal::TERM)?;
    if gone(home, timeout) {
        return Ok(());
    }
    let message = format!(
        "process {pid} has not stopped within {} s",
        timeout.as_secs(),
        pid = pid.as_raw_nonzero()
    );
    Err(Failure::new(Exit::Courier, message)
        .hint("wait, or end it with `monoco courier kill`; what was acknowledged is safe"))
}

/// Ends the courier without asking.
pub fn kill(home: &Home) -> Result<(), Failure> {
    let pid = holder(home)?;
    signal(pid, Signal::KILL)?;
    let number = pid.as_raw_nonzero();
    if !gone(home, KILLED) {
        let message = format!("process {number} was killed and is not gone yet");
        return Err(Failure::new(Exit::Courier, message));
    }
    home.withdraw();
    note(&format!("killed process {number}; what was under way is taken up at the next start"));
    Ok(())
}

/// Has the courier read its config, and shows what it says to that.
pub fn reload(home: &Home) -> Result<(), Failure> {
    let running = home.running().ok_or_else(Failure::no_courier)?;
    let Some(log) = running.log else {
        signal(holder(home)?, Signal::HUP)?;
        note("told it to; what changed is said where it was started");
        return Ok(());
    };
    let mut log = logs::Tail::at_end(&log)?;
    signal(holder(home)?, Signal::HUP)?;
    let deadline = Instant::now() + RELOADED;
    let mut said = 0;
    while Instant::now() < deadline {
        let lines = log.next()?;
        let about: Vec<_> = lines.lines().filter(|line| line.contains(": config ")).collect();
        for line in &about {
            let words = line.split_once(": ").map_or(*line, |(_, words)| words);
            note(&output::shown(words));
        }
        if about.iter().any(|line| line.contains(" ERROR ")) {
            return Err(Failure::new(Exit::NotPossible, "the config was not reloaded")
                .hint("the courier runs on with the one it had; `monoco doctor` checks the file"));
        }
        // Its lines come one by one; when no more come, that was it.
        if about.is_empty() && said > 0 {
            return Ok(());
        }
        said += about.len();
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(Failure::new(Exit::Courier, "the courier has not said that it reloaded its config")
        .hint("`monoco courier logs` shows what it is at"))
}

/// Has the mailbox's files written again.
pub async fn rebuild(context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let answer = client.post("/api/v1/mailbox/rebuild", &json!({})).await?;
    let fields: Vec<(&str, &str)> = match answer.as_object() {
        Some(figures) => figures.keys().map(|key| (key.as_str(), key.as_str())).collect(),
        None => Vec::new(),
    };
    output::one(context.format, &answer, "written", &fields)
}

/// The process that holds the home.
fn holder(home: &Home) -> Result<Pid, Failure> {
    home.holder().ok_or_else(Failure::no_courier)
}

fn signal(pid: Pid, signal: Signal) -> Result<(), Failure> {
    kill_process(pid, signal).map_err(|error| {
        let message = format!("can't signal process {}: {error}", pid.as_raw_nonzero());
        Failure::new(Exit::Courier, message)
    })
}

/// Whether the lock is free within that time: it says when a courier is really gone.
fn gone(home: &Home, within: Duration) -> bool {
    let deadline = Instant::now() + within;
    while home.is_taken() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}
