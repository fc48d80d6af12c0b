//! Tokens: show that of the caller; list and revoke those of agents; on the socket also create them, and replace the
//! owner's.
//!
//! The last two are not served over TCP: a stolen token cannot replace itself, or leave a token
//! behind that stays valid when the owner's is rotated.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use monoco_core::claim::Workspace;
use monoco_core::token::{AgentName, NewAgentToken, ScopeSet, TokenSecret};
use monoco_store::StoreError;
use serde::{Deserialize, Serialize};

use super::SharedApi;
use super::caller::{AgentTokens, Caller};
use super::error::ApiError;
use super::input::{self, JsonBody, PathParams};
use super::views::tokens::{CallerView, CreatedTokenView, TokenList, TokenView};
use crate::home::ApiToken;

/// What the routes of the socket work with.
#[derive(Clone)]
struct SocketTokens {
    owner: Arc<ApiToken>,
    agents: Arc<AgentTokens>,
}

/// Adds the routes that only the socket serves.
pub fn with_socket_routes(
    router: Router,
    owner: Arc<ApiToken>,
    agents: Arc<AgentTokens>,
) -> Router {
    let routes = Router::new()
        .route("/api/v1/token/rotate", post(rotate))
        .route("/api/v1/tokens", post(add))
        .with_state(SocketTokens { owner, agents });
    router.merge(routes)
}

async fn rotate(State(tokens): State<SocketTokens>) -> Result<StatusCode, ApiError> {
    tokens.owner.rotate().map_err(|error| ApiError::token_not_written(&error))?;
    tracing::info!("token rotated");
    Ok(StatusCode::NO_CONTENT)
}

/// A token to create.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTokenBody {
    pub name: String,
    pub scopes: Vec<String>,
    /// Workspace of the agent; default `shared`
    pub workspace: Option<String>,
    /// DID of the agent; default `did:monoco:` and the name
    pub did: Option<String>,
}

async fn add(
    State(tokens): State<SocketTokens>,
    JsonBody(body): JsonBody<NewTokenBody>,
) -> Result<(StatusCode, axum::Json<CreatedTokenView>), ApiError> {
    let NewTokenBody { name, scopes, workspace, did } = body;
    let name: AgentName = name.parse().map_err(|error| ApiError::bad_field("name", error))?;
    let scopes = ScopeSet::parse(scopes.iter().map(String::as_str))
        .map_err(|error| ApiError::bad_field("scopes", error))?;
    let workspace = workspace.map_or_else(|| Ok(Workspace::shared()), Workspace::new);
    let workspace = workspace.map_err(|error| ApiError::bad_field("workspace", error))?;
    let did = match did {
        Some(did) => input::did("did", &did)?,
        None => name.default_did().map_err(|error| ApiError::bad_field("did", error))?,
    };
    let token = NewAgentToken { name, scopes, workspace, did };
    token.check().map_err(|error| ApiError::bad_field("scopes", error))?;
    let mut random = [0; 32];
    getrandom::fill(&mut random)
        .map_err(|error| StoreError::Unavailable(format!("no random bytes: {error}")))?;
    let secret = TokenSecret::from_random(random);
    let token = TokenView::from(tokens.agents.add(token, secret.hash()).await?);
    Ok((StatusCode::CREATED, axum::Json(CreatedTokenView { token, secret: secret.expose() })))
}

/// Get the caller of this request
///
/// The name, scopes, workspace and DID of the token that the request is made with.
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/caller", operation_id = "get_caller",
    tag = "tokens",
    responses((status = 200, body = CallerView))
))]
pub async fn caller(State(api): State<SharedApi>, caller: Caller) -> axum::Json<CallerView> {
    let names = |scopes: ScopeSet| scopes.names().into_iter().map(Into::into).collect();
    axum::Json(match caller.agent() {
        Some(token) => CallerView {
            name: token.name.to_string(),
            scopes: names(token.scopes),
            workspace: Some(token.workspace.as_str().to_owned()),
            did: token.did.as_str().to_owned(),
        },
        None => CallerView {
            name: caller.name().to_owned(),
            scopes: names(ScopeSet::ALL),
            workspace: None,
            did: api.config.borrow().owner.as_str().to_owned(),
        },
    })
}

/// List the tokens of agents
///
/// With those that were revoked. The secrets are not stored and cannot be shown again.
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/tokens", operation_id = "list_tokens",
    tag = "tokens",
    responses((status = 200, body = TokenList))
))]
pub async fn tokens(State(api): State<SharedApi>) -> Result<axum::Json<TokenList>, ApiError> {
    let tokens = api.store.tokens().await?;
    Ok(axum::Json(TokenList { tokens: tokens.into_iter().map(Into::into).collect() }))
}

/// Revoke the token of an agent
///
/// The courier rejects the token at once, and ends event streams that were opened with it.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/tokens/{name}/revoke", operation_id = "revoke_token",
    tag = "tokens",
    params(("name" = String, Path, description = "Name of the agent")),
    responses((status = 200, body = TokenView))
))]
pub async fn revoke(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<TokenView>, ApiError> {
    Ok(axum::Json(api.agents.revoke(&path.parse("name")?).await?.into()))
}
