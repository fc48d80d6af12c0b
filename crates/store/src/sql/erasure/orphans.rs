//! Finds large texts of a person that no row refers to.
//!
//! The file of a text is written before the commit of its row. A crash in between, or a rejected
//! step, leaves a file without a row.

use std::collections::BTreeSet;
use std::sync::Arc;

use monoco_core::erasure::{ErasedAuthors, ErasureAction};
use monoco_core::object::{MsgObject, ObjId};
use serde_json::Value;

use super::{TextFiles, add_files};
use crate::StoreError;
use crate::sql::{SqlStore, closed, disk_error, objects, rows};

const LETTER_TEXTS: &str = "
    SELECT hash FROM letter_sources WHERE hash IS NOT NULL
     UNION ALL
    SELECT hash FROM letter_changes WHERE hash IS NOT NULL
";

impl SqlStore {
    /// Notes the person's texts that no row refers to as files to delete, and returns them. No
    /// message may be stored meanwhile.
    pub(super) async fn note_orphans(
        &self,
        authors: &ErasedAuthors,
    ) -> Result<BTreeSet<ObjId>, StoreError> {
        let letters = self.read(|db| rows::list(db, LETTER_TEXTS, [], |row| row.get(0))).await?;
        let letters: Arc<BTreeSet<[u8; 32]>> = Arc::new(letters.into_iter().collect());
        let mut found = BTreeSet::new();
        for first_byte in 0..=u8::MAX {
            let (blobs, letters) = (Arc::clone(&self.blobs), Arc::clone(&letters));
            let min = objects::MAX_INLINE_BYTES as u64;
            let list = tokio::task::spawn_blocking(move || blobs.list(first_byte, min)).await;
            let ids = list.map_err(|_| closed())?.map_err(disk_error)?;
            let without_row = self.read_by_hash(move |db, recent| {
                let mut without_row = Vec::new();
                for id in ids {
                    let in_object = objects::find(db, recent, &id)?.is_some();
                    if !in_object && !letters.contains(id.hash()) {
                        without_row.push(id);
                    }
                }
                Ok(without_row)
            });
            for id in without_row.await? {
                let (blobs, authors) = (Arc::clone(&self.blobs), authors.clone());
                let check = tokio::task::spawn_blocking(move || {
                    let text = blobs.json(&id)?;
                    Ok(text.is_some_and(|text| is_written_by(&text, &authors)))
                });
                if check.await.map_err(|_| closed())?.map_err(disk_error)? {
                    found.insert(id);
                }
            }
        }
        let files = TextFiles { texts: found.clone(), ..TextFiles::default() };
        self.writer.run(move |tx| add_files(tx, &files)).await?;
        Ok(found)
    }
}

/// Whether the person wrote a message, a part of a Mail, or a letter.
fn is_written_by(text: &str, authors: &ErasedAuthors) -> bool {
    if !authors.search_terms().iter().any(|term| text.contains(term.as_str())) {
        return false;
    }
    let Ok(value) = serde_json::from_str::<Value>(text) else { return false };
    let author = value.get("from").and_then(Value::as_str).map(str::to_owned);
    let account = value.pointer("/message/from/id").and_then(Value::as_str).map(str::to_owned);
    let is_mail = value.pointer("/content/machine/intent").is_some_and(|intent| intent == "mail");
    if let Ok(msg) = MsgObject::from_json_up_to(value, usize::MAX) {
        return authors.action(&msg, is_mail) != ErasureAction::Keep;
    }
    // The text of a letter does not name its tunnel.
    author.or(account).is_some_and(|author| authors.wrote_letter(&author, None))
}
