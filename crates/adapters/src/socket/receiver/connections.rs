//! Opening, replacing and closing the connections of the loop.

use std::time::Duration;

use futures_util::FutureExt as _;
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;

use super::{MAX_SOCKETS, SocketReceiver, jitter};
use crate::ConnectionEvent;
use crate::socket::batch::SocketId;
use crate::socket::health::{DeadReason, HealthAction};
use crate::socket::live::{LiveSocket, SocketRole};
use crate::socket::{ConnectError, ConnectionGap};

/// How long a connection that is no longer needed may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

impl SocketReceiver<'_> {
    /// Opens the next connection when it is time, and when there is room for it.
    pub(super) fn open_next(&mut self, now: Duration) {
        if self.opening.is_some() || self.open_at.is_none_or(|at| now < at) {
            return;
        }
        if self.sockets.len() + self.closing.len() >= MAX_SOCKETS {
            // A connection that is being closed makes room soon.
            let is_draining =
                |socket: &LiveSocket| matches!(socket.role, SocketRole::Draining { .. });
            if let Some(n) = self.sockets.iter().position(is_draining) {
                let socket = self.sockets.swap_remove(n);
                self.close(socket);
            }
            return;
        }
        self.open_at = None;
        self.last_id += 1;
        let (id, protocol, connector) = (self.last_id, self.protocol, self.connector);
        self.opening = Some(LiveSocket::open(id, protocol, connector).boxed());
    }

    pub(super) fn opened(
        &mut self,
        opened: Result<LiveSocket, ConnectError>,
    ) -> Result<(), Failure> {
        match opened {
            Ok(socket) => {
                let (id, is_ready) = (socket.id, socket.health.is_ready());
                self.sockets.push(socket);
                if is_ready {
                    self.ready(id);
                }
                Ok(())
            }
            Err(error) => {
                self.report_failure(error.failure.detail());
                let delay = self.plan.after_error(&error, &self.protocol.timing(), jitter());
                self.open_at = Some(self.now() + delay.ok_or(error.failure)?);
                Ok(())
            }
        }
    }

    /// The server has accepted a connection: it replaces the others.
    pub(super) fn ready(&mut self, id: SocketId) {
        let now = self.now();
        // A connection that is being closed replaces nothing.
        let Some(socket) = self.find(id) else { return };
        socket.health.set_ready();
        if socket.role != SocketRole::Opening {
            return;
        }
        socket.role = SocketRole::Current;
        for socket in self.sockets.iter_mut().filter(|socket| socket.id != id) {
            socket.health.expect_no_traffic();
            let until = now + socket.health.timing().drain;
            if !matches!(socket.role, SocketRole::Draining { .. }) {
                socket.role = SocketRole::Draining { until };
            }
        }
        if !std::mem::replace(&mut self.is_up, true) {
            self.sink.report(ConnectionEvent::Connected);
        }
        if let Some(since) = self.gap.take() {
            let until = self.connector.clock.wall();
            self.catch_up.add(ConnectionGap { since, until });
        }
    }

    /// Replaces a connection. Does nothing when that has begun already.
    pub(super) fn replace(&mut self, id: SocketId, reason: String, keep_old: bool) {
        let now = self.now();
        let Some(socket) = self.sockets.iter_mut().find(|socket| socket.id == id) else { return };
        if !keep_old || socket.role == SocketRole::Opening {
            return self.end(id, reason);
        }
        if socket.role == SocketRole::Current {
            tracing::debug!(reason, "replacing socket");
            socket.role = SocketRole::Leaving;
            socket.health.expect_no_traffic();
            let timing = *socket.health.timing();
            let delay = self.plan.after_end(socket.health.was_good(now), &timing, jitter());
            self.open_at = Some(now + delay);
        }
    }

    /// A connection has ended, or is useless.
    pub(super) fn end(&mut self, id: SocketId, why: String) {
        let now = self.now();
        let Some(n) = self.sockets.iter().position(|socket| socket.id == id) else { return };
        let socket = self.sockets.swap_remove(n);
        let (role, health) = (socket.role, socket.health.clone());
        self.close(socket);
        match role {
            SocketRole::Draining { .. } => return,
            SocketRole::Current | SocketRole::Leaving => {
                self.is_up = false;
                self.missed(health.silent_for(now));
            }
            SocketRole::Opening => {}
        }
        self.report_failure(&why);
        // A replacement may be under way already.
        let is_opening = |socket: &LiveSocket| socket.role == SocketRole::Opening;
        let is_planned = self.opening.is_some() || self.open_at.is_some();
        if !is_planned && !self.sockets.iter().any(is_opening) {
            let delay = self.plan.after_end(health.was_good(now), health.timing(), jitter());
            self.open_at = Some(now + delay);
        }
    }

    /// Closes the replaced connection when its time is over.
    pub(super) fn close_drained(&mut self, now: Duration) {
        let is_over = |socket: &LiveSocket| match socket.role {
            SocketRole::Draining { until } => now >= until,
            _ => false,
        };
        if let Some(n) = self.sockets.iter().position(is_over) {
            let socket = self.sockets.swap_remove(n);
            self.close(socket);
        }
    }

    /// Closes a connection in the background.
    fn close(&mut self, socket: LiveSocket) {
        self.closing.push((socket.id, socket.close(CLOSE_TIMEOUT).boxed()));
    }

    /// Notes that messages since `ago` may be missed.
    fn missed(&mut self, ago: Duration) {
        let ago = i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
        let since = self.connector.clock.wall().ms().saturating_sub(ago);
        let since = Some(Timestamp::from_ms(since));
        // `None`, before the first connection, is the earliest.
        self.gap = Some(self.gap.map_or(since, |gap| gap.min(since)));
    }

    /// Reports an error, unless another connection works.
    fn report_failure(&self, why: &str) {
        if self.is_up {
            tracing::warn!(error = why, "cannot replace socket; the old one is still open");
        } else {
            self.sink.report(ConnectionEvent::Lost(why.to_owned()));
        }
    }

    /// Returns when a deadline may have passed, as elapsed time.
    pub(super) fn next_tick(&self, now: Duration) -> Duration {
        let mut next = now + self.connector.clock.check_interval;
        for socket in &self.sockets {
            next = next.min(socket.health.next_check(now));
            if let SocketRole::Draining { until } = socket.role {
                next = next.min(until);
            }
        }
        let has_room = self.sockets.len() + self.closing.len() < MAX_SOCKETS;
        let open_at = self.open_at.filter(|_| has_room && self.opening.is_none());
        let start = self.catch_up.next_start().filter(|_| self.is_up);
        open_at.into_iter().chain(start).fold(next, Duration::min)
    }

    /// Checks the deadlines of all connections.
    pub(super) async fn check(&mut self) {
        let now = self.now();
        let ids: Vec<_> = self.sockets.iter().map(|socket| socket.id).collect();
        for id in ids {
            let Some(n) = self.sockets.iter().position(|socket| socket.id == id) else { continue };
            match self.sockets[n].health.check(now) {
                HealthAction::Nothing => {}
                HealthAction::Ping => {
                    let message = self.protocol.ping();
                    if let Err(why) = self.sockets[n].ping(message).await {
                        self.end(id, why);
                    }
                }
                HealthAction::Dead(reason) => self.end(id, describe_dead(reason)),
                HealthAction::Replace => {
                    let silence = self.sockets[n].health.without_traffic_for(now);
                    self.missed(silence);
                    let reason = format!("the server sent nothing for {} s", silence.as_secs());
                    self.replace(id, reason, true);
                }
            }
        }
    }
}

fn describe_dead(reason: DeadReason) -> String {
    match reason {
        DeadReason::NotReady(limit) => {
            format!("the server did not accept the connection within {} s", limit.as_secs_f32())
        }
        DeadReason::NoAnswer => "the server did not answer a ping".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::socket::SocketConnector;
    use crate::socket::receiver::SocketReceiver;
    use crate::socket::tests::support::{IdSink, WordProtocol};

    #[tokio::test]
    async fn connection_that_is_gone_is_not_taken_for_ready() {
        let protocol = WordProtocol::new("ws://127.0.0.1:9/");
        let (connector, sink) = (SocketConnector::default(), IdSink::default());
        let mut receiver = SocketReceiver::new(&protocol, &connector, &sink);
        receiver.ready(7);
        assert!(!receiver.is_up);
        assert!(receiver.gap.is_some(), "what was missed is still to be fetched");
        assert_eq!(sink.connected(), 0);
    }
}
