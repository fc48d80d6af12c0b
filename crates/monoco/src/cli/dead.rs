//! `monoco dead`: lists, retries and drops dead letters of all kinds.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::CliContext;
use super::client::{Client, query, segment};
use super::failure::{CliError, CliExit};
use super::mailbox::read_ids;
use super::output::{self, OutputFormat, escape_line, print};

#[derive(Debug, clap::Subcommand)]
pub enum DeadCommand {
    /// List dead letters, grouped by cause
    List,
    /// Show the history of one dead letter
    Show {
        /// Id of the Mail, delivery or letter
        id: String,
    },
    /// Retry dead letters with all their attempts
    ///
    /// Fix the cause first. An UNCERTAIN delivery may have arrived: a retry can deliver the
    /// message twice.
    Retry {
        /// Ids of Mails, deliveries or letters; - reads ids from stdin
        #[arg(required = true)]
        ids: Vec<String>,
        /// Workspace whose claims to change [default: all workspaces with a dead claim]
        #[arg(long)]
        workspace: Option<String>,
    },
    /// Drop dead letters without retrying them
    ///
    /// A dropped letter is trashed; `monoco pipeline trash restore` restores it.
    Drop {
        /// Ids of Mails, deliveries or letters; - reads ids from stdin
        #[arg(required = true)]
        ids: Vec<String>,
        /// Workspace whose claims to change [default: all workspaces with a dead claim]
        #[arg(long)]
        workspace: Option<String>,
    },
}

pub async fn run(context: &CliContext, command: DeadCommand) -> Result<(), CliError> {
    let client = context.client()?;
    match command {
        DeadCommand::List => list(context.format, &client.get("/api/v1/dead").await?),
        DeadCommand::Show { id } => {
            super::trace::run(context, super::trace::TraceArgs { id }).await
        }
        DeadCommand::Retry { ids, workspace } => {
            change(&client, context.format, &read_ids(ids)?, workspace, DeadLetterAction::Retry)
                .await
        }
        DeadCommand::Drop { ids, workspace } => {
            change(&client, context.format, &read_ids(ids)?, workspace, DeadLetterAction::Drop)
                .await
        }
    }
}

#[derive(Clone, Copy)]
enum DeadLetterAction {
    Retry,
    Drop,
}

/// Returns one row per dead claim, delivery and letter.
fn rows(answer: &Value) -> Vec<Value> {
    let list = |key: &str| answer[key].as_array().cloned().unwrap_or_default();
    let claims = list("claims").into_iter().map(|claim| {
        json!({
            "id": claim["id"], "kind": "claim", "state": claim["status"],
            "of": claim["workspace"], "attempts": claim["attempts"],
            "cause": claim["reason"], "at": claim["updated_at"],
        })
    });
    let deliveries = list("deliveries").into_iter().map(|record| {
        json!({
            "id": record["record_id"], "kind": "delivery", "state": record["state"],
            "of": record["delivery"]["target"], "attempts": record["attempts"],
            "cause": record["delivery"]["failure"]["detail"], "at": record["updated_at"],
        })
    });
    let letters = list("letters").into_iter().map(|letter| {
        json!({
            "id": letter["id"], "kind": "letter", "state": letter["state"],
            "of": letter["worker"], "attempts": letter["attempts"],
            "cause": letter["failure"], "at": letter["updated_at"],
        })
    });
    claims.chain(deliveries).chain(letters).collect()
}

fn list(format: OutputFormat, answer: &Value) -> Result<(), CliError> {
    let mut causes: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for row in rows(answer) {
        let cause = row["cause"].as_str().unwrap_or("no reason given").to_owned();
        causes.entry(cause).or_default().push(row);
    }
    let columns = [
        ("id", "id"),
        ("kind", "kind"),
        ("state", "state"),
        ("of", "of"),
        ("attempts", "attempts"),
    ];
    if format != OutputFormat::Table {
        let dead: Vec<_> = causes.into_values().flatten().collect();
        return output::list(format, &json!({"dead": dead}), "dead", &columns);
    }
    for (at, (cause, dead)) in causes.into_iter().enumerate() {
        if at > 0 {
            print("")?;
        }
        print(&format!("{} ({})", escape_line(&cause), dead.len()))?;
        output::list(format, &json!({"dead": dead}), "dead", &columns)?;
    }
    Ok(())
}

async fn change(
    client: &Client,
    format: OutputFormat,
    ids: &[String],
    workspace: Option<String>,
    action: DeadLetterAction,
) -> Result<(), CliError> {
    let dead = rows(&client.get("/api/v1/dead").await?);
    let mut changed = Vec::new();
    for id in ids {
        let mut found = false;
        for row in dead.iter().filter(|row| row["id"] == id.as_str()) {
            let of = row["of"].as_str().unwrap_or_default();
            if row["kind"] == "claim" && workspace.as_ref().is_some_and(|wanted| wanted != of) {
                continue;
            }
            found = true;
            changed.push(change_one(client, row, action).await?);
        }
        if !found {
            return Err(CliError::new(
                CliExit::NotPossible,
                format!("{} is not a dead letter", escape_line(id)),
            )
            .hint("`monoco dead list` lists the ids of all dead letters"));
        }
    }
    let columns = [("id", "id"), ("kind", "kind"), ("of", "of"), ("now", "now")];
    output::list(format, &json!({"changed": changed}), "changed", &columns)
}

async fn change_one(
    client: &Client,
    row: &Value,
    action: DeadLetterAction,
) -> Result<Value, CliError> {
    let id = segment(row["id"].as_str().unwrap_or_default());
    let now = if row["kind"] == "letter" {
        let verb = match action {
            DeadLetterAction::Retry => "retry",
            DeadLetterAction::Drop => "trash",
        };
        let path = format!("/api/v1/letters/{id}/{verb}");
        client.post(&path, &json!({})).await?["state"].clone()
    } else if row["kind"] == "claim" {
        let of = query(&[("workspace", row["of"].as_str().map(str::to_owned))]);
        let verb = match action {
            DeadLetterAction::Retry => "retry",
            DeadLetterAction::Drop => "drop",
        };
        let path = format!("/api/v1/messages/{id}/{verb}{of}");
        client.post(&path, &json!({})).await?["status"].clone()
    } else {
        let state = match action {
            DeadLetterAction::Retry => "WAIT",
            DeadLetterAction::Drop => "ARCHIVED",
        };
        let path = format!("/api/v1/records/{id}/state");
        client.post(&path, &json!({"state": state})).await?["state"].clone()
    };
    Ok(json!({"id": row["id"], "kind": row["kind"], "of": row["of"], "now": now}))
}
