//! `monoco mailbox explain`: shows why the filters of a workspace pull a Mail or not.

use monoco_core::filter::FilterInput;
use monoco_core::mail::MailIndexEntry;
use serde_json::json;

use super::read::locate;
use super::sync::print_filters;
use super::{MailboxContext, no_such, read_one_id};
use crate::cli::client::segment;
use crate::cli::failure::CliError;
use crate::cli::output::{self, OutputFormat, escape_line, print};
use monoco_courier::api::views::mails::MailDetailView;
use monoco_mailbox::inbox::{self, MailSelector};
use monoco_mailbox::index::IndexReader;
use monoco_mailbox::paths::MailFile;
use monoco_mailbox::sync::body;

#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// Id of the Mail, or a unique prefix; - reads it from stdin
    id: String,
}

pub async fn run(mailbox: &MailboxContext<'_>, args: ExplainArgs) -> Result<(), CliError> {
    let workspace = mailbox.workspace()?;
    let given = read_one_id(args.id)?;
    let id = mailbox.id(&given)?;
    let wanted = MailSelector::from(&id);
    mailbox.refresh()?;
    let listed = match IndexReader::open(&mailbox.paths.index())? {
        Some(mut index) => index.search(&wanted.part())?.into_iter().find(|entry| entry.id == id),
        None => None,
    };
    let entry = match listed {
        Some(entry) => entry,
        None => match from_file(mailbox, &given) {
            Ok(entry) => entry,
            Err(failure) => {
                return Err(why_no_file(mailbox, &id.to_string()).await.unwrap_or(failure));
            }
        },
    };
    let mut fetch = || match mailbox.paths.find(&entry) {
        Ok(MailFile::Here { bytes, .. }) => body(&bytes),
        _ => locate(mailbox, &given).ok().map(|located| located.mail.text),
    };
    let explained = workspace.filters.explain(&mut FilterInput::new(&entry, &mut fetch));
    let pulled = explained.pulled;
    let present = !inbox::find(&workspace, &wanted, mailbox.now())?.is_empty();
    match mailbox.context.format {
        OutputFormat::Json => output::print_json(&json!({
            "id": id,
            "workspace": workspace.name,
            "pulled": pulled,
            "in_inbox": present,
            "filters": explained.filters,
        })),
        OutputFormat::Id => print(&id.to_string()),
        OutputFormat::Table | OutputFormat::Compact => {
            let verdict = if pulled { "pulls" } else { "does not pull" };
            print(&format!("{} {verdict} {id}", escape_line(workspace.name.as_str())))?;
            print_filters(&explained.filters, 1)?;
            match (pulled, present) {
                (true, false) => {
                    print("not in the inbox: not synced yet, or deleted from the workspace")
                }
                (false, true) => print("in the inbox: pulled before the filters were changed"),
                _ => Ok(()),
            }
        }
    }
}

/// Builds the index entry of a Mail that the index no longer has.
fn from_file(mailbox: &MailboxContext<'_>, id: &str) -> Result<MailIndexEntry, CliError> {
    let located = locate(mailbox, id)?;
    Ok(located.mail.entry(0, &located.file))
}

/// Asks the courier why a Mail has no file.
async fn why_no_file(mailbox: &MailboxContext<'_>, id: &str) -> Option<CliError> {
    let client = mailbox.context.client().ok()?;
    let path = format!("/api/v1/messages/{}", segment(id));
    let detail: MailDetailView = client.get(&path).await.ok()?;
    let why = match detail.mail.location.as_ref() {
        "held" => "it is held because its sender is a stranger; no workspace can pull it",
        "gone" => "it has expired and its file was removed",
        _ => "its file is not written yet",
    };
    Some(no_such(&format!("{id} has no file: {why}")))
}
