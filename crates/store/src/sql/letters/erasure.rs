//! Erases the letters of a person: the rows stay, so that a repeated submission is still a
//! duplicate, and the texts are deleted.

use monoco_core::erasure::{ErasedAuthors, ErasureAction, attachments};
use monoco_core::letter::{LetterId, LetterState, LetterStateData, LetterStatus};
use monoco_core::time::Timestamp;

use super::rows::{self, LetterWithTexts};
use super::texts::{self, StoredText};
use crate::sql::db::params;
use crate::sql::erasure::{self, TextFiles};
use crate::sql::rows as sql;
use crate::sql::writer::Tx;
use crate::sql::{SqlStore, inbound};
use crate::{LetterSourceKind, StoreError};

/// Letters that are read at once. One can have 16 MiB, so that they are read one by one.
const MAX_LETTERS_PER_PAGE: usize = 50;

/// Stands in place of a reason that can quote the text.
const ERASED: &str = "erased";

/// A letter, and what it refers to.
pub(in crate::sql) struct LetterReferences {
    pub(in crate::sql) id: LetterId,
    /// Whether the person wrote it.
    pub(in crate::sql) is_erased: bool,
    pub(in crate::sql) files: TextFiles,
}

impl SqlStore {
    /// Returns the letters after the number `after`. Erased letters are left out; damaged ones
    /// count as those of others.
    pub(in crate::sql) async fn letter_references(
        &self,
        authors: &ErasedAuthors,
        after: i64,
    ) -> Result<Vec<LetterReferences>, StoreError> {
        let condition = "l.seq > ?1 AND l.erased_at IS NULL ORDER BY l.seq";
        let list =
            self.read(move |db| rows::list(db, condition, params![after], MAX_LETTERS_PER_PAGE));
        let mut found = Vec::new();
        for letter in list.await? {
            let id = letter.head.id;
            let is_erased = match self.is_written_by(&letter, authors).await {
                Err(StoreError::Erased { .. }) => true,
                Err(StoreError::Damaged { .. }) => false,
                is_erased => is_erased?,
            };
            let mut files = TextFiles::default();
            for text in [letter.source, letter.change].into_iter().flatten() {
                if let StoredText::File(id) = text {
                    files.texts.insert(id);
                }
                match self.read_text(text).await {
                    Ok(text) => files.attachments.extend(attachments(&text)),
                    Err(StoreError::Damaged { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            if let Some(external_id) = letter.head.external_id {
                let fetched = self.read(move |db| inbound::files::fetched(db, external_id));
                files.attachments.extend(fetched.await?);
            }
            found.push(LetterReferences { id, is_erased, files });
        }
        Ok(found)
    }

    async fn is_written_by(
        &self,
        letter: &LetterWithTexts,
        authors: &ErasedAuthors,
    ) -> Result<bool, StoreError> {
        let head = &letter.head;
        match (head.source, &letter.source) {
            (LetterSourceKind::Submitted, Some(text)) => {
                let (letter, _) = texts::parse_letter(&self.read_text(text.clone()).await?)?;
                Ok(authors.wrote_letter(&letter.from, head.tunnel.as_ref()))
            }
            (LetterSourceKind::Inbound, Some(text)) => {
                let text = self.read_text(text.clone()).await?;
                let request = texts::parse_inbound(&text, head)?;
                Ok(authors.wrote(&request.message, &request.tunnel))
            }
            (LetterSourceKind::Dispatch | LetterSourceKind::Send, _) => {
                let Some(object) = head.object else { return Ok(false) };
                let msg = self.message_of_row(object).await?;
                Ok(authors.action(&msg, false) != ErasureAction::Keep)
            }
            (LetterSourceKind::Submitted | LetterSourceKind::Inbound, None) => Ok(false),
        }
    }
}

/// Deletes the texts of a letter. One that is in progress or dead is trashed.
pub(in crate::sql) fn erase(
    tx: &mut Tx<'_>,
    letter: &LetterReferences,
    now: Timestamp,
) -> Result<(), StoreError> {
    let before = rows::find(tx.db, letter.id)?;
    if let Some(external_id) = before.external_id {
        inbound::files::remove(tx, external_id)?;
    }
    let mut after = before.clone();
    match before.status.standing.name() {
        LetterState::Waiting | LetterState::Away | LetterState::Dead => {
            after.finish(before.status.clone().trash(ERASED.to_owned())?);
        }
        LetterState::Trashed => {
            let standing = LetterStateData::Trashed { why: ERASED.to_owned() };
            after.finish(LetterStatus { standing, ..before.status.clone() });
        }
        LetterState::Done | LetterState::Merged => after.failure = None,
    }
    for verdict in &mut after.verdicts {
        verdict.note = None;
    }
    rows::save(tx, &before, &after, now)?;
    for delete in [
        "DELETE FROM letter_sources WHERE letter = ?1",
        "DELETE FROM letter_changes WHERE letter = ?1",
    ] {
        sql::execute(tx.db, delete, [letter.id.seq])?;
    }
    let update = "UPDATE letters SET erased_at = ?2 WHERE seq = ?1";
    sql::execute(tx.db, update, [letter.id.seq, now.ms()])?;
    erasure::add_files(tx, &letter.files)
}
