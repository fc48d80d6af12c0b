//! `monoco mailbox wait` and `watch`: until a Mail comes, and for as long as they come.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use monoco_core::mail::MailIndexEntry;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::MailboxContext;
use super::backlog::{Backlog, Claimable};
use super::claim::agent;
use super::runner::{MailRunner, RunEnd, RunSignals};
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, OutputFormat, note, print, shown};
use monoco_mailbox::paths::MailboxPaths;
use monoco_mailbox::workspace::WorkspaceDir;

/// How often to look whether the index has grown.
const LOOK: Duration = Duration::from_millis(200);

/// How often to ask again whether a Mail may be claimed that could not be before.
const ASK: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub struct WaitArgs {
    /// Give up after so many seconds [default: wait for ever]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Only a Mail that this rule matches, such as '{type: from, value: ann}'
    #[arg(long)]
    rule: Option<String>,
}

#[derive(Debug, clap::Args)]
pub struct WatchArgs {
    /// A shell command that works on each Mail, as with `run`
    #[arg(long, value_name = "CMD")]
    exec: Option<String>,
    /// Only Mails that this rule matches
    #[arg(long, requires = "exec")]
    rule: Option<String>,
    /// Who you are: agents of one workspace exclude each other [default: your user name]
    #[arg(long, env = "MONOCO_AGENT", hide_env_values = true)]
    agent: Option<String>,
    /// Hold a claim for so many seconds at a time [default: as configured, 300]
    #[arg(long, value_name = "SECONDS", requires = "exec")]
    timeout: Option<i64>,
}

pub async fn wait(desk: &MailboxContext<'_>, args: WaitArgs) -> Result<(), CliError> {
    let here = desk.workspace()?;
    let deadline = args.timeout.map(|secs| Instant::now() + Duration::from_secs(secs));
    desk.pull(&here, |_, _| ())?;
    let mut growth = IndexGrowth::new(&desk.tree);
    let mut backlog = Backlog::new(desk, &here, args.rule.as_deref())?;
    loop {
        if let Some(mail) = backlog.next(&BTreeSet::new()).await? {
            return found(desk.context.format, &here, &mail);
        }
        let ask_at = Instant::now() + ASK;
        while !growth.seen(&desk.tree) {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(CliError::new(CliExit::NotPossible, "no Mail came"));
            }
            if !backlog.is_empty() && Instant::now() >= ask_at {
                break;
            }
            sleep(until(deadline)).await;
        }
        desk.pull(&here, |entry, _| backlog.add(&entry.file))?;
    }
}

/// How long to sleep between two looks, but not beyond the end.
fn until(deadline: Option<Instant>) -> Duration {
    deadline.map_or(LOOK, |it| LOOK.min(it.saturating_duration_since(Instant::now())))
}

/// Prints where the Mail is.
fn found(format: OutputFormat, here: &WorkspaceDir, mail: &Claimable) -> Result<(), CliError> {
    let path = here.inbox().join(mail.name.file());
    match format {
        OutputFormat::Json => {
            let mut entry = json!(mail.mail.entry(0, ""));
            if let Some(entry) = entry.as_object_mut() {
                // What only the index knows.
                entry.remove("seq");
                entry.remove("sha256");
                entry.insert("path".to_owned(), json!(path));
            }
            print(&output::json(&entry))
        }
        OutputFormat::Id => print(&mail.id.to_string()),
        OutputFormat::Table | OutputFormat::Compact => print(&shown(&path.display().to_string())),
    }
}

pub async fn watch(desk: &MailboxContext<'_>, args: WatchArgs) -> Result<(), CliError> {
    let here = desk.workspace()?;
    let mut signals = RunSignals::new()?;
    let command: Vec<OsString> = match &args.exec {
        Some(command) => ["sh", "-c", command].map(OsString::from).into(),
        None => Vec::new(),
    };
    let (agent, timeout) = (agent(args.agent), args.timeout);
    let work = MailRunner { desk, here: &here, command: &command, agent, timeout };
    let mut growth = IndexGrowth::new(&desk.tree);
    let mut backlog = match args.exec {
        Some(_) => Some(Backlog::new(desk, &here, args.rule.as_deref())?),
        None => None,
    };
    loop {
        let mut told = Ok(());
        desk.pull(&here, |entry, path| match &mut backlog {
            Some(backlog) => backlog.add(&entry.file),
            None => {
                if told.is_ok() {
                    told = announce(desk.context.format, entry, path);
                }
            }
        })?;
        told?;
        if let Some(backlog) = &mut backlog
            && work_through(&work, backlog, &mut signals).await?
        {
            return Ok(());
        }
        let ask_at = Instant::now() + ASK;
        let waiting = backlog.as_ref().is_some_and(|backlog| !backlog.is_empty());
        while !growth.seen(&desk.tree) {
            if waiting && Instant::now() >= ask_at {
                break;
            }
            tokio::select! {
                _ = signals.told() => return Ok(()),
                () = sleep(LOOK) => {}
            }
        }
    }
}

/// Lets the command work on everything that may be claimed. Returns whether we were told
/// to stop.
async fn work_through(
    work: &MailRunner<'_>,
    backlog: &mut Backlog<'_>,
    signals: &mut RunSignals,
) -> Result<bool, CliError> {
    let mut tried = BTreeSet::new();
    while let Some(mail) = backlog.next(&tried).await? {
        let claimed = match work.claim(&mail).await {
            Ok(claimed) => claimed,
            // It comes back, and its Mails wait.
            Err(failure) if failure.exit == CliExit::NoCourier => return Ok(false),
            Err(failure) => {
                note(&shown(&failure.message));
                None
            }
        };
        let id = mail.id.clone();
        if let Some(claim) = claimed {
            match work.run(&mail, &claim, signals).await {
                Ok(RunEnd::Stopped(_)) => return Ok(true),
                Ok(_) => continue,
                Err(failure) => output::fail(&failure),
            }
        }
        tried.insert(id);
    }
    Ok(false)
}

/// Prints a Mail that came.
fn announce(format: OutputFormat, entry: &MailIndexEntry, path: &Path) -> Result<(), CliError> {
    let from: Vec<_> = entry.participants.from.iter().map(|person| person.display_name()).collect();
    match format {
        OutputFormat::Json => {
            let mut value = json!(entry);
            value["path"] = json!(path);
            print(&output::json_line(&value))
        }
        OutputFormat::Id => print(&entry.id.to_string()),
        OutputFormat::Table | OutputFormat::Compact => {
            let session = entry.session.name.as_ref().unwrap_or(&entry.session.id);
            let row: Value = json!({
                "id": entry.id, "from": from, "session": session, "text": entry.preview,
            });
            let columns = ["id", "from", "session", "text"].map(|name| (name, name));
            output::one(OutputFormat::Compact, &row, "id", &columns)
        }
    }
}

/// Whether the index has grown: its file and its length say so, and cost nothing to look
/// at.
struct IndexGrowth(Option<(u64, u64)>);

impl IndexGrowth {
    fn new(tree: &MailboxPaths) -> Self {
        Self(Self::look(tree))
    }

    fn look(tree: &MailboxPaths) -> Option<(u64, u64)> {
        let about = std::fs::metadata(tree.index()).ok()?;
        Some((about.ino(), about.len()))
    }

    fn seen(&mut self, tree: &MailboxPaths) -> bool {
        let now = Self::look(tree);
        std::mem::replace(&mut self.0, now) != now
    }
}
