//! Mails, the claims of workspaces on them, and dead letters.

use std::borrow::Cow;

use monoco_core::claim::{Claim, ClaimState, ClaimStateData};
use monoco_core::mail::MailIndexEntry;
use monoco_store::MailRow;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::boxes::RecordView;
use super::letters::LetterView;
use crate::courier::mailbox_check::RebuildResult;

/// A Mail with its status for one workspace.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Mail)]
pub struct MailView {
    /// `id`, `msg_id`, `tunnel`, `session`, `participants`, `received_at`, `title`,
    /// `binding`, `trust`, `messages`, `preview`, `file`, `sha256`
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub entry: MailIndexEntry,
    /// Directory of the file: `inbound`, `archive`, `deadletter` or `gone`
    pub place: Cow<'static, str>,
    /// NEW, CLAIMED, COMPLETED or DEADLETTER, for this workspace
    pub status: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimView>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Mails)]
pub struct MailPage {
    pub messages: Vec<MailView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// One Mail with its text.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = MailDetail)]
pub struct MailDetailView {
    #[serde(flatten)]
    pub mail: MailView,
    /// The claims of all workspaces
    pub claims: Vec<ClaimView>,
    /// The MsgObject; null when it is damaged
    #[schema(value_type = Option<Object>)]
    pub msg: Option<Value>,
}

/// The claim of one workspace on one Mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Claim)]
pub struct ClaimView {
    /// Id of the Mail
    pub id: String,
    pub workspace: String,
    /// NEW, CLAIMED, COMPLETED or DEADLETTER
    pub status: Cow<'static, str>,
    /// The agent that holds the Mail, while it is CLAIMED
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Number of the current claim; send it with renew, complete and fail
    pub epoch: u64,
    /// Number of claims so far
    pub attempts: u32,
    /// Number of claims after the first
    pub retry_count: u32,
    /// When the claim expires
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// When the Mail can be claimed again
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_retry_at: Option<String>,
    /// Why the last attempt failed
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub updated_at: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Claims)]
pub struct ClaimList {
    pub claims: Vec<ClaimView>,
}

/// All dead letters.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Dead)]
pub struct DeadView {
    pub claims: Vec<ClaimView>,
    pub deliveries: Vec<RecordView>,
    pub letters: Vec<LetterView>,
}

/// What a rebuild of the mailbox changed.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = RebuildResult)]
pub struct RebuildView {
    /// Number of Mails in the store
    pub mails: usize,
    /// Files that were missing or changed, and were written again
    pub written: usize,
    /// Files that were in the wrong directory
    pub moved: usize,
    /// Files of Mails that have no file there
    pub removed: usize,
    /// Mails that cannot be written; the log has the reason
    pub bad: usize,
    /// Files of other programs; they are not changed
    pub foreign: usize,
}

impl From<MailRow> for MailView {
    fn from(row: MailRow) -> Self {
        let state = row.claim.as_ref().map_or(ClaimState::New, |it| it.claiming.state.name());
        Self {
            place: row.place.as_str().into(),
            status: state.as_str().into(),
            claim: row.claim.as_ref().map(Into::into),
            entry: row.entry,
        }
    }
}

impl From<&Claim> for ClaimView {
    fn from(claim: &Claim) -> Self {
        let (agent_id, expires_at, next_retry_at) = match &claim.claiming.state {
            ClaimStateData::Claimed(lease) => {
                (Some(lease.holder.as_str().to_owned()), Some(lease.until.rfc3339()), None)
            }
            ClaimStateData::New { due } => (None, None, Some(due.rfc3339())),
            ClaimStateData::Completed | ClaimStateData::Deadletter { .. } => (None, None, None),
        };
        Self {
            id: claim.mail.to_string(),
            workspace: claim.workspace.as_str().to_owned(),
            status: claim.claiming.state.name().as_str().into(),
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

impl From<RebuildResult> for RebuildView {
    fn from(result: RebuildResult) -> Self {
        let RebuildResult { mails, written, moved, removed, bad, foreign } = result;
        Self { mails, written, moved, removed, bad, foreign }
    }
}
