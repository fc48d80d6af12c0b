//! Reads the texts of the store in pages, and finds the files that none of them refers to.

use std::collections::BTreeSet;
use std::sync::Arc;

use monoco_core::claim::MailLocation;
use monoco_core::did::TunnelId;
use monoco_core::erasure::{ErasedAuthors, ErasureAction, attachments};
use monoco_core::inbound::InboundMessage;
use monoco_core::object::{MsgObject, ObjId, ObjKind};
use monoco_core::receipt::Receipt;
use serde_json::Value;

use super::MAX_ROWS_PER_PAGE;
use crate::StoreError;
use crate::sql::db::params;
use crate::sql::rows::{self, parsed};
use crate::sql::{SqlStore, damaged_object, inbound, objects};

/// Bytes of texts that one page holds in memory; a single text may have more.
const MAX_BYTES_PER_PAGE: usize = 8 << 20;

// A worker can have changed the author of the message that an erased letter became.
const OBJECTS: &str = "
    SELECT o.seq, o.hash, o.kind, o.body, m.location,
           EXISTS (SELECT 1 FROM letters l WHERE l.became = o.seq AND l.erased_at IS NOT NULL)
      FROM objects o
      LEFT JOIN mails m ON m.object = o.seq
     WHERE o.seq > ?1 AND o.erased_at IS NULL
     ORDER BY o.seq
";

const INBOUND: &str = "
    SELECT i.external_id, i.merge_window, w.tunnel_name, i.message
      FROM inbound_messages i
      JOIN merge_windows w ON w.id = i.merge_window
     WHERE i.external_id > ?1
     ORDER BY i.external_id
     LIMIT ?2
";

/// An object with its text.
pub(super) struct ObjectText {
    pub(super) seq: i64,
    pub(super) id: ObjId,
    /// Set when the object is a Mail.
    pub(super) location: Option<MailLocation>,
    /// It is the message that an erased letter became.
    pub(super) of_erased_letter: bool,
    pub(super) text: String,
    /// Whether the text is in a file.
    pub(super) in_file: bool,
}

/// The files that belong to a text.
#[derive(Default)]
pub(in crate::sql) struct TextFiles {
    pub(in crate::sql) attachments: BTreeSet<ObjId>,
    /// Texts that are too large for a row.
    pub(in crate::sql) texts: BTreeSet<ObjId>,
    /// First eight bytes of the hashes of e-mails that messages were read from.
    pub(in crate::sql) mails: BTreeSet<[u8; 8]>,
}

/// An inbound message that is not merged yet.
pub(super) struct InboundText {
    pub(super) external_id: i64,
    pub(super) window: i64,
    pub(super) tunnel: TunnelId,
    pub(super) json: String,
    /// Its files that were fetched after it was stored.
    pub(super) fetched: Vec<ObjId>,
}

impl InboundText {
    /// The stored files of the message.
    pub(super) fn attachments(&self) -> impl Iterator<Item = ObjId> {
        attachments(&self.json).chain(self.fetched.iter().copied())
    }
}

/// The numbers of the last object, inbound message and letter that were read.
#[derive(Clone, Copy, Default)]
pub(in crate::sql) struct TextPositions {
    object: i64,
    inbound: i64,
    letter: i64,
}

/// A page of rows, and the number of the last row that was read.
pub(super) struct TextPage<T> {
    pub(super) texts: Vec<T>,
    pub(super) last: Option<i64>,
}

/// Returns the action for an object.
pub(super) fn action(
    authors: &ErasedAuthors,
    object: &ObjectText,
) -> Result<ErasureAction, StoreError> {
    let damaged = |error: String| damaged_object(format!("{}: {error}", object.id));
    if object.id.kind() == ObjKind::Receipt {
        let receipt: Receipt =
            serde_json::from_str(&object.text).map_err(|error| damaged(error.to_string()))?;
        return Ok(authors.action_for_receipt(&receipt));
    }
    if object.of_erased_letter && object.location.is_none() {
        return Ok(ErasureAction::Tombstone { messages: 0 });
    }
    let value: Value =
        serde_json::from_str(&object.text).map_err(|error| damaged(error.to_string()))?;
    let msg = MsgObject::from_json_up_to(value, usize::MAX)
        .map_err(|error| damaged(error.to_string()))?;
    Ok(authors.action(&msg, object.location.is_some()))
}

/// Whether the person wrote an inbound message. One that cannot be parsed is damaged, and has no
/// author.
pub(super) fn is_written_by(message: &InboundText, authors: &ErasedAuthors) -> bool {
    serde_json::from_str::<InboundMessage>(&message.json)
        .is_ok_and(|parsed| authors.wrote(&parsed, &message.tunnel))
}

impl SqlStore {
    /// Reads the objects after a number whose text `is_wanted`, without erased and damaged ones.
    pub(super) async fn object_texts(
        &self,
        after: i64,
        is_wanted: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Result<TextPage<ObjectText>, StoreError> {
        let is_wanted = Arc::new(is_wanted);
        let in_rows = Arc::clone(&is_wanted);
        let read = self.read(move |db| {
            let (mut texts, mut last, mut count, mut bytes) = (Vec::new(), None, 0, 0);
            let more = |count, bytes| count < MAX_ROWS_PER_PAGE && bytes < MAX_BYTES_PER_PAGE;
            rows::scan(db, MAX_ROWS_PER_PAGE, OBJECTS, [after], |row| {
                let seq: i64 = row.get(0)?;
                (last, count) = (Some(seq), count + 1);
                let columns = (|| -> Result<_, StoreError> {
                    let body: Option<Vec<u8>> = row.get(3)?;
                    let location: Option<String> = row.get(4)?;
                    Ok((row.get(1)?, row.get::<String>(2)?, body, location, row.get(5)?))
                })();
                let Some((hash, kind, body, location, of_erased_letter)) =
                    db.unless_damaged("object", seq, columns)?
                else {
                    return Ok(more(count, bytes));
                };
                let (in_file, text) = match body.map(String::from_utf8) {
                    None => (true, String::new()),
                    Some(Ok(text)) if of_erased_letter || in_rows(&text) => (false, text),
                    Some(_) => return Ok(more(count, bytes)),
                };
                // A text in a file is read below; one Mail in a file has up to 6 MiB.
                bytes += if in_file { MAX_BYTES_PER_PAGE } else { text.len() };
                texts.push(ObjectText {
                    seq,
                    id: objects::object_id(seq, hash, &kind)?,
                    location: location.as_deref().and_then(MailLocation::parse),
                    of_erased_letter,
                    text,
                    in_file,
                });
                Ok(more(count, bytes))
            })?;
            Ok(TextPage { texts, last })
        });
        let TextPage { texts, last } = read.await?;
        let mut complete = Vec::with_capacity(texts.len());
        for mut object in texts {
            if object.in_file {
                match self.verified_text(object.id, None).await {
                    Ok(text) if object.of_erased_letter || is_wanted(&text) => object.text = text,
                    Ok(_) | Err(StoreError::Damaged { .. }) => continue,
                    Err(error) => return Err(error),
                }
            }
            complete.push(object);
        }
        Ok(TextPage { texts: complete, last })
    }

    /// Reads the inbound messages after a number.
    pub(super) async fn inbound_texts(
        &self,
        after: i64,
    ) -> Result<TextPage<InboundText>, StoreError> {
        let read = self.read(move |db| {
            let page = params![after, rows::limit(MAX_ROWS_PER_PAGE)];
            let mut texts = rows::list(db, INBOUND, page, |row| {
                Ok(InboundText {
                    external_id: row.get(0)?,
                    window: row.get(1)?,
                    tunnel: parsed(row, 2)?,
                    json: row.get(3)?,
                    fetched: Vec::new(),
                })
            })?;
            for message in &mut texts {
                message.fetched = inbound::files::fetched(db, message.external_id)?;
            }
            Ok(texts)
        });
        let texts = read.await?;
        let last = texts.last().map(|message| message.external_id);
        Ok(TextPage { texts, last })
    }

    /// Removes from `files` those that a remaining text refers to. Texts of `authors` do not
    /// remain. Reads the texts after `from`, and advances it to the last ones.
    pub(in crate::sql) async fn retain_unused(
        &self,
        mut files: BTreeSet<ObjId>,
        authors: &ErasedAuthors,
        from: &mut TextPositions,
    ) -> Result<BTreeSet<ObjId>, StoreError> {
        while !files.is_empty() {
            let page = self.letter_references(authors, from.letter).await?;
            let Some(last) = page.last() else { break };
            from.letter = last.id.seq;
            for letter in page.iter().filter(|letter| !letter.is_erased) {
                let TextFiles { attachments, texts, .. } = &letter.files;
                for id in attachments.iter().chain(texts) {
                    files.remove(id);
                }
            }
        }
        while !files.is_empty() {
            let page = self.inbound_texts(from.inbound).await?;
            for message in page.texts.iter().filter(|message| !is_written_by(message, authors)) {
                for id in message.attachments() {
                    files.remove(&id);
                }
            }
            let Some(last) = page.last else { break };
            from.inbound = last;
        }
        while !files.is_empty() {
            let page = self.object_texts(from.object, |text| text.contains("sha256:")).await?;
            for object in page.texts {
                let remaining = match action(authors, &object) {
                    Ok(ErasureAction::Tombstone { .. }) => continue,
                    Ok(ErasureAction::Rewrite { mail, .. }) => mail.object.canonical().to_owned(),
                    _ => object.text,
                };
                for id in attachments(&remaining) {
                    files.remove(&id);
                }
            }
            let Some(last) = page.last else { break };
            from.object = last;
        }
        Ok(files)
    }

    /// Removes from `files` those that have the text of an object which is not erased.
    pub(in crate::sql) async fn retain_without_object(
        &self,
        files: BTreeSet<ObjId>,
    ) -> Result<BTreeSet<ObjId>, StoreError> {
        self.read_by_hash(move |db, recent| {
            let mut unused = BTreeSet::new();
            for id in files {
                let is_used = match objects::find(db, recent, &id)? {
                    Some(seq) => matches!(objects::body_or_erased(db, seq)?, Ok((_, None))),
                    None => false,
                };
                if !is_used {
                    unused.insert(id);
                }
            }
            Ok(unused)
        })
        .await
    }
}
