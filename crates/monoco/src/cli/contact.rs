//! `monoco contact`: manages contacts, groups, blocks and bindings.

use serde::de::IgnoredAny;
use serde_json::json;

use super::CliContext;
use super::center::PageArgs;
use super::client::{Client, query, segment};
use super::failure::{CliError, CliExit};
use super::output::{self, Column, OutputFormat, ToCell, note};
use crate::api::views::contacts::{BindingView, ContactPage, ContactView, GroupPage, GroupView};

#[derive(Debug, clap::Subcommand)]
pub enum ContactCommand {
    /// Add or update a contact
    Add {
        /// DID of the contact
        did: String,
        /// Name of the contact (can be repeated)
        #[arg(long)]
        name: Vec<String>,
        /// Trust level: block, stranger, temporary or friend
        #[arg(long, default_value = "friend")]
        level: String,
        /// Deliver messages for this contact to a local INBOX
        #[arg(long)]
        here: bool,
    },
    /// List contacts in the order they were added
    List(PageArgs),
    /// Show one contact with its bindings
    Show {
        /// DID of the contact
        did: String,
    },
    /// Remove a contact and its bindings
    Remove {
        /// DID of the contact
        did: String,
    },
    /// Block messages from a sender
    Block {
        /// DID of the contact
        did: String,
        /// Block only messages to this DID [default: all targets]
        #[arg(long = "for", value_name = "DID")]
        target: Option<String>,
    },
    /// Unblock messages from a sender
    Unblock {
        /// DID of the contact
        did: String,
        /// Unblock only messages to this DID
        #[arg(long = "for", value_name = "DID")]
        target: Option<String>,
    },
    /// Bind a contact to an account of a tunnel
    Bind {
        /// DID of the contact
        did: String,
        /// Id of the tunnel
        tunnel: String,
        /// Account at the provider, as the provider writes it
        address: String,
        /// Kind of account: user, group, channel or addr
        #[arg(long, default_value = "user")]
        kind: String,
        /// Priority; the binding with the highest number is used
        #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
        priority: i32,
    },
    /// Remove a binding of a contact
    Unbind {
        /// DID of the contact
        did: String,
        /// Id of the tunnel
        tunnel: String,
        /// Account at the provider
        address: String,
    },
    /// Manage groups and their subscribers
    #[command(subcommand)]
    Group(GroupCommand),
}

#[derive(Debug, clap::Subcommand)]
pub enum GroupCommand {
    /// Add or rename a group
    Add {
        /// DID of the group
        did: String,
        /// Name of the group
        #[arg(long)]
        name: Option<String>,
    },
    /// List groups with their subscribers
    List(PageArgs),
    /// Show one group with its subscribers
    Show {
        /// DID of the group
        did: String,
    },
    /// Deliver messages of a group to a reader
    Subscribe {
        /// DID of the group
        did: String,
        /// DID of the reader
        reader: String,
    },
    /// Stop delivering messages of a group to a reader
    Unsubscribe {
        /// DID of the group
        did: String,
        /// DID of the reader
        reader: String,
    },
}

const CONTACT: &[Column<ContactView>] = &[
    ("did", |contact| contact.did.cell()),
    ("names", |contact| contact.names.cell()),
    ("level", |contact| contact.level.cell()),
    ("here", |contact| contact.here.cell()),
];

const BINDING: &[Column<BindingView>] = &[
    ("tunnel", |binding| binding.tunnel.cell()),
    ("address", |binding| binding.address.cell()),
    ("kind", |binding| binding.kind.cell()),
    ("priority", |binding| binding.priority.cell()),
];

const GROUP: &[Column<GroupView>] = &[
    ("did", |group| group.did.cell()),
    ("name", |group| group.name.cell()),
    ("subscribers", |group| group.subscribers.cell()),
];

pub async fn run(context: &CliContext, command: ContactCommand) -> Result<(), CliError> {
    let format = context.format;
    let client = context.client()?;
    match command {
        ContactCommand::Add { did, name, level, here } => {
            let body = json!({"names": name, "level": level, "here": here});
            show(format, &client.put(&path(&did), &body).await?)
        }
        ContactCommand::List(page) => {
            let path = format!("/api/v1/contacts{}", page.query(&[]));
            let page: ContactPage = client.get(&path).await?;
            let cursor = page.next_cursor.as_deref();
            output::page(format, &page, &page.contacts, CONTACT, cursor)
        }
        ContactCommand::Show { did } => show(format, &client.get(&path(&did)).await?),
        ContactCommand::Remove { did } => {
            client.delete::<IgnoredAny>(&path(&did)).await?;
            note("contact removed");
            Ok(())
        }
        ContactCommand::Block { did, target: None } => {
            set_level(&client, format, &did, "block").await
        }
        ContactCommand::Unblock { did, target: None } => {
            set_level(&client, format, &did, "friend").await
        }
        ContactCommand::Block { did, target: Some(target) } => {
            client.put::<IgnoredAny>(&block_path(&did, &target), &()).await?;
            note("blocked");
            Ok(())
        }
        ContactCommand::Unblock { did, target: Some(target) } => {
            client.delete::<IgnoredAny>(&block_path(&did, &target)).await?;
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

/// Sets the level of a contact and keeps its other fields.
async fn set_level(
    client: &Client,
    format: OutputFormat,
    did: &str,
    level: &str,
) -> Result<(), CliError> {
    let body = match client.get::<ContactView>(&path(did)).await {
        Ok(ContactView { names, here, .. }) => {
            json!({"names": names, "here": here, "level": level})
        }
        Err(failure) if failure.exit == CliExit::NotPossible => json!({"level": level}),
        Err(failure) => return Err(failure),
    };
    show(format, &client.put(&path(did), &body).await?)
}

fn show(format: OutputFormat, contact: &ContactView) -> Result<(), CliError> {
    output::one(format, contact, &contact.did, CONTACT)?;
    match format {
        OutputFormat::Table => output::list(format, contact, &contact.bindings, BINDING),
        _ => Ok(()),
    }
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
    let group: GroupView = match command {
        GroupCommand::Add { did, name } => client.put(&path(&did), &json!({"name": name})).await?,
        GroupCommand::List(page) => {
            let path = format!("/api/v1/groups{}", page.query(&[]));
            let page: GroupPage = client.get(&path).await?;
            let cursor = page.next_cursor.as_deref();
            return output::page(format, &page, &page.groups, GROUP, cursor);
        }
        GroupCommand::Show { did } => client.get(&path(&did)).await?,
        GroupCommand::Subscribe { did, reader } => {
            client.put(&reader_path(&did, &reader), &()).await?
        }
        GroupCommand::Unsubscribe { did, reader } => {
            client.delete(&reader_path(&did, &reader)).await?
        }
    };
    output::one(format, &group, &group.did, GROUP)
}
