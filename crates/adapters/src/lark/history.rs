//! Reads the history after a gap: the messages of each chat, and the replies in its topics.
//!
//! Lark repeats events that were not answered for about 7 h, so the history is needed only after a
//! longer gap, or when events were lost. The start is the last stored message of each chat before
//! the gap, at most `catch_up` ago. Messages that are already stored are recognised by their ids, so
//! reading too much is harmless. A catch-up that is not finished is noted in the store: if the
//! courier ends in the middle, the next catch-up starts at the same point, although newer messages
//! were stored since.

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

use super::client::LarkRequest;
use super::failure::{LarkAnswer, LarkFault};
use super::tenant::LarkTenant;
use super::wire::{id, list, text, time};
use crate::socket::ConnectionGap;
use crate::{InboundError, InboundPage, InboundSink};

/// The stream whose cursor notes where an unfinished catch-up starts.
const STREAM: &str = "catch_up";

/// Messages per page; Lark's limit is 50.
const PAGE: &str = "50";

/// Most pages of one chat, and of one topic.
const MAX_CHAT_PAGES: usize = 200;
const MAX_TOPIC_PAGES: usize = 10;

/// Most topics of one chat whose replies are read.
const MAX_TOPICS: usize = 200;

/// Most pages of the list of chats, with 100 chats each.
const MAX_LIST_PAGES: usize = 20;

/// Requests that are made without a pause, and the pause between further ones: the methods allow
/// 1,000 requests per minute and 50 per second.
const BURST: u32 = 40;
const PAUSE: Duration = Duration::from_millis(100);

/// How often one request is repeated when Lark asks to wait.
const MAX_WAITS: u32 = 10;

/// Longest wait that Lark can ask for, and the wait when it names none.
const MAX_WAIT: Duration = Duration::from_secs(120);
const DEFAULT_WAIT: Duration = Duration::from_secs(2);

/// How much earlier than the gap the catch-up starts, because clocks differ and events overtake
/// each other.
const MARGIN: Duration = Duration::from_secs(300);

/// After a shorter gap, Lark sends replies in older topics again by itself.
const SHORT_GAP: Duration = Duration::from_secs(3600);

/// Reads what was missed.
#[derive(Debug)]
pub(super) struct LarkCatchUp {
    /// How far back; `None`: never.
    limit: Option<Duration>,
    /// The positions when the tunnel started, before anything was received.
    start: Mutex<Option<Vec<ChatPosition>>>,
}

impl LarkCatchUp {
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
        tenant: &LarkTenant,
        sink: &dyn InboundSink,
        gap: ConnectionGap,
    ) -> Result<(), Failure> {
        let Some(limit) = self.limit else { return Ok(()) };
        let unfinished = sink.cursor(STREAM).await.map_err(not_stored)?;
        let unfinished = unfinished.and_then(|ms| ms.parse().ok()).map(Timestamp::from_ms);
        let positions = match self.start() {
            Some(positions) => positions,
            None => sink.last_received().await.map_err(not_stored)?,
        };
        if positions.is_empty() && unfinished.is_none() && gap.since.is_none() {
            // A new tunnel starts with the messages from its first connection on.
            self.clear_start();
            return Ok(());
        }
        let plan = GapPlan::new(&positions, unfinished, gap, limit);
        store_cursor(sink, &plan.since.ms().to_string()).await?;
        let mut reader = GapReader { tenant, sink, requests: 0 };
        for chat in reader.chats(&positions, &plan).await? {
            reader.read_chat(&chat, &plan).await?;
        }
        store_cursor(sink, "").await?;
        self.clear_start();
        Ok(())
    }
}

/// Where a catch-up starts.
#[derive(Debug, PartialEq, Eq)]
struct GapPlan {
    /// The earliest time that can be read.
    oldest: Timestamp,
    /// The time after which messages may be missing.
    since: Timestamp,
    /// Whether topics that began before the gap are read.
    reads_old_topics: bool,
}

impl GapPlan {
    fn new(
        positions: &[ChatPosition],
        unfinished: Option<Timestamp>,
        gap: ConnectionGap,
        limit: Duration,
    ) -> Self {
        let oldest = back(gap.until, limit);
        let newest = positions.iter().filter_map(|position| position.at).max();
        let starts =
            [unfinished, newest.map(|at| back(at, MARGIN)), gap.since.map(|at| back(at, MARGIN))];
        let since = starts.into_iter().flatten().min().unwrap_or(oldest).max(oldest);
        let reads_old_topics = gap.until.since(since) > SHORT_GAP;
        Self { oldest, since, reads_old_topics }
    }

    /// Returns the start for a chat: its last message, if that is older than the gap.
    fn chat_start(&self, position: Option<Timestamp>) -> Timestamp {
        position.map_or(self.since, |at| at.min(self.since)).max(self.oldest)
    }
}

fn back(time: Timestamp, by: Duration) -> Timestamp {
    let ms = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_ms(time.ms().saturating_sub(ms))
}

/// One chat to read.
#[derive(Clone, Debug)]
struct MissedChat {
    session: ChatSession,
    /// Messages before this time are stored.
    since: Timestamp,
}

struct GapReader<'a> {
    tenant: &'a LarkTenant,
    sink: &'a dyn InboundSink,
    requests: u32,
}

impl GapReader<'_> {
    /// Returns the chats to read: those with stored messages, and the groups that the bot is in.
    async fn chats(
        &mut self,
        positions: &[ChatPosition],
        plan: &GapPlan,
    ) -> Result<Vec<MissedChat>, Failure> {
        let mut chats = BTreeMap::new();
        for position in positions {
            let (session, since) = (position.session.clone(), plan.chat_start(position.at));
            chats.insert(session.id.clone(), MissedChat { session, since });
        }
        for session in self.groups().await? {
            let since = plan.chat_start(None);
            chats.entry(session.id.clone()).or_insert(MissedChat { session, since });
        }
        Ok(chats.into_values().collect())
    }

    /// Lists the groups that the bot is in. Without the permission there are none.
    async fn groups(&mut self) -> Result<Vec<ChatSession>, Failure> {
        let mut found = Vec::new();
        let mut token = String::new();
        for _ in 0..MAX_LIST_PAGES {
            let mut query = vec![("page_size", "100")];
            if !token.is_empty() {
                query.push(("page_token", token.as_str()));
            }
            let Some(answer) = self.call("im/v1/chats", &query).await? else { break };
            for chat in list(answer.data(), "items") {
                let Some(id) = id(chat, "chat_id") else { continue };
                let name = text(chat, "name").map(str::to_owned);
                self.tenant.names.insert(id, name.clone());
                let (id, kind) = (id.to_owned(), ChatSessionKind::Group);
                found.push(ChatSession { id, kind, name, thread_key: None });
            }
            match next_page(&answer) {
                Some(next) => token = next,
                None => break,
            }
        }
        Ok(found)
    }

    /// Reads one chat, oldest messages first, and then the topics in it.
    async fn read_chat(&mut self, chat: &MissedChat, plan: &GapPlan) -> Result<(), Failure> {
        let from = if plan.reads_old_topics { plan.oldest } else { chat.since };
        let start = from.ms().div_euclid(1000).to_string();
        let mut topics = BTreeSet::new();
        let mut token = String::new();
        for page in 0..=MAX_CHAT_PAGES {
            if page == MAX_CHAT_PAGES {
                let count = MAX_CHAT_PAGES * 50;
                let detail =
                    format!("more than {count} messages were missed; the newest are not read");
                self.report_rest(chat, "messages", detail).await?;
                break;
            }
            let mut query = vec![
                ("container_id_type", "chat"),
                ("container_id", chat.session.id.as_str()),
                ("start_time", start.as_str()),
                ("sort_type", "ByCreateTimeAsc"),
                ("page_size", PAGE),
            ];
            if !token.is_empty() {
                query.push(("page_token", token.as_str()));
            }
            let Some(answer) = self.call("im/v1/messages", &query).await? else { return Ok(()) };
            let items = list(answer.data(), "items");
            topics.extend(items.iter().filter_map(|item| id(item, "thread_id")).map(str::to_owned));
            let new: Vec<_> = items.iter().filter(|item| is_since(item, chat.since)).collect();
            self.store(&chat.session, &new).await?;
            match next_page(&answer) {
                Some(next) => token = next,
                None => break,
            }
        }
        let left = topics.len().saturating_sub(MAX_TOPICS);
        if left > 0 {
            let detail = format!("replies in {left} topics are not read");
            self.report_rest(chat, "topics", detail).await?;
        }
        for topic in topics.iter().rev().take(MAX_TOPICS) {
            self.read_topic(chat, topic).await?;
        }
        Ok(())
    }

    /// Reads the replies in a topic, the newest first: Lark cannot start at a time there.
    async fn read_topic(&mut self, chat: &MissedChat, topic: &str) -> Result<(), Failure> {
        let mut found: Vec<Value> = Vec::new();
        let mut token = String::new();
        for _ in 0..MAX_TOPIC_PAGES {
            let mut query = vec![
                ("container_id_type", "thread"),
                ("container_id", topic),
                ("sort_type", "ByCreateTimeDesc"),
                ("page_size", PAGE),
            ];
            if !token.is_empty() {
                query.push(("page_token", token.as_str()));
            }
            let Some(answer) = self.call("im/v1/messages", &query).await? else { break };
            let items = list(answer.data(), "items");
            let new = items.iter().filter(|item| is_since(item, chat.since));
            let count = found.len();
            found.extend(new.cloned());
            let is_end = found.len() - count < items.len();
            match next_page(&answer).filter(|_| !is_end) {
                Some(next) => token = next,
                None => break,
            }
        }
        found.reverse();
        self.store(&chat.session, &found.iter().collect::<Vec<_>>()).await
    }

    /// Makes one request, not too fast, and waits when Lark asks for it. `None` when the chat
    /// cannot be read, or a permission for it is missing: other chats can still be read.
    async fn call(
        &mut self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<Option<LarkAnswer>, Failure> {
        let mut waits = 0;
        loop {
            self.requests += 1;
            if self.requests > BURST {
                sleep(PAUSE).await;
            }
            match self.tenant.client.call(LarkRequest::get(path, query)).await {
                Ok(answer) => return Ok(Some(answer)),
                Err(LarkFault::Throttled { retry_after, .. }) if waits < MAX_WAITS => {
                    waits += 1;
                    sleep(retry_after.unwrap_or(DEFAULT_WAIT).min(MAX_WAIT)).await;
                }
                Err(fault) if fault.is_rejection() => {
                    let failure = fault.into_failure();
                    tracing::warn!(error = failure.detail(), "cannot read the history of a chat");
                    return Ok(None);
                }
                Err(fault) => return Err(fault.into_failure()),
            }
        }
    }

    /// Converts messages and stores them in one batch.
    async fn store(&mut self, session: &ChatSession, items: &[&Value]) -> Result<(), Failure> {
        if items.is_empty() {
            return Ok(());
        }
        let (_, missing) = self.convert(session, items);
        self.tenant.names.look_up(&self.tenant.client, missing).await;
        let (events, _) = self.convert(session, items);
        self.receive(events).await
    }

    /// Returns the events, and the ids without a name.
    fn convert(
        &self,
        session: &ChatSession,
        items: &[&Value],
    ) -> (Vec<InboundEvent>, BTreeSet<String>) {
        let (mut events, mut missing) = (Vec::new(), BTreeSet::new());
        self.tenant.with_reader(|reader| {
            for item in items {
                let mut read = reader.read_history(session, item);
                events.append(&mut read.events);
                missing.append(&mut read.missing);
            }
        });
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

    /// Reports that a chat has more messages than are read. The notice is the same when the
    /// catch-up is repeated.
    async fn report_rest(
        &mut self,
        chat: &MissedChat,
        rest: &str,
        detail: String,
    ) -> Result<(), Failure> {
        let notice = TunnelNotice {
            id: format!("gap:{rest}:{}:{}", chat.session.id, chat.since.ms()),
            kind: "gap".to_owned(),
            session: Some(chat.session.clone()),
            by: None,
            detail,
            at: None,
        };
        self.receive(vec![InboundEvent::Notice(notice)]).await
    }
}

fn is_since(item: &Value, since: Timestamp) -> bool {
    time(item, "create_time").is_some_and(|at| at >= since)
}

/// Returns the token of the next page, when there is one.
fn next_page(answer: &LarkAnswer) -> Option<String> {
    let data = answer.data();
    let has_more = data["has_more"].as_bool() == Some(true);
    text(data, "page_token").filter(|_| has_more).map(str::to_owned)
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
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(1_700_000_000_000 + ms)
    }

    fn position(ms: i64) -> ChatPosition {
        let session = ChatSession { id: "oc_1".to_owned(), ..ChatSession::default() };
        ChatPosition { session, message_id: "om_1".to_owned(), at: Some(at(ms)) }
    }

    #[test]
    fn catch_up_starts_before_the_gap_and_not_before_the_limit() {
        let day = Duration::from_secs(86_400);
        let margin = i64::try_from(MARGIN.as_millis()).unwrap();
        let gap = |since: Option<i64>| ConnectionGap { since: since.map(at), until: at(0) };
        for (positions, unfinished, gap, want, old_topics) in [
            // The courier was down since the last message.
            (
                vec![position(-2 * HOUR), position(-3 * HOUR)],
                None,
                gap(None),
                -2 * HOUR - margin,
                true,
            ),
            // A connection was lost for a minute.
            (vec![position(-1000)], None, gap(Some(-60_000)), -60_000 - margin, false),
            // A catch-up was interrupted.
            (vec![position(-1000)], Some(-5 * HOUR), gap(Some(-60_000)), -5 * HOUR, true),
            // The courier was down for a week.
            (vec![position(-168 * HOUR)], None, gap(None), -24 * HOUR, true),
            (vec![], None, gap(Some(-60_000)), -60_000 - margin, false),
        ] {
            let plan = GapPlan::new(&positions, unfinished.map(at), gap, day);
            assert_eq!(plan.since, at(want), "{positions:?}");
            assert_eq!((plan.oldest, plan.reads_old_topics), (at(-24 * HOUR), old_topics));
        }
        let plan = GapPlan::new(&[position(-1000)], None, gap(Some(-60_000)), day);
        assert_eq!(plan.chat_start(Some(at(-1000))), plan.since, "it may have missed some");
        assert_eq!(plan.chat_start(Some(at(-5 * HOUR))), at(-5 * HOUR));
        assert_eq!(plan.chat_start(Some(at(-50 * HOUR))), at(-24 * HOUR));
        assert_eq!(plan.chat_start(None), plan.since);
    }
}
