//! E-mail accounts that are watched, and the tasks that their mails become.
//!
//! * [`task`]: one task per mail of a folder; the task state machine.
//! * [`cursor`]: how far a folder has been read.
//! * [`forward`]: which addresses a mail is forwarded to.
//! * [`forward_message`]: the message that forwards a mail.
//! * [`directory`]: the people that mails concern.
//! * [`rounds`]: when a round ends.

use serde::{Deserialize, Serialize};

use crate::did::TunnelId;
use crate::time::Timestamp;

pub mod cursor;
pub mod directory;
pub mod forward;
pub mod forward_message;
pub mod rounds;
pub mod task;

/// A watched e-mail account: the stored side of an `email` tunnel. The configuration names its
/// servers and passwords, which are never stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmailAccount {
    pub tunnel: TunnelId,
    pub address: String,
    pub description: Option<String>,
    /// `false` while an operator has paused the account.
    pub active: bool,
    /// The last UID that was read in the INBOX, or in the folder that was read furthest.
    pub last_seen_uid: u32,
    /// When the last round ended.
    pub last_scanned_at: Option<Timestamp>,
    /// What the last round did.
    pub last_scan: Option<ScanReport>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// What one round did: unfinished tasks first, then new mails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScanReport {
    /// Mails that were registered for the first time.
    pub registered: u64,
    /// Mails that were registered as copies of known ones.
    pub copies: u64,
    /// Tasks that were started again after an error.
    pub retried: u64,
    /// Tasks whose forward was sent.
    pub forwarded: u64,
    /// Tasks that no rule matched.
    pub skipped: u64,
    /// Tasks that failed in this round.
    pub failed: u64,
    /// Mails on the server that are not registered yet.
    pub backlog: u64,
    pub duration_ms: u64,
}

/// All rounds of an account since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTotals {
    pub rounds: u64,
    /// The sums of all rounds; the backlog is that of the last one.
    pub sum: ScanReport,
}

impl RoundTotals {
    /// Adds what one round did.
    pub fn add(&mut self, round: &ScanReport) {
        self.rounds += 1;
        self.sum = ScanReport {
            registered: self.sum.registered + round.registered,
            copies: self.sum.copies + round.copies,
            retried: self.sum.retried + round.retried,
            forwarded: self.sum.forwarded + round.forwarded,
            skipped: self.sum.skipped + round.skipped,
            failed: self.sum.failed + round.failed,
            backlog: round.backlog,
            duration_ms: self.sum.duration_ms.saturating_add(round.duration_ms),
        };
    }
}
