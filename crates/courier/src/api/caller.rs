//! Who makes a request: the owner, or an agent with a token of its own.
//!
//! [`super::guard`] sets the caller of every request over TCP. Requests over the socket in the
//! home directory are the owner's.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::{Extension, Router};
use monoco_core::approval::SendOrigin;
use monoco_core::claim::Workspace;
use monoco_core::did::Did;
use monoco_core::lease::{Holder, Lease, LeaseLost};
use monoco_core::object::MsgObject;
use monoco_core::token::{AgentName, AgentToken, NewAgentToken, Scope, TokenHash, TokenViolation};
use monoco_store::{SharedStore, StoreResult};
use serde_json::Value;
use tokio::sync::watch;

use super::error::ApiError;
use super::input;
use crate::clock::Clock;

/// How often a stream checks whether its token was revoked, when it gets no hint.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The caller of a request, as an extension of the request.
#[derive(Clone, Debug)]
pub enum Caller {
    /// The user of the courier, with all rights.
    Owner,
    Agent(Arc<AgentToken>),
}

impl Caller {
    /// The token of an agent; `None` for the owner.
    pub fn agent(&self) -> Option<&AgentToken> {
        match self {
            Self::Owner => None,
            Self::Agent(token) => Some(token),
        }
    }

    /// On whose behalf messages of the caller are sent.
    pub fn origin(&self) -> SendOrigin {
        match self {
            Self::Owner => SendOrigin::Owner,
            Self::Agent(token) => {
                SendOrigin::Agent { name: token.name.to_string(), did: token.did.clone() }
            }
        }
    }

    /// The idempotency key as the store has it. Keys of different agents are different, so that no
    /// agent gets the result of another one.
    pub fn own_key(&self, key: String) -> String {
        match self.agent() {
            Some(token) => format!("{}:{key}", token.name),
            None => key,
        }
    }

    /// The name that answers to approvals and halts are stored with.
    pub fn name(&self) -> &str {
        self.agent().map_or("owner", |token| token.name.as_str())
    }

    pub fn has_scope(&self, scope: Scope) -> bool {
        self.agent().is_none_or(|token| token.scopes.contains(scope))
    }

    /// The workspace of a claim: that of the agent's token. The owner may name any; default
    /// `shared`.
    pub fn claim_workspace(&self, asked: Option<Workspace>) -> Result<Workspace, TokenViolation> {
        match self.agent() {
            Some(token) => token.claim_workspace(asked),
            None => Ok(asked.unwrap_or_else(Workspace::shared)),
        }
    }

    /// The workspace whose claims are shown or changed by hand.
    pub fn shown_workspace(&self, asked: Option<Workspace>) -> Result<Workspace, TokenViolation> {
        match self.agent() {
            Some(token) => token.shown_workspace(asked),
            None => Ok(asked.unwrap_or_else(Workspace::shared)),
        }
    }

    /// The name of a caller that takes or shows a lease: that of the agent. `name` is what the
    /// request says.
    pub fn holder(&self, name: Option<String>) -> Result<Holder, ApiError> {
        match self.agent() {
            Some(token) => Ok(token.claim_holder(name.as_deref())?),
            None => input::holder(name),
        }
    }

    /// Checks that the caller may use the boxes of `owner`.
    pub fn check_box(&self, owner: &Did) -> Result<(), TokenViolation> {
        self.agent().map_or(Ok(()), |token| token.check_box(owner))
    }

    /// Rejects an agent that shows a lease of another holder. The store checks only the epoch
    /// when a request has one, and an epoch can be guessed.
    pub fn check_lease(&self, lease: Option<&Lease>) -> Result<(), LeaseLost> {
        match (self.agent(), lease) {
            (Some(token), Some(lease)) if lease.holder.as_str() != token.name.as_str() => {
                Err(LeaseLost::Held(lease.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Checks the author of a message; `source` is the author of a group message.
    pub fn check_sender(&self, msg: &MsgObject) -> Result<(), TokenViolation> {
        let Some(token) = self.agent() else { return Ok(()) };
        token.check_sender(&msg.from)?;
        msg.source.as_ref().map_or(Ok(()), |source| token.check_sender(source))
    }

    /// Sets the sender of a message or letter that has none to that of the agent.
    pub fn fill_sender(&self, message: &mut Value) {
        if let (Some(token), Value::Object(fields)) = (self.agent(), message) {
            fields.entry("from").or_insert_with(|| token.did.as_str().into());
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        // Without a caller the request has passed no check.
        parts.extensions.get().cloned().ok_or_else(ApiError::no_token)
    }
}

/// Makes all requests those of the owner, for the socket in the home directory.
pub fn as_owner(router: Router) -> Router {
    router.layer(Extension(Caller::Owner))
}

/// Creates, finds and revokes the tokens of agents.
pub struct AgentTokens {
    store: SharedStore,
    clock: Clock,
    /// Number of tokens that this courier has revoked, as a hint for open streams.
    revocations: watch::Sender<u64>,
}

impl AgentTokens {
    pub fn new(store: SharedStore, clock: Clock) -> Self {
        Self { store, clock, revocations: watch::Sender::new(0) }
    }

    /// Returns the valid token with this hash, and stores that it was used.
    ///
    /// # Errors
    ///
    /// 401 for an unknown or revoked token.
    pub async fn authenticate(&self, secret: TokenHash) -> Result<Arc<AgentToken>, ApiError> {
        let token = self.store.find_token(secret).await?.ok_or_else(ApiError::wrong_token)?;
        if let Some(at) = token.revoked_at {
            return Err(ApiError::revoked_token(&token.name, at));
        }
        let now = self.clock.now();
        if token.is_use_stored(now)
            && let Err(error) = self.store.touch_token(&token.name, now).await
        {
            // A full disk must not keep agents from reading.
            tracing::warn!(agent = %token.name, %error, "cannot store the last use of a token");
        }
        Ok(Arc::new(token))
    }

    /// Stores a new token.
    ///
    /// # Errors
    ///
    /// When an agent with this name has a valid token, or the store fails.
    pub async fn add(&self, token: NewAgentToken, secret: TokenHash) -> StoreResult<AgentToken> {
        let token = self.store.add_token(token, secret, self.clock.now()).await?;
        tracing::info!(agent = %token.name, scopes = %token.scopes, "token created");
        Ok(token)
    }

    /// Revokes a token and ends the streams that were opened with it.
    ///
    /// # Errors
    ///
    /// When there is no token with this name, or the store fails.
    pub async fn revoke(&self, name: &AgentName) -> StoreResult<AgentToken> {
        let token = self.store.revoke_token(name, self.clock.now()).await?;
        self.revocations.send_modify(|count| *count += 1);
        tracing::info!(agent = %name, "token revoked");
        Ok(token)
    }

    /// Waits until the token with this hash is revoked, by this courier or another one.
    pub async fn revoked(self: Arc<Self>, secret: TokenHash) {
        let mut hints = self.revocations.subscribe();
        loop {
            // Before reading, so that a revocation in between is not missed.
            hints.mark_unchanged();
            // After an error of the store the token counts as valid until the next check.
            if let Ok(found) = self.store.find_token(secret).await
                && found.is_none_or(|token| token.revoked_at.is_some())
            {
                return;
            }
            let _ = tokio::time::timeout(POLL_INTERVAL, hints.changed()).await;
        }
    }
}
