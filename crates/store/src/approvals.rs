//! Approvals: messages that wait for a person, and what the policy decided.

use std::sync::Arc;

use async_trait::async_trait;
use monoco_core::approval::chat_answer::ChatAnswer;
use monoco_core::approval::policy::{ApprovalPolicy, SendFacts};
use monoco_core::approval::{AlreadyAnswered, Approval, ApprovalId, ApprovalState, ApprovalStep};
use monoco_core::did::Did;
use monoco_core::object::{MsgObject, ObjId};
use monoco_core::time::Timestamp;
use monoco_core::token::AgentName;

use crate::{Page, PageRequest, StoreInboundRequest, StoreInboundResult, StoreResult};

/// What the policy decided about one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredDecision {
    /// Later decisions have larger numbers.
    pub seq: i64,
    pub msg_id: ObjId,
    /// Whether the message was held.
    pub held: bool,
    /// The rule that decided.
    pub rule: String,
    pub facts: SendFacts,
    pub at: Timestamp,
}

/// A question to one account about one approval.
#[derive(Clone, Debug)]
pub struct AskRequest {
    pub approval: ApprovalId,
    /// The account that is asked.
    pub target: Did,
    /// The code that the account answers with.
    pub code: String,
    /// The message with the question.
    pub msg: MsgObject,
}

/// Result of an answer in a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatAnswerResult {
    /// The account was never asked, so the message is an ordinary one.
    NotAsked,
    /// The message is a duplicate, or its author is blocked.
    Inbound(StoreInboundResult),
    /// The answer counts, or repeats the one that counts.
    Answered(Box<Approval>),
    /// The approval has another answer.
    AlreadyAnswered(ApprovalId, AlreadyAnswered),
    /// No approval has this code; after the third one the account is locked until a time.
    WrongCode { locked_until: Option<Timestamp> },
    /// The account is locked. The code was not looked at.
    Locked { until: Timestamp },
}

/// Holds messages until they are approved, and keeps the decisions of the policy.
#[async_trait]
pub trait ApprovalStore: Send + Sync {
    /// Sets the policy that decides about every message that is sent from now on. The default
    /// holds the messages of agents.
    fn set_approval_policy(&self, policy: Arc<ApprovalPolicy>);

    /// Returns the policy that decides now.
    fn approval_policy(&self) -> Arc<ApprovalPolicy>;

    /// Lists approvals. No `states` means all states.
    async fn approvals(
        &self,
        states: &[ApprovalState],
        page: PageRequest,
    ) -> StoreResult<Page<Approval>>;

    /// Returns one approval by id.
    async fn approval(&self, id: ApprovalId) -> StoreResult<Approval>;

    /// Returns the last approval of a message, or `None` when the message was never held.
    async fn approval_of(&self, msg_id: ObjId) -> StoreResult<Option<Approval>>;

    /// Approves, rejects or withdraws a held message. Its deliveries change in the same
    /// transaction. The same answer again changes nothing.
    ///
    /// # Errors
    ///
    /// `StoreError::AlreadyAnswered` with the answer that counts, `StoreError::Conflict` when
    /// `revision` is outdated.
    async fn answer_approval(
        &self,
        id: ApprovalId,
        step: ApprovalStep,
        by: &str,
        revision: Option<i64>,
        now: Timestamp,
    ) -> StoreResult<Approval>;

    /// Sends `msg` to the targets of a held message, by the plans of the held message, which is
    /// archived.
    ///
    /// # Errors
    ///
    /// As [`Self::answer_approval`]; `StoreError::AlreadySent` when `msg` was sent or held
    /// before.
    async fn edit_approval(
        &self,
        id: ApprovalId,
        msg: MsgObject,
        by: &str,
        revision: Option<i64>,
        now: Timestamp,
    ) -> StoreResult<Approval>;

    /// Ends approvals whose time is over, at most `limit`. Their messages are archived. Returns
    /// the number.
    async fn expire_approvals(&self, limit: usize, now: Timestamp) -> StoreResult<usize>;

    /// Lists pending approvals that no account was asked about yet, oldest first.
    async fn unasked_approvals(&self, limit: usize) -> StoreResult<Vec<Approval>>;

    /// Stores the code of a question and sends the question, in one transaction. Returns `false`
    /// when the code is in use, and does nothing when the account was asked already.
    async fn ask_approval(&self, request: AskRequest, now: Timestamp) -> StoreResult<bool>;

    /// Marks an approval as asked, so that it is not listed again.
    async fn mark_asked(&self, id: ApprovalId) -> StoreResult<()>;

    /// Answers the approval with the code that `account` was asked with, or counts a wrong code.
    /// The id of the message is stored, so that a copy of it is a duplicate; the message itself is
    /// not, so that it never becomes a Mail. Nothing is stored when the account was never asked.
    async fn answer_by_code(
        &self,
        account: &Did,
        message: StoreInboundRequest,
        answer: ChatAnswer,
        now: Timestamp,
    ) -> StoreResult<ChatAnswerResult>;

    /// Lists decisions since a time and after a number, oldest first.
    async fn decisions(
        &self,
        since: Timestamp,
        after: Option<i64>,
        limit: usize,
    ) -> StoreResult<Page<StoredDecision>>;

    /// Lists decisions about messages of an agent since a time, newest first.
    async fn decisions_of(
        &self,
        agent: &AgentName,
        since: Timestamp,
        limit: usize,
    ) -> StoreResult<Vec<StoredDecision>>;

    /// Returns the last decision about a message, or `None` when no rule was asked.
    async fn decision_of(&self, msg_id: ObjId) -> StoreResult<Option<StoredDecision>>;
}
