//! `monoco mailbox send` and `reply` through a courier on another machine: the message is sent by the
//! API, because drafts are files of the courier's own machine.

use std::collections::BTreeMap;
use std::time::Duration;

use monoco_core::draft::{Draft, DraftContext};
use serde_json::{Value, json};

use super::read::locate;
use super::remote_mailbox::RemoteMailbox;
use super::send::{ComposedDraft, SendReply};
use super::{MailboxContext, random};
use crate::cli::client::{Client, segment};
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, OutputFormat, note, print};
use monoco_courier::api::views::messages::{BlobView, SendResponse};
use monoco_courier::api::views::trace::TraceView;
use monoco_mailbox::draft::AttachedFile;

/// How often `--wait` asks for the deliveries.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Answers a Mail, exactly to its `answer_to`.
pub async fn reply(
    mailbox: &MailboxContext<'_>,
    reply: SendReply,
    wait: Option<Duration>,
) -> Result<(), CliError> {
    let client = mailbox.context.client()?;
    upload(&client, &reply.attached).await?;
    let attachments: Vec<_> = reply.attached.iter().map(|file| &file.attachment).collect();
    let mut body = json!({"text": reply.text, "attachments": attachments});
    for (key, value) in [("title", reply.title), ("idempotency_key", reply.idempotency_key)] {
        if let Some(value) = value {
            body[key] = value.into();
        }
    }
    let path = format!("/api/v1/messages/{}/reply", segment(&reply.id.to_string()));
    show(mailbox, &client, client.post(&path, &body).await?, wait).await
}

/// Sends a draft, as the DID of the token.
pub async fn send(
    mailbox: &MailboxContext<'_>,
    remote: &RemoteMailbox,
    composed: ComposedDraft,
    wait: Option<Duration>,
) -> Result<(), CliError> {
    let ComposedDraft { file, provider, attached, tunnels } = composed;
    let rejected = |why: String| CliError::new(CliExit::NotPossible, format!("not sent: {why}"));
    let draft = Draft::parse(&file).map_err(|error| rejected(error.to_string()))?;
    let answers = match &draft.reply_to {
        Some(id) => Some(locate(mailbox, &id.to_string())?.mail),
        None => None,
    };
    let tunnels = tunnels.into_iter().flatten().filter(|(_, of)| *of == provider);
    let tunnels: Vec<_> = tunnels.map(|(id, _)| id).collect();
    let sizes: BTreeMap<_, _> =
        attached.iter().map(|file| (file.attachment.hash, file.size())).collect();
    let context = DraftContext {
        owner: &remote.did,
        uid: &format!("{:016x}", random()?),
        provider: &provider,
        tunnels: &tunnels,
        answers: answers.as_ref(),
        sizes: &sizes,
    };
    let prepared = draft.into_message(&context).map_err(|error| rejected(error.to_string()))?;
    let client = mailbox.context.client()?;
    upload(&client, &attached).await?;
    let msg: Value =
        serde_json::from_str(prepared.msg.canonical()).map_err(std::io::Error::from)?;
    let mut body = json!({"msg": msg, "idempotency_key": prepared.key});
    if let Some(at) = prepared.not_before {
        body["schedule_at"] = at.rfc3339().into();
    }
    show(mailbox, &client, client.post("/api/v1/post_send", &body).await?, wait).await
}

async fn upload(client: &Client, attached: &[AttachedFile]) -> Result<(), CliError> {
    for file in attached {
        let _: BlobView = client.post_bytes("/api/v1/objects", file.bytes().to_vec()).await?;
    }
    Ok(())
}

/// Prints the id of the message, after its deliveries when the user waits for them.
async fn show(
    mailbox: &MailboxContext<'_>,
    client: &Client,
    sent: SendResponse,
    wait: Option<Duration>,
) -> Result<(), CliError> {
    if !sent.ok {
        let why = sent.reason.as_deref().unwrap_or("rejected").to_owned();
        return Err(CliError::new(CliExit::NotPossible, format!("not sent: {why}")).code(why));
    }
    let state = match wait {
        Some(timeout) => Some(follow(client, &sent.msg_id, timeout).await?),
        None => sent.state.as_deref().map(str::to_owned),
    };
    match mailbox.context.format {
        OutputFormat::Json => {
            let mut value = json!(sent);
            value["state"] = json!(state);
            output::print_json(&value)
        }
        OutputFormat::Id => print(&sent.msg_id),
        OutputFormat::Table | OutputFormat::Compact => {
            if sent.duplicate {
                note("this message was sent before");
            }
            print(&match state {
                Some(state) => format!("{state}\t{}", sent.msg_id),
                None => sent.msg_id,
            })
        }
    }
}

/// Waits until every delivery is sent. Returns the state of the message.
async fn follow(client: &Client, msg_id: &str, timeout: Duration) -> Result<String, CliError> {
    let deadline = tokio::time::Instant::now() + timeout;
    let path = format!("/api/v1/trace/{}", segment(msg_id));
    loop {
        let trace: TraceView = client.get(&path).await?;
        let states: Vec<&str> =
            trace.deliveries.iter().map(|delivery| delivery.state.as_ref()).collect();
        if let Some(state) = states.iter().find(|it| matches!(**it, "DEAD" | "UNCERTAIN")) {
            let message = format!("message not sent: a delivery of {msg_id} is {state}");
            return Err(CliError::new(CliExit::NotPossible, message)
                .hint(format!("`monoco trace {msg_id}` shows the reason")));
        }
        if !states.is_empty() && states.iter().all(|state| *state == "SENT") {
            return Ok("SENT".to_owned());
        }
        if tokio::time::Instant::now() >= deadline {
            let message = format!("{msg_id} was not sent within the timeout");
            return Err(CliError::new(CliExit::NotPossible, message)
                .hint(format!("the courier keeps trying; `monoco trace {msg_id}` shows it")));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
