//! Groups that have become supergroups: their session stays that of the group.
//!
//! Telegram gives a supergroup a new id. The first id stays the id of the session, so that
//! bindings and answers go on. The ids are stored as the cursor `chats` of the tunnel before the
//! update that names them is confirmed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use monoco_core::inbound::InboundEvent;
use monoco_core::retry::{Backoff, Jitter};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::{InboundPage, InboundSink};

/// The name of the stored cursor.
const STREAM: &str = "chats";

/// Most groups that are remembered.
const MAX_GROUPS: usize = 10_000;

/// The ids of migrated groups.
#[derive(Debug)]
pub(super) struct ChatMigrations {
    /// The id of the session of each supergroup.
    sessions: Mutex<BTreeMap<i64, i64>>,
    progress: watch::Sender<StoreProgress>,
}

/// How often the ids were changed, and how many of the changes are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StoreProgress {
    is_loaded: bool,
    changes: u64,
    stored: u64,
}

impl Default for ChatMigrations {
    fn default() -> Self {
        Self { sessions: Mutex::default(), progress: watch::Sender::new(StoreProgress::default()) }
    }
}

impl ChatMigrations {
    /// Records that the group `from` has become the supergroup `to`.
    pub fn insert(&self, from: i64, to: i64) {
        let mut sessions = self.lock();
        let session = sessions.get(&from).copied().unwrap_or(from);
        if session == to || sessions.get(&to) == Some(&session) || sessions.len() >= MAX_GROUPS {
            return;
        }
        sessions.insert(to, session);
        drop(sessions);
        self.progress.send_modify(|progress| progress.changes += 1);
    }

    /// Returns the id of the session of a chat.
    pub fn session_of(&self, chat: i64) -> i64 {
        self.lock().get(&chat).copied().unwrap_or(chat)
    }

    /// Returns the id by which Telegram knows the chat of a session now.
    pub fn current(&self, session: i64) -> i64 {
        let sessions = self.lock();
        let first = sessions.get(&session).copied().unwrap_or(session);
        let newest = sessions.iter().filter(|(_, of)| **of == first).map(|(chat, _)| *chat);
        // A supergroup does not migrate again, so there is one.
        newest.min().unwrap_or(session)
    }

    /// Sets the sessions of events whose chats have migrated.
    pub fn set_sessions(&self, events: &mut [InboundEvent]) {
        for event in events {
            let session = match event {
                InboundEvent::Message { message, .. } => Some(&mut message.session),
                InboundEvent::Edit(edit) => Some(&mut edit.message.session),
                InboundEvent::Recall(recall) => Some(&mut recall.session),
                InboundEvent::Notice(notice) => notice.session.as_mut(),
            };
            if let Some(session) = session
                && let Ok(chat) = session.id.parse()
            {
                session.id = self.session_of(chat).to_string();
            }
        }
    }

    /// Waits until the ids are loaded and all changes are stored; `false` after `limit`.
    pub async fn is_stored(&self, limit: Duration) -> bool {
        let is_done = |it: &StoreProgress| it.is_loaded && it.stored == it.changes;
        let mut progress = self.progress.subscribe();
        timeout(limit, progress.wait_for(is_done)).await.is_ok_and(|result| result.is_ok())
    }

    /// Loads the ids, and stores them whenever they change. Never returns.
    pub async fn keep_stored(&self, sink: &dyn InboundSink) {
        let mut failures = 0;
        let mut progress = self.progress.subscribe();
        loop {
            let now = *progress.borrow_and_update();
            let result = match now.is_loaded {
                false => self.load(sink).await,
                true if now.stored < now.changes => self.store(sink, now.changes).await,
                true => {
                    // The sender is a field of self, so it is not dropped.
                    let _ = progress.changed().await;
                    continue;
                }
            };
            match result {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures += 1;
                    tracing::warn!(error, "cannot store the ids of migrated groups");
                    sleep(Backoff::DEFAULT.delay(failures, Jitter::NONE)).await;
                }
            }
        }
    }

    async fn load(&self, sink: &dyn InboundSink) -> Result<(), String> {
        let stored = sink.cursor(STREAM).await.map_err(|error| error.to_string())?;
        // What cannot be read was not written by this program.
        let stored: BTreeMap<i64, i64> =
            stored.and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default();
        let mut sessions = self.lock();
        for (chat, session) in stored {
            sessions.entry(chat).or_insert(session);
        }
        drop(sessions);
        self.progress.send_modify(|progress| progress.is_loaded = true);
        Ok(())
    }

    async fn store(&self, sink: &dyn InboundSink, changes: u64) -> Result<(), String> {
        let json = serde_json::to_string(&*self.lock()).map_err(|error| error.to_string())?;
        let cursor = Some(json);
        let page = InboundPage { stream: STREAM.to_owned(), cursor, ..InboundPage::default() };
        sink.receive_page(page).await.map_err(|error| error.to_string())?;
        self.progress.send_modify(|progress| progress.stored = progress.stored.max(changes));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<i64, i64>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_keeps_the_id_of_the_group() {
        let chats = ChatMigrations::default();
        assert_eq!((chats.session_of(-5), chats.current(-5)), (-5, -5));
        chats.insert(-5, -1005);
        chats.insert(-5, -1005);
        assert_eq!((chats.session_of(-1005), chats.session_of(-5)), (-5, -5));
        assert_eq!((chats.current(-5), chats.current(-1005)), (-1005, -1005));
        assert_eq!(chats.progress.borrow().changes, 1, "a repeated notice changes nothing");
        chats.insert(-1005, -5);
        assert_eq!(chats.session_of(-5), -5, "a circle is ignored");
    }
}
