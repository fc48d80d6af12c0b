//! The two generations of the protocol, and how a request shows which one it uses.
//!
//! | | until 2025-11-25 | 2026-07-28 |
//! | --- | --- | --- |
//! | start | `initialize` | none, or `server/discover` |
//! | version | of the session, in a header | in `params._meta` of every request, repeated in a header |
//! | headers | – | `Mcp-Method`, `Mcp-Name`, as in the body |
//! | unknown method | an error with status 200 | an error with status 404 |
//!
//! The courier stores nothing between requests: a client of the first generation can go on after a
//! restart, because no later request needs what `initialize` has said.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use super::rpc::{HEADER_MISMATCH, RpcError, RpcRequest, UNSUPPORTED_VERSION};

/// The version without sessions.
pub const STATELESS_VERSION: &str = "2026-07-28";

/// The versions that begin with `initialize`, newest first.
pub const SESSION_VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
pub const META_SERVER: &str = "io.modelcontextprotocol/serverInfo";

/// A generation of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum McpGeneration {
    /// Until 2025-11-25, with `initialize`.
    Session,
    /// From 2026-07-28 on: every request says all that is needed to answer it.
    Stateless,
}

/// The headers of an HTTP request that repeat parts of its body.
#[derive(Clone, Copy, Debug, Default)]
pub struct McpHeaders<'a> {
    pub version: Option<&'a str>,
    pub method: Option<&'a str>,
    pub name: Option<&'a str>,
}

/// Returns the generation that a request uses.
///
/// # Errors
///
/// When the version is unknown, parts of the request that 2026-07-28 requires are missing, or the
/// headers differ from the body.
pub fn generation(
    headers: McpHeaders<'_>,
    request: &RpcRequest,
) -> Result<McpGeneration, RpcError> {
    let meta = request.params.get("_meta").and_then(Value::as_object);
    let Some(version) = meta.and_then(|meta| meta.get(META_VERSION)) else {
        return match headers.version {
            _ if request.method == "initialize" => Ok(McpGeneration::Session),
            None => Ok(McpGeneration::Session),
            Some(version) if SESSION_VERSIONS.contains(&version) => Ok(McpGeneration::Session),
            Some(STATELESS_VERSION) => Err(missing_meta(META_VERSION)),
            Some(version) => Err(unsupported(version)),
        };
    };
    let Some(version) = version.as_str() else { return Err(missing_meta(META_VERSION)) };
    if headers.version != Some(version) {
        return Err(mismatch("MCP-Protocol-Version", headers.version, version));
    }
    if version != STATELESS_VERSION {
        return Err(unsupported(version));
    }
    if !meta.is_some_and(|meta| meta.get(META_CAPABILITIES).is_some_and(Value::is_object)) {
        return Err(missing_meta(META_CAPABILITIES));
    }
    if headers.method != Some(&request.method) {
        return Err(mismatch("Mcp-Method", headers.method, &request.method));
    }
    if let Some(name) = named(&request.method, &request.params) {
        let decoded = headers.name.and_then(decode);
        if decoded.as_deref() != Some(name) {
            return Err(mismatch("Mcp-Name", headers.name, name));
        }
    }
    Ok(McpGeneration::Stateless)
}

/// The parameter that `Mcp-Name` repeats.
fn named<'a>(method: &str, params: &'a Map<String, Value>) -> Option<&'a str> {
    let key = match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        _ => return None,
    };
    params.get(key).and_then(Value::as_str)
}

/// The headers that a request must have over HTTP: names and values. A message of the first
/// generation needs none.
pub fn headers_of(message: &Value) -> Vec<(&'static str, String)> {
    let params = message.get("params").and_then(Value::as_object);
    let version = params
        .and_then(|params| params.get("_meta"))
        .and_then(|meta| meta.get(META_VERSION))
        .and_then(Value::as_str);
    let (Some(params), Some(version)) = (params, version) else { return Vec::new() };
    let method = message.get("method").and_then(Value::as_str).unwrap_or_default();
    let mut headers =
        vec![("MCP-Protocol-Version", version.to_owned()), ("Mcp-Method", method.to_owned())];
    headers.extend(named(method, params).map(|name| ("Mcp-Name", encode(name))));
    headers
}

const ENCODED_START: &str = "=?base64?";
const ENCODED_END: &str = "?=";

/// Encodes the value of `Mcp-Name`, unless it is printable ASCII.
fn encode(value: &str) -> String {
    let is_plain = value.bytes().all(|byte| (0x20..0x7f).contains(&byte))
        && value.trim() == value
        && !value.starts_with(ENCODED_START);
    if is_plain {
        return value.to_owned();
    }
    format!("{ENCODED_START}{}{ENCODED_END}", BASE64_STANDARD.encode(value))
}

/// Decodes the value of `Mcp-Name`; `None` when it is not valid.
fn decode(value: &str) -> Option<String> {
    let encoded = value.strip_prefix(ENCODED_START).and_then(|rest| rest.strip_suffix(ENCODED_END));
    let Some(encoded) = encoded else { return Some(value.to_owned()) };
    String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()
}

fn missing_meta(key: &str) -> RpcError {
    RpcError::invalid_params(format!(
        "params._meta: {key:?} is missing; every request of {STATELESS_VERSION} needs it"
    ))
}

fn mismatch(header: &str, found: Option<&str>, expected: &str) -> RpcError {
    let found = found.map_or_else(|| "none".to_owned(), |found| format!("{found:?}"));
    let message = format!("header {header}: found {found}, expected {expected:?} as in the body");
    RpcError::new(HEADER_MISMATCH, message)
}

fn unsupported(version: &str) -> RpcError {
    let message = format!(
        "unsupported protocol version; use {STATELESS_VERSION}, or `initialize` with {} or earlier",
        SESSION_VERSIONS[0]
    );
    let data = json!({"supported": [STATELESS_VERSION], "requested": version});
    RpcError { data: Some(data), ..RpcError::new(UNSUPPORTED_VERSION, message) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::rpc::{self, INVALID_PARAMS, RpcMessage};

    fn request(method: &str, params: Value) -> RpcRequest {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        match rpc::read(message).unwrap() {
            RpcMessage::Request(request) => request,
            RpcMessage::Notification => unreachable!(),
        }
    }

    fn meta(version: &str) -> Value {
        json!({META_VERSION: version, META_CAPABILITIES: {}})
    }

    #[test]
    fn request_without_metadata_uses_sessions() {
        for version in [None, Some("2025-11-25"), Some("2025-03-26")] {
            let headers = McpHeaders { version, ..McpHeaders::default() };
            let found = generation(headers, &request("tools/list", json!({})));
            assert_eq!(found, Ok(McpGeneration::Session), "{version:?}");
        }
        let headers = McpHeaders { version: Some(STATELESS_VERSION), ..McpHeaders::default() };
        let found = generation(headers, &request("initialize", json!({})));
        assert_eq!(found, Ok(McpGeneration::Session), "a handshake is of the first generation");
    }

    #[test]
    fn stateless_request_needs_metadata_and_equal_headers() {
        let call = json!({"name": "whoami", "_meta": meta(STATELESS_VERSION)});
        let all = McpHeaders {
            version: Some(STATELESS_VERSION),
            method: Some("tools/call"),
            name: Some("whoami"),
        };
        let check = |headers, params: &Value| {
            generation(headers, &request("tools/call", params.clone())).map_err(|error| error.code)
        };
        assert_eq!(check(all, &call), Ok(McpGeneration::Stateless));
        for headers in [
            McpHeaders { version: None, ..all },
            McpHeaders { version: Some("2025-11-25"), ..all },
            McpHeaders { method: None, ..all },
            McpHeaders { method: Some("tools/list"), ..all },
            McpHeaders { name: None, ..all },
            McpHeaders { name: Some("trace"), ..all },
            McpHeaders { name: Some("=?base64?!?="), ..all },
        ] {
            assert_eq!(check(headers, &call), Err(HEADER_MISMATCH), "{headers:?}");
        }
        assert_eq!(check(all, &json!({"name": "whoami"})), Err(INVALID_PARAMS));
        let without = json!({"name": "whoami", "_meta": {META_VERSION: STATELESS_VERSION}});
        assert_eq!(check(all, &without), Err(INVALID_PARAMS));
        let unknown = json!({"name": "whoami", "_meta": meta("2027-01-01")});
        let headers = McpHeaders { version: Some("2027-01-01"), ..all };
        assert_eq!(check(headers, &unknown), Err(UNSUPPORTED_VERSION));
        let headers = McpHeaders { version: Some("2027-01-01"), ..McpHeaders::default() };
        assert_eq!(check(headers, &json!({"name": "whoami"})), Err(UNSUPPORTED_VERSION));
    }

    #[test]
    fn headers_of_a_message_are_those_that_its_request_needs() {
        for name in ["whoami", "grüße", " padded ", "=?base64?x?=", "line\nbreak"] {
            let params = json!({"name": name, "_meta": meta(STATELESS_VERSION)});
            let message = json!({"method": "tools/call", "params": params});
            let headers = headers_of(&message);
            let value = |key| {
                let found = headers.iter().find(|(name, _)| *name == key);
                found.map(|(_, value)| value.as_str())
            };
            let headers = McpHeaders {
                version: value("MCP-Protocol-Version"),
                method: value("Mcp-Method"),
                name: value("Mcp-Name"),
            };
            assert!(headers.name.unwrap().is_ascii());
            let found = generation(headers, &request("tools/call", params));
            assert_eq!(found, Ok(McpGeneration::Stateless), "{name}");
        }
        assert!(headers_of(&json!({"method": "ping"})).is_empty());
    }
}
