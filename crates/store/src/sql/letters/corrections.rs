//! Letters of messages that are edited or recalled at the provider.

use monoco_core::inbound::InboundMessage;
use monoco_core::letter::{LetterId, LetterState};
use monoco_core::time::Timestamp;

use super::{rows, texts};
use crate::sql::SqlStore;
use crate::sql::db::{Db, params};
use crate::sql::writer::Tx;
use crate::{LetterSourceKind, StoreError, StoreResult};

/// The reason of a letter that was trashed because of a recall.
const RECALLED: &str = "recalled at the provider";

/// Returns the letter of an inbound message and its state.
pub(in crate::sql) fn state_of(
    db: &Db,
    external_id: i64,
) -> StoreResult<Option<(LetterId, LetterState)>> {
    let letter = rows::first(db, "l.external_id = ?1", params![external_id])?;
    Ok(letter.map(|letter| (letter.id, letter.status.standing.name())))
}

/// Trashes a letter whose chain is not finished. An operator can restore it.
pub(in crate::sql) fn trash_recalled(
    tx: &mut Tx<'_>,
    id: LetterId,
    now: Timestamp,
) -> StoreResult<()> {
    let before = rows::find(tx.db, id)?;
    let mut after = before.clone();
    after.finish(before.status.clone().trash(RECALLED.to_owned())?);
    rows::save(tx, &before, &after, now)?;
    Ok(())
}

impl SqlStore {
    /// Returns the message that a letter was created from; `None` when there is no letter for
    /// this external id, or its text is erased or damaged.
    pub(in crate::sql) async fn letter_source_message(
        &self,
        external_id: i64,
    ) -> StoreResult<Option<InboundMessage>> {
        let find = self.read(move |db| {
            rows::list(db, "l.external_id = ?1 AND l.erased_at IS NULL", params![external_id], 1)
        });
        let Some(letter) = find.await?.into_iter().next() else { return Ok(None) };
        let (LetterSourceKind::Inbound, Some(source)) = (letter.head.source, letter.source) else {
            return Ok(None);
        };
        let parsed = match self.read_text(source).await {
            Ok(text) => texts::parse_inbound(&text, &letter.head),
            Err(error) => Err(error),
        };
        match parsed {
            Ok(request) => Ok(Some(request.message.into_message())),
            Err(StoreError::Damaged { .. } | StoreError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
