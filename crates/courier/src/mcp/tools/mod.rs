//! The tools: their definitions, and which function runs each.
//!
//! | file | tools |
//! | --- | --- |
//! | `inspection.rs` | whoami, trace, message_status |
//! | `mails.rs` | list_mails, wait_for_mail, search |
//! | `reading.rs` | read_mail, read_thread, read_attachment |
//! | `claims.rs` | claim_mail, renew_claim, finish_mail |
//! | `sending.rs` | reply_to_mail, send_message, withdraw |
//!
//! A tool calls the functions that the HTTP API calls. It takes the sender, the workspace and the
//! holder of claims from the token, never from its arguments.

use std::sync::LazyLock;

use monoco_core::mail::{MAX_PREVIEW_CHARS, MailId, MailIndexEntry};
use monoco_core::token::Scope;
use monoco_store::StoreError;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::agent::McpAgent;
use super::budget::shorten;
use super::result::{ToolError, ToolResult};
use crate::api::error::ApiError;
use crate::api::{self, Api, ids};

mod claims;
mod inspection;
mod mails;
pub mod reading;
mod sending;

/// What a tool works with.
#[derive(Clone, Copy)]
pub struct ToolContext<'a> {
    pub api: &'a Api,
    pub agent: &'a McpAgent,
}

/// What a tool changes, as hints for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ToolEffect {
    /// Changes nothing at the courier.
    Reads,
    /// Changes the state of Mails and own messages, inside this hub.
    Claims,
    /// Sends messages to people outside.
    Sends,
}

/// One tool as clients see it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolDefinition {
    pub name: String,
    /// The name of the scope that a token needs; `None` when every token may call it.
    scope: Option<String>,
    effect: ToolEffect,
    description: String,
    /// The arguments, as JSON Schema.
    #[serde(default)]
    properties: Map<String, Value>,
    #[serde(default)]
    required: Vec<String>,
}

/// All tools, in the order in which they are listed.
static TOOLS: LazyLock<Vec<ToolDefinition>> = LazyLock::new(|| {
    // A test reads the file, so it is valid.
    serde_json::from_str(include_str!("../tools.json")).unwrap_or_default()
});

impl ToolDefinition {
    fn scope(&self) -> Option<Scope> {
        self.scope.as_deref().and_then(Scope::parse)
    }

    /// The definition as `tools/list` returns it.
    fn view(&self) -> Value {
        let mut schema = json!({"type": "object", "properties": self.properties});
        if !self.required.is_empty() {
            schema["required"] = json!(self.required);
        }
        json!({
            "name": self.name,
            "description": self.description,
            "inputSchema": schema,
            "annotations": {
                "readOnlyHint": self.effect == ToolEffect::Reads,
                "openWorldHint": self.effect == ToolEffect::Sends,
            },
        })
    }
}

/// The definitions of the tools that the agent may call.
pub fn list(agent: &McpAgent) -> Vec<Value> {
    let allowed = TOOLS.iter().filter(|tool| agent.has_scope(tool.scope()));
    allowed.map(ToolDefinition::view).collect()
}

/// Calls a tool; `None` when there is no tool with this name.
pub async fn call(
    context: ToolContext<'_>,
    name: &str,
    arguments: Map<String, Value>,
) -> Option<Result<ToolResult, ToolError>> {
    let tool = TOOLS.iter().find(|tool| tool.name == name)?;
    if let Some(scope) = tool.scope()
        && !context.agent.has_scope(Some(scope))
    {
        return Some(Err(missing_scope(context.agent, name, scope)));
    }
    if tool.effect != ToolEffect::Reads
        && let Err(locked) = api::check_lock(context.api, Some(&context.agent.caller)).await
    {
        return Some(Err(locked.into()));
    }
    Some(run(context, name, arguments.into()).await)
}

async fn run(
    context: ToolContext<'_>,
    name: &str,
    arguments: Value,
) -> Result<ToolResult, ToolError> {
    match name {
        "whoami" => inspection::whoami(context, parse(arguments)?).await,
        "list_mails" => mails::list(context, parse(arguments)?).await,
        "wait_for_mail" => mails::wait(context, parse(arguments)?).await,
        "read_mail" => reading::read_mail(context, parse(arguments)?).await,
        "read_thread" => reading::read_thread(context, parse(arguments)?).await,
        "search" => mails::search(context, parse(arguments)?).await,
        "read_attachment" => reading::read_attachment(context, parse(arguments)?).await,
        "trace" => inspection::trace(context, parse(arguments)?).await,
        "claim_mail" => claims::claim(context, parse(arguments)?).await,
        "renew_claim" => claims::renew(context, parse(arguments)?).await,
        "finish_mail" => claims::finish(context, parse(arguments)?).await,
        "reply_to_mail" => sending::reply(context, parse(arguments)?).await,
        "message_status" => inspection::message_status(context, parse(arguments)?).await,
        "withdraw" => sending::withdraw(context, parse(arguments)?).await,
        "send_message" => sending::send(context, parse(arguments)?).await,
        _ => Err(ToolError::new("unknown_tool", format!("there is no tool {name:?}"))),
    }
}

/// Converts arguments. Unknown ones are rejected, with the one that was probably meant.
fn parse<T: DeserializeOwned>(arguments: Value) -> Result<T, ToolError> {
    T::deserialize(arguments).map_err(|error| {
        let ApiError { message, .. } = ApiError::wrong_shape(&error);
        ToolError::new("bad_arguments", message)
    })
}

fn missing_scope(agent: &McpAgent, tool: &str, scope: Scope) -> ToolError {
    let message = format!(
        "{tool} needs the scope {}, which the token of {} does not have; ask the owner of the hub \
         for another token",
        scope.as_str(),
        agent.name()
    );
    ToolError::new("missing_scope", message)
}

/// Parses the id of a Mail, which can be shortened.
async fn mail_id(context: ToolContext<'_>, text: &str) -> Result<MailId, ToolError> {
    let missing =
        |_| StoreError::Missing { what: "Mail", key: text.chars().take(80).collect() }.into();
    Ok(ids::resolve(context.api, text, missing).await?)
}

/// Longest title, name or other label of a summary, in characters.
const MAX_LABEL_CHARS: usize = 120;

/// The author, title and start of a Mail, in lines that belong between delimiters.
fn summary(entry: &MailIndexEntry) -> String {
    let label = |text: &str| shorten(text, MAX_LABEL_CHARS);
    let authors = entry.participants.from.iter();
    let authors: Vec<_> = authors.map(|author| author.display_name()).collect();
    let mut text = format!("{}\nfrom: {}\n", entry.id, label(&authors.join(", ")));
    let session = entry.session.name.as_deref().unwrap_or(&entry.session.id);
    text.push_str(&format!("session: {}\n", label(session)));
    if let Some(title) = &entry.title {
        text.push_str(&format!("title: {}\n", label(title)));
    }
    text.push_str(&format!("preview: {}\n", shorten(&entry.preview, MAX_PREVIEW_CHARS)));
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The arguments that a tool accepts, as its parser names them.
    fn accepted(name: &str) -> BTreeSet<String> {
        fn error<T: DeserializeOwned + std::fmt::Debug>() -> String {
            parse::<T>(json!({"": 0})).unwrap_err().message
        }
        let message = match name {
            "whoami" => error::<inspection::WhoamiArgs>(),
            "list_mails" => error::<mails::ListMailsArgs>(),
            "wait_for_mail" => error::<mails::WaitArguments>(),
            "read_mail" => error::<reading::ReadMailArgs>(),
            "read_thread" => error::<reading::ReadThreadArgs>(),
            "search" => error::<mails::SearchToolParams>(),
            "read_attachment" => error::<reading::ReadAttachmentArgs>(),
            "trace" => error::<inspection::TraceArguments>(),
            "claim_mail" => error::<claims::ClaimMailArgs>(),
            "renew_claim" => error::<claims::RenewClaimArgs>(),
            "finish_mail" => error::<claims::FinishMailArgs>(),
            "reply_to_mail" => error::<sending::ReplyToMailArgs>(),
            "message_status" => error::<inspection::MessageStatusArgs>(),
            "withdraw" => error::<sending::WithdrawArgs>(),
            "send_message" => error::<sending::SendMessageArgs>(),
            _ => panic!("{name} has no arguments"),
        };
        let names = message.split('`').skip(1).step_by(2).map(str::to_owned);
        names.filter(|name| !name.is_empty()).collect()
    }

    #[test]
    fn definitions_name_the_arguments_that_their_tools_accept() {
        let tools: Vec<ToolDefinition> =
            serde_json::from_str(include_str!("../tools.json")).unwrap();
        assert_eq!(tools.len(), 15);
        for tool in &tools {
            let defined: BTreeSet<_> = tool.properties.keys().cloned().collect();
            assert_eq!(accepted(&tool.name), defined, "{}", tool.name);
            assert!(tool.required.iter().all(|name| defined.contains(name)), "{}", tool.name);
            assert_eq!(tool.scope.is_some(), tool.scope().is_some(), "{}", tool.name);
        }
    }
}
