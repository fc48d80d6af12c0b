//! Messages of agents: reply_to_mail and send_message.

use monoco_core::did::Did;
use monoco_store::{ClaimUpdate, SendResult};
use serde::Deserialize;
use serde_json::{Value, json};

use super::claims::update_claim;
use super::{ToolContext, mail_id};
use crate::api::views::messages::SendResponse;
use crate::center::reply::{self, NewMessage, ReplyRequest};
use crate::mcp::result::{ToolError, ToolResult};

/// Longest idempotency key of an agent, in bytes. The name of the agent is put before it.
const MAX_KEY_BYTES: usize = 160;

/// Most targets of one message of an agent.
const MAX_TARGETS: usize = 50;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplyToMailArgs {
    id: String,
    text: String,
    idempotency_key: String,
    #[serde(default)]
    finish: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SendMessageArgs {
    to: Vec<String>,
    title: Option<String>,
    text: String,
    idempotency_key: String,
}

/// Answers a Mail: exactly to its `answer_to`, in its thread.
pub async fn reply(
    context: ToolContext<'_>,
    args: ReplyToMailArgs,
) -> Result<ToolResult, ToolError> {
    let ReplyToMailArgs { id, text, idempotency_key, finish } = args;
    let (api, agent) = (context.api, context.agent);
    check_text(&text)?;
    let mail = mail_id(context, &id).await?;
    let key = Some(own_key(context, &idempotency_key)?);
    let request =
        ReplyRequest { mail: mail.clone(), text, title: None, attachments: Vec::new(), key };
    let now = api.clock.now();
    let sent = reply::reply(&api.store, &api.entry, &agent.did, request, now).await?;
    let mut facts = send_facts(context, sent);
    if finish {
        let finished = update_claim(context, &mail, None, ClaimUpdate::Complete).await;
        facts["finished"] = match finished {
            Ok(claim) => claim.claiming.state.name().as_str().into(),
            // The answer is stored; only the claim is not ended.
            Err(ToolError { message, .. }) => format!("not finished: {message}").into(),
        };
    }
    Ok(ToolResult::new(facts))
}

/// Sends a new message as the agent.
pub async fn send(
    context: ToolContext<'_>,
    args: SendMessageArgs,
) -> Result<ToolResult, ToolError> {
    let SendMessageArgs { to, title, text, idempotency_key } = args;
    let (api, agent) = (context.api, context.agent);
    check_text(&text)?;
    if to.is_empty() || to.len() > MAX_TARGETS {
        return Err(ToolError::argument("to", format_args!("expected 1 to {MAX_TARGETS} DIDs")));
    }
    let to = to.iter().map(|did| did.parse::<Did>()).collect::<Result<_, _>>();
    let to: Vec<Did> = to.map_err(|error| ToolError::argument("to", error))?;
    let key = own_key(context, &idempotency_key)?;
    let message = NewMessage { to, title, text, key };
    let sent =
        reply::send_new(&api.store, &api.entry, &agent.did, message, api.clock.now()).await?;
    Ok(ToolResult::new(send_facts(context, sent)))
}

fn check_text(text: &str) -> Result<(), ToolError> {
    match text.trim().is_empty() {
        true => Err(ToolError::argument("text", "empty; expected the text of the message")),
        false => Ok(()),
    }
}

/// The idempotency key of the agent. Keys of different agents are different.
fn own_key(context: ToolContext<'_>, key: &str) -> Result<String, ToolError> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        let why = format_args!("expected 1 to {MAX_KEY_BYTES} bytes");
        return Err(ToolError::argument("idempotency_key", why));
    }
    Ok(format!("{}:{key}", context.agent.name()))
}

/// What became of a message, and the next step.
fn send_facts(context: ToolContext<'_>, sent: SendResult) -> Value {
    let response = SendResponse::from(sent);
    context.api.metrics.record_send(response.ok, response.duplicate);
    let (state, next) = match (response.ok, &response.letter) {
        (false, _) => ("REJECTED", "the owner has blocked this sender; nothing was sent"),
        (true, Some(_)) => ("CHAIN", "passes the outbound chain; message_status shows the result"),
        (true, None) => ("WAIT", "will be sent; message_status shows when it was delivered"),
    };
    let mut facts = json!({
        "msg_id": response.msg_id,
        "state": state,
        "duplicate": response.duplicate,
        "next": next,
    });
    if let Some(letter) = response.letter {
        facts["letter"] = letter.into();
    }
    facts
}
