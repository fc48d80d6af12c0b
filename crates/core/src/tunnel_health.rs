//! How a tunnel is, said honestly.
//!
//! | word | meaning |
//! | --- | --- |
//! | hearing | something came lately, and was kept |
//! | quiet | it listens, and nothing came lately |
//! | deaf | what comes can't be understood or kept, several times in a row |
//! | down | it does not listen |

use std::time::Duration;

use crate::time::Timestamp;

/// How long ago a message may be for the tunnel to count as hearing.
pub const LATELY: Duration = Duration::from_secs(600);

/// How many failures in a row make a tunnel deaf. One may be anybody's knock.
pub const DEAF_AFTER: u32 = 3;

/// How a tunnel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelStatus {
    /// Something came lately.
    Hearing,
    /// Nothing came lately.
    Quiet,
    /// What comes is lost on us.
    Deaf,
    /// It does not listen.
    Down,
}

/// What is noted of a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelHealth {
    /// Whether it listens.
    pub listening: bool,
    /// When something last came that was authentic, a repetition too.
    pub last_frame: Option<Timestamp>,
    /// When a message was last kept.
    pub last_message: Option<Timestamp>,
    /// When a message was last delivered.
    pub last_sent: Option<Timestamp>,
    /// What last went wrong, and when.
    pub last_error: Option<(Timestamp, String)>,
    /// How many messages were kept since the start.
    pub heard: u64,
    /// How many were delivered since the start.
    pub sent: u64,
    /// Failures to hear since something last came.
    pub failures: u32,
}

impl TunnelHealth {
    /// Something came; `kept` is how many messages it had that were new.
    pub fn record_received(&mut self, kept: u64, now: Timestamp) {
        self.last_frame = Some(now);
        self.failures = 0;
        self.heard += kept;
        if kept > 0 {
            self.last_message = Some(now);
        }
    }

    /// Something came that could not be understood or kept.
    pub fn record_receive_error(&mut self, why: impl Into<String>, now: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        self.last_error = Some((now, why.into()));
    }

    /// A message was delivered.
    pub fn record_sent(&mut self, now: Timestamp) {
        self.sent += 1;
        self.last_sent = Some(now);
    }

    /// A message was not.
    pub fn record_send_error(&mut self, why: impl Into<String>, now: Timestamp) {
        self.last_error = Some((now, why.into()));
    }

    /// How the tunnel is.
    pub fn status(&self, now: Timestamp) -> TunnelStatus {
        match self.last_frame {
            _ if !self.listening => TunnelStatus::Down,
            _ if self.failures >= DEAF_AFTER => TunnelStatus::Deaf,
            Some(at) if now.since(at) < LATELY => TunnelStatus::Hearing,
            _ => TunnelStatus::Quiet,
        }
    }
}

impl TunnelStatus {
    /// The word the API and the CLI use.
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

    /// Tells what a tunnel is after a day: `f` a frame, `e` a failure, `.` an hour.
    fn after(day: &str) -> &'static str {
        let mut pulse = TunnelHealth { listening: true, ..TunnelHealth::default() };
        let mut now = Timestamp::from_ms(0);
        for moment in day.chars() {
            match moment {
                'f' => pulse.record_received(1, now),
                'e' => pulse.record_receive_error("not verified", now),
                _ => now = now + Duration::from_secs(3600),
            }
        }
        pulse.status(now).as_str()
    }

    #[test]
    fn how_a_tunnel_is() {
        assert_eq!(after(""), "quiet");
        assert_eq!(after("f"), "hearing");
        assert_eq!(after("f."), "quiet");
        assert_eq!(after("fee"), "hearing", "anybody may knock");
        assert_eq!(after("feee"), "deaf");
        assert_eq!(after("feee.."), "deaf");
        assert_eq!(after("feeef"), "hearing");
        assert_eq!(TunnelHealth::default().status(Timestamp::from_ms(0)), TunnelStatus::Down);
    }
}
