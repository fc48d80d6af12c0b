//! The cursor of a mail folder: how far the folder has been read.
//!
//! UIDs of a folder only grow while its UIDVALIDITY stays the same. When the UIDVALIDITY has
//! changed, every mail has a new UID, and the folder is read from its beginning again. Most of its
//! mails are known by their hash then. Those that were never registered, because they were older
//! than the first connection, are told apart by the time at which the server received them: the
//! *baseline*.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// How far a folder has been read. Stored as JSON in the cursor of the folder's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderCursor {
    pub uid_validity: u32,
    /// Every mail up to this UID is registered, or is not wanted.
    pub last_uid: u32,
    /// INTERNALDATE of the newest mail at the first connection. `None`: all mails of the folder
    /// are wanted, because `backfill` says so or the folder was empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Timestamp>,
    /// Mails below this UID were in the folder when its UIDVALIDITY changed. Only these are
    /// compared with the baseline; a mail that is moved into the folder later can be old.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub compared_below: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid folder cursor: {0}; expected JSON with `uid_validity` and `last_uid`")]
pub struct InvalidFolderCursor(String);

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero(uid: &u32) -> bool {
    *uid == 0
}

impl FolderCursor {
    /// The cursor after the first connection: mails up to `last_uid` are not wanted.
    pub const fn first(uid_validity: u32, last_uid: u32, baseline: Option<Timestamp>) -> Self {
        Self { uid_validity, last_uid, baseline, compared_below: 0 }
    }

    /// Parses the stored cursor of a stream.
    ///
    /// # Errors
    ///
    /// [`InvalidFolderCursor`] when the text is not a cursor of a folder.
    pub fn parse(text: &str) -> Result<Self, InvalidFolderCursor> {
        serde_json::from_str(text).map_err(|error| InvalidFolderCursor(error.to_string()))
    }

    /// The cursor as it is stored.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a cursor has only numbers")
    }

    /// The cursor after a page whose last mail has this UID. Never goes back.
    pub fn advance(self, uid: u32) -> Self {
        Self { last_uid: self.last_uid.max(uid), ..self }
    }

    /// The cursor after the UIDVALIDITY of the folder has changed: the folder is read from its
    /// beginning, and its mails below `uid_next` are compared with the baseline.
    pub fn restart(self, uid_validity: u32, uid_next: u32) -> Self {
        Self { uid_validity, last_uid: 0, compared_below: uid_next, ..self }
    }

    /// Whether a mail beyond `last_uid` is registered. A mail without a time is: it is better
    /// registered too often, because its hash may be known, than missed. Servers cut the time to
    /// whole seconds, so a mail of the second of the baseline is registered too.
    pub fn wants(&self, uid: u32, internal_date: Option<Timestamp>) -> bool {
        match (self.baseline, internal_date) {
            (Some(baseline), Some(date)) if uid < self.compared_below => {
                date.ms().div_euclid(1_000) >= baseline.ms().div_euclid(1_000)
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_ms(secs * 1000)
    }

    #[test]
    fn cursor_is_read_back_and_other_texts_are_rejected() {
        let first = FolderCursor::first(7, 12, Some(at(5)));
        for cursor in [first, first.restart(8, 20), FolderCursor::first(1, u32::MAX, None)] {
            assert_eq!(FolderCursor::parse(&cursor.json()), Ok(cursor));
        }
        assert_eq!(FolderCursor::first(7, 12, None).json(), r#"{"uid_validity":7,"last_uid":12}"#);
        for text in ["", "12", "{}", r#"{"uid_validity":-1,"last_uid":0}"#, "null"] {
            assert!(FolderCursor::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn mail_of_the_second_of_the_baseline_is_not_left_out() {
        let baseline = Some(Timestamp::from_ms(5_900));
        let cursor = FolderCursor::first(7, 12, baseline).restart(8, 20);
        assert!(cursor.wants(1, Some(at(5))), "its time is cut to whole seconds");
        assert!(!cursor.wants(1, Some(at(4))));
    }

    #[test]
    fn after_a_restart_only_mails_older_than_the_baseline_are_left_out() {
        let first = FolderCursor::first(7, 12, Some(at(100)));
        assert!(first.wants(13, Some(at(1))), "a mail that was moved here keeps its old time");
        let restarted = first.advance(30).restart(8, 20);
        assert_eq!((restarted.uid_validity, restarted.last_uid), (8, 0));
        assert!(!restarted.wants(3, Some(at(99))));
        assert!(restarted.wants(3, Some(at(100))));
        assert!(restarted.wants(3, None));
        assert!(restarted.wants(20, Some(at(1))), "moved here after the restart");
        let all = FolderCursor::first(7, 0, None).restart(8, 20);
        assert!(all.wants(1, Some(at(1))));
    }

    #[test]
    fn cursor_never_goes_back() {
        let cursor = FolderCursor::first(7, 12, None);
        assert_eq!(cursor.advance(3), cursor);
        assert_eq!(cursor.advance(13).last_uid, 13);
    }
}
