//! `monoco halt` and `monoco resume`: the kill switch.

use serde_json::json;

use super::CliContext;
use super::client::segment;
use super::failure::{CliError, CliExit};
use super::output::{self, Column, OutputFormat, ToCell, print};
use monoco_courier::api::views::approvals::{HaltList, HaltResult, HaltView};

#[derive(Debug, clap::Args)]
pub struct HaltArgs {
    #[command(flatten)]
    scope: HaltScopeArgs,
    /// Also reject every write of agents until deliveries are resumed
    #[arg(long, conflicts_with = "tunnel")]
    lock: bool,
}

#[derive(Debug, clap::Args)]
pub struct HaltScopeArgs {
    /// Only messages of the agent with this token [default: all deliveries]
    #[arg(long, value_name = "NAME", conflicts_with = "tunnel")]
    agent: Option<String>,
    /// Only deliveries through this tunnel [default: all deliveries]
    #[arg(long, value_name = "ID")]
    tunnel: Option<String>,
}

const FIELDS: &[Column<HaltResult>] = &[
    ("scope", |it| it.scope.cell()),
    ("halted", |it| it.halted.cell()),
    ("sending, cannot be recalled", |it| it.sending.cell()),
    ("waiting", |it| it.waiting.cell()),
    ("waiting for approval", |it| it.pending_approvals.cell()),
    ("all halts", |it| {
        let scopes: Vec<_> = it.halts.iter().map(scope_text).collect();
        scopes.cell()
    }),
];

/// What is halted, and whether agents are locked.
pub fn scope_text(halt: &HaltView) -> String {
    let lock = if halt.lock { " (locked)" } else { "" };
    format!("{}{lock}", halt.scope)
}

impl HaltScopeArgs {
    /// The path of the halt.
    fn path(&self) -> String {
        let scope = match (&self.agent, &self.tunnel) {
            (Some(agent), _) => format!("agent:{agent}"),
            (None, Some(tunnel)) => format!("tunnel:{tunnel}"),
            (None, None) => "all".to_owned(),
        };
        format!("/api/v1/halts/{}", segment(&scope))
    }
}

pub async fn halt(context: &CliContext, args: HaltArgs) -> Result<(), CliError> {
    let path = args.scope.path();
    let halted: Result<HaltResult, CliError> =
        context.client()?.put(&path, &json!({"lock": args.lock})).await;
    let result = halted.map_err(|failure| match (failure.exit, &args.scope.agent) {
        (CliExit::NotPossible, Some(_)) => {
            failure.hint("nothing was halted; `monoco token list` shows the agents")
        }
        _ => failure,
    })?;
    show(context.format, &result)
}

pub async fn resume(context: &CliContext, args: HaltScopeArgs) -> Result<(), CliError> {
    let client = context.client()?;
    let resumed: Result<HaltResult, CliError> = client.delete(&args.path()).await;
    let failure = match resumed {
        Ok(result) => return show(context.format, &result),
        Err(failure) => failure,
    };
    if failure.exit != CliExit::NotPossible {
        return Err(failure);
    }
    let HaltList { halts } = client.get("/api/v1/halts").await?;
    let scopes: Vec<_> = halts.into_iter().map(|halt| halt.scope).collect();
    Err(match scopes.is_empty() {
        true => failure.hint("nothing is halted"),
        false => failure.hint(format!("halted: {}; use --agent or --tunnel", scopes.join(", "))),
    })
}

fn show(format: OutputFormat, result: &HaltResult) -> Result<(), CliError> {
    output::one(format, result, &result.scope, FIELDS)?;
    if format == OutputFormat::Table && !result.halted && result.pending_approvals > 0 {
        print("Messages that agents sent meanwhile wait for approval: monoco approve list")?;
    }
    Ok(())
}
