//! `.state/locks.json`: the live claims, for whoever reads files.

use monoco_core::claim::{Claim, Hold};
use serde::Serialize;
use utoipa::ToSchema;

/// A claim as the API and `locks.json` show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Claim)]
pub struct ClaimView {
    /// The Mail
    pub id: String,
    pub workspace: String,
    /// NEW, CLAIMED, COMPLETED or DEADLETTER
    pub status: &'static str,
    /// Who has it, while it is CLAIMED
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Which claim is the current one; send it back with what you do
    pub epoch: u64,
    /// How often it was claimed
    pub attempts: u32,
    /// How often it was claimed again
    pub retry_count: u32,
    /// Until when it is held
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// When it may be claimed again
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_retry_at: Option<String>,
    /// Why it last failed
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub updated_at: String,
}

impl From<&Claim> for ClaimView {
    fn from(claim: &Claim) -> Self {
        let (agent_id, expires_at, next_retry_at) = match &claim.claiming.state {
            Hold::Claimed(lease) => {
                (Some(lease.holder.as_str().to_owned()), Some(lease.until.rfc3339()), None)
            }
            Hold::New { due } => (None, None, Some(due.rfc3339())),
            Hold::Completed | Hold::Deadletter { .. } => (None, None, None),
        };
        Self {
            id: claim.mail.to_string(),
            workspace: claim.workspace.as_str().to_owned(),
            status: claim.claiming.state.name().as_str(),
            agent_id,
            epoch: claim.claiming.epoch,
            attempts: claim.claiming.attempts,
            retry_count: claim.claiming.attempts.saturating_sub(1),
            expires_at,
            next_retry_at,
            reason: claim.reason.clone(),
            updated_at: claim.updated_at.rfc3339(),
        }
    }
}
