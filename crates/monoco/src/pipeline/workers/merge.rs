//! `merge`: makes one letter of several that have the same key.
//!
//! Which letters those are is said here, and what becomes of them. Who keeps them until
//! their time has come is the dispatcher.

use monoco_core::letter::{Letter, LetterId, MAX_DATA, MAX_EXTRA, OURS, content_type};
use monoco_core::object::{MAX_OBJECT, ObjId, ObjKind};
use serde_json::{Map, Value, json};

/// Longest key that is kept as it is, in bytes. A longer one is its hash.
const MAX_KEY: usize = 512;

/// What stands between two texts.
const BETWEEN: &str = "\n\n";

/// How much of the first subject a digest's has, in bytes.
const MAX_SUBJECT: usize = 900;

/// Most bytes that a digest has for each mail beyond the mail.
const PER_MAIL: usize = 128;

/// Most bytes that a digest has beyond its mails and what it takes of the first one's
/// header: its own fields, and a subject that is encoded.
const PER_DIGEST: usize = 8 << 10;

/// Room that is left in a message for what else it has, and for a footer.
const BESIDE_TEXT: usize = 128 << 10;

/// What letters that may become one have in common: sender, recipients in any order,
/// tunnel, content type, and `extra.merge_key`, which keeps apart what would be one.
///
/// Letters that differ in any of them have different keys. So has each letter of a
/// message that has more than text: what is attached to it belongs to it alone.
pub fn key(letter: &Letter) -> String {
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
    if key.len() <= MAX_KEY { key } else { ObjId::of(ObjKind::Bytes, key.as_bytes()).to_string() }
}

/// How many of these letters, from the start, may become one: as many as stay within
/// what a letter may have, and what it becomes; and one at least.
pub fn fits(letters: &[(LetterId, &Letter)]) -> usize {
    let Some((_, first)) = letters.first() else { return 0 };
    let mail = first.is_mail();
    let mut data = Size::default();
    if mail {
        data.bytes = PER_DIGEST + header_size(&first.bytes());
    }
    let mut extra = size(&first.extra) + r#","merged":[]"#.len();
    let mut count = 0;
    for (id, letter) in letters {
        data.add(letter);
        data.bytes += if mail { PER_MAIL } else { BETWEEN.len() };
        let merged = letter.extra.get("merged").map_or(0, |ids| ids.to_string().len());
        extra += id.to_string().len() + r#""","#.len() + merged;
        if data.total() > MAX_DATA || extra > MAX_EXTRA || !data.fits_message_of(first) {
            break;
        }
        count += 1;
    }
    count.max(1)
}

/// One letter of all of them, in their order. All have the same [`key`].
///
/// Mails become a digest, which has each of them as it was; text follows text. What
/// the others have in `extra` is kept where the first has nothing, and has room.
pub fn join(letters: &[(LetterId, &Letter)]) -> Letter {
    let Some(((id, first), others)) = letters.split_first() else { return Letter::default() };
    let mut joined = (*first).clone();
    if others.is_empty() {
        return joined;
    }
    joined.extra.insert("merged".to_owned(), merged(first, others));
    // What says of a letter what it is, not what a worker made of it.
    let own = |key: &str| OURS.contains(&key) || ["subject", "charset"].contains(&key);
    let extra = others.iter().flat_map(|(_, other)| &other.extra);
    keep(&mut joined.extra, extra.filter(|(key, _)| !own(key)));
    keep(&mut joined.rest, others.iter().flat_map(|(_, other)| &other.rest));
    if first.is_mail() {
        into_digest(&mut joined, letters, *id);
    } else {
        let texts: Vec<&str> = letters.iter().map(|(_, letter)| letter.data.as_str()).collect();
        joined.data = texts.join(BETWEEN);
    }
    joined
}

fn into_digest(joined: &mut Letter, letters: &[(LetterId, &Letter)], id: LetterId) {
    let mails: Vec<_> = letters.iter().map(|(_, letter)| letter.bytes()).collect();
    let mails: Vec<&[u8]> = mails.iter().map(AsRef::as_ref).collect();
    let subject = mails.first().and_then(|mail| monoco_mime::subject(mail)).unwrap_or_default();
    let start = &subject[..subject.floor_char_boundary(MAX_SUBJECT)];
    let subject = format!("{start} (and {} more)", letters.len() - 1);
    let subject = subject.trim();
    if joined.extra.contains_key("subject") {
        joined.extra.insert("subject".to_owned(), subject.into());
    }
    joined.set_bytes(monoco_mime::digest(&mails, subject, &id.to_string()));
}

/// The names of all letters that are in this one, but for its own.
fn merged(first: &Letter, others: &[(LetterId, &Letter)]) -> Value {
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

/// Adds what is not there yet, as long as there is room.
fn keep<'m>(to: &mut Map<String, Value>, more: impl Iterator<Item = (&'m String, &'m Value)>) {
    let mut used = size(to);
    for (key, value) in more {
        // Each key costs its quotes, a colon and a comma, and perhaps escapes.
        let costs = json!(key).to_string().len() + value.to_string().len() + 2;
        if !to.contains_key(key) && used + costs <= MAX_EXTRA {
            used += costs;
            to.insert(key.clone(), value.clone());
        }
    }
}

/// How large the data of letters will be together.
#[derive(Default)]
struct Size {
    bytes: usize,
    /// Bytes that take two when one of the mails is not UTF-8: all travel as Latin-1 then.
    wide: usize,
    latin: bool,
    /// Bytes that JSON adds.
    escapes: usize,
}

impl Size {
    fn add(&mut self, letter: &Letter) {
        let bytes = letter.bytes();
        self.bytes += bytes.len();
        self.wide += bytes.iter().filter(|byte| !byte.is_ascii()).count();
        self.latin |= letter.extra("charset").is_some();
        let json = serde_json::to_string(&letter.data).map_or(usize::MAX, |json| json.len());
        self.escapes += json - letter.data.len();
    }

    fn total(&self) -> usize {
        self.bytes + if self.latin { self.wide } else { 0 }
    }

    /// Whether it can be the text of a message. A mail that was handed in need not: if
    /// it is large, it goes beside its message.
    fn fits_message_of(&self, first: &Letter) -> bool {
        if first.is_mail() && !first.extra.contains_key("msg_id") {
            return true;
        }
        // An address takes more room as a DID.
        let to: usize = first.to.iter().map(|to| 3 * to.len() + 100).sum();
        self.total() + self.escapes + to + BESIDE_TEXT <= MAX_OBJECT
    }
}

/// How many bytes the header of a mail has.
fn header_size(mail: &[u8]) -> usize {
    let lines = mail.split_inclusive(|byte| *byte == b'\n');
    lines.take_while(|line| !matches!(line, [b'\n'] | [b'\r', b'\n'])).map(<[u8]>::len).sum()
}

fn size(map: &Map<String, Value>) -> usize {
    serde_json::to_string(map).map_or(usize::MAX, |text| text.len())
}

#[cfg(test)]
mod tests;
