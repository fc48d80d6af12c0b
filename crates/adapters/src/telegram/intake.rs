//! Converts the updates of a page, or of one request, into events for the sink.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use monoco_core::inbound::{InboundEvent, InboundMessage};

use super::albums::{AlbumBook, AlbumKey};
use super::inbound::{ReadUpdate, read_update};
use super::migrations::ChatMigrations;
use super::wire::TelegramUpdate;

/// The events of some updates, in their order.
#[derive(Debug, Default, PartialEq)]
pub(super) struct IntakeEvents {
    pub events: Vec<InboundEvent>,
    /// The position of the first update that each event belongs to.
    pub sources: Vec<usize>,
}

/// What is remembered from one update to the next.
#[derive(Debug, Default)]
pub(super) struct UpdateIntake {
    pub albums: AlbumBook,
    pub migrations: ChatMigrations,
    /// Why the last poll was ended by another program; kept for the probe.
    conflict: Mutex<Option<String>>,
}

impl UpdateIntake {
    /// Converts updates. The items of an album that arrive together are one message, followed by
    /// an edit with the same content: if only the first item was stored before, the message is a
    /// duplicate and the edit adds the rest.
    pub fn read(&self, updates: &[TelegramUpdate]) -> IntakeEvents {
        let mut page = IntakeEvents::default();
        let (mut firsts, mut edits) = (HashMap::new(), HashMap::new());
        for (source, update) in updates.iter().enumerate() {
            let ReadUpdate { event, album, migration } = read_update(update);
            if let Some((from, to)) = migration {
                self.migrations.insert(from, to);
            }
            let Some(event) = event else { continue };
            let Some(key) = album else {
                page.push(event, source);
                continue;
            };
            match self.album_event(&key, event) {
                InboundEvent::Edit(edit) if edit.edit_id.matches(':').count() == 1 => {
                    if let Some(first) = firsts.get(&key) {
                        page.set_message(*first, edit.message.clone());
                    }
                    match edits.get(&key) {
                        Some(at) => page.events[*at] = InboundEvent::Edit(edit),
                        None => {
                            edits.insert(key, page.events.len());
                            page.push(InboundEvent::Edit(edit), source);
                        }
                    }
                }
                event @ InboundEvent::Message { .. } => {
                    firsts.insert(key, page.events.len());
                    page.push(event, source);
                }
                event => page.push(event, source),
            }
        }
        page
    }

    fn album_event(&self, key: &AlbumKey, event: InboundEvent) -> InboundEvent {
        match event {
            InboundEvent::Message { message, attachments } if attachments.is_empty() => {
                self.albums.add(key.clone(), message)
            }
            InboundEvent::Edit(mut edit) => {
                edit.message = self.albums.edit(key, edit.message);
                InboundEvent::Edit(edit)
            }
            event => event,
        }
    }

    /// Records why another program has ended a poll, or that none has done so for a while.
    pub fn set_conflict(&self, why: Option<String>) {
        *self.conflict.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    pub fn conflict(&self) -> Option<String> {
        self.conflict.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl IntakeEvents {
    fn push(&mut self, event: InboundEvent, source: usize) {
        self.events.push(event);
        self.sources.push(source);
    }

    fn set_message(&mut self, at: usize, new: InboundMessage) {
        if let Some(InboundEvent::Message { message, .. }) = self.events.get_mut(at) {
            *message = new;
        }
    }
}

#[cfg(test)]
mod tests;
