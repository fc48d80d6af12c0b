//! Approvals: messages that wait for a person before they are sent, and the approval state
//! machine.
//!
//! ```text
//!              approve
//!    PENDING ──────────▶ APPROVED    its deliveries: HELD → WAIT
//!       ├──── edit ────▶ REPLACED    another message is sent; the held one is ARCHIVED
//!       ├──── reject ──▶ REJECTED  ┐
//!       ├──── withdraw ▶ WITHDRAWN ├ its deliveries: HELD → ARCHIVED
//!       └──── expire ──▶ EXPIRED   ┘
//! ```
//!
//! [`policy`] decides which messages are held. An approval belongs to one message and all of its
//! targets: to the hash of the message and to the plans that were resolved when it was posted.
//! The first answer counts. The same answer again changes nothing, and another one is rejected
//! with the answer that counts. Nothing is sent because time has passed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::contact::DeliveryPlan;
use crate::did::Did;
use crate::names::{text_conversions, variant_names};
use crate::object::ObjId;
use crate::time::Timestamp;

pub mod chat_answer;
pub mod policy;

/// Longest reason of a rejection, in bytes. The rest is cut.
pub const MAX_REASON_BYTES: usize = 500;

/// The id of an approval: its number in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ApprovalId(pub i64);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid approval id {0:?}; expected apr_ and a number, such as apr_17")]
pub struct InvalidApprovalId(String);

/// On whose behalf a message is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "lowercase")]
pub enum SendOrigin {
    /// The owner: with the courier's own token, from the command line, or as a draft.
    #[default]
    Owner,
    /// An agent with a token of its own.
    Agent {
        /// The name of its token.
        name: String,
        /// The DID that its messages are from.
        did: Did,
    },
    /// A forwarding rule of an e-mail tunnel. The owner has configured it, so it is not held.
    Forward,
    /// The courier itself: a question about an approval, or the answer to it. It is not held.
    Courier,
}

/// The state of an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ApprovalState {
    /// Waits for an answer until it expires.
    Pending,
    /// The message is sent.
    Approved,
    /// An edited message was sent instead.
    Replaced,
    Rejected,
    /// The sender of the message took it back.
    Withdrawn,
    /// It was not answered in time.
    Expired,
}

/// Who answered an approval, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalAnswer {
    /// `owner`, the name of a token, or the DID of the account that answered in a chat.
    pub by: String,
    pub at: Timestamp,
}

/// The state of an approval with its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalStateData {
    Pending {
        expires_at: Timestamp,
    },
    Approved(ApprovalAnswer),
    Replaced {
        answer: ApprovalAnswer,
        /// The id of the edited message.
        replaced_by: ObjId,
    },
    Rejected {
        answer: ApprovalAnswer,
        reason: Option<String>,
    },
    Withdrawn(ApprovalAnswer),
    Expired {
        at: Timestamp,
    },
}

/// An answer to a pending approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalStep {
    Approve,
    /// Sends another message in place of the held one.
    Edit {
        replaced_by: ObjId,
    },
    Reject {
        reason: Option<String>,
    },
    Withdraw,
}

/// The approval has another answer already. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the approval is {state} already, {}at {}; nothing was changed", by_whom(.by.as_deref()), .at.rfc3339())]
pub struct AlreadyAnswered {
    pub state: &'static str,
    /// Who gave the answer that counts; `None` when the approval has expired.
    pub by: Option<String>,
    pub at: Timestamp,
}

fn by_whom(name: Option<&str>) -> String {
    name.map(|name| format!("by {name} ")).unwrap_or_default()
}

/// One target of a held message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalTarget {
    pub target: Did,
    /// `None` for a local target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<DeliveryPlan>,
}

/// One message that is held until a person answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approval {
    pub id: ApprovalId,
    pub msg_id: ObjId,
    pub author: Did,
    pub origin: SendOrigin,
    /// All targets of the message, as they were resolved when it was posted.
    pub targets: Vec<ApprovalTarget>,
    /// The rule that held it.
    pub rule: String,
    /// What the rule found.
    pub why: String,
    /// The first attempt is not made before this time.
    pub not_before: Option<Timestamp>,
    pub state: ApprovalStateData,
    /// Increases with every change; updates compare and swap it.
    pub revision: i64,
    pub created_at: Timestamp,
}

impl ApprovalStateData {
    /// The state without its data.
    pub const fn name(&self) -> ApprovalState {
        match self {
            Self::Pending { .. } => ApprovalState::Pending,
            Self::Approved(_) => ApprovalState::Approved,
            Self::Replaced { .. } => ApprovalState::Replaced,
            Self::Rejected { .. } => ApprovalState::Rejected,
            Self::Withdrawn(_) => ApprovalState::Withdrawn,
            Self::Expired { .. } => ApprovalState::Expired,
        }
    }

    /// The answer that counts; `None` while it is pending and after it has expired.
    pub const fn answer(&self) -> Option<&ApprovalAnswer> {
        match self {
            Self::Pending { .. } | Self::Expired { .. } => None,
            Self::Approved(answer) | Self::Withdrawn(answer) => Some(answer),
            Self::Replaced { answer, .. } | Self::Rejected { answer, .. } => Some(answer),
        }
    }

    /// Answers a pending approval. The same answer again returns the state unchanged.
    ///
    /// # Errors
    ///
    /// [`AlreadyAnswered`] when it has another answer, or its time is over.
    pub fn apply(
        self,
        step: ApprovalStep,
        by: &str,
        now: Timestamp,
    ) -> Result<Self, AlreadyAnswered> {
        let answer = || ApprovalAnswer { by: by.to_owned(), at: now };
        match (&self, step) {
            (Self::Pending { expires_at }, _) if *expires_at <= now => Err(AlreadyAnswered {
                state: ApprovalState::Expired.as_str(),
                by: None,
                at: *expires_at,
            }),
            (Self::Pending { .. }, ApprovalStep::Approve) => Ok(Self::Approved(answer())),
            (Self::Pending { .. }, ApprovalStep::Edit { replaced_by }) => {
                Ok(Self::Replaced { answer: answer(), replaced_by })
            }
            (Self::Pending { .. }, ApprovalStep::Reject { reason }) => {
                Ok(Self::Rejected { answer: answer(), reason })
            }
            (Self::Pending { .. }, ApprovalStep::Withdraw) => Ok(Self::Withdrawn(answer())),
            (Self::Approved(_), ApprovalStep::Approve)
            | (Self::Rejected { .. }, ApprovalStep::Reject { .. })
            | (Self::Withdrawn(_), ApprovalStep::Withdraw) => Ok(self),
            (Self::Replaced { replaced_by: first, .. }, ApprovalStep::Edit { replaced_by })
                if *first == replaced_by =>
            {
                Ok(self)
            }
            _ => Err(self.already_answered(now)),
        }
    }

    /// PENDING → EXPIRED, when its time is over.
    ///
    /// # Errors
    ///
    /// [`AlreadyAnswered`] when it is not pending, or its time is not over.
    pub fn expire(self, now: Timestamp) -> Result<Self, AlreadyAnswered> {
        match &self {
            Self::Pending { expires_at } if *expires_at <= now => Ok(Self::Expired { at: now }),
            _ => Err(self.already_answered(now)),
        }
    }

    fn already_answered(&self, now: Timestamp) -> AlreadyAnswered {
        let answer = self.answer();
        let at = match self {
            Self::Expired { at } => *at,
            _ => answer.map_or(now, |answer| answer.at),
        };
        let by = answer.map(|answer| answer.by.clone());
        AlreadyAnswered { state: self.name().as_str(), by, at }
    }
}

impl SendOrigin {
    /// The name of the agent, if an agent sends.
    pub fn agent(&self) -> Option<&str> {
        match self {
            Self::Agent { name, .. } => Some(name),
            _ => None,
        }
    }

    pub const fn is_owner(&self) -> bool {
        matches!(self, Self::Owner)
    }
}

impl fmt::Display for SendOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner => f.write_str("owner"),
            Self::Agent { name, .. } => write!(f, "agent {name}"),
            Self::Forward => f.write_str("forwarding rule"),
            Self::Courier => f.write_str("courier"),
        }
    }
}

impl fmt::Display for ApprovalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "apr_{}", self.0)
    }
}

impl FromStr for ApprovalId {
    type Err = InvalidApprovalId;

    fn from_str(text: &str) -> Result<Self, InvalidApprovalId> {
        let number = text.strip_prefix("apr_").unwrap_or(text);
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let parsed = number.parse().ok().filter(|_| is_number);
        parsed.map(Self).ok_or_else(|| InvalidApprovalId(text.chars().take(80).collect()))
    }
}

text_conversions!(ApprovalId, InvalidApprovalId, |id| id.to_string());

variant_names! { ApprovalState:
    Pending = "PENDING", Approved = "APPROVED", Replaced = "REPLACED", Rejected = "REJECTED",
    Withdrawn = "WITHDRAWN", Expired = "EXPIRED",
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ObjKind;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_ms(secs * 1000)
    }

    fn edited(text: &str) -> ObjId {
        ObjId::of(ObjKind::Msg, text.as_bytes())
    }

    fn approval_in(state: ApprovalState) -> ApprovalStateData {
        let answer = ApprovalAnswer { by: "ann".to_owned(), at: at(1) };
        match state {
            ApprovalState::Pending => ApprovalStateData::Pending { expires_at: at(100) },
            ApprovalState::Approved => ApprovalStateData::Approved(answer),
            ApprovalState::Replaced => {
                ApprovalStateData::Replaced { answer, replaced_by: edited("a") }
            }
            ApprovalState::Rejected => ApprovalStateData::Rejected { answer, reason: None },
            ApprovalState::Withdrawn => ApprovalStateData::Withdrawn(answer),
            ApprovalState::Expired => ApprovalStateData::Expired { at: at(100) },
        }
    }

    /// Every step from every state. A new state or step changes the table.
    #[test]
    fn every_step_from_every_state() {
        let end = |state: ApprovalStateData| state.name().as_str();
        let mut table = crate::state_tables::StateTable::new("approvals");
        for state in ApprovalState::ALL {
            let from = state.as_str();
            let steps = [
                ("approve", ApprovalStep::Approve),
                ("edit", ApprovalStep::Edit { replaced_by: edited("a") }),
                ("edit otherwise", ApprovalStep::Edit { replaced_by: edited("b") }),
                ("reject", ApprovalStep::Reject { reason: None }),
                ("withdraw", ApprovalStep::Withdraw),
            ];
            for (name, step) in &steps {
                table.row(
                    from,
                    name,
                    approval_in(state).apply(step.clone(), "bob", at(50)).map(end),
                );
            }
            let late = approval_in(state).apply(ApprovalStep::Approve, "bob", at(100));
            table.row(from, "approve, too late", late.map(end));
            table.row(from, "expire", approval_in(state).expire(at(100)).map(end));
            table.row(from, "expire, too early", approval_in(state).expire(at(99)).map(end));
        }
        table.check();
    }

    #[test]
    fn second_answer_names_the_first_one() {
        let rejected = approval_in(ApprovalState::Rejected);
        let error = rejected.clone().apply(ApprovalStep::Approve, "bob", at(9)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the approval is REJECTED already, by ann at 1970-01-01T00:00:01.000Z; nothing was changed"
        );
        let again = rejected.clone().apply(ApprovalStep::Reject { reason: None }, "bob", at(9));
        assert_eq!(again, Ok(rejected), "the first answer stays");
        let expired =
            approval_in(ApprovalState::Pending).apply(ApprovalStep::Approve, "bob", at(100));
        assert_eq!(
            expired.unwrap_err().to_string(),
            "the approval is EXPIRED already, at 1970-01-01T00:01:40.000Z; nothing was changed"
        );
    }

    #[test]
    fn ids_have_one_text_form_and_a_short_one() {
        assert_eq!(ApprovalId(17).to_string(), "apr_17");
        assert_eq!("apr_17".parse(), Ok(ApprovalId(17)));
        assert_eq!("17".parse(), Ok(ApprovalId(17)));
        for invalid in ["", "apr_", "apr_-1", "apr_+1", "17x", "apr_99999999999999999999"] {
            assert!(invalid.parse::<ApprovalId>().is_err(), "{invalid}");
        }
    }
}
