//! The command line: the only module that prints, and with `home` the only one that
//! reads the environment.
//!
//! Data goes to stdout, everything else to stderr. A command sends a request to the
//! courier and prints the response; it makes no decisions.

use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, Parser, Subcommand};
use serde_json::json;

use client::Client;
use failure::{CliError, CliExit};
use monoco_courier::home::Home;
use output::OutputFormat;
use remote::RemoteCourier;

mod approve;
mod backup;
mod center;
mod client;
mod complete;
mod contact;
mod courier;
mod dead;
mod demo;
mod doctor;
mod email;
mod events;
mod failure;
mod forget;
mod halt;
mod mailbox;
mod mcp;
mod message;
mod open;
mod output;
mod pipeline;
mod remote;
mod restore;
mod search;
mod sim;
mod since;
mod store;
mod table;
mod token;
mod trace;
mod tunnel;

/// Shown below the help of `monoco`.
const EXIT_CODES: &str = "\
Exit codes:
  0   success
  1   there is no such item, its state does not allow the operation, or a check failed
  2   held by another agent or process
  3   courier not running
  4   error of the courier
  64  invalid command line
  74  a local file or directory cannot be read or written

`monoco courier start` has its own exit codes: 1 failed, 2 already running, 3 permission denied,
4 port in use.

Environment:
  MONOCO_HOME   directory of the courier, as --home
  MONOCO_URL    address of a courier on another machine, such as https://hub.example.com:8646;
                commands use it instead of the courier of this machine
  MONOCO_TOKEN  token for MONOCO_URL, made by `monoco token add` on that machine
                (or MONOCO_TOKEN_FILE: a file that has it)
  MONOCO_CA     PEM file with CA certificates to trust beside those of the system
  HTTPS_PROXY   proxy for MONOCO_URL, unless NO_PROXY names its host

Errors in JSON (--json): {\"code\", \"message\", \"hint\"}. An id can be shortened to a unique
prefix.";

/// Message hub for people and AI agents
///
/// One courier per user runs in the background; these commands send requests to it.
/// Start it with `monoco courier start`.
#[derive(Debug, Parser)]
#[command(name = "monoco", version, max_term_width = 100, after_long_help = EXIT_CODES)]
struct Cli {
    /// Directory of the courier [default: ~/.monoco]
    #[arg(long, global = true, env = "MONOCO_HOME", value_name = "DIR", hide_env_values = true)]
    home: Option<PathBuf>,

    /// Output format: table, json, compact or id
    #[arg(long, global = true, value_enum, default_value_t, hide_possible_values = true)]
    format: OutputFormat,

    /// Print JSON, same as --format json; errors are then JSON on stderr
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Start, stop and inspect the courier
    #[command(subcommand)]
    Courier(courier::CourierCommand),
    /// Pull, read, claim and answer Mails of a workspace
    Mailbox(mailbox::MailboxArgs),
    /// Send messages, and read boxes and records
    #[command(subcommand)]
    Center(center::CenterCommand),
    /// Manage contacts, groups and their bindings
    #[command(subcommand)]
    Contact(contact::ContactCommand),
    /// Add, test, pause and remove tunnels to providers
    #[command(subcommand)]
    Tunnel(tunnel::TunnelCommand),
    /// Add, inspect and steer e-mail accounts
    #[command(subcommand)]
    Email(email::EmailCommand),
    /// Inspect and steer letters in the pipeline
    #[command(subcommand)]
    Pipeline(pipeline::PipelineCommand),
    /// List, retry and drop dead letters: claims, deliveries, letters, drafts and e-mail tasks
    #[command(subcommand)]
    Dead(dead::DeadCommand),
    /// List, approve, reject and edit messages that wait for a person
    #[command(subcommand)]
    Approve(approve::ApproveCommand),
    /// Stop all deliveries, or those of one agent or tunnel
    ///
    /// When the command returns, no further attempt starts, also not through tunnels of other
    /// programs; it prints how many are in progress. Messages that agents send meanwhile are held
    /// for approval. Example: monoco halt --agent codex --lock
    Halt(halt::HaltArgs),
    /// Resume deliveries after `monoco halt`
    Resume(halt::HaltScopeArgs),
    /// Show the event log, or follow it
    Events(events::EventsArgs),
    /// Show the history of one message, found by any of its ids
    Trace(trace::TraceArgs),
    /// Open the web page in the browser
    ///
    /// Logs in the browser by a code that is valid once, for 60 s. The browser stays logged in for
    /// 30 days, or until `monoco open --revoke`.
    Open(open::OpenArgs),
    /// Search received and sent messages
    ///
    /// Finds messages that meet all words and filters, the newest first. Finds parts of words in
    /// Chinese, Japanese and Korean; elsewhere whole words, and beginnings with `*`. Needs a
    /// running courier. Examples: monoco search 部署 from:ann since:7d;
    /// monoco search '"build is red"' has:link --order relevance
    Search(search::SearchArgs),
    /// Print or replace the owner's token, and manage the tokens of agents
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Serve an MCP client over stdin and stdout
    ///
    /// Forwards JSON-RPC messages to the running courier, or to that of MONOCO_URL, with the token of
    /// the agent in the environment variable MONOCO_TOKEN. Example of a command for an MCP client:
    /// claude mcp add monoco --env MONOCO_TOKEN=$TOKEN -- monoco mcp
    Mcp,
    /// Check the installation and print what to fix
    ///
    /// Checks config, permissions, disk, clock, ports, the courier, its store, tunnels and
    /// files. Exits with 1 when a check fails.
    Doctor,
    /// Back up the store, the attachments and the config to a new directory
    ///
    /// Works while the courier runs: the copy is one consistent snapshot, checked and synced. Mail
    /// files are not copied, because the courier writes them again from the store. The backup
    /// contains messages and may contain secrets; only you can read it. Example:
    /// monoco backup /mnt/backups/monoco-2026-02-06
    Backup(backup::BackupArgs),
    /// Restore a backup into an empty home directory
    ///
    /// Checks the backup first. Deliveries that wait are HELD, because they may have been sent
    /// after the backup; --resend keeps them waiting. Example:
    /// monoco --home ~/.monoco-new restore /mnt/backups/monoco-2026-02-06
    Restore(restore::RestoreArgs),
    /// Copy the store to another database
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Erase what a person wrote
    ///
    /// Messages, Mails and letters of the person become tombstones; in a Mail of several authors
    /// the person's messages are replaced by `[erased]`. Attachments without other references, the
    /// contact and its bindings are removed. Accounts that are bound to the contact are erased
    /// too. Shows the counts and asks first. Needs a running courier. Example:
    /// monoco forget joe@example.com --dry-run
    Forget(forget::ForgetArgs),
    /// Run a demo: a group chat becomes Mails, which are claimed and answered
    ///
    /// Takes less than a minute. Uses a temporary directory and a courier of its own; your
    /// data is not touched.
    Demo(demo::DemoArgs),
    /// Emulate a chat network on this machine, for trials without an account and for tests
    #[command(subcommand)]
    Sim(sim::SimCommand),
    /// Print a completion script for a shell
    ///
    /// The scripts for bash, zsh and fish also complete ids, tunnels and contacts. Example:
    /// source <(monoco completions bash)
    Completions {
        /// Shell to generate for: bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
    /// Print candidates for the last word of a command line
    #[command(name = "__complete", hide = true)]
    Complete {
        #[arg(last = true)]
        words: Vec<String>,
    },
    /// Write a man page for each command to a directory
    ///
    /// Example: monoco man ~/.local/share/man/man1
    Man {
        /// Directory for the pages; created if it does not exist
        dir: PathBuf,
    },
}

/// Home directory and output format of one command.
struct CliContext {
    home: Home,
    format: OutputFormat,
    /// The courier of `MONOCO_URL`, if it is set.
    remote: Option<Arc<RemoteCourier>>,
}

impl CliContext {
    fn client(&self) -> Result<Client, CliError> {
        match &self.remote {
            Some(remote) => Ok(Client::Remote(Arc::clone(remote))),
            None => Client::find(&self.home),
        }
    }
}

impl CliCommand {
    /// Whether the command reads or writes files of the courier, or is for its owner only.
    const fn is_local(&self) -> bool {
        use email::EmailCommand;
        use pipeline::PipelineCommand;
        use tunnel::TunnelCommand;
        matches!(
            self,
            Self::Courier(_)
                | Self::Open(_)
                | Self::Token(_)
                | Self::Doctor
                | Self::Backup(_)
                | Self::Restore(_)
                | Self::Store(_)
                | Self::Forget(_)
                | Self::Demo(_)
                | Self::Tunnel(TunnelCommand::Add(_) | TunnelCommand::Remove { .. })
                | Self::Email(EmailCommand::Add(_) | EmailCommand::Remove { .. })
                | Self::Pipeline(PipelineCommand::Try(_))
        )
    }
}

/// The error of a command that needs the machine of the courier.
fn only_local(remote: &RemoteCourier) -> CliError {
    let message = format!(
        "this command works only on the machine of the courier, and MONOCO_URL names {}",
        remote.url()
    );
    CliError::new(CliExit::NotPossible, message)
        .code("only_local")
        .hint("run it on that machine, or unset MONOCO_URL to use the courier of this machine")
}

/// Runs a command on an id, or for `-` on each id of stdin. An id that fails does not stop the
/// others.
async fn for_each_id(
    context: &CliContext,
    id: String,
    run: impl AsyncFn(&str) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let ids = mailbox::read_ids(vec![id])?;
    let mut failures = Vec::new();
    for id in &ids {
        failures.extend(run(id).await.err());
    }
    mailbox::worst(context.format, failures, ids.len())
}

/// Parses the arguments, runs the command and returns its exit code.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            output::print_usage_error(&error, requested_json());
            return CliExit::Usage.into();
        }
        Err(error) => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
    };
    let format = if cli.json { OutputFormat::Json } else { cli.format };
    match run(cli, format) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::print_error(format, &failure);
            failure.exit.into()
        }
    }
}

/// Whether an invalid command line asks for JSON.
fn requested_json() -> bool {
    let args: Vec<_> = std::env::args_os().take_while(|arg| arg != "--").collect();
    args.iter().any(|arg| arg == "--json" || arg == "--format=json")
        || args.windows(2).any(|pair| pair[0] == "--format" && pair[1] == "json")
}

/// Returns the given home directory, or `~/.monoco`.
fn find_home(given: Option<PathBuf>) -> Result<Home, CliError> {
    let home = match given {
        Some(home) => home,
        None => std::env::home_dir()
            .filter(|home| !home.as_os_str().is_empty())
            .ok_or_else(|| {
                CliError::new(CliExit::NotPossible, "cannot find your home directory")
                    .hint("set MONOCO_HOME to a directory that you own")
            })?
            .join(".monoco"),
    };
    Ok(Home::new(std::path::absolute(home)?))
}

fn run(cli: Cli, format: OutputFormat) -> Result<(), CliError> {
    let remote = RemoteCourier::from_environment(|name| std::env::var_os(name))?;
    let context = CliContext { home: find_home(cli.home)?, format, remote: remote.map(Arc::new) };
    if let Some(remote) = context.remote.as_ref().filter(|_| cli.command.is_local()) {
        return Err(only_local(remote));
    }
    match cli.command {
        CliCommand::Courier(command) => courier::run(&context, command),
        CliCommand::Mailbox(args) => mailbox::run(&context, args),
        CliCommand::Center(command) => block_on(center::run(&context, command)),
        CliCommand::Contact(command) => block_on(contact::run(&context, command)),
        CliCommand::Tunnel(command) => block_on(tunnel::run(&context, command)),
        CliCommand::Email(command) => block_on(email::run(&context, command)),
        CliCommand::Pipeline(command) => block_on(pipeline::run(&context, command)),
        CliCommand::Dead(command) => block_on(dead::run(&context, command)),
        CliCommand::Approve(command) => block_on(approve::run(&context, command)),
        CliCommand::Halt(args) => block_on(halt::halt(&context, args)),
        CliCommand::Resume(args) => block_on(halt::resume(&context, args)),
        CliCommand::Events(args) => block_on(events::run(&context, args)),
        CliCommand::Trace(args) => block_on(trace::run(&context, args)),
        CliCommand::Open(args) => block_on(open::run(&context, args)),
        CliCommand::Search(args) => block_on(search::run(&context, args)),
        CliCommand::Token(command) => block_on(token::run(&context, command)),
        CliCommand::Mcp => block_on(mcp::run(&context)),
        CliCommand::Doctor => block_on(doctor::run(&context)),
        CliCommand::Backup(args) => backup::run(&context, &args),
        CliCommand::Restore(args) => block_on(restore::run(&context, &args)),
        CliCommand::Store(command) => block_on(store::run(&context, command)),
        CliCommand::Forget(args) => block_on(forget::run(&context, args)),
        CliCommand::Demo(args) => block_on(demo::run(args)),
        CliCommand::Sim(command) => block_on(sim::run(&context, command)),
        CliCommand::Completions { shell } => {
            let script = complete::script(shell).map_or_else(
                || {
                    let mut script = Vec::new();
                    clap_complete::generate(shell, &mut Cli::command(), "monoco", &mut script);
                    String::from_utf8_lossy(&script).into_owned()
                },
                str::to_owned,
            );
            output::print(script.trim_end())
        }
        CliCommand::Complete { words } => block_on(complete::run(&context, Cli::command(), &words)),
        CliCommand::Man { dir } => {
            std::fs::create_dir_all(&dir)?;
            clap_mangen::generate_to(Cli::command(), &dir)?;
            let message = format!("wrote the man pages to {}", dir.display());
            output::done(context.format, &message, &json!({"dir": dir}))
        }
    }
}

/// Runs an asynchronous command. A single-threaded runtime is enough and starts faster.
fn block_on(command: impl Future<Output = Result<(), CliError>>) -> Result<(), CliError> {
    // Of one type, so that the code of the runtime is compiled once and not for each command.
    let command: Pin<Box<dyn Future<Output = _>>> = Box::pin(command);
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argument_definitions_are_consistent() {
        Cli::command().debug_assert();
    }
}
