//! Letters: messages in the pipeline, the verdicts of their workers, and the letter state
//! machine.
//!
//! ```text
//!             hand over                    return: failed, or timed out
//!  WAITING ───────────────▶ AWAY ──────────────────────────────▶ WAITING
//!     │  ▲                    │
//!     │  └── continue ────────┤          continue: with the next worker, or held by one
//!     │                       │
//!     ├───────── finish ──────┴───────▶ DONE
//!     ├───────── join ────────────────▶ MERGED
//!     ├───────── trash ───────┬───────▶ TRASHED ── restore ──▶ WAITING
//!     └───────── mark dead ───┴───────▶ DEAD ───── retry ────▶ WAITING
//!                                         └──── trash ───────▶ TRASHED
//! ```
//!
//! A letter goes to the first worker of its chain that has no verdict for it. The verdicts
//! are stored with the letter, so a chain can change while letters are in progress: no letter
//! is lost, and none goes through a worker twice.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::hex;
use crate::names::{text_conversions, variant_names};
use crate::record::InvalidTransition;
use crate::time::Timestamp;

mod answer;
mod chain;
mod conversion;
mod submission;

pub use answer::{InvalidWorkerAnswer, RESERVED_EXTRA_KEYS, WorkerRequest};
pub use chain::{ChainRun, ChainStop, WorkerResult, WorkerStep};
pub use conversion::{
    FinishContext, FinishError, INLINE_MAIL, apply_mail_to_inbound, apply_to_inbound,
    apply_to_message, letter_to_message,
};
pub use submission::{
    InvalidLetter, address_domain, check_address, content_type, parse_submission,
};

/// Maximum size of `data`, in bytes.
pub const MAX_DATA: usize = 16 << 20;

/// Maximum size of `extra`, and of the unknown keys of a letter, in bytes of JSON.
pub const MAX_EXTRA: usize = 64 << 10;

/// The `extra.content_type` of a mail.
pub const RFC822: &str = "message/rfc822";

/// The id of a letter: its number in the store, and a random mark.
///
/// A queue can outlive the store; the mark distinguishes letters of another store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LetterId {
    pub seq: i64,
    pub mark: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid letter id {0:?}; expected ltr_, a number, _ and 8 hex digits")]
pub struct InvalidLetterId(String);

/// The name of a worker: its key in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WorkerName(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the name of a worker has 1 to 64 characters of a-z, 0-9, - and _, and starts with a letter or digit"
)]
pub struct InvalidWorkerName;

/// The decision of a worker about a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Processed; the letter goes to the next worker.
    Pass,
    /// Not processed; the letter goes to the next worker unchanged.
    Skip,
    /// The letter is trashed.
    Trash,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChainDirection {
    Inbound,
    Outbound,
}

/// The verdict of one worker, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerVerdict {
    pub worker: WorkerName,
    pub result: Verdict,
    /// By the hub's clock.
    pub at: Timestamp,
    /// The reason that the worker gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A message in the form that workers read and change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Letter {
    /// An address or a DID.
    pub from: String,
    pub to: Vec<String>,
    /// A mail (RFC 5322) or Markdown, depending on `extra.content_type`.
    pub data: String,
    /// Metadata of the hub, and data that workers share.
    pub extra: Map<String, Value>,
    /// Unknown keys of the letter.
    pub rest: Map<String, Value>,
}

/// The workers of one direction, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain(pub Vec<WorkerName>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LetterState {
    /// Waits for a worker, or is held by one.
    Waiting,
    /// At an external worker, until the timeout.
    Away,
    /// The chain is finished.
    Done,
    /// Merged into another letter.
    Merged,
    /// In the trash; purged after the retention period.
    Trashed,
    /// A dead letter; an operator decides.
    Dead,
}

/// A [`LetterState`] with its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LetterStateData {
    Waiting {
        due: Timestamp,
    },
    Away {
        /// The timeout of the worker.
        until: Timestamp,
    },
    Done,
    Merged {
        into: LetterId,
    },
    Trashed {
        why: String,
    },
    Dead {
        why: String,
    },
}

/// The state of a letter with the attempts of its current worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterStatus {
    pub standing: LetterStateData,
    pub attempts: u32,
}

impl LetterStatus {
    /// The status of a new letter.
    pub fn start(due: Timestamp) -> Self {
        Self { standing: LetterStateData::Waiting { due }, attempts: 0 }
    }

    /// WAITING → AWAY, once it is due. Counts an attempt.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state, or before it is due.
    pub fn hand_over(self, now: Timestamp, until: Timestamp) -> Result<Self, InvalidTransition> {
        match self.standing {
            LetterStateData::Waiting { due } if due <= now => {
                Ok(Self { standing: LetterStateData::Away { until }, attempts: self.attempts + 1 })
            }
            _ => Err(self.invalid(LetterState::Away)),
        }
    }

    /// AWAY → WAITING, for another attempt of the same worker. Without `tried`, the worker
    /// was not reached and the attempt is not counted.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state.
    pub fn return_to_queue(self, due: Timestamp, tried: bool) -> Result<Self, InvalidTransition> {
        let LetterStateData::Away { .. } = self.standing else {
            return Err(self.invalid(LetterState::Waiting));
        };
        let attempts = if tried { self.attempts } else { self.attempts.saturating_sub(1) };
        Ok(Self { standing: LetterStateData::Waiting { due }, attempts })
    }

    /// WAITING or AWAY → WAITING, for the next worker, or held by this one until `due`.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state.
    pub fn continue_chain(self, due: Timestamp) -> Result<Self, InvalidTransition> {
        self.is_in_progress(LetterState::Waiting)?;
        Ok(Self::start(due))
    }

    /// WAITING or AWAY → DONE.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state.
    pub fn finish(self) -> Result<Self, InvalidTransition> {
        self.is_in_progress(LetterState::Done)?;
        Ok(Self { standing: LetterStateData::Done, ..self })
    }

    /// WAITING → MERGED.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state.
    pub fn join(self, into: LetterId) -> Result<Self, InvalidTransition> {
        match self.standing {
            LetterStateData::Waiting { .. } => {
                Ok(Self { standing: LetterStateData::Merged { into }, ..self })
            }
            _ => Err(self.invalid(LetterState::Merged)),
        }
    }

    /// WAITING, AWAY or DEAD → TRASHED.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state.
    pub fn trash(self, why: String) -> Result<Self, InvalidTransition> {
        if !matches!(self.standing, LetterStateData::Dead { .. }) {
            self.is_in_progress(LetterState::Trashed)?;
        }
        Ok(Self { standing: LetterStateData::Trashed { why }, ..self })
    }

    /// WAITING or AWAY → DEAD.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state.
    pub fn mark_dead(self, why: String) -> Result<Self, InvalidTransition> {
        self.is_in_progress(LetterState::Dead)?;
        Ok(Self { standing: LetterStateData::Dead { why }, ..self })
    }

    /// TRASHED → WAITING, by an operator.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state.
    pub fn restore(self, now: Timestamp) -> Result<Self, InvalidTransition> {
        match self.standing {
            LetterStateData::Trashed { .. } => Ok(Self::start(now)),
            _ => Err(self.invalid(LetterState::Waiting)),
        }
    }

    /// DEAD or WAITING → WAITING, due now, by an operator.
    ///
    /// # Errors
    ///
    /// [`InvalidTransition`] from any other state.
    pub fn retry(self, now: Timestamp) -> Result<Self, InvalidTransition> {
        match self.standing {
            LetterStateData::Dead { .. } | LetterStateData::Waiting { .. } => Ok(Self::start(now)),
            _ => Err(self.invalid(LetterState::Waiting)),
        }
    }

    fn is_in_progress(&self, to: LetterState) -> Result<(), InvalidTransition> {
        match self.standing {
            LetterStateData::Waiting { .. } | LetterStateData::Away { .. } => Ok(()),
            _ => Err(self.invalid(to)),
        }
    }

    fn invalid(&self, to: LetterState) -> InvalidTransition {
        InvalidTransition { from: self.standing.name().as_str(), to: to.as_str() }
    }
}

impl LetterStateData {
    /// The state without its data.
    pub const fn name(&self) -> LetterState {
        match self {
            Self::Waiting { .. } => LetterState::Waiting,
            Self::Away { .. } => LetterState::Away,
            Self::Done => LetterState::Done,
            Self::Merged { .. } => LetterState::Merged,
            Self::Trashed { .. } => LetterState::Trashed,
            Self::Dead { .. } => LetterState::Dead,
        }
    }
}

impl LetterState {
    pub const ALL: [Self; 6] =
        [Self::Waiting, Self::Away, Self::Done, Self::Merged, Self::Trashed, Self::Dead];

    /// The name in the API, the CLI and the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "WAITING",
            Self::Away => "AWAY",
            Self::Done => "DONE",
            Self::Merged => "MERGED",
            Self::Trashed => "TRASHED",
            Self::Dead => "DEAD",
        }
    }

    /// Reads a name in upper or lower case.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str().eq_ignore_ascii_case(text))
    }
}

impl Verdict {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Skip => "skip",
            Self::Trash => "trash",
        }
    }
}

variant_names! { ChainDirection:
    Inbound = "inbound", Outbound = "outbound",
}

impl Chain {
    /// The first worker without a verdict.
    pub fn next<'c>(&'c self, had: &[WorkerVerdict]) -> Option<&'c WorkerName> {
        self.0.iter().find(|name| !had.iter().any(|passed| passed.worker == **name))
    }
}

impl Letter {
    /// Returns the letter as JSON. `had` are the verdicts so far.
    pub fn to_json(&self, id: LetterId, had: &[WorkerVerdict]) -> Value {
        let mut letter = self.rest.clone();
        letter.insert("id".to_owned(), id.to_string().into());
        letter.insert("from".to_owned(), self.from.clone().into());
        letter.insert("to".to_owned(), self.to.clone().into());
        letter.insert("data".to_owned(), self.data.clone().into());
        letter.insert("extra".to_owned(), self.extra.clone().into());
        let processed: Vec<_> = had.iter().map(|passed| passed.worker.as_str()).collect();
        letter.insert("processed".to_owned(), processed.into());
        letter.into()
    }

    /// The value of `extra.KEY`, if it is a string.
    pub fn extra(&self, key: &str) -> Option<&str> {
        self.extra.get(key)?.as_str()
    }

    /// Whether `data` is a mail.
    pub fn is_mail(&self) -> bool {
        content_type(&self.extra) == RFC822
    }

    /// The bytes of `data`. A mail that is not UTF-8 is represented as Latin-1, one character
    /// per byte, with `extra.charset`.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        let text = Cow::Borrowed(self.data.as_bytes());
        if self.extra("charset") != Some("latin-1") {
            return text;
        }
        let bytes = self.data.chars().map(|c| u8::try_from(u32::from(c)));
        bytes.collect::<Result<_, _>>().map_or(text, Cow::Owned)
    }

    /// Returns the letter with these bytes as `data`.
    pub fn with_bytes(&self, bytes: Vec<u8>) -> Self {
        let Self { from, to, extra, rest, .. } = self;
        let (from, to, extra, rest) = (from.clone(), to.clone(), extra.clone(), rest.clone());
        let mut letter = Self { from, to, data: String::new(), extra, rest };
        letter.set_bytes(bytes);
        letter
    }

    pub fn set_bytes(&mut self, bytes: Vec<u8>) {
        match String::from_utf8(bytes) {
            Ok(text) => {
                self.data = text;
                self.extra.remove("charset");
            }
            Err(error) => {
                self.data = error.as_bytes().iter().copied().map(char::from).collect();
                self.extra.insert("charset".to_owned(), "latin-1".into());
            }
        }
    }
}

impl WorkerName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for WorkerName {
    type Err = InvalidWorkerName;

    fn from_str(text: &str) -> Result<Self, InvalidWorkerName> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let fits = (1..=64).contains(&text.len())
            && text.bytes().all(|byte| plain(byte) || byte == b'-' || byte == b'_')
            && text.bytes().next().is_some_and(plain);
        if fits { Ok(Self(text.to_owned())) } else { Err(InvalidWorkerName) }
    }
}

text_conversions!(WorkerName, InvalidWorkerName, |name| name.0);

impl fmt::Display for WorkerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for LetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ltr_{}_{:08x}", self.seq, self.mark)
    }
}

impl FromStr for LetterId {
    type Err = InvalidLetterId;

    fn from_str(text: &str) -> Result<Self, InvalidLetterId> {
        let parts = || {
            let (seq, mark) = text.strip_prefix("ltr_")?.split_once('_')?;
            let seq = seq.parse().ok()?;
            Some(Self { seq, mark: u32::from_be_bytes(hex::decode(mark)?) })
        };
        // One letter has one id: no signs, no leading zeros.
        let named = parts().filter(|id| id.seq > 0 && id.to_string() == text);
        named.ok_or_else(|| InvalidLetterId(text.chars().take(200).collect()))
    }
}

text_conversions!(LetterId, InvalidLetterId, |id| id.to_string());

#[cfg(test)]
mod tests;
