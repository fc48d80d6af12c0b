//! State and history: whoami, message_status and trace.

use monoco_core::approval::ApprovalState;
use monoco_core::delivery::{Delivery, SendState, SendStateData};
use monoco_core::letter::{ChainDirection, LetterState};
use monoco_core::mail::Trust;
use monoco_core::object::ObjId;
use monoco_core::retry::Failure;
use monoco_store::LetterRow;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::ToolContext;
use super::sending::{HELD_NEXT, approval_facts};
use crate::api::error::ApiError;
use crate::api::trace::trace_of;
use crate::api::views::approvals::ApprovalSummary;
use crate::api::{halts, ids, views, visibility};
use crate::center::trace::{LetterTrace, trace_letter};
use crate::mcp::budget::shorten;
use crate::mcp::result::{ToolError, ToolResult};

/// Most events of a trace; the newest are shown.
const MAX_EVENTS: usize = 50;

/// Most deliveries and claims that are listed.
const MAX_LISTED: usize = 50;

/// Longest error of a provider, in characters.
const MAX_FAILURE_CHARS: usize = 300;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WhoamiArgs {}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceArguments {
    id: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageStatusArgs {
    msg_id: String,
}

/// Says what the token allows, and how much is waiting in the hub.
pub async fn whoami(context: ToolContext<'_>, _: WhoamiArgs) -> Result<ToolResult, ToolError> {
    let agent = context.agent;
    let counts = context.api.store.counts().await?;
    let halts = halts::halts(context.api).await?;
    let halts: Vec<_> = halts.into_iter().map(|halt| halt.scope).collect();
    let deliveries = counts.deliveries.iter().filter(|(_, count)| **count > 0);
    let deliveries: Map<String, Value> =
        deliveries.map(|(state, count)| (state.as_str().to_owned(), json!(count))).collect();
    Ok(ToolResult::new(json!({
        "name": agent.name(),
        "workspace": agent.workspace.as_str(),
        "sends_as": agent.did,
        "scopes": agent.scopes.names(),
        "waiting_mails": counts.waiting_mails,
        "dead_mails": counts.dead_claims,
        "halted": halts,
        "deliveries": deliveries,
    })))
}

/// Says how far a sent message has come, for each of its targets.
pub async fn message_status(
    context: ToolContext<'_>,
    args: MessageStatusArgs,
) -> Result<ToolResult, ToolError> {
    let invalid = |error| ApiError::bad_field("msg_id", error);
    let msg_id: ObjId = ids::resolve(context.api, &args.msg_id, invalid).await?;
    let (api, caller) = (context.api, &context.agent.caller);
    let mut trace = api.store.trace(msg_id).await?;
    visibility::read_message(api, caller, &trace).await?;
    let mut in_chain = None;
    let is_outbound = |row: &&LetterRow| row.direction == ChainDirection::Outbound;
    if trace.deliveries.is_empty()
        && trace.records.is_empty()
        && let Some(letter) = trace.letters.iter().rev().find(is_outbound)
    {
        let LetterTrace { letters, message } = trace_letter(&api.store, letter.id).await?;
        in_chain = letters.last().map(|row| row.status.standing.name());
        // A worker can have changed the text; then another message was sent.
        if let Some(message) = message.filter(|message| message.msg_id != msg_id) {
            visibility::read_message(api, caller, &message).await?;
            trace = message;
        }
    }
    let approval = api.store.approval_of(trace.msg_id).await?;
    let states: Vec<_> = trace.deliveries.iter().map(|it| it.sending.state.name()).collect();
    let answer = approval.as_ref().map(|approval| approval.state.name());
    let (state, next) = combined(&states, in_chain, answer);
    let deliveries = trace.deliveries.iter().take(MAX_LISTED);
    let mut facts = json!({
        "msg_id": msg_id,
        "state": state,
        "next": next,
        "deliveries": deliveries.clone().map(delivery_facts).collect::<Vec<_>>(),
    });
    if let Some(approval) = approval {
        facts["approval"] = approval_facts(&ApprovalSummary::from(&approval));
    }
    let failures: Vec<_> = deliveries.filter_map(failure_line).collect();
    Ok(match failures.is_empty() {
        true => ToolResult::new(facts),
        // What a provider answers can contain text of others.
        false => ToolResult::with_text(facts, Trust::Untrusted, failures.join("\n")),
    })
}

/// The state of a whole message, and what its sender does next. The state that needs most
/// attention counts. A message to local targets has no deliveries.
fn combined(
    states: &[SendState],
    in_chain: Option<LetterState>,
    approval: Option<ApprovalState>,
) -> (&'static str, &'static str) {
    let has = |state| states.contains(&state);
    match in_chain {
        Some(LetterState::Waiting | LetterState::Away | LetterState::Merged) => {
            return ("CHAIN", "passes the outbound chain; ask again later");
        }
        Some(LetterState::Trashed) => {
            return ("TRASHED", "a worker or a person has trashed it; it is not sent");
        }
        Some(LetterState::Dead) => {
            return ("DEAD", "the outbound chain failed; a person can retry it. Do not send again");
        }
        Some(LetterState::Done) | None => {}
    }
    if has(SendState::Held) || approval == Some(ApprovalState::Pending) {
        return ("HELD", HELD_NEXT);
    }
    if has(SendState::Uncertain) {
        return ("UNCERTAIN", "it may have arrived; a person decides. Do not send again");
    }
    if has(SendState::Dead) {
        return ("DEAD", "not delivered; a person can retry it. Do not send again");
    }
    if has(SendState::Wait) || has(SendState::Sending) || has(SendState::Failed) {
        return ("WAIT", "will be sent and retried by itself; ask again later");
    }
    let is_ended = |state: &SendState| matches!(state, SendState::Archived | SendState::Deleted);
    match approval {
        Some(ApprovalState::Replaced) => {
            ("REPLACED", "a person has sent an edited message instead; nothing to do")
        }
        Some(ApprovalState::Rejected | ApprovalState::Withdrawn | ApprovalState::Expired) => {
            ("ARCHIVED", "not sent; approval.state says why. Do not send again")
        }
        _ if states.iter().any(is_ended) => {
            ("ARCHIVED", "will not be sent any more; a person or you have decided so")
        }
        _ => ("SENT", "delivered; nothing to do"),
    }
}

fn delivery_facts(delivery: &Delivery) -> Value {
    let mut facts = json!({
        "record_id": delivery.id,
        "tunnel": delivery.plan.tunnel_did.tunnel().map(|tunnel| tunnel.to_string()),
        "state": delivery.sending.state.name().as_str(),
        "attempts": delivery.sending.attempts,
    });
    match &delivery.sending.state {
        SendStateData::Sent { delivered_at, .. } => {
            facts["delivered_at"] = delivered_at.rfc3339().into();
        }
        SendStateData::Failed { due, .. } => facts["next_attempt_at"] = due.rfc3339().into(),
        _ => {}
    }
    facts
}

/// The last error of a delivery, as its provider reported it.
fn failure_line(delivery: &Delivery) -> Option<String> {
    let why = match &delivery.sending.state {
        SendStateData::Failed { why, .. }
        | SendStateData::Dead { why }
        | SendStateData::Uncertain { why } => why,
        _ => return None,
    };
    let (Failure::Temporary { detail, .. }
    | Failure::Permanent { detail, .. }
    | Failure::Unknown { detail, .. }) = why;
    Some(format!("{}: {}", delivery.id, shorten(detail, MAX_FAILURE_CHARS)))
}

/// Shows the history of a message in a few lines, without its text.
pub async fn trace(
    context: ToolContext<'_>,
    args: TraceArguments,
) -> Result<ToolResult, ToolError> {
    let axum::Json(trace) = trace_of(context.api, &context.agent.caller, &args.id).await?;
    let views::trace::TraceView { msg_id, mail, deliveries, claims, letters, events, .. } = trace;
    let skipped = events.len().saturating_sub(MAX_EVENTS);
    let events = events.iter().skip(skipped);
    let events: Vec<_> = events.map(|event| json!({"at": event.at, "kind": event.kind})).collect();
    let claims = claims.iter().take(MAX_LISTED).map(|claim| {
        json!({
            "workspace": claim.workspace,
            "status": claim.status.as_str(),
            "agent": claim.agent_id,
            "attempts": claim.attempts,
        })
    });
    let deliveries = deliveries.iter().take(MAX_LISTED);
    let deliveries = deliveries.map(|it| json!({"record_id": it.record_id, "state": it.state}));
    let letters = letters.iter().take(MAX_LISTED);
    let letters = letters.map(|letter| json!({"id": letter.id, "state": letter.state}));
    Ok(ToolResult::new(json!({
        "msg_id": msg_id,
        "mail": mail.map(|entry| entry.id),
        "events": events,
        "earlier_events": skipped,
        "claims": claims.collect::<Vec<_>>(),
        "deliveries": deliveries.collect::<Vec<_>>(),
        "letters": letters.collect::<Vec<_>>(),
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_of_a_message_is_the_one_that_needs_attention() {
        use SendState::{Archived, Dead, Failed, Held, Sending, Sent, Uncertain, Wait};
        for (states, expected) in [
            (&[][..], "SENT"),
            (&[Sent, Sent][..], "SENT"),
            (&[Sent, Wait], "WAIT"),
            (&[Sending], "WAIT"),
            (&[Failed, Sent], "WAIT"),
            (&[Wait, Dead], "DEAD"),
            (&[Dead, Uncertain], "UNCERTAIN"),
            (&[Uncertain, Held], "HELD"),
            (&[Archived, Sent], "ARCHIVED"),
        ] {
            assert_eq!(combined(states, None, None).0, expected, "{states:?}");
        }
        for (in_chain, expected) in [
            (LetterState::Waiting, "CHAIN"),
            (LetterState::Away, "CHAIN"),
            (LetterState::Merged, "CHAIN"),
            (LetterState::Trashed, "TRASHED"),
            (LetterState::Dead, "DEAD"),
            (LetterState::Done, "SENT"),
        ] {
            assert_eq!(combined(&[], Some(in_chain), None).0, expected, "{in_chain:?}");
        }
        for (approval, states, expected) in [
            (ApprovalState::Pending, &[][..], "HELD"),
            (ApprovalState::Approved, &[], "SENT"),
            (ApprovalState::Approved, &[Wait], "WAIT"),
            (ApprovalState::Rejected, &[], "ARCHIVED"),
            (ApprovalState::Expired, &[], "ARCHIVED"),
            (ApprovalState::Withdrawn, &[Archived], "ARCHIVED"),
            (ApprovalState::Replaced, &[Archived], "REPLACED"),
        ] {
            assert_eq!(combined(states, None, Some(approval)).0, expected, "{approval:?}");
        }
    }
}
