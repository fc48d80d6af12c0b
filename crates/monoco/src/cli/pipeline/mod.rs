//! `monoco pipeline`: letters on their way through the post office, and its workers.

use serde_json::Value;

use super::CliContext;
use super::failure::CliError;

mod letters;
mod post;
mod replay;
mod status;

#[derive(Debug, clap::Subcommand)]
pub enum PipelineCommand {
    /// Show the chains, the workers, and how many letters are where
    ///
    /// Counts of workers are since the courier started. Example: monoco pipeline status --watch
    Status(status::PipelineStatusArgs),
    /// List letters, the newest first
    ///
    /// Example: monoco pipeline letters --state waiting,away --worker limit
    Letters(letters::LetterListArgs),
    /// Show one letter, and what every worker said of it
    ///
    /// Example: monoco pipeline show ltr_7_00000abc --data
    Show(letters::LetterShowArgs),
    /// Give dead letters another chance, or have waiting ones looked at now
    ///
    /// Fix the cause first. Example: monoco dead list --format id | monoco pipeline retry -
    Retry {
        /// Letters; - reads their ids from stdin
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Look into the bin, throw letters away, and take them out again
    ///
    /// What is in the bin is kept for a while. Without a command, lists it. Example:
    /// monoco pipeline trash restore ltr_7_00000abc
    Trash(letters::TrashArgs),
    /// Show what the chains as they are now would make of letters that came
    ///
    /// Without --dry-run, letters that were thrown away or given up and would get through
    /// now go through their chain again. What was sent or delivered is only shown, and
    /// what a person threw away stays away. Workers outside are not asked: what they said
    /// before counts. Example: monoco pipeline replay --since 7d --dry-run
    Replay(replay::ReplayArgs),
    /// Hand in a mail or a letter, as one would pipe it to sendmail
    ///
    /// Reads a mail (RFC 5322), or a letter as JSON, {"from", "to", "data", "extra"}, and
    /// prints the letter's id once it is kept. Whom the options do not name, the mail's
    /// header does; then it goes without its Bcc. Exit codes: 1 refused, and no other try
    /// helps; 3 courier not running and 4 courier's error, where sendmail says EX_TEMPFAIL:
    /// keep it and try again, with the same --key. Example:
    /// monoco pipeline post --from me@example.com --to you@example.com mail.eml
    Post(post::PostLetterArgs),
}

pub async fn run(context: &CliContext, command: PipelineCommand) -> Result<(), CliError> {
    match command {
        PipelineCommand::Status(args) => status::run(context, args).await,
        PipelineCommand::Letters(args) => letters::list(context, args).await,
        PipelineCommand::Show(args) => letters::show(context, args).await,
        PipelineCommand::Retry { ids } => letters::retry(context, ids).await,
        PipelineCommand::Trash(args) => letters::trash(context, args).await,
        PipelineCommand::Replay(args) => replay::run(context, args).await,
        PipelineCommand::Post(args) => post::run(context, args).await,
    }
}

/// What workers said, on one line.
pub fn said(verdicts: &Value) -> String {
    let word = |verdict: &Value| {
        let text = |key: &str| verdict[key].as_str().unwrap_or("?").to_owned();
        format!("{}={}", text("worker"), text("result"))
    };
    let words: Vec<_> = verdicts.as_array().into_iter().flatten().map(word).collect();
    words.join(" ")
}
