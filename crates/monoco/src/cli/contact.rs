//! `monoco contact`: manages contacts, groups, blocks and bindings.

use serde::de::IgnoredAny;
use serde_json::json;

use super::CliContext;
use super::center::PageArgs;
use super::client::{Client, query, segment};
use super::failure::{CliError, CliExit};
use super::output::{self, Column, OutputFormat, ToCell};
use monoco_courier::api::views::contacts::{
    BindingView, ContactPage, ContactView, DidList, GroupPage, GroupView,
};

/// A contact can be named by its DID, its name, its e-mail address (joe@example.com) or an
/// account of a tunnel (lark:ou_7).
#[derive(Debug, clap::Subcommand)]
pub enum ContactCommand {
    /// Add or update a contact
    Add {
        /// DID or address of the contact
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
        /// DID, name or address of the contact
        did: String,
    },
    /// Remove a contact and its bindings
    Remove {
        /// DID, name or address of the contact
        did: String,
    },
    /// Block messages from a sender
    Block {
        /// DID, name or address of the contact
        did: String,
        /// Block only messages to this DID [default: all targets]
        #[arg(long = "for", value_name = "DID")]
        target: Option<String>,
    },
    /// Unblock messages from a sender
    Unblock {
        /// DID, name or address of the contact
        did: String,
        /// Unblock only messages to this DID
        #[arg(long = "for", value_name = "DID")]
        target: Option<String>,
    },
    /// Bind a contact to an account of a tunnel
    Bind {
        /// DID, name or address of the contact
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
        /// DID, name or address of the contact
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
        /// DID or name of the group
        did: String,
    },
    /// Deliver messages of a group to a reader
    Subscribe {
        /// DID or name of the group
        did: String,
        /// DID, name or address of the reader
        reader: String,
    },
    /// Stop delivering messages of a group to a reader
    Unsubscribe {
        /// DID or name of the group
        did: String,
        /// DID, name or address of the reader
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
            let did = did_of(&client, &did).await?;
            let body = json!({"names": name, "level": level, "here": here});
            show(format, &client.put(&path(&did), &body).await?)
        }
        ContactCommand::List(page) => {
            let path = format!("/api/v1/contacts{}", page.query(&[]));
            let page: ContactPage = client.get(&path).await?;
            let cursor = page.next_cursor.as_deref();
            output::page(format, &page, &page.contacts, CONTACT, cursor)
        }
        ContactCommand::Show { did } => {
            let did = did_of(&client, &did).await?;
            show(format, &client.get(&path(&did)).await?)
        }
        ContactCommand::Remove { did } => {
            let did = did_of(&client, &did).await?;
            client.delete::<IgnoredAny>(&path(&did)).await?;
            output::done(format, "contact removed", &json!({"removed": did}))
        }
        ContactCommand::Block { did, target: None } => {
            set_level(&client, format, &did_of(&client, &did).await?, "block").await
        }
        ContactCommand::Unblock { did, target: None } => {
            set_level(&client, format, &did_of(&client, &did).await?, "friend").await
        }
        ContactCommand::Block { did, target: Some(target) } => {
            let (did, target) = (did_of(&client, &did).await?, did_of(&client, &target).await?);
            client.put::<IgnoredAny>(&block_path(&did, &target), &()).await?;
            output::done(format, "blocked", &json!({"blocked": did, "for": target}))
        }
        ContactCommand::Unblock { did, target: Some(target) } => {
            let (did, target) = (did_of(&client, &did).await?, did_of(&client, &target).await?);
            client.delete::<IgnoredAny>(&block_path(&did, &target)).await?;
            output::done(format, "unblocked", &json!({"unblocked": did, "for": target}))
        }
        ContactCommand::Bind { did, tunnel, address, kind, priority } => {
            let did = did_of(&client, &did).await?;
            let body =
                json!({"tunnel": tunnel, "address": address, "kind": kind, "priority": priority});
            show(format, &client.put(&format!("{}/bindings", path(&did)), &body).await?)
        }
        ContactCommand::Unbind { did, tunnel, address } => {
            let did = did_of(&client, &did).await?;
            let query = query(&[("tunnel", Some(tunnel)), ("address", Some(address))]);
            let path = format!("{}/bindings{query}", path(&did));
            show(format, &client.delete(&path).await?)
        }
        ContactCommand::Group(command) => group(&client, format, command).await,
    }
}

/// Returns the DID of a contact that is given by DID, name, e-mail address or `tunnel:account`.
pub async fn did_of(client: &Client, text: &str) -> Result<String, CliError> {
    // The courier checks DIDs itself.
    if text.starts_with("did:") {
        return Ok(text.to_owned());
    }
    let query = query(&[("text", Some(text.to_owned()))]);
    let found: DidList = client.get(&format!("/api/v1/dids{query}")).await?;
    match found.dids.as_slice() {
        [did] => Ok(did.clone()),
        [] => Err(CliError::new(CliExit::NotPossible, format!("unknown contact {text:?}"))
            .code("unknown_contact")
            .hint(
                "`monoco contact list` lists all contacts; an account is given as TUNNEL:ACCOUNT",
            )),
        several => {
            let message = format!("{text:?} is ambiguous; use a DID: {}", several.join(", "));
            Err(CliError::new(CliExit::NotPossible, message).code("ambiguous_contact"))
        }
    }
}

/// Like [`did_of`], for an optional argument.
pub async fn maybe_did_of(
    client: &Client,
    text: Option<String>,
) -> Result<Option<String>, CliError> {
    match text {
        Some(text) => did_of(client, &text).await.map(Some),
        None => Ok(None),
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
        GroupCommand::Show { did } => client.get(&path(&did_of(client, &did).await?)).await?,
        GroupCommand::Subscribe { did, reader } => {
            let (did, reader) = (did_of(client, &did).await?, did_of(client, &reader).await?);
            client.put(&reader_path(&did, &reader), &()).await?
        }
        GroupCommand::Unsubscribe { did, reader } => {
            let (did, reader) = (did_of(client, &did).await?, did_of(client, &reader).await?);
            client.delete(&reader_path(&did, &reader)).await?
        }
    };
    output::one(format, &group, &group.did, GROUP)
}
