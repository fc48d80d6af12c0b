//! Access to the mailbox directory and the dropzone.
//!
//! ```text
//! {mailbox}/inbound|archive|.deadletter|outbound/{provider}/
//!           .state/mails.jsonl  .state/locks.json  .state/tmp/
//! {dropzone}/{64 hex digits}  .tmp/
//! ```
//!
//! Files are written under a temporary name and renamed, so that readers never see a
//! partial file. Symbolic links below the two roots are not followed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use monoco_core::hex;
use monoco_core::object::{BytesHasher, ObjId};
use monoco_core::time::Timestamp;
use monoco_fs::{Dir, FileOptions, TemporaryFile, found};
use monoco_mailbox::paths::{OUTBOUND_DIR, STATE_DIR};

/// How many temporary names are tried before a write fails. Names are in use only when
/// the random prefix of another courier is the same.
const MAX_NAME_ATTEMPTS: usize = 1_000;

/// How many bytes of an attachment are read at a time.
pub const PART_BYTES: usize = 64 << 10;

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
        let root = Dir::create_root(&self.mailbox)?;
        for name in ["inbound", OUTBOUND_DIR, "archive", ".deadletter"] {
            root.make(name)?;
        }
        let tmp = root.make(STATE_DIR)?.make("tmp")?;
        let attachment = Dir::create_root(&self.dropzone)?.make(".tmp")?;
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
        let root = Dir::create_root(&self.mailbox)?;
        let tmp = Arc::new(root.make(STATE_DIR)?.make("tmp")?);
        Ok(OpenDirs { tree: self, root, tmp, provider_dirs: BTreeMap::new() })
    }

    /// Syncs the file systems of mailbox and dropzone.
    ///
    /// # Errors
    ///
    /// When a sync fails: which bytes are on disk is then unknown.
    pub fn sync(&self) -> io::Result<()> {
        let root = Dir::create_root(&self.mailbox)?;
        root.sync_all()?;
        let dropzone = Dir::create_root(&self.dropzone)?;
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

    /// Writes an attachment to the dropzone. `fill` writes its bytes, in parts; when it fails,
    /// no file is left.
    ///
    /// # Errors
    ///
    /// When `fill` fails or the file cannot be written.
    pub fn put_attachment<E: From<io::Error>>(
        &self,
        id: &ObjId,
        fill: impl FnOnce(&mut dyn Write) -> Result<(), E>,
    ) -> Result<(), E> {
        let dropzone = Dir::create_root(&self.tree.dropzone)?;
        let tmp = Arc::new(dropzone.make(".tmp")?);
        let mut file = create_temporary(self.tree, &tmp, FileOptions::READ_ONLY.mode)?;
        fill(&mut file)?;
        Ok(file.rename(&dropzone, Path::new(&hex::encode(id.hash())))?)
    }

    /// Removes an attachment from the dropzone, if it is there.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn remove_attachment(&self, id: &ObjId) -> io::Result<()> {
        let name = hex::encode(id.hash());
        Dir::create_root(&self.tree.dropzone)?.remove(&name).map(drop)
    }

    /// Opens an attachment in the dropzone; `None` when there is none, or its bytes have another
    /// hash.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn open_attachment(&self, id: &ObjId) -> io::Result<Option<File>> {
        let dropzone = Dir::create_root(&self.tree.dropzone)?;
        let Some(mut file) = dropzone.open_file(&hex::encode(id.hash()))? else { return Ok(None) };
        let (mut hasher, mut part) = (BytesHasher::default(), vec![0; PART_BYTES]);
        loop {
            match file.read(&mut part)? {
                0 => break,
                read => hasher.update(&part[..read]),
            }
        }
        file.rewind()?;
        Ok((hasher.finish().hash() == id.hash()).then_some(file))
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
    use std::fs;
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
}
