//! `merge`: joins letters of the same sender, recipients and kind into one.
//!
//! This file decides which letters belong together and how they are joined. The dispatcher
//! holds them until the window closes.

use std::sync::Arc;
use std::time::Duration;

use monoco_core::config::InvalidConfig;
use monoco_core::letter::{
    ChainDirection, Letter, LetterId, MAX_DATA, MAX_EXTRA, RESERVED_EXTRA_KEYS, WorkerStep,
    content_type,
};
use monoco_core::object::{MAX_OBJECT, ObjId, ObjKind};
use monoco_core::time::Timestamp;
use serde_json::{Map, Value, json};

use super::{Worker, WorkerAction, WorkerKind, WorkerSection, changed, downcast};

pub const KIND: WorkerKind =
    WorkerKind { name: "merge", built_in: true, keys: &["window_s", "most"], parse };

/// Longest merge key, in bytes. A longer key is replaced by its hash.
const MAX_KEY_BYTES: usize = 512;

/// Text between two joined texts.
const SEPARATOR: &str = "\n\n";

/// Longest part of the first subject in the subject of a digest, in bytes.
const MAX_SUBJECT_BYTES: usize = 900;

/// Upper limit of what a digest adds to each mail, in bytes.
const MAX_BYTES_PER_MAIL: usize = 128;

/// Upper limit of what a digest has in addition to its mails and the header of the first one,
/// in bytes: its own fields and an encoded subject.
const MAX_BYTES_PER_DIGEST: usize = 8 << 10;

/// Space kept free in a message for its other fields and a footer, in bytes.
const RESERVED_BYTES: usize = 128 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeConfig {
    /// How long the first letter waits for others.
    pub window: Duration,
    /// Maximum number of letters that are joined into one.
    pub max_letters: usize,
}

fn parse(section: &WorkerSection<'_>) -> Result<Arc<dyn Worker>, InvalidConfig> {
    let window = section.keys.number_or("window_s", 1..=86_400, 60)?;
    let max_letters = section.keys.number_or("most", 2..=1_000, 100)?;
    Ok(Arc::new(MergeConfig { window: Duration::from_secs(window), max_letters }))
}

impl Worker for MergeConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn work(&self, _letter: &Letter, _now: Timestamp) -> WorkerStep<WorkerAction<'_>> {
        WorkerStep::Needs(WorkerAction::JoinWindow(self))
    }

    fn changed_keys(&self, new: &dyn Worker) -> Vec<&'static str> {
        let Some(new) = downcast::<Self>(new) else { return vec!["kind"] };
        changed(&[
            ("window_s", self.window != new.window),
            ("most", self.max_letters != new.max_letters),
        ])
    }

    fn holds_letters(&self) -> bool {
        true
    }

    fn misplaced_in(&self, direction: ChainDirection) -> Option<&'static str> {
        (direction == ChainDirection::Inbound)
            .then_some("inbound messages are merged by `debounce`")
    }
}

/// Returns the merge key. Letters with the same key can be joined: they have the same sender,
/// recipients in any order, tunnel, content type and `extra.merge_key`.
///
/// A letter of a message with attachments has a key of its own, because the attachments
/// belong to that message only.
pub fn merge_key(letter: &Letter) -> String {
    let mut to: Vec<&str> = letter.to.iter().map(String::as_str).collect();
    to.sort_unstable();
    let alone = letter.extra.get("attached").and(letter.extra.get("msg_id"));
    let key = json!([
        letter.from,
        to,
        content_type(&letter.extra),
        letter.extra("tunnel"),
        letter.extra("merge_key"),
        alone,
    ]);
    let key = key.to_string();
    if key.len() <= MAX_KEY_BYTES {
        key
    } else {
        ObjId::of(ObjKind::Bytes, key.as_bytes()).to_string()
    }
}

/// Returns how many of the letters, from the start, can be joined within the size limits of a
/// letter and of the message it becomes. At least 1 when there is a letter.
pub fn joinable(letters: &[(LetterId, &Letter)]) -> usize {
    let Some((_, first)) = letters.first() else { return 0 };
    let mail = first.is_mail();
    let mut data = JoinedSize::default();
    if mail {
        data.bytes = MAX_BYTES_PER_DIGEST + header_size(&first.bytes());
    }
    let mut extra = json_size(&first.extra) + r#","merged":[]"#.len();
    let mut count = 0;
    for (id, letter) in letters {
        data.add(letter);
        data.bytes += if mail { MAX_BYTES_PER_MAIL } else { SEPARATOR.len() };
        let merged = letter.extra.get("merged").map_or(0, |ids| ids.to_string().len());
        extra += id.to_string().len() + r#""","#.len() + merged;
        if data.total() > MAX_DATA || extra > MAX_EXTRA || !data.fits_message_of(first) {
            break;
        }
        count += 1;
    }
    count.max(1)
}

/// Joins letters with the same [`merge_key`] into one, in their order.
///
/// Mails become a digest that contains each of them unchanged; texts are concatenated. Keys
/// of `extra` that the first letter lacks are taken from the others, as long as they fit.
pub fn join(letters: &[(LetterId, &Letter)]) -> Letter {
    let Some(((id, first), others)) = letters.split_first() else { return Letter::default() };
    let mut joined = (*first).clone();
    if others.is_empty() {
        return joined;
    }
    joined.extra.insert("merged".to_owned(), merged_ids(first, others));
    // These keys describe one letter; they are not results of workers.
    let own =
        |key: &str| RESERVED_EXTRA_KEYS.contains(&key) || ["subject", "charset"].contains(&key);
    let extra = others.iter().flat_map(|(_, other)| &other.extra);
    add_missing(&mut joined.extra, extra.filter(|(key, _)| !own(key)));
    add_missing(&mut joined.rest, others.iter().flat_map(|(_, other)| &other.rest));
    if first.is_mail() {
        into_digest(&mut joined, letters, *id);
    } else {
        let texts: Vec<&str> = letters.iter().map(|(_, letter)| letter.data.as_str()).collect();
        joined.data = texts.join(SEPARATOR);
    }
    joined
}

fn into_digest(joined: &mut Letter, letters: &[(LetterId, &Letter)], id: LetterId) {
    let mails: Vec<_> = letters.iter().map(|(_, letter)| letter.bytes()).collect();
    let mails: Vec<&[u8]> = mails.iter().map(AsRef::as_ref).collect();
    let subject = mails.first().and_then(|mail| monoco_mime::subject(mail)).unwrap_or_default();
    let start = &subject[..subject.floor_char_boundary(MAX_SUBJECT_BYTES)];
    let subject = format!("{start} (and {} more)", letters.len() - 1);
    let subject = subject.trim();
    if joined.extra.contains_key("subject") {
        joined.extra.insert("subject".to_owned(), subject.into());
    }
    joined.set_bytes(monoco_mime::digest(&mails, subject, &id.to_string()));
}

/// Returns the ids of all letters that are joined into the first one.
fn merged_ids(first: &Letter, others: &[(LetterId, &Letter)]) -> Value {
    let before = |letter: &Letter| match letter.extra.get("merged") {
        Some(Value::Array(ids)) => ids.clone(),
        _ => Vec::new(),
    };
    let mut ids = before(first);
    for (id, other) in others {
        ids.push(json!(id));
        ids.extend(before(other));
    }
    ids.into()
}

/// Adds missing keys as long as the map stays within its size limit.
fn add_missing<'m>(
    to: &mut Map<String, Value>,
    more: impl Iterator<Item = (&'m String, &'m Value)>,
) {
    let mut used = json_size(to);
    for (key, value) in more {
        // Each key also needs its quotes, a colon, a comma and perhaps escapes.
        let size = json!(key).to_string().len() + value.to_string().len() + 2;
        if !to.contains_key(key) && used + size <= MAX_EXTRA {
            used += size;
            to.insert(key.clone(), value.clone());
        }
    }
}

/// Size of the `data` of joined letters.
#[derive(Default)]
struct JoinedSize {
    bytes: usize,
    /// Bytes that take two when one of the mails is not UTF-8: then all are encoded as Latin-1.
    non_ascii: usize,
    latin1: bool,
    /// Bytes added by JSON escapes.
    escapes: usize,
}

impl JoinedSize {
    fn add(&mut self, letter: &Letter) {
        let bytes = letter.bytes();
        self.bytes += bytes.len();
        self.non_ascii += bytes.iter().filter(|byte| !byte.is_ascii()).count();
        self.latin1 |= letter.extra("charset").is_some();
        let json = serde_json::to_string(&letter.data).map_or(usize::MAX, |json| json.len());
        self.escapes += json - letter.data.len();
    }

    fn total(&self) -> usize {
        self.bytes + if self.latin1 { self.non_ascii } else { 0 }
    }

    /// Tells whether the data fits into a message. A submitted mail always does: a large one is
    /// stored as a blob beside its message.
    fn fits_message_of(&self, first: &Letter) -> bool {
        if first.is_mail() && !first.extra.contains_key("msg_id") {
            return true;
        }
        // An address is longer as a DID.
        let to: usize = first.to.iter().map(|to| 3 * to.len() + 100).sum();
        self.total() + self.escapes + to + RESERVED_BYTES <= MAX_OBJECT
    }
}

/// Returns the size of the header of a mail, in bytes.
fn header_size(mail: &[u8]) -> usize {
    let lines = mail.split_inclusive(|byte| *byte == b'\n');
    lines.take_while(|line| !matches!(line, [b'\n'] | [b'\r', b'\n'])).map(<[u8]>::len).sum()
}

fn json_size(map: &Map<String, Value>) -> usize {
    serde_json::to_string(map).map_or(usize::MAX, |text| text.len())
}

#[cfg(test)]
mod tests;
