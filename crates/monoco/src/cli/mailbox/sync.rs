//! `monoco mailbox sync`: pulls new Mails into the workspace.

use std::io::{IsTerminal, Write};

use monoco_core::filter::{FilterReport, FilterResult};
use monoco_core::mail::MailIndexEntry;
use serde_json::{Value, json};

use super::{MailboxContext, authors};
use crate::cli::failure::CliError;
use crate::cli::output::{self, OutputFormat, escape_line, note, print};
use crate::cli::since;
use monoco_mailbox::sync::{SyncEvent, SyncOptions, SyncSummary, sync};
use monoco_mailbox::workspace::WorkspaceDir;

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
    mailbox.refresh()?;
    let format = mailbox.context.format;
    let mut report = SyncReport { format, listed: args.dry_run, ..SyncReport::default() };
    let mut failed = None;
    let counted = std::io::stderr().is_terminal();
    let mut tell = |step: SyncEvent<'_>| {
        let printed = match step {
            SyncEvent::Pulled { entry, .. } => report.pulled(entry),
            SyncEvent::Explained { entry, explained } => report.explained(entry, &explained),
            SyncEvent::Ask(entry) => return confirm(entry),
            SyncEvent::Warning(words) => {
                note(&escape_line(&words));
                Ok(())
            }
            SyncEvent::Progress(count) => {
                if counted {
                    let _ = write!(std::io::stderr(), "\r{count} Mails checked ");
                }
                report.long = counted;
                Ok(())
            }
        };
        failed = failed.take().or(printed.err());
        true
    };
    let summary = sync(&workspace, &mailbox.paths, &options, &mut tell)?;
    if report.long {
        note("");
    }
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

/// Prints the progress and the summary of a sync.
#[derive(Default)]
struct SyncReport {
    format: OutputFormat,
    listed: bool,
    long: bool,
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
        let SyncSummary { pulled, present, passed_over, refused, gone, erased } = summary;
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
