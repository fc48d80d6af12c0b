//! Access to the mailbox directory and the dropzone.
//!
//! ```text
//! {mailbox}/inbound|archive|.deadletter|outbound/{provider}/
//!           .state/mails.jsonl  .state/locks.json  .state/tmp/
//! {dropzone}/{64 hex digits}  .tmp/
//! ```
//!
//! Files are written under a temporary name and renamed, so that readers never see a
//! partial file. Symbolic links below the two roots are not followed: every directory is
//! opened relative to its parent and must be a directory.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use std::{fs, io::ErrorKind};

use monoco_core::time::Timestamp;
use monoco_fs::{FileOptions, TemporaryFile};
use monoco_mailbox::paths::{OUTBOUND_DIR, STATE_DIR};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

/// How many temporary names are tried before a write fails. Names are in use only when
/// the random prefix of another courier is the same.
const MAX_NAME_ATTEMPTS: usize = 1_000;

/// The roots of mailbox and dropzone.
#[derive(Debug)]
pub struct MailboxDir {
    mailbox: PathBuf,
    dropzone: PathBuf,
    /// Prefix of temporary names; random, so that leftovers of an earlier run can be told
    /// apart.
    mark: String,
    /// Makes temporary names unique within this process.
    writes: AtomicU64,
}

/// Directories opened for one operation, each once. Do not keep the value: the user may
/// move directories.
pub struct OpenDirs<'a> {
    tree: &'a MailboxDir,
    root: Dir,
    tmp: Arc<Dir>,
    provider_dirs: BTreeMap<(&'static str, String), Option<Arc<Dir>>>,
}

#[derive(Debug)]
pub struct Dir(OwnedFd);

/// Metadata of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    pub is_file: bool,
    pub mode: u32,
    pub len: u64,
    /// Modification time in milliseconds since 1970.
    pub modified_ms: i64,
    /// Device and inode number.
    pub node: (u64, u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// `None` when the name is not UTF-8; the courier creates no such names.
    pub name: Option<String>,
    /// Whether the file system reports a directory; `false` also when it reports no type.
    pub is_dir: bool,
}

impl MailboxDir {
    pub fn new(mailbox: PathBuf, dropzone: PathBuf) -> Self {
        // Without randomness all prefixes are equal, and leftovers are not removed.
        let mark = getrandom::u32().map_or_else(|_| String::new(), |n| format!("{n:08x}-"));
        Self { mailbox, dropzone, mark, writes: AtomicU64::new(0) }
    }

    pub fn mailbox(&self) -> &Path {
        &self.mailbox
    }

    /// Creates missing directories and removes temporary files of earlier runs.
    ///
    /// # Errors
    ///
    /// When a directory cannot be created, or is a symbolic link.
    pub fn create(&self) -> io::Result<()> {
        let root = make_root(&self.mailbox)?;
        for name in ["inbound", OUTBOUND_DIR, "archive", ".deadletter"] {
            root.make(name)?;
        }
        let tmp = root.make(STATE_DIR)?.make("tmp")?;
        let attachment = make_root(&self.dropzone)?.make(".tmp")?;
        for dir in [tmp, attachment] {
            let names = dir.names()?.into_iter().filter_map(|entry| entry.name);
            for name in names.filter(|name| !name.starts_with(&self.mark)) {
                dir.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Opens the root and the temporary directory, creating them if needed.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn open_dirs(&self) -> io::Result<OpenDirs<'_>> {
        let root = make_root(&self.mailbox)?;
        let tmp = Arc::new(root.make(STATE_DIR)?.make("tmp")?);
        Ok(OpenDirs { tree: self, root, tmp, provider_dirs: BTreeMap::new() })
    }

    /// Syncs the file systems of mailbox and dropzone.
    ///
    /// # Errors
    ///
    /// When a sync fails: which bytes are on disk is then unknown.
    pub fn sync(&self) -> io::Result<()> {
        let root = make_root(&self.mailbox)?;
        root.sync_all()?;
        let dropzone = make_root(&self.dropzone)?;
        if dropzone.device()? != root.device()? {
            dropzone.sync_all()?;
        }
        Ok(())
    }
}

impl OpenDirs<'_> {
    pub fn root(&self) -> &Dir {
        &self.root
    }

    /// Opens `.state`.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn state(&self) -> io::Result<Dir> {
        self.root.make(STATE_DIR)
    }

    /// Opens the directory of a provider. Returns `None` when it does not exist and `make`
    /// is `false`.
    ///
    /// # Errors
    ///
    /// When the directory cannot be opened, or is a symbolic link.
    pub fn provider_dir(
        &mut self,
        part: &'static str,
        provider: &str,
        make: bool,
    ) -> io::Result<Option<Arc<Dir>>> {
        let key = (part, provider.to_owned());
        if let Some(known) = self.provider_dirs.get(&key)
            && (known.is_some() || !make)
        {
            return Ok(known.clone());
        }
        let dir = if make {
            Some(self.root.make(part)?.make(provider)?)
        } else {
            match self.root.sub(part) {
                Ok(part) => found(part.sub(provider))?,
                Err(error) => found(Err(error))?,
            }
        };
        let dir = dir.map(Arc::new);
        self.provider_dirs.insert(key, dir.clone());
        Ok(dir)
    }

    /// Writes a file atomically, replacing an existing file.
    ///
    /// # Errors
    ///
    /// When the file cannot be written; the existing file is unchanged.
    pub fn put(&self, dir: &Dir, name: &str, bytes: &[u8], options: FileOptions) -> io::Result<()> {
        put(self.tree, &self.tmp, dir, name, bytes, options)
    }

    /// Creates a temporary file that the caller fills and renames to its final name.
    ///
    /// # Errors
    ///
    /// When the file cannot be created.
    pub fn create_temporary(&self) -> io::Result<TemporaryFile<Arc<Dir>>> {
        create_temporary(self.tree, &self.tmp, FileOptions::PRIVATE.mode)
    }

    /// Writes an attachment to the dropzone.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn drop(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let dropzone = make_root(&self.tree.dropzone)?;
        let tmp = Arc::new(dropzone.make(".tmp")?);
        put(self.tree, &tmp, &dropzone, name, bytes, FileOptions::READ_ONLY)
    }

    /// Reads an attachment of at most `most` bytes from the dropzone.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or is larger.
    pub fn attachment(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        make_root(&self.tree.dropzone)?.read(name, most)
    }
}

impl Dir {
    /// Opens one of the roots. The user may have replaced a root by a symbolic link.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    fn root(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// Opens a subdirectory.
    ///
    /// # Errors
    ///
    /// When it does not exist or is something else, such as a symbolic link.
    pub fn sub(&self, name: &str) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::openat(&self.0, name, flags, Mode::empty())?))
    }

    /// Opens a subdirectory; creates it with mode 0700 when it does not exist.
    ///
    /// # Errors
    ///
    /// When it cannot be created, or another kind of file has the name.
    pub fn make(&self, name: &str) -> io::Result<Self> {
        match self.sub(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                match rustix::fs::mkdirat(&self.0, name, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => self.sub(name),
                    Err(error) => Err(error.into()),
                }
            }
            other => other,
        }
    }

    /// Lists the entries, without `.` and `..`.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn names(&self) -> io::Result<Vec<DirEntry>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_str().ok();
            if name != Some(".") && name != Some("..") {
                let is_dir = entry.file_type() == FileType::Directory;
                names.push(DirEntry { name: name.map(str::to_owned), is_dir });
            }
        }
        Ok(names)
    }

    /// Reads the metadata of an entry; `None` when there is none.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn stat(&self, name: &str) -> io::Result<Option<FileStat>> {
        let stat = match rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(Some(file_stat(&stat)))
    }

    /// Reads a plain file of at most `most` bytes; `None` when there is no plain file of
    /// this name.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or is larger.
    pub fn read(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        // NONBLOCK: opening a named pipe would otherwise wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.0, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let stat = file_stat(&rustix::fs::fstat(&file)?);
        if !stat.is_file {
            return Ok(None);
        }
        if stat.len > most {
            return Err(io::Error::new(ErrorKind::FileTooLarge, format!("more than {most} bytes")));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(stat.len).unwrap_or(0));
        fs::File::from(file).take(most + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > most {
            return Err(io::Error::new(ErrorKind::FileTooLarge, format!("more than {most} bytes")));
        }
        Ok(Some(bytes))
    }

    /// Opens an existing plain file for appending.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn append(&self, name: &str) -> io::Result<fs::File> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(fs::File::from(rustix::fs::openat(&self.0, name, flags, Mode::empty())?))
    }

    /// Removes a file. Returns whether it existed.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn remove(&self, name: &str) -> io::Result<bool> {
        match rustix::fs::unlinkat(&self.0, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves a file to another directory, replacing an existing file.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn rename(&self, name: &str, to: &Self, new: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, name, &to.0, new)?)
    }

    /// Syncs one file of the directory.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn sync_file(&self, name: &str) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(rustix::fs::fsync(rustix::fs::openat(&self.0, name, flags, Mode::empty())?)?)
    }

    /// Syncs the names in the directory.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.0)?)
    }

    fn sync_all(&self) -> io::Result<()> {
        monoco_fs::sync_file_system(&self.0)
    }

    fn device(&self) -> io::Result<u64> {
        Ok(file_stat(&rustix::fs::fstat(&self.0)?).node.0)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Maps 'not found' to `None`.
pub fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn make_root(path: &Path) -> io::Result<Dir> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    Dir::root(path)
}

fn file_stat(stat: &rustix::fs::Stat) -> FileStat {
    // The widths of these fields differ between platforms.
    let signed = |number: i128| i64::try_from(number).unwrap_or(i64::MAX);
    let unsigned = |number: i128| u64::try_from(number).unwrap_or(0);
    let seconds = signed(i128::from(stat.st_mtime));
    let nanoseconds = signed(i128::from(stat.st_mtime_nsec));
    FileStat {
        is_file: FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
        mode: u32::try_from(i128::from(stat.st_mode)).unwrap_or(0) & 0o7777,
        len: unsigned(i128::from(stat.st_size)),
        modified_ms: seconds.saturating_mul(1000).saturating_add(nanoseconds / 1_000_000),
        node: (unsigned(i128::from(stat.st_dev)), unsigned(i128::from(stat.st_ino))),
    }
}

fn create_temporary(
    tree: &MailboxDir,
    tmp: &Arc<Dir>,
    mode: u32,
) -> io::Result<TemporaryFile<Arc<Dir>>> {
    for _ in 0..MAX_NAME_ATTEMPTS {
        let name = format!("{}{}", tree.mark, tree.writes.fetch_add(1, Ordering::Relaxed));
        match TemporaryFile::create(Arc::clone(tmp), Path::new(&name), mode) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => return created,
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

fn put(
    tree: &MailboxDir,
    tmp: &Arc<Dir>,
    dir: &Dir,
    name: &str,
    bytes: &[u8],
    options: FileOptions,
) -> io::Result<()> {
    let mut file = create_temporary(tree, tmp, options.mode)?;
    file.write(bytes, options)?;
    file.rename(dir, Path::new(name))
}

/// The modification time of a file that stands for `at`.
pub fn file_time(at: Timestamp) -> SystemTime {
    let distance = Duration::from_millis(at.ms().unsigned_abs());
    if at.ms() < 0 { SystemTime::UNIX_EPOCH - distance } else { SystemTime::UNIX_EPOCH + distance }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn tree() -> (tempfile::TempDir, MailboxDir) {
        let dir = tempfile::tempdir().unwrap();
        let tree = MailboxDir::new(dir.path().join("mailbox"), dir.path().join("dropzone"));
        tree.create().unwrap();
        (dir, tree)
    }

    #[test]
    fn file_is_replaced_atomically_and_private() {
        let (_dir, tree) = tree();
        let mut dirs = tree.open_dirs().unwrap();
        assert_eq!(dirs.provider_dir("inbound", "lark", false).unwrap().map(|_| ()), None);
        let subdir = dirs.provider_dir("inbound", "lark", true).unwrap().unwrap();
        let at = Timestamp::from_ms(1_770_410_700_123);
        let options = FileOptions { modified: Some(file_time(at)), ..FileOptions::READ_ONLY };
        dirs.put(&subdir, "a.md", b"one", options).unwrap();
        let first = subdir.stat("a.md").unwrap().unwrap();
        assert_eq!((first.is_file, first.mode, first.len), (true, 0o400, 3));
        assert_eq!(first.modified_ms, at.ms());
        dirs.put(&subdir, "a.md", b"two!", options).unwrap();
        assert_eq!(subdir.read("a.md", 4).unwrap().as_deref(), Some(&b"two!"[..]));
        assert!(subdir.read("a.md", 3).is_err(), "too large");
        assert_ne!(subdir.stat("a.md").unwrap().unwrap().node, first.node, "another file");
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(tree.mailbox().join("inbound/lark")), 0o700);
        assert_eq!(mode(tree.mailbox().join(".state/tmp")), 0o700);
        tree.sync().unwrap();
    }

    #[test]
    fn temporary_files_of_a_crash_are_removed() {
        let (_dir, tree) = tree();
        let left = [tree.mailbox.join(".state/tmp/7"), tree.dropzone.join(".tmp/8")];
        for path in &left {
            fs::write(path, "half").unwrap();
        }
        tree.create().unwrap();
        assert!(left.iter().all(|path| !path.exists()));
    }

    #[test]
    fn symbolic_links_are_not_followed() {
        let (dir, tree) = tree();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), "secret").unwrap();
        symlink(&outside, tree.mailbox().join("inbound/lark")).unwrap();
        let mut dirs = tree.open_dirs().unwrap();
        assert!(dirs.provider_dir("inbound", "lark", true).is_err());

        let subdir = dirs.provider_dir("inbound", "slack", true).unwrap().unwrap();
        let planted = tree.mailbox().join("inbound/slack/a.md");
        symlink(outside.join("secret"), &planted).unwrap();
        assert_eq!(subdir.read("a.md", 100).unwrap(), None);
        assert!(!subdir.stat("a.md").unwrap().unwrap().is_file);
        dirs.put(&subdir, "a.md", b"mine", FileOptions::READ_ONLY).unwrap();
        assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "secret");
        assert_eq!(fs::read_to_string(planted).unwrap(), "mine");

        fs::remove_dir_all(tree.mailbox().join(".state/tmp")).unwrap();
        symlink(&outside, tree.mailbox().join(".state/tmp")).unwrap();
        assert!(tree.create().is_err());
        assert!(outside.join("secret").exists(), "nothing of others is swept");
    }

    #[test]
    fn named_pipe_does_not_block_a_read() {
        let (_dir, tree) = tree();
        let dirs = tree.open_dirs().unwrap();
        let pipe = tree.mailbox().join("inbound/pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(dirs.root().sub("inbound").unwrap().read("pipe", 10).unwrap(), None);
    }
}
