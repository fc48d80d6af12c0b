//! `monoco token`: prints or replaces the owner's token; manages the tokens of agents.

use serde_json::json;

use super::CliContext;
use super::client::segment;
use super::failure::{CliError, CliExit};
use super::output::{self, Column, OutputFormat, ToCell, print, print_json};
use monoco_courier::api::token::NewTokenBody;
use monoco_courier::api::views::tokens::{CreatedTokenView, TokenList, TokenView};

const COLUMNS: [Column<TokenView>; 7] = [
    ("name", |token| token.name.cell()),
    ("scopes", |token| token.scopes.cell()),
    ("workspace", |token| token.workspace.cell()),
    ("as", |token| token.did.cell()),
    ("created", |token| token.created_at.cell()),
    ("last used", |token| token.last_used_at.cell()),
    ("revoked", |token| token.revoked_at.cell()),
];

#[derive(Debug, clap::Subcommand)]
pub enum TokenCommand {
    /// Print the owner's token for API requests
    Show,
    /// Replace the owner's token for API requests
    ///
    /// The courier rejects the previous token at once, and ends event streams that were opened
    /// with it. Works also while no courier is running.
    Rotate,
    /// Create a token for an agent
    ///
    /// Prints the secret once; it is not stored and cannot be shown again. The agent sends it as
    /// `Authorization: Bearer SECRET`. It claims Mails only for its workspace, and sends only as
    /// its DID. The scopes approve and send, or approve and reply, cannot be on one token.
    Add {
        /// Name of the agent: letters a-z, digits, '-' and '_'
        name: String,
        /// Scopes of the token: read, claim, reply, send, operate or approve (separated by commas)
        #[arg(long = "scope", value_name = "SCOPES", required = true)]
        scopes: Vec<String>,
        /// Workspace that the agent claims Mails for [default: shared]
        #[arg(long)]
        workspace: Option<String>,
        /// DID that the agent sends as [default: did:monoco:NAME]
        #[arg(long = "as", value_name = "DID")]
        did: Option<String>,
    },
    /// List the tokens of agents
    List,
    /// Revoke the token of an agent
    ///
    /// The courier rejects the token at once, and ends event streams that were opened with it.
    Revoke {
        /// Name of the agent
        name: String,
    },
}

pub async fn run(context: &CliContext, command: TokenCommand) -> Result<(), CliError> {
    match command {
        TokenCommand::Show => show(context),
        TokenCommand::Rotate => rotate(context).await,
        TokenCommand::Add { name, scopes, workspace, did } => {
            add(context, &NewTokenBody { name, scopes, workspace, did }).await
        }
        TokenCommand::List => {
            let list: TokenList = context.client()?.get("/api/v1/tokens").await?;
            output::list(context.format, &list, &list.tokens, &COLUMNS)
        }
        TokenCommand::Revoke { name } => {
            let path = format!("/api/v1/tokens/{}/revoke", segment(&name));
            let token: TokenView = context.client()?.post(&path, &json!({})).await?;
            output::one(context.format, &token, &token.name, &COLUMNS)
        }
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

/// Creates a token. Only the secret goes to stdout, so that it can be piped.
async fn add(context: &CliContext, body: &NewTokenBody) -> Result<(), CliError> {
    let created: CreatedTokenView = context.client()?.post("/api/v1/tokens", body).await?;
    if context.format == OutputFormat::Json {
        return print_json(&created);
    }
    let TokenView { name, scopes, workspace, did, .. } = &created.token;
    output::note(&format!(
        "token {name} created: scopes {}, workspace {workspace}, sends as {did}; the secret is not \
         shown again",
        scopes.join(", ")
    ));
    print(&created.secret)
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
