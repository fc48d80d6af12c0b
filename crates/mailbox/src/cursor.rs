//! How far a workspace got in the index: `cursor.json`.

use std::fs;
use std::io;
use std::path::Path;

use monoco_fs::FileOptions;
use serde::{Deserialize, Serialize};

use super::{MailboxError, at};

/// Most Mails that are remembered because their files were changed by hand.
pub const MAX_REFUSED: usize = 1_000;

/// The version of the file.
const VERSION: u32 = 1;

/// How far a workspace got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncCursor {
    /// The version of this file.
    pub version: u32,
    /// Which index.
    pub generation: i64,
    /// How many bytes of it were read.
    pub offset: u64,
    /// The number of the last Mail in them.
    pub seq: i64,
    /// Where its line starts: how we know that the index is still the same.
    #[serde(default)]
    pub last_line: u64,
    /// The id of the first Mail in it: how we know that it is of the same store.
    #[serde(default)]
    pub first: String,
    /// A hash of the rules it was read with.
    #[serde(default)]
    pub rules: String,
    /// Mails whose files were not what the courier wrote. They are looked at again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RejectedFile>,
}

/// A Mail whose file was not what the courier wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedFile {
    /// Its number.
    pub seq: i64,
    /// Where its line starts.
    pub line: u64,
}

impl Default for SyncCursor {
    fn default() -> Self {
        Self {
            version: VERSION,
            generation: 0,
            offset: 0,
            seq: 0,
            last_line: 0,
            first: String::new(),
            rules: String::new(),
            refused: Vec::new(),
        }
    }
}

impl SyncCursor {
    /// The cursor of a workspace; at the start, when there is none. What can't be read is
    /// as good as none: reading again from the start loses nothing.
    ///
    /// # Errors
    ///
    /// When the file system says no, or a newer version wrote it.
    pub fn load(path: &Path) -> Result<Self, MailboxError> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(at(path)(error)),
        };
        match serde_json::from_slice::<Self>(&text) {
            Ok(cursor) if cursor.version > VERSION => Err(MailboxError::Newer(path.to_owned())),
            Ok(cursor) => Ok(cursor),
            Err(_) => Ok(Self::default()),
        }
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    ///
    /// When it can't be written.
    pub fn save(&self, path: &Path) -> Result<(), MailboxError> {
        let text = serde_json::to_vec(self).map_err(|error| at(path)(error.into()))?;
        let written = monoco_fs::write(path, &text, FileOptions::PRIVATE_SYNCED);
        written.map_err(|error| at(path)(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_cursor_is_no_cursor_and_a_newer_one_is_not_guessed_at() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cursor.json");
        assert_eq!(SyncCursor::load(&path).unwrap(), SyncCursor::default());
        let cursor = SyncCursor { generation: 3, offset: 99, seq: 7, ..SyncCursor::default() };
        cursor.save(&path).unwrap();
        assert_eq!(SyncCursor::load(&path).unwrap(), cursor);
        for torn in ["", "{\"version\":1,\"gen", "[]"] {
            fs::write(&path, torn).unwrap();
            assert_eq!(SyncCursor::load(&path).unwrap(), SyncCursor::default(), "{torn}");
        }
        fs::write(&path, r#"{"version":2,"generation":1,"offset":1,"seq":1}"#).unwrap();
        assert!(matches!(SyncCursor::load(&path), Err(MailboxError::Newer(_))));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
    }
}
