//! `POST /api/v1/token/rotate`: replaces the token of the API. Only on the socket, so that a
//! stolen token cannot replace itself.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;

use super::error::ApiError;
use crate::home::ApiToken;

/// Adds the route to the routes that the socket serves.
pub fn with_rotation(router: Router, token: Arc<ApiToken>) -> Router {
    let rotation = Router::new().route("/api/v1/token/rotate", post(rotate)).with_state(token);
    router.merge(rotation)
}

async fn rotate(State(token): State<Arc<ApiToken>>) -> Result<StatusCode, ApiError> {
    token.rotate().map_err(|error| ApiError::token_not_written(&error))?;
    tracing::info!("token rotated");
    Ok(StatusCode::NO_CONTENT)
}
