//! `monoco tunnel`: adds, lists, tests, pauses and removes tunnels of every provider.

use serde_json::json;

use super::CliContext;
use super::client::segment;
use super::failure::{CliError, CliExit};
use super::output::{self, Column, OutputFormat, ToCell, escape_line, note};
use file::{ConfigFileArgs, TunnelFile};
use monoco_courier::api::views::tunnels::{
    TunnelCheckView, TunnelList, TunnelTestView, TunnelView,
};
use test_message::TestMessageArgs;

pub mod add;
pub mod answers;
pub mod file;
pub mod prompt;
mod test_message;

#[derive(Debug, clap::Subcommand)]
pub enum TunnelCommand {
    /// Add a tunnel to a provider
    ///
    /// Asks on a terminal for what is missing, tests the credentials, writes
    /// courier/adapters.d/NAME.yaml and reloads a running courier. The file names where secrets
    /// come from, never a secret itself. Example: monoco tunnel add slack --secret
    /// app_token=env:SLACK_APP_TOKEN --secret bot_token=env:SLACK_BOT_TOKEN
    Add(Box<add::TunnelAddArgs>),
    /// List all tunnels with their health
    List,
    /// Test the connections and the login of a tunnel
    ///
    /// Receives nothing, and sends nothing without --to.
    Test {
        /// Id of the tunnel
        tunnel: String,
        #[command(flatten)]
        message: TestMessageArgs,
    },
    /// Remove a tunnel that `tunnel add` has added
    ///
    /// Removes its file, and the secrets that were stored for it. Messages that were received
    /// stay. Nothing is changed at the provider.
    Remove {
        /// Id of the tunnel
        tunnel: String,
        #[command(flatten)]
        config: ConfigFileArgs,
    },
    /// Pause a tunnel: it neither receives nor sends, also after a restart
    ///
    /// Deliveries wait until the tunnel is resumed.
    Pause {
        /// Id of the tunnel
        tunnel: String,
    },
    /// Resume a paused tunnel
    Resume {
        /// Id of the tunnel
        tunnel: String,
    },
}

const TUNNEL: &[Column<TunnelView>] = &[
    ("tunnel", |tunnel| tunnel.id.cell()),
    ("provider", |tunnel| tunnel.provider.cell()),
    ("state", |tunnel| match &tunnel.health {
        Some(health) => health.status.cell(),
        None => "external".cell(),
    }),
    ("mode", |tunnel| Some(tunnel.health.as_ref()?.mode.to_string())),
    ("received", |tunnel| tunnel.health.as_ref()?.received.cell()),
    ("sent", |tunnel| tunnel.health.as_ref()?.sent.cell()),
    ("last message", |tunnel| tunnel.health.as_ref()?.last_message_at.cell()),
    ("last error", |tunnel| tunnel.health.as_ref()?.last_error.cell()),
];

pub async fn run(context: &CliContext, command: TunnelCommand) -> Result<(), CliError> {
    match command {
        TunnelCommand::Add(args) => add::run(context, *args).await,
        TunnelCommand::List => {
            let answer: TunnelList = context.client()?.get("/api/v1/tunnels").await?;
            output::list(context.format, &answer, &answer.tunnels, TUNNEL)
        }
        TunnelCommand::Test { tunnel, message } => {
            let id = tunnel.parse().map_err(|error| CliError::usage(format!("{error}")))?;
            let message = message.resolve(&id)?;
            let path = format!("/api/v1/tunnels/{}/test", segment(&tunnel));
            let answer: TunnelTestView = context.client()?.post(&path, &json!({})).await?;
            show_test(context.format, &answer)?;
            match message {
                Some(message) => test_message::send(context, &message).await,
                None => Ok(()),
            }
        }
        TunnelCommand::Remove { tunnel, config } => {
            add::remove(context, &TunnelFile::new(&context.home, &tunnel, &config)?)
        }
        TunnelCommand::Pause { tunnel } => steer(context, &tunnel, "pause").await,
        TunnelCommand::Resume { tunnel } => steer(context, &tunnel, "resume").await,
    }
}

/// Pauses or resumes a tunnel.
async fn steer(context: &CliContext, tunnel: &str, action: &str) -> Result<(), CliError> {
    let path = format!("/api/v1/tunnels/{}/{action}", segment(tunnel));
    let answer: TunnelView = context.client()?.post(&path, &json!({})).await?;
    output::list(context.format, &answer, std::slice::from_ref(&answer), TUNNEL)
}

/// Prints the result of a connection test. Fails when the test has failed.
pub fn show_test(format: OutputFormat, test: &TunnelTestView) -> Result<(), CliError> {
    let columns: &[Column<TunnelCheckView>] =
        &[("check", |check| check.name.cell()), ("result", |check| check.result.cell())];
    output::list(format, test, &test.checks, columns)?;
    for warning in test.warnings.iter().filter(|_| format != OutputFormat::Json) {
        note(&format!("warning: {}", escape_line(warning)));
    }
    match &test.error {
        None => Ok(()),
        Some(error) => Err(CliError::new(CliExit::NotPossible, error.clone())
            .hint("compare addresses, names and secrets with the settings at your provider")),
    }
}
