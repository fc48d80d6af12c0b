//! The courier's mailbox, as anybody may read it.
//!
//! ```text
//! inbound/{provider}/        somebody may still want it
//! archive/{provider}/        dealt with
//! .deadletter/{provider}/    given up
//! .state/mails.jsonl         the index: which of those files are the courier's
//! .state/locks.json          who is at what
//! ```
//!
//! Only files that the index names are looked at, and only with the bytes that it
//! says they have. Anything else may be anybody's.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use monoco_core::claim::MailLocation;
use monoco_core::mail::{MailIndexEntry, digest};
use rustix::fs::OFlags;

use super::{MailboxError, at};

/// Largest file that can be a Mail, in bytes.
const MAX_FILE: u64 = 64 << 20;

/// The places that have files, in the order they are searched.
const PLACES: [MailLocation; 3] =
    [MailLocation::Inbound, MailLocation::Archive, MailLocation::Deadletter];

/// The courier's mailbox.
#[derive(Clone, Debug)]
pub struct MailboxPaths(PathBuf);

/// The file of a Mail, if it is the one that was written.
#[derive(Debug)]
pub enum MailFile {
    /// It is.
    Here {
        /// Where.
        path: PathBuf,
        /// What it says.
        bytes: Vec<u8>,
    },
    /// Somebody has changed it.
    Changed(PathBuf),
    /// There is none; it was thrown away by age.
    Gone,
}

impl MailboxPaths {
    /// The mailbox at `root`.
    pub const fn new(root: PathBuf) -> Self {
        Self(root)
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// Where the index is.
    pub fn index(&self) -> PathBuf {
        self.0.join(".state/mails.jsonl")
    }

    /// Where the open claims are.
    pub fn locks(&self) -> PathBuf {
        self.0.join(".state/locks.json")
    }

    /// In which place a Mail's file is, by its name.
    pub fn place(&self, provider: &str, file: &str) -> Option<MailLocation> {
        PLACES.into_iter().find(|place| {
            self.path(*place, provider, file).is_some_and(|path| path.symlink_metadata().is_ok())
        })
    }

    /// The file of a Mail, checked against its line in the index.
    ///
    /// # Errors
    ///
    /// When a file is there and can't be read.
    pub fn find(&self, entry: &MailIndexEntry) -> Result<MailFile, MailboxError> {
        // The index is the courier's, but a name in it becomes a path here.
        if entry.file != entry.id.file(entry.received_at) {
            return Ok(MailFile::Changed(self.index()));
        }
        // A file may move against the order of the search, so one round is not enough.
        for _ in 0..2 {
            for place in PLACES {
                let Some(path) = self.path(place, entry.id.provider(), &entry.file) else {
                    continue;
                };
                match read(&path) {
                    Ok(Some(bytes)) if digest(&bytes) == entry.sha256 => {
                        return Ok(MailFile::Here { path, bytes });
                    }
                    Ok(_) => return Ok(MailFile::Changed(path)),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(at(&path)(error)),
                }
            }
        }
        Ok(MailFile::Gone)
    }

    fn path(&self, place: MailLocation, provider: &str, file: &str) -> Option<PathBuf> {
        Some(self.0.join(place.dir()?).join(provider).join(file))
    }
}

/// A file of at most [`MAX_FILE`] bytes; `None` when it is larger or no plain file.
///
/// # Errors
///
/// When it can't be read.
pub fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = flags.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = match opened {
        Ok(file) => file,
        // A symbolic link is not what anybody of us wrote.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let about = file.metadata()?;
    if !about.is_file() || about.len() > MAX_FILE {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(about.len()).unwrap_or(0) + 1);
    File::take(file, MAX_FILE + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= MAX_FILE).then_some(bytes))
}
