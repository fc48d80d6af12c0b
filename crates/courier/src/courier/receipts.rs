//! Reacts to the messages of one tunnel: when they were kept, when their Mail was completed, and
//! when it became a dead letter.
//!
//! A separate loop per tunnel reads the event log and stores its position there after each event,
//! so that a receipt is neither in the way of a message nor lost by a crash. After a crash the last
//! reaction can be repeated, which changes nothing at the provider. The loop holds at most one page
//! of events, makes one attempt at a time at the pace of the provider, and drops receipts that fail
//! for good or are too old. What it does is counted in [`ReceiptCounts`].

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use monoco_core::chat_receipt::{
    ChatReceipts, DueReceipt, Reaction, ReceiptTarget, is_too_old, messages_of, next_attempt,
};
use monoco_core::mail::Mail;
use monoco_core::object::ObjId;
use monoco_core::rate_limit::{Rate, ReservedUntil, reserve};
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use monoco_store::{SharedStore, StoreError};
use tokio::sync::watch;

use super::tunnels::RunningTunnel;
use crate::background::{self, BackgroundTask, NextStep};
use crate::clock::{Clock, jitter};

/// How many events are read at once.
const EVENTS_PER_PAGE: usize = 256;

/// Interval between checks when no hint arrives.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Shortest time between two reads of the newest events, when they ask for no receipt: a busy log
/// is not read once per commit.
const READ_INTERVAL: Duration = Duration::from_millis(250);

/// How long one attempt may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);

/// Events without a receipt after which the position is stored. It saves a write per page; after
/// a restart they are read again.
const UNSTORED_EVENTS: i64 = 4_096;

/// The receipts of a tunnel since it was started.
#[derive(Debug, Default)]
pub struct ReceiptCounts {
    sent: AtomicU64,
    failed: AtomicU64,
    expired: AtomicU64,
}

impl ReceiptCounts {
    /// Returns the names of the results with their numbers, for metrics.
    pub fn by_result(&self) -> [(&'static str, u64); 3] {
        let results = [("sent", &self.sent), ("failed", &self.failed), ("expired", &self.expired)];
        results.map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }
}

/// The loop that reacts to the messages of one tunnel.
pub struct ReceiptLoop {
    store: SharedStore,
    clock: Clock,
    tunnel: Arc<RunningTunnel>,
    receipts: ChatReceipts,
    rate: Rate,
    newest: watch::Receiver<i64>,
    active: watch::Receiver<bool>,
    /// Name of the loop's position in the store.
    reader: String,
    /// Where the log starts for a tunnel that had no receipts before.
    start: i64,
    /// The last event that is finished with; `None` before the first step.
    cursor: Option<i64>,
    stored_cursor: i64,
    waiting: VecDeque<WaitingReceipt>,
    open: Option<OpenReceipt>,
    reserved: Option<ReservedUntil>,
}

/// A receipt that an event of the current page asks for.
struct WaitingReceipt {
    event: i64,
    at: Timestamp,
    due: DueReceipt,
}

/// The receipt that is being sent: one reaction to at least one message.
struct OpenReceipt {
    event: i64,
    at: Timestamp,
    reaction: Reaction,
    messages: VecDeque<String>,
    /// Failed attempts at the first message.
    attempts: u32,
}

impl BackgroundTask for ReceiptLoop {
    const NAME: &'static str = "receipts";
    type Error = StoreError;

    async fn step(&mut self) -> Result<NextStep, StoreError> {
        self.newest.mark_unchanged();
        self.active.mark_unchanged();
        if !self.tunnel.is_active() {
            return Ok(NextStep::Poll(POLL_INTERVAL));
        }
        if let Some(open) = self.open.take() {
            return self.react(open).await;
        }
        match self.waiting.pop_front() {
            Some(receipt) => self.open_receipt(receipt).await,
            None => self.read_page().await,
        }
    }

    async fn hint(&mut self) {
        tokio::select! {
            () = background::changed(&mut self.newest) => {}
            () = background::changed(&mut self.active) => {}
        }
    }
}

impl ReceiptLoop {
    /// Must be called before the tunnel receives messages: a tunnel without a stored position
    /// starts with the next event.
    pub fn new(
        store: SharedStore,
        clock: Clock,
        tunnel: Arc<RunningTunnel>,
        receipts: ChatReceipts,
        rate: Rate,
    ) -> Self {
        let (newest, active) = (store.newest_event(), tunnel.active_changes());
        let reader = format!("receipts:{}", tunnel.adapter.id());
        let start = *newest.borrow();
        Self {
            store,
            clock,
            tunnel,
            receipts,
            rate,
            newest,
            active,
            reader,
            start,
            cursor: None,
            stored_cursor: 0,
            waiting: VecDeque::new(),
            open: None,
            reserved: None,
        }
    }

    /// Sends receipts until the tunnel stops.
    pub async fn run(mut self) {
        let stop = self.tunnel.stop.clone();
        background::run(&mut self, &stop).await;
    }

    /// Reads the next events of the log.
    async fn read_page(&mut self) -> Result<NextStep, StoreError> {
        let cursor = self.cursor().await?;
        let events = self.store.events(cursor, EVENTS_PER_PAGE).await?;
        let Some(last) = events.last().map(|event| event.seq) else {
            return Ok(NextStep::Poll(POLL_INTERVAL));
        };
        let (tunnel, now) = (&self.tunnel.adapter, self.clock.now());
        self.waiting.extend(events.iter().filter_map(|event| {
            let due = self.receipts.due(event, tunnel.id(), tunnel.provider(), now)?;
            Some(WaitingReceipt { event: event.seq, at: event.at, due })
        }));
        if self.waiting.is_empty() {
            self.cursor = Some(last);
            if last - self.stored_cursor >= UNSTORED_EVENTS {
                self.store_cursor(last).await?;
            }
            if events.len() < EVENTS_PER_PAGE {
                return Ok(NextStep::After(READ_INTERVAL));
            }
        }
        Ok(NextStep::Now)
    }

    /// Returns the last event that is finished with.
    async fn cursor(&mut self) -> Result<i64, StoreError> {
        if let Some(cursor) = self.cursor {
            return Ok(cursor);
        }
        let cursor = match self.store.event_cursor(&self.reader).await? {
            Some(cursor) => {
                self.stored_cursor = cursor;
                cursor
            }
            None => {
                self.store_cursor(self.start).await?;
                self.start
            }
        };
        self.cursor = Some(cursor);
        Ok(cursor)
    }

    async fn store_cursor(&mut self, seq: i64) -> Result<(), StoreError> {
        self.store.set_event_cursor(&self.reader, seq).await?;
        self.stored_cursor = seq;
        Ok(())
    }

    /// Looks up the messages of a receipt.
    async fn open_receipt(&mut self, receipt: WaitingReceipt) -> Result<NextStep, StoreError> {
        let messages = match &receipt.due.target {
            ReceiptTarget::Message(id) => Ok(vec![id.clone()]),
            ReceiptTarget::MailObject(object) => self.messages_of(*object).await,
        };
        let messages = match messages {
            Ok(messages) => messages,
            Err(error) => {
                self.waiting.push_front(receipt);
                return Err(error);
            }
        };
        let WaitingReceipt { event, at, due } = receipt;
        if messages.is_empty() {
            self.cursor = Some(event);
            return Ok(NextStep::Now);
        }
        let (reaction, messages) = (due.reaction, messages.into());
        self.open = Some(OpenReceipt { event, at, reaction, messages, attempts: 0 });
        Ok(NextStep::Now)
    }

    /// Returns the messages of a Mail; none when its text is erased or damaged.
    async fn messages_of(&self, object: ObjId) -> Result<Vec<String>, StoreError> {
        let text = match self.store.object(object).await {
            Ok(text) => text,
            Err(
                StoreError::Erased { .. } | StoreError::Missing { .. } | StoreError::Damaged { .. },
            ) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mail = std::str::from_utf8(&text).ok().and_then(|text| Mail::read(object, text).ok());
        Ok(mail.map(|mail| messages_of(&mail, self.tunnel.adapter.id())).unwrap_or_default())
    }

    /// Makes one attempt at the first message of a receipt, when the provider's rate allows it.
    async fn react(&mut self, mut open: OpenReceipt) -> Result<NextStep, StoreError> {
        let counts = &self.tunnel.receipts;
        let now = self.clock.now();
        let Some(message) = open.messages.front() else { return self.finish(open).await };
        if is_too_old(open.at, now) {
            let expired = u64::try_from(open.messages.len()).unwrap_or(u64::MAX);
            counts.expired.fetch_add(expired, Ordering::Relaxed);
            return self.finish(open).await;
        }
        let (slot, reserved) = reserve(&[(self.rate, self.reserved)], now);
        if slot > now {
            self.open = Some(open);
            return Ok(NextStep::After(slot.since(now)));
        }
        self.reserved = reserved.first().copied();
        let stop = &self.tunnel.stop;
        let attempt = attempt(&self.tunnel, message, open.reaction);
        let Some(result) = stop.run_until_cancelled(attempt).await else {
            // The reaction is repeated after the next start.
            self.open = Some(open);
            return Ok(NextStep::Now);
        };
        match result {
            Ok(()) => counts.sent.fetch_add(1, Ordering::Relaxed),
            Err(failure) => {
                open.attempts += 1;
                if let Some(delay) = next_attempt(&failure, open.attempts, jitter()) {
                    self.open = Some(open);
                    return Ok(NextStep::After(delay));
                }
                let (tunnel, error) = (self.tunnel.adapter.id(), failure.detail());
                tracing::warn!(%tunnel, external_id = message, error, "cannot react to message");
                counts.failed.fetch_add(1, Ordering::Relaxed)
            }
        };
        open.messages.pop_front();
        open.attempts = 0;
        if open.messages.is_empty() {
            return self.finish(open).await;
        }
        self.open = Some(open);
        Ok(NextStep::Now)
    }

    /// Stores that a receipt is finished with.
    async fn finish(&mut self, open: OpenReceipt) -> Result<NextStep, StoreError> {
        self.cursor = Some(open.event);
        self.store_cursor(open.event).await?;
        Ok(NextStep::Now)
    }
}

/// Makes one attempt to react to a message.
async fn attempt(tunnel: &RunningTunnel, message: &str, reaction: Reaction) -> Result<(), Failure> {
    let temporary = |detail: &str| {
        let detail = detail.to_owned();
        Failure::Temporary { detail, retry_after_ms: None, error_code: None }
    };
    let attempt = AssertUnwindSafe(tunnel.adapter.react(message, reaction)).catch_unwind();
    match tokio::time::timeout(ATTEMPT_TIMEOUT, attempt).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(temporary("the adapter panicked")),
        Err(_) => Err(temporary("the provider did not answer within 30 s")),
    }
}

#[cfg(test)]
mod tests;
