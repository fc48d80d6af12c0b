//! `monoco forget DID`: erases what a person wrote.

use std::io::{self, IsTerminal, Write};

use serde_json::json;

use super::CliContext;
use super::contact::did_of;
use super::failure::{CliError, CliExit};
use super::output::{self, Column, ToCell, escape_line, note};
use monoco_courier::api::FORGET_PATH;
use monoco_courier::api::views::forget::ForgetView;

#[derive(Debug, clap::Args)]
pub struct ForgetArgs {
    /// DID, name or address of the person
    did: String,
    /// Erase without asking for confirmation
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,
    /// Show what would be erased and change nothing
    #[arg(long)]
    dry_run: bool,
}

const COUNTS: &[Column<ForgetView>] = &[
    ("dids", |it| it.dids.cell()),
    ("messages", |it| it.objects.cell()),
    ("rewritten mails", |it| it.mails.cell()),
    ("not merged yet", |it| it.inbound_messages.cell()),
    ("letters", |it| it.letters.cell()),
    ("drafts", |it| it.drafts.cell()),
    ("attachments", |it| it.attachments.cell()),
    ("contacts", |it| it.contacts.cell()),
    ("bindings", |it| it.bindings.cell()),
    ("external ids, kept", |it| it.external_ids.cell()),
    ("mail files", |it| it.files.cell()),
];

pub async fn run(context: &CliContext, args: ForgetArgs) -> Result<(), CliError> {
    let client = context.client()?;
    let did = did_of(&client, &args.did).await?;
    let counted: ForgetView =
        client.post(FORGET_PATH, &json!({"did": did, "dry_run": true})).await?;
    if args.dry_run {
        return output::one(context.format, &counted, &did, COUNTS);
    }
    if !args.yes {
        confirm(&counted)?;
    }
    let erased: ForgetView = client.post(FORGET_PATH, &json!({"did": did})).await?;
    output::one(context.format, &erased, &did, COUNTS)?;
    note(
        "erased; `monoco mailbox sync` removes copies in each workspace, and backups made before \
         still have the text",
    );
    Ok(())
}

/// Shows the counts and asks on the terminal.
fn confirm(counted: &ForgetView) -> Result<(), CliError> {
    let rejected = |message: &str| {
        CliError::new(CliExit::NotPossible, message)
            .code("not_confirmed")
            .hint("--yes erases without asking, --dry-run shows what would be erased")
    };
    if !io::stdin().is_terminal() {
        return Err(rejected("nothing was erased: there is no terminal to ask for confirmation"));
    }
    let width = COUNTS.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in COUNTS {
        let value = value(counted).unwrap_or_default();
        note(&format!("{name:width$}  {}", escape_line(&value)));
    }
    let _ = write!(io::stderr(), "erase this for ever? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(rejected("nothing was erased"))
}
