//! Scans the mailbox directory: writes missing and changed files again, and reports files
//! that the courier did not create.
//!
//! `rebuild` is the same scan with full verification and a new index.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use monoco_core::claim::MailLocation;
use monoco_core::did::Did;
use monoco_core::mail::MailId;
use monoco_core::time::Timestamp;
use monoco_mailbox::paths::MAIL_DIRS;
use monoco_store::{FileChange, SharedStore};
use tokio::runtime::Handle;

use super::drafts;
use super::file_projector::{
    FileProjector, MAX_CHANGES_PER_BATCH, MAX_REPORTED_NAMES, ProjectorError, ProjectorState,
};
use super::mailbox_dir::{MailboxDir, OpenDirs};
use super::place_file::{PlaceFileResult, VerifyLevel, is_unmodified, reason_file};

/// Minimum time between two scans.
pub(super) const MIN_SCAN_INTERVAL: Duration = Duration::from_secs(600);

/// An index with more lines than this is rewritten when less than half of its Mails have a
/// file.
const MIN_LINES_TO_SHRINK: u64 = 10_000;

/// Mails between two progress messages of a rebuild.
const PROGRESS_INTERVAL: usize = 1_000;

/// A scan of the mailbox, done in batches.
pub(super) struct MailboxScan {
    pub(super) started: Instant,
    level: VerifyLevel,
    /// Sequence number of the last Mail that was checked.
    seq: i64,
    /// Files that have the name of a Mail, with their directories: one bit per entry of
    /// [`MAIL_DIRS`].
    pub(super) files: HashMap<String, u8>,
    /// Reason files, by the name of the Mail file that they belong to.
    reasons: HashSet<String>,
    foreign: Vec<String>,
    foreign_files: usize,
    /// Number of Mails that have a file.
    live: u64,
    rebuilt: RebuildResult,
}

/// Counts of one rebuild of the mailbox directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildResult {
    pub mails: usize,
    /// Missing or changed files that were written
    pub written: usize,
    /// Files that were in the wrong directory
    pub moved: usize,
    /// Files of Mails that must not have a file there
    pub removed: usize,
    /// Mails that cannot be written; the log has the reasons
    pub bad: usize,
    /// Files that the courier did not create; they are not changed
    pub foreign: usize,
    /// Mails that were stored again from their files
    pub restored: usize,
    /// Mails of files or of the index that the store does not know
    pub lost: usize,
}

impl FileProjector {
    /// Rebuilds the mailbox directory and the index from the store.
    ///
    /// # Errors
    ///
    /// When the disk or the store fails. Files that were written before remain.
    pub async fn rebuild(self: &Arc<Self>) -> Result<RebuildResult, ProjectorError> {
        self.blocking(|projector, handle| projector.rebuild_all(0, handle)).await
    }

    /// Stores Mails again that the store has lost, from intact files, and then rebuilds the
    /// mailbox directory. Direct messages are those of `owner`.
    ///
    /// # Errors
    ///
    /// When the disk or the store fails.
    pub async fn rebuild_from_files(
        self: &Arc<Self>,
        owner: Did,
        now: Timestamp,
    ) -> Result<RebuildResult, ProjectorError> {
        self.blocking(move |projector, handle| {
            let restored = projector.restore_from_files(&owner, now, handle)?;
            projector.rebuild_all(restored, handle)
        })
        .await
    }

    /// Runs a full scan at once.
    #[cfg(test)]
    pub(super) async fn check(
        self: &Arc<Self>,
    ) -> Result<super::file_projector::ProjectorReport, ProjectorError> {
        self.blocking(|projector, handle| {
            let state = &mut *projector.lock_state();
            projector.start(state, handle)?;
            let mut dirs = projector.tree().open_dirs()?;
            let mut scan = MailboxScan::start(&dirs, VerifyLevel::Usual)?;
            while projector.scan_batch(state, &mut scan, &mut dirs, handle)? {}
            projector.finish_scan(state, scan, &dirs, handle)?;
            Ok(projector.report())
        })
        .await
    }

    fn rebuild_all(
        &self,
        restored: usize,
        handle: &Handle,
    ) -> Result<RebuildResult, ProjectorError> {
        let state = &mut *self.lock_state();
        self.start(state, handle)?;
        let mut dirs = self.tree().open_dirs()?;
        let mut scan = MailboxScan::start(&dirs, VerifyLevel::Whole)?;
        let mut told = 0;
        while self.scan_batch(state, &mut scan, &mut dirs, handle)? {
            if scan.rebuilt.mails >= told + PROGRESS_INTERVAL {
                told = scan.rebuilt.mails;
                tracing::info!(mails = told, written = scan.rebuilt.written, "rebuilding mailbox");
            }
        }
        let mut rebuilt = scan.rebuilt;
        self.finish_scan(state, scan, &dirs, handle)?;
        let report = self.report();
        (rebuilt.restored, rebuilt.lost) = (restored, report.lost_mails);
        rebuilt.foreign = report.foreign_files;
        self.build(state, &mut dirs, handle)?;
        state.touch();
        self.sync(state, handle)?;
        tracing::info!(
            rebuilt.mails,
            rebuilt.written,
            rebuilt.moved,
            rebuilt.bad,
            "mailbox rebuilt"
        );
        Ok(rebuilt)
    }

    /// Checks a batch of Mails. Returns whether there are more.
    pub(super) fn scan_batch(
        &self,
        state: &mut ProjectorState,
        scan: &mut MailboxScan,
        dirs: &mut OpenDirs<'_>,
        handle: &Handle,
    ) -> Result<bool, ProjectorError> {
        let changes =
            handle.block_on(self.store().list_index_entries(scan.seq, MAX_CHANGES_PER_BATCH))?;
        for change in &changes {
            let there = scan.files.remove(&change.entry.file).unwrap_or(0);
            let reason = scan.reasons.remove(&change.entry.file);
            scan.seq = change.entry.seq;
            scan.rebuilt.mails += 1;
            scan.live += u64::from(change.location.dir().is_some());
            if scan.level == VerifyLevel::Usual && is_in_place(dirs, change, there, reason)? {
                continue;
            }
            // The projector is about to apply this change.
            if scan.level == VerifyLevel::Usual && change.change > state.change {
                continue;
            }
            match self.place(state, dirs, change, scan.level, handle)? {
                Some(PlaceFileResult::Written) => scan.rebuilt.written += 1,
                Some(PlaceFileResult::Moved) => scan.rebuilt.moved += 1,
                Some(PlaceFileResult::Removed) => scan.rebuilt.removed += 1,
                Some(PlaceFileResult::Nothing) => {}
                None => scan.rebuilt.bad += 1,
            }
        }
        Ok(changes.len() == MAX_CHANGES_PER_BATCH)
    }

    /// Reports the results of a scan and discards the index if it must be rewritten.
    pub(super) fn finish_scan(
        &self,
        state: &mut ProjectorState,
        mut scan: MailboxScan,
        dirs: &OpenDirs<'_>,
        handle: &Handle,
    ) -> Result<(), ProjectorError> {
        let lost = self.lost_mails(&mut scan, dirs, handle)?;
        let (missing_blobs, missing) =
            handle.block_on(self.store().missing_blobs(MAX_REPORTED_NAMES))?;
        if lost.0 + missing_blobs > 0 {
            let (mails, first) = (lost.0, lost.1.first().or(missing.first()));
            tracing::error!(mails, missing_blobs, first, "data of the store is lost");
        }
        scan.report_rest();
        let RebuildResult { written, moved, removed, .. } = scan.rebuilt;
        if written + moved + removed > 0 {
            tracing::warn!(
                written,
                moved,
                removed,
                "repaired Mail files that were missing or changed"
            );
        }
        if scan.foreign_files > 0 {
            let first = scan.foreign.first().map(String::as_str);
            tracing::warn!(files = scan.foreign_files, first, "unknown files in mailbox directory");
        }
        let mut report = self.lock_report();
        (report.lost_mails, report.lost) = lost;
        (report.missing_blobs, report.missing) = (missing_blobs, missing);
        report.repaired += written + moved + removed;
        report.foreign_files = scan.foreign_files;
        report.foreign = scan.foreign;
        if let Some(index) = &state.index {
            let shrink = should_shrink(index.lines, scan.live);
            if shrink || !index.is_there(&dirs.state()?)? {
                tracing::info!(lines = index.lines, mails = scan.live, "rewriting index of Mails");
                state.index = None;
            }
        }
        Ok(())
    }
}

/// Rebuilds the mailbox directory while no courier runs. The caller holds the lock of the
/// home directory.
///
/// # Errors
///
/// When the disk or the store fails.
pub async fn rebuild_offline(
    store: SharedStore,
    mailbox: PathBuf,
    dropzone: PathBuf,
    from_files: Option<(Did, Timestamp)>,
) -> Result<RebuildResult, ProjectorError> {
    let tree = Arc::new(MailboxDir::new(mailbox, dropzone));
    let projector = Arc::new(FileProjector::new(store, tree));
    match from_files {
        Some((owner, now)) => projector.rebuild_from_files(owner, now).await,
        None => projector.rebuild().await,
    }
}

impl MailboxScan {
    /// Lists the files that are present.
    pub(super) fn start(dirs: &OpenDirs<'_>, level: VerifyLevel) -> io::Result<Self> {
        let mut scan = Self {
            started: Instant::now(),
            level,
            seq: 0,
            files: HashMap::new(),
            reasons: HashSet::new(),
            foreign: Vec::new(),
            foreign_files: 0,
            live: 0,
            rebuilt: RebuildResult::default(),
        };
        for (at, place) in MAIL_DIRS.into_iter().enumerate() {
            let Some(part) = place.dir() else { continue };
            scan.list(dirs, part, 1 << at)?;
        }
        Ok(scan)
    }

    fn list(&mut self, dirs: &OpenDirs<'_>, part: &str, bit: u8) -> io::Result<()> {
        let dir = dirs.root().make(part)?;
        for provider in dir.names()? {
            let name = provider.name.unwrap_or_else(|| "?".to_owned());
            let Some(subdir) = dir.sub(&name).ok() else {
                self.report(format!("{part}/{name}"));
                continue;
            };
            for entry in subdir.names()? {
                let Some(file) = entry.name else {
                    self.report(format!("{part}/{name}/?"));
                    continue;
                };
                let given_up = file.strip_suffix(".reason.json");
                if mail_of(&file).is_some_and(|id| id.provider() == name) {
                    *self.files.entry(file).or_default() |= bit;
                } else if let Some(of) = given_up.filter(|of| mail_of(of).is_some()) {
                    self.reasons.insert(of.to_owned());
                } else if !drafts::is_draft_file(part, &file) {
                    self.report(format!("{part}/{name}/{file}"));
                }
            }
        }
        Ok(())
    }

    fn report(&mut self, path: String) {
        self.foreign_files += 1;
        if self.foreign.len() < MAX_REPORTED_NAMES {
            self.foreign.push(path);
        }
    }

    /// Reports the files that have the name of a Mail and are not its file.
    fn report_rest(&mut self) {
        let mut rest: Vec<_> = self.files.drain().map(|(file, _)| file).collect();
        rest.extend(self.reasons.drain().map(|of| reason_file(&of)));
        rest.sort();
        rest.into_iter().for_each(|file| self.report(file));
    }
}

/// Whether the index should be rewritten without purged Mails.
const fn should_shrink(lines: u64, live: u64) -> bool {
    lines > MIN_LINES_TO_SHRINK && live < lines / 2
}

/// Whether the file is in the right directory only, and unmodified.
fn is_in_place(
    dirs: &mut OpenDirs<'_>,
    change: &FileChange,
    there: u8,
    reason: bool,
) -> Result<bool, ProjectorError> {
    let Some(at) = MAIL_DIRS.iter().position(|place| *place == change.location) else {
        return Ok(there == 0 && !reason);
    };
    if there != 1 << at || reason != (change.location == MailLocation::Deadletter) {
        return Ok(false);
    }
    let Some(part) = change.location.dir() else { return Ok(true) };
    match dirs.provider_dir(part, change.entry.id.provider(), false) {
        Ok(Some(dir)) => Ok(is_unmodified(&dir, &change.entry)?),
        _ => Ok(false),
    }
}

/// The Mail id in a file name; `None` when the name is not that of a Mail file.
pub fn mail_of(file: &str) -> Option<MailId> {
    let (_time, id) = file.strip_suffix(".md")?.split_once('_')?;
    id.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_index_with_mostly_purged_mails_is_rewritten() {
        for (lines, live, shrinks) in
            [(10_000, 0, false), (10_001, 0, true), (20_000, 9_999, true), (20_000, 10_000, false)]
        {
            assert_eq!(should_shrink(lines, live), shrinks, "{lines} {live}");
        }
    }
}
