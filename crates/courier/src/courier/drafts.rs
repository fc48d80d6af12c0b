//! Sends the drafts that users and scripts put into `outbound/{provider}/`.
//!
//! ```text
//!   outbound/lark/build.md
//!      │ complete: it gets a uid
//!      ▼
//!   outbound/lark/.sending/{uid}.md ──▶ sent under that uid ──▶ delivered or not
//!      │                                                             │
//!      ├─ cannot be sent ──▶ .deadletter/lark/{uid}.md + {uid}.reason.json ◀─ not
//!      └────────────────────────────────────▶ archive/lark/{uid}.md ◀─ delivered
//! ```
//!
//! A draft with a uid is sent once: after a crash it is found in `.sending/` and submitted
//! again, and the store recognises the uid. Every step leaves the draft in one directory,
//! or is completed at the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use monoco_core::did::{Did, TunnelId};
use monoco_core::draft::{Draft, InvalidDraft, MAX_DRAFT};
use monoco_core::time::Timestamp;
use monoco_fs::FileStat;
use monoco_mailbox::paths::OUTBOUND_DIR;
use monoco_store::{SharedStore, StoreError};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::dead_drafts::DeadDrafts;
use super::draft_watcher::{self, DraftFiles, DraftPath, DraftWatcher, INCOMPLETE_DRAFT_TIMEOUT};
use super::mailbox_dir::{MailboxDir, OpenDirs};
use super::tunnels::TunnelRegistry;
use crate::background::{self, BackgroundTask, NextStep};
use crate::center::PipelineEntry;
use crate::clock::Clock;

/// Interval between directory scans when no file event arrives.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Delay between a store event and the check for finished deliveries, so that one check
/// covers several deliveries.
const OUTCOME_DELAY: Duration = Duration::from_millis(200);

/// Delay until a file that is open for writing is checked again.
const OPEN_FILE_DELAY: Duration = Duration::from_secs(1);

/// Drafts that are picked up in one step.
const MAX_DRAFTS_PER_STEP: usize = 100;

/// Directory of drafts with a uid, below the directory of their provider.
pub(super) const SENDING_DIR: &str = ".sending";

/// Longest part of the original file name that is kept in the uid.
const MAX_STEM_CHARS: usize = 40;

/// Sends drafts from `outbound/`.
pub struct DraftLoop {
    pub store: SharedStore,
    pub clock: Clock,
    pub entry: PipelineEntry,
    pub tree: Arc<MailboxDir>,
    /// Sender of all drafts.
    pub owner: Did,
    pub tunnels: Arc<TunnelRegistry>,
    pub dead: Arc<DeadDrafts>,
}

#[derive(Default)]
struct DraftQueue {
    started: bool,
    files: DraftFiles,
    /// Drafts with a uid that are not in the store yet.
    unsent: BTreeSet<DraftUid>,
    /// Drafts whose deliveries have not ended.
    sent: BTreeSet<DraftUid>,
}

/// A draft in `.sending/`: provider directory and uid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DraftUid {
    pub(super) provider: String,
    pub(super) uid: String,
}

#[derive(Debug, thiserror::Error)]
pub enum DraftsError {
    #[error("{0}")]
    Disk(#[from] io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The draft loop as a background task.
struct DraftTask {
    drafts: Arc<DraftLoop>,
    watcher: DraftWatcher,
    events: watch::Receiver<i64>,
    queue: DraftQueue,
}

impl BackgroundTask for DraftTask {
    const NAME: &'static str = "drafts";
    type Error = DraftsError;

    async fn step(&mut self) -> Result<NextStep, DraftsError> {
        self.events.mark_unchanged();
        while let Ok(event) = self.watcher.hints.try_recv() {
            self.queue.files.record(event, Instant::now());
        }
        let (drafts, handle) = (Arc::clone(&self.drafts), Handle::current());
        let mut queue = std::mem::take(&mut self.queue);
        let round = tokio::task::spawn_blocking(move || {
            let wait = drafts.round(&mut queue, &handle);
            (queue, wait)
        });
        // After a panic, the empty queue is filled from the directories again.
        let (queue, wait) = round.await.map_err(io::Error::other)?;
        self.queue = queue;
        wait.map(NextStep::Poll)
    }

    async fn hint(&mut self) {
        tokio::select! {
            event = self.watcher.hints.recv() => {
                if let Some(event) = event {
                    self.queue.files.record(event, Instant::now());
                }
            }
            () = background::changed(&mut self.events), if !self.queue.sent.is_empty() => {
                tokio::time::sleep(OUTCOME_DELAY).await;
            }
        }
    }
}

impl DraftLoop {
    /// Sends drafts until `stop` is cancelled.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let watcher = DraftWatcher::start(&self.tree.mailbox().join(OUTBOUND_DIR));
        let events = self.store.newest_event();
        let queue = DraftQueue::default();
        background::run(&mut DraftTask { drafts: self, watcher, events, queue }, &stop).await;
    }

    /// Runs one step. Returns the time until the next step.
    fn round(&self, queue: &mut DraftQueue, handle: &Handle) -> Result<Duration, DraftsError> {
        let mut dirs = self.tree.open_dirs()?;
        if !queue.started {
            // Users see which directories accept drafts.
            for provider in self.providers().keys() {
                dirs.provider_dir(OUTBOUND_DIR, provider, true)?;
            }
            queue.unsent = self.list_sending(&dirs)?;
            drop(dirs);
            self.dead.scan()?;
            dirs = self.tree.open_dirs()?;
            queue.started = true;
        }
        let wait = self.pick_up_drafts(queue, &mut dirs);
        let sent = self.send_all(queue, &mut dirs, handle);
        for uid in self.settle(&mut dirs, handle)? {
            queue.sent.remove(&uid);
        }
        sent?;
        wait
    }

    /// Submits the drafts that have a uid. An unreadable draft does not delay the others.
    fn send_all(
        &self,
        queue: &mut DraftQueue,
        dirs: &mut OpenDirs<'_>,
        handle: &Handle,
    ) -> Result<(), DraftsError> {
        // A uid that is lost in a power cut would be replaced by another one, and the
        // draft sent twice.
        sync(dirs, &queue.unsent)?;
        let mut trouble = Ok(());
        for uid in std::mem::take(&mut queue.unsent) {
            match self.send(dirs, &uid, handle) {
                Ok(true) => {
                    queue.sent.insert(uid);
                }
                Ok(false) => {}
                Err(error) => {
                    queue.unsent.insert(uid);
                    trouble = Err(error);
                }
            }
        }
        trouble
    }

    /// Lists the drafts that an earlier run left in `.sending/`.
    fn list_sending(&self, dirs: &OpenDirs<'_>) -> io::Result<BTreeSet<DraftUid>> {
        let mut found = BTreeSet::new();
        let outbound = dirs.root().make(OUTBOUND_DIR)?;
        for provider in outbound.names()?.into_iter().filter_map(|entry| entry.name) {
            let Ok(sending) = outbound.sub(&provider).and_then(|dir| dir.sub(SENDING_DIR)) else {
                continue;
            };
            for name in sending.names()?.into_iter().filter_map(|entry| entry.name) {
                let uid = name.strip_suffix(".md").filter(|uid| is_uid(uid));
                let Some(uid) = uid else {
                    tracing::warn!(provider, name, "unknown file in .sending directory");
                    continue;
                };
                found.insert(DraftUid { provider: provider.clone(), uid: uid.to_owned() });
            }
        }
        Ok(found)
    }

    /// Gives complete drafts their uids. Returns the time until another draft may be
    /// complete.
    fn pick_up_drafts(
        &self,
        queue: &mut DraftQueue,
        dirs: &mut OpenDirs<'_>,
    ) -> Result<Duration, DraftsError> {
        let now = Instant::now();
        queue.files.update(list_drafts(dirs)?, now);
        let quiet = queue.files.quiet(now);
        let mut wait = POLL_INTERVAL;
        if !quiet.is_empty() {
            let open_for_write =
                draft_watcher::open_for_write(&quiet.iter().map(|(_, stat)| stat.node).collect());
            let mut trouble = Ok(());
            for (at, (draft_path, _)) in quiet.iter().enumerate() {
                if at == MAX_DRAFTS_PER_STEP {
                    wait = Duration::ZERO;
                    break;
                }
                let finished = queue.files.is_finished(draft_path, &open_for_write);
                if !finished || self.is_incomplete(queue, dirs, draft_path, now)? {
                    wait = wait.min(OPEN_FILE_DELAY);
                    continue;
                }
                match self.name(dirs, draft_path) {
                    Ok(uid) => {
                        queue.files.forget(draft_path);
                        queue.unsent.extend(uid);
                    }
                    Err(error) => trouble = Err(error),
                }
            }
            trouble?;
        }
        let next = queue.files.next(now).map(|at| at.saturating_duration_since(now));
        Ok(next.map_or(wait, |next| wait.min(next)))
    }

    /// Whether the front matter is incomplete and the writer may still append to the file.
    fn is_incomplete(
        &self,
        queue: &DraftQueue,
        dirs: &mut OpenDirs<'_>,
        draft_path: &DraftPath,
        now: Instant,
    ) -> io::Result<bool> {
        if queue.files.quiet_for(draft_path, now) >= INCOMPLETE_DRAFT_TIMEOUT {
            return Ok(false);
        }
        let Some(dir) = dirs.provider_dir(OUTBOUND_DIR, &draft_path.0, false)? else {
            return Ok(false);
        };
        // Waiting does not help when the file is too large or unreadable.
        let Ok(Some(bytes)) = dir.read(&draft_path.1, MAX_DRAFT as u64) else { return Ok(false) };
        let text = String::from_utf8_lossy(&bytes);
        Ok(Draft::parse(&text) == Err(InvalidDraft::Incomplete))
    }

    /// Moves a draft to `.sending/` under a new uid; `None` when the file is gone.
    fn name(
        &self,
        dirs: &mut OpenDirs<'_>,
        draft_path: &DraftPath,
    ) -> Result<Option<DraftUid>, DraftsError> {
        let (provider, name) = draft_path;
        let Some(dir) = dirs.provider_dir(OUTBOUND_DIR, provider, false)? else { return Ok(None) };
        let random = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
        let uid = uid(name, random, self.clock.now());
        let sending = dir.make(SENDING_DIR)?;
        match dir.rename(name, &sending, &format!("{uid}.md")) {
            Ok(()) => Ok(Some(DraftUid { provider: provider.clone(), uid })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Configured providers with their tunnels, running or not.
    pub(super) fn providers(&self) -> BTreeMap<String, Vec<TunnelId>> {
        let mut providers: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for tunnel in self.tunnels.running().iter() {
            let id = tunnel.adapter.id().clone();
            providers.entry(tunnel.adapter.provider().to_owned()).or_default().push(id);
        }
        for idle in self.tunnels.inactive().iter() {
            providers.entry(idle.provider.to_owned()).or_default().push(idle.id.clone());
        }
        providers
    }
}

/// Lists the files in `outbound/` that may be drafts.
fn list_drafts(dirs: &OpenDirs<'_>) -> io::Result<BTreeMap<DraftPath, FileStat>> {
    let mut there = BTreeMap::new();
    let outbound = dirs.root().make(OUTBOUND_DIR)?;
    for provider in outbound.names()?.into_iter().filter_map(|entry| entry.name) {
        if provider.starts_with('.') {
            continue;
        }
        // Other files and symbolic links hold no drafts.
        let Ok(dir) = outbound.sub(&provider) else { continue };
        for name in dir.names()?.into_iter().filter_map(|entry| entry.name) {
            if !draft_watcher::is_draft(&name) {
                continue;
            }
            if let Some(stat) = dir.stat(&name)?.filter(|stat| stat.is_file) {
                there.insert((provider.clone(), name), stat);
            }
        }
    }
    Ok(there)
}

/// Syncs drafts under their uids to disk.
fn sync(dirs: &mut OpenDirs<'_>, unsent: &BTreeSet<DraftUid>) -> io::Result<()> {
    let providers: BTreeSet<_> = unsent.iter().map(|uid| uid.provider.as_str()).collect();
    for provider in providers {
        let Some(dir) = dirs.provider_dir(OUTBOUND_DIR, provider, false)? else { continue };
        let sending = dir.make(SENDING_DIR)?;
        for uid in unsent.iter().filter(|uid| uid.provider == provider) {
            match sending.sync_file(&format!("{}.md", uid.uid)) {
                // A missing or unreadable file is reported when it is read.
                Err(error) if is_per_file(&error) => {}
                other => other?,
            }
        }
        sending.sync()?;
        dir.sync()?;
    }
    Ok(())
}

/// Whether an error concerns one file and not the disk.
pub(super) fn is_per_file(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| [Errno::NOENT, Errno::ACCESS, Errno::LOOP].contains(&errno))
}

/// Builds a uid: time, part of the file name, random number.
fn uid(name: &str, random: u64, now: Timestamp) -> String {
    let stem = name.strip_suffix(".md").unwrap_or(name);
    // A dead draft that is retried has its old uid as its name.
    let stem = stem.split('_').nth(1).filter(|_| is_uid(stem)).unwrap_or(stem);
    let plain = stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
    let plain: String = plain.take(MAX_STEM_CHARS).collect();
    let plain = if plain.is_empty() { "draft" } else { &plain };
    format!("{}_{plain}_{random:016x}", now.compact())
}

/// Whether a text has the form of a uid.
pub(super) fn is_uid(text: &str) -> bool {
    let parts: Vec<_> = text.split('_').collect();
    let [time, stem, random] = parts.as_slice() else { return false };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    time.len() == 15
        && time
            .split_once('T')
            .is_some_and(|(day, time)| day.len() == 8 && digits(day) && digits(time))
        && (1..=MAX_STEM_CHARS).contains(&stem.len())
        && stem.bytes().all(plain)
        && random.len() == 16
        && random.bytes().all(hex)
}

/// Whether a file name in `part` is that of a sent or failed draft.
pub(super) fn is_draft_file(part: &str, file: &str) -> bool {
    let archived = file.strip_suffix(".md").is_some_and(is_uid);
    let reason = file.strip_suffix(".reason.json").is_some_and(is_uid);
    match part {
        "archive" => archived,
        ".deadletter" => archived || reason,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
