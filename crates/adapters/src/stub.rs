//! A provider in memory; ships, so that a send can be seen to be delivered.
//!
//! It accepts everything, and recognises a second copy. Some addresses make it
//! do what real providers do on bad days, so that anybody can watch what the hub
//! makes of it:
//!
//! | address | what happens |
//! | --- | --- |
//! | `busy-N` | the first N tries fail and may be repeated |
//! | `refuse` | refused for good |
//! | `vanish` | the line goes dead after the message went out |
//! | anything else | accepted |

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use monoco_core::delivery::DeliveryOutcome;
use monoco_core::did::TunnelId;
use monoco_core::record::RecordId;
use monoco_core::retry::Failure;
use tokio_util::sync::CancellationToken;

use crate::{Adapter, DeliveryRequest, InboundSink};

/// Parcels it remembers; older ones are forgotten.
const REMEMBERED: usize = 1_000;

/// A provider in memory.
#[derive(Debug)]
pub struct Stub {
    id: TunnelId,
    takes_keys: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What was accepted, oldest first: key, address, body.
    accepted: VecDeque<(RecordId, String, String)>,
    accepted_ever: u64,
    /// Tries so far of what is still busy.
    busy: HashMap<RecordId, u32>,
}

impl Stub {
    /// A stub that recognises a second copy by its key.
    pub fn new(id: TunnelId) -> Self {
        Self { id, takes_keys: true, state: Mutex::default() }
    }

    /// A stub that does not.
    pub fn without_keys(id: TunnelId) -> Self {
        Self { takes_keys: false, ..Self::new(id) }
    }

    /// What it accepted lately, as address and body, oldest first.
    pub fn accepted(&self) -> Vec<(String, String)> {
        let state = self.state();
        state.accepted.iter().map(|(_, address, body)| (address.clone(), body.clone())).collect()
    }

    // Nothing here panics while it holds the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Adapter for Stub {
    fn id(&self) -> &TunnelId {
        &self.id
    }

    fn provider(&self) -> &'static str {
        "stub"
    }

    fn accepts_idempotency_keys(&self) -> bool {
        self.takes_keys
    }

    async fn listen(&self, _ear: &dyn InboundSink, stop: CancellationToken) -> Result<(), Failure> {
        stop.cancelled().await;
        Ok(())
    }

    async fn deliver(&self, parcel: &DeliveryRequest<'_>) -> DeliveryOutcome {
        let mut state = self.state();
        match parcel.address {
            "refuse" => {
                let detail = "stub: this address is refused".to_owned();
                return DeliveryOutcome::Failed(Failure::Permanent { detail });
            }
            "vanish" => {
                let detail = "stub: the line went dead after the message went out".to_owned();
                return DeliveryOutcome::Failed(Failure::Unknown { detail });
            }
            _ => {}
        }
        if let Some(times) = parcel.address.strip_prefix("busy-").and_then(|n| n.parse().ok()) {
            if state.busy.len() >= REMEMBERED {
                state.busy.clear();
            }
            let tries = state.busy.entry(parcel.key).or_insert(0_u32);
            if *tries < times {
                *tries += 1;
                let detail = format!("stub: busy, try {tries} of {times}");
                return DeliveryOutcome::Failed(Failure::Temporary {
                    detail,
                    retry_after_ms: None,
                });
            }
        }
        let known = state.accepted.iter().any(|(key, ..)| *key == parcel.key);
        if !(self.takes_keys && known) {
            state.accepted_ever += 1;
            let entry = (parcel.key, parcel.address.to_owned(), parcel.body.to_owned());
            state.accepted.push_back(entry);
            if state.accepted.len() > REMEMBERED {
                state.accepted.pop_front();
            }
        }
        DeliveryOutcome::Accepted { external_msg_id: Some(format!("stub-{}", state.accepted_ever)) }
    }
}

#[cfg(test)]
mod tests {
    use monoco_core::did::{Did, EndpointKind};
    use monoco_core::object::{ObjId, ObjKind};
    use monoco_core::time::Timestamp;

    use super::*;

    async fn send(stub: &Stub, address: &str, number: u8) -> DeliveryOutcome {
        let did: Did = "did:msgtunnel:stub".parse().unwrap();
        let key = RecordId::delivery(&did, &did, &ObjId::of(ObjKind::Msg, &[number]));
        let now = Timestamp::from_ms(0);
        let kind = EndpointKind::User;
        stub.deliver(&DeliveryRequest { address, kind, body: "{}", attachments: &[], key, now })
            .await
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
    async fn bad_days_have_their_temperature() {
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
