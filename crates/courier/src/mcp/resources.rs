//! Resources: Mails, conversations and attachments by their URIs.

use monoco_core::token::Scope;
use monoco_store::{MailQuery, PageRequest};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::protocol::McpGeneration;
use super::result::{ToolError, ToolResult, fence};
use super::rpc::{INVALID_PARAMS, RESOURCE_NOT_FOUND, RpcError};
use super::tools::ToolContext;
use super::tools::reading::{self, ReadAttachmentArgs, ReadMailArgs, ReadThreadArgs};

/// Mails that `resources/list` names; the tool list_mails pages through all of them.
const MAX_LISTED: usize = 20;

const SCHEME: &str = "monoco://";

/// The newest Mails by id. Titles and names are text of others, so they are not shown here.
pub async fn list(context: ToolContext<'_>) -> Result<Value, RpcError> {
    if !context.agent.has_scope(Some(Scope::Read)) {
        return Ok(json!({"resources": []}));
    }
    let query = MailQuery {
        workspace: context.agent.workspace.clone(),
        status: None,
        provider: None,
        since: None,
        unclaimed: false,
    };
    let newest = PageRequest { beyond: None, limit: MAX_LISTED, newest_first: true };
    let page = context.api.store.mails(query, newest).await;
    let page = page.map_err(|error| internal(&ToolError::from(error)))?;
    let resources = page.entries.iter().map(|row| {
        let id = &row.entry.id;
        json!({"uri": format!("{SCHEME}mail/{id}"), "name": id, "mimeType": "text/plain"})
    });
    Ok(json!({"resources": resources.collect::<Vec<_>>()}))
}

/// The forms of the URIs, for `resources/templates/list`.
pub fn templates() -> Value {
    let template = |path: &str, name: &str, description: &str| {
        let uri = format!("{SCHEME}{path}");
        json!({
            "uriTemplate": uri,
            "name": name,
            "description": description,
            "mimeType": "text/plain",
        })
    };
    json!({"resourceTemplates": [
        template("mail/{id}", "mail", "Text of a Mail"),
        template("session/{did}", "session", "Last messages with a party or group"),
        template("attachment/{mail}/{hash}", "attachment", "Attached text or image"),
    ]})
}

/// The content of one resource, between delimiters.
pub async fn read(
    context: ToolContext<'_>,
    generation: McpGeneration,
    uri: &str,
) -> Result<Value, RpcError> {
    let unknown = || {
        let code = match generation {
            McpGeneration::Session => RESOURCE_NOT_FOUND,
            McpGeneration::Stateless => INVALID_PARAMS,
        };
        let uri: String = uri.chars().take(200).collect();
        let error = RpcError::new(code, "resource not found; see resources/templates/list");
        RpcError { data: Some(json!({"uri": uri})), ..error }
    };
    if !context.agent.has_scope(Some(Scope::Read)) {
        return Err(unknown());
    }
    let path = uri.strip_prefix(SCHEME).and_then(|path| path.split_once('/'));
    let (kind, rest) = path.ok_or_else(unknown)?;
    let rest = percent_decode_str(rest).decode_utf8().map_err(|_| unknown())?.into_owned();
    let result = match kind {
        "mail" => reading::read_mail(context, ReadMailArgs::whole(rest)).await,
        "session" => reading::read_thread(context, ReadThreadArgs::of_session(rest)).await,
        "attachment" => {
            let (mail, hash) = rest.split_once('/').ok_or_else(unknown)?;
            let args = ReadAttachmentArgs::whole(mail.to_owned(), hash.to_owned());
            reading::read_attachment(context, args).await
        }
        _ => return Err(unknown()),
    };
    let ToolResult { text, image, .. } = result.map_err(|error| match error.code {
        "not_found" | "bad_argument" | "erased" => unknown(),
        _ => internal(&error),
    })?;
    let content = match (text, image) {
        (_, Some(image)) => json!({"uri": uri, "mimeType": image.mime_type, "blob": image.base64}),
        (text, None) => {
            let text = text.map(|text| fence(text.trust, &text.text)).transpose();
            let text = text.map_err(|error| internal(&error.into()))?;
            json!({"uri": uri, "mimeType": "text/plain", "text": text.unwrap_or_default()})
        }
    };
    Ok(json!({"contents": [content]}))
}

fn internal(error: &ToolError) -> RpcError {
    const INTERNAL_ERROR: i64 = -32_603;
    RpcError::new(INTERNAL_ERROR, error.message.clone())
}
