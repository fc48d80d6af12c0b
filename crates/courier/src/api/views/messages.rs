//! Results of dispatch and send, and stored bytes.

use std::borrow::Cow;

use monoco_core::approval::ApprovalState;
use monoco_core::delivery::SendState;
use monoco_store::{DispatchOutcome, DispatchResult, SendResult, TargetResult};
use serde::{Deserialize, Serialize};
#[cfg(test)]
use utoipa::ToSchema;

use super::approvals::ApprovalSummary;
use super::boxes::PlanView;

/// The result of dispatching one message.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct DispatchResponse {
    /// Line of the batch, from 1
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// Whether the message is in the boxes of its recipients, or in the inbound chain
    pub ok: bool,
    /// Why not: `blocked` or `stranger`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'static, str>>,
    pub msg_id: String,
    /// Whether the message was dispatched before; then nothing was written
    pub duplicate: bool,
    pub delivered: Vec<CreatedRecordView>,
    /// The letter that passes the inbound chain; the message is in no box before its end
    #[serde(skip_serializing_if = "Option::is_none")]
    pub letter: Option<String>,
}

/// A record that was created in a box.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct CreatedRecordView {
    pub owner: String,
    pub r#box: Cow<'static, str>,
    pub record_id: String,
}

/// The result of sending one message.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct SendResponse {
    /// Whether the message is queued for every target, in the outbound chain, or held for approval
    pub ok: bool,
    /// Why not; always `blocked_author`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'static, str>>,
    pub msg_id: String,
    /// Whether the message was sent before; then nothing was written
    pub duplicate: bool,
    pub deliveries: Vec<TargetResultView>,
    /// The letter that passes the outbound chain; there are no deliveries before its end
    #[serde(skip_serializing_if = "Option::is_none")]
    pub letter: Option<String>,
    /// `WAIT`: queued; `HELD`: waits for approval. Absent in the chain and after that
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Cow<'static, str>>,
    /// The approval that the message waits for, or that ended without sending it
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalSummary>,
    /// The halts that apply now, such as `all` or `tunnel:lark`; queued messages wait for their end
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub halted: Vec<String>,
}

/// How one target gets the message.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct TargetResultView {
    pub target: String,
    /// The tunnel; null for a target with an INBOX in this hub
    pub tunnel: Option<String>,
    /// The delivery, or the record in the target's INBOX; null when the target has blocked
    /// the author
    pub record_id: Option<String>,
    pub plan: Option<PlanView>,
}

/// The id and size of stored bytes.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct BlobView {
    /// `sha256:` and the hash
    pub id: String,
    pub size: usize,
}

impl DispatchResponse {
    pub fn new(result: DispatchResult, line: Option<usize>) -> Self {
        let mut response = Self {
            line,
            ok: true,
            reason: None,
            msg_id: result.msg_id.to_string(),
            duplicate: false,
            delivered: Vec::new(),
            letter: None,
        };
        let reason = match result.outcome {
            DispatchOutcome::Blocked => Some("blocked"),
            DispatchOutcome::Dropped => Some("stranger"),
            DispatchOutcome::Delivered { duplicate, records } => {
                response.duplicate = duplicate;
                let delivered = records.into_iter().map(|record| CreatedRecordView {
                    owner: record.owner.into(),
                    r#box: record.box_kind.as_str().into(),
                    record_id: record.record_id.to_string(),
                });
                response.delivered = delivered.collect();
                None
            }
            DispatchOutcome::Chained { letter, duplicate } => {
                response.duplicate = duplicate;
                response.letter = Some(letter.to_string());
                None
            }
        };
        response.ok = reason.is_none();
        response.reason = reason.map(Into::into);
        response
    }
}

impl From<SendResult> for SendResponse {
    fn from(result: SendResult) -> Self {
        let response = |msg_id: &monoco_core::object::ObjId, duplicate| Self {
            ok: true,
            reason: None,
            msg_id: msg_id.to_string(),
            duplicate,
            deliveries: Vec::new(),
            letter: None,
            state: None,
            approval: None,
            halted: Vec::new(),
        };
        let views = |ways: Vec<TargetResult>| {
            let view = |target: TargetResult| TargetResultView {
                target: target.target.into(),
                tunnel: target.plan.as_ref().map(|plan| plan.tunnel_did.to_string()),
                record_id: target.record_id.map(|id| id.to_string()),
                plan: target.plan.map(Into::into),
            };
            ways.into_iter().map(view).collect()
        };
        match result {
            SendResult::BlockedAuthor { msg_id } => {
                let reason = Some("blocked_author".into());
                Self { ok: false, reason, ..response(&msg_id, false) }
            }
            SendResult::Chained { msg_id, letter, duplicate } => {
                Self { letter: Some(letter.to_string()), ..response(&msg_id, duplicate) }
            }
            SendResult::Queued { msg_id, duplicate, ways } => {
                let state = (!duplicate).then(|| SendState::Wait.as_str().into());
                Self { deliveries: views(ways), state, ..response(&msg_id, duplicate) }
            }
            SendResult::Held { msg_id, duplicate, ways, approval } => {
                let is_pending = approval.state.name() == ApprovalState::Pending;
                let state = is_pending.then(|| SendState::Held.as_str().into());
                let approval = Some(ApprovalSummary::from(&*approval));
                let deliveries = views(ways);
                Self { deliveries, state, approval, ..response(&msg_id, duplicate) }
            }
        }
    }
}
