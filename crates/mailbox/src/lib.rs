//! The workspace's side of the mailbox: plain files, no courier needed.
//!
//! The courier writes Mails as files below its mailbox and an index of them. A
//! workspace reads the index from where it left off, links what its rules match into
//! its own inbox, and remembers how far it got. Nobody keeps a list of workspaces.
//!
//! # Reading order
//!
//! * [`workspace`]: where a workspace is, what it is called, which rules it has.
//! * [`tree`], [`index`]: the courier's mailbox as anybody may read it.
//! * [`cursor`], [`sync`]: how far a workspace got; pulling what is new.
//! * [`inbox`], [`inbox_cache`]: the Mails a workspace has, by their file names.
//! * [`claim_info`]: who is at a Mail, when the courier can't be asked.
//! * [`untrusted_text`]: foreign text between two lines that it can't forge.
//! * [`draft`]: a message on its way to the courier, as a file.
//! * [`child`]: a command that works on a Mail, with what it says kept.

use std::io;
use std::path::{Path, PathBuf};

pub mod child;
pub mod claim_info;
pub mod cursor;
pub mod draft;
pub mod inbox;
mod inbox_cache;
pub mod index;
pub mod paths;
pub mod sync;
pub mod untrusted_text;
pub mod workspace;

/// Why a workspace can't do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum MailboxError {
    /// The file system says no.
    #[error("{path}: {error}")]
    Io {
        /// What was tried.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
    /// A file that people write is wrong.
    #[error("{path}: {why}")]
    Bad {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The directory is the courier's own.
    #[error("{0} is the courier's own mailbox, not a workspace")]
    Couriers(PathBuf),
    /// There is no `.monoco/mailbox` where one was expected.
    #[error("{0} is not a workspace: it has no .monoco/mailbox")]
    NoWorkspace(PathBuf),
    /// Another process syncs the same workspace.
    #[error("{0} is being synced by somebody else, for longer than 10 s")]
    Busy(PathBuf),
    /// A file is from a later version.
    #[error("{0} was written by a newer monoco")]
    Newer(PathBuf),
}

/// Says of what an error is.
fn at(path: &Path) -> impl FnOnce(io::Error) -> MailboxError + '_ {
    move |error| MailboxError::Io { path: path.to_owned(), error }
}

#[cfg(any(test, feature = "test-fixtures"))]
pub mod fixture;
