//! The mailbox's directories, and how a file comes into them: whole, or not at all.
//!
//! ```text
//! {mailbox}/inbound|archive|.deadletter|outbound/{provider}/
//!           .state/mails.jsonl  .state/locks.json  .state/tmp/
//! {dropzone}/{64 hex digits}  .tmp/
//! ```
//!
//! A file is written under a temporary name and renamed, so that a reader never sees a
//! part of one. Below the two roots nothing is followed: every directory is opened from
//! the one above it and must be a directory itself, so that a link which somebody has
//! planted leads nowhere.

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

/// Where the roots are.
#[derive(Debug)]
pub struct MailboxDir {
    mailbox: PathBuf,
    dropzone: PathBuf,
    /// What our temporary names start with: what an earlier courier left is told apart.
    mark: String,
    /// Keeps two writers from sharing a temporary name.
    writes: AtomicU64,
}

/// The directories that a piece of work needs, each opened once. Not to be kept for
/// longer: somebody may move them.
pub struct OpenDirs<'a> {
    tree: &'a MailboxDir,
    root: Dir,
    tmp: Arc<Dir>,
    shelves: BTreeMap<(&'static str, String), Option<Arc<Dir>>>,
}

/// An open directory.
#[derive(Debug)]
pub struct Dir(OwnedFd);

/// What a name in a directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// Whether it is a plain file.
    pub is_file: bool,
    /// Its permissions.
    pub mode: u32,
    /// How many bytes it has.
    pub len: u64,
    /// When its bytes last changed, in milliseconds since 1970.
    pub modified_ms: i64,
    /// Which one it is: the device and the number on it.
    pub node: (u64, u64),
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name; `None` when it is not UTF-8, and surely not ours.
    pub name: Option<String>,
    /// Whether it is a directory, where the file system says so by itself.
    pub is_dir: bool,
}

impl MailboxDir {
    /// The tree with these roots.
    pub fn new(mailbox: PathBuf, dropzone: PathBuf) -> Self {
        // Without randomness all are alike, and nothing is swept; that does no harm.
        let mark = getrandom::u32().map_or_else(|_| String::new(), |n| format!("{n:08x}-"));
        Self { mailbox, dropzone, mark, writes: AtomicU64::new(0) }
    }

    /// Where the mailbox is.
    pub fn mailbox(&self) -> &Path {
        &self.mailbox
    }

    /// Makes the directories that are missing, and sweeps out what a crash left
    /// half-written.
    ///
    /// # Errors
    ///
    /// When one can't be made, or is a link.
    pub fn create(&self) -> io::Result<()> {
        let root = make_root(&self.mailbox)?;
        for name in ["inbound", OUTBOUND_DIR, "archive", ".deadletter"] {
            root.make(name)?;
        }
        let tmp = root.make(STATE_DIR)?.make("tmp")?;
        let dropped = make_root(&self.dropzone)?.make(".tmp")?;
        for dir in [tmp, dropped] {
            let names = dir.names()?.into_iter().filter_map(|named| named.name);
            for name in names.filter(|name| !name.starts_with(&self.mark)) {
                dir.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Opens what every piece of work needs.
    ///
    /// # Errors
    ///
    /// When it is gone and can't be made again.
    pub fn open_dirs(&self) -> io::Result<OpenDirs<'_>> {
        let root = make_root(&self.mailbox)?;
        let tmp = Arc::new(root.make(STATE_DIR)?.make("tmp")?);
        Ok(OpenDirs { tree: self, root, tmp, shelves: BTreeMap::new() })
    }

    /// Brings everything that was written to disk.
    ///
    /// # Errors
    ///
    /// When the disk says no: then nobody knows what is there.
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
    /// The mailbox itself.
    pub fn root(&self) -> &Dir {
        &self.root
    }

    /// The directory of ours.
    ///
    /// # Errors
    ///
    /// When it can't be opened.
    pub fn state(&self) -> io::Result<Dir> {
        self.root.make(STATE_DIR)
    }

    /// One provider's directory; `None` when there is none and it is not to be made.
    ///
    /// # Errors
    ///
    /// When it can't be opened, or is a link.
    pub fn provider_dir(
        &mut self,
        part: &'static str,
        provider: &str,
        make: bool,
    ) -> io::Result<Option<Arc<Dir>>> {
        let key = (part, provider.to_owned());
        if let Some(known) = self.shelves.get(&key)
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
        self.shelves.insert(key, dir.clone());
        Ok(dir)
    }

    /// Writes a file whole, in the place of one that may be there.
    ///
    /// # Errors
    ///
    /// When there is no room, or it is not allowed. Then nothing has changed.
    pub fn put(&self, dir: &Dir, name: &str, bytes: &[u8], look: FileOptions) -> io::Result<()> {
        put(self.tree, &self.tmp, dir, name, bytes, look)
    }

    /// Creates a temporary file that the caller fills and renames to its final name.
    ///
    /// # Errors
    ///
    /// When the file cannot be created.
    pub fn create_temporary(&self) -> io::Result<TemporaryFile<Arc<Dir>>> {
        create_temporary(self.tree, &self.tmp, FileOptions::PRIVATE.mode)
    }

    /// Puts bytes into the dropzone, under their name there.
    ///
    /// # Errors
    ///
    /// When there is no room, or it is not allowed.
    pub fn drop(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let dropzone = make_root(&self.tree.dropzone)?;
        let tmp = Arc::new(dropzone.make(".tmp")?);
        put(self.tree, &tmp, &dropzone, name, bytes, FileOptions::READ_ONLY)
    }

    /// The bytes in the dropzone under a name, when there are at most `most`.
    ///
    /// # Errors
    ///
    /// When they can't be read.
    pub fn dropped(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        make_root(&self.tree.dropzone)?.read(name, most)
    }
}

impl Dir {
    /// One of the roots. The user may have it elsewhere, by a link of his own.
    ///
    /// # Errors
    ///
    /// When it can't be opened.
    fn root(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// The directory below this one that has this name.
    ///
    /// # Errors
    ///
    /// When there is none, or it is something else, such as a link.
    pub fn sub(&self, name: &str) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::openat(&self.0, name, flags, Mode::empty())?))
    }

    /// The same, made for the user alone when there is none.
    ///
    /// # Errors
    ///
    /// When it can't be made, or there is something else by that name.
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

    /// What is in it.
    ///
    /// # Errors
    ///
    /// When it can't be read.
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

    /// What a name stands for; `None` when it stands for nothing.
    ///
    /// # Errors
    ///
    /// When nobody can tell.
    pub fn stat(&self, name: &str) -> io::Result<Option<FileStat>> {
        let stat = match rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(Some(looks(&stat)))
    }

    /// The bytes of a plain file, when it has at most `most`; `None` when there is no
    /// such file.
    ///
    /// # Errors
    ///
    /// When it can't be read, or is too large.
    pub fn read(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        // A pipe would keep us waiting for somebody to write into it.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.0, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let looks = looks(&rustix::fs::fstat(&file)?);
        if !looks.is_file {
            return Ok(None);
        }
        if looks.len > most {
            return Err(io::Error::new(ErrorKind::FileTooLarge, format!("more than {most} bytes")));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(looks.len).unwrap_or(0));
        fs::File::from(file).take(most + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > most {
            return Err(io::Error::new(ErrorKind::FileTooLarge, format!("more than {most} bytes")));
        }
        Ok(Some(bytes))
    }

    /// Opens a plain file of ours to write at its end.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn append(&self, name: &str) -> io::Result<fs::File> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(fs::File::from(rustix::fs::openat(&self.0, name, flags, Mode::empty())?))
    }

    /// Removes a file. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// When it is not allowed.
    pub fn remove(&self, name: &str) -> io::Result<bool> {
        match rustix::fs::unlinkat(&self.0, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves a file into another directory, in the place of one that may be there.
    ///
    /// # Errors
    ///
    /// When it is not there, or it is not allowed.
    pub fn rename(&self, name: &str, to: &Self, new: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, name, &to.0, new)?)
    }

    /// Brings a file of it to disk.
    ///
    /// # Errors
    ///
    /// When the disk says no.
    pub fn sync_file(&self, name: &str) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(rustix::fs::fsync(rustix::fs::openat(&self.0, name, flags, Mode::empty())?)?)
    }

    /// Brings the names in it to disk.
    ///
    /// # Errors
    ///
    /// When the disk says no.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.0)?)
    }

    /// Brings its whole file system to disk.
    fn sync_all(&self) -> io::Result<()> {
        monoco_fs::sync_file_system(&self.0)
    }

    fn device(&self) -> io::Result<u64> {
        Ok(looks(&rustix::fs::fstat(&self.0)?).node.0)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `None` for what is not there.
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

fn looks(stat: &rustix::fs::Stat) -> FileStat {
    // The widths of these fields differ from system to system.
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
    fn a_file_is_whole_and_only_the_user_sees_it() {
        let (_dir, tree) = tree();
        let mut hands = tree.open_dirs().unwrap();
        assert_eq!(hands.provider_dir("inbound", "lark", false).unwrap().map(|_| ()), None);
        let shelf = hands.provider_dir("inbound", "lark", true).unwrap().unwrap();
        let at = Timestamp::from_ms(1_770_410_700_123);
        let look = FileOptions { modified: Some(file_time(at)), ..FileOptions::READ_ONLY };
        hands.put(&shelf, "a.md", b"one", look).unwrap();
        let first = shelf.stat("a.md").unwrap().unwrap();
        assert_eq!((first.is_file, first.mode, first.len), (true, 0o400, 3));
        assert_eq!(first.modified_ms, at.ms());
        hands.put(&shelf, "a.md", b"two!", look).unwrap();
        assert_eq!(shelf.read("a.md", 4).unwrap().as_deref(), Some(&b"two!"[..]));
        assert!(shelf.read("a.md", 3).is_err(), "too large");
        assert_ne!(shelf.stat("a.md").unwrap().unwrap().node, first.node, "another file");
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(tree.mailbox().join("inbound/lark")), 0o700);
        assert_eq!(mode(tree.mailbox().join(".state/tmp")), 0o700);
        tree.sync().unwrap();
    }

    #[test]
    fn what_a_crash_left_half_written_is_swept() {
        let (_dir, tree) = tree();
        let left = [tree.mailbox.join(".state/tmp/7"), tree.dropzone.join(".tmp/8")];
        for path in &left {
            fs::write(path, "half").unwrap();
        }
        tree.create().unwrap();
        assert!(left.iter().all(|path| !path.exists()));
    }

    #[test]
    fn a_planted_link_leads_nowhere() {
        let (dir, tree) = tree();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), "secret").unwrap();
        symlink(&outside, tree.mailbox().join("inbound/lark")).unwrap();
        let mut hands = tree.open_dirs().unwrap();
        assert!(hands.provider_dir("inbound", "lark", true).is_err());

        let shelf = hands.provider_dir("inbound", "slack", true).unwrap().unwrap();
        let planted = tree.mailbox().join("inbound/slack/a.md");
        symlink(outside.join("secret"), &planted).unwrap();
        assert_eq!(shelf.read("a.md", 100).unwrap(), None);
        assert!(!shelf.stat("a.md").unwrap().unwrap().is_file);
        hands.put(&shelf, "a.md", b"mine", FileOptions::READ_ONLY).unwrap();
        assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "secret");
        assert_eq!(fs::read_to_string(planted).unwrap(), "mine");

        fs::remove_dir_all(tree.mailbox().join(".state/tmp")).unwrap();
        symlink(&outside, tree.mailbox().join(".state/tmp")).unwrap();
        assert!(tree.create().is_err());
        assert!(outside.join("secret").exists(), "nothing of others is swept");
    }

    #[test]
    fn a_pipe_keeps_nobody_waiting() {
        let (_dir, tree) = tree();
        let hands = tree.open_dirs().unwrap();
        let pipe = tree.mailbox().join("inbound/pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(hands.root().sub("inbound").unwrap().read("pipe", 10).unwrap(), None);
    }
}
