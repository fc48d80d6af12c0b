//! E-mail tasks: one per mail of a folder, and the task state machine.
//!
//! ```text
//!               start                        no rule matches
//!  received ──────────────▶ in_progress ─────────────────────────▶ skipped_no_match
//!      ▲ ▲                  │ │ ▲  │                                      │
//!      │ └─ lease expired ──┘ │ │  │ forward posted                       │
//!      │                      │ │  ▼                                      │
//!      │               failed │ │ in_progress, forwarding ─ all sent ─▶ forwarded
//!      │                      │ │  │           ▲                          │
//!      │                      │ │  │ DEAD,     │ resume, when due;        │
//!      │                      │ │  │ UNCERTAIN │ operator                 │
//!      │                      ▼ │  ▼           │                          │
//!      │  start, when due ────  error ─────────┘                          │
//!      └── operator ────────────┴──────────────── operator ───────────────┘
//!                                                 (skipped_no_match only)
//! ```
//!
//! A task that is being processed has a lease. After its forward has been posted, it has none: it
//! follows the deliveries of the forward. A retry sets the DEAD ones to WAIT and posts nothing, so
//! that a mail is forwarded once. UNCERTAIN deliveries may have arrived, and are never sent again
//! automatically.
//!
//! Three attempts are made, counted when they start, so that a mail that stops the courier runs
//! out of attempts too. A task that failed three times is a dead letter: it stays in `error` until
//! an operator retries or drops it.
//!
//! The second task of a tunnel with the same bytes is a copy. It is kept for the record and never
//! processed.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::delivery::SendState;
use crate::did::{Did, TunnelId};
use crate::lease::{Holder, Lease, LeaseDuration, LeaseProof};
use crate::names::{text_conversions, variant_names};
use crate::object::ObjId;
use crate::record::{InvalidTransition, TransitionError};
use crate::retry::{Backoff, Failure, Jitter, RetryPolicy};
use crate::time::Timestamp;

/// Attempts of a task before it is a dead letter, and after each retry by an operator.
pub const MAX_TASK_ATTEMPTS: u32 = 3;

/// Delays between the attempts of a task: 10 s and 20 s.
pub const TASK_RETRY: RetryPolicy = RetryPolicy {
    backoff: Backoff { first: Duration::from_secs(10), longest: Duration::from_secs(600) },
    max_attempts: Some(MAX_TASK_ATTEMPTS),
    give_up_after: None,
};

/// The id of an e-mail task: `eml_` and its number in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EmailTaskId(pub i64);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid e-mail task id {0:?}; expected eml_ and a number")]
pub struct InvalidEmailTaskId(String);

/// The status of a task, as document 003 names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TaskStatus {
    /// Registered; not processed yet.
    Received,
    /// Being processed, or its forward is on its way.
    InProgress,
    /// Every delivery of the forward was accepted.
    Forwarded,
    /// No rule matches, the mail must not be forwarded, or it is a copy.
    SkippedNoMatch,
    /// The last attempt failed.
    Error,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskStateData {
    Received,
    /// Leased to a task loop. Becomes received again when the lease expires.
    Processing(Lease),
    /// The forward is posted and its deliveries have not ended.
    Forwarding,
    Forwarded,
    /// The reason is `None` when no rule matches.
    Skipped {
        why: Option<String>,
    },
    /// Has the same bytes as an earlier task of the tunnel.
    Copy {
        of: EmailTaskId,
    },
    Error {
        why: String,
        next: TaskRetry,
    },
}

/// What follows an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskRetry {
    /// The next attempt starts when it is due.
    At(Timestamp),
    /// A dead letter. An operator can retry or drop it.
    Dead,
    /// An operator has dropped the dead letter: it is not listed among them any more.
    Dropped,
}

/// The state of a task with its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskProgress {
    pub state: TaskStateData,
    /// Number of attempts since the last retry by an operator.
    pub attempts: u32,
    /// Increases with every lease and never goes back.
    pub epoch: u64,
    /// The message that forwards the mail, after it was posted.
    pub forward: Option<ObjId>,
}

/// The result of processing a mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskOutcome {
    /// The forward is posted: this message.
    Forwarding { forward: ObjId },
    /// Nothing to forward. The reason is `None` when no rule matches.
    Skipped { why: Option<String> },
    /// The mail could not be processed. A permanent failure is not retried.
    Failed(Failure),
}

/// How far the forward of a task has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardProgress {
    /// A letter in the outbound chain.
    InChain,
    /// The letter was trashed by a worker or an operator.
    LetterTrashed { why: String },
    /// The letter is a dead letter.
    LetterDead { why: String },
    /// Queued for its recipients. Local recipients have no delivery.
    Queued(Vec<ForwardDelivery>),
}

/// One delivery of a forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardDelivery {
    pub target: Did,
    pub state: SendState,
    /// Why its last attempt failed.
    pub why: Option<String>,
}

/// One mail of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmailTask {
    pub id: EmailTaskId,
    pub tunnel: TunnelId,
    pub folder: String,
    pub uid_validity: u32,
    pub uid: u32,
    pub subject: String,
    /// The date in the header of the mail.
    pub date: Option<Timestamp>,
    /// When the server received the mail.
    pub internal_date: Option<Timestamp>,
    /// Size of the whole mail, in bytes.
    pub size: u64,
    /// The hash of the stored bytes. Copies have the same.
    pub hash: ObjId,
    /// Why only the header of the mail is stored.
    pub cut: Option<String>,
    pub progress: TaskProgress,
    /// Increases with every change; updates compare and swap it.
    pub revision: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl TaskProgress {
    /// The progress of a new task.
    pub const fn new() -> Self {
        Self { state: TaskStateData::Received, attempts: 0, epoch: 0, forward: None }
    }

    /// The progress of a task whose bytes are those of the task `of`.
    pub const fn copy(of: EmailTaskId) -> Self {
        Self { state: TaskStateData::Copy { of }, attempts: 0, epoch: 0, forward: None }
    }

    /// received, or error without a forward when it is due → in_progress. A task whose lease has
    /// expired can be started as well.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state, before it is due, or after three attempts.
    pub fn start(
        self,
        holder: Holder,
        now: Timestamp,
        term: LeaseDuration,
    ) -> Result<Self, InvalidTransition> {
        let allowed = match &self.state {
            TaskStateData::Received => true,
            TaskStateData::Processing(lease) => {
                lease.has_expired(now) && self.attempts < MAX_TASK_ATTEMPTS
            }
            TaskStateData::Error { next: TaskRetry::At(due), .. } => {
                self.forward.is_none() && *due <= now
            }
            _ => false,
        };
        if !allowed {
            return Err(self.invalid(TaskStatus::InProgress));
        }
        Ok(Self {
            state: TaskStateData::Processing(Lease::start(holder, now, term)),
            // Counted before the attempt: a mail that stops the courier must run out of
            // attempts too.
            attempts: self.attempts.saturating_add(1),
            epoch: self.epoch + 1,
            forward: self.forward,
        })
    }

    /// Records the outcome of the current attempt. Repeating a report changes nothing.
    ///
    /// # Errors
    ///
    /// [`TransitionError`] when the task is not leased or the caller lost the lease.
    pub fn finish(
        self,
        outcome: TaskOutcome,
        proof: &LeaseProof,
        now: Timestamp,
    ) -> Result<Self, TransitionError> {
        let TaskStateData::Processing(lease) = &self.state else {
            proof.check_free(self.epoch)?;
            return match (&self.state, outcome) {
                (
                    TaskStateData::Forwarding | TaskStateData::Forwarded,
                    TaskOutcome::Forwarding { forward },
                ) if self.forward == Some(forward) => Ok(self),
                (TaskStateData::Skipped { why }, TaskOutcome::Skipped { why: reported })
                    if *why == reported =>
                {
                    Ok(self)
                }
                (_, TaskOutcome::Forwarding { .. }) => {
                    Err(self.invalid(TaskStatus::Forwarded).into())
                }
                (_, TaskOutcome::Skipped { .. }) => {
                    Err(self.invalid(TaskStatus::SkippedNoMatch).into())
                }
                (_, TaskOutcome::Failed(_)) => Err(self.invalid(TaskStatus::Error).into()),
            };
        };
        lease.check(self.epoch, proof)?;
        Ok(match outcome {
            TaskOutcome::Forwarding { forward } => {
                Self { state: TaskStateData::Forwarding, forward: Some(forward), ..self }
            }
            TaskOutcome::Skipped { why } => Self { state: TaskStateData::Skipped { why }, ..self },
            TaskOutcome::Failed(failure) => self.failed(&failure, now),
        })
    }

    /// in_progress → received, after the lease has expired; → error after three attempts.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] when there is no lease, or it has not expired.
    pub fn expire(self, now: Timestamp) -> Result<Self, InvalidTransition> {
        let TaskStateData::Processing(lease) = &self.state else {
            return Err(self.invalid(TaskStatus::Received));
        };
        if !lease.has_expired(now) {
            return Err(self.invalid(TaskStatus::Received));
        }
        if self.attempts < MAX_TASK_ATTEMPTS {
            return Ok(Self { state: TaskStateData::Received, ..self });
        }
        let why = format!(
            "{} did not finish before its lease expired, in {} attempts",
            lease.holder.as_str(),
            self.attempts
        );
        Ok(Self { state: TaskStateData::Error { why, next: TaskRetry::Dead }, ..self })
    }

    /// Follows the deliveries of the forward: in_progress → forwarded when all were accepted, and
    /// → error when one of them ended otherwise. A task in error follows them as well, because an
    /// operator or a delivery report can have changed them. Returns the task unchanged when
    /// nothing new is known.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] when the task does not wait for a forward.
    pub fn settle(
        self,
        forward: &ForwardProgress,
        now: Timestamp,
    ) -> Result<Self, InvalidTransition> {
        let in_error = match &self.state {
            TaskStateData::Forwarding => false,
            TaskStateData::Error { next: TaskRetry::At(_) | TaskRetry::Dead, .. }
                if self.forward.is_some() =>
            {
                true
            }
            _ => return Err(self.invalid(TaskStatus::Forwarded)),
        };
        let failure = match forward.end() {
            ForwardEnd::Pending => return Ok(Self { state: TaskStateData::Forwarding, ..self }),
            ForwardEnd::Sent => return Ok(Self { state: TaskStateData::Forwarded, ..self }),
            ForwardEnd::Dropped => {
                let why = Some("every delivery of the forward was dropped".to_owned());
                return Ok(Self { state: TaskStateData::Skipped { why }, ..self });
            }
            ForwardEnd::Failed(failure) => failure,
        };
        // The error is known, and its retry is planned.
        if in_error { Ok(self) } else { Ok(self.failed(&failure, now)) }
    }

    /// forwarded → error: a server that had accepted the forward reports that it could not
    /// deliver it. A dead letter at once, because the recipient has to be changed.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state. A task that waits for its forward finds the
    /// failure among its deliveries.
    pub fn bounce(self, failure: &Failure) -> Result<Self, InvalidTransition> {
        match self.state {
            TaskStateData::Forwarded => {
                let why = failure.detail().to_owned();
                Ok(Self { state: TaskStateData::Error { why, next: TaskRetry::Dead }, ..self })
            }
            _ => Err(self.invalid(TaskStatus::Error)),
        }
    }

    /// error → in_progress for a task with a forward, when it is due. The caller retries the
    /// DEAD deliveries of the forward; nothing is posted.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state, or before it is due.
    pub fn resume(self, now: Timestamp) -> Result<Self, InvalidTransition> {
        match &self.state {
            TaskStateData::Error { next: TaskRetry::At(due), .. }
                if self.forward.is_some() && *due <= now =>
            {
                let attempts = self.attempts.saturating_add(1);
                Ok(Self { state: TaskStateData::Forwarding, attempts, ..self })
            }
            _ => Err(self.invalid(TaskStatus::InProgress)),
        }
    }

    /// Retries a task for an operator, with all attempts: error or skipped_no_match → received;
    /// with a forward → in_progress, and the caller retries the DEAD deliveries of the forward.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state, and for copies.
    pub fn retry(self) -> Result<Self, InvalidTransition> {
        match (&self.state, &self.forward) {
            (TaskStateData::Error { .. }, Some(_)) => {
                Ok(Self { state: TaskStateData::Forwarding, attempts: 1, ..self })
            }
            (TaskStateData::Error { .. } | TaskStateData::Skipped { .. }, None) => {
                Ok(Self { state: TaskStateData::Received, attempts: 0, ..self })
            }
            _ => Err(self.invalid(TaskStatus::Received)),
        }
    }

    /// Drops an error for an operator: it is not retried, and not a dead letter any more. The
    /// status stays `error`.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state.
    pub fn drop_error(self) -> Result<Self, InvalidTransition> {
        match self.state {
            TaskStateData::Error { why, .. } => {
                Ok(Self { state: TaskStateData::Error { why, next: TaskRetry::Dropped }, ..self })
            }
            _ => Err(self.invalid(TaskStatus::Error)),
        }
    }

    /// The state after a failed attempt.
    fn failed(self, failure: &Failure, now: Timestamp) -> Self {
        let delay = match failure {
            Failure::Temporary { retry_after_ms, .. } => {
                let retry_after = retry_after_ms.map(Duration::from_millis);
                TASK_RETRY.next_delay(self.attempts, Duration::ZERO, retry_after, Jitter::NONE)
            }
            Failure::Permanent { .. } | Failure::Unknown { .. } => None,
        };
        let next = delay.map_or(TaskRetry::Dead, |delay| TaskRetry::At(now + delay));
        let why = failure.detail().to_owned();
        Self { state: TaskStateData::Error { why, next }, ..self }
    }

    fn invalid(&self, to: TaskStatus) -> InvalidTransition {
        InvalidTransition { from: self.state.status().as_str(), to: to.as_str() }
    }
}

impl Default for TaskProgress {
    fn default() -> Self {
        Self::new()
    }
}

impl TaskStateData {
    /// The status that the state belongs to.
    pub const fn status(&self) -> TaskStatus {
        match self {
            Self::Received => TaskStatus::Received,
            Self::Processing(_) | Self::Forwarding => TaskStatus::InProgress,
            Self::Forwarded => TaskStatus::Forwarded,
            Self::Skipped { .. } | Self::Copy { .. } => TaskStatus::SkippedNoMatch,
            Self::Error { .. } => TaskStatus::Error,
        }
    }

    /// Why the task was skipped or failed: the `error_message` of document 003.
    pub fn why(&self) -> Option<String> {
        match self {
            Self::Skipped { why } => why.clone(),
            Self::Copy { of } => Some(format!("copy of {of}")),
            Self::Error { why, .. } => Some(why.clone()),
            _ => None,
        }
    }

    /// Whether the task has ended, so that it is purged after its retention time. A dead letter
    /// has not: it waits for an operator.
    pub const fn has_ended(&self) -> bool {
        match self {
            Self::Forwarded | Self::Skipped { .. } | Self::Copy { .. } => true,
            Self::Error { next, .. } => matches!(next, TaskRetry::Dropped),
            Self::Received | Self::Processing(_) | Self::Forwarding => false,
        }
    }
}

/// What the states of a forward add up to.
enum ForwardEnd {
    Pending,
    /// Every delivery that was not dropped was accepted.
    Sent,
    /// An operator dropped every delivery.
    Dropped,
    Failed(Failure),
}

impl ForwardProgress {
    fn end(&self) -> ForwardEnd {
        let deliveries = match self {
            Self::InChain => return ForwardEnd::Pending,
            // A worker has decided, so that another attempt would end in the same way.
            Self::LetterTrashed { why } => {
                let detail = format!("the forward was trashed in the outbound chain: {why}");
                return ForwardEnd::Failed(Failure::Permanent { detail, error_code: None });
            }
            Self::LetterDead { why } => {
                let detail = format!("the outbound chain failed: {why}");
                return ForwardEnd::Failed(temporary(detail));
            }
            Self::Queued(deliveries) => deliveries,
        };
        use SendState::{Archived, Dead, Deleted, Failed, Held, Sending, Sent, Uncertain, Wait};
        let any = |states: &[SendState]| deliveries.iter().find(|one| states.contains(&one.state));
        if any(&[Wait, Sending, Failed, Held]).is_some() {
            return ForwardEnd::Pending;
        }
        if let Some(dead) = any(&[Dead]) {
            return ForwardEnd::Failed(temporary(dead.describe()));
        }
        if let Some(uncertain) = any(&[Uncertain]) {
            let detail = format!(
                "{}; it may have arrived, so that it is not sent again: confirm or retry the \
                 delivery",
                uncertain.describe()
            );
            return ForwardEnd::Failed(Failure::Unknown { detail, error_code: None });
        }
        if any(&[Archived, Deleted]).is_some() && any(&[Sent]).is_none() {
            return ForwardEnd::Dropped;
        }
        ForwardEnd::Sent
    }
}

impl ForwardDelivery {
    fn describe(&self) -> String {
        let target = self.target.endpoint().map(|endpoint| endpoint.account);
        let target = target.as_deref().unwrap_or(self.target.as_str());
        let why = self.why.as_deref().unwrap_or("no reason given");
        format!("delivery to {target} is {}: {why}", self.state.as_str())
    }
}

fn temporary(detail: String) -> Failure {
    Failure::Temporary { detail, retry_after_ms: None, error_code: None }
}

impl fmt::Display for EmailTaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "eml_{}", self.0)
    }
}

impl FromStr for EmailTaskId {
    type Err = InvalidEmailTaskId;

    fn from_str(text: &str) -> Result<Self, InvalidEmailTaskId> {
        let invalid = || InvalidEmailTaskId(text.chars().take(100).collect());
        let digits = text.strip_prefix("eml_").ok_or_else(invalid)?;
        // One id has one text: no sign and no leading zero.
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
        match digits.parse() {
            Ok(number) if plain => Ok(Self(number)),
            _ => Err(invalid()),
        }
    }
}

text_conversions!(EmailTaskId, InvalidEmailTaskId, |id| id.to_string());

variant_names! { TaskStatus:
    Received = "received", InProgress = "in_progress", Forwarded = "forwarded",
    SkippedNoMatch = "skipped_no_match", Error = "error",
}

#[cfg(test)]
mod tests;
