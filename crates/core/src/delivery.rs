//! One object on its way to one target through one tunnel: the sending machine.
//!
//! ```text
//!            take                    accepted
//!    WAIT ──────────▶ SENDING ──────────────────────▶ SENT
//!     ▲ ▲              │ ▲ │ │                          ▲
//!     │ │   temporary, │ │ │ └ nobody can know ─▶ UNCERTAIN ─ whoever tried it,
//!     │ │   tries left ▼ │ │                        │        or a person, knows
//!     │ ├─ by hand ─ FAILED│ take, when due         │
//!     │ ├─ by hand ────────│────────────────────────┘
//!     │ └─ by hand ─ DEAD ◀┘ permanent, or out of patience
//!     │
//!     └─ by hand ─ HELD ◀── by hand ── WAIT, FAILED
//!
//!    any ──▶ ARCHIVED, DELETED
//! ```
//!
//! `SENDING` is a promise with a deadline. When it is broken, or the connection
//! is lost after the message went out, the peer may hold a copy we cannot see.
//! Where the provider takes an idempotency key we try again with the same key;
//! elsewhere the delivery is UNCERTAIN, and a person decides. Nothing is resent
//! blindly.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::contact::DeliveryPlan;
use crate::did::Did;
use crate::lease::{Holder, Lease, LeaseDuration, LeaseProof};
use crate::object::ObjId;
use crate::record::{InvalidTransition, RecordId, TransitionError};
use crate::retry::{Failure, Jitter, RetryPolicy};
use crate::time::Timestamp;

/// Where a delivery stands, without the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SendState {
    /// In the queue, not to be tried before it is due.
    Wait,
    /// Handed to whoever tries it now. If he dies, the sweeper moves it on.
    Sending,
    /// The provider took it. This says nothing about anyone reading it.
    Sent,
    /// The last try failed; another follows when it is due.
    Failed,
    /// Given up. A person may revive it.
    Dead,
    /// It may have arrived and nobody can know. A person decides.
    Uncertain,
    /// Waits for a person's approval.
    Held,
    /// Put away.
    Archived,
    /// Thrown away.
    Deleted,
}

/// A [`SendState`] with what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendStateData {
    /// WAIT.
    Wait {
        /// Not before this.
        due: Timestamp,
    },
    /// SENDING, by the holder of the lease.
    Sending(Lease),
    /// SENT.
    Sent {
        /// The provider's own id of the message, where it gave one.
        external_msg_id: Option<String>,
    },
    /// FAILED.
    Failed {
        /// When the next try may be made.
        due: Timestamp,
        /// Why the last one failed.
        why: Failure,
    },
    /// DEAD.
    Dead {
        /// Why we gave up.
        why: Failure,
    },
    /// UNCERTAIN.
    Uncertain {
        /// What we saw last.
        why: Failure,
    },
    /// HELD.
    Held,
    /// ARCHIVED.
    Archived,
    /// DELETED.
    Deleted,
}

/// A delivery's place in the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendStatus {
    /// The state, with what only it has.
    pub state: SendStateData,
    /// How often it was tried since it was last put in the queue by a person.
    pub attempts: u32,
    /// Which try is the current one.
    pub epoch: u64,
    /// When the first of these tries began; patience is measured from here.
    pub first_try: Option<Timestamp>,
}

/// What came of one try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The provider took it.
    Accepted {
        /// The provider's own id of the message, where it gave one.
        external_msg_id: Option<String>,
    },
    /// It did not, or we can't know.
    Failed(Failure),
}

/// How a tunnel's deliveries are retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelCapabilities {
    /// Whether the provider recognises a second copy by its idempotency key.
    pub idempotent: bool,
}

impl SendStatus {
    /// A delivery as it starts out.
    pub fn start(due: Timestamp) -> Self {
        Self { state: SendStateData::Wait { due }, attempts: 0, epoch: 0, first_try: None }
    }

    /// WAIT or FAILED → SENDING, once it is due.
    ///
    /// # Errors
    ///
    /// From any other state, or before its time.
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
                    // Counted before the try: a message that kills whoever tries it
                    // must still run out of tries.
                    attempts: self.attempts.saturating_add(1),
                    epoch: self.epoch + 1,
                    first_try: self.first_try.or(Some(now)),
                })
            }
            _ => Err(self.wrong(SendState::Sending)),
        }
    }

    /// Files what came of the current try.
    ///
    /// Saying again what is already filed changes nothing, so that a report whose
    /// answer was lost can be repeated.
    ///
    /// # Errors
    ///
    /// [`Refused`], when nothing is being tried or the caller lost his lease.
    pub fn report(
        self,
        outcome: DeliveryOutcome,
        guard: &LeaseProof,
        now: Timestamp,
        retry: &RetryPolicy,
        manner: TunnelCapabilities,
        jitter: Jitter,
    ) -> Result<Self, TransitionError> {
        match (&self.state, outcome) {
            (SendStateData::Sending(lease), outcome) => {
                lease.check(self.epoch, guard)?;
                let state = match outcome {
                    DeliveryOutcome::Accepted { external_msg_id } => {
                        SendStateData::Sent { external_msg_id }
                    }
                    DeliveryOutcome::Failed(why) => self.after(why, now, retry, manner, jitter),
                };
                Ok(Self { state, ..self })
            }
            (SendStateData::Sent { .. }, DeliveryOutcome::Accepted { .. }) => {
                guard.check_free(self.epoch)?;
                Ok(self)
            }
            // Only he who tried can resolve the doubt, and he has the epoch.
            (SendStateData::Uncertain { .. }, DeliveryOutcome::Accepted { external_msg_id })
                if guard.epoch.is_some() =>
            {
                guard.check_free(self.epoch)?;
                Ok(Self { state: SendStateData::Sent { external_msg_id }, ..self })
            }
            (_, DeliveryOutcome::Accepted { .. }) => {
                guard.check_free(self.epoch)?;
                Err(self.wrong(SendState::Sent).into())
            }
            (_, DeliveryOutcome::Failed(_)) => {
                guard.check_free(self.epoch)?;
                Err(self.wrong(SendState::Failed).into())
            }
        }
    }

    /// SENDING → FAILED or UNCERTAIN, when its lease has ended by `now` and
    /// nobody said what came of it.
    ///
    /// # Errors
    ///
    /// When nobody tries it, or somebody still may.
    pub fn expire(
        self,
        now: Timestamp,
        retry: &RetryPolicy,
        manner: TunnelCapabilities,
        jitter: Jitter,
    ) -> Result<Self, InvalidTransition> {
        match &self.state {
            SendStateData::Sending(lease) if lease.has_expired(now) => {
                let detail =
                    format!("{} did not report before its lease ended", lease.holder.as_str());
                let state = self.after(Failure::Unknown { detail }, now, retry, manner, jitter);
                Ok(Self { state, ..self })
            }
            _ => Err(self.wrong(SendState::Failed)),
        }
    }

    /// Moves to `to` by hand. To where it already stands changes nothing.
    ///
    /// A revived delivery starts over with all its tries.
    ///
    /// # Errors
    ///
    /// [`Refused`], when the drawing has no such arrow or somebody else holds it.
    pub fn mark(
        self,
        to: SendState,
        guard: &LeaseProof,
        now: Timestamp,
    ) -> Result<Self, TransitionError> {
        use SendState as To;
        use SendStateData::{Dead, Failed, Held, Uncertain, Wait};
        match &self.state {
            SendStateData::Sending(lease) => lease.check(self.epoch, guard)?,
            _ => guard.check_free(self.epoch)?,
        }
        let state = match (&self.state, to) {
            (from, to) if from.name() == to => return Ok(self),
            (Held | Dead { .. } | Uncertain { .. } | Failed { .. }, To::Wait) => {
                let state = Wait { due: now };
                return Ok(Self { state, attempts: 0, first_try: None, ..self });
            }
            (Wait { .. } | Failed { .. }, To::Held) => Held,
            (Uncertain { .. }, To::Sent) => SendStateData::Sent { external_msg_id: None },
            (SendStateData::Deleted, _) => return Err(self.wrong(to).into()),
            (_, To::Archived) => SendStateData::Archived,
            (_, To::Deleted) => SendStateData::Deleted,
            _ => return Err(self.wrong(to).into()),
        };
        Ok(Self { state, ..self })
    }

    /// Where a failed try leads.
    fn after(
        &self,
        why: Failure,
        now: Timestamp,
        retry: &RetryPolicy,
        manner: TunnelCapabilities,
        jitter: Jitter,
    ) -> SendStateData {
        let retry_after = match &why {
            Failure::Permanent { .. } => return SendStateData::Dead { why },
            Failure::Unknown { .. } if !manner.idempotent => {
                return SendStateData::Uncertain { why };
            }
            Failure::Unknown { .. } => None,
            Failure::Temporary { retry_after_ms, .. } => retry_after_ms.map(Duration::from_millis),
        };
        let elapsed = self.first_try.map_or(Duration::ZERO, |first| now.since(first));
        match retry.next_delay(self.attempts, elapsed, retry_after, jitter) {
            Some(wait) => SendStateData::Failed { due: now + wait, why },
            None => SendStateData::Dead { why },
        }
    }

    fn wrong(&self, to: SendState) -> InvalidTransition {
        InvalidTransition { from: self.state.name().as_str(), to: to.as_str() }
    }
}

impl SendStateData {
    /// The state without the details.
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

    /// Why the last try failed, where it did.
    pub const fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed { why, .. } | Self::Dead { why } | Self::Uncertain { why } => Some(why),
            _ => None,
        }
    }
}

impl SendState {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Wait,
        Self::Sending,
        Self::Sent,
        Self::Failed,
        Self::Dead,
        Self::Uncertain,
        Self::Held,
        Self::Archived,
        Self::Deleted,
    ];

    /// The word the API, the CLI and the store use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Wait => "WAIT",
            Self::Sending => "SENDING",
            Self::Sent => "SENT",
            Self::Failed => "FAILED",
            Self::Dead => "DEAD",
            Self::Uncertain => "UNCERTAIN",
            Self::Held => "HELD",
            Self::Archived => "ARCHIVED",
            Self::Deleted => "DELETED",
        }
    }

    /// Reads that word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// One MsgObject on its way to one target through one tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Its name.
    pub id: RecordId,
    /// Where it stands in its box: later ones are larger. Never reused.
    pub seq: i64,
    /// The object on its way.
    pub msg_id: ObjId,
    /// How it was decided to send it, as it was then.
    pub plan: DeliveryPlan,
    /// Who sends it.
    pub author: Did,
    /// Its place in the machine.
    pub sending: SendStatus,
    /// Counts every change; swaps are guarded by it.
    pub revision: i64,
    /// When we put it there.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONCE: TunnelCapabilities = TunnelCapabilities { idempotent: false };
    const KEYED: TunnelCapabilities = TunnelCapabilities { idempotent: true };

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_ms(secs * 1000)
    }

    fn ann(epoch: Option<u64>) -> LeaseProof {
        LeaseProof { epoch, holder: Holder::new("ann").unwrap() }
    }

    fn why() -> Failure {
        Failure::Unknown { detail: "line went dead".into() }
    }

    fn busy() -> DeliveryOutcome {
        DeliveryOutcome::Failed(Failure::Temporary { detail: "429".into(), retry_after_ms: None })
    }

    fn accepted() -> DeliveryOutcome {
        DeliveryOutcome::Accepted { external_msg_id: Some("om_1".into()) }
    }

    fn standing(state: SendState) -> SendStatus {
        let lease = Lease::start(Holder::new("ann").unwrap(), at(0), LeaseDuration::DEFAULT);
        let state = match state {
            SendState::Wait => SendStateData::Wait { due: at(0) },
            SendState::Sending => SendStateData::Sending(lease),
            SendState::Sent => SendStateData::Sent { external_msg_id: None },
            SendState::Failed => SendStateData::Failed { due: at(0), why: why() },
            SendState::Dead => SendStateData::Dead { why: why() },
            SendState::Uncertain => SendStateData::Uncertain { why: why() },
            SendState::Held => SendStateData::Held,
            SendState::Archived => SendStateData::Archived,
            SendState::Deleted => SendStateData::Deleted,
        };
        SendStatus { state, attempts: 1, epoch: 1, first_try: Some(at(0)) }
    }

    fn settle(
        sending: SendStatus,
        outcome: DeliveryOutcome,
        manner: TunnelCapabilities,
    ) -> Result<SendStatus, TransitionError> {
        sending.report(outcome, &ann(Some(1)), at(1), &RetryPolicy::DELIVERY, manner, Jitter::NONE)
    }

    /// Every step from every state. A new state or step does not pass unnoticed.
    #[test]
    fn every_step_from_every_state() {
        let end = |sending: SendStatus| sending.state.name().as_str();
        let mut table = crate::state_tables::StateTable::new("sending");
        for state in SendState::ALL {
            let from = state.as_str();
            let now = || standing(state);
            let lost = || DeliveryOutcome::Failed(why());
            let refused = || DeliveryOutcome::Failed(Failure::Permanent { detail: "no".into() });
            let holder = Holder::new("bob").unwrap();
            table.row(from, "take", now().lease(holder, at(1), LeaseDuration::DEFAULT).map(end));
            table.row(from, "accepted", settle(now(), accepted(), ONCE).map(end));
            table.row(from, "temporary", settle(now(), busy(), ONCE).map(end));
            table.row(from, "permanent", settle(now(), refused(), ONCE).map(end));
            table.row(from, "unknown", settle(now(), lost(), ONCE).map(end));
            table.row(from, "unknown, with key", settle(now(), lost(), KEYED).map(end));
            for (step, manner) in [("expire", ONCE), ("expire, with key", KEYED)] {
                let expired = now().expire(at(301), &RetryPolicy::DELIVERY, manner, Jitter::NONE);
                table.row(from, step, expired.map(end));
            }
            for to in SendState::ALL {
                let marked = now().mark(to, &ann(None), at(1));
                table.row(from, &format!("mark {}", to.as_str()), marked.map(end));
            }
        }
        table.check();
    }

    #[test]
    fn nothing_is_taken_before_its_time() {
        let early =
            SendStatus::start(at(10)).lease(Holder::anonymous(), at(9), LeaseDuration::DEFAULT);
        assert!(early.is_err());
        let taken = SendStatus::start(at(10))
            .lease(Holder::anonymous(), at(10), LeaseDuration::DEFAULT)
            .unwrap();
        assert_eq!((taken.attempts, taken.epoch, taken.first_try), (1, 1, Some(at(10))));
    }

    #[test]
    fn an_outage_of_hours_does_not_kill_but_a_day_does() {
        let mut sending = SendStatus::start(at(0));
        let mut now = at(0);
        loop {
            sending = sending.lease(Holder::anonymous(), now, LeaseDuration::DEFAULT).unwrap();
            let guard = LeaseProof { epoch: Some(sending.epoch), holder: Holder::anonymous() };
            sending = sending
                .report(busy(), &guard, now, &RetryPolicy::DELIVERY, ONCE, Jitter::NONE)
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
    fn a_late_report_does_not_count() {
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
    fn a_revived_delivery_has_all_its_tries_again() {
        let dead = SendStatus { attempts: 9, ..standing(SendState::Dead) };
        let revived = dead.mark(SendState::Wait, &ann(None), at(5)).unwrap();
        assert_eq!((revived.attempts, revived.first_try), (0, None));
        assert_eq!(revived.epoch, 1, "but epochs never go back");
    }
}
