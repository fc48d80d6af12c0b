//! Dead letters of all kinds, and what an action on several of them has changed.

use std::collections::BTreeMap;

use monoco_core::dead_letter::{DeadLetterFacts, DeadLetterKind};
use monoco_core::time::Timestamp;
use monoco_mailbox::claim_info::ClaimInfo;
use serde::{Deserialize, Serialize};
#[cfg(test)]
use utoipa::ToSchema;

use super::boxes::RecordView;
use super::email::EmailTaskView;
use super::letters::LetterView;
#[cfg(test)]
use super::schemas::ClaimSchema;
use crate::courier::dead_drafts::DeadDraft;

/// Dead letters of all kinds.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Dead))]
pub struct DeadView {
    #[cfg_attr(test, schema(value_type = Vec<ClaimSchema>))]
    pub claims: Vec<ClaimInfo>,
    pub deliveries: Vec<RecordView>,
    pub letters: Vec<LetterView>,
    /// Drafts that could not be sent. A draft that was sent and failed is listed as a delivery
    /// or a letter
    pub drafts: Vec<DeadDraftView>,
    /// E-mail tasks that failed three times, or that cannot be retried. A delivery or letter of
    /// their forward that failed is listed as well
    #[serde(default)]
    pub tasks: Vec<EmailTaskView>,
    /// Ids of listed deliveries and letters that belong to the forward of a listed task, with the
    /// id of the task
    #[serde(default)]
    pub of_tasks: BTreeMap<String, String>,
}

/// A draft that could not be sent.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = DeadDraft))]
pub struct DeadDraftView {
    pub id: String,
    /// Name of the directory in `outbound/`
    pub provider: String,
    pub reason: String,
    /// Path of the file when the draft was listed
    pub file: String,
}

/// What an action on all dead letters of a filter has changed.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct DeadBatchResult {
    /// Whether nothing was changed, because only the number was asked for
    pub dry_run: bool,
    /// Dead letters that the filter selected, before the action
    pub matched: usize,
    pub changed: usize,
    /// Dead letters that could not be changed
    pub failed: usize,
    /// Ids of the first 10 of them, with the error
    pub errors: BTreeMap<String, String>,
    /// Whether more are left; repeat the request
    pub more: bool,
}

/// One dead claim, delivery, letter, draft or e-mail task, in a list of all kinds.
#[derive(Debug)]
pub struct DeadLetterRow {
    pub id: String,
    pub kind: DeadLetterKind,
    pub state: String,
    /// Workspace of a claim, target of a delivery, worker of a letter, provider of a draft,
    /// account of an e-mail task.
    pub of: Option<String>,
    pub tunnel: Option<String>,
    pub attempts: u32,
    pub cause: Option<String>,
    pub at: String,
    /// The listed e-mail task whose forward this delivery or letter belongs to.
    pub task: Option<String>,
}

impl From<DeadDraft> for DeadDraftView {
    fn from(draft: DeadDraft) -> Self {
        let DeadDraft { uid, provider, reason, file } = draft;
        Self { id: uid, provider, reason, file: file.display().to_string() }
    }
}

impl DeadView {
    /// One row per dead claim, delivery, letter, draft and e-mail task.
    pub fn rows(mut self) -> Vec<DeadLetterRow> {
        let mut of_tasks = std::mem::take(&mut self.of_tasks);
        let claims = self.claims.into_iter().map(|claim| DeadLetterRow {
            id: claim.id.to_string(),
            kind: DeadLetterKind::Claim,
            state: claim.status.as_str().to_owned(),
            of: Some(claim.workspace),
            tunnel: None,
            attempts: claim.attempts,
            cause: claim.reason,
            at: claim.updated_at.map(Timestamp::rfc3339).unwrap_or_default(),
            task: None,
        });
        let deliveries = self.deliveries.into_iter().map(|record| {
            let failure = record.delivery.as_ref().and_then(|delivery| delivery.failure.as_ref());
            DeadLetterRow {
                task: None,
                cause: failure.map(|failure| failure.detail().to_owned()),
                id: record.record_id,
                kind: DeadLetterKind::Delivery,
                state: record.state.into_owned(),
                of: record.delivery.map(|delivery| delivery.target),
                tunnel: record.owner.strip_prefix("did:msgtunnel:").map(str::to_owned),
                attempts: record.attempts,
                at: record.updated_at,
            }
        });
        let letters = self.letters.into_iter().map(|letter| DeadLetterRow {
            id: letter.id,
            kind: DeadLetterKind::Letter,
            state: letter.state.into_owned(),
            of: letter.worker,
            tunnel: letter.tunnel,
            attempts: letter.attempts,
            cause: letter.failure,
            at: letter.updated_at,
            task: None,
        });
        let drafts = self.drafts.into_iter().map(|draft| DeadLetterRow {
            kind: DeadLetterKind::Draft,
            state: "DEAD".to_owned(),
            of: Some(draft.provider),
            tunnel: None,
            attempts: 0,
            cause: Some(draft.reason),
            at: uid_time(&draft.id),
            id: draft.id,
            task: None,
        });
        let tasks = self.tasks.into_iter().map(|task| DeadLetterRow {
            id: task.id,
            kind: DeadLetterKind::Task,
            state: task.status.into_owned(),
            of: Some(task.account.clone()),
            tunnel: Some(task.account),
            attempts: task.attempts,
            cause: task.error,
            at: task.updated_at,
            task: None,
        });
        let mut rows: Vec<_> =
            claims.chain(deliveries).chain(letters).chain(drafts).chain(tasks).collect();
        for row in &mut rows {
            row.task = of_tasks.remove(&row.id);
        }
        rows
    }
}

impl DeadLetterRow {
    /// What a filter looks at.
    pub fn facts(&self) -> DeadLetterFacts<'_> {
        let is_claim = self.kind == DeadLetterKind::Claim;
        DeadLetterFacts {
            kind: self.kind,
            state: &self.state,
            tunnel: self.tunnel.as_deref(),
            workspace: self.of.as_deref().filter(|_| is_claim),
            cause: self.cause.as_deref(),
            is_part: self.task.is_some(),
        }
    }
}

/// Returns the time in the id of a draft, such as `20260206T205100_name_0123456789abcdef`.
fn uid_time(uid: &str) -> String {
    match (uid.get(..4), uid.get(4..6), uid.get(6..11), uid.get(11..13), uid.get(13..15)) {
        (Some(year), Some(month), Some(day_hour), Some(minute), Some(second)) => {
            format!("{year}-{month}-{day_hour}:{minute}:{second}Z")
        }
        _ => String::new(),
    }
}
