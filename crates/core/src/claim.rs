//! One workspace's hold on one Mail: the claiming machine.
//!
//! ```text
//!            claim                complete
//!    NEW ───────────▶ CLAIMED ───────────────▶ COMPLETED
//!     ▲                  │
//!     │  lease ends, or  │  failed for good, or the fourth failure
//!     ├─ retryable ──────┴───────────────────▶ DEADLETTER
//!     └─ by hand ──────────────────────────────────┘   or, by hand, ▶ COMPLETED
//! ```
//!
//! Two agents of one workspace exclude each other; two workspaces do not, for
//! each has a claim of its own. Attempts are counted when the Mail is claimed, so
//! a worker that dies counts too, and claiming again does not reset them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lease::{Holder, Lease, LeaseDuration, LeaseLost, LeaseProof};
use crate::mail::MailId;
use crate::record::{InvalidTransition, TransitionError};
use crate::retry::{Jitter, RetryPolicy};
use crate::time::Timestamp;

/// The name of a workspace, under which its agents claim Mails.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Workspace(String);

/// The text can't name a workspace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("workspace: {0}")]
pub struct InvalidWorkspace(&'static str);

/// One workspace's hold on one Mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The Mail.
    pub mail: MailId,
    /// Whose.
    pub workspace: Workspace,
    /// Where it stands.
    pub claiming: ClaimStatus,
    /// Counts every change.
    pub revision: i64,
    /// Why it last failed.
    pub reason: Option<String>,
    /// When it was last changed.
    pub updated_at: Timestamp,
}

/// Where a Mail's file belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MailLocation {
    /// Somebody may still want it.
    Inbound,
    /// Dealt with; kept for a while.
    Archive,
    /// Given up by a workspace; a person decides.
    Deadletter,
    /// Of a stranger whom nobody has let in: no file, and nobody may claim it.
    Held,
    /// Kept long enough: no file any more.
    Removed,
}

/// Where a claim stands, without the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClaimState {
    /// Nobody of this workspace has it.
    New,
    /// Somebody has it until his lease ends. If he dies, it is NEW again.
    Claimed,
    /// Dealt with, for this workspace.
    Completed,
    /// Given up, with a reason.
    Deadletter,
}

/// A [`ClaimState`] with what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimStateData {
    /// NEW.
    New {
        /// Not to be claimed before this.
        due: Timestamp,
    },
    /// CLAIMED, by the holder of the lease.
    Claimed(Lease),
    /// COMPLETED.
    Completed,
    /// DEADLETTER.
    Deadletter {
        /// Why it was given up.
        reason: String,
    },
}

/// A claim's place in the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimStatus {
    /// The state, with what only it has.
    pub state: ClaimStateData,
    /// How often it was claimed.
    pub attempts: u32,
    /// Which claim is the current one.
    pub epoch: u64,
}

impl ClaimStatus {
    /// A claim as it starts out.
    pub fn start(now: Timestamp) -> Self {
        Self { state: ClaimStateData::New { due: now }, attempts: 0, epoch: 0 }
    }

    /// NEW → CLAIMED, once it is due. A lease that has ended is taken back first, and
    /// may have been the last.
    ///
    /// # Errors
    ///
    /// When it is held, done, dead, or not yet due.
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
            _ => return Err(self.wrong(ClaimState::Claimed).into()),
        }
        Ok(Self {
            state: ClaimStateData::Claimed(Lease::start(holder, now, term)),
            attempts: self.attempts.saturating_add(1),
            epoch: self.epoch + 1,
        })
    }

    /// Prolongs the lease.
    ///
    /// # Errors
    ///
    /// When the caller does not hold it.
    pub fn renew(
        self,
        guard: &LeaseProof,
        now: Timestamp,
        term: LeaseDuration,
    ) -> Result<Self, TransitionError> {
        let lease = self.held(guard, ClaimState::Claimed)?;
        let lease = Lease::start(lease.holder.clone(), now, term);
        Ok(Self { state: ClaimStateData::Claimed(lease), ..self })
    }

    /// CLAIMED → COMPLETED.
    ///
    /// # Errors
    ///
    /// When the caller does not hold it.
    pub fn complete(self, guard: &LeaseProof) -> Result<Self, TransitionError> {
        self.held(guard, ClaimState::Completed)?;
        Ok(Self { state: ClaimStateData::Completed, ..self })
    }

    /// CLAIMED → NEW, due after a wait, or → DEADLETTER.
    ///
    /// # Errors
    ///
    /// When the caller does not hold it.
    pub fn fail(
        self,
        guard: &LeaseProof,
        reason: String,
        retryable: bool,
        now: Timestamp,
        retry: &RetryPolicy,
    ) -> Result<Self, TransitionError> {
        self.held(guard, ClaimState::New)?;
        let wait = retry.next_delay(self.attempts, Duration::ZERO, None, Jitter::NONE);
        let state = match wait.filter(|_| retryable) {
            Some(wait) => ClaimStateData::New { due: now + wait },
            None => ClaimStateData::Deadletter { reason },
        };
        Ok(Self { state, ..self })
    }

    /// CLAIMED → NEW, or → DEADLETTER when there are no tries left, after the
    /// lease has ended by `now`.
    ///
    /// # Errors
    ///
    /// When nobody holds it, or somebody still may.
    pub fn expire(self, now: Timestamp, retry: &RetryPolicy) -> Result<Self, InvalidTransition> {
        let ClaimStateData::Claimed(lease) = &self.state else {
            return Err(self.wrong(ClaimState::New));
        };
        if !lease.has_expired(now) {
            return Err(self.wrong(ClaimState::New));
        }
        let state = match retry.next_delay(self.attempts, Duration::ZERO, None, Jitter::NONE) {
            Some(_) => ClaimStateData::New { due: now },
            None => ClaimStateData::Deadletter {
                reason: format!(
                    "{} let its claim run out, for the last time",
                    lease.holder.as_str()
                ),
            },
        };
        Ok(Self { state, ..self })
    }

    /// DEADLETTER → NEW, by hand, with all its tries.
    ///
    /// # Errors
    ///
    /// From any other state.
    pub fn retry(self, now: Timestamp) -> Result<Self, InvalidTransition> {
        match self.state {
            ClaimStateData::Deadletter { .. } => {
                Ok(Self { state: ClaimStateData::New { due: now }, attempts: 0, epoch: self.epoch })
            }
            _ => Err(self.wrong(ClaimState::New)),
        }
    }

    /// DEADLETTER → COMPLETED, by hand: nobody is to deal with it any more.
    ///
    /// # Errors
    ///
    /// From any other state.
    pub fn drop_claim(self) -> Result<Self, InvalidTransition> {
        match self.state {
            ClaimStateData::Deadletter { .. } => {
                Ok(Self { state: ClaimStateData::Completed, ..self })
            }
            _ => Err(self.wrong(ClaimState::Completed)),
        }
    }

    /// Whether somebody is at it, or is to be again. One that was put back by hand has
    /// no attempts, but it was claimed before.
    pub const fn is_open(&self) -> bool {
        match self.state {
            ClaimStateData::New { .. } => self.epoch > 0,
            ClaimStateData::Claimed(_) => true,
            ClaimStateData::Completed | ClaimStateData::Deadletter { .. } => false,
        }
    }

    fn held(&self, guard: &LeaseProof, to: ClaimState) -> Result<&Lease, TransitionError> {
        match &self.state {
            ClaimStateData::Claimed(lease) => {
                lease.check(self.epoch, guard)?;
                Ok(lease)
            }
            _ => {
                guard.check_free(self.epoch)?;
                Err(self.wrong(to).into())
            }
        }
    }

    fn wrong(&self, to: ClaimState) -> InvalidTransition {
        InvalidTransition { from: self.state.name().as_str(), to: to.as_str() }
    }
}

/// Where a Mail's file belongs once one of its claims has ended; `None` while
/// another one is open.
pub fn location_after_claims<'a>(
    claims: impl IntoIterator<Item = &'a ClaimStatus>,
) -> Option<MailLocation> {
    let mut place = MailLocation::Archive;
    for claim in claims {
        match claim.state {
            _ if claim.is_open() => return None,
            ClaimStateData::Deadletter { .. } => place = MailLocation::Deadletter,
            _ => {}
        }
    }
    Some(place)
}

impl Workspace {
    /// The one of callers that name none.
    pub fn shared() -> Self {
        Self("shared".to_owned())
    }

    /// Checks and takes a name.
    ///
    /// # Errors
    ///
    /// When it is empty, longer than 256 bytes, or has control characters.
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

    /// The name.
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

impl MailLocation {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Inbound, Self::Archive, Self::Deadletter, Self::Held, Self::Removed];

    /// The word the API, the CLI and the store use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Archive => "archive",
            Self::Deadletter => "deadletter",
            Self::Held => "held",
            Self::Removed => "gone",
        }
    }

    /// Reads that word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|place| place.as_str() == text)
    }

    /// The directory of the mailbox that has its files; `None` where there are none.
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
    /// The state without the details.
    pub const fn name(&self) -> ClaimState {
        match self {
            Self::New { .. } => ClaimState::New,
            Self::Claimed(_) => ClaimState::Claimed,
            Self::Completed => ClaimState::Completed,
            Self::Deadletter { .. } => ClaimState::Deadletter,
        }
    }
}

impl ClaimState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::New, Self::Claimed, Self::Completed, Self::Deadletter];

    /// The word the API, the CLI and the store use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::New => "NEW",
            Self::Claimed => "CLAIMED",
            Self::Completed => "COMPLETED",
            Self::Deadletter => "DEADLETTER",
        }
    }

    /// Reads that word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
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

    /// Every step from every state. A new state or step does not pass unnoticed.
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
            table.row(from, "claim, lease ended", claim(now(), "bob", 301).map(end));
            table.row(from, "claim, last lease ended", claim(last(), "bob", 301).map(end));
            table.row(
                from,
                "renew",
                now().renew(&by("ann"), at(1), LeaseDuration::DEFAULT).map(end),
            );
            table.row(from, "complete", now().complete(&by("ann")).map(end));
            table.row(from, "fail, retryable", fail(now(), true).map(end));
            table.row(from, "fail, 4th time", fail(last(), true).map(end));
            table.row(from, "fail, for good", fail(now(), false).map(end));
            table.row(from, "expire", now().expire(at(301), &RetryPolicy::CLAIM).map(end));
            table.row(
                from,
                "expire, 4th time",
                last().expire(at(301), &RetryPolicy::CLAIM).map(end),
            );
            table.row(from, "revive", now().retry(at(1)).map(end));
            table.row(from, "lay to rest", now().drop_claim().map(end));
        }
        table.check();
    }

    #[test]
    fn three_retries_wait_one_two_and_four_seconds_and_the_fourth_failure_is_dead() {
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
            let guard = LeaseProof { epoch: Some(claimed.epoch), holder: Holder::anonymous() };
            claiming = claimed.fail(&guard, "no".into(), true, now, &RetryPolicy::CLAIM).unwrap();
        }
        assert_eq!(waits, [0, 1, 2, 4]);
        assert_eq!(claiming.state.name(), ClaimState::Deadletter);
    }

    #[test]
    fn a_mail_that_kills_its_workers_ends_in_the_dead_letters() {
        let mut claiming = ClaimStatus::start(at(0));
        for round in 1..=4 {
            claiming = claim(claiming, "ann", round * 1000).unwrap();
            claiming = claiming.expire(at(round * 1000 + 300), &RetryPolicy::CLAIM).unwrap();
        }
        assert_eq!(claiming.state.name(), ClaimState::Deadletter);
    }

    #[test]
    fn nobody_completes_with_a_lost_lease() {
        let first = claim(ClaimStatus::start(at(0)), "ann", 0).unwrap();
        let second = claim(first, "bob", 301).unwrap();
        let late = LeaseProof { epoch: Some(1), holder: Holder::new("ann").unwrap() };
        assert!(matches!(second.clone().complete(&late), Err(TransitionError::LeaseLost(_))));
        assert!(second.complete(&by("bob")).is_ok());
    }

    #[test]
    fn not_before_its_time() {
        let waiting =
            ClaimStatus { state: ClaimStateData::New { due: at(4) }, attempts: 3, epoch: 3 };
        assert_eq!(claim(waiting.clone(), "ann", 3), Err(TransitionError::NotDue(at(4))));
        assert!(claim(waiting, "ann", 4).is_ok());
    }

    #[test]
    fn a_file_rests_when_nobody_is_at_it_any_more() {
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
        let revived = standing(Deadletter).retry(at(1)).unwrap();
        assert_eq!(
            location_after_claims([&revived, &standing(Completed)]),
            None,
            "it is to be done again"
        );
        let rested = standing(Deadletter).drop_claim().unwrap();
        assert_eq!(location_after_claims([&rested]), Some(MailLocation::Archive));
    }
}
