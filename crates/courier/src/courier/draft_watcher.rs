//! Decides when a file in `outbound/` is complete.
//!
//! A file that was renamed into place or closed by its writer is complete after 250 ms.
//! Other files are complete after 3 s without a change, unless a process has them open for
//! writing: a slow script may keep its file open for minutes.
//!
//! File events are hints: they may be lost or late, or not exist on a file system. The
//! directory scan decides.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use monoco_fs::FileStat;
use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind, RenameMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

/// Time without changes after which a closed or renamed file is complete.
const CLOSED_FILE_DELAY: Duration = Duration::from_millis(250);

/// Time without changes after which any other file is complete.
const IDLE_FILE_DELAY: Duration = Duration::from_secs(3);

/// Time to wait for the rest of an incomplete front matter.
pub const INCOMPLETE_DRAFT_TIMEOUT: Duration = Duration::from_secs(60);

/// Limit of queued file events. Further events are dropped; the scan finds the files.
const MAX_PENDING_EVENTS: usize = 1_024;

/// Provider directory and file name of a draft.
pub type DraftPath = (String, String);

/// Change of a file in `outbound/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileEvent {
    /// The writer closed the file, or it was renamed into place.
    Closed(DraftPath),
    /// The file was created or written.
    Written(DraftPath),
}

/// Watches `outbound/` for file events.
pub struct DraftWatcher {
    pub hints: mpsc::Receiver<FileEvent>,
    /// Events are delivered until this is dropped.
    _watcher: Option<RecommendedWatcher>,
    _sender: mpsc::Sender<FileEvent>,
}

/// Observed state of the files in `outbound/`.
#[derive(Debug, Default)]
pub struct DraftFiles(BTreeMap<DraftPath, DraftFile>);

#[derive(Debug)]
struct DraftFile {
    stat: FileStat,
    /// Time of the last observed change.
    since: Instant,
    /// Whether the last event was that the file was closed.
    closed: bool,
    /// Whether a write was observed and no close after it.
    written: bool,
    /// Whether an event arrived since the last scan, which then shows no further change.
    hinted: bool,
}

/// Stands for a file of which only events are known.
const NOT_SCANNED: FileStat =
    FileStat { is_file: false, mode: 0, len: 0, links: 0, modified_ms: 0, node: (0, 0) };

/// Inodes that are open for writing; `None` where the system does not report it.
pub type OpenForWrite = Option<BTreeSet<(u64, u64)>>;

impl DraftWatcher {
    /// Starts watching `outbound`, if the system supports it.
    pub fn start(outbound: &Path) -> Self {
        let (sender, hints) = mpsc::channel(MAX_PENDING_EVENTS);
        let (to, root) = (sender.clone(), outbound.to_owned());
        let heard = move |event: notify::Result<notify::Event>| {
            let Ok(event) = event else { return };
            for hint in event.paths.iter().filter_map(|path| hint(&event.kind, path, &root)) {
                // A dropped event only delays the draft until the next scan.
                let _ = to.try_send(hint);
            }
        };
        let config = notify::Config::default().with_follow_symlinks(false);
        let watcher = RecommendedWatcher::new(heard, config).and_then(|mut watcher| {
            watcher.watch(outbound, RecursiveMode::Recursive)?;
            Ok(watcher)
        });
        if let Err(error) = &watcher {
            tracing::warn!(%error, "cannot watch outbound directory; drafts are found by polling");
        }
        Self { hints, _watcher: watcher.ok(), _sender: sender }
    }
}

fn hint(kind: &EventKind, path: &Path, root: &Path) -> Option<FileEvent> {
    let below = path.strip_prefix(root).ok()?;
    let mut parts = below.iter().map(|part| part.to_str());
    let (Some(provider), Some(name), None) = (parts.next(), parts.next(), parts.next()) else {
        return None;
    };
    let draft_path = (provider?.to_owned(), name?.to_owned());
    if !is_draft(&draft_path.1) {
        return None;
    }
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write))
        | EventKind::Modify(ModifyKind::Name(RenameMode::To)) => {
            Some(FileEvent::Closed(draft_path))
        }
        EventKind::Create(CreateKind::File) | EventKind::Modify(ModifyKind::Data(_)) => {
            Some(FileEvent::Written(draft_path))
        }
        _ => None,
    }
}

/// Whether a file name can be that of a draft.
pub fn is_draft(name: &str) -> bool {
    name.ends_with(".md") && !name.starts_with('.')
}

impl DraftFiles {
    /// Records a file event.
    pub fn record(&mut self, hint: FileEvent, now: Instant) {
        let (draft_path, closed) = match hint {
            FileEvent::Closed(draft_path) => (draft_path, true),
            FileEvent::Written(draft_path) => (draft_path, false),
        };
        let stat = self.0.get(&draft_path).map_or(NOT_SCANNED, |file| file.stat);
        self.0.insert(
            draft_path,
            DraftFile { stat, since: now, closed, written: !closed, hinted: true },
        );
    }

    /// Updates the state with the result of a directory scan.
    pub fn update(&mut self, there: BTreeMap<DraftPath, FileStat>, now: Instant) {
        self.0.retain(|draft_path, _| there.contains_key(draft_path));
        for (draft_path, stat) in there {
            let new = DraftFile { stat, since: now, closed: false, written: false, hinted: false };
            let file = self.0.entry(draft_path).or_insert(new);
            if file.stat != stat && !file.hinted {
                (file.since, file.closed) = (now, false);
            }
            (file.stat, file.hinted) = (stat, false);
        }
    }

    /// Files that have been unchanged for long enough.
    pub fn quiet(&self, now: Instant) -> Vec<(DraftPath, FileStat)> {
        let quiet = self.0.iter().filter(|(_, file)| file.stat != NOT_SCANNED);
        let quiet = quiet.filter(|(_, file)| file.due() <= now);
        quiet.map(|(draft_path, file)| (draft_path.clone(), file.stat)).collect()
    }

    /// Whether no process is known to write to the file.
    pub fn is_finished(&self, draft_path: &DraftPath, open_for_write: &OpenForWrite) -> bool {
        self.0.get(draft_path).is_some_and(|file| match open_for_write {
            Some(open_for_write) => !open_for_write.contains(&file.stat.node),
            None => !file.written,
        })
    }

    /// Time since the last change.
    pub fn quiet_for(&self, draft_path: &DraftPath, now: Instant) -> Duration {
        self.0
            .get(draft_path)
            .map_or(Duration::ZERO, |file| now.saturating_duration_since(file.since))
    }

    /// Time at which the next file may be complete.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        self.0.values().map(DraftFile::due).filter(|due| *due > now).min()
    }

    pub fn forget(&mut self, draft_path: &DraftPath) {
        self.0.remove(draft_path);
    }
}

impl DraftFile {
    fn due(&self) -> Instant {
        self.since + if self.closed { CLOSED_FILE_DELAY } else { IDLE_FILE_DELAY }
    }
}

/// Which of `files` are open for writing in a process of this user.
pub fn open_for_write(files: &BTreeSet<(u64, u64)>) -> OpenForWrite {
    let processes = fs::read_dir("/proc").ok()?;
    // Without this directory, `/proc` is not the Linux process file system.
    fs::read_dir("/proc/self/fdinfo").ok()?;
    let mut open_for_write = BTreeSet::new();
    for process in processes.flatten() {
        // Processes of other users are not readable; they cannot write to the mailbox.
        let Ok(open) = fs::read_dir(process.path().join("fd")) else { continue };
        for file in open.flatten() {
            let Ok(metadata) = fs::metadata(file.path()) else { continue };
            let node = (metadata.dev(), metadata.ino());
            if files.contains(&node) && is_for_writing(&process.path(), &file.file_name()) {
                open_for_write.insert(node);
            }
        }
    }
    Some(open_for_write)
}

fn is_for_writing(process: &Path, number: &std::ffi::OsStr) -> bool {
    let Ok(about) = fs::read_to_string(process.join("fdinfo").join(number)) else { return false };
    let flags = about.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    // The lowest two bits are the access mode; 0 is read-only.
    flags.is_some_and(|flags| flags & 0o3 != 0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn draft_path() -> DraftPath {
        ("lark".to_owned(), "a.md".to_owned())
    }

    fn stat(len: u64) -> FileStat {
        FileStat { is_file: true, mode: 0o600, len, links: 1, modified_ms: 0, node: (1, 2) }
    }

    /// Runs a script such as `"w0 l0 c900"`: written, scanned, closed at those
    /// milliseconds; each write changes the length. Returns when the file counts as
    /// complete.
    fn quiet_from(story: &str) -> u64 {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut files = DraftFiles::default();
        let (mut len, mut last) = (0, 0);
        for step in story.split(' ') {
            let (what, ms) = step.split_at(1);
            last = ms.parse().unwrap();
            match what {
                "w" => {
                    len += 1;
                    files.record(FileEvent::Written(draft_path()), at(last));
                }
                // A write without an event.
                "s" => len += 1,
                "c" => files.record(FileEvent::Closed(draft_path()), at(last)),
                _ => files.update(BTreeMap::from([(draft_path(), stat(len))]), at(last)),
            }
        }
        (last..last + 10_000).find(|ms| !files.quiet(at(*ms)).is_empty()).unwrap()
    }

    #[test]
    fn closed_file_is_complete_after_250_ms_and_any_other_after_3_s() {
        assert_eq!(quiet_from("c100 l110"), 350);
        assert_eq!(quiet_from("l100"), 3100);
        assert_eq!(quiet_from("w0 l50 c900 l910"), 1150);
        assert_eq!(quiet_from("l0 w900 l910"), 3900);
        assert_eq!(quiet_from("l0 w900 c950 l960"), 1200);
        assert_eq!(quiet_from("l0 w900 c950 l960 s1000 l1210"), 4210);
        assert_eq!(quiet_from("l0 s900 l2900"), 5900, "changes are noticed without events");
        assert_eq!(quiet_from("c0 l10 w100 l110"), 3100, "it was opened again");
        assert_eq!(quiet_from("c0 l10 s100 l110"), 3110);
    }

    #[test]
    fn file_open_for_writing_is_not_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.md");
        let mut writer = fs::File::create(&path).unwrap();
        writer.write_all(b"half").unwrap();
        let metadata = writer.metadata().unwrap();
        let node = (metadata.dev(), metadata.ino());
        let asked = BTreeSet::from([node]);
        let _reader = fs::File::open(&path).unwrap();
        assert_eq!(open_for_write(&asked), Some(asked.clone()));
        drop(writer);
        assert_eq!(open_for_write(&asked), Some(BTreeSet::new()), "a reader does not count");

        let mut files = DraftFiles::default();
        let now = Instant::now();
        files.update(BTreeMap::from([(draft_path(), FileStat { node, ..stat(4) })]), now);
        assert!(!files.is_finished(&draft_path(), &Some(asked)));
        assert!(files.is_finished(&draft_path(), &Some(BTreeSet::new())));
        assert!(files.is_finished(&draft_path(), &None));
        files.record(FileEvent::Written(draft_path()), now);
        assert!(!files.is_finished(&draft_path(), &None), "seen to write, not to close");
        assert!(files.is_finished(&draft_path(), &Some(BTreeSet::new())), "the system knows");
        files.record(FileEvent::Closed(draft_path()), now);
        assert!(files.is_finished(&draft_path(), &None));
    }

    #[tokio::test]
    async fn events_are_reported_for_drafts_only() {
        let dir = tempfile::tempdir().unwrap();
        let lark = dir.path().join("lark");
        fs::create_dir_all(lark.join(".sending")).unwrap();
        let mut watch = DraftWatcher::start(dir.path());
        for other in [".a.md", "a.txt", ".sending/b.md"] {
            fs::write(lark.join(other), "x").unwrap();
        }
        fs::write(lark.join("a.md"), "x").unwrap();
        fs::write(lark.join(".hidden"), "x").unwrap();
        fs::rename(lark.join(".hidden"), lark.join("b.md")).unwrap();
        let closed = |name: &str| FileEvent::Closed(("lark".to_owned(), name.to_owned()));
        let mut heard = Vec::new();
        while heard.len() < 2 {
            let hint = tokio::time::timeout(Duration::from_secs(10), watch.hints.recv()).await;
            match hint.unwrap().unwrap() {
                hint @ FileEvent::Closed(_) => heard.push(hint),
                FileEvent::Written(draft_path) => assert_eq!(draft_path.1, "a.md"),
            }
        }
        assert_eq!(heard, [closed("a.md"), closed("b.md")]);
    }
}
