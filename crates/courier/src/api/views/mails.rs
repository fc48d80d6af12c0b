//! Mails, and the claims of workspaces on them.

use std::borrow::Cow;

use monoco_core::claim::ClaimState;
use monoco_core::mail::MailIndexEntry;
use monoco_mailbox::claim_info::ClaimInfo;
use monoco_store::MailRow;
use serde::{Deserialize, Serialize};
use serde_json::Value;
#[cfg(test)]
use utoipa::ToSchema;

#[cfg(test)]
use super::schemas::{ClaimSchema, MailIndexEntrySchema, MsgObjectSchema};
use crate::courier::mailbox_check::RebuildResult;

/// A Mail with its status for one workspace.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Mail))]
pub struct MailView {
    #[serde(flatten)]
    #[cfg_attr(test, schema(value_type = MailIndexEntrySchema))]
    pub entry: MailIndexEntry,
    /// Directory of the file: `inbound`, `archive`, `deadletter` or `gone`
    pub location: Cow<'static, str>,
    /// NEW, CLAIMED, COMPLETED or DEADLETTER, for this workspace
    pub status: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(value_type = Option<ClaimSchema>))]
    pub claim: Option<ClaimInfo>,
}

/// A page of Mails.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Mails))]
pub struct MailPage {
    pub messages: Vec<MailView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A page of the index of Mails.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct MailIndexPage {
    /// Changes when lines that were read before have changed
    pub generation: String,
    #[cfg_attr(test, schema(value_type = Vec<MailIndexEntrySchema>))]
    pub entries: Vec<MailIndexEntry>,
    /// `after` of the next page
    pub last: i64,
    /// Whether another page follows now
    pub has_more: bool,
}

/// Files of several Mails.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = MailFiles))]
pub struct MailFileList {
    pub files: Vec<MailFileView>,
}

/// The file of one Mail.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = MailFile))]
pub struct MailFileView {
    /// Id of the Mail
    pub id: String,
    /// Markdown with a YAML front matter; absent when there is a `code`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Why there is no file: `not_found`, `erased` or `damaged`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Cow<'static, str>>,
}

/// One Mail with its text.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = MailDetail))]
pub struct MailDetailView {
    #[serde(flatten)]
    pub mail: MailView,
    /// The claims of all workspaces
    #[cfg_attr(test, schema(value_type = Vec<ClaimSchema>))]
    pub claims: Vec<ClaimInfo>,
    /// The MsgObject; null when it is damaged
    #[cfg_attr(test, schema(value_type = Option<MsgObjectSchema>))]
    pub msg: Option<Value>,
}

/// Claims of one workspace.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Claims))]
pub struct ClaimList {
    #[cfg_attr(test, schema(value_type = Vec<ClaimSchema>))]
    pub claims: Vec<ClaimInfo>,
}

/// What a rebuild of the mailbox changed.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = RebuildResult))]
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
            location: row.location.as_str().into(),
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
