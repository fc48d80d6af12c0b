//! Makes the mailbox's files what the store says they should be.
//!
//! ```text
//!   a place changed ─▶ file written or moved ─▶ line in the index ─▶ disk synced ─▶ noted
//! ```
//!
//! Files are a projection. Nobody waits for them: what is acknowledged is in the store,
//! and this loop follows. It syncs the disk once for many files, and only then notes in
//! the store how far it is. After a crash everything behind that note is looked at again,
//! file by file and hash by hash, so that a power cut leaves no empty or torn file, and
//! costs only what was not noted.
//!
//! What can't be written now is written later: a full or read-only disk is waited out.
//! A Mail that can't be written at all is noted and passed over, and tried again by the
//! check (`check.rs`), which also looks for files that somebody has changed.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use monoco_core::claim::MailLocation;
use monoco_core::mail::{MailId, MailIndexEntry};
use monoco_core::object::ObjId;
use monoco_store::{FileChange, FileProgress, SharedStore, StoreError};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::index::MailIndexFile;
use super::mailbox_check::{CHECK_EVERY, MailboxScan};
use super::mailbox_dir::{MailboxDir, OpenDirs};
use super::place_file::{PlaceFileError, PlaceFileResult, VerifyLevel, place};
use crate::background::{self, BackgroundTask, NextStep};

/// Most changes in one go.
pub(super) const AT_ONCE: usize = 500;

/// Interval between checks when no hint arrives.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// How long what is written may wait for the disk.
const SYNC_EVERY: Duration = Duration::from_secs(2);

/// Most names that a report gives.
pub(super) const SHOWN: usize = 100;

/// Follows the store with files.
pub struct FileProjector {
    store: SharedStore,
    tree: Arc<MailboxDir>,
    /// Held while files are written.
    work: Mutex<ProjectorState>,
    report: Mutex<ProjectorReport>,
}

/// How the files are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectorReport {
    /// Why nothing can be written at the moment, when that is so.
    pub trouble: Option<String>,
    /// Files in the mailbox that are not ours, as of the last check.
    pub foreign_files: usize,
    /// The first of them.
    pub foreign: Vec<String>,
    /// Files that were missing or changed and were written again, since the start.
    pub repaired: usize,
    /// Mails that can't be written, and why; not more than a hundred.
    pub bad: BTreeMap<MailId, String>,
}

/// Why the files are not what they should be.
#[derive(Debug, thiserror::Error)]
pub enum ProjectorError {
    /// The disk says no.
    #[error("{0}")]
    Disk(#[from] io::Error),
    /// A sync failed: what was written since the last one is written again.
    #[error("the disk lost a write ({0}); the files are written again")]
    Sync(io::Error),
    /// The store says no.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How far we are.
#[derive(Default)]
pub(super) struct ProjectorState {
    /// How far the files surely are; `None` before the first look.
    pub(super) filed: Option<FileProgress>,
    /// The last change that was followed.
    pub(super) change: i64,
    /// Up to which change nothing is taken for granted.
    careful: (i64, Option<VerifyLevel>),
    /// The index; `None` while it is to be made anew.
    pub(super) index: Option<MailIndexFile>,
    /// Since when something is written and not synced.
    dirty: Option<Instant>,
    /// The check that is under way, and when the next one is due.
    pub(super) walk: Option<MailboxScan>,
    next_check: Option<Instant>,
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
    /// The filer of a mailbox.
    pub fn new(store: SharedStore, tree: Arc<MailboxDir>) -> Self {
        Self { store, tree, work: Mutex::default(), report: Mutex::default() }
    }

    /// How the files are.
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

    /// Does work that waits for the disk where it holds up nobody.
    pub(super) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self, &Handle) -> Result<T, ProjectorError> + Send + 'static,
    ) -> Result<T, ProjectorError> {
        let (filer, handle) = (Arc::clone(self), Handle::current());
        let done = tokio::task::spawn_blocking(move || work(&filer, &handle)).await;
        done.unwrap_or_else(|error| Err(io::Error::other(error).into()))
    }

    /// Applies a batch of changes. Does not scan the mailbox when the courier is `stopping`.
    fn round(&self, stopping: bool, handle: &Handle) -> Result<NextStep, ProjectorError> {
        let work = &mut *self.lock_work();
        self.start(work, handle)?;
        let mut hands = self.tree.open_dirs()?;
        let followed = self.follow(work, &mut hands, handle)?;
        let indexed = match work.index {
            Some(_) => self.extend(work, &mut hands, handle)?,
            // Made when everything is in place, so that it is whole when it appears.
            None if followed => true,
            None => self.build(work, &mut hands, handle)?,
        };
        let since = work.dirty.map(|since| since.elapsed());
        if since.is_some_and(|since| since >= SYNC_EVERY) {
            self.sync(work, handle)?;
        }
        let checking = !stopping && self.check_some(work, &mut hands, handle)?;
        if followed || indexed || checking {
            return Ok(NextStep::Now);
        }
        let unsynced = work.dirty.map_or(POLL_INTERVAL, |since| {
            SYNC_EVERY.saturating_sub(since.elapsed()).max(Duration::from_millis(1))
        });
        let unchecked = work.next_check.map_or(POLL_INTERVAL, |at| {
            at.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
        });
        Ok(NextStep::Poll(POLL_INTERVAL.min(unsynced).min(unchecked)))
    }

    /// The first look: where the last courier stopped.
    pub(super) fn start(
        &self,
        work: &mut ProjectorState,
        handle: &Handle,
    ) -> Result<(), ProjectorError> {
        if work.filed.is_some() {
            return Ok(());
        }
        self.tree.create()?;
        let filed = handle.block_on(self.store.file_progress())?;
        let newest = *self.store.newest_file_change().borrow();
        work.index = MailIndexFile::open(&self.tree.open_dirs()?.state()?, &filed)?;
        work.change = filed.change;
        work.careful = (newest, Some(VerifyLevel::Whole));
        work.filed = Some(filed);
        work.next_check = Some(Instant::now());
        if work.index.is_none() {
            tracing::info!("the index of Mails is made anew");
        }
        Ok(())
    }

    /// Puts files where they belong. Returns whether there may be more.
    fn follow(
        &self,
        work: &mut ProjectorState,
        hands: &mut OpenDirs<'_>,
        handle: &Handle,
    ) -> Result<bool, ProjectorError> {
        let filings = handle.block_on(self.store.list_file_changes(work.change, AT_ONCE))?;
        for filing in &filings {
            self.place(work, hands, filing, work.care(filing.change), handle)?;
            work.change = filing.change;
        }
        Ok(filings.len() == AT_ONCE)
    }

    /// Adds lines to the index. Returns whether there may be more.
    fn extend(
        &self,
        work: &mut ProjectorState,
        hands: &mut OpenDirs<'_>,
        handle: &Handle,
    ) -> Result<bool, ProjectorError> {
        let after = work.index.as_ref().map_or(0, |index| index.seq);
        let filings = handle.block_on(self.store.list_index_entries(after, AT_ONCE))?;
        let Some(last) = filings.last().map(|filing| filing.entry.seq) else { return Ok(false) };
        let count = filings.len();
        let entries = self.in_place(work, hands, filings, handle)?;
        let Some(index) = &mut work.index else { return Ok(true) };
        let appended = index.append(&hands.state()?, &entries, last);
        work.touch();
        match appended {
            Ok(()) => Ok(count == AT_ONCE),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(%error, "the index of Mails is made anew");
                work.index = None;
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the index anew, without Mails that have no file any more. Returns whether
    /// there may be more.
    pub(super) fn build(
        &self,
        work: &mut ProjectorState,
        hands: &mut OpenDirs<'_>,
        handle: &Handle,
    ) -> Result<bool, ProjectorError> {
        let filed = work.filed.unwrap_or_default();
        let generation = MailIndexFile::next_generation(&hands.state()?, &filed)?;
        let mut building = MailIndexFile::build(hands, generation)?;
        let (mut seq, mut last) = (0, None);
        loop {
            let filings = handle.block_on(self.store.list_index_entries(seq, AT_ONCE))?;
            let count = filings.len();
            let Some(end) = filings.last() else { break };
            (seq, last) = (end.entry.seq, Some(end.entry.clone()));
            let gone = |place: MailLocation| place.dir().is_none();
            let there = filings.into_iter().filter(|filing| !gone(filing.place)).collect();
            for entry in self.in_place(work, hands, there, handle)? {
                if Some(entry.seq) == last.as_ref().map(|last| last.seq) {
                    last = None;
                }
                building.add(&entry)?;
            }
            if count < AT_ONCE {
                break;
            }
        }
        // The last one stays, file or not: readers tell by its number that this is the
        // mailbox they know.
        if let Some(last) = last {
            building.add(&last)?;
        }
        work.index = Some(building.finish(hands, seq)?);
        work.touch();
        Ok(true)
    }

    /// The lines of Mails, once their files are in place. One that can't be written has
    /// none.
    fn in_place(
        &self,
        work: &mut ProjectorState,
        hands: &mut OpenDirs<'_>,
        filings: Vec<FileChange>,
        handle: &Handle,
    ) -> Result<Vec<MailIndexEntry>, ProjectorError> {
        let mut entries = Vec::with_capacity(filings.len());
        for filing in filings {
            // What changed since is behind us in the order of changes.
            let placed = if filing.change > work.change {
                self.place(work, hands, &filing, work.care(filing.change), handle)?.is_some()
            } else {
                !self.lock_report().bad.contains_key(&filing.entry.id)
            };
            if placed {
                entries.push(filing.entry);
            }
        }
        Ok(entries)
    }

    /// Puts one file where it belongs; `None` when it can't be written at all.
    pub(super) fn place(
        &self,
        work: &mut ProjectorState,
        hands: &mut OpenDirs<'_>,
        filing: &FileChange,
        care: VerifyLevel,
        handle: &Handle,
    ) -> Result<Option<PlaceFileResult>, ProjectorError> {
        let mut load = |id: ObjId| handle.block_on(self.store.object(id));
        let id = &filing.entry.id;
        match place(hands, filing, care, &mut load) {
            Ok(done) => {
                if done != PlaceFileResult::Nothing {
                    work.touch();
                }
                let was_bad = self.lock_report().bad.remove(id).is_some();
                if was_bad && work.index.as_ref().is_some_and(|it| it.seq >= filing.entry.seq) {
                    // It was passed over, and nobody would ever see it.
                    work.index = None;
                }
                Ok(Some(done))
            }
            Err(PlaceFileError::Disk(error)) => Err(error.into()),
            Err(PlaceFileError::Store(error)) => Err(error.into()),
            Err(PlaceFileError::Bad(why)) => {
                let bad = &mut self.lock_report().bad;
                if !bad.contains_key(id) && bad.len() < SHOWN {
                    tracing::error!(mail = %id, why, "this Mail has no file");
                    bad.insert(id.clone(), why);
                }
                Ok(None)
            }
        }
    }

    /// Brings what was written to disk, and notes that it is.
    pub(super) fn sync(
        &self,
        work: &mut ProjectorState,
        handle: &Handle,
    ) -> Result<(), ProjectorError> {
        let (Some(_), Some(filed)) = (work.dirty, work.filed) else { return Ok(()) };
        if let Err(error) = self.tree.sync() {
            // Bytes that were lost may still be there to be read, so reading proves
            // nothing: what was written since the last sync is written again.
            work.careful = (work.change.max(work.careful.0), Some(VerifyLevel::Fresh));
            work.change = filed.change;
            work.index = None;
            return Err(ProjectorError::Sync(error));
        }
        // A new index is noted when there is one; until then the old note is true.
        let index = work.index.as_ref();
        let filed = FileProgress {
            change: work.change,
            index_bytes: index.map_or(0, |index| index.bytes),
            index_seq: index.map_or(0, |index| index.seq),
            generation: index.map_or(filed.generation, |index| index.generation),
        };
        handle.block_on(self.store.set_file_progress(filed))?;
        work.filed = Some(filed);
        work.dirty = None;
        Ok(())
    }

    fn finish(&self, handle: &Handle) -> Result<(), ProjectorError> {
        let work = &mut *self.lock_work();
        self.sync(work, handle)
    }

    /// Does a piece of the check, when one is due. Returns whether it goes on.
    fn check_some(
        &self,
        work: &mut ProjectorState,
        hands: &mut OpenDirs<'_>,
        handle: &Handle,
    ) -> Result<bool, ProjectorError> {
        let due = work.next_check.is_some_and(|at| at <= Instant::now());
        if work.walk.is_none() && due && work.index.is_some() {
            work.walk = Some(MailboxScan::start(hands, VerifyLevel::Usual)?);
        }
        let Some(mut walk) = work.walk.take() else { return Ok(false) };
        if self.walk_some(work, &mut walk, hands, handle)? {
            work.walk = Some(walk);
            return Ok(true);
        }
        // Whatever it costs, it costs a hundredth of our time.
        let pause = CHECK_EVERY.max(walk.started.elapsed() * 100);
        work.next_check = Some(Instant::now() + pause);
        self.end_walk(work, walk, hands)?;
        Ok(work.index.is_none())
    }

    pub(super) fn store(&self) -> &SharedStore {
        &self.store
    }

    pub(super) fn tree(&self) -> &MailboxDir {
        &self.tree
    }

    pub(super) fn lock_work(&self) -> MutexGuard<'_, ProjectorState> {
        // Whoever panicked with it left files whole; at worst they are looked at again.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock_report(&self) -> MutexGuard<'_, ProjectorReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProjectorState {
    /// How much is taken for granted about what this change was about.
    fn care(&self, change: i64) -> VerifyLevel {
        match self.careful {
            (until, Some(care)) if change <= until => care,
            _ => VerifyLevel::Usual,
        }
    }

    /// Something was written.
    pub(super) fn touch(&mut self) {
        self.dirty.get_or_insert_with(Instant::now);
    }
}

#[cfg(test)]
mod tests;
