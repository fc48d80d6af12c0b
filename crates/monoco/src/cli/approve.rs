//! `monoco approve`: lists and answers messages that wait for a person.

use std::io::Read;

use serde_json::{Value, json};

use super::client::{Client, query, segment};
use super::failure::{CliError, CliExit};
use super::output::{self, Column, OutputFormat, ToCell, escape_line, escape_lines, print};
use super::{CliContext, mailbox, since};
use monoco_courier::api::views::approvals::{
    ApprovalPage, ApprovalView, DecisionView, PolicyReplay, ReplayedDecision, RuleCheckView,
};
use monoco_courier::clock::wall_now;

#[derive(Debug, clap::Subcommand)]
pub enum ApproveCommand {
    /// List messages that wait for approval
    List {
        /// States to list, separated by commas, or `all` [default: PENDING]
        #[arg(long)]
        state: Option<String>,
        /// Maximum number of approvals [default: 50]
        #[arg(long)]
        limit: Option<u32>,
    },
    /// Show one approval with the whole text
    Show {
        /// Id of the approval, such as apr_17 or 17
        id: String,
    },
    /// Approve messages: they are sent
    ///
    /// The first answer counts. Another answer is rejected, and the error names the first one.
    /// Example: monoco approve list --format id | monoco approve yes -
    Yes {
        /// Ids of approvals; - reads ids from stdin
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Reject messages: they are not sent
    No {
        /// Ids of approvals; - reads ids from stdin
        #[arg(required = true)]
        ids: Vec<String>,
        /// Why they are not sent; the sender can read it
        #[arg(long)]
        reason: Option<String>,
    },
    /// Send an edited message in place of a held one
    ///
    /// It goes to the same targets; the held message is archived. Example:
    /// monoco approve edit 17 --text 'We deliver on Monday.'
    Edit {
        /// Id of the approval, such as apr_17 or 17
        id: String,
        /// New text; - reads it from stdin [default: unchanged]
        #[arg(long)]
        text: Option<String>,
        /// New title [default: unchanged]
        #[arg(long)]
        title: Option<String>,
    },
    /// Show what the policy in the config file would have decided, without applying it
    Replay {
        /// Replay decisions since: 2h, 7d, 2026-02-06 or RFC 3339
        #[arg(long, value_name = "TIME")]
        since: String,
    },
    /// Explain what the policy decided about a message, rule by rule
    Explain {
        /// Id of the message (cymsg:…), which can be shortened, or of its approval (apr_…)
        msg: String,
    },
}

const COLUMNS: &[Column<ApprovalView>] = &[
    ("id", |it| it.approval.id.cell()),
    ("state", |it| it.approval.state.cell()),
    ("by", |it| it.agent.as_deref().unwrap_or(&it.by).cell()),
    ("to", |it| it.to.cell()),
    ("text", |it| it.text.as_deref()?.lines().next()?.cell()),
    ("why", |it| it.approval.why.cell()),
    ("created", |it| it.created_at.cell()),
];

const FIELDS: &[Column<ApprovalView>] = &[
    ("approval", |it| it.approval.id.cell()),
    ("state", |it| it.approval.state.cell()),
    ("by", |it| it.agent.as_deref().unwrap_or(&it.by).cell()),
    ("author", |it| it.author.cell()),
    ("to", |it| it.to.cell()),
    ("rule", |it| it.approval.rule.cell()),
    ("why", |it| it.approval.why.cell()),
    ("read a stranger's Mail before", |it| it.after_untrusted.cell()),
    ("message", |it| it.msg_id.cell()),
    ("created", |it| it.created_at.cell()),
    ("not before", |it| it.not_before.cell()),
    ("expires", |it| it.approval.expires_at.cell()),
    ("answered by", |it| it.approval.answered_by.cell()),
    ("answered", |it| it.approval.answered_at.cell()),
    ("reason", |it| it.approval.reason.cell()),
    ("replaced by", |it| it.approval.replaced_by.cell()),
    ("title", |it| it.title.cell()),
];

pub async fn run(context: &CliContext, command: ApproveCommand) -> Result<(), CliError> {
    let client = context.client()?;
    match command {
        ApproveCommand::List { state, limit } => list(context, &client, state, limit).await,
        ApproveCommand::Show { id } => {
            let approval = client.get(&format!("/api/v1/approvals/{}", segment(&id))).await?;
            show(context.format, &approval)
        }
        ApproveCommand::Yes { ids } => answer(context, &client, ids, "approve", &json!({})).await,
        ApproveCommand::No { ids, reason } => {
            answer(context, &client, ids, "reject", &json!({"reason": reason})).await
        }
        ApproveCommand::Edit { id, text, title } => edit(context, &client, &id, text, title).await,
        ApproveCommand::Replay { since } => replay(context, &client, &since).await,
        ApproveCommand::Explain { msg } => explain(context, &client, &msg).await,
    }
}

async fn list(
    context: &CliContext,
    client: &Client,
    state: Option<String>,
    limit: Option<u32>,
) -> Result<(), CliError> {
    let state = match state.as_deref() {
        None => Some("PENDING".to_owned()),
        Some("all") => None,
        Some(states) => Some(states.to_ascii_uppercase()),
    };
    let parameters = query(&[("state", state), ("limit", limit.map(|limit| limit.to_string()))]);
    let page: ApprovalPage = client.get(&format!("/api/v1/approvals{parameters}")).await?;
    output::list(context.format, &page, &page.approvals, COLUMNS)
}

fn show(format: OutputFormat, approval: &ApprovalView) -> Result<(), CliError> {
    output::one(format, approval, &approval.approval.id, FIELDS)?;
    match &approval.text {
        Some(text) if format == OutputFormat::Table => {
            print("")?;
            print(&escape_lines(text))
        }
        _ => Ok(()),
    }
}

/// Gives the same answer to all approvals. One that fails does not stop the others.
async fn answer(
    context: &CliContext,
    client: &Client,
    ids: Vec<String>,
    verb: &str,
    body: &Value,
) -> Result<(), CliError> {
    let ids = mailbox::read_ids(ids)?;
    let (mut answered, mut failures) = (Vec::new(), Vec::new());
    for id in &ids {
        let path = format!("/api/v1/approvals/{}/{verb}", segment(id));
        match client.post::<ApprovalView>(&path, body).await {
            Ok(approval) => answered.push(approval),
            Err(failure) => failures.push(failure),
        }
    }
    if !answered.is_empty() {
        output::list(context.format, &json!({"approvals": answered}), &answered, COLUMNS)?;
    }
    mailbox::worst(context.format, failures, ids.len())
}

async fn edit(
    context: &CliContext,
    client: &Client,
    id: &str,
    text: Option<String>,
    title: Option<String>,
) -> Result<(), CliError> {
    if text.is_none() && title.is_none() {
        return Err(CliError::usage("nothing to change; use --text or --title"));
    }
    let text = match text.as_deref() {
        Some("-") => {
            let mut read = String::new();
            std::io::stdin().lock().read_to_string(&mut read)?;
            Some(read.trim_end().to_owned())
        }
        _ => text,
    };
    let path = format!("/api/v1/approvals/{}/edit", segment(id));
    let approval: ApprovalView = client.post(&path, &json!({"text": text, "title": title})).await?;
    // Without the text, which is that of the held message.
    output::one(context.format, &approval, &approval.approval.id, FIELDS)
}

async fn replay(context: &CliContext, client: &Client, since: &str) -> Result<(), CliError> {
    let since = since::parse(since, wall_now())?.rfc3339();
    let replayed: PolicyReplay =
        client.post("/api/v1/approvals/replay", &json!({"since": since})).await?;
    let columns: &[Column<ReplayedDecision>] = &[
        ("message", |it| it.msg_id.cell()),
        ("by", |it| it.by.cell()),
        ("was", |it| it.was.cell()),
        ("now", |it| it.now.cell()),
        ("rule", |it| it.rule.cell()),
        ("at", |it| it.at.cell()),
    ];
    output::list(context.format, &replayed, &replayed.changed, columns)?;
    if context.format == OutputFormat::Table {
        let PolicyReplay { decisions, sent, held, refused, changed, .. } = &replayed;
        print(&format!(
            "{decisions} messages: {sent} sent, {held} held, {refused} refused; {} differ",
            changed.len()
        ))?;
    }
    if replayed.truncated {
        output::note("only the first 10,000 messages were replayed; use a later --since");
    }
    Ok(())
}

async fn explain(context: &CliContext, client: &Client, msg: &str) -> Result<(), CliError> {
    let path = format!("/api/v1/decisions/{}", segment(msg));
    let found: Result<DecisionView, CliError> = client.get(&path).await;
    let decision = found.map_err(|failure| match failure.exit {
        CliExit::NotPossible if failure.message.starts_with("there is no decision") => failure.hint(
            "only messages of agents, and of the owner with `owner: rules` or `hold`, are decided by \
             rules; refused and edited messages have no decision of their own",
        ),
        _ => failure,
    })?;
    if context.format != OutputFormat::Table {
        let columns: &[Column<RuleCheckView>] = &[
            ("rule", |it| it.rule.cell()),
            ("matched", |it| it.matched.cell()),
            ("why", |it| it.why.cell()),
        ];
        return output::list(context.format, &decision, &decision.rules, columns);
    }
    let DecisionView { decision: was, rule, by, at, rules, approval, .. } = &decision;
    let done = if was == "hold" { "held" } else { "sent" };
    print(&escape_line(&format!("{done} by `{rule}`; posted by {by} at {at}")))?;
    for check in rules {
        let mark = if check.matched { "matches" } else { "does not match" };
        print(&escape_line(&format!("  {} {mark}: {}", check.rule, check.why)))?;
    }
    if let Some(approval) = approval {
        print(&escape_line(&format!("approval {} is {}", approval.id, approval.state)))?;
    }
    Ok(())
}
