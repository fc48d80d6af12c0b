//! Looks for a part of a message at Slack: a text by its metadata, a file by the id
//! of its upload. Without that id, such as after a restart, a file is not found: another file can
//! have the same name.

use std::time::Duration;

use monoco_core::time::Timestamp;
use serde_json::Value;

use super::client::SlackApiError;
use super::outbound::{METADATA_TYPE, MessagePlace};
use super::upload;
use super::wire::{list, message_id, text, ts_at};
use super::workspace::SlackWorkspace;

/// Most pages that are read.
const MAX_PAGES: usize = 5;

/// How far the clocks of Slack and of this machine may differ.
const MARGIN: Duration = Duration::from_secs(600);

/// A part whose outcome is not known.
pub(super) struct SentSearch<'a> {
    pub place: &'a MessagePlace,
    /// The id of the delivery.
    pub key: &'a str,
    pub number: u32,
    /// When the message was created. It cannot have been sent before.
    pub since: Timestamp,
}

/// Returns the timestamp of a text.
pub(super) async fn find_text(
    workspace: &SlackWorkspace,
    search: &SentSearch<'_>,
) -> Result<Option<String>, SlackApiError> {
    let number = u64::from(search.number);
    let is_sent = |message: &Value| {
        let metadata = &message["metadata"];
        let payload = &metadata["event_payload"];
        text(metadata, "event_type") == Some(METADATA_TYPE)
            && text(payload, "delivery") == Some(search.key)
            && payload["part"].as_u64() == Some(number)
    };
    let found = find_message(workspace, search, &is_sent).await?;
    Ok(found.and_then(|message| text(&message, "ts").map(str::to_owned)))
}

/// Returns the id of the message with a file; the inner value is `None` when the file is there
/// and its message is not known.
pub(super) async fn find_file(
    workspace: &SlackWorkspace,
    search: &SentSearch<'_>,
    uploaded: Option<&str>,
) -> Result<Option<Option<String>>, SlackApiError> {
    let Some(id) = uploaded else { return Ok(None) };
    let own = workspace.own_account().await?;
    let chat = &search.place.chat;
    if let Some(ts) = upload::shared_ts(workspace, id, chat).await? {
        return Ok(Some(Some(message_id(chat, &ts))));
    }
    let is_sent = |message: &Value| {
        let is_own = text(message, "user") == Some(own.user_id.as_str());
        is_own && list(message, "files").iter().any(|found| text(found, "id") == Some(id))
    };
    let found = find_message(workspace, search, &is_sent).await?;
    Ok(found.map(|message| text(&message, "ts").map(|ts| message_id(chat, ts))))
}

/// Returns the first message in the chat or thread that `is_wanted` accepts. `None` is no proof
/// that there is none: at most [`MAX_PAGES`] pages are read.
async fn find_message(
    workspace: &SlackWorkspace,
    search: &SentSearch<'_>,
    is_wanted: &(dyn Fn(&Value) -> bool + Sync),
) -> Result<Option<Value>, SlackApiError> {
    let margin = i64::try_from(MARGIN.as_millis()).unwrap_or(i64::MAX);
    let oldest = ts_at(Timestamp::from_ms(search.since.ms().saturating_sub(margin)));
    let mut cursor = String::new();
    for _ in 0..MAX_PAGES {
        let mut fields = vec![
            ("channel", search.place.chat.as_str()),
            ("oldest", oldest.as_str()),
            ("include_all_metadata", "true"),
            ("limit", "200"),
        ];
        let method = match &search.place.thread {
            Some(thread) => {
                fields.push(("ts", thread));
                "conversations.replies"
            }
            None => "conversations.history",
        };
        if !cursor.is_empty() {
            fields.push(("cursor", &cursor));
        }
        let reply = workspace.client.read(method, &fields).await?;
        let messages = list(reply.value(), "messages");
        if let Some(found) = messages.iter().find(|message| is_wanted(message)) {
            return Ok(Some(found.clone()));
        }
        match reply.next_cursor() {
            Some(next) => cursor = next.to_owned(),
            None => return Ok(None),
        }
    }
    Ok(None)
}
