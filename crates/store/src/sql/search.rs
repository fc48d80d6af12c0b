//! What the search index reads: texts of messages, purges, erasures, and the state of hits.

use async_trait::async_trait;
use monoco_core::claim::{MailLocation, Workspace};
use monoco_core::delivery::SendState;
use monoco_core::object::ObjId;
use monoco_core::time::Timestamp;

use super::db::{Db, Row, RowResult, params};
use super::{SqlStore, claims, mails, objects, rows};
use crate::{
    MailRow, SearchHit, SearchStore, SearchableMessage, SearchablePage, StoreError, StoreResult,
};

/// Objects, changes or tombstones of one page. A body in a row has at most 64 KiB.
const MAX_ROWS_PER_PAGE: usize = 64;

/// Changes of Mails of one page. They have no bodies.
const MAX_CHANGES_PER_PAGE: usize = 1_000;

/// Columns of [`read`], in its order, for objects with the alias `o`.
const COLUMNS: &str = "
    o.seq, o.hash, o.kind, o.body, o.erased_at IS NOT NULL,
    coalesce((SELECT min(r.created_at) FROM records r WHERE r.object = o.seq),
             (SELECT min(d.created_at) FROM deliveries d WHERE d.object = o.seq),
             (SELECT min(l.created_at) FROM letters l WHERE l.object = o.seq)),
    EXISTS (SELECT 1 FROM records r WHERE r.object = o.seq)
    OR EXISTS (SELECT 1 FROM deliveries d WHERE d.object = o.seq)
";

const TUNNELS: &str = "
    SELECT t.name FROM records r JOIN tunnels t ON t.party = r.tunnel WHERE r.object = ?1
     UNION
    SELECT t.name FROM deliveries d JOIN tunnels t ON t.party = d.tunnel WHERE d.object = ?1
";

const PARTIES: &str = "
    SELECT p.did FROM records r JOIN parties p ON p.id = r.owner WHERE r.object = ?1
     UNION
    SELECT p.did FROM deliveries d JOIN parties p ON p.id = d.author WHERE d.object = ?1
     UNION
    SELECT p.did FROM deliveries d JOIN parties p ON p.id = d.tunnel WHERE d.object = ?1
";

const IS_SENT: &str = "
    SELECT EXISTS (SELECT 1 FROM records WHERE object = ?1 AND box = 'OUTBOX')
           OR EXISTS (SELECT 1 FROM deliveries WHERE object = ?1)
";

const ERASED: &str = "
    SELECT seq, coalesce(superseded_by, seq)
      FROM objects
     WHERE erased_at IS NOT NULL AND seq > ?1
     ORDER BY seq
     LIMIT ?2
";

/// An object with what search needs of the rows around it.
struct StoredMessage {
    seq: i64,
    hash: [u8; 32],
    kind: String,
    body: Option<Vec<u8>>,
    is_erased: bool,
    created_at: Option<i64>,
    /// It has a record or a delivery.
    is_placed: bool,
}

fn read(row: &Row<'_>) -> RowResult<StoredMessage> {
    Ok(StoredMessage {
        seq: row.get(0)?,
        hash: row.get(1)?,
        kind: row.get(2)?,
        body: row.get(3)?,
        is_erased: row.get(4)?,
        created_at: row.get(5)?,
        is_placed: row.get(6)?,
    })
}

fn by_seq(db: &Db, seq: i64) -> StoreResult<Option<StoredMessage>> {
    let sql = format!("SELECT {COLUMNS} FROM objects o WHERE o.seq = ?1");
    rows::optional(db, &sql, [seq], read)
}

fn tunnels(db: &Db, object: i64) -> StoreResult<Vec<String>> {
    rows::list(db, TUNNELS, [object], |row| row.get(0))
}

impl StoredMessage {
    fn mark(&self) -> (i64, i64) {
        (self.seq, objects::hash_prefix(&self.hash))
    }

    /// Splits off id and text; `None` when the object is erased, not a message or not UTF-8.
    fn text(&mut self) -> StoreResult<Option<(ObjId, Option<String>)>> {
        if self.is_erased || self.kind != "cymsg" {
            return Ok(None);
        }
        let id = objects::object_id(self.seq, self.hash, &self.kind)?;
        match self.body.take().map(String::from_utf8) {
            None => Ok(Some((id, None))),
            Some(Ok(text)) => Ok(Some((id, Some(text)))),
            Some(Err(_)) => Ok(None),
        }
    }

    /// Returns the message for the index; `None` when it must not be found.
    fn searchable(mut self, db: &Db) -> StoreResult<Option<SearchableMessage>> {
        let Some((id, body)) = self.text()? else { return Ok(None) };
        let mail = mails::of_object(db, self.seq);
        let mail = db.unless_damaged("Mail of object", self.seq, mail)?.flatten();
        let (at, tunnels) = match &mail {
            Some(mail) if mail.location == MailLocation::Removed => return Ok(None),
            Some(mail) => (Some(mail.entry.received_at), Some(vec![mail.entry.tunnel.to_string()])),
            None => {
                let tunnels = self.is_placed.then(|| tunnels(db, self.seq)).transpose()?;
                (self.created_at.map(Timestamp::from_ms), tunnels)
            }
        };
        Ok(Some(SearchableMessage { seq: self.seq, id, at, tunnels, body }))
    }

    /// Returns the message as a hit; `None` when it is not visible.
    fn hit(mut self, db: &Db, workspace: &Workspace) -> StoreResult<Option<SearchHit>> {
        let Some((id, body)) = self.text()? else { return Ok(None) };
        let mail = match mails::of_object(db, self.seq)? {
            Some(mail) if matches!(mail.location, MailLocation::Held | MailLocation::Removed) => {
                return Ok(None);
            }
            Some(mail) => {
                let claim = claims::find(db, &mail, workspace)?;
                Some(MailRow { entry: mail.entry, location: mail.location, claim })
            }
            None if self.is_placed => None,
            None => return Ok(None),
        };
        let sql = "SELECT state FROM deliveries WHERE object = ?1 ORDER BY seq";
        let deliveries: Vec<String> = rows::list(db, sql, [self.seq], |row| row.get(0))?;
        let (at, tunnels, is_sent) = match &mail {
            Some(row) => (Some(row.entry.received_at), vec![row.entry.tunnel.to_string()], false),
            None => (
                self.created_at.map(Timestamp::from_ms),
                tunnels(db, self.seq)?,
                rows::one(db, IS_SENT, [self.seq], |row| row.get(0))?,
            ),
        };
        Ok(Some(SearchHit {
            seq: self.seq,
            id,
            at,
            mail,
            is_sent,
            tunnels,
            deliveries: deliveries.iter().filter_map(|state| SendState::parse(state)).collect(),
            parties: rows::list(db, PARTIES, [self.seq], |row| row.get(0))?,
            body,
        }))
    }
}

#[async_trait]
impl SearchStore for SqlStore {
    async fn searchable_messages(&self, after: i64) -> StoreResult<SearchablePage> {
        self.read(move |db| {
            let sql =
                format!("SELECT {COLUMNS} FROM objects o WHERE o.seq > ?1 ORDER BY o.seq LIMIT ?2");
            let page = params![after, rows::limit(MAX_ROWS_PER_PAGE)];
            let mut found = SearchablePage::default();
            for message in rows::list(db, &sql, page, read)? {
                found.last = Some(message.mark());
                found.messages.extend(message.searchable(db)?);
            }
            Ok(found)
        })
        .await
    }

    async fn searchable_message(&self, seq: i64) -> StoreResult<Option<SearchableMessage>> {
        self.read(move |db| match by_seq(db, seq)? {
            Some(message) => message.searchable(db),
            None => Ok(None),
        })
        .await
    }

    async fn object_mark(&self, seq: Option<i64>) -> StoreResult<Option<(i64, i64)>> {
        self.read(move |db| {
            let newest = "SELECT coalesce(max(seq), 0) FROM objects";
            let seq = match seq {
                Some(seq) => seq,
                None => rows::one(db, newest, [], |row| row.get(0))?,
            };
            let sql = "SELECT seq, hash FROM objects WHERE seq = ?1";
            rows::optional(db, sql, [seq], |row| {
                let hash: [u8; 32] = row.get(1)?;
                Ok((row.get(0)?, objects::hash_prefix(&hash)))
            })
        })
        .await
    }

    async fn purged_messages(&self, after: i64) -> StoreResult<(Vec<i64>, i64)> {
        self.read(move |db| {
            let sql = "
                SELECT change, object, location FROM mails
                 WHERE change > ?1 ORDER BY change LIMIT ?2
            ";
            let page = params![after, rows::limit(MAX_CHANGES_PER_PAGE)];
            let changes: Vec<(i64, i64, String)> =
                rows::list(db, sql, page, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
            let last = changes.last().map_or(after, |(change, ..)| *change);
            let is_purged = |location: &str| location == MailLocation::Removed.as_str();
            let purged = changes.into_iter().filter(|(.., location)| is_purged(location));
            Ok((purged.map(|(_, object, _)| object).collect(), last))
        })
        .await
    }

    async fn erased_messages(&self, after: i64) -> StoreResult<Vec<(i64, i64)>> {
        self.read(move |db| {
            let page = params![after, rows::limit(MAX_ROWS_PER_PAGE)];
            rows::list(db, ERASED, page, |row| Ok((row.get(0)?, row.get(1)?)))
        })
        .await
    }

    async fn search_hits(
        &self,
        seqs: Vec<i64>,
        workspace: &Workspace,
    ) -> StoreResult<Vec<SearchHit>> {
        let workspace = workspace.clone();
        self.read(move |db| {
            let mut hits = Vec::with_capacity(seqs.len());
            for seq in seqs {
                let hit = match by_seq(db, seq) {
                    Ok(Some(message)) => message.hit(db, &workspace),
                    Ok(None) => Ok(None),
                    Err(error) => Err(error),
                };
                hits.extend(db.unless_damaged("object", seq, hit)?.flatten());
            }
            Ok::<_, StoreError>(hits)
        })
        .await
    }
}
