//! `monoco mailbox sync`: pulls new Mails into the workspace.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use monoco_core::filter::{FilterReport, FilterResult};
use monoco_core::mail::MailIndexEntry;
use serde_json::{Value, json};

use super::{MailboxContext, authors};
use crate::cli::failure::CliError;
use crate::cli::output::{self, OutputFormat, escape_line, note, print};
use crate::cli::since;
use monoco_mailbox::mirror;
use monoco_mailbox::sync::{SyncEvent, SyncOptions, SyncSummary, sync};
use monoco_mailbox::workspace::WorkspaceDir;

/// How often the progress on a terminal changes.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(200);

/// How often the progress is reported to programs.
const JSON_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub struct SyncArgs {
    /// Check all Mails again, including those deleted from the workspace
    #[arg(long)]
    full: bool,
    /// Skip Mails before a time, a day, or a duration ago, such as 2h or 7d
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Pull only Mails of this provider; others wait for a later sync
    #[arg(long)]
    provider: Option<String>,
    /// Ask before each Mail: y pulls it, any other answer skips it
    #[arg(long)]
    interactive: bool,
    /// List the Mails that would be pulled, without pulling them
    #[arg(long)]
    dry_run: bool,
    /// Show for each Mail which filters match
    #[arg(long)]
    explain: bool,
}

pub fn run(mailbox: &MailboxContext<'_>, args: SyncArgs) -> Result<(), CliError> {
    let since = args.since.map(|text| since::parse(&text, mailbox.now())).transpose()?;
    let options = SyncOptions {
        full: args.full,
        since,
        provider: args.provider,
        ask: args.interactive,
        dry_run: args.dry_run,
        explain: args.explain,
    };
    let workspace = open_or_create(mailbox, args.dry_run)?;
    let format = mailbox.context.format;
    let mut progress = SyncProgress::new(format);
    let refreshed = mirror::refresh(&mailbox.paths, &mut |lines| {
        let words = format!("{lines} lines of the index copied");
        progress.show(&words, &json!({ "index_lines": lines }));
    });
    progress.clear();
    refreshed?;
    let mut report = SyncReport { format, listed: args.dry_run, ..SyncReport::default() };
    let mut failed = None;
    let mut tell = |step: SyncEvent<'_>| {
        let printed = match step {
            SyncEvent::Pulled { entry, .. } => report.pulled(entry),
            SyncEvent::Explained { entry, explained } => report.explained(entry, &explained),
            SyncEvent::Ask(entry) => {
                progress.clear();
                return confirm(entry);
            }
            SyncEvent::Warning(words) => {
                progress.clear();
                note(&escape_line(&words));
                Ok(())
            }
            SyncEvent::Progress { checked, copied } => {
                let words = match copied {
                    0 => format!("{checked} Mails checked"),
                    _ => format!("{checked} Mails checked, {copied} copied"),
                };
                progress.show(&words, &json!({ "checked": checked, "copied": copied }));
                Ok(())
            }
        };
        failed = failed.take().or(printed.err());
        true
    };
    let summary = sync(&workspace, &mailbox.paths, &options, &mut tell);
    progress.clear();
    let summary = summary?;
    if let Some(failure) = failed {
        return Err(failure);
    }
    report.end(&workspace, &summary)
}

/// Opens the workspace, and creates it if it is missing.
fn open_or_create(mailbox: &MailboxContext<'_>, dry_run: bool) -> Result<WorkspaceDir, CliError> {
    let (root, there) = mailbox.root()?;
    if there {
        return Ok(WorkspaceDir::open(&root, mailbox.paths.root())?);
    }
    if dry_run {
        return Ok(WorkspaceDir::read(&root, mailbox.paths.root())?);
    }
    let workspace = WorkspaceDir::create(&root, mailbox.paths.root())?;
    let (name, root) = (escape_line(workspace.name.as_str()), root.display().to_string());
    note(&format!("created workspace {name} in {}", escape_line(&root)));
    Ok(workspace)
}

/// Asks the user on the terminal whether to pull a Mail.
fn confirm(entry: &MailIndexEntry) -> bool {
    let _ = write!(std::io::stderr(), "{}\npull it? [y/N] ", line(entry));
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

/// Formats a Mail on one line.
fn line(entry: &MailIndexEntry) -> String {
    let from = authors(&entry.participants);
    format!("{}  {}  {}", entry.id, escape_line(&from.join(", ")), escape_line(&entry.preview))
}

/// Shows on stderr how far a long sync is: a line that is replaced on a terminal, or lines of JSON
/// for programs.
struct SyncProgress {
    /// Shortest time between two reports; `None` when there are none.
    interval: Option<Duration>,
    last: Instant,
    is_terminal: bool,
    is_shown: bool,
}

impl SyncProgress {
    fn new(format: OutputFormat) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let interval = match format {
            _ if is_terminal => Some(TERMINAL_INTERVAL),
            OutputFormat::Json => Some(JSON_INTERVAL),
            _ => None,
        };
        Self { interval, last: Instant::now(), is_terminal, is_shown: false }
    }

    fn show(&mut self, words: &str, value: &Value) {
        if self.interval.is_none_or(|interval| self.last.elapsed() < interval) {
            return;
        }
        self.last = Instant::now();
        let mut stderr = std::io::stderr();
        // Progress that cannot be shown changes nothing.
        if self.is_terminal {
            self.is_shown = write!(stderr, "\r{words}\u{1b}[K").is_ok();
        } else {
            let _ = writeln!(stderr, "{}", json!({ "progress": value }));
        }
    }

    /// Removes the line from the terminal.
    fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            let _ = write!(std::io::stderr(), "\r\u{1b}[K");
        }
    }
}

/// Prints the Mails and the summary of a sync.
#[derive(Default)]
struct SyncReport {
    format: OutputFormat,
    listed: bool,
    pulled: Vec<Value>,
    explained: Vec<Value>,
}

impl SyncReport {
    fn pulled(&mut self, entry: &MailIndexEntry) -> Result<(), CliError> {
        match self.format {
            OutputFormat::Json => {
                self.pulled.push(json!(entry));
                Ok(())
            }
            OutputFormat::Id => print(&entry.id.to_string()),
            OutputFormat::Compact => print(&line(entry).replace("  ", "\t")),
            OutputFormat::Table if self.listed => print(&line(entry)),
            OutputFormat::Table => Ok(()),
        }
    }

    fn explained(
        &mut self,
        entry: &MailIndexEntry,
        explained: &FilterReport,
    ) -> Result<(), CliError> {
        match self.format {
            OutputFormat::Json => {
                let FilterReport { pulled, filters } = explained;
                let value = json!({"id": entry.id, "pulled": pulled, "filters": filters});
                self.explained.push(value);
                Ok(())
            }
            OutputFormat::Id => Ok(()),
            OutputFormat::Table | OutputFormat::Compact => {
                let verdict = if explained.pulled { "matches" } else { "does not match" };
                print(&format!("{} {verdict}", entry.id))?;
                print_filters(&explained.filters, 1)
            }
        }
    }

    fn end(self, workspace: &WorkspaceDir, summary: &SyncSummary) -> Result<(), CliError> {
        let SyncSummary { pulled, present, passed_over, refused, gone, erased, copied: _ } =
            summary;
        match self.format {
            OutputFormat::Json => {
                let mut answer = json!(summary);
                answer["workspace"] = json!(workspace.name);
                answer["messages"] = json!(self.pulled);
                if !self.explained.is_empty() {
                    answer["explained"] = json!(self.explained);
                }
                output::print_json(&answer)
            }
            OutputFormat::Table => {
                let would = if self.listed { "would have " } else { "" };
                let mut words =
                    format!("{would}pulled {pulled}, skipped {passed_over}, rejected {refused}");
                let others = [(present, "already present"), (gone, "expired"), (erased, "erased")];
                for (count, what) in others {
                    if *count > 0 {
                        words.push_str(&format!(", {what} {count}"));
                    }
                }
                print(&words)
            }
            OutputFormat::Compact | OutputFormat::Id => Ok(()),
        }
    }
}

/// Prints the result of each filter; nested filters are indented.
pub fn print_filters(all: &[FilterResult], depth: usize) -> Result<(), CliError> {
    for FilterResult { matched, rule, why, conditions } in all {
        let sign = if *matched { '+' } else { '-' };
        print(&format!(
            "{:width$}{sign} {}: {}",
            "",
            escape_line(rule),
            escape_line(why),
            width = 2 * depth
        ))?;
        print_filters(conditions, depth + 1)?;
    }
    Ok(())
}
