//! `monoco pipeline status`: the chains, the workers, and how many letters are where.

use std::io::IsTerminal;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::CliContext;
use crate::cli::failure::CliError;
use crate::cli::output::{self, OutputFormat, print, shown};
use crate::clock::wall_now;

/// How often `--watch` looks.
const EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub struct PipelineStatusArgs {
    /// Show it every second, until interrupted
    #[arg(long)]
    watch: bool,
}

const OFFICE: [(&str, &str); 7] = [
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
        return show(format, look(context).await?);
    }
    let screen = std::io::stdout().is_terminal() && format == OutputFormat::Table;
    loop {
        let answer = look(context).await;
        if screen {
            print("\u{1b}[H\u{1b}[2J")?;
        }
        match answer {
            Ok(answer) if screen => show(format, answer)?,
            Ok(answer) if format == OutputFormat::Json => print(&output::json_line(&answer))?,
            Ok(answer) => print(&format!("{} {}", wall_now().rfc3339(), counts(&answer)))?,
            Err(failure) => output::note(&shown(&failure.message)),
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn look(context: &CliContext) -> Result<Value, CliError> {
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
    output::one(format, &answer, "queue.kind", &OFFICE)?;
    for (tunnel, chains) in answer["chains"]["tunnels"].as_object().into_iter().flatten() {
        for direction in ["inbound", "outbound"] {
            if let Some(chain) = chains[direction].as_array() {
                let chain: Vec<_> = chain.iter().filter_map(Value::as_str).map(shown).collect();
                print(&format!("{direction} of {}: {}", shown(tunnel), chain.join(", ")))?;
            }
        }
    }
    print("")?;
    output::list(format, &workers, "workers", &WORKERS)
}

/// The workers with their names among their values.
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

/// How many letters there are of each state, on one line.
fn counts(answer: &Value) -> String {
    let states = answer["states"].as_object().into_iter().flatten();
    let words: Vec<_> = states.map(|(state, count)| format!("{}={count}", shown(state))).collect();
    words.join(" ")
}
