//! The receipts of the parts of a delivery.

use monoco_core::delivery::{Delivery, SendStateData, SentPart};

use crate::StoreError;
use crate::sql::db::{Row, RowResult, params};
use crate::sql::rows;
use crate::sql::writer::Tx;

/// How many parts one message has at most.
const MAX_PARTS: u32 = 10_000;

/// Reads the parts from a column with a JSON array of pairs.
pub(super) fn read(row: &Row<'_>, column: usize) -> RowResult<Vec<SentPart>> {
    let text: String = row.get(column)?;
    let parts: Vec<(u32, Option<String>)> =
        serde_json::from_str(&text).map_err(|_| rows::damaged(column, "invalid parts"))?;
    let part = |(part, external_msg_id)| SentPart { part, external_msg_id };
    Ok(parts.into_iter().map(part).collect())
}

/// Stores the receipt of the next part.
///
/// # Errors
///
/// [`StoreError::UnexpectedPart`] when it is not the part after the last one.
pub(super) fn insert(
    tx: &Tx<'_>,
    delivery: &mut Delivery,
    part: SentPart,
) -> Result<(), StoreError> {
    let expected = delivery.parts.last().map_or(0, |last| last.part.saturating_add(1));
    if part.part != expected || expected >= MAX_PARTS {
        return Err(StoreError::UnexpectedPart { found: part.part, expected });
    }
    let sql = "INSERT INTO delivery_parts (delivery, part, external_msg_id) VALUES (?1, ?2, ?3)";
    rows::execute(tx.db, sql, params![delivery.seq, part.part, part.external_msg_id])?;
    delivery.parts.push(part);
    Ok(())
}

/// Stores the part with which a message of several parts was accepted, unless its receipt is
/// stored.
pub(super) fn insert_last(tx: &Tx<'_>, delivery: &mut Delivery) -> Result<(), StoreError> {
    let SendStateData::Sent { external_msg_id: Some(id), .. } = &delivery.sending.state else {
        return Ok(());
    };
    let is_stored = |part: &SentPart| part.external_msg_id.as_ref() == Some(id);
    let Some(last) = delivery.parts.last() else { return Ok(()) };
    if delivery.parts.iter().any(is_stored) {
        return Ok(());
    }
    let part = SentPart { part: last.part.saturating_add(1), external_msg_id: Some(id.clone()) };
    insert(tx, delivery, part)
}

/// Deletes the receipts of a delivery.
pub(super) fn remove(tx: &Tx<'_>, delivery: &mut Delivery) -> Result<(), StoreError> {
    if !delivery.parts.is_empty() {
        let sql = "DELETE FROM delivery_parts WHERE delivery = ?1";
        rows::execute(tx.db, sql, [delivery.seq])?;
        delivery.parts.clear();
    }
    Ok(())
}
