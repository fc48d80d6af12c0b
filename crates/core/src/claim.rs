//! Claims: the lease of one workspace on one Mail, and the claim state machine.
//!
//! ```text
//!            claim                complete
//!    NEW ───────────▶ CLAIMED ───────────────▶ COMPLETED
//!     ▲                  │
//!     │  lease expires,  │  permanent failure, or the fourth failure
//!     ├─ or retryable ───┴───────────────────▶ DEADLETTER
//!     │                                            │
//!     └─ retry, by an operator ────────────────────┴─ drop, by an operator ─▶ COMPLETED
//! ```
//!
//! Agents of one workspace exclude each other. Workspaces do not: each has its own claim.
//! An attempt is counted when the Mail is claimed, so that an agent that crashes counts too.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lease::{Holder, Lease, LeaseDuration, LeaseLost, LeaseProof};
use crate::mail::MailId;
use crate::names::variant_names;
use crate::record::{InvalidTransition, TransitionError};
use crate::retry::{Jitter, RetryPolicy};
use crate::time::Timestamp;

/// The name of a workspace, whose agents claim Mails.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Workspace(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("workspace: {0}")]
pub struct InvalidWorkspace(&'static str);

/// The claim of one workspace on one Mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub mail: MailId,
    pub workspace: Workspace,
    pub claiming: ClaimStatus,
    /// Increases with every change.
    pub revision: i64,
    /// The reason of the last failure.
    pub reason: Option<String>,
    pub updated_at: Timestamp,
}

/// The directory of a Mail's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MailLocation {
    /// New, or not finished by all workspaces that claimed it.
    Inbound,
    /// Completed; purged after the retention period.
    Archive,
    /// A dead letter of a workspace; an operator decides.
    Deadletter,
    /// From a sender that is not accepted yet: no file, and it cannot be claimed.
    Held,
    /// Purged: no file any more.
    Removed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClaimState {
    /// Not leased to an agent of this workspace.
    New,
    /// Leased to an agent. Becomes NEW again when the lease expires.
    Claimed,
    /// Finished by this workspace.
    Completed,
    /// A dead letter, with a reason.
    Deadletter,
}

/// A [`ClaimState`] with its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimStateData {
    New {
        /// The earliest time of the next claim.
        due: Timestamp,
    },
    Claimed(Lease),
    Completed,
    Deadletter {
        reason: String,
    },
}

/// The state of a claim with its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimStatus {
    pub state: ClaimStateData,
    /// How often the Mail was claimed since the last retry by an operator.
    pub attempts: u32,
    /// Increases with every claim and never goes back.
    pub epoch: u64,
}

impl ClaimStatus {
    /// The status of a claim that was never leased.
    pub fn start(now: Timestamp) -> Self {
        Self { state: ClaimStateData::New { due: now }, attempts: 0, epoch: 0 }
    }

    /// NEW → CLAIMED, once it is due. Expires a lease that has ended first, which can make
    /// the claim a dead letter.
    ///
    /// # Errors
    ///
    /// [`TransitionError`] when another agent holds it, when it is not due, or from
    /// COMPLETED and DEADLETTER.
    pub fn claim(
        self,
        holder: Holder,
        now: Timestamp,
        term: LeaseDuration,
        retry: &RetryPolicy,
    ) -> Result<Self, TransitionError> {
        match &self.state {
            ClaimStateData::New { due } if *due <= now => {}
            ClaimStateData::New { due } => return Err(TransitionError::NotDue(*due)),
            ClaimStateData::Claimed(lease) if lease.has_expired(now) => {
                return self.expire(now, retry)?.claim(holder, now, term, retry);
            }
            ClaimStateData::Claimed(lease) => return Err(LeaseLost::Held(lease.clone()).into()),
            _ => return Err(self.invalid(ClaimState::Claimed).into()),
        }
        Ok(Self {
            state: ClaimStateData::Claimed(Lease::start(holder, now, term)),
            attempts: self.attempts.saturating_add(1),
            epoch: self.epoch + 1,
        })
    }

    /// Starts the lease of the caller anew.
    ///
    /// # Errors
    ///
    /// [`TransitionError`] when the caller does not hold the lease.
    pub fn renew(
        self,
        proof: &LeaseProof,
        now: Timestamp,
        term: LeaseDuration,
    ) -> Result<Self, TransitionError> {
        let lease = self.held(proof, ClaimState::Claimed)?;
        let lease = Lease::start(lease.holder.clone(), now, term);
        Ok(Self { state: ClaimStateData::Claimed(lease), ..self })
    }

    /// CLAIMED → COMPLETED.
    ///
    /// # Errors
    ///
    /// [`TransitionError`] when the caller does not hold the lease.
    pub fn complete(self, proof: &LeaseProof) -> Result<Self, TransitionError> {
        self.held(proof, ClaimState::Completed)?;
        Ok(Self { state: ClaimStateData::Completed, ..self })
    }

    /// CLAIMED → NEW, due after a delay; → DEADLETTER when the failure is not retryable or
    /// no attempts are left.
    ///
    /// # Errors
    ///
    /// [`TransitionError`] when the caller does not hold the lease.
    pub fn fail(
        self,
        proof: &LeaseProof,
        reason: String,
        retryable: bool,
        now: Timestamp,
        retry: &RetryPolicy,
    ) -> Result<Self, TransitionError> {
        self.held(proof, ClaimState::New)?;
        let wait = retry.next_delay(self.attempts, Duration::ZERO, None, Jitter::NONE);
        let state = match wait.filter(|_| retryable) {
            Some(wait) => ClaimStateData::New { due: now + wait },
            None => ClaimStateData::Deadletter { reason },
        };
        Ok(Self { state, ..self })
    }

    /// CLAIMED → NEW, or → DEADLETTER when no attempts are left, after the lease has expired.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] when there is no lease, or it has not expired.
    pub fn expire(self, now: Timestamp, retry: &RetryPolicy) -> Result<Self, InvalidTransition> {
        let ClaimStateData::Claimed(lease) = &self.state else {
            return Err(self.invalid(ClaimState::New));
        };
        if !lease.has_expired(now) {
            return Err(self.invalid(ClaimState::New));
        }
        let state = match retry.next_delay(self.attempts, Duration::ZERO, None, Jitter::NONE) {
            Some(_) => ClaimStateData::New { due: now },
            None => ClaimStateData::Deadletter {
                reason: format!(
                    "the lease of {} expired and no attempts are left",
                    lease.holder.as_str()
                ),
            },
        };
        Ok(Self { state, ..self })
    }

    /// DEADLETTER → NEW, by an operator, with all attempts.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state.
    pub fn retry(self, now: Timestamp) -> Result<Self, InvalidTransition> {
        match self.state {
            ClaimStateData::Deadletter { .. } => {
                Ok(Self { state: ClaimStateData::New { due: now }, attempts: 0, epoch: self.epoch })
            }
            _ => Err(self.invalid(ClaimState::New)),
        }
    }

    /// DEADLETTER → COMPLETED, by an operator, without another attempt.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state.
    pub fn drop_claim(self) -> Result<Self, InvalidTransition> {
        match self.state {
            ClaimStateData::Deadletter { .. } => {
                Ok(Self { state: ClaimStateData::Completed, ..self })
            }
            _ => Err(self.invalid(ClaimState::Completed)),
        }
    }

    /// Whether it is leased or waits for another attempt. A claim retried by an operator has
    /// no attempts, but an epoch.
    pub const fn is_open(&self) -> bool {
        match self.state {
            ClaimStateData::New { .. } => self.epoch > 0,
            ClaimStateData::Claimed(_) => true,
            ClaimStateData::Completed | ClaimStateData::Deadletter { .. } => false,
        }
    }

    fn held(&self, proof: &LeaseProof, to: ClaimState) -> Result<&Lease, TransitionError> {
        match &self.state {
            ClaimStateData::Claimed(lease) => {
                lease.check(self.epoch, proof)?;
                Ok(lease)
            }
            _ => {
                proof.check_free(self.epoch)?;
                Err(self.invalid(to).into())
            }
        }
    }

    fn invalid(&self, to: ClaimState) -> InvalidTransition {
        InvalidTransition { from: self.state.name().as_str(), to: to.as_str() }
    }
}

/// Returns where the file of a Mail belongs after one of its claims has ended; `None` while
/// another claim is open.
pub fn location_after_claims<'a>(
    claims: impl IntoIterator<Item = &'a ClaimStatus>,
) -> Option<MailLocation> {
    let mut location = MailLocation::Archive;
    for claim in claims {
        match claim.state {
            _ if claim.is_open() => return None,
            ClaimStateData::Deadletter { .. } => location = MailLocation::Deadletter,
            _ => {}
        }
    }
    Some(location)
}

impl Workspace {
    /// The workspace of callers that name none.
    pub fn shared() -> Self {
        Self("shared".to_owned())
    }

    /// # Errors
    ///
    /// [`InvalidWorkspace`] when the name is empty, longer than 256 bytes, or has control characters.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidWorkspace> {
        let name = name.into();
        if name.trim().is_empty() {
            return Err(InvalidWorkspace("empty"));
        }
        if name.len() > 256 {
            return Err(InvalidWorkspace("longer than 256 bytes"));
        }
        if name.chars().any(char::is_control) {
            return Err(InvalidWorkspace("has control characters"));
        }
        Ok(Self(name))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Workspace {
    type Error = InvalidWorkspace;

    fn try_from(name: String) -> Result<Self, InvalidWorkspace> {
        Self::new(name)
    }
}

impl From<Workspace> for String {
    fn from(workspace: Workspace) -> Self {
        workspace.0
    }
}

variant_names! { MailLocation:
    Inbound = "inbound", Archive = "archive", Deadletter = "deadletter", Held = "held",
    Removed = "gone",
}

impl MailLocation {
    /// The directory below the mailbox; `None` when there is no file.
    pub const fn dir(self) -> Option<&'static str> {
        match self {
            Self::Inbound => Some("inbound"),
            Self::Archive => Some("archive"),
            Self::Deadletter => Some(".deadletter"),
            Self::Held | Self::Removed => None,
        }
    }
}

impl ClaimStateData {
    /// The lease of a claim; `None` when no agent holds it.
    pub fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Claimed(lease) => Some(lease),
            Self::New { .. } | Self::Completed | Self::Deadletter { .. } => None,
        }
    }

    /// The state without its data.
    pub const fn name(&self) -> ClaimState {
        match self {
            Self::New { .. } => ClaimState::New,
            Self::Claimed(_) => ClaimState::Claimed,
            Self::Completed => ClaimState::Completed,
            Self::Deadletter { .. } => ClaimState::Deadletter,
        }
    }
}

variant_names! { ClaimState:
    New = "NEW", Claimed = "CLAIMED", Completed = "COMPLETED", Deadletter = "DEADLETTER",
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_ms(secs * 1000)
    }

    fn by(name: &str) -> LeaseProof {
        LeaseProof { epoch: None, holder: Holder::new(name).unwrap() }
    }

    fn claim(claiming: ClaimStatus, name: &str, now: i64) -> Result<ClaimStatus, TransitionError> {
        claiming.claim(
            Holder::new(name).unwrap(),
            at(now),
            LeaseDuration::DEFAULT,
            &RetryPolicy::CLAIM,
        )
    }

    fn standing(state: ClaimState) -> ClaimStatus {
        let lease = Lease::start(Holder::new("ann").unwrap(), at(0), LeaseDuration::DEFAULT);
        let state = match state {
            ClaimState::New => ClaimStateData::New { due: at(0) },
            ClaimState::Claimed => ClaimStateData::Claimed(lease),
            ClaimState::Completed => ClaimStateData::Completed,
            ClaimState::Deadletter => ClaimStateData::Deadletter { reason: "gave up".into() },
        };
        ClaimStatus { state, attempts: 1, epoch: 1 }
    }

    /// Every step from every state. A new state or step changes the table.
    #[test]
    fn every_step_from_every_state() {
        let end = |claiming: ClaimStatus| claiming.state.name().as_str();
        let mut table = crate::state_tables::StateTable::new("claiming");
        for state in ClaimState::ALL {
            let from = state.as_str();
            let now = || standing(state);
            let last = || ClaimStatus { attempts: 4, ..standing(state) };
            let fail = |claiming: ClaimStatus, retryable| {
                claiming.fail(&by("ann"), "no".into(), retryable, at(1), &RetryPolicy::CLAIM)
            };
            table.row(from, "claim", claim(now(), "bob", 1).map(end));
            table.row(from, "claim, lease expired", claim(now(), "bob", 301).map(end));
            table.row(from, "claim, 4th expired", claim(last(), "bob", 301).map(end));
            table.row(
                from,
                "renew",
                now().renew(&by("ann"), at(1), LeaseDuration::DEFAULT).map(end),
            );
            table.row(from, "complete", now().complete(&by("ann")).map(end));
            table.row(from, "fail, retryable", fail(now(), true).map(end));
            table.row(from, "fail, 4th time", fail(last(), true).map(end));
            table.row(from, "fail, permanently", fail(now(), false).map(end));
            table.row(from, "expire", now().expire(at(301), &RetryPolicy::CLAIM).map(end));
            table.row(
                from,
                "expire, 4th time",
                last().expire(at(301), &RetryPolicy::CLAIM).map(end),
            );
            table.row(from, "retry", now().retry(at(1)).map(end));
            table.row(from, "drop", now().drop_claim().map(end));
        }
        table.check();
    }

    #[test]
    fn retries_wait_1_2_and_4_seconds_and_the_fourth_failure_is_a_dead_letter() {
        let mut claiming = ClaimStatus::start(at(0));
        let mut now = at(0);
        let mut waits = Vec::new();
        while let ClaimStateData::New { due } = claiming.state {
            waits.push(due.since(now).as_secs());
            now = due;
            let claimed = claiming
                .claim(Holder::anonymous(), now, LeaseDuration::DEFAULT, &RetryPolicy::CLAIM)
                .unwrap();
            let early = claimed.clone().claim(
                Holder::anonymous(),
                now,
                LeaseDuration::DEFAULT,
                &RetryPolicy::CLAIM,
            );
            assert!(early.is_err(), "held");
            let proof = LeaseProof { epoch: Some(claimed.epoch), holder: Holder::anonymous() };
            claiming = claimed.fail(&proof, "no".into(), true, now, &RetryPolicy::CLAIM).unwrap();
        }
        assert_eq!(waits, [0, 1, 2, 4]);
        assert_eq!(claiming.state.name(), ClaimState::Deadletter);
    }

    #[test]
    fn mail_whose_leases_expire_four_times_becomes_a_dead_letter() {
        let mut claiming = ClaimStatus::start(at(0));
        for round in 1..=4 {
            claiming = claim(claiming, "ann", round * 1000).unwrap();
            claiming = claiming.expire(at(round * 1000 + 300), &RetryPolicy::CLAIM).unwrap();
        }
        assert_eq!(claiming.state.name(), ClaimState::Deadletter);
    }

    #[test]
    fn lost_lease_cannot_complete() {
        let first = claim(ClaimStatus::start(at(0)), "ann", 0).unwrap();
        let second = claim(first, "bob", 301).unwrap();
        let late = LeaseProof { epoch: Some(1), holder: Holder::new("ann").unwrap() };
        assert!(matches!(second.clone().complete(&late), Err(TransitionError::LeaseLost(_))));
        assert!(second.complete(&by("bob")).is_ok());
    }

    #[test]
    fn claim_is_rejected_before_it_is_due() {
        let waiting =
            ClaimStatus { state: ClaimStateData::New { due: at(4) }, attempts: 3, epoch: 3 };
        assert_eq!(claim(waiting.clone(), "ann", 3), Err(TransitionError::NotDue(at(4))));
        assert!(claim(waiting, "ann", 4).is_ok());
    }

    #[test]
    fn file_moves_when_no_claim_is_open() {
        let place = |states: &[ClaimState]| {
            let claims: Vec<_> = states.iter().map(|state| standing(*state)).collect();
            location_after_claims(&claims).map(MailLocation::as_str)
        };
        use ClaimState::{Claimed, Completed, Deadletter, New};
        assert_eq!(place(&[Completed]), Some("archive"));
        assert_eq!(place(&[Completed, Claimed]), None);
        assert_eq!(place(&[Completed, New]), None, "it is to be tried again");
        assert_eq!(place(&[Completed, Deadletter]), Some("deadletter"));
        assert_eq!(place(&[Deadletter, Claimed]), None);
        let untouched = ClaimStatus::start(at(0));
        assert_eq!(
            location_after_claims([&untouched, &standing(Completed)]),
            Some(MailLocation::Archive)
        );
        let retried = standing(Deadletter).retry(at(1)).unwrap();
        assert_eq!(
            location_after_claims([&retried, &standing(Completed)]),
            None,
            "it is to be done again"
        );
        let dropped = standing(Deadletter).drop_claim().unwrap();
        assert_eq!(location_after_claims([&dropped]), Some(MailLocation::Archive));
    }
}
