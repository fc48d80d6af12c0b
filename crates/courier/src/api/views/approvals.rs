//! Approvals, decisions of the policy, and halts.

use std::borrow::Cow;

use monoco_core::approval::policy::RuleCheck;
use monoco_core::approval::{Approval, ApprovalStateData, SendOrigin};
use monoco_core::halt::Halt;
use monoco_core::time::Timestamp;
use monoco_store::HaltCounts;
use serde::{Deserialize, Serialize};
#[cfg(test)]
use utoipa::ToSchema;

/// The approval of a message, in the result of a send.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct ApprovalSummary {
    /// `apr_` and a number
    pub id: String,
    /// `PENDING`, `APPROVED`, `REPLACED`, `REJECTED`, `WITHDRAWN` or `EXPIRED`
    pub state: Cow<'static, str>,
    /// The rule that held the message
    pub rule: String,
    /// What the rule found
    pub why: String,
    /// Until when it can be answered; only while it is PENDING
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// `owner`, the name of a token, or the DID of the chat account that answered
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_by: Option<String>,
    /// When it was answered or has expired
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_at: Option<String>,
    /// Why it was rejected
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The edited message that was sent instead
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<String>,
}

/// A message that waits, or has waited, for approval.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct ApprovalView {
    #[serde(flatten)]
    pub approval: ApprovalSummary,
    pub msg_id: String,
    pub author: String,
    /// On whose behalf it is sent: `owner` or `agent`
    pub by: Cow<'static, str>,
    /// The name of the agent's token
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// DIDs of all targets
    pub to: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The whole text; in a list, at most its first 200 characters
    pub text: Option<String>,
    /// Earliest time to send
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<String>,
    /// Whether the agent had read a Mail of a stranger in the 24 h before; only of one approval
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_untrusted: Option<bool>,
    pub created_at: String,
    /// Number of changes; send it with an answer to answer exactly what was shown
    pub revision: i64,
}

/// A page of approvals.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct ApprovalPage {
    pub approvals: Vec<ApprovalView>,
    pub next_cursor: Option<String>,
}

/// The result of one rule for one message.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct RuleCheckView {
    pub rule: String,
    pub matched: bool,
    /// What the conditions found
    pub why: String,
}

/// What the policy decided about a message, and what each rule of today says.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct DecisionView {
    pub msg_id: String,
    /// `send` or `hold`, when the message was posted
    pub decision: Cow<'static, str>,
    /// The rule that decided
    pub rule: String,
    pub at: String,
    /// `owner`, or `agent` and its name
    pub by: String,
    /// The current rules, in order, with the facts of that time
    pub rules: Vec<RuleCheckView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalSummary>,
}

/// A message that another policy decides differently.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct ReplayedDecision {
    pub msg_id: String,
    pub at: String,
    /// `owner`, or `agent` and its name
    pub by: String,
    /// `send` or `hold`, when the message was posted
    pub was: Cow<'static, str>,
    /// `send`, `hold` or `refuse`, by the policy in the config file
    pub now: Cow<'static, str>,
    /// The rule that decides now
    pub rule: String,
    /// What the rule finds
    pub why: String,
}

/// What the policy in the config file would have decided.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct PolicyReplay {
    /// Number of decisions that were replayed
    pub decisions: usize,
    /// Decisions that were not replayed, because the text was erased
    pub skipped: usize,
    /// Whether there are more decisions than one replay reads
    pub truncated: bool,
    pub sent: usize,
    pub held: usize,
    pub refused: usize,
    /// The decisions that differ
    pub changed: Vec<ReplayedDecision>,
}

/// A halt that applies now.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct HaltView {
    /// `all`, `agent:NAME` or `tunnel:ID`
    pub scope: String,
    /// Whether writes of agents are rejected
    pub lock: bool,
    pub by: String,
    pub at: String,
}

/// All halts that apply now.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct HaltList {
    pub halts: Vec<HaltView>,
}

/// The result of a halt or of its end.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct HaltResult {
    /// `all`, `agent:NAME` or `tunnel:ID`
    pub scope: String,
    pub halted: bool,
    /// Attempts that are in progress and cannot be recalled
    pub sending: i64,
    /// Deliveries in the scope that wait in the queue; those of one agent are not counted
    pub waiting: i64,
    /// Messages that wait for approval, of all agents
    pub pending_approvals: i64,
    /// All halts that apply now
    pub halts: Vec<HaltView>,
}

impl From<&Approval> for ApprovalSummary {
    fn from(approval: &Approval) -> Self {
        let state = &approval.state;
        let (expires_at, ended_at) = match state {
            ApprovalStateData::Pending { expires_at } => (Some(expires_at.rfc3339()), None),
            ApprovalStateData::Expired { at } => (None, Some(*at)),
            _ => (None, None),
        };
        let answered_at = state.answer().map(|answer| answer.at).or(ended_at);
        Self {
            id: approval.id.to_string(),
            state: state.name().as_str().into(),
            rule: approval.rule.clone(),
            why: approval.why.clone(),
            expires_at,
            answered_by: state.answer().map(|answer| answer.by.clone()),
            answered_at: answered_at.map(Timestamp::rfc3339),
            reason: match state {
                ApprovalStateData::Rejected { reason, .. } => reason.clone(),
                _ => None,
            },
            replaced_by: match state {
                ApprovalStateData::Replaced { replaced_by, .. } => Some(replaced_by.to_string()),
                _ => None,
            },
        }
    }
}

impl ApprovalView {
    /// The view of an approval with the text that is shown.
    pub fn new(approval: &Approval, title: Option<String>, text: Option<String>) -> Self {
        let (by, agent) = match &approval.origin {
            SendOrigin::Agent { name, .. } => ("agent", Some(name.clone())),
            _ => ("owner", None),
        };
        Self {
            approval: approval.into(),
            msg_id: approval.msg_id.to_string(),
            author: approval.author.to_string(),
            by: by.into(),
            agent,
            to: approval.targets.iter().map(|target| target.target.to_string()).collect(),
            title,
            text,
            not_before: approval.not_before.map(Timestamp::rfc3339),
            after_untrusted: None,
            created_at: approval.created_at.rfc3339(),
            revision: approval.revision,
        }
    }
}

impl From<RuleCheck> for RuleCheckView {
    fn from(RuleCheck { rule, matched, why }: RuleCheck) -> Self {
        Self { rule, matched, why }
    }
}

impl From<&Halt> for HaltView {
    fn from(Halt { scope, lock, by, at }: &Halt) -> Self {
        Self { scope: scope.to_string(), lock: *lock, by: by.clone(), at: at.rfc3339() }
    }
}

impl HaltResult {
    pub fn new(scope: String, halted: bool, counts: HaltCounts, halts: Vec<HaltView>) -> Self {
        let HaltCounts { sending, waiting, pending } = counts;
        Self { scope, halted, sending, waiting, pending_approvals: pending, halts }
    }
}
