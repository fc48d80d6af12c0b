//! Decides whether a connection works: when to ping, when it is dead, when to replace it.
//!
//! Pure: the time is passed in, as elapsed time.

use std::time::Duration;

use super::SocketTiming;

/// Time for an answer after the machine was suspended. Most connections are dead then.
const PONG_DEADLINE_AFTER_JUMP: Duration = Duration::from_secs(5);

/// How often [`SocketHealth::check`] may be late before the machine counts as suspended.
const CHECKS_PER_JUMP: u32 = 3;

/// A connection that lasts this long was no failure.
const GOOD_CONNECTION: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HealthAction {
    Nothing,
    Ping,
    /// The connection does not work; a close handshake makes no sense.
    Dead(DeadReason),
    /// The server answers, but sends nothing of its own for too long.
    Replace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeadReason {
    /// The server did not accept the connection in this time.
    NotReady(Duration),
    /// The server did not answer a ping.
    NoAnswer,
}

/// The times of one connection.
#[derive(Clone, Debug)]
pub(super) struct SocketHealth {
    timing: SocketTiming,
    check_interval: Duration,
    opened_at: Duration,
    is_ready: bool,
    last_frame: Duration,
    last_traffic: Duration,
    last_ping: Duration,
    pong_due: Option<Duration>,
    last_seen: Duration,
    /// Whether more time has passed than the timers of the loop can explain.
    has_jumped: bool,
    has_progress: bool,
}

impl SocketHealth {
    pub fn new(timing: SocketTiming, check_interval: Duration, now: Duration) -> Self {
        Self {
            timing,
            check_interval,
            opened_at: now,
            is_ready: timing.ready.is_none(),
            last_frame: now,
            last_traffic: now,
            last_ping: now,
            pong_due: None,
            last_seen: now,
            has_jumped: false,
            has_progress: false,
        }
    }

    pub fn timing(&self) -> &SocketTiming {
        &self.timing
    }

    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    pub fn set_ready(&mut self) {
        self.is_ready = true;
    }

    /// Records a frame. `is_traffic`: the server sent it without being asked.
    pub fn record_frame(&mut self, now: Duration, is_traffic: bool) {
        self.notice_jump(now);
        self.last_frame = now;
        self.pong_due = None;
        if is_traffic {
            self.last_traffic = now;
        }
    }

    /// Records a WebSocket ping of the server: from now on the server is expected to send more.
    pub fn record_server_ping(&mut self) {
        if let Some(limit) = self.timing.deadline_after_ping {
            self.timing.traffic_deadline = Some(limit);
        }
    }

    /// Changes the time between two pings.
    pub fn set_ping_interval(&mut self, interval: Duration) {
        self.timing.ping_interval = interval;
    }

    /// Records that a new event of this connection was stored.
    pub fn record_progress(&mut self) {
        self.has_progress = true;
    }

    /// Tells whether the end of this connection is no failure, so that the next one can be opened
    /// without a delay.
    pub fn was_good(&self, now: Duration) -> bool {
        let lasted = now.saturating_sub(self.opened_at);
        self.is_ready && (self.has_progress || lasted >= GOOD_CONNECTION)
    }

    /// Returns how long ago the connection is known to have worked.
    pub fn silent_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.last_frame)
    }

    /// Returns how long ago the server sent something of its own.
    pub fn without_traffic_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.last_traffic)
    }

    /// Ends the deadline for traffic, because the connection is being replaced.
    pub fn expect_no_traffic(&mut self) {
        self.timing.traffic_deadline = None;
        self.timing.deadline_after_ping = None;
    }

    /// Decides what to do now. Frames that have arrived must be recorded before.
    pub fn check(&mut self, now: Duration) -> HealthAction {
        self.notice_jump(now);
        if std::mem::take(&mut self.has_jumped) {
            // The deadlines have passed without a chance to meet them.
            return self.ping(now, self.timing.pong_deadline.min(PONG_DEADLINE_AFTER_JUMP));
        }
        if let Some(limit) = self.timing.ready
            && !self.is_ready
            && now >= self.opened_at + limit
        {
            return HealthAction::Dead(DeadReason::NotReady(limit));
        }
        if self.pong_due.is_some_and(|due| now >= due) {
            return HealthAction::Dead(DeadReason::NoAnswer);
        }
        if self.timing.traffic_deadline.is_some_and(|limit| now >= self.last_traffic + limit) {
            return HealthAction::Replace;
        }
        if now >= self.last_ping + self.timing.ping_interval && self.pong_due.is_none() {
            return self.ping(now, self.timing.pong_deadline);
        }
        HealthAction::Nothing
    }

    /// The loop calls this at least every `check_interval`, unless the machine is suspended.
    fn notice_jump(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.last_seen);
        self.has_jumped |= passed > self.check_interval * CHECKS_PER_JUMP;
        self.last_seen = now;
    }

    fn ping(&mut self, now: Duration, deadline: Duration) -> HealthAction {
        self.last_ping = now;
        self.pong_due = Some(now + deadline);
        HealthAction::Ping
    }

    /// Returns when [`SocketHealth::check`] must be called at the latest.
    pub fn next_check(&self, now: Duration) -> Duration {
        let ready =
            self.timing.ready.filter(|_| !self.is_ready).map(|limit| self.opened_at + limit);
        let ping = match self.pong_due {
            Some(due) => due,
            None => self.last_ping + self.timing.ping_interval,
        };
        let traffic = self.timing.traffic_deadline.map(|limit| self.last_traffic + limit);
        if self.has_jumped {
            return now;
        }
        let next = ready.into_iter().chain(traffic).fold(ping, Duration::min);
        next.min(now + self.check_interval)
    }
}
