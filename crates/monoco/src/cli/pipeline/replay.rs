//! `monoco pipeline replay`: evaluates past letters with the current chains.

use std::io::{IsTerminal, Write};

use serde_json::{Value, json};

use super::verdict_line;
use crate::cli::failure::CliError;
use crate::cli::output::{self, OutputFormat, escape_line, print};
use crate::cli::{CliContext, since};
use crate::clock::wall_now;

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
    looked: u64,
    differ: usize,
    moved: usize,
    /// All letters with a different outcome, for JSON output.
    letters: Vec<Value>,
}

pub async fn run(context: &CliContext, args: ReplayArgs) -> Result<(), CliError> {
    let client = context.client()?;
    let since = since::parse(&args.since, wall_now())?.rfc3339();
    let mut ask = json!({
        "since": since, "direction": args.direction, "tunnel": args.tunnel,
        "dry_run": args.dry_run,
    });
    let mut found = ReplaySummary::default();
    let counted = std::io::stderr().is_terminal();
    loop {
        let answer = client.post("/api/v1/pipeline/replay", &ask).await?;
        found.looked += answer["looked"].as_u64().unwrap_or(0);
        clear_progress(counted);
        for letter in answer["differ"].as_array().into_iter().flatten() {
            found.add(context.format, letter)?;
        }
        if counted {
            let ReplaySummary { looked, differ, .. } = &found;
            // Progress output; an error is ignored.
            let _ = write!(std::io::stderr(), "{looked} letters evaluated, {differ} differ ");
        }
        if answer["next_cursor"].is_null() {
            break;
        }
        ask["cursor"] = answer["next_cursor"].clone();
        ask["until"] = answer["until"].clone();
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
    fn add(&mut self, format: OutputFormat, letter: &Value) -> Result<(), CliError> {
        self.differ += 1;
        self.moved += usize::from(letter["moved"] == true);
        let id = escape_line(letter["id"].as_str().unwrap_or_default());
        match format {
            OutputFormat::Json => {
                self.letters.push(letter.clone());
                Ok(())
            }
            OutputFormat::Id => print(&id),
            OutputFormat::Compact | OutputFormat::Table => {
                let again = if letter["moved"] == true { "run again" } else { "" };
                let line =
                    [id, outcome(&letter["was"]), outcome(&letter["would"]), again.to_owned()];
                if format == OutputFormat::Compact {
                    return print(&line.join("\t"));
                }
                let [id, was, would, again] = line;
                print(format!("{id}  {was}  ->  {would}  {again}").trim_end())
            }
        }
    }

    fn end(self, format: OutputFormat, dry_run: bool) -> Result<(), CliError> {
        let Self { looked, differ, moved, letters } = self;
        if format == OutputFormat::Json {
            let answer = json!({"looked": looked, "differ": letters, "moved": moved});
            return print(&output::json(&answer));
        }
        let end = if dry_run { String::new() } else { format!(", {moved} run again") };
        output::note(&format!("{looked} letters evaluated, {differ} would differ{end}"));
        Ok(())
    }
}

/// Formats an outcome: state, verdicts and worker.
fn outcome(fate: &Value) -> String {
    let state = fate["state"].as_str().unwrap_or("?");
    let mut words = vec![state.to_owned()];
    let verdicts = verdict_line(&fate["verdicts"]);
    if !verdicts.is_empty() {
        words.push(format!("({verdicts})"));
    }
    if let Some(worker) = fate["at_worker"].as_str() {
        words.push(format!("at {worker}"));
    }
    escape_line(&words.join(" "))
}
