//! `monoco mailbox wait` and `watch`: wait for one Mail, or process Mails continuously.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use monoco_core::mail::MailIndexEntry;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::backlog::{Backlog, Claimable};
use super::runner::{MailRunner, RunEnd, RunSignals, shell_command};
use super::{MailboxContext, authors};
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, Column, OutputFormat, ToCell, escape_line, note, print};
use monoco_mailbox::paths::MailboxPaths;
use monoco_mailbox::workspace::WorkspaceDir;

/// How often the size of the index is checked.
const INDEX_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How often the claims of waiting Mails are checked.
const CLAIM_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How often a courier on another machine is asked for new Mails.
const REMOTE_POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub struct WaitArgs {
    /// Seconds to wait for a Mail [default: no limit]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Filter that the Mail must match, such as '{type: from, value: ann}'
    #[arg(long)]
    filter: Option<String>,
}

#[derive(Debug, clap::Args)]
pub struct WatchArgs {
    /// Shell command to run for each Mail, as with `run`
    #[arg(long, value_name = "CMD")]
    exec: Option<String>,
    /// Filter that a Mail must match
    #[arg(long, requires = "exec")]
    filter: Option<String>,
    /// Name of the agent; a Mail is claimed by one agent per workspace [default: user name]
    #[arg(long, env = "MONOCO_AGENT", hide_env_values = true)]
    agent: Option<String>,
    /// Seconds per claim; it is renewed in time [default: courier config, 300]
    #[arg(long, value_name = "SECONDS", requires = "exec")]
    timeout: Option<i64>,
}

pub async fn wait(mailbox: &MailboxContext<'_>, args: WaitArgs) -> Result<(), CliError> {
    let workspace = mailbox.workspace()?;
    let deadline = args.timeout.map(|secs| Instant::now() + Duration::from_secs(secs));
    mailbox.pull(&workspace, |_, _| ())?;
    let mut growth = IndexGrowth::new(mailbox);
    let mut backlog = Backlog::new(mailbox, &workspace, args.filter.as_deref())?;
    loop {
        let found = growth.unless_lost(backlog.next(&BTreeSet::new()).await)?;
        if let Some(mail) = found.flatten() {
            return print_found(mailbox.context.format, &workspace, &mail);
        }
        let ask_at = Instant::now() + CLAIM_POLL_INTERVAL;
        while !growth.seen()? {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(CliError::new(
                    CliExit::NotPossible,
                    "no Mail to claim within the timeout",
                ));
            }
            if !backlog.is_empty() && Instant::now() >= ask_at {
                break;
            }
            sleep(next_check(deadline)).await;
        }
        growth.unless_lost(mailbox.pull(&workspace, |_, _| ()))?;
        backlog.add_new()?;
    }
}

/// Returns the time to the next check, not beyond the deadline.
fn next_check(deadline: Option<Instant>) -> Duration {
    deadline.map_or(INDEX_POLL_INTERVAL, |it| {
        INDEX_POLL_INTERVAL.min(it.saturating_duration_since(Instant::now()))
    })
}

/// Prints the path of the Mail.
fn print_found(
    format: OutputFormat,
    workspace: &WorkspaceDir,
    mail: &Claimable,
) -> Result<(), CliError> {
    let path = workspace.inbox().join(mail.name.file());
    match format {
        OutputFormat::Json => {
            let mut entry = json!(mail.mail.entry(0, ""));
            if let Some(entry) = entry.as_object_mut() {
                // Fields that only the index has.
                entry.remove("seq");
                entry.remove("sha256");
                entry.insert("path".to_owned(), json!(path));
            }
            output::print_json(&entry)
        }
        OutputFormat::Id => print(&mail.id.to_string()),
        OutputFormat::Table | OutputFormat::Compact => {
            print(&escape_line(&path.display().to_string()))
        }
    }
}

pub async fn watch(mailbox: &MailboxContext<'_>, args: WatchArgs) -> Result<(), CliError> {
    let workspace = mailbox.workspace()?;
    let mut signals = RunSignals::new()?;
    let command: Vec<OsString> = match &args.exec {
        Some(line) => shell_command(line)?,
        None => Vec::new(),
    };
    let (agent, timeout) = (mailbox.agent(args.agent), args.timeout);
    let work = MailRunner { mailbox, workspace: &workspace, command: &command, agent, timeout };
    if args.exec.is_some() {
        work.check()?;
    }
    let mut growth = IndexGrowth::new(mailbox);
    let mut backlog = match args.exec {
        Some(_) => Some(Backlog::new(mailbox, &workspace, args.filter.as_deref())?),
        None => None,
    };
    loop {
        let mut printed = Ok(());
        let pulled = mailbox.pull(&workspace, |entry, path| {
            if args.exec.is_none() && printed.is_ok() {
                printed = print_new(mailbox.context.format, entry, path);
            }
        });
        growth.unless_lost(pulled)?;
        printed?;
        if let Some(backlog) = &mut backlog {
            backlog.add_new()?;
            let worked = work_through(&work, backlog, &mut signals).await;
            if growth.unless_lost(worked)?.unwrap_or(false) {
                return Ok(());
            }
        }
        let ask_at = Instant::now() + CLAIM_POLL_INTERVAL;
        let waiting = backlog.as_ref().is_some_and(|backlog| !backlog.is_empty());
        while !growth.seen()? {
            if waiting && Instant::now() >= ask_at {
                break;
            }
            tokio::select! {
                _ = signals.received() => return Ok(()),
                () = sleep(INDEX_POLL_INTERVAL) => {}
            }
        }
    }
}

/// Runs the command on all Mails that can be claimed. Returns whether a signal was received.
async fn work_through(
    work: &MailRunner<'_>,
    backlog: &mut Backlog<'_>,
    signals: &mut RunSignals,
) -> Result<bool, CliError> {
    let mut tried = BTreeSet::new();
    while let Some(mail) = backlog.next(&tried).await? {
        let claimed = match work.claim(&mail).await {
            Ok(claimed) => claimed,
            // The Mails wait until the courier is running again.
            Err(failure) if failure.exit == CliExit::NoCourier => return Ok(false),
            Err(failure) => {
                note(&escape_line(&failure.message));
                None
            }
        };
        let id = mail.id.clone();
        if let Some(claim) = claimed {
            match work.run(&mail, &claim, signals).await {
                Ok(RunEnd::Stopped(_)) => return Ok(true),
                Ok(_) => continue,
                Err(failure) => output::print_error(work.mailbox.context.format, &failure),
            }
        }
        tried.insert(id);
    }
    Ok(false)
}

/// Prints a new Mail.
fn print_new(format: OutputFormat, entry: &MailIndexEntry, path: &Path) -> Result<(), CliError> {
    match format {
        OutputFormat::Json => {
            let mut value = json!(entry);
            value["path"] = json!(path);
            output::print_json_line(&value)
        }
        OutputFormat::Id => print(&entry.id.to_string()),
        OutputFormat::Table | OutputFormat::Compact => {
            let columns: &[Column<MailIndexEntry>] = &[
                ("id", |entry| Some(entry.id.to_string())),
                ("from", |entry| authors(&entry.participants).cell()),
                ("session", |entry| entry.session.name.cell().or_else(|| entry.session.id.cell())),
                ("text", |entry| entry.preview.cell()),
            ];
            output::one(OutputFormat::Compact, entry, "", columns)
        }
    }
}

/// Detects growth of the index by its inode and length, without reading it. The index of a courier on
/// another machine is copied first.
struct IndexGrowth<'a> {
    mailbox: &'a MailboxContext<'a>,
    last: Option<(u64, u64)>,
    refresh_at: Instant,
    /// Whether the user was told that the courier on another machine does not answer.
    is_lost: bool,
}

impl<'a> IndexGrowth<'a> {
    fn new(mailbox: &'a MailboxContext<'a>) -> Self {
        let last = Self::look(&mailbox.paths);
        let refresh_at = Instant::now() + REMOTE_POLL_INTERVAL;
        Self { mailbox, last, refresh_at, is_lost: false }
    }

    fn look(paths: &MailboxPaths) -> Option<(u64, u64)> {
        let about = std::fs::metadata(paths.index()).ok()?;
        Some((about.ino(), about.len()))
    }

    fn seen(&mut self) -> Result<bool, CliError> {
        let mut is_back = false;
        if self.mailbox.remote.is_some() {
            if Instant::now() < self.refresh_at {
                return Ok(false);
            }
            let was_lost = self.is_lost;
            let refreshed = self.unless_lost(self.mailbox.refresh())?;
            self.refresh_at = Instant::now() + REMOTE_POLL_INTERVAL;
            // What was not pulled during the outage is pulled now.
            is_back = was_lost && refreshed.is_some();
        }
        let now = Self::look(&self.mailbox.paths);
        Ok(std::mem::replace(&mut self.last, now) != now || is_back)
    }

    /// Returns `None` when a courier on another machine cannot be reached: it is asked again later.
    fn unless_lost<T>(&mut self, result: Result<T, CliError>) -> Result<Option<T>, CliError> {
        match result {
            Err(failure) if self.mailbox.remote.is_some() && is_outage(&failure) => {
                if !std::mem::replace(&mut self.is_lost, true) {
                    note(&format!("{}; trying again", escape_line(&failure.message)));
                }
                Ok(None)
            }
            Err(failure) => Err(failure),
            Ok(value) => {
                self.is_lost = false;
                Ok(Some(value))
            }
        }
    }
}

/// Whether a request can succeed later without a change of the command.
fn is_outage(failure: &CliError) -> bool {
    failure.exit == CliExit::NoCourier
        || (failure.exit == CliExit::Courier
            && matches!(failure.code.as_ref(), "courier_error" | "busy" | "too_slow"))
}
