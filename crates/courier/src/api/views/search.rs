//! Messages that a search has found.

use std::borrow::Cow;

use monoco_core::claim::ClaimState;
use monoco_core::delivery::SendState;
use monoco_core::time::Timestamp;
use serde::{Deserialize, Serialize};
#[cfg(test)]
use utoipa::ToSchema;

use crate::center::search::{FoundMessage, SearchResults};

/// A page of messages that were found.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = SearchResults))]
pub struct SearchPageView {
    pub messages: Vec<FoundMessageView>,
    /// Whether the index had all messages that were stored before the search
    pub complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A message that was found. All texts are untrusted.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = FoundMessage))]
pub struct FoundMessageView {
    /// Id of the MsgObject
    pub msg_id: String,
    /// Id of the Mail, when the message is one
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mail_id: Option<String>,
    /// Either `in` or `out`
    pub direction: Cow<'static, str>,
    /// When it was stored, RFC 3339
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Name or id of the first author
    pub from: String,
    /// Name or id of the chat, or the first recipient of a sent message
    pub chat: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    pub tunnels: Vec<String>,
    /// Status of a Mail in the workspace, or the state of each delivery
    pub status: Vec<String>,
    pub snippet: SnippetView,
}

/// The part of a message that shows why it was found: plain text, no markup.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Snippet))]
pub struct SnippetView {
    pub text: String,
    /// Start and end of each match, in Unicode characters of `text` from 0; the end is exclusive
    #[cfg_attr(test, schema(value_type = Vec<Vec<usize>>))]
    pub highlights: Vec<(usize, usize)>,
}

/// What a rebuild of the search index has started.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = SearchRebuild))]
pub struct SearchRebuildView {
    /// The index is empty and is built in the background
    pub rebuilding: bool,
}

impl From<SearchResults> for SearchPageView {
    fn from(results: SearchResults) -> Self {
        let SearchResults { messages, next_cursor, is_complete } = results;
        let messages = messages.into_iter().map(Into::into).collect();
        Self { messages, complete: is_complete, next_cursor }
    }
}

impl From<FoundMessage> for FoundMessageView {
    fn from(FoundMessage { hit, document, snippet }: FoundMessage) -> Self {
        let status = match &hit.mail {
            Some(row) => {
                let claim = row.claim.as_ref().map(|claim| claim.claiming.state.name());
                vec![claim.unwrap_or(ClaimState::New).as_str().to_owned()]
            }
            None => hit.deliveries.into_iter().map(SendState::as_str).map(str::to_owned).collect(),
        };
        let first = |list: Vec<String>| list.into_iter().next().unwrap_or_default();
        Self {
            msg_id: hit.id.to_string(),
            mail_id: hit.mail.map(|row| row.entry.id.to_string()),
            direction: if hit.is_sent { "out" } else { "in" }.into(),
            at: hit.at.map(Timestamp::rfc3339),
            from: first(document.authors),
            chat: first(document.chat),
            title: document.title,
            tunnels: hit.tunnels,
            status,
            snippet: SnippetView { text: snippet.text, highlights: snippet.highlights },
        }
    }
}
