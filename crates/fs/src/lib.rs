//! Atomic file writes: a file appears complete or not at all.
//!
//! The bytes are written under a temporary name, optionally synced to disk, and renamed
//! to their final name. A rename survives a power cut only after the directory has been
//! synced, so a synced write syncs the directory of the new name as well.
//!
//! [`write()`] and [`write_via`] take paths. [`Dir`] and [`TemporaryFile`] take open
//! directories, for callers that must not follow symbolic links in the directories above
//! the file.

use std::fs::{File, FileTimes};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};

mod dir;

pub use dir::{Dir, DirEntry, FileStat, found, read_plain_file};

/// Mode, time and durability of a file to write.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    pub mode: u32,
    /// Modification time to set; the current time when `None`.
    pub modified: Option<SystemTime>,
    /// Whether the bytes are synced before the rename.
    pub synced: bool,
}

impl FileOptions {
    /// A private file (mode 0600) that is not synced.
    pub const PRIVATE: Self = Self { mode: 0o600, modified: None, synced: false };
    /// A private file (mode 0600) that survives a power cut.
    pub const PRIVATE_SYNCED: Self = Self { synced: true, ..Self::PRIVATE };
    /// A private file that is not meant to be edited (mode 0400) and is not synced.
    pub const READ_ONLY: Self = Self { mode: 0o400, ..Self::PRIVATE };
}

/// Error of an atomic write.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file was not written, and the previous file is unchanged. A retry may succeed.
    #[error(transparent)]
    Write(io::Error),
    /// A sync failed. Which bytes are on disk is unknown.
    #[error("sync failed: {0}")]
    Sync(io::Error),
}

impl From<WriteError> for io::Error {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Write(error) | WriteError::Sync(error) => error,
        }
    }
}

/// Whether the user may write to `path` and its file system is writable. Opens nothing.
pub fn is_writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

/// A file under a temporary name. Dropping it before [`Self::rename`] removes the file.
#[derive(Debug)]
pub struct TemporaryFile<D: AsFd> {
    dir: D,
    name: PathBuf,
    file: File,
    renamed: bool,
}

impl<D: AsFd> TemporaryFile<D> {
    /// Creates the file `name` in `dir`. Does not follow a symbolic link at `name`.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::AlreadyExists`] when the name is in use.
    pub fn create(dir: D, name: &Path, mode: u32) -> io::Result<Self> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&dir, name, flags, Mode::from_raw_mode(mode))?;
        Ok(Self { dir, name: name.to_owned(), file: File::from(file), renamed: false })
    }

    /// Writes `bytes`, then sets the modification time and syncs as `options` say.
    ///
    /// # Errors
    ///
    /// When the bytes cannot be written or synced.
    pub fn write(&mut self, bytes: &[u8], options: FileOptions) -> Result<(), WriteError> {
        self.file.write_all(bytes).map_err(WriteError::Write)?;
        if let Some(modified) = options.modified {
            let times = FileTimes::new().set_accessed(modified).set_modified(modified);
            self.file.set_times(times).map_err(WriteError::Write)?;
        }
        if options.synced { self.file.sync_all().map_err(WriteError::Sync) } else { Ok(()) }
    }

    /// Renames the file to `name` in `dir`, replacing an existing file.
    ///
    /// # Errors
    ///
    /// When the rename fails; the temporary file is removed.
    pub fn rename(mut self, dir: impl AsFd, name: &Path) -> io::Result<()> {
        rustix::fs::renameat(&self.dir, &self.name, dir, name)?;
        self.renamed = true;
        Ok(())
    }
}

impl<D: AsFd> Write for TemporaryFile<D> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl<D: AsFd> Drop for TemporaryFile<D> {
    fn drop(&mut self) {
        if !self.renamed {
            // Best effort: callers also remove leftovers of a crash.
            let _ = rustix::fs::unlinkat(&self.dir, &self.name, AtFlags::empty());
        }
    }
}

/// Writes the file at `path` atomically. The temporary name is `.{name}.tmp` in the same
/// directory; a leftover of that name is removed first. At most one process at a time may
/// write the same path.
///
/// # Errors
///
/// When the file cannot be written or synced.
pub fn write(path: &Path, bytes: &[u8], options: FileOptions) -> Result<(), WriteError> {
    write_in(CWD, path, bytes, options)
}

fn write_in(
    dir: impl AsFd,
    path: &Path,
    bytes: &[u8],
    options: FileOptions,
) -> Result<(), WriteError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.tmp"));
    let _ = rustix::fs::unlinkat(&dir, &temporary, AtFlags::empty());
    replace(dir, &temporary, path, bytes, options)
}

/// Writes the file at `path` atomically, using a temporary path on the same file system
/// that no other writer uses.
///
/// # Errors
///
/// When the file cannot be written or synced.
pub fn write_via(
    temporary: &Path,
    path: &Path,
    bytes: &[u8],
    options: FileOptions,
) -> Result<(), WriteError> {
    replace(CWD, temporary, path, bytes, options)
}

fn replace(
    dir: impl AsFd,
    temporary: &Path,
    path: &Path,
    bytes: &[u8],
    options: FileOptions,
) -> Result<(), WriteError> {
    let mut file =
        TemporaryFile::create(&dir, temporary, options.mode).map_err(WriteError::Write)?;
    file.write(bytes, options)?;
    file.rename(&dir, path).map_err(WriteError::Write)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    if options.synced { sync_dir_in(dir, parent).map_err(WriteError::Sync) } else { Ok(()) }
}

/// Syncs the names in a directory to disk.
///
/// # Errors
///
/// When the directory cannot be opened or synced.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    sync_dir_in(CWD, if dir.as_os_str().is_empty() { Path::new(".") } else { dir })
}

fn sync_dir_in(dir: impl AsFd, path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::fsync(rustix::fs::openat(dir, path, flags, Mode::empty())?)?)
}

/// Syncs the whole file system that contains `dir`, which costs less than syncing many
/// files one by one.
///
/// # Errors
///
/// When the file system cannot be synced.
pub fn sync_file_system(dir: impl AsFd) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    rustix::fs::syncfs(dir)?;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    {
        let _ = dir;
        rustix::fs::sync();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::Duration;

    use super::*;

    #[test]
    fn written_file_has_the_requested_mode_and_time_and_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.md");
        let modified = SystemTime::UNIX_EPOCH + Duration::from_millis(1_770_410_700_123);
        let options = FileOptions { modified: Some(modified), ..FileOptions::READ_ONLY };
        for bytes in [&b"one"[..], b"two!"] {
            write(&path, bytes, options).unwrap();
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o400);
        assert_eq!(metadata.modified().unwrap(), modified);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn leftover_temporary_file_or_link_is_replaced_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("a"), dir.path().join("other"));
        fs::write(&other, "untouched").unwrap();
        symlink(&other, dir.path().join(".a.tmp")).unwrap();
        write(&path, b"new", FileOptions::PRIVATE_SYNCED).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read(&other).unwrap(), b"untouched");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn failed_write_keeps_the_previous_file_and_removes_the_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("taken");
        fs::create_dir(&path).unwrap();
        assert!(matches!(write(&path, b"x", FileOptions::PRIVATE), Err(WriteError::Write(_))));
        assert!(path.is_dir());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let used = dir.path().join("used");
        fs::write(&used, "of another writer").unwrap();
        let error = write_via(&used, &dir.path().join("b"), b"x", FileOptions::PRIVATE);
        assert!(matches!(error, Err(WriteError::Write(_))));
        assert_eq!(fs::read(&used).unwrap(), b"of another writer");
    }
}
