//! What travels through the post office: the Letter, the verdicts of its workers, and
//! where it stands.
//!
//! ```text
//!             hand over                    put back: failed, or too late
//!  WAITING ───────────────▶ AWAY ──────────────────────────────▶ WAITING
//!     │  ▲                    │
//!     │  └── go on ───────────┤          go on: to the next worker, or kept by one
//!     │                       │
//!     ├───────── finish ──────┴───────▶ DONE
//!     ├───────── join ────────────────▶ MERGED
//!     ├───────── trash ───────┬───────▶ TRASHED ── restore ──▶ WAITING
//!     └───────── give up ─────┴───────▶ DEAD ───── revive ───▶ WAITING
//!                                         └──── trash ───────▶ TRASHED
//! ```
//!
//! A letter goes to the next worker of its chain that has not had it. Who had it is
//! part of the letter, so a chain may change while letters are under way: none is lost,
//! and none passes a worker twice.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::hex;
use crate::record::InvalidTransition;
use crate::time::Timestamp;

mod answer;
mod chain;
mod conversion;
mod submission;

pub use answer::{InvalidWorkerAnswer, OURS, WorkerAnswer};
pub use chain::{ChainRun, ChainStop, WorkerResult, WorkerStep};
pub use conversion::{
    FinishContext, FinishError, INLINE_MAIL, apply_to_inbound, apply_to_message, letter_to_message,
};
pub use submission::{
    InvalidLetter, address_domain, check_address, content_type, parse_submission,
};

/// Largest `data`, in bytes.
pub const MAX_DATA: usize = 16 << 20;

/// Largest `extra`, and largest rest of a letter, in bytes of JSON.
pub const MAX_EXTRA: usize = 64 << 10;

/// What `extra.content_type` says of a mail.
pub const RFC822: &str = "message/rfc822";

/// The name of a letter.
///
/// Where it is in the store, and a mark by which a letter of another store is told
/// apart: queues outlive stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LetterId {
    /// Its number.
    pub seq: i64,
    /// Its mark.
    pub mark: u32,
}

/// The text names no letter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a letter id: {0:?} (want ltr_ with a number and 8 hex digits)")]
pub struct InvalidLetterId(String);

/// The name of a worker: its key in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WorkerName(String);

/// The text can't name a worker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a worker's name has 1 to 64 of a-z, 0-9, - and _, and starts with a letter or digit")]
pub struct InvalidWorkerName;

/// What a worker says of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Dealt with; to the next.
    Pass,
    /// None of its business; to the next, untouched.
    Skip,
    /// Into the bin, and no further.
    Trash,
}

/// Which way a letter goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChainDirection {
    /// To us.
    Inbound,
    /// From us.
    Outbound,
}

/// One worker's verdict, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerVerdict {
    /// Who said it.
    pub worker: WorkerName,
    /// What.
    pub result: Verdict,
    /// When, by our clock.
    pub at: Timestamp,
    /// Why, in the worker's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What workers see and change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Letter {
    /// Who sends it: an address or a DID.
    pub from: String,
    /// Whom it is for.
    pub to: Vec<String>,
    /// A whole mail (RFC 5322), or Markdown: `extra.content_type` says which.
    pub data: String,
    /// The workers' memory, and what else is known of the letter.
    pub extra: Map<String, Value>,
    /// Keys that are none of ours.
    pub rest: Map<String, Value>,
}

/// The workers of one direction, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain(pub Vec<WorkerName>);

/// Where a letter stands, without the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LetterState {
    /// For a worker, or kept by one for a while.
    Waiting,
    /// With a worker outside, until its time is over.
    Away,
    /// Through.
    Done,
    /// Part of another letter.
    Merged,
    /// In the bin; kept for a while.
    Trashed,
    /// Given up, with a reason. A person decides.
    Dead,
}

/// A [`LetterState`] with what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LetterStateData {
    /// WAITING, not to be looked at before this.
    Waiting {
        /// When it is due.
        due: Timestamp,
    },
    /// AWAY, to be answered by then.
    Away {
        /// When the time is over.
        until: Timestamp,
    },
    /// DONE.
    Done,
    /// MERGED.
    Merged {
        /// Into this one.
        into: LetterId,
    },
    /// TRASHED.
    Trashed {
        /// Why.
        why: String,
    },
    /// DEAD.
    Dead {
        /// Why.
        why: String,
    },
}

/// A letter's place in the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterStatus {
    /// The state, with what only it has.
    pub standing: LetterStateData,
    /// How often the worker that has it now was tried.
    pub attempts: u32,
}

impl LetterStatus {
    /// A letter as it starts out.
    pub fn start(due: Timestamp) -> Self {
        Self { standing: LetterStateData::Waiting { due }, attempts: 0 }
    }

    /// WAITING → AWAY, once it is due. Counts as a try.
    ///
    /// # Errors
    ///
    /// When it does not wait, or is not due.
    pub fn hand_over(self, now: Timestamp, until: Timestamp) -> Result<Self, InvalidTransition> {
        match self.standing {
            LetterStateData::Waiting { due } if due <= now => {
                Ok(Self { standing: LetterStateData::Away { until }, attempts: self.attempts + 1 })
            }
            _ => Err(self.wrong(LetterState::Away)),
        }
    }

    /// AWAY → WAITING, for another try of the same worker. A worker that was never
    /// reached was not tried: then the try does not count.
    ///
    /// # Errors
    ///
    /// When it is not away.
    pub fn return_to_queue(self, due: Timestamp, tried: bool) -> Result<Self, InvalidTransition> {
        let LetterStateData::Away { .. } = self.standing else {
            return Err(self.wrong(LetterState::Waiting));
        };
        let attempts = if tried { self.attempts } else { self.attempts.saturating_sub(1) };
        Ok(Self { standing: LetterStateData::Waiting { due }, attempts })
    }

    /// On to the next worker, or kept by this one until `due`.
    ///
    /// # Errors
    ///
    /// When it is neither waiting nor away.
    pub fn continue_chain(self, due: Timestamp) -> Result<Self, InvalidTransition> {
        self.is_in_progress(LetterState::Waiting)?;
        Ok(Self::start(due))
    }

    /// Through.
    ///
    /// # Errors
    ///
    /// When it is neither waiting nor away.
    pub fn finish(self) -> Result<Self, InvalidTransition> {
        self.is_in_progress(LetterState::Done)?;
        Ok(Self { standing: LetterStateData::Done, ..self })
    }

    /// Part of another letter from now on.
    ///
    /// # Errors
    ///
    /// When it does not wait.
    pub fn join(self, into: LetterId) -> Result<Self, InvalidTransition> {
        match self.standing {
            LetterStateData::Waiting { .. } => {
                Ok(Self { standing: LetterStateData::Merged { into }, ..self })
            }
            _ => Err(self.wrong(LetterState::Merged)),
        }
    }

    /// Into the bin.
    ///
    /// # Errors
    ///
    /// When it is through already, or there.
    pub fn trash(self, why: String) -> Result<Self, InvalidTransition> {
        if !matches!(self.standing, LetterStateData::Dead { .. }) {
            self.is_in_progress(LetterState::Trashed)?;
        }
        Ok(Self { standing: LetterStateData::Trashed { why }, ..self })
    }

    /// Given up.
    ///
    /// # Errors
    ///
    /// When it is neither waiting nor away.
    pub fn mark_dead(self, why: String) -> Result<Self, InvalidTransition> {
        self.is_in_progress(LetterState::Dead)?;
        Ok(Self { standing: LetterStateData::Dead { why }, ..self })
    }

    /// Out of the bin, by hand.
    ///
    /// # Errors
    ///
    /// When it is not there.
    pub fn restore(self, now: Timestamp) -> Result<Self, InvalidTransition> {
        match self.standing {
            LetterStateData::Trashed { .. } => Ok(Self::start(now)),
            _ => Err(self.wrong(LetterState::Waiting)),
        }
    }

    /// Another chance for one that was given up, or none of the waiting for one that
    /// waits, by hand.
    ///
    /// # Errors
    ///
    /// When it is neither dead nor waiting.
    pub fn retry(self, now: Timestamp) -> Result<Self, InvalidTransition> {
        match self.standing {
            LetterStateData::Dead { .. } | LetterStateData::Waiting { .. } => Ok(Self::start(now)),
            _ => Err(self.wrong(LetterState::Waiting)),
        }
    }

    fn is_in_progress(&self, to: LetterState) -> Result<(), InvalidTransition> {
        match self.standing {
            LetterStateData::Waiting { .. } | LetterStateData::Away { .. } => Ok(()),
            _ => Err(self.wrong(to)),
        }
    }

    fn wrong(&self, to: LetterState) -> InvalidTransition {
        InvalidTransition { from: self.standing.name().as_str(), to: to.as_str() }
    }
}

impl LetterStateData {
    /// The state.
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
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Waiting, Self::Away, Self::Done, Self::Merged, Self::Trashed, Self::Dead];

    /// The word the API, the CLI and the store use.
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

    /// Reads that word, in either case.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str().eq_ignore_ascii_case(text))
    }
}

impl Verdict {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Skip => "skip",
            Self::Trash => "trash",
        }
    }
}

impl ChainDirection {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Inbound, Self::Outbound];

    /// The word everywhere.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
        }
    }

    /// Reads that word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|direction| direction.as_str() == text)
    }
}

impl Chain {
    /// The next worker that has not had the letter.
    pub fn next<'c>(&'c self, had: &[WorkerVerdict]) -> Option<&'c WorkerName> {
        self.0.iter().find(|name| !had.iter().any(|passed| passed.worker == **name))
    }
}

impl Letter {
    /// As a worker gets it.
    pub fn to_worker(&self, id: LetterId, had: &[WorkerVerdict]) -> Value {
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

    /// What it says `extra.key` is, when that is text.
    pub fn extra(&self, key: &str) -> Option<&str> {
        self.extra.get(key)?.as_str()
    }

    /// Whether `data` is a whole mail.
    pub fn is_mail(&self) -> bool {
        content_type(&self.extra) == RFC822
    }

    /// The bytes of `data`. A mail that is not UTF-8 travels as Latin-1, one character
    /// for each byte, and `extra.charset` says so.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        let text = Cow::Borrowed(self.data.as_bytes());
        if self.extra("charset") != Some("latin-1") {
            return text;
        }
        let bytes = self.data.chars().map(|c| u8::try_from(u32::from(c)));
        bytes.collect::<Result<_, _>>().map_or(text, Cow::Owned)
    }

    /// The same letter with these bytes for its `data`.
    pub fn with_bytes(&self, bytes: Vec<u8>) -> Self {
        let Self { from, to, extra, rest, .. } = self;
        let (from, to, extra, rest) = (from.clone(), to.clone(), extra.clone(), rest.clone());
        let mut letter = Self { from, to, data: String::new(), extra, rest };
        letter.set_bytes(bytes);
        letter
    }

    /// Sets `data` to these bytes.
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
    /// The name as text.
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

impl TryFrom<String> for WorkerName {
    type Error = InvalidWorkerName;

    fn try_from(text: String) -> Result<Self, InvalidWorkerName> {
        text.parse()
    }
}

impl From<WorkerName> for String {
    fn from(name: WorkerName) -> Self {
        name.0
    }
}

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
        // One letter has one name: no signs, no leading zeros.
        let named = parts().filter(|id| id.seq > 0 && id.to_string() == text);
        named.ok_or_else(|| InvalidLetterId(text.chars().take(200).collect()))
    }
}

impl TryFrom<String> for LetterId {
    type Error = InvalidLetterId;

    fn try_from(text: String) -> Result<Self, InvalidLetterId> {
        text.parse()
    }
}

impl From<LetterId> for String {
    fn from(id: LetterId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests;
