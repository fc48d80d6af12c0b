//! `monoco mailbox sync`: pull what is new.

use std::io::{IsTerminal, Write};

use monoco_core::filter::{FilterReport, FilterResult};
use monoco_core::mail::MailIndexEntry;
use serde_json::{Value, json};

use super::MailboxContext;
use crate::cli::failure::CliError;
use crate::cli::output::{self, OutputFormat, note, print, shown};
use crate::cli::since;
use monoco_mailbox::sync::{SyncEvent, SyncOptions, SyncSummary, sync};
use monoco_mailbox::workspace::WorkspaceDir;

#[derive(Debug, clap::Args)]
pub struct SyncArgs {
    /// Look at all Mails again, also at those that were deleted here
    #[arg(long)]
    full: bool,
    /// Pass over older ones: a time, a day, or how long ago, such as 2h or 7d
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only look at those of one provider; the others wait for a later sync
    #[arg(long)]
    provider: Option<String>,
    /// Ask before each: y pulls it, anything else does not
    #[arg(long)]
    interactive: bool,
    /// Change nothing, and list what would be pulled
    #[arg(long)]
    dry_run: bool,
    /// Show for each Mail what the rules say
    #[arg(long)]
    explain: bool,
}

pub fn run(desk: &MailboxContext<'_>, args: SyncArgs) -> Result<(), CliError> {
    let since = args.since.map(|text| since::parse(&text, desk.now())).transpose()?;
    let wish = SyncOptions {
        full: args.full,
        since,
        provider: args.provider,
        ask: args.interactive,
        dry_run: args.dry_run,
        explain: args.explain,
    };
    let here = workspace(desk, args.dry_run)?;
    let format = desk.context.format;
    let mut report = SyncReport { format, listed: args.dry_run, ..SyncReport::default() };
    let mut failed = None;
    let counted = std::io::stderr().is_terminal();
    let mut tell = |step: SyncEvent<'_>| {
        let told = match step {
            SyncEvent::Pulled { entry, .. } => report.pulled(entry),
            SyncEvent::Explained { entry, explained } => report.explained(entry, &explained),
            SyncEvent::Ask(entry) => return ask(entry),
            SyncEvent::Warning(words) => {
                note(&shown(&words));
                Ok(())
            }
            SyncEvent::Progress(count) => {
                if counted {
                    let _ = write!(std::io::stderr(), "\r{count} Mails looked at ");
                }
                report.long = counted;
                Ok(())
            }
        };
        failed = failed.take().or(told.err());
        true
    };
    let summary = sync(&here, &desk.tree, &wish, &mut tell)?;
    if report.long {
        note("");
    }
    if let Some(failure) = failed {
        return Err(failure);
    }
    report.end(&here, &summary)
}

/// The workspace, made when it is missing.
fn workspace(desk: &MailboxContext<'_>, dry_run: bool) -> Result<WorkspaceDir, CliError> {
    let (root, there) = desk.root()?;
    if there {
        return Ok(WorkspaceDir::open(&root, desk.tree.root())?);
    }
    if dry_run {
        return Ok(WorkspaceDir::read(&root)?);
    }
    let here = WorkspaceDir::create(&root, desk.tree.root())?;
    let (name, root) = (shown(here.name.as_str()), root.display().to_string());
    note(&format!("made the workspace {name} in {}", shown(&root)));
    Ok(here)
}

/// Asks on the terminal.
fn ask(entry: &MailIndexEntry) -> bool {
    let _ = write!(std::io::stderr(), "{}\npull it? [y/N] ", line(entry));
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

/// One Mail on one line.
fn line(entry: &MailIndexEntry) -> String {
    let from: Vec<_> = entry.participants.from.iter().map(|person| person.display_name()).collect();
    format!("{}  {}  {}", entry.id, shown(&from.join(", ")), shown(&entry.preview))
}

/// What is printed on the way and at the end.
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
                verdicts(&explained.filters, 1)
            }
        }
    }

    fn end(self, here: &WorkspaceDir, summary: &SyncSummary) -> Result<(), CliError> {
        let SyncSummary { pulled, present, passed_over, refused, gone } = summary;
        match self.format {
            OutputFormat::Json => {
                let mut answer = json!(summary);
                answer["workspace"] = json!(here.name);
                answer["messages"] = json!(self.pulled);
                if !self.explained.is_empty() {
                    answer["explained"] = json!(self.explained);
                }
                print(&output::json(&answer))
            }
            OutputFormat::Table => {
                let would = if self.listed { "would have " } else { "" };
                let mut words =
                    format!("{would}pulled {pulled}, passed over {passed_over}, refused {refused}");
                for (count, what) in [(present, "already here"), (gone, "gone by age")] {
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

/// Prints what rules say, those inside others further in.
pub fn verdicts(all: &[FilterResult], depth: usize) -> Result<(), CliError> {
    for FilterResult { matched, rule, why, conditions } in all {
        let sign = if *matched { '+' } else { '-' };
        print(&format!("{:width$}{sign} {}: {}", "", shown(rule), shown(why), width = 2 * depth))?;
        verdicts(conditions, depth + 1)?;
    }
    Ok(())
}
