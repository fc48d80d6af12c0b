//! Runs [`SocketProtocol::catch_up`] after a gap, and repeats it after a temporary failure.

use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use monoco_core::retry::{Failure, Jitter};

use super::plan::MAX_AFTER;
use super::{ConnectionGap, SocketProtocol};
use crate::InboundSink;

/// The gap that is being filled, and the one that waits for it.
pub(super) struct CatchUp<'a> {
    protocol: &'a dyn SocketProtocol,
    sink: &'a dyn InboundSink,
    running: Option<(ConnectionGap, BoxFuture<'a, Result<(), Failure>>)>,
    waiting: Option<ConnectionGap>,
    failures: u32,
    /// When the waiting gap may be filled, as elapsed time.
    start_at: Duration,
}

impl<'a> CatchUp<'a> {
    pub fn new(protocol: &'a dyn SocketProtocol, sink: &'a dyn InboundSink) -> Self {
        let (running, waiting, failures, start_at) = (None, None, 0, Duration::ZERO);
        Self { protocol, sink, running, waiting, failures, start_at }
    }

    /// Asks for a gap to be filled.
    pub fn add(&mut self, gap: ConnectionGap) {
        self.waiting = Some(self.waiting.map_or(gap, |waiting| waiting.merge(gap)));
    }

    /// Starts to fill the waiting gap, when it is time.
    pub fn start(&mut self, now: Duration) {
        if self.running.is_none()
            && now >= self.start_at
            && let Some(gap) = self.waiting.take()
        {
            self.running = Some((gap, self.protocol.catch_up(self.sink, gap)));
        }
    }

    /// Returns when [`CatchUp::start`] has something to do.
    pub fn next_start(&self) -> Option<Duration> {
        (self.waiting.is_some() && self.running.is_none()).then_some(self.start_at)
    }

    /// Is ready when a gap is filled, or could not be filled.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        match &mut self.running {
            Some((_, running)) => running.poll_unpin(cx),
            None => Poll::Pending,
        }
    }

    /// Records the result of [`CatchUp::poll`].
    pub fn finish(&mut self, result: Result<(), Failure>, now: Duration, jitter: Jitter) {
        let gap = self.running.take().map(|(gap, _)| gap);
        match result {
            Ok(()) => (self.failures, self.start_at) = (0, now),
            Err(Failure::Permanent { detail, .. }) => {
                (self.failures, self.start_at) = (0, now);
                tracing::warn!(error = detail, "cannot fetch missed messages");
            }
            Err(failure @ (Failure::Temporary { .. } | Failure::Unknown { .. })) => {
                self.failures = self.failures.saturating_add(1);
                let asked = match &failure {
                    Failure::Temporary { retry_after_ms, .. } => *retry_after_ms,
                    _ => None,
                };
                let asked = Duration::from_millis(asked.unwrap_or_default()).min(MAX_AFTER);
                let delay = self.protocol.timing().backoff.delay(self.failures, jitter);
                self.start_at = now + delay.max(asked);
                if let Some(gap) = gap {
                    self.add(gap);
                }
                tracing::warn!(error = failure.detail(), "cannot fetch missed messages yet");
            }
        }
    }
}
