//! Resolves an id to the history of one message.

use monoco_core::claim::Workspace;
use monoco_core::letter::{LetterId, LetterStateData};
use monoco_core::mail::MailId;
use monoco_core::object::ObjId;
use monoco_core::record::RecordId;
use monoco_store::{LetterRow, LetterSource, MessageTrace, SharedStore, StoreError, StoreResult};

use super::CenterError;

/// Merges that are followed from one letter to the next.
const MAX_MERGES_FOLLOWED: usize = 8;

/// A letter with the letters it was merged into, and the message it belongs to.
pub struct LetterTrace {
    pub letters: Vec<LetterRow>,
    /// `None` when the letter was not created from a message and has not become one.
    pub message: Option<MessageTrace>,
}

/// Gets the history of the message that `id` refers to. `id` is that of a message, Mail,
/// record or delivery, or was given by a provider.
///
/// # Errors
///
/// [`CenterError::UnknownId`], [`StoreError::Missing`], or another error of the store.
pub async fn trace(store: &SharedStore, id: &str) -> Result<MessageTrace, CenterError> {
    let msg_id = if let Ok(msg_id) = id.parse::<ObjId>() {
        msg_id
    } else if let Ok(mail) = id.parse::<MailId>() {
        store.mail(&mail, &Workspace::shared()).await?.entry.msg_id
    } else if let Ok(record_id) = id.parse::<RecordId>() {
        store.object_of_record(record_id).await?
    } else {
        match store.find_by_external_id(id).await {
            Err(StoreError::Missing { .. }) => return Err(CenterError::UnknownId(id.to_owned())),
            other => other?,
        }
    };
    Ok(store.trace(msg_id).await?)
}

/// Gets the history of a letter and of the message it was created from or became.
///
/// # Errors
///
/// [`StoreError::Missing`] when there is no such letter, or another error of the store.
pub async fn trace_letter(store: &SharedStore, id: LetterId) -> StoreResult<LetterTrace> {
    let mut row = store.letter(id).await?;
    let mut letters = Vec::new();
    for _ in 0..MAX_MERGES_FOLLOWED {
        let LetterStateData::Merged { into } = row.status.standing else { break };
        letters.push(std::mem::replace(&mut row, store.letter(into).await?));
    }
    let message = message_of(store, &row).await?;
    letters.push(row);
    Ok(LetterTrace { letters, message })
}

async fn message_of(store: &SharedStore, row: &LetterRow) -> StoreResult<Option<MessageTrace>> {
    let msg_id = match (&row.source, row.became) {
        (_, Some(msg_id)) => msg_id,
        (LetterSource::Dispatch(request), None) => request.msg.id(),
        (LetterSource::Send(request), None) => request.msg.id(),
        (LetterSource::Inbound(request), None) => {
            let Ok(msg_id) = store.find_by_external_id(&request.message.id).await else {
                return Ok(None);
            };
            let trace = store.trace(msg_id).await?;
            // Two providers may use the same id; then it is another tunnel's message.
            return Ok(Some(trace).filter(|it| it.letters.iter().any(|own| own.id == row.id)));
        }
        (LetterSource::Submitted { .. }, None) => return Ok(None),
    };
    store.trace(msg_id).await.map(Some)
}
