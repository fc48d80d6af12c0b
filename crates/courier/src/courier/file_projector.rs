//! Keeps the files in the mailbox directory equal to the state in the store.
//!
//! ```text
//!   location changed ─▶ file written or moved ─▶ index line ─▶ disk synced ─▶ progress stored
//! ```
//!
//! Files are a projection of the store; no caller waits for them. The projector syncs the
//! disk once for many files and then stores its progress. After a crash, all changes after
//! the stored progress are verified by content hash, so that a power cut leaves no empty
//! or partial file.
//!
//! When the disk is full or read-only, the projector retries. A Mail that cannot be
//! written at all is reported and skipped, and tried again by the scan
//! (`mailbox_check.rs`), which also finds changed files.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use monoco_core::claim::MailLocation;
use monoco_core::courier::CourierId;
use monoco_core::mail::{MailId, MailIndexEntry};
use monoco_core::object::ObjId;
use monoco_store::{FileChange, FileProgress, SharedStore, StoreError};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::index::MailIndexFile;
use super::mailbox_check::{MIN_SCAN_INTERVAL, MailboxScan};
use super::mailbox_dir::{MailboxDir, OpenDirs};
use super::place_file::{MailFileContent, PlaceFileError, PlaceFileResult, VerifyLevel, place};
use crate::background::{self, BackgroundTask, NextStep};

pub(super) const MAX_CHANGES_PER_BATCH: usize = 500;

/// Changes whose texts are read together. Each has at most 64 KiB.
const CHANGES_PER_READ: usize = 32;

/// Interval between checks when no hint arrives.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Maximum time between a write and the sync of the disk.
const MAX_UNSYNCED: Duration = Duration::from_secs(2);

/// Limit of names in a report.
pub(super) const MAX_REPORTED_NAMES: usize = 100;

/// Writes Mail files and the index.
pub struct FileProjector {
    store: SharedStore,
    pub(super) tree: Arc<MailboxDir>,
    /// The courier whose files these are.
    courier: CourierId,
    /// Locked while files are written.
    state: Mutex<ProjectorState>,
    report: Mutex<ProjectorReport>,
}

/// Health of the Mail files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectorReport {
    /// Error that prevents all writes at the moment.
    pub trouble: Option<String>,
    /// Files that the courier did not create, as of the last scan.
    pub foreign_files: usize,
    /// Paths of the first 100 of them.
    pub foreign: Vec<String>,
    /// Missing or changed files that were written again since the start.
    pub repaired: usize,
    /// Mails that cannot be written, with the reason; at most 100.
    pub bad: BTreeMap<MailId, String>,
    /// Mails in the index or the directories that the store does not know, as of the last scan.
    pub lost_mails: usize,
    /// File names of the first 100 of them.
    pub lost: Vec<String>,
    /// Attachments and large objects without their file, as of the last scan.
    pub missing_blobs: usize,
    /// Names of the first 100 of them.
    pub missing: Vec<String>,
}

impl ProjectorReport {
    /// Whether data of the store is lost or damaged.
    pub fn has_damage(&self) -> bool {
        self.lost_mails + self.missing_blobs + self.bad.len() > 0
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ProjectorError {
    #[error("{0}")]
    Disk(#[from] io::Error),
    /// A sync failed. Everything since the last sync is written again.
    #[error("sync of the mailbox failed ({0}); files are written again")]
    Sync(io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Position of the projector.
#[derive(Default)]
pub(super) struct ProjectorState {
    /// Progress that is on disk; `None` before the first step.
    pub(super) progress: Option<FileProgress>,
    /// Number of the last change that was applied.
    pub(super) change: i64,
    /// Last change that needs more than the usual verification, and the level.
    verify_until: (i64, Option<VerifyLevel>),
    /// `None` while the index must be rewritten.
    pub(super) index: Option<MailIndexFile>,
    /// Time of the first write that is not synced.
    dirty: Option<Instant>,
    /// The scan in progress, and when the next one is due.
    pub(super) scan: Option<MailboxScan>,
    next_check: Option<Instant>,
    /// Generation of an index that was set aside because the store does not know its Mails.
    pub(super) old_generation: i64,
}

/// The projector as a background task.
struct ProjectorTask {
    projector: Arc<FileProjector>,
    changes: watch::Receiver<i64>,
}

impl BackgroundTask for ProjectorTask {
    const NAME: &'static str = "file projector";
    type Error = ProjectorError;

    async fn step(&mut self) -> Result<NextStep, ProjectorError> {
        self.changes.mark_unchanged();
        self.projector.step(false).await
    }

    async fn hint(&mut self) {
        background::changed(&mut self.changes).await;
    }
}

impl FileProjector {
    pub fn new(store: SharedStore, tree: Arc<MailboxDir>, courier: CourierId) -> Self {
        Self { store, tree, courier, state: Mutex::default(), report: Mutex::default() }
    }

    pub(super) fn courier(&self) -> CourierId {
        self.courier
    }

    pub fn report(&self) -> ProjectorReport {
        self.lock_report().clone()
    }

    /// Applies file changes until `stop` is cancelled, and then all that remain.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let changes = self.store.newest_file_change();
        let mut task = ProjectorTask { projector: Arc::clone(&self), changes };
        background::run(&mut task, &stop).await;
        loop {
            match self.step(true).await {
                Ok(NextStep::Now) => {}
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(%error, "cannot write the last Mail files before shutdown");
                    break;
                }
            }
        }
        if let Err(error) = self.blocking(|projector, handle| projector.finish(handle)).await {
            tracing::warn!(%error, "cannot sync Mail files; they are verified at the next start");
        }
    }

    async fn step(self: &Arc<Self>, stopping: bool) -> Result<NextStep, ProjectorError> {
        let step = self.blocking(move |projector, handle| projector.round(stopping, handle)).await;
        self.lock_report().trouble = step.as_ref().err().map(ToString::to_string);
        step
    }

    /// Runs `work` on a thread that may block.
    pub(super) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        state: impl FnOnce(&Self, &Handle) -> Result<T, ProjectorError> + Send + 'static,
    ) -> Result<T, ProjectorError> {
        let (projector, handle) = (Arc::clone(self), Handle::current());
        let done = tokio::task::spawn_blocking(move || state(&projector, &handle)).await;
        done.unwrap_or_else(|error| Err(io::Error::other(error).into()))
    }

    /// Applies a batch of changes. Does not scan the mailbox when the courier is `stopping`.
    fn round(&self, stopping: bool, handle: &Handle) -> Result<NextStep, ProjectorError> {
        let state = &mut *self.lock_state();
        self.start(state, handle)?;
        let mut dirs = self.tree.open_dirs()?;
        let followed = self.follow(state, &mut dirs, handle)?;
        let indexed = match state.index {
            Some(_) => self.extend(state, &mut dirs, handle)?,
            // The index is rewritten when all files are in place, so that it is complete
            // when it appears.
            None if followed => true,
            None => self.build(state, &mut dirs, handle)?,
        };
        let since = state.dirty.map(|since| since.elapsed());
        if since.is_some_and(|since| since >= MAX_UNSYNCED) {
            self.sync(state, handle)?;
        }
        let checking = !stopping && self.check_some(state, &mut dirs, handle)?;
        if followed || indexed || checking {
            return Ok(NextStep::Now);
        }
        let unsynced = state.dirty.map_or(POLL_INTERVAL, |since| {
            MAX_UNSYNCED.saturating_sub(since.elapsed()).max(Duration::from_millis(1))
        });
        let unchecked = state.next_check.map_or(POLL_INTERVAL, |at| {
            at.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
        });
        Ok(NextStep::Poll(POLL_INTERVAL.min(unsynced).min(unchecked)))
    }

    /// Reads the stored progress and opens the index; does nothing after the first call.
    pub(super) fn start(
        &self,
        state: &mut ProjectorState,
        handle: &Handle,
    ) -> Result<(), ProjectorError> {
        if state.progress.is_some() {
            return Ok(());
        }
        self.tree.create()?;
        let progress = handle.block_on(self.store.file_progress(self.courier))?;
        let newest = *self.store.newest_file_change().borrow();
        self.set_lost_index_aside(state, &progress, handle)?;
        state.index = MailIndexFile::open(&self.tree.open_dirs()?.state()?, &progress)?;
        state.change = progress.change;
        state.verify_until = (newest, Some(VerifyLevel::Whole));
        state.progress = Some(progress);
        state.next_check = Some(Instant::now());
        if state.index.is_none() {
            tracing::info!("index of Mails is missing or outdated; rewriting it");
        }
        Ok(())
    }

    /// Applies a batch of file changes. Returns whether there may be more.
    pub(super) fn follow(
        &self,
        state: &mut ProjectorState,
        dirs: &mut OpenDirs<'_>,
        handle: &Handle,
    ) -> Result<bool, ProjectorError> {
        let changes =
            handle.block_on(self.store.list_file_changes(state.change, MAX_CHANGES_PER_BATCH))?;
        for some in changes.chunks(CHANGES_PER_READ) {
            let mut texts = self.read_new_mails(some, handle)?;
            for change in some {
                let level = state.level(change.change);
                self.place_text(state, dirs, change, level, &mut texts, handle)?;
                state.change = change.change;
            }
        }
        Ok(changes.len() == MAX_CHANGES_PER_BATCH)
    }

    /// Reads the texts of Mails that most likely have no file yet.
    fn read_new_mails(
        &self,
        changes: &[FileChange],
        handle: &Handle,
    ) -> Result<HashMap<ObjId, Vec<u8>>, ProjectorError> {
        let new = changes.iter().filter(|change| change.location == MailLocation::Inbound);
        let ids: Vec<_> = new.map(|change| change.entry.msg_id).collect();
        if ids.len() < 2 {
            return Ok(HashMap::new());
        }
        Ok(handle.block_on(self.store.small_objects(ids))?)
    }

    /// Appends lines to the index. Returns whether there may be more.
    fn extend(
        &self,
        state: &mut ProjectorState,
        dirs: &mut OpenDirs<'_>,
        handle: &Handle,
    ) -> Result<bool, ProjectorError> {
        let after = state.index.as_ref().map_or(0, |index| index.seq);
        let changes =
            handle.block_on(self.store.list_index_entries(after, MAX_CHANGES_PER_BATCH))?;
        let Some(last) = changes.last().map(|change| change.entry.seq) else { return Ok(false) };
        let count = changes.len();
        let entries = self.in_place(state, dirs, changes, handle)?;
        let Some(index) = &mut state.index else { return Ok(true) };
        let appended = index.append(&dirs.state()?, &entries, last);
        state.touch();
        match appended {
            Ok(()) => Ok(count == MAX_CHANGES_PER_BATCH),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(%error, "index of Mails was changed; rewriting it");
                state.index = None;
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Rewrites the index without Mails that have no file. Returns whether there may be
    /// more.
    pub(super) fn build(
        &self,
        state: &mut ProjectorState,
        dirs: &mut OpenDirs<'_>,
        handle: &Handle,
    ) -> Result<bool, ProjectorError> {
        let progress = state.progress.unwrap_or_default();
        let generation = MailIndexFile::next_generation(&dirs.state()?, &progress)?;
        let generation = generation.max(state.old_generation.saturating_add(1));
        let mut building = MailIndexFile::build(dirs, generation)?;
        let (mut seq, mut last) = (0, None);
        loop {
            let changes =
                handle.block_on(self.store.list_index_entries(seq, MAX_CHANGES_PER_BATCH))?;
            let count = changes.len();
            let Some(end) = changes.last() else { break };
            (seq, last) = (end.entry.seq, Some(end.entry.clone()));
            // Workspaces learn from the line of an erased Mail that they must remove their copy.
            let there = changes.into_iter().filter(FileChange::is_listed).collect();
            for entry in self.in_place(state, dirs, there, handle)? {
                if Some(entry.seq) == last.as_ref().map(|last| last.seq) {
                    last = None;
                }
                building.add(&entry)?;
            }
            if count < MAX_CHANGES_PER_BATCH {
                break;
            }
        }
        // The last line is kept even without a file: readers use its number to recognise
        // the mailbox.
        if let Some(last) = last {
            building.add(&last)?;
        }
        state.index = Some(building.finish(dirs, seq)?);
        state.touch();
        Ok(true)
    }

    /// Returns the index entries of Mails whose files are in place; a Mail that cannot be
    /// written has none.
    fn in_place(
        &self,
        state: &mut ProjectorState,
        dirs: &mut OpenDirs<'_>,
        changes: Vec<FileChange>,
        handle: &Handle,
    ) -> Result<Vec<MailIndexEntry>, ProjectorError> {
        let mut entries = Vec::with_capacity(changes.len());
        for change in changes {
            // Later changes have not been applied yet.
            let placed = if change.change > state.change {
                self.place(state, dirs, &change, state.level(change.change), handle)?.is_some()
            } else {
                !self.lock_report().bad.contains_key(&change.entry.id)
            };
            if placed {
                entries.push(change.entry);
            }
        }
        Ok(entries)
    }

    /// Places one file; `None` when it cannot be written at all.
    pub(super) fn place(
        &self,
        state: &mut ProjectorState,
        dirs: &mut OpenDirs<'_>,
        change: &FileChange,
        level: VerifyLevel,
        handle: &Handle,
    ) -> Result<Option<PlaceFileResult>, ProjectorError> {
        self.place_text(state, dirs, change, level, &mut HashMap::new(), handle)
    }

    /// Like [`Self::place`], with texts that were read already.
    fn place_text(
        &self,
        state: &mut ProjectorState,
        dirs: &mut OpenDirs<'_>,
        change: &FileChange,
        level: VerifyLevel,
        texts: &mut HashMap<ObjId, Vec<u8>>,
        handle: &Handle,
    ) -> Result<Option<PlaceFileResult>, ProjectorError> {
        let mut content = MailFileContent { store: &self.store, handle, texts };
        let id = &change.entry.id;
        match place(dirs, change, level, &mut content) {
            Ok(done) => {
                if done != PlaceFileResult::Nothing {
                    state.touch();
                }
                let was_bad = self.lock_report().bad.remove(id).is_some();
                if was_bad && state.index.as_ref().is_some_and(|it| it.seq >= change.entry.seq) {
                    // The Mail was skipped in the index, and readers would never see it.
                    state.index = None;
                }
                Ok(Some(done))
            }
            Err(PlaceFileError::Disk(error)) => Err(error.into()),
            Err(PlaceFileError::Store(error)) => Err(error.into()),
            Err(PlaceFileError::Bad(why)) => {
                let bad = &mut self.lock_report().bad;
                if !bad.contains_key(id) && bad.len() < MAX_REPORTED_NAMES {
                    tracing::error!(mail = %id, why, "cannot write Mail file");
                    bad.insert(id.clone(), why);
                }
                Ok(None)
            }
        }
    }

    /// Syncs the disk and stores the progress.
    pub(super) fn sync(
        &self,
        state: &mut ProjectorState,
        handle: &Handle,
    ) -> Result<(), ProjectorError> {
        let (Some(_), Some(progress)) = (state.dirty, state.progress) else { return Ok(()) };
        if let Err(error) = self.tree.sync() {
            // Lost bytes may still be readable from the cache, so reading proves nothing:
            // everything since the last sync is written again.
            state.verify_until = (state.change.max(state.verify_until.0), Some(VerifyLevel::Fresh));
            state.change = progress.change;
            state.index = None;
            return Err(ProjectorError::Sync(error));
        }
        // Until the index is rewritten, the stored position of the old index stays valid.
        let index = state.index.as_ref();
        let progress = FileProgress {
            change: state.change,
            index_bytes: index.map_or(0, |index| index.bytes),
            index_seq: index.map_or(0, |index| index.seq),
            generation: index.map_or(progress.generation, |index| index.generation),
        };
        handle.block_on(self.store.set_file_progress(self.courier, progress))?;
        state.progress = Some(progress);
        state.dirty = None;
        Ok(())
    }

    fn finish(&self, handle: &Handle) -> Result<(), ProjectorError> {
        let state = &mut *self.lock_state();
        self.sync(state, handle)
    }

    /// Runs a batch of the scan when one is due. Returns whether the scan continues.
    fn check_some(
        &self,
        state: &mut ProjectorState,
        dirs: &mut OpenDirs<'_>,
        handle: &Handle,
    ) -> Result<bool, ProjectorError> {
        let due = state.next_check.is_some_and(|at| at <= Instant::now());
        if state.scan.is_none() && due && state.index.is_some() {
            state.scan = Some(MailboxScan::start(dirs, VerifyLevel::Usual)?);
        }
        let Some(mut scan) = state.scan.take() else { return Ok(false) };
        if self.scan_batch(state, &mut scan, dirs, handle)? {
            state.scan = Some(scan);
            return Ok(true);
        }
        // A scan uses at most 1 % of the time.
        let pause = MIN_SCAN_INTERVAL.max(scan.started.elapsed() * 100);
        state.next_check = Some(Instant::now() + pause);
        self.finish_scan(state, scan, dirs, handle)?;
        Ok(state.index.is_none())
    }

    pub(super) fn store(&self) -> &SharedStore {
        &self.store
    }

    pub(super) fn tree(&self) -> &MailboxDir {
        &self.tree
    }

    pub(super) fn lock_state(&self) -> MutexGuard<'_, ProjectorState> {
        // A panic leaves no partial file; at worst, files are verified again.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock_report(&self) -> MutexGuard<'_, ProjectorReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProjectorState {
    /// The verification level for a change.
    fn level(&self, change: i64) -> VerifyLevel {
        match self.verify_until {
            (until, Some(level)) if change <= until => level,
            _ => VerifyLevel::Usual,
        }
    }

    /// Records that there are unsynced writes.
    pub(super) fn touch(&mut self) {
        self.dirty.get_or_insert_with(Instant::now);
    }
}

#[cfg(test)]
mod tests;
