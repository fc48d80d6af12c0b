//! Slack's notation: ids of messages, answers of the Web API, error codes, and what is cut from
//! payloads before they are stored.

use monoco_core::time::Timestamp;
use serde_json::{Map, Value};

/// What is stored in place of a secret.
const CUT: &str = "[cut]";

/// Deepest payload that is stored. Slack nests blocks about ten levels deep.
const MAX_DEPTH: usize = 40;

/// Keys whose values are secrets, or links that work without a login.
const SECRET_KEYS: [&str; 10] = [
    "token",
    "bot_access_token",
    "response_url",
    "response_urls",
    "trigger_id",
    "hook_url",
    "upload_url",
    "permalink_public",
    "secret",
    "event_context",
];

/// Beginnings of keys whose values are private links, such as `url_private` and `thumb_64`.
const PRIVATE_KEYS: [&str; 2] = ["url_private", "thumb_"];

/// What an error code of the Web API means for a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlackErrorKind {
    /// Another attempt may succeed, and nothing was executed.
    Temporary,
    Permanent,
    /// Slack could not finish the request. A part of it may have been executed.
    Ambiguous,
    /// Over the limit. Nothing was executed.
    Throttled,
    /// The formatted text was rejected. The plain text may be accepted.
    Format,
}

/// Classifies an error code. Codes that are not listed are permanent: Slack adds codes for new
/// restrictions.
///
/// Source: the error tables of chat.postMessage, files.completeUploadExternal, conversations.*
/// and apps.connections.open on docs.slack.dev. Of `fatal_error` and `internal_error` they say
/// that some aspect of the operation may have succeeded.
pub(super) fn error_kind(code: &str) -> SlackErrorKind {
    match code {
        "ratelimited" | "rate_limited" => SlackErrorKind::Throttled,
        // A token that expires is renewed by its source.
        "service_unavailable"
        | "request_timeout"
        | "token_expired"
        | "team_added_to_org"
        | "message_limit_exceeded" => SlackErrorKind::Temporary,
        "internal_error" | "fatal_error" => SlackErrorKind::Ambiguous,
        "invalid_blocks"
        | "invalid_blocks_format"
        | "invalid_attachments"
        | "msg_blocks_too_long"
        | "block_mismatch"
        | "too_many_blocks"
        | "markdown_text_conflict" => SlackErrorKind::Format,
        _ => SlackErrorKind::Permanent,
    }
}

/// Returns what an operator can do about a permanent error.
pub(super) fn error_advice(code: &str) -> &'static str {
    match code {
        "not_in_channel" => "; invite the bot into the channel",
        "channel_not_found" => "; the channel does not exist, or the bot is not in it",
        "is_archived" => "; the channel is archived",
        "missing_scope" | "not_allowed_token_type" => {
            "; add the scope in the app's OAuth & Permissions and install the app again"
        }
        "invalid_auth" | "not_authed" | "token_revoked" | "token_expired" | "account_inactive" => {
            "; the token is not valid: set the current token of the app"
        }
        "restricted_action" | "restricted_action_read_only_channel" => {
            "; the workspace does not let the bot write here"
        }
        "msg_too_long" | "no_text" => "; send a text of 1 to 40,000 characters",
        "link_disabled" => "; turn Socket Mode on in the settings of the app",
        _ => "",
    }
}

/// An answer of the Web API.
#[derive(Debug)]
pub(super) struct ApiReply {
    body: Value,
}

impl ApiReply {
    /// Parses the body of an answer with status 200. `None` when it is not an answer of Slack.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let body: Value = serde_json::from_slice(body).ok()?;
        body.get("ok")?.as_bool()?;
        Some(Self { body })
    }

    /// Returns the error code, or `None` when the request succeeded.
    pub fn error(&self) -> Option<&str> {
        match self.body["ok"].as_bool() {
            Some(true) => None,
            _ => Some(self.text("error").unwrap_or("no_error_code")),
        }
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        text(&self.body, key)
    }

    pub fn value(&self) -> &Value {
        &self.body
    }

    /// Returns where the next page starts, when there is one.
    pub fn next_cursor(&self) -> Option<&str> {
        text(&self.body["response_metadata"], "next_cursor")
    }

    /// Returns the scope that a call with `missing_scope` needs.
    pub fn needed_scope(&self) -> Option<&str> {
        self.text("needed")
    }
}

/// Returns the text under `key`, unless it is empty or of another type.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// Returns the entries of the list under `key`.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the external id of a message: its chat and its timestamp, which is unique there.
pub(super) fn message_id(channel: &str, ts: &str) -> String {
    format!("{channel}:{ts}")
}

/// Returns chat and timestamp of an external id.
pub(super) fn split_message_id(id: &str) -> Option<(&str, &str)> {
    id.split_once(':').filter(|(channel, ts)| !channel.is_empty() && is_ts(ts))
}

/// Tells whether a text has the form of a timestamp, such as `1700000000.000100`.
pub(super) fn is_ts(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.len() <= 32 && text.split_once('.').is_some_and(|(s, us)| digits(s) && digits(us))
}

/// Returns the time of a timestamp. Its digits are never read as a floating-point number, which
/// would change them.
pub(super) fn time_of_ts(ts: &str) -> Option<Timestamp> {
    let (seconds, fraction) = ts.split_once('.').unwrap_or((ts, ""));
    let seconds: i64 = seconds.parse().ok()?;
    let ms: String = fraction.chars().chain("000".chars()).take(3).collect();
    Some(Timestamp::from_ms(seconds.checked_mul(1000)?.checked_add(ms.parse().ok()?)?))
}

/// Returns the earliest timestamp at `time`, for the bounds of a history.
pub(super) fn ts_at(time: Timestamp) -> String {
    let ms = time.ms().max(0);
    format!("{}.{:03}000", ms / 1000, ms % 1000)
}

/// Returns a payload without tokens, private links and links that work without a login.
pub(super) fn redact(value: &Value) -> Value {
    redact_at(value, 0)
}

fn redact_at(value: &Value, depth: usize) -> Value {
    match value {
        _ if depth > MAX_DEPTH => Value::String(CUT.to_owned()),
        Value::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| {
                let is_secret = SECRET_KEYS.contains(&key.as_str())
                    || PRIVATE_KEYS.iter().any(|start| key.starts_with(start));
                let is_link = !matches!(value, Value::Number(_) | Value::Bool(_) | Value::Null);
                let value = match is_secret && is_link {
                    true => Value::String(CUT.to_owned()),
                    false => redact_at(value, depth + 1),
                };
                (key.clone(), value)
            });
            Value::Object(entries.collect::<Map<_, _>>())
        }
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| redact_at(item, depth + 1)).collect())
        }
        Value::String(text) if holds_secret(text) => Value::String(CUT.to_owned()),
        other => other.clone(),
    }
}

/// Tells whether a text contains a token, or a link to a webhook or a private file.
fn holds_secret(text: &str) -> bool {
    const SECRETS: [&str; 8] = [
        "xoxb-",
        "xoxp-",
        "xoxe-",
        "xoxe.",
        "xapp-",
        "hooks.slack.com/",
        "files.slack.com/",
        "wss-primary.slack.com/",
    ];
    SECRETS.iter().any(|secret| text.contains(secret))
}

#[cfg(test)]
mod tests;
