//! External ids: the message ids of providers, by which repeated messages are recognised. Where
//! an id does not suffice, the hash of the body identifies the message as well.

use std::collections::HashMap;

use monoco_core::inbound::BodyHash;
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::time::Timestamp;

use super::bulk_index::{BulkTable, RecentEntries};
use super::db::{Db, params};
use super::writer::Tx;
use super::{objects, rows};
use crate::StoreResult;

/// External ids by the first eight bytes of their hash. Lookups compare the id.
pub(super) const EXTERNAL_IDS: BulkTable = BulkTable {
    name: "external_ids",
    insert: "
        INSERT INTO external_ids_by_hash (hash_prefix, external_id) VALUES (?1, ?2)
            ON CONFLICT DO NOTHING
    ",
    rows_after: "SELECT seq, external_id FROM external_ids WHERE seq > ?1",
    key: |row| row.get_str(1).map(hash_prefix),
    is_postgres_view: false,
};

const HAS_ID: &str = "
    SELECT seq, object
      FROM external_ids
     WHERE seq = ?1 AND external_id = ?2 AND (CAST(?3 AS BIGINT) IS NULL OR tunnel = ?3)
";

const FIND: &str = "
    SELECT e.seq, e.object
      FROM external_ids_by_hash h
      JOIN external_ids e ON e.seq = h.external_id
     WHERE h.hash_prefix = ?1 AND e.external_id = ?2 AND (CAST(?3 AS BIGINT) IS NULL OR e.tunnel = ?3)
     ORDER BY h.external_id
     LIMIT 1
";

// The external ids of a batch, on PostgreSQL only.
const FIND_MANY: &str = "
    SELECT h.hash_prefix, e.tunnel, e.external_id, e.seq, e.object
      FROM external_ids_by_hash h
      JOIN external_ids e ON e.seq = h.external_id
     WHERE h.hash_prefix = ANY (CAST(string_to_array(?1, ',') AS BIGINT[]))
     ORDER BY h.external_id
";

const FIND_BODY: &str = "
    SELECT e.object
      FROM body_hashes b
      JOIN external_ids e ON e.seq = b.external_id
     WHERE b.tunnel = ?1 AND b.hash = ?2 AND (b.expires_at IS NULL OR b.expires_at > ?3)
";

// An expired row is replaced.
const INSERT_BODY: &str = "
    INSERT INTO body_hashes (tunnel, hash, external_id, expires_at)
    VALUES (?1, ?2, ?3, ?4)
        ON CONFLICT (tunnel, hash) DO UPDATE
       SET external_id = excluded.external_id, expires_at = excluded.expires_at
";

// Each insert adds at most one row, so that expired rows do not accumulate.
const DELETE_EXPIRED_BODIES: &str = "
    DELETE FROM body_hashes
     WHERE (tunnel, hash) IN (
           SELECT tunnel, hash FROM body_hashes WHERE expires_at <= ?1 ORDER BY expires_at LIMIT 4
     )
";

/// All external ids whose hashes start with one of some prefixes, in one transaction. Inserted ids are
/// added, so that it stays complete.
#[derive(Default)]
pub(super) struct KnownExternalIds(HashMap<i64, Vec<KnownExternalId>>);

struct KnownExternalId {
    tunnel: i64,
    external_id: String,
    seq: i64,
    object: i64,
}

impl KnownExternalIds {
    /// Forgets all, at the end of a transaction and when ids get their objects.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Looks up external ids by the prefixes of their hashes. One alone is found as fast when it is
/// needed.
pub(super) fn look_up(
    db: &Db,
    known: &mut KnownExternalIds,
    prefixes: Vec<i64>,
) -> StoreResult<()> {
    if prefixes.len() < 2 {
        return Ok(());
    }
    let texts: Vec<String> = prefixes.iter().map(i64::to_string).collect();
    let found = rows::list(db, FIND_MANY, [texts.join(",")], |row| {
        let (tunnel, external_id) = (row.get(1)?, row.get(2)?);
        let (seq, object) = (row.get(3)?, row.get(4)?);
        Ok((row.get(0)?, KnownExternalId { tunnel, external_id, seq, object }))
    })?;
    known.0.extend(prefixes.into_iter().map(|prefix| (prefix, Vec::new())));
    for (prefix, id) in found {
        known.0.entry(prefix).or_default().push(id);
    }
    Ok(())
}

/// Like [`find`] for an id of one tunnel, in the writer.
pub(super) fn find_in_tx(
    tx: &Tx<'_>,
    external_id: &str,
    tunnel: i64,
) -> StoreResult<Option<(i64, i64)>> {
    match tx.cache.external_ids.0.get(&hash_prefix(external_id)) {
        Some(known) => {
            let is_it =
                |it: &&KnownExternalId| it.tunnel == tunnel && it.external_id == external_id;
            Ok(known.iter().find(is_it).map(|it| (it.seq, it.object)))
        }
        None => find(tx.db, tx.indexes.external_ids.recent(), external_id, Some(tunnel)),
    }
}

/// Inserts an external id of a tunnel. `object` is 0 while there is no message for it.
pub(super) fn insert(
    tx: &mut Tx<'_>,
    tunnel: i64,
    external_id: &str,
    object: i64,
) -> StoreResult<i64> {
    let sql = "INSERT INTO external_ids (tunnel, external_id, object) VALUES (?1, ?2, ?3)";
    let seq = rows::insert(tx.db, sql, params![tunnel, external_id, object])?;
    let prefix = hash_prefix(external_id);
    tx.indexes.external_ids.add(tx.db, prefix, seq)?;
    if let Some(known) = tx.cache.external_ids.0.get_mut(&prefix) {
        let external_id = external_id.to_owned();
        known.push(KnownExternalId { tunnel, external_id, seq, object });
    }
    Ok(seq)
}

/// Stores which message an external id became.
pub(super) fn set_object(tx: &mut Tx<'_>, seq: i64, object: i64) -> StoreResult<()> {
    tx.cache.external_ids.clear();
    rows::execute(tx.db, "UPDATE external_ids SET object = ?2 WHERE seq = ?1", [seq, object])?;
    Ok(())
}

/// Finds an external id of one tunnel, or of any. Returns its row and the row of its object.
pub(super) fn find(
    db: &Db,
    recent: &RecentEntries,
    external_id: &str,
    tunnel: Option<i64>,
) -> StoreResult<Option<(i64, i64)>> {
    let query = |sql: &str, key: i64| {
        let row = params![key, external_id, tunnel];
        rows::optional(db, sql, row, |row| Ok((row.get(0)?, row.get(1)?)))
    };
    let key = hash_prefix(external_id);
    for seq in recent.rows(key) {
        if let Some(found) = query(HAS_ID, seq)? {
            return Ok(Some(found));
        }
    }
    query(FIND, key)
}

/// Finds a message of a tunnel by the hash of its body. Returns the row of its object.
pub(super) fn find_body(
    db: &Db,
    tunnel: i64,
    body: &BodyHash,
    now: Timestamp,
) -> StoreResult<Option<i64>> {
    rows::optional(db, FIND_BODY, params![tunnel, body.hash, now.ms()], |row| row.get(0))
}

/// Stores the hash of the body of a message that `external_id` identifies and that was received
/// at `received_at`.
pub(super) fn insert_body(
    tx: &Tx<'_>,
    tunnel: i64,
    body: &BodyHash,
    external_id: i64,
    received_at: Timestamp,
) -> StoreResult<()> {
    let expires_at = body.window.map(|window| (received_at + window).ms());
    rows::execute(tx.db, DELETE_EXPIRED_BODIES, [received_at.ms()])?;
    rows::execute(tx.db, INSERT_BODY, params![tunnel, body.hash, external_id, expires_at])?;
    Ok(())
}

pub(super) fn hash_prefix(external_id: &str) -> i64 {
    objects::hash_prefix(ObjId::of(ObjKind::Bytes, external_id.as_bytes()).hash())
}
