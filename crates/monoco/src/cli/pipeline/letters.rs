//! `monoco pipeline letters`, `show`, `retry` and `trash`: lists and changes letters.

use serde_json::{Value, json};

use super::verdict_line;
use crate::cli::client::{query, segment};
use crate::cli::failure::CliError;
use crate::cli::mailbox::read_ids;
use crate::cli::output::{self, Column, OutputFormat, ToCell, escape_lines, print};
use crate::cli::{CliContext, for_each_id, since};
use monoco_courier::api::views::letters::{LetterDetailView, LetterPage, LetterView, VerdictView};
use monoco_courier::clock::wall_now;

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
    /// Id of the letter (ltr_…), can be shortened to its number (ltr_7); - reads ids from stdin
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

const LETTERS: &[Column<LetterView>] = &[
    ("letter", |letter| letter.id.cell()),
    ("direction", |letter| letter.direction.cell()),
    ("state", |letter| letter.state.cell()),
    ("worker", |letter| letter.worker.cell()),
    ("from", |letter| letter.from.cell()),
    ("to", |letter| letter.to.cell()),
    ("subject", |letter| letter.subject.cell()),
    ("verdicts", |letter| verdict_line(&letter.verdicts).cell()),
    ("created", |letter| letter.created_at.cell()),
];

/// The columns of [`LETTERS`] that fit into a table.
const LETTER_TABLE: &[Column<LetterView>] = &[
    ("letter", |letter| letter.id.cell()),
    ("state", |letter| letter.state.cell()),
    ("worker", |letter| letter.worker.cell()),
    ("from", |letter| letter.from.cell()),
    ("subject", |letter| letter.subject.cell()),
    ("created", |letter| letter.created_at.cell()),
];

const TRASHED: &[Column<LetterView>] = &[
    ("letter", |letter| letter.id.cell()),
    ("direction", |letter| letter.direction.cell()),
    ("from", |letter| letter.from.cell()),
    ("subject", |letter| letter.subject.cell()),
    ("reason", |letter| letter.failure.cell()),
    ("created", |letter| letter.created_at.cell()),
];

/// The columns of [`TRASHED`] that fit into a table. The reason gets the most room.
const TRASH_TABLE: &[Column<LetterView>] = &[
    ("letter", |letter| letter.id.cell()),
    ("from", |letter| letter.from.cell()),
    ("subject", |letter| letter.subject.cell()),
    ("reason", |letter| letter.failure.cell()),
];

const LETTER_FIELDS: &[Column<LetterDetailView>] = &[
    ("letter", |letter| letter.view.id.cell()),
    ("state", |letter| letter.view.state.cell()),
    ("worker", |letter| letter.view.worker.cell()),
    ("due", |letter| letter.view.due_at.cell()),
    ("until", |letter| letter.view.until.cell()),
    ("attempts", |letter| letter.view.attempts.cell()),
    ("failure", |letter| letter.view.failure.cell()),
    ("direction", |letter| letter.view.direction.cell()),
    ("tunnel", |letter| letter.view.tunnel.cell()),
    ("source", |letter| letter.view.source.cell()),
    ("from", |letter| letter.view.from.cell()),
    ("to", |letter| letter.view.to.cell()),
    ("recipients", |letter| letter.view.recipients.cell()),
    ("subject", |letter| letter.view.subject.cell()),
    ("size", |letter| letter.view.size.cell()),
    ("became", |letter| letter.view.became.cell()),
    ("merged into", |letter| letter.view.merged_into.cell()),
    ("merged", |letter| letter.merged.cell()),
    ("created", |letter| letter.view.created_at.cell()),
];

const VERDICTS: &[Column<VerdictView>] = &[
    ("worker", |verdict| verdict.worker.cell()),
    ("result", |verdict| verdict.result.cell()),
    ("at", |verdict| verdict.at.cell()),
    ("note", |verdict| verdict.note.cell()),
];

const CHANGED: &[Column<LetterView>] = &[
    ("letter", |letter| letter.id.cell()),
    ("now", |letter| letter.state.cell()),
    ("worker", |letter| letter.worker.cell()),
];

pub async fn list(context: &CliContext, args: LetterListArgs) -> Result<(), CliError> {
    let columns = if context.format == OutputFormat::Table { LETTER_TABLE } else { LETTERS };
    list_letters(context, args.state, args.which, columns).await
}

async fn list_letters(
    context: &CliContext,
    state: Option<String>,
    which: LetterFilterArgs,
    columns: &[Column<LetterView>],
) -> Result<(), CliError> {
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
    let page: LetterPage = context.client()?.get(&format!("/api/v1/letters{query}")).await?;
    let cursor = page.next_cursor.as_deref();
    output::page(context.format, &page, &page.letters, columns, cursor)
}

pub async fn show(context: &CliContext, args: LetterShowArgs) -> Result<(), CliError> {
    let query = query(&[("original", args.original.then(|| "true".to_owned()))]);
    let client = context.client()?;
    let LetterShowArgs { id, data, original } = args;
    let show = async |id: &str| {
        let path = format!("/api/v1/letters/{}{query}", segment(id));
        print_letter(context, &client.get(&path).await?, data, original)
    };
    for_each_id(context, id, show).await
}

/// Prints a letter, with its text and its original text if requested.
fn print_letter(
    context: &CliContext,
    detail: &LetterDetailView,
    data: bool,
    original: bool,
) -> Result<(), CliError> {
    output::one(context.format, detail, &detail.view.id, LETTER_FIELDS)?;
    if context.format != OutputFormat::Table {
        return Ok(());
    }
    if !detail.view.verdicts.is_empty() {
        print("")?;
        output::list(context.format, &(), &detail.view.verdicts, VERDICTS)?;
    }
    if data {
        print_text(&detail.letter)?;
    }
    match &detail.original {
        Some(original) => {
            print("\noriginal:")?;
            print_text(original)
        }
        None if original => {
            output::note("no worker has changed the letter");
            if data { Ok(()) } else { print_text(&detail.letter) }
        }
        None => Ok(()),
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
            let table = context.format == OutputFormat::Table;
            let columns = if table { TRASH_TABLE } else { TRASHED };
            list_letters(context, Some("TRASHED".to_owned()), which, columns).await
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
    let client = context.client()?;
    let (mut changed, mut failed) = (Vec::new(), None);
    for id in read_ids(ids)? {
        let path = format!("/api/v1/letters/{}/{verb}", segment(&id));
        match client.post::<LetterView>(&path, body).await {
            Ok(letter) => changed.push(letter),
            Err(failure) => {
                let message = format!("{id}: {}", failure.message);
                failed = failed.or(Some(CliError { message, ..failure }));
            }
        }
    }
    if !changed.is_empty() || failed.is_none() {
        output::list(context.format, &json!({ "letters": changed }), &changed, CHANGED)?;
    }
    failed.map_or(Ok(()), Err)
}
