//! When a file that somebody puts into `outbound/` is finished.
//!
//! Nobody tells us. A file that was renamed into place is finished at once, and so is one
//! whose writer has closed it. A script that writes slowly keeps its file open between two
//! lines, for seconds or for minutes, and must not be cut off. So a file is left alone
//! while anybody has it open for writing, and otherwise until it has been quiet.
//!
//! File events are hints: they may be lost, come late, or not exist on a file system. What
//! counts is what a look shows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind, RenameMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

use super::mailbox_dir::FileStat;

/// How long a file that was closed or moved here must be quiet.
const SETTLED: Duration = Duration::from_millis(250);

/// How long any other file must be.
const QUIET: Duration = Duration::from_secs(3);

/// How long half a draft is waited for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Most hints that wait to be heard. When there are more, a look around finds out.
const HINTS: usize = 1_024;

/// Where a draft is: the provider's directory, and its name there.
pub type DraftPath = (String, String);

/// Something happened to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileEvent {
    /// Its writer closed it, or it was moved here whole.
    Closed(DraftPath),
    /// Somebody writes to it.
    Written(DraftPath),
}

/// Hints about a directory.
pub struct DraftWatcher {
    /// They come here.
    pub hints: mpsc::Receiver<FileEvent>,
    /// It hears as long as it is held.
    _watcher: Option<RecommendedWatcher>,
    _sender: mpsc::Sender<FileEvent>,
}

/// What we have seen of the files that are there.
#[derive(Debug, Default)]
pub struct DraftFiles(BTreeMap<DraftPath, DraftFile>);

#[derive(Debug)]
struct DraftFile {
    looks: FileStat,
    /// When it last changed, as far as we saw.
    since: Instant,
    /// Whether the last that happened to it was that it was finished.
    closed: bool,
    /// Whether we saw somebody write who has not closed it yet.
    written: bool,
    /// Whether a hint came since the last look. What the next one shows is no news.
    hinted: bool,
}

/// How a file looks that we only heard of.
const UNSEEN: FileStat = FileStat { is_file: false, mode: 0, len: 0, modified_ms: 0, node: (0, 0) };

/// Files that somebody has open for writing; `None` where nobody can tell.
pub type OpenForWrite = Option<BTreeSet<(u64, u64)>>;

impl DraftWatcher {
    /// Watches `outbound`, where that is possible. Without hints a look around finds
    /// everything, a little later.
    pub fn start(outbound: &Path) -> Self {
        let (sender, hints) = mpsc::channel(HINTS);
        let (to, root) = (sender.clone(), outbound.to_owned());
        let heard = move |event: notify::Result<notify::Event>| {
            let Ok(event) = event else { return };
            for hint in event.paths.iter().filter_map(|path| hint(&event.kind, path, &root)) {
                // A hint that does not fit is as good as lost.
                let _ = to.try_send(hint);
            }
        };
        let config = notify::Config::default().with_follow_symlinks(false);
        let watcher = RecommendedWatcher::new(heard, config).and_then(|mut watcher| {
            watcher.watch(outbound, RecursiveMode::Recursive)?;
            Ok(watcher)
        });
        if let Err(error) = &watcher {
            tracing::warn!(%error, "no file events; drafts are found by looking");
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
    let spot = (provider?.to_owned(), name?.to_owned());
    if !is_draft(&spot.1) {
        return None;
    }
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write))
        | EventKind::Modify(ModifyKind::Name(RenameMode::To)) => Some(FileEvent::Closed(spot)),
        EventKind::Create(CreateKind::File) | EventKind::Modify(ModifyKind::Data(_)) => {
            Some(FileEvent::Written(spot))
        }
        _ => None,
    }
}

/// Whether a name in `outbound/{provider}/` can be that of a draft.
pub fn is_draft(name: &str) -> bool {
    name.ends_with(".md") && !name.starts_with('.')
}

impl DraftFiles {
    /// Takes a hint.
    pub fn record(&mut self, hint: FileEvent, now: Instant) {
        let (spot, closed) = match hint {
            FileEvent::Closed(spot) => (spot, true),
            FileEvent::Written(spot) => (spot, false),
        };
        let looks = self.0.get(&spot).map_or(UNSEEN, |sight| sight.looks);
        self.0
            .insert(spot, DraftFile { looks, since: now, closed, written: !closed, hinted: true });
    }

    /// Takes what a look around showed: everything that is there.
    pub fn look(&mut self, there: BTreeMap<DraftPath, FileStat>, now: Instant) {
        self.0.retain(|spot, _| there.contains_key(spot));
        for (spot, looks) in there {
            let new = DraftFile { looks, since: now, closed: false, written: false, hinted: false };
            let sight = self.0.entry(spot).or_insert(new);
            if sight.looks != looks && !sight.hinted {
                (sight.since, sight.closed) = (now, false);
            }
            (sight.looks, sight.hinted) = (looks, false);
        }
    }

    /// Those that have been quiet for long enough, unless somebody has them open.
    pub fn quiet(&self, now: Instant) -> Vec<(DraftPath, FileStat)> {
        let quiet = self.0.iter().filter(|(_, sight)| sight.looks != UNSEEN);
        let quiet = quiet.filter(|(_, sight)| sight.due() <= now);
        quiet.map(|(spot, sight)| (spot.clone(), sight.looks)).collect()
    }

    /// Whether nobody writes to it any more.
    pub fn is_finished(&self, spot: &DraftPath, busy: &OpenForWrite) -> bool {
        self.0.get(spot).is_some_and(|sight| match busy {
            Some(busy) => !busy.contains(&sight.looks.node),
            None => !sight.written,
        })
    }

    /// How long it has been quiet.
    pub fn quiet_for(&self, spot: &DraftPath, now: Instant) -> Duration {
        self.0.get(spot).map_or(Duration::ZERO, |sight| now.saturating_duration_since(sight.since))
    }

    /// When the next one may be finished.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        self.0.values().map(DraftFile::due).filter(|due| *due > now).min()
    }

    /// Forgets one that is not there any more.
    pub fn forget(&mut self, spot: &DraftPath) {
        self.0.remove(spot);
    }
}

impl DraftFile {
    fn due(&self) -> Instant {
        self.since + if self.closed { SETTLED } else { QUIET }
    }
}

/// Which of `files` somebody has open for writing, as far as the system tells.
pub fn busy(files: &BTreeSet<(u64, u64)>) -> OpenForWrite {
    let processes = fs::read_dir("/proc").ok()?;
    // Without our own there, this is not the directory we mean.
    fs::read_dir("/proc/self/fdinfo").ok()?;
    let mut busy = BTreeSet::new();
    for process in processes.flatten() {
        // Those of others are closed to us; they have no business in our mailbox.
        let Ok(open) = fs::read_dir(process.path().join("fd")) else { continue };
        for file in open.flatten() {
            let Ok(metadata) = fs::metadata(file.path()) else { continue };
            let node = (metadata.dev(), metadata.ino());
            if files.contains(&node) && is_for_writing(&process.path(), &file.file_name()) {
                busy.insert(node);
            }
        }
    }
    Some(busy)
}

fn is_for_writing(process: &Path, number: &std::ffi::OsStr) -> bool {
    let Ok(about) = fs::read_to_string(process.join("fdinfo").join(number)) else { return false };
    let flags = about.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    // The lowest two bits say how it was opened; 0 is for reading only.
    flags.is_some_and(|flags| flags & 0o3 != 0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn spot() -> DraftPath {
        ("lark".to_owned(), "a.md".to_owned())
    }

    fn looks(len: u64) -> FileStat {
        FileStat { is_file: true, mode: 0o600, len, modified_ms: 0, node: (1, 2) }
    }

    /// Plays `"w0 l0 c900"`: written, looked at, closed at those milliseconds (a look
    /// shows another length after each write); then says from when on it is quiet.
    fn quiet_from(story: &str) -> u64 {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut sightings = DraftFiles::default();
        let (mut len, mut last) = (0, 0);
        for step in story.split(' ') {
            let (what, ms) = step.split_at(1);
            last = ms.parse().unwrap();
            match what {
                "w" => {
                    len += 1;
                    sightings.record(FileEvent::Written(spot()), at(last));
                }
                // A write of which no event tells.
                "s" => len += 1,
                "c" => sightings.record(FileEvent::Closed(spot()), at(last)),
                _ => sightings.look(BTreeMap::from([(spot(), looks(len))]), at(last)),
            }
        }
        (last..last + 10_000).find(|ms| !sightings.quiet(at(*ms)).is_empty()).unwrap()
    }

    #[test]
    fn a_closed_file_is_finished_soon_and_any_other_when_it_is_quiet() {
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
    fn a_file_that_somebody_has_open_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.md");
        let mut writer = fs::File::create(&path).unwrap();
        writer.write_all(b"half").unwrap();
        let metadata = writer.metadata().unwrap();
        let node = (metadata.dev(), metadata.ino());
        let asked = BTreeSet::from([node]);
        let _reader = fs::File::open(&path).unwrap();
        assert_eq!(busy(&asked), Some(asked.clone()));
        drop(writer);
        assert_eq!(busy(&asked), Some(BTreeSet::new()), "a reader does not count");

        let mut sightings = DraftFiles::default();
        let now = Instant::now();
        sightings.look(BTreeMap::from([(spot(), FileStat { node, ..looks(4) })]), now);
        assert!(!sightings.is_finished(&spot(), &Some(asked)));
        assert!(sightings.is_finished(&spot(), &Some(BTreeSet::new())));
        assert!(sightings.is_finished(&spot(), &None));
        sightings.record(FileEvent::Written(spot()), now);
        assert!(!sightings.is_finished(&spot(), &None), "seen to write, not to close");
        assert!(sightings.is_finished(&spot(), &Some(BTreeSet::new())), "the system knows");
        sightings.record(FileEvent::Closed(spot()), now);
        assert!(sightings.is_finished(&spot(), &None));
    }

    #[tokio::test]
    async fn events_tell_of_drafts_and_of_nothing_else() {
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
                FileEvent::Written(spot) => assert_eq!(spot.1, "a.md"),
            }
        }
        assert_eq!(heard, [closed("a.md"), closed("b.md")]);
    }
}
