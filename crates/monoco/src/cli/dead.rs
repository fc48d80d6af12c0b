//! `monoco dead`: lists, retries and drops dead letters of all kinds.

use std::collections::{BTreeMap, BTreeSet};

use monoco_core::short_id::ShortId;
use monoco_core::time::Timestamp;
use serde::Serialize;
use serde_json::json;

use super::CliContext;
use super::client::{Client, segment};
use super::failure::{CliError, CliExit};
use super::mailbox::read_ids;
use super::output::{self, Column, OutputFormat, ToCell, escape_line, print};
use monoco_courier::api::views::boxes::RecordView;
use monoco_courier::api::views::email::EmailTaskView;
use monoco_courier::api::views::letters::LetterView;
use monoco_courier::api::views::mails::{DeadDraftView, DeadView};
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
        #[arg(required = true)]
        ids: Vec<String>,
        /// Workspace whose claims to change [default: all workspaces with a dead claim]
        #[arg(long)]
        workspace: Option<String>,
    },
    /// Drop dead letters without retrying them
    ///
    /// A dropped letter is trashed; `monoco pipeline trash restore` restores it. A dropped draft
    /// is moved to the archive. A dropped e-mail task keeps the status error.
    Drop {
        /// Ids of Mails, deliveries, letters, drafts or e-mail tasks; - reads ids from stdin
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
        DeadCommand::List => list(context.format, client.get("/api/v1/dead").await?),
        DeadCommand::Show { id } => show(context, &client, id).await,
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum DeadLetterAction {
    Retry,
    Drop,
}

/// One dead claim, delivery, letter, draft or e-mail task.
#[derive(Serialize)]
struct DeadLetterRow {
    id: String,
    kind: DeadLetterKind,
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

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum DeadLetterKind {
    Claim,
    Delivery,
    Letter,
    Draft,
    Task,
}

impl DeadLetterKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Delivery => "delivery",
            Self::Letter => "letter",
            Self::Draft => "draft",
            Self::Task => "task",
        }
    }
}

/// A dead letter after it was retried or dropped.
#[derive(Serialize)]
struct ChangedRow<'a> {
    id: &'a str,
    kind: DeadLetterKind,
    of: Option<&'a str>,
    now: String,
}

/// Returns one row per dead claim, delivery, letter, draft and e-mail task.
fn rows(mut dead: DeadView) -> Vec<DeadLetterRow> {
    let mut of_tasks = std::mem::take(&mut dead.of_tasks);
    let claims = dead.claims.into_iter().map(|claim| DeadLetterRow {
        id: claim.id.to_string(),
        kind: DeadLetterKind::Claim,
        state: claim.status.as_str().to_owned(),
        of: Some(claim.workspace),
        attempts: claim.attempts,
        cause: claim.reason,
        at: claim.updated_at.map(Timestamp::rfc3339).unwrap_or_default(),
        task: None,
    });
    let deliveries = dead.deliveries.into_iter().map(|record| {
        let failure = record.delivery.as_ref().and_then(|delivery| delivery.failure.as_ref());
        DeadLetterRow {
            task: None,
            cause: failure.map(|failure| failure.detail().to_owned()),
            id: record.record_id,
            kind: DeadLetterKind::Delivery,
            state: record.state.into_owned(),
            of: record.delivery.map(|delivery| delivery.target),
            attempts: record.attempts,
            at: record.updated_at,
        }
    });
    let letters = dead.letters.into_iter().map(|letter| DeadLetterRow {
        id: letter.id,
        kind: DeadLetterKind::Letter,
        state: letter.state.into_owned(),
        of: letter.worker,
        attempts: letter.attempts,
        cause: letter.failure,
        at: letter.updated_at,
        task: None,
    });
    let drafts = dead.drafts.into_iter().map(|draft| DeadLetterRow {
        kind: DeadLetterKind::Draft,
        state: "DEAD".to_owned(),
        of: Some(draft.provider),
        attempts: 0,
        cause: Some(draft.reason),
        at: uid_time(&draft.id),
        id: draft.id,
        task: None,
    });
    let tasks = dead.tasks.into_iter().map(|task| DeadLetterRow {
        id: task.id,
        kind: DeadLetterKind::Task,
        state: task.status.into_owned(),
        of: Some(task.account),
        attempts: task.attempts,
        cause: task.error,
        at: task.updated_at,
        task: None,
    });
    let mut rows: Vec<_> =
        claims.chain(deliveries).chain(letters).chain(drafts).chain(tasks).collect();
    for row in &mut rows {
        row.task = of_tasks.remove(&row.id);
    }
    rows
}

fn list(format: OutputFormat, dead: DeadView) -> Result<(), CliError> {
    let columns: &[Column<DeadLetterRow>] = &[
        ("id", |row| row.id.cell()),
        ("kind", |row| row.kind.as_str().cell()),
        ("state", |row| row.state.cell()),
        ("of", |row| row.of.cell()),
        ("attempts", |row| row.attempts.cell()),
    ];
    let rows = rows(dead);
    let tasks: BTreeMap<_, _> =
        rows.iter().map(|row| (row.id.clone(), row.cause.clone())).collect();
    let mut causes: BTreeMap<String, Vec<DeadLetterRow>> = BTreeMap::new();
    for row in rows {
        // What belongs to a task is listed beside it.
        let task = row.task.as_ref().and_then(|task| tasks.get(task));
        let cause = task.unwrap_or(&row.cause).clone();
        causes.entry(cause.unwrap_or_else(|| "no reason given".to_owned())).or_default().push(row);
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

/// Returns the time in the id of a draft, such as `20260206T205100_name_0123456789abcdef`.
fn uid_time(uid: &str) -> String {
    match (uid.get(..4), uid.get(4..6), uid.get(6..11), uid.get(11..13), uid.get(13..15)) {
        (Some(year), Some(month), Some(day_hour), Some(minute), Some(second)) => {
            format!("{year}-{month}-{day_hour}:{minute}:{second}Z")
        }
        _ => String::new(),
    }
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

async fn change(
    client: &Client,
    format: OutputFormat,
    ids: &[String],
    workspace: Option<String>,
    action: DeadLetterAction,
) -> Result<(), CliError> {
    let dead = rows(client.get("/api/v1/dead").await?);
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
        ("kind", |row| row.kind.as_str().cell()),
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
    Ok(ChangedRow { id, kind: row.kind, of, now: now.into_owned() })
}
