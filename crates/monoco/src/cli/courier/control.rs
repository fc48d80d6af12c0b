//! `monoco courier stop`, `kill`, `reload` and `rebuild`: signals to the running courier,
//! and the rebuild of mailbox files with or without it.

use std::time::{Duration, Instant};

use monoco_store::{FtsIndex, SearchIndex as _, StoreError};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::cli::CliContext;
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, Column, ToCell, note};
use monoco_courier::api::REBUILD_PATH;
use monoco_courier::api::views::mails::RebuildView;
use monoco_courier::api::views::search::SearchRebuildView;
use monoco_courier::clock::wall_now;
use monoco_courier::config::{ConfigSource, StoreConfig};
use monoco_courier::courier::mailbox_check;
use monoco_courier::home::{CourierInfo, Home};
use monoco_courier::open_store::open_store;
use monoco_courier::serve;

/// How long `stop` waits by default: the courier gives running work 30 s.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(35);

/// How long `kill` waits for the end of the process.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long `reload` waits for the result.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends SIGTERM to the courier and waits for its end.
pub fn stop(home: &Home, timeout: Duration) -> Result<(), CliError> {
    let pid = holder(home)?;
    signal(pid, Signal::TERM)?;
    if released_lock(home, pid, timeout) {
        return Ok(());
    }
    let message = format!(
        "courier process {pid} did not stop within {} s",
        timeout.as_secs(),
        pid = pid.as_raw_nonzero()
    );
    Err(CliError::new(CliExit::Courier, message)
        .hint("wait, or run `monoco courier kill`; acknowledged messages are stored"))
}

/// Kills the courier and waits for its end.
pub fn kill(context: &CliContext) -> Result<(), CliError> {
    let home = &context.home;
    let pid = holder(home)?;
    signal(pid, Signal::KILL)?;
    let number = pid.as_raw_nonzero();
    if !released_lock(home, pid, KILL_TIMEOUT) {
        let message = format!("courier process {number} was killed but has not ended within 10 s");
        return Err(CliError::new(CliExit::Courier, message));
    }
    let message = format!("killed process {number}; interrupted work is resumed at the next start");
    output::done(context.format, &message, &json!({"killed": number}))
}

/// Sends SIGHUP to the courier and returns what the reload has changed.
pub fn reload(home: &Home) -> Result<Vec<String>, CliError> {
    let number = |running: &CourierInfo| running.reload.as_ref().map_or(0, |last| last.number);
    let before = home.running().ok_or_else(CliError::no_courier)?;
    signal(holder(home)?, Signal::HUP)?;
    let deadline = Instant::now() + RELOAD_TIMEOUT;
    let result = loop {
        let now = home.note().filter(|now| number(now) > number(&before));
        match now.and_then(|now| now.reload) {
            Some(result) => break result,
            None if Instant::now() > deadline => {
                let message = "the courier did not confirm the reload within 5 s";
                return Err(CliError::new(CliExit::Courier, message)
                    .hint("`monoco courier logs` shows what the courier is doing"));
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    if let Some(error) = result.error {
        return Err(CliError::new(CliExit::NotPossible, format!("config not reloaded: {error}"))
            .hint("fix the config; the courier keeps the previous one"));
    }
    Ok(result.changes)
}

/// Describes what a reload has changed, for people.
pub fn describe_reload(changes: &[String]) -> String {
    if changes.is_empty() {
        return "config reloaded, nothing changed".to_owned();
    }
    let line = |change: &String| format!("config reloaded: {}", output::escape_line(change));
    changes.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Rebuilds the mailbox files: through the courier, or directly when no courier is running.
/// Empties the search index. A courier that does not run builds it after its next start.
pub async fn rebuild_search(context: &CliContext) -> Result<(), CliError> {
    match context.client() {
        Ok(client) => {
            let _: SearchRebuildView = client.post("/api/v1/search/rebuild", &json!({})).await?;
        }
        Err(failure) if failure.exit == CliExit::NoCourier => {
            // The lock keeps a courier from starting meanwhile.
            let _lock = context.home.lock()?;
            let failed = |error: StoreError| CliError::new(CliExit::NotPossible, error.to_string());
            FtsIndex::open(&context.home.store()).map_err(failed)?.clear().await.map_err(failed)?;
            context.home.withdraw();
        }
        Err(failure) => return Err(failure),
    }
    let message = "the courier builds the search index again in the background";
    output::done(context.format, message, &json!({"rebuilding": true}))
}

pub async fn rebuild(context: &CliContext, from_files: bool) -> Result<(), CliError> {
    let result: RebuildView = match context.client() {
        Ok(client) => {
            let path = format!("{REBUILD_PATH}?from_files={from_files}");
            client.post(&path, &json!({})).await?
        }
        Err(failure) if failure.exit == CliExit::NoCourier => {
            rebuild_offline(&context.home, from_files).await?
        }
        Err(failure) => return Err(failure),
    };
    let fields: &[Column<RebuildView>] = &[
        ("mails", |result| result.mails.cell()),
        ("written", |result| result.written.cell()),
        ("moved", |result| result.moved.cell()),
        ("removed", |result| result.removed.cell()),
        ("bad", |result| result.bad.cell()),
        ("foreign", |result| result.foreign.cell()),
        ("restored", |result| result.restored.cell()),
        ("lost", |result| result.lost.cell()),
    ];
    output::one(context.format, &result, &result.written.to_string(), fields)
}

async fn rebuild_offline(home: &Home, from_files: bool) -> Result<RebuildView, CliError> {
    let failed = |error: String| CliError::new(CliExit::NotPossible, error);
    let config = ConfigSource::of(home).load().map_err(|error| failed(error.to_string()))?;
    if config.store == StoreConfig::Sqlite && !home.store().exists() && !from_files {
        return Err(CliError::new(
            CliExit::NotPossible,
            "there is no store to rebuild the mailbox from",
        )
        .hint("`monoco courier start` creates the store"));
    }
    home.create()?;
    // The lock keeps a courier from starting meanwhile.
    let lock = home.lock()?;
    note("no courier is running; rebuilding from the store directly");
    let courier = home.courier_id()?;
    let opened = open_store(home, courier, &config.store).await;
    let store = opened.map_err(|error| {
        failed(format!("cannot open the store in {}: {error}", config.store.place(home)))
    })?;
    let mut owner = None;
    if from_files {
        let now = wall_now();
        let added = serve::add_owner(&store, &config.owner, now).await;
        added.map_err(|error| failed(error.to_string()))?;
        owner = Some((config.owner.clone(), now));
    }
    let (mailbox, dropzone) = (config.mailbox(home), home.dropzone());
    let rebuilt = mailbox_check::rebuild_offline(store, courier, mailbox, dropzone, owner).await;
    home.withdraw();
    drop(lock);
    let rebuilt = rebuilt.map_err(|error| failed(error.to_string()))?;
    Ok(rebuilt.into())
}

/// Returns the process that holds the lock of the home directory.
fn holder(home: &Home) -> Result<Pid, CliError> {
    home.holder().ok_or_else(CliError::no_courier)
}

fn signal(pid: Pid, signal: Signal) -> Result<(), CliError> {
    kill_process(pid, signal).map_err(|error| {
        let message = format!("cannot signal process {}: {error}", pid.as_raw_nonzero());
        CliError::new(CliExit::Courier, message)
    })
}

/// Returns whether the courier process has released the lock of the home directory within
/// that time. A lock with another holder counts as released.
fn released_lock(home: &Home, pid: Pid, within: Duration) -> bool {
    let deadline = Instant::now() + within;
    while home.is_taken() && home.holder().is_none_or(|holder| holder == pid) {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}
