//! Files to be sent, and what became of them.

use async_trait::async_trait;
use monoco_core::letter::LetterStateData;
use monoco_core::object::MAX_TARGETS;
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::open::fault;
use super::{SqliteStore, deliveries, letters, objects};
use crate::{
    AcceptResult, DraftResult, DraftSendRequest, DraftStore, LetterSource, LetterSourceKind,
    PipelineRouting, SendResult, StoreError,
};

const OPEN: &str = "
    SELECT uid, provider, object
      FROM drafts
     WHERE open = 1
     ORDER BY uid
";

const ON_ITS_WAY: &str = "
    SELECT EXISTS (SELECT 1 FROM deliveries
                    WHERE object = ?1 AND state IN ('WAIT', 'SENDING', 'FAILED', 'HELD'))
";

/// Most letters that one may have become part of, one after the other.
const MERGES: usize = 100;

const ADD: &str = "
    INSERT INTO drafts (uid, provider, object, open) VALUES (?1, ?2, ?3, 1)
        ON CONFLICT (uid) DO NOTHING
";

fn settled(db: &Connection, limit: usize) -> Result<Vec<DraftResult>, StoreError> {
    let mut statement = db.prepare_cached(OPEN).map_err(fault)?;
    let mut rows = statement.query([]).map_err(fault)?;
    let mut fates = Vec::new();
    while fates.len() < limit
        && let Some(row) = rows.next().map_err(fault)?
    {
        let (uid, provider) = (row.get(0).map_err(fault)?, row.get(1).map_err(fault)?);
        let end = match end(db, row.get(2).map_err(fault)?)? {
            Some(end) => end,
            None => continue,
        };
        let (msg_id, _) = objects::body(db, end.object)?;
        let deliveries = deliveries::of_object(db, end.object, MAX_TARGETS)?;
        fates.push(DraftResult { uid, provider, msg_id, deliveries, ended: end.why });
    }
    Ok(fates)
}

/// How it ended with a draft.
struct DraftEnd {
    /// The object it became last.
    object: i64,
    /// Why it was never sent.
    why: Option<String>,
}

/// `None`: it is still on its way.
fn end(db: &Connection, mut object: i64) -> Result<Option<DraftEnd>, StoreError> {
    let mut letter = letters::accept::of_object(db, object, LetterSourceKind::Send)?;
    for _ in 0..MERGES {
        let Some(stub) = letter else { break };
        match stub.journey.standing {
            LetterStateData::Waiting { .. } | LetterStateData::Away { .. } => return Ok(None),
            LetterStateData::Trashed { why } | LetterStateData::Dead { why } => {
                return Ok(Some(DraftEnd { object, why: Some(why) }));
            }
            LetterStateData::Merged { into } => {
                letter = letters::rows::first(db, "l.seq = ?1", params![into.seq])?;
            }
            LetterStateData::Done => {
                object = stub.became.unwrap_or(object);
                break;
            }
        }
    }
    let mut statement = db.prepare_cached(ON_ITS_WAY).map_err(fault)?;
    let on_its_way: bool = statement.query_row([object], |row| row.get(0)).map_err(fault)?;
    Ok((!on_its_way).then_some(DraftEnd { object, why: None }))
}

/// The message that a draft became.
fn object_of(db: &Connection, uid: &str) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT object FROM drafts WHERE uid = ?1";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    statement.query_row([uid], |row| row.get(0)).optional().map_err(fault)
}

#[async_trait]
impl DraftStore for SqliteStore {
    async fn send_draft(
        &self,
        draft: DraftSendRequest,
        through: &PipelineRouting,
        now: Timestamp,
    ) -> Result<SendResult, StoreError> {
        let DraftSendRequest { uid, provider, post } = draft;
        let (msg_id, through) = (post.msg.id(), through.clone());
        let prepared = self.prepare(LetterSource::Send(post)).await?;
        self.writer
            .run(move |tx| {
                // A name stands for one message, whatever was written into the file since.
                if let Some(object) = object_of(tx.db, &uid)?
                    && let (first, _) = objects::body(tx.db, object)?
                    && first != msg_id
                {
                    return Err(StoreError::KeyReused(first.to_string()));
                }
                let posted = match letters::accept::accept(tx, &prepared, &through, now)? {
                    AcceptResult::Sent(posted) => posted,
                    AcceptResult::Letter { id: letter, duplicate, .. } => {
                        SendResult::Chained { msg_id, letter, duplicate }
                    }
                    AcceptResult::Inbound(_) | AcceptResult::Dispatched(_) => {
                        let why = "a draft was taken for something that came in";
                        return Err(StoreError::Unavailable(why.to_owned()));
                    }
                };
                if !matches!(posted, SendResult::BlockedAuthor { .. }) {
                    let object = objects::row_of(tx.db, tx.indexes.hashes.recent(), &msg_id)?;
                    let row = params![uid, provider, object];
                    tx.db.prepare_cached(ADD).and_then(|mut s| s.execute(row)).map_err(fault)?;
                }
                Ok(posted)
            })
            .await
    }

    async fn finished_drafts(&self, limit: usize) -> Result<Vec<DraftResult>, StoreError> {
        self.read(move |db| settled(db, limit)).await
    }

    async fn draft_exists(&self, uid: &str) -> Result<bool, StoreError> {
        let uid = uid.to_owned();
        self.read(move |db| Ok(object_of(db, &uid)?.is_some())).await
    }

    async fn close_draft(&self, uid: &str) -> Result<(), StoreError> {
        let uid = uid.to_owned();
        self.writer
            .run(move |tx| {
                let sql = "UPDATE drafts SET open = 0 WHERE uid = ?1";
                tx.db.prepare_cached(sql).and_then(|mut s| s.execute([&uid])).map_err(fault)?;
                Ok(())
            })
            .await
    }
}
