//! Large bodies and attachments, stored as files named by their hash, whole or in parts.
//!
//! The file and its directory entry are synced before a row refers to the file. A power cut
//! undoes a rename whose directory was not synced, and the row would refer to a missing file.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use monoco_core::hex;
use monoco_core::inbound::StoredBytes;
use monoco_core::object::{BytesHasher, ObjId, ObjKind};
use monoco_fs::{FileOptions, TemporaryFile, WriteError, sync_dir, sync_file_system};
use tokio::io::{AsyncRead, ReadBuf};

use crate::RemoteObjects;

/// From this number of files on, one sync of the file system costs less than a sync of each file
/// and of its directory.
const MIN_FILES_FOR_ONE_SYNC: usize = 8;

/// Whether a sync of the whole file system waits for the disk and reports errors. It does on
/// Linux; POSIX promises neither.
const CAN_SYNC_FILE_SYSTEM: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// Bytes of a body that are in memory while it is copied.
const MAX_PART_BYTES: usize = 256 << 10;

/// Where large bodies and attachments are stored, by their hash. Methods block.
pub(crate) trait BlobStorage: std::fmt::Debug + Send + Sync {
    /// Stores `bytes` under the name `id`. Returns after the sync.
    fn put(&self, id: &ObjId, bytes: &[u8]) -> Result<(), WriteError>;

    /// Stores several bodies under their names. Returns after the sync.
    fn put_all(&self, blobs: &[(ObjId, Vec<u8>)]) -> Result<Vec<StoredBytes>, WriteError>;

    /// Starts a body whose name is known when all bytes have been written.
    fn start(&self) -> Result<BlobWriter, WriteError>;

    /// Stores a body under its name. Returns after the sync.
    fn finish(&self, writer: BlobWriter) -> Result<StoredBytes, WriteError>;

    /// Opens the body named `id`. `None` when there is no such body.
    fn open_file(&self, id: &ObjId) -> io::Result<Option<BlobReader>>;

    /// Reads the bytes named `id`, without checking them. `None` when there is no such body.
    fn get(&self, id: &ObjId) -> io::Result<Option<Vec<u8>>>;

    /// Appends the bytes named `id` to `to`, without checking them. Returns whether there is such
    /// a body.
    fn copy_to(&self, id: &ObjId, to: &mut BlobWriter) -> io::Result<bool>;

    /// Lists the bodies of more than `min` bytes whose names start with this byte.
    fn list(&self, first_byte: u8, min: u64) -> io::Result<Vec<ObjId>>;

    /// Reads the body named `id`, if it can be a JSON object.
    fn json(&self, id: &ObjId) -> io::Result<Option<String>>;

    /// Deletes the body named `id`, if there is one. Returns after the sync. In a database the body
    /// stays when it has a row in `blobs`: another courier has stored it again.
    fn remove(&self, id: &ObjId) -> Result<(), WriteError>;

    /// Whether the body named `id` was last stored at least `min_age` ago, or does not exist.
    fn is_old(&self, id: &ObjId, min_age: Duration) -> io::Result<bool>;

    /// Deletes the body named `id` if [`Self::is_old`]. Returns its size when it stays, because it
    /// was stored again.
    fn remove_old(&self, id: &ObjId, min_age: Duration) -> Result<Option<u64>, WriteError>;

    /// Locks the bodies for deletions of old ones. `None` while a backup copies them.
    fn try_lock_deletions(&self) -> io::Result<Option<DeletionLock>>;

    /// Whether there is a body named `id` with this size. Bytes in a remote place are not asked
    /// for: there can be too many of them.
    fn has(&self, id: &ObjId, bytes: u64) -> bool;

    /// Like [`Self::has`], and asks the remote place.
    fn is_stored(&self, id: &ObjId, bytes: u64) -> io::Result<bool> {
        Ok(self.has(id, bytes))
    }

    /// The remote place of the bytes, when they are neither in files nor in the database.
    fn remote(&self) -> Option<&dyn RemoteObjects> {
        None
    }
}

/// Held while old bodies are deleted. A database needs no lock: its backups read a snapshot.
#[derive(Debug)]
pub(crate) struct DeletionLock(#[expect(dead_code, reason = "unlocks when dropped")] Option<File>);

impl DeletionLock {
    pub(crate) const NONE: Self = Self(None);
}

#[derive(Debug)]
pub(crate) struct BlobFiles {
    root: PathBuf,
    /// Number of the next temporary file, so that two writers never share one.
    next_temporary: AtomicU64,
    /// Locked while a file gets its name or a new time, and while an old file is deleted.
    changing: Mutex<()>,
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
        Ok(Self { root, next_temporary: AtomicU64::new(0), changing: Mutex::new(()) })
    }

    /// Writes a file, unless it has these bytes. It may be lost until the next sync.
    fn put_unsynced(&self, id: &ObjId, bytes: &[u8]) -> Result<(), WriteError> {
        let path = self.path(id);
        self.touch(&path)?;
        if fs::read(&path).is_ok_and(|there| there == bytes) {
            return Ok(());
        }
        let dir = path.parent().expect("a blob's path has a directory");
        match fs::create_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(WriteError::Write(error));
            }
            _ => {}
        }
        let temporary = self.temporary_dir().join(self.temporary_name());
        monoco_fs::write_via(&temporary, &path, bytes, FileOptions::PRIVATE)
    }

    fn temporary_dir(&self) -> PathBuf {
        self.root.join("tmp")
    }

    fn temporary_name(&self) -> String {
        self.next_temporary.fetch_add(1, Ordering::Relaxed).to_string()
    }

    /// Makes a file new again, if there is one, so that it is not deleted.
    #[expect(clippy::disallowed_methods, reason = "the file system sets times by this clock")]
    fn touch(&self, path: &Path) -> Result<(), WriteError> {
        let _lock = self.lock();
        match File::open(path).and_then(|file| file.set_modified(SystemTime::now())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(WriteError::Write(error)),
            _ => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn path(&self, id: &ObjId) -> PathBuf {
        self.root.join(relative_path(id))
    }
}

impl BlobStorage for BlobFiles {
    fn put(&self, id: &ObjId, bytes: &[u8]) -> Result<(), WriteError> {
        let path = self.path(id);
        let dir = path.parent().expect("a blob's path has a directory");
        self.touch(&path)?;
        // A damaged file has another size or other bytes, and is replaced.
        if fs::read(&path).is_ok_and(|there| there == bytes) {
            // Another caller may have written it and not synced it yet.
            let file = File::open(&path).map_err(WriteError::Write)?;
            file.sync_all().map_err(WriteError::Sync)?;
            return sync_dir(dir).map_err(WriteError::Sync);
        }
        create_dir(dir)?;
        let temporary = self.temporary_dir().join(self.temporary_name());
        monoco_fs::write_via(&temporary, &path, bytes, FileOptions::PRIVATE_SYNCED)
    }

    fn put_all(&self, blobs: &[(ObjId, Vec<u8>)]) -> Result<Vec<StoredBytes>, WriteError> {
        if blobs.len() < MIN_FILES_FOR_ONE_SYNC || !CAN_SYNC_FILE_SYSTEM {
            blobs.iter().try_for_each(|(id, bytes)| self.put(id, bytes))?;
        } else {
            // Opened before the first write: the sync reports errors since then.
            let root = File::open(&self.root).map_err(WriteError::Write)?;
            // A power cut can leave a file of the right name with other bytes. No row refers to
            // it before the sync, and the next write of this name replaces it.
            blobs.iter().try_for_each(|(id, bytes)| self.put_unsynced(id, bytes))?;
            sync_file_system(root).map_err(WriteError::Sync)?;
        }
        let stored =
            |(id, bytes): &(ObjId, Vec<u8>)| StoredBytes { hash: *id, size: bytes.len() as u64 };
        Ok(blobs.iter().map(stored).collect())
    }

    fn start(&self) -> Result<BlobWriter, WriteError> {
        let dir = File::open(self.temporary_dir()).map_err(WriteError::Write)?;
        let mode = FileOptions::PRIVATE_SYNCED.mode;
        let name = self.temporary_name();
        let file = TemporaryFile::create(dir, Path::new(&name), mode).map_err(WriteError::Write)?;
        let path = self.temporary_dir().join(name);
        Ok(BlobWriter { file, path, hasher: BytesHasher::default(), size: 0 })
    }

    fn finish(&self, writer: BlobWriter) -> Result<StoredBytes, WriteError> {
        let StoredBytes { hash, size } = writer.stored();
        let BlobWriter { mut file, .. } = writer;
        file.write(&[], FileOptions::PRIVATE_SYNCED)?;
        let path = self.path(&hash);
        let dir = path.parent().expect("a blob's path has a directory");
        create_dir(dir)?;
        // A file of the same name has the same bytes, or is damaged.
        let target = File::open(dir).map_err(WriteError::Write)?;
        let name = path.file_name().expect("a blob's path has a name");
        let lock = self.lock();
        file.rename(&target, Path::new(name)).map_err(WriteError::Write)?;
        drop(lock);
        target.sync_all().map_err(WriteError::Sync)?;
        Ok(StoredBytes { hash, size })
    }

    fn open_file(&self, id: &ObjId) -> io::Result<Option<BlobReader>> {
        match BlobReader::open(&self.path(id), *id) {
            Ok(reader) => Ok(Some(reader)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn get(&self, id: &ObjId) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.path(id)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn copy_to(&self, id: &ObjId, to: &mut BlobWriter) -> io::Result<bool> {
        let mut file = match File::open(self.path(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        let mut part = vec![0; MAX_PART_BYTES];
        loop {
            match file.read(&mut part)? {
                0 => return Ok(true),
                read => to.append(&part[..read]).map_err(into_io)?,
            }
        }
    }

    fn list(&self, first_byte: u8, min: u64) -> io::Result<Vec<ObjId>> {
        let entries = match fs::read_dir(self.root.join(hex::encode(&[first_byte]))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            let hash = entry.file_name().to_str().and_then(hex::decode);
            if let Some(hash) = hash
                && entry.metadata()?.len() > min
            {
                found.push(ObjId::from_parts(ObjKind::Bytes, hash));
            }
        }
        Ok(found)
    }

    fn json(&self, id: &ObjId) -> io::Result<Option<String>> {
        let mut file = match File::open(self.path(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut bytes = vec![0];
        if file.read(&mut bytes)? == 0 || bytes != b"{" {
            return Ok(None);
        }
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8(bytes).ok())
    }

    fn remove(&self, id: &ObjId) -> Result<(), WriteError> {
        let path = self.path(id);
        match fs::remove_file(&path) {
            Ok(()) => path.parent().map_or(Ok(()), sync_dir).map_err(WriteError::Sync),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(WriteError::Write(error)),
        }
    }

    fn is_old(&self, id: &ObjId, min_age: Duration) -> io::Result<bool> {
        match fs::metadata(self.path(id)) {
            // A time in the future is that of another clock.
            Ok(file) => Ok(file.modified()?.elapsed().is_ok_and(|age| age >= min_age)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn remove_old(&self, id: &ObjId, min_age: Duration) -> Result<Option<u64>, WriteError> {
        let _lock = self.lock();
        if self.is_old(id, min_age).map_err(WriteError::Write)? {
            return self.remove(id).map(|()| None);
        }
        fs::metadata(self.path(id)).map(|file| Some(file.len())).map_err(WriteError::Write)
    }

    fn try_lock_deletions(&self) -> io::Result<Option<DeletionLock>> {
        let dir = File::open(&self.root)?;
        match dir.try_lock() {
            Ok(()) => Ok(Some(DeletionLock(Some(dir)))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn has(&self, id: &ObjId, bytes: u64) -> bool {
        fs::metadata(self.path(id)).is_ok_and(|found| found.is_file() && found.len() == bytes)
    }
}

/// A file that is being written. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct BlobWriter {
    file: TemporaryFile<File>,
    path: PathBuf,
    hasher: BytesHasher,
    size: u64,
}

impl BlobWriter {
    /// Where the file is until the writer is dropped.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Hash and size of what was written.
    pub(crate) fn stored(&self) -> StoredBytes {
        StoredBytes { hash: self.hasher.clone().finish(), size: self.size }
    }

    /// Writes the next part of the bytes.
    pub(crate) fn append(&mut self, part: &[u8]) -> Result<(), WriteError> {
        self.file.write_all(part).map_err(WriteError::Write)?;
        self.hasher.update(part);
        self.size += part.len() as u64;
        Ok(())
    }
}

/// Reads the bytes of an attachment in parts. The last part is returned only when the hash of all
/// bytes is right; otherwise reading fails with [`io::ErrorKind::InvalidData`].
#[derive(Debug)]
pub struct BlobReader {
    file: tokio::fs::File,
    id: ObjId,
    size: u64,
    /// Bytes that are not read yet.
    left: u64,
    hasher: BytesHasher,
}

impl BlobReader {
    /// Opens a file whose bytes must be those of `id`. It can be removed while it is read.
    pub(crate) fn open(path: &Path, id: ObjId) -> io::Result<Self> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let (file, hasher) = (tokio::fs::File::from_std(file), BytesHasher::default());
        Ok(Self { file, id, size, left: size, hasher })
    }

    /// The number of all bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Checks the bytes that were read, up to the last one.
    fn check(&mut self) -> io::Result<()> {
        if self.left == 0 && std::mem::take(&mut self.hasher).finish() == self.id {
            return Ok(());
        }
        let detail = format!("stored object is damaged: {} has another hash", self.id);
        Err(io::Error::new(io::ErrorKind::InvalidData, detail))
    }
}

impl AsyncRead for BlobReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 && self.size > 0 || buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.file).poll_read(cx, buf))?;
        let part = &buf.filled()[before..];
        let read = part.len() as u64;
        self.hasher.update(part);
        self.left = self.left.saturating_sub(read);
        // At the end, also of a file that was cut since it was opened.
        if self.left == 0 || read == 0 {
            let checked = self.check();
            if checked.is_err() {
                buf.set_filled(before);
            }
            return Poll::Ready(checked);
        }
        Poll::Ready(Ok(()))
    }
}

/// Waits until no old files are deleted, and prevents deletions until the result is dropped.
pub(crate) fn lock_for_copy(root: &Path) -> io::Result<Option<File>> {
    match File::open(root) {
        Ok(dir) => dir.lock_shared().map(|()| Some(dir)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The path of the file named `id` below the directory of blobs.
pub(crate) fn relative_path(id: &ObjId) -> PathBuf {
    let name = id.to_string();
    let hex = name.rsplit(':').next().unwrap_or(&name);
    let (dir, _) = hex.split_at(2);
    Path::new(dir).join(hex)
}

pub(crate) fn into_io(error: WriteError) -> io::Error {
    match error {
        WriteError::Write(error) | WriteError::Sync(error) => error,
    }
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

        let mut writer = blobs.start().unwrap();
        writer.append(b"hel").unwrap();
        assert_eq!(fs::read_dir(root.join("tmp")).unwrap().count(), 1);
        drop(writer);
        assert_eq!(fs::read_dir(root.join("tmp")).unwrap().count(), 0);

        let many: Vec<_> = (0..2 * MIN_FILES_FOR_ONE_SYNC)
            .map(|n| format!("file {n}").into_bytes())
            .map(|bytes| (ObjId::of(ObjKind::Bytes, &bytes), bytes))
            .collect();
        // What a power cut left under the name of a file is replaced.
        let (torn, _) = &many[3];
        create_dir(blobs.path(torn).parent().unwrap()).unwrap();
        fs::write(blobs.path(torn), "").unwrap();
        for some in [&many[..3], &many] {
            let stored = blobs.put_all(some).unwrap();
            assert_eq!(stored.len(), some.len());
            for ((id, bytes), stored) in some.iter().zip(stored) {
                assert_eq!(stored, StoredBytes { hash: *id, size: bytes.len() as u64 });
                assert_eq!(blobs.get(id).unwrap().as_ref(), Some(bytes));
            }
        }
        assert_eq!(fs::read_dir(root.join("tmp")).unwrap().count(), 0);

        fs::write(root.join("tmp/left-over"), "half").unwrap();
        BlobFiles::open(root.clone()).unwrap();
        assert_eq!(fs::read_dir(root.join("tmp")).unwrap().count(), 0);
    }

    /// A purge may be about to delete the old file of a purged mail.
    #[test]
    fn old_files_that_are_stored_again_are_not_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = BlobFiles::open(dir.path().join("blobs")).unwrap();
        let bytes = |count: usize| (0..count).map(|n| format!("file {n}").into_bytes());
        let named = |bytes: Vec<u8>| (ObjId::of(ObjKind::Bytes, &bytes), bytes);
        let hour = Duration::from_secs(3_600);
        for count in [1, MIN_FILES_FOR_ONE_SYNC] {
            let files: Vec<_> = bytes(count).map(named).collect();
            blobs.put_all(&files).unwrap();
            for (id, _) in &files {
                let file = File::open(blobs.path(id)).unwrap();
                file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
                assert!(blobs.is_old(id, hour).unwrap());
            }
            blobs.put_all(&files).unwrap();
            for (id, bytes) in &files {
                let size = bytes.len() as u64;
                assert_eq!(blobs.remove_old(id, hour).unwrap(), Some(size), "{count} files");
            }
        }
    }
}
