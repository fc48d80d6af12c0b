//! Pulling: what is new in the index, and matches the rules, is linked into the inbox.
//!
//! The cursor is written after the links that it stands for, so whoever is killed in
//! between does a few again and loses none. What is there already is not fetched
//! again; what the user deleted stays away, until he asks for all of it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use monoco_core::filter::{FilterInput, FilterReport};
use monoco_core::mail::{self, MailIndexEntry, digest};
use monoco_core::time::Timestamp;
use monoco_fs::FileOptions;
use serde::Serialize;

use super::cursor::{MAX_REFUSED, RejectedFile, SyncCursor};
use super::index::{IndexLine, IndexReader, ResumePosition};
use super::paths::{self, MailFile, MailboxPaths};
use super::workspace::WorkspaceDir;
use super::{MailboxError, at, inbox_cache};

/// How many Mails are pulled before the cursor is written.
const BATCH: u64 = if cfg!(test) { 100 } else { 4_000 };

/// Up to how many files are brought to disk one by one.
const FEW: usize = if cfg!(test) { 10 } else { 50 };

/// How many lines are read before progress is reported.
const BEAT: u64 = 2_000;

/// How far behind the newest Mail one may be whose file is missing, to be looked for again:
/// it was removed by hand, or a power cut came before it. What was thrown away by age is
/// older, or does not come back.
const MISSING: Duration = Duration::from_secs(2 * 86_400);

/// What is to be pulled.
#[derive(Clone, Debug, Default)]
pub struct SyncOptions {
    /// Look at all Mails, not only at new ones.
    pub full: bool,
    /// Pass over Mails from before this.
    pub since: Option<Timestamp>,
    /// Only look at Mails of this provider. The cursor stays, for the sake of the others.
    pub provider: Option<String>,
    /// Ask before each.
    pub ask: bool,
    /// Change nothing.
    pub dry_run: bool,
    /// Report what the rules say of each.
    pub explain: bool,
}

/// What happens on the way. The answer only counts for [`Step::Ask`].
#[derive(Debug)]
pub enum SyncEvent<'a> {
    /// A Mail is now in the inbox, or would be.
    Pulled {
        /// The Mail.
        entry: &'a MailIndexEntry,
        /// Its file there.
        path: &'a Path,
    },
    /// What the rules say of a Mail.
    Explained {
        /// The Mail.
        entry: &'a MailIndexEntry,
        /// What they say.
        explained: FilterReport,
    },
    /// Whether to pull this one.
    Ask(&'a MailIndexEntry),
    /// Something that a person should know.
    Warning(String),
    /// How many Mails were looked at.
    Progress(u64),
}

/// How it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SyncSummary {
    /// Pulled into the inbox.
    pub pulled: u64,
    /// Matched, and were there already.
    pub present: u64,
    /// Not matched by any rule, too old, or not wanted.
    pub passed_over: u64,
    /// Matched, and were not what the courier wrote.
    pub refused: u64,
    /// Matched, and thrown away by age before we came.
    pub gone: u64,
}

/// Pulls into `here` what is new in `tree`.
///
/// # Errors
///
/// When a file can't be read or written. What was pulled before that stays.
pub fn sync(
    here: &WorkspaceDir,
    tree: &MailboxPaths,
    wish: &SyncOptions,
    tell: &mut dyn FnMut(SyncEvent<'_>) -> bool,
) -> Result<SyncSummary, MailboxError> {
    let _lock = if wish.dry_run { None } else { Some(here.lock()?) };
    let before = SyncCursor::load(&here.cursor())?;
    let Some(mut index) = IndexReader::open(&tree.index())? else {
        return Ok(SyncSummary::default());
    };
    if !before.rules.is_empty() && before.rules != here.rules && !wish.full {
        let words =
            "the rules have changed; `monoco mailbox sync --full` looks at older Mails again";
        tell(SyncEvent::Warning(words.to_owned()));
    }
    let inbox = if wish.dry_run { here.inbox() } else { here.ensure_inbox()? };
    let noted = inbox_cache::is_current(here);
    let mut round = SyncRun {
        here,
        tree,
        wish,
        tell,
        inbox,
        summary: SyncSummary::default(),
        refused: Vec::new(),
        missing: Vec::new(),
        newest: Timestamp::default(),
        fresh: Vec::new(),
        names: Vec::new(),
    };
    let resumed = if wish.full { ResumePosition::After(0) } else { index.resume(&before)? };
    let ResumePosition::After(after) = resumed else { return Ok(SyncSummary::default()) };
    let again = round.look_again(&mut index, &before, after)?;
    let (first, rules) = (index.first()?, here.rules.clone());
    let mut cursor = SyncCursor { first, rules, ..before.clone() };
    let mut lines = 0;
    while let Some(IndexLine { start, end, entry }) = index.next()? {
        match &entry {
            Some(entry) if entry.seq > after || again.contains(&entry.seq) => {
                round.look_at(entry, start)?;
            }
            Some(_) => {}
            None => round.warn(format!("{}: a line can't be read", tree.index().display())),
        }
        cursor.generation = index.generation;
        cursor.offset = end;
        if let Some(entry) = entry {
            cursor.last_line = start;
            cursor.seq = entry.seq;
        }
        lines += 1;
        if lines % BEAT == 0 {
            (round.tell)(SyncEvent::Progress(lines));
        }
        // Reading from the start must not take the cursor back in between.
        if round.fresh.len() as u64 >= BATCH && cursor.seq >= before.seq {
            round.settle(&cursor, &before)?;
        }
    }
    round.settle(&cursor, &before)?;
    if !round.names.is_empty() {
        // Nobody is worse off without it than by some milliseconds.
        let _ =
            if noted { inbox_cache::add(here, &round.names) } else { inbox_cache::rebuild(here) };
    }
    Ok(round.summary)
}

/// One run of [`sync`].
struct SyncRun<'a> {
    here: &'a WorkspaceDir,
    tree: &'a MailboxPaths,
    wish: &'a SyncOptions,
    tell: &'a mut dyn FnMut(SyncEvent<'_>) -> bool,
    inbox: PathBuf,
    summary: SyncSummary,
    refused: Vec<RejectedFile>,
    /// Mails that should have a file and have none, and when they came.
    missing: Vec<(RejectedFile, Timestamp)>,
    /// When the newest Mail came.
    newest: Timestamp,
    /// What was pulled and may not be on disk yet.
    fresh: Vec<PathBuf>,
    names: Vec<String>,
}

/// How a Mail came into the inbox.
enum LinkResult {
    Linked,
    Copied,
    Present,
    /// Its file moved just then.
    Moved,
}

impl SyncRun<'_> {
    /// Looks at the Mails again that were refused before. Returns the numbers of those
    /// that are still to come in the index.
    fn look_again(
        &mut self,
        index: &mut IndexReader,
        before: &SyncCursor,
        after: i64,
    ) -> Result<BTreeSet<i64>, MailboxError> {
        let same = index.generation == before.generation && after == before.seq;
        if !same || self.wish.full || before.refused.is_empty() {
            return Ok(before.refused.iter().map(|refused| refused.seq).collect());
        }
        let gone = self.summary.gone;
        for refused in &before.refused {
            let line = index.line_at(refused.line)?;
            if let Some(entry) = line.and_then(|line| line.entry)
                && entry.seq == refused.seq
            {
                self.look_at(&entry, refused.line)?;
            }
        }
        // That was said before.
        self.summary.gone = gone;
        index.resume(before)?;
        Ok(BTreeSet::new())
    }

    fn look_at(&mut self, entry: &MailIndexEntry, line: u64) -> Result<(), MailboxError> {
        let wish = self.wish;
        if wish.provider.as_deref().is_some_and(|provider| provider != entry.id.provider()) {
            return Ok(());
        }
        self.newest = self.newest.max(entry.received_at);
        let old = wish.since.is_some_and(|since| entry.received_at < since);
        let mut found = None;
        if old || !self.matches(entry, &mut found) {
            self.summary.passed_over += 1;
            return Ok(());
        }
        let target = self.inbox.join(&entry.file);
        // A name in the index becomes a path here, so it must be one that we make.
        let ours = entry.file == entry.id.file(entry.received_at);
        if ours && target.symlink_metadata().is_ok() && self.keep_present(entry, &target)? {
            return Ok(());
        }
        if wish.ask && !(self.tell)(SyncEvent::Ask(entry)) {
            self.summary.passed_over += 1;
            return Ok(());
        }
        for _ in 0..3 {
            let file = match found.take() {
                Some(found) => Ok(found),
                None => self.tree.find(entry),
            };
            let file = match file {
                Ok(file) => file,
                // One file that can't be read does not keep the others away.
                Err(error) => {
                    self.refuse(entry, line, format!("{error}; it is not taken"));
                    return Ok(());
                }
            };
            match file {
                MailFile::Gone => self.miss(entry, line),
                MailFile::Changed(path) => {
                    let words = "was changed by hand and is not taken; `monoco courier rebuild` \
                                 writes it again";
                    self.refuse(entry, line, format!("{} {words}", path.display()));
                }
                MailFile::Here { path, bytes } => {
                    let took = if wish.dry_run {
                        LinkResult::Linked
                    } else {
                        take(&path, &target, &bytes).map_err(at(&target))?
                    };
                    match took {
                        LinkResult::Moved => continue,
                        LinkResult::Present => self.summary.present += 1,
                        LinkResult::Linked | LinkResult::Copied => self.pulled(entry, &target),
                    }
                }
            }
            return Ok(());
        }
        self.miss(entry, line);
        Ok(())
    }

    /// Whether a rule matches. When that took the file, it is in `found`.
    fn matches(&mut self, entry: &MailIndexEntry, found: &mut Option<MailFile>) -> bool {
        let mut fetch = || {
            let file = self.tree.find(entry).ok()?;
            let text = match &file {
                MailFile::Here { bytes, .. } => body(bytes),
                _ => None,
            };
            *found = Some(file);
            text
        };
        let mut candidate = FilterInput::new(entry, &mut fetch);
        if !self.wish.explain {
            return self.here.filters.pull(&mut candidate);
        }
        let explained = self.here.filters.explain(&mut candidate);
        let pulled = explained.pulled;
        (self.tell)(SyncEvent::Explained { entry, explained });
        pulled
    }

    fn pulled(&mut self, entry: &MailIndexEntry, path: &Path) {
        self.summary.pulled += 1;
        if !self.wish.dry_run {
            self.fresh.push(path.to_owned());
            self.names.push(entry.file.clone());
        }
        (self.tell)(SyncEvent::Pulled { entry, path });
    }

    fn refuse(&mut self, entry: &MailIndexEntry, line: u64, words: String) {
        self.summary.refused += 1;
        if self.refused.len() < MAX_REFUSED {
            self.refused.push(RejectedFile { seq: entry.seq, line });
        }
        self.warn(words);
    }

    fn miss(&mut self, entry: &MailIndexEntry, line: u64) {
        self.summary.gone += 1;
        self.missing.push((RejectedFile { seq: entry.seq, line }, entry.received_at));
    }

    /// The Mails that are to be looked at again next time.
    fn again(&self) -> Vec<RejectedFile> {
        let lately = |at: &Timestamp| self.newest.since(*at) <= MISSING;
        let missing = self.missing.iter().filter(|(_, at)| lately(at)).map(|(it, _)| *it);
        self.refused.iter().copied().chain(missing).take(MAX_REFUSED).collect()
    }

    /// A file of that name is there. It is the Mail's, or the user's own by now. What a
    /// power cut has torn is removed, to be pulled again. Returns whether it stays.
    fn keep_present(
        &mut self,
        entry: &MailIndexEntry,
        target: &Path,
    ) -> Result<bool, MailboxError> {
        // Where everything is looked at again, what the courier has, too, is not read.
        let shared = |about: fs::Metadata| about.nlink() > 1 && about.len() > 0;
        let linked = self.wish.full && target.symlink_metadata().is_ok_and(shared);
        if !linked && !self.wish.dry_run {
            let bytes = paths::read(target).map_err(at(target))?;
            if bytes.as_deref().is_some_and(|bytes| self.is_torn(entry, bytes)) {
                fs::remove_file(target).map_err(at(target))?;
                return Ok(false);
            }
            if bytes.is_none_or(|bytes| digest(&bytes) != entry.sha256) {
                self.warn(format!(
                    "{} was changed and is left alone; remove it and sync --full to get it again",
                    target.display()
                ));
            }
        }
        self.summary.present += 1;
        Ok(true)
    }

    /// Whether a file is only the beginning of the Mail's, or nothing at all: nobody edits
    /// it like that.
    fn is_torn(&self, entry: &MailIndexEntry, bytes: &[u8]) -> bool {
        if digest(bytes) == entry.sha256 {
            return false;
        }
        // Some file systems have zeros where nothing was written.
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
        let whole = || self.tree.find(entry);
        end == 0
            || matches!(whole(), Ok(MailFile::Here { bytes: all, .. }) if all.starts_with(&bytes[..end]))
    }

    fn warn(&mut self, words: String) {
        (self.tell)(SyncEvent::Warning(words));
    }

    /// Makes sure that what was pulled stays, and then says so in the cursor.
    fn settle(&mut self, cursor: &SyncCursor, before: &SyncCursor) -> Result<(), MailboxError> {
        if self.wish.dry_run {
            return Ok(());
        }
        bring_to_disk(&self.inbox, &self.fresh)?;
        self.fresh.clear();
        if self.wish.provider.is_some() {
            return Ok(());
        }
        let cursor = SyncCursor { refused: self.again(), ..cursor.clone() };
        if cursor == *before {
            return Ok(());
        }
        cursor.save(&self.here.cursor())
    }
}

/// Brings what was pulled to disk. A link has the courier's bytes, which it may not have
/// brought there yet, and the cursor would outlive them.
fn bring_to_disk(inbox: &Path, fresh: &[PathBuf]) -> Result<(), MailboxError> {
    if fresh.len() > FEW {
        let synced = File::open(inbox).and_then(monoco_fs::sync_file_system);
        return synced.map_err(at(inbox));
    }
    for path in fresh {
        match File::open(path).and_then(|file| file.sync_all()) {
            // The user is quicker than we are.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            synced => synced.map_err(at(path))?,
        }
    }
    if fresh.is_empty() { Ok(()) } else { monoco_fs::sync_dir(inbox).map_err(at(inbox)) }
}

/// The text of a Mail's file that is known to be as it was written.
pub fn body(bytes: &[u8]) -> Option<String> {
    let (_, body) = mail::split(std::str::from_utf8(bytes).ok()?)?;
    Some(body.strip_suffix('\n').unwrap_or(body).to_owned())
}

/// Links a file into the inbox, or copies it where that is not possible.
fn take(path: &Path, target: &Path, bytes: &[u8]) -> io::Result<LinkResult> {
    match fs::hard_link(path, target) {
        Ok(()) => Ok(LinkResult::Linked),
        Err(error) => match error.kind() {
            io::ErrorKind::AlreadyExists => Ok(LinkResult::Present),
            io::ErrorKind::NotFound if !path.exists() => Ok(LinkResult::Moved),
            // Another file system, or one without links, or too many of them.
            _ => copy(target, bytes),
        },
    }
}

/// Writes a copy that appears whole. One at a time: the workspace is locked.
fn copy(target: &Path, bytes: &[u8]) -> io::Result<LinkResult> {
    let temporary = target.with_file_name(".incoming.tmp");
    let _ = fs::remove_file(&temporary);
    monoco_fs::write_via(&temporary, target, bytes, FileOptions::PRIVATE)?;
    Ok(LinkResult::Copied)
}

#[cfg(test)]
mod tests;
