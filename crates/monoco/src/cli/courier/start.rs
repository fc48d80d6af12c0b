//! `monoco courier start`: in the foreground, or in the background with an answer
//! whether it went well.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::control;
use crate::cli::client::Client;
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{note, shown};
use crate::cli::{CliContext, block_on};
use crate::config::{ConfigSource, default_owner};
use crate::home::{CourierInfo, Home, HomeError};
use crate::log::{self, LogWriter};
use crate::serve::{self, ServeOptions, StartError};

/// How long a courier may take until it answers.
const READY: Duration = Duration::from_secs(30);

/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// How much of the log is searched for the reason.
const REASON: u64 = 64 << 10;

#[derive(Debug, clap::Args)]
pub struct StartArgs {
    /// Stay in the foreground and log to stderr
    #[arg(long)]
    foreground: bool,
    /// We are the courier that another `start` has put into the background
    #[arg(long, hide = true, requires = "foreground")]
    detached: bool,
    #[command(flatten)]
    beyond: Beyond,
}

#[derive(Debug, clap::Args)]
pub struct RestartArgs {
    #[command(flatten)]
    beyond: Beyond,
}

/// What the command line says beyond the config.
#[derive(Debug, clap::Args)]
struct Beyond {
    /// Port to listen on, on loopback only; 0 for any that is free [default: 8644]
    #[arg(long)]
    port: Option<u16>,
    /// Port for webhooks; 0 for any that is free [default: 8645]
    #[arg(long)]
    webhook_port: Option<u16>,
    /// Config to use [default: courier/config.yaml in the courier's directory]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Log more
    #[arg(long)]
    debug: bool,
}

pub fn run(context: &CliContext, args: StartArgs) -> Result<(), CliError> {
    let source = args.beyond.onto(ConfigSource::of(&context.home))?;
    match (args.foreground, args.detached) {
        (_, true) => detached(context, source),
        (true, false) => foreground(context, source),
        (false, false) => background(context, &source),
    }
}

pub fn restart(context: &CliContext, args: RestartArgs) -> Result<(), CliError> {
    let before = context.home.running().and_then(|running| running.config);
    let source = args.beyond.onto(before.unwrap_or_else(|| ConfigSource::of(&context.home)))?;
    match control::stop(&context.home, control::STOP) {
        Ok(()) => note("stopped"),
        Err(failure) if failure.exit == CliExit::NoCourier => note("no courier was running"),
        Err(failure) => return Err(CliError { exit: CliExit::NotPossible, ..failure }),
    }
    background(context, &source)
}

impl Beyond {
    fn onto(self, before: ConfigSource) -> Result<ConfigSource, CliError> {
        let (path, explicit) = match self.config {
            Some(path) => (std::path::absolute(path)?, true),
            None => (before.path, before.explicit),
        };
        Ok(ConfigSource {
            path,
            explicit,
            port: self.port.or(before.port),
            webhook_port: self.webhook_port.or(before.webhook_port),
            debug: self.debug || before.debug,
        })
    }
}

fn foreground(context: &CliContext, config: ConfigSource) -> Result<(), CliError> {
    let log = LogWriter::stderr();
    log.install();
    let home = context.home.clone();
    serve(ServeOptions { home, config, log }, |running| {
        tell(&context.home, running);
        note(&format!(
            "try: {} center send --from {} --to did:msgtunnel:ann.user.stub --text hello",
            program(),
            default_owner()
        ));
    })
}

/// The courier in the background. What it can't log goes to stderr, which is the log too.
fn detached(context: &CliContext, config: ConfigSource) -> Result<(), CliError> {
    // Nobody's terminal ends us. Fails only when we are on our own already.
    let _ = rustix::process::setsid();
    let path = context.home.log();
    let log = LogWriter::file(&path).map_err(|error| denied(HomeError::Io { path, error }))?;
    log.install();
    serve(ServeOptions { home: context.home.clone(), config, log }, |running| {
        let webhooks = running.webhook_address.map(|address| address.to_string());
        tracing::info!(
            version = running.version,
            address = %running.address,
            webhooks = webhooks.as_deref().unwrap_or("none"),
            "the courier listens"
        );
    })?;
    tracing::info!("the courier has stopped");
    Ok(())
}

fn serve(options: ServeOptions, ready: impl FnOnce(&CourierInfo)) -> Result<(), CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    Ok(runtime.block_on(serve::run(options, ready))?)
}

/// Starts the courier as a process of its own, and waits until it answers or is gone.
fn background(context: &CliContext, source: &ConfigSource) -> Result<(), CliError> {
    let home = &context.home;
    home.create().map_err(denied)?;
    if home.is_taken() {
        return Err(denied(HomeError::Taken(home.path().to_owned())));
    }
    let path = home.log();
    let io = |error| denied(HomeError::Io { path: path.clone(), error });
    let log = log::append(&path).map_err(io)?;
    let so_far = log.metadata().map_err(io)?.len();
    let mut child = spawn(home, source, log)?;
    let deadline = Instant::now() + READY;
    loop {
        if let Some(status) = child.try_wait()? {
            return Err(not_started(status, &path, so_far));
        }
        if let Some(running) = answers(home, &child) {
            tell(home, &running);
            note(&format!("log in {}", path.display()));
            return Ok(());
        }
        if Instant::now() > deadline {
            let message = format!(
                "the courier has not answered within {} s; process {} goes on starting",
                READY.as_secs(),
                child.id()
            );
            return Err(CliError::new(CliExit::NotPossible, message)
                .hint("`monoco courier logs` shows what it is at, `monoco courier kill` ends it"));
        }
        std::thread::sleep(LOOK);
    }
}

fn spawn(home: &Home, source: &ConfigSource, log: File) -> Result<Child, CliError> {
    let mut args: Vec<OsString> = vec!["--home".into(), home.path().into()];
    args.extend(["courier", "start", "--foreground", "--detached"].map(OsString::from));
    if source.explicit {
        args.extend(["--config".into(), source.path.clone().into_os_string()]);
    }
    for (name, port) in [("--port", source.port), ("--webhook-port", source.webhook_port)] {
        if let Some(port) = port {
            args.extend([name.into(), port.to_string().into()]);
        }
    }
    if source.debug {
        args.push("--debug".into());
    }
    let mut command = std::process::Command::new(std::env::current_exe()?);
    // It must not keep the directory that we happen to be in.
    command.args(args).current_dir(home.path()).stdin(Stdio::null());
    command.stdout(log.try_clone()?).stderr(log);
    Ok(command.spawn()?)
}

/// The courier, when it is that child and says how it is.
fn answers(home: &Home, child: &Child) -> Option<CourierInfo> {
    let running = home.note()?;
    if u32::try_from(running.pid).ok() != Some(child.id()) {
        return None;
    }
    let client = Client::find(home).ok()?;
    block_on(async { client.health().await.map(drop) }).ok()?;
    Some(running)
}

/// What a courier that did not start has said, and its own exit code.
fn not_started(status: ExitStatus, log: &Path, so_far: u64) -> CliError {
    let exit = status.code().and_then(CliExit::of_start).unwrap_or(CliExit::NotPossible);
    let said = since(log, so_far).unwrap_or_default();
    // It ends with the same words that we would.
    let word = |start: &str| {
        let lines = said.lines().rev();
        lines.filter_map(|line| line.strip_prefix(start)).next().map(str::to_owned)
    };
    let Some(message) = word("error: ") else {
        let last: Vec<_> = said.lines().rev().take(5).collect();
        let last: Vec<_> = last.into_iter().rev().map(shown).collect();
        let message = format!("the courier ended at once ({status})\n{}", last.join("\n"));
        return CliError::new(exit, message.trim_end())
            .hint("`monoco courier start --foreground` shows all of it");
    };
    let failure = CliError::new(exit, message);
    match word(" hint: ") {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// What the log says beyond its first `so_far` bytes; the end of it, if that is much.
fn since(log: &Path, so_far: u64) -> std::io::Result<String> {
    let mut file = File::open(log)?;
    let from = so_far.max(file.metadata()?.len().saturating_sub(REASON));
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(REASON).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Says where the courier is.
fn tell(home: &Home, running: &CourierInfo) {
    note(&format!("monoco {} listens on http://{}", running.version, running.address));
    if let Some(address) = running.webhook_address {
        note(&format!("webhooks on http://{address}/webhooks/TUNNEL"));
    }
    note(&format!("token in {}", home.token_path().display()));
}

/// How we were called: whoever runs it from a fresh build has no `monoco` to type.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "monoco".to_owned())
}

fn denied(error: HomeError) -> CliError {
    StartError::Home(error).into()
}
