//! Deliveries: one object to one target through one tunnel, and the send state machine.
//!
//! ```text
//!           lease                    accepted
//!    WAIT ──────────▶ SENDING ──────────────────────▶ SENT
//!     ▲ ▲              │ ▲ │ │                          ▲
//!     │ │   temporary, │ │ │ └ outcome unknown ─▶ UNCERTAIN ─ confirmed by the sender
//!     │ │   retry      ▼ │ │                        │        or an operator
//!     │ ├─ operator ─ FAILED lease, when due        │
//!     │ ├─ operator ───────│────────────────────────┘
//!     │ └─ operator ─ DEAD ◀ permanent, or given up after 24 h
//!     │                ▲
//!     │                └─ bounced ── SENT, UNCERTAIN
//!     │
//!     └─ approved ─ HELD ◀── operator, halt ── WAIT, FAILED
//!                    ▲
//!                    └─ posted, when the approval policy holds it (approval.rs)
//!
//!    any ──▶ ARCHIVED, DELETED
//! ```
//!
//! SENDING has a lease. When it expires, or the connection is lost after the request was
//! sent, the provider may have the message. If the provider accepts idempotency keys, the
//! delivery is retried with the same key. If the adapter can look for the message at the
//! provider, the delivery is FAILED and the next attempt starts with that. Otherwise it is
//! UNCERTAIN and an operator decides; it is never sent again automatically.
//!
//! Deliveries to one address of a tunnel are sent one at a time, in the order in which they
//! became due: a message that is sent at once is due when it is created. A delivery that has been
//! attempted is first until it ends, so that a retried message is not overtaken. Deliveries to
//! other addresses do not wait for it.
//!
//! A provider can accept a message and report later that it was not delivered, as mail servers do
//! with delivery status notifications. Such a bounce makes the delivery DEAD.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::contact::DeliveryPlan;
use crate::did::Did;
use crate::lease::{Holder, Lease, LeaseDuration, LeaseProof};
use crate::names::variant_names;
use crate::object::ObjId;
use crate::record::{InvalidTransition, RecordId, TransitionError};
use crate::retry::{Failure, Jitter, RetryPolicy};
use crate::time::Timestamp;

/// The state of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SendState {
    /// In the queue until it is due.
    Wait,
    /// Leased to a sender. When the lease expires, the sweeper sets FAILED or UNCERTAIN.
    Sending,
    /// Accepted by the provider. Says nothing about whether it was read.
    Sent,
    /// The last attempt failed; the next one follows when it is due.
    Failed,
    /// A dead letter. An operator can retry it.
    Dead,
    /// The provider may have accepted it. An operator decides.
    Uncertain,
    /// Waits for the approval of an operator.
    Held,
    Archived,
    Deleted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendStateData {
    Wait {
        due: Timestamp,
    },
    Sending(Lease),
    Sent {
        /// The provider's id of the message, if it returned one.
        external_msg_id: Option<String>,
        /// When the provider accepted it, by the courier's clock.
        delivered_at: Timestamp,
    },
    Failed {
        /// The earliest time of the next attempt.
        due: Timestamp,
        why: Failure,
    },
    Dead {
        why: Failure,
    },
    Uncertain {
        why: Failure,
    },
    Held,
    Archived,
    Deleted,
}

/// The state of a delivery with its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendStatus {
    pub state: SendStateData,
    /// Number of attempts since the last retry by an operator.
    pub attempts: u32,
    /// Number of these attempts that a rate limit has ended. `max_attempts` does not count them.
    pub rate_limited: u32,
    /// Increases with every attempt and never goes back.
    pub epoch: u64,
    /// When the first of these attempts began; retries end 24 h later. A delivery that has it is
    /// the first of its address until it ends.
    pub first_try: Option<Timestamp>,
    /// Whether the outcome of an attempt is unknown and the next one looks for the message at the
    /// provider before it sends anything.
    pub outcome_unknown: bool,
}

/// The result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The provider has accepted the message, with all of its parts.
    Accepted {
        /// The provider's id of the message, if it returned one. The id of the last part when
        /// the message has parts that were not all reported as [`SentPart`].
        external_msg_id: Option<String>,
    },
    Failed(Failure),
    /// The provider has not executed the request, because of a rate limit.
    Throttled {
        detail: String,
        /// The provider's error code, if it has one.
        error_code: Option<String>,
        /// The delay that the provider asked for.
        retry_after: Option<Duration>,
        scope: ThrottleScope,
    },
}

/// What a rate limit of a provider applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleScope {
    /// One address. Deliveries to other addresses go on.
    Target,
    /// The whole tunnel. It sends nothing until the delay is over.
    Tunnel,
}

/// The receipt of one part of a message that is too long for one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentPart {
    /// The number of the part, from 0.
    pub part: u32,
    /// The provider's id of the part, if it returned one.
    pub external_msg_id: Option<String>,
}

/// What a tunnel's provider supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelCapabilities {
    /// Whether the provider recognises a second copy by its idempotency key.
    pub idempotent: bool,
    /// Whether the adapter can look for a sent message at the provider.
    pub finds_sent: bool,
}

impl SendStatus {
    /// The status of a new delivery.
    pub fn start(due: Timestamp) -> Self {
        Self {
            state: SendStateData::Wait { due },
            attempts: 0,
            rate_limited: 0,
            epoch: 0,
            first_try: None,
            outcome_unknown: false,
        }
    }

    /// HELD → WAIT, after the message was approved.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state.
    pub fn approve(self, due: Timestamp) -> Result<Self, InvalidTransition> {
        match self.state {
            SendStateData::Held => {
                let state = SendStateData::Wait { due };
                Ok(Self { state, attempts: 0, rate_limited: 0, first_try: None, ..self })
            }
            _ => Err(self.invalid(SendState::Wait)),
        }
    }

    /// WAIT or FAILED → SENDING, once it is due.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state, or before it is due.
    pub fn lease(
        self,
        holder: Holder,
        now: Timestamp,
        term: LeaseDuration,
    ) -> Result<Self, InvalidTransition> {
        match self.state {
            SendStateData::Wait { due } | SendStateData::Failed { due, .. } if due <= now => {
                Ok(Self {
                    state: SendStateData::Sending(Lease::start(holder, now, term)),
                    // Counted before the attempt: a message that crashes the sender must
                    // run out of attempts too.
                    attempts: self.attempts.saturating_add(1),
                    epoch: self.epoch + 1,
                    first_try: self.first_try.or(Some(now)),
                    ..self
                })
            }
            _ => Err(self.invalid(SendState::Sending)),
        }
    }

    /// Records the outcome of the current attempt.
    ///
    /// Repeating a report changes nothing, so that it can be repeated when its response was
    /// lost.
    ///
    /// # Errors
    ///
    /// [`TransitionError`] when there is no current attempt or the caller lost the lease.
    pub fn report(
        self,
        outcome: DeliveryOutcome,
        proof: &LeaseProof,
        now: Timestamp,
        retry: &RetryPolicy,
        capabilities: TunnelCapabilities,
        jitter: Jitter,
    ) -> Result<Self, TransitionError> {
        match (&self.state, outcome) {
            (SendStateData::Sending(lease), outcome) => {
                lease.check(self.epoch, proof)?;
                // A second unknown outcome means that the message was not found.
                let can_look = capabilities.finds_sent && !self.outcome_unknown;
                let capabilities = TunnelCapabilities { finds_sent: can_look, ..capabilities };
                match outcome {
                    DeliveryOutcome::Accepted { external_msg_id } => {
                        let state = SendStateData::Sent { external_msg_id, delivered_at: now };
                        Ok(Self { state, outcome_unknown: false, ..self })
                    }
                    DeliveryOutcome::Failed(why) => {
                        Ok(self.after(why, now, retry, capabilities, jitter))
                    }
                    DeliveryOutcome::Throttled { detail, error_code, retry_after, .. } => {
                        let retry_after_ms = retry_after
                            .map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
                        let why = Failure::Temporary { detail, retry_after_ms, error_code };
                        let delay = retry.rate_limit_delay(self.elapsed(now), retry_after, jitter);
                        let rate_limited = self.rate_limited.saturating_add(1);
                        Ok(Self { rate_limited, ..self.failed(why, delay, false, now) })
                    }
                }
            }
            (SendStateData::Sent { .. }, DeliveryOutcome::Accepted { .. }) => {
                proof.check_free(self.epoch)?;
                Ok(self)
            }
            // Only the sender of this attempt may confirm it; it proves itself by the epoch.
            (SendStateData::Uncertain { .. }, DeliveryOutcome::Accepted { external_msg_id })
                if proof.epoch.is_some() =>
            {
                proof.check_free(self.epoch)?;
                let state = SendStateData::Sent { external_msg_id, delivered_at: now };
                Ok(Self { state, ..self })
            }
            (_, DeliveryOutcome::Accepted { .. }) => {
                proof.check_free(self.epoch)?;
                Err(self.invalid(SendState::Sent).into())
            }
            (_, DeliveryOutcome::Failed(_) | DeliveryOutcome::Throttled { .. }) => {
                proof.check_free(self.epoch)?;
                Err(self.invalid(SendState::Failed).into())
            }
        }
    }

    /// Records that a part of the message was sent, and renews the lease.
    ///
    /// # Errors
    ///
    /// [`TransitionError`] when there is no current attempt or the caller lost the lease.
    pub fn part_sent(
        self,
        proof: &LeaseProof,
        now: Timestamp,
        term: LeaseDuration,
    ) -> Result<Self, TransitionError> {
        let SendStateData::Sending(lease) = &self.state else {
            proof.check_free(self.epoch)?;
            return Err(self.invalid(SendState::Sending).into());
        };
        lease.check(self.epoch, proof)?;
        let lease = Lease::start(lease.holder.clone(), now, term);
        Ok(Self { state: SendStateData::Sending(lease), outcome_unknown: false, ..self })
    }

    /// SENDING → WAIT, before anything was sent: a rate limit allows it at `due`. The attempt
    /// does not count.
    ///
    /// # Errors
    ///
    /// [`TransitionError`] when there is no current attempt or the caller lost the lease.
    pub fn postpone(self, due: Timestamp, proof: &LeaseProof) -> Result<Self, TransitionError> {
        let SendStateData::Sending(lease) = &self.state else {
            proof.check_free(self.epoch)?;
            return Err(self.invalid(SendState::Wait).into());
        };
        lease.check(self.epoch, proof)?;
        let attempts = self.attempts.saturating_sub(1);
        Ok(Self { state: SendStateData::Wait { due }, attempts, ..self })
    }

    /// SENDING → FAILED or UNCERTAIN, after the lease has expired without a report.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] when there is no lease, or it has not expired.
    pub fn expire(
        self,
        now: Timestamp,
        retry: &RetryPolicy,
        capabilities: TunnelCapabilities,
        jitter: Jitter,
    ) -> Result<Self, InvalidTransition> {
        match &self.state {
            SendStateData::Sending(lease) if lease.has_expired(now) => {
                let detail =
                    format!("{} did not report before its lease expired", lease.holder.as_str());
                let why = Failure::Unknown { detail, error_code: None };
                Ok(self.after(why, now, retry, capabilities, jitter))
            }
            _ => Err(self.invalid(SendState::Failed)),
        }
    }

    /// SENT or UNCERTAIN → DEAD, after the provider has reported that an accepted message was
    /// not delivered. Changes nothing in any other state: a report about an earlier attempt must
    /// not end a later one.
    pub fn bounce(self, why: Failure) -> Self {
        match self.state {
            SendStateData::Sent { .. } | SendStateData::Uncertain { .. } => {
                Self { state: SendStateData::Dead { why }, ..self }
            }
            _ => self,
        }
    }

    /// Changes the state to `to` for an operator. Changes nothing when that is already the
    /// state. A delivery that is set to WAIT has all attempts again.
    ///
    /// # Errors
    ///
    /// [`TransitionError`] when the diagram has no such step or another caller holds the lease.
    pub fn mark(
        self,
        to: SendState,
        proof: &LeaseProof,
        now: Timestamp,
    ) -> Result<Self, TransitionError> {
        use SendState as To;
        use SendStateData::{Dead, Failed, Held, Uncertain, Wait};
        match &self.state {
            SendStateData::Sending(lease) => lease.check(self.epoch, proof)?,
            _ => proof.check_free(self.epoch)?,
        }
        let state = match (&self.state, to) {
            (from, to) if from.name() == to => return Ok(self),
            (Held | Dead { .. } | Uncertain { .. } | Failed { .. }, To::Wait) => {
                let state = Wait { due: now };
                return Ok(Self { state, attempts: 0, rate_limited: 0, first_try: None, ..self });
            }
            (Wait { .. } | Failed { .. }, To::Held) => Held,
            (Uncertain { .. }, To::Sent) => {
                SendStateData::Sent { external_msg_id: None, delivered_at: now }
            }
            (SendStateData::Deleted, _) => return Err(self.invalid(to).into()),
            (_, To::Archived) => SendStateData::Archived,
            (_, To::Deleted) => SendStateData::Deleted,
            _ => return Err(self.invalid(to).into()),
        };
        Ok(Self { state, ..self })
    }

    /// The status after a failed attempt.
    fn after(
        self,
        why: Failure,
        now: Timestamp,
        retry: &RetryPolicy,
        capabilities: TunnelCapabilities,
        jitter: Jitter,
    ) -> Self {
        let TunnelCapabilities { idempotent, finds_sent } = capabilities;
        let is_unknown = matches!(why, Failure::Unknown { .. }) && !idempotent;
        let retry_after = match &why {
            Failure::Permanent { .. } => None,
            Failure::Unknown { .. } if is_unknown && !finds_sent => None,
            Failure::Unknown { .. } => Some(None),
            Failure::Temporary { retry_after_ms, .. } => {
                Some(retry_after_ms.map(Duration::from_millis))
            }
        };
        let elapsed = self.elapsed(now);
        // Otherwise rate limits would use up the attempts of the message.
        let counted = self.attempts.saturating_sub(self.rate_limited);
        let wait = retry_after
            .and_then(|retry_after| retry.next_delay(counted, elapsed, retry_after, jitter));
        self.failed(why, wait, is_unknown, now)
    }

    /// The time since the first attempt began.
    fn elapsed(&self, now: Timestamp) -> Duration {
        self.first_try.map_or(Duration::ZERO, |first| now.since(first))
    }

    /// The status after a failed attempt; `wait` until the next one, if there is one.
    fn failed(
        self,
        why: Failure,
        wait: Option<Duration>,
        is_unknown: bool,
        now: Timestamp,
    ) -> Self {
        let outcome_unknown = self.outcome_unknown || is_unknown;
        let state = match wait {
            Some(wait) => SendStateData::Failed { due: now + wait, why },
            None if outcome_unknown => SendStateData::Uncertain { why },
            None => SendStateData::Dead { why },
        };
        let outcome_unknown = outcome_unknown && wait.is_some();
        Self { state, outcome_unknown, ..self }
    }

    fn invalid(&self, to: SendState) -> InvalidTransition {
        InvalidTransition { from: self.state.name().as_str(), to: to.as_str() }
    }
}

impl SendStateData {
    /// The state without its data.
    pub const fn name(&self) -> SendState {
        match self {
            Self::Wait { .. } => SendState::Wait,
            Self::Sending(_) => SendState::Sending,
            Self::Sent { .. } => SendState::Sent,
            Self::Failed { .. } => SendState::Failed,
            Self::Dead { .. } => SendState::Dead,
            Self::Uncertain { .. } => SendState::Uncertain,
            Self::Held => SendState::Held,
            Self::Archived => SendState::Archived,
            Self::Deleted => SendState::Deleted,
        }
    }

    /// Why the last attempt failed, in states after a failure.
    pub const fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed { why, .. } | Self::Dead { why } | Self::Uncertain { why } => Some(why),
            _ => None,
        }
    }
}

variant_names! { SendState:
    Wait = "WAIT", Sending = "SENDING", Sent = "SENT", Failed = "FAILED", Dead = "DEAD",
    Uncertain = "UNCERTAIN", Held = "HELD", Archived = "ARCHIVED", Deleted = "DELETED",
}

/// The delivery of one MsgObject to one target through one tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub id: RecordId,
    /// The position in its box. Later deliveries have larger numbers; never reused.
    pub seq: i64,
    pub msg_id: ObjId,
    /// The route, as it was resolved when the message was sent.
    pub plan: DeliveryPlan,
    pub author: Did,
    pub sending: SendStatus,
    /// The parts that were sent, in order. A message of one part has none until it is SENT.
    pub parts: Vec<SentPart>,
    /// Increases with every change; updates compare and swap it.
    pub revision: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONCE: TunnelCapabilities = TunnelCapabilities { idempotent: false, finds_sent: false };
    const KEYED: TunnelCapabilities = TunnelCapabilities { idempotent: true, finds_sent: false };
    const FINDS: TunnelCapabilities = TunnelCapabilities { idempotent: false, finds_sent: true };

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_ms(secs * 1000)
    }

    fn ann(epoch: Option<u64>) -> LeaseProof {
        LeaseProof { epoch, holder: Holder::new("ann").unwrap() }
    }

    fn why() -> Failure {
        Failure::Unknown { detail: "line went dead".into(), error_code: None }
    }

    fn busy() -> DeliveryOutcome {
        DeliveryOutcome::Failed(Failure::Temporary {
            detail: "429".into(),
            retry_after_ms: None,
            error_code: None,
        })
    }

    fn throttled() -> DeliveryOutcome {
        DeliveryOutcome::Throttled {
            detail: "slow down".into(),
            error_code: Some("ratelimited".into()),
            retry_after: Some(Duration::from_secs(30)),
            scope: ThrottleScope::Target,
        }
    }

    fn accepted() -> DeliveryOutcome {
        DeliveryOutcome::Accepted { external_msg_id: Some("om_1".into()) }
    }

    fn standing(state: SendState) -> SendStatus {
        let lease = Lease::start(Holder::new("ann").unwrap(), at(0), LeaseDuration::DEFAULT);
        let state = match state {
            SendState::Wait => SendStateData::Wait { due: at(0) },
            SendState::Sending => SendStateData::Sending(lease),
            SendState::Sent => SendStateData::Sent { external_msg_id: None, delivered_at: at(0) },
            SendState::Failed => SendStateData::Failed { due: at(0), why: why() },
            SendState::Dead => SendStateData::Dead { why: why() },
            SendState::Uncertain => SendStateData::Uncertain { why: why() },
            SendState::Held => SendStateData::Held,
            SendState::Archived => SendStateData::Archived,
            SendState::Deleted => SendStateData::Deleted,
        };
        let (first_try, outcome_unknown) = (Some(at(0)), false);
        SendStatus { state, attempts: 1, rate_limited: 0, epoch: 1, first_try, outcome_unknown }
    }

    fn report(
        sending: SendStatus,
        outcome: DeliveryOutcome,
        capabilities: TunnelCapabilities,
    ) -> Result<SendStatus, TransitionError> {
        sending.report(
            outcome,
            &ann(Some(1)),
            at(1),
            &RetryPolicy::DELIVERY,
            capabilities,
            Jitter::NONE,
        )
    }

    /// Every step from every state. A new state or step changes the table.
    #[test]
    fn every_step_from_every_state() {
        let end = |sending: SendStatus| sending.state.name().as_str();
        let mut table = crate::state_tables::StateTable::new("sending");
        for state in SendState::ALL {
            let from = state.as_str();
            let now = || standing(state);
            let lost = || DeliveryOutcome::Failed(why());
            let refused = || {
                DeliveryOutcome::Failed(Failure::Permanent {
                    detail: "no".into(),
                    error_code: None,
                })
            };
            let holder = Holder::new("bob").unwrap();
            table.row(from, "lease", now().lease(holder, at(1), LeaseDuration::DEFAULT).map(end));
            table.row(from, "accepted", report(now(), accepted(), ONCE).map(end));
            table.row(from, "temporary", report(now(), busy(), ONCE).map(end));
            table.row(from, "permanent", report(now(), refused(), ONCE).map(end));
            table.row(from, "unknown", report(now(), lost(), ONCE).map(end));
            table.row(from, "unknown, with key", report(now(), lost(), KEYED).map(end));
            table.row(from, "unknown, with lookup", report(now(), lost(), FINDS).map(end));
            let looked = || SendStatus { outcome_unknown: true, ..now() };
            table.row(from, "unknown, after lookup", report(looked(), lost(), FINDS).map(end));
            table.row(from, "throttled", report(now(), throttled(), ONCE).map(end));
            let part = now().part_sent(&ann(Some(1)), at(1), LeaseDuration::DEFAULT);
            table.row(from, "part sent", part.map(end));
            table.row(from, "postpone", now().postpone(at(9), &ann(Some(1))).map(end));
            let expiries =
                [("expire", ONCE), ("expire, with key", KEYED), ("expire, with lookup", FINDS)];
            for (step, capabilities) in expiries {
                let expired =
                    now().expire(at(301), &RetryPolicy::DELIVERY, capabilities, Jitter::NONE);
                table.row(from, step, expired.map(end));
            }
            table.row(from, "approve", now().approve(at(1)).map(end));
            let bounced = end(now().bounce(why()));
            table.row(from, "bounce", Ok::<_, InvalidTransition>(bounced));
            for to in SendState::ALL {
                let marked = now().mark(to, &ann(None), at(1));
                table.row(from, &format!("mark {}", to.as_str()), marked.map(end));
            }
        }
        table.check();
    }

    #[test]
    fn delivery_is_not_leased_before_it_is_due() {
        let early =
            SendStatus::start(at(10)).lease(Holder::anonymous(), at(9), LeaseDuration::DEFAULT);
        assert!(early.is_err());
        let taken = SendStatus::start(at(10))
            .lease(Holder::anonymous(), at(10), LeaseDuration::DEFAULT)
            .unwrap();
        assert_eq!((taken.attempts, taken.epoch, taken.first_try), (1, 1, Some(at(10))));
    }

    #[test]
    fn delivery_is_retried_for_24_hours() {
        let mut sending = SendStatus::start(at(0));
        let mut now = at(0);
        loop {
            sending = sending.lease(Holder::anonymous(), now, LeaseDuration::DEFAULT).unwrap();
            let proof = LeaseProof { epoch: Some(sending.epoch), holder: Holder::anonymous() };
            sending = sending
                .report(busy(), &proof, now, &RetryPolicy::DELIVERY, ONCE, Jitter::NONE)
                .unwrap();
            match sending.state {
                SendStateData::Failed { due, .. } => now = due,
                ref other => {
                    assert_eq!(other.name(), SendState::Dead);
                    break;
                }
            }
        }
        let hours = now.since(at(0)).as_secs() / 3600;
        assert_eq!(hours, 24, "{} tries", sending.attempts);
    }

    #[test]
    fn rate_limit_is_not_an_attempt_that_counts() {
        let retry = RetryPolicy { max_attempts: Some(1), ..RetryPolicy::DELIVERY };
        let sending = standing(SendState::Sending);
        let report = |outcome| {
            let proof = ann(Some(1));
            let sending = sending.clone();
            sending.report(outcome, &proof, at(1), &retry, ONCE, Jitter::NONE).unwrap().state
        };
        assert_eq!(report(busy()).name(), SendState::Dead);
        let SendStateData::Failed { due, why } = report(throttled()) else { panic!() };
        assert_eq!((due, why.error_code()), (at(31), Some("ratelimited")));

        // However often it was throttled, it has all of its attempts.
        let mut sending = SendStatus::start(at(0));
        let retry = RetryPolicy { max_attempts: Some(2), ..RetryPolicy::DELIVERY };
        for (now, outcome) in
            [(0, throttled()), (99, throttled()), (199, throttled()), (299, busy())]
        {
            let holder = Holder::new("ann").unwrap();
            sending = sending.lease(holder, at(now), LeaseDuration::DEFAULT).unwrap();
            let proof = ann(Some(sending.epoch));
            sending = sending.report(outcome, &proof, at(now), &retry, ONCE, Jitter::NONE).unwrap();
            assert_eq!(sending.state.name(), SendState::Failed, "at {now} s");
        }
        assert_eq!((sending.attempts, sending.rate_limited), (4, 3));

        let postponed = standing(SendState::Sending).postpone(at(9), &ann(Some(1))).unwrap();
        assert_eq!((postponed.attempts, postponed.first_try), (0, Some(at(0))));
        assert_eq!(postponed.state, SendStateData::Wait { due: at(9) });
    }

    /// Attempt, lookup that fails, lookup that finds nothing, or a part.
    #[test]
    fn message_with_unknown_outcome_is_looked_for_before_it_is_uncertain() {
        let lost = || DeliveryOutcome::Failed(why());
        let failed = report(standing(SendState::Sending), lost(), FINDS).unwrap();
        assert_eq!((failed.state.name(), failed.outcome_unknown), (SendState::Failed, true));
        let lease = |sending: SendStatus| {
            let leased = sending.lease(Holder::new("ann").unwrap(), at(99), LeaseDuration::DEFAULT);
            SendStatus { epoch: 1, ..leased.unwrap() }
        };
        let again = report(lease(failed), busy(), FINDS).unwrap();
        assert_eq!((again.state.name(), again.outcome_unknown), (SendState::Failed, true));
        let crashed =
            lease(again.clone()).expire(at(999), &RetryPolicy::DELIVERY, FINDS, Jitter::NONE);
        assert_eq!(crashed.unwrap().state.name(), SendState::Failed, "a lookup can be repeated");

        let not_found = report(lease(again.clone()), lost(), FINDS).unwrap();
        assert_eq!(not_found.state.name(), SendState::Uncertain);
        let forbidden = DeliveryOutcome::Failed(Failure::Permanent {
            detail: "no scope".into(),
            error_code: None,
        });
        let forbidden = report(lease(again.clone()), forbidden, FINDS).unwrap();
        assert_eq!(forbidden.state.name(), SendState::Uncertain, "not DEAD: it may be sent");

        let found = lease(again).part_sent(&ann(Some(1)), at(100), LeaseDuration::DEFAULT).unwrap();
        assert!(!found.outcome_unknown);
        let next_lost = report(found, lost(), FINDS).unwrap();
        assert!(next_lost.outcome_unknown, "the next part is looked for too");
    }

    #[test]
    fn part_renews_the_lease_of_its_sender_only() {
        let sending = standing(SendState::Sending);
        let renewed = sending.clone().part_sent(&ann(Some(1)), at(100), LeaseDuration::DEFAULT);
        let SendStateData::Sending(lease) = renewed.unwrap().state else { panic!() };
        assert!(lease.until > at(300));
        let late = sending.part_sent(&ann(Some(0)), at(100), LeaseDuration::DEFAULT);
        assert!(matches!(late, Err(TransitionError::LeaseLost(_))), "{late:?}");
    }

    #[test]
    fn late_report_is_rejected() {
        let first = SendStatus::start(at(0))
            .lease(Holder::anonymous(), at(0), LeaseDuration::DEFAULT)
            .unwrap();
        let expired = first.expire(at(300), &RetryPolicy::DELIVERY, KEYED, Jitter::NONE).unwrap();
        let second = expired.lease(Holder::anonymous(), at(301), LeaseDuration::DEFAULT).unwrap();
        let late = second.report(
            accepted(),
            &LeaseProof { epoch: Some(1), holder: Holder::anonymous() },
            at(302),
            &RetryPolicy::DELIVERY,
            KEYED,
            Jitter::NONE,
        );
        assert!(matches!(late, Err(TransitionError::LeaseLost(_))), "{late:?}");
    }

    #[test]
    fn bounced_delivery_keeps_the_reason_of_the_report_and_can_be_retried() {
        let why = Failure::Permanent {
            detail: "mailbox does not exist".into(),
            error_code: Some("5.1.1".into()),
        };
        let dead = standing(SendState::Sent).bounce(why.clone());
        assert_eq!(dead.state, SendStateData::Dead { why });
        let repeated = dead.clone().bounce(super::tests::why());
        assert_eq!(repeated, dead, "the first report counts");
        let retried = dead.mark(SendState::Wait, &ann(None), at(5)).unwrap();
        assert_eq!(retried.state, SendStateData::Wait { due: at(5) });
    }

    #[test]
    fn delivery_retried_by_an_operator_has_all_attempts_again() {
        let dead = SendStatus { attempts: 9, ..standing(SendState::Dead) };
        let retried = dead.mark(SendState::Wait, &ann(None), at(5)).unwrap();
        assert_eq!((retried.attempts, retried.first_try), (0, None));
        assert_eq!(retried.epoch, 1, "but epochs never go back");
    }
}
