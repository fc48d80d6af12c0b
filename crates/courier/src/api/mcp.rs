//! `/mcp`: one message of an MCP client per request.
//!
//! There are no sessions and no streams: GET and DELETE are answered with 405, and every request
//! with one JSON object. Errors of the transport are JSON-RPC errors too, because clients read
//! from them which generation of the protocol the server speaks.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use monoco_core::json;
use serde_json::Value;

use super::SharedApi;
use super::caller::Caller;
use super::error::ApiError;
use super::input::{self, API_BODIES};
use crate::mcp::agent::McpAgent;
use crate::mcp::protocol::{self, McpGeneration, McpHeaders};
use crate::mcp::rpc::{
    self, InvalidRpcMessage, METHOD_NOT_FOUND, PARSE_ERROR, RpcError, RpcMessage,
};
use crate::mcp::server;

/// Path of the MCP server.
pub const MCP_PATH: &str = "/mcp";

/// The methods of the path.
pub fn methods() -> MethodRouter<SharedApi> {
    axum::routing::post(post).fallback(async || {
        let mut response = ApiError::method_not_allowed().into_response();
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        response
    })
}

async fn post(
    State(api): State<SharedApi>,
    caller: Caller,
    request: Request,
) -> Result<Response, ApiError> {
    if input::content_type(request.headers()) != Some("application/json") {
        return Err(ApiError::wrong_type("application/json"));
    }
    let (parts, body) = request.into_parts();
    let body = input::body(body, input::MAX_JSON, &API_BODIES).await?;
    let message = match json::parse(&body) {
        Ok(message) => message,
        Err(error) => {
            let error = RpcError::new(PARSE_ERROR, error.to_string());
            return Ok(reply(StatusCode::BAD_REQUEST, rpc::error_response(None, error)));
        }
    };
    let request = match rpc::read(message) {
        Ok(RpcMessage::Request(request)) => request,
        Ok(RpcMessage::Notification) => return Ok(StatusCode::ACCEPTED.into_response()),
        Err(InvalidRpcMessage { id, error }) => {
            let response = rpc::error_response(id.as_ref(), error);
            return Ok(reply(StatusCode::BAD_REQUEST, response));
        }
    };
    let generation = match protocol::generation(mcp_headers(&parts.headers), &request) {
        Ok(generation) => generation,
        Err(error) => {
            let response = rpc::error_response(Some(&request.id), error);
            return Ok(reply(StatusCode::BAD_REQUEST, response));
        }
    };
    let id = request.id.clone();
    let agent = McpAgent::new(&api, caller);
    let result = server::answer(&api, &agent, generation, request).await;
    let status = match &result {
        Err(error) if generation == McpGeneration::Stateless && error.code == METHOD_NOT_FOUND => {
            StatusCode::NOT_FOUND
        }
        _ => StatusCode::OK,
    };
    Ok(reply(status, rpc::response(&id, result)))
}

fn reply(status: StatusCode, message: Value) -> Response {
    (status, axum::Json(message)).into_response()
}

fn mcp_headers(headers: &HeaderMap) -> McpHeaders<'_> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    McpHeaders {
        version: text("mcp-protocol-version"),
        method: text("mcp-method"),
        name: text("mcp-name"),
    }
}
