//! `monoco pipeline status`: prints chains, workers and the number of letters per state.

use std::io::IsTerminal;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::CliContext;
use crate::cli::failure::CliError;
use crate::cli::output::{self, OutputFormat, escape_line, print};
use crate::clock::wall_now;

/// How often `--watch` updates the status.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub struct PipelineStatusArgs {
    /// Update the status every second, until interrupted
    #[arg(long)]
    watch: bool,
}

const PIPELINE: [(&str, &str); 7] = [
    ("queue", "queue.kind"),
    ("at", "queue.address"),
    ("queue error", "queue.error"),
    ("inbound", "chains.inbound"),
    ("outbound", "chains.outbound"),
    ("letters", "letters"),
    ("oldest due", "oldest_due_at"),
];

const WORKERS: [(&str, &str); 13] = [
    ("worker", "worker"),
    ("kind", "kind"),
    ("in", "in"),
    ("pass", "pass"),
    ("skip", "skip"),
    ("trash", "trash"),
    ("errors", "errors"),
    ("late", "late"),
    ("seconds", "took"),
    ("waiting", "waiting"),
    ("away", "away"),
    ("kept", "kept"),
    ("down", "down"),
];

pub async fn run(context: &CliContext, args: PipelineStatusArgs) -> Result<(), CliError> {
    let format = context.format;
    if !args.watch {
        return show(format, get_status(context).await?);
    }
    let screen = std::io::stdout().is_terminal() && format == OutputFormat::Table;
    loop {
        let answer = get_status(context).await;
        if screen {
            print("\u{1b}[H\u{1b}[2J")?;
        }
        match answer {
            Ok(answer) if screen => show(format, answer)?,
            Ok(answer) if format == OutputFormat::Json => print(&output::json_line(&answer))?,
            Ok(answer) => print(&format!("{} {}", wall_now().rfc3339(), counts(&answer)))?,
            Err(failure) => output::note(&escape_line(&failure.message)),
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

async fn get_status(context: &CliContext) -> Result<Value, CliError> {
    context.client()?.get("/api/v1/pipeline").await
}

fn show(format: OutputFormat, mut answer: Value) -> Result<(), CliError> {
    if format == OutputFormat::Json {
        return print(&output::json(&answer));
    }
    let workers = json!({ "workers": workers(&answer) });
    if format != OutputFormat::Table {
        return output::list(format, &workers, "workers", &WORKERS);
    }
    answer["letters"] = counts(&answer).into();
    output::one(format, &answer, "queue.kind", &PIPELINE)?;
    for (tunnel, chains) in answer["chains"]["tunnels"].as_object().into_iter().flatten() {
        for direction in ["inbound", "outbound"] {
            if let Some(chain) = chains[direction].as_array() {
                let chain: Vec<_> =
                    chain.iter().filter_map(Value::as_str).map(escape_line).collect();
                print(&format!("{direction} of {}: {}", escape_line(tunnel), chain.join(", ")))?;
            }
        }
    }
    print("")?;
    output::list(format, &workers, "workers", &WORKERS)
}

/// Returns one row per worker.
fn workers(answer: &Value) -> Vec<Value> {
    let all = answer["workers"].as_object().into_iter().flatten();
    all.map(|(name, worker)| {
        let mut worker = worker.clone();
        worker["took"] = format!("{:.3}", worker["seconds"].as_f64().unwrap_or(0.0)).into();
        worker["worker"] = json!(name);
        worker
    })
    .collect()
}

/// Formats the number of letters in each state on one line.
fn counts(answer: &Value) -> String {
    let states = answer["states"].as_object().into_iter().flatten();
    let words: Vec<_> =
        states.map(|(state, count)| format!("{}={count}", escape_line(state))).collect();
    words.join(" ")
}
