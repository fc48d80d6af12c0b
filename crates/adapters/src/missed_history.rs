//! Reads the history of a provider after a gap: where it starts, how it is noted in the store, and
//! how fast requests are made. [`ChatHistory`] is the part of each provider.
//!
//! The start is the last stored message of each chat before the gap, at most `catch_up` ago.
//! Messages that are already stored are recognised by their ids, so reading too much is harmless. A
//! catch-up that is not finished is noted in the store: if the courier ends in the middle, the next
//! catch-up starts at the same point, although newer messages were stored since.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use monoco_core::inbound::{ChatPosition, ChatSession, InboundEvent, TunnelNotice};
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use tokio::time::sleep;

use crate::socket::ConnectionGap;
use crate::{InboundError, InboundPage, InboundSink};

/// The stream whose cursor notes where an unfinished catch-up starts, in ms.
const STREAM: &str = "catch_up";

/// How much earlier than the gap the catch-up starts, because clocks differ and events overtake
/// each other.
const MARGIN: Duration = Duration::from_secs(300);

/// How often one request is repeated when the provider asks to wait.
const MAX_WAITS: u32 = 10;

/// Longest wait that a provider can ask for.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// The history of a provider.
#[async_trait]
pub(crate) trait ChatHistory: Send {
    /// Returns when the message of a position was sent.
    fn position_time(&self, position: &ChatPosition) -> Option<Timestamp>;

    /// Lists the chats that the bot is in. Without the permission there are none.
    async fn member_chats(&mut self) -> Result<Vec<ChatSession>, Failure>;

    /// Reads one chat and passes its messages to the sink.
    async fn read_chat(&mut self, chat: &MissedChat, plan: &GapPlan) -> Result<(), Failure>;
}

/// The catch-ups of one tunnel.
#[derive(Debug)]
pub(crate) struct HistoryCatchUp {
    /// How far back; `None`: never.
    limit: Option<Duration>,
    /// The positions when the tunnel started, before anything was received.
    start: Mutex<Option<Vec<ChatPosition>>>,
}

/// Where a catch-up starts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GapPlan {
    /// The earliest time that can be read.
    pub oldest: Timestamp,
    /// The time after which messages may be missing.
    pub since: Timestamp,
    /// The end of the gap.
    pub until: Timestamp,
}

/// One chat to read.
#[derive(Clone, Debug)]
pub(crate) struct MissedChat {
    pub session: ChatSession,
    /// Messages before this time are stored.
    pub since: Timestamp,
}

/// Requests that are made without a pause, and the pause between further ones.
#[derive(Debug)]
pub(crate) struct RequestPace {
    burst: u32,
    pause: Duration,
    /// The wait when a provider asks to wait and names no time.
    default_wait: Duration,
    requests: u32,
}

impl HistoryCatchUp {
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
        history: &mut dyn ChatHistory,
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
        let newest = positions.iter().filter_map(|it| history.position_time(it)).max();
        let plan = GapPlan::new(newest, unfinished, gap, limit);
        store_cursor(sink, &plan.since.ms().to_string()).await?;
        let mut chats = BTreeMap::new();
        for position in positions {
            let since = plan.chat_start(history.position_time(&position));
            let session = position.session;
            chats.insert(session.id.clone(), MissedChat { session, since });
        }
        for session in history.member_chats().await? {
            let since = plan.since;
            chats.entry(session.id.clone()).or_insert(MissedChat { session, since });
        }
        for chat in chats.values() {
            history.read_chat(chat, &plan).await?;
        }
        store_cursor(sink, "").await?;
        self.clear_start();
        Ok(())
    }
}

impl GapPlan {
    fn new(
        newest: Option<Timestamp>,
        unfinished: Option<Timestamp>,
        gap: ConnectionGap,
        limit: Duration,
    ) -> Self {
        let oldest = back(gap.until, limit);
        let starts =
            [unfinished, newest.map(|at| back(at, MARGIN)), gap.since.map(|at| back(at, MARGIN))];
        let since = starts.into_iter().flatten().min().unwrap_or(oldest).max(oldest);
        Self { oldest, since, until: gap.until }
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

impl RequestPace {
    pub const fn new(burst: u32, pause: Duration, default_wait: Duration) -> Self {
        Self { burst, pause, default_wait, requests: 0 }
    }

    /// Waits until the next request may be made.
    pub async fn before_request(&mut self) {
        self.requests += 1;
        if self.requests > self.burst {
            sleep(self.pause).await;
        }
    }

    /// Waits as long as the provider asks for. Returns false, at once, when the request was repeated
    /// too often.
    pub async fn wait(&self, waits: &mut u32, retry_after: Option<Duration>) -> bool {
        *waits += 1;
        if *waits > MAX_WAITS {
            return false;
        }
        sleep(retry_after.unwrap_or(self.default_wait).min(MAX_WAIT)).await;
        true
    }
}

/// Passes events of a history to the sink. A message that exceeds a limit is passed over: reading it
/// again does not help.
pub(crate) async fn receive(
    sink: &dyn InboundSink,
    events: Vec<InboundEvent>,
) -> Result<(), Failure> {
    for result in sink.receive_events(events).await {
        match result {
            Ok(_) | Err(InboundError::Unusable(_)) => {}
            Err(error) => return Err(not_stored(error)),
        }
    }
    Ok(())
}

/// Returns the notice that a chat has more messages than are read. `rest` names what is left out, so
/// that the notice is the same when the catch-up is repeated.
pub(crate) fn gap_notice(chat: &MissedChat, rest: &str, detail: String) -> TunnelNotice {
    TunnelNotice {
        id: format!("gap:{rest}:{}:{}", chat.session.id, chat.since.ms()),
        kind: "gap".to_owned(),
        session: Some(chat.session.clone()),
        by: None,
        detail,
        at: None,
    }
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

    #[test]
    fn catch_up_starts_before_the_gap_and_not_before_the_limit() {
        let day = Duration::from_secs(86_400);
        let margin = i64::try_from(MARGIN.as_millis()).unwrap();
        let gap = |since: Option<i64>| ConnectionGap { since: since.map(at), until: at(0) };
        for (newest, unfinished, gap, want) in [
            // The courier was down since the last message.
            (Some(-2 * HOUR), None, gap(None), -2 * HOUR - margin),
            // A connection was lost for a minute.
            (Some(-1000), None, gap(Some(-60_000)), -60_000 - margin),
            // A catch-up was interrupted.
            (Some(-1000), Some(-5 * HOUR), gap(Some(-60_000)), -5 * HOUR),
            // The courier was down for a week.
            (Some(-168 * HOUR), None, gap(None), -24 * HOUR),
            (None, None, gap(Some(-60_000)), -60_000 - margin),
        ] {
            let plan = GapPlan::new(newest.map(at), unfinished.map(at), gap, day);
            assert_eq!((plan.since, plan.oldest), (at(want), at(-24 * HOUR)), "{newest:?}");
        }
        let plan = GapPlan::new(Some(at(-1000)), None, gap(Some(-60_000)), day);
        assert_eq!(plan.chat_start(Some(at(-1000))), plan.since, "it may have missed some");
        assert_eq!(plan.chat_start(Some(at(-5 * HOUR))), at(-5 * HOUR));
        assert_eq!(plan.chat_start(Some(at(-50 * HOUR))), at(-24 * HOUR));
        assert_eq!(plan.chat_start(None), plan.since);
    }
}
