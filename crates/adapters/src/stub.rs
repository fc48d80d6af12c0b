//! Provider `stub`: a provider in memory. It ships, so that sending can be tried without
//! an account.
//!
//! The stub accepts everything and recognises a second copy. Some addresses simulate errors:
//!
//! | address | result |
//! | --- | --- |
//! | `busy-N` | the first N attempts of each message fail temporarily |
//! | `slow-N` | every Nth attempt at the address hits a rate limit of the address |
//! | `limit-N` | every Nth attempt at the address hits a rate limit of the whole tunnel |
//! | `parts-N` | accepted in N parts |
//! | `stuck-N` | N parts are accepted, then the stub does not answer |
//! | `refuse` | fails permanently |
//! | `vanish` | fails with an unknown outcome: the connection is lost after sending |
//! | `lose` | accepted, but the outcome is unknown: the connection is lost before the answer |
//! | anything else | accepted |
//!
//! | key | meaning |
//! | --- | --- |
//! | `idempotent` | whether a second copy is recognised; default true |
//! | `finds_sent` | whether the courier can look for an accepted message; default false |
//! | `per_target`, `per_tunnel` | limits that the courier keeps, such as `10/s` |

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use monoco_core::config::{ConfigSection, InvalidConfig};
use monoco_core::delivery::{DeliveryOutcome, SentPart, ThrottleScope};
use monoco_core::did::{EndpointKind, TunnelId};
use monoco_core::rate_limit::{Rate, SendLimits};
use monoco_core::record::RecordId;
use monoco_core::retry::Failure;
use tokio_util::sync::CancellationToken;

use crate::registry::{AdapterResources, ProviderConfig};
use crate::{Adapter, DeliveryRequest, InboundSink};

/// How many accepted messages the stub remembers.
const MAX_REMEMBERED: usize = 1_000;

/// The delay after a simulated rate limit.
const THROTTLE_DELAY: Duration = Duration::from_millis(20);

/// How a stub tunnel receives messages: it never does.
const MODE: &str = "memory";

/// The configuration of a stub tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StubConfig {
    pub idempotent: bool,
    pub finds_sent: bool,
    pub per_target: Option<Rate>,
    pub per_tunnel: Option<Rate>,
}

impl Default for StubConfig {
    fn default() -> Self {
        Self { idempotent: true, finds_sent: false, per_target: None, per_tunnel: None }
    }
}

impl ProviderConfig for StubConfig {
    const PROVIDER: &'static str = "stub";

    fn parse(section: &ConfigSection<'_>, _enabled: bool) -> Result<Self, InvalidConfig> {
        section.deny_unknown_keys(&["idempotent", "finds_sent", "per_target", "per_tunnel"])?;
        Ok(Self {
            idempotent: section.flag("idempotent")?.unwrap_or(true),
            finds_sent: section.flag("finds_sent")?.unwrap_or(false),
            per_target: section.parsed("per_target")?,
            per_tunnel: section.parsed("per_tunnel")?,
        })
    }

    fn mode(&self) -> &'static str {
        MODE
    }

    fn changed_keys(&self, new: &Self) -> Vec<&'static str> {
        let keys = [
            ("idempotent", self.idempotent != new.idempotent),
            ("finds_sent", self.finds_sent != new.finds_sent),
            ("per_target", self.per_target != new.per_target),
            ("per_tunnel", self.per_tunnel != new.per_tunnel),
        ];
        keys.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key).collect()
    }

    fn build(&self, id: TunnelId, _: &AdapterResources) -> Result<Arc<dyn Adapter>, String> {
        Ok(Arc::new(Stub { config: self.clone(), ..Stub::new(id) }))
    }
}

/// A provider in memory.
#[derive(Debug)]
pub struct Stub {
    id: TunnelId,
    config: StubConfig,
    state: Mutex<StubState>,
}

#[derive(Debug, Default)]
struct StubState {
    /// Accepted messages and parts, oldest first.
    accepted: VecDeque<AcceptedMessage>,
    accepted_total: u64,
    /// Number of attempts so far at addresses `busy-N`.
    busy_attempts: HashMap<RecordId, u32>,
    /// Number of attempts so far at addresses with a rate limit.
    throttled_attempts: HashMap<String, u64>,
}

#[derive(Debug)]
struct AcceptedMessage {
    key: RecordId,
    part: u32,
    address: String,
    text: String,
    id: String,
}

impl Stub {
    /// Creates a stub that recognises a second copy by its key.
    pub fn new(id: TunnelId) -> Self {
        Self { id, config: StubConfig::default(), state: Mutex::default() }
    }

    /// Creates a stub that accepts every copy.
    pub fn without_keys(id: TunnelId) -> Self {
        let config = StubConfig { idempotent: false, ..StubConfig::default() };
        Self { config, ..Self::new(id) }
    }

    /// Returns the last 1,000 accepted messages and parts as address and text, oldest first.
    pub fn accepted(&self) -> Vec<(String, String)> {
        let state = self.state();
        let entry = |message: &AcceptedMessage| (message.address.clone(), message.text.clone());
        state.accepted.iter().map(entry).collect()
    }

    /// Accepts a message or part and returns its id.
    fn accept(&self, request: &DeliveryRequest<'_>, part: u32) -> String {
        let mut state = self.state();
        if self.config.idempotent
            && let Some(known) = state.find(request.key, part)
        {
            return known.id.clone();
        }
        state.accepted_total += 1;
        let id = format!("stub-{}", state.accepted_total);
        state.accepted.push_back(AcceptedMessage {
            key: request.key,
            part,
            address: request.address.to_owned(),
            text: request.message.text.clone(),
            id: id.clone(),
        });
        if state.accepted.len() > MAX_REMEMBERED {
            state.accepted.pop_front();
        }
        id
    }

    /// Sends the parts that are not sent yet, and reports each of them but the last.
    async fn deliver_parts(&self, request: &DeliveryRequest<'_>, count: u32) -> DeliveryOutcome {
        let sent = u32::try_from(request.sent_parts.len()).unwrap_or(u32::MAX);
        let mut external_msg_id =
            request.sent_parts.last().and_then(|part| part.external_msg_id.clone());
        for part in sent..count {
            let id = self.accept(request, part);
            external_msg_id = Some(id.clone());
            if part + 1 < count {
                let part = SentPart { part, external_msg_id: Some(id) };
                if let Err(failure) = request.progress.part_sent(part).await {
                    return DeliveryOutcome::Failed(failure);
                }
            }
        }
        DeliveryOutcome::Accepted { external_msg_id }
    }

    // Nothing panics while it holds the lock.
    fn state(&self) -> MutexGuard<'_, StubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Adapter for Stub {
    fn id(&self) -> &TunnelId {
        &self.id
    }

    fn provider(&self) -> &'static str {
        StubConfig::PROVIDER
    }

    fn mode(&self) -> &'static str {
        MODE
    }

    fn accepts_idempotency_keys(&self) -> bool {
        self.config.idempotent
    }

    fn send_limits(&self, _kind: EndpointKind) -> SendLimits {
        let list = |rate: Option<Rate>| rate.into_iter().collect();
        let StubConfig { per_target, per_tunnel, .. } = self.config;
        SendLimits { per_target: list(per_target), per_tunnel: list(per_tunnel) }
    }

    fn finds_sent(&self) -> bool {
        self.config.finds_sent
    }

    async fn find_sent(&self, request: &DeliveryRequest<'_>) -> Result<Option<SentPart>, Failure> {
        let part = u32::try_from(request.sent_parts.len()).unwrap_or(u32::MAX);
        let state = self.state();
        let found = state.find(request.key, part);
        Ok(found.map(|found| SentPart { part, external_msg_id: Some(found.id.clone()) }))
    }

    async fn listen(
        &self,
        _sink: &dyn InboundSink,
        stop: CancellationToken,
    ) -> Result<(), Failure> {
        stop.cancelled().await;
        Ok(())
    }

    async fn deliver(&self, request: &DeliveryRequest<'_>) -> DeliveryOutcome {
        if let Some(outcome) = self.state().simulated_outcome(request) {
            return outcome;
        }
        if let Some(count) = number_after(request.address, "parts-") {
            return self.deliver_parts(request, count).await;
        }
        if let Some(count) = number_after(request.address, "stuck-") {
            self.deliver_parts(request, count + 1).await;
            return std::future::pending().await;
        }
        if request.address == "lose" && request.sent_parts.is_empty() {
            self.accept(request, 0);
            let detail = "stub: connection lost before the answer".to_owned();
            return DeliveryOutcome::Failed(Failure::Unknown { detail, error_code: None });
        }
        self.deliver_parts(request, 1).await
    }
}

impl StubState {
    fn find(&self, key: RecordId, part: u32) -> Option<&AcceptedMessage> {
        self.accepted.iter().find(|message| (message.key, message.part) == (key, part))
    }

    /// Returns the outcome that the address asks for, or `None` when it is accepted.
    fn simulated_outcome(&mut self, request: &DeliveryRequest<'_>) -> Option<DeliveryOutcome> {
        let failed = |failure| Some(DeliveryOutcome::Failed(failure));
        match request.address {
            "refuse" => {
                let detail = "stub: this address is rejected".to_owned();
                return failed(Failure::Permanent { detail, error_code: None });
            }
            "vanish" => {
                let detail = "stub: connection lost after the message was sent".to_owned();
                return failed(Failure::Unknown { detail, error_code: None });
            }
            _ => {}
        }
        if let Some(failures) = number_after(request.address, "busy-") {
            forget_if_full(&mut self.busy_attempts);
            let attempts = self.busy_attempts.entry(request.key).or_insert(0_u32);
            if *attempts >= failures {
                return None;
            }
            *attempts += 1;
            let detail = format!("stub: busy, attempt {attempts} of {failures}");
            return failed(Failure::Temporary { detail, retry_after_ms: None, error_code: None });
        }
        let target = number_after(request.address, "slow-").map(|n| (n, ThrottleScope::Target));
        let tunnel = number_after(request.address, "limit-").map(|n| (n, ThrottleScope::Tunnel));
        let (every, scope) = target.or(tunnel)?;
        forget_if_full(&mut self.throttled_attempts);
        let attempts = self.throttled_attempts.entry(request.address.to_owned()).or_insert(0);
        *attempts += 1;
        attempts.is_multiple_of(u64::from(every.max(2))).then(|| DeliveryOutcome::Throttled {
            detail: "stub: too many requests".to_owned(),
            error_code: Some("429".to_owned()),
            retry_after: Some(THROTTLE_DELAY),
            scope,
        })
    }
}

/// Returns N of an address `{prefix}N`.
fn number_after(address: &str, prefix: &str) -> Option<u32> {
    address.strip_prefix(prefix)?.parse().ok()
}

fn forget_if_full<K, V>(map: &mut HashMap<K, V>) {
    if map.len() >= MAX_REMEMBERED {
        map.clear();
    }
}

#[cfg(test)]
mod tests {
    use monoco_core::did::{Did, EndpointKind};
    use monoco_core::object::{ObjId, ObjKind};
    use monoco_core::outgoing::OutgoingMessage;
    use monoco_core::time::Timestamp;

    use super::*;
    use crate::delivery_fixture::{MemoryFiles, RecordedParts};

    fn message() -> OutgoingMessage {
        let text = r#"{"from": "did:monoco:me", "content": {"content": "hi"}}"#;
        OutgoingMessage::parse(text).unwrap()
    }

    async fn send(stub: &Stub, address: &str, number: u8) -> DeliveryOutcome {
        send_after(stub, address, number, &[], &RecordedParts::default()).await
    }

    async fn send_after(
        stub: &Stub,
        address: &str,
        number: u8,
        sent_parts: &[SentPart],
        progress: &RecordedParts,
    ) -> DeliveryOutcome {
        let did: Did = "did:msgtunnel:stub".parse().unwrap();
        let key = RecordId::delivery(&did, &did, &ObjId::of(ObjKind::Msg, &[number]));
        let now = Timestamp::from_ms(0);
        let kind = EndpointKind::User;
        let message = message();
        let files = MemoryFiles::default();
        let request = DeliveryRequest {
            address,
            kind,
            message: &message,
            files: &files,
            sent_parts,
            progress,
            key,
            first_attempt_ago: std::time::Duration::ZERO,
            now,
        };
        stub.deliver(&request).await
    }

    #[tokio::test]
    async fn a_second_copy_is_recognised_by_its_key() {
        let stub = Stub::new("stub".parse().unwrap());
        for _ in 0..3 {
            send(&stub, "ann", 1).await;
        }
        assert_eq!(stub.accepted().len(), 1);
        let forgetful = Stub::without_keys("stub".parse().unwrap());
        for _ in 0..3 {
            send(&forgetful, "ann", 1).await;
        }
        assert_eq!(forgetful.accepted().len(), 3);
    }

    #[tokio::test]
    async fn special_addresses_simulate_failures_of_each_kind() {
        let stub = Stub::new("stub".parse().unwrap());
        let busy = [send(&stub, "busy-1", 1).await, send(&stub, "busy-1", 1).await];
        assert!(matches!(busy[0], DeliveryOutcome::Failed(Failure::Temporary { .. })), "{busy:?}");
        assert!(matches!(busy[1], DeliveryOutcome::Accepted { .. }), "{busy:?}");
        let refused = send(&stub, "refuse", 2).await;
        assert!(matches!(refused, DeliveryOutcome::Failed(Failure::Permanent { .. })));
        let vanished = send(&stub, "vanish", 3).await;
        assert!(matches!(vanished, DeliveryOutcome::Failed(Failure::Unknown { .. })));
        assert_eq!(stub.accepted().len(), 1);
    }
    #[tokio::test]
    async fn parts_are_reported_and_an_attempt_goes_on_behind_those_that_were_sent() {
        let stub = Stub::without_keys("stub".parse().unwrap());
        let stopped = RecordedParts { fails_after: Some(1), ..RecordedParts::default() };
        let failed = send_after(&stub, "parts-3", 1, &[], &stopped).await;
        assert!(matches!(failed, DeliveryOutcome::Failed(Failure::Unknown { .. })), "{failed:?}");
        assert_eq!(stub.accepted().len(), 2, "the part without a receipt was sent");

        let parts = RecordedParts::default();
        let outcome = send_after(&stub, "parts-3", 1, &stopped.parts(), &parts).await;
        assert!(matches!(outcome, DeliveryOutcome::Accepted { .. }));
        let numbers: Vec<_> = parts.parts().iter().map(|part| part.part).collect();
        assert_eq!(numbers, [1], "the last part is the outcome");
        assert_eq!(stub.accepted().len(), 4);
    }

    #[tokio::test]
    async fn rate_limits_are_outcomes_of_their_own() {
        let stub = Stub::new("stub".parse().unwrap());
        for (address, want) in
            [("slow-2", ThrottleScope::Target), ("limit-2", ThrottleScope::Tunnel)]
        {
            assert!(matches!(send(&stub, address, 1).await, DeliveryOutcome::Accepted { .. }));
            let throttled = send(&stub, address, 2).await;
            let DeliveryOutcome::Throttled { scope, .. } = throttled else {
                panic!("{throttled:?}")
            };
            assert_eq!(scope, want);
        }
    }
}
