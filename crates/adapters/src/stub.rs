//! Provider `stub`: a provider in memory. It ships, so that sending can be tried without
//! an account.
//!
//! The stub accepts everything and recognises a second copy. Some addresses simulate errors:
//!
//! | address | result |
//! | --- | --- |
//! | `busy-N` | the first N attempts fail temporarily |
//! | `refuse` | fails permanently |
//! | `vanish` | fails with an unknown outcome: the connection is lost after sending |
//! | anything else | accepted |

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use monoco_core::config::{ConfigSection, InvalidConfig};
use monoco_core::delivery::DeliveryOutcome;
use monoco_core::did::TunnelId;
use monoco_core::record::RecordId;
use monoco_core::retry::Failure;
use tokio_util::sync::CancellationToken;

use crate::registry::{AdapterResources, ProviderConfig};
use crate::{Adapter, DeliveryRequest, InboundSink};

/// How many accepted deliveries the stub remembers.
const MAX_REMEMBERED: usize = 1_000;

/// How a stub tunnel receives messages: it never does.
const MODE: &str = "memory";

/// The configuration of a stub tunnel: it has no keys of its own.
#[derive(Debug)]
pub struct StubConfig;

impl ProviderConfig for StubConfig {
    const PROVIDER: &'static str = "stub";

    fn parse(section: &ConfigSection<'_>, _enabled: bool) -> Result<Self, InvalidConfig> {
        section.deny_unknown_keys(&[])?;
        Ok(Self)
    }

    fn mode(&self) -> &'static str {
        MODE
    }

    fn changed_keys(&self, _new: &Self) -> Vec<&'static str> {
        Vec::new()
    }

    fn build(&self, id: TunnelId, _: &AdapterResources) -> Result<Arc<dyn Adapter>, String> {
        Ok(Arc::new(Stub::new(id)))
    }
}

/// A provider in memory.
#[derive(Debug)]
pub struct Stub {
    id: TunnelId,
    accepts_idempotency_keys: bool,
    state: Mutex<StubState>,
}

#[derive(Debug, Default)]
struct StubState {
    /// Accepted deliveries, oldest first: key, address, text.
    accepted: VecDeque<(RecordId, String, String)>,
    accepted_total: u64,
    /// Number of attempts so far at addresses `busy-N`.
    busy_attempts: HashMap<RecordId, u32>,
}

impl Stub {
    /// Creates a stub that recognises a second copy by its key.
    pub fn new(id: TunnelId) -> Self {
        Self { id, accepts_idempotency_keys: true, state: Mutex::default() }
    }

    /// Creates a stub that accepts every copy.
    pub fn without_keys(id: TunnelId) -> Self {
        Self { accepts_idempotency_keys: false, ..Self::new(id) }
    }

    /// Returns the last 1,000 accepted deliveries as address and text, oldest first.
    pub fn accepted(&self) -> Vec<(String, String)> {
        let state = self.state();
        state.accepted.iter().map(|(_, address, text)| (address.clone(), text.clone())).collect()
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
        self.accepts_idempotency_keys
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
        let mut state = self.state();
        if let Some(failure) = state.simulated_failure(request) {
            return DeliveryOutcome::Failed(failure);
        }
        let known = state.accepted.iter().any(|(key, ..)| *key == request.key);
        if !(self.accepts_idempotency_keys && known) {
            state.accepted_total += 1;
            let (address, text) = (request.address.to_owned(), request.message.text.clone());
            let entry = (request.key, address, text);
            state.accepted.push_back(entry);
            if state.accepted.len() > MAX_REMEMBERED {
                state.accepted.pop_front();
            }
        }
        let external_msg_id = Some(format!("stub-{}", state.accepted_total));
        DeliveryOutcome::Accepted { external_msg_id }
    }
}

impl StubState {
    /// Returns the failure that the address asks for, or `None` when it is accepted.
    fn simulated_failure(&mut self, request: &DeliveryRequest<'_>) -> Option<Failure> {
        match request.address {
            "refuse" => {
                let detail = "stub: this address is rejected".to_owned();
                return Some(Failure::Permanent { detail, error_code: None });
            }
            "vanish" => {
                let detail = "stub: connection lost after the message was sent".to_owned();
                return Some(Failure::Unknown { detail, error_code: None });
            }
            _ => {}
        }
        let failures = request.address.strip_prefix("busy-")?.parse().ok()?;
        if self.busy_attempts.len() >= MAX_REMEMBERED {
            self.busy_attempts.clear();
        }
        let attempts = self.busy_attempts.entry(request.key).or_insert(0_u32);
        if *attempts >= failures {
            return None;
        }
        *attempts += 1;
        let detail = format!("stub: busy, attempt {attempts} of {failures}");
        Some(Failure::Temporary { detail, retry_after_ms: None, error_code: None })
    }
}

#[cfg(test)]
mod tests {
    use monoco_core::did::{Did, EndpointKind};
    use monoco_core::object::{ObjId, ObjKind};
    use monoco_core::outgoing::OutgoingMessage;
    use monoco_core::time::Timestamp;

    use super::*;

    fn message() -> OutgoingMessage {
        let text = r#"{"from": "did:monoco:me", "content": {"content": "hi"}}"#;
        OutgoingMessage::parse(text).unwrap()
    }

    async fn send(stub: &Stub, address: &str, number: u8) -> DeliveryOutcome {
        let did: Did = "did:msgtunnel:stub".parse().unwrap();
        let key = RecordId::delivery(&did, &did, &ObjId::of(ObjKind::Msg, &[number]));
        let now = Timestamp::from_ms(0);
        let kind = EndpointKind::User;
        let message = message();
        let message = &message;
        stub.deliver(&DeliveryRequest { address, kind, message, attachments: &[], key, now }).await
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
}
