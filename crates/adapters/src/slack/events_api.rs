//! The Events API: requests that Slack posts to the webhook listener.
//!
//! Slack repeats a request that is not answered with 2xx within 3 s, up to three times. The
//! repeated request has the same event, which is recognised by its id.

use futures_util::FutureExt as _;
use http::StatusCode;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::history::SlackHistory;
use super::wire::text;
use super::workspace::{EventSource, SlackWorkspace};
use crate::missed_history::HistoryCatchUp;
use crate::naming_sink::NamingSink;
use crate::{WebhookAnswer, WebhookContent, WebhookError, WebhookRequest, push_mode};

/// Parses a verified request.
pub(super) fn read(
    workspace: &SlackWorkspace,
    request: &WebhookRequest<'_>,
) -> Result<WebhookContent, WebhookError> {
    let (source, payload) = parse(request.body)?;
    if text(&payload, "type") == Some("url_verification") {
        let challenge = text(&payload, "challenge").unwrap_or_default();
        let answer = answer("text/plain", challenge.as_bytes().to_vec());
        return Ok(WebhookContent { events: Vec::new(), answer: Some(answer) });
    }
    let events = workspace.read(source, payload);
    Ok(WebhookContent { events, answer: Some(answer("application/json", b"{}".to_vec())) })
}

fn answer(content_type: &'static str, body: Vec<u8>) -> WebhookAnswer {
    WebhookAnswer { status: StatusCode::OK, content_type, body }
}

/// Parses a body: JSON for events, a form with JSON in `payload` for interactions, and a form
/// for slash commands.
fn parse(body: &[u8]) -> Result<(EventSource, Value), WebhookError> {
    if body.trim_ascii_start().starts_with(b"{") {
        let payload = serde_json::from_slice(body);
        let payload =
            payload.map_err(|error| WebhookError::Unreadable(format!("no JSON: {error}")))?;
        return Ok((EventSource::Callback, payload));
    }
    let mut fields = serde_json::Map::new();
    for pair in body.split(|byte| *byte == b'&') {
        let mut parts = pair.splitn(2, |byte| *byte == b'=');
        let name = decode(parts.next().unwrap_or_default());
        fields.insert(name, Value::String(decode(parts.next().unwrap_or_default())));
    }
    let source = |kind: &str| EventSource::Interaction(kind.to_owned());
    match fields.get("payload").and_then(Value::as_str) {
        Some(payload) => {
            let payload = serde_json::from_str(payload);
            let payload = payload.map_err(|error| {
                WebhookError::Unreadable(format!("no JSON in payload: {error}"))
            })?;
            Ok((source("interactive"), payload))
        }
        None if fields.contains_key("command") => {
            Ok((source("slash_commands"), Value::Object(fields)))
        }
        None => Err(WebhookError::Unreadable("expected JSON or a form of Slack".to_owned())),
    }
}

fn decode(text: &[u8]) -> String {
    let spaces: Vec<u8> =
        text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    percent_encoding::percent_decode(&spaces).decode_utf8_lossy().into_owned()
}

/// Reads the account of the bot and the history once, and waits for `stop`. Requests are
/// received meanwhile.
pub(super) async fn listen(
    workspace: &SlackWorkspace,
    catch_up: &HistoryCatchUp,
    sink: &NamingSink<'_>,
    stop: &CancellationToken,
) {
    let read = |gap| {
        let missed = async move {
            workspace.own_account().await.map_err(|error| error.failure)?;
            catch_up.run(&mut SlackHistory::new(workspace, sink), sink, gap).await
        };
        missed.boxed()
    };
    push_mode::listen(stop, read).await;
}

#[cfg(test)]
mod tests;
