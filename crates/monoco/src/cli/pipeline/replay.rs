//! `monoco pipeline replay`: evaluates past letters with the current chains.

use std::io::{IsTerminal, Write};

use serde_json::json;

use super::verdict_line;
use crate::cli::failure::CliError;
use crate::cli::output::{self, OutputFormat, escape_line, print};
use crate::cli::{CliContext, since};
use monoco_courier::api::views::pipeline::{ReplayDifferenceView, ReplayOutcomeView, ReplayView};
use monoco_courier::clock::wall_now;

#[derive(Debug, clap::Args)]
pub struct ReplayArgs {
    /// Evaluate letters created since: 2h, 7d, 2026-02-06 or RFC 3339
    #[arg(long, value_name = "TIME")]
    since: String,
    /// Direction of the letters: inbound or outbound [default: both]
    #[arg(long)]
    direction: Option<String>,
    /// Evaluate only letters of this tunnel
    #[arg(long)]
    tunnel: Option<String>,
    /// Show the differences without changing any letter
    #[arg(long)]
    dry_run: bool,
}

/// Results of all pages so far.
#[derive(Default)]
struct ReplaySummary {
    evaluated: usize,
    differ: usize,
    moved: usize,
    /// All letters with a different outcome, for JSON output.
    letters: Vec<ReplayDifferenceView>,
}

pub async fn run(context: &CliContext, args: ReplayArgs) -> Result<(), CliError> {
    let client = context.client()?;
    let since = since::parse(&args.since, wall_now())?.rfc3339();
    let mut request = json!({
        "since": since, "direction": args.direction, "tunnel": args.tunnel,
        "dry_run": args.dry_run,
    });
    let mut found = ReplaySummary::default();
    let counted = std::io::stderr().is_terminal();
    loop {
        let page: ReplayView = client.post("/api/v1/pipeline/replay", &request).await?;
        found.evaluated += page.evaluated;
        clear_progress(counted);
        for letter in page.differ {
            found.add(context.format, letter)?;
        }
        if counted {
            let ReplaySummary { evaluated, differ, .. } = &found;
            // Progress output; an error is ignored.
            let _ = write!(std::io::stderr(), "{evaluated} letters evaluated, {differ} differ ");
        }
        let Some(cursor) = page.next_cursor else { break };
        request["cursor"] = cursor.into();
        request["until"] = page.until.into();
    }
    clear_progress(counted);
    found.end(context.format, args.dry_run)
}

/// Clears the progress line on the terminal.
fn clear_progress(counted: bool) {
    if counted {
        let _ = write!(std::io::stderr(), "\r\u{1b}[K");
    }
}

impl ReplaySummary {
    fn add(&mut self, format: OutputFormat, letter: ReplayDifferenceView) -> Result<(), CliError> {
        self.differ += 1;
        self.moved += usize::from(letter.moved);
        let id = escape_line(&letter.id);
        let (was, would) = (outcome(&letter.was), outcome(&letter.would));
        let again = if letter.moved { "run again" } else { "" };
        match format {
            OutputFormat::Json => {
                self.letters.push(letter);
                Ok(())
            }
            OutputFormat::Id => print(&id),
            OutputFormat::Compact => print(&[&id, &was, &would, again].join("\t")),
            OutputFormat::Table => print(format!("{id}  {was}  ->  {would}  {again}").trim_end()),
        }
    }

    fn end(self, format: OutputFormat, dry_run: bool) -> Result<(), CliError> {
        let Self { evaluated, differ, moved, letters } = self;
        if format == OutputFormat::Json {
            let answer = json!({"evaluated": evaluated, "differ": letters, "moved": moved});
            return output::print_json(&answer);
        }
        let end = if dry_run { String::new() } else { format!(", {moved} run again") };
        output::note(&format!("{evaluated} letters evaluated, {differ} would differ{end}"));
        Ok(())
    }
}

/// Formats an outcome: state, verdicts and worker.
fn outcome(outcome: &ReplayOutcomeView) -> String {
    let mut words = vec![outcome.state.to_string()];
    if !outcome.verdicts.is_empty() {
        words.push(format!("({})", verdict_line(&outcome.verdicts)));
    }
    if let Some(worker) = &outcome.at_worker {
        words.push(format!("at {worker}"));
    }
    escape_line(&words.join(" "))
}
