//! Writes or moves the file of one Mail to the directory that the store names, and removes
//! it from the others.
//!
//! The operation depends only on the present files. It can be repeated at any time, and is
//! repeated after a crash.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;

use monoco_core::claim::MailLocation;
use monoco_core::mail::{Mail, MailIndexEntry, digest};
use monoco_core::object::ObjId;
use monoco_fs::{Dir, FileOptions};
use monoco_mailbox::paths::{MAIL_DIRS, MAX_MAIL_FILE_BYTES};
use monoco_store::{FileChange, SharedStore, StoreError};
use rustix::io::Errno;
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::runtime::Handle;

use super::mailbox_dir::{OpenDirs, PART_BYTES, file_time};
use super::sender::open_attachment;

/// How much of the present files is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyLevel {
    /// Attachments are assumed to be present when the Mail file is.
    Usual,
    /// Everything is verified: after a crash, or on request.
    Whole,
    /// Files are written again even if they read back correctly: a sync has failed.
    Fresh,
}

/// What was done for one Mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceFileResult {
    /// The file was correct.
    Nothing,
    Written,
    Moved,
    Removed,
}

/// Why the file of a Mail was not placed.
#[derive(Debug, thiserror::Error)]
pub enum PlaceFileError {
    /// The disk is full or unavailable; no file can be placed now.
    #[error("{0}")]
    Disk(#[from] io::Error),
    /// The store cannot be read now.
    #[error(transparent)]
    Store(StoreError),
    /// Only this Mail is affected.
    #[error("{0}")]
    Bad(String),
}

/// Reads what the files of Mails contain from the store.
pub struct MailFileContent<'a> {
    pub store: &'a SharedStore,
    pub handle: &'a Handle,
    /// Objects that were read already.
    pub texts: &'a mut HashMap<ObjId, Vec<u8>>,
}

impl MailFileContent<'_> {
    fn object(&mut self, id: ObjId) -> Result<Vec<u8>, StoreError> {
        match self.texts.remove(&id) {
            Some(text) => Ok(text),
            None => self.handle.block_on(self.store.object(id)),
        }
    }

    /// Copies an attachment in parts, so that a large one is never in memory.
    fn copy(&self, id: ObjId, to: &mut dyn Write) -> Result<(), PlaceFileError> {
        let opened = self.handle.block_on(open_attachment(self.store, id));
        let mut bytes = opened.map_err(PlaceFileError::Store)?.bytes;
        let mut part = Vec::with_capacity(PART_BYTES);
        loop {
            part.clear();
            let read = self.handle.block_on(bytes.read_buf(&mut part));
            match read {
                Ok(0) => return Ok(()),
                Ok(_) => to.write_all(&part).map_err(sort)?,
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    let damaged = StoreError::Damaged { what: "object", detail: error.to_string() };
                    return Err(PlaceFileError::Store(damaged));
                }
                Err(error) => return Err(PlaceFileError::Disk(error)),
            }
        }
    }
}

/// Name of the file with the reasons why the claims on a Mail failed.
pub fn reason_file(file: &str) -> String {
    format!("{file}.reason.json")
}

/// Makes the file of a Mail correct: in the right directory, with the right content, and
/// in no other directory.
///
/// # Errors
///
/// [`PlaceFileError`]. No partial file is left in any case.
pub fn place(
    dirs: &mut OpenDirs<'_>,
    change: &FileChange,
    level: VerifyLevel,
    content: &mut MailFileContent<'_>,
) -> Result<PlaceFileResult, PlaceFileError> {
    let entry = &change.entry;
    let (id, file) = (&entry.id, &entry.file);
    // The name must be derived from the id, whatever the row in the store contains.
    if *file != id.file(entry.received_at) {
        return Err(PlaceFileError::Bad(format!("file name {file:?} does not match Mail {id}")));
    }
    let mut done = PlaceFileResult::Nothing;
    if let Some(to) = change.location.dir() {
        let to = provider_dir(dirs, to, id.provider(), true)?.ok_or_else(gone)?;
        let trusted = level != VerifyLevel::Fresh;
        if !(trusted && has_expected_content(&to, entry)?) {
            let elsewhere = if trusted { find_in_other_dir(dirs, change)? } else { None };
            match elsewhere {
                Some(from) => {
                    from.rename(file, &to, file).map_err(sort)?;
                    done = PlaceFileResult::Moved;
                }
                None => {
                    write(dirs, &to, entry, content)?;
                    done = PlaceFileResult::Written;
                }
            }
        }
        if level == VerifyLevel::Whole && done != PlaceFileResult::Written {
            write_attachments(dirs, &read_mail(entry, content)?, content)?;
        }
        if change.location == MailLocation::Deadletter {
            write_reasons(dirs, &to, change)?;
        }
    }
    for other in MAIL_DIRS.into_iter().filter(|place| *place != change.location) {
        let Some(dir) = other.dir() else { continue };
        let Some(dir) = provider_dir(dirs, dir, id.provider(), false)? else { continue };
        if dir.remove(file).map_err(sort)? && done == PlaceFileResult::Nothing {
            done = PlaceFileResult::Removed;
        }
        if other == MailLocation::Deadletter {
            dir.remove(&reason_file(file)).map_err(sort)?;
        }
    }
    Ok(done)
}

/// Compares type, mode and modification time of a file with what [`place`] sets. Cheaper
/// than reading the file; does not detect a change that restores them.
///
/// # Errors
///
/// When the file system returns an error.
pub fn is_unmodified(dir: &Dir, entry: &MailIndexEntry) -> io::Result<bool> {
    Ok(dir.stat(&entry.file)?.is_some_and(|stat| {
        stat.is_file
            && stat.mode & 0o777 == FileOptions::READ_ONLY.mode
            && stat.modified_ms == entry.received_at.ms()
    }))
}

/// Whether the file has the content that the index entry describes.
fn has_expected_content(dir: &Dir, entry: &MailIndexEntry) -> Result<bool, PlaceFileError> {
    match dir.read(&entry.file, MAX_MAIL_FILE_BYTES) {
        Ok(bytes) => Ok(bytes.is_some_and(|bytes| digest(&bytes) == entry.sha256)),
        // An unreadable file is written again; if the disk fails, the write reports it.
        Err(_) => Ok(false),
    }
}

fn find_in_other_dir(
    dirs: &mut OpenDirs<'_>,
    change: &FileChange,
) -> Result<Option<Arc<Dir>>, PlaceFileError> {
    for other in MAIL_DIRS.into_iter().filter(|place| *place != change.location) {
        let Some(dir) = other.dir() else { continue };
        let Some(dir) = provider_dir(dirs, dir, change.entry.id.provider(), false)? else {
            continue;
        };
        if has_expected_content(&dir, &change.entry)? {
            return Ok(Some(dir));
        }
    }
    Ok(None)
}

fn write(
    dirs: &mut OpenDirs<'_>,
    to: &Dir,
    entry: &MailIndexEntry,
    content: &mut MailFileContent<'_>,
) -> Result<(), PlaceFileError> {
    let mail = read_mail(entry, content)?;
    let text = mail.render();
    if digest(text.as_bytes()) != entry.sha256 {
        return Err(PlaceFileError::Bad(
            "the stored object does not produce the file that the index describes".to_owned(),
        ));
    }
    write_attachments(dirs, &mail, content)?;
    // `is_unmodified` compares the modification time.
    let options =
        FileOptions { modified: Some(file_time(entry.received_at)), ..FileOptions::READ_ONLY };
    dirs.put(to, &entry.file, text.as_bytes(), options).map_err(sort)
}

fn read_mail(
    entry: &MailIndexEntry,
    content: &mut MailFileContent<'_>,
) -> Result<Mail, PlaceFileError> {
    let bytes = content.object(entry.msg_id).map_err(|error| match error {
        StoreError::Missing { .. } | StoreError::Damaged { .. } | StoreError::Erased { .. } => {
            PlaceFileError::Bad(error.to_string())
        }
        other => PlaceFileError::Store(other),
    })?;
    let text =
        std::str::from_utf8(&bytes).map_err(|error| PlaceFileError::Bad(error.to_string()))?;
    Mail::read(entry.msg_id, text).map_err(|error| PlaceFileError::Bad(error.to_string()))
}

/// Writes the attachments of a Mail to the dropzone, unless they are present.
fn write_attachments(
    dirs: &OpenDirs<'_>,
    mail: &Mail,
    content: &mut MailFileContent<'_>,
) -> Result<(), PlaceFileError> {
    for hash in mail.header.artifacts.iter().filter_map(|artifact| artifact.hash) {
        if dirs.open_attachment(&hash).is_ok_and(|file| file.is_some()) {
            continue;
        }
        match dirs.put_attachment(&hash, |file| content.copy(hash, file)) {
            // The Mail is written without the attachment.
            Err(PlaceFileError::Store(
                error @ (StoreError::Missing { .. } | StoreError::Damaged { .. }),
            )) => {
                tracing::error!(mail = %mail.header.id, %error, "attachment is missing in the store");
            }
            written => written?,
        }
    }
    Ok(())
}

fn write_reasons(
    dirs: &OpenDirs<'_>,
    dir: &Dir,
    change: &FileChange,
) -> Result<(), PlaceFileError> {
    let entry = &change.entry;
    let reasons: Vec<_> = change
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
    dirs.put(dir, &name, text.as_bytes(), FileOptions::READ_ONLY).map_err(sort)
}

fn provider_dir(
    dirs: &mut OpenDirs<'_>,
    part: &'static str,
    provider: &str,
    make: bool,
) -> Result<Option<Arc<Dir>>, PlaceFileError> {
    dirs.provider_dir(part, provider, make).map_err(|error| match sort(error) {
        PlaceFileError::Bad(why) => PlaceFileError::Bad(format!("{part}/{provider}: {why}")),
        other => other,
    })
}

fn gone() -> PlaceFileError {
    PlaceFileError::Disk(ErrorKind::NotFound.into())
}

/// Tells errors of one file (another kind of file has the name, or permission is denied)
/// from errors that affect all files.
fn sort(error: io::Error) -> PlaceFileError {
    const PER_FILE: [Errno; 7] = [
        Errno::LOOP,
        Errno::NOTDIR,
        Errno::ISDIR,
        Errno::NOTEMPTY,
        Errno::PERM,
        Errno::NAMETOOLONG,
        Errno::BUSY,
    ];
    match Errno::from_io_error(&error) {
        Some(errno) if PER_FILE.contains(&errno) => PlaceFileError::Bad(error.to_string()),
        _ => PlaceFileError::Disk(error),
    }
}
