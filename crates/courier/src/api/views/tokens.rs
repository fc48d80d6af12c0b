//! Tokens of agents, without their secrets.

use std::borrow::Cow;

use monoco_core::token::{AgentToken, Scope};
use serde::{Deserialize, Serialize};
#[cfg(test)]
use utoipa::ToSchema;

/// The token of an agent.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Token))]
pub struct TokenView {
    /// Name of the agent, also the holder of its claims
    pub name: String,
    /// `read`, `claim`, `reply`, `send`, `operate` and `approve`, as far as the token has them
    pub scopes: Vec<Cow<'static, str>>,
    /// Workspace of all claims of the agent
    pub workspace: String,
    /// DID of the agent, the author of all its messages
    pub did: String,
    pub created_at: String,
    /// Time of the last request, exact to one minute
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<String>,
    /// Missing while the token is valid
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<String>,
}

/// Who makes a request.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Caller))]
pub struct CallerView {
    /// Name of the agent, or `owner`
    pub name: String,
    /// What the caller may do; all scopes for the owner
    pub scopes: Vec<Cow<'static, str>>,
    /// Workspace of all claims of the agent; missing for the owner, who can name any
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// DID that the caller sends as
    pub did: String,
}

/// All tokens of agents.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct TokenList {
    pub tokens: Vec<TokenView>,
}

/// A new token with its secret, which is not shown again.
#[derive(Debug, Serialize, Deserialize)]
pub struct CreatedTokenView {
    #[serde(flatten)]
    pub token: TokenView,
    pub secret: String,
}

impl From<AgentToken> for TokenView {
    fn from(token: AgentToken) -> Self {
        Self {
            name: token.name.to_string(),
            scopes: token.scopes.iter().map(|scope| Scope::as_str(scope).into()).collect(),
            workspace: token.workspace.into(),
            did: token.did.into(),
            created_at: token.created_at.rfc3339(),
            last_used_at: token.last_used_at.map(|at| at.rfc3339()),
            revoked_at: token.revoked_at.map(|at| at.rfc3339()),
        }
    }
}
