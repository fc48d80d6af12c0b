//! Tokens of agents, and which Mails agents have read.

use async_trait::async_trait;
use monoco_core::mail::MailId;
use monoco_core::object::ObjId;
use monoco_core::time::Timestamp;
use monoco_core::token::{AgentName, AgentRead, AgentToken, NewAgentToken, TokenHash};

use crate::StoreResult;

/// Stores the tokens of agents by the hashes of their secrets, and the Mails that agents read.
#[async_trait]
pub trait TokenStore: Send + Sync {
    /// Adds a token. The name of a revoked token can be used again, with the new secret.
    ///
    /// # Errors
    ///
    /// `StoreError::Exists` when an agent with this name has a token that is not revoked.
    async fn add_token(
        &self,
        token: NewAgentToken,
        secret: TokenHash,
        now: Timestamp,
    ) -> StoreResult<AgentToken>;

    /// Returns the token with this hash, also when it was revoked; `None` when there is none.
    async fn find_token(&self, secret: TokenHash) -> StoreResult<Option<AgentToken>>;

    /// Lists all tokens by name, with those that were revoked.
    async fn tokens(&self) -> StoreResult<Vec<AgentToken>>;

    /// Revokes a token. Repeating it changes nothing.
    ///
    /// # Errors
    ///
    /// `StoreError::Missing` when there is no token with this name.
    async fn revoke_token(&self, name: &AgentName, now: Timestamp) -> StoreResult<AgentToken>;

    /// Stores the last use of a token, at most once a minute. A call within this time commits
    /// nothing.
    async fn touch_token(&self, name: &AgentName, now: Timestamp) -> StoreResult<()>;

    /// Records that an agent has read Mails, or was shown a part of their texts: one event and one
    /// row per agent and Mail. `mails` are their numbers ([`MailIndexEntry::seq`]). A later read
    /// changes the time of the row, at most once a minute; a call within this time commits nothing.
    ///
    /// [`MailIndexEntry::seq`]: monoco_core::mail::MailIndexEntry::seq
    ///
    /// # Errors
    ///
    /// When there is no Mail with one of these numbers.
    async fn record_reads(
        &self,
        agent: &AgentName,
        mails: Vec<i64>,
        now: Timestamp,
    ) -> StoreResult<()>;

    /// Records that an agent has read a Mail, as [`Self::record_reads`] does.
    ///
    /// # Errors
    ///
    /// `StoreError::Missing` when there is no such Mail.
    async fn record_read(
        &self,
        agent: &AgentName,
        mail: &MailId,
        now: Timestamp,
    ) -> StoreResult<()>;

    /// Records that an agent has read a message, when the message is a Mail.
    async fn record_message_read(
        &self,
        agent: &AgentName,
        msg_id: ObjId,
        now: Timestamp,
    ) -> StoreResult<()>;

    /// Lists the Mails that an agent has last read since a time, newest first.
    async fn agent_reads(
        &self,
        agent: &AgentName,
        since: Timestamp,
        limit: usize,
    ) -> StoreResult<Vec<AgentRead>>;
}
