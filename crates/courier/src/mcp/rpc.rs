//! JSON-RPC 2.0 messages: requests, notifications, results and errors.

use serde_json::{Map, Value, json};

pub const PARSE_ERROR: i64 = -32_700;
pub const INVALID_REQUEST: i64 = -32_600;
pub const METHOD_NOT_FOUND: i64 = -32_601;
pub const INVALID_PARAMS: i64 = -32_602;
/// Error of MCP before 2026-07-28 for a resource that does not exist.
pub const RESOURCE_NOT_FOUND: i64 = -32_002;
/// The headers of an HTTP request differ from its body.
pub const HEADER_MISMATCH: i64 = -32_020;
pub const UNSUPPORTED_VERSION: i64 = -32_022;

/// A request, which is answered with a result or an error.
#[derive(Clone, Debug, PartialEq)]
pub struct RpcRequest {
    /// Text or a whole number, returned unchanged.
    pub id: Value,
    pub method: String,
    pub params: Map<String, Value>,
}

/// One message of a client.
#[derive(Clone, Debug, PartialEq)]
pub enum RpcMessage {
    Request(RpcRequest),
    /// A message without an id. It is accepted and has no answer.
    Notification,
}

/// Why a request has no result.
#[derive(Clone, Debug, PartialEq)]
pub struct RpcError {
    pub code: i64,
    pub message: String,
    pub data: Option<Value>,
}

/// An error with the id of its request, where the id can be read.
#[derive(Clone, Debug, PartialEq)]
pub struct InvalidRpcMessage {
    pub id: Option<Value>,
    pub error: RpcError,
}

impl RpcError {
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }

    pub fn method_not_found(method: &str) -> Self {
        Self::new(METHOD_NOT_FOUND, format!("unknown method {method:?}"))
    }
}

impl RpcRequest {
    /// A parameter that must be text.
    pub fn text(&self, name: &str) -> Result<&str, RpcError> {
        let value = self.params.get(name).and_then(Value::as_str);
        value.ok_or_else(|| RpcError::invalid_params(format!("params.{name}: expected text")))
    }
}

/// Reads one message.
///
/// # Errors
///
/// [`InvalidRpcMessage`] when the value is not a request or a notification.
pub fn read(value: Value) -> Result<RpcMessage, InvalidRpcMessage> {
    let invalid = |id: Option<Value>, why: &str| InvalidRpcMessage {
        id,
        error: RpcError::new(INVALID_REQUEST, format!("invalid request: {why}")),
    };
    let Value::Object(mut message) = value else {
        return Err(invalid(None, "expected one JSON object, not a batch"));
    };
    let id = message.remove("id");
    let is_id = |id: &Value| id.is_string() || id.is_i64() || id.is_u64();
    if id.as_ref().is_some_and(|id| !is_id(id)) {
        return Err(invalid(None, "id: expected text or a whole number"));
    }
    if message.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(invalid(id, "jsonrpc: expected \"2.0\""));
    }
    let Some(Value::String(method)) = message.remove("method") else {
        return Err(invalid(id, "method: expected text"));
    };
    let params = match message.remove("params") {
        None => Map::new(),
        Some(Value::Object(params)) => params,
        Some(_) => return Err(invalid(id, "params: expected an object")),
    };
    Ok(match id {
        Some(id) => RpcMessage::Request(RpcRequest { id, method, params }),
        None => RpcMessage::Notification,
    })
}

/// An object of values that are moved: `json!` would copy them, and a result is large.
pub fn object<const N: usize>(entries: [(&str, Value); N]) -> Value {
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The message that answers a request.
pub fn response(id: &Value, result: Result<Value, RpcError>) -> Value {
    match result {
        Ok(result) => object([("jsonrpc", "2.0".into()), ("id", id.clone()), ("result", result)]),
        Err(error) => error_response(Some(id), error),
    }
}

/// The message that reports an error. The id is missing where the request had none to read.
pub fn error_response(id: Option<&Value>, error: RpcError) -> Value {
    let RpcError { code, message, data } = error;
    let mut response = json!({"jsonrpc": "2.0", "error": {"code": code, "message": message}});
    if let Some(id) = id {
        response["id"] = id.clone();
    }
    if let Some(data) = data {
        response["error"]["data"] = data;
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_requests_or_notifications() {
        let request = read(json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}));
        let expected = RpcRequest { id: json!(1), method: "ping".to_owned(), params: Map::new() };
        assert_eq!(request, Ok(RpcMessage::Request(expected)));
        let notification = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(read(notification), Ok(RpcMessage::Notification));
    }

    #[test]
    fn invalid_messages_are_reported_with_their_id() {
        for (message, id) in [
            (json!([]), None),
            (json!("ping"), None),
            (json!({}), None),
            (json!({"jsonrpc": "2.0", "id": null, "method": "ping"}), None),
            (json!({"jsonrpc": "2.0", "id": 1.5, "method": "ping"}), None),
            (json!({"jsonrpc": "1.0", "id": 7, "method": "ping"}), Some(json!(7))),
            (json!({"jsonrpc": "2.0", "id": "a", "method": 1}), Some(json!("a"))),
            (json!({"jsonrpc": "2.0", "id": "a", "result": {}}), Some(json!("a"))),
            (json!({"jsonrpc": "2.0", "id": 7, "method": "x", "params": []}), Some(json!(7))),
        ] {
            let error = read(message.clone()).unwrap_err();
            assert_eq!((error.id, error.error.code), (id, INVALID_REQUEST), "{message}");
        }
    }
}
