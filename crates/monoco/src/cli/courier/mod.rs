//! `monoco courier`: run it, stop it, and ask how it is.

use std::time::Duration;

use super::CliContext;
use super::failure::{CliError, CliExit};
use super::output;

mod control;
mod install;
mod logs;
mod start;
mod status;

#[derive(Debug, clap::Subcommand)]
pub enum CourierCommand {
    /// Start the courier
    ///
    /// Makes its directory, its store and its token when they are missing. Returns when
    /// it answers, within 30 s; if it does not start, the reason is shown. Its log is
    /// `log/courier.log` in its directory. Exit codes: 1 failed, 2 already running,
    /// 3 permission denied, 4 port in use.
    Start(start::StartArgs),
    /// Stop the courier
    ///
    /// Lets it finish what is under way, at most 30 s.
    Stop {
        /// Seconds to wait until it is gone
        #[arg(long, default_value_t = control::STOP.as_secs(), value_name = "SECONDS")]
        timeout: u64,
    },
    /// Stop the courier if it runs, and start it again as it was
    ///
    /// What is not said here is as it was when it was started. It runs in the
    /// background afterwards. Exit codes are those of `start`.
    Restart(start::RestartArgs),
    /// End the courier at once
    ///
    /// For a courier that does not stop. What was acknowledged is safe; what was under
    /// way is taken up at the next start.
    Kill,
    /// Have the courier read its config again
    ///
    /// Says what changed, here and in its log. A config that is wrong changes nothing.
    Reload,
    /// Show how the courier and its tunnels are
    Status(status::StatusArgs),
    /// Show what the courier said
    ///
    /// Only a courier in the background has a log of its own; one in the foreground
    /// says it to whoever started it.
    Logs(logs::LogsArgs),
    /// Write all files of the mailbox again
    ///
    /// They are made from the store: what was changed or removed by hand is as it was.
    Rebuild,
    /// Print the token that requests must show
    Token,
    /// Run the courier as a service of the user: systemd, or launchd on macOS
    ///
    /// Writes the unit and says what to type next. Variables for the config, such as
    /// secrets, can be set in `courier/env` in the courier's directory, one NAME=VALUE
    /// on each line.
    Install(install::InstallArgs),
}

pub fn run(context: &CliContext, command: CourierCommand) -> Result<(), CliError> {
    match command {
        CourierCommand::Start(args) => start::run(context, args),
        CourierCommand::Stop { timeout } => {
            control::stop(&context.home, Duration::from_secs(timeout))?;
            output::note("stopped");
            Ok(())
        }
        CourierCommand::Restart(args) => start::restart(context, args),
        CourierCommand::Kill => control::kill(&context.home),
        CourierCommand::Reload => control::reload(&context.home),
        CourierCommand::Status(args) => super::block_on(status::run(context, args)),
        CourierCommand::Logs(args) => logs::run(context, args),
        CourierCommand::Rebuild => super::block_on(control::rebuild(context)),
        CourierCommand::Token => match context.home.token() {
            Ok(token) => output::print(&token),
            Err(_) => Err(CliError::new(CliExit::NotPossible, "there is no token yet")
                .hint("the courier makes one when it starts for the first time")),
        },
        CourierCommand::Install(args) => install::run(context, &args),
    }
}
