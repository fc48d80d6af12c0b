//! Files that are fetched after their message is stored: attempts, and what a Mail says of them.

use std::time::Duration;

use crate::inbound::{Artifact, InboundMessage, StoredBytes};
use crate::retry::{Backoff, Failure, Jitter, RetryPolicy};
use crate::time::Timestamp;

/// Longest reason that a Mail has for a missing file, in bytes.
const MAX_REASON_BYTES: usize = 300;

/// Bytes of JSON that the result of one fetch can add to a message.
pub(super) const RESULT_BYTES: usize = 3 * MAX_REASON_BYTES;

/// What is written in place of a file while it is fetched. A Mail has this text only when its
/// window has closed before the first attempt ended.
pub const NOT_FETCHED_YET: &str = "not fetched before the Mail was written";

/// Files: 10 attempts within 10 min, after 1 s, 2 s, 4 s, …, 30 s.
pub const FILE_RETRY: RetryPolicy = RetryPolicy {
    backoff: Backoff::DEFAULT,
    max_attempts: Some(10),
    give_up_after: Some(Duration::from_secs(600)),
};

/// A file whose bytes are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedFile {
    pub stored: StoredBytes,
    /// The provider's name and type, when the message did not have them.
    pub name: Option<String>,
    pub mime_type: Option<String>,
}

/// What is known about a file that is fetched later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileResult {
    Fetched(FetchedFile),
    /// Why it is not fetched, so far or for good.
    Missing(String),
}

/// What happens after a failed attempt to fetch a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRetry {
    /// When the next attempt starts; `None`: there is none.
    pub due: Option<Timestamp>,
    /// The reason that the Mail has.
    pub reason: String,
}

impl FileRetry {
    /// Decides about the failure of attempt number `attempts` (from 1). The file was announced at
    /// `announced_at`. A fetch has no effect at the provider, so that an unknown outcome is
    /// retried like a temporary failure.
    pub fn after(
        failure: &Failure,
        attempts: u32,
        announced_at: Timestamp,
        now: Timestamp,
        jitter: Jitter,
    ) -> Self {
        let reason = short_reason(failure.detail());
        let retry_after = match failure {
            Failure::Permanent { .. } => return Self { due: None, reason },
            Failure::Temporary { retry_after_ms, .. } => retry_after_ms.map(Duration::from_millis),
            Failure::Unknown { .. } => None,
        };
        let elapsed = now.since(announced_at);
        let delay = FILE_RETRY.next_delay(attempts, elapsed, retry_after, jitter);
        Self { due: delay.map(|delay| now + delay), reason }
    }
}

impl Artifact {
    /// Applies what is known about the file.
    pub fn apply_file(&mut self, result: FileResult) {
        match result {
            FileResult::Fetched(FetchedFile { stored, name, mime_type }) => {
                self.hash = Some(stored.hash);
                self.size = Some(stored.size);
                self.missing = None;
                if self.name.is_empty() {
                    self.name = name.unwrap_or_default();
                }
                if self.mime_type.is_empty() {
                    self.mime_type = mime_type.unwrap_or_default();
                }
            }
            FileResult::Missing(reason) => self.missing = Some(reason),
        }
    }
}

impl InboundMessage {
    /// Whether a file of the message is fetched later, or was to be.
    pub fn has_announced_files(&self) -> bool {
        self.artifacts.iter().any(|it| it.hash.is_none() && it.missing.is_some())
    }

    /// Marks the files that are fetched later, so that the stored message shows them.
    pub(super) fn mark_announced_files(&mut self) {
        for artifact in &mut self.artifacts {
            if artifact.fetch.is_some() {
                artifact.hash = None;
                artifact.missing = Some(NOT_FETCHED_YET.to_owned());
            }
        }
    }
}

/// Cuts a reason to one short line.
pub fn short_reason(detail: &str) -> String {
    let line = detail.lines().next().unwrap_or_default();
    line[..line.floor_char_boundary(MAX_REASON_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{ObjId, ObjKind};

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_ms(secs * 1000)
    }

    fn temporary(retry_after_ms: Option<u64>) -> Failure {
        Failure::Temporary { detail: "busy\nmore".to_owned(), retry_after_ms, error_code: None }
    }

    #[test]
    fn failed_fetch_is_retried_within_ten_minutes() {
        let due = |failure: &Failure, attempts, now| {
            let retry = FileRetry::after(failure, attempts, at(0), at(now), Jitter::NONE);
            assert_eq!(retry.reason, failure.detail().lines().next().unwrap());
            retry.due
        };
        assert_eq!(due(&temporary(None), 1, 5), Some(at(6)));
        assert_eq!(due(&temporary(None), 3, 5), Some(at(9)));
        assert_eq!(due(&temporary(Some(20_000)), 1, 5), Some(at(25)));
        assert_eq!(due(&temporary(None), 10, 5), None);
        assert_eq!(due(&temporary(None), 2, 600), None);
        let unknown = Failure::Unknown { detail: "lost".to_owned(), error_code: None };
        assert_eq!(due(&unknown, 1, 5), Some(at(6)));
        let gone = Failure::Permanent { detail: "deleted".to_owned(), error_code: None };
        assert_eq!(due(&gone, 1, 0), None);
    }

    #[test]
    fn reason_is_one_short_line() {
        let reason = short_reason(&format!("{}\nsecond line", "é".repeat(1000)));
        assert_eq!(reason, "é".repeat(150));
    }

    #[test]
    fn fetched_file_has_the_announced_name() {
        let stored = StoredBytes { hash: ObjId::of(ObjKind::Bytes, b"x"), size: 1 };
        let fetched = FetchedFile {
            stored,
            name: Some("other.pdf".to_owned()),
            mime_type: Some("application/pdf".to_owned()),
        };
        let missing = Some(NOT_FETCHED_YET.to_owned());
        let mut artifact =
            Artifact { name: "report.pdf".to_owned(), missing, ..Artifact::default() };
        artifact.apply_file(FileResult::Missing("too large".to_owned()));
        assert_eq!(artifact.missing.as_deref(), Some("too large"));
        artifact.apply_file(FileResult::Fetched(fetched));
        let (name, mime_type) = (artifact.name.as_str(), artifact.mime_type.as_str());
        assert_eq!((name, mime_type), ("report.pdf", "application/pdf"));
        assert_eq!((artifact.hash, artifact.size), (Some(stored.hash), Some(1)));
        assert_eq!(artifact.missing, None);
    }
}
