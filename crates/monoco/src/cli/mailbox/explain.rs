//! `monoco mailbox explain`: why the rules pull a Mail, or why not.

use monoco_core::filter::FilterInput;
use monoco_core::mail::MailIndexEntry;
use serde_json::{Value, json};

use super::read::locate;
use super::sync::verdicts;
use super::{MailboxContext, no_such};
use crate::cli::client::segment;
use crate::cli::failure::CliError;
use crate::cli::output::{self, OutputFormat, print, shown};
use monoco_mailbox::inbox::{self, MailSelector};
use monoco_mailbox::index::IndexReader;
use monoco_mailbox::paths::MailFile;
use monoco_mailbox::sync::body;

#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// The Mail, by its id or enough of it
    id: String,
}

pub async fn run(desk: &MailboxContext<'_>, args: ExplainArgs) -> Result<(), CliError> {
    let here = desk.workspace()?;
    let id = desk.id(&args.id)?;
    let wanted = MailSelector::from(&id);
    let listed = match IndexReader::open(&desk.tree.index())? {
        Some(mut index) => index.search(&wanted.part())?.into_iter().find(|entry| entry.id == id),
        None => None,
    };
    let entry = match listed {
        Some(entry) => entry,
        None => match from_file(desk, &args.id) {
            Ok(entry) => entry,
            Err(failure) => return Err(held(desk, &id.to_string()).await.unwrap_or(failure)),
        },
    };
    let mut fetch = || match desk.tree.find(&entry) {
        Ok(MailFile::Here { bytes, .. }) => body(&bytes),
        _ => locate(desk, &args.id).ok().map(|located| located.mail.text),
    };
    let explained = here.filters.explain(&mut FilterInput::new(&entry, &mut fetch));
    let pulled = explained.pulled;
    let present = !inbox::find(&here, &wanted, desk.now())?.is_empty();
    match desk.context.format {
        OutputFormat::Json => print(&output::json(&json!({
            "id": id,
            "workspace": here.name,
            "pulled": pulled,
            "in_inbox": present,
            "filters": explained.filters,
        }))),
        OutputFormat::Id => print(&id.to_string()),
        OutputFormat::Table | OutputFormat::Compact => {
            let verdict = if pulled { "pulls" } else { "does not pull" };
            print(&format!("{} {verdict} {id}", shown(here.name.as_str())))?;
            verdicts(&explained.filters, 1)?;
            match (pulled, present) {
                (true, false) => print("it is not in the inbox: not synced yet, or deleted here"),
                (false, true) => print("it is in the inbox all the same: the rules have changed"),
                _ => Ok(()),
            }
        }
    }
}

/// What the index would say of a Mail that it does not have any more.
fn from_file(desk: &MailboxContext<'_>, id: &str) -> Result<MailIndexEntry, CliError> {
    let located = locate(desk, id)?;
    Ok(located.mail.entry(0, &located.file))
}

/// A Mail of a stranger has no file, but the courier knows of it.
async fn held(desk: &MailboxContext<'_>, id: &str) -> Option<CliError> {
    let client = desk.context.client().ok()?;
    let mail = client.get(&format!("/api/v1/messages/{}", segment(id))).await.ok()?;
    let why = match mail.get("place").and_then(Value::as_str)? {
        "held" => "it is of a stranger whom nobody has let in, so no workspace gets it",
        "gone" => "it was kept long enough, and its file was thrown away",
        _ => "its file is not written yet",
    };
    Some(no_such(&format!("there is no file of {id}: {why}")))
}
