//! Watches the database file while it is open.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Notices when the database file is deleted, replaced or made read-only while it is open.
#[derive(Debug)]
pub(crate) struct DatabaseFile {
    path: PathBuf,
    /// Device and inode number.
    node: (u64, u64),
}

impl DatabaseFile {
    pub(crate) fn open(path: PathBuf) -> std::io::Result<Self> {
        let found = std::fs::metadata(&path)?;
        Ok(Self { path, node: (found.dev(), found.ino()) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Why the open database is no longer the file of this name. What is written to a deleted file
    /// is lost when the courier ends.
    pub(crate) fn loss(&self) -> Option<String> {
        let found = std::fs::metadata(&self.path);
        let is_there = found.is_ok_and(|found| (found.dev(), found.ino()) == self.node);
        (!is_there).then(|| format!("{} was deleted or replaced", self.path.display()))
    }

    /// Why the database cannot be written, when its file or directory is read-only.
    pub(crate) fn write_protection(&self) -> Option<String> {
        let dir = self.path.parent().unwrap_or(&self.path);
        let is_writable = monoco_fs::is_writable(&self.path) && monoco_fs::is_writable(dir);
        (!is_writable).then(|| format!("{} is read-only", self.path.display()))
    }
}
