//! Long polling: asks for updates, stores them, and confirms them with the next request.
//!
//! Telegram returns an update until a request has an offset above its id. So an update is confirmed
//! only after it is stored, and what was stored and not confirmed before a crash is received again
//! and recognised. A request confirms and returns at once; the one that waits has no offset, so
//! that it cannot skip updates whose ids have started over.

use std::time::Duration;

use monoco_core::retry::{Backoff, Failure, Jitter};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::TelegramAdapter;
use super::client::PollRequest;
use super::failure::{TelegramError, TelegramErrorKind};
use super::wire::TelegramUpdate;
use crate::{ConnectionEvent, InboundError, InboundSink};

/// Most updates of a page.
const PAGE_LIMIT: u32 = 100;

/// How much longer than a poll the tunnel waits after another program has polled.
const CONFLICT_MARGIN: Duration = Duration::from_secs(15);

/// Longest delay after a conflict, a rejected token and the like.
const LONGEST_DELAY: Duration = Duration::from_secs(900);

/// Delays after an error that a person has to fix.
const SLOW_BACKOFF: Backoff = Backoff { first: Duration::from_secs(60), longest: LONGEST_DELAY };

/// Longest delay that Telegram can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// A conflict is over when none has occurred for this time.
const CONFLICT_MEMORY: Duration = Duration::from_secs(1200);

/// A poll that waits and returns nothing earlier than this was not waited for by the server.
const SHORTEST_WAIT: Duration = Duration::from_millis(900);

/// Time limit of the confirmation when the tunnel stops.
const LAST_CONFIRMATION: Duration = Duration::from_secs(3);

/// Time limit for storing the ids of migrated groups, which are stored before a page.
const MIGRATIONS_TIMEOUT: Duration = Duration::from_secs(5);

/// Decides what is asked for next, and how long the tunnel waits before that.
#[derive(Clone, Debug)]
pub(super) struct PollPlan {
    /// How long Telegram waits for an update.
    wait: Duration,
    offset: Option<i64>,
    limit: u32,
    is_connected: bool,
    failures: u32,
    conflicts: u32,
    last_conflict: Option<Duration>,
    /// First and last id of the last page.
    last_page: Option<(i64, i64)>,
}

impl PollPlan {
    pub fn new(wait: Duration) -> Self {
        Self {
            wait,
            offset: None,
            limit: PAGE_LIMIT,
            is_connected: false,
            failures: 0,
            conflicts: 0,
            last_conflict: None,
            last_page: None,
        }
    }

    /// Returns the next request. The first one returns at once, and so does one that confirms.
    pub fn request(&self) -> PollRequest {
        let at_once = self.offset.is_some() || !self.is_connected;
        let timeout = if at_once { Duration::ZERO } else { self.wait };
        PollRequest { offset: self.offset, limit: self.limit, timeout }
    }

    /// Records a page, which has confirmed what was stored. Returns the delay before the next
    /// request: a server that does not wait, or that repeats what was confirmed, is asked after a pause.
    pub fn after_page(
        &mut self,
        ids: &[i64],
        request: &PollRequest,
        took: Duration,
        now: Duration,
        jitter: Jitter,
    ) -> Duration {
        if self.last_conflict.is_some_and(|at| now.saturating_sub(at) > CONFLICT_MEMORY) {
            (self.conflicts, self.last_conflict) = (0, None);
        }
        let page = ids.first().copied().zip(ids.last().copied());
        let is_repeated = page.is_some() && page == self.last_page && self.offset.is_some();
        let is_early = page.is_none() && request.timeout > SHORTEST_WAIT && took < SHORTEST_WAIT;
        (self.is_connected, self.limit, self.offset, self.last_page) =
            (true, PAGE_LIMIT, None, page);
        if is_repeated || is_early {
            self.failures = self.failures.saturating_add(1);
            return Backoff::DEFAULT.delay(self.failures, jitter);
        }
        // That the server answers at once says nothing about requests that wait.
        if page.is_some() || !request.timeout.is_zero() {
            self.failures = 0;
        }
        Duration::ZERO
    }

    /// Records up to which update a page was stored.
    pub fn confirm(&mut self, last_stored: Option<i64>) {
        self.offset = last_stored.map(|id| id.saturating_add(1));
    }

    /// Returns the delay after a page that could not be stored.
    pub fn after_unstored(&mut self, jitter: Jitter) -> Duration {
        self.last_page = None;
        self.failures = self.failures.saturating_add(1);
        Backoff::DEFAULT.delay(self.failures, jitter)
    }

    /// Returns the delay after an answer that is no page. The next page has one update, so that
    /// one that is too large does not hide the others.
    pub fn after_unreadable(&mut self, jitter: Jitter) -> Duration {
        self.limit = 1;
        self.is_connected = false;
        self.failures = self.failures.saturating_add(1);
        Backoff::DEFAULT.delay(self.failures, jitter)
    }

    /// Returns the delay after an error.
    pub fn after_error(
        &mut self,
        error: &TelegramError,
        now: Duration,
        jitter: Jitter,
    ) -> Duration {
        self.is_connected = false;
        self.failures = self.failures.saturating_add(1);
        match error.kind {
            // Waits longer than a poll, so that one that was left over has ended. A second tunnel
            // does the same, so that both do not end the polls of each other all the time.
            TelegramErrorKind::OtherPoller | TelegramErrorKind::WebhookActive => {
                self.conflicts = self.conflicts.saturating_add(1);
                self.last_conflict = Some(now);
                // The jitter shortens a delay by up to a quarter.
                let first = (self.wait + CONFLICT_MARGIN) * 4 / 3;
                let backoff = Backoff { first, longest: LONGEST_DELAY.max(first) };
                backoff.delay(self.conflicts, jitter)
            }
            TelegramErrorKind::Throttled { retry_after } => {
                let asked = retry_after.unwrap_or_default().min(MAX_RETRY_AFTER);
                asked.max(Backoff::DEFAULT.delay(self.failures, jitter))
            }
            _ if matches!(error.failure, Failure::Permanent { .. }) => {
                SLOW_BACKOFF.delay(self.failures, jitter)
            }
            _ => Backoff::DEFAULT.delay(self.failures, jitter),
        }
    }
}

/// Polls, stores and confirms updates until `stop`.
pub(super) async fn run(
    adapter: &TelegramAdapter,
    sink: &dyn InboundSink,
    stop: &CancellationToken,
) {
    let mut plan = PollPlan::new(adapter.config.poll);
    let begin = Instant::now();
    loop {
        let (request, started) = (plan.request(), Instant::now());
        let polled = stop.run_until_cancelled(adapter.client.updates(&request)).await;
        let (took, now) = (started.elapsed(), begin.elapsed());
        let delay = match polled {
            None => break,
            Some(Ok(Some(updates))) => {
                let is_new = !plan.is_connected;
                sink.report(if is_new {
                    ConnectionEvent::Connected
                } else {
                    ConnectionEvent::Frame
                });
                let ids: Vec<_> = updates.iter().map(|update| update.id).collect();
                let delay = plan.after_page(&ids, &request, took, now, jitter());
                if plan.last_conflict.is_none() {
                    adapter.intake.set_conflict(None);
                }
                let (stored, error) = store(adapter, sink, &updates).await;
                plan.confirm(stored);
                match error {
                    Some(error) => {
                        tracing::warn!(tunnel = %adapter.id, %error, "cannot store updates");
                        plan.after_unstored(jitter())
                    }
                    None => delay,
                }
            }
            Some(Ok(None)) => {
                let detail = "getUpdates: the answer is no list of updates";
                tracing::warn!(tunnel = %adapter.id, detail, "cannot read updates");
                sink.report(ConnectionEvent::Lost(detail.to_owned()));
                plan.after_unreadable(jitter())
            }
            Some(Err(error)) => {
                let detail = error.failure.detail().to_owned();
                tracing::warn!(tunnel = %adapter.id, error = detail, "cannot get updates");
                sink.report(ConnectionEvent::Lost(detail.clone()));
                let delay = plan.after_error(&error, now, jitter());
                match error.kind {
                    TelegramErrorKind::WebhookActive if adapter.config.delete_webhook => {
                        let deleted = stop.run_until_cancelled(adapter.delete_webhook()).await;
                        if deleted == Some(true) { Duration::ZERO } else { delay }
                    }
                    TelegramErrorKind::OtherPoller => {
                        adapter.intake.set_conflict(Some(detail));
                        delay
                    }
                    _ => delay,
                }
            }
        };
        if !delay.is_zero() && stop.run_until_cancelled(sleep(delay)).await.is_none() {
            break;
        }
    }
    if plan.offset.is_some() {
        // Without it, the next start receives this page again, and recognises it.
        let request = PollRequest { limit: 1, timeout: Duration::ZERO, ..plan.request() };
        let _ = tokio::time::timeout(LAST_CONFIRMATION, adapter.client.updates(&request)).await;
    }
}

/// Stores the updates of a page. Returns the id of the last update before the first one that is not
/// stored, and why that is not stored.
async fn store(
    adapter: &TelegramAdapter,
    sink: &dyn InboundSink,
    updates: &[TelegramUpdate],
) -> (Option<i64>, Option<InboundError>) {
    let mut page = adapter.intake.read(updates);
    if !page.events.is_empty() && !adapter.intake.migrations.is_stored(MIGRATIONS_TIMEOUT).await {
        let why = "the ids of migrated groups are not stored yet".to_owned();
        return (None, Some(InboundError::Unavailable(why)));
    }
    adapter.intake.migrations.set_sessions(&mut page.events);
    let count = page.events.len();
    let results = if count == 0 { Vec::new() } else { sink.receive_events(page.events).await };
    let (end, error) = stored_prefix(updates.len(), &page.sources, count, &results);
    let last = end.checked_sub(1).and_then(|at| updates.get(at)).map(|update| update.id);
    (last, error)
}

/// Returns how many updates can be confirmed: those before the first one with an event that is not
/// stored. Events that exceed a limit can never be stored, so they are passed over.
fn stored_prefix(
    updates: usize,
    sources: &[usize],
    events: usize,
    results: &[Result<bool, InboundError>],
) -> (usize, Option<InboundError>) {
    let (mut end, mut error) = (updates, None);
    for at in 0..events {
        let problem = match results.get(at) {
            Some(Ok(_) | Err(InboundError::Unusable(_))) => continue,
            Some(Err(problem)) => problem.clone(),
            None => InboundError::Unavailable("the sink returned no result".to_owned()),
        };
        let source = sources.get(at).copied().unwrap_or(0);
        if source < end || error.is_none() {
            (end, error) = (source.min(end), Some(problem));
        }
    }
    (end, error)
}

fn jitter() -> Jitter {
    Jitter::from_random(getrandom::u32().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
