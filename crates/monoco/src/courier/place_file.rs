//! Puts the file of one Mail where it belongs, and nowhere else.
//!
//! What is done depends on what is there, never on what was done before: so it can be
//! done again at any time, and after a crash it is.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use monoco_core::claim::MailLocation;
use monoco_core::mail::{Mail, MailIndexEntry, digest};
use monoco_core::object::ObjId;
use monoco_fs::FileOptions;
use monoco_mailbox::paths::{MAIL_DIRS, MAX_ATTACHMENT_BYTES, MAX_MAIL_FILE_BYTES};
use monoco_store::{FileChange, StoreError};
use rustix::io::Errno;
use serde_json::json;

use super::mailbox_dir::{Dir, OpenDirs, file_time};

/// How much is taken for granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyLevel {
    /// What came with a Mail is there when its file is.
    Usual,
    /// Nothing is: after a crash, or when somebody asks.
    Whole,
    /// Nor are the bytes that we can read: the disk has lost some.
    Fresh,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceFileResult {
    /// Nothing; it was as it should be.
    Nothing,
    /// The file was written.
    Written,
    /// It was moved.
    Moved,
    /// It was removed.
    Removed,
}

/// Why a Mail is not where it belongs.
#[derive(Debug, thiserror::Error)]
pub enum PlaceFileError {
    /// The disk is full or the like; nothing can be placed now.
    #[error("{0}")]
    Disk(#[from] io::Error),
    /// The store can't be asked now.
    #[error(transparent)]
    Store(StoreError),
    /// It is this one Mail.
    #[error("{0}")]
    Bad(String),
}

/// Reads an object of the store.
pub type MailFileContent<'a> = &'a mut dyn FnMut(ObjId) -> Result<Vec<u8>, StoreError>;

/// The name of the file that says why a Mail was given up.
pub fn reason_file(file: &str) -> String {
    format!("{file}.reason.json")
}

/// Puts the file of a Mail where it belongs.
///
/// # Errors
///
/// [`PlaceFileError`]. What is there is whole in any case.
pub fn place(
    hands: &mut OpenDirs<'_>,
    filing: &FileChange,
    care: VerifyLevel,
    load: MailFileContent<'_>,
) -> Result<PlaceFileResult, PlaceFileError> {
    let entry = &filing.entry;
    let (id, file) = (&entry.id, &entry.file);
    // The name comes from the id and nothing else, whatever the row says.
    if *file != id.file(entry.received_at) {
        return Err(PlaceFileError::Bad(format!("{file:?} is not the file of {id}")));
    }
    let mut done = PlaceFileResult::Nothing;
    if let Some(to) = filing.place.dir() {
        let to = provider_dir(hands, to, id.provider(), true)?.ok_or_else(gone)?;
        let trusted = care != VerifyLevel::Fresh;
        if !(trusted && is_right(&to, entry)?) {
            let elsewhere = if trusted { right_elsewhere(hands, filing)? } else { None };
            match elsewhere {
                Some(from) => {
                    from.rename(file, &to, file).map_err(sort)?;
                    done = PlaceFileResult::Moved;
                }
                None => {
                    write(hands, &to, entry, load)?;
                    done = PlaceFileResult::Written;
                }
            }
        }
        if care == VerifyLevel::Whole && done != PlaceFileResult::Written {
            drop_artifacts(hands, &read_mail(entry, load)?, load)?;
        }
        if filing.place == MailLocation::Deadletter {
            write_reasons(hands, &to, filing)?;
        }
    }
    for other in MAIL_DIRS.into_iter().filter(|place| *place != filing.place) {
        let Some(dir) = other.dir() else { continue };
        let Some(dir) = provider_dir(hands, dir, id.provider(), false)? else { continue };
        if dir.remove(file).map_err(sort)? && done == PlaceFileResult::Nothing {
            done = PlaceFileResult::Removed;
        }
        if other == MailLocation::Deadletter {
            dir.remove(&reason_file(file)).map_err(sort)?;
        }
    }
    Ok(done)
}

/// Whether a file looks as we left it: nobody has written to it since, unless he hides
/// it. Cheaper than reading it.
///
/// # Errors
///
/// When nobody can tell.
pub fn looks_right(dir: &Dir, entry: &MailIndexEntry) -> io::Result<bool> {
    Ok(dir.stat(&entry.file)?.is_some_and(|looks| {
        looks.is_file
            && looks.mode & 0o777 == FileOptions::READ_ONLY.mode
            && looks.modified_ms == entry.received_at.ms()
    }))
}

/// Whether a file is the one that we wrote.
fn is_right(dir: &Dir, entry: &MailIndexEntry) -> Result<bool, PlaceFileError> {
    match dir.read(&entry.file, MAX_MAIL_FILE_BYTES) {
        Ok(bytes) => Ok(bytes.is_some_and(|bytes| digest(&bytes) == entry.sha256)),
        // What can't be read is not it. Writing it will tell whether it is the disk.
        Err(_) => Ok(false),
    }
}

fn right_elsewhere(
    hands: &mut OpenDirs<'_>,
    filing: &FileChange,
) -> Result<Option<Arc<Dir>>, PlaceFileError> {
    for other in MAIL_DIRS.into_iter().filter(|place| *place != filing.place) {
        let Some(dir) = other.dir() else { continue };
        let Some(dir) = provider_dir(hands, dir, filing.entry.id.provider(), false)? else {
            continue;
        };
        if is_right(&dir, &filing.entry)? {
            return Ok(Some(dir));
        }
    }
    Ok(None)
}

fn write(
    hands: &mut OpenDirs<'_>,
    to: &Dir,
    entry: &MailIndexEntry,
    load: MailFileContent<'_>,
) -> Result<(), PlaceFileError> {
    let mail = read_mail(entry, load)?;
    let text = mail.render();
    if digest(text.as_bytes()) != entry.sha256 {
        return Err(PlaceFileError::Bad("its object no longer makes the file it made".to_owned()));
    }
    drop_artifacts(hands, &mail, load)?;
    // The time is part of how we know our own file again.
    let look =
        FileOptions { modified: Some(file_time(entry.received_at)), ..FileOptions::READ_ONLY };
    hands.put(to, &entry.file, text.as_bytes(), look).map_err(sort)
}

fn read_mail(entry: &MailIndexEntry, load: MailFileContent<'_>) -> Result<Mail, PlaceFileError> {
    let bytes = load(entry.msg_id).map_err(|error| match error {
        StoreError::Missing { .. } | StoreError::Damaged { .. } => {
            PlaceFileError::Bad(error.to_string())
        }
        other => PlaceFileError::Store(other),
    })?;
    let text =
        std::str::from_utf8(&bytes).map_err(|error| PlaceFileError::Bad(error.to_string()))?;
    Mail::read(entry.msg_id, text).map_err(|error| PlaceFileError::Bad(error.to_string()))
}

/// Puts what came with a Mail into the dropzone, each once.
fn drop_artifacts(
    hands: &OpenDirs<'_>,
    mail: &Mail,
    load: MailFileContent<'_>,
) -> Result<(), PlaceFileError> {
    for hash in mail.header.artifacts.iter().filter_map(|artifact| artifact.hash) {
        let name = hash.to_string();
        let name = name.rsplit(':').next().unwrap_or(&name);
        let there = hands.dropped(name, MAX_ATTACHMENT_BYTES).ok().flatten();
        if there.is_some_and(|bytes| digest(&bytes) == name) {
            continue;
        }
        match load(hash) {
            Ok(bytes) => hands.drop(name, &bytes).map_err(sort)?,
            // The Mail is worth more than what came with it.
            Err(error @ (StoreError::Missing { .. } | StoreError::Damaged { .. })) => {
                tracing::error!(mail = %mail.header.id, %error, "an attachment is lost");
            }
            Err(error) => return Err(PlaceFileError::Store(error)),
        }
    }
    Ok(())
}

fn write_reasons(
    hands: &OpenDirs<'_>,
    dir: &Dir,
    filing: &FileChange,
) -> Result<(), PlaceFileError> {
    let entry = &filing.entry;
    let reasons: Vec<_> = filing
        .reasons
        .iter()
        .map(|(workspace, reason)| json!({"workspace": workspace, "reason": reason}))
        .collect();
    let reasons = json!({"id": entry.id, "msg_id": entry.msg_id, "reasons": reasons});
    let text = format!("{reasons:#}\n");
    let name = reason_file(&entry.file);
    if dir
        .read(&name, MAX_MAIL_FILE_BYTES)
        .ok()
        .flatten()
        .is_some_and(|there| there == text.as_bytes())
    {
        return Ok(());
    }
    hands.put(dir, &name, text.as_bytes(), FileOptions::READ_ONLY).map_err(sort)
}

fn provider_dir(
    hands: &mut OpenDirs<'_>,
    part: &'static str,
    provider: &str,
    make: bool,
) -> Result<Option<Arc<Dir>>, PlaceFileError> {
    hands.provider_dir(part, provider, make).map_err(|error| match sort(error) {
        PlaceFileError::Bad(why) => PlaceFileError::Bad(format!("{part}/{provider}: {why}")),
        other => other,
    })
}

fn gone() -> PlaceFileError {
    PlaceFileError::Disk(ErrorKind::NotFound.into())
}

/// Tells what stops everything from what is wrong with one file: something else stands
/// in its place, or it may not be touched.
fn sort(error: io::Error) -> PlaceFileError {
    const ITS_OWN: [Errno; 7] = [
        Errno::LOOP,
        Errno::NOTDIR,
        Errno::ISDIR,
        Errno::NOTEMPTY,
        Errno::PERM,
        Errno::NAMETOOLONG,
        Errno::BUSY,
    ];
    match Errno::from_io_error(&error) {
        Some(errno) if ITS_OWN.contains(&errno) => PlaceFileError::Bad(error.to_string()),
        _ => PlaceFileError::Disk(error),
    }
}
