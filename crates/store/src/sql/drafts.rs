//! Drafts: messages that are sent from files, and their results.

use async_trait::async_trait;
use monoco_core::object::MAX_TARGETS;
use monoco_core::time::Timestamp;

use super::db::{Db, params};
use super::send::{self, SendProgress};
use super::{SqlStore, deliveries, letters, objects, rows};
use crate::{
    AcceptResult, DraftResult, DraftSendRequest, DraftStore, LetterSource, PipelineRouting,
    SendResult, StoreError, StoreResult,
};

const OPEN: &str = "
    SELECT uid, provider, object
      FROM drafts
     WHERE open = 1
     ORDER BY uid
";

const ANY_PENDING_DELIVERY: &str = "
    SELECT EXISTS (SELECT 1 FROM deliveries
                    WHERE object = ?1 AND state IN ('WAIT', 'SENDING', 'FAILED', 'HELD'))
";

const INSERT: &str = "
    INSERT INTO drafts (uid, provider, object, open) VALUES (?1, ?2, ?3, 1)
        ON CONFLICT (uid) DO NOTHING
";

/// The end of a draft.
struct DraftEnd {
    /// The message that was sent, or the draft's own message.
    object: i64,
    /// Why it was never sent.
    why: Option<String>,
}

/// Returns the end of the draft with this object, or `None` while it is pending.
fn end(db: &Db, object: i64) -> StoreResult<Option<DraftEnd>> {
    let object = match send::follow(db, object)? {
        SendProgress::InChain | SendProgress::Held => return Ok(None),
        SendProgress::Trashed { why, .. }
        | SendProgress::Dead { why, .. }
        | SendProgress::Rejected { why } => {
            return Ok(Some(DraftEnd { object, why: Some(why) }));
        }
        SendProgress::Queued(object) => object,
    };
    let pending: bool = rows::one(db, ANY_PENDING_DELIVERY, [object], |row| row.get(0))?;
    Ok((!pending).then_some(DraftEnd { object, why: None }))
}

/// Returns the result of a draft, or `None` while it is pending.
fn result(db: &Db, uid: &str, provider: &str, object: i64) -> StoreResult<Option<DraftResult>> {
    let Some(DraftEnd { object, why: ended }) = end(db, object)? else { return Ok(None) };
    let (uid, provider) = (uid.to_owned(), provider.to_owned());
    let msg_id = objects::id_of(db, object)?;
    let deliveries = deliveries::of_object(db, object, MAX_TARGETS)?;
    Ok(Some(DraftResult { uid, provider, msg_id, deliveries, ended }))
}

/// Returns the object of a draft, or `None` when there is no draft with this name.
fn object_of(db: &Db, uid: &str) -> StoreResult<Option<i64>> {
    rows::optional(db, "SELECT object FROM drafts WHERE uid = ?1", [uid], |row| row.get(0))
}

#[async_trait]
impl DraftStore for SqlStore {
    async fn send_draft(
        &self,
        draft: DraftSendRequest,
        routing: &PipelineRouting,
        now: Timestamp,
    ) -> StoreResult<SendResult> {
        let DraftSendRequest { uid, provider, post } = draft;
        let (msg_id, routing) = (post.msg.id(), routing.clone());
        let _lock = self.erasing.read().await;
        let prepared = self.prepare_letter(LetterSource::Send(post), now).await?;
        self.writer
            .run(move |tx| {
                // A name belongs to one message, whatever was written to the file since.
                if let Some(object) = object_of(tx.db, &uid)?
                    && let first = objects::id_of(tx.db, object)?
                    && first != msg_id
                {
                    return Err(StoreError::KeyReused(first.to_string()));
                }
                let result = match letters::accept::accept(tx, &prepared, &routing, now)? {
                    AcceptResult::Sent(result) => result,
                    AcceptResult::Letter { id: letter, duplicate, .. } => {
                        SendResult::Chained { msg_id, letter, duplicate }
                    }
                    AcceptResult::Inbound(_) | AcceptResult::Dispatched(_) => {
                        let why = "a draft was accepted as an inbound message";
                        return Err(StoreError::Unavailable(why.to_owned()));
                    }
                };
                if !matches!(result, SendResult::BlockedAuthor { .. }) {
                    let object = objects::seq_of(tx.db, tx.indexes.hashes.recent(), &msg_id)?;
                    rows::execute(tx.db, INSERT, params![uid, provider, object])?;
                }
                Ok(result)
            })
            .await
    }

    async fn finished_drafts(&self, limit: usize) -> StoreResult<Vec<DraftResult>> {
        self.read(move |db| {
            let mut results = Vec::new();
            if limit == 0 {
                return Ok(results);
            }
            rows::scan(db, limit, OPEN, [], |row| {
                let uid: String = row.get(0)?;
                let provider: String = row.get(1)?;
                let result = result(db, &uid, &provider, row.get(2)?);
                results.extend(db.unless_damaged("draft", &uid, result)?.flatten());
                Ok(results.len() < limit)
            })?;
            Ok(results)
        })
        .await
    }

    async fn draft_exists(&self, uid: &str) -> StoreResult<bool> {
        let uid = uid.to_owned();
        self.read(move |db| Ok(object_of(db, &uid)?.is_some())).await
    }

    async fn close_draft(&self, uid: &str) -> StoreResult<()> {
        let uid = uid.to_owned();
        self.writer
            .run(move |tx| {
                rows::execute(tx.db, "UPDATE drafts SET open = 0 WHERE uid = ?1", [&uid])?;
                Ok(())
            })
            .await
    }
}
