//! The names in an inbox, noted so that a large one need not be read to show a few.
//!
//! A directory of a hundred thousand files takes longer to read than the rest of a
//! list together. So their names are noted in one file, and the last line says when
//! the directory was changed last:
//!
//! ```text
//! 20260206T204500_webhook_0f3a….md
//! = 1770410700.123456789 4711
//! ```
//!
//! When that is not when it was changed last, somebody else was there, and the
//! directory counts. The note is no truth of its own: it may be deleted at any time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use monoco_core::time::Timestamp;
use monoco_fs::FileOptions;

use super::inbox::MailFileName;
use super::workspace::WorkspaceDir;
use super::{MailboxError, at};

/// From how many names on a note is worth it.
const MANY: usize = 1_000;

/// How long a directory must be unchanged before it is noted. The clock of a file system
/// is coarse: two changes may have the same time.
const QUIET: Duration = Duration::from_secs(1);

/// The last line takes less than this.
const LAST_LINE: i64 = 64;

/// The names in the inbox of a workspace, in no order.
///
/// # Errors
///
/// When the directory can't be read.
pub fn read(here: &WorkspaceDir, now: Timestamp) -> Result<Vec<MailFileName>, MailboxError> {
    if let Some(names) = noted(here) {
        return Ok(names);
    }
    let (seen, changed_at) = stamp(&here.inbox()).unwrap_or_default();
    let names = listed(&here.inbox())?;
    if names.len() >= MANY
        && now.since(changed_at) > QUIET
        && let Some(_lock) = here.try_lock()
    {
        // Without it the next one takes as long as we did, and that is all.
        let _ = write(here, &names, &seen);
    }
    Ok(names)
}

/// Whether the note is as new as the directory.
pub fn is_current(here: &WorkspaceDir) -> bool {
    let last = || -> io::Result<String> {
        let mut file = File::open(here.names())?;
        let from = i64::try_from(file.metadata()?.len()).unwrap_or(i64::MAX).min(LAST_LINE);
        file.seek(SeekFrom::End(-from))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let Ok((seen, _)) = stamp(&here.inbox()) else { return false };
    last().is_ok_and(|last| last.ends_with(&format!("\n{seen}")) || last == seen)
}

/// Notes names that were put into the inbox since the note was current. The workspace is
/// locked.
///
/// # Errors
///
/// When it can't be written.
pub fn add(here: &WorkspaceDir, names: &[String]) -> Result<(), MailboxError> {
    let path = here.names();
    let (seen, _) = stamp(&here.inbox()).map_err(at(&path))?;
    let text: String = names.iter().flat_map(|name| [name.as_str(), "\n"]).collect();
    let file = OpenOptions::new().append(true).open(&path);
    file.and_then(|mut file| file.write_all((text + &seen).as_bytes())).map_err(at(&path))
}

/// Notes everything anew. The workspace is locked.
///
/// # Errors
///
/// When the directory can't be read, or the note not be written.
pub fn rebuild(here: &WorkspaceDir) -> Result<(), MailboxError> {
    let (seen, _) = stamp(&here.inbox()).map_err(at(&here.inbox()))?;
    let names = listed(&here.inbox())?;
    if names.len() < MANY {
        return Ok(());
    }
    write(here, &names, &seen)
}

/// The names that are noted, when the note is current.
fn noted(here: &WorkspaceDir) -> Option<Vec<MailFileName>> {
    let text = fs::read_to_string(here.names()).ok()?;
    let (seen, _) = stamp(&here.inbox()).ok()?;
    let names = text.strip_suffix(&seen)?;
    // Earlier last lines stay where they were.
    let names = names.lines().filter(|line| !line.starts_with('='));
    names.map(|name| MailFileName::new(name.to_owned())).collect()
}

fn write(here: &WorkspaceDir, names: &[MailFileName], seen: &str) -> Result<(), MailboxError> {
    let path = here.names();
    let text: String = names.iter().flat_map(|name| [name.file(), "\n"]).collect();
    let written = monoco_fs::write(&path, (text + seen).as_bytes(), FileOptions::PRIVATE);
    written.map_err(|error| at(&path)(error.into()))
}

/// The names that are really there.
fn listed(inbox: &Path) -> Result<Vec<MailFileName>, MailboxError> {
    let entries = match fs::read_dir(inbox) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at(inbox)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(at(inbox))?.file_name();
        names.extend(name.into_string().ok().and_then(MailFileName::new));
    }
    Ok(names)
}

/// When a directory was changed last, as the last line of a note, and as a time.
fn stamp(inbox: &Path) -> io::Result<(String, Timestamp)> {
    let about = fs::metadata(inbox)?;
    let (seconds, nanoseconds) = (about.mtime(), about.mtime_nsec());
    let line = format!("= {seconds}.{nanoseconds:09} {}\n", about.ino());
    let ms = seconds.saturating_mul(1_000).saturating_add(nanoseconds / 1_000_000);
    Ok((line, Timestamp::from_ms(ms)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CourierFixture, START};
    use crate::sync::{SyncOptions, sync};

    const LATER: Timestamp = Timestamp::from_ms(START * 2);

    /// How many names are read.
    fn count(here: &WorkspaceDir) -> usize {
        read(here, LATER).unwrap().len()
    }

    fn file(n: usize) -> String {
        format!("20260206T204500_webhook_{n:024x}.md")
    }

    /// A workspace with many Mails, and a note of them.
    fn many(post: &CourierFixture) -> WorkspaceDir {
        let here = post.workspace("[{type: provider, value: webhook}]");
        let inbox = here.ensure_inbox().unwrap();
        for n in 0..MANY {
            fs::write(inbox.join(file(n)), "").unwrap();
        }
        assert_eq!(count(&here), MANY);
        assert!(is_current(&here));
        here
    }

    #[test]
    fn a_note_is_believed_only_while_nobody_else_was_there() {
        let post = CourierFixture::new();
        let here = many(&post);
        let mine = here.inbox().join(file(7));
        fs::remove_file(&mine).unwrap();
        assert!(!is_current(&here));
        assert_eq!(count(&here), MANY - 1, "what was deleted is gone");
        fs::write(&mine, "").unwrap();
        assert_eq!(count(&here), MANY, "what came back is there");
        for torn in ["", "= \n", "20260206T204500_web", "\0\0\0\0"] {
            fs::write(here.names(), torn).unwrap();
            assert_eq!(count(&here), MANY, "{torn:?}");
        }
    }

    #[test]
    fn what_is_pulled_is_added_to_the_note() {
        let mut post = CourierFixture::new();
        let here = many(&post);
        for round in 1..=3 {
            post.deliver("ann", "hi");
            sync(&here, &post.tree(), &SyncOptions::default(), &mut |_| true).unwrap();
            assert!(is_current(&here));
            assert_eq!(count(&here), MANY + round);
        }
        fs::remove_file(here.inbox().join(file(0))).unwrap();
        post.deliver("ann", "hi");
        sync(&here, &post.tree(), &SyncOptions::default(), &mut |_| true).unwrap();
        assert!(is_current(&here), "made anew");
        assert_eq!(count(&here), MANY + 3);
    }

    #[test]
    fn few_names_are_not_worth_a_note() {
        let mut post = CourierFixture::new();
        let here = post.workspace("[{type: provider, value: webhook}]");
        post.deliver("ann", "hi");
        sync(&here, &post.tree(), &SyncOptions::default(), &mut |_| true).unwrap();
        assert_eq!(count(&here), 1);
        assert!(!here.names().exists());
    }
}
