//! Claims: the work of workspaces on Mails.

use async_trait::async_trait;
use monoco_core::claim::{Claim, Workspace};
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::mail::MailId;
use monoco_core::retry::RetryPolicy;
use monoco_core::time::Timestamp;

use crate::StoreResult;

/// A change of a held claim by its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimUpdate {
    Renew(LeaseDuration),
    /// The Mail was processed.
    Complete,
    /// The Mail could not be processed.
    Fail {
        reason: String,
        retryable: bool,
        retry: RetryPolicy,
    },
}

/// Leases Mails to the agents of workspaces.
#[async_trait]
pub trait ClaimStore: Send + Sync {
    /// Claims a Mail for a workspace.
    ///
    /// # Errors
    ///
    /// `StoreError::Missing` for an unknown Mail, `StoreError::LeaseLost` when another
    /// agent of the workspace holds it, `StoreError::NotDue` before its next attempt,
    /// `StoreError::InvalidTransition` when the workspace has completed it.
    async fn claim(
        &self,
        id: &MailId,
        workspace: &Workspace,
        holder: Holder,
        term: LeaseDuration,
        retry: RetryPolicy,
        now: Timestamp,
    ) -> StoreResult<Claim>;

    /// Renews, completes or fails a held claim.
    async fn update_claim(
        &self,
        id: &MailId,
        workspace: &Workspace,
        proof: LeaseProof,
        update: ClaimUpdate,
        now: Timestamp,
    ) -> StoreResult<Claim>;

    /// Ends at most `limit` claims whose leases have expired. Returns their number.
    async fn expire_claims(
        &self,
        retry: RetryPolicy,
        limit: usize,
        now: Timestamp,
    ) -> StoreResult<usize>;

    /// Changes a dead claim to NEW on behalf of an operator.
    async fn retry_claim(
        &self,
        id: &MailId,
        workspace: &Workspace,
        now: Timestamp,
    ) -> StoreResult<Claim>;

    /// Completes a dead claim without processing it, on behalf of an operator.
    async fn drop_claim(
        &self,
        id: &MailId,
        workspace: &Workspace,
        now: Timestamp,
    ) -> StoreResult<Claim>;

    /// Lists dead claims, oldest first.
    async fn dead_claims(&self, limit: usize) -> StoreResult<Vec<Claim>>;

    /// Lists claims in state NEW or CLAIMED, oldest first.
    async fn open_claims(&self, limit: usize) -> StoreResult<Vec<Claim>>;

    /// Lists the claims of all workspaces on one Mail.
    async fn claims(&self, id: &MailId) -> StoreResult<Vec<Claim>>;
}
