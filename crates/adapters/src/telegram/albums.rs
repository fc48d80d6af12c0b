//! Joins the items of an album into one message.
//!
//! Telegram sends every photo of an album as a message of its own, with a common id of the group.
//! The first item becomes the message; each later one is an edit of it that adds a file. An edit
//! that changes nothing is ignored, so that an album that is received again adds nothing. After a
//! restart an item whose first item was confirmed before is a message of its own.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use monoco_core::inbound::{InboundEvent, InboundMessage, MessageEdit};

/// Most albums that are remembered. The items of one album arrive within seconds.
const MAX_ALBUMS: usize = 256;

/// Most items of one album. Telegram allows 10.
const MAX_ITEMS: usize = 20;

/// What makes a message an item of an album.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AlbumKey {
    pub chat: i64,
    /// The value of `media_group_id`.
    pub group: String,
}

/// The albums that arrived last.
#[derive(Debug, Default)]
pub(super) struct AlbumBook(Mutex<VecDeque<Album>>);

#[derive(Debug)]
struct Album {
    key: AlbumKey,
    /// The item that arrived first. It gives the message its id.
    first: InboundMessage,
    more: Vec<InboundMessage>,
}

impl AlbumBook {
    /// Adds an item. Returns the message of the first item, or an edit of it.
    pub fn add(&self, key: AlbumKey, item: InboundMessage) -> InboundEvent {
        let mut albums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let item_id = item.id.clone();
        let Some(album) = albums.iter_mut().find(|album| album.key == key) else {
            if albums.len() >= MAX_ALBUMS {
                albums.pop_front();
            }
            albums.push_back(Album { key, first: item.clone(), more: Vec::new() });
            return InboundEvent::Message { message: item, attachments: Vec::new() };
        };
        let is_full = album.more.len() >= MAX_ITEMS;
        match album.find(&item_id) {
            Some(known) => *known = item,
            None if is_full => {
                return InboundEvent::Message { message: item, attachments: Vec::new() };
            }
            None => album.more.push(item),
        }
        let message = album.joined();
        match message.id == item_id {
            true => InboundEvent::Message { message, attachments: Vec::new() },
            false => InboundEvent::Edit(MessageEdit { edit_id: item_id, message }),
        }
    }

    /// Changes the caption of an item. Returns the edited message: that of the album if it is
    /// known, and otherwise the item itself.
    pub fn edit(&self, key: &AlbumKey, item: InboundMessage) -> InboundMessage {
        let mut albums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let album = albums.iter_mut().find(|album| album.key == *key);
        let Some(album) = album else { return item };
        let at = item.at;
        let Some(known) = album.find(&item.id) else { return item };
        *known = item;
        InboundMessage { at, ..album.joined() }
    }
}

impl Album {
    fn find(&mut self, id: &str) -> Option<&mut InboundMessage> {
        std::iter::once(&mut self.first).chain(&mut self.more).find(|item| item.id == id)
    }

    /// Returns the message with the captions and files of all items.
    fn joined(&self) -> InboundMessage {
        let mut message = self.first.clone();
        for item in &self.more {
            if !item.text.is_empty() && item.text != message.text {
                let gap = if message.text.is_empty() { "" } else { "\n\n" };
                message.text = format!("{}{gap}{}", message.text, item.text);
            }
            for mention in &item.mentions {
                if !message.mentions.contains(mention) {
                    message.mentions.push(mention.clone());
                }
            }
            for artifact in &item.artifacts {
                let mut artifact = artifact.clone();
                // Files of one message are told apart by their names.
                if message.artifacts.iter().any(|known| known.name == artifact.name) {
                    let number = item.id.rsplit(':').next().unwrap_or_default();
                    artifact.name = numbered(&artifact.name, number);
                }
                message.artifacts.push(artifact);
            }
        }
        message
    }
}

/// Returns a file name with a number before its extension.
fn numbered(name: &str, number: &str) -> String {
    match name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()) {
        Some((stem, extension)) => format!("{stem}-{number}.{extension}"),
        None => format!("{name}-{number}"),
    }
}

#[cfg(test)]
mod tests {
    use monoco_core::inbound::{Artifact, ChatSession, Participant};

    use super::*;

    fn item(number: i64, text: &str, file: &str) -> InboundMessage {
        let from = Participant::user("42", None);
        let session = ChatSession { id: "-1".to_owned(), ..ChatSession::default() };
        let mut message = InboundMessage::new(format!("-1:{number}"), session, from, text);
        message.artifacts = vec![Artifact { name: file.to_owned(), ..Artifact::default() }];
        message
    }

    fn key() -> AlbumKey {
        AlbumKey { chat: -1, group: "g".to_owned() }
    }

    fn names(message: &InboundMessage) -> Vec<&str> {
        message.artifacts.iter().map(|artifact| artifact.name.as_str()).collect()
    }

    #[test]
    fn later_items_are_edits_that_add_a_file() {
        let book = AlbumBook::default();
        let InboundEvent::Message { message, .. } = book.add(key(), item(1, "our trip", "a.jpg"))
        else {
            panic!("the first item is a message")
        };
        assert_eq!((message.id.as_str(), names(&message)), ("-1:1", vec!["a.jpg"]));
        let InboundEvent::Edit(edit) = book.add(key(), item(2, "", "a.jpg")) else {
            panic!("the second item is an edit")
        };
        assert_eq!((edit.edit_id.as_str(), edit.message.id.as_str()), ("-1:2", "-1:1"));
        assert_eq!(
            (edit.message.text.as_str(), names(&edit.message)),
            ("our trip", vec!["a.jpg", "a-2.jpg"])
        );
        let again = book.add(key(), item(2, "", "a.jpg"));
        assert_eq!(
            again,
            InboundEvent::Edit(edit),
            "an item that is received again changes nothing"
        );
        let edited = book.edit(&key(), item(2, "the sea", "a.jpg"));
        assert_eq!((edited.id.as_str(), edited.text.as_str()), ("-1:1", "our trip\n\nthe sea"));
    }

    #[test]
    fn unknown_album_is_edited_item_by_item() {
        let edited = AlbumBook::default().edit(&key(), item(7, "new", "a.jpg"));
        assert_eq!((edited.id.as_str(), edited.text.as_str()), ("-1:7", "new"));
    }

    #[test]
    fn albums_and_items_are_bounded() {
        let book = AlbumBook::default();
        for group in 0..2 * MAX_ALBUMS {
            book.add(AlbumKey { chat: 1, group: group.to_string() }, item(1, "", "a"));
        }
        assert_eq!(book.0.lock().unwrap().len(), MAX_ALBUMS);
        let last = (1..=100).map(|number| book.add(key(), item(number, "", "a"))).last();
        assert!(
            matches!(last, Some(InboundEvent::Message { message, .. }) if message.id == "-1:100")
        );
    }
}
