//! Health of one tunnel: status, last activity, last error.
//!
//! | status | meaning |
//! | --- | --- |
//! | hearing | received something in the last 10 minutes |
//! | quiet | listens, and received nothing in the last 10 minutes |
//! | deaf | the last 3 or more authentic requests could not be read or stored |
//! | down | does not listen, or its connection is lost or not open yet |
//! | paused | an operator has paused it: it neither receives nor sends |
//! | standby | another courier of the shared store listens and sends for it |

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Timestamp;

/// Age of the last inbound request up to which a tunnel counts as hearing.
pub const HEARING_PERIOD: Duration = Duration::from_secs(600);

/// Number of failures in a row after which a tunnel is deaf. A single one can be a request that
/// the provider itself sent by mistake.
pub const DEAF_AFTER: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelStatus {
    Hearing,
    Quiet,
    Deaf,
    Down,
    Paused,
    Standby,
}

/// The connection of a tunnel that receives messages through one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelConnection {
    /// Not open yet since the start of the tunnel.
    Opening,
    /// Open since this time.
    Open(Timestamp),
    /// Lost at this time and not open again.
    Lost(Timestamp),
}

/// Counters and last events of a tunnel since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelHealth {
    pub listening: bool,
    /// Whether an operator has paused the tunnel.
    pub paused: bool,
    /// Whether another courier does the work of the tunnel.
    pub standby: bool,
    /// `None` when the tunnel opens no connection to receive messages.
    pub connection: Option<TunnelConnection>,
    /// How often an open connection was lost.
    pub connections_lost: u64,
    /// When everything was read the last time, and how many messages were not fetched then.
    pub last_scan: Option<(Timestamp, u64)>,
    /// How many messages are not fetched yet; `None` when the adapter does not count them.
    pub backlog: Option<u64>,
    /// Time of the last authentic inbound request, duplicates included.
    pub last_frame: Option<Timestamp>,
    pub last_message: Option<Timestamp>,
    /// Time of the last delivery.
    pub last_sent: Option<Timestamp>,
    pub last_error: Option<(Timestamp, String)>,
    /// Number of new messages.
    pub received: u64,
    pub sent: u64,
    /// Receive errors since the last authentic request.
    pub failures: u32,
    /// Number of rejected webhook requests by reason. Any peer can send requests that are not
    /// authentic, so these are only counted.
    pub rejected: BTreeMap<&'static str, u64>,
}

impl TunnelHealth {
    /// Records that the tunnel listens, through a connection of its own if `opens_connection`.
    pub fn record_started(&mut self, opens_connection: bool) {
        self.listening = true;
        if opens_connection && self.connection.is_none() {
            self.connection = Some(TunnelConnection::Opening);
        }
    }

    /// Records that the tunnel does not listen any more, with the error if that was unexpected.
    pub fn record_stopped(&mut self, why: Option<&str>, now: Timestamp) {
        self.listening = false;
        if let Some(TunnelConnection::Open(_)) = self.connection {
            self.connection = Some(TunnelConnection::Lost(now));
        }
        if let Some(why) = why {
            self.last_error = Some((now, why.to_owned()));
        }
    }

    /// Records that the connection is open.
    pub fn record_connected(&mut self, now: Timestamp) {
        self.last_frame = Some(now);
        self.connection = Some(TunnelConnection::Open(now));
    }

    /// Records that the provider sent something that need not be a message.
    pub fn record_frame(&mut self, now: Timestamp) {
        self.last_frame = Some(now);
    }

    /// Records that the connection was lost, or could not be opened.
    pub fn record_lost(&mut self, why: impl Into<String>, now: Timestamp) {
        match self.connection {
            // The time of the loss is not that of the last attempt to connect again.
            Some(TunnelConnection::Lost(_)) => {}
            Some(TunnelConnection::Open(_)) => {
                self.connections_lost += 1;
                self.connection = Some(TunnelConnection::Lost(now));
            }
            Some(TunnelConnection::Opening) | None => {
                self.connection = Some(TunnelConnection::Lost(now));
            }
        }
        self.last_error = Some((now, why.into()));
    }

    /// Records that about `backlog` messages are not fetched yet, while they are being read.
    pub fn record_backlog(&mut self, backlog: u64, now: Timestamp) {
        self.last_frame = Some(now);
        self.backlog = Some(backlog);
    }

    /// Records that everything was read, apart from `backlog` messages.
    pub fn record_scanned(&mut self, backlog: u64, now: Timestamp) {
        self.last_frame = Some(now);
        self.last_scan = Some((now, backlog));
        self.backlog = Some(backlog);
    }

    /// Records an inbound request with this number of new messages.
    pub fn record_received(&mut self, new_messages: u64, now: Timestamp) {
        self.last_frame = Some(now);
        self.failures = 0;
        self.received += new_messages;
        if new_messages > 0 {
            self.last_message = Some(now);
        }
    }

    /// Records an authentic request that could not be read or stored.
    pub fn record_receive_error(&mut self, why: impl Into<String>, now: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        self.last_error = Some((now, why.into()));
    }

    /// Counts a webhook request that was rejected, under the short name of the reason.
    pub fn record_rejected(&mut self, reason: &'static str) {
        *self.rejected.entry(reason).or_default() += 1;
    }

    pub fn record_sent(&mut self, now: Timestamp) {
        self.sent += 1;
        self.last_sent = Some(now);
    }

    /// Records a failed delivery.
    pub fn record_send_error(&mut self, why: impl Into<String>, now: Timestamp) {
        self.last_error = Some((now, why.into()));
    }

    pub fn status(&self, now: Timestamp) -> TunnelStatus {
        let connected =
            !matches!(self.connection, Some(TunnelConnection::Opening | TunnelConnection::Lost(_)));
        match self.last_frame {
            _ if self.paused => TunnelStatus::Paused,
            _ if self.standby => TunnelStatus::Standby,
            _ if !self.listening || !connected => TunnelStatus::Down,
            _ if self.failures >= DEAF_AFTER => TunnelStatus::Deaf,
            Some(at) if now.since(at) < HEARING_PERIOD => TunnelStatus::Hearing,
            _ => TunnelStatus::Quiet,
        }
    }
}

impl TunnelStatus {
    /// The name in the API and the CLI.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hearing => "hearing",
            Self::Quiet => "quiet",
            Self::Deaf => "deaf",
            Self::Down => "down",
            Self::Paused => "paused",
            Self::Standby => "standby",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status after a sequence of events: `f` a request, `e` an authentic one that cannot be
    /// read, `u` one that is not authentic, `c` a connection, `l` its loss, `k` a keepalive, `p` a
    /// panic, `r` a restart, `.` an hour.
    fn after(day: &str) -> &'static str {
        let mut health = TunnelHealth { listening: true, ..TunnelHealth::default() };
        let mut now = Timestamp::from_ms(0);
        for moment in day.chars() {
            match moment {
                'f' => health.record_received(1, now),
                'c' => health.record_connected(now),
                'l' => health.record_lost("connection reset", now),
                'p' => health.record_stopped(Some("panicked"), now),
                'r' => health.record_started(true),
                'k' => health.record_frame(now),
                'e' => health.record_receive_error("not JSON", now),
                'u' => health.record_rejected("unverified"),
                _ => now = now + Duration::from_secs(3600),
            }
        }
        health.status(now).as_str()
    }

    #[test]
    fn status_depends_on_the_last_requests() {
        assert_eq!(after(""), "quiet");
        assert_eq!(after("f"), "hearing");
        assert_eq!(after("f."), "quiet");
        assert_eq!(after("fee"), "hearing", "one or two failures are no problem of the tunnel");
        assert_eq!(after("feee"), "deaf");
        assert_eq!(after("feee.."), "deaf");
        assert_eq!(after("feeef"), "hearing");
        assert_eq!(after("uuuu"), "quiet", "any peer can send these");
        assert_eq!(after("fuuuu"), "hearing");
        assert_eq!(after("feuuue"), "hearing");
        assert_eq!(after("feuuuee"), "deaf");
        assert_eq!(after("c"), "hearing");
        assert_eq!(after("c."), "quiet");
        assert_eq!(after("c.k"), "hearing");
        assert_eq!(after("cl"), "down", "a lost connection is not quiet");
        assert_eq!(after("cl..l"), "down");
        assert_eq!(after("l"), "down", "never connected");
        assert_eq!(after("cl.c"), "hearing");
        assert_eq!(after("cp"), "down");
        assert_eq!(after("cpr"), "down", "listens, but is not connected");
        assert_eq!(after("cprc"), "hearing");
        assert_eq!(after("ceeek"), "deaf", "a keepalive stores nothing");
        assert_eq!(TunnelHealth::default().status(Timestamp::from_ms(0)), TunnelStatus::Down);
        let paused = TunnelHealth { paused: true, ..TunnelHealth::default() };
        assert_eq!(paused.status(Timestamp::from_ms(0)).as_str(), "paused", "not an error");
    }

    #[test]
    fn a_loss_keeps_its_time_and_its_newest_error() {
        let at = Timestamp::from_ms;
        let connection = Some(TunnelConnection::Opening);
        let mut health = TunnelHealth { listening: true, connection, ..TunnelHealth::default() };
        assert_eq!(health.status(at(0)), TunnelStatus::Down, "not open yet");
        health.record_lost("no route", at(1));
        assert_eq!(health.connections_lost, 0, "it was never open");
        health.record_connected(at(2));
        health.record_lost("reset", at(3));
        health.record_lost("refused", at(4));
        assert_eq!(health.connection, Some(TunnelConnection::Lost(at(3))));
        assert_eq!(health.last_error, Some((at(4), "refused".to_owned())));
        assert_eq!(health.connections_lost, 1);
        health.record_connected(at(5));
        health.record_backlog(90, at(5));
        assert_eq!((health.backlog, health.last_scan), (Some(90), None));
        health.record_scanned(7, at(6));
        assert_eq!(health.backlog, Some(7));
        assert_eq!((health.last_scan, health.last_frame), (Some((at(6), 7)), Some(at(6))));
    }
}
