//! Directories opened relative to their parents: no symbolic link is followed, and no
//! named pipe, socket or device is read or written.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{FileOptions, WriteError, write_in};

/// An open directory. Names are those of its entries, without `/`.
#[derive(Debug)]
pub struct Dir(OwnedFd);

/// Metadata of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    pub is_file: bool,
    pub mode: u32,
    pub len: u64,
    /// Number of hard links.
    pub links: u64,
    /// Modification time in milliseconds since 1970.
    pub modified_ms: i64,
    /// Device and inode number.
    pub node: (u64, u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// `None` when the name is not UTF-8; Monoco creates no such names.
    pub name: Option<String>,
    /// Whether the file system reports a directory; `false` also when it reports no type.
    pub is_dir: bool,
}

impl Dir {
    /// Opens the directory at `path`, which may be or contain symbolic links.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn open_root(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// Opens the directory at `path`; creates it and its parents with mode 0700 when they
    /// do not exist.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn create_root(path: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Self::open_root(path)
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

    /// The kind of an entry, for messages to the user; `None` when there is none.
    pub fn kind(&self, name: &str) -> Option<&'static str> {
        let stat = rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => "a regular file",
            FileType::Directory => "a directory",
            FileType::Symlink => "a symbolic link",
            FileType::Fifo => "a named pipe",
            FileType::Socket => "a socket",
            FileType::CharacterDevice | FileType::BlockDevice => "a device",
            FileType::Unknown => "a file of unknown kind",
        })
    }

    /// Reads a plain file of at most `most` bytes; `None` when there is no plain file of
    /// this name.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or is larger.
    pub fn read(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        Ok(found(read_plain_file_in(&self.0, Path::new(name), most))?.flatten())
    }

    /// Opens a plain file for reading; `None` when there is no plain file of this name.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened.
    pub fn open_file(&self, name: &str) -> io::Result<Option<File>> {
        let opened = found(open_plain_file_in(&self.0, Path::new(name)))?.flatten();
        Ok(opened.map(|(file, _)| file))
    }

    /// Writes a file atomically, replacing an existing file. At most one process at a time
    /// may write the same name.
    ///
    /// # Errors
    ///
    /// When the file cannot be written or synced.
    pub fn write(&self, name: &str, bytes: &[u8], options: FileOptions) -> Result<(), WriteError> {
        write_in(self, Path::new(name), bytes, options)
    }

    /// Opens an existing plain file for appending.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn append(&self, name: &str) -> io::Result<File> {
        self.open_plain(name, OFlags::RDWR | OFlags::APPEND)
    }

    /// Opens a plain file for writing, such as a lock; creates it with mode 0600 when it
    /// does not exist.
    ///
    /// # Errors
    ///
    /// When it cannot be created, or another kind of file has the name.
    pub fn open_or_create(&self, name: &str) -> io::Result<File> {
        self.open_plain(name, OFlags::WRONLY | OFlags::CREATE)
    }

    /// Creates an empty file with mode 0600. An existing file, link or pipe of this name is
    /// removed first; the target of a link is not changed.
    ///
    /// # Errors
    ///
    /// When it cannot be created.
    pub fn create_file(&self, name: &str) -> io::Result<File> {
        self.remove(name)?;
        self.open_plain(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
    }

    fn open_plain(&self, name: &str, flags: OFlags) -> io::Result<File> {
        // NONBLOCK: opening a named pipe would otherwise wait for a reader.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?;
        if !file_stat(&rustix::fs::fstat(&file)?).is_file {
            return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(File::from(file))
    }

    /// Creates the hard link `name` to the file at `path`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AlreadyExists`] when the name is in use; other errors when the file
    /// system has no links or `path` is on another one.
    pub fn link_from(&self, path: &Path, name: &str) -> io::Result<()> {
        Ok(rustix::fs::linkat(CWD, path, &self.0, name, AtFlags::empty())?)
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

    /// Syncs the whole file system of the directory.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn sync_all(&self) -> io::Result<()> {
        super::sync_file_system(&self.0)
    }

    /// Metadata of the directory itself.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn metadata(&self) -> io::Result<fs::Metadata> {
        File::from(self.0.try_clone()?).metadata()
    }

    /// Number of the device that contains the directory.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn device(&self) -> io::Result<u64> {
        Ok(file_stat(&rustix::fs::fstat(&self.0)?).node.0)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Reads the plain file at `path` if it has at most `most` bytes. Returns `None` when the
/// last part of the path is a symbolic link, a named pipe or another kind of file.
///
/// # Errors
///
/// When there is no file, or it cannot be read, or is larger
/// ([`ErrorKind::FileTooLarge`]).
pub fn read_plain_file(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    read_plain_file_in(CWD, path, most)
}

fn read_plain_file_in(dir: impl AsFd, path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    let Some((file, len)) = open_plain_file_in(dir, path)? else { return Ok(None) };
    let too_large = || io::Error::new(ErrorKind::FileTooLarge, format!("more than {most} bytes"));
    if len > most {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0) + 1);
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_large()) } else { Ok(Some(bytes)) }
}

/// Opens a plain file for reading. Returns its size as well.
fn open_plain_file_in(dir: impl AsFd, path: &Path) -> io::Result<Option<(File, u64)>> {
    // NONBLOCK: opening a named pipe would otherwise wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(dir, path, flags, Mode::empty()) {
        Ok(file) => file,
        // A symbolic link, or a socket.
        Err(Errno::LOOP | Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let stat = file_stat(&rustix::fs::fstat(&file)?);
    Ok(stat.is_file.then(|| (File::from(file), stat.len)))
}

/// Maps 'not found' to `None`.
///
/// # Errors
///
/// All errors except [`ErrorKind::NotFound`].
pub fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
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
        links: unsigned(i128::from(stat.st_nlink)),
        modified_ms: seconds.saturating_mul(1000).saturating_add(nanoseconds / 1_000_000),
        node: (unsigned(i128::from(stat.st_dev)), unsigned(i128::from(stat.st_ino))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn pipes_links_and_sockets_are_neither_read_nor_written_nor_waited_for() {
        let temporary = tempfile::tempdir().unwrap();
        let (path, other) = (temporary.path(), temporary.path().join("other"));
        fs::write(&other, "untouched").unwrap();
        symlink(&other, path.join("link")).unwrap();
        rustix::fs::mknodat(CWD, path.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let _socket = UnixListener::bind(path.join("socket")).unwrap();
        let dir = Dir::open_root(path).unwrap();
        for (name, kind) in
            [("link", "a symbolic link"), ("pipe", "a named pipe"), ("socket", "a socket")]
        {
            assert_eq!(dir.kind(name), Some(kind));
            assert_eq!(dir.read(name, 100).unwrap(), None, "{name}");
            assert!(dir.append(name).is_err() && dir.open_or_create(name).is_err(), "{name}");
            dir.create_file(name).unwrap();
            assert_eq!(dir.kind(name), Some("a regular file"));
        }
        assert_eq!(fs::read(&other).unwrap(), b"untouched");
        assert!(dir.open_or_create("pipe").is_ok() && dir.append("pipe").is_ok());
        assert!(dir.read("other", 8).is_err(), "too large");
        assert_eq!(dir.read("missing", 8).unwrap(), None);
        let missing = read_plain_file(&path.join("missing"), 8).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}
