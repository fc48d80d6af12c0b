//! `monoco pipeline post`: hands in a mail or a letter, as one would pipe it to sendmail.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use monoco_core::letter::{MAX_DATA, MAX_EXTRA};
use serde_json::{Value, json};

use crate::cli::CliContext;
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, OutputFormat, note, print, shown};
use crate::pipeline::sendmail::{self, EnvelopeOptions};

/// Most bytes that are read: more than any letter, so that the courier says what is wrong.
const MOST: usize = 2 * MAX_DATA + 4 * MAX_EXTRA;

#[derive(Debug, clap::Args)]
pub struct PostLetterArgs {
    /// A mail, or a letter as JSON; without it or with -, it is read from stdin
    file: Option<PathBuf>,
    /// Who sends it; without it, whom the mail's From names
    #[arg(long, short = 'f', value_name = "ADDRESS")]
    from: Option<String>,
    /// Whom it is for (can be repeated); without it, whom the mail's To, Cc and Bcc name
    #[arg(long, value_name = "ADDRESS", conflicts_with = "by_header")]
    to: Vec<String>,
    /// The tunnel it goes through
    #[arg(long)]
    tunnel: Option<String>,
    /// Your own name for this letter; handing it in again does nothing
    #[arg(long)]
    key: Option<String>,
    /// It is a letter as JSON; without this, that is so when it starts with {
    #[arg(long, conflicts_with = "raw")]
    json: bool,
    /// It is a mail, whatever it starts with
    #[arg(long)]
    raw: bool,
    /// As with sendmail: the mail's header says whom it is for
    #[arg(short = 't')]
    by_header: bool,
    /// As with sendmail: a line with a single dot is a line; so it is anyway
    #[arg(short = 'i')]
    ignore_dots: bool,
    /// As with sendmail, such as -oi and -oem; does nothing
    #[arg(short = 'o', value_name = "OPTION")]
    option: Vec<String>,
}

pub async fn run(context: &CliContext, args: PostLetterArgs) -> Result<(), CliError> {
    let client = context.client()?;
    let key = args.key.clone();
    let letter = letter(args)?;
    let answer = client.post_once("/api/v1/letters", &letter, key.as_deref()).await?;
    if context.format == OutputFormat::Table {
        if answer["duplicate"] == true {
            note("it was handed in before; nothing was done");
        }
        return print(&shown(answer["id"].as_str().unwrap_or_default()));
    }
    output::one(context.format, &answer, "id", &[("letter", "id"), ("duplicate", "duplicate")])
}

/// The letter to hand in.
fn letter(args: PostLetterArgs) -> Result<Value, CliError> {
    let bytes = read(args.file)?;
    let named = EnvelopeOptions { from: args.from, to: args.to, tunnel: args.tunnel };
    let start = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if !args.raw && (args.json || start == Some(&b'{')) {
        return from_json(&bytes, named);
    }
    let refused = |message: String| CliError::new(CliExit::NotPossible, message);
    sendmail::letter(&bytes, named).map_err(|error| refused(error.to_string()))
}

/// A letter as JSON, with what the options say in place of what it says.
fn from_json(bytes: &[u8], named: EnvelopeOptions) -> Result<Value, CliError> {
    let mut letter = monoco_core::json::parse(bytes).map_err(|error| {
        CliError::new(CliExit::NotPossible, format!("the letter can't be read: {error}"))
            .hint("a mail that starts with { needs --raw")
    })?;
    if !letter.is_object() {
        return Err(CliError::new(CliExit::NotPossible, "the letter is no JSON object"));
    }
    if let Some(from) = named.from {
        letter["from"] = from.into();
    }
    if !named.to.is_empty() {
        letter["to"] = named.to.into();
    }
    if let Some(tunnel) = named.tunnel {
        if letter["extra"].is_null() {
            letter["extra"] = json!({});
        }
        if let Some(extra) = letter["extra"].as_object_mut() {
            extra.insert("tunnel".to_owned(), tunnel.into());
        }
    }
    Ok(letter)
}

fn read(file: Option<PathBuf>) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    let most = MOST as u64 + 1;
    match file.filter(|path| path.as_os_str() != "-") {
        None => std::io::stdin().lock().take(most).read_to_end(&mut bytes)?,
        Some(path) => {
            let read = File::open(&path).and_then(|file| file.take(most).read_to_end(&mut bytes));
            read.map_err(|error| {
                let failure =
                    CliError::new(CliExit::NotPossible, format!("{}: {error}", path.display()));
                match path.to_string_lossy().contains('@') {
                    true => failure.hint("name recipients with --to"),
                    false => failure,
                }
            })?
        }
    };
    if bytes.len() > MOST {
        return Err(CliError::new(CliExit::NotPossible, format!("it is over {MOST} bytes")));
    }
    Ok(bytes)
}
