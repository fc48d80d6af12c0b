//! What a tunnel knows about its workspace: the client, the account of the bot, names, and
//! events that wait for names.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use monoco_core::inbound::InboundEvent;
use monoco_core::retry::Failure;
use serde_json::Value;

use super::client::{SlackApiError, SlackClient};
use super::inbound::{EventReader, OwnAccount, ReadEvents};
use super::wire::text;
use crate::names::{NameCache, UnnamedEvents, event_id};
use crate::naming_sink::EventNamer;

/// Most direct chats that are remembered.
const MAX_DIRECT_CHATS: usize = 10_000;

/// The state that all parts of the adapter share. Everything in it can be looked up again.
#[derive(Debug)]
pub(super) struct SlackWorkspace {
    pub client: SlackClient,
    pub names: NameCache,
    own: Mutex<Option<Arc<OwnAccount>>>,
    unnamed: UnnamedEvents<(EventSource, Value)>,
    /// The direct chats with accounts. They never change.
    direct_chats: Mutex<HashMap<String, String>>,
    /// Whether messages of other bots are received.
    pub accepts_bots: bool,
    /// Connections of other processes with the same app token, when the last one was opened.
    pub other_connections: AtomicU64,
}

/// How a payload is converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EventSource {
    Callback,
    /// A command or an interaction, by the type of its envelope.
    Interaction(String),
}

impl SlackWorkspace {
    pub fn new(client: SlackClient) -> Self {
        Self {
            client,
            names: NameCache::default(),
            own: Mutex::default(),
            unnamed: UnnamedEvents::default(),
            direct_chats: Mutex::default(),
            accepts_bots: false,
            other_connections: AtomicU64::new(0),
        }
    }

    /// Returns the account of the bot, which is looked up once.
    pub async fn own_account(&self) -> Result<Arc<OwnAccount>, SlackApiError> {
        if let Some(own) = self.known_account() {
            return Ok(own);
        }
        let reply = self.client.read("auth.test", &[]).await?;
        let own = Arc::new(OwnAccount {
            user_id: reply.text("user_id").unwrap_or_default().to_owned(),
            bot_id: reply.text("bot_id").map(str::to_owned),
            team: reply.text("team").map(str::to_owned),
        });
        if let Some(name) = reply.text("user") {
            self.names.insert(&own.user_id, Some(name.to_owned()));
        }
        *lock(&self.own) = Some(Arc::clone(&own));
        Ok(own)
    }

    /// Returns the account of the bot, if it was looked up.
    pub fn known_account(&self) -> Option<Arc<OwnAccount>> {
        lock(&self.own).clone()
    }

    /// Converts a payload with the names that are known. If names are missing, the events are
    /// remembered for [`EventNamer::add_names`].
    pub fn read(&self, source: EventSource, payload: Value) -> Vec<InboundEvent> {
        let read = self.convert(&source, &payload);
        if let Some((id, name)) = read.renamed {
            self.names.insert(&id, Some(name));
        }
        let missing: BTreeSet<_> =
            read.missing.into_iter().filter(|id| self.names.needs_lookup(id)).collect();
        if let (false, [event]) = (missing.is_empty(), read.events.as_slice()) {
            self.unnamed.insert(event, (source, payload), missing);
        }
        read.events
    }

    fn convert(&self, source: &EventSource, payload: &Value) -> ReadEvents {
        let own = self.known_account().unwrap_or_default();
        let find_name = |id: &str| self.names.find(id);
        let accepts_bots = self.accepts_bots;
        let reader = EventReader { own: &own, accepts_bots, find_name: &find_name };
        match source {
            EventSource::Callback => reader.read_callback(payload),
            EventSource::Interaction(kind) => reader.read_interaction(kind, payload),
        }
    }

    /// Returns the direct chat with an account, which is looked up once.
    pub async fn direct_chat(&self, user: &str) -> Result<String, SlackApiError> {
        if let Some(chat) = lock(&self.direct_chats).get(user) {
            return Ok(chat.clone());
        }
        let reply = self.client.read("conversations.open", &[("users", user)]).await?;
        match text(&reply.value()["channel"], "id") {
            Some(chat) => {
                let mut known = lock(&self.direct_chats);
                if known.len() >= MAX_DIRECT_CHATS {
                    known.clear();
                }
                known.insert(user.to_owned(), chat.to_owned());
                Ok(chat.to_owned())
            }
            None => {
                let detail = "conversations.open: the answer has no chat".to_owned();
                let failure = Failure::Temporary { detail, retry_after_ms: None, error_code: None };
                Err(SlackApiError { failure, kind: super::client::ApiErrorKind::Rejected })
            }
        }
    }
}

#[async_trait]
impl EventNamer for SlackWorkspace {
    async fn add_names(&self, events: Vec<InboundEvent>) -> Vec<InboundEvent> {
        let Some(waiting) = self.unnamed.take(&events) else { return events };
        self.names.look_up(&self.client, waiting.missing).await;
        let named = |event: InboundEvent| match waiting.payloads.get(&event_id(&event)) {
            Some((source, payload)) => self.convert(source, payload).events.pop().unwrap_or(event),
            None => event,
        };
        events.into_iter().map(named).collect()
    }
}

/// Nothing panics while it holds one of the locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
