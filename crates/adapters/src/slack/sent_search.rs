//! Looks for a part of a message at Slack: a text by its metadata, a file by the id
//! of its upload. Without that id, such as after a restart, a file is not found: another file can
//! have the same name.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use monoco_core::time::Timestamp;
use serde_json::Value;

use super::client::SlackApiError;
use super::inbound::OwnAccount;
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

/// What is known about a part after a look into the chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SentLookup {
    /// It is there. The id of its message, if it is known.
    Found(Option<String>),
    /// It is not there: all messages since its creation were read.
    Absent,
    /// It was not found, which proves nothing.
    Unclear,
}

/// What a search through the messages of a chat found.
enum HistorySearch {
    Found(Box<Value>),
    /// All messages were read.
    Absent,
    /// More than [`MAX_PAGES`] pages.
    Unfinished,
}

/// Looks for a text.
pub(super) async fn find_text(
    workspace: &SlackWorkspace,
    search: &SentSearch<'_>,
) -> Result<SentLookup, SlackApiError> {
    let number = u64::from(search.number);
    let own = workspace.known_account();
    let is_hidden = AtomicBool::new(false);
    let is_sent = |message: &Value| {
        let metadata = &message["metadata"];
        let payload = &metadata["event_payload"];
        // Slack may not show metadata to the bot. Then this message could be the one.
        if text(metadata, "event_type").is_none()
            && list(message, "files").is_empty()
            && is_own(message, own.as_deref())
        {
            is_hidden.store(true, Ordering::Relaxed);
        }
        text(metadata, "event_type") == Some(METADATA_TYPE)
            && text(payload, "delivery") == Some(search.key)
            && payload["part"].as_u64() == Some(number)
    };
    Ok(match find_message(workspace, search, &is_sent).await? {
        HistorySearch::Found(message) => {
            SentLookup::Found(text(&message, "ts").map(|ts| message_id(&search.place.chat, ts)))
        }
        HistorySearch::Absent if !is_hidden.into_inner() => SentLookup::Absent,
        HistorySearch::Absent | HistorySearch::Unfinished => SentLookup::Unclear,
    })
}

/// Tells whether a message can be of this bot.
fn is_own(message: &Value, own: Option<&OwnAccount>) -> bool {
    let (user, bot) = (text(message, "user"), text(message, "bot_id"));
    match own {
        Some(own) => {
            user == Some(own.user_id.as_str()) || bot.is_some() && bot == own.bot_id.as_deref()
        }
        None => bot.is_some(),
    }
}

/// Looks for a file. That it is not found proves nothing, because Slack shares files later than
/// it answers.
pub(super) async fn find_file(
    workspace: &SlackWorkspace,
    search: &SentSearch<'_>,
    uploaded: Option<&str>,
) -> Result<SentLookup, SlackApiError> {
    let Some(id) = uploaded else { return Ok(SentLookup::Unclear) };
    let own = workspace.own_account().await?;
    let chat = &search.place.chat;
    if let Some(ts) = upload::shared_ts(workspace, id, chat).await? {
        return Ok(SentLookup::Found(Some(message_id(chat, &ts))));
    }
    let is_sent = |message: &Value| {
        let is_own = text(message, "user") == Some(own.user_id.as_str());
        is_own && list(message, "files").iter().any(|found| text(found, "id") == Some(id))
    };
    Ok(match find_message(workspace, search, &is_sent).await? {
        HistorySearch::Found(message) => {
            SentLookup::Found(text(&message, "ts").map(|ts| message_id(chat, ts)))
        }
        HistorySearch::Absent | HistorySearch::Unfinished => SentLookup::Unclear,
    })
}

/// Returns the first message in the chat or thread that `is_wanted` accepts.
async fn find_message(
    workspace: &SlackWorkspace,
    search: &SentSearch<'_>,
    is_wanted: &(dyn Fn(&Value) -> bool + Sync),
) -> Result<HistorySearch, SlackApiError> {
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
            return Ok(HistorySearch::Found(Box::new(found.clone())));
        }
        match reply.next_cursor() {
            Some(next) => cursor = next.to_owned(),
            None => return Ok(HistorySearch::Absent),
        }
    }
    Ok(HistorySearch::Unfinished)
}
