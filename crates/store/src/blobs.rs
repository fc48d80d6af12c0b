//! Large bodies and attachments, stored as files named by their hash.
//!
//! The file and its directory entry are synced before a row refers to the file. A power cut
//! undoes a rename whose directory was not synced, and the row would refer to a missing file.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use monoco_core::object::ObjId;
use monoco_fs::{FileOptions, WriteError, sync_dir};

#[derive(Debug)]
pub(crate) struct BlobFiles {
    root: PathBuf,
    /// Number of the next temporary file, so that two writers never share one.
    next_temporary: AtomicU64,
}

impl BlobFiles {
    /// Opens the directory and deletes temporary files that a crash left.
    pub(crate) fn open(root: PathBuf) -> Result<Self, WriteError> {
        create_dir(&root)?;
        let temporary = root.join("tmp");
        create_dir(&temporary)?;
        for entry in fs::read_dir(&temporary).map_err(WriteError::Write)? {
            let removed = entry.and_then(|entry| fs::remove_file(entry.path()));
            removed.map_err(WriteError::Write)?;
        }
        Ok(Self { root, next_temporary: AtomicU64::new(0) })
    }

    /// Stores `bytes` under the name `id`. Returns after the sync.
    pub(crate) fn put(&self, id: &ObjId, bytes: &[u8]) -> Result<(), WriteError> {
        let path = self.path(id);
        let dir = path.parent().expect("a blob's path has a directory");
        // A damaged file has another size or other bytes, and is replaced.
        if fs::read(&path).is_ok_and(|there| there == bytes) {
            // Another caller may have written it and not synced it yet.
            let file = File::open(&path).map_err(WriteError::Write)?;
            file.sync_all().map_err(WriteError::Sync)?;
            return sync_dir(dir).map_err(WriteError::Sync);
        }
        create_dir(dir)?;
        let number = self.next_temporary.fetch_add(1, Ordering::Relaxed);
        let temporary = self.root.join("tmp").join(format!("{number}"));
        monoco_fs::write_via(&temporary, &path, bytes, FileOptions::PRIVATE_SYNCED)
    }

    /// Reads the bytes named `id`, without checking them. `None` when there is no such file.
    pub(crate) fn get(&self, id: &ObjId) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.path(id)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn path(&self, id: &ObjId) -> PathBuf {
        self.root.join(relative_path(id))
    }

    /// Whether there is a file named `id` with this size.
    pub(crate) fn has(&self, id: &ObjId, bytes: u64) -> bool {
        fs::metadata(self.path(id)).is_ok_and(|found| found.is_file() && found.len() == bytes)
    }
}

/// The path of the file named `id` below the directory of blobs.
pub(crate) fn relative_path(id: &ObjId) -> PathBuf {
    let name = id.to_string();
    let hex = name.rsplit(':').next().unwrap_or(&name);
    let (dir, _) = hex.split_at(2);
    Path::new(dir).join(hex)
}

/// Creates a directory and its parents, and syncs them.
pub(crate) fn create_dir(path: &Path) -> Result<(), WriteError> {
    match fs::create_dir(path) {
        Ok(()) => path.parent().map_or(Ok(()), sync_dir).map_err(WriteError::Sync),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = path.parent().ok_or(WriteError::Write(error))?;
            create_dir(parent)?;
            create_dir(path)
        }
        Err(error) => Err(WriteError::Write(error)),
    }
}

#[cfg(test)]
mod tests {
    use monoco_core::object::ObjKind;

    use super::*;

    #[test]
    fn bytes_are_read_back_and_temporary_files_are_deleted_at_open() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("deep/er");
        let blobs = BlobFiles::open(root.clone()).unwrap();
        let id = ObjId::of(ObjKind::Bytes, b"hello");
        assert_eq!(blobs.get(&id).unwrap(), None);
        blobs.put(&id, b"hello").unwrap();
        blobs.put(&id, b"hello").unwrap();
        assert_eq!(blobs.get(&id).unwrap().as_deref(), Some(&b"hello"[..]));

        fs::write(root.join("tmp/left-over"), "half").unwrap();
        BlobFiles::open(root.clone()).unwrap();
        assert_eq!(fs::read_dir(root.join("tmp")).unwrap().count(), 0);
    }
}
