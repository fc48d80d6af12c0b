//! Claims: claim_mail, renew_claim and finish_mail.

use monoco_core::claim::Claim;
use monoco_core::lease::{LeaseDuration, LeaseLost, LeaseProof};
use monoco_core::mail::MailId;
use monoco_mailbox::claim_info::ClaimInfo;
use monoco_store::{ClaimUpdate, StoreError};
use serde::Deserialize;
use serde_json::{Value, json};

use super::mails::{ClaimableMails, describe};
use super::{ToolContext, mail_id};
use crate::api::error::ApiError;
use crate::api::input;
use crate::mcp::result::{ToolError, ToolResult};

/// Mails that `next` tries when other agents are faster.
const MAX_CLAIM_ATTEMPTS: usize = 16;

/// Longest reason of a failure, in bytes. The rest is cut.
const MAX_REASON_BYTES: usize = 4_096;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimMailArgs {
    id: Option<String>,
    #[serde(default)]
    next: bool,
    lease_s: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewClaimArgs {
    id: String,
    epoch: u64,
    lease_s: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishMailArgs {
    id: String,
    epoch: u64,
    outcome: ClaimOutcome,
    reason: Option<String>,
}

/// How an agent ends a claim.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ClaimOutcome {
    Done,
    Retry,
    Fail,
}

/// Claims one Mail, or the oldest that can be claimed.
pub async fn claim(context: ToolContext<'_>, args: ClaimMailArgs) -> Result<ToolResult, ToolError> {
    let ClaimMailArgs { id, next, lease_s } = args;
    let term = lease_duration(context, lease_s)?;
    let claim = match id {
        Some(id) if !next => {
            let id = mail_id(context, &id).await?;
            take(context, &id, term).await.map_err(claim_error)?
        }
        None if next => take_next(context, term).await?,
        _ => return Err(ToolError::argument("id", "expected either id, or next: true")),
    };
    let store = &context.api.store;
    let row = store.mail(&claim.mail, &context.agent.workspace).await?;
    let (mut facts, text) = describe(context, &row).await?;
    merge(&mut facts, claim_facts(&claim));
    Ok(ToolResult::with_text(facts, row.entry.trust, text))
}

async fn take(
    context: ToolContext<'_>,
    id: &MailId,
    term: LeaseDuration,
) -> Result<Claim, StoreError> {
    let (api, agent) = (context.api, context.agent);
    let (retry, now) = (api.claims().retry, api.clock.now());
    api.store.claim(id, &agent.workspace, agent.holder.clone(), term, retry, now).await
}

async fn take_next(context: ToolContext<'_>, term: LeaseDuration) -> Result<Claim, ToolError> {
    let mut mails = ClaimableMails::open(context, None).await?;
    for _ in 0..MAX_CLAIM_ATTEMPTS {
        let Some(row) = mails.next(context).await? else { break };
        match take(context, &row.entry.id, term).await {
            // Another agent was faster.
            Err(
                StoreError::LeaseLost(_)
                | StoreError::NotDue(_)
                | StoreError::InvalidTransition(_)
                | StoreError::Conflict { .. },
            ) => {}
            result => return result.map_err(claim_error),
        }
    }
    Err(ToolError::new("no_mail", "no Mail can be claimed now; call wait_for_mail"))
}

/// Extends the claim of the agent.
pub async fn renew(
    context: ToolContext<'_>,
    args: RenewClaimArgs,
) -> Result<ToolResult, ToolError> {
    let RenewClaimArgs { id, epoch, lease_s } = args;
    let update = ClaimUpdate::Renew(lease_duration(context, lease_s)?);
    let id = mail_id(context, &id).await?;
    let claim = update_claim(context, &id, Some(epoch), update).await?;
    Ok(ToolResult::new(claim_facts(&claim)))
}

/// Ends the claim of the agent.
pub async fn finish(
    context: ToolContext<'_>,
    args: FinishMailArgs,
) -> Result<ToolResult, ToolError> {
    let FinishMailArgs { id, epoch, outcome, reason } = args;
    let mut reason = reason.unwrap_or_else(|| "no reason given".to_owned());
    reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
    let retry = context.api.claims().retry;
    let update = match outcome {
        ClaimOutcome::Done => ClaimUpdate::Complete,
        ClaimOutcome::Retry => ClaimUpdate::Fail { reason, retryable: true, retry },
        ClaimOutcome::Fail => ClaimUpdate::Fail { reason, retryable: false, retry },
    };
    let id = mail_id(context, &id).await?;
    let claim = update_claim(context, &id, Some(epoch), update).await?;
    Ok(ToolResult::new(claim_facts(&claim)))
}

/// Changes the claim of the agent. Without an epoch, only the name of the holder is checked.
pub async fn update_claim(
    context: ToolContext<'_>,
    id: &MailId,
    epoch: Option<u64>,
    update: ClaimUpdate,
) -> Result<Claim, ToolError> {
    let (api, agent) = (context.api, context.agent);
    // The store accepts an epoch from any caller that knows it, and epochs are easy to guess. The
    // epoch changes with the holder, so the claim that is checked here is the one that is changed.
    let claim = api.store.mail(id, &agent.workspace).await?.claim;
    let lease = claim.as_ref().and_then(|claim| claim.claiming.state.lease());
    agent.caller.check_lease(lease).map_err(|lost| claim_error(lost.into()))?;
    let proof = LeaseProof { epoch, holder: agent.holder.clone() };
    let now = api.clock.now();
    let updated = api.store.update_claim(id, &agent.workspace, proof, update, now).await;
    updated.map_err(claim_error)
}

/// The claim without the reason of its last failure, which another agent may have written.
pub fn claim_facts(claim: &Claim) -> Value {
    let ClaimInfo { id, workspace, status, epoch, attempts, expires_at, next_retry_at, .. } =
        claim.into();
    let mut facts = json!({
        "id": id,
        "workspace": workspace,
        "status": status.as_str(),
        "epoch": epoch,
        "attempts": attempts,
    });
    for (key, time) in [("expires_at", expires_at), ("next_retry_at", next_retry_at)] {
        if let Some(time) = time {
            facts[key] = time.rfc3339().into();
        }
    }
    facts
}

fn merge(facts: &mut Value, more: Value) {
    if let (Some(facts), Value::Object(more)) = (facts.as_object_mut(), more) {
        facts.extend(more);
    }
}

fn lease_duration(context: ToolContext<'_>, secs: Option<i64>) -> Result<LeaseDuration, ToolError> {
    Ok(match secs {
        Some(_) => input::lease_duration("lease_s", secs)?,
        None => context.api.claims().term,
    })
}

/// Says what the agent can do instead.
fn claim_error(error: StoreError) -> ToolError {
    let ToolError { code, message } = ApiError::of_claim(error.clone()).into();
    let message = match error {
        StoreError::LeaseLost(LeaseLost::Held(lease)) => {
            let (holder, until) = (lease.holder.as_str(), lease.until.rfc3339());
            format!("held by {holder} until {until}; take another")
        }
        StoreError::LeaseLost(LeaseLost::Stale { .. }) => {
            format!("{message}; your claim has ended: claim the Mail again before you go on")
        }
        StoreError::NotDue(at) => format!("not before {}; take another", at.rfc3339()),
        _ => match code {
            "completed" => "your workspace has completed this Mail; take another".to_owned(),
            "dead" => "this Mail is a dead letter, and a person decides; take another".to_owned(),
            "not_claimed" => "you do not hold this Mail; call claim_mail first".to_owned(),
            _ => message,
        },
    };
    ToolError { code, message }
}
