//! Files to be sent, and what became of them.

use async_trait::async_trait;
use monoco_core::object::MAX_TARGETS;
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::open::fault;
use super::{SqliteStore, center, deliveries, objects, rows};
use crate::{DraftFate, DraftPost, Drafts, Posted, StoreError};

// What is still on its way is found by the object, which leads the index.
const SETTLED: &str = "
    SELECT d.uid, d.provider, d.object
      FROM drafts d
     WHERE d.open = 1
       AND NOT EXISTS (SELECT 1 FROM deliveries w
                        WHERE w.object = d.object
                          AND w.state IN ('WAIT', 'SENDING', 'FAILED', 'HELD'))
     ORDER BY d.uid
     LIMIT ?1
";

const ADD: &str = "
    INSERT INTO drafts (uid, provider, object, open) VALUES (?1, ?2, ?3, 1)
        ON CONFLICT (uid) DO NOTHING
";

fn settled(db: &Connection, limit: usize) -> Result<Vec<DraftFate>, StoreError> {
    let mut statement = db.prepare_cached(SETTLED).map_err(fault)?;
    let rows = statement.query_map([rows::limit(limit)], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get::<_, i64>(2)?))
    });
    let found: Vec<(String, String, i64)> =
        rows.and_then(Iterator::collect::<rusqlite::Result<_>>).map_err(fault)?;
    found
        .into_iter()
        .map(|(uid, provider, object)| {
            let (msg_id, _) = objects::body(db, object)?;
            let deliveries = deliveries::of_object(db, object, MAX_TARGETS)?;
            Ok(DraftFate { uid, provider, msg_id, deliveries })
        })
        .collect()
}

/// The message that a draft became.
fn object_of(db: &Connection, uid: &str) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT object FROM drafts WHERE uid = ?1";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    statement.query_row([uid], |row| row.get(0)).optional().map_err(fault)
}

#[async_trait]
impl Drafts for SqliteStore {
    async fn post_draft(&self, draft: DraftPost, now: Timestamp) -> Result<Posted, StoreError> {
        let body = draft.post.msg.canonical();
        if body.len() > objects::INLINE {
            self.keep_large(draft.post.msg.id(), body.as_bytes()).await?;
        }
        self.writer
            .run(move |tx| {
                // A name stands for one message, whatever was written into the file since.
                if let Some(object) = object_of(tx.db, &draft.uid)?
                    && let (first, _) = objects::body(tx.db, object)?
                    && first != draft.post.msg.id()
                {
                    return Err(StoreError::KeyReused(first));
                }
                let posted = center::post(tx, &draft.post, now)?;
                if let Posted::OnItsWay { msg_id, .. } = &posted {
                    let object = objects::row_of(tx.db, tx.indexes.hashes.recent(), msg_id)?;
                    let row = params![draft.uid, draft.provider, object];
                    tx.db.prepare_cached(ADD).and_then(|mut s| s.execute(row)).map_err(fault)?;
                }
                Ok(posted)
            })
            .await
    }

    async fn settled_drafts(&self, limit: usize) -> Result<Vec<DraftFate>, StoreError> {
        self.read(move |db| settled(db, limit)).await
    }

    async fn knows_draft(&self, uid: &str) -> Result<bool, StoreError> {
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
