//! `monoco dead`: lists, retries and drops dead letters of all kinds.

use std::collections::{BTreeMap, BTreeSet};

use monoco_core::dead_letter::{DeadLetterAction, DeadLetterKind};
use monoco_core::short_id::ShortId;
use serde::Serialize;
use serde_json::json;

use super::CliContext;
use super::client::{Client, segment};
use super::failure::{CliError, CliExit};
use super::mailbox::read_ids;
use super::output::{self, Column, OutputFormat, ToCell, escape_line, print};
use monoco_courier::api::views::boxes::RecordView;
use monoco_courier::api::views::dead::{DeadBatchResult, DeadDraftView, DeadLetterRow, DeadView};
use monoco_courier::api::views::email::EmailTaskView;
use monoco_courier::api::views::letters::LetterView;
use monoco_mailbox::claim_info::ClaimInfo;

#[derive(Debug, clap::Subcommand)]
pub enum DeadCommand {
    /// List dead letters, grouped by cause
    List,
    /// Show the history of one dead letter, or the reason of a draft or an e-mail task
    Show {
        /// Id of the Mail, delivery, letter, draft or e-mail task
        id: String,
    },
    /// Retry dead letters with all their attempts
    ///
    /// Fix the cause first. An UNCERTAIN delivery may have arrived: a retry can deliver the
    /// message twice. A draft is moved back to the outbound directory. The retry of an e-mail task
    /// retries the dead deliveries of its forward.
    Retry {
        /// Ids of Mails, deliveries, letters, drafts or e-mail tasks; - reads ids from stdin
        #[arg(required_unless_present = "filter")]
        ids: Vec<String>,
        /// Workspace whose claims to change [default: all workspaces with a dead claim]
        #[arg(long)]
        workspace: Option<String>,
        #[command(flatten)]
        filter: DeadFilterArgs,
    },
    /// Drop dead letters without retrying them
    ///
    /// A dropped letter is trashed; `monoco pipeline trash restore` restores it. A dropped draft
    /// is moved to the archive. A dropped e-mail task keeps the status error.
    Drop {
        /// Ids of Mails, deliveries, letters, drafts or e-mail tasks; - reads ids from stdin
        #[arg(required_unless_present = "filter")]
        ids: Vec<String>,
        /// Workspace whose claims to change [default: all workspaces with a dead claim]
        #[arg(long)]
        workspace: Option<String>,
        #[command(flatten)]
        filter: DeadFilterArgs,
    },
}

/// Selects dead letters instead of ids. All conditions must hold.
#[derive(Debug, clap::Args)]
#[group(id = "filter", multiple = true, conflicts_with = "ids")]
pub struct DeadFilterArgs {
    /// All of a kind: claim, delivery, letter, draft or task
    #[arg(long, value_parser = kinds())]
    kind: Option<String>,
    /// All in a state, such as DEAD. UNCERTAIN deliveries are retried only with this option
    #[arg(long)]
    state: Option<String>,
    /// All of a tunnel or e-mail account
    #[arg(long)]
    tunnel: Option<String>,
    /// All with a cause, as `dead list` shows it; numbers and ids in it are ignored
    #[arg(long)]
    cause: Option<String>,
    /// Only count what the filter selects
    #[arg(long)]
    dry_run: bool,
}

fn kinds() -> clap::builder::PossibleValuesParser {
    DeadLetterKind::ALL.map(DeadLetterKind::as_str).into()
}

pub async fn run(context: &CliContext, command: DeadCommand) -> Result<(), CliError> {
    let client = context.client()?;
    match command {
        DeadCommand::List => list(context.format, client.get("/api/v1/dead").await?),
        DeadCommand::Show { id } => show(context, &client, id).await,
        DeadCommand::Retry { ids, workspace, filter } => {
            change(context, &client, ids, workspace, filter, DeadLetterAction::Retry).await
        }
        DeadCommand::Drop { ids, workspace, filter } => {
            change(context, &client, ids, workspace, filter, DeadLetterAction::Drop).await
        }
    }
}

async fn change(
    context: &CliContext,
    client: &Client,
    ids: Vec<String>,
    workspace: Option<String>,
    filter: DeadFilterArgs,
    action: DeadLetterAction,
) -> Result<(), CliError> {
    if ids.is_empty() {
        return change_selected(context, client, workspace, filter, action).await;
    }
    change_ids(client, context.format, &read_ids(ids)?, workspace, action).await
}

/// Changes all that the filter selects, in requests of a bounded number.
async fn change_selected(
    context: &CliContext,
    client: &Client,
    workspace: Option<String>,
    filter: DeadFilterArgs,
    action: DeadLetterAction,
) -> Result<(), CliError> {
    let DeadFilterArgs { kind, state, tunnel, cause, dry_run } = filter;
    let body = json!({"kind": kind, "state": state, "tunnel": tunnel, "workspace": workspace,
                      "cause": cause, "dry_run": dry_run});
    let path = format!("/api/v1/dead/{}", action.as_str());
    let mut total: DeadBatchResult = client.post(&path, &body).await?;
    // A request that changes nothing ends the loop: what is left cannot be changed.
    let mut changes = total.changed;
    while !dry_run && total.more && changes > 0 {
        let next: DeadBatchResult = client.post(&path, &body).await?;
        changes = next.changed;
        total.changed += next.changed;
        total.failed = next.failed;
        total.more = next.more;
        total.errors.extend(next.errors);
    }
    let fields: &[Column<DeadBatchResult>] = &[
        ("matched", |result| result.matched.cell()),
        ("changed", |result| result.changed.cell()),
        ("failed", |result| result.failed.cell()),
        ("errors", |result| {
            let lines = result.errors.iter().map(|(id, error)| format!("{id}: {error}"));
            Some(lines.collect::<Vec<_>>().join("; ")).filter(|text| !text.is_empty()).cell()
        }),
    ];
    output::one(context.format, &total, action.as_str(), fields)
}

/// One dead letter in a list, as JSON.
#[derive(Serialize)]
struct ListedDeadLetter {
    id: String,
    kind: &'static str,
    state: String,
    /// Workspace of a claim, target of a delivery, worker of a letter, provider of a draft,
    /// account of an e-mail task
    of: Option<String>,
    attempts: u32,
    cause: Option<String>,
    at: String,
    /// The listed e-mail task whose forward this delivery or letter belongs to
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<String>,
}

impl From<DeadLetterRow> for ListedDeadLetter {
    fn from(row: DeadLetterRow) -> Self {
        let DeadLetterRow { id, kind, state, of, tunnel: _, attempts, cause, at, task } = row;
        Self { id, kind: kind.as_str(), state, of, attempts, cause, at, task }
    }
}

/// A dead letter after it was retried or dropped.
#[derive(Serialize)]
struct ChangedRow<'a> {
    id: &'a str,
    kind: &'static str,
    of: Option<&'a str>,
    now: String,
}

fn list(format: OutputFormat, dead: DeadView) -> Result<(), CliError> {
    let columns: &[Column<ListedDeadLetter>] = &[
        ("id", |row| row.id.cell()),
        ("kind", |row| row.kind.cell()),
        ("state", |row| row.state.cell()),
        ("of", |row| row.of.cell()),
        ("attempts", |row| row.attempts.cell()),
    ];
    let rows = dead.rows();
    let tasks: BTreeMap<_, _> =
        rows.iter().map(|row| (row.id.clone(), row.cause.clone())).collect();
    let mut causes: BTreeMap<String, Vec<ListedDeadLetter>> = BTreeMap::new();
    for row in rows {
        // What belongs to a task is listed beside it.
        let task = row.task.as_ref().and_then(|task| tasks.get(task));
        let cause = task.unwrap_or(&row.cause).clone();
        causes
            .entry(cause.unwrap_or_else(|| "no reason given".to_owned()))
            .or_default()
            .push(row.into());
    }
    if format != OutputFormat::Table {
        let dead: Vec<_> = causes.into_values().flatten().collect();
        return output::list(format, &json!({"dead": dead}), &dead, columns);
    }
    for (at, (cause, dead)) in causes.into_iter().enumerate() {
        if at > 0 {
            print("")?;
        }
        // Each dead letter counts once, as in the metrics and in `monoco doctor`.
        let count = dead.iter().filter(|row| row.task.is_none()).count();
        print(&format!("{} ({count})", escape_line(&cause)))?;
        output::list(format, &(), &dead, columns)?;
    }
    Ok(())
}

/// Shows a draft with its reason and file, an e-mail task with its error, and the history of
/// everything else.
async fn show(context: &CliContext, client: &Client, id: String) -> Result<(), CliError> {
    let dead: DeadView = client.get("/api/v1/dead").await?;
    if let Some(task) = dead.tasks.iter().find(|task| task.id == id) {
        return output::one(context.format, task, &id, super::email::TASK_FIELDS);
    }
    let Some(draft) = dead.drafts.into_iter().find(|draft| draft.id == id) else {
        return super::trace::run(context, super::trace::TraceArgs { id }).await;
    };
    let fields: &[Column<DeadDraftView>] = &[
        ("draft", |draft| draft.id.cell()),
        ("provider", |draft| draft.provider.cell()),
        ("reason", |draft| draft.reason.cell()),
        ("file", |draft| draft.file.cell()),
    ];
    output::one(context.format, &draft, &id, fields)
}

async fn change_ids(
    client: &Client,
    format: OutputFormat,
    ids: &[String],
    workspace: Option<String>,
    action: DeadLetterAction,
) -> Result<(), CliError> {
    let dead = client.get::<DeadView>("/api/v1/dead").await?.rows();
    let mut changed = Vec::new();
    for id in ids {
        let mut found = false;
        let id = whole_id(&dead, id)?;
        for row in dead.iter().filter(|row| row.id == id) {
            let other_workspace = workspace.is_some() && row.of != workspace;
            if row.kind == DeadLetterKind::Claim && other_workspace {
                continue;
            }
            found = true;
            changed.push(change_one(client, row, action).await?);
        }
        if !found {
            let message = format!("{} is not a dead letter", escape_line(id));
            return Err(CliError::new(CliExit::NotPossible, message)
                .hint("`monoco dead list` lists the ids of all dead letters"));
        }
    }
    let columns: &[Column<ChangedRow<'_>>] = &[
        ("id", |row| row.id.cell()),
        ("kind", |row| row.kind.cell()),
        ("of", |row| row.of?.cell()),
        ("now", |row| row.now.cell()),
    ];
    output::list(format, &json!({"changed": changed}), &changed, columns)
}

/// Returns the only id of a dead letter that `text` shortens, or `text` when there is none.
fn whole_id<'a>(dead: &'a [DeadLetterRow], text: &'a str) -> Result<&'a str, CliError> {
    let Some(short) = ShortId::parse(text) else { return Ok(text) };
    let ids: BTreeSet<&str> =
        dead.iter().map(|row| row.id.as_str()).filter(|id| short.matches(id)).collect();
    if ids.len() > 1 {
        let ids: Vec<_> = ids.into_iter().collect();
        let message = format!("{text} is ambiguous; use a longer id: {}", ids.join(", "));
        return Err(CliError::new(CliExit::NotPossible, message).code("ambiguous_id"));
    }
    Ok(ids.first().copied().unwrap_or(text))
}

async fn change_one<'a>(
    client: &Client,
    row: &'a DeadLetterRow,
    action: DeadLetterAction,
) -> Result<ChangedRow<'a>, CliError> {
    let id = segment(&row.id);
    let retry = action == DeadLetterAction::Retry;
    let now = match row.kind {
        DeadLetterKind::Letter => {
            let verb = if retry { "retry" } else { "trash" };
            let path = format!("/api/v1/letters/{id}/{verb}");
            client.post::<LetterView>(&path, &json!({})).await?.state
        }
        DeadLetterKind::Draft => {
            let (verb, state) = if retry { ("retry", "OUTBOUND") } else { ("drop", "ARCHIVED") };
            let path = format!("/api/v1/drafts/{id}/{verb}");
            client.post::<DeadDraftView>(&path, &json!({})).await?;
            state.into()
        }
        DeadLetterKind::Task => {
            let verb = if retry { "retry" } else { "drop" };
            let path = format!("/api/v1/email/tasks/{id}/{verb}");
            client.post::<EmailTaskView>(&path, &json!({})).await?.status
        }
        DeadLetterKind::Claim => {
            let verb = if retry { "retry" } else { "drop" };
            let path = format!("/api/v1/messages/{id}/{verb}");
            let body = json!({"workspace": row.of});
            client.post::<ClaimInfo>(&path, &body).await?.status.as_str().into()
        }
        DeadLetterKind::Delivery => {
            let state = if retry { "WAIT" } else { "ARCHIVED" };
            let path = format!("/api/v1/records/{id}/state");
            client.post::<RecordView>(&path, &json!({"state": state})).await?.state
        }
    };
    let (id, of) = (row.id.as_str(), row.of.as_deref());
    Ok(ChangedRow { id, kind: row.kind.as_str(), of, now: now.into_owned() })
}
