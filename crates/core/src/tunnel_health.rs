//! Health of one tunnel: status, last activity, last error.
//!
//! | status | meaning |
//! | --- | --- |
//! | hearing | received something in the last 10 minutes |
//! | quiet | listens, and received nothing in the last 10 minutes |
//! | deaf | the last 3 or more inbound requests could not be read or stored |
//! | down | does not listen |

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Timestamp;

/// Age of the last inbound request up to which a tunnel counts as hearing.
pub const HEARING_PERIOD: Duration = Duration::from_secs(600);

/// Number of failures in a row after which a tunnel is deaf. A single one can be an
/// unauthenticated request from any peer.
pub const DEAF_AFTER: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelStatus {
    Hearing,
    Quiet,
    Deaf,
    Down,
}

/// Counters and last events of a tunnel since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelHealth {
    pub listening: bool,
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
    /// Number of rejected webhook requests by reason.
    pub rejected: BTreeMap<&'static str, u64>,
}

impl TunnelHealth {
    /// Records an inbound request with this number of new messages.
    pub fn record_received(&mut self, new_messages: u64, now: Timestamp) {
        self.last_frame = Some(now);
        self.failures = 0;
        self.received += new_messages;
        if new_messages > 0 {
            self.last_message = Some(now);
        }
    }

    /// Records an inbound request that could not be read or stored.
    pub fn record_receive_error(&mut self, why: impl Into<String>, now: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        self.last_error = Some((now, why.into()));
    }

    /// Records a webhook request that was rejected, with the short name of the reason.
    pub fn record_rejected(
        &mut self,
        reason: &'static str,
        why: impl Into<String>,
        now: Timestamp,
    ) {
        *self.rejected.entry(reason).or_default() += 1;
        self.record_receive_error(why, now);
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
        match self.last_frame {
            _ if !self.listening => TunnelStatus::Down,
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status after a sequence of events: `f` a request, `e` a failure, `.` an hour.
    fn after(day: &str) -> &'static str {
        let mut health = TunnelHealth { listening: true, ..TunnelHealth::default() };
        let mut now = Timestamp::from_ms(0);
        for moment in day.chars() {
            match moment {
                'f' => health.record_received(1, now),
                'e' => health.record_receive_error("not verified", now),
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
        assert_eq!(TunnelHealth::default().status(Timestamp::from_ms(0)), TunnelStatus::Down);
    }
}
