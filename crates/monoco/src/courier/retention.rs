//! Throws away what has been kept long enough.
//!
//! Age is counted in days of the hub's life, not by the clock: a clock that jumps makes
//! nothing older.

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
use crate::clock::Clock;
use crate::config::{Config, RetentionConfig};

/// How often the time that passed is noted.
const EVERY: Duration = Duration::from_secs(60);

/// How often something is thrown away, in those.
const ROUNDS: u32 = 10;

/// Mails in one commit, letters, bookings, and events, so that nobody waits long behind it.
const MAILS: usize = 500;
const LETTERS: usize = 500;
const BOOKINGS: usize = 1_000;
const EVENTS: usize = 5_000;

/// Most commits of each sort in one go.
const SLICES: usize = 200;

/// Largest file of a draft that was sent: the draft, and what became of it.
const MAX_SENT: u64 = 8 << 20;

/// Lets the hub live on, and throws away what is old, until `stop`.
pub async fn run(
    store: SharedStore,
    clock: Clock,
    tree: Arc<MailboxDir>,
    config: watch::Receiver<Arc<Config>>,
    stop: CancellationToken,
) {
    let mut noted = store.last_clock_reading().await.ok().flatten();
    let mut round = 0;
    loop {
        let now = clock.now();
        match store.advance_retention_clock(now).await {
            Ok((life, step)) => {
                if step == ClockStep::Jumped {
                    let hours = noted.map(|noted| (now.ms() - noted.ms()) / 3_600_000);
                    tracing::warn!(hours, "the clock jumped; nothing is thrown away by it");
                }
                noted = Some(life.noted_at);
                if round % ROUNDS == 0 {
                    let kept = config.borrow().retention;
                    let limits = RetentionDays::new(life.day(), &kept);
                    throw_away(&store, clock, &tree, limits, &stop).await;
                }
            }
            Err(error) => tracing::warn!(%error, "the time that passed is not noted"),
        }
        round += 1;
        if stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_none() {
            return;
        }
    }
}

/// Of which days what is thrown away: these and those before.
#[derive(Clone, Copy, Debug)]
struct RetentionDays {
    archive: i64,
    trash: i64,
    events: i64,
}

impl RetentionDays {
    /// The day it was put there does not count: what is kept for thirty days is kept for
    /// thirty whole ones.
    fn new(today: i64, kept: &RetentionConfig) -> Self {
        Self {
            archive: today - i64::from(kept.archive_days) - 1,
            trash: today - i64::from(kept.trash_days) - 1,
            events: today - i64::from(kept.events_days) - 1,
        }
    }
}

async fn throw_away(
    store: &SharedStore,
    clock: Clock,
    tree: &Arc<MailboxDir>,
    limits: RetentionDays,
    stop: &CancellationToken,
) {
    if let Err(error) = retire(store, clock, limits, stop).await {
        tracing::warn!(%error, "nothing is thrown away for now");
        return;
    }
    let (tree, now) = (Arc::clone(tree), clock.now());
    let gone = tokio::task::spawn_blocking(move || old_drafts(&tree, limits.archive, now)).await;
    match gone.unwrap_or_else(|error| Err(io::Error::other(error))) {
        Ok(0) => {}
        Ok(drafts) => tracing::info!(drafts, "old drafts are gone"),
        Err(error) => tracing::warn!(%error, "old drafts stay for now"),
    }
}

async fn retire(
    store: &SharedStore,
    clock: Clock,
    limits: RetentionDays,
    stop: &CancellationToken,
) -> Result<(), StoreError> {
    let mut mails = 0;
    for _ in 0..SLICES {
        let retired = store.purge_archived_mails(limits.archive, MAILS, clock.now()).await?;
        mails += retired;
        if retired < MAILS || stop.is_cancelled() {
            break;
        }
    }
    let mut letters = 0;
    for _ in 0..SLICES {
        let gone = store.purge_letters(limits.trash, limits.archive, LETTERS).await?;
        letters += gone;
        if gone < LETTERS || stop.is_cancelled() {
            break;
        }
    }
    let mut key = Some(String::new());
    while let Some(after) = key
        && !stop.is_cancelled()
    {
        (_, key) = store.purge_reservations(&after, BOOKINGS, clock.now()).await?;
    }
    let mut events = 0;
    for _ in 0..SLICES {
        let forgotten = store.purge_events(limits.events, EVENTS).await?;
        events += forgotten;
        if forgotten < EVENTS || stop.is_cancelled() {
            break;
        }
    }
    if mails + letters + events > 0 {
        tracing::info!(mails, letters, events, "kept long enough");
    }
    Ok(())
}

/// Removes drafts that were sent on this day of the hub's life or before. Their names
/// and the clock only say which are worth reading.
fn old_drafts(tree: &MailboxDir, day: i64, now: Timestamp) -> io::Result<usize> {
    let today = now.compact();
    let archive = tree.open_dirs()?.root().make("archive")?;
    let mut gone = 0;
    for provider in archive.names()?.into_iter().filter_map(|named| named.name) {
        let Ok(dir) = archive.sub(&provider) else { continue };
        for name in dir.names()?.into_iter().filter_map(|named| named.name) {
            let old = name.strip_suffix(".md").is_some_and(is_uid) && name[..8] != today[..8];
            if !old {
                continue;
            }
            let Some(text) = dir.read(&name, MAX_SENT).ok().flatten() else { continue };
            let outcome = draft::outcome(&String::from_utf8_lossy(&text));
            let sent_on = outcome.and_then(|outcome| outcome["day"].as_i64());
            if sent_on.is_some_and(|sent_on| sent_on <= day) && dir.remove(&name)? {
                gone += 1;
            }
        }
    }
    Ok(gone)
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

    /// Lets the hub live for some days, by steps that are believed.
    async fn live(hub: &TestHub, days: i64) -> i64 {
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
    async fn what_was_archived_goes_after_thirty_whole_days_and_no_jump_hastens_it() {
        let hub = TestHub::new().await;
        let tree = hub.tree();
        let ids = hub.hear(["1", "2"]).await;
        live(&hub, 0).await;
        hub.end(&ids[0], ClaimUpdate::Complete).await;
        let filer = Arc::new(FileProjector::new(Arc::clone(hub.store()), Arc::clone(&tree)));
        let shelf = hub.mailbox().join("archive/webhook");
        fs::create_dir_all(&shelf).unwrap();
        let draft = shelf.join("20200206T204500_build_0123456789abcdef.md");
        let text = with_outcome("---\nto: ann\n---\n\nhello\n", &json!({"day": 0}));
        fs::write(&draft, text).unwrap();
        let notes = shelf.join("20200206T204500_notes.md");
        fs::write(&notes, "not ours").unwrap();

        let kept = RetentionConfig { archive_days: 30, trash_days: 30, events_days: 90 };
        let stop = CancellationToken::new();
        for (days, gone) in [(0, false), (30, false), (1, true)] {
            // Ten years ahead and back, as a clock may go.
            let now = hub.store().last_clock_reading().await.unwrap().unwrap_or_default();
            for jump in [now + Duration::from_secs(315_360_000), now] {
                assert_eq!(
                    hub.store().advance_retention_clock(jump).await.unwrap().1,
                    ClockStep::Jumped
                );
            }
            let today = live(&hub, days).await;
            throw_away(hub.store(), hub.clock, &tree, RetentionDays::new(today, &kept), &stop)
                .await;
            let stopped = CancellationToken::new();
            stopped.cancel();
            Arc::clone(&filer).run(stopped).await;
            assert_eq!(hub.path("archive", &ids[0]).is_none(), gone, "day {today}");
            assert_eq!(!draft.exists(), gone, "day {today}");
            assert!(hub.path("inbound", &ids[1]).is_some(), "nobody has dealt with it");
            assert!(notes.exists());
        }
    }
}
