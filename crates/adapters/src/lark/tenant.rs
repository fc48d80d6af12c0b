//! What a tunnel knows about its organisation: the client, names, which chats are direct, and
//! events that wait for names.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use monoco_core::inbound::{ChatPosition, ChatSessionKind, InboundEvent};
use monoco_core::retry::Failure;
use serde_json::Value;

use super::client::{LarkClient, LarkRequest};
use super::failure::{LarkAnswer, LarkFault};
use super::inbound::{LarkEvents, LarkReader};
use super::wire::{MAX_ID_BYTES, text};
use crate::names::{NameAnswer, NameCache, NameSource, UnnamedEvents, event_id};
use crate::naming_sink::EventNamer;

/// Most direct chats that are remembered, about 1 MiB.
const MAX_DIRECT_CHATS: usize = 10_000;

/// The state that all parts of the adapter share. Everything in it can be looked up again.
#[derive(Debug)]
pub(super) struct LarkTenant {
    pub client: LarkClient,
    pub names: NameCache,
    unnamed: UnnamedEvents<Value>,
    direct_chats: Mutex<HashSet<String>>,
}

impl LarkTenant {
    pub fn new(client: LarkClient) -> Self {
        let (names, unnamed) = (NameCache::default(), UnnamedEvents::default());
        Self { client, names, unnamed, direct_chats: Mutex::default() }
    }

    /// Remembers which chats of earlier messages are direct.
    pub fn learn_chats(&self, positions: &[ChatPosition]) {
        for position in positions {
            if position.session.kind == ChatSessionKind::Direct {
                self.add_direct_chat(position.session.id.clone());
            }
        }
    }

    fn add_direct_chat(&self, chat: String) {
        let mut chats = lock(&self.direct_chats);
        if chats.len() < MAX_DIRECT_CHATS {
            chats.insert(chat);
        }
    }

    /// Converts the envelope of an event with the names that are known. If names are missing, the
    /// event is remembered for [`EventNamer::add_names`].
    pub fn read(&self, payload: Value) -> Vec<InboundEvent> {
        let read = self.convert(&payload);
        if let Some((id, name)) = read.renamed {
            self.names.insert(&id, Some(name));
        }
        if let Some(chat) = read.direct_chat {
            self.add_direct_chat(chat);
        }
        let missing: BTreeSet<_> =
            read.missing.into_iter().filter(|id| self.names.needs_lookup(id)).collect();
        if let (false, [event]) = (missing.is_empty(), read.events.as_slice()) {
            self.unnamed.insert(event, payload, missing);
        }
        read.events
    }

    fn convert(&self, payload: &Value) -> LarkEvents {
        self.with_reader(|reader| reader.read(payload))
    }

    /// Calls `use_it` with a reader that has the names and chats that are known.
    pub fn with_reader<T>(&self, use_it: impl FnOnce(&LarkReader<'_>) -> T) -> T {
        let find_name = |id: &str| self.names.find(id);
        let is_direct = |chat: &str| lock(&self.direct_chats).contains(chat);
        use_it(&LarkReader { find_name: &find_name, is_direct: &is_direct })
    }
}

#[async_trait]
impl EventNamer for LarkTenant {
    async fn add_names(&self, events: Vec<InboundEvent>) -> Vec<InboundEvent> {
        let Some(waiting) = self.unnamed.take(&events) else { return events };
        self.names.look_up(&self.client, waiting.missing).await;
        let named = |event: InboundEvent| match waiting.payloads.get(&event_id(&event)) {
            Some(payload) => self.convert(payload).events.pop().unwrap_or(event),
            None => event,
        };
        events.into_iter().map(named).collect()
    }
}

#[async_trait]
impl NameSource for LarkClient {
    async fn look_up(&self, _cache: &NameCache, id: &str) -> NameAnswer {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if id.len() > MAX_ID_BYTES || !id.chars().all(is_plain) {
            return NameAnswer::Known(None);
        }
        let user = |id_type: &'static str| (format!("contact/v3/users/{id}"), Some(id_type));
        let (path, id_type) = match id.split_once('_').map(|(kind, _)| kind) {
            Some("ou") => user("open_id"),
            Some("on") => user("union_id"),
            Some("oc") => (format!("im/v1/chats/{id}"), None),
            _ => return NameAnswer::Known(None),
        };
        let query: Vec<_> = id_type.map(|kind| ("user_id_type", kind)).into_iter().collect();
        let name = |answer: &LarkAnswer| match id_type {
            Some(_) => text(&answer.data()["user"], "name").map(str::to_owned),
            None => text(answer.data(), "name").map(str::to_owned),
        };
        match self.call(LarkRequest::get(&path, &query)).await {
            Ok(answer) => NameAnswer::Known(name(&answer)),
            Err(LarkFault::Throttled { retry_after, .. }) => NameAnswer::Later(retry_after),
            Err(LarkFault::Failed(Failure::Permanent { .. }) | LarkFault::Gone(_)) => {
                // Without the scope, or for an account that is not visible, there is no name.
                NameAnswer::Known(None)
            }
            Err(LarkFault::Format(_)) => NameAnswer::Known(None),
            Err(LarkFault::Failed(_) | LarkFault::Token(_)) => NameAnswer::Later(None),
        }
    }
}

/// Nothing panics while it holds one of the locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
