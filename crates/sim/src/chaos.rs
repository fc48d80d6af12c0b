//! Faults that can be switched on by `POST /control/chaos`.

use std::time::Duration;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};

use crate::clock::now_ms;

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
    /// Error code in the body of the answer, where the network has such codes (Lark).
    #[serde(default)]
    pub code: Option<i64>,
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

    pub fn error_status(&self) -> StatusCode {
        let status = self.status.and_then(|status| StatusCode::from_u16(status).ok());
        status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
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
    ServerError(CallFault),
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
    /// The next HTTP callbacks have a wrong signature.
    pub wrong_signature: SignatureFault,
    /// The next WebSocket handshakes are rejected.
    pub reject_handshake: HandshakeFault,
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
            return CallOutcome::ServerError(fault);
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

/// A number of hits, or a fault with further keys.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum CountOr<T> {
    Count(u64),
    Fault(T),
}

/// Wrong signatures of HTTP callbacks.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignatureFault {
    #[serde(default = "one")]
    pub count: u64,
    #[serde(default)]
    pub kind: ForgeryKind,
}

impl From<CountOr<Self>> for SignatureFault {
    fn from(fault: CountOr<Self>) -> Self {
        match fault {
            CountOr::Count(count) => Self { count, ..Self::default() },
            CountOr::Fault(fault) => fault,
        }
    }
}

/// How a signature is wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForgeryKind {
    /// Signed with a secret that no app has.
    #[default]
    OtherSecret,
    /// Signed with the secret of another app.
    OtherApp,
    /// The headers of the signature are absent.
    Missing,
    /// Signed properly, but a day ago.
    Stale,
    /// With the headers of the callback before this one.
    Replayed,
}

/// Handshakes that are rejected, with the status and code of the answer.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandshakeFault {
    #[serde(default = "one")]
    pub count: u64,
    /// HTTP status; 503 if absent.
    #[serde(default)]
    pub status: Option<u16>,
    /// Error code beside the status (Lark).
    #[serde(default)]
    pub code: Option<i64>,
}

impl From<CountOr<Self>> for HandshakeFault {
    fn from(fault: CountOr<Self>) -> Self {
        match fault {
            CountOr::Count(count) => Self { count, ..Self::default() },
            CountOr::Fault(fault) => fault,
        }
    }
}

/// Age of a stale signature: more than any network accepts.
const STALE_MS: u64 = 24 * 3_600_000;

/// A header of an HTTP callback.
pub type PushHeader = (&'static str, String);

/// By whom and when an HTTP callback is signed.
#[derive(Debug)]
pub struct PushSigner {
    /// Index of the app whose secret signs; there may be no such app.
    pub app: usize,
    pub at_ms: u64,
    is_secret_known: bool,
    has_signature: bool,
}

impl PushSigner {
    pub fn honest(app: usize) -> Self {
        Self { app, at_ms: now_ms(), is_secret_known: true, has_signature: true }
    }

    pub fn forged(app: usize, kind: ForgeryKind) -> Self {
        let honest = Self::honest(app);
        match kind {
            ForgeryKind::OtherSecret => Self { is_secret_known: false, ..honest },
            ForgeryKind::OtherApp => Self { app: app + 1, ..honest },
            ForgeryKind::Missing => Self { has_signature: false, ..honest },
            ForgeryKind::Stale => Self { at_ms: honest.at_ms.saturating_sub(STALE_MS), ..honest },
            // The headers are replaced by those of an earlier callback.
            ForgeryKind::Replayed => honest,
        }
    }

    /// The secret that signs; `secret_of` returns that of an app.
    pub fn secret(&self, secret_of: impl Fn(usize) -> String) -> String {
        if self.is_secret_known { secret_of(self.app) } else { "another secret".to_owned() }
    }

    pub fn has_signature(&self) -> bool {
        self.has_signature
    }

    /// The headers of a callback: the first one, and the signature unless it is missing.
    pub fn headers(
        &self,
        first: PushHeader,
        signature: impl IntoIterator<Item = PushHeader>,
    ) -> Vec<PushHeader> {
        let signature = signature.into_iter().filter(|_| self.has_signature);
        std::iter::once(first).chain(signature).collect()
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
    pub wrong_signature: Option<CountOr<SignatureFault>>,
    pub reject_handshake: Option<CountOr<HandshakeFault>>,
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
        assert!(matches!(chaos.outcome(&send_to("C1")), CallOutcome::ServerError(_)));
    }

    #[test]
    fn socket_is_dropped_after_every_n_acknowledgements() {
        let mut chaos = ChaosSwitches { drop_every: 3, ..ChaosSwitches::default() };
        let drops: Vec<_> = (0..6).map(|_| chaos.count_ack()).collect();
        assert_eq!(drops, [false, false, true, false, false, true]);
    }

    #[test]
    fn counted_faults_are_read_from_a_number_or_an_object() {
        let request: ChaosRequest = serde_json::from_str(
            r#"{"wrong_signature": {"kind": "stale"}, "reject_handshake": 2}"#,
        )
        .unwrap();
        let signature: SignatureFault = request.wrong_signature.unwrap().into();
        assert_eq!((signature.count, signature.kind), (1, ForgeryKind::Stale));
        let handshake: HandshakeFault = request.reject_handshake.unwrap().into();
        assert_eq!((handshake.count, handshake.status), (2, None));
    }

    #[test]
    fn forged_signer_differs_in_secret_app_time_or_headers() {
        let secret = |kind| PushSigner::forged(3, kind).secret(|app| app.to_string());
        assert_eq!(secret(ForgeryKind::OtherSecret), "another secret");
        assert_eq!(secret(ForgeryKind::OtherApp), "4");
        assert_eq!(secret(ForgeryKind::Stale), "3");
        let headers = |kind| {
            let signature = [("sign", "x".to_owned())];
            PushSigner::forged(3, kind).headers(("type", "y".to_owned()), signature).len()
        };
        assert_eq!((headers(ForgeryKind::Missing), headers(ForgeryKind::Stale)), (1, 2));
        let stale = PushSigner::forged(3, ForgeryKind::Stale).at_ms;
        assert!(stale + STALE_MS <= PushSigner::honest(3).at_ms);
    }
}
