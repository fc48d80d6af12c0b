//! Reads the history after a gap: the messages of each chat, and the replies in its threads.
//! [`crate::missed_history`] decides where it starts.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use monoco_core::inbound::{
    ChatPosition, ChatSession, ChatSessionKind, InboundEvent, TunnelNotice,
};
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use serde_json::Value;

use super::client::{ApiErrorKind, SlackApiError};
use super::inbound::{EventChat, EventReader, OwnAccount};
use super::wire::{ApiReply, list, split_message_id, text, time_of_ts, ts_at};
use super::workspace::SlackWorkspace;
use crate::InboundSink;
use crate::missed_history::{ChatHistory, GapPlan, MissedChat, RequestPace, gap_notice, receive};

/// Messages per page; Slack recommends at most 200.
const PAGE: &str = "200";

/// Most pages of one chat, and of one thread.
const MAX_PAGES: usize = 10;

/// Most messages of one chat or thread that are read.
const MAX_MESSAGES: usize = MAX_PAGES * 200;

/// Most threads of one chat whose replies are read.
const MAX_THREADS: usize = 200;

/// Most pages of the list of chats.
const MAX_CHAT_PAGES: usize = 10;

/// The methods allow about 50 requests per minute.
const PACE: RequestPace = RequestPace::new(20, Duration::from_millis(1200), Duration::from_secs(5));

/// The history of the chats of one workspace.
pub(super) struct SlackHistory<'a> {
    workspace: &'a SlackWorkspace,
    sink: &'a dyn InboundSink,
    pace: RequestPace,
}

impl<'a> SlackHistory<'a> {
    pub fn new(workspace: &'a SlackWorkspace, sink: &'a dyn InboundSink) -> Self {
        Self { workspace, sink, pace: PACE }
    }
}

#[async_trait]
impl ChatHistory for SlackHistory<'_> {
    fn position_time(&self, position: &ChatPosition) -> Option<Timestamp> {
        split_message_id(&position.message_id).and_then(|(_, ts)| time_of_ts(ts))
    }

    async fn member_chats(&mut self) -> Result<Vec<ChatSession>, Failure> {
        let mut method = "users.conversations";
        let mut found = Vec::new();
        let mut cursor = String::new();
        for _ in 0..MAX_CHAT_PAGES {
            let fields = [
                ("types", "public_channel,private_channel,mpim,im"),
                ("exclude_archived", "true"),
                ("limit", "200"),
                ("cursor", cursor.as_str()),
            ];
            let reply = match self.call(method, &fields).await {
                Ok(reply) => reply,
                Err(error)
                    if error.code() == "unknown_method" && method != "conversations.list" =>
                {
                    method = "conversations.list";
                    continue;
                }
                Err(error) if is_about_the_chat(&error) => break,
                Err(error) => return Err(error.failure),
            };
            for chat in list(reply.value(), "channels") {
                if chat["is_member"].as_bool() == Some(false) {
                    continue;
                }
                let is_direct = chat["is_im"].as_bool() == Some(true);
                let kind = match is_direct {
                    true => ChatSessionKind::Direct,
                    false => ChatSessionKind::Group,
                };
                let name = text(chat, "name").map(str::to_owned);
                if let Some(id) = text(chat, "id") {
                    found.push(ChatSession { id: id.to_owned(), kind, name, thread_key: None });
                }
            }
            match reply.next_cursor() {
                Some(next) => cursor = next.to_owned(),
                None => break,
            }
        }
        Ok(found)
    }

    /// Reads one chat and the threads in which something was written since.
    async fn read_chat(&mut self, chat: &MissedChat, plan: &GapPlan) -> Result<(), Failure> {
        let id = chat.session.id.as_str();
        // Replies belong to messages that can be older than the gap.
        let oldest = ts_at(plan.oldest);
        let fields = [("channel", id), ("oldest", oldest.as_str()), ("inclusive", "true")];
        let Some((messages, is_complete)) =
            self.pages("conversations.history", &fields, Some(chat.since)).await?
        else {
            return Ok(());
        };
        if !is_complete {
            self.report_rest(chat, UnreadRest::Messages).await?;
        }
        let is_since = |message: &Value, key: &str| {
            text(message, key).and_then(time_of_ts).is_some_and(|at| at >= chat.since)
        };
        let new: Vec<_> = messages.iter().rev().filter(|it| is_since(it, "ts")).collect();
        self.store(&chat.session, &new).await?;
        let has_replies = |message: &&Value| is_since(message, "latest_reply");
        let threads: Vec<_> =
            messages.iter().filter(has_replies).filter_map(|message| text(message, "ts")).collect();
        self.read_threads(chat, &threads).await
    }
}

impl SlackHistory<'_> {
    /// Reads the replies in threads, the newest threads first.
    async fn read_threads(&mut self, chat: &MissedChat, threads: &[&str]) -> Result<(), Failure> {
        if threads.len() > MAX_THREADS {
            let left = threads.len() - MAX_THREADS;
            self.report_rest(chat, UnreadRest::Threads(left)).await?;
        }
        let (id, oldest) = (chat.session.id.as_str(), ts_at(chat.since));
        for thread in threads.iter().copied().take(MAX_THREADS) {
            let fields = [("channel", id), ("ts", thread), ("oldest", oldest.as_str())];
            let Some((replies, is_complete)) =
                self.pages("conversations.replies", &fields, None).await?
            else {
                continue;
            };
            if !is_complete {
                self.report_rest(chat, UnreadRest::Replies(thread)).await?;
            }
            // The first message of the thread is repeated.
            let replies: Vec<_> =
                replies.iter().filter(|reply| text(reply, "ts") != Some(thread)).collect();
            self.store(&chat.session, &replies).await?;
        }
        Ok(())
    }

    /// Reads all pages, at most [`MAX_PAGES`]. `None` when the chat cannot be read any more. The
    /// flag tells whether everything after `needed` was read.
    async fn pages(
        &mut self,
        method: &str,
        fields: &[(&str, &str)],
        needed: Option<Timestamp>,
    ) -> Result<Option<(Vec<Value>, bool)>, Failure> {
        let mut found: Vec<Value> = Vec::new();
        let mut cursor = String::new();
        for _ in 0..MAX_PAGES {
            let mut all = fields.to_vec();
            all.push(("limit", PAGE));
            if !cursor.is_empty() {
                all.push(("cursor", cursor.as_str()));
            }
            let reply = match self.call(method, &all).await {
                Ok(reply) => reply,
                Err(error) if is_about_the_chat(&error) => {
                    let code = error.code();
                    tracing::warn!(method, code, "cannot read the history of a chat");
                    return Ok(None);
                }
                Err(error) => return Err(error.failure),
            };
            found.extend(list(reply.value(), "messages").iter().cloned());
            match reply.next_cursor() {
                Some(next) => cursor = next.to_owned(),
                None => return Ok(Some((found, true))),
            }
        }
        let last = found.last().and_then(|message| text(message, "ts")).and_then(time_of_ts);
        let is_complete = needed.zip(last).is_some_and(|(needed, last)| last < needed);
        Ok(Some((found, is_complete)))
    }

    /// Makes one request, not too fast, and waits when Slack asks for it.
    async fn call(
        &mut self,
        method: &str,
        fields: &[(&str, &str)],
    ) -> Result<ApiReply, SlackApiError> {
        let mut waits = 0;
        loop {
            self.pace.before_request().await;
            match self.workspace.client.read(method, fields).await {
                Err(SlackApiError { kind: ApiErrorKind::Throttled { retry_after }, .. })
                    if self.pace.wait(&mut waits, retry_after).await => {}
                result => return result,
            }
        }
    }

    /// Converts messages and stores them in one batch.
    async fn store(&mut self, session: &ChatSession, messages: &[&Value]) -> Result<(), Failure> {
        let own = self.workspace.own_account().await.map_err(|error| error.failure)?;
        let (_, missing) = self.convert(&own, session, messages);
        self.workspace.names.look_up(&self.workspace.client, missing).await;
        let (events, _) = self.convert(&own, session, messages);
        receive(self.sink, events).await
    }

    /// Returns the events, and the ids without a name.
    fn convert(
        &self,
        own: &OwnAccount,
        session: &ChatSession,
        messages: &[&Value],
    ) -> (Vec<InboundEvent>, BTreeSet<String>) {
        let find_name = |id: &str| self.workspace.names.find(id);
        let accepts_bots = self.workspace.accepts_bots;
        let reader = EventReader { own, accepts_bots, find_name: &find_name };
        let chat = EventChat { id: &session.id, kind: session.kind };
        let (mut events, mut missing) = (Vec::new(), BTreeSet::new());
        for message in messages {
            let mut read = reader.read_history(chat, message);
            events.append(&mut read.events);
            missing.append(&mut read.missing);
        }
        (events, missing)
    }

    /// Reports that a chat has more messages than are read.
    async fn report_rest(
        &mut self,
        chat: &MissedChat,
        rest: UnreadRest<'_>,
    ) -> Result<(), Failure> {
        receive(self.sink, vec![InboundEvent::Notice(rest_notice(chat, rest))]).await
    }
}

/// Errors that are about one chat, or about a scope that it needs.
const CHAT_ERRORS: [&str; 8] = [
    "channel_not_found",
    "not_in_channel",
    "is_archived",
    "thread_not_found",
    "missing_scope",
    "method_not_supported_for_channel_type",
    "no_permission",
    "unknown_method",
];

/// Tells whether the error is about one chat or a scope. Other chats can still be read.
fn is_about_the_chat(error: &SlackApiError) -> bool {
    error.kind == ApiErrorKind::Rejected && CHAT_ERRORS.contains(&error.code())
}

/// What a catch-up leaves out of a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnreadRest<'a> {
    Messages,
    /// The replies in this number of threads.
    Threads(usize),
    /// The last replies in this thread.
    Replies(&'a str),
}

/// Returns the notice of what is left out.
fn rest_notice(chat: &MissedChat, rest: UnreadRest<'_>) -> TunnelNotice {
    let since = chat.since.rfc3339();
    let (rest, detail) = match rest {
        UnreadRest::Messages => (
            "messages",
            format!(
                "more than {MAX_MESSAGES} messages were missed; older ones since {since} are not \
                 read"
            ),
        ),
        UnreadRest::Threads(count) => (
            "threads",
            format!(
                "more than {MAX_THREADS} threads have replies since {since}; those in {count} \
                 older threads are not read"
            ),
        ),
        UnreadRest::Replies(thread) => (
            thread,
            format!(
                "a thread has more than {MAX_MESSAGES} replies since {since}; newer ones are not \
                 read"
            ),
        ),
    };
    gap_notice(chat, rest, detail)
}

#[cfg(test)]
mod tests;
