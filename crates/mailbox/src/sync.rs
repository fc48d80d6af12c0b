//! Pulls Mails: links new Mails of the index that match the filters into the inbox.
//!
//! The cursor is written after the links, so a killed sync repeats some Mails and loses
//! none. Mails that are present are not linked again; Mails that the user deleted are
//! pulled again only by a full sync. Copies of Mails whose text was erased are removed or
//! replaced: an erasure starts a new index, which is read from its start.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use monoco_core::filter::{FilterInput, FilterReport};
use monoco_core::mail::{self, Mail, MailIndexEntry, digest};
use monoco_core::time::Timestamp;
use monoco_fs::{FileOptions, found};
use serde::Serialize;

use super::cursor::{MAX_REJECTED_FILES, RejectedFile, SyncCursor};
use super::index::{IndexLine, IndexReader, ResumePosition};
use super::paths::{MAX_MAIL_FILE_BYTES, MailFile, MailboxPaths};
use super::workspace::WorkspaceDir;
use super::{CheckedDir, MailboxError, at, inbox_cache};

/// Mails that are pulled before the cursor is written.
const MAILS_PER_CURSOR: u64 = if cfg!(test) { 100 } else { 4_000 };

/// Up to this number of files, each is synced on its own.
const MAX_SINGLE_SYNCS: usize = if cfg!(test) { 10 } else { 50 };

/// Lines between two progress events.
const PROGRESS_LINES: u64 = 2_000;

/// Lines that are read at once. The files of their Mails are copied together when the courier is
/// on another machine.
const LINES_AHEAD: usize = 1_000;

/// A Mail without a file is checked again until it is this much older than the newest
/// Mail: its file was removed by hand, or lost in a power cut. Purged Mails are older, or
/// do not come back.
const MISSING_FILE_AGE: Duration = Duration::from_secs(2 * 86_400);

/// Options of a sync.
#[derive(Clone, Debug, Default)]
pub struct SyncOptions {
    /// Check all Mails, not only new ones.
    pub full: bool,
    /// Skip Mails from before this time.
    pub since: Option<Timestamp>,
    /// Only Mails of this provider. The cursor is not changed, because of the others.
    pub provider: Option<String>,
    /// Ask before each Mail.
    pub ask: bool,
    pub dry_run: bool,
    /// Report the result of the filters for each Mail.
    pub explain: bool,
}

/// Events during a sync. The return value counts only for [`SyncEvent::Ask`].
#[derive(Debug)]
pub enum SyncEvent<'a> {
    /// A Mail was linked, or would be in a dry run.
    Pulled {
        entry: &'a MailIndexEntry,
        /// Path in the inbox.
        path: &'a Path,
    },
    /// Result of the filters for a Mail.
    Explained { entry: &'a MailIndexEntry, explained: FilterReport },
    /// Whether to pull this Mail.
    Ask(&'a MailIndexEntry),
    /// A message for the user.
    Warning(String),
    /// Number of Mails that were checked, and of files that were copied from another machine.
    Progress { checked: u64, copied: u64 },
}

/// Counts of a sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SyncSummary {
    /// Linked into the inbox.
    pub pulled: u64,
    /// Matched, and present already.
    pub present: u64,
    /// Not matched, too old, or declined.
    pub passed_over: u64,
    /// Matched, but the file does not match the index.
    pub refused: u64,
    /// Matched, but purged before the sync.
    pub gone: u64,
    /// Copies with erased text that were removed or replaced.
    pub erased: u64,
    /// Files that were copied from another machine together.
    pub copied: u64,
}

/// Pulls new Mails of `tree` into the workspace `here`.
///
/// # Errors
///
/// When a file cannot be read or written. Mails that were pulled before remain.
pub fn sync(
    here: &WorkspaceDir,
    tree: &MailboxPaths,
    wish: &SyncOptions,
    tell: &mut dyn FnMut(SyncEvent<'_>) -> bool,
) -> Result<SyncSummary, MailboxError> {
    let _lock = if wish.dry_run { None } else { Some(here.lock()?) };
    let target = SyncTarget::open(here, wish.dry_run)?;
    let before = match &target.files {
        Some(files) => SyncCursor::load(files)?,
        None => SyncCursor::default(),
    };
    let Some(mut index) = IndexReader::open(&tree.index())? else {
        return Ok(SyncSummary::default());
    };
    if !before.rules.is_empty() && before.rules != here.rules && !wish.full {
        let words =
            "the rules have changed; `monoco mailbox sync --full` looks at older Mails again";
        tell(SyncEvent::Warning(words.to_owned()));
    }
    let noted = matches!((&target.files, &target.inbox),
        (Some(files), Some(inbox)) if inbox_cache::is_current(files, inbox));
    let mut round = SyncRun {
        here,
        tree,
        wish,
        tell,
        target,
        summary: SyncSummary::default(),
        refused: Vec::new(),
        missing: Vec::new(),
        newest: Timestamp::default(),
        fresh: Vec::new(),
        names: Vec::new(),
    };
    let resumed = if wish.full { ResumePosition::After(0) } else { index.resume(&before)? };
    let ResumePosition::After(after) = resumed else { return Ok(SyncSummary::default()) };
    let again = round.check_rejected(&mut index, &before, after)?;
    let (first, rules) = (index.first()?, here.rules.clone());
    let mut cursor = SyncCursor { first, rules, ..before.clone() };
    let mut lines = 0;
    loop {
        let ahead = read_ahead(&mut index)?;
        if ahead.is_empty() {
            break;
        }
        let is_new = |entry: &MailIndexEntry| entry.seq > after || again.contains(&entry.seq);
        round.prefetch(&ahead, &is_new, lines)?;
        for IndexLine { start, end, entry } in ahead {
            if let Some(entry) = entry.as_ref().filter(|entry| entry.erased_at.is_some()) {
                round.replace_erased(entry)?;
            }
            match &entry {
                Some(entry) if entry.tombstone().is_some() => {}
                Some(entry) if is_new(entry) => round.look_at(entry, start)?,
                Some(_) => {}
                None => {
                    let index = tree.index();
                    round.warn(format!("{}: cannot parse a line of the index", index.display()));
                }
            }
            cursor.generation = index.generation;
            cursor.offset = end;
            if let Some(entry) = entry {
                cursor.last_line = start;
                cursor.seq = entry.seq;
            }
            lines += 1;
            if lines % PROGRESS_LINES == 0 {
                round.report_progress(lines, 0);
            }
            // Reading from the start must not move the cursor back.
            if round.fresh.len() as u64 >= MAILS_PER_CURSOR && cursor.seq >= before.seq {
                round.settle(&cursor, &before)?;
            }
        }
    }
    round.settle(&cursor, &before)?;
    if let SyncTarget { files: Some(files), inbox: Some(inbox), .. } = &round.target
        && (!round.names.is_empty() || round.summary.erased > 0)
    {
        // Without the cache, only the next list is slower.
        if noted && round.summary.erased == 0 {
            let _ = inbox_cache::add(files, inbox, &round.names);
        } else {
            let _ = inbox_cache::rebuild(files, inbox);
        }
    }
    Ok(round.summary)
}

/// Reads the next lines, at most [`LINES_AHEAD`].
fn read_ahead(index: &mut IndexReader) -> Result<Vec<IndexLine>, MailboxError> {
    let mut lines = Vec::new();
    while lines.len() < LINES_AHEAD
        && let Some(line) = index.next_line()?
    {
        lines.push(line);
    }
    Ok(lines)
}

/// State of one sync.
struct SyncRun<'a> {
    here: &'a WorkspaceDir,
    tree: &'a MailboxPaths,
    wish: &'a SyncOptions,
    tell: &'a mut dyn FnMut(SyncEvent<'_>) -> bool,
    target: SyncTarget,
    summary: SyncSummary,
    refused: Vec<RejectedFile>,
    /// Mails without a file, with their times.
    missing: Vec<(RejectedFile, Timestamp)>,
    /// Time of the newest Mail.
    newest: Timestamp,
    /// Pulled Mails that may not be on disk yet.
    fresh: Vec<String>,
    names: Vec<String>,
}

/// Directories that a sync writes to. A dry run creates none, so they may be missing.
struct SyncTarget {
    files: Option<CheckedDir>,
    inbox: Option<CheckedDir>,
    /// Path of the inbox, for messages.
    inbox_path: PathBuf,
}

impl SyncTarget {
    fn open(here: &WorkspaceDir, dry_run: bool) -> Result<Self, MailboxError> {
        let (files, inbox) = if dry_run {
            let inbox = here.open_inbox()?;
            (if inbox.is_some() { Some(here.open_files()?) } else { None }, inbox)
        } else {
            (Some(here.open_files()?), Some(here.ensure_inbox()?))
        };
        Ok(Self { files, inbox, inbox_path: here.inbox() })
    }
}

/// How a Mail came into the inbox.
enum LinkResult {
    Linked,
    Copied,
    Present,
    /// The courier moved the file at the same time.
    Moved,
}

impl SyncRun<'_> {
    /// Checks rejected Mails again. Returns the numbers of those that are still ahead in
    /// the index.
    fn check_rejected(
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
        // Counted in an earlier sync.
        self.summary.gone = gone;
        index.resume(before)?;
        Ok(BTreeSet::new())
    }

    /// Copies the files that the next lines need, if the courier is on another machine.
    fn prefetch(
        &mut self,
        ahead: &[IndexLine],
        is_new: &dyn Fn(&MailIndexEntry) -> bool,
        checked: u64,
    ) -> Result<(), MailboxError> {
        // The user may decline a Mail, which is then not read from the courier.
        if self.tree.source().is_none() || self.wish.ask {
            return Ok(());
        }
        let mut wanted = Vec::new();
        for entry in ahead.iter().filter_map(|line| line.entry.as_ref()) {
            if is_new(entry) && entry.tombstone().is_none() && self.needs_file(entry)? {
                wanted.push(entry);
            }
        }
        let tree = self.tree;
        let copied = tree.prefetch(&wanted, &mut |copied| self.report_progress(checked, copied))?;
        self.summary.copied += copied;
        Ok(())
    }

    /// Whether the file of a Mail has to be read: its text decides, or it is pulled.
    fn needs_file(&self, entry: &MailIndexEntry) -> Result<bool, MailboxError> {
        // The name becomes a path, so it must be derived from the id.
        let ours = entry.file == entry.id.file(entry.received_at);
        if !ours || self.is_other_provider(entry) || self.is_too_old(entry) {
            return Ok(false);
        }
        let mut needs_text = false;
        let mut fetch = || {
            needs_text = true;
            None
        };
        let is_pulled = self.here.filters.pull(&mut FilterInput::new(entry, &mut fetch));
        let Some(inbox) = self.target.inbox.as_ref().filter(|_| is_pulled && !needs_text) else {
            return Ok(is_pulled || needs_text);
        };
        let present = inbox.dir().stat(&entry.file).map_err(at(inbox.path()))?;
        Ok(present.is_none())
    }

    fn is_other_provider(&self, entry: &MailIndexEntry) -> bool {
        let provider = self.wish.provider.as_deref();
        provider.is_some_and(|provider| provider != entry.id.provider())
    }

    fn is_too_old(&self, entry: &MailIndexEntry) -> bool {
        self.wish.since.is_some_and(|since| entry.received_at < since)
    }

    /// Reports the progress. `copying` files were copied and are not counted yet.
    fn report_progress(&mut self, checked: u64, copying: u64) {
        (self.tell)(SyncEvent::Progress { checked, copied: self.summary.copied + copying });
    }

    fn look_at(&mut self, entry: &MailIndexEntry, line: u64) -> Result<(), MailboxError> {
        let wish = self.wish;
        if self.is_other_provider(entry) {
            return Ok(());
        }
        self.newest = self.newest.max(entry.received_at);
        let mut found = None;
        if self.is_too_old(entry) || !self.matches(entry, &mut found)? {
            self.summary.passed_over += 1;
            return Ok(());
        }
        let target = self.target.inbox_path.join(&entry.file);
        // The name becomes a path, so it must be derived from the id.
        let ours = entry.file == entry.id.file(entry.received_at);
        if ours && self.keep_present(entry, &target)? {
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
                // Without the courier no further file can be read.
                Err(error @ MailboxError::Source(_)) => return Err(error),
                // An unreadable file does not affect the others.
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
                    let took = match &self.target.inbox {
                        Some(inbox) if !wish.dry_run => {
                            take(&path, inbox, &entry.file, &bytes).map_err(at(&target))?
                        }
                        _ => LinkResult::Linked,
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

    /// Whether a filter matches. If the file was read for that, it is in `found`.
    fn matches(
        &mut self,
        entry: &MailIndexEntry,
        found: &mut Option<MailFile>,
    ) -> Result<bool, MailboxError> {
        let mut failure = None;
        let mut fetch = || {
            let file = match self.tree.find(entry) {
                Ok(file) => file,
                Err(error) => {
                    failure = Some(error);
                    return None;
                }
            };
            let text = match &file {
                MailFile::Here { bytes, .. } => body(bytes),
                _ => None,
            };
            *found = Some(file);
            text
        };
        let mut candidate = FilterInput::new(entry, &mut fetch);
        let explained = self.wish.explain.then(|| self.here.filters.explain(&mut candidate));
        let pulled = match &explained {
            Some(explained) => explained.pulled,
            None => self.here.filters.pull(&mut candidate),
        };
        // A Mail whose text is not known now must not be skipped for good.
        if let Some(error @ MailboxError::Source(_)) = failure {
            return Err(error);
        }
        if let Some(explained) = explained {
            (self.tell)(SyncEvent::Explained { entry, explained });
        }
        Ok(pulled)
    }

    fn pulled(&mut self, entry: &MailIndexEntry, path: &Path) {
        self.summary.pulled += 1;
        if !self.wish.dry_run {
            self.fresh.push(entry.file.clone());
            self.names.push(entry.file.clone());
        }
        (self.tell)(SyncEvent::Pulled { entry, path });
    }

    fn refuse(&mut self, entry: &MailIndexEntry, line: u64, words: String) {
        self.summary.refused += 1;
        if self.refused.len() < MAX_REJECTED_FILES {
            self.refused.push(RejectedFile { seq: entry.seq, line });
        }
        self.warn(words);
    }

    fn miss(&mut self, entry: &MailIndexEntry, line: u64) {
        self.summary.gone += 1;
        self.missing.push((RejectedFile { seq: entry.seq, line }, entry.received_at));
    }

    /// The Mails to check again in the next sync.
    fn again(&self) -> Vec<RejectedFile> {
        let lately = |at: &Timestamp| self.newest.since(*at) <= MISSING_FILE_AGE;
        let missing = self.missing.iter().filter(|(_, at)| lately(at)).map(|(it, _)| *it);
        self.refused.iter().copied().chain(missing).take(MAX_REJECTED_FILES).collect()
    }

    /// Removes the copy of a Mail whose text was erased, and links the Mail without that text,
    /// if there is one. A copy that the user has edited stays.
    fn replace_erased(&mut self, entry: &MailIndexEntry) -> Result<(), MailboxError> {
        let target = self.target.inbox_path.join(&entry.file);
        let ours = entry.file == entry.id.file(entry.received_at);
        let Some(inbox) = self.target.inbox.as_ref().filter(|_| ours) else { return Ok(()) };
        let bytes = match inbox.dir().read(&entry.file, MAX_MAIL_FILE_BYTES) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Vec::new(),
            Err(error) => return Err(at(&target)(error)),
        };
        if entry.tombstone().is_none() && digest(&bytes) == entry.sha256 {
            return Ok(());
        }
        let copy = std::str::from_utf8(&bytes).ok().and_then(|text| Mail::parse(text).ok());
        if copy.is_none_or(|copy| copy.header.id != entry.id) {
            let words = "was changed and can have text that was erased; remove it";
            self.warn(format!("{} {words}", target.display()));
            return Ok(());
        }
        self.summary.erased += 1;
        if self.wish.dry_run {
            return Ok(());
        }
        inbox.dir().remove(&entry.file).map_err(at(&target))?;
        if entry.tombstone().is_none()
            && let MailFile::Here { path, bytes } = self.tree.find(entry)?
        {
            take(&path, inbox, &entry.file, &bytes).map_err(at(&target))?;
            self.fresh.push(entry.file.clone());
        }
        inbox.dir().sync().map_err(at(inbox.path()))
    }

    /// Handles an existing file of that name: it is the Mail's, or was edited. A file that
    /// a power cut has torn is removed. Returns whether there is one that stays.
    fn keep_present(
        &mut self,
        entry: &MailIndexEntry,
        target: &Path,
    ) -> Result<bool, MailboxError> {
        let Some(inbox) = &self.target.inbox else { return Ok(false) };
        let Some(stat) = inbox.dir().stat(&entry.file).map_err(at(target))? else {
            return Ok(false);
        };
        // A file that is also linked by the courier is not read again.
        let linked = self.wish.full && stat.is_file && stat.links > 1 && stat.len > 0;
        if !linked && !self.wish.dry_run {
            let read = inbox.dir().read(&entry.file, MAX_MAIL_FILE_BYTES);
            let bytes = match read {
                Err(error) if error.kind() == io::ErrorKind::FileTooLarge => None,
                read => read.map_err(at(target))?,
            };
            if bytes.as_deref().is_some_and(|bytes| self.is_torn(entry, bytes)) {
                inbox.dir().remove(&entry.file).map_err(at(target))?;
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

    /// Whether the file is empty or only the beginning of the Mail's.
    fn is_torn(&self, entry: &MailIndexEntry, bytes: &[u8]) -> bool {
        if digest(bytes) == entry.sha256 {
            return false;
        }
        // Some file systems fill unwritten parts with zeros.
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
        let whole = || self.tree.find(entry);
        end == 0
            || matches!(whole(), Ok(MailFile::Here { bytes: all, .. }) if all.starts_with(&bytes[..end]))
    }

    fn warn(&mut self, words: String) {
        (self.tell)(SyncEvent::Warning(words));
    }

    /// Syncs the pulled Mails and stores the cursor.
    fn settle(&mut self, cursor: &SyncCursor, before: &SyncCursor) -> Result<(), MailboxError> {
        if self.wish.dry_run {
            return Ok(());
        }
        if let Some(inbox) = &self.target.inbox {
            sync_pulled(inbox, &self.fresh)?;
        }
        self.fresh.clear();
        if self.wish.provider.is_some() {
            return Ok(());
        }
        let cursor = SyncCursor { refused: self.again(), ..cursor.clone() };
        if cursor == *before {
            return Ok(());
        }
        match &self.target.files {
            Some(files) => cursor.save(files),
            None => Ok(()),
        }
    }
}

/// Syncs pulled Mails: the courier may not have synced the linked files yet, and the
/// cursor must not outlive them.
fn sync_pulled(inbox: &CheckedDir, fresh: &[String]) -> Result<(), MailboxError> {
    if fresh.len() > MAX_SINGLE_SYNCS {
        return inbox.dir().sync_all().map_err(at(inbox.path()));
    }
    for name in fresh {
        // The user may have deleted the file.
        found(inbox.dir().sync_file(name)).map_err(at(&inbox.path().join(name)))?;
    }
    if fresh.is_empty() { Ok(()) } else { inbox.dir().sync().map_err(at(inbox.path())) }
}

/// The text of an unchanged Mail file.
pub fn body(bytes: &[u8]) -> Option<String> {
    let (_, body) = mail::split(std::str::from_utf8(bytes).ok()?)?;
    Some(body.strip_suffix('\n').unwrap_or(body).to_owned())
}

/// Links a file into the inbox, or copies it where links are not possible. The workspace is
/// locked, so there is one copy at a time.
fn take(path: &Path, inbox: &CheckedDir, name: &str, bytes: &[u8]) -> io::Result<LinkResult> {
    match inbox.dir().link_from(path, name) {
        Ok(()) => Ok(LinkResult::Linked),
        Err(error) => match error.kind() {
            io::ErrorKind::AlreadyExists => Ok(LinkResult::Present),
            io::ErrorKind::NotFound if !path.exists() => Ok(LinkResult::Moved),
            // Another file system, one without links, or too many links.
            _ => {
                inbox.dir().write(name, bytes, FileOptions::PRIVATE)?;
                Ok(LinkResult::Copied)
            }
        },
    }
}

#[cfg(test)]
mod tests;
