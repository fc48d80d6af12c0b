//! Validates a draft before it is written: its recipients, and its tunnel.
//!
//! A running courier resolves the recipients. Without it, the tunnels in the config are used,
//! and contacts are not checked.

use std::collections::BTreeMap;

use monoco_core::did::TunnelId;
use monoco_core::draft::{Draft, DraftContext};
use monoco_core::mail::MailId;
use monoco_core::object::MsgObject;
use serde_json::{Value, json};

use super::MailboxContext;
use super::read::locate;
use crate::cli::client::{Client, segment};
use crate::cli::failure::{CliError, CliExit};
use monoco_courier::api::views::messages::SendResponse;
use monoco_courier::api::views::tunnels::TunnelList;
use monoco_courier::config::{ConfigSource, default_owner};
use monoco_mailbox::draft::AttachedFile;

/// Checks a draft as the courier will read it.
pub async fn check(
    mailbox: &MailboxContext<'_>,
    file: &str,
    provider: &str,
    attached: &[AttachedFile],
) -> Result<(), CliError> {
    let draft = Draft::parse(file).map_err(|error| rejected(&error))?;
    let config = ConfigSource::of(&mailbox.context.home).load().ok();
    let owner = config.as_ref().map_or_else(default_owner, |config| config.owner.clone());
    let answers = match &draft.reply_to {
        Some(id) => match locate(mailbox, &id.to_string()) {
            Ok(located) => Some(located.mail),
            Err(error) => return check_answered(mailbox, id, error).await,
        },
        None => None,
    };
    let sizes: BTreeMap<_, _> =
        attached.iter().map(|file| (file.attachment.hash, file.size())).collect();
    let message = |tunnels: &[TunnelId]| {
        let context = DraftContext {
            owner: &owner,
            uid: "",
            provider,
            tunnels,
            answers: answers.as_ref(),
            sizes: &sizes,
        };
        let prepared = draft.clone().into_message(&context);
        prepared.map(|prepared| prepared.msg).map_err(|error| rejected(&error))
    };
    if let Ok(client) = mailbox.context.client() {
        match check_with(&client, provider, &message).await {
            // The courier is stopping or overloaded; the draft waits for it.
            Err(error) if matches!(error.exit, CliExit::NoCourier | CliExit::Courier) => {}
            checked => return checked,
        }
    }
    // The config may need variables that only the courier has.
    let Some(config) = config else { return Ok(()) };
    let tunnels = config.tunnels.iter().filter(|(_, tunnel)| tunnel.provider == provider);
    let tunnels: Vec<_> = tunnels.map(|(id, _)| id.clone()).collect();
    for to in &message(&tunnels)?.to {
        let tunnel = to.endpoint().map(|endpoint| endpoint.tunnel);
        if let Some(tunnel) = tunnel.filter(|tunnel| !config.tunnels.contains_key(tunnel)) {
            return Err(rejected(&format!("{to}: there is no tunnel {tunnel}")));
        }
    }
    Ok(())
}

/// Checks that the courier's store has a Mail to answer that has no readable file.
async fn check_answered(
    mailbox: &MailboxContext<'_>,
    id: &MailId,
    unreadable: CliError,
) -> Result<(), CliError> {
    let Ok(client) = mailbox.context.client() else { return Err(unreadable) };
    let path = format!("/api/v1/messages/{}", segment(&id.to_string()));
    let found: Result<Value, CliError> = client.get(&path).await;
    found.map(|_| ()).map_err(|_| unreadable)
}

/// Lets the courier resolve the recipients.
async fn check_with(
    client: &Client,
    provider: &str,
    message: &impl Fn(&[TunnelId]) -> Result<MsgObject, CliError>,
) -> Result<(), CliError> {
    let list: TunnelList = client.get("/api/v1/tunnels").await?;
    let tunnels = list.tunnels.iter().filter(|tunnel| tunnel.provider == provider);
    let tunnels: Vec<_> = tunnels.filter_map(|tunnel| tunnel.id.parse().ok()).collect();
    let msg = message(&tunnels)?;
    let msg: Value = serde_json::from_str(msg.canonical()).map_err(std::io::Error::from)?;
    let body = json!({"msg": msg, "dry_run": true});
    let planned: Result<SendResponse, CliError> = client.post("/api/v1/post_send", &body).await;
    planned.map(|_| ()).map_err(|error| {
        let message = format!("not sent: {}", error.message);
        CliError { message, ..error }
    })
}

fn rejected(why: &impl std::fmt::Display) -> CliError {
    CliError::new(CliExit::NotPossible, format!("not sent: {why}"))
}
