//! Mails that the store has lost: finds them in the index and in the mailbox directory, and
//! stores them again from intact files.
//!
//! The store never forgets a Mail, so a line of the index or a file that names an unknown Mail
//! proves that the store lost data: the database was deleted, replaced by an older one, or
//! damaged. Such an index is set aside before it is rewritten, because its lines are the only
//! trace of Mails without a file.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader};

use monoco_core::claim::MailLocation;
use monoco_core::did::Did;
use monoco_core::mail::{Mail, MailId, MailIndexEntry};
use monoco_core::merge;
use monoco_core::time::Timestamp;
use monoco_fs::Dir;
use monoco_mailbox::paths::{INDEX_FILE, MAIL_DIRS, MAX_MAIL_FILE_BYTES};
use monoco_store::{FileProgress, RestoreMailResult, StoreError};
use tokio::runtime::Handle;

use super::file_projector::{FileProjector, MAX_REPORTED_NAMES, ProjectorError, ProjectorState};
use super::index::MailIndexFile;
use super::mailbox_check::{MailboxScan, mail_of};
use super::mailbox_dir::OpenDirs;
use super::place_file::VerifyLevel;

/// Start of the name of an index that was set aside.
const LOST_INDEX: &str = "mails.lost-";

/// Mails that are looked up at once.
const MAX_IDS_PER_LOOKUP: usize = 500;

/// Files between two progress messages.
const PROGRESS_INTERVAL: usize = 1_000;

impl FileProjector {
    /// Renames the index when the store does not know a Mail in the part of the index that
    /// `progress` does not cover.
    pub(super) fn set_lost_index_aside(
        &self,
        state: &mut ProjectorState,
        progress: &FileProgress,
        handle: &Handle,
    ) -> Result<(), ProjectorError> {
        let dirs = self.tree().open_dirs()?;
        let dir = dirs.state()?;
        let Some(generation) = MailIndexFile::generation_of(&dir)? else { return Ok(()) };
        let covered = if generation == progress.generation { progress.index_bytes } else { 0 };
        let (mut lost, mut newest) = (0, 0);
        self.visit_unknown(&dir, INDEX_FILE, covered, handle, &mut |entry| {
            lost += 1;
            newest = newest.max(entry.seq);
        })?;
        if lost == 0 {
            return Ok(());
        }
        tracing::error!(
            mails = lost,
            "the index names Mails that the store does not know; \
             `monoco courier rebuild --from-files` restores those that have a file"
        );
        // Workspaces skip numbers that they have seen.
        handle.block_on(self.store().reserve_mail_numbers(newest))?;
        dir.rename(INDEX_FILE, &dir, &format!("{LOST_INDEX}{generation}.jsonl"))?;
        state.old_generation = generation;
        Ok(())
    }

    /// Counts the Mails that the store does not know: files that `scan` did not assign to a
    /// Mail, and lines of an index that was set aside. Returns up to 100 file names. Other files
    /// of known Mails remain in `scan`.
    pub(super) fn lost_mails(
        &self,
        scan: &mut MailboxScan,
        dirs: &OpenDirs<'_>,
        handle: &Handle,
    ) -> Result<(usize, Vec<String>), ProjectorError> {
        let mut names: Vec<String> = Vec::new();
        let files: Vec<_> = scan.files.keys().cloned().collect();
        for files in files.chunks(MAX_IDS_PER_LOOKUP) {
            let ids = files.iter().filter_map(|file| mail_of(file)).collect();
            let unknown = handle.block_on(self.store().unknown_mails(ids))?;
            let is_lost = |file: &&String| mail_of(file).is_some_and(|id| unknown.contains(&id));
            names.extend(files.iter().filter(is_lost).cloned());
        }
        names.sort();
        for name in &names {
            scan.files.remove(name);
        }
        let mut lost = names.len();
        let by_file: BTreeSet<_> = names.iter().cloned().collect();
        let dir = dirs.state()?;
        for index in lost_indexes(&dir)? {
            self.visit_unknown(&dir, &index, 0, handle, &mut |entry| {
                if !by_file.contains(&entry.file) {
                    lost += 1;
                    if names.len() < MAX_REPORTED_NAMES {
                        names.push(entry.file);
                    }
                }
            })?;
        }
        names.truncate(MAX_REPORTED_NAMES);
        Ok((lost, names))
    }

    /// Stores the Mails of all intact files again, and removes indexes that were set aside.
    /// Returns the number of Mails that were restored or repaired.
    pub(super) fn restore_from_files(
        &self,
        owner: &Did,
        now: Timestamp,
        handle: &Handle,
    ) -> Result<usize, ProjectorError> {
        let state = &mut *self.lock_state();
        self.start(state, handle)?;
        let mut dirs = self.tree().open_dirs()?;
        let scan = MailboxScan::start(&dirs, VerifyLevel::Whole)?;
        // In the order of their times, so that the Mails get their numbers in this order.
        let mut files: Vec<_> = scan.files.into_iter().collect();
        files.sort();
        let (mut restored, mut failed) = (0, 0);
        for (at, (file, found_in)) in files.iter().enumerate() {
            if at % PROGRESS_INTERVAL == PROGRESS_INTERVAL - 1 {
                tracing::info!(files = at + 1, restored, failed, "restoring Mails from files");
            }
            let location =
                MAIL_DIRS.into_iter().enumerate().find(|(at, _)| found_in & 1 << at != 0);
            let (Some((_, location)), Some(id)) = (location, mail_of(file)) else { continue };
            match self.restore_file(&mut dirs, file, &id, location, owner, now, handle)? {
                Ok(RestoreMailResult::Restored | RestoreMailResult::Repaired) => restored += 1,
                Ok(RestoreMailResult::Known) => {}
                Ok(RestoreMailResult::Rejected) => {
                    tracing::warn!(file, "Mail not restored: its author is blocked");
                    failed += 1;
                }
                Err(why) => {
                    tracing::error!(file, why, "cannot restore Mail from its file");
                    failed += 1;
                }
            }
        }
        let dir = dirs.state()?;
        for index in lost_indexes(&dir)? {
            self.visit_unknown(&dir, &index, 0, handle, &mut |entry| {
                tracing::error!(mail = %entry.id, "Mail is lost: it has no intact file");
            })?;
            dir.remove(&index)?;
        }
        tracing::info!(files = files.len(), restored, failed, "restored Mails from files");
        Ok(restored)
    }

    /// Stores the Mail of one file again, with its attachments. The inner error says why the
    /// file cannot be used.
    #[expect(clippy::too_many_arguments, reason = "the facts of one file")]
    fn restore_file(
        &self,
        dirs: &mut OpenDirs<'_>,
        file: &str,
        id: &MailId,
        location: MailLocation,
        owner: &Did,
        now: Timestamp,
        handle: &Handle,
    ) -> Result<Result<RestoreMailResult, String>, ProjectorError> {
        let part = location.dir().unwrap_or_default();
        let dir = dirs.provider_dir(part, id.provider(), false)?;
        let bytes = dir.and_then(|dir| dir.read(file, MAX_MAIL_FILE_BYTES).ok().flatten());
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        let built = match text.as_deref().map(|text| merge::restore(text, owner)) {
            Some(Ok(built)) if built.mail.header.id == *id && built.mail.file() == file => built,
            Some(Ok(_)) => return Ok(Err("the file has the name of another Mail".to_owned())),
            // The rebuild writes the file of a known Mail again.
            other => {
                let unknown = self.store().unknown_mails(vec![id.clone()]);
                if handle.block_on(unknown)?.is_empty() {
                    return Ok(Ok(RestoreMailResult::Known));
                }
                let why = other.and_then(Result::err).map(|error| error.to_string());
                return Ok(Err(why.unwrap_or_else(|| "the file is not readable".to_owned())));
            }
        };
        // The file is older than an erasure, and its attachments must not come back.
        if let Err(StoreError::Erased { .. }) =
            handle.block_on(self.store().object(built.object.id()))
        {
            return Ok(Ok(RestoreMailResult::Known));
        }
        self.restore_attachments(dirs, &built.mail, handle)?;
        // The claims are lost, so that a dead letter is a new Mail again.
        let location = match location {
            MailLocation::Deadletter => MailLocation::Inbound,
            other => other,
        };
        let restored = self.store().restore_mail(built, location, owner, now);
        match handle.block_on(restored) {
            Ok(result) => Ok(Ok(result)),
            Err(error @ StoreError::NoLocalRecipient(_)) => Ok(Err(error.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    /// Stores the attachments of a Mail that the store has lost, from the dropzone.
    fn restore_attachments(
        &self,
        dirs: &OpenDirs<'_>,
        mail: &Mail,
        handle: &Handle,
    ) -> Result<(), ProjectorError> {
        for hash in mail.header.artifacts.iter().filter_map(|artifact| artifact.hash) {
            let missing = match handle.block_on(self.store().object(hash)) {
                Ok(_) => false,
                Err(StoreError::Missing { .. } | StoreError::Damaged { .. }) => true,
                Err(error) => return Err(error.into()),
            };
            if !missing {
                continue;
            }
            match dirs.open_attachment(&hash).ok().flatten() {
                Some(file) => {
                    let mut file = tokio::fs::File::from_std(file);
                    handle.block_on(self.store().put_blob_from(&mut file, u64::MAX))?;
                }
                None => tracing::error!(mail = %mail.header.id, %hash, "attachment is lost"),
            }
        }
        Ok(())
    }

    /// Calls `visit` with the lines of an index, from the byte `start` on, that name Mails
    /// which the store does not know.
    fn visit_unknown(
        &self,
        dir: &Dir,
        index: &str,
        start: u64,
        handle: &Handle,
        visit: &mut dyn FnMut(MailIndexEntry),
    ) -> Result<(), ProjectorError> {
        let mut file = dir.append(index)?;
        io::Seek::seek(&mut file, io::SeekFrom::Start(start))?;
        let mut lines = BufReader::new(file);
        loop {
            let mut entries = Vec::new();
            let mut line = Vec::new();
            while entries.len() < MAX_IDS_PER_LOOKUP && lines.read_until(b'\n', &mut line)? > 0 {
                // The head of the index and a torn line have no Mail.
                entries.extend(serde_json::from_slice::<MailIndexEntry>(&line).ok());
                line.clear();
            }
            if entries.is_empty() {
                return Ok(());
            }
            let ids = entries.iter().map(|entry| entry.id.clone()).collect();
            let unknown = handle.block_on(self.store().unknown_mails(ids))?;
            entries.into_iter().filter(|entry| unknown.contains(&entry.id)).for_each(&mut *visit);
        }
    }
}

/// Removes the indexes that were set aside. Their lines can have text that was erased.
pub(super) fn remove_lost_indexes(dir: &Dir) -> io::Result<()> {
    lost_indexes(dir)?.iter().try_for_each(|index| dir.remove(index).map(drop))
}

/// The indexes that were set aside.
fn lost_indexes(dir: &Dir) -> io::Result<Vec<String>> {
    let names = dir.names()?.into_iter().filter_map(|entry| entry.name);
    Ok(names.filter(|name| name.starts_with(LOST_INDEX)).collect())
}
