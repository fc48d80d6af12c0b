//! Looks through the whole mailbox: for files that are missing or changed, which are
//! written again, and for files that are not ours, which are reported and left alone.
//!
//! `rebuild` is the same walk with nothing taken for granted, and a new index.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use monoco_core::claim::MailLocation;
use monoco_core::mail::MailId;
use monoco_mailbox::paths::MAIL_DIRS;
use monoco_store::{FileChange, SharedStore};
use tokio::runtime::Handle;

use super::drafts;
use super::file_projector::{AT_ONCE, FileProjector, ProjectorError, ProjectorState, SHOWN};
use super::mailbox_dir::{MailboxDir, OpenDirs};
use super::place_file::{PlaceFileResult, VerifyLevel, looks_right, reason_file};

/// How often everything is looked through, at most.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(600);

/// An index of more lines than this is made anew when most of them are of Mails gone.
const WORTH_SHRINKING: u64 = 10_000;

/// How often a rebuild says how far it is, in Mails.
const TELL_EVERY: usize = 1_000;

/// A walk through the mailbox, a piece at a time.
pub(super) struct MailboxScan {
    pub(super) started: Instant,
    care: VerifyLevel,
    /// The last Mail that was looked at.
    seq: i64,
    /// Files that may be ours, and where they are: a bit for each of [`MAIL_DIRS`].
    files: HashMap<String, u8>,
    /// Files that say why another one was given up, by the name of that.
    reasons: HashSet<String>,
    foreign: Vec<String>,
    foreign_files: usize,
    /// Mails that have a file.
    live: u64,
    rebuilt: RebuildResult,
}

/// What a rebuild did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildResult {
    /// Mails there are
    pub mails: usize,
    /// Files that were missing or changed, and were written
    pub written: usize,
    /// Files that were in another place
    pub moved: usize,
    /// Files of Mails that should have none there
    pub removed: usize,
    /// Mails that can't be written; the log says why
    pub bad: usize,
    /// Files that are not ours; they are left alone
    pub foreign: usize,
}

impl FileProjector {
    /// Makes the whole tree again from the store.
    ///
    /// # Errors
    ///
    /// When the disk or the store says no. What was written until then stays.
    pub async fn rebuild(self: &Arc<Self>) -> Result<RebuildResult, ProjectorError> {
        self.blocking(Self::rebuild_all).await
    }

    /// Looks through everything now.
    #[cfg(test)]
    pub(super) async fn check(
        self: &Arc<Self>,
    ) -> Result<super::file_projector::ProjectorReport, ProjectorError> {
        self.blocking(|filer, handle| {
            let work = &mut *filer.lock_work();
            filer.start(work, handle)?;
            let mut hands = filer.tree().open_dirs()?;
            let mut walk = MailboxScan::start(&hands, VerifyLevel::Usual)?;
            while filer.walk_some(work, &mut walk, &mut hands, handle)? {}
            filer.end_walk(work, walk, &hands)?;
            Ok(filer.report())
        })
        .await
    }

    fn rebuild_all(&self, handle: &Handle) -> Result<RebuildResult, ProjectorError> {
        let work = &mut *self.lock_work();
        self.start(work, handle)?;
        let mut hands = self.tree().open_dirs()?;
        let mut walk = MailboxScan::start(&hands, VerifyLevel::Whole)?;
        let mut told = 0;
        while self.walk_some(work, &mut walk, &mut hands, handle)? {
            if walk.rebuilt.mails >= told + TELL_EVERY {
                told = walk.rebuilt.mails;
                tracing::info!(mails = told, written = walk.rebuilt.written, "rebuilding");
            }
        }
        let rebuilt = walk.rebuilt();
        self.end_walk(work, walk, &hands)?;
        self.build(work, &mut hands, handle)?;
        work.touch();
        self.sync(work, handle)?;
        tracing::info!(rebuilt.mails, rebuilt.written, rebuilt.moved, rebuilt.bad, "rebuilt");
        Ok(rebuilt)
    }

    /// Looks at some Mails. Returns whether there are more.
    pub(super) fn walk_some(
        &self,
        work: &mut ProjectorState,
        walk: &mut MailboxScan,
        hands: &mut OpenDirs<'_>,
        handle: &Handle,
    ) -> Result<bool, ProjectorError> {
        let filings = handle.block_on(self.store().list_index_entries(walk.seq, AT_ONCE))?;
        for filing in &filings {
            let there = walk.files.remove(&filing.entry.file).unwrap_or(0);
            let reason = walk.reasons.remove(&filing.entry.file);
            walk.seq = filing.entry.seq;
            walk.rebuilt.mails += 1;
            walk.live += u64::from(filing.place.dir().is_some());
            if walk.care == VerifyLevel::Usual && is_well(hands, filing, there, reason)? {
                continue;
            }
            // What changed just now is about to be followed anyway.
            if walk.care == VerifyLevel::Usual && filing.change > work.change {
                continue;
            }
            match self.place(work, hands, filing, walk.care, handle)? {
                Some(PlaceFileResult::Written) => walk.rebuilt.written += 1,
                Some(PlaceFileResult::Moved) => walk.rebuilt.moved += 1,
                Some(PlaceFileResult::Removed) => walk.rebuilt.removed += 1,
                Some(PlaceFileResult::Nothing) => {}
                None => walk.rebuilt.bad += 1,
            }
        }
        Ok(filings.len() == AT_ONCE)
    }

    /// Draws the conclusions of a walk.
    pub(super) fn end_walk(
        &self,
        work: &mut ProjectorState,
        mut walk: MailboxScan,
        hands: &OpenDirs<'_>,
    ) -> io::Result<()> {
        walk.count_rest();
        let RebuildResult { written, moved, removed, .. } = walk.rebuilt;
        if written + moved + removed > 0 {
            tracing::warn!(written, moved, removed, "files were not as we left them");
        }
        if walk.foreign_files > 0 {
            let first = walk.foreign.first().map(String::as_str);
            tracing::warn!(files = walk.foreign_files, first, "files that are not ours");
        }
        let mut report = self.lock_report();
        report.repaired += written + moved + removed;
        report.foreign_files = walk.foreign_files;
        report.foreign = walk.foreign;
        if let Some(index) = &work.index {
            let shrink = is_mostly_gone(index.lines, walk.live);
            if shrink || !index.is_there(&hands.state()?)? {
                tracing::info!(lines = index.lines, mails = walk.live, "the index is made anew");
                work.index = None;
            }
        }
        Ok(())
    }
}

/// Makes the whole tree again from the store while no courier runs. The caller holds
/// the lock of the home.
///
/// # Errors
///
/// When the disk or the store says no.
pub async fn rebuild_offline(
    store: SharedStore,
    mailbox: PathBuf,
    dropzone: PathBuf,
) -> Result<RebuildResult, ProjectorError> {
    let tree = Arc::new(MailboxDir::new(mailbox, dropzone));
    Arc::new(FileProjector::new(store, tree)).rebuild().await
}

impl MailboxScan {
    /// Starts with what is there.
    pub(super) fn start(hands: &OpenDirs<'_>, care: VerifyLevel) -> io::Result<Self> {
        let mut walk = Self {
            started: Instant::now(),
            care,
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
            walk.list(hands, part, 1 << at)?;
        }
        Ok(walk)
    }

    fn list(&mut self, hands: &OpenDirs<'_>, part: &str, bit: u8) -> io::Result<()> {
        let dir = hands.root().make(part)?;
        for provider in dir.names()? {
            let name = provider.name.unwrap_or_else(|| "?".to_owned());
            let Some(shelf) = dir.sub(&name).ok() else {
                self.report(format!("{part}/{name}"));
                continue;
            };
            for named in shelf.names()? {
                let Some(file) = named.name else {
                    self.report(format!("{part}/{name}/?"));
                    continue;
                };
                let given_up = file.strip_suffix(".reason.json");
                if mail_of(&file).is_some_and(|id| id.provider() == name) {
                    *self.files.entry(file).or_default() |= bit;
                } else if let Some(of) = given_up.filter(|of| mail_of(of).is_some()) {
                    self.reasons.insert(of.to_owned());
                } else if !drafts::is_file_of_ours(part, &file) {
                    self.report(format!("{part}/{name}/{file}"));
                }
            }
        }
        Ok(())
    }

    fn report(&mut self, path: String) {
        self.foreign_files += 1;
        if self.foreign.len() < SHOWN {
            self.foreign.push(path);
        }
    }

    /// What is left looks like ours, and no Mail has it.
    fn count_rest(&mut self) {
        let mut rest: Vec<_> = self.files.drain().map(|(file, _)| file).collect();
        rest.extend(self.reasons.drain().map(|of| reason_file(&of)));
        rest.sort();
        rest.into_iter().for_each(|file| self.report(file));
    }

    fn rebuilt(&self) -> RebuildResult {
        let rest = self.files.len() + self.reasons.len();
        RebuildResult { foreign: self.foreign_files + rest, ..self.rebuilt }
    }
}

/// Whether an index is worth making anew without those that are gone.
const fn is_mostly_gone(lines: u64, live: u64) -> bool {
    lines > WORTH_SHRINKING && live < lines / 2
}

/// Whether a file is where it should be, and nowhere else, and nobody has written to
/// it.
fn is_well(
    hands: &mut OpenDirs<'_>,
    filing: &FileChange,
    there: u8,
    reason: bool,
) -> Result<bool, ProjectorError> {
    let Some(at) = MAIL_DIRS.iter().position(|place| *place == filing.place) else {
        return Ok(there == 0 && !reason);
    };
    if there != 1 << at || reason != (filing.place == MailLocation::Deadletter) {
        return Ok(false);
    }
    let Some(part) = filing.place.dir() else { return Ok(true) };
    match hands.provider_dir(part, filing.entry.id.provider(), false) {
        Ok(Some(dir)) => Ok(looks_right(&dir, &filing.entry)?),
        _ => Ok(false),
    }
}

/// The Mail that a name may be the file of.
fn mail_of(file: &str) -> Option<MailId> {
    let (_time, id) = file.strip_suffix(".md")?.split_once('_')?;
    id.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_shrinks_when_it_is_long_and_mostly_of_what_is_gone() {
        for (lines, live, shrinks) in
            [(10_000, 0, false), (10_001, 0, true), (20_000, 9_999, true), (20_000, 10_000, false)]
        {
            assert_eq!(is_mostly_gone(lines, live), shrinks, "{lines} {live}");
        }
    }
}
