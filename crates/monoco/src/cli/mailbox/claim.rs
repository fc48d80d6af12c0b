//! `monoco mailbox claim`, `renew`, `done` and `fail`: who is at a Mail.

use monoco_core::claim::Workspace;
use serde_json::{Value, json};

use super::{MailboxContext, ids};
use crate::cli::client::{Client, segment};
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output;

/// Which Mails, and by whom.
#[derive(Debug, clap::Args)]
pub struct AgentArgs {
    /// Mails, by their ids or enough of them; - reads ids from stdin
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Who you are: agents of one workspace exclude each other [default: your user name]
    #[arg(long, env = "MONOCO_AGENT", hide_env_values = true)]
    agent: Option<String>,
    /// Use the claims of those who have no workspace
    #[arg(long)]
    shared: bool,
}

#[derive(Debug, clap::Args)]
pub struct ClaimArgs {
    #[command(flatten)]
    who: AgentArgs,
    /// Hold them for so many seconds [default: as the courier is configured, 300]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<i64>,
}

#[derive(Debug, clap::Args)]
pub struct RenewArgs {
    #[command(flatten)]
    who: AgentArgs,
    /// Hold them for so many seconds from now
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<i64>,
    /// The epoch that the claim came with
    #[arg(long)]
    epoch: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub struct DoneArgs {
    #[command(flatten)]
    who: AgentArgs,
    /// The epoch that the claim came with
    #[arg(long)]
    epoch: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub struct FailArgs {
    #[command(flatten)]
    who: AgentArgs,
    /// Why, for whoever looks at it next
    #[arg(long)]
    reason: Option<String>,
    /// Another try will not help: make it a dead letter
    #[arg(long)]
    no_retry: bool,
    /// The epoch that the claim came with
    #[arg(long)]
    epoch: Option<u64>,
}

pub async fn claim(desk: &MailboxContext<'_>, args: ClaimArgs) -> Result<(), CliError> {
    each(desk, args.who, "claim", &json!({"timeout": args.timeout})).await
}

pub async fn renew(desk: &MailboxContext<'_>, args: RenewArgs) -> Result<(), CliError> {
    let body = json!({"timeout": args.timeout, "epoch": args.epoch});
    each(desk, args.who, "renew", &body).await
}

pub async fn done(desk: &MailboxContext<'_>, args: DoneArgs) -> Result<(), CliError> {
    each(desk, args.who, "complete", &json!({"epoch": args.epoch})).await
}

pub async fn fail(desk: &MailboxContext<'_>, args: FailArgs) -> Result<(), CliError> {
    let FailArgs { who, reason, no_retry, epoch } = args;
    each(desk, who, "fail", &json!({"reason": reason, "retryable": !no_retry, "epoch": epoch}))
        .await
}

/// Takes a step with each Mail. One that is refused does not keep the others back.
async fn each(
    desk: &MailboxContext<'_>,
    who: AgentArgs,
    step: &str,
    body: &Value,
) -> Result<(), CliError> {
    let workspace = desk.name(who.shared)?;
    let agent = agent(who.agent);
    let client = desk.context.client()?;
    let given = ids(who.ids)?;
    let mut claims = Vec::new();
    let mut failures = Vec::new();
    for text in &given {
        let taken = match desk.id(text) {
            Ok(id) => take_step(&client, &id.to_string(), step, &agent, &workspace, body).await,
            Err(failure) => Err(failure),
        };
        match taken {
            Ok(claim) => claims.push(claim),
            // Nobody will answer for the next one either.
            Err(failure) if failure.exit == CliExit::NoCourier => return Err(failure),
            Err(failure) => failures.push(failure),
        }
    }
    let format = desk.context.format;
    let one = given.len() == 1;
    match claims.as_slice() {
        [claim] if one => output::one(format, claim, "id", &FIELDS)?,
        [] => {}
        claims => output::list(format, &json!({"claims": claims}), "claims", &FIELDS)?,
    }
    worst(failures, given.len())
}

const FIELDS: [(&str, &str); 8] = [
    ("id", "id"),
    ("status", "status"),
    ("workspace", "workspace"),
    ("agent", "agent_id"),
    ("epoch", "epoch"),
    ("attempts", "attempts"),
    ("expires at", "expires_at"),
    ("next retry at", "next_retry_at"),
];

/// The only failure, or a word on all of them with the worst exit code.
pub fn worst(mut failures: Vec<CliError>, of: usize) -> Result<(), CliError> {
    let Some(worst) = failures.iter().map(|failure| failure.exit).max_by_key(|exit| *exit as u8)
    else {
        return Ok(());
    };
    if of == 1
        && let Some(only) = failures.pop()
    {
        return Err(only);
    }
    for failure in &failures {
        output::fail(failure);
    }
    Err(CliError::new(worst, format!("{} of {of} could not be done", failures.len())))
}

/// Asks the courier for one step.
pub async fn take_step(
    client: &Client,
    id: &str,
    step: &str,
    agent: &str,
    workspace: &Workspace,
    body: &Value,
) -> Result<Value, CliError> {
    let mut asked = json!({"agent_id": agent, "workspace": workspace});
    for (key, value) in body.as_object().into_iter().flatten() {
        if !value.is_null() {
            asked[key] = value.clone();
        }
    }
    client.post(&format!("/api/v1/messages/{}/{step}", segment(id)), &asked).await
}

/// Who we are when nobody says.
pub fn agent(given: Option<String>) -> String {
    let user = || ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    given.or_else(user).filter(|name| !name.is_empty()).unwrap_or_else(|| "cli".to_owned())
}
