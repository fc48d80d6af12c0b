//! `monoco mailbox wait` and `watch`: wait for one Mail, or process Mails continuously.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use monoco_core::mail::MailIndexEntry;
use monoco_core::retry::Backoff;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::backlog::{Backlog, Claimable};
use super::remote_hints::RemoteHints;
use super::remote_mailbox::TIMEOUT_CODE;
use super::runner::{MailRunner, RunEnd, RunSignals, shell_command};
use super::{MailboxContext, authors};
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, Column, OutputFormat, ToCell, escape_line, note, print};
use monoco_courier::clock;
use monoco_mailbox::paths::MailboxPaths;
use monoco_mailbox::workspace::WorkspaceDir;

/// How often the size of the index is checked.
const INDEX_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How often the claims of waiting Mails are checked.
const CLAIM_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How often a courier on another machine is asked for new Mails while it sends no hints.
const REMOTE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How often a courier on another machine is asked for new Mails while it sends hints.
const HINTED_POLL_INTERVAL: Duration = Duration::from_secs(60);

/// Shortest time between two requests for new Mails.
const MIN_PULL_INTERVAL: Duration = Duration::from_millis(100);

/// Delays between requests to a courier on another machine that does not answer, and the shortest
/// of them.
const OUTAGE_BACKOFF: Backoff =
    Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(10) };
const MIN_OUTAGE_DELAY: Duration = Duration::from_millis(500);

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

impl WaitArgs {
    /// When the command ends, counted from now.
    pub fn deadline(&self) -> Option<std::time::Instant> {
        std::time::Instant::now().checked_add(Duration::from_secs(self.timeout?))
    }
}

pub async fn wait(mailbox: &MailboxContext<'_>, args: WaitArgs) -> Result<(), CliError> {
    let waiting = wait_for_mail(mailbox, args.filter.as_deref());
    let waited = match mailbox.deadline {
        Some(deadline) => timeout_at(deadline.into(), waiting).await.ok(),
        None => Some(waiting.await),
    };
    match waited {
        Some(Err(failure)) if failure.code != TIMEOUT_CODE => Err(failure),
        Some(Ok((workspace, mail))) => print_found(mailbox.context.format, &workspace, &mail),
        _ => Err(CliError::new(CliExit::NotPossible, "no Mail to claim within the timeout")),
    }
}

/// Waits until a Mail can be claimed.
async fn wait_for_mail(
    mailbox: &MailboxContext<'_>,
    filter: Option<&str>,
) -> Result<(WorkspaceDir, Claimable), CliError> {
    let workspace = mailbox.workspace()?;
    let mut news = MailNews::new(mailbox);
    mailbox.pull(&workspace, |_, _| ())?;
    let mut backlog = Backlog::new(mailbox, &workspace, filter)?;
    loop {
        let found = news.unless_lost(backlog.next(&BTreeSet::new()).await)?;
        if let Some(mail) = found.flatten() {
            drop(backlog);
            return Ok((workspace, mail));
        }
        news.next(backlog.ask_in(mailbox.now())).await;
        news.unless_lost(mailbox.pull(&workspace, |_, _| ()))?;
        backlog.add_new()?;
    }
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
    let mut news = MailNews::new(mailbox);
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
        news.unless_lost(pulled)?;
        printed?;
        let mut ask_in = None;
        if let Some(backlog) = &mut backlog {
            backlog.add_new()?;
            let worked = work_through(&work, backlog, &mut signals).await;
            if news.unless_lost(worked)?.unwrap_or(false) {
                return Ok(());
            }
            ask_in = backlog.ask_in(mailbox.now());
        }
        tokio::select! {
            _ = signals.received() => return Ok(()),
            () = news.next(ask_in) => {}
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

/// Detects that there may be new Mails. The index of a courier on this machine grows: its inode
/// and length are compared, without reading it. A courier on another machine sends hints, and is
/// polled.
struct MailNews<'a> {
    mailbox: &'a MailboxContext<'a>,
    last: Option<(u64, u64)>,
    hints: Option<RemoteHints>,
    /// Times in a row that the courier on another machine has not answered. The user is told
    /// after the first one.
    failures: u32,
}

impl<'a> MailNews<'a> {
    fn new(mailbox: &'a MailboxContext<'a>) -> Self {
        let last = Self::look(&mailbox.paths);
        let hints = mailbox.remote.as_ref().map(|remote| RemoteHints::start(remote.client()));
        Self { mailbox, last, hints, failures: 0 }
    }

    fn look(paths: &MailboxPaths) -> Option<(u64, u64)> {
        let about = std::fs::metadata(paths.index()).ok()?;
        Some((about.ino(), about.len()))
    }

    /// Waits until there may be a new Mail. When claims may change by themselves, waits at most
    /// for `ask_in`.
    async fn next(&mut self, ask_in: Option<Duration>) {
        let started = Instant::now();
        let Some(hints) = &mut self.hints else {
            let ask_at = ask_in.map(|_| started + CLAIM_POLL_INTERVAL);
            loop {
                let found = Self::look(&self.mailbox.paths);
                let has_grown = std::mem::replace(&mut self.last, found) != found;
                if has_grown || ask_at.is_some_and(|ask_at| Instant::now() >= ask_at) {
                    return;
                }
                sleep(INDEX_POLL_INTERVAL).await;
            }
        };
        // Mails that arrive at the same time are pulled together.
        sleep(MIN_PULL_INTERVAL).await;
        let outage = (self.failures > 0)
            .then(|| OUTAGE_BACKOFF.delay(self.failures, clock::jitter()).max(MIN_OUTAGE_DELAY));
        loop {
            // Also when the courier is back after an outage.
            if hints.take() {
                return;
            }
            let interval = match (outage, hints.is_open()) {
                (Some(delay), _) => delay,
                (None, true) => ask_in.unwrap_or(HINTED_POLL_INTERVAL).min(HINTED_POLL_INTERVAL),
                (None, false) => REMOTE_POLL_INTERVAL,
            };
            tokio::select! {
                () = sleep_until(started + interval) => return,
                () = hints.changed() => {}
            }
        }
    }

    /// Returns `None` when a courier on another machine cannot be reached: it is asked again later.
    fn unless_lost<T>(&mut self, result: Result<T, CliError>) -> Result<Option<T>, CliError> {
        match result {
            Err(failure) if self.mailbox.remote.is_some() && is_outage(&failure) => {
                if self.failures == 0 {
                    note(&format!("{}; trying again", escape_line(&failure.message)));
                }
                self.failures = self.failures.saturating_add(1);
                Ok(None)
            }
            Err(failure) => Err(failure),
            Ok(value) => {
                self.failures = 0;
                Ok(Some(value))
            }
        }
    }
}

/// Whether a request can succeed later without a change of the command.
pub fn is_outage(failure: &CliError) -> bool {
    (failure.exit == CliExit::NoCourier && failure.code != TIMEOUT_CODE)
        || (failure.exit == CliExit::Courier
            && matches!(failure.code.as_ref(), "courier_error" | "busy" | "too_slow"))
}
