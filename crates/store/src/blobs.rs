//! Large bodies and attachments, as files named by their hash.
//!
//! A file is complete and on disk, and so is the directory entry that names it,
//! before anything refers to it. A rename that is not followed by a sync of its
//! directory is undone by a power cut, and the reference would outlive the bytes.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use monoco_core::object::ObjId;
use monoco_fs::{FileOptions, WriteError, sync_dir};

#[derive(Debug)]
pub(crate) struct BlobStore {
    root: PathBuf,
    /// Keeps two writers of the same bytes from sharing a temporary name.
    writes: AtomicU64,
}

impl BlobStore {
    /// Opens the directory, and sweeps out what a crash left half-written.
    pub(crate) fn open(root: PathBuf) -> Result<Self, WriteError> {
        create_dir(&root)?;
        let incoming = root.join("tmp");
        create_dir(&incoming)?;
        for entry in fs::read_dir(&incoming).map_err(WriteError::Write)? {
            let left_over = entry.and_then(|entry| fs::remove_file(entry.path()));
            left_over.map_err(WriteError::Write)?;
        }
        Ok(Self { root, writes: AtomicU64::new(0) })
    }

    /// Keeps `bytes` under the name `id`. Returns once they are on disk.
    pub(crate) fn put(&self, id: &ObjId, bytes: &[u8]) -> Result<(), WriteError> {
        let path = self.path(id);
        let dir = path.parent().expect("a blob's path has a directory");
        if path.try_exists().map_err(WriteError::Write)? {
            // Whoever wrote it may not have come to the sync yet.
            let file = File::open(&path).map_err(WriteError::Write)?;
            file.sync_all().map_err(WriteError::Sync)?;
            return sync_dir(dir).map_err(WriteError::Sync);
        }
        create_dir(dir)?;
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        let temporary = self.root.join("tmp").join(format!("{number}"));
        monoco_fs::write_via(&temporary, &path, bytes, FileOptions::PRIVATE_SYNCED)
    }

    /// The bytes named `id`, unchecked. `None` when there are none.
    pub(crate) fn get(&self, id: &ObjId) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.path(id)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn path(&self, id: &ObjId) -> PathBuf {
        let name = id.to_string();
        let hex = name.rsplit(':').next().unwrap_or(&name);
        let (shelf, _) = hex.split_at(2);
        self.root.join(shelf).join(hex)
    }
}

/// Creates a directory that survives a power cut.
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
    fn bytes_come_back_and_leftovers_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("deep/er");
        let blobs = BlobStore::open(root.clone()).unwrap();
        let id = ObjId::of(ObjKind::Bytes, b"hello");
        assert_eq!(blobs.get(&id).unwrap(), None);
        blobs.put(&id, b"hello").unwrap();
        blobs.put(&id, b"hello").unwrap();
        assert_eq!(blobs.get(&id).unwrap().as_deref(), Some(&b"hello"[..]));

        fs::write(root.join("tmp/left-over"), "half").unwrap();
        BlobStore::open(root.clone()).unwrap();
        assert_eq!(fs::read_dir(root.join("tmp")).unwrap().count(), 0);
    }
}
