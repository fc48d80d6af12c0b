//! Mails, the claims of workspaces on them, and dead letters.

use std::borrow::Cow;

use monoco_core::claim::ClaimState;
use monoco_core::mail::MailIndexEntry;
use monoco_mailbox::claim_info::ClaimInfo;
use monoco_store::MailRow;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::boxes::RecordView;
use super::letters::LetterView;
use crate::courier::dead_drafts::DeadDraft;
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
    #[schema(value_type = Option<ClaimSchema>)]
    pub claim: Option<ClaimInfo>,
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
    #[schema(value_type = Vec<ClaimSchema>)]
    pub claims: Vec<ClaimInfo>,
    /// The MsgObject; null when it is damaged
    #[schema(value_type = Option<Object>)]
    pub msg: Option<Value>,
}

/// Describes [`ClaimInfo`] in the OpenAPI document.
#[derive(ToSchema)]
#[schema(as = Claim)]
#[expect(dead_code, reason = "only documents ClaimInfo, whose crate has no schemas")]
pub struct ClaimSchema {
    /// Id of the Mail
    id: String,
    workspace: String,
    /// NEW, CLAIMED, COMPLETED or DEADLETTER
    status: String,
    /// The agent that holds the Mail, while it is CLAIMED
    agent_id: Option<String>,
    /// Number of the current claim; send it with renew, complete and fail
    epoch: u64,
    /// Number of claims so far
    attempts: u32,
    /// Number of claims after the first
    retry_count: u32,
    /// When the claim expires
    expires_at: Option<String>,
    /// When the Mail can be claimed again
    next_retry_at: Option<String>,
    /// Why the last attempt failed
    reason: Option<String>,
    updated_at: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Claims)]
pub struct ClaimList {
    #[schema(value_type = Vec<ClaimSchema>)]
    pub claims: Vec<ClaimInfo>,
}

/// Dead letters of all kinds.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Dead)]
pub struct DeadView {
    #[schema(value_type = Vec<ClaimSchema>)]
    pub claims: Vec<ClaimInfo>,
    pub deliveries: Vec<RecordView>,
    pub letters: Vec<LetterView>,
    /// Drafts that could not be sent. A draft that was sent and failed is listed as a delivery
    /// or a letter
    pub drafts: Vec<DeadDraftView>,
}

/// A draft that could not be sent.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = DeadDraft)]
pub struct DeadDraftView {
    pub id: String,
    /// Name of the directory in `outbound/`
    pub provider: String,
    pub reason: String,
    /// Path of the file when the draft was listed
    pub file: String,
}

impl From<DeadDraft> for DeadDraftView {
    fn from(draft: DeadDraft) -> Self {
        let DeadDraft { uid, provider, reason, file } = draft;
        Self { id: uid, provider, reason, file: file.display().to_string() }
    }
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
    /// Mails that the store had lost, and that were restored from their files
    pub restored: usize,
    /// Mails in the index or in files that the store does not know; the log has the reasons
    pub lost: usize,
}

impl From<MailRow> for MailView {
    fn from(row: MailRow) -> Self {
        let state = row.claim.as_ref().map_or(ClaimState::New, |it| it.claiming.state.name());
        Self {
            place: row.location.as_str().into(),
            status: state.as_str().into(),
            claim: row.claim.as_ref().map(Into::into),
            entry: row.entry,
        }
    }
}

impl From<RebuildResult> for RebuildView {
    fn from(result: RebuildResult) -> Self {
        let RebuildResult { mails, written, moved, removed, bad, foreign, restored, lost } = result;
        Self { mails, written, moved, removed, bad, foreign, restored, lost }
    }
}
