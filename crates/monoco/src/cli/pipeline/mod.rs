//! `monoco pipeline`: inspects, submits, retries and trashes letters.

use super::CliContext;
use super::failure::CliError;
use monoco_courier::api::views::letters::VerdictView;

mod letters;
mod post;
mod replay;
mod status;
mod try_worker;

#[derive(Debug, clap::Subcommand)]
pub enum PipelineCommand {
    /// Show chains, workers and the number of letters in each state
    ///
    /// Worker counters start at zero when the courier starts. Example:
    /// monoco pipeline status --watch
    Status(status::PipelineStatusArgs),
    /// List letters, newest first
    ///
    /// Example: monoco pipeline letters --state waiting,away --worker limit
    Letters(letters::LetterListArgs),
    /// Show one letter with the verdict of each worker
    ///
    /// Example: monoco pipeline show ltr_7_00000abc --data
    Show(letters::LetterShowArgs),
    /// Retry dead letters, or process waiting letters now
    ///
    /// Fix the cause first. Example: monoco dead list --format id | monoco pipeline retry -
    Retry {
        /// Ids of letters; - reads ids from stdin
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// List, trash and restore letters
    ///
    /// Trashed letters are kept until they expire. Without a subcommand, lists them. Example:
    /// monoco pipeline trash restore ltr_7_00000abc
    Trash(letters::TrashArgs),
    /// Evaluate past letters with the current chains
    ///
    /// Without --dry-run, trashed and dead letters that would pass now are run through their
    /// chain again. Letters that were sent or delivered are only escape_line, and letters that an
    /// operator trashed stay trashed. External workers are not called: their earlier verdicts
    /// count. Example: monoco pipeline replay --since 7d --dry-run
    Replay(replay::ReplayArgs),
    /// Give a letter on stdin to one worker, and show its verdict and changes
    ///
    /// Works without a running courier, and changes nothing: the letter is not stored. Reads a
    /// letter as JSON, {"from", "to", "data", "extra"}. Also prints what a command wrote to
    /// stderr. Exits with 1 when the worker gives no verdict. Example:
    /// monoco pipeline try scorer < letter.json
    Try(try_worker::TryArgs),
    /// Submit an e-mail or a letter, like sendmail
    ///
    /// Reads an e-mail (RFC 5322) or a letter as JSON, {"from", "to", "data", "extra"}, and
    /// prints the id of the letter after it was stored. Sender and recipients that the
    /// options do not set are taken from the header; Bcc is then removed from the e-mail. Exit
    /// codes: 1 rejected, do not retry; 3 courier not running and 4 error of the courier
    /// (EX_TEMPFAIL of sendmail): retry later with the same --key. Example:
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
        PipelineCommand::Try(args) => try_worker::run(context, args).await,
        PipelineCommand::Post(args) => post::run(context, args).await,
    }
}

/// Formats verdicts on one line, as `worker=result`.
pub fn verdict_line(verdicts: &[VerdictView]) -> String {
    let verdicts = verdicts.iter().map(|it| format!("{}={}", it.worker, it.result));
    verdicts.collect::<Vec<_>>().join(" ")
}
