//! `monoco contact`: people, groups, and how to reach them.

use serde_json::{Value, json};

use super::CliContext;
use super::center::PageArgs;
use super::client::{Client, query, segment};
use super::failure::{CliError, CliExit};
use super::output::{self, OutputFormat, note};

#[derive(Debug, clap::Subcommand)]
pub enum ContactCommand {
    /// Add a contact, or change one
    Add {
        /// Who
        did: String,
        /// What people call them (can be repeated)
        #[arg(long)]
        name: Vec<String>,
        /// block, stranger, temporary or friend
        #[arg(long, default_value = "friend")]
        level: String,
        /// They read their mail here, from an INBOX of ours
        #[arg(long)]
        here: bool,
    },
    /// List everybody we know
    List(PageArgs),
    /// Show one contact
    Show {
        /// Who
        did: String,
    },
    /// Forget a contact and its bindings
    Remove {
        /// Who
        did: String,
    },
    /// Deliver nothing of somebody any more
    Block {
        /// Who
        did: String,
        /// Only for this target; for everybody when left out
        #[arg(long = "for", value_name = "DID")]
        target: Option<String>,
    },
    /// Let somebody through again
    Unblock {
        /// Who
        did: String,
        /// Only for this target
        #[arg(long = "for", value_name = "DID")]
        target: Option<String>,
    },
    /// Bind a contact to an account behind a tunnel
    Bind {
        /// Who
        did: String,
        /// The tunnel
        tunnel: String,
        /// The account there, as the provider spells it
        address: String,
        /// user, group, channel or addr
        #[arg(long, default_value = "user")]
        kind: String,
        /// The binding with the highest number is used
        #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
        priority: i32,
    },
    /// Remove a binding
    Unbind {
        /// Who
        did: String,
        /// The tunnel
        tunnel: String,
        /// The account there
        address: String,
    },
    /// Groups and who gets what is said in them
    #[command(subcommand)]
    Group(GroupCommand),
}

#[derive(Debug, clap::Subcommand)]
pub enum GroupCommand {
    /// Add a group, or rename one
    Add {
        /// The group's DID
        did: String,
        /// What people call it
        #[arg(long)]
        name: Option<String>,
    },
    /// List the groups
    List(PageArgs),
    /// Show one group
    Show {
        /// The group's DID
        did: String,
    },
    /// Let a reader have what is said in a group
    Subscribe {
        /// The group's DID
        did: String,
        /// The reader's DID
        reader: String,
    },
    /// Let a reader have it no longer
    Unsubscribe {
        /// The group's DID
        did: String,
        /// The reader's DID
        reader: String,
    },
}

const CONTACT: [(&str, &str); 4] =
    [("did", "did"), ("names", "names"), ("level", "level"), ("here", "here")];

const GROUP: [(&str, &str); 3] = [("did", "did"), ("name", "name"), ("subscribers", "subscribers")];

pub async fn run(context: &CliContext, command: ContactCommand) -> Result<(), CliError> {
    let format = context.format;
    let client = context.client()?;
    match command {
        ContactCommand::Add { did, name, level, here } => {
            let body = json!({"names": name, "level": level, "here": here});
            show(format, &client.put(&path(&did), &body).await?)
        }
        ContactCommand::List(page) => {
            let answer = client.get(&format!("/api/v1/contacts{}", page.query(&[]))).await?;
            output::list(format, &answer, "contacts", &CONTACT)
        }
        ContactCommand::Show { did } => show(format, &client.get(&path(&did)).await?),
        ContactCommand::Remove { did } => {
            client.delete(&path(&did)).await?;
            note("forgotten");
            Ok(())
        }
        ContactCommand::Block { did, target: None } => {
            set_level(&client, format, &did, "block").await
        }
        ContactCommand::Unblock { did, target: None } => {
            set_level(&client, format, &did, "friend").await
        }
        ContactCommand::Block { did, target: Some(target) } => {
            client.put(&block_path(&did, &target), &Value::Null).await?;
            note("blocked");
            Ok(())
        }
        ContactCommand::Unblock { did, target: Some(target) } => {
            client.delete(&block_path(&did, &target)).await?;
            note("unblocked");
            Ok(())
        }
        ContactCommand::Bind { did, tunnel, address, kind, priority } => {
            let body =
                json!({"tunnel": tunnel, "address": address, "kind": kind, "priority": priority});
            show(format, &client.put(&format!("{}/bindings", path(&did)), &body).await?)
        }
        ContactCommand::Unbind { did, tunnel, address } => {
            let query = query(&[("tunnel", Some(tunnel)), ("address", Some(address))]);
            let path = format!("{}/bindings{query}", path(&did));
            show(format, &client.delete(&path).await?)
        }
        ContactCommand::Group(command) => group(&client, format, command).await,
    }
}

fn path(did: &str) -> String {
    format!("/api/v1/contacts/{}", segment(did))
}

fn block_path(sender: &str, target: &str) -> String {
    format!("/api/v1/blocks/{}/{}", segment(target), segment(sender))
}

/// Changes the level of somebody, and nothing else about them.
async fn set_level(
    client: &Client,
    format: OutputFormat,
    did: &str,
    level: &str,
) -> Result<(), CliError> {
    let mut body = match client.get(&path(did)).await {
        Ok(known) => json!({"names": known["names"], "here": known["here"]}),
        Err(failure) if failure.exit == CliExit::NotPossible => json!({}),
        Err(failure) => return Err(failure),
    };
    body["level"] = json!(level);
    show(format, &client.put(&path(did), &body).await?)
}

fn show(format: OutputFormat, contact: &Value) -> Result<(), CliError> {
    output::one(format, contact, "did", &CONTACT)?;
    if format == OutputFormat::Table {
        let columns = [
            ("tunnel", "tunnel"),
            ("address", "address"),
            ("kind", "kind"),
            ("priority", "priority"),
        ];
        output::list(format, contact, "bindings", &columns)?;
    }
    Ok(())
}

async fn group(
    client: &Client,
    format: OutputFormat,
    command: GroupCommand,
) -> Result<(), CliError> {
    let path = |did: &str| format!("/api/v1/groups/{}", segment(did));
    let reader_path = |did: &str, reader: &str| {
        format!("/api/v1/groups/{}/subscribers/{}", segment(did), segment(reader))
    };
    let answer = match command {
        GroupCommand::Add { did, name } => client.put(&path(&did), &json!({"name": name})).await?,
        GroupCommand::List(page) => {
            let answer = client.get(&format!("/api/v1/groups{}", page.query(&[]))).await?;
            return output::list(format, &answer, "groups", &GROUP);
        }
        GroupCommand::Show { did } => client.get(&path(&did)).await?,
        GroupCommand::Subscribe { did, reader } => {
            client.put(&reader_path(&did, &reader), &Value::Null).await?
        }
        GroupCommand::Unsubscribe { did, reader } => {
            client.delete(&reader_path(&did, &reader)).await?
        }
    };
    output::one(format, &answer, "did", &GROUP)
}
