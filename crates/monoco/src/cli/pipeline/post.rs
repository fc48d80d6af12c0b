//! `monoco pipeline post`: submits an e-mail or a letter, with the options of sendmail.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use monoco_core::letter::{MAX_DATA, MAX_EXTRA};
use serde_json::{Value, json};

use crate::cli::CliContext;
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, Column, OutputFormat, ToCell, escape_line, note, print};
use monoco_courier::api::views::letters::SubmitResultView;
use monoco_courier::pipeline::sendmail::{self, EnvelopeOptions};

/// Maximum number of input bytes. More than the largest letter, so that the courier reports
/// which limit is exceeded.
const MAX_INPUT_BYTES: usize = 2 * MAX_DATA + 4 * MAX_EXTRA;

#[derive(Debug, clap::Args)]
pub struct PostLetterArgs {
    /// File with an e-mail, or with a letter as JSON, which starts with {; - reads stdin
    /// [default: stdin]
    file: Option<PathBuf>,
    /// Address of the sender [default: From of the e-mail]
    #[arg(long, short = 'f', value_name = "ADDRESS")]
    from: Option<String>,
    /// Address of a recipient (can be repeated) [default: To, Cc and Bcc of the e-mail]
    #[arg(long, value_name = "ADDRESS", conflicts_with = "by_header")]
    to: Vec<String>,
    /// Id of the tunnel that sends it
    #[arg(long)]
    tunnel: Option<String>,
    /// Idempotency key: a repeated submission with this key returns the first letter
    #[arg(long)]
    key: Option<String>,
    /// Read the input as an e-mail, even if it starts with {
    #[arg(long)]
    raw: bool,
    /// Take the recipients from the header, as sendmail does
    #[arg(short = 't')]
    by_header: bool,
    /// Accepted for sendmail; a line with a single dot never ends the input
    #[arg(short = 'i')]
    ignore_dots: bool,
    /// Accepted for sendmail, such as -oi and -oem; ignored
    #[arg(short = 'o', value_name = "OPTION")]
    option: Vec<String>,
}

pub async fn run(context: &CliContext, args: PostLetterArgs) -> Result<(), CliError> {
    let client = context.client()?;
    let key = args.key.clone();
    let letter = letter(args)?;
    let result: SubmitResultView =
        client.post_with_key("/api/v1/letters", &letter, key.as_deref()).await?;
    if context.format == OutputFormat::Table {
        if result.duplicate {
            note("duplicate: the letter was submitted before");
        }
        return print(&escape_line(&result.id));
    }
    let fields: [Column<SubmitResultView>; 2] =
        [("letter", |result| result.id.cell()), ("duplicate", |result| result.duplicate.cell())];
    output::one(context.format, &result, &result.id, &fields)
}

/// Builds the letter from the input and the options.
fn letter(args: PostLetterArgs) -> Result<Value, CliError> {
    let bytes = read(args.file)?;
    let named = EnvelopeOptions { from: args.from, to: args.to, tunnel: args.tunnel };
    let start = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if !args.raw && start == Some(&b'{') {
        return from_json(&bytes, named);
    }
    let invalid = |message: String| CliError::new(CliExit::NotPossible, message);
    sendmail::letter(&bytes, named).map_err(|error| invalid(error.to_string()))
}

/// Parses a letter from JSON. Options replace its fields.
fn from_json(bytes: &[u8], named: EnvelopeOptions) -> Result<Value, CliError> {
    let mut letter = monoco_core::json::parse(bytes).map_err(|error| {
        CliError::new(CliExit::NotPossible, format!("cannot parse the letter: {error}"))
            .hint("pass --raw if the input is an e-mail")
    })?;
    if !letter.is_object() {
        return Err(CliError::new(CliExit::NotPossible, "invalid letter: expected a JSON object"));
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
    let most = MAX_INPUT_BYTES as u64 + 1;
    match file.filter(|path| path.as_os_str() != "-") {
        None => std::io::stdin().lock().take(most).read_to_end(&mut bytes)?,
        Some(path) => {
            let read = File::open(&path).and_then(|file| file.take(most).read_to_end(&mut bytes));
            read.map_err(|error| {
                let failure = CliError::new(
                    CliExit::NotPossible,
                    format!("cannot read {}: {error}", path.display()),
                );
                match path.to_string_lossy().contains('@') {
                    true => failure.hint("pass recipients with --to"),
                    false => failure,
                }
            })?
        }
    };
    if bytes.len() > MAX_INPUT_BYTES {
        return Err(CliError::new(
            CliExit::NotPossible,
            format!("input is larger than {MAX_INPUT_BYTES} bytes"),
        ));
    }
    Ok(bytes)
}
