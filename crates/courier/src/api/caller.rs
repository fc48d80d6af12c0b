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
use monoco_core::token::{AgentName, AgentToken, Scope, TokenHash};
use monoco_store::{SharedStore, StoreResult};
use tokio::sync::watch;

use super::error::ApiError;
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

    /// The name that answers to approvals and halts are stored with.
    pub fn name(&self) -> &str {
        self.agent().map_or("owner", |token| token.name.as_str())
    }

    pub fn has_scope(&self, scope: Scope) -> bool {
        self.agent().is_none_or(|token| token.scopes.contains(scope))
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

/// Finds and revokes the tokens of agents.
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
