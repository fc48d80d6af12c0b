//! `monoco mailbox claim`, `renew`, `done` and `fail`: change the claim on Mails.

use monoco_core::claim::Workspace;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{MailboxContext, read_ids};
use crate::cli::client::{Client, segment};
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, Column, OutputFormat, ToCell};
use monoco_mailbox::claim_info::ClaimInfo;

/// Arguments that select Mails and the claiming agent.
#[derive(Debug, clap::Args)]
pub struct AgentArgs {
    /// Ids of Mails, or unique prefixes; - reads ids from stdin
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Name of the agent; a Mail is claimed by one agent per workspace [default: user name]
    #[arg(long, env = "MONOCO_AGENT", hide_env_values = true)]
    agent: Option<String>,
    /// Use the shared claims instead of the workspace's claims
    #[arg(long)]
    shared: bool,
}

#[derive(Debug, clap::Args)]
pub struct ClaimArgs {
    #[command(flatten)]
    target: AgentArgs,
    /// Seconds until the claim expires [default: courier config, 300]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<i64>,
}

#[derive(Debug, clap::Args)]
pub struct RenewArgs {
    #[command(flatten)]
    target: AgentArgs,
    /// Seconds from now until the claim expires [default: courier config, 300]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<i64>,
    /// Epoch that `claim` printed; rejects a later claim
    #[arg(long)]
    epoch: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub struct DoneArgs {
    #[command(flatten)]
    target: AgentArgs,
    /// Epoch that `claim` printed; rejects a later claim
    #[arg(long)]
    epoch: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub struct FailArgs {
    #[command(flatten)]
    target: AgentArgs,
    /// Reason of the failure, shown in lists and dead letters
    #[arg(long)]
    reason: Option<String>,
    /// Make the Mail a dead letter without further retries
    #[arg(long)]
    no_retry: bool,
    /// Epoch that `claim` printed; rejects a later claim
    #[arg(long)]
    epoch: Option<u64>,
}

pub async fn claim(mailbox: &MailboxContext<'_>, args: ClaimArgs) -> Result<(), CliError> {
    each(mailbox, args.target, "claim", &json!({"timeout": args.timeout})).await
}

pub async fn renew(mailbox: &MailboxContext<'_>, args: RenewArgs) -> Result<(), CliError> {
    let body = json!({"timeout": args.timeout, "epoch": args.epoch});
    each(mailbox, args.target, "renew", &body).await
}

pub async fn done(mailbox: &MailboxContext<'_>, args: DoneArgs) -> Result<(), CliError> {
    each(mailbox, args.target, "complete", &json!({"epoch": args.epoch})).await
}

pub async fn fail(mailbox: &MailboxContext<'_>, args: FailArgs) -> Result<(), CliError> {
    let FailArgs { target, reason, no_retry, epoch } = args;
    each(
        mailbox,
        target,
        "fail",
        &json!({"reason": reason, "retryable": !no_retry, "epoch": epoch}),
    )
    .await
}

/// Applies one claim step to each Mail. A rejected Mail does not stop the others.
async fn each(
    mailbox: &MailboxContext<'_>,
    target: AgentArgs,
    step: &str,
    body: &Value,
) -> Result<(), CliError> {
    let workspace = mailbox.claim_name(target.shared)?;
    let agent = mailbox.agent(target.agent);
    let client = mailbox.context.client()?;
    let given = read_ids(target.ids)?;
    let mut claims: Vec<ClaimInfo> = Vec::new();
    let mut failures = Vec::new();
    for text in &given {
        let taken = match mailbox.id(text) {
            Ok(id) => {
                let (id, agent) = (id.to_string(), agent.as_deref());
                claim_step(&client, &id, step, agent, &workspace, body).await
            }
            Err(failure) => Err(failure),
        };
        match taken {
            Ok(claim) => claims.push(claim),
            // Without a courier the next request fails too.
            Err(failure) if failure.exit == CliExit::NoCourier => return Err(failure),
            Err(failure) => failures.push(failure),
        }
    }
    let format = mailbox.context.format;
    let one = given.len() == 1;
    match claims.as_slice() {
        [claim] if one => output::one(format, claim, &claim.id.to_string(), FIELDS)?,
        [] => {}
        claims => output::list(format, &json!({"claims": claims}), claims, FIELDS)?,
    }
    worst(format, failures, given.len())
}

const FIELDS: &[Column<ClaimInfo>] = &[
    ("id", |claim| claim.id.cell()),
    ("status", |claim| claim.status.cell()),
    ("workspace", |claim| claim.workspace.cell()),
    ("agent", |claim| claim.agent_id.cell()),
    ("epoch", |claim| claim.epoch.cell()),
    ("attempts", |claim| claim.attempts.cell()),
    ("expires at", |claim| claim.expires_at.cell()),
    ("next retry at", |claim| claim.next_retry_at.cell()),
];

/// Returns the only error, or prints all errors and returns a summary with the highest exit
/// code.
pub fn worst(format: OutputFormat, mut failures: Vec<CliError>, of: usize) -> Result<(), CliError> {
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
        output::print_error(format, failure);
    }
    Err(CliError::new(worst, format!("{} of {of} failed", failures.len())))
}

/// Sends one claim step to the courier: `claim`, `renew`, `complete` or `fail`.
pub async fn claim_step<T: DeserializeOwned>(
    client: &Client,
    id: &str,
    step: &str,
    agent: Option<&str>,
    workspace: &Workspace,
    body: &Value,
) -> Result<T, CliError> {
    let mut request = json!({"agent_id": agent, "workspace": workspace});
    for (key, value) in body.as_object().into_iter().flatten() {
        if !value.is_null() {
            request[key] = value.clone();
        }
    }
    client.post(&format!("/api/v1/messages/{}/{step}", segment(id)), &request).await
}

/// Returns the agent name: the argument, the user name, or `cli`.
pub fn agent_name(given: Option<String>) -> String {
    let user = || ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    given.or_else(user).filter(|name| !name.is_empty()).unwrap_or_else(|| "cli".to_owned())
}
