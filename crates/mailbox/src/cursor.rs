//! Position of a workspace in the index: `cursor.json`.

use monoco_fs::FileOptions;
use serde::{Deserialize, Serialize};

use super::{CheckedDir, MailboxError, at};

/// Limit of Mails that are remembered because their files were changed.
pub const MAX_REJECTED_FILES: usize = 1_000;

const VERSION: u32 = 1;

/// File name in the mailbox directory of a workspace.
const FILE: &str = "cursor.json";

/// Largest cursor file, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Position of a workspace in the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncCursor {
    pub version: u32,
    /// Generation of the index.
    pub generation: i64,
    /// Number of bytes that were read.
    pub offset: u64,
    /// Sequence number of the last Mail in them.
    pub seq: i64,
    /// Offset of the last line, to recognise the same index.
    #[serde(default)]
    pub last_line: u64,
    /// Id of the first Mail, to recognise the same store.
    #[serde(default)]
    pub first: String,
    /// Hash of the filters at the last sync.
    #[serde(default)]
    pub rules: String,
    /// Mails whose files did not match the index; they are checked again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RejectedFile>,
}

/// A Mail whose file did not match the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedFile {
    pub seq: i64,
    /// Offset of its line.
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
    /// Reads the cursor. A missing or malformed file gives the start position: reading
    /// again from the start loses nothing.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or a newer version wrote it.
    pub fn load(dir: &CheckedDir) -> Result<Self, MailboxError> {
        let Some(text) = dir.read(FILE, MAX_BYTES)? else { return Ok(Self::default()) };
        match serde_json::from_slice::<Self>(&text) {
            Ok(cursor) if cursor.version > VERSION => {
                Err(MailboxError::Newer(dir.path().join(FILE)))
            }
            Ok(cursor) => Ok(cursor),
            Err(_) => Ok(Self::default()),
        }
    }

    /// Writes the cursor atomically.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn save(&self, dir: &CheckedDir) -> Result<(), MailboxError> {
        let text =
            serde_json::to_vec(self).map_err(|error| at(&dir.path().join(FILE))(error.into()))?;
        dir.write(FILE, &text, FileOptions::PRIVATE_SYNCED)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn torn_cursor_starts_over_and_a_newer_version_is_an_error() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = CheckedDir::open_root(temporary.path()).unwrap();
        let path = temporary.path().join(FILE);
        assert_eq!(SyncCursor::load(&dir).unwrap(), SyncCursor::default());
        let cursor = SyncCursor { generation: 3, offset: 99, seq: 7, ..SyncCursor::default() };
        cursor.save(&dir).unwrap();
        assert_eq!(SyncCursor::load(&dir).unwrap(), cursor);
        for torn in ["", "{\"version\":1,\"gen", "[]"] {
            fs::write(&path, torn).unwrap();
            assert_eq!(SyncCursor::load(&dir).unwrap(), SyncCursor::default(), "{torn}");
        }
        fs::write(&path, r#"{"version":2,"generation":1,"offset":1,"seq":1}"#).unwrap();
        assert!(matches!(SyncCursor::load(&dir), Err(MailboxError::Newer(_))));
        assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 1, "nothing is left behind");
    }
}
