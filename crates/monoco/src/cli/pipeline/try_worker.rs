//! `monoco pipeline try`: gives a letter to one worker and shows what it does.

use std::io::Read;

use monoco_core::letter::{Letter, MAX_DATA, MAX_EXTRA, WorkerResult};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::cli::CliContext;
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, Column, OutputFormat, ToCell, escape_lines, print};
use monoco_courier::config::ConfigSource;
use monoco_courier::pipeline::doorman;
use monoco_courier::pipeline::try_worker::{TrialError, TrialOutcome, try_worker};

/// Maximum number of input bytes.
const MAX_INPUT_BYTES: usize = 2 * MAX_DATA + 4 * MAX_EXTRA;

/// Keys of a letter that the pipeline sets. They are ignored, so that a letter can be tried as
/// `monoco pipeline show` prints it.
const PIPELINE_KEYS: [&str; 6] = ["id", "nonce", "processed", "last_worker", "result", "note"];

#[derive(Debug, clap::Args)]
pub struct TryArgs {
    /// Name of the worker in the config
    worker: String,
}

/// What a worker did with the letter.
#[derive(Serialize)]
struct TrialView {
    worker: String,
    kind: &'static str,
    /// `pass`, `skip` or `trash`; missing when the worker failed or decides nothing itself
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Changed fields of the letter with their new values
    changes: Map<String, Value>,
    #[serde(skip_serializing_if = "String::is_empty")]
    stderr: String,
}

const FIELDS: &[Column<TrialView>] = &[
    ("worker", |trial| trial.worker.cell()),
    ("kind", |trial| trial.kind.cell()),
    ("verdict", |trial| trial.verdict?.cell()),
    ("note", |trial| trial.note.cell()),
    ("action", |trial| trial.action?.cell()),
    ("error", |trial| trial.error.cell()),
];

pub async fn run(context: &CliContext, args: TryArgs) -> Result<(), CliError> {
    let letter = read_letter()?;
    let running = context.home.running();
    let source = running.as_ref().and_then(|running| running.config.clone());
    let source = source.unwrap_or_else(|| ConfigSource::of(&context.home));
    let invalid = |message: String| CliError::new(CliExit::NotPossible, message);
    let config = source.load().map_err(|error| invalid(error.to_string()))?;
    let trial = try_worker(&config.pipeline, &args.worker, &letter, running.is_some()).await;
    let trial = trial.map_err(|error| match error {
        TrialError::CourierReadsAnswers(_) => invalid(error.to_string()).hint(
            "stop it with `monoco courier stop`, or submit a letter with `monoco pipeline post`",
        ),
        _ => invalid(error.to_string()),
    })?;
    let mut view = TrialView {
        worker: args.worker,
        kind: trial.kind,
        verdict: None,
        note: None,
        action: None,
        error: None,
        changes: Map::new(),
        stderr: trial.stderr,
    };
    match trial.outcome {
        TrialOutcome::Decided(WorkerResult { verdict, note, letter: changed }) => {
            (view.verdict, view.note) = (Some(verdict.as_str()), note);
            view.changes = changed.map(|changed| changes(&letter, &changed)).unwrap_or_default();
        }
        TrialOutcome::Action(action) => view.action = Some(action),
        TrialOutcome::Failed(why) => view.error = Some(why),
        TrialOutcome::Down(why) => view.error = Some(format!("the worker is down: {why}")),
    }
    show(context.format, &view)?;
    match view.error {
        None => Ok(()),
        Some(_) => Err(invalid(format!("worker {} gave no verdict", view.worker))),
    }
}

fn read_letter() -> Result<Letter, CliError> {
    let invalid = |message: String| CliError::new(CliExit::NotPossible, message);
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(MAX_INPUT_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_INPUT_BYTES {
        return Err(invalid(format!("input is larger than {MAX_INPUT_BYTES} bytes")));
    }
    let mut value = monoco_core::json::parse(&bytes).map_err(|error| {
        invalid(format!("cannot parse the letter: {error}"))
            .hint("expected {\"from\": …, \"to\": […], \"data\": …} on stdin")
    })?;
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|key, _| !PIPELINE_KEYS.contains(&key.as_str()));
    }
    doorman::parse_letter(value, None).map_err(|error| invalid(error.to_string()))
}

/// Returns the fields that differ, with their new values.
fn changes(before: &Letter, after: &Letter) -> Map<String, Value> {
    let mut changes = Map::new();
    for (key, old, new) in [
        ("from", json!(before.from), json!(after.from)),
        ("to", json!(before.to), json!(after.to)),
        ("data", json!(before.data), json!(after.data)),
    ] {
        if old != new {
            changes.insert(key.to_owned(), new);
        }
    }
    for (prefix, old, new) in
        [("extra.", &before.extra, &after.extra), ("", &before.rest, &after.rest)]
    {
        let added = new.iter().filter(|(key, value)| old.get(*key) != Some(*value));
        changes.extend(added.map(|(key, value)| (format!("{prefix}{key}"), value.clone())));
        let removed = old.keys().filter(|key| !new.contains_key(*key));
        changes.extend(removed.map(|key| (format!("{prefix}{key}"), Value::Null)));
    }
    changes
}

fn show(format: OutputFormat, trial: &TrialView) -> Result<(), CliError> {
    output::one(format, trial, &trial.worker, FIELDS)?;
    if format != OutputFormat::Table {
        return Ok(());
    }
    for (key, value) in &trial.changes {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        print(&format!("\nnew {key}:\n{}", escape_lines(&text)))?;
    }
    if !trial.stderr.is_empty() {
        print(&format!("\nstderr:\n{}", escape_lines(trial.stderr.trim_end())))?;
    }
    Ok(())
}
