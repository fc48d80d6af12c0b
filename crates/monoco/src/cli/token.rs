//! `monoco token`: prints or replaces the token of the API.

use serde_json::json;

use super::CliContext;
use super::failure::{CliError, CliExit};
use super::output::{self, OutputFormat, print, print_json};

#[derive(Debug, clap::Subcommand)]
pub enum TokenCommand {
    /// Print the token for API requests
    Show,
    /// Replace the token for API requests
    ///
    /// The courier rejects the previous token at once, and ends event streams that were opened
    /// with it. Works also while no courier is running.
    Rotate,
}

pub async fn run(context: &CliContext, command: TokenCommand) -> Result<(), CliError> {
    match command {
        TokenCommand::Show => show(context),
        TokenCommand::Rotate => rotate(context).await,
    }
}

pub fn show(context: &CliContext) -> Result<(), CliError> {
    match context.home.token() {
        Ok(token) if context.format == OutputFormat::Json => print_json(&json!({"token": token})),
        Ok(token) => print(&token),
        Err(_) => Err(CliError::new(CliExit::NotPossible, "no token found")
            .hint("`monoco courier start` creates the token at the first start")),
    }
}

async fn rotate(context: &CliContext) -> Result<(), CliError> {
    let home = &context.home;
    match context.client() {
        Ok(client) => client.post("/api/v1/token/rotate", &json!({})).await?,
        // Without a courier the lock is free; otherwise one is starting or stopping.
        Err(failure) if failure.exit == CliExit::NoCourier && !home.is_taken() => {
            home.create()?;
            let _lock = home.lock()?;
            home.replace_token()?;
            home.withdraw();
        }
        Err(failure) => return Err(failure),
    }
    let message = "token rotated; the previous token is no longer accepted";
    output::done(context.format, message, &json!({"rotated": true}))
}
