//! `monoco pipeline letters`, `show`, `retry` and `trash`: lists and changes letters.

use serde_json::{Value, json};

use super::verdict_line;
use crate::cli::client::{Client, query, segment};
use crate::cli::failure::CliError;
use crate::cli::mailbox::read_ids;
use crate::cli::output::{self, OutputFormat, escape_lines, print};
use crate::cli::{CliContext, since};
use crate::clock::wall_now;

#[derive(Debug, clap::Args)]
pub struct LetterListArgs {
    /// Filter by states, separated by commas: waiting, away, done, merged, trashed, dead
    #[arg(long)]
    state: Option<String>,
    #[command(flatten)]
    which: LetterFilterArgs,
}

/// Arguments that filter letters.
#[derive(Debug, clap::Args)]
struct LetterFilterArgs {
    /// Filter by the worker that processes or holds the letter
    #[arg(long)]
    worker: Option<String>,
    /// Filter by direction: inbound or outbound
    #[arg(long)]
    direction: Option<String>,
    /// Filter by id of the tunnel
    #[arg(long)]
    tunnel: Option<String>,
    /// Filter by creation time: 2h, 7d, 2026-02-06 or RFC 3339
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Maximum number of letters to show
    #[arg(long, allow_negative_numbers = true)]
    limit: Option<i64>,
    /// Cursor printed at the end of the last page
    #[arg(long)]
    cursor: Option<String>,
}

#[derive(Debug, clap::Args)]
pub struct LetterShowArgs {
    /// Id of the letter (ltr_…)
    id: String,
    /// Print the text as workers receive it
    #[arg(long)]
    data: bool,
    /// Print the original text if workers changed it
    #[arg(long)]
    original: bool,
}

#[derive(Debug, clap::Args)]
pub struct TrashArgs {
    #[command(subcommand)]
    command: Option<TrashCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum TrashCommand {
    /// List trashed letters, newest first
    ///
    /// Example: monoco pipeline trash list --since 7d
    List(#[command(flatten)] LetterFilterArgs),
    /// Restore trashed letters
    ///
    /// A restored letter continues after the worker that trashed it. Example:
    /// monoco pipeline trash list --format id | monoco pipeline trash restore -
    Restore {
        /// Ids of letters; - reads ids from stdin
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Trash letters that are in progress or dead
    ///
    /// Example: monoco pipeline trash put ltr_7_00000abc --reason 'sent by mistake'
    Put {
        /// Ids of letters; - reads ids from stdin
        #[arg(required = true)]
        ids: Vec<String>,
        /// Reason, shown in the list of trashed letters
        #[arg(long)]
        reason: Option<String>,
    },
}

const LETTERS: [(&str, &str); 9] = [
    ("letter", "id"),
    ("direction", "direction"),
    ("state", "state"),
    ("worker", "worker"),
    ("from", "from"),
    ("to", "to"),
    ("subject", "subject"),
    ("verdicts", "said"),
    ("came", "created_at"),
];

const TRASHED: [(&str, &str); 6] = [
    ("letter", "id"),
    ("direction", "direction"),
    ("from", "from"),
    ("subject", "subject"),
    ("why", "failure"),
    ("came", "created_at"),
];

const LETTER: [(&str, &str); 19] = [
    ("letter", "id"),
    ("state", "state"),
    ("worker", "worker"),
    ("due", "due_at"),
    ("until", "until"),
    ("attempts", "attempts"),
    ("failure", "failure"),
    ("direction", "direction"),
    ("tunnel", "tunnel"),
    ("source", "source"),
    ("from", "from"),
    ("to", "to"),
    ("recipients", "recipients"),
    ("subject", "subject"),
    ("size", "size"),
    ("became", "became"),
    ("merged into", "merged_into"),
    ("merged", "merged"),
    ("came", "created_at"),
];

const MOVED: [(&str, &str); 3] = [("letter", "id"), ("now", "state"), ("worker", "worker")];

pub async fn list(context: &CliContext, args: LetterListArgs) -> Result<(), CliError> {
    let answer = letters(context, args.state, args.which).await?;
    output::list(context.format, &answer, "letters", &LETTERS)
}

async fn letters(
    context: &CliContext,
    state: Option<String>,
    which: LetterFilterArgs,
) -> Result<Value, CliError> {
    let since = which.since.map(|text| since::parse(&text, wall_now())).transpose()?;
    let query = query(&[
        ("state", state),
        ("worker", which.worker),
        ("direction", which.direction),
        ("tunnel", which.tunnel),
        ("since", since.map(|time| time.rfc3339())),
        ("limit", which.limit.map(|limit| limit.to_string())),
        ("cursor", which.cursor),
    ]);
    let mut answer = context.client()?.get(&format!("/api/v1/letters{query}")).await?;
    if context.format != OutputFormat::Json {
        for letter in answer["letters"].as_array_mut().into_iter().flatten() {
            letter["said"] = verdict_line(&letter["verdicts"]).into();
        }
    }
    Ok(answer)
}

pub async fn show(context: &CliContext, args: LetterShowArgs) -> Result<(), CliError> {
    let asked = query(&[("original", args.original.then(|| "true".to_owned()))]);
    let path = format!("/api/v1/letters/{}{asked}", segment(&args.id));
    let answer = context.client()?.get(&path).await?;
    let format = context.format;
    output::one(format, &answer, "id", &LETTER)?;
    if format != OutputFormat::Table {
        return Ok(());
    }
    if answer["verdicts"].as_array().is_some_and(|said| !said.is_empty()) {
        print("")?;
        let columns = [("worker", "worker"), ("result", "result"), ("at", "at"), ("note", "note")];
        output::list(format, &answer, "verdicts", &columns)?;
    }
    if args.data {
        print_text(&answer["letter"])?;
    }
    match &answer["original"] {
        Value::Null if args.original => {
            output::note("no worker has changed the letter");
            if args.data { Ok(()) } else { print_text(&answer["letter"]) }
        }
        Value::Null => Ok(()),
        original => {
            print("\noriginal:")?;
            print_text(original)
        }
    }
}

/// Prints the text of a letter.
fn print_text(letter: &Value) -> Result<(), CliError> {
    print(&format!("\n{}", escape_lines(letter["data"].as_str().unwrap_or_default())))
}

pub async fn retry(context: &CliContext, ids: Vec<String>) -> Result<(), CliError> {
    change(context, ids, "retry", &json!({})).await
}

pub async fn trash(context: &CliContext, args: TrashArgs) -> Result<(), CliError> {
    let everything = LetterFilterArgs {
        worker: None,
        direction: None,
        tunnel: None,
        since: None,
        limit: None,
        cursor: None,
    };
    match args.command.unwrap_or(TrashCommand::List(everything)) {
        TrashCommand::List(which) => {
            let answer = letters(context, Some("TRASHED".to_owned()), which).await?;
            output::list(context.format, &answer, "letters", &TRASHED)
        }
        TrashCommand::Restore { ids } => change(context, ids, "restore", &json!({})).await,
        TrashCommand::Put { ids, reason } => {
            let body = match reason {
                Some(reason) => json!({ "reason": reason }),
                None => json!({}),
            };
            change(context, ids, "trash", &body).await
        }
    }
}

/// Changes letters one by one. A letter that cannot be changed does not stop the others.
async fn change(
    context: &CliContext,
    ids: Vec<String>,
    verb: &str,
    body: &Value,
) -> Result<(), CliError> {
    let client: Client = context.client()?;
    let (mut moved, mut failed) = (Vec::new(), None);
    for id in read_ids(ids)? {
        match client.post(&format!("/api/v1/letters/{}/{verb}", segment(&id)), body).await {
            Ok(letter) => moved.push(letter),
            Err(failure) => {
                let message = format!("{id}: {}", failure.message);
                failed = failed.or(Some(CliError { message, ..failure }));
            }
        }
    }
    if !moved.is_empty() || failed.is_none() {
        output::list(context.format, &json!({ "letters": moved }), "letters", &MOVED)?;
    }
    failed.map_or(Ok(()), Err)
}
