//! Files of the mailbox: layout, index, limits, and the operations of a workspace on them.
//!
//! The courier writes Mails as files below its mailbox directory and an index of them. A
//! workspace reads the index from its last position, links the Mails that match its
//! filters into its own inbox, and stores the new position. There is no list of
//! workspaces.
//!
//! # Reading order
//!
//! * [`workspace`], `checked_dir`: location, name and filters of a workspace; its
//!   directories, opened without following links.
//! * [`paths`], [`index`]: layout of the courier's mailbox directory; its index.
//! * [`mirror`]: copy of the mailbox directory of another machine.
//! * [`cursor`], [`sync`]: position of a workspace in the index; pulling new Mails.
//! * [`inbox`], `inbox_cache`: the Mails in a workspace, by file name.
//! * [`claim_info`]: claims on Mails, as in the API and in `locks.json`.
//! * [`untrusted_text`]: delimiters around text from outside.
//! * [`draft`]: writes drafts and reads their status.
//! * [`child`]: runs a command on a Mail and logs its output.

use std::io;
use std::path::{Path, PathBuf};

mod checked_dir;
pub mod child;
pub mod claim_info;
pub mod cursor;
pub mod draft;
pub mod inbox;
mod inbox_cache;
pub mod index;
pub mod mirror;
pub mod paths;
pub mod sync;
pub mod untrusted_text;
pub mod workspace;

pub use checked_dir::CheckedDir;

#[derive(Debug, thiserror::Error)]
pub enum MailboxError {
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("{path}: {why}")]
    Bad { path: PathBuf, why: String },
    #[error("{0} is the mailbox directory of a courier, not a workspace; choose another directory")]
    Couriers(PathBuf),
    #[error("{0} is not a workspace: it has no .monoco/mailbox")]
    NoWorkspace(PathBuf),
    #[error("workspace {0} is locked by another sync for more than 10 s; try again later")]
    Busy(PathBuf),
    #[error("{0} was written by a newer version of monoco; update this program")]
    Newer(PathBuf),
    /// The courier on another machine does not answer, or rejects a request.
    #[error("{0}")]
    Source(mirror::SourceError),
}

/// Adds the path to an I/O error.
fn at(path: &Path) -> impl FnOnce(io::Error) -> MailboxError + '_ {
    move |error| MailboxError::Io { path: path.to_owned(), error }
}

#[cfg(any(test, feature = "test-fixtures"))]
pub mod fixture;
