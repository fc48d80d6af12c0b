//! `monoco courier`: run it, and ask how it is.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::Context;
use super::client::Client;
use super::failure::{Exit, Failure};
use super::output::{self, note};
use crate::serve::{self, Options};

/// How long `stop` waits for the courier to finish what is under way.
const STOP: Duration = Duration::from_secs(35);

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Start the courier
    ///
    /// Makes its directory, its store and its token when they are missing, and runs
    /// until it is stopped. Exit codes: 1 failed, 2 already running, 3 permission
    /// denied, 4 port in use.
    Start {
        /// Stay in the foreground and log to stderr
        #[arg(long, required = true)]
        foreground: bool,
        /// Port to listen on, on loopback only; 0 for any that is free
        #[arg(long, default_value_t = 8644)]
        port: u16,
        /// Log more
        #[arg(long)]
        debug: bool,
    },
    /// Stop the courier
    ///
    /// Lets it finish what is under way, at most 30 s.
    Stop,
    /// Show how the courier is
    Status {
        /// Print JSON; the same as --format json
        #[arg(long)]
        json: bool,
    },
    /// Print the token that requests must show
    Token,
}

pub fn run(context: &Context, command: Command) -> Result<(), Failure> {
    match command {
        Command::Start { foreground: _, port, debug } => start(context, port, debug),
        Command::Stop => stop(context),
        Command::Status { json } => super::ask(status(context, json)),
        Command::Token => match context.home.token() {
            Ok(token) => output::print(&token),
            Err(_) => Err(Failure::new(Exit::NotPossible, "there is no token yet")
                .hint("the courier makes one when it starts for the first time")),
        },
    }
}

fn start(context: &Context, port: u16, debug: bool) -> Result<(), Failure> {
    log(if debug { LevelFilter::DEBUG } else { LevelFilter::INFO });
    let options = Options {
        home: context.home.clone(),
        config: crate::config::Source {
            port: Some(port),
            ..crate::config::Source::of(&context.home)
        },
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let token = context.home.token_path();
    // Whoever runs it from a fresh build has no `monoco` to type.
    let program = std::env::args().next().unwrap_or_else(|| "monoco".to_owned());
    runtime.block_on(serve::run(options, |running| {
        note(&format!("monoco {} listens on http://{}", running.version, running.address));
        note(&format!("token in {}", token.display()));
        note(&format!(
            "try: {program} center send --from {} --to did:msgtunnel:ann.user.stub --text hello",
            crate::config::default_owner()
        ));
    }))?;
    Ok(())
}

/// Logs to stderr: ours from `level` on, and of others only what is wrong.
fn log(level: LevelFilter) {
    let targets = Targets::new().with_default(LevelFilter::WARN).with_target("monoco", level);
    let lines = tracing_subscriber::fmt::layer().with_writer(anstream::stderr);
    tracing_subscriber::registry().with(lines).with(targets).init();
}

fn stop(context: &Context) -> Result<(), Failure> {
    let running = context.home.running().ok_or_else(Failure::no_courier)?;
    let pid = Pid::from_raw(running.pid).ok_or_else(Failure::no_courier)?;
    kill_process(pid, Signal::TERM).map_err(|error| {
        Failure::new(Exit::Courier, format!("can't stop process {}: {error}", running.pid))
    })?;
    // The lock says when it is really gone.
    let deadline = Instant::now() + STOP;
    while context.home.lock().is_err() {
        if Instant::now() > deadline {
            let message = format!("process {} has not stopped yet", running.pid);
            return Err(Failure::new(Exit::Courier, message));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    note("stopped");
    Ok(())
}

async fn status(context: &Context, json: bool) -> Result<(), Failure> {
    let client = Client::find(&context.home)?;
    let health = client.health().await?;
    let running = client.running();
    let mut answer = json!({
        "pid": running.pid,
        "address": format!("http://{}", running.address),
        "started_at_ms": running.started_at_ms,
        "home": context.home.path(),
    });
    if let (Some(answer), Some(health)) = (answer.as_object_mut(), health.as_object()) {
        answer.extend(health.clone());
    }
    let format = if json { output::Format::Json } else { context.format };
    output::one(
        format,
        &answer,
        "pid",
        &[
            ("status", "status"),
            ("address", "address"),
            ("version", "version"),
            ("pid", "pid"),
            ("started", "started_at_ms"),
            ("home", "home"),
            ("storage", "storage.status"),
            ("storage detail", "storage.detail"),
            ("received", "metrics.messages_received"),
            ("sent", "metrics.messages_sent"),
            ("pending", "metrics.messages_pending"),
            ("adapters", "adapters"),
        ],
    )
}
