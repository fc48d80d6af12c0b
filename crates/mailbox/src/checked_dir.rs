//! Directories of a workspace, opened without following symbolic links.
//!
//! A workspace can be part of a repository that others wrote. A symbolic link in it could
//! make a command read, overwrite or delete files elsewhere, and a named pipe could stop a
//! command for ever. Such entries are reported and left alone.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use monoco_fs::{Dir, FileOptions, found};

use super::{MailboxError, at};

/// An open directory of a workspace, with its path for messages.
#[derive(Debug)]
pub struct CheckedDir {
    dir: Dir,
    path: PathBuf,
}

impl CheckedDir {
    /// Opens the root of a workspace. The user has named it, so it may be a symbolic link.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn open_root(path: &Path) -> Result<Self, MailboxError> {
        Ok(Self { dir: Dir::open_root(path).map_err(at(path))?, path: path.to_owned() })
    }

    /// Creates the root of a workspace if it is missing, and opens it.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn create_root(path: &Path) -> Result<Self, MailboxError> {
        Ok(Self { dir: Dir::create_root(path).map_err(at(path))?, path: path.to_owned() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory without its path, for operations that report no errors to the user.
    pub const fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Opens a subdirectory; `None` when there is none.
    ///
    /// # Errors
    ///
    /// When it is a symbolic link or a file.
    pub fn sub(&self, name: &str) -> Result<Option<Self>, MailboxError> {
        let dir = found(self.dir.sub(name)).map_err(|error| self.not_a_directory(name, error))?;
        Ok(dir.map(|dir| Self { dir, path: self.path.join(name) }))
    }

    /// Opens a subdirectory, which is created if it is missing.
    ///
    /// # Errors
    ///
    /// When it is a symbolic link or a file, or cannot be created.
    pub fn make(&self, name: &str) -> Result<Self, MailboxError> {
        let dir = self.dir.make(name).map_err(|error| self.not_a_directory(name, error))?;
        Ok(Self { dir, path: self.path.join(name) })
    }

    /// Reads a file of at most `most` bytes; `None` when there is none.
    ///
    /// # Errors
    ///
    /// When it is not a regular file, is larger, or cannot be read.
    pub fn read(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>, MailboxError> {
        match self.dir.read(name, most) {
            Ok(None) if self.dir.kind(name).is_some() => {
                Err(self.not_a_file(name, io::ErrorKind::InvalidInput.into()))
            }
            other => other.map_err(|error| self.not_a_file(name, error)),
        }
    }

    /// Writes a file atomically. A symbolic link of this name is an error, although it would
    /// be replaced: a repository that contains one is not to be trusted.
    ///
    /// # Errors
    ///
    /// When another kind of file has the name, or the file cannot be written.
    pub fn write(
        &self,
        name: &str,
        bytes: &[u8],
        options: FileOptions,
    ) -> Result<(), MailboxError> {
        if self.dir.stat(name).is_ok_and(|stat| stat.is_some_and(|stat| !stat.is_file)) {
            return Err(self.not_a_file(name, io::ErrorKind::InvalidInput.into()));
        }
        let written = self.dir.write(name, bytes, options);
        written.map_err(|error| at(&self.path.join(name))(error.into()))
    }

    /// Opens a file for writing; creates it if it is missing.
    ///
    /// # Errors
    ///
    /// When it is not a regular file, or cannot be created.
    pub fn open_or_create(&self, name: &str) -> Result<File, MailboxError> {
        self.dir.open_or_create(name).map_err(|error| self.not_a_file(name, error))
    }

    fn not_a_file(&self, name: &str, error: io::Error) -> MailboxError {
        self.wrong_kind(name, "a regular file", error)
    }

    fn not_a_directory(&self, name: &str, error: io::Error) -> MailboxError {
        self.wrong_kind(name, "a directory", error)
    }

    /// Names the kind of the entry, unless it is as expected and `error` has another reason.
    fn wrong_kind(&self, name: &str, expected: &str, error: io::Error) -> MailboxError {
        let path = self.path.join(name);
        match self.dir.kind(name) {
            Some(kind) if kind != expected => MailboxError::Bad {
                path,
                why: format!("found {kind}, expected {expected}; remove it and try again"),
            },
            _ => MailboxError::Io { path, error },
        }
    }
}
