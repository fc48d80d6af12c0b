//! What an agent has done.

use std::borrow::Cow;

use monoco_core::approval::Approval;
use monoco_core::token::AgentRead;
use monoco_store::StoredDecision;
use serde::{Deserialize, Serialize};
#[cfg(test)]
use utoipa::ToSchema;

use super::approvals::ApprovalSummary;

/// A Mail that an agent has read, or a message that it has posted.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = AgentActivity))]
pub struct AgentActivityView {
    pub at: String,
    /// `read`: it read a Mail for the first time. `send`: it posted a message, which was queued.
    /// `hold`: it posted a message, which waited for approval
    pub kind: Cow<'static, str>,
    /// The Mail that it read
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mail_id: Option<String>,
    /// The message that it posted
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub msg_id: Option<String>,
    /// Trust of the Mail that it read, or that it answered: `known` or `untrusted`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<Cow<'static, str>>,
    /// The author or chat of the Mail, or the targets of the message
    pub with: Vec<String>,
    /// The rule that decided about the message
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The approval of a message that was held
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalSummary>,
}

/// What an agent has done since a time, newest first.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct AgentActivityList {
    pub agent: String,
    pub since: String,
    pub activities: Vec<AgentActivityView>,
    /// Whether older ones since that time were left out
    pub truncated: bool,
}

impl AgentActivityView {
    pub fn of_read(read: &AgentRead) -> Self {
        Self {
            at: read.at.rfc3339(),
            kind: "read".into(),
            mail_id: Some(read.mail.to_string()),
            msg_id: None,
            trust: Some(read.trust.as_str().into()),
            with: vec![read.answer_to.to_string()],
            rule: None,
            approval: None,
        }
    }

    pub fn of_decision(decision: StoredDecision, approval: Option<&Approval>) -> Self {
        let targets = decision.facts.targets.iter().map(|fact| fact.target.to_string());
        Self {
            at: decision.at.rfc3339(),
            kind: if decision.held { "hold" } else { "send" }.into(),
            mail_id: None,
            msg_id: Some(decision.msg_id.to_string()),
            trust: decision.facts.reply.map(|trust| trust.as_str().into()),
            with: targets.collect(),
            rule: Some(decision.rule),
            approval: approval.map(ApprovalSummary::from),
        }
    }
}
