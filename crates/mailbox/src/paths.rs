//! Layout of the courier's mailbox directory.
//!
//! ```text
//! inbound/{provider}/        Mails with open claims, or none
//! archive/{provider}/        Mails whose claims are completed; sent drafts
//! .deadletter/{provider}/    Mails whose claims failed; drafts that cannot be sent
//! outbound/{provider}/       drafts to send
//! .state/mails.jsonl         index of the Mail files
//! .state/locks.json          open claims
//! .state/shared-courier      id of the courier, while its store is shared with others
//! ```
//!
//! Readers use only files that the index names, and only with the content that the index
//! describes. Other files may have been created by any program of the user.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use monoco_core::claim::MailLocation;
use monoco_core::mail::{MailIndexEntry, digest};
use monoco_fs::{FileOptions, read_plain_file};

use super::mirror::{self, MailboxSource};
use super::{MailboxError, at};

/// Directory of the drafts to send.
pub const OUTBOUND_DIR: &str = "outbound";

/// Directory of the index, the open claims and temporary files.
pub const STATE_DIR: &str = ".state";

/// Name of the file with the id of the courier, which exists while its store is shared.
pub const SHARED_COURIER_FILE: &str = "shared-courier";

/// Name of the file with the workspace of the token, in a copy of another machine's mailbox.
pub const TOKEN_WORKSPACE_FILE: &str = "token-workspace";

/// File name of the index in [`STATE_DIR`].
pub const INDEX_FILE: &str = "mails.jsonl";

/// File name of the open claims in [`STATE_DIR`].
pub const LOCKS_FILE: &str = "locks.json";

/// Largest Mail file, in bytes.
pub const MAX_MAIL_FILE_BYTES: u64 = 64 << 20;

/// Largest attachment, in bytes.
pub const MAX_ATTACHMENT_BYTES: u64 = 64 << 20;

/// Locations that have a directory, in the order in which a Mail is searched.
pub const MAIL_DIRS: [MailLocation; 3] =
    [MailLocation::Inbound, MailLocation::Archive, MailLocation::Deadletter];

/// Paths in the courier's mailbox directory.
#[derive(Clone, Debug)]
pub struct MailboxPaths {
    root: PathBuf,
    /// The courier whose directory this is a copy of, if it is on another machine.
    source: Option<Arc<dyn MailboxSource>>,
}

/// Result of a search for the file of a Mail.
#[derive(Debug)]
pub enum MailFile {
    /// The file has the content that the index describes.
    Here { path: PathBuf, bytes: Vec<u8> },
    /// The file has other content.
    Changed(PathBuf),
    /// There is no file: the Mail was purged.
    Gone,
}

impl MailboxPaths {
    /// Paths below the mailbox directory `root`.
    pub const fn new(root: PathBuf) -> Self {
        Self { root, source: None }
    }

    /// Paths below a copy of the mailbox directory of another machine. Files are copied when they
    /// are first needed.
    pub(super) const fn copy(root: PathBuf, source: Arc<dyn MailboxSource>) -> Self {
        Self { root, source: Some(source) }
    }

    pub(super) fn source(&self) -> Option<&Arc<dyn MailboxSource>> {
        self.source.as_ref()
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn index(&self) -> PathBuf {
        self.root.join(STATE_DIR).join(INDEX_FILE)
    }

    pub fn locks(&self) -> PathBuf {
        self.root.join(STATE_DIR).join(LOCKS_FILE)
    }

    /// The directory that has a Mail file of this name; `None` when there is no file.
    pub fn location(&self, provider: &str, file: &str) -> Option<MailLocation> {
        MAIL_DIRS.into_iter().find(|location| {
            let path = self.mail_path(*location, provider, file);
            path.is_some_and(|path| path.symlink_metadata().is_ok())
        })
    }

    /// Reads the file of a Mail and compares it with its index entry. A file of another machine is
    /// copied first.
    ///
    /// # Errors
    ///
    /// When a file exists and cannot be read. [`MailboxError::Source`] when the courier on another
    /// machine does not answer.
    pub fn find(&self, entry: &MailIndexEntry) -> Result<MailFile, MailboxError> {
        // The name becomes a path, so it is checked although the courier wrote the index.
        if entry.file != entry.id.file(entry.received_at) {
            return Ok(MailFile::Changed(self.index()));
        }
        match (self.find_here(entry)?, &self.source) {
            // A copy with other content was torn by a power cut.
            (MailFile::Gone | MailFile::Changed(_), Some(source)) => {
                self.copy_file(source.as_ref(), entry)
            }
            (found, _) => Ok(found),
        }
    }

    /// Copies the file of a Mail from another machine.
    fn copy_file(
        &self,
        source: &dyn MailboxSource,
        entry: &MailIndexEntry,
    ) -> Result<MailFile, MailboxError> {
        match source.mail_file(&entry.id).map_err(MailboxError::Source)? {
            Some(bytes) => self.store_copy(entry, bytes),
            None => Ok(MailFile::Gone),
        }
    }

    /// Copies the files of these Mails from another machine with few requests, except those that
    /// are copied already. [`Self::find`] asks again for files that the courier does not send, or
    /// sends with other content. `tell` gets the number of copied files after each request.
    ///
    /// # Errors
    ///
    /// When a file cannot be written. [`MailboxError::Source`] when the courier does not answer;
    /// files that were copied before remain.
    pub fn prefetch(
        &self,
        entries: &[&MailIndexEntry],
        tell: &mut dyn FnMut(u64),
    ) -> Result<u64, MailboxError> {
        let Some(source) = &self.source else { return Ok(0) };
        // The name becomes a path, so it is checked although the courier wrote the index.
        let is_wanted = |entry: &&&MailIndexEntry| {
            entry.file == entry.id.file(entry.received_at)
                && self.location(entry.id.provider(), &entry.file).is_none()
        };
        let wanted: Vec<_> = entries.iter().filter(is_wanted).collect();
        let ids: Vec<_> = wanted.iter().map(|entry| entry.id.clone()).collect();
        let (mut asked, mut copied) = (0, 0);
        while asked < ids.len() {
            let files = source.mail_files(&ids[asked..]).map_err(MailboxError::Source)?;
            // Without files, or with others than those asked for, each is asked for on its own.
            let is_prefix = ids[asked..].iter().zip(&files).all(|(id, file)| *id == file.id);
            if files.is_empty() || files.len() > ids.len() - asked || !is_prefix {
                break;
            }
            for (entry, file) in wanted[asked..].iter().zip(files) {
                asked += 1;
                if let Some(bytes) = file.bytes
                    && let MailFile::Here { .. } = self.store_copy(entry, bytes)?
                {
                    copied += 1;
                }
            }
            tell(copied);
        }
        Ok(copied)
    }

    /// Writes the file of a Mail into the copy, if it has the content that the index describes.
    fn store_copy(&self, entry: &MailIndexEntry, bytes: Vec<u8>) -> Result<MailFile, MailboxError> {
        let path = self.mail_path(MailLocation::Inbound, entry.id.provider(), &entry.file);
        let path = path.unwrap_or_default();
        if digest(&bytes) != entry.sha256 {
            return Ok(MailFile::Changed(path));
        }
        if let Some(dir) = path.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
            made.map_err(at(dir))?;
        }
        mirror::put(&path, &bytes, FileOptions::READ_ONLY)?;
        Ok(MailFile::Here { path, bytes })
    }

    fn find_here(&self, entry: &MailIndexEntry) -> Result<MailFile, MailboxError> {
        // The courier may move the file against the order of the search: search twice.
        for _ in 0..2 {
            for location in MAIL_DIRS {
                let path = self.mail_path(location, entry.id.provider(), &entry.file);
                let Some(path) = path else { continue };
                match read_plain_file(&path, MAX_MAIL_FILE_BYTES) {
                    Ok(Some(bytes)) if digest(&bytes) == entry.sha256 => {
                        return Ok(MailFile::Here { path, bytes });
                    }
                    Ok(_) => return Ok(MailFile::Changed(path)),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                        return Ok(MailFile::Changed(path));
                    }
                    Err(error) => return Err(at(&path)(error)),
                }
            }
        }
        Ok(MailFile::Gone)
    }

    /// The path of a Mail file, in the directory that has it; `None` when there is none.
    pub fn file_path(&self, provider: &str, file: &str) -> Option<PathBuf> {
        self.mail_path(self.location(provider, file)?, provider, file)
    }

    fn mail_path(&self, location: MailLocation, provider: &str, file: &str) -> Option<PathBuf> {
        Some(self.root.join(location.dir()?).join(provider).join(file))
    }
}
