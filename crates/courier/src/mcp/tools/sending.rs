//! Messages of agents: reply_to_mail, send_message and withdraw.

use monoco_core::approval::ApprovalId;
use monoco_core::did::Did;
use monoco_store::{ClaimUpdate, SendResult};
use serde::Deserialize;
use serde_json::{Value, json};

use super::claims::update_claim;
use super::{ToolContext, mail_id};
use crate::api::views::approvals::ApprovalSummary;
use crate::api::{approvals, messages};
use crate::center::reply::{self, NewMessage, ReplyRequest};
use crate::mcp::result::{ToolError, ToolResult};

/// Longest idempotency key of an agent, in bytes. The name of the agent is put before it.
const MAX_KEY_BYTES: usize = 160;

/// What an agent does about a message that waits for approval.
pub const HELD_NEXT: &str = "Not sent. A person decides. Do not send again; ask message_status.";

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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WithdrawArgs {
    approval: String,
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
    let request = ReplyRequest {
        mail: mail.clone(),
        text,
        title: None,
        attachments: Vec::new(),
        key,
        origin: agent.caller.origin(),
    };
    let now = api.clock.now();
    let sent = reply::reply(&api.store, &api.entry, &agent.did, request, now).await;
    let sent = sent.map_err(|error| match ToolError::from(error) {
        // Without the target: its DID can contain text of others.
        ToolError { code: code @ "unresolvable", .. } => ToolError::new(
            code,
            "the sender of this Mail cannot be reached any more; finish it as fail",
        ),
        error => error,
    })?;
    let mut facts = send_facts(context, sent).await?;
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
    let message = NewMessage { to, title, text, key, origin: agent.caller.origin() };
    let now = api.clock.now();
    let sent = reply::send_new(&api.store, &api.entry, &agent.did, message, now).await?;
    Ok(ToolResult::new(send_facts(context, sent).await?))
}

/// Takes back a message of the agent that waits for approval.
pub async fn withdraw(
    context: ToolContext<'_>,
    args: WithdrawArgs,
) -> Result<ToolResult, ToolError> {
    let id: ApprovalId = args.approval.parse().map_err(|_| {
        ToolError::argument("approval", "expected apr_ and a number, as in the result of HELD")
    })?;
    let caller = &context.agent.caller;
    let approval = approvals::withdraw_own(context.api, caller, id, None).await?;
    Ok(ToolResult::new(approval_facts(&ApprovalSummary::from(&approval))))
}

fn check_text(text: &str) -> Result<(), ToolError> {
    match text.trim().is_empty() {
        true => Err(ToolError::argument("text", "empty; expected the text of the message")),
        false => Ok(()),
    }
}

/// The idempotency key of the agent.
fn own_key(context: ToolContext<'_>, key: &str) -> Result<String, ToolError> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        let why = format_args!("expected 1 to {MAX_KEY_BYTES} bytes");
        return Err(ToolError::argument("idempotency_key", why));
    }
    Ok(context.agent.caller.own_key(key.to_owned()))
}

/// What became of a message, and the next step.
async fn send_facts(context: ToolContext<'_>, sent: SendResult) -> Result<Value, ToolError> {
    let response = messages::respond(context.api, sent).await?;
    let state = match (response.ok, &response.letter, &response.approval) {
        (false, ..) => "REJECTED",
        (true, Some(_), _) => "CHAIN",
        (true, None, Some(approval)) if approval.state == "PENDING" => "HELD",
        // The person has answered before this repeated call.
        (true, None, Some(_)) => "ANSWERED",
        (true, None, None) => "WAIT",
    };
    let next = match state {
        "REJECTED" => "the owner has blocked this sender; nothing was sent",
        "CHAIN" => "passes the outbound chain; message_status shows the result",
        "HELD" => HELD_NEXT,
        "ANSWERED" => "a person has decided; ask message_status",
        _ => "will be sent; message_status shows when it was delivered",
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
    if let Some(approval) = &response.approval {
        facts["approval"] = approval_facts(approval);
    }
    if !response.halted.is_empty() {
        facts["halted"] = json!(response.halted);
    }
    Ok(facts)
}

/// What an agent needs of an approval.
pub fn approval_facts(approval: &ApprovalSummary) -> Value {
    let ApprovalSummary { id, state, rule, expires_at, reason, .. } = approval;
    let mut facts = json!({"id": id, "state": state, "rule": rule});
    if let Some(expires_at) = expires_at {
        facts["expires_at"] = json!(expires_at);
    }
    if let Some(reason) = reason {
        facts["reason"] = json!(reason);
    }
    facts
}
