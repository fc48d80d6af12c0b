//! A copy of the mailbox directory of a courier on another machine.
//!
//! ```text
//! inbound/{provider}/            files of Mails, copied when they are first needed
//! .state/mails.jsonl             copy of the index
//! .state/source.json             which index of the courier it is a copy of
//! .state/mails.{generation}.part copy of a newer index, not complete yet
//! .state/token-workspace         name of the only workspace that the token may use
//! .state/lock                    locked while the index is copied
//! ```
//!
//! The copy has the layout of a courier's own directory, so that a workspace reads both in the same
//! way. Lines are only appended to the index, and an index of another generation replaces it
//! when it is complete. A download that was interrupted continues after its last complete line.
//! Files are verified by the hash in the index.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use monoco_core::claim::Workspace;
use monoco_core::mail::{MailId, MailIndexEntry};
use monoco_fs::{FileOptions, write_via};
use serde::{Deserialize, Serialize};

use super::index::{IndexHead, IndexReader, write_line};
use super::paths::{MailboxPaths, STATE_DIR, TOKEN_WORKSPACE_FILE};
use super::{MailboxError, at};

/// How often the index of the courier may be replaced while it is copied.
const MAX_RESTARTS: usize = 3;

const SOURCE_FILE: &str = "source.json";
const LOCK_FILE: &str = "lock";

/// The error of a [`MailboxSource`].
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// A courier on another machine, as far as a workspace needs it.
pub trait MailboxSource: std::fmt::Debug + Send + Sync {
    /// Gets the lines of the index after the Mail with this number.
    ///
    /// # Errors
    ///
    /// When the courier cannot be reached or rejects the request.
    fn index_page(&self, after: i64) -> Result<SourceIndexPage, SourceError>;

    /// Gets the file of a Mail; `None` when the courier does not have it any more.
    ///
    /// # Errors
    ///
    /// When the courier cannot be reached or rejects the request.
    fn mail_file(&self, id: &MailId) -> Result<Option<Vec<u8>>, SourceError>;

    /// Gets the files of some Mails with one request: those of the first ids, as many as one
    /// response has. The list is empty when the courier cannot do that.
    ///
    /// # Errors
    ///
    /// When the courier cannot be reached or rejects the request.
    fn mail_files(&self, ids: &[MailId]) -> Result<Vec<SourceFile>, SourceError>;
}

/// The file of a Mail, as a courier has sent it.
#[derive(Debug)]
pub struct SourceFile {
    pub id: MailId,
    /// `None` when the courier does not have it any more.
    pub bytes: Option<Vec<u8>>,
}

/// Lines of the index of a courier.
#[derive(Debug)]
pub struct SourceIndexPage {
    /// Changes when lines that were read before have changed.
    pub generation: String,
    pub entries: Vec<MailIndexEntry>,
    /// Number of the last Mail that the page covers.
    pub last: i64,
    pub has_more: bool,
}

/// Which index of the courier the copy has.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct CopiedIndex {
    /// Generation of the courier's index.
    source: String,
    /// Generation of the copy.
    generation: i64,
}

/// Creates the directory of a copy for one workspace.
///
/// # Errors
///
/// When a directory or file cannot be written.
pub fn create(
    root: PathBuf,
    source: Arc<dyn MailboxSource>,
    workspace: &Workspace,
) -> Result<MailboxPaths, MailboxError> {
    let state = root.join(STATE_DIR);
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&state);
    made.map_err(at(&state))?;
    let path = state.join(TOKEN_WORKSPACE_FILE);
    let text = format!("{}\n", workspace.as_str());
    if fs::read(&path).ok().as_deref() != Some(text.as_bytes()) {
        put(&path, text.as_bytes(), FileOptions::PRIVATE)?;
    }
    Ok(MailboxPaths::copy(root, source))
}

/// Copies the lines that the courier's index has got since the last call. Does nothing for the
/// directory of a courier on this machine. `tell` gets the number of lines after each page.
///
/// # Errors
///
/// [`MailboxError::Source`] when the courier does not answer; what was copied before remains.
pub fn refresh(paths: &MailboxPaths, tell: &mut dyn FnMut(u64)) -> Result<(), MailboxError> {
    let Some(source) = paths.source() else { return Ok(()) };
    let state = paths.root().join(STATE_DIR);
    let lock_path = state.join(LOCK_FILE);
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600);
    let lock = options.open(&lock_path).map_err(at(&lock_path))?;
    // Held only for requests, which have time limits.
    lock.lock().map_err(at(&lock_path))?;
    let source_path = state.join(SOURCE_FILE);
    let copied: CopiedIndex = fs::read(&source_path)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default();
    let index = paths.index();
    let mut copy = IndexCopy::open(&index)?.filter(|copy| copy.generation == copied.generation);
    for _ in 0..MAX_RESTARTS {
        let after = copy.as_ref().map_or(0, |copy| copy.last);
        let page = source.index_page(after).map_err(MailboxError::Source)?;
        let is_complete = match copy.take().filter(|_| page.generation == copied.source) {
            Some(mut copy) => copy.append_all(source.as_ref(), &copied.source, page, tell)?,
            None => replace(paths, source.as_ref(), &page.generation, copied.generation, tell)?,
        };
        if is_complete {
            return Ok(());
        }
    }
    Err(MailboxError::Bad {
        path: index,
        why: "the courier replaces its index faster than it can be copied; try again later"
            .to_owned(),
    })
}

/// Copies an index of another generation, and then replaces the present copy. Returns whether the
/// courier still has this generation.
fn replace(
    paths: &MailboxPaths,
    source: &dyn MailboxSource,
    generation: &str,
    last_generation: i64,
    tell: &mut dyn FnMut(u64),
) -> Result<bool, MailboxError> {
    let state = paths.root().join(STATE_DIR);
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    if generation.is_empty() || generation.len() > 80 || !generation.bytes().all(plain) {
        let why = format!("the courier names an invalid generation of its index: {generation:?}");
        return Err(MailboxError::Bad { path: paths.index(), why });
    }
    let name = format!("mails.{generation}.part");
    remove_other_parts(&state, &name)?;
    let part = state.join(name);
    let found = IndexReader::open(&paths.index()).ok().flatten().map_or(0, |it| it.generation);
    let next = last_generation.max(found).saturating_add(1);
    let mut copy = match IndexCopy::open(&part)?.filter(|copy| copy.generation == next) {
        Some(copy) => copy,
        None => {
            let mut head = Vec::new();
            write_line(&mut head, &IndexHead::new(next)).map_err(at(&part))?;
            put(&part, &head, FileOptions::PRIVATE)?;
            IndexCopy { path: part.clone(), generation: next, last: 0 }
        }
    };
    let page = source.index_page(copy.last).map_err(MailboxError::Source)?;
    if page.generation != generation || !copy.append_all(source, generation, page, tell)? {
        return Ok(false);
    }
    // Copies of erased or purged Mails must not stay.
    let files = paths.root().join("inbound");
    match fs::remove_dir_all(&files) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(at(&files)(error));
        }
        _ => {}
    }
    // After a crash in between, the generations differ, and the index is copied again.
    let copied = CopiedIndex { source: generation.to_owned(), generation: next };
    let path = state.join(SOURCE_FILE);
    let text = serde_json::to_vec(&copied).map_err(|error| at(&path)(error.into()))?;
    put(&path, &text, FileOptions::PRIVATE_SYNCED)?;
    fs::rename(&part, paths.index()).map_err(at(&part))?;
    File::open(&state).and_then(|dir| dir.sync_all()).map_err(at(&state))?;
    Ok(true)
}

/// Removes incomplete copies of other generations.
fn remove_other_parts(state: &Path, name: &str) -> Result<(), MailboxError> {
    for entry in fs::read_dir(state).map_err(at(state))?.flatten() {
        let found = entry.file_name();
        let is_part = found.to_str().is_some_and(|found| found.ends_with(".part") && found != name);
        if is_part {
            fs::remove_file(entry.path()).map_err(at(&entry.path()))?;
        }
    }
    Ok(())
}

/// A copy of an index that is appended to.
struct IndexCopy {
    path: PathBuf,
    generation: i64,
    /// Number of the last Mail in the copy, or that the last page covered.
    last: i64,
}

impl IndexCopy {
    /// Opens a copy, and cuts a last line that is not complete; `None` when there is none that can
    /// be continued.
    fn open(path: &Path) -> Result<Option<Self>, MailboxError> {
        let Ok(Some(index)) = IndexReader::open(path) else { return Ok(None) };
        let generation = index.generation;
        let last = index.newest_first()?.next_entry()?.map_or(0, |entry| entry.seq);
        let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(at(path))?;
        let end = end_of_lines(&mut file).map_err(at(path))?;
        file.set_len(end).map_err(at(path))?;
        Ok(Some(Self { path: path.to_owned(), generation, last }))
    }

    /// Appends this page and those that follow it. Returns whether all were of `generation`.
    fn append_all(
        &mut self,
        source: &dyn MailboxSource,
        generation: &str,
        mut page: SourceIndexPage,
        tell: &mut dyn FnMut(u64),
    ) -> Result<bool, MailboxError> {
        let mut lines = 0;
        loop {
            if page.generation != generation {
                return Ok(false);
            }
            let has_more = page.has_more;
            lines += page.entries.len() as u64;
            self.append(page)?;
            tell(lines);
            if !has_more {
                return Ok(true);
            }
            page = source.index_page(self.last).map_err(MailboxError::Source)?;
        }
    }

    fn append(&mut self, page: SourceIndexPage) -> Result<(), MailboxError> {
        let mut text = Vec::new();
        let mut last = self.last;
        for entry in &page.entries {
            if entry.seq <= last {
                let why = format!("the courier sent Mail {} after Mail {last}", entry.seq);
                return Err(MailboxError::Bad { path: self.path.clone(), why });
            }
            last = entry.seq;
            write_line(&mut text, entry).map_err(at(&self.path))?;
        }
        if page.has_more && page.last <= self.last {
            let why = "the courier sent the same page of its index again".to_owned();
            return Err(MailboxError::Bad { path: self.path.clone(), why });
        }
        if !text.is_empty() {
            let file = OpenOptions::new().append(true).open(&self.path);
            let written = file.and_then(|mut file| {
                file.write_all(&text)?;
                // Lines that a power cut loses in the middle would never be read again.
                file.sync_data()
            });
            written.map_err(at(&self.path))?;
        }
        self.last = last.max(page.last);
        Ok(())
    }
}

/// The offset after the last line end.
fn end_of_lines(file: &mut File) -> std::io::Result<u64> {
    let mut end = file.seek(SeekFrom::End(0))?;
    let mut block = [0; 4096];
    while end > 0 {
        let length = end.min(block.len() as u64);
        let part = &mut block[..usize::try_from(length).unwrap_or_default()];
        file.seek(SeekFrom::Start(end - length))?;
        file.read_exact(part)?;
        if let Some(at) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(end - length + at as u64 + 1);
        }
        end -= length;
    }
    Ok(0)
}

/// Writes a file of the copy. Other commands can write the same file at the same time.
pub(super) fn put(path: &Path, bytes: &[u8], options: FileOptions) -> Result<(), MailboxError> {
    let mark = getrandom::u64().map_err(|error| at(path)(std::io::Error::other(error)))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{mark:016x}.tmp"));
    write_via(&temporary, path, bytes, options).map_err(|error| at(path)(error.into()))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::fixture::CourierFixture;
    use crate::paths::MailFile;
    use crate::sync::{SyncOptions, sync};
    use crate::workspace::WorkspaceDir;

    /// A courier that a test changes while it is copied.
    #[derive(Debug, Default)]
    struct FakeSource {
        state: Mutex<FakeState>,
    }

    #[derive(Debug, Default)]
    struct FakeState {
        generation: i64,
        entries: Vec<MailIndexEntry>,
        files: Vec<(MailId, Vec<u8>)>,
        /// Requests that still succeed; all of them without a number.
        answers: Option<usize>,
        pages: usize,
        /// Files of an answer with several.
        files_per_answer: usize,
        /// Requests for one file, and for several.
        file_requests: [usize; 2],
    }

    impl FakeSource {
        fn publish(&self, post: &CourierFixture, generation: i64) {
            let mut state = self.state.lock().unwrap();
            let mut index = IndexReader::open(&post.tree().index()).unwrap().unwrap();
            state.generation = generation;
            state.entries.clear();
            state.files.clear();
            while let Some(line) = index.next_line().unwrap() {
                let entry = line.entry.unwrap();
                if let Ok(MailFile::Here { bytes, .. }) = post.tree().find(&entry) {
                    state.files.push((entry.id.clone(), bytes));
                }
                state.entries.push(entry);
            }
        }

        fn answer(&self) -> Result<std::sync::MutexGuard<'_, FakeState>, SourceError> {
            let mut state = self.state.lock().unwrap();
            match &mut state.answers {
                Some(0) => return Err("the line is dead".into()),
                Some(left) => *left -= 1,
                None => {}
            }
            Ok(state)
        }
    }

    impl MailboxSource for FakeSource {
        fn index_page(&self, after: i64) -> Result<SourceIndexPage, SourceError> {
            let mut state = self.answer()?;
            state.pages += 1;
            let rest: Vec<_> = state.entries.iter().filter(|it| it.seq > after).cloned().collect();
            let entries: Vec<_> = rest.iter().take(3).cloned().collect();
            Ok(SourceIndexPage {
                generation: format!("c-{}", state.generation),
                last: entries.last().map_or(after, |entry| entry.seq),
                has_more: rest.len() > 3,
                entries,
            })
        }

        fn mail_file(&self, id: &MailId) -> Result<Option<Vec<u8>>, SourceError> {
            let mut state = self.answer()?;
            state.file_requests[0] += 1;
            Ok(state.files.iter().find(|(found, _)| found == id).map(|(_, bytes)| bytes.clone()))
        }

        /// Answers with at most 4 files.
        fn mail_files(&self, ids: &[MailId]) -> Result<Vec<SourceFile>, SourceError> {
            let mut state = self.answer()?;
            state.file_requests[1] += 1;
            let file = |id: &MailId| {
                let found = state.files.iter().find(|(found, _)| found == id);
                SourceFile { id: id.clone(), bytes: found.map(|(_, bytes)| bytes.clone()) }
            };
            Ok(ids.iter().take(state.files_per_answer).map(file).collect())
        }
    }

    struct MirrorFixture {
        dir: tempfile::TempDir,
        post: CourierFixture,
        source: Arc<FakeSource>,
        copy: MailboxPaths,
    }

    impl MirrorFixture {
        fn new() -> Self {
            let (dir, source) = (tempfile::tempdir().unwrap(), Arc::new(FakeSource::default()));
            source.state.lock().unwrap().files_per_answer = 4;
            let workspace = Workspace::new("alpha").unwrap();
            let root = dir.path().join("copy");
            let copy = create(root, Arc::<FakeSource>::clone(&source), &workspace).unwrap();
            Self { dir, post: CourierFixture::new(), source, copy }
        }

        fn workspace(&self) -> WorkspaceDir {
            let root = self.dir.path().join("work");
            WorkspaceDir::create(&root, self.copy.root()).unwrap();
            let config = "mailbox: {filters: [{type: provider, value: webhook}]}";
            fs::write(root.join(".monoco/mailbox/config.yaml"), config).unwrap();
            WorkspaceDir::open(&root, self.copy.root()).unwrap()
        }

        fn lines(&self) -> Vec<i64> {
            let mut index = IndexReader::open(&self.copy.index()).unwrap().unwrap();
            let mut lines = Vec::new();
            while let Some(line) = index.next_line().unwrap() {
                lines.push(line.entry.unwrap().seq);
            }
            lines
        }

        fn pages(&self) -> usize {
            std::mem::take(&mut self.source.state.lock().unwrap().pages)
        }
    }

    #[test]
    fn new_lines_are_appended_and_a_torn_line_is_cut() {
        let mut fixture = MirrorFixture::new();
        for n in 0..7 {
            fixture.post.deliver("ann", &n.to_string());
        }
        fixture.source.publish(&fixture.post, 1);
        refresh(&fixture.copy, &mut |_| ()).unwrap();
        assert_eq!(fixture.lines(), [1, 2, 3, 4, 5, 6, 7]);
        fixture.pages();
        fixture.post.deliver("ann", "8");
        fixture.source.publish(&fixture.post, 1);
        let index = fixture.copy.index();
        OpenOptions::new().append(true).open(&index).unwrap().write_all(b"{\"seq\":8,\"i").unwrap();
        refresh(&fixture.copy, &mut |_| ()).unwrap();
        assert_eq!((fixture.lines().len(), fixture.pages()), (8, 1));
        refresh(&fixture.copy, &mut |_| ()).unwrap();
        assert_eq!((fixture.lines().len(), fixture.pages()), (8, 1));
    }

    #[test]
    fn interrupted_copy_continues_and_is_not_seen_before_it_is_complete() {
        let mut fixture = MirrorFixture::new();
        for n in 0..9 {
            fixture.post.deliver("ann", &n.to_string());
        }
        fixture.source.publish(&fixture.post, 1);
        // The first page tells the generation; two pages are copied.
        fixture.source.state.lock().unwrap().answers = Some(3);
        assert!(matches!(refresh(&fixture.copy, &mut |_| ()), Err(MailboxError::Source(_))));
        assert!(!fixture.copy.index().exists());
        fixture.source.state.lock().unwrap().answers = None;
        fixture.pages();
        refresh(&fixture.copy, &mut |_| ()).unwrap();
        assert_eq!((fixture.lines().len(), fixture.pages()), (9, 2));
        let left: Vec<_> = fs::read_dir(fixture.copy.index().parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".part") || name.ends_with(".tmp"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn workspace_pulls_from_the_copy_and_learns_of_erasures() {
        let mut fixture = MirrorFixture::new();
        let [kept, erased] = ["one", "two"].map(|text| fixture.post.deliver("ann", text));
        fixture.source.publish(&fixture.post, 1);
        let here = fixture.workspace();
        let pull = |fixture: &MirrorFixture| {
            refresh(&fixture.copy, &mut |_| ())?;
            sync(&here, &fixture.copy, &SyncOptions::default(), &mut |_| true)
        };
        assert_eq!(pull(&fixture).unwrap().pulled, 2);
        fixture.post.erase(&erased, None);
        fixture.post.rebuild();
        fixture.post.deliver("ann", "three");
        fixture.source.publish(&fixture.post, 2);
        let summary = pull(&fixture).unwrap();
        assert_eq!((summary.pulled, summary.erased), (1, 1));
        assert!(
            here.inbox().join(&kept.file).exists() && !here.inbox().join(&erased.file).exists()
        );
        assert!(!fixture.copy.root().join("inbound/webhook").join(&erased.file).exists());
    }

    /// Requests for one file and for several, and the counts of the sync.
    fn requests_of_sync(fixture: &MirrorFixture, here: &WorkspaceDir) -> ([usize; 2], [u64; 3]) {
        refresh(&fixture.copy, &mut |_| ()).unwrap();
        let options = SyncOptions::default();
        let summary = sync(here, &fixture.copy, &options, &mut |_| true).unwrap();
        let mut state = fixture.source.state.lock().unwrap();
        let requests = std::mem::take(&mut state.file_requests);
        (requests, [summary.pulled, summary.copied, summary.gone])
    }

    #[test]
    fn files_of_many_mails_are_copied_with_few_requests() {
        let mut fixture = MirrorFixture::new();
        for n in 0..10 {
            fixture.post.deliver("ann", &n.to_string());
        }
        fixture.source.publish(&fixture.post, 1);
        let here = fixture.workspace();
        assert_eq!(requests_of_sync(&fixture, &here), ([0, 3], [10, 10, 0]));
        assert_eq!(requests_of_sync(&fixture, &here), ([0, 0], [0, 0, 0]));
        fixture.post.deliver("ann", "one more");
        fixture.source.publish(&fixture.post, 1);
        assert_eq!(requests_of_sync(&fixture, &here), ([0, 1], [1, 1, 0]));
    }

    #[test]
    fn interrupted_sync_copies_only_the_files_that_are_missing() {
        let mut fixture = MirrorFixture::new();
        for n in 0..10 {
            fixture.post.deliver("ann", &n.to_string());
        }
        fixture.source.publish(&fixture.post, 1);
        let here = fixture.workspace();
        refresh(&fixture.copy, &mut |_| ()).unwrap();
        fixture.source.state.lock().unwrap().answers = Some(2);
        let failed = sync(&here, &fixture.copy, &SyncOptions::default(), &mut |_| true);
        assert!(matches!(failed, Err(MailboxError::Source(_))));
        fixture.source.state.lock().unwrap().answers = None;
        fixture.source.state.lock().unwrap().file_requests = [0, 0];
        assert_eq!(requests_of_sync(&fixture, &here), ([0, 1], [10, 2, 0]));
    }

    #[test]
    fn only_files_that_filters_need_are_copied_before_they_are_read() {
        let mut fixture = MirrorFixture::new();
        for n in 0..6 {
            fixture.post.deliver(if n % 3 == 0 { "ann" } else { "bob" }, &n.to_string());
        }
        fixture.source.publish(&fixture.post, 1);
        fixture.workspace();
        let root = fixture.dir.path().join("work");
        let filters = |text: &str| {
            let config = format!("mailbox: {{filters: {text}}}");
            fs::write(root.join(".monoco/mailbox/config.yaml"), config).unwrap();
            WorkspaceDir::open(&root, fixture.copy.root()).unwrap()
        };
        let here = filters("[{type: from, value: ann}]");
        assert_eq!(requests_of_sync(&fixture, &here), ([0, 1], [2, 2, 0]));
        // The text decides, so the other files are copied too.
        let here = filters("[{type: text_matches, pattern: '[12]'}]");
        let options = SyncOptions { full: true, ..SyncOptions::default() };
        let summary = sync(&here, &fixture.copy, &options, &mut |_| true).unwrap();
        assert_eq!((summary.pulled, summary.copied), (2, 4));
        assert_eq!(fixture.source.state.lock().unwrap().file_requests, [0, 1]);
    }

    #[test]
    fn missing_and_changed_files_of_a_batch_are_not_taken() {
        let mut fixture = MirrorFixture::new();
        let sent: Vec<_> = (0..4).map(|n| fixture.post.deliver("ann", &n.to_string())).collect();
        fixture.source.publish(&fixture.post, 1);
        let here = fixture.workspace();
        {
            let mut state = fixture.source.state.lock().unwrap();
            state.files[1].1.push(b'x');
            state.files.remove(2);
        }
        // Both are asked for once more, alone.
        assert_eq!(requests_of_sync(&fixture, &here), ([2, 1], [2, 2, 1]));
        let is_here = |n: usize| here.inbox().join(&sent[n].file).exists();
        assert_eq!([0, 1, 2, 3].map(is_here), [true, false, false, true]);
        // A courier that cannot send several files at once is asked for each.
        let other = MirrorFixture::new();
        other.source.publish(&fixture.post, 1);
        other.source.state.lock().unwrap().files_per_answer = 0;
        let here = other.workspace();
        assert_eq!(requests_of_sync(&other, &here), ([4, 1], [4, 0, 0]));
    }

    #[test]
    fn sync_without_the_courier_fails_and_skips_no_mail() {
        let mut fixture = MirrorFixture::new();
        fixture.post.deliver("ann", "the word");
        fixture.source.publish(&fixture.post, 1);
        refresh(&fixture.copy, &mut |_| ()).unwrap();
        fixture.workspace();
        let root = fixture.dir.path().join("work");
        let config = "mailbox: {filters: [{type: text_matches, pattern: word}]}";
        fs::write(root.join(".monoco/mailbox/config.yaml"), config).unwrap();
        let here = WorkspaceDir::open(&root, fixture.copy.root()).unwrap();
        let pull = || sync(&here, &fixture.copy, &SyncOptions::default(), &mut |_| true);
        fixture.source.state.lock().unwrap().answers = Some(0);
        assert!(matches!(pull(), Err(MailboxError::Source(_))));
        fixture.source.state.lock().unwrap().answers = None;
        assert_eq!(pull().unwrap().pulled, 1);
    }

    #[test]
    fn file_with_other_content_is_not_taken() {
        let mut fixture = MirrorFixture::new();
        let entry = fixture.post.deliver("ann", "one");
        fixture.source.publish(&fixture.post, 1);
        refresh(&fixture.copy, &mut |_| ()).unwrap();
        fixture.source.state.lock().unwrap().files[0].1.push(b'x');
        assert!(matches!(fixture.copy.find(&entry), Ok(MailFile::Changed(_))));
        fixture.source.state.lock().unwrap().files[0].1.pop();
        assert!(matches!(fixture.copy.find(&entry), Ok(MailFile::Here { .. })));
        // A copy that a power cut has torn is fetched again.
        let path = fixture.copy.root().join("inbound/webhook").join(&entry.file);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(matches!(fixture.copy.find(&entry), Ok(MailFile::Here { .. })));
    }

    #[test]
    fn token_names_the_workspace() {
        let fixture = MirrorFixture::new();
        let here = fixture.workspace();
        assert_eq!(here.name.as_str(), "alpha", "not the name of the directory");
        let config = fixture.dir.path().join("work/.monoco/mailbox/config.yaml");
        fs::write(config, "mailbox: {name: beta}").unwrap();
        let root = fixture.dir.path().join("work");
        let error = WorkspaceDir::open(&root, fixture.copy.root()).unwrap_err().to_string();
        assert!(error.contains("the token is for workspace \"alpha\""), "{error}");
    }
}
