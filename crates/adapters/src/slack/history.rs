//! Reads the history after a gap: the messages of each chat, and the replies in its threads.
//!
//! The start is the last stored message of each chat before the gap, at most `catch_up` ago.
//! Messages that are already stored are recognised by their ids, so reading too much is
//! harmless. A catch-up that is not finished is noted in the store: if the courier ends in the
//! middle, the next catch-up starts at the same point, although newer messages were stored since.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use monoco_core::inbound::{
    ChatPosition, ChatSession, ChatSessionKind, InboundEvent, TunnelNotice,
};
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use serde_json::Value;
use tokio::time::sleep;

use super::client::{ApiErrorKind, SlackApiError};
use super::inbound::{EventChat, EventReader, OwnAccount};
use super::wire::{ApiReply, is_ts, list, split_message_id, text, time_of_ts, ts_at};
use super::workspace::SlackWorkspace;
use crate::socket::ConnectionGap;
use crate::{InboundError, InboundPage, InboundSink};

/// The stream whose cursor notes where an unfinished catch-up starts.
const STREAM: &str = "catch_up";

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

/// Requests that are made without a pause, and the pause between further ones: the methods allow
/// about 50 requests per minute.
const BURST: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1200);

/// How often one request is repeated when Slack asks to wait.
const MAX_WAITS: u32 = 10;

/// Longest wait that Slack can ask for.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// How much earlier than the gap the catch-up starts, because clocks differ and events overtake
/// each other.
const MARGIN: Duration = Duration::from_secs(300);

/// Reads what was missed.
#[derive(Debug)]
pub(super) struct SlackCatchUp {
    /// How far back; `None`: never.
    limit: Option<Duration>,
    /// The positions when the tunnel started, before anything was received.
    start: Mutex<Option<Vec<ChatPosition>>>,
}

/// One chat to read.
#[derive(Clone, Debug)]
struct ChatToRead {
    session: ChatSession,
    /// Messages after this timestamp are stored.
    since: String,
}

impl SlackCatchUp {
    pub fn new(limit: Option<Duration>) -> Self {
        Self { limit, start: Mutex::default() }
    }

    /// Remembers the positions before the first connection.
    pub fn set_start(&self, positions: Vec<ChatPosition>) {
        *self.start.lock().unwrap_or_else(PoisonError::into_inner) = Some(positions);
    }

    fn start(&self) -> Option<Vec<ChatPosition>> {
        self.start.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets the positions of the start, when everything since them is stored.
    fn clear_start(&self) {
        *self.start.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Reads the history of all chats since the gap. Repeating it is harmless.
    pub async fn run(
        &self,
        workspace: &SlackWorkspace,
        sink: &dyn InboundSink,
        gap: ConnectionGap,
    ) -> Result<(), Failure> {
        let Some(limit) = self.limit else { return Ok(()) };
        let unfinished = sink.cursor(STREAM).await.map_err(not_stored)?.filter(|ts| is_ts(ts));
        let positions = match self.start() {
            Some(positions) => positions,
            None => sink.last_received().await.map_err(not_stored)?,
        };
        if positions.is_empty() && unfinished.is_none() && gap.since.is_none() {
            // A new tunnel starts with the messages from its first connection on.
            self.clear_start();
            return Ok(());
        }
        let plan = CatchUpPlan::new(&positions, unfinished, gap, limit);
        store_cursor(sink, &plan.since).await?;
        let mut reader = HistoryReader { workspace, sink, requests: 0 };
        let chats = reader.chats(&positions, &plan).await?;
        for chat in chats {
            reader.read_chat(&chat, &plan).await?;
        }
        store_cursor(sink, "").await?;
        self.clear_start();
        Ok(())
    }
}

/// Where a catch-up starts.
#[derive(Debug, PartialEq, Eq)]
struct CatchUpPlan {
    /// The earliest timestamp that can be read.
    oldest: String,
    /// The timestamp after which messages may be missing.
    since: String,
}

impl CatchUpPlan {
    fn new(
        positions: &[ChatPosition],
        unfinished: Option<String>,
        gap: ConnectionGap,
        limit: Duration,
    ) -> Self {
        let back = |time: Timestamp, by: Duration| {
            let ms = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
            Timestamp::from_ms(time.ms().saturating_sub(ms))
        };
        let oldest = ts_at(back(gap.until, limit));
        let newest = positions.iter().filter_map(position_ts).max_by(|a, b| compare_ts(a, b));
        let newest = newest.and_then(time_of_ts).map(|time| ts_at(back(time, MARGIN)));
        let gap_start = gap.since.map(|since| ts_at(back(since, MARGIN)));
        let starts = [unfinished, newest, gap_start].into_iter().flatten();
        let since = starts.min_by(|a, b| compare_ts(a, b)).unwrap_or_else(|| oldest.clone());
        let since = if compare_ts(&since, &oldest).is_lt() { oldest.clone() } else { since };
        Self { oldest, since }
    }

    /// Returns the start for a chat: its last message, if that is older than the gap.
    fn chat_start(&self, position: Option<&str>) -> String {
        let position = position.filter(|ts| compare_ts(ts, &self.since).is_lt());
        let start = position.unwrap_or(&self.since);
        if compare_ts(start, &self.oldest).is_lt() { self.oldest.clone() } else { start.to_owned() }
    }
}

struct HistoryReader<'a> {
    workspace: &'a SlackWorkspace,
    sink: &'a dyn InboundSink,
    requests: u32,
}

impl HistoryReader<'_> {
    /// Returns the chats to read: those with stored messages, and those that the bot is in.
    async fn chats(
        &mut self,
        positions: &[ChatPosition],
        plan: &CatchUpPlan,
    ) -> Result<Vec<ChatToRead>, Failure> {
        let mut chats = BTreeMap::new();
        for position in positions {
            let since = plan.chat_start(position_ts(position));
            let session = position.session.clone();
            chats.insert(session.id.clone(), ChatToRead { session, since });
        }
        for session in self.member_chats().await? {
            let since = plan.chat_start(None);
            chats.entry(session.id.clone()).or_insert(ChatToRead { session, since });
        }
        Ok(chats.into_values().collect())
    }

    /// Lists the chats that the bot is in. Without the scope there are none.
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
    async fn read_chat(&mut self, chat: &ChatToRead, plan: &CatchUpPlan) -> Result<(), Failure> {
        let id = chat.session.id.as_str();
        // Replies belong to messages that can be older than the gap.
        let fields = [("channel", id), ("oldest", plan.oldest.as_str()), ("inclusive", "true")];
        let Some((messages, is_complete)) =
            self.pages("conversations.history", &fields, Some(&chat.since)).await?
        else {
            return Ok(());
        };
        if !is_complete {
            self.report_rest(chat, UnreadRest::Messages).await?;
        }
        let is_new = |message: &Value| {
            text(message, "ts").is_some_and(|ts| compare_ts(ts, &chat.since).is_gt())
        };
        let new: Vec<_> = messages.iter().rev().filter(|message| is_new(message)).collect();
        self.store(&chat.session, &new).await?;
        let has_replies = |message: &&Value| {
            text(message, "latest_reply").is_some_and(|ts| compare_ts(ts, &chat.since).is_gt())
        };
        let threads: Vec<_> =
            messages.iter().filter(has_replies).filter_map(|message| text(message, "ts")).collect();
        self.read_threads(chat, &threads).await
    }

    /// Reads the replies in threads, the newest threads first.
    async fn read_threads(&mut self, chat: &ChatToRead, threads: &[&str]) -> Result<(), Failure> {
        if threads.len() > MAX_THREADS {
            let left = threads.len() - MAX_THREADS;
            self.report_rest(chat, UnreadRest::Threads(left)).await?;
        }
        let id = chat.session.id.as_str();
        for thread in threads.iter().copied().take(MAX_THREADS) {
            let fields = [("channel", id), ("ts", thread), ("oldest", chat.since.as_str())];
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
        needed: Option<&str>,
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
        let last = found.last().and_then(|message| text(message, "ts"));
        let is_complete =
            needed.zip(last).is_some_and(|(needed, last)| compare_ts(last, needed).is_le());
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
            self.requests += 1;
            if self.requests > BURST {
                sleep(PAUSE).await;
            }
            match self.workspace.client.read(method, fields).await {
                Err(SlackApiError { kind: ApiErrorKind::Throttled { retry_after }, .. })
                    if waits < MAX_WAITS =>
                {
                    waits += 1;
                    sleep(retry_after.unwrap_or(Duration::from_secs(5)).min(MAX_WAIT)).await;
                }
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
        self.receive(events).await
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

    async fn receive(&mut self, events: Vec<InboundEvent>) -> Result<(), Failure> {
        for result in self.sink.receive_events(events).await {
            match result {
                // Reading a message again that exceeds a limit does not help.
                Ok(_) | Err(InboundError::Unusable(_)) => {}
                Err(error) => return Err(not_stored(error)),
            }
        }
        Ok(())
    }

    /// Reports that a chat has more messages than are read.
    async fn report_rest(
        &mut self,
        chat: &ChatToRead,
        rest: UnreadRest<'_>,
    ) -> Result<(), Failure> {
        self.receive(vec![InboundEvent::Notice(rest_notice(chat, rest))]).await
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

/// Returns the notice of what is left out. It is the same when the catch-up is repeated.
fn rest_notice(chat: &ChatToRead, rest: UnreadRest<'_>) -> TunnelNotice {
    let since = time_of_ts(&chat.since).unwrap_or_default().rfc3339();
    let (suffix, detail) = match rest {
        UnreadRest::Messages => (
            String::new(),
            format!(
                "more than {MAX_MESSAGES} messages were missed; older ones since {since} are not \
                 read"
            ),
        ),
        UnreadRest::Threads(count) => (
            ":threads".to_owned(),
            format!(
                "more than {MAX_THREADS} threads have replies since {since}; those in {count} \
                 older threads are not read"
            ),
        ),
        UnreadRest::Replies(thread) => (
            format!(":{thread}"),
            format!(
                "a thread has more than {MAX_MESSAGES} replies since {since}; newer ones are not \
                 read"
            ),
        ),
    };
    TunnelNotice {
        id: format!("gap:{}:{}{suffix}", chat.session.id, chat.since),
        kind: "gap".to_owned(),
        session: Some(chat.session.clone()),
        by: None,
        detail,
        at: None,
    }
}

fn position_ts(position: &ChatPosition) -> Option<&str> {
    split_message_id(&position.message_id).map(|(_, ts)| ts)
}

/// Compares two timestamps by their digits.
fn compare_ts(a: &str, b: &str) -> std::cmp::Ordering {
    let key = |ts: &str| {
        let (seconds, fraction) = ts.split_once('.').unwrap_or((ts, ""));
        (seconds.parse::<u64>().unwrap_or(0), format!("{fraction:0<9}"))
    };
    key(a).cmp(&key(b))
}

async fn store_cursor(sink: &dyn InboundSink, cursor: &str) -> Result<(), Failure> {
    let page = InboundPage {
        stream: STREAM.to_owned(),
        cursor: Some(cursor.to_owned()),
        ..InboundPage::default()
    };
    sink.receive_page(page).await.map(drop).map_err(not_stored)
}

fn not_stored(error: InboundError) -> Failure {
    let detail = format!("cannot store the history: {error}");
    Failure::Temporary { detail, retry_after_ms: None, error_code: None }
}

#[cfg(test)]
mod tests;
