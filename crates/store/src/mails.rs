//! Mails: merged inbound messages that workspaces can claim.

use async_trait::async_trait;
use monoco_core::claim::{Claim, ClaimState, MailLocation, Workspace};
use monoco_core::did::Did;
use monoco_core::mail::{MailId, MailIndexEntry};
use monoco_core::merge::BuiltMail;
use monoco_core::time::Timestamp;

use crate::{Page, PageRequest, StoreResult};

/// A Mail with the claim of one workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailRow {
    pub entry: MailIndexEntry,
    /// The directory that its file belongs in.
    pub location: MailLocation,
    /// The claim of the requested workspace; `None` when it never claimed the Mail.
    pub claim: Option<Claim>,
}

/// Filter for a list of Mails.
#[derive(Clone, Debug)]
pub struct MailQuery {
    /// The workspace whose claims are shown.
    pub workspace: Workspace,
    /// Only Mails whose claim has this state.
    pub status: Option<ClaimState>,
    pub provider: Option<String>,
    /// Only Mails that were merged at this time or later.
    pub since: Option<Timestamp>,
    /// Only Mails in `inbound` that no workspace has ever claimed.
    pub unclaimed: bool,
}

/// What became of a Mail that was read from its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreMailResult {
    /// The store has the Mail; nothing was changed.
    Known,
    /// The store had the Mail, but a row or its object was damaged.
    Repaired,
    /// The store did not have the Mail.
    Restored,
    /// The author is blocked or dropped; nothing was stored.
    Rejected,
}

#[async_trait]
pub trait MailStore: Send + Sync {
    /// Returns one Mail with the claim of `workspace`.
    async fn mail(&self, id: &MailId, workspace: &Workspace) -> StoreResult<MailRow>;

    /// Lists Mails by number, except held ones.
    async fn mails(&self, query: MailQuery, page: PageRequest) -> StoreResult<Page<MailRow>>;

    /// Returns those of `ids` that the store does not know.
    async fn unknown_mails(&self, ids: Vec<MailId>) -> StoreResult<Vec<MailId>>;

    /// Stores a Mail again that was read from its file in `location`, with its object and its
    /// records. A Mail in the archive was processed, so its record is READED. Damaged rows of
    /// a known Mail are written again.
    async fn restore_mail(
        &self,
        mail: BuiltMail,
        location: MailLocation,
        owner: &Did,
        now: Timestamp,
    ) -> StoreResult<RestoreMailResult>;

    /// Gives new Mails only numbers above `number`, because readers have seen lower ones.
    async fn reserve_mail_numbers(&self, number: i64) -> StoreResult<()>;
}
