//! `monoco search`: finds received and sent messages by their text.

use monoco_core::time::Timestamp;

use super::CliContext;
use super::client::query;
use super::failure::CliError;
use super::output::{self, Column, OutputFormat, ToCell, note};
use super::since;
use monoco_courier::api::views::search::{FoundMessageView, SearchPageView};
use monoco_courier::clock::wall_now;

#[derive(Debug, clap::Args)]
pub struct SearchArgs {
    /// Words, "phrases", pref* and filters: from: in: since: has: tunnel: status:
    #[arg(value_name = "QUERY")]
    query: Vec<String>,
    /// Filter by name or id of the author
    #[arg(long, value_name = "NAME")]
    from: Option<String>,
    /// Filter by name or id of the chat, or by recipient
    #[arg(long = "in", value_name = "CHAT")]
    chat: Option<String>,
    /// Filter by time: a time, a day, or a duration ago, such as 2h or 7d
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Workspace whose claims count for status: [default: shared]
    #[arg(long, value_name = "NAME")]
    workspace: Option<String>,
    /// Order of the messages: newest, oldest or relevance
    #[arg(long, default_value = "newest")]
    order: String,
    /// Maximum number of messages to show
    #[arg(long, default_value_t = 50, allow_negative_numbers = true)]
    limit: i64,
    /// Continue with the cursor of the previous page
    #[arg(long)]
    cursor: Option<String>,
}

const COLUMNS: &[Column<FoundMessageView>] = &[
    ("id", |found| found.mail_id.as_ref().unwrap_or(&found.msg_id).cell()),
    ("at", |found| found.at.cell()),
    ("direction", |found| found.direction.cell()),
    ("from", |found| found.from.cell()),
    ("chat", |found| found.chat.cell()),
    ("status", |found| found.status.join(" ").cell()),
    ("text", |found| match &found.title {
        Some(title) => format!("{title}: {}", found.snippet.text).cell(),
        None => found.snippet.text.cell(),
    }),
];

pub async fn run(context: &CliContext, args: SearchArgs) -> Result<(), CliError> {
    let q = args.text(wall_now())?;
    let parameters = query(&[
        ("q", Some(q)),
        ("workspace", args.workspace),
        ("order", Some(args.order)),
        ("limit", Some(args.limit.to_string())),
        ("cursor", args.cursor),
    ]);
    let page: SearchPageView =
        context.client()?.get(&format!("/api/v1/search{parameters}")).await?;
    // A table has no room for all columns.
    let fits = |(name, _): &&Column<FoundMessageView>| {
        context.format != OutputFormat::Table || !matches!(*name, "direction" | "chat" | "status")
    };
    let columns: Vec<_> = COLUMNS.iter().filter(fits).copied().collect();
    output::list(context.format, &page, &page.messages, &columns)?;
    if context.format == OutputFormat::Json {
        return Ok(());
    }
    if !page.complete {
        note("the search index does not have all messages yet; try again later for the rest");
    }
    if let Some(cursor) = &page.next_cursor {
        note(&format!("there may be more messages; continue with --cursor {cursor}"));
    }
    Ok(())
}

impl SearchArgs {
    /// The query with the filters of the options.
    fn text(&self, now: Timestamp) -> Result<String, CliError> {
        let mut parts = self.query.clone();
        for (filter, value) in [("from", &self.from), ("in", &self.chat)] {
            let Some(value) = value else { continue };
            if value.contains('"') {
                return Err(CliError::usage(format!("--{filter}: expected a name without `\"`")));
            }
            parts.push(format!("{filter}:\"{value}\""));
        }
        if let Some(time) = &self.since {
            parts.push(format!("since:{}", since::parse(time, now)?.rfc3339()));
        }
        Ok(parts.join(" "))
    }
}
