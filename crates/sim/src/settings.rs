//! Times and limits of an emulator. Each network has its own defaults; the control API changes them.

use serde::{Deserialize, Serialize};

/// Settings of one emulator. Times are in milliseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimSettings {
    /// An event that is not acknowledged for so long is sent again.
    pub ack_timeout_ms: u64,
    /// How often an event is sent before it is given up.
    pub max_attempts: u32,
    /// Whether events of a lost connection are sent again at once, not after `ack_timeout_ms`.
    pub resend_on_close: bool,
    /// Whether events wait for a connection. Without a backlog they are lost.
    pub backlog: bool,
    /// Unacknowledged events per connection; further events wait.
    pub max_in_flight: usize,
    /// Events that wait or are not acknowledged; a request for more is rejected.
    pub max_events: usize,
    /// Time between two pings of the server; 0 switches them off.
    pub ping_interval_ms: u64,
    /// Time from a disconnect frame to the end of the connection.
    pub disconnect_grace_ms: u64,
    pub ticket_ttl_ms: u64,
    pub token_ttl_ms: u64,
    /// How long a URL that answers one message can be used.
    pub session_webhook_ttl_ms: u64,
    /// Time that the receiver of an HTTP callback has to answer.
    pub push_timeout_ms: u64,
    /// Pauses before each retry of an HTTP callback; their number is the number of retries.
    pub push_retries_ms: Vec<u64>,
    /// Whether the documented rate limits are enforced.
    pub limits: bool,
    /// How long a custom robot that was too fast is rejected.
    pub throttle_ms: u64,
    /// Whether the bot receives events about its own messages.
    pub echo: bool,
}

impl Default for SimSettings {
    /// Values that networks share; each network names those that differ.
    fn default() -> Self {
        Self {
            ack_timeout_ms: 3000,
            max_attempts: 10,
            resend_on_close: true,
            backlog: true,
            max_in_flight: 1000,
            max_events: 50_000,
            ping_interval_ms: 10_000,
            disconnect_grace_ms: 10_000,
            ticket_ttl_ms: 30_000,
            token_ttl_ms: 7_200_000,
            session_webhook_ttl_ms: 0,
            push_timeout_ms: 3000,
            push_retries_ms: Vec::new(),
            limits: false,
            throttle_ms: 1000,
            echo: false,
        }
    }
}

/// Changes to settings. A key that is absent keeps its value.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SettingsChange {
    ack_timeout_ms: Option<u64>,
    max_attempts: Option<u32>,
    resend_on_close: Option<bool>,
    backlog: Option<bool>,
    max_in_flight: Option<usize>,
    max_events: Option<usize>,
    ping_interval_ms: Option<u64>,
    disconnect_grace_ms: Option<u64>,
    ticket_ttl_ms: Option<u64>,
    token_ttl_ms: Option<u64>,
    session_webhook_ttl_ms: Option<u64>,
    push_timeout_ms: Option<u64>,
    push_retries_ms: Option<Vec<u64>>,
    limits: Option<bool>,
    throttle_ms: Option<u64>,
    echo: Option<bool>,
}

macro_rules! apply {
    ($settings:ident, $change:ident, $($key:ident),*) => {
        $(if let Some(value) = $change.$key { $settings.$key = value; })*
    };
}

impl SimSettings {
    pub fn apply(&mut self, change: SettingsChange) {
        apply!(self, change, ack_timeout_ms, max_attempts, resend_on_close, backlog, max_in_flight);
        apply!(self, change, max_events, ping_interval_ms, disconnect_grace_ms, ticket_ttl_ms);
        apply!(self, change, token_ttl_ms, session_webhook_ttl_ms, push_timeout_ms);
        apply!(self, change, push_retries_ms, limits, throttle_ms, echo);
        // An interval of 0 would send the same event in a loop.
        self.ack_timeout_ms = self.ack_timeout_ms.max(10);
    }
}
