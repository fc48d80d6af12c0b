//! Faults that can be switched on by `POST /control/chaos`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A fault that hits the next calls of a method.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallFault {
    /// Number of calls that are still hit.
    #[serde(default = "one")]
    pub count: u64,
    /// Only calls of this method, as `GET /control/state` names it; otherwise calls that send.
    #[serde(default)]
    pub method: Option<String>,
    /// Only calls to this chat.
    #[serde(default)]
    pub chat: Option<String>,
    /// Seconds in `Retry-After`; without it the header is absent.
    #[serde(default)]
    pub retry_after: Option<u64>,
    /// HTTP status of a server error; 503 if absent.
    #[serde(default)]
    pub status: Option<u16>,
    /// Time until the connection of `accept_then_timeout` is closed; 60 s if absent.
    #[serde(default)]
    pub hang_ms: Option<u64>,
}

fn one() -> u64 {
    1
}

/// One call of the API, as faults select it.
#[derive(Debug, Default)]
pub struct ApiCall {
    pub method: String,
    pub chat: Option<String>,
    /// Whether the call sends something that a person sees.
    pub is_send: bool,
    /// Index of the app whose credentials the call has.
    pub app: usize,
}

impl CallFault {
    /// Counts down if the fault hits this call.
    fn hits(&mut self, call: &ApiCall) -> bool {
        let is_method = match &self.method {
            Some(method) => *method == call.method,
            None => call.is_send,
        };
        let is_chat = self.chat.is_none() || self.chat == call.chat;
        if self.count == 0 || !is_method || !is_chat {
            return false;
        }
        self.count -= 1;
        true
    }

    pub fn hang(&self) -> Duration {
        Duration::from_millis(self.hang_ms.unwrap_or(60_000))
    }
}

/// Fault that a call meets.
#[derive(Debug)]
pub enum CallOutcome {
    Normal,
    Throttled(CallFault),
    ServerError(u16),
    /// The call is executed but not answered.
    Unanswered(Duration),
}

/// Faults of one emulator. All are off at the start.
#[derive(Debug, Default, Serialize)]
pub struct ChaosSwitches {
    /// Number of the next events that are delivered twice.
    pub duplicate: u64,
    /// Number of the next events that are delivered in reverse order.
    pub reorder: u64,
    pub rate_limit: Option<CallFault>,
    pub server_error: Option<CallFault>,
    pub accept_then_timeout: Option<CallFault>,
    /// Close the socket without a close frame after so many acknowledgements; 0 is off.
    pub drop_every: u64,
    /// Number of the next HTTP callbacks with a wrong signature.
    pub wrong_signature: u64,
    /// Number of the next WebSocket handshakes that are answered with 503.
    pub reject_handshake: u64,
    /// Number of the next sends that are accepted but flow-controlled (DingTalk).
    pub flow_control: u64,
    #[serde(skip)]
    acks_since_drop: u64,
}

impl ChaosSwitches {
    /// Decides what happens to a call.
    pub fn outcome(&mut self, call: &ApiCall) -> CallOutcome {
        let take = |fault: &mut Option<CallFault>| {
            let hit = fault.as_mut().filter(|fault| fault.count > 0)?;
            hit.hits(call).then(|| hit.clone())
        };
        if let Some(fault) = take(&mut self.rate_limit) {
            return CallOutcome::Throttled(fault);
        }
        if let Some(fault) = take(&mut self.server_error) {
            return CallOutcome::ServerError(fault.status.unwrap_or(503));
        }
        match take(&mut self.accept_then_timeout) {
            Some(fault) => CallOutcome::Unanswered(fault.hang()),
            None => CallOutcome::Normal,
        }
    }

    /// Counts an acknowledgement; returns whether its socket is to be dropped. Frames that are in
    /// flight then are lost, but each connection makes progress.
    pub fn count_ack(&mut self) -> bool {
        self.acks_since_drop += 1;
        let is_due = self.drop_every > 0 && self.acks_since_drop >= self.drop_every;
        if is_due {
            self.acks_since_drop = 0;
        }
        is_due
    }

    /// Counts a switch down; returns whether it was on.
    pub fn take(switch: &mut u64) -> bool {
        let is_on = *switch > 0;
        *switch = switch.saturating_sub(1);
        is_on
    }
}

/// Which sockets a fault hits: all that are open, with an optional period.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum DropSocket {
    Now(bool),
    Every { every: u64 },
}

/// Reason of a disconnect frame, or `true` for the usual one.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum DisconnectFrame {
    Now(bool),
    Because { reason: String },
}

/// Body of `POST /control/chaos`. A key that is absent changes nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChaosRequest {
    /// Switch everything off before the other keys are applied.
    pub reset: bool,
    pub duplicate: Option<u64>,
    pub reorder: Option<u64>,
    pub rate_limit: Option<CallFault>,
    pub server_error: Option<CallFault>,
    pub accept_then_timeout: Option<CallFault>,
    pub drop_socket: Option<DropSocket>,
    /// The sockets that are open now send nothing more but stay open; `false` ends this.
    pub silent: Option<bool>,
    /// The sockets that are open now answer no pings; `false` ends this.
    pub stop_pong: Option<bool>,
    pub expire_token: bool,
    pub disconnect_frame: Option<DisconnectFrame>,
    pub wrong_signature: Option<u64>,
    pub reject_handshake: Option<u64>,
    pub flow_control: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send_to(chat: &str) -> ApiCall {
        ApiCall {
            method: "chat.postMessage".to_owned(),
            chat: Some(chat.to_owned()),
            is_send: true,
            app: 0,
        }
    }

    #[test]
    fn rate_limit_hits_its_chat_and_counts_down() {
        let fault = serde_json::from_str(r#"{"count": 1, "chat": "C1"}"#).unwrap();
        let mut chaos = ChaosSwitches { rate_limit: Some(fault), ..ChaosSwitches::default() };
        assert!(matches!(chaos.outcome(&send_to("C2")), CallOutcome::Normal));
        assert!(matches!(chaos.outcome(&send_to("C1")), CallOutcome::Throttled(_)));
        assert!(matches!(chaos.outcome(&send_to("C1")), CallOutcome::Normal));
    }

    #[test]
    fn fault_without_method_hits_only_calls_that_send() {
        let fault = serde_json::from_str("{}").unwrap();
        let mut chaos = ChaosSwitches { server_error: Some(fault), ..ChaosSwitches::default() };
        let other = ApiCall { method: "auth.test".to_owned(), ..ApiCall::default() };
        assert!(matches!(chaos.outcome(&other), CallOutcome::Normal));
        assert!(matches!(chaos.outcome(&send_to("C1")), CallOutcome::ServerError(503)));
    }

    #[test]
    fn socket_is_dropped_after_every_n_acknowledgements() {
        let mut chaos = ChaosSwitches { drop_every: 3, ..ChaosSwitches::default() };
        let drops: Vec<_> = (0..6).map(|_| chaos.count_ack()).collect();
        assert_eq!(drops, [false, false, true, false, false, true]);
    }
}
