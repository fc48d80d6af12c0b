//! `monoco courier`: starts, stops, configures and inspects the courier.

use std::time::Duration;

use serde_json::json;

use super::CliContext;
use super::failure::CliError;
use super::{output, token};

pub mod control;
mod disk_usage;
mod install;
mod logs;
mod start;
mod status;
mod stream;
mod stream_test;

#[derive(Debug, clap::Subcommand)]
pub enum CourierCommand {
    /// Start the courier in the background
    ///
    /// Creates its directory, store and token if they are missing. Returns when the courier
    /// answers requests, within 30 s; otherwise prints why it did not start. The log is
    /// `log/courier.log` in its directory. Exit codes: 1 failed, 2 already running,
    /// 3 permission denied, 4 port in use.
    Start(start::StartArgs),
    /// Stop the courier and wait for its end
    ///
    /// The courier finishes running requests and sends first, for at most 30 s.
    Stop {
        /// Seconds to wait until the process has ended
        #[arg(long, default_value_t = control::STOP_TIMEOUT.as_secs(), value_name = "SECONDS")]
        timeout: u64,
    },
    /// Restart the courier in the background
    ///
    /// Options that are not given keep the values of the last start. Starts the courier also
    /// if it is not running. Exit codes are those of `start`.
    Restart(start::RestartArgs),
    /// Kill the courier without waiting
    ///
    /// Use it when `stop` does not end the courier. Acknowledged messages are stored;
    /// interrupted work is resumed at the next start.
    Kill,
    /// Reload the config of the running courier
    ///
    /// Prints what changed, here and in the log. An invalid config changes nothing.
    Reload,
    /// Show the status of the courier and its tunnels
    Status(status::StatusArgs),
    /// Show the connections through which tunnels receive messages
    ///
    /// For each one: its mode and state, since when, the last frame and message, how often it was
    /// lost, and the last error.
    Stream(stream::StreamArgs),
    /// Connect with the config of a tunnel and show what arrives
    ///
    /// Keeps nothing and acknowledges nothing, so that the provider sends it again. A running
    /// courier stays connected: with several connections, some providers send each message to
    /// only one of them.
    #[command(name = "stream-test")]
    StreamTest(stream_test::StreamTestArgs),
    /// Show the log of the courier
    ///
    /// Only a courier in the background writes this log; a courier in the foreground logs to
    /// stderr.
    Logs(logs::LogsArgs),
    /// Write all mailbox files again
    ///
    /// Restores files that were changed or removed by hand from the store.
    Rebuild {
        /// First restore Mails that the store has lost from intact files
        ///
        /// Use it when the store was lost or damaged and there is no newer backup. The log
        /// lists the Mails that cannot be restored. Claims are not in the files: dead letters
        /// become new Mails.
        #[arg(long)]
        from_files: bool,
        /// Build the search index again instead, in the background of the courier
        #[arg(long, conflicts_with = "from_files")]
        search: bool,
    },
    /// Print the token for API requests, same as `token show`
    Token,
    /// Install the courier as a user service: systemd, or launchd on macOS
    ///
    /// Writes the unit file and prints the commands that enable it. Variables for the config,
    /// such as secrets, can be set in `courier/env` in the courier's directory, one
    /// NAME=VALUE per line.
    Install(install::InstallArgs),
}

pub fn run(context: &CliContext, command: CourierCommand) -> Result<(), CliError> {
    match command {
        CourierCommand::Start(args) => start::run(context, args),
        CourierCommand::Stop { timeout } => {
            control::stop(&context.home, Duration::from_secs(timeout))?;
            output::done(context.format, "courier stopped", &json!({"stopped": true}))
        }
        CourierCommand::Restart(args) => start::restart(context, args),
        CourierCommand::Kill => control::kill(context),
        CourierCommand::Reload => {
            let changes = control::reload(&context.home)?;
            let message = control::describe_reload(&changes);
            output::done(context.format, &message, &json!({"changes": changes}))
        }
        CourierCommand::Status(args) => super::block_on(status::run(context, args)),
        CourierCommand::Stream(args) => super::block_on(stream::run(context, args)),
        CourierCommand::StreamTest(args) => super::block_on(stream_test::run(context, args)),
        CourierCommand::Logs(args) => logs::run(context, args),
        CourierCommand::Rebuild { search: true, .. } => {
            super::block_on(control::rebuild_search(context))
        }
        CourierCommand::Rebuild { from_files, .. } => {
            super::block_on(control::rebuild(context, from_files))
        }
        CourierCommand::Token => token::show(context),
        CourierCommand::Install(args) => install::run(context, &args),
    }
}
