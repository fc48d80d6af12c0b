//! Objects: stored once, found by their hash.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use monoco_core::inbound::StoredBytes;
use monoco_core::object::{MsgObject, ObjId, ObjKind};
use monoco_core::record::{RecordId, RecordKind};
use monoco_core::short_id::ShortId;
use monoco_core::time::Timestamp;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::bulk_index::{BulkTable, RecentEntries};
use super::db::{Db, Row, RowResult, params};
use super::writer::Tx;
use super::{SqlStore, blob_size, external_ids, put_blob_row, require_file, rows, short_ids};
use crate::blobs::{BlobStorage, BlobWriter};
use crate::{BlobReader, DeliveryStore, ObjectStore, RecordStore, StoreError, StoreResult};

/// Larger bodies are stored in files. A row of this size takes a handful of pages.
pub(super) const MAX_INLINE_BYTES: usize = 64 * 1024;

/// Bytes of an attachment that are in memory while it is stored.
const MAX_PART_BYTES: usize = 256 * 1024;

/// Objects by the first eight bytes of their hash. Lookups compare the rest.
pub(super) const HASHES: BulkTable = BulkTable {
    name: "object_hashes",
    insert: "
        INSERT INTO object_hashes (hash_prefix, object) VALUES (?1, ?2) ON CONFLICT DO NOTHING
    ",
    rows_after: "SELECT seq, hash FROM objects WHERE seq > ?1",
    key: |row| row.get::<[u8; 32]>(1).map(|hash| hash_prefix(&hash)),
    is_postgres_view: true,
};

const HAS_HASH: &str = "
    SELECT seq
      FROM objects
     WHERE seq = ?1 AND hash = ?2
";

const FIND: &str = "
    SELECT o.seq
      FROM object_hashes h
      JOIN objects o ON o.seq = h.object
     WHERE h.hash_prefix = ?1 AND o.hash = ?2
";

const INSERT: &str = "
    INSERT INTO objects (hash, kind, body)
    VALUES (?1, ?2, ?3)
";

// The objects of a batch, on PostgreSQL only.
const FIND_MANY: &str = "
    SELECT h.hash_prefix, o.hash, o.seq, o.superseded_by, o.kind
      FROM object_hashes h
      JOIN objects o ON o.seq = h.object
     WHERE h.hash_prefix = ANY (CAST(string_to_array(?1, ',') AS BIGINT[]))
";

/// Columns of the text of an object `o`, and of the object that supersedes it.
pub(super) const BODY_COLUMNS: &str = "o.hash, o.kind, o.body, o.erased_at, n.hash, n.kind";
pub(super) const SUPERSEDING: &str = "LEFT JOIN objects n ON n.seq = o.superseded_by";

const SUPERSEDED_BY: &str = "SELECT coalesce(superseded_by, seq) FROM objects WHERE seq = ?1";

// Half of a SHA-256 is enough to identify a message. The records of a superseded Mail belong to
// the Mail that supersedes it.
const HAS_HALF_HASH: &str = "
    SELECT coalesce(superseded_by, seq)
      FROM objects
     WHERE seq = ?1 AND substr(hash, 1, 16) = ?2 AND kind = 'cymsg'
";

const FIND_BY_HALF_HASH: &str = "
    SELECT coalesce(o.superseded_by, o.seq)
      FROM object_hashes h
      JOIN objects o ON o.seq = h.object
     WHERE h.hash_prefix = ?1 AND substr(o.hash, 1, 16) = ?2 AND o.kind = 'cymsg'
";

/// What is known about objects by the start of their hashes, in one transaction.
#[derive(Default)]
pub(super) struct KnownObjects {
    /// All stored objects whose hashes start with one of some prefixes. Inserted objects are added,
    /// so that it stays complete.
    known: HashMap<i64, Vec<KnownObject>>,
    /// Prefixes of messages that are assumed not to be stored.
    assumed_new: HashSet<i64>,
    /// Objects that were inserted by such an assumption.
    inserted: HashMap<[u8; 32], i64>,
}

struct KnownObject {
    hash: [u8; 32],
    seq: i64,
    superseded_by: Option<i64>,
    is_message: bool,
}

impl KnownObjects {
    /// Forgets all, at the end of a transaction and when an object is superseded.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Assumes that messages are not stored. The insert of one that is fails.
    pub(super) fn assume_new(&mut self, prefixes: impl Iterator<Item = i64>) {
        self.assumed_new.extend(prefixes);
    }

    /// Adds an object that was inserted.
    fn insert(&mut self, id: &ObjId, seq: i64) {
        let prefix = hash_prefix(id.hash());
        if let Some(known) = self.known.get_mut(&prefix) {
            let is_message = id.kind() == ObjKind::Msg;
            known.push(KnownObject { hash: *id.hash(), seq, superseded_by: None, is_message });
        } else if self.assumed_new.contains(&prefix) {
            self.inserted.insert(*id.hash(), seq);
        }
    }
}

/// Looks up the objects whose hashes start with these prefixes. One alone is found as fast when it
/// is needed.
pub(super) fn look_up(db: &Db, known: &mut KnownObjects, prefixes: Vec<i64>) -> StoreResult<()> {
    if prefixes.len() < 2 {
        return Ok(());
    }
    let texts: Vec<String> = prefixes.iter().map(i64::to_string).collect();
    let found = rows::list(db, FIND_MANY, [texts.join(",")], |row| {
        let (superseded_by, kind): (_, String) = (row.get(3)?, row.get(4)?);
        let is_message = kind == ObjKind::Msg.prefix();
        let (hash, seq) = (row.get(1)?, row.get(2)?);
        Ok((row.get(0)?, KnownObject { hash, seq, superseded_by, is_message }))
    })?;
    known.known.extend(prefixes.into_iter().map(|prefix| (prefix, Vec::new())));
    for (prefix, object) in found {
        known.known.entry(prefix).or_default().push(object);
    }
    Ok(())
}

/// Like [`find`], in the writer.
pub(super) fn find_in_tx(tx: &Tx<'_>, id: &ObjId) -> StoreResult<Option<i64>> {
    match tx.cache.objects.known.get(&hash_prefix(id.hash())) {
        Some(known) => {
            Ok(known.iter().find(|object| object.hash == *id.hash()).map(|object| object.seq))
        }
        None => find(tx.db, tx.indexes.hashes.recent(), id),
    }
}

/// Returns the row of a message whose insert follows if there is none: it can be assumed that there
/// is none.
pub(super) fn find_before_insert(tx: &Tx<'_>, id: &ObjId) -> StoreResult<Option<i64>> {
    let objects = &tx.cache.objects;
    match objects.inserted.get(id.hash()) {
        Some(seq) => Ok(Some(*seq)),
        None if objects.assumed_new.contains(&hash_prefix(id.hash())) => Ok(None),
        None => find_in_tx(tx, id),
    }
}

/// Like [`find_by_half_hash`], in the writer.
pub(super) fn find_by_half_hash_in_tx(tx: &Tx<'_>, half: &[u8; 16]) -> StoreResult<Option<i64>> {
    match tx.cache.objects.known.get(&hash_prefix(half)) {
        Some(known) => {
            let mut messages = known.iter().filter(|object| object.is_message);
            let found = messages.find(|object| object.hash.starts_with(half));
            Ok(found.map(|object| object.superseded_by.unwrap_or(object.seq)))
        }
        None => find_by_half_hash(tx.db, tx.indexes.hashes.recent(), half),
    }
}

/// Returns the row of an object, or `None` when it is not stored.
pub(super) fn find(db: &Db, recent: &RecentEntries, id: &ObjId) -> StoreResult<Option<i64>> {
    find_by_hash(db, recent, id.hash(), HAS_HASH, FIND)
}

/// Returns the row of the message whose hash starts with `half`.
pub(super) fn find_by_half_hash(
    db: &Db,
    recent: &RecentEntries,
    half: &[u8; 16],
) -> StoreResult<Option<i64>> {
    find_by_hash(db, recent, half, HAS_HALF_HASH, FIND_BY_HALF_HASH)
}

/// Checks the candidates for `hash` in memory, then those in the table.
fn find_by_hash(
    db: &Db,
    recent: &RecentEntries,
    hash: &[u8],
    check_row: &str,
    find_in_table: &str,
) -> StoreResult<Option<i64>> {
    let query = |sql: &str, key: i64| rows::optional(db, sql, params![key, hash], |row| row.get(0));
    let key = hash_prefix(hash);
    for seq in recent.rows(key) {
        if let Some(seq) = query(check_row, seq)? {
            return Ok(Some(seq));
        }
    }
    query(find_in_table, key)
}

/// Returns the row of an object that must exist, or of the one that supersedes it.
pub(super) fn seq_of(db: &Db, recent: &RecentEntries, id: &ObjId) -> StoreResult<i64> {
    let missing = || StoreError::Missing { what: "object", key: id.to_string() };
    let seq = find(db, recent, id)?.ok_or_else(missing)?;
    rows::one(db, SUPERSEDED_BY, [seq], |row| row.get(0))
}

/// Inserts an object that is not stored yet. `body` is `None` when it is in a file.
pub(super) fn insert(tx: &mut Tx<'_>, id: &ObjId, body: Option<&str>) -> StoreResult<i64> {
    let row = params![id.hash(), id.kind().prefix(), body.map(str::as_bytes)];
    let seq = rows::insert(tx.db, INSERT, row)?;
    tx.indexes.hashes.add(tx.db, hash_prefix(id.hash()), seq)?;
    tx.cache.objects.insert(id, seq);
    Ok(seq)
}

/// Inserts a message unless `known` is its row. Returns its row.
///
/// # Errors
///
/// [`StoreError::Erased`] when the message was erased: its text must not come back.
pub(super) fn insert_message(
    tx: &mut Tx<'_>,
    known: Option<i64>,
    msg: &MsgObject,
) -> StoreResult<i64> {
    if let Some(object) = known {
        check_text(tx.db, object)?;
        return Ok(object);
    }
    // A larger one is already in a file, see `SqlStore::put_large_message`.
    let body = Some(msg.canonical()).filter(|body| body.len() <= MAX_INLINE_BYTES);
    if body.is_none() {
        require_file(tx, &msg.id())?;
    }
    insert(tx, &msg.id(), body)
}

/// Id and body of an object, or the error that it was erased.
pub(super) type ObjectBody = StoreResult<(ObjId, Option<Vec<u8>>)>;

/// The columns of one object.
struct StoredObject {
    id: ObjId,
    body: Option<Vec<u8>>,
    erased: Option<(Timestamp, Option<ObjId>)>,
}

fn read(db: &Db, seq: i64) -> StoreResult<StoredObject> {
    let sql = format!("SELECT {BODY_COLUMNS} FROM objects o {SUPERSEDING} WHERE o.seq = ?1");
    rows::one(db, &sql, [seq], |row| read_columns(row, 0))?.check(seq)
}

/// The values of [`BODY_COLUMNS`], whose kinds are not checked.
pub(super) struct ObjectColumns {
    hash: [u8; 32],
    kind: String,
    body: Option<Vec<u8>>,
    erased_at: Option<i64>,
    new: Option<([u8; 32], String)>,
}

/// Reads [`BODY_COLUMNS`], which start at the column `first`.
pub(super) fn read_columns(row: &Row<'_>, first: usize) -> RowResult<ObjectColumns> {
    let (new_hash, new_kind): (Option<[u8; 32]>, Option<String>) =
        (row.get(first + 4)?, row.get(first + 5)?);
    Ok(ObjectColumns {
        hash: row.get(first)?,
        kind: row.get(first + 1)?,
        body: row.get(first + 2)?,
        erased_at: row.get(first + 3)?,
        new: new_hash.zip(new_kind),
    })
}

impl ObjectColumns {
    /// The size of a body that is in its row.
    pub(super) fn body_bytes(&self) -> usize {
        self.body.as_ref().map_or(0, Vec::len)
    }

    fn check(self, seq: i64) -> StoreResult<StoredObject> {
        let Self { hash, kind, body, erased_at, new } = self;
        let by = new.map(|(hash, kind)| object_id(seq, hash, &kind)).transpose()?;
        let erased = erased_at.map(|at| (Timestamp::from_ms(at), by));
        Ok(StoredObject { id: object_id(seq, hash, &kind)?, body, erased })
    }

    /// Like [`body_or_erased`], of the columns of the object `seq`.
    pub(super) fn body_or_erased(self, seq: i64) -> StoreResult<ObjectBody> {
        Ok(self.check(seq)?.body())
    }
}

impl StoredObject {
    fn body(self) -> ObjectBody {
        match self.erased {
            Some((at, by)) => Err(StoreError::Erased { key: self.id.to_string(), at, by }),
            None => Ok((self.id, self.body)),
        }
    }
}

/// Combines the columns `hash` and `kind`.
pub(super) fn object_id(seq: i64, hash: [u8; 32], kind: &str) -> StoreResult<ObjId> {
    let kind = match kind {
        "cymsg" => ObjKind::Msg,
        "cymsgr" => ObjKind::Receipt,
        other => {
            let detail = format!("row {seq} has the unknown kind {other:?}");
            return Err(StoreError::Damaged { what: "object", detail });
        }
    };
    Ok(ObjId::from_parts(kind, hash))
}

/// Returns the id of an object, which can be erased.
pub(super) fn id_of(db: &Db, seq: i64) -> StoreResult<ObjId> {
    read(db, seq).map(|object| object.id)
}

/// Returns id and body of an object, without checking the hash. The body is `None` when it is
/// in a file.
///
/// # Errors
///
/// [`StoreError::Erased`] when the object has no text any more.
pub(super) fn body(db: &Db, seq: i64) -> StoreResult<(ObjId, Option<Vec<u8>>)> {
    read(db, seq)?.body()
}

/// Like [`body`]. The inner error is [`StoreError::Erased`], so that the caller can still commit.
pub(super) fn body_or_erased(db: &Db, seq: i64) -> StoreResult<ObjectBody> {
    match body(db, seq) {
        Err(error @ StoreError::Erased { .. }) => Ok(Err(error)),
        body => body.map(Ok),
    }
}

/// Rejects an object that was erased.
fn check_text(db: &Db, seq: i64) -> StoreResult<()> {
    let sql = "SELECT erased_at IS NOT NULL FROM objects WHERE seq = ?1";
    if rows::one(db, sql, [seq], |row| row.get(0))? { body(db, seq).map(drop) } else { Ok(()) }
}

/// Whether an object is a tombstone.
pub(super) fn is_erased(db: &Db, recent: &RecentEntries, id: &ObjId) -> StoreResult<bool> {
    let Some(seq) = find(db, recent, id)? else { return Ok(false) };
    let sql = "SELECT erased_at IS NOT NULL FROM objects WHERE seq = ?1";
    rows::one(db, sql, [seq], |row| row.get(0))
}

/// The part of a hash that is indexed.
pub(super) fn hash_prefix(hash: &[u8]) -> i64 {
    let first = hash.first_chunk().copied().unwrap_or_default();
    i64::from_be_bytes(first)
}

impl SqlStore {
    /// Writes bytes to a file that has no name yet, while they are read.
    pub(super) async fn write_stream(
        &self,
        bytes: &mut (dyn AsyncRead + Send + Unpin),
        limit: u64,
    ) -> StoreResult<BlobWriter> {
        let mut file = self.write_blob(|blobs| blobs.start()).await?;
        let (mut part, mut size) = (Vec::with_capacity(MAX_PART_BYTES), 0);
        loop {
            part.clear();
            let mut limited = (&mut *bytes).take(MAX_PART_BYTES as u64);
            let read = limited.read_to_end(&mut part).await;
            let read = read.map_err(|error| StoreError::SourceFailed(error.to_string()))?;
            if read == 0 {
                break;
            }
            size += read as u64;
            if size > limit {
                return Err(StoreError::TooLarge(limit));
            }
            let write = self.write_blob(move |_| {
                file.append(&part)?;
                Ok((file, part))
            });
            (file, part) = write.await?;
        }
        Ok(file)
    }
}

#[async_trait]
impl ObjectStore for SqlStore {
    async fn object(&self, id: ObjId) -> StoreResult<Vec<u8>> {
        if id.kind() == ObjKind::Bytes {
            return self.verified_bytes(id, None).await;
        }
        let missing = move || StoreError::Missing { what: "object", key: id.to_string() };
        let (stored, bytes) = self
            .read_by_hash(move |db, recent| body(db, find(db, recent, &id)?.ok_or_else(missing)?))
            .await?;
        if stored != id {
            return Err(StoreError::Missing { what: "object", key: id.to_string() });
        }
        self.verified_bytes(id, bytes).await
    }

    async fn small_objects(&self, ids: Vec<ObjId>) -> StoreResult<HashMap<ObjId, Vec<u8>>> {
        self.read_by_hash(move |db, recent| {
            let mut found = HashMap::with_capacity(ids.len());
            for id in ids {
                // An object that is merged into the index meanwhile is left out.
                let Some(seq) = find(db, recent, &id)? else { continue };
                if let Ok((stored, Some(bytes))) = body(db, seq)
                    && stored == id
                    && ObjId::of(id.kind(), &bytes) == id
                {
                    found.insert(id, bytes);
                }
            }
            Ok(found)
        })
        .await
    }

    async fn put_blob(&self, bytes: Vec<u8>) -> StoreResult<ObjId> {
        let id = ObjId::of(ObjKind::Bytes, &bytes);
        self.put_file(id, bytes).await?;
        Ok(id)
    }

    async fn put_blobs(&self, blobs: Vec<Vec<u8>>) -> StoreResult<()> {
        if blobs.is_empty() {
            return Ok(());
        }
        let named = move |files: &dyn BlobStorage| {
            let named = |bytes: Vec<u8>| (ObjId::of(ObjKind::Bytes, &bytes), bytes);
            let blobs: Vec<_> = blobs.into_iter().map(named).collect();
            files.put_all(&blobs)
        };
        let written = Arc::new(self.write_blob(named).await?);
        if self.is_shared() {
            return Ok(());
        }
        let written = move |tx: &mut Tx<'_>| {
            for file in &*written {
                if blob_size(tx.db, &file.hash)? != Some(rows::signed(file.size)) {
                    put_blob_row(tx, file)?;
                }
            }
            Ok(())
        };
        self.writer.run(written).await
    }

    async fn put_blob_from(
        &self,
        bytes: &mut (dyn AsyncRead + Send + Unpin),
        limit: u64,
    ) -> StoreResult<StoredBytes> {
        let file = self.write_stream(bytes, limit).await?;
        let stored = self.write_blob(move |blobs| blobs.finish(file)).await?;
        self.put_file_row(stored).await?;
        Ok(stored)
    }

    async fn open_blob(&self, id: ObjId) -> StoreResult<BlobReader> {
        let missing = || StoreError::Missing { what: "object", key: id.to_string() };
        if id.kind() != ObjKind::Bytes {
            return Err(missing());
        }
        let blobs = Arc::clone(&self.blobs);
        let open = tokio::task::spawn_blocking(move || blobs.open_file(&id));
        let opened = open.await.map_err(|_| super::closed())?;
        opened.map_err(super::disk_error)?.ok_or_else(missing)
    }

    async fn object_of_record(&self, id: RecordId) -> StoreResult<ObjId> {
        match id.kind() {
            RecordKind::Record => self.record(id).await.map(|record| record.msg_id),
            RecordKind::Delivery => self.delivery(id).await.map(|delivery| delivery.msg_id),
        }
    }

    async fn find_ids(&self, short: &ShortId, limit: usize) -> StoreResult<Vec<String>> {
        let short = short.clone();
        self.read_by_hash(move |db, recent| short_ids::find(db, recent, &short, limit)).await
    }

    async fn find_by_external_id(&self, external_id: &str) -> StoreResult<ObjId> {
        let external_id = external_id.to_owned();
        let recent = Arc::clone(&self.recent.external_ids);
        self.read(move |db| {
            let missing = |what| StoreError::Missing { what, key: external_id.clone() };
            let object = match external_ids::find(db, &recent, &external_id, None)? {
                Some((_, 0)) => return Err(missing("Mail yet of the message")),
                Some((_, object)) => Some(object),
                None => {
                    let sql = "
                        SELECT object FROM deliveries WHERE external_msg_id = ?1
                         UNION ALL
                        SELECT d.object
                          FROM delivery_parts p JOIN deliveries d ON d.seq = p.delivery
                         WHERE p.external_msg_id = ?1
                         LIMIT 1
                    ";
                    rows::optional(db, sql, [&external_id], |row| row.get(0))?
                }
            };
            id_of(db, object.ok_or_else(|| missing("message with the external id"))?)
        })
        .await
    }
}
