//! The command line. The only place that prints, and with `home` the only one
//! that reads the environment.
//!
//! Data goes to stdout, everything else to stderr. Commands translate: they ask
//! the courier and show its answer.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::home::Home;
use client::Client;
use failure::{CliError, CliExit};
use output::OutputFormat;

mod center;
mod client;
mod contact;
mod courier;
mod dead;
mod demo;
mod doctor;
mod events;
mod failure;
mod mailbox;
mod message;
mod output;
mod pipeline;
mod since;
mod trace;

/// One post office for people and AI agents
///
/// A courier runs in the background for each user; these commands talk to it.
/// Start one with `monoco courier start`.
#[derive(Debug, Parser)]
#[command(name = "monoco", version, max_term_width = 100)]
struct Cli {
    /// Directory the courier lives in [default: ~/.monoco]
    #[arg(long, global = true, env = "MONOCO_HOME", value_name = "DIR", hide_env_values = true)]
    home: Option<PathBuf>,

    /// Form of the output: table, json, compact or id
    #[arg(long, global = true, value_enum, default_value_t, hide_possible_values = true)]
    format: OutputFormat,

    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run the courier, and ask how it is
    #[command(subcommand)]
    Courier(courier::CourierCommand),
    /// The Mails of a workspace: pull, read, claim, answer
    Mailbox(mailbox::MailboxArgs),
    /// Messages and boxes
    #[command(subcommand)]
    Center(center::CenterCommand),
    /// People, groups, and how to reach them
    #[command(subcommand)]
    Contact(contact::ContactCommand),
    /// Letters on their way through the post office, and its workers
    #[command(subcommand)]
    Pipeline(pipeline::PipelineCommand),
    /// What was given up: claims, deliveries and letters, on one desk
    #[command(subcommand)]
    Dead(dead::DeadCommand),
    /// Show what happened
    Events(events::EventsArgs),
    /// Follow one message through everything that happened to it
    Trace(trace::TraceArgs),
    /// Look at everything a courier needs, and say what to do
    ///
    /// Config, permissions, disk, clock, ports, the courier, its store, tunnels and
    /// files. Exit code 1 when something must be done.
    Doctor,
    /// See a group chat become Mails, be claimed and answered, within a minute
    ///
    /// Plays in a directory of its own that is removed afterwards, with a courier of its
    /// own: nothing of yours is touched.
    Demo(demo::DemoArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// What every command works with.
struct CliContext {
    home: Home,
    format: OutputFormat,
}

impl CliContext {
    fn client(&self) -> Result<Client, CliError> {
        Client::find(&self.home)
    }
}

/// Parses, runs, and says how it went.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            output::misunderstood(&error);
            return CliExit::Usage.into();
        }
        Err(error) => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::fail(&failure);
            failure.exit.into()
        }
    }
}

fn run(cli: Cli) -> Result<(), CliError> {
    let home = match cli.home {
        Some(home) => home,
        None => std::env::home_dir()
            .filter(|home| !home.as_os_str().is_empty())
            .ok_or_else(|| {
                CliError::new(CliExit::NotPossible, "there is no home directory")
                    .hint("set MONOCO_HOME to a directory of your own")
            })?
            .join(".monoco"),
    };
    let home = std::path::absolute(home)?;
    let context = CliContext { home: Home::new(home), format: cli.format };
    match cli.command {
        CliCommand::Courier(command) => courier::run(&context, command),
        CliCommand::Mailbox(args) => mailbox::run(&context, args),
        CliCommand::Center(command) => ask(center::run(&context, command)),
        CliCommand::Contact(command) => ask(contact::run(&context, command)),
        CliCommand::Pipeline(command) => ask(pipeline::run(&context, command)),
        CliCommand::Dead(command) => ask(dead::run(&context, command)),
        CliCommand::Events(args) => ask(events::run(&context, args)),
        CliCommand::Trace(args) => ask(trace::run(&context, args)),
        CliCommand::Doctor => ask(doctor::run(&context)),
        CliCommand::Demo(args) => ask(demo::run(args)),
        CliCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "monoco", &mut script);
            output::print(String::from_utf8_lossy(&script).trim_end())
        }
    }
}

/// Runs a command that talks to the courier. One thread is enough for that, and
/// quicker to start.
fn ask(command: impl Future<Output = Result<(), CliError>>) -> Result<(), CliError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
