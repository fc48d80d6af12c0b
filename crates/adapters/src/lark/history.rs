//! Reads the history after a gap: the messages of each chat, and the replies in its topics.
//!
//! Lark repeats events that were not answered for about 7 h, so the history is needed only after a
//! longer gap, or when events were lost. [`crate::missed_history`] decides where it starts.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use monoco_core::inbound::{ChatPosition, ChatSession, ChatSessionKind, InboundEvent};
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use serde_json::Value;

use super::client::LarkRequest;
use super::failure::{LarkAnswer, LarkFault};
use super::tenant::LarkTenant;
use super::wire::{id, list, text, time};
use crate::InboundSink;
use crate::missed_history::{ChatHistory, GapPlan, MissedChat, RequestPace, gap_notice, receive};

/// Messages per page; Lark's limit is 50.
const PAGE: &str = "50";

/// Most pages of one chat, and of one topic.
const MAX_CHAT_PAGES: usize = 200;
const MAX_TOPIC_PAGES: usize = 10;

/// Most topics of one chat whose replies are read.
const MAX_TOPICS: usize = 200;

/// Most pages of the list of chats, with 100 chats each.
const MAX_LIST_PAGES: usize = 20;

/// The methods allow 1,000 requests per minute and 50 per second.
const PACE: RequestPace = RequestPace::new(40, Duration::from_millis(100), Duration::from_secs(2));

/// After a shorter gap, Lark sends replies in older topics again by itself.
const SHORT_GAP: Duration = Duration::from_secs(3600);

/// The history of the chats of one app.
pub(super) struct LarkHistory<'a> {
    tenant: &'a LarkTenant,
    sink: &'a dyn InboundSink,
    pace: RequestPace,
}

impl<'a> LarkHistory<'a> {
    pub fn new(tenant: &'a LarkTenant, sink: &'a dyn InboundSink) -> Self {
        Self { tenant, sink, pace: PACE }
    }
}

#[async_trait]
impl ChatHistory for LarkHistory<'_> {
    fn position_time(&self, position: &ChatPosition) -> Option<Timestamp> {
        position.at
    }

    async fn member_chats(&mut self) -> Result<Vec<ChatSession>, Failure> {
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
        let reads_old_topics = plan.until.since(plan.since) > SHORT_GAP;
        let from = if reads_old_topics { plan.oldest } else { chat.since };
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
}

impl LarkHistory<'_> {
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
            self.pace.before_request().await;
            match self.tenant.client.call(LarkRequest::get(path, query)).await {
                Ok(answer) => return Ok(Some(answer)),
                Err(LarkFault::Throttled { retry_after, .. })
                    if self.pace.wait(&mut waits, retry_after).await => {}
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
        receive(self.sink, events).await
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

    /// Reports that a chat has more messages than are read.
    async fn report_rest(
        &mut self,
        chat: &MissedChat,
        rest: &str,
        detail: String,
    ) -> Result<(), Failure> {
        let notice = gap_notice(chat, rest, detail);
        receive(self.sink, vec![InboundEvent::Notice(notice)]).await
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
