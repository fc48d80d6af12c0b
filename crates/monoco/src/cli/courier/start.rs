//! `monoco courier start` and `restart`: run the courier in the foreground, or start it in
//! the background and wait until it answers.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use super::control;
use crate::cli::client::Client;
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, OutputFormat, escape_line, note};
use crate::cli::{CliContext, block_on};
use monoco_courier::config::{ConfigSource, default_owner};
use monoco_courier::home::{CourierInfo, Home, HomeError};
use monoco_courier::log::{self, LogWriter};
use monoco_courier::serve::{self, ServeOptions, StartError};

/// How long `start` waits until the courier answers.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// How often `start` checks whether the courier answers.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The variable that limits the arenas of the allocator of glibc. By default each thread gets one
/// of up to 8 arenas per core, and every arena keeps what was once in use: with 10,000 mails, the
/// courier had 80 MiB with 13 arenas, 61 MiB with 4, and 54 MiB with 2.
const ARENAS_VARIABLE: &str = "MALLOC_ARENA_MAX";

/// Arenas for one core, and for many.
const ARENAS: RangeInclusive<usize> = 2..=4;

/// Bytes of the log that are searched for the error of a failed start.
const MAX_LOG_BYTES: u64 = 64 << 10;

#[derive(Debug, clap::Args)]
pub struct StartArgs {
    /// Run in the foreground and log to stderr
    #[arg(long)]
    foreground: bool,
    /// Run as the background process of another `start`
    #[arg(long, hide = true, requires = "foreground")]
    detached: bool,
    #[command(flatten)]
    options: StartOptions,
}

#[derive(Debug, clap::Args)]
pub struct RestartArgs {
    #[command(flatten)]
    options: StartOptions,
}

/// Options of the command line that override the config.
#[derive(Debug, clap::Args)]
struct StartOptions {
    /// Port of the API on loopback; 0 selects a free port [default: 8644]
    #[arg(long)]
    port: Option<u16>,
    /// Port for webhooks; 0 selects a free port [default: 8645]
    #[arg(long)]
    webhook_port: Option<u16>,
    /// Path of the config file [default: courier/config.yaml in the courier's directory]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Log at debug level
    #[arg(long)]
    debug: bool,
}

pub fn run(context: &CliContext, args: StartArgs) -> Result<(), CliError> {
    let source = args.options.applied_to(ConfigSource::of(&context.home))?;
    if args.foreground {
        limit_arenas();
    }
    match (args.foreground, args.detached) {
        (_, true) => detached(context, source),
        (true, false) => foreground(context, source),
        (false, false) => background(context, &source),
    }
}

pub fn restart(context: &CliContext, args: RestartArgs) -> Result<(), CliError> {
    let before = context.home.courier().and_then(|courier| courier.config);
    let source =
        args.options.applied_to(before.unwrap_or_else(|| ConfigSource::of(&context.home)))?;
    match control::stop(&context.home, control::STOP_TIMEOUT) {
        Ok(()) => note("courier stopped"),
        Err(failure) if failure.exit == CliExit::NoCourier => note("no courier was running"),
        Err(failure) => return Err(CliError { exit: CliExit::NotPossible, ..failure }),
    }
    background(context, &source)
}

impl StartOptions {
    fn applied_to(self, before: ConfigSource) -> Result<ConfigSource, CliError> {
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

/// Replaces this process by one with few arenas: the allocator reads its settings only when a
/// process starts. Returns when the environment has a limit already, or when it is not possible;
/// the courier then runs with more memory.
fn limit_arenas() {
    if !cfg!(target_env = "gnu") || std::env::var_os(ARENAS_VARIABLE).is_some() {
        return;
    }
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let arenas = cores.clamp(*ARENAS.start(), *ARENAS.end());
    let Ok(program) = std::env::current_exe() else { return };
    let mut args = std::env::args_os();
    let mut command = Command::new(&program);
    command.arg0(args.next().unwrap_or_else(|| program.into_os_string()));
    let error = command.args(args).env(ARENAS_VARIABLE, arenas.to_string()).exec();
    note(&format!("cannot limit the memory of the allocator: {error}"));
}

fn foreground(context: &CliContext, config: ConfigSource) -> Result<(), CliError> {
    let log = LogWriter::stderr();
    log.install();
    let home = context.home.clone();
    serve::run(ServeOptions { home, config, log }, &|running| {
        print_addresses(&context.home, running);
        note(&format!(
            "try: {} center send --from {} --to did:msgtunnel:ann.user.stub --text hello",
            program(),
            default_owner()
        ));
    })?;
    Ok(())
}

/// Runs the background process. Output to stderr goes to the log file too.
fn detached(context: &CliContext, config: ConfigSource) -> Result<(), CliError> {
    // A new session keeps the terminal from ending the courier. Fails only if the process
    // already leads a session.
    let _ = rustix::process::setsid();
    let path = context.home.log();
    let log = LogWriter::file(&path).map_err(|error| denied(HomeError::Io { path, error }))?;
    log.install();
    serve::run(ServeOptions { home: context.home.clone(), config, log }, &|running| {
        tracing::info!(
            version = running.version,
            address = %running.address(),
            webhooks = %running.webhook_address(),
            "courier is listening"
        );
    })?;
    tracing::info!("courier has stopped");
    Ok(())
}

/// Starts the courier as a child process and waits until it answers or ends.
fn background(context: &CliContext, source: &ConfigSource) -> Result<(), CliError> {
    let home = &context.home;
    home.create().map_err(denied)?;
    if home.is_taken() {
        return Err(denied(HomeError::Taken(home.path().to_owned())));
    }
    let path = home.log();
    let io = |error| denied(HomeError::Io { path: path.clone(), error });
    let log = log::append(&path).map_err(io)?;
    let log_start = log.metadata().map_err(io)?.len();
    let mut child = spawn(home, source, log)?;
    let deadline = Instant::now() + READY_TIMEOUT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Err(not_started(status, &path, log_start));
        }
        if let Some(running) = ready_courier(home, &child) {
            if context.format == OutputFormat::Json {
                return output::print_json(&json!({
                    "pid": running.pid,
                    "version": running.version,
                    "address": format!("http://{}", running.address()),
                    "webhooks": format!("http://{}", running.webhook_address()),
                    "token_file": home.token_path(),
                    "log": path,
                }));
            }
            print_addresses(home, &running);
            note(&format!("log file {}", path.display()));
            return Ok(());
        }
        if Instant::now() > deadline {
            let message = format!(
                "the courier did not answer within {} s; process {} is still starting",
                READY_TIMEOUT.as_secs(),
                child.id()
            );
            return Err(CliError::new(CliExit::NotPossible, message)
                .hint("`monoco courier logs` shows its progress, `monoco courier kill` ends it"));
        }
        std::thread::sleep(POLL_INTERVAL);
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
    let mut command = Command::new(std::env::current_exe()?);
    // The courier must not keep the current directory of the user busy.
    command.args(args).current_dir(home.path()).stdin(Stdio::null());
    command.stdout(log.try_clone()?).stderr(log);
    Ok(command.spawn()?)
}

/// Returns the courier's info if it belongs to `child` and the courier answers.
fn ready_courier(home: &Home, child: &Child) -> Option<CourierInfo> {
    let running = home.note()?;
    if u32::try_from(running.pid).ok() != Some(child.id()) {
        return None;
    }
    let client = Client::find(home).ok()?;
    block_on(async { client.health().await.map(drop) }).ok()?;
    Some(running)
}

/// Returns the error and the exit code of a courier that did not start.
fn not_started(status: ExitStatus, log: &Path, log_start: u64) -> CliError {
    let exit = status.code().and_then(CliExit::of_start).unwrap_or(CliExit::NotPossible);
    let output = read_log_from(log, log_start).unwrap_or_default();
    // The courier prints its error in the same form as every command.
    let last_line = |start: &str| {
        let lines = output.lines().rev();
        lines.filter_map(|line| line.strip_prefix(start)).next().map(str::to_owned)
    };
    let Some(message) = last_line("error: ") else {
        let last: Vec<_> = output.lines().rev().take(5).collect();
        let last: Vec<_> = last.into_iter().rev().map(escape_line).collect();
        let message = format!("the courier ended while starting ({status})\n{}", last.join("\n"));
        return CliError::new(exit, message.trim_end())
            .hint("`monoco courier start --foreground` shows the whole output");
    };
    let failure = CliError::new(exit, message);
    match last_line(" hint: ") {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Reads the log after its first `log_start` bytes, at most the last 64 KiB.
fn read_log_from(log: &Path, log_start: u64) -> std::io::Result<String> {
    let mut file = File::open(log)?;
    let from = log_start.max(file.metadata()?.len().saturating_sub(MAX_LOG_BYTES));
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(MAX_LOG_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Prints the addresses of the courier and the path of its token.
fn print_addresses(home: &Home, running: &CourierInfo) {
    note(&format!("monoco {} listens on http://{}", running.version, running.address()));
    note(&format!("webhooks on http://{}/webhooks/TUNNEL", running.webhook_address()));
    if let Some(address) = running.remote {
        note(&format!("other machines on https://{address}"));
    }
    if let Some(problem) = &running.remote_problem {
        note(&format!("courier.remote is not served: {}", escape_line(problem)));
    }
    note(&format!("token file {}", home.token_path().display()));
    if let Some(host) = home.page_host() {
        note(&format!(
            "web page http://{host}:{}/; `monoco open` logs in the browser",
            running.port
        ));
    }
}

/// Returns the program name as the user typed it; a fresh build is not in PATH.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "monoco".to_owned())
}

fn denied(error: HomeError) -> CliError {
    StartError::Home(error).into()
}
