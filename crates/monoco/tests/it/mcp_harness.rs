//! Calls of MCP methods over HTTP, in both generations of the protocol, and tokens for agents.

use serde_json::{Value, json};

use crate::common::{Answer, Courier, raw};
use crate::webhook_peer::{Receiver, SECRET};

/// A courier with the webhook tunnel `ci`, which answers to `receiver`.
pub fn answering_config(receiver: &Receiver) -> String {
    let url = receiver.url("/hook");
    format!(
        "courier:\n  debounce: {{ window_ms: 50 }}\n  adapters:\n    ci: {{ provider: webhook, \
         verify: standard, secret: '{SECRET}', send_to: '{url}', allow_private: true }}\n"
    )
}

/// A generation of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Until 2025-11-25.
    Session,
    /// From 2026-07-28 on.
    Stateless,
}

/// The estimate that budgets are in: ASCII/4, and one for every other character.
pub fn tokens(text: &str) -> usize {
    let ascii = text.chars().filter(char::is_ascii).count();
    ascii.div_ceil(4) + text.chars().count() - ascii
}

impl Courier {
    /// Creates a token for an agent and returns its secret.
    #[track_caller]
    pub fn agent(&self, name: &str, scopes: &str, workspace: &str) -> String {
        let args = ["token", "add", name, "--scope", scopes, "--workspace", workspace];
        self.cli(&args).ok().trim().to_owned()
    }

    /// Approves the message that a tool has reported as HELD.
    #[track_caller]
    pub fn approve_held(&self, sent: &Value) {
        assert_eq!(sent["state"], "HELD", "{sent}");
        let next = "Not sent. A person decides. Do not send again; ask message_status.";
        assert_eq!(sent["next"], next);
        let id = sent["approval"]["id"].as_str().unwrap();
        let approved = self.post(&format!("/api/v1/approvals/{id}/approve"), &json!({})).ok();
        assert_eq!(approved["state"], "APPROVED", "{approved}");
    }

    /// Posts a body to `/mcp` with a token and further headers.
    pub fn post_mcp(&self, token: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut all = vec![
            ("Host".to_owned(), format!("localhost:{}", self.address.port())),
            ("Authorization".to_owned(), format!("Bearer {token}")),
            ("Content-Type".to_owned(), "application/json".to_owned()),
        ];
        all.extend(headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        raw(self.address, "POST", "/mcp", &all, body.as_bytes()).unwrap()
    }

    /// Calls a method and returns the response.
    pub fn rpc(&self, wire: Wire, token: &str, method: &str, mut params: Value) -> Answer {
        let mut headers = Vec::new();
        let name = params.get("name").or(params.get("uri")).cloned().unwrap_or_default();
        if wire == Wire::Stateless {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            });
            headers = vec![("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", method)];
            headers.extend(name.as_str().map(|name| ("Mcp-Name", name)));
        }
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.post_mcp(token, &headers, &body.to_string())
    }

    /// The result of a method that must go well.
    #[track_caller]
    pub fn rpc_result(&self, wire: Wire, token: &str, method: &str, params: Value) -> Value {
        let answer = self.rpc(wire, token, method, params).ok();
        assert!(answer["error"].is_null(), "{answer:#}");
        answer["result"].clone()
    }

    /// Calls a tool.
    #[track_caller]
    pub fn tool(&self, token: &str, name: &str, arguments: Value) -> Value {
        let params = json!({"name": name, "arguments": arguments});
        self.rpc_result(Wire::Stateless, token, "tools/call", params)
    }

    /// The facts of a tool that must go well.
    #[track_caller]
    pub fn facts(&self, token: &str, name: &str, arguments: Value) -> Value {
        let result = self.tool(token, name, arguments);
        assert_eq!(result["isError"], false, "{name}: {result:#}");
        facts(&result)
    }

    /// The message of a tool that must fail, and its code.
    #[track_caller]
    pub fn tool_error(&self, token: &str, name: &str, arguments: Value) -> (String, String) {
        let result = self.tool(token, name, arguments);
        assert_eq!(result["isError"], true, "{name}: {result:#}");
        let facts = facts(&result);
        let text = |key: &str| facts[key].as_str().unwrap().to_owned();
        (text("error"), text("message"))
    }
}

/// The facts of the courier in a result: its first block.
#[track_caller]
pub fn facts(result: &Value) -> Value {
    serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap()
}

/// The text between the delimiters of a result's second block.
#[track_caller]
pub fn fenced(result: &Value) -> String {
    let block = result["content"][1]["text"].as_str().unwrap_or_else(|| panic!("{result:#}"));
    let (_, rest) = block.split_once("BEGINS ]=====\n").unwrap();
    let (text, _) = rest.split_once("\n=====[ MONOCO-FENCE").unwrap();
    text.to_owned()
}
