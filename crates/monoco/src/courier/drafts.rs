//! Sends what people and scripts put into `outbound/{provider}/`.
//!
//! ```text
//!   outbound/lark/build.md
//!      │ finished: it gets a uid
//!      ▼
//!   outbound/lark/.sending/{uid}.md ──▶ posted under that uid ──▶ delivered or not
//!      │                                                             │
//!      ├─ can't be sent ──▶ .deadletter/lark/{uid}.md + {uid}.reason.json ◀─ not
//!      └────────────────────────────────────▶ archive/lark/{uid}.md ◀─ delivered
//! ```
//!
//! From the moment a draft has its uid it is sent once, whatever happens: after a crash
//! it is found in `.sending/` and posted again, and the store knows the uid. Every step
//! leaves it in one place, or is finished at the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use monoco_core::did::{Did, TunnelId};
use monoco_core::draft::{Draft, InvalidDraft, MAX_DRAFT};
use monoco_core::time::Timestamp;
use monoco_mailbox::paths::OUTBOUND_DIR;
use monoco_store::{SharedStore, StoreError};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::draft_watcher::{self, DraftFiles, DraftPath, DraftWatcher, PATIENCE};
use super::mailbox_dir::{FileStat, MailboxDir, OpenDirs};
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

/// Where drafts are while they are sent, below their provider's directory.
pub(super) const SENDING: &str = ".sending";

/// Longest part of a draft's own name that stays in its uid.
const STEM: usize = 40;

/// Sends drafts.
pub struct DraftLoop {
    pub store: SharedStore,
    pub clock: Clock,
    pub entry: PipelineEntry,
    /// The mailbox.
    pub tree: Arc<MailboxDir>,
    /// Who sends them.
    pub owner: Did,
    /// The tunnels there are.
    pub tunnels: Arc<TunnelRegistry>,
}

/// Where drafts stand.
#[derive(Default)]
struct DraftQueue {
    started: bool,
    files: DraftFiles,
    /// Drafts that have their uid and are not posted yet.
    unsent: BTreeSet<DraftUid>,
    /// Drafts that are posted and whose end is awaited.
    sent: BTreeSet<DraftUid>,
}

/// A draft that was picked up: its provider's directory, and its name there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DraftUid {
    pub(super) provider: String,
    pub(super) uid: String,
}

/// Why drafts are not sent at the moment.
#[derive(Debug, thiserror::Error)]
pub enum DraftsError {
    /// The disk says no.
    #[error("{0}")]
    Disk(#[from] io::Error),
    /// The store says no.
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

    /// Looks around once. Returns how long to wait before the next look.
    fn round(&self, desk: &mut DraftQueue, handle: &Handle) -> Result<Duration, DraftsError> {
        let mut hands = self.tree.open_dirs()?;
        if !desk.started {
            // So that whoever wants to send sees where to.
            for provider in self.providers().keys() {
                hands.provider_dir(OUTBOUND_DIR, provider, true)?;
            }
            desk.unsent = self.found_sending(&hands)?;
            desk.started = true;
        }
        let wait = self.pick_up(desk, &mut hands);
        let sent = self.send_all(desk, &mut hands, handle);
        for uid in self.settle(&mut hands, handle)? {
            desk.sent.remove(&uid);
        }
        sent?;
        wait
    }

    /// Posts what has its uid. One that can't be read now does not hold up the others.
    fn send_all(
        &self,
        desk: &mut DraftQueue,
        hands: &mut OpenDirs<'_>,
        handle: &Handle,
    ) -> Result<(), DraftsError> {
        // A uid that is not on disk is forgotten by a power cut, and the draft would get
        // another one, and be sent again.
        sync(hands, &desk.unsent)?;
        let mut trouble = Ok(());
        for uid in std::mem::take(&mut desk.unsent) {
            match self.send(hands, &uid, handle) {
                Ok(true) => {
                    desk.sent.insert(uid);
                }
                Ok(false) => {}
                Err(error) => {
                    desk.unsent.insert(uid);
                    trouble = Err(error);
                }
            }
        }
        trouble
    }

    /// What an earlier courier was about to send.
    fn found_sending(&self, hands: &OpenDirs<'_>) -> io::Result<BTreeSet<DraftUid>> {
        let mut found = BTreeSet::new();
        let outbound = hands.root().make(OUTBOUND_DIR)?;
        for provider in outbound.names()?.into_iter().filter_map(|named| named.name) {
            let Ok(sending) = outbound.sub(&provider).and_then(|dir| dir.sub(SENDING)) else {
                continue;
            };
            for name in sending.names()?.into_iter().filter_map(|named| named.name) {
                let uid = name.strip_suffix(".md").filter(|uid| is_uid(uid));
                let Some(uid) = uid else {
                    tracing::warn!(provider, name, "not a draft of ours in .sending");
                    continue;
                };
                found.insert(DraftUid { provider: provider.clone(), uid: uid.to_owned() });
            }
        }
        Ok(found)
    }

    /// Gives drafts that are finished their uids. Returns how long until another one may
    /// be.
    fn pick_up(
        &self,
        desk: &mut DraftQueue,
        hands: &mut OpenDirs<'_>,
    ) -> Result<Duration, DraftsError> {
        let now = Instant::now();
        desk.files.look(drafts_there(hands)?, now);
        let quiet = desk.files.quiet(now);
        let mut wait = POLL_INTERVAL;
        if !quiet.is_empty() {
            let busy = draft_watcher::busy(&quiet.iter().map(|(_, looks)| looks.node).collect());
            let mut trouble = Ok(());
            for (at, (spot, _)) in quiet.iter().enumerate() {
                if at == MAX_DRAFTS_PER_STEP {
                    wait = Duration::ZERO;
                    break;
                }
                let finished = desk.files.is_finished(spot, &busy);
                if !finished || self.may_grow(desk, hands, spot, now)? {
                    wait = wait.min(OPEN_FILE_DELAY);
                    continue;
                }
                match self.name(hands, spot) {
                    Ok(uid) => {
                        desk.files.forget(spot);
                        desk.unsent.extend(uid);
                    }
                    Err(error) => trouble = Err(error),
                }
            }
            trouble?;
        }
        let next = desk.files.next(now).map(|at| at.saturating_duration_since(now));
        Ok(next.map_or(wait, |next| wait.min(next)))
    }

    /// Whether somebody may still be at it who closes his file between two lines.
    fn may_grow(
        &self,
        desk: &DraftQueue,
        hands: &mut OpenDirs<'_>,
        spot: &DraftPath,
        now: Instant,
    ) -> io::Result<bool> {
        if desk.files.quiet_for(spot, now) >= PATIENCE {
            return Ok(false);
        }
        let Some(dir) = hands.provider_dir(OUTBOUND_DIR, &spot.0, false)? else { return Ok(false) };
        // One that is too large or can't be read does not become better by waiting.
        let Ok(Some(bytes)) = dir.read(&spot.1, MAX_DRAFT as u64) else { return Ok(false) };
        let text = String::from_utf8_lossy(&bytes);
        Ok(Draft::parse(&text) == Err(InvalidDraft::Incomplete))
    }

    /// Moves a draft to where drafts are sent from, under its uid; `None` when it is not
    /// there any more.
    fn name(
        &self,
        hands: &mut OpenDirs<'_>,
        spot: &DraftPath,
    ) -> Result<Option<DraftUid>, DraftsError> {
        let (provider, name) = spot;
        let Some(dir) = hands.provider_dir(OUTBOUND_DIR, provider, false)? else { return Ok(None) };
        let random = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
        let uid = uid(name, random, self.clock.now());
        let sending = dir.make(SENDING)?;
        match dir.rename(name, &sending, &format!("{uid}.md")) {
            Ok(()) => Ok(Some(DraftUid { provider: provider.clone(), uid })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The providers there are, with their tunnels.
    pub(super) fn providers(&self) -> BTreeMap<String, Vec<TunnelId>> {
        let mut providers: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for tunnel in self.tunnels.all().iter() {
            let id = tunnel.adapter.id().clone();
            providers.entry(tunnel.adapter.provider().to_owned()).or_default().push(id);
        }
        for idle in self.tunnels.idle().iter() {
            providers.entry(idle.provider.to_owned()).or_default().push(idle.id.clone());
        }
        providers
    }
}

/// The files that may be drafts.
fn drafts_there(hands: &OpenDirs<'_>) -> io::Result<BTreeMap<DraftPath, FileStat>> {
    let mut there = BTreeMap::new();
    let outbound = hands.root().make(OUTBOUND_DIR)?;
    for provider in outbound.names()?.into_iter().filter_map(|named| named.name) {
        if provider.starts_with('.') {
            continue;
        }
        // What is not a directory, or leads elsewhere, holds no drafts.
        let Ok(dir) = outbound.sub(&provider) else { continue };
        for name in dir.names()?.into_iter().filter_map(|named| named.name) {
            if !draft_watcher::is_draft(&name) {
                continue;
            }
            if let Some(looks) = dir.stat(&name)?.filter(|looks| looks.is_file) {
                there.insert((provider.clone(), name), looks);
            }
        }
    }
    Ok(there)
}

/// Brings drafts to disk under their uids.
fn sync(hands: &mut OpenDirs<'_>, unsent: &BTreeSet<DraftUid>) -> io::Result<()> {
    let providers: BTreeSet<_> = unsent.iter().map(|uid| uid.provider.as_str()).collect();
    for provider in providers {
        let Some(dir) = hands.provider_dir(OUTBOUND_DIR, provider, false)? else { continue };
        let sending = dir.make(SENDING)?;
        for uid in unsent.iter().filter(|uid| uid.provider == provider) {
            match sending.sync_file(&format!("{}.md", uid.uid)) {
                // What is not there or can't be read is judged when it is read.
                Err(error) if is_its_own(&error) => {}
                other => other?,
            }
        }
        sending.sync()?;
        dir.sync()?;
    }
    Ok(())
}

/// Whether an error is about one file, and not about the disk.
pub(super) fn is_its_own(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| [Errno::NOENT, Errno::ACCESS, Errno::LOOP].contains(&errno))
}

/// The uid of a draft: when it was picked up, how its writer called it, and chance.
fn uid(name: &str, random: u64, now: Timestamp) -> String {
    let stem = name.strip_suffix(".md").unwrap_or(name);
    let plain = stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
    let plain: String = plain.take(STEM).collect();
    let plain = if plain.is_empty() { "draft" } else { &plain };
    format!("{}_{plain}_{random:016x}", now.compact())
}

/// Whether a text can be the uid of a draft. Nothing else is taken for a name.
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
        && (1..=STEM).contains(&stem.len())
        && stem.bytes().all(plain)
        && random.len() == 16
        && random.bytes().all(hex)
}

/// Whether a name in a part of the mailbox is that of a draft that was sent or given up.
pub(super) fn is_file_of_ours(part: &str, file: &str) -> bool {
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
