//! Archives Mails that no workspace claims, and purges Mails, letters, e-mail tasks, rate-limit
//! reservations, events and sent drafts after their retention time.
//!
//! Age is counted in days of the retention clock, not by the wall clock: a clock step
//! makes nothing older.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use monoco_core::draft;
use monoco_core::retention::ClockStep;
use monoco_core::time::Timestamp;
use monoco_store::{SharedStore, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::drafts::is_uid;
use super::mailbox_dir::MailboxDir;
use crate::background::{self, BackgroundTask, NextStep};
use crate::clock::Clock;
use crate::config::{Config, RetentionConfig};

/// Interval between updates of the retention clock.
const CLOCK_INTERVAL: Duration = Duration::from_secs(60);

/// Updates of the retention clock between two purges.
const UPDATES_PER_PURGE: u32 = 10;

/// Rows per commit, so that other writers do not wait long.
const MAX_MAILS_PER_COMMIT: usize = 500;
const MAX_LETTERS_PER_COMMIT: usize = 500;
const MAX_EMAIL_TASKS_PER_COMMIT: usize = 500;
const MAX_RESERVATIONS_PER_COMMIT: usize = 1_000;
const MAX_EVENTS_PER_COMMIT: usize = 5_000;

/// Commits of each kind in one purge.
const MAX_COMMITS_PER_PURGE: usize = 200;

/// Files that were stored again within this time are not deleted.
const MIN_FILE_AGE: Duration = Duration::from_secs(3_600);

/// Largest file of a sent draft, including its outcome.
const MAX_SENT_DRAFT_BYTES: u64 = 8 << 20;

struct RetentionTask {
    store: SharedStore,
    clock: Clock,
    tree: Arc<MailboxDir>,
    config: watch::Receiver<Arc<Config>>,
    stop: CancellationToken,
    /// The clock reading that was stored last.
    last_reading: Option<Timestamp>,
    updates: u32,
}

impl BackgroundTask for RetentionTask {
    const NAME: &'static str = "retention";
    type Error = StoreError;

    async fn step(&mut self) -> Result<NextStep, StoreError> {
        let now = self.clock.now();
        let (clock, step) = self.store.advance_retention_clock(now).await?;
        if step == ClockStep::Jumped {
            let hours = self.last_reading.map(|last| (now.ms() - last.ms()) / 3_600_000);
            tracing::warn!(hours, "clock jumped; the step does not count for retention");
        }
        self.last_reading = Some(clock.noted_at);
        if self.updates.is_multiple_of(UPDATES_PER_PURGE) {
            let days = PurgeDays::new(clock.day(), &self.config.borrow().retention);
            purge(&self.store, self.clock, &self.tree, days, &self.stop).await;
        }
        self.updates = self.updates.wrapping_add(1);
        Ok(NextStep::After(CLOCK_INTERVAL))
    }
}

/// Advances the retention clock and purges what has expired, until `stop` is cancelled.
pub async fn run(
    store: SharedStore,
    clock: Clock,
    tree: Arc<MailboxDir>,
    config: watch::Receiver<Arc<Config>>,
    stop: CancellationToken,
) {
    let last_reading = store.last_clock_reading().await.ok().flatten();
    let task_stop = stop.clone();
    let mut task =
        RetentionTask { store, clock, tree, config, stop: task_stop, last_reading, updates: 0 };
    background::run(&mut task, &stop).await;
}

/// The last retention days that are purged, by kind.
#[derive(Clone, Copy, Debug)]
struct PurgeDays {
    inbound: i64,
    archive: i64,
    trash: i64,
    events: i64,
}

impl PurgeDays {
    /// The day on which an entry was archived does not count: 30 days are 30 full days.
    fn new(today: i64, config: &RetentionConfig) -> Self {
        Self {
            inbound: today - i64::from(config.inbound_days) - 1,
            archive: today - i64::from(config.archive_days) - 1,
            trash: today - i64::from(config.trash_days) - 1,
            events: today - i64::from(config.events_days) - 1,
        }
    }
}

async fn purge(
    store: &SharedStore,
    clock: Clock,
    tree: &Arc<MailboxDir>,
    days: PurgeDays,
    stop: &CancellationToken,
) {
    if let Err(error) = purge_store(store, clock, days, stop).await {
        tracing::warn!(%error, "cannot purge expired entries");
        return;
    }
    let (tree, now) = (Arc::clone(tree), clock.now());
    let removed =
        tokio::task::spawn_blocking(move || remove_sent_drafts(&tree, days.archive, now)).await;
    match removed.unwrap_or_else(|error| Err(io::Error::other(error))) {
        Ok(0) => {}
        Ok(drafts) => tracing::info!(drafts, "removed expired drafts"),
        Err(error) => tracing::warn!(%error, "cannot remove expired drafts"),
    }
}

async fn purge_store(
    store: &SharedStore,
    clock: Clock,
    days: PurgeDays,
    stop: &CancellationToken,
) -> Result<(), StoreError> {
    let mut expired = 0;
    for _ in 0..MAX_COMMITS_PER_PURGE {
        let archived =
            store.expire_unclaimed_mails(days.inbound, MAX_MAILS_PER_COMMIT, clock.now()).await?;
        expired += archived;
        if archived < MAX_MAILS_PER_COMMIT || stop.is_cancelled() {
            break;
        }
    }
    if expired > 0 {
        tracing::info!(mails = expired, "archived Mails that no workspace has claimed");
    }
    let mut mails = 0;
    for _ in 0..MAX_COMMITS_PER_PURGE {
        let purged =
            store.purge_archived_mails(days.archive, MAX_MAILS_PER_COMMIT, clock.now()).await?;
        mails += purged;
        if purged < MAX_MAILS_PER_COMMIT || stop.is_cancelled() {
            break;
        }
    }
    let mut letters = 0;
    for _ in 0..MAX_COMMITS_PER_PURGE {
        let purged = store.purge_letters(days.trash, days.archive, MAX_LETTERS_PER_COMMIT).await?;
        letters += purged;
        if purged < MAX_LETTERS_PER_COMMIT || stop.is_cancelled() {
            break;
        }
    }
    let mut email_tasks = 0;
    for _ in 0..MAX_COMMITS_PER_PURGE {
        let purged = store.purge_tasks(days.archive, MAX_EMAIL_TASKS_PER_COMMIT).await?;
        email_tasks += purged;
        if purged < MAX_EMAIL_TASKS_PER_COMMIT || stop.is_cancelled() {
            break;
        }
    }
    let files = store.delete_purged_files(MIN_FILE_AGE).await?;
    let mut key = Some(String::new());
    while let Some(after) = key
        && !stop.is_cancelled()
    {
        (_, key) =
            store.purge_reservations(&after, MAX_RESERVATIONS_PER_COMMIT, clock.now()).await?;
    }
    let mut events = 0;
    for _ in 0..MAX_COMMITS_PER_PURGE {
        let purged = store.purge_events(days.events, MAX_EVENTS_PER_COMMIT).await?;
        events += purged;
        if purged < MAX_EVENTS_PER_COMMIT || stop.is_cancelled() {
            break;
        }
    }
    if mails + letters + email_tasks + files + events > 0 {
        tracing::info!(mails, letters, email_tasks, files, events, "purged expired entries");
    }
    Ok(())
}

/// Removes drafts that were sent on retention day `day` or before, and returns how many.
/// Files of today by name are not read.
fn remove_sent_drafts(tree: &MailboxDir, day: i64, now: Timestamp) -> io::Result<usize> {
    let today = now.compact();
    let archive = tree.open_dirs()?.root().make("archive")?;
    let mut removed = 0;
    for provider in archive.names()?.into_iter().filter_map(|entry| entry.name) {
        let Ok(dir) = archive.sub(&provider) else { continue };
        for name in dir.names()?.into_iter().filter_map(|entry| entry.name) {
            let old = name.strip_suffix(".md").is_some_and(is_uid) && name[..8] != today[..8];
            if !old {
                continue;
            }
            let Some(text) = dir.read(&name, MAX_SENT_DRAFT_BYTES).ok().flatten() else { continue };
            let outcome = draft::outcome(&String::from_utf8_lossy(&text));
            let sent_on = outcome.and_then(|outcome| outcome["day"].as_i64());
            if sent_on.is_some_and(|sent_on| sent_on <= day) && dir.remove(&name)? {
                removed += 1;
            }
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use monoco_core::draft::with_outcome;
    use monoco_store::ClaimUpdate;
    use serde_json::json;

    use super::*;
    use crate::courier::file_projector::FileProjector;
    use crate::courier::test_hub::TestHub;

    /// Advances the retention clock by some days, in steps that count. Returns the day.
    async fn advance_days(hub: &TestHub, days: i64) -> i64 {
        let store = hub.store();
        let mut now = store.last_clock_reading().await.unwrap().unwrap_or_else(|| hub.clock.now());
        let mut day = store.advance_retention_clock(now).await.unwrap().0.day();
        for _ in 0..days {
            now = now + Duration::from_secs(86_400);
            day = store.advance_retention_clock(now).await.unwrap().0.day();
        }
        day
    }

    #[tokio::test]
    async fn archived_mail_and_sent_draft_are_purged_after_30_full_days_despite_clock_jumps() {
        let hub = TestHub::new().await;
        let tree = hub.tree();
        let ids = hub.receive(["1", "2"]).await;
        advance_days(&hub, 0).await;
        hub.end(&ids[0], ClaimUpdate::Complete).await;
        let projector = Arc::new(FileProjector::new(Arc::clone(hub.store()), Arc::clone(&tree)));
        let archive = hub.mailbox().join("archive/webhook");
        fs::create_dir_all(&archive).unwrap();
        let draft = archive.join("20200206T204500_build_0123456789abcdef.md");
        let text = with_outcome("---\nto: ann\n---\n\nhello\n", &json!({"day": 0}));
        fs::write(&draft, text).unwrap();
        let notes = archive.join("20200206T204500_notes.md");
        fs::write(&notes, "of the user").unwrap();

        let (archive_days, trash_days, events_days) = (30, 30, 90);
        let config = RetentionConfig { inbound_days: 60, archive_days, trash_days, events_days };
        let stop = CancellationToken::new();
        for (days, purged) in [(0, false), (30, false), (1, true)] {
            // The clock jumps ten years ahead and back.
            let now = hub.store().last_clock_reading().await.unwrap().unwrap_or_default();
            for jump in [now + Duration::from_secs(315_360_000), now] {
                assert_eq!(
                    hub.store().advance_retention_clock(jump).await.unwrap().1,
                    ClockStep::Jumped
                );
            }
            let today = advance_days(&hub, days).await;
            purge(hub.store(), hub.clock, &tree, PurgeDays::new(today, &config), &stop).await;
            let stopped = CancellationToken::new();
            stopped.cancel();
            Arc::clone(&projector).run(stopped).await;
            assert_eq!(hub.path("archive", &ids[0]).is_none(), purged, "day {today}");
            assert_eq!(!draft.exists(), purged, "day {today}");
            assert!(hub.path("inbound", &ids[1]).is_some(), "not archived");
            assert!(notes.exists());
        }
    }

    #[tokio::test]
    async fn unclaimed_mail_is_archived_after_30_full_days_and_then_purged() {
        let hub = TestHub::new().await;
        let tree = hub.tree();
        advance_days(&hub, 0).await;
        let ids = hub.receive(["1"]).await;
        let projector = Arc::new(FileProjector::new(Arc::clone(hub.store()), Arc::clone(&tree)));
        let (inbound_days, archive_days, trash_days, events_days) = (30, 2, 30, 90);
        let config = RetentionConfig { inbound_days, archive_days, trash_days, events_days };
        let stop = CancellationToken::new();
        for (days, dir) in [(30, Some("inbound")), (1, Some("archive")), (3, None)] {
            let today = advance_days(&hub, days).await;
            purge(hub.store(), hub.clock, &tree, PurgeDays::new(today, &config), &stop).await;
            let stopped = CancellationToken::new();
            stopped.cancel();
            Arc::clone(&projector).run(stopped).await;
            for other in ["inbound", "archive"] {
                assert_eq!(hub.path(other, &ids[0]).is_some(), dir == Some(other), "day {today}");
            }
        }
    }
}
