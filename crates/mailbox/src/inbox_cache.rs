//! Cache of the file names in a large inbox.
//!
//! Listing a directory of 100,000 files takes longer than the rest of a command. The names
//! are cached in one file, whose last line has the modification time and the inode of the
//! directory:
//!
//! ```text
//! 20260206T204500_webhook_0f3a….md
//! = 1770410700.123456789 4711
//! ```
//!
//! When they do not match, another program changed the directory, and it is listed again.
//! The cache can be deleted at any time.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use monoco_core::time::Timestamp;
use monoco_fs::FileOptions;

use super::inbox::MailFileName;
use super::workspace::WorkspaceDir;
use super::{CheckedDir, MailboxError, at};

/// Number of names from which a cache is written.
const MIN_CACHED_NAMES: usize = 1_000;

/// How long a directory must be unchanged before it is cached. File systems have coarse
/// clocks: two changes may have the same time.
const MIN_UNCHANGED: Duration = Duration::from_secs(1);

/// Upper limit of the length of the last line.
const MAX_LAST_LINE: i64 = 64;

/// File name in the mailbox directory of a workspace.
const FILE: &str = "names";

/// Largest cache, in bytes: several million names.
const MAX_BYTES: u64 = 512 << 20;

/// The names in the inbox, in no order.
///
/// # Errors
///
/// When the directory cannot be read.
pub fn read(here: &WorkspaceDir, now: Timestamp) -> Result<Vec<MailFileName>, MailboxError> {
    let Some(inbox) = here.open_inbox()? else { return Ok(Vec::new()) };
    let files = here.open_files()?;
    if let Some(names) = cached(&files, &inbox) {
        return Ok(names);
    }
    let (seen, changed_at) = stamp(&inbox).unwrap_or_default();
    let names = list(&inbox)?;
    if names.len() >= MIN_CACHED_NAMES
        && now.since(changed_at) > MIN_UNCHANGED
        && let Some(_lock) = here.try_lock()
    {
        // Without a cache, only the next call is slower.
        let _ = write(&files, &names, &seen);
    }
    Ok(names)
}

/// Whether the cache matches the directory.
pub fn is_current(files: &CheckedDir, inbox: &CheckedDir) -> bool {
    let last = || -> io::Result<String> {
        let mut file = files.dir().append(FILE)?;
        let from = i64::try_from(file.metadata()?.len()).unwrap_or(i64::MAX).min(MAX_LAST_LINE);
        file.seek(SeekFrom::End(-from))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let Ok((seen, _)) = stamp(inbox) else { return false };
    last().is_ok_and(|last| last.ends_with(&format!("\n{seen}")) || last == seen)
}

/// Appends names to a current cache. The caller holds the workspace lock.
///
/// # Errors
///
/// When the file system returns an error.
pub fn add(files: &CheckedDir, inbox: &CheckedDir, names: &[String]) -> io::Result<()> {
    let (seen, _) = stamp(inbox)?;
    let text: String = names.iter().flat_map(|name| [name.as_str(), "\n"]).collect();
    files.dir().append(FILE)?.write_all((text + &seen).as_bytes())
}

/// Writes the cache again. The caller holds the workspace lock.
///
/// # Errors
///
/// When the file system returns an error.
pub fn rebuild(files: &CheckedDir, inbox: &CheckedDir) -> Result<(), MailboxError> {
    let (seen, _) = stamp(inbox).map_err(at(inbox.path()))?;
    let names = list(inbox)?;
    if names.len() < MIN_CACHED_NAMES {
        return Ok(());
    }
    write(files, &names, &seen)
}

/// The cached names; `None` when the cache is not current.
fn cached(files: &CheckedDir, inbox: &CheckedDir) -> Option<Vec<MailFileName>> {
    let text = String::from_utf8(files.dir().read(FILE, MAX_BYTES).ok()??).ok()?;
    let (seen, _) = stamp(inbox).ok()?;
    let names = text.strip_suffix(&seen)?;
    // Earlier last lines remain in the file.
    let names = names.lines().filter(|line| !line.starts_with('='));
    names.map(|name| MailFileName::new(name.to_owned())).collect()
}

fn write(files: &CheckedDir, names: &[MailFileName], seen: &str) -> Result<(), MailboxError> {
    let text: String = names.iter().flat_map(|name| [name.file(), "\n"]).collect();
    files.write(FILE, (text + seen).as_bytes(), FileOptions::PRIVATE)
}

fn list(inbox: &CheckedDir) -> Result<Vec<MailFileName>, MailboxError> {
    let entries = inbox.dir().names().map_err(at(inbox.path()))?;
    Ok(entries.into_iter().filter_map(|entry| MailFileName::new(entry.name?)).collect())
}

/// Modification time of the directory, as last line of the cache and as time.
fn stamp(inbox: &CheckedDir) -> io::Result<(String, Timestamp)> {
    let about = inbox.dir().metadata()?;
    let (seconds, nanoseconds) = (about.mtime(), about.mtime_nsec());
    let line = format!("= {seconds}.{nanoseconds:09} {}\n", about.ino());
    let ms = seconds.saturating_mul(1_000).saturating_add(nanoseconds / 1_000_000);
    Ok((line, Timestamp::from_ms(ms)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::fixture::{CourierFixture, START};
    use crate::sync::{SyncOptions, sync};

    const LATER: Timestamp = Timestamp::from_ms(START * 2);

    /// Number of names that are read.
    fn count(here: &WorkspaceDir) -> usize {
        read(here, LATER).unwrap().len()
    }

    fn current(here: &WorkspaceDir) -> bool {
        is_current(&here.open_files().unwrap(), &here.open_inbox().unwrap().unwrap())
    }

    fn cache(here: &WorkspaceDir) -> PathBuf {
        here.open_files().unwrap().path().join(FILE)
    }

    fn file(n: usize) -> String {
        format!("20260206T204500_webhook_{n:024x}.md")
    }

    /// A workspace with a cached inbox.
    fn many(post: &CourierFixture) -> WorkspaceDir {
        let here = post.workspace("[{type: provider, value: webhook}]");
        let inbox = here.ensure_inbox().unwrap().path().to_owned();
        for n in 0..MIN_CACHED_NAMES {
            fs::write(inbox.join(file(n)), "").unwrap();
        }
        assert_eq!(count(&here), MIN_CACHED_NAMES);
        assert!(current(&here));
        here
    }

    #[test]
    fn cache_is_used_only_while_the_directory_is_unchanged() {
        let post = CourierFixture::new();
        let here = many(&post);
        let mine = here.inbox().join(file(7));
        fs::remove_file(&mine).unwrap();
        assert!(!current(&here));
        assert_eq!(count(&here), MIN_CACHED_NAMES - 1, "what was deleted is gone");
        fs::write(&mine, "").unwrap();
        assert_eq!(count(&here), MIN_CACHED_NAMES, "what came back is there");
        for torn in ["", "= \n", "20260206T204500_web", "\0\0\0\0"] {
            fs::write(cache(&here), torn).unwrap();
            assert_eq!(count(&here), MIN_CACHED_NAMES, "{torn:?}");
        }
    }

    #[test]
    fn pulled_mails_are_added_to_the_cache() {
        let mut post = CourierFixture::new();
        let here = many(&post);
        for round in 1..=3 {
            post.deliver("ann", "hi");
            sync(&here, &post.tree(), &SyncOptions::default(), &mut |_| true).unwrap();
            assert!(current(&here));
            assert_eq!(count(&here), MIN_CACHED_NAMES + round);
        }
        fs::remove_file(here.inbox().join(file(0))).unwrap();
        post.deliver("ann", "hi");
        sync(&here, &post.tree(), &SyncOptions::default(), &mut |_| true).unwrap();
        assert!(current(&here), "made anew");
        assert_eq!(count(&here), MIN_CACHED_NAMES + 3);
    }

    #[test]
    fn small_inbox_is_not_cached() {
        let mut post = CourierFixture::new();
        let here = post.workspace("[{type: provider, value: webhook}]");
        post.deliver("ann", "hi");
        sync(&here, &post.tree(), &SyncOptions::default(), &mut |_| true).unwrap();
        assert_eq!(count(&here), 1);
        assert!(!cache(&here).exists());
    }
}
