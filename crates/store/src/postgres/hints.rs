//! Tells other couriers what was committed, and hears it from them.
//!
//! One session listens and notifies, because a notification in the transaction of a batch would
//! cost more than half of the commits. What is committed within 10 ms is announced together. Hints
//! can be lost, so that the newest numbers are read after each connect.

use std::collections::BTreeSet;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use monoco_core::did::Did;
use monoco_core::record::BoxKind;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;

use super::connect::{Connector, PgSession, quoted_name};
use crate::BoxHint;
use crate::sql::writer::{CommitEffects, WriterChannels};

/// How long commits are collected before they are announced.
const ANNOUNCE_DELAY: Duration = Duration::from_millis(10);

/// How long a lost session waits until it is opened again.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// How long the start waits for the first session. Then hints come later, and pollers work.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Boxes in one announcement.
const MAX_BOXES: usize = 50;

/// PostgreSQL rejects longer notifications. A longer announcement is made without boxes.
const MAX_BYTES: usize = 7_999;

/// Announcements that wait until they are published here.
const MAX_WAITING: usize = 256;

/// What one courier has committed.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Announcement {
    /// The process that has committed.
    boot: String,
    event: Option<i64>,
    file_change: Option<i64>,
    inbound: bool,
    inbound_file: bool,
    letter: bool,
    email_task: bool,
    boxes: BTreeSet<(Did, String)>,
}

/// The commits that are not announced yet.
#[derive(Debug, Default)]
pub(crate) struct PendingHints {
    announcement: Mutex<Option<Announcement>>,
    changed: Notify,
    closed: Notify,
}

impl PendingHints {
    /// Adds the effects of a commit.
    pub(crate) fn add(&self, effects: &CommitEffects) {
        if !effects.concern_others() {
            return;
        }
        let mut pending = self.announcement.lock().unwrap_or_else(PoisonError::into_inner);
        let all = pending.get_or_insert_default();
        all.event = all.event.max(effects.event);
        all.file_change = all.file_change.max(effects.file_change);
        all.inbound |= effects.inbound;
        all.inbound_file |= effects.inbound_file;
        all.letter |= effects.letter;
        all.email_task |= effects.email_task;
        let boxes = effects.hints.iter().take(MAX_BOXES.saturating_sub(all.boxes.len()));
        all.boxes.extend(boxes.map(|hint| (hint.owner.clone(), hint.box_kind.as_str().to_owned())));
        drop(pending);
        self.changed.notify_one();
    }

    fn take(&self) -> Option<Announcement> {
        self.announcement.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The thread that announces and listens. It ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct HintExchange(Arc<PendingHints>);

impl Drop for HintExchange {
    fn drop(&mut self) {
        self.0.closed.notify_one();
    }
}

impl HintExchange {
    /// Starts the thread. Returns when it listens, so that the caller misses nothing and gets no
    /// hint about what was committed before.
    pub(super) fn start(
        connector: Arc<Connector>,
        boot: String,
        pending: Arc<PendingHints>,
        channels: Arc<WriterChannels>,
    ) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = Arc::clone(&pending);
        let (started, is_started) = sync_channel(1);
        thread::Builder::new().name("store-hints".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = shared.closed.notified() => {}
                    () = exchange(&connector, &boot, &shared, &channels, &started) => {}
                }
            });
        })?;
        let _ = is_started.recv_timeout(START_TIMEOUT);
        Ok(Self(pending))
    }
}

/// Announces and listens, on one session after the other. Never returns.
async fn exchange(
    connector: &Connector,
    boot: &str,
    pending: &PendingHints,
    channels: &WriterChannels,
    started: &SyncSender<()>,
) {
    let mut is_first = true;
    loop {
        let (heard, mut announcements) = mpsc::channel(MAX_WAITING);
        if let Ok(session) = connector.connect_listening(heard).await {
            let listening = listen(&session, connector, channels, is_first).await;
            let _ = started.try_send(());
            let lost = match listening {
                Ok(()) => {
                    serve(&session, connector, boot, pending, channels, &mut announcements).await
                }
                Err(error) => Err(error),
            };
            if let Err(error) = lost {
                tracing::warn!(%error, "lost the session for hints; opening another one");
            }
        }
        let _ = started.try_send(());
        is_first = false;
        sleep(RECONNECT_DELAY).await;
    }
}

/// Starts to listen, and publishes what was committed before.
async fn listen(
    session: &PgSession,
    connector: &Connector,
    channels: &WriterChannels,
    is_first: bool,
) -> Result<(), tokio_postgres::Error> {
    // A notification that is lost in a crash is not missed.
    let channel = quoted_name(&connector.channel());
    let listen = format!("SET synchronous_commit = off; LISTEN {channel}");
    session.client.batch_execute(&listen).await?;
    catch_up(session, channels, is_first).await
}

/// Announces and listens until the session is lost.
async fn serve(
    session: &PgSession,
    connector: &Connector,
    boot: &str,
    pending: &PendingHints,
    channels: &WriterChannels,
    announcements: &mut mpsc::Receiver<String>,
) -> Result<(), tokio_postgres::Error> {
    let channel = connector.channel();
    let notify = session.client.prepare("SELECT pg_notify($1, $2)").await?;
    loop {
        tokio::select! {
            announcement = announcements.recv() => {
                let Some(announcement) = announcement else { return Ok(()) };
                if let Ok(announcement) = serde_json::from_str::<Announcement>(&announcement)
                    && announcement.boot != boot
                {
                    publish(&announcement, channels);
                }
            }
            () = pending.changed.notified() => {
                sleep(ANNOUNCE_DELAY).await;
                let Some(announcement) = pending.take() else { continue };
                let text = message(Announcement { boot: boot.to_owned(), ..announcement });
                session.client.execute(&notify, &[&channel, &text]).await?;
            }
        }
    }
}

/// The text of a notification.
fn message(announcement: Announcement) -> String {
    let text = serde_json::to_string(&announcement).unwrap_or_default();
    if text.len() <= MAX_BYTES {
        return text;
    }
    let announcement = Announcement { boxes: BTreeSet::new(), ..announcement };
    serde_json::to_string(&announcement).unwrap_or_default()
}

/// Publishes the newest numbers, because announcements may have been missed. At the start no caller
/// waits for anything else.
async fn catch_up(
    session: &PgSession,
    channels: &WriterChannels,
    is_first: bool,
) -> Result<(), tokio_postgres::Error> {
    let sql = "SELECT (SELECT coalesce(max(seq), 0) FROM events),
                      (SELECT coalesce(max(change), 0) FROM mails)";
    let row = session.client.query_one(sql, &[]).await?;
    let (event, file_change) = (row.try_get(0)?, row.try_get(1)?);
    let announcement = Announcement {
        event: Some(event),
        file_change: Some(file_change),
        inbound: !is_first,
        inbound_file: !is_first,
        letter: !is_first,
        email_task: !is_first,
        ..Announcement::default()
    };
    publish(&announcement, channels);
    Ok(())
}

fn publish(announcement: &Announcement, channels: &WriterChannels) {
    let box_hint = |(owner, kind): &(Did, String)| {
        BoxKind::parse(kind).map(|box_kind| BoxHint { owner: owner.clone(), box_kind })
    };
    channels.publish(&CommitEffects {
        hints: announcement.boxes.iter().filter_map(box_hint).collect(),
        event: announcement.event,
        file_change: announcement.file_change,
        inbound: announcement.inbound,
        inbound_file: announcement.inbound_file,
        letter: announcement.letter,
        email_task: announcement.email_task,
        ..CommitEffects::default()
    });
}
